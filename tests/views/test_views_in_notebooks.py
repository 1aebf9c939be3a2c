"""Views as the last value of a cell: nbval compares their text, and Jupyter gets text, picture and widget."""

import base64
import subprocess
import sys

import nbclient
import nbformat
import pytest

CELLS = [
    "import numpy as np\nimport collectlab as cl\nfrom collectlab.layout import Partition, RankMap",
    "cl.views.ownership('reduce_scatter', [np.array([1, 2, 3, 4]), np.array([10, 20, 30, 40])])",
    "counter = cl.views.payload_counter()\ncounter",
    "counter.set(operation='all_gather', library='MPI')",
    "cl.views.rank_map(RankMap(['A', 'B']), Partition.equal(8, 2)).swap(0, 1)",
    "print(counter)",
]
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """A notebook with the outputs that a kernel gave it: its path."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    nbclient.NotebookClient(book, kernel_name="python3", timeout=120, store_widget_state=False).execute()
    path = tmp_path_factory.mktemp("notebook") / "views.ipynb"
    nbformat.write(book, path)
    return path


def test_each_view_gives_text_picture_and_widget(notebook):
    cells = nbformat.read(notebook, as_version=4).cells
    for cell in cells[1:5]:
        (output,) = cell.outputs
        assert set(output.data) == {"text/plain", "image/png", WIDGET}
        assert base64.b64decode(output.data["image/png"]).startswith(b"\x89PNG")
        assert len(output.data["image/png"]) < 60_000
        assert output.metadata["image/png"]["alt"]
    (printed,) = cells[5].outputs
    assert printed.text.rstrip("\n") == cells[3].outputs[0].data["text/plain"]


def test_nbval_finds_the_same_outputs_twice_and_a_text_that_differs(notebook):
    book = nbformat.read(notebook, as_version=4)
    nbformat.write(book, notebook.with_name("again.ipynb"))
    data = book.cells[4].outputs[0].data
    assert "rank 0 with 0:4" in data["text/plain"]
    data["text/plain"] = data["text/plain"].replace("rank 0 with 0:4", "rank 0 with 4:8", 1)
    nbformat.write(book, notebook.with_name("differs.ipynb"))
    command = [sys.executable, "-m", "pytest", "--nbval", "-p", "no:cacheprovider", "-q", "-rf"]
    done = subprocess.run(
        [*command, "views.ipynb", "again.ipynb", "differs.ipynb"],
        cwd=notebook.parent, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert f"1 failed, {3 * len(CELLS) - 1} passed" in done.stdout, done.stdout + done.stderr
    assert "FAILED differs.ipynb::Cell 4" in done.stdout, done.stdout

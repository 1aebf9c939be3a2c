"""Every notebook of the course in JupyterLab: some are run to their end there, the others opened as they are kept."""

import shutil
from pathlib import Path

import nbformat
import pytest

pytestmark = pytest.mark.needs("browser")

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))
RUN = ("00", "09")


def code_cells(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def captions(cells):
    """{number of the cell: what its view says}, of views that say the same each time."""
    found = {}
    for number, cell in enumerate(cells):
        if "nbval-ignore-output" not in cell.metadata.get("tags", ()):
            for output in cell.outputs:
                if alt := output.get("metadata", {}).get("image/png", {}).get("alt"):
                    found[number] = alt
    return found


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path.stem[:2] in RUN], ids=lambda path: path.stem[:2])
def test_run_all(path, opened, expect, shots):
    cells = code_cells(path)
    said = captions(cells)
    tab = opened(path.name)
    expect(tab.cells).to_have_count(len(cells))
    tab.run_all(seconds=300)
    expect(tab.cells.last.locator(".jp-InputPrompt")).not_to_have_text("[ ]:")
    for number in said:
        view = tab.cells.nth(number)
        view.scroll_into_view_if_needed()
        view.locator(".widget-image").evaluate("image => image.decode()")
        tab.page.screenshot(path=shots / f"{path.stem[:2]}-cell-{number}.png")
    assert said and {n: tab.cells.nth(n).locator(".widget-html p").first.text_content() for n in said} == said
    assert tab.faults == []


@pytest.fixture(scope="module")
def kept(course):
    """The committed notebooks, with their outputs, where the server finds them."""
    shutil.copytree(NOTEBOOKS[0].parent, course.folder / "kept")
    return "kept"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem[:2])
def test_opened_as_it_is_kept(path, kept, opened, expect, shots):
    cells = code_cells(path)
    tab = opened(f"{kept}/{path.name}")
    expect(tab.cells).to_have_count(len(cells))
    pictures = [n for n, cell in enumerate(cells) for output in cell.outputs if "image/png" in output.get("data", ())]
    images = tab.page.locator(".jp-CodeCell .jp-RenderedImage img")
    expect(images).to_have_count(len(pictures))
    for image in images.all():
        image.evaluate("image => image.decode()")
    for number, cell in enumerate(cells):
        texts = [output.text for output in cell.outputs if output.output_type == "stream"]
        for text in texts:
            expect(tab.cells.nth(number).locator(".jp-OutputArea")).to_contain_text(text.strip())
    tab.page.screenshot(path=shots / f"{path.stem[:2]}-kept.png")
    assert tab.faults == []

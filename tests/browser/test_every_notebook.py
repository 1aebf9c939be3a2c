"""Every notebook of the course in JupyterLab, run to its end: no error, and each view says what it should."""

from pathlib import Path

import nbformat
import pytest

pytestmark = pytest.mark.needs("browser")

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))


def captions(path):
    """Of the committed notebook: {number of the code cell: what its view says}, where that is the same each time."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    same = {n: cell for n, cell in enumerate(cells) if "nbval-ignore-output" not in cell.metadata.get("tags", ())}
    alt = {n: output.get("metadata", {}).get("image/png", {}).get("alt")
           for n, cell in same.items() for output in cell.outputs}  # fmt: skip
    return len(cells), {n: text for n, text in alt.items() if text}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem[:2])
def test_run_all(path, opened, shots):
    count, said = captions(path)
    tab = opened(path.name)
    assert tab.cells.count() == count
    tab.run_all(seconds=300)
    tab.page.screenshot(path=shots / f"{path.stem[:2]}-end.png")
    assert tab.cells.nth(count - 1).locator(".jp-InputPrompt").text_content() != "[ ]:"
    shown = {n: tab.cells.nth(n).locator(".widget-html p").first.text_content() for n in said}
    assert shown == said
    for n in said:
        tab.cells.nth(n).scroll_into_view_if_needed()
        tab.cells.nth(n).locator(".widget-image").evaluate("image => image.decode()")
        tab.page.screenshot(path=shots / f"{path.stem[:2]}-cell-{n}.png")
    assert tab.faults == []

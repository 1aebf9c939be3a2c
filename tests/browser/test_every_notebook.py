"""Every notebook of the course in JupyterLab: opened as it is kept, and run to its end."""

import shutil
from pathlib import Path

import nbformat
import pytest

pytestmark = pytest.mark.needs("browser")

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))


def code_cells(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def pictures(cells):
    """{number of the cell: what its view says, None where the picture is no view}."""
    found = {}
    for number, cell in enumerate(cells):
        for output in cell.outputs:
            if "image/png" in output.get("data", ()):
                found[number] = output.metadata.get("image/png", {}).get("alt")
    return found


def differs(cell):
    """Whether it may say something else each time, as nbval is told."""
    return "nbval-ignore-output" in cell.metadata.get("tags", ())


def prints_the_same(tab, cells, expect):
    for number, cell in enumerate(cells):
        for text in (output.text for output in cell.outputs if output.output_type == "stream" and not differs(cell)):
            expect(tab.cells.nth(number).locator(".jp-OutputArea")).to_contain_text(text.strip())


@pytest.fixture(scope="module")
def kept(course):
    """The committed notebooks, with their outputs, where the server finds them."""
    shutil.copytree(NOTEBOOKS[0].parent, course.folder / "kept")
    return "kept"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem[:2])
def test_as_it_is_kept_and_run_to_its_end(path, kept, opened, expect, shots):
    cells = code_cells(path)
    shown = pictures(cells)
    tab = opened(f"{kept}/{path.name}")
    expect(tab.cells).to_have_count(len(cells))
    images = tab.page.locator(".jp-CodeCell .jp-RenderedImage img")
    expect(images).to_have_count(len(shown))
    for image in images.all():
        image.evaluate("image => image.decode()")
    prints_the_same(tab, cells, expect)
    tab.page.screenshot(path=shots / f"{path.stem[:2]}-kept.png")

    tab.run_all(seconds=300)
    expect(tab.cells.last.locator(".jp-InputPrompt")).not_to_have_text("[ ]:")
    prints_the_same(tab, cells, expect)
    for number in shown:
        view = tab.cells.nth(number)
        view.scroll_into_view_if_needed()
        view.locator(".widget-image, .jp-RenderedImage img").evaluate("image => image.decode()")
        if shown[number] and not differs(cells[number]):
            assert view.locator(".widget-html p").first.text_content() == shown[number]
        view.screenshot(path=shots / f"{path.stem[:2]}-cell-{number}.png")
    assert tab.faults == []

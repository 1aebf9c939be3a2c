"""A learner in JupyterLab: answers, stops a cell that hangs, restarts the kernel in the middle of a run."""

import nbformat
import pytest
from marks import wait_for

import collectlab as cl

pytestmark = pytest.mark.needs("browser")

HUNG = """def hangs(ctx):
    ctx.comm.recv(source=ctx.rank)

run = cl.run(hangs, ranks=3, device="cpu", timeout=600)"""
CELLS = ["import collectlab as cl", HUNG, "cl.run(lambda ctx: 7 * ctx.rank, ranks=3, device='cpu').results"]


def run(tab, cell):
    """Run one cell with Shift and Enter."""
    cell.locator(".cm-content").click()
    tab.page.keyboard.press("Shift+Enter")


def answer(tab, cell, text):
    """Write it in the place of what stands behind `answer =`, and run the cell."""
    cell.locator(".cm-line").first.click()
    tab.page.keyboard.press("Home")
    tab.page.keyboard.press("Shift+End")
    tab.page.keyboard.type(f"answer = {text}")
    tab.page.keyboard.press("Shift+Enter")


def test_an_exercise_answered_wrongly_and_then_rightly(opened, expect, shots):
    tab = opened("00-ranks-in-the-background.ipynb")
    assert tab.page.locator(".lm-TabBar-tab.jp-mod-dirty").count() == 0, "to open it changes it"
    run(tab, tab.cells.first)
    cell = tab.cells.filter(has_text="background.tenfold(answer)")
    said = cell.locator(".jp-OutputArea-output")
    for number, text in enumerate(("[0, 1, 2, 3]", "30", "[0, 10, 20, 30]")):
        answer(tab, cell, text)
        verdict = cl.exercises.background.tenfold(eval(text))
        assert bool(verdict) == (number == 2)
        expect(said).to_have_text(verdict.text)
        tab.page.screenshot(path=shots / f"answer-{number}.png")
    assert tab.errors == [] and tab.faults == []


def test_views_that_were_saved_are_there_before_a_cell_is_run(course, opened, expect):
    name = course.write("saved.ipynb", ["from collectlab import views\nviews.modular_lab(8, 3)"])
    tab = opened(name)
    for _ in range(2):
        tab.run_all()
    tab.cells.first.get_by_role("button", name="Step", exact=True).click()
    expect(tab.cells.first.locator(".widget-html p").first).to_contain_text("Step 1:")
    said = tab.cells.first.locator(".widget-html p").first.text_content()
    tab.save()
    saved = nbformat.read(course.folder / name, as_version=4).metadata.widgets
    states = saved["application/vnd.jupyter.widget-state+json"]["state"].values()
    assert [state["model_name"] for state in states].count("ImageModel") == 1, "of the second run alone"
    tab.menu("Kernel", "Shut Down Kernel")
    tab.page.wait_for_selector("#jp-main-statusbar :text('No Kernel')")
    again = opened(name)
    expect(again.cells.first.locator(".widget-html p").first).to_have_text(said)
    again.cells.first.locator(".widget-image").evaluate("image => image.decode()")
    assert again.errors == []
    before = nbformat.read(course.folder / name, as_version=4).metadata.widgets
    again.save()
    assert nbformat.read(course.folder / name, as_version=4).metadata.widgets == before
    broken = again.cells.first.locator(".jupyter-widgets-disconnected")  # ipywidgets draws a broken chain there
    expect(broken.first).to_be_visible()
    again.run_all()
    expect(broken).to_have_count(0)


@pytest.fixture(scope="module")
def tab(course, opened):
    return opened(course.write("hangs.ipynb", CELLS))


@pytest.fixture
def hung(course, tab, expect):
    """The second cell runs, on ranks that wait for ever: the cells."""
    first, second, third = map(tab.cells.nth, range(3))  # to run the last one adds another
    run(tab, first)
    run(tab, second)
    wait_for(lambda: len(course.mark.pids("worker")) >= 3, 30)
    expect(second.locator(".jp-InputPrompt")).to_contain_text("[*]")
    return first, second, third


def gone(course):
    """Wait until no rank is alive, nor what started it."""
    kinds = ("worker", "mpiexec", "proxy", "supervisor")
    wait_for(lambda: not any(map(course.mark.pids, kinds)), 10, lambda: f"still alive: {course.mark.alive()}")


def test_the_stop_button_ends_a_hung_cell_and_its_ranks(course, tab, hung, expect, shots):
    _, second, third = hung
    tab.page.locator("[data-jp-item-name=interrupt] >> visible=true").click()
    tab.settled()
    gone(course)
    tab.page.screenshot(path=shots / "stopped.png")
    said = second.locator(".jp-OutputArea").text_content()
    assert "KeyboardInterrupt" in said or "interrupted" in said
    run(tab, third)
    expect(third.locator(".jp-OutputArea-output")).to_have_text("[0, 7, 14]")


def test_a_restart_in_the_middle_of_a_run_ends_its_ranks(course, tab, hung, expect, shots):
    first, second, third = hung
    tab.menu("Kernel", "Restart Kernel…")
    tab.page.locator(".jp-Dialog .jp-mod-accept").click()
    gone(course)
    expect(second.locator(".jp-InputPrompt")).not_to_contain_text("*")
    run(tab, first)
    run(tab, third)
    expect(first.locator(".jp-InputPrompt")).to_have_text("[1]:")
    expect(third.locator(".jp-OutputArea-output")).to_have_text("[0, 7, 14]")
    tab.page.screenshot(path=shots / "restarted.png")

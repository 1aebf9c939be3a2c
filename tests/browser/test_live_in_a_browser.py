"""What a person sees of a run while it goes on: the ranks at work, Stop while a cell waits, the panel by its keys."""

import pytest
from marks import wait_for

pytestmark = pytest.mark.needs("browser")

CELLS = [
    "import collectlab as cl\n\ndef stuck(ctx):\n    print('<b>here</b>', flush=True)\n    ctx.progress(1, 4)\n"
    "    ctx.comm.recv(source=ctx.rank)",
    "run = cl.run(stuck, ranks=2, device='cpu')\nrun.status",
    "panel = cl.views.launch_panel(stuck, ranks=2)\npanel",
]
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def tab(course, opened):
    found = opened(course.write("live.ipynb", CELLS))
    _run(found, 0)
    found.settled()
    return found


def _run(tab, number):
    tab.cells.nth(number).locator(".cm-content").click()
    tab.page.keyboard.press("Control+Enter")


def _faults(output):
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(output.page, context=".jupyter-widgets").response["violations"]
    return [fault["id"] for fault in found if fault["impact"] in SERIOUS]


def test_stop_ends_the_run_for_which_a_cell_waits(tab, shots):
    _run(tab, 1)
    under = tab.cells.nth(1).locator(".jp-OutputArea")
    under.get_by_text("waiting in recv with rank 1").wait_for()
    assert under.locator("progress").count() == 2 and "<b>here</b>" in under.inner_text()
    assert _faults(under) == []
    tab.page.screenshot(path=shots / "live-view.png")
    under.get_by_role("button", name="Stop").click()
    tab.settled()
    assert "'interrupted'" in under.inner_text() and "rank 1 was waiting in recv" in under.inner_text()
    assert under.locator("progress").count() == 0, "the view has gone with the wait"


def test_the_panel_by_its_keys(tab, shots):
    _run(tab, 2)
    panel = tab.cells.nth(2).locator(".jp-OutputArea")
    panel.get_by_role("button", name="Start").focus()
    tab.page.keyboard.press("Enter")
    panel.get_by_text("2 ranks on site local: ready").wait_for()
    tab.page.keyboard.press("Tab")
    tab.page.keyboard.press("Enter")
    panel.get_by_text("waiting in recv with rank 1").wait_for()
    assert _faults(panel) == []
    tab.page.screenshot(path=shots / "launch-panel.png")
    panel.get_by_role("button", name="Stop").focus()
    tab.page.keyboard.press("Space")
    panel.get_by_text("2 ranks on site local: stopped").wait_for()
    panel.get_by_text("was stopped with its ranks").wait_for()
    assert tab.faults == []


def test_the_panel_is_pressed_in_haste(tab, course, expect, shots):
    _run(tab, 2)
    panel = tab.cells.nth(2).locator(".jp-OutputArea")
    start, run, stop = (panel.get_by_role("button", name=name, exact=True) for name in ("Start", "Run", "Stop"))
    expect(panel.get_by_text("no ranks are running")).to_be_visible()  # of the panel that was there before
    start.dblclick()
    run.click()
    run.click()
    stop.click()
    expect(panel.get_by_text("2 ranks on site local: stopped")).to_be_visible()
    wait_for(lambda: not course.mark.pids("worker"), 10)
    run.click()
    expect(panel.get_by_text("waiting in recv with rank 1")).to_be_visible()
    assert len(course.mark.pids("supervisor")) == 1
    assert tab.faults == []


def test_a_restart_in_the_middle_of_the_run_of_a_panel(tab, course, expect, shots):
    panel = tab.cells.nth(2).locator(".jp-OutputArea")
    expect(panel.get_by_text("waiting in recv with rank 1")).to_be_visible()
    tab.menu("Kernel", "Restart Kernel…")
    tab.page.locator(".jp-Dialog .jp-mod-accept").click()
    kinds = ("worker", "mpiexec", "proxy", "supervisor")
    wait_for(lambda: not any(map(course.mark.pids, kinds)), 10, lambda: f"still alive: {course.mark.alive()}")
    for number in (0, 2):
        _run(tab, number)
    panel.get_by_role("button", name="Run", exact=True).click()
    expect(panel.get_by_text("waiting in recv with rank 1")).to_be_visible()
    tab.page.screenshot(path=shots / "launch-panel-restarted.png")
    panel.get_by_role("button", name="Stop", exact=True).click()
    expect(panel.get_by_text("2 ranks on site local: stopped")).to_be_visible()
    wait_for(lambda: not any(map(course.mark.pids, kinds)), 10, lambda: f"still alive: {course.mark.alive()}")

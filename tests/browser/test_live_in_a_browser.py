"""What a person sees of a run while it goes on: the ranks at work, Stop while a cell waits, the panel by its keys."""

import pytest

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

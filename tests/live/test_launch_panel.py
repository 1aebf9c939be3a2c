"""The launch panel: starts ranks, gives them a program, shows what they do, stops them; nothing waits for it."""

import os
import signal

import pytest

import collectlab as cl
from collectlab.launcher.ranks import MOST_RANKS
from collectlab.views import launch_panel, outputs


def held(ctx, gate):
    print("at the gate", flush=True)
    open(f"{gate}.{ctx.rank}").read()
    return ctx.rank


@pytest.fixture
def panel(gate):
    found = launch_panel(held, gate.path, ranks=2, device="cpu")
    yield found
    found.stop()
    found.close()


def test_start_run_and_stop_by_the_buttons(panel, gate, markup, control, wait_for, our_threads):
    widget = panel.widget()
    assert not our_threads() and "no ranks are running" in markup(widget)
    start, run, stop = (control(widget, name) for name in ("Start", "Run", "Stop"))
    start.click()
    wait_for(lambda: "2 ranks on site local: ready, rank 0 on cpu:0, rank 1 on cpu:1" in markup(widget))
    assert control(widget, "ranks").disabled and control(widget, "site").disabled
    run.click()
    wait_for(lambda: markup(widget).count("at the gate") == 2)
    assert "2 ranks on site local: running" in markup(widget) and panel.run.status == "running"
    gate.open(2)
    assert panel.run.wait().results == [0, 1]
    wait_for(lambda: "done after" in markup(widget) and ": ready" in markup(widget))
    stop.click()
    stop.click()
    wait_for(lambda: "2 ranks on site local: stopped" in markup(widget))
    wait_for(lambda: not our_threads())
    stop.click()  # where there is nothing to stop
    assert not any(one.disabled for one in (start, run, stop, control(widget, "ranks")))


def test_run_starts_ranks_where_there_are_none_and_stop_ends_them(panel, markup, control, wait_for):
    widget = panel.widget()
    control(widget, "Run").click()
    wait_for(lambda: "at the gate" in markup(widget))
    control(widget, "Stop").click()
    wait_for(lambda: panel.run.status != "running")
    wait_for(lambda: "was stopped with its ranks" in markup(widget) and "local: stopped" in markup(widget))


def test_a_double_click_on_start_starts_once(panel, control):
    start = control(panel.widget(), "Start")
    start.click()
    ranks = panel.ranks
    start.click()
    assert panel.ranks is ranks and ranks.status != "stopped"


def test_the_settings_hold_for_the_next_start(panel, markup, control, wait_for):
    widget = panel.widget()
    control(widget, "ranks").value = 3
    control(widget, "Start").click()
    wait_for(lambda: "3 ranks on site local: ready" in markup(widget))
    assert panel.submit(lambda ctx: ctx.nranks).wait().results == [3] * 3
    assert panel.name() == "launch panel for held: 3 ranks, site local, device cpu"
    assert panel.set(ranks=1).start().submit(lambda ctx: ctx.nranks).wait().results == [1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ranks": 0}, rf"ranks=0\): a whole number of ranks is accepted, 1 to {MOST_RANKS}"),
        ({"ranks": True}, "a whole number of ranks is accepted"),
        ({"ranks": "4"}, "a whole number of ranks is accepted"),
        ({"device": "moon"}, "one of auto, cpu, cuda is accepted"),
        ({"site": "moon"}, "site='moon' is unknown"),
    ],
)
def test_bad_settings_are_named(settings, said, panel):
    with pytest.raises(ValueError, match=said):
        launch_panel(held, **settings)
    with pytest.raises(ValueError, match=said):
        panel.set(**settings)


def test_a_program_that_is_none_is_named(panel, control, markup):
    with pytest.raises(TypeError, match=r"launch_panel\(program=3\): a function is accepted"):
        launch_panel(3)
    with pytest.raises(TypeError, match="a function is accepted"):
        panel.submit(3)
    assert panel.ranks is not None


def test_a_program_that_cannot_be_sent_is_told_on_the_panel(control, markup):
    panel = launch_panel(held, os.open, lambda: open, (n for n in ()), ranks=1, device="cpu")
    widget = panel.widget()
    control(widget, "Run").click()
    assert "argument 3 cannot be sent to the ranks" in markup(widget)
    panel.stop()
    panel.close()


SITE = """
command = ["{program}", "{{n}}"]
rank = "RANK"
local_rank = "RANK"
needs = "a launcher called <b>nowhere</b>"
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("nowhere", "needs a launcher called &lt;b&gt;nowhere&lt;/b&gt;; nowhere was not found"),
        ("false", "did not start"),
    ],
)
def test_ranks_that_cannot_be_started_are_told_on_the_panel(
    program, said, tmp_path, monkeypatch, markup, control, wait_for, our_threads
):
    (tmp_path / "broken.toml").write_text(SITE.format(program=program))
    monkeypatch.setenv("COLLECTLAB_SITES", str(tmp_path))
    panel = launch_panel(site="broken")
    widget = panel.widget()
    control(widget, "Start").click()
    wait_for(lambda: said in markup(widget), complaint=lambda: markup(widget))
    wait_for(lambda: not our_threads())
    assert not control(widget, "ranks").disabled
    panel.close()


def test_idle_ranks_that_are_killed_are_seen_to_be_gone(panel, markup, wait_for, our_threads):
    widget = panel.start().widget()
    wait_for(lambda: ": ready" in markup(widget))
    os.kill(panel.ranks._link.process.pid, signal.SIGKILL)
    wait_for(lambda: ": stopped" in markup(widget))
    wait_for(lambda: not our_threads())
    assert panel.submit(lambda ctx: ctx.rank).wait().results == [0, 1]
    wait_for(lambda: ": ready" in markup(widget))


def test_closed_it_leaves_nothing_but_the_ranks(panel, gate, markup, widgets, wait_for, our_threads):
    before = widgets()
    widget = panel.start().widget()
    run = panel.submit(held, gate.path)
    wait_for(lambda: "at the gate" in markup(widget))
    panel.close()
    wait_for(lambda: not our_threads())
    assert widgets() == before and run.status == "running"
    again = panel.widget()
    wait_for(lambda: "at the gate" in markup(again))
    gate.open(2)
    assert run.wait().ok
    panel.close()
    assert widgets() == before


def test_what_stands_in_a_terminal_and_where_widgets_do_not_run(panel, monkeypatch):
    assert str(panel) == "launch panel for held: 2 ranks, site local, device cpu\nno ranks are running"
    assert panel.submit(lambda ctx: print(ctx.rank)).wait().ok
    lines = panel.text().splitlines()
    assert lines[1] == "2 ranks on site local: ready, rank 0 on cpu:0, rank 1 on cpu:1"
    assert lines[2].startswith("done after ") and lines[3:] == ["  rank 0  done  | 0", "  rank 1  done  | 1"]
    assert panel.png().startswith(b"\x89PNG")
    monkeypatch.setattr(outputs, "notebook", object)
    assert panel._repr_mimebundle_()[0]["text/plain"] == panel.name()


def test_every_control_has_a_name(panel, parts):
    names = [part.description for part in parts(panel.widget()) if hasattr(part, "description")]
    assert [name for name in names if name] == ["site", "ranks", "device", "Start", "Run", "Stop"]
    assert cl.views.launch_panel().widget() is not None

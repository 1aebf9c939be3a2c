"""The live view: follows a run from a thread, ends static, and leaves neither thread nor observer behind."""

import gc
import html
import re
import sys
import weakref
from dataclasses import replace

import cloudpickle
import pytest

import collectlab as cl
from collectlab.views import live, outputs
from collectlab.views.live import on_page, table

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the environment of Open MPI has no pytest
MARKUP = "<script>alert(1)</script> & $x^2$"


def held(ctx, gate, text="at the gate"):
    print(text, flush=True)
    ctx.progress(1, 4)
    open(f"{gate}.{ctx.rank}").read()
    ctx.progress(4, 4)
    return ctx.rank


@pytest.fixture
def ranks(each_site):
    with cl.launch(2, device="cpu") as found:
        yield found


def test_the_widget_follows_the_run_and_ends_static(ranks, gate, markup, control, wait_for, our_threads):
    run = ranks.submit(held, gate.path)
    view = live(run)
    widget = view.widget()
    stop = control(widget, "Stop")
    wait_for(lambda: markup(widget).count("at the gate") == 2)
    assert markup(widget).count("<progress") == 2 and "1 of 4" in markup(widget)
    assert "held on 2 ranks is running" in markup(widget) and view.text().startswith("held on 2 ranks is running")
    gate.open(2)
    assert run.wait().ok
    wait_for(lambda: not our_threads())
    assert "done after" in markup(widget) and "1 of 4" not in markup(widget)
    assert stop.layout.display == "none"
    ended = markup(widget)
    ranks.submit(len, 3)  # another one fails; this view does not change
    assert markup(widget) == ended and live(run).text().splitlines()[0] == run.glance().headline
    view.close()


@pytest.mark.parametrize("clicks", [1, 2, 3])
def test_stop_ends_the_run_however_often_it_is_pressed(clicks, ranks, gate, markup, control, wait_for, our_threads):
    run = ranks.submit(held, gate.path)
    widget = live(run).widget()
    wait_for(lambda: markup(widget).count("at the gate") == 2)
    stop = control(widget, "Stop")
    for _ in range(clicks):
        stop.click()
    wait_for(lambda: run.status != "running")
    assert run.status == "interrupted" and ranks.status == "stopped"
    wait_for(lambda: not our_threads())
    assert "interrupted: held on 2 ranks was interrupted" in markup(widget)
    stop.click()
    assert ranks.submit(lambda ctx: ctx.rank).wait().results == [0, 1], "a click after the end ends nothing"


def test_a_view_that_is_closed_lets_the_run_go_on(ranks, gate, markup, widgets, wait_for, our_threads):
    before = widgets()
    run = ranks.submit(held, gate.path)
    view = live(run)
    widget = view.widget()
    wait_for(lambda: "at the gate" in markup(widget))
    assert table(replace(run.glance(), seconds=3)).endswith("<div>3 s so far</div>")
    view.close()
    view.close()
    wait_for(lambda: not our_threads())
    assert widgets() == before and run.status == "running" and on_page(run) is None
    again = view.widget()
    wait_for(lambda: "at the gate" in markup(again))
    gate.open(2)
    assert run.wait().results == [0, 1]
    view.close()
    assert widgets() == before


def test_closed_while_it_changes_all_the_time(ranks, widgets, our_threads, wait_for):
    def counts(ctx):
        for n in range(100_000_000):
            ctx.progress(n, 100_000_000)

    before = widgets()
    run = ranks.submit(counts)
    for _ in range(5):
        view = live(run)
        view.widget()
        view.close()
    wait_for(lambda: not our_threads())
    assert widgets() == before and run.status == "running"


def test_a_view_of_a_run_that_is_over_can_be_forgotten(ranks, gate, wait_for, our_threads):
    run = ranks.submit(held, gate.path)
    view = live(run)
    view.widget()
    gone = weakref.ref(view), weakref.ref(run)
    gate.open(2)
    run.wait()
    wait_for(lambda: not our_threads())
    del view, run
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_a_run_that_is_over_is_shown_at_once_without_a_thread(ranks, markup, our_threads):
    run = ranks.submit(lambda ctx: 1 / ctx.rank)
    run.wait()
    view = live(run)
    widget = view.widget()
    assert not our_threads()
    assert "failed after" in markup(widget) and "<b>raised ZeroDivisionError: division by zero</b>" in markup(widget)
    assert "all ranks stopped" in markup(widget) and "all ranks stopped" in view.text()
    view.close()


def test_labels_are_text_and_no_markup(ranks, gate, markup, wait_for):
    def named(ctx, gate, text):
        held(ctx, gate, text)
        raise ValueError(text)

    named.__name__ = MARKUP
    run = ranks.submit(named, gate.path, MARKUP)
    view = live(run)
    widget = view.widget()
    wait_for(lambda: markup(widget).count(html.escape(MARKUP)) >= 3, complaint=lambda: markup(widget))
    gate.open(2)
    ranks._wait_for(lambda: run._final is not None, 20)
    wait_for(lambda: "raised ValueError" in markup(widget))
    assert "<script" not in markup(widget) and "script" in view.text()
    assert view.png().startswith(b"\x89PNG")
    view.close()


def test_64_real_ranks_stand_together(tmp_path, markup, wait_for):
    def late(ctx):
        print("hello from", ctx.rank, flush=True)
        ctx.progress(ctx.rank, 64)
        if ctx.rank == 40:
            ctx.comm.recv(source=40)
        ctx.comm.Barrier()

    with cl.launch(64, device="cpu") as ranks:
        run = ranks.submit(late)
        view = live(run)
        widget = view.widget()
        others = "ranks 0 to 39 and 41 to 63"
        wait_for(lambda: others in markup(widget) and "waiting in recv" in markup(widget), 60, lambda: markup(widget))
        text = view.text()
        row = rf"{others}  waiting in Barrier(, for \d+ s)? +0% to 98%, median \d+%  \| rank 0: hello"
        assert re.search(row, text), text
        assert len(text.splitlines()) == 4 and len(markup(widget)) < 2000
    wait_for(lambda: "ended" in markup(widget) or "stopped" in markup(widget))
    view.close()


def test_what_is_wrong_with_a_call_is_said():
    with pytest.raises(TypeError, match=r"live\(run=3\): a Run is accepted"):
        live(3)
    with pytest.raises(TypeError, match=r"a Run is accepted"):
        live(cl.simulate(lambda ctx: None, ranks=2))


def test_in_a_terminal_its_text_is_the_present_one_and_in_a_notebook_its_name(ranks, monkeypatch):
    run = ranks.submit(lambda ctx: ctx.rank)
    run.wait()
    view = live(run)
    data, _ = view._repr_mimebundle_()
    assert data["text/plain"] == view.text() == repr(view)
    monkeypatch.setattr(outputs, "notebook", object)
    data, _ = view._repr_mimebundle_()
    assert data["text/plain"] == "live view of <lambda> on 2 ranks"
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == view.widget().model_id
    view.close()

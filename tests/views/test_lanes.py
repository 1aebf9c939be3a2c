"""Time lanes: spans added up once more, who is late or stuck, in words and as a picture; by hand, and on ranks."""

import time

import numpy as np
import pytest
from matplotlib.text import Text

import collectlab as cl
from collectlab import views
from collectlab.layout import Place, RankMap
from collectlab.trace import Clock, Event, Trace


def labels(view):
    return [t.get_text() for t in view.figure().findobj(Text) if t.get_visible() and t.get_text()]


def event(kind, rank, peer, began, ended, row=0, at_least=1):
    return Event(kind, rank, peer, "s" if kind in ("notify", "wait") else "w", (), 0, row, at_least,
                 began=10 + began, ended=10 + ended)  # fmt: skip


def late():
    """Rank 1 loads for 2 s, then tells rank 0, which has waited since 1 s; rank 2 works for 4 s and tells nobody."""
    events = [
        event("store", 0, 0, 0, 1), event("load", 1, 0, 0.5, 2.5), event("notify", 1, 0, 2.5, 3),
        event("wait", 0, 1, 1, 3), event("load", 0, 1, 3, 4),
    ]  # fmt: skip
    clocks = {rank: Clock(10.0, 14.0, []) for rank in range(3)}
    return Trace(3, events, clocks=clocks)


def test_the_seconds_are_those_of_the_events():
    spans = views.lanes(late()).spans
    assert np.allclose(spans.seconds(0), (2, 2, 0, 0))
    assert np.allclose(spans.seconds(1), (2.5, 0, 0, 1.5))
    assert np.allclose(spans.seconds(2), (0, 0, 0, 4))
    assert np.allclose(spans.seconds(0, 0.5, 2), (0.5, 1, 0, 0))
    assert spans.last == 4 and spans.waited_for().tolist() == [0, 2, 0]


def test_every_moment_is_counted_once():
    spans, edges = views.lanes(late()).spans, np.linspace(0, 4, 41)
    shares = spans.shares(range(3), edges)
    assert np.allclose(shares.sum(axis=1), 1) and (shares >= 0).all()
    assert np.allclose((shares * 3 * 0.1).sum(axis=0), (4.5, 2, 0, 5.5))


def test_the_wait_names_who_came_last_and_what_it_did():
    view = views.lanes(late(), step=1)
    assert (view.picked.rank, view.picked.peer, view.picked.seconds, view.picked.came) == (0, 1, 2, 3)
    assert "rank 0 waited 2 s for rank 1 on row 0 of \"s\"; that one moved data meanwhile" in view.caption()
    assert "Rank 1 let the others wait longest: 2 s in all, 100% of the waiting that ended." in view.text()
    assert "comes" in labels(view)


def test_a_barrier_is_one_wait_for_the_last_to_come():
    events = [
        event("notify", 1, 0, 0.9, 1), event("notify", 2, 0, 4.9, 5), event("notify", 3, 0, 2.9, 3),
        *(event("wait", 0, peer, began, ended) for peer, began, ended in ((1, 0, 1), (2, 1, 5), (3, 5, 5.5))),
    ]  # fmt: skip
    (wait,) = views.lanes(Trace(4, events)).waits
    assert (wait.peer, wait.began, wait.ended) == (2, 0, 5.5)


def test_memory_is_waited_for_until_the_last_rank_asks_and_then_set_up():
    clocks = {0: Clock(10, 20, [(11, 16)]), 1: Clock(10, 20, [(14, 16)])}
    spans = views.lanes(Trace(2, clocks=clocks)).spans
    assert np.allclose(spans.seconds(0), (0, 3, 2, 5)) and np.allclose(spans.seconds(1), (0, 0, 2, 8))
    assert [(wait.rank, wait.peer, wait.seconds) for wait in spans.waits] == [(0, 1, 3)]


class Given:
    status, program, ends = "failed", "by hand", {}

    def __init__(self, trace, ends=(), hosts=None):
        self.trace, self.ends = trace, dict(ends)
        hosts = hosts or ["one"] * trace.nranks
        self.rank_map = RankMap([Place(host, "cpu:0") for host in hosts])


def stuck():
    trace = late()
    for rank in (0, 1):
        trace.waiting[rank] = event("wait", rank, 1 - rank, 4 - rank / 4, 0, row=1), 0
    return Given(trace, {2: "raised ValueError"})


def test_a_deadlock_and_an_error_are_seen_and_said():
    view = views.lanes(stuck())
    assert [wait.rank for wait in view.waits[:2]] == [1, 0] and view.waits[0].ended is None
    said = ["Ranks 0, 1 still waited at the end.", "The circle: 0 -> 1 -> 0: each of them waits for the next."]
    said += ["Rank 2 raised ValueError."]
    assert view.verdicts() == said and all(text in view.text() for text in said)
    drawn = labels(view)
    assert drawn.count("never ends") == 2 and {"raised ValueError", "no end"} <= set(drawn)
    assert "this wait never ended" in view.step().caption()
    assert view.text().count("never ") >= 2


def test_a_rank_that_left_no_word_is_named():
    trace = late()
    del trace.clocks[2]
    view = views.lanes(Given(trace))
    assert "no word of it" in labels(view) and "rank 2  no word" in view.text()


def test_hosts_begin_each_with_their_own_first_rank():
    clocks = {0: Clock(10.0, 11.0, []), 1: Clock(5000.0, 5001.0, []), 2: Clock(5000.5, 5001.0, [])}
    view = views.lanes(Given(Trace(3, clocks=clocks), hosts=["a", "b", "b"]))
    assert view.spans.began.tolist() == [0, 0, 0.5] and view.spans.last == 1
    assert "whose clocks differ" in view.text()
    assert "whose clocks differ" not in views.lanes(late()).text()


def test_waits_whose_notifications_are_lost_are_counted_all_the_same():
    view = views.lanes(Trace(2, [event("wait", 0, 1, 1, 3), event("load", 1, 1, 0, 4)]))
    assert view.verdicts() == ["The ranks waited 2 s in all; for whom is not known."]
    assert views.lanes(Trace(1, [event("load", 0, 0, 0, 4)])).verdicts() == ["Nobody waited for anybody."]


def test_simulated_ranks_have_no_clock():
    run = cl.simulate(cl.kernels.mesh.all_reduce, np.ones(4), ranks=2)
    with pytest.raises(ValueError, match=r"lanes\(run\): its events carry no times, as simulated ranks have no"):
        views.lanes(run)
    with pytest.raises(TypeError, match=r"lanes\(run=3\): a Run is accepted"):
        views.lanes(3)


def test_sixty_four_ranks_share_lanes_and_it_is_said():
    events = [event("load", rank, 0, 0, 1) for rank in range(64)]
    events += [event("notify", rank, 0, 1, 1 + rank % 4) for rank in range(64)]
    view = views.lanes(Trace(64, events))
    assert "Aggregated: a lane stands for 4 ranks, and shows what share of them did what." in view.text()
    assert "ranks 60–63" in labels(view)
    for count in (8, 16, 64):
        group = range(count)
        assert np.allclose(view.spans.shares(group, np.array([0.0, 1.0])), [[1, 0, 0, 0]])


@pytest.mark.parametrize("given", (late, stuck))
def test_labels_are_apart_and_inside(given, misplaced):
    view = views.lanes(given())
    for step in range(view.last + 1):
        for zoom in (False, True):
            assert misplaced(view.set(step=step, zoom=zoom).figure()) == []


def test_zoom_shows_the_time_around_the_wait(control, picture):
    trace = late()
    trace.clocks[2] = Clock(10.0, 110.0, [])  # rank 2 goes on for long after
    view = views.lanes(trace, step=1)
    widget = view.widget()
    before = bytes(picture(widget))
    assert "100 s" in labels(view) and "1 s" not in labels(view)
    control(widget, "Zoom").value = True
    assert view.settings == {"step": 1, "zoom": True} and bytes(picture(widget)) != before
    assert "1 s" in labels(view) and "100 s" not in labels(view)
    view.close()
    with pytest.raises(ValueError, match="lanes: zoom is True or False, not 1"):
        view.set(zoom=1)


def test_many_events_open():
    events = [event("load", n % 8, 0, n // 8 / 1e3, n // 8 / 1e3 + 5e-4) for n in range(100_000)]
    view = views.lanes(Trace(8, events))
    assert np.isclose(sum(view.spans.seconds(rank)[0] for rank in range(8)), 100_000 * 5e-4)


def comes_late(ctx, x):
    """Rank 2 sleeps, and the others, who have all told each other that they are there, have only it to wait for."""
    ctx.comm.Barrier()  # else one that is started late would be asked for memory, and waited for, longer
    window, signals = ctx.window("w", x.size, x.dtype), ctx.signals("s", rows=1)
    others = [peer for peer in range(ctx.nranks) if peer != ctx.rank]
    window.store(x)
    if ctx.rank == 2:
        ctx.comm.Barrier()
        time.sleep(0.5)
    for peer in others:
        signals.notify(peer, 0)
    if ctx.rank != 2:
        ctx.comm.Barrier()
    for peer in others:
        signals.wait(peer, 0, 1)
    return window.remote_load(others[0])


def waits_for_ever(ctx):
    signals = ctx.signals("s", rows=2)
    ctx.barrier(signals, 0)
    if ctx.rank:
        signals.wait(3 - ctx.rank, 1, 1)


def raises_half_way(ctx):
    signals = ctx.signals("s", rows=2)
    ctx.barrier(signals, 0)
    if ctx.rank == 1:
        raise ValueError("half way")
    ctx.barrier(signals, 1)


def test_real_ranks_a_late_one():
    run = cl.run(comes_late, np.arange(1000.0), ranks=3, device="cpu")
    view = views.lanes(run)
    waited = view.spans.waited_for()
    assert waited.argmax() == 2 and waited[2] > 0.5
    assert view.waits[0].peer == 2 and view.waits[0].rank != 2
    assert "Rank 2 let the others wait longest" in view.verdicts()[0]
    own = view.spans.seconds(2)
    assert own[3] > 0.4  # it slept, which no window sees
    assert run.trace.clocks.keys() == {0, 1, 2}
    assert all(clock.began <= e.began <= e.ended <= clock.ended
               for rank, clock in run.trace.clocks.items() for e in run.trace.events
               if e.rank == rank and e.kind != "barrier")  # fmt: skip
    again = views.lanes(cl.attach(run.path))
    assert again.text() == view.text()


def test_real_ranks_a_deadlock():
    with cl.launch(3, device="cpu") as ranks:
        run, end = ranks.submit(waits_for_ever), time.monotonic() + 60
        while len(run.trace.waiting) < 2 and time.monotonic() < end:
            run.wait(timeout=0.1)
        going_on = views.lanes(run)
        ranks.interrupt()
    view = views.lanes(run)
    assert going_on.waits[0].ended is None
    assert sorted(wait.rank for wait in view.waits if wait.ended is None) == [1, 2]
    assert "The circle: 1 -> 2 -> 1: each of them waits for the next." in view.verdicts()
    assert labels(view).count("never ends") == 2


def test_real_ranks_that_failed_half_way():
    run = cl.run(raises_half_way, ranks=3, device="cpu")
    view = views.lanes(run)
    assert run.status == "failed" and "Rank 1 raised ValueError." in view.verdicts()
    assert {wait.rank for wait in view.waits if wait.ended is None} <= {0, 2}
    assert "raised ValueError" in labels(view)


def test_real_ranks_without_a_trace_or_without_windows():
    for run in (cl.run(comes_late, np.ones(2), ranks=2, device="cpu", trace=False), cl.run(lambda ctx: 1, ranks=2)):
        assert "Nothing was traced" in views.lanes(run).text() or not run.trace.events

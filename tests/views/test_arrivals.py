"""The arrival rows of a run: counted once more from its events, in words, as a picture, and when ranks are stuck."""

import itertools
import sys

import numpy as np
import pytest
from matplotlib.text import Text

import collectlab as cl
from collectlab import views
from collectlab.trace import Trace
from collectlab.trace.events import NOTIFY, WAIT
from collectlab.views.arrivals import EVERY

KERNELS = [cl.kernels.mesh.all_reduce, cl.kernels.ring.all_reduce, cl.kernels.two_phase.all_reduce]


def by_hand(ctx, rows):
    """A barrier on each row, made of notify and wait."""
    hand = ctx.signals("hand", rows)
    others = [peer for peer in range(ctx.nranks) if peer != ctx.rank]
    for row in range(rows):
        for peer in others:
            hand.notify(peer, row)
        for peer in others:
            hand.wait(peer, row, 1)


def left_alone(ctx):
    """Rank 0 waits for a second notification that rank 1 never gives."""
    hand = ctx.signals("hand", rows=2)
    if ctx.rank == 1:
        hand.notify(0, 1)
    elif ctx.rank == 0:
        hand.wait(1, 1, 1)
        hand.wait(1, 1, 2)


def labels(view):
    return [t.get_text() for t in view.figure().findobj(Text) if t.get_visible() and t.get_text()]


@pytest.mark.parametrize("schedule", [None, 3])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_state_counts_what_the_events_say(kernel, schedule):
    run = cl.simulate(kernel, np.arange(5.0), ranks=3, schedule=schedule)
    view = views.arrivals(run, step=0)
    events = [e for e in run.trace.events if e.kind in (NOTIFY, WAIT)]
    assert view.last == len(events) > 0
    for state in range(view.last + 1):
        view.set(step=state)
        for owner in range(3):
            for row in range(view.rows):
                for writer in range(3):
                    before = [e for e in events[:state] if e.row == row]
                    there = [e for e in before if (e.kind, e.rank, e.peer) == (NOTIFY, writer, owner)]
                    passed = [e.at_least for e in before if (e.kind, e.rank, e.peer) == (WAIT, owner, writer)]
                    assert view.count(owner, row, writer) == len(there)
                    assert view.passed(owner, row, writer) == max(passed, default=0)
    assert view.waiting() == {}


@pytest.mark.parametrize("most_kept", [64, 2])  # the second: counts are kept after every 540 steps
def test_a_long_run_is_counted_from_where_counts_were_kept(most_kept, monkeypatch):
    monkeypatch.setattr(sys.modules["collectlab.views.arrivals"], "MOST_KEPT", most_kept)
    view = views.arrivals(cl.simulate(by_hand, 90, ranks=3))
    assert len(view._kept) <= max(most_kept, view.last // EVERY) + 2
    assert view.last == 90 * 12 > 4 * EVERY
    for state in (view.last, 0, EVERY, EVERY - 1, EVERY + 1, 3 * EVERY, 777, *range(2 * EVERY, 3 * EVERY + 9), 5):
        view.set(step=state)
        for owner, row, writer in ((0, 0, 1), (2, 44, 0), (1, 89, 2), (0, 63, 2)):
            before = [(e.kind, e.rank, e.peer) for e in view.steps[:state] if e.row == row]
            assert view.count(owner, row, writer) == before.count((NOTIFY, writer, owner))
            assert view.passed(owner, row, writer) == before.count((WAIT, owner, writer))


def test_who_waits_is_who_cannot_go_on():
    view = views.arrivals(cl.simulate(by_hand, 1, ranks=3), step=2)
    assert view.waiting() == {0: (0, 1, 1)}  # rank 0 has notified both; rank 1 has not begun
    assert "rank 0 waits for rank 1, row 0, at least 1; the cell is 0" in view.text()
    assert view.step().waiting() == {}


def test_a_stuck_rank_waits_to_the_end():
    run = cl.simulate(left_alone, ranks=3)
    view = views.arrivals(run)
    assert run.stuck and view.last == 2
    assert view.waiting() == {0: (1, 1, 2)}
    assert view.count(0, 1, 1) == view.passed(0, 1, 1) == 1
    assert "rank 0  1    -            1, waits for 2  0" in view.text()
    said = "rank 0 waits for rank 1, row 1, at least 2; the cell is 1, and there the trace ends"
    assert said in labels(view) and said in view.text()
    assert views.arrivals(run.trace).text() == view.text()  # as of a run on real ranks, which has nothing else
    assert "there the trace ends" not in view.set(step=1).text()


def test_ranks_that_only_wait_are_seen_too():
    run = cl.simulate(lambda ctx: ctx.signals("s", 1).wait(1 - ctx.rank, 0, 1), ranks=2)
    view = views.arrivals(run)
    assert (view.last, view.rows, set(view.waiting())) == (0, 1, {0, 1})
    assert "no steps" in view.text() and "nobody has notified anybody" in view.caption()


def test_the_words_of_a_barrier():
    view = views.arrivals(cl.simulate(by_hand, 1, ranks=2), step=3)
    assert view.text().splitlines()[:6] == [
        'arrivals on signals "hand", row 0, 2 ranks',
        "State 3 of 4: rank 1 has waited for rank 0, row 0, at least 1; the cell is 1.",
        "",
        "at      row  from rank 0             from rank 1",
        "rank 0  0    -                       1",
        "rank 1  0    1, past its wait for 1  -",
    ]
    last_line = by_hand.__code__.co_firstlineno + 8
    assert f">   3  rank 1 has waited for rank 0, row 0, at least 1; the cell is 1  (line {last_line})" in view.text()


def test_every_step_is_drawn_where_there_are_few():
    view = views.arrivals(cl.simulate(by_hand, 2, ranks=2))
    drawn = labels(view)
    assert sum(text[:3] in ("→ 0", "→ 1") and len(text) == 3 for text in drawn) == 4
    assert sum(text[:3] in ("← 0", "← 1") and len(text) == 3 for text in drawn) == 4
    assert drawn.count("passed ≥1") == 4


def test_what_comes_later_is_not_given_away():
    view = views.arrivals(cl.simulate(by_hand, 2, ranks=3))
    for step in range(view.last + 1):
        view.set(step=step)
        assert sum(text[:1] in "→←" and len(text) == 3 for text in labels(view)) == step
        said = [line for line in view.text().splitlines() if "(line" in line]
        assert len(said) == step and all(line.startswith(">") == (line == said[-1]) for line in said)


def test_a_rank_that_waits_while_others_act_is_seen():
    view = views.arrivals(cl.simulate(by_hand, 1, ranks=3))
    for step, waits in ((5, 0), (6, 1), (7, 1), (8, 1), (12, 1)):  # rank 1 waits for rank 2 in steps 6 and 7
        drawn = labels(view.set(step=step))
        assert drawn.count("waits for 2") + drawn.count("waits") == waits


def test_whether_a_rank_notifies_or_waits_is_seen_at_sixteen_ranks_too():
    run = cl.simulate(by_hand, 1, ranks=16)
    view = views.arrivals(run, step=15 * 13)
    drawn = [text for text in labels(view) if text[:1] in "→←" and "  " not in text]
    last = [f"{'→' if e.kind == NOTIFY else '←'}{e.peer}" for e in view.steps[: 15 * 13]]
    assert sorted(text.replace(" ", "") for text in drawn) == sorted(last[-len(drawn) :]) and len(drawn) > 20


def test_long_runs_say_what_is_left_out():
    view = views.arrivals(cl.simulate(by_hand, 12, ranks=3), step=40)
    drawn = labels(view)
    assert any(text.startswith("what each rank does, 11 to 40 of ") for text in drawn)
    assert any(text.startswith("how often each rank has been notified, rows ") for text in drawn)
    assert f"steps 11 to 40 of {view.last}:" in view.text()
    assert len([line for line in view.text().splitlines() if line.startswith("rank 2  ")]) == view.rows == 12


def only_wait(ctx):
    ctx.signals("s" * 90, 1).wait((ctx.rank + 1) % ctx.nranks, 0, 10**6)


def ring(ctx):
    return cl.kernels.ring.all_reduce(ctx, np.arange(4.0))


@pytest.mark.parametrize(
    ("program", "nranks"),
    [
        *((only_wait, nranks) for nranks in (2, 5, 16, 64)),
        *((ring, nranks) for nranks in (2, 3, 4, 5, 8, 20)),
    ],
)
def test_labels_are_apart_and_inside(program, nranks, misplaced):
    view = views.arrivals(cl.simulate(program, ranks=nranks, schedule=1))
    for step in {view.last // 2, view.last}:
        assert misplaced(view.set(step=step).figure()) == []


def all_but_the_last(ctx):
    """A barrier in which nobody hears of the last rank."""
    signals, others = ctx.signals("s", rows=1), [rank for rank in range(ctx.nranks) if rank != ctx.rank]
    for rank in others if ctx.rank + 1 < ctx.nranks else ():
        signals.notify(rank, 0)
    for rank in others:
        signals.wait(rank, 0, 1)


@pytest.mark.parametrize(("nranks", "each"), [(17, 2), (64, 4)])
def test_many_ranks_share_lanes_and_cells_and_that_is_said(nranks, each):
    run = cl.simulate(all_but_the_last, ranks=nranks, schedule=2)
    view = views.arrivals(run)
    groups = [range(nranks)[at : at + each] for at in range(0, nranks, each)]
    lines = [line for line in view.text().splitlines() if line.startswith("rank") and "waits for" not in line]
    assert len(lines) == len(groups)
    ended = [e for e in run.trace.events if e.kind == WAIT]
    for owners, line in zip(groups, lines, strict=True):
        cells = line.split("  0  ", 1)[1].split("  ")
        cells = [cell.strip() for cell in cells if cell.strip()]
        for writers, cell in zip(groups, cells, strict=True):
            pairs = [(o, w) for o in owners for w in writers if o != w]
            notified = sum(w + 1 < nranks for _, w in pairs)
            past = sum((e.rank, e.peer) in pairs for e in ended)
            stuck = sum(run.trace.waiting[o][0].peer == w for o, w in pairs if o in run.trace.waiting)
            said = [f"{notified}"] + [f"{stuck} wait"] * (stuck > 0) + [f"{past} of {len(pairs)} past"] * (past > 0)
            assert cell == (", ".join(said) if pairs else "-")
    said = f"Aggregated: a lane stands for {each} ranks"
    assert said in view.text() and any(said in label for label in labels(view))
    shown = labels(view.set(step=view.last // 2))
    assert f"ranks 0–{each - 1}" in shown and not any(label.endswith("…") for label in shown)


def test_a_rank_that_notifies_itself_has_a_cell():
    def alone(ctx):
        signals = ctx.signals("own", rows=1)
        signals.notify(0, 0)
        signals.wait(0, 0, 1)

    view = views.arrivals(cl.simulate(alone, ranks=1))
    assert "rank 0  0    1, past its wait for 1" in view.text()


def test_one_name_among_several_is_chosen():
    def two(ctx):
        for name in ("a", "b"):
            ctx.barrier(ctx.signals(name, rows=1), 0)

    run = cl.simulate(two, ranks=2)
    assert views.arrivals(run, "b").signals == "b"
    with pytest.raises(ValueError, match=r"several signals; choose one of 'a', 'b'"):
        views.arrivals(run)
    with pytest.raises(ValueError, match=r"no signals 'c'; choose one of 'a', 'b'"):
        views.arrivals(run, "c")


def test_a_trace_alone_will_do_and_real_ranks_too():
    run = cl.run(by_hand, 2, ranks=3, device="cpu")
    view = views.arrivals(run)
    assert view.text() == views.arrivals(run.trace).text()
    for cell in itertools.product(range(3), range(2), range(3)):
        assert view.count(*cell) == view.passed(*cell) == (cell[0] != cell[2])


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ((3,), TypeError, "run=3"),
        ((Trace(2),), ValueError, "no notification and no wait"),
        ((Trace(65),), ValueError, "65 ranks; 1 to 64"),
        ((cl.simulate(by_hand, 1, ranks=2), "hand", 5), ValueError, "0 to 4, not 5"),
        ((cl.simulate(by_hand, 1, ranks=2), "hand", True), ValueError, "0 to 4, not True"),
    ],
)
def test_bad_input_names_the_argument(given, error, says):
    with pytest.raises(error, match=r"^arrivals") as caught:
        views.arrivals(*given)
    assert says in str(caught.value)


def test_buttons_and_methods_go_the_same_way(control, picture):
    run = cl.simulate(by_hand, 1, ranks=3)
    view, other = views.arrivals(run, step=0), views.arrivals(run, step=0)
    widget = view.widget()
    for name, steps in (("Step", 1), ("Step", 1), ("Back", -1)):
        control(widget, name).click()
        other.step(steps)
        assert view.text() == other.text()
        assert picture(widget) == other.png()
    control(widget, "state").value = 7
    assert view.settings == {"step": 7}
    control(widget, "Reset").click()
    assert view.settings == {"step": 0}
    view.close()


def test_the_same_settings_give_the_same_text_and_picture():
    one, two = (views.arrivals(cl.simulate(by_hand, 2, ranks=4), step=9) for _ in range(2))
    assert one.text() == two.text() == repr(one)
    assert one.png() == two.png()

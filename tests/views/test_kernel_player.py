"""The kernel player: its steps and states against the events, what it says and draws, and runs that are not whole."""

import os
from collections import Counter
from itertools import groupby

import numpy as np
import pytest
from kernel_cases import KERNELS, inputs
from matplotlib.text import Text

import collectlab as cl
from collectlab import views
from collectlab.trace import Trace
from collectlab.trace.events import LOAD, NOTIFY, STORE, WAIT
from collectlab.trace.races import common
from collectlab.views.states import LOADED, RETURNED, States

RING, TWO, MESH = (getattr(cl.kernels, name) for name in ("ring", "two_phase", "mesh"))


def broken(ctx, x, rows=1):
    """Two phases with both barriers on one row."""
    n = x.size // ctx.nranks
    mine = slice(ctx.rank * n, (ctx.rank + 1) * n)
    data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
    signals = ctx.signals("s", rows=2)
    data.store(x)
    ctx.barrier(signals, 0)
    total = data.remote_load(0, mine)
    for peer in range(1, ctx.nranks):
        total = total + data.remote_load(peer, mine)
    result.store(total, mine)
    ctx.barrier(signals, rows - 1)
    return [result.remote_load(peer, slice(peer * n, (peer + 1) * n)) for peer in range(ctx.nranks)]


def half(ctx, x, rank):
    """A rank raises while the others go on to a barrier."""
    window, signals = ctx.window("w", x.size, x.dtype), ctx.signals("s", rows=2)
    window.store(x)
    ctx.barrier(signals, 0)
    if ctx.rank == rank:
        raise ValueError("no more")
    y = window.remote_load((ctx.rank + 1) % ctx.nranks)
    ctx.barrier(signals, 1)
    return y


def player(program, nranks, count=16, **how):
    return views.kernel_player(cl.simulate(program, np.arange(float(count)), ranks=nranks, **how))


def every(name, nranks=3, schedule=None):
    xs = inputs(KERNELS[name], nranks, 5, np.float32)
    return cl.simulate(KERNELS[name].program, cl.per_rank(xs), ranks=nranks, schedule=schedule)


def labels(view):
    return [t.get_text() for t in view.figure().findobj(Text) if t.get_visible() and t.get_text()]


# Steps


def complaints(events, steps):
    """What is wrong with steps as an account of events."""
    found, counts, ranks = [], Counter(), {}
    if sorted(place for places in steps for place in places) != list(range(len(events))):
        found.append("not every event once")
    for places in steps:
        mine = [events[place] for place in places]
        for a in mine:
            for b in mine:
                both = a.rank != b.rank and (a.name, a.peer) == (b.name, b.peer) and STORE in (a.kind, b.kind)
                if both and {a.kind, b.kind} <= {STORE, LOAD} and common(a.elements, b.elements):
                    found.append("two accesses collide in a step")
            if a.kind == WAIT and counts[a.rank, a.name, a.row, a.peer] < a.at_least:
                found.append("a wait before its notification")
        for place in places:
            e = events[place]
            counts[e.peer, e.name, e.row, e.rank] += e.kind == NOTIFY
            if ranks.get(e.rank, -1) > place:
                found.append("a rank's events out of order")
            ranks[e.rank] = place
    return found


@pytest.mark.parametrize("schedule", [None, 1])
@pytest.mark.parametrize("name", KERNELS)
def test_without_a_race_the_ranks_go_in_step(name, schedule):
    run = every(name, 4, schedule)
    states = States(run)
    assert states.in_step and complaints(run.trace.events, states.steps) == []
    assert all(len(kinds) <= 2 for kinds in ({run.trace.events[p].kind for p in ps} for ps in states.steps[:1]))


@pytest.mark.parametrize("schedule", [None, 0, 1, 2, -7])
def test_with_a_race_the_order_stays(schedule):
    run = cl.simulate(broken, np.arange(6.0), ranks=3, schedule=schedule)
    states = States(run)
    assert run.trace.races() and not states.in_step
    assert complaints(run.trace.events, states.steps) == []
    assert [place for places in states.steps for place in places] == list(range(len(run.trace.events)))


def test_bad_steps_are_seen():
    events = cl.simulate(broken, np.arange(4.0), ranks=2).trace.events
    assert "two accesses collide in a step" in complaints(events, [list(range(len(events)))])
    assert "a wait before its notification" in complaints(events, [[n] for n in range(len(events))][::-1])
    assert "a rank's events out of order" in complaints(events, [[n] for n in range(len(events))][::-1])
    assert "not every event once" in complaints(events, [[0]])


def test_every_rank_loads_in_the_same_step():
    view = player(MESH.all_reduce, 4)
    loads = [len(view.did(step)) for step in range(1, view.last + 1) if "load" in view.set(step=step).caption()]
    assert loads == [4] * 4 and view.last == 9


# States


@pytest.mark.parametrize("name", ["mesh.all_reduce", "ring.all_reduce", "direct.all_to_all", "tree.broadcast"])
def test_every_state_counts_what_the_events_say(name):
    run = every(name, 3, schedule=2)
    states = States(run)
    for step in range(len(states.steps) + 1):
        so_far = [run.trace.events[place] for places in states.steps[:step] for place in places]
        trace = Trace(3, so_far)
        pushed = trace.pushed()
        np.fill_diagonal(pushed, 0)
        assert np.array_equal(states.moved(step), trace.traffic() + pushed.T)
        assert states.measured(step) == [trace.measured(rank) for rank in range(3)]
        for name_, row in states.rows:
            for owner in range(3):
                for writer in range(3):
                    cell = NOTIFY, writer, owner, name_, row
                    there = [e for e in so_far if (e.kind, e.rank, e.peer, e.name, e.row) == cell]
                    assert states.count(owner, name_, row, writer, step) == len(there)
    assert states.waiting(len(states.steps)) == {}


def push(ctx, x):
    """Every rank stores its vector into its right neighbour's window."""
    window, signals = ctx.window("inbox", x.size, x.dtype), ctx.signals("s", rows=1)
    right = (ctx.rank + 1) % ctx.nranks
    window.remote_store(right, x)
    signals.notify(right, 0)
    signals.wait((ctx.rank - 1) % ctx.nranks, 0, 1)
    return window.load()


def test_what_is_pushed_is_moved_and_seen():
    view = player(push, 3, count=2).set(step=1)
    assert view.states.moved(1).tolist() == [[0, 0, 16], [16, 0, 0], [0, 16, 0]]
    assert [card.nbytes for card in view.states.measured(1)] == [16] * 3
    name, (row,) = view.states.blocks[1]
    assert name == "inbox" and [view.states.holding(name, row, rank, 1).ranks for rank in range(3)] == [[2], [0], [1]]
    assert {"→ rank 1", "← 2", "← 0", "← 1"} <= {*labels(view)}


def test_what_is_pushed_is_not_seen_before_its_step():
    def late(ctx, x):
        window, signals = ctx.window("w", x.size, x.dtype), ctx.signals("s", rows=4)
        if ctx.rank == 0:  # notifies after the store in the trace, and before it in step
            signals.wait(2, 0, 1)
            signals.notify(3, 1)
        if ctx.rank == 1:
            for _ in range(4):
                window.store(x)
            window.remote_store(0, x)
        if ctx.rank == 2:
            signals.notify(0, 0)

    states = player(late, 4).states
    (pushed,) = (at for at, e in enumerate(states.events) if e.kind == STORE and e.peer == 0)
    (told,) = (at for at, e in enumerate(states.events) if e.kind == NOTIFY and e.rank == 0)
    assert pushed < told and states.step_of[told] < states.step_of[pushed]
    ((name, (row,)),) = states.blocks
    held = [states.holding(name, row, 0, step).ranks for step in range(len(states.steps) + 1)]
    assert held == [[1] if step >= states.step_of[pushed] else [] for step in range(len(held))]


def test_what_was_loaded_is_forgotten_at_the_next_store():
    def twice(ctx, x):
        return MESH.all_reduce(ctx, MESH.all_reduce(ctx, x))

    view = player(twice, 2)
    (row,) = dict(view.states.blocks)[LOADED]
    held = [view.states.holding(LOADED, row, 0, step).shares for step in range(view.last + 1)]
    assert [shares for shares, _ in groupby(held)] == [(), (1, 0), (1, 1), (), (1, 1), (2, 2)]


def test_who_waits_is_who_cannot_go_on():
    def late(ctx):
        signals = ctx.signals("s", rows=2)
        if ctx.rank == 2:
            signals.notify(1, 1)
            signals.notify(0, 0)
        elif ctx.rank == 1:
            signals.wait(2, 1, 1)
        else:
            signals.wait(2, 0, 1)
            signals.wait(1, 0, 1)

    states = States(cl.simulate(late, ranks=3))
    assert {rank: [(e.peer, e.row) for e in waits] for rank, waits in states.waiting(0).items()} == {
        0: [(2, 0)],
        1: [(2, 1)],
    }
    last = states.waiting(len(states.steps))
    assert {rank: [(e.peer, e.row) for e in waits] for rank, waits in last.items()} == {0: [(1, 0)]}


def test_two_phases_hold_what_they_should():
    view = player(TWO.all_reduce, 4)
    states, rows = view.states, dict(view.states.blocks)
    data, result = rows["two_phase.data"], rows["two_phase.result"]
    assert [row.label for row in data] == [f"chunk {c}" for c in range(4)]
    assert [(row.start, row.stop) for row in result] == [(4 * c, 4 * c + 4) for c in range(4)]
    for rank in range(4):
        for row, chunk in zip(data, range(4), strict=True):
            assert states.holding("two_phase.data", row, rank, 0).kind == "empty"
            assert states.holding("two_phase.data", row, rank, 1).ranks == [rank]
            final = states.holding("two_phase.result", result[chunk], rank, view.last)
            assert final.kind == ("whole" if chunk == rank else "empty")
        loaded = [states.holding(LOADED, rows[LOADED][rank], rank, step) for step in range(3, 9)]
        assert [len(holding.ranks) for holding in loaded] == [0, 1, 2, 3, 4, 0]
        assert [holding.kind for holding in loaded[1:5]] == ["own", "partial", "partial", "whole"]
        (row,) = rows[RETURNED]
        assert states.holding(RETURNED, row, rank, view.last).kind == "whole"
        assert states.holding(RETURNED, row, rank, view.last - 1).kind == "empty"


def test_a_ring_adds_one_rank_a_round():
    view = player(RING.all_reduce, 4)
    rows, sizes = dict(view.states.blocks)["ring.work"], []
    for step in range(1, view.last + 1):
        held = [view.states.holding("ring.work", row, rank, step) for rank in range(4) for row in rows]
        assert {holding.kind for holding in held} <= {"own", "partial", "whole"}
        sizes.append(sum(len(holding.ranks) for holding in held))
    assert sizes == sorted(sizes) and (sizes[0], sizes[-1]) == (16, 64)


def test_chunks_of_a_gather_are_told_apart():
    view = player(TWO.all_gather, 3, count=2)
    rows = dict(view.states.blocks)[RETURNED]
    assert [view.states.holding(RETURNED, row, 0, view.last).ranks for row in rows] == [[0], [1], [2]]


def test_packets_hold_one_ranks_part():
    def exchange(ctx, x):
        packets = ctx.packets("p", 1, x.size, x.dtype)
        packets.post(1 - ctx.rank, 0, x, 1)
        return packets.take(1 - ctx.rank, 0, 1)

    view = player(exchange, 2)
    name, rows = view.states.blocks[1]
    held = [view.states.holding(name, row, rank, view.last) for rank in (0, 1) for row in rows]
    assert sorted((holding.kind, *holding.ranks) for holding in held if holding.kind != "empty") == [
        ("own", 0),
        ("own", 1),
    ]


def test_a_rank_that_is_in_twice_is_said():
    def careless(ctx, x):
        window, signals = ctx.window("w", x.size, x.dtype), ctx.signals("s", rows=1)
        window.store(x)
        ctx.barrier(signals, 0)
        return window.remote_load(0) + 2 * window.remote_load(1)

    view = player(careless, 2)
    assert "0, 1 twice" in view.set(step=view.last).text()
    assert "0, 1 twice" in labels(view)


# Races, failures


def test_the_player_goes_to_the_race():
    run = cl.simulate(broken, np.arange(16.0), ranks=4)
    view = views.kernel_player(run).first_race()
    race, complete = view.states.first_race, {}
    for each in run.trace.races():
        ends = [i for i, e in enumerate(run.trace.events) if e is each.first or e is each.second]
        complete[max(ends)] = each
    assert race is not None and race == complete[min(complete)]
    assert min(complete) in view.states.steps[view.states.race_step - 1]
    assert race in run.trace.races() and race.first in view.did(view.settings["step"])[race.first.rank]
    assert str(race) in view.text() and "Here the first race is complete." in view.caption()
    shown = labels(view)
    assert shown.count("race") == 1 and f"mend: {race.mend}" in shown
    assert "never written" in view.set(step=view.last).text()
    with pytest.raises(ValueError, match="no race that is known"):
        views.kernel_player(cl.simulate(broken, np.arange(16.0), 2, ranks=4)).first_race()


def test_a_run_that_failed_half_way():
    run = cl.simulate(half, np.ones(4), 1, ranks=3)
    view = views.kernel_player(run)
    assert "ValueError" not in " ".join(labels(view)) and "no more" not in view.text()
    view.set(step=view.last)
    assert run.report() in view.text()
    assert "rank 0 waits for rank 1, row 1" in view.text() and "1 of 2, waits here" in view.text()
    assert {"raised", "ValueError", "failed", "for 1", "then waits for 1"} <= {*labels(view)}


def test_an_empty_trace_is_said():
    for run in (
        cl.simulate(lambda ctx: 1, ranks=2),
        cl.simulate(RING.all_reduce, np.ones(4), ranks=2, trace=False),
        Trace(2),
    ):
        view = views.kernel_player(run)
        assert view.last == 0 and "Nothing was traced" in view.text() and view.png()
        assert any("Nothing was traced" in text for text in labels(view))


def test_a_barrier_that_is_called_again_begins_anew():
    def twice(ctx, x):
        return MESH.all_reduce(ctx, MESH.all_reduce(ctx, x))

    view = player(twice, 2)
    first, _, third, _ = view.states.barriers()
    words = {step: view.set(step=step).text() for step in (first, third - 2, third - 1, third)}
    assert '"mesh" row 0  1 of 1, passed  1 of 1, passed' in words[first]
    assert '"mesh" row 0  1 of 1, passed  1 of 1, passed' in words[third - 2]
    assert '"mesh" row 0  1 of 1          1 of 1' in words[third - 1]
    assert '"mesh" row 0  1 of 1, passed  1 of 1, passed' in words[third]


def test_a_trace_alone_shows_who_stored():
    view = views.kernel_player(cl.simulate(RING.all_reduce, np.ones(8), ranks=4).trace, step=2)
    assert "stored by 2" in view.text() and "a trace alone does not hold the program" in view.text()
    assert not {LOADED, RETURNED} & {name for name, _ in view.states.blocks}
    assert any("a trace alone does not hold the program" in text for text in labels(view))


def test_a_program_with_its_own_numbers_shows_who_stored():
    view = views.kernel_player(cl.simulate(lambda ctx: RING.all_reduce(ctx, np.ones(8)), ranks=4), step=2)
    assert "no argument of the program is an array" in view.text() and "stored by 2" in view.text()


def test_how_often_is_not_said_of_a_maximum():
    def careless(ctx, x):
        window, signals = ctx.window("w", x.size, x.dtype), ctx.signals("s", rows=1)
        window.store(x)
        ctx.barrier(signals, 0)
        return np.maximum(np.maximum(window.remote_load(0), window.remote_load(1)), window.remote_load(1))

    view = player(careless, 2)
    text = view.set(step=view.last).text()
    assert "only whether" in text and "twice" not in text and "all 2" in text


def test_a_trace_too_long_for_races_keeps_its_order(monkeypatch):
    monkeypatch.setattr("collectlab.views.states.MOST_PAIRS", 10)
    view = player(RING.all_reduce, 4)
    assert "too many accesses to look for races" in view.text() and not view.states.in_step
    assert "not looked for" in labels(view) and "in every order" not in labels(view)


def test_ranks_that_only_wait():
    view = views.kernel_player(cl.simulate(lambda ctx: ctx.signals("s", 1).wait(1 - ctx.rank, 0, 1), ranks=2))
    assert view.last == 0 and "rank 0 waits for rank 1" in view.text() and "waits" in labels(view)


def test_real_ranks_and_their_directory():
    xs = [np.arange(6.0) + rank for rank in range(2)]
    run = cl.run(TWO.all_reduce, cl.per_rank(xs), ranks=2, device="cpu")
    assert run.ok
    for same in (run, cl.attach(run.path)):
        view = views.kernel_player(same)
        view.set(step=view.last)
        assert not view.states.unknown and "all 2" in view.text()
        assert view.text().splitlines()[1] == "rank 0 on cpu:0; rank 1 on cpu:1"
    os.remove(os.path.join(run.path, "program"))
    view = views.kernel_player(cl.attach(run.path), step=1)
    assert "program cannot be read again" in view.text() and "stored by 1" in view.text()
    racing = views.kernel_player(cl.run(broken, np.arange(4.0), ranks=2, device="cpu"))
    assert "really came first, the trace does not know" in racing.text() and not racing.states.unknown


# Cards, words, pictures


def test_cards_stand_beside_what_was_done():
    run = cl.simulate(TWO.all_reduce, np.arange(16.0), ranks=4)
    cards = [TWO.all_reduce_cost(4, 16, 8, rank) for rank in range(4)]
    view = views.kernel_player(run, cards)
    assert "bytes moved, a rank: 0, card: 192" in view.text()
    assert "bytes moved, a rank: 192, card: 192\n" in view.set(step=view.last).text()
    few = [MESH.all_reduce_cost(2, 2, 8, rank) for rank in (0, 1, 0, 1)]
    view = views.kernel_player(run, few, step=3)
    assert "the two differ" not in view.text()
    assert "bytes moved, a rank: 192, card: 16; the two differ" in view.set(step=view.last).text()


def test_the_words_of_a_step():
    view = player(TWO.all_reduce, 2, count=4).set(step=4)
    line = view.did(4)[0][0].line
    assert view.text().splitlines()[:10] == [
        "two_phase.all_reduce on 2 ranks",
        "Step 4 of 9: ranks 0, 1 load 32 bytes in all.",
        "",
        f"  rank 0 loads elements 0:2 of its own \"two_phase.data\" (chunk 0), 16 bytes (line {line})",
        f"  rank 1 loads elements 2:4 of rank 0's \"two_phase.data\" (chunk 1), 16 bytes (line {line})",
        "",
        "loaded since its last store (added up)",
        "             rank 0  rank 1",
        "chunk 0 0:2  rank 0  -",
        "chunk 1 2:4  -       rank 0",
    ]


def test_loads_have_a_sign_at_both_ends():
    drawn = Counter(labels(player(TWO.all_reduce, 4).set(step=5)))
    assert [drawn[f"→ {rank}"] for rank in range(4)] == [1] * 4
    assert drawn["← 1"] == 4 and drawn["← rank 1"] == 3 and drawn["loads its own"] == 1
    assert labels(player(MESH.all_reduce, 4).set(step=4)).count("→ all") == 1


def arrows(view, monkeypatch):
    """What stands at the start and at the end of each arrow: the signs (text, x, y) that are nearest."""
    drawn, drawing = set(), views.drawing.Drawing
    with monkeypatch.context() as patch:
        patch.setattr(drawing, "arrow", lambda self, start, end, *_, **__: drawn.add((start, end)))
        figure = view.figure()
    height = figure.canvas.get_width_height()[1]
    signs = [(t.get_text(), t.get_position()[0], height - t.get_position()[1]) for t in figure.findobj(Text)]
    signs = [sign for sign in signs if sign[0][:2] in ("→ ", "← ")]
    return [
        tuple(min(signs, key=lambda sign: np.hypot(sign[1] - x, sign[2] - y)) for x, y in arrow) for arrow in drawn
    ]


@pytest.mark.parametrize("nranks", [4, 8])
def test_an_arrow_leads_from_where_it_lies_to_who_loads_it(nranks, monkeypatch):
    """Here everybody loads a chunk of rank 1: rank r, in column r, the chunk r."""
    found = arrows(player(TWO.all_reduce, nranks).set(step=5), monkeypatch)
    assert {start[0] for start, _ in found} == {f"→ {rank}" for rank in range(nranks) if rank != 1}
    assert len({round(start[1]) for start, _ in found}) == 1  # the column of rank 1
    assert all(end[0] == "← 1" for _, end in found)
    readers = [start[0] for start, _ in sorted(found, key=lambda arrow: arrow[1][1])]
    assert readers == [f"→ {rank}" for rank in range(nranks) if rank != 1]


def test_no_arrows_where_nothing_is_loaded_or_where_they_would_cover_the_cells(monkeypatch):
    assert arrows(player(TWO.all_reduce, 4).set(step=4), monkeypatch)  # rank 0's, to three others
    assert not arrows(player(TWO.all_reduce, 4).set(step=2), monkeypatch)
    assert not arrows(player(TWO.all_reduce, 9).set(step=5), monkeypatch)


def test_partial_sums_are_told_from_finished_ones_by_label():
    view = player(RING.all_reduce, 4)
    assert {"0, 1 (2 of 4)", "rank 2"} <= {*labels(view.set(step=10))}
    assert "chunk 0 · all 4" in labels(view.set(step=view.last))


@pytest.mark.parametrize("nranks", [17, 64])
def test_many_ranks_are_aggregated_and_it_is_said(nranks, misplaced):
    view = player(TWO.all_reduce, nranks, count=nranks)
    view.set(step=4)
    group = -(-nranks // 16)
    assert f"Aggregated: a column stands for {group} ranks." in view.text()
    assert f"Aggregated: a column stands for {group} ranks." in labels(view)
    assert "Aggregated: some rows stand for several chunks." in view.text()
    assert misplaced(view.figure()) == []
    assert len(view.text()) < 20_000


def test_aggregated_cells_do_not_claim_more_than_they_know():
    view = player(broken, 18, count=36)
    view.set(step=view.last)
    assert "some never written" in view.text()
    right = player(TWO.all_reduce, 17, count=34)
    right.set(step=right.last)
    table = right.text().partition('window "two_phase.result"')[2].partition("returned")[0]
    # a row is two chunks, of which a rank holds one; the 17th rank and chunk stand alone
    assert table.count("at most 17 of 17") == 8 and table.count("all 17") == 1


@pytest.mark.parametrize(
    ("program", "nranks"),
    [
        (MESH.all_reduce, 1), (RING.all_reduce, 2), (broken, 4), (RING.all_reduce, 8), (TWO.all_reduce, 8),
        (KERNELS["rabenseifner.all_reduce"].program, 8), (TWO.all_reduce, 16), (KERNELS["tree.broadcast"].program, 5),
    ],
)
def test_labels_are_apart_and_inside(program, nranks, misplaced):
    view = player(program, nranks, count=max(16, nranks))
    for step in {0, 1, view.last // 2, view.last, view.states.race_step or 0} if nranks < 8 else [view.last // 2]:
        assert misplaced(view.set(step=step).figure()) == []


def test_markup_is_not_interpreted(markup):
    view = views.kernel_player(cl.simulate(RING.all_reduce, np.ones(4), ranks=2), name="<b>$x$</b>")
    assert "<b>" not in markup(view.widget()) and "&lt;b&gt;$x$" in markup(view.widget())
    view.close()


def test_controls(control, picture):
    view = player(broken, 2, count=4)
    widget = view.widget()
    before = picture(widget)
    control(widget, "Next barrier").click()
    assert view.settings["step"] == view.states.barriers()[0] and picture(widget) != before
    control(widget, "First race").click()
    assert view.settings["step"] == view.states.race_step
    control(widget, "state").value = 1
    assert view.settings["step"] == 1
    control(widget, "Back").click()
    assert view.settings["step"] == 0 and control(widget, "state").value == 0
    view.set(step=view.states.barriers()[-1])
    control(widget, "Next barrier").click()
    assert view.settings["step"] == view.last and not control(widget, "Next barrier").disabled
    view.close()
    ring = player(RING.all_reduce, 2)
    assert control(ring.widget(), "First race").disabled
    control(ring.widget(), "Next wait").click()
    assert "passes" in ring.caption() or "pass their waits" in ring.caption()
    ring.close()


def test_what_is_not_accepted():
    run = cl.simulate(RING.all_reduce, np.ones(4), ranks=2)
    with pytest.raises(TypeError, match=r"kernel_player\(run=3\): a Run"):
        views.kernel_player(3)
    with pytest.raises(TypeError, match=r"cards is a list with the cost\.Card"):
        views.kernel_player(run, [1, 2])
    with pytest.raises(ValueError, match="cards has 1 of them, and the run 2 ranks"):
        views.kernel_player(run, [RING.all_reduce_cost(2, 4, 8, 0)])
    for step in (-1, 999, True, 1.0):
        with pytest.raises(ValueError, match="step is a whole number, 0 to "):
            views.kernel_player(run, step=step)

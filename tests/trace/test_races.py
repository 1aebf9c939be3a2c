"""Races and order from one run, held against brute force over schedules."""

import numpy as np
import pytest

import collectlab as cl
from collectlab.kernels import two_phase
from collectlab.trace import Trace
from collectlab.trace.order import clocks

SCHEDULES = range(60)


def exchange(rows, at_least):
    """Each rank stores, meets, loads its right neighbour's, meets again, stores anew, meets, loads again."""

    def program(ctx):
        right = (ctx.rank + 1) % ctx.nranks
        window = ctx.window("w", 2, np.int64)
        signals = ctx.signals("s", rows=3)
        seen = []
        for k in range(2):
            window.store(np.array([ctx.rank, k]))
            meet(ctx, signals, rows[2 * k], at_least[2 * k])
            seen.append(window.remote_load(right).tolist())
            if k == 0:
                meet(ctx, signals, rows[1], at_least[1])
        return seen

    return program


def meet(ctx, signals, row, at_least):
    """A barrier by hand."""
    peers = [peer for peer in range(ctx.nranks) if peer != ctx.rank]
    for peer in peers:
        signals.notify(peer, row)
    for peer in peers:
        signals.wait(peer, row, at_least)


SOUND = {"a row for each": ((0, 1, 2), (1, 1, 1)), "one row that rises": ((0, 0, 0), (1, 2, 3))}
BROKEN = {
    "one row, the same target": ((0, 0, 0), (1, 1, 1)),
    "the last barrier reuses the first": ((0, 1, 0), (1, 1, 1)),
    "the middle one reuses the first": ((0, 0, 2), (1, 1, 1)),
    "a wait for nothing": ((0, 1, 2), (0, 1, 1)),
}


def outcomes(program, nranks):
    """The different results over many schedules."""
    return {repr(cl.simulate(program, ranks=nranks, schedule=s).results) for s in SCHEDULES}


@pytest.mark.parametrize("nranks", (2, 3))
@pytest.mark.parametrize("name", SOUND)
def test_a_program_without_a_race_has_one_result_under_every_schedule(name, nranks):
    program = exchange(*SOUND[name])
    for schedule in (None, 7):
        assert cl.simulate(program, ranks=nranks, schedule=schedule).trace.races() == []
    assert len(outcomes(program, nranks)) == 1


@pytest.mark.parametrize("nranks", (2, 3))
@pytest.mark.parametrize("name", BROKEN)
def test_a_program_with_a_race_is_found_in_any_one_run_and_does_harm_in_some(name, nranks):
    program = exchange(*BROKEN[name])
    for schedule in (None, *range(20)):
        races = cl.simulate(program, ranks=nranks, schedule=schedule).trace.races()
        assert races, schedule
        assert 'race on window "w"' in str(races[0]) and "nothing orders the two" in str(races[0])
    assert len(outcomes(program, nranks)) > 1


def test_the_edge_comes_from_what_the_wait_guarantees_not_from_what_had_arrived():
    def program(ctx):
        window, signals = ctx.window("w", 1, np.int64), ctx.signals("s", rows=1)
        if ctx.rank == 0:
            signals.notify(1, 0)
            window.store(np.array([5]))
            signals.notify(1, 0)
            return None
        signals.wait(0, 0, 1)
        return window.remote_load(0).tolist()

    run = cl.simulate(
        program, ranks=2
    )  # rank 0 runs first, to its end: both notifications have arrived by luck
    assert run.results[1] == [5]
    (race,) = run.trace.races()
    assert (race.first.kind, race.second.kind) == ("store", "load")
    assert "asks for 1" in str(race) and "let its wait ask for 2" in str(race)


def test_clocks_order_exactly_what_is_connected_by_signals():
    def program(ctx):
        signals = ctx.signals("s", rows=1)
        if ctx.rank < ctx.nranks - 1:
            if ctx.rank:
                signals.wait(ctx.rank - 1, 0, 1)
            signals.notify(ctx.rank + 1, 0)
        else:
            signals.wait(ctx.rank - 1, 0, 1)

    trace = cl.simulate(program, ranks=4).trace
    times = clocks(trace)
    last = max(range(len(times)), key=lambda i: sum(times[i]))
    assert trace.events[last].rank == 3 and times[last] == [1, 2, 2, 1]


@pytest.mark.parametrize("elements", (slice(0, 4), slice(2, 3), slice(1, 8, 3), (2,), slice(None)))
def test_accesses_meet_only_where_they_share_an_element(elements):
    def program(ctx, other):
        window = ctx.window("w", 8, np.int64)
        if ctx.rank == 0:
            window.store(np.ones_like(window.load(elements)), elements)
        else:
            window.remote_load(0, other)

    mine = set(np.arange(8)[elements].ravel().tolist())
    for other in (slice(0, 1), slice(4, 8), slice(3, 5), slice(8, 8)):
        shared = mine & set(range(*other.indices(8)))
        races = cl.simulate(program, other, ranks=2).trace.races()
        assert [sorted(race.elements) for race in races] == ([sorted(shared)] if shared else [])


def test_events_of_real_ranks_are_merged_in_an_order_that_respects_every_wait():
    run = cl.simulate(cl.kernels.two_phase.all_reduce, cl.per_rank([np.arange(6)] * 3), ranks=3, schedule=4)
    apart = [[e for e in run.trace.events if e.rank == rank] for rank in range(3)]
    merged = Trace.merged(apart)
    assert len(merged.events) == len(run.trace.events)
    given = set()
    for event in merged.events:
        if event.kind == "notify":
            given.add((event.peer, event.row, event.rank, event.at_least))
        if event.kind == "wait":
            assert (event.rank, event.row, event.peer, event.at_least) in given
    assert merged.races() == [] and (merged.traffic() == run.traffic).all()


def test_windows_of_one_name_and_different_shapes_or_dtypes_are_told_apart():
    def program(ctx, other, dtype):
        first = ctx.window("w", 4, np.int64)
        if ctx.rank == 0:
            first.store(np.ones(4, np.int64))
        second = ctx.window("w", other, dtype)
        if ctx.rank == 1:
            second.remote_load(0, slice(0, 2))

    for other, dtype in ((8, np.int64), (4, np.int32)):
        assert cl.simulate(program, other, dtype, ranks=2).trace.races() == []
    assert len(cl.simulate(program, 4, np.int64, ranks=2).trace.races()) == 1


def test_a_long_run_without_a_race_is_not_gone_through_pair_by_pair():
    class Counted(list):
        looks = 0

        def __getitem__(self, at):
            Counted.looks += 1
            return super().__getitem__(at)

    def program(ctx, x, calls):
        for _ in range(calls):
            two_phase.all_reduce(ctx, x)

    trace = cl.simulate(program, np.ones(6), 100, ranks=3).trace
    trace.events = Counted(trace.events)
    assert trace.races() == [] and Counted.looks <= len(trace.events)


@pytest.mark.parametrize(
    ("file", "place"), (("/home/me/kernels.py", "kernels.py, line 4"), ("/tmp/ipykernel_7/123.py", "line 4"))
)
def test_a_line_is_named_with_its_file_and_that_of_a_notebook_without(file, place):
    """What a notebook's cell is called in a trace is a number that its reader never sees."""
    names = {}
    source = "def program(ctx):\n    window = ctx.window('w', 1, int)\n    if ctx.rank:\n        window.store([1])\n"
    exec(compile(f"{source}    window.remote_load(1)\n", file, "exec"), names)
    (race,) = cl.simulate(names["program"], ranks=2).trace.races()
    assert race.lines[1] == f"    rank 1 stores it   {place}"

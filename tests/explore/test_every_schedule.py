"""The argument of trace/races.py, and the search over all schedules, held against brute force on random programs."""

import random
from functools import partial

import numpy as np
import pytest

import collectlab as cl
from collectlab.explore import every_schedule, schedules
from collectlab.explore.schedules import frozen, outcome
from collectlab.trace import order, races
from collectlab.trace.events import LOAD, NOTIFY, STORE, WAIT

PROGRAMS = 250


def drawn(seed):
    """A random program of 2 or 3 ranks: accesses to a window of two elements, and signals on two rows.

    Some waits ask for fewer notifications than there were, some signals are not waited for, a few never come. In
    every third program a rank makes its next step only if what it loaded last is an odd number, or nothing yet.
    """
    draw = random.Random(seed)
    nranks = draw.choice((2, 2, 3))
    steps, given = [[] for _ in range(nranks)], {}
    for _ in range(draw.randint(4, 9)):
        rank, peer = draw.sample(range(nranks), 2)
        row = draw.choice((0, 0, 1))
        if draw.random() < 0.6:
            at = draw.choice((slice(0, 1), slice(1, 2), slice(0, 2)))
            steps[rank].append((draw.choice((STORE, LOAD)), draw.choice((0, 0, peer)), at, None, None))
            continue
        count = given[rank, peer, row] = given.get((rank, peer, row), 0) + 1
        if draw.random() < 0.95:
            steps[rank].append((NOTIFY, peer, None, row, None))
        if draw.random() < 0.9:
            steps[peer].append((WAIT, rank, None, row, draw.choice((count, count, count, count - 1))))

    def program(ctx):
        window, signals = ctx.window("w", 2, np.int64), ctx.signals("s", rows=2)
        seen = []
        for number, (kind, peer, at, row, target) in enumerate(steps[ctx.rank]):
            if seed % 3 == 0 and seen and seen[-1][0] % 2 == 0:
                seen.append([1])
            elif kind == STORE:
                window.remote_store(peer, np.full(at.stop - at.start, 100 * ctx.rank + number), at)
            elif kind == LOAD:
                seen.append(window.remote_load(peer, at).tolist())
            elif kind == NOTIFY:
                signals.notify(peer, row)
            else:
                signals.wait(peer, row, target)
        return seen, window.local  # with what its part holds in the end, when all have ended

    return program, nranks


def ends(program, nranks, reduced):
    """All outcomes, as a set."""
    return {frozen(outcome(run)) for run in every_schedule(program, ranks=nranks, reduced=reduced).outcomes}


def disproved(seeds):
    """Programs of which one run has no race and reached its end, and which have several outcomes all the same."""
    found = []
    for seed in seeds:
        program, nranks = drawn(seed)
        run = cl.simulate(program, ranks=nranks, schedule=seed)
        if run.ok and not run.trace.races() and len(ends(program, nranks, reduced=False)) > 1:
            found.append(seed)
    return found


def test_a_complete_run_without_a_race_has_the_result_of_every_schedule():
    assert disproved(range(PROGRAMS)) == []


def test_a_race_detector_that_trusts_luck_would_be_disproved(monkeypatch):
    def lucky(trace):
        """Clocks in which a wait orders all that had arrived by then."""
        for i, event in enumerate(trace.events):
            if event.kind == WAIT:
                given = (NOTIFY, event.peer, event.rank, event.name, event.row)
                event.at_least = sum((e.kind, e.rank, e.peer, e.name, e.row) == given for e in trace.events[:i])
        return order.clocks(trace)

    monkeypatch.setattr(races, "clocks", lucky)
    assert disproved(range(PROGRAMS))


def test_a_race_detector_that_overlooks_two_stores_would_be_disproved(monkeypatch):
    monkeypatch.setattr(races, "common", lambda a, b: range(0, 1) if (0 in a and 0 in b) else [])
    assert disproved(range(PROGRAMS))


def place(trace, rank, number):
    """Where the step of that number of a rank lies in a trace."""
    return [i for i, e in enumerate(trace.events) if e.rank == rank][number]


def reversed_by_a_delay(program, nranks, trace, before, at):
    """Whether the later of two accesses comes first when the rank of the earlier one is delayed before it."""
    a, b = trace.events[before], trace.events[at]
    number = {i: sum(e.rank == trace.events[i].rank for e in trace.events[:i]) for i in (before, at)}
    for step in range(1, len(trace.events) + 9):  # a wait that was begun and not passed is a step too
        late = cl.simulate(program, ranks=nranks, schedule=-step).trace
        mine = [sum(e.rank == x.rank for e in late.events) > number[i] for x, i in ((a, before), (b, at))]
        if mine[1] and (not mine[0] or place(late, b.rank, number[at]) < place(late, a.rank, number[before])):
            return True
    return False


def test_two_accesses_race_if_and_only_if_they_can_come_in_either_order():
    raced = ordered = 0
    for seed in range(PROGRAMS):
        program, nranks = drawn(seed)
        trace = cl.simulate(program, ranks=nranks).trace
        racing = {(a, b) for a, b, _ in races.pairs(trace)}
        for b, late in enumerate(trace.events):
            for a, early in enumerate(trace.events[:b]):
                if early.rank == late.rank or not schedules._conflict(early, late):
                    continue
                assert ((a, b) in racing) == reversed_by_a_delay(program, nranks, trace, a, b), (seed, a, b)
                raced, ordered = raced + ((a, b) in racing), ordered + ((a, b) not in racing)
    assert raced > 200 and ordered > 30, (raced, ordered)


def test_the_reduced_search_finds_the_same_outcomes_as_the_complete_one():
    several = stuck = 0
    for seed in range(PROGRAMS):
        program, nranks = drawn(seed)
        found = ends(program, nranks, reduced=True)
        assert found == ends(program, nranks, reduced=False), seed
        several += len(found) > 1
        stuck += any(end[2] != "{}" and end[2] for end in found)
    assert several > 50 and stuck > 20, (several, stuck)


@pytest.mark.parametrize(
    ("name", "wrong"),
    (
        ("_conflict", lambda a, b: False),
        ("_conflict", lambda a, b: a.peer == b.peer and {a.kind, b.kind} == {STORE, LOAD}),
        ("_commute", lambda a, b: True),
    ),
)
def test_a_reduction_that_takes_too_much_for_the_same_would_be_seen(monkeypatch, name, wrong):
    whole = [ends(*drawn(seed), reduced=False) for seed in range(60)]
    monkeypatch.setattr(schedules, name, wrong)
    assert any(ends(*drawn(seed), reduced=True) != whole[seed] for seed in range(60))


def test_every_outcome_is_replayed_by_its_number():
    for seed in range(80):
        program, nranks = drawn(seed)
        for reduced in (True, False):
            for run in every_schedule(program, ranks=nranks, reduced=reduced).outcomes:
                again = cl.simulate(program, ranks=nranks, schedule=run.schedule)
                assert frozen(outcome(again)) == frozen(outcome(run)), (seed, run.schedule)


@pytest.mark.parametrize("name", ("mesh", "two_phase", "ring"))
@pytest.mark.parametrize("nranks", (2, 3))
def test_kernels_have_one_outcome_and_the_reduced_search_needs_one_run(name, nranks):
    kernel = getattr(cl.kernels, name).all_reduce
    xs = cl.per_rank([np.arange(4) * (rank + 1) for rank in range(nranks)])
    found = every_schedule(kernel, xs, ranks=nranks)
    assert found.one and found.runs == 1
    assert found.outcomes[0].results[0].tolist() == [sum(range(1, nranks + 1)) * i for i in range(4)]
    if nranks == 2 or name == "two_phase":
        found = every_schedule(kernel, xs, ranks=nranks, reduced=False)
        assert found.one and found.runs > 20


def test_a_bound_that_does_not_suffice_is_named():
    def program(ctx):
        window = ctx.window("w", 1, np.int64)
        for _ in range(4):
            window.remote_store(0, np.array([ctx.rank]))
        return window.remote_load(0).tolist()

    with pytest.raises(RuntimeError, match=r"every_schedule\(program, ranks=3, most=50\): 50 runs do not suffice"):
        every_schedule(program, ranks=3, most=50)
    with pytest.raises(RuntimeError, match=r"every_schedule\(partial, ranks=3, most=50\): 50 runs"):  # has no name
        every_schedule(partial(program), ranks=3, most=50)


def test_what_cannot_be_run_is_refused_by_name():
    with pytest.raises(ValueError, match=r"every_schedule\(ranks=0\): 1 to 64"):
        every_schedule(lambda ctx: 0, ranks=0)
    with pytest.raises(TypeError, match=r"every_schedule\(program=3\): a function is accepted"):
        every_schedule(3, ranks=2)

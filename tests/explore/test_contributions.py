"""Whose contributions lie in what a run stored and loaded, against the numbers that the same program moves.

The independent witness: with 10 ** r on rank r, the decimal digits of a sum say how often each rank is in it.
"""

import random
import sys

import numpy as np
import pytest
from kernel_cases import ALL_REDUCE, KERNELS, REDUCE

import collectlab as cl
from collectlab.explore import contributions as room
from collectlab.explore.contributions import RUBBISH, NotKnown, contributions
from collectlab.trace import Trace
from collectlab.trace.events import LOAD, STORE


def found(program, *args, ranks, schedule=None):
    run = cl.simulate(program, *args, ranks=ranks, schedule=schedule)
    return run, contributions(run.trace, program, args)


def digits(values, nranks):
    """How often each rank is in sums of 10 ** rank; RUBBISH where a number is none."""
    return [[RUBBISH] * nranks if np.isnan(v) else [int(v) // 10**r % 10 for r in range(nranks)] for v in values]


def powers(nranks, count):
    return cl.per_rank([np.full(count, 10.0**rank) for rank in range(nranks)])


def telling(ctx, x, rows):
    """Two phases on `rows` of signals, not enough of which make a race; returns what it loaded, in order."""
    n, said = x.size // ctx.nranks, []
    mine = slice(ctx.rank * n, (ctx.rank + 1) * n)
    data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
    signals = ctx.signals("s", rows=2)
    data.store(x)
    ctx.barrier(signals, 0)
    total = ctx.xp.zeros(n, x.dtype)
    for peer in range(ctx.nranks):
        said.append(data.remote_load(peer, mine))
        total = total + said[-1]
    result.store(total, mine)
    ctx.barrier(signals, rows - 1)
    for peer in range(ctx.nranks):
        said.append(result.remote_load(peer, slice(peer * n, (peer + 1) * n)))
    return said


@pytest.mark.parametrize(("rows", "schedule"), [(2, None), (2, 5), (1, None), (1, 0), (1, 7), (1, -1), (1, -30)])
def test_what_is_loaded_is_what_the_digits_say_also_in_a_race(rows, schedule):
    run, known = found(telling, powers(3, 6), rows, ranks=3, schedule=schedule)
    assert bool(run.trace.races()) == (rows == 1)
    loads = {rank: iter(said) for rank, said in enumerate(run.results)}
    looks = [look for look in known.looks if run.trace.events[look.event].kind == LOAD]
    assert len(looks) == sum(map(len, run.results))
    for look in looks:
        assert look.shares.tolist() == digits(next(loads[run.trace.events[look.event].rank]), 3)


def test_some_schedule_of_the_race_loads_what_nobody_has_written():
    _, known = found(telling, powers(3, 6), 1, ranks=3)
    assert any((look.shares == RUBBISH).all() for look in known.looks if look.window == "result")


@pytest.mark.parametrize("nranks", [1, 3, 4])
@pytest.mark.parametrize("name", KERNELS)
def test_what_is_returned_is_what_the_definition_says(name, nranks):
    kernel = KERNELS[name]
    count = 5 * (nranks if kernel.blocks else 1)
    _, known = found(kernel.program, np.arange(count, dtype=np.float32), ranks=nranks)
    assert known.counted
    for writer in range(nranks):
        marks = [np.full(count, int(rank == writer)) for rank in range(nranks)]
        for rank, want in enumerate(kernel.reference(marks)):
            assert known.returned[rank][:, writer].tolist() == want.ravel().tolist()


@pytest.mark.parametrize("op", ["sum", "avg", "min", "max", "prod"])
@pytest.mark.parametrize("name", REDUCE)
def test_every_operation_has_contributors(name, op):
    _, known = found(KERNELS[name].program, np.arange(7, dtype=np.int64 if op != "avg" else float), op, ranks=3)
    assert known.counted == (op in ("sum", "avg"))
    assert all((shares == 1).all() for shares in known.returned)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float16, np.complex128])
def test_every_dtype_can_be_followed(dtype):
    _, known = found(KERNELS["ring.all_reduce"].program, np.zeros(6, dtype), ranks=4)
    assert known.counted and all((shares == 1).all() for shares in known.returned)


def test_a_rank_that_is_in_twice_and_one_that_is_missing():
    def careless(ctx, x):
        window, signals = ctx.window("w", x.size, x.dtype), ctx.signals("s", rows=1)
        window.store(x)
        ctx.barrier(signals, 0)
        return (window.remote_load(0) + window.remote_load(0) + window.remote_load(2)) / ctx.nranks

    _, known = found(careless, np.ones(2), ranks=3)
    assert known.counted and all(shares.tolist() == [[2, 0, 1]] * 2 for shares in known.returned)


def test_what_is_halved_is_not_in_twice():
    def pairs(ctx, x):
        window, signals = ctx.window("w", x.size, x.dtype), ctx.signals("s", rows=1)
        window.store(x)
        ctx.barrier(signals, 0)
        return (x + window.remote_load(ctx.rank ^ 1)) / 2

    _, known = found(pairs, np.ones(2), ranks=4)
    pair = [[1, 1, 0, 0]] * 2, [[0, 0, 1, 1]] * 2
    assert known.counted and [shares.tolist() for shares in known.returned] == [pair[rank // 2] for rank in range(4)]


def test_what_is_written_without_a_trace_is_seen():
    def registered(ctx, x):
        data = ctx.window("tensor", x.size, x.dtype)
        data.local[...] = x
        return cl.kernels.two_phase.all_reduce_registered(ctx, data).copy()

    run, known = found(registered, np.ones(4), ranks=2)
    stored = {e.name for e in run.trace.events if e.kind == STORE}
    first = [look for look in known.looks if look.window == "tensor"][:2]
    assert "tensor" not in stored
    assert [look.shares[:, look.owner].tolist() for look in first] == [[1] * 4] * 2


def test_a_run_that_failed_is_followed_as_far_as_it_went():
    def half(ctx, x):
        window, signals = ctx.window("w", x.size, x.dtype), ctx.signals("s", rows=1)
        window.store(x)
        ctx.barrier(signals, 0)
        if ctx.rank == 1:
            raise ValueError("no")
        return window.remote_load(1)

    run, known = found(half, np.ones(2), ranks=2)
    assert not run.ok and known.returned[1] is None
    assert known.returned[0].tolist() == [[0, 1]] * 2


def refusal(program, *args, ranks=2):
    run = cl.simulate(program, *args, ranks=ranks)
    with pytest.raises(NotKnown) as error:
        contributions(run.trace, program, args)
    return str(error.value)


def store(ctx, x):
    ctx.window("w", x.size, x.dtype).store(x)


def test_why_nothing_can_be_said(monkeypatch):
    assert "no argument of the program is an array" in refusal(lambda ctx: store(ctx, np.ones(3)))
    assert "random numbers" in refusal(lambda ctx, x: store(ctx, x + random.random()), np.ones(3))
    values = lambda ctx, x: ctx.window("w", 9, float).store(x, slice(0, 3)) if x[0] > 1 else None  # noqa: E731
    assert "takes other steps" in refusal(values, np.full(3, 7.0))
    monkeypatch.setattr(room, "MOST_NUMBERS", 100)
    assert "too many to be followed" in refusal(store, np.ones(300))
    monkeypatch.setattr(room, "MOST_EVENTS", 10)
    assert "too many to be made again" in refusal(KERNELS["ring.all_reduce"].program, np.ones(4))


@pytest.mark.parametrize("name", ALL_REDUCE)
def test_another_trace_than_the_programs_is_refused(name):
    program, x = KERNELS[name].program, np.ones(6)
    events = cl.simulate(program, x, ranks=3).trace.events
    for wrong in (events[1:], [*events[:-1], events[0]], events[::-1], [*events, events[-1]]):
        with pytest.raises(NotKnown):
            contributions(Trace(3, wrong), program, (x,))


def test_running_it_again_prints_nothing_and_loads_no_mpi(capsys):
    again = []

    def program(ctx, x):
        print("here")
        store(ctx, x)
        if again:
            import mpi4py  # noqa: F401

    assert "mpi4py" not in sys.modules
    run = cl.simulate(program, np.ones(2), ranks=2)
    capsys.readouterr()
    again.append(True)
    contributions(run.trace, program, (np.ones(2),))
    assert capsys.readouterr().out == "" and "mpi4py" not in sys.modules


def test_arrays_inside_of_lists_are_followed_and_whole_numbers_beside_floats_are_not():
    def program(ctx, held, counts):
        store(ctx, held["x"][0][: counts[0]])

    run = cl.simulate(program, {"x": [np.ones(4)]}, np.array([3]), ranks=2)
    known = contributions(run.trace, program, ({"x": [np.ones(4)]}, np.array([3])))
    assert [look.shares.shape for look in known.looks] == [(3, 2)] * 2

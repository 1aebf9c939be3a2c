"""Loads, views and stores: what they return, what they refuse, and what they leave in the trace."""

import numpy as np
import pytest

import collectlab as cl
from collectlab.cost import Card


def _one(program, *args):
    run = cl.simulate(program, *args, ranks=1)
    assert run.ok, run.report()
    return run.results[0], [(e.kind, list(e.elements), e.nbytes) for e in run.trace.events]


def test_a_load_is_a_copy_and_a_view_is_not():
    def program(ctx):
        window = ctx.window("w", 4, np.int64)
        window.store(np.arange(4))
        copy, view, into = window.load(), window.remote_view(0, slice(1, 3)), np.zeros(2, np.int64)
        same = window.load(slice(2, 4), out=into) is into
        window.store(np.array([7]), slice(2, 3))
        return copy.tolist(), view.tolist(), into.tolist(), same, view.flags.writeable, window.local.tolist()

    result, events = _one(program)
    assert result == ([0, 1, 2, 3], [1, 7], [2, 3], True, False, [0, 1, 7, 3])
    assert events == [
        ("store", [0, 1, 2, 3], 32), ("load", [0, 1, 2, 3], 32), ("load", [1, 2], 16), ("load", [2, 3], 16),
        ("store", [2], 8),
    ]  # fmt: skip


def test_views_of_all_ranks_are_one_load_from_each():
    def program(ctx):
        window = ctx.window("w", 4, np.int64)
        window.local[:] = ctx.rank
        ctx.barrier(ctx.signals("filled", rows=1), 0)
        return [view.tolist() for at in (slice(1, 3), (2,)) for view in window.remote_views(at)]

    run = cl.simulate(program, ranks=3)
    assert run.results == [[[0, 0], [1, 1], [2, 2], 0, 1, 2]] * 3
    loads = [(e.peer, list(e.elements)) for e in run.trace.events if e.kind == "load" and e.rank == 1]
    assert loads == [(0, [1, 2]), (1, [1, 2]), (2, [1, 2]), (0, [2]), (1, [2]), (2, [2])]


@pytest.mark.parametrize(
    ("dtype", "value"),
    ((np.int64, np.float64), (np.float64, np.int64), (np.float32, np.float64), (np.int64, np.int32)),
)
def test_a_value_of_another_dtype_is_refused_and_a_number_without_one_is_not(dtype, value):
    def store(ctx, value, at):
        window = ctx.window("w", 4, dtype)
        window.store(value, at)
        return window.local.tolist()

    run = cl.simulate(store, np.ones(2, value), slice(0, 2), ranks=1)
    assert f"the slice holds (2,) of {np.dtype(dtype)}, the value is (2,) of {np.dtype(value)}" in run.report()
    assert cl.simulate(store, [3, 4], slice(0, 2), ranks=1).results[0][:2] == [3, 4]


def test_a_slice_means_its_ends_also_where_another_one_lay_at_its_place_in_memory():
    def program(ctx):
        window = ctx.window("w", 1000, np.int64)
        window.store(np.arange(1000))
        return [window.load(slice(i, i + 1)).item() for i in range(1000)]  # each is gone before the next is made

    result, events = _one(program)
    assert result == list(range(1000))
    assert events[1:] == [("load", [i], 8) for i in range(1000)]


@pytest.mark.parametrize("peer", (1.0, -1, "0"))
def test_a_peer_that_is_no_rank_is_refused_also_for_a_slice_that_is_known(peer):
    def program(ctx):
        window, at = ctx.window("w", 4, np.int64), slice(0, 2)
        assert all(window.remote_load(known, at).size == 2 for known in (0, 1, True, np.int64(1)))
        window.remote_load(peer, at)

    said = f'rank 0, in its step 5: window "w".remote_load(peer={peer!r}, at=0:2): peers are ranks 0 to 1'
    assert said in cl.simulate(program, ranks=2).report()


def test_what_is_done_through_local_is_not_traced():
    def program(ctx):
        window = ctx.window("w", (2, 2), np.float32)
        window.local[:] = 3
        return window.load((1, 1)).item()

    assert _one(program) == (3, [("load", [3], 4)])


@pytest.mark.parametrize(
    ("out", "said"),
    ((np.zeros(3), "the array to load into is (3,)"), (np.zeros(4, np.int32), "is (4,) of int32"), ([0] * 4, None)),
)
def test_an_array_to_load_into_has_to_fit(out, said):
    run = cl.simulate(lambda ctx: ctx.window("w", 4, np.float64).remote_load(0, out=out), ranks=1)
    assert not run.ok
    assert said is None or (said in run.report() and 'remote_load(out=..., at=:)' in run.report())


def test_a_window_is_its_name_shape_and_dtype():
    def program(ctx):
        first = ctx.window("w", 4, np.int64)
        first.store(np.arange(4))
        other, again = ctx.window("w", 3, np.int64), ctx.window("w", (4,), "int64")
        other.store(np.zeros(3, np.int64))
        return again.load().tolist()

    assert _one(program)[0] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("mine", "theirs"),
    (
        (lambda ctx: ctx.window("a", 4, np.int64), 'window("b", (4,), int64)'),
        (lambda ctx: ctx.window("b", 4, np.int32), 'window("b", (4,), int64)'),
        (lambda ctx: ctx.signals("b", rows=4), 'window("b", (4,), int64)'),
    ),
)
def test_ranks_that_ask_for_different_things_are_told_both(mine, theirs):
    def program(ctx):
        return mine(ctx) if ctx.rank else ctx.window("b", 4, np.int64)

    for run in (cl.simulate(program, ranks=2), cl.run(program, ranks=2, device="cpu")):
        assert run.status == "failed"
        assert theirs in run.report() and "in its place rank" in run.report()


def test_signals_keep_their_number_of_rows():
    def program(ctx):
        ctx.signals("s", rows=2)
        ctx.signals("s", rows=3)

    for run in (cl.simulate(program, ranks=2), cl.run(program, ranks=2, device="cpu")):
        assert 'signals("s", rows=3): they were made with rows=2' in run.report()


def test_a_kernel_may_be_called_with_several_lengths():
    def program(ctx):
        return [cl.kernels.two_phase.all_reduce(ctx, np.arange(n)).tolist() for n in (5, 3, 5)]

    for run in (cl.simulate(program, ranks=3, schedule=2), cl.run(program, ranks=3, device="cpu")):
        assert run.ok, run.report()
        assert run.results[1] == [[0, 3, 6, 9, 12], [0, 3, 6], [0, 3, 6, 9, 12]]
        assert run.trace.races() == []


def test_a_barrier_is_an_event_and_so_is_each_signal_in_it():
    def program(ctx):
        window, signals = ctx.window("w", 3, np.float32), ctx.signals("s", rows=2)
        window.store(np.zeros(3, np.float32))
        ctx.barrier(signals, 1)
        if ctx.rank == 0:
            window.remote_load(2, slice(0, 2))
            window.remote_load(1, slice(1, 1))
            signals.notify(1, 0)
        if ctx.rank == 1:
            window.remote_store(2, np.ones(1, np.float32), slice(0, 1))
            signals.wait(0, 0, 1)

    for run in (cl.simulate(program, ranks=3), cl.run(program, ranks=3, device="cpu")):
        assert [run.trace.measured(rank) for rank in range(3)] == [
            Card(8, 1, 3, 2, 1, 1),
            Card(4, 1, 2, 3, 1, 2),
            Card(0, 0, 2, 2, 1, 1),
        ]
        (left,) = [e for e in run.trace.events if e.kind == "barrier" and e.rank == 2]
        assert (left.name, left.row, left.at_least) == ("s", 1, 1)
        assert str(left) == 'rank 2 leaves the barrier on row 1 of "s"'
        causes = {(e.kind, e.cause) for e in run.trace.events if e.rank == 1 and e.kind in ("notify", "wait")}
        assert causes == {("notify", "barrier"), ("wait", "barrier"), ("wait", "")}


def test_a_simulation_without_a_trace_notes_nothing_and_still_refuses_what_is_wrong():
    kernel = cl.kernels.ring.all_reduce
    run = cl.simulate(kernel, np.arange(4), ranks=3, schedule=5, trace=False)
    assert run.results[2].tolist() == [0, 3, 6, 9] and run.trace.events == []
    bad = cl.simulate(lambda ctx: ctx.window("w", 2, np.int64).load(slice(0, 3)), ranks=1, trace=False)
    assert "leaves the 2 elements" in bad.report()

"""What windows and signals refuse, and what a simulation says when nobody can go on."""

import sys

import numpy as np
import pytest

import collectlab as cl


def _fails(program, *args, ranks=2):
    run = cl.simulate(program, *args, ranks=ranks)
    assert not run.ok and run.status == "failed"
    return run.report()


@pytest.mark.parametrize(
    ("act", "said"),
    (
        (lambda w, s: w.load(slice(0, 5)), "0:5 leaves the 4 elements"),
        (lambda w, s: w.load(slice(-1, 2)), "leaves the 4 elements"),
        (lambda w, s: w.load((7,)), "out of bounds"),
        (lambda w, s: w.load("x"), "the window has shape (4,)"),
        (lambda w, s: w.remote_load(2), "peers are ranks 0 to 1"),
        (lambda w, s: w.remote_load(-1), "peers are ranks 0 to 1"),
        (lambda w, s: w.remote_store(None, np.zeros(4)), "peers are ranks 0 to 1"),
        (lambda w, s: w.store(np.zeros(3)), "the value is (3,)"),
        (lambda w, s: w.store(np.zeros(4, np.int32)), "the value is (4,) of int32"),
        (lambda w, s: s.notify(5, 0), "peers are ranks 0 to 1"),
        (lambda w, s: s.wait(1, 3, 1), "rows are 0 to 1"),
        (lambda w, s: s.notify(1, -1), "rows are 0 to 1"),
    ),
)
def test_a_step_outside_is_refused_by_rank_and_name(act, said):
    def program(ctx):
        window, signals = ctx.window("w", 4, np.float64), ctx.signals("s", rows=2)
        if ctx.rank == 1:
            act(window, signals)

    report = _fails(program)
    assert said in report and "rank 1 raised" in report and ('"w"' in report or '"s"' in report), report


def test_ranks_that_disagree_about_a_window_are_told():
    assert "all ranks must ask for the same" in _fails(lambda ctx: ctx.window("w", 4 + ctx.rank, np.int64))


def test_a_deadlock_says_who_waits_for_whom():
    def program(ctx):
        signals = ctx.signals("s", rows=2)
        if ctx.rank == 1:
            signals.notify(0, 0)
        signals.wait(1 - ctx.rank, 1 - ctx.rank, 1)

    report = _fails(program)
    assert 'rank 0 waits for rank 1 ("s" row 1, at least 1; it is 0)' in report
    assert 'rank 1 waits for rank 0 ("s" row 0, at least 1; it is 0)' in report


def test_a_simulation_never_changes_the_callers_arguments():
    x = np.zeros(3)

    def program(ctx, a, b):
        a += 1
        b += 1
        return a

    run = cl.simulate(program, x, cl.per_rank([x, x]), ranks=2)
    assert x.tolist() == [0, 0, 0] and run.results[1].tolist() == [1, 1, 1]


def test_memory_that_nobody_has_written_does_not_look_like_zeros():
    run = cl.simulate(
        lambda ctx: (ctx.window("f", 1, np.float32).load(), ctx.window("i", 1, np.int32).load()), ranks=1
    )
    floats, ints = run.results[0]
    assert np.isnan(floats[0]) and ints[0] < -(2**30)


@pytest.mark.parametrize(
    ("ranks", "error"), ((0, ValueError), (65, ValueError), ("2", TypeError), (True, TypeError))
)
def test_simulate_refuses_rank_counts_it_cannot_have(ranks, error):
    with pytest.raises(error, match=r"simulate\(ranks="):
        cl.simulate(lambda ctx: 0, ranks=ranks)


def test_the_same_number_draws_the_same_order():
    def program(ctx):
        window = ctx.window("w", 1, np.int64)
        window.store(np.array([ctx.rank]))
        return [int(window.remote_load(0)[0]) for _ in range(4)]

    def orders():
        runs = [cl.simulate(program, ranks=3, schedule=number) for number in range(9)]
        return [[(event.rank, event.kind) for event in run.trace.events] for run in runs]

    assert orders() == orders()
    assert any(order != orders()[0] for order in orders())


def test_a_rank_that_leaves_by_sys_exit_ends_itself_only():
    def program(ctx):
        if ctx.rank == 1:
            sys.exit("no input")
        return ctx.rank

    run = cl.simulate(program, ranks=3)
    assert run.results == [0, None, 2] and run.status == "failed"
    assert "rank 1 raised SystemExit: no input" in run.report()


@pytest.mark.parametrize("schedule", (None, 3, -2))
def test_what_a_rank_does_on_its_way_out_of_a_deadlock_does_not_undo_it(schedule):
    def program(ctx):
        signals, window = ctx.signals("s", rows=1), ctx.window("w", 1, np.int64)
        try:
            signals.wait(1 - ctx.rank, 0, 1)
        finally:
            window.store([1])
            signals.notify(1 - ctx.rank, 0)

    def stubborn(ctx):
        try:
            ctx.signals("s", rows=1).wait(1 - ctx.rank, 0, 1)
        except BaseException:
            return "through"

    for broken in (program, stubborn):
        run = cl.simulate(broken, ranks=2, schedule=schedule)
        assert run.stuck == {0: (1, "s", 0, 1), 1: (0, "s", 0, 1)} and run.status == "failed"
        assert run.results == [None, None] and run.trace.events == [] and run.errors == {}


def test_a_program_that_asks_for_mpi_in_the_simulator_is_told_that_there_is_none():
    hint = "is MPI's, and None in the simulator: use windows and signals here"
    assert hint in _fails(lambda ctx: ctx.comm.allreduce(ctx.rank))
    assert hint not in _fails(lambda ctx: None.nothing)
    assert hint not in _fails(lambda ctx: ctx.window("w", 1, np.int64).send)

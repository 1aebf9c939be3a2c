"""Real ranks whose steps are not noted take shorter ways: the values and the errors are the same."""

import numpy as np
import pytest

import collectlab as cl
from collectlab.kernels import mesh, two_phase


@pytest.fixture(scope="module", params=(1, 2, 5))
def ranks(request):
    """Warm ranks, so many."""
    with cl.launch(request.param, device="cpu") as ranks:
        yield ranks


def calls(ctx, x, repeats):
    """Each kernel several times, on inputs that differ from call to call."""
    data, found = ctx.window("tensor", x.size, x.dtype), []
    for k in range(repeats):
        data.local[:] = x + k
        registered = two_phase.all_reduce_registered(ctx, data)
        data.local[:] = -1  # may be written again at once
        found.append([mesh.all_reduce(ctx, x + k), two_phase.all_reduce(ctx, x + k), registered.copy()])
    return found


@pytest.mark.parametrize("count", (0, 1, 7, 200_000))
def test_kernels_on_untraced_ranks_return_the_sum_call_after_call(ranks, count):
    xs = [np.arange(count) + rank for rank in range(ranks.nranks)]
    repeats = 2 if count > 7 else 50
    run = ranks.submit(calls, cl.per_rank(xs), repeats, trace=False).wait()
    assert run.ok, run.report()
    assert run.trace.events == []
    for of_rank in run.results:
        for k, results in enumerate(of_rank):
            for y in results:
                np.testing.assert_array_equal(y, sum(xs) + k * ranks.nranks)


def test_a_traced_run_of_the_same_notes_every_step_and_has_no_race(ranks):
    xs = [np.arange(9) + rank for rank in range(ranks.nranks)]
    run = ranks.submit(calls, cl.per_rank(xs), 1).wait()
    assert run.ok, run.report()
    assert run.trace.races() == []
    costs = [
        cost(ranks.nranks, 9, 8, rank)
        for cost in (mesh.all_reduce_cost, two_phase.all_reduce_cost, two_phase.all_reduce_registered_cost)
        for rank in range(ranks.nranks)
    ]
    measured = [run.trace.measured(rank) for rank in range(ranks.nranks)]
    for figure in ("nbytes", "messages", "notifications", "waits", "barriers", "steps"):
        assert sum(getattr(card, figure) for card in measured) == sum(getattr(card, figure) for card in costs)


def test_a_barrier_of_untraced_ranks_waits_for_the_last_one(ranks):
    def program(ctx):
        mark, signals = ctx.window("mark", 1, np.int64), ctx.signals("s", rows=1)
        mark.store(np.zeros(1, np.int64))
        ctx.comm.Barrier()
        if ctx.rank == ctx.nranks - 1:
            for _ in range(100_000):  # while the others are at the barrier
                mark.local[0] += 1
        ctx.barrier(signals, 0)
        return int(mark.remote_load(ctx.nranks - 1)[0])

    run = ranks.submit(program, trace=False).wait()
    assert run.results == [100_000] * ranks.nranks


def test_a_row_that_is_not_there_is_named_without_tracing_too():
    run = cl.run(lambda ctx: ctx.barrier(ctx.signals("s", rows=1), 1), ranks=1, device="cpu", trace=False)
    assert "row=1): rows are 0 to 0" in run.report()

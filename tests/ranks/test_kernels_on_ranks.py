"""The same kernels, windows and signals on real ranks: values, cards, and races that did no harm."""

import numpy as np
import pytest
from kernel_cases import KERNELS, complaints, inputs, same

import collectlab as cl
from collectlab.kernels import mesh


@pytest.fixture(scope="module", params=(1, 2, 3, 5))
def ranks(request):
    """Warm ranks, so many."""
    with cl.launch(request.param, device="cpu") as ranks:
        yield ranks


@pytest.fixture(params=KERNELS)
def kernel(request):
    return KERNELS[request.param]


def test_a_kernel_on_ranks_moves_what_its_card_says(ranks, kernel):
    for count in (0, 1, 7, 30):
        xs = inputs(kernel, ranks.nranks, count)
        run = ranks.submit(kernel.program, cl.per_rank(xs)).wait()
        assert complaints(kernel, xs, run) == [], run.report()
        cards = [kernel.cost(ranks.nranks, xs[0].size, 8, rank) for rank in range(ranks.nranks)]
        assert (run.traffic.sum(axis=1) - np.diag(run.traffic)).tolist() == [card.nbytes for card in cards]


def test_operations_on_ranks_are_as_the_semantics_say(ranks, kernel):
    def every(ctx, x, ops):
        return [kernel.program(ctx, x, *op) for op in ops]

    ops = [(op,) for op in kernel.ops] or [()]
    for dtype in (np.int32, np.float32):
        xs = inputs(kernel, ranks.nranks, 9, dtype)
        run = ranks.submit(every, cl.per_rank(xs), ops).wait()
        assert run.ok, run.report()
        for which, op in enumerate(ops):
            assert all(map(same, [ys[which] for ys in run.results], kernel.reference(xs, *op))), op


def test_calls_in_a_row_on_the_same_windows(ranks, kernel):
    def many(ctx, x):
        return [kernel.program(ctx, x + k) for k in range(20)]

    xs = inputs(kernel, ranks.nranks, 6)
    run = ranks.submit(many, cl.per_rank(xs)).wait()
    assert run.ok, run.report()
    for k in range(20):
        assert all(map(same, [ys[k] for ys in run.results], kernel.reference([x + k for x in xs]))), k
    assert run.trace.races() == []


def reused_row(ctx, x):
    """The second barrier of two phases on the first one's row."""
    n = x.size // ctx.nranks
    mine = slice(ctx.rank * n, (ctx.rank + 1) * n)
    data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
    row = ctx.signals("row", rows=1)
    data.store(x)
    ctx.barrier(row, 0)
    result.store(sum(data.remote_load(peer, mine) for peer in range(ctx.nranks)), mine)
    ctx.comm.Barrier()  # by luck, or by MPI, the values come out right
    ctx.barrier(row, 0)
    return np.concatenate([result.remote_load(c, slice(c * n, (c + 1) * n)) for c in range(ctx.nranks)])


def test_a_race_is_found_in_a_run_whose_values_came_out_right():
    xs = [np.arange(8) + rank for rank in range(4)]
    run = cl.run(reused_row, cl.per_rank(xs), ranks=4, device="cpu")
    for y in run.results:
        np.testing.assert_array_equal(y, sum(xs))
    races = run.trace.races()
    assert {race.window for race in races} == {"result"}
    assert "test_kernels_on_ranks.py, line" in str(races[0])


def test_a_rank_that_raises_inside_a_kernel_ends_the_run_and_the_next_one_works():
    def wrong(ctx):
        window = ctx.window("w", 4, np.float64)
        if ctx.rank == 1:
            window.load(slice(2, 9))
        ctx.barrier(ctx.signals("s", rows=1), 0)

    run = cl.run(wrong, ranks=3, device="cpu")
    assert run.status == "failed"
    assert 'window "w".load(at=2:9): 2:9 leaves the 4 elements' in run.report()
    assert cl.run(mesh.all_reduce, np.ones(3), ranks=3, device="cpu").results[0].tolist() == [3, 3, 3]


def test_ranks_that_disagree_about_a_window_are_told_on_ranks_too():
    run = cl.run(lambda ctx: ctx.window("w", 4 + ctx.rank, np.int64), ranks=2, device="cpu")
    assert run.status == "failed" and "all ranks must ask for the same" in run.report()

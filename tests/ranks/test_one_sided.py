"""Between hosts a window is read and written with MPI's one-sided calls: the same programs, the same answers."""

import numpy as np
import pytest

import collectlab as cl
from collectlab.kernels import mesh, ring, two_phase


@pytest.fixture(scope="module", params=("1", "2"), ids=("a host for each rank", "two ranks on one host"))
def apart(request):
    """Three ranks that take each other, all or two of them, for ranks on another host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLECTLAB_RANKS_PER_HOST", request.param)
        with cl.launch(3, device="cpu") as ranks:
            yield ranks


@pytest.fixture(scope="module")
def together():
    """Three ranks in one host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLLECTLAB_RANKS_PER_HOST", raising=False)
        ranks = cl.launch(3, device="cpu")
        assert ranks.submit(lambda ctx: None).wait().ok  # they have started, without it
    with ranks:
        yield ranks


SLICES = (
    slice(None),
    slice(1, 3),
    slice(2, 2),
    (1, 2),
    (slice(1, 4), 5),
    (slice(0, 4, 2), slice(None)),
    (slice(None), slice(1, 6, 3)),
    (slice(None, None, -1), slice(None)),
    (2, slice(None, None, -2)),
)


def numbered(ctx, dtype):
    """A window of 4 x 6 elements, each of its own value on each rank, that everyone has filled."""
    window = ctx.window("w", (4, 6), dtype)
    window.local[:] = np.arange(24).reshape(4, 6) + 30 * ctx.rank
    ctx.barrier(ctx.signals("filled", rows=1), 0)
    return window


def read(ctx, at, dtype):
    window, peer = numbered(ctx, dtype), (ctx.rank + 1) % ctx.nranks
    view, copy = window.remote_view(peer, at), window.remote_load(peer, at)
    into = window.remote_load(peer, at, out=np.zeros_like(copy)) if copy.ndim else copy
    ctx.barrier(ctx.signals("read", rows=1), 0)
    return type(window._fabric).__name__, np.array(view), copy, into


def write(ctx, at, dtype):
    window, peer = numbered(ctx, dtype), (ctx.rank + 1) % ctx.nranks
    value = np.arange(np.size(window.local[at]), dtype=dtype).reshape(np.shape(window.local[at])) - 50
    window.remote_store(peer, value, at)
    ctx.barrier(ctx.signals("written", rows=1), 0)
    return window.load()


def read_all(ctx, at):
    """The parts of all ranks three times over; meanwhile each adds 100 to its own."""
    window, signals, found = numbered(ctx, np.int64), ctx.signals("read", rows=6), []
    for again in range(3):
        views = window.remote_views(at)
        found.append(np.array(views))
        writable = [view.flags.writeable for view in views]
        ctx.barrier(signals, 2 * again)
        window.store(window.load() + 100)
        ctx.barrier(signals, 2 * again + 1)
    return found, writable


@pytest.mark.parametrize("traced", (True, False))
@pytest.mark.parametrize("at", (slice(None), slice(1, 3), (slice(0, 4, 2), slice(None))), ids=str)
def test_views_of_all_ranks_show_what_they_hold_now(apart, together, at, traced):
    for ranks in (apart, together):
        run = ranks.submit(read_all, at, trace=traced).wait()
        for found, writable in run.results:
            want = np.stack([(np.arange(24).reshape(4, 6) + 30 * rank)[at] for rank in range(3)])
            assert all((found[again] == want + 100 * again).all() for again in range(3))
            assert not any(writable)
        assert bool(run.trace.events) == traced


@pytest.mark.parametrize("at", SLICES, ids=str)
@pytest.mark.parametrize("dtype", (np.int64, np.float32, np.float16))
def test_slices_are_read_and_written_as_in_one_host(apart, together, at, dtype):
    ours, theirs = (ranks.submit(read, at, dtype).wait() for ranks in (apart, together))
    assert [r[0] for r in ours.results + theirs.results] == ["OneSided"] * 3 + ["SharedWindows"] * 3
    for rank, result in enumerate(ours.results):
        want = (np.arange(24).reshape(4, 6) + 30 * ((rank + 1) % 3)).astype(dtype)[at]
        for found in (*result[1:], *theirs.results[rank][1:]):
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, want)
    assert (ours.traffic == theirs.traffic).all()
    wrote = [ranks.submit(write, at, dtype).wait().results for ranks in (apart, together)]
    np.testing.assert_array_equal(wrote[0], wrote[1])
    assert np.count_nonzero(np.asarray(wrote[0][0]) < 0) == np.size(np.zeros((4, 6))[at])


@pytest.mark.parametrize("kernel", (mesh, two_phase, ring), ids=lambda kernel: kernel.__name__.split(".")[-1])
def test_kernels_are_right_in_repeated_calls_and_move_what_their_cards_say(apart, kernel):
    def many(ctx, x):
        return [kernel.all_reduce(ctx, x + k) for k in range(10)]

    xs = [np.arange(7.0) * (rank + 1) for rank in range(3)]
    run = apart.submit(many, cl.per_rank(xs)).wait()
    assert run.ok, run.report()
    for ys in run.results:
        np.testing.assert_array_equal(ys, [sum(xs) + 3 * k for k in range(10)])
    assert run.trace.races() == []
    read = run.traffic.sum(axis=1) - np.diag(run.traffic)
    assert read.tolist() == [10 * kernel.all_reduce_cost(3, 7, 8, rank).nbytes for rank in range(3)]


def test_a_rank_that_raises_ends_the_run_and_the_next_one_works(apart):
    def wrong(ctx):
        numbered(ctx, np.int64)
        if ctx.rank == 1:
            raise RuntimeError("not today")
        ctx.signals("never", rows=1).wait(1, 0, 1)

    run = apart.submit(wrong).wait()
    assert run.status == "failed" and "not today" in run.report()
    xs = [np.arange(5) + rank for rank in range(3)]
    run = apart.submit(two_phase.all_reduce, cl.per_rank(xs)).wait()
    np.testing.assert_array_equal(run.results[2], sum(xs))


def test_a_run_without_a_trace_returns_the_same_and_notes_nothing(together):
    xs = [np.arange(5) + rank for rank in range(3)]
    run = together.submit(mesh.all_reduce, cl.per_rank(xs), trace=False).wait()
    np.testing.assert_array_equal(run.results[0], sum(xs))
    assert run.trace.events == [] and not run.traffic.any()
    assert together.submit(mesh.all_reduce, cl.per_rank(xs)).wait().traffic.any()

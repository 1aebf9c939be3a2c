"""MPI has some 2,000 windows and communicators: a program may use more windows, and ranks run more programs."""

import numpy as np
import pytest

import collectlab as cl
from collectlab.kernels import two_phase

MANY = 2_100


@pytest.fixture(scope="module", params=("", "1"), ids=("one host", "a host for each rank"))
def ranks(request):
    """Two ranks, which share memory or take each other for ranks of another host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLECTLAB_RANKS_PER_HOST", request.param)
        with cl.launch(2, device="cpu") as ranks:
            yield ranks


def lengths(ctx, most):
    """The wrong lengths among those up to `most`, each with windows of its own."""
    sums = (two_phase.all_reduce(ctx, np.arange(n, dtype=np.int32)) for n in range(most))
    return [n for n, y in enumerate(sums) if not np.array_equal(y, np.arange(n) * ctx.nranks)]


def neighbours(ctx, nbytes):
    """Windows that lie side by side, each filled with its number on the peer: those that hold another one."""
    windows = [ctx.window(f"w{i}", n, np.uint8) for i, n in enumerate(nbytes)]
    for i, window in enumerate(windows):
        window.remote_store(1 - ctx.rank, np.full(window.shape, i + 1, np.uint8))
    ctx.barrier(ctx.signals("filled", rows=1), 0)
    return [
        i for i, w in enumerate(windows) if not ((w.load() == i + 1).all() and w.local.ctypes.data % 16 == 0)
    ]


def fabrics(ctx, times):
    """Make a fabric with a window as often as so many runs do."""
    from collectlab.fabric import mpi

    for _ in range(times):
        made = mpi.fabric(ctx.comm)
        made.memory(ctx.rank, "w", (3,), "int64", fill=0)
        made.free()
    return times


def test_a_program_may_use_more_windows_than_mpi_has(ranks):
    run = ranks.submit(lengths, MANY // 2, trace=False).wait(60)
    assert run.ok, run.report()
    assert run.results == [[], []]


@pytest.mark.parametrize(
    "nbytes", ((0, 1, 63, 64, 65, 0, 7), (60_000,) * 40, (1 << 20, 5, (1 << 20) + 3, 65_537, 1))
)
def test_windows_do_not_overlap(ranks, nbytes):
    run = ranks.submit(neighbours, nbytes).wait(60)
    assert run.ok, run.report()
    assert run.results == [[], []]


def test_what_a_fabric_takes_from_mpi_it_gives_back(ranks):
    run = ranks.submit(fabrics, MANY).wait(60)
    assert run.ok, run.report()
    assert run.results == [MANY] * 2


def keep(ctx):
    """Leave a window, its array and its signals where the next program finds them; the sum of what others keep."""
    import collectlab

    kept = vars(collectlab.kernels).setdefault("kept", {})
    found = float(kept["array"].sum()) if kept else None
    if not kept:
        window = ctx.window("w", 3, np.float64)
        window.store(np.arange(3.0) + ctx.rank)
        kept.update(window=window, array=window.local, signals=ctx.signals("s", rows=1))
    return found


def use(ctx, name, call, *args):
    import collectlab

    getattr(collectlab.kernels.kept[name], call)(*args)


def let_go(ctx):
    """Whether the memory was given back in the first run of windows after nobody referred to it."""
    import collectlab
    from collectlab.fabric import mpi

    there = len(mpi._kept)
    collectlab.kernels.kept.clear()
    ctx.window("w", 3, np.float64)
    return there


def kept(ctx):
    from collectlab.fabric import mpi

    return len(mpi._kept)


def test_an_array_of_a_window_is_good_after_its_run(ranks):
    assert ranks.submit(keep).wait(60).results == [None, None]
    assert ranks.submit(keep).wait(60).results == [3.0, 6.0]
    assert ranks.submit(let_go).wait(60).results == [1, 1]
    assert ranks.submit(kept).wait(60).results == [0, 0]


def forget(ctx):
    import collectlab

    vars(collectlab.kernels).pop("kept", None)


@pytest.mark.parametrize("traced", (True, False))
@pytest.mark.parametrize(
    "name, call, args",
    (("window", "load", ()), ("window", "store", ([1.0, 2.0, 3.0],)), ("signals", "notify", (0, 0)),
     ("signals", "wait", (0, 0, 1)), ("signals", "barrier", (0,))),
    ids=str,
)  # fmt: skip
def test_a_window_of_a_run_that_is_over_refuses_to_be_used(ranks, name, call, args, traced):
    ranks.submit(forget).wait(60)
    assert ranks.submit(keep, trace=traced).wait(60).results == [None, None]
    run = ranks.submit(use, name, call, *args).wait(60)
    assert run.status == "failed"
    assert "a window or signals of a run that is over" in run.report(), run.report()

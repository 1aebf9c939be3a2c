"""What windows and signals refuse, in the same words on every fabric, instead of something else, or a crash."""

import os

import numpy as np
import pytest

import collectlab as cl
from collectlab.kernels import rabenseifner, recursive_doubling, ring, two_phase

REFUSED = {
    "w.load(slice(0, 100, 2))": 'rank 0, in its step 1: window "w".load(at=0:100:2): 0:100:2 leaves the 8 elements',
    "w.remote_load(1, slice(2, 4))": 'rank 0, in its step 1: window "w".remote_load(peer=1, at=2:4): peers are',
    "w.store(np.ones(3), slice(2, 4))": 'rank 0, in its step 1: window "w".store(value, at=2:4): the slice holds',
    "s.notify(0, 1)": 'rank 0, in its step 1: signals "s".notify(peer=0, row=1): rows are 0 to 0',
    "w.load(slice(-3, None, 2))": "-3::2 leaves the 8 elements",
    "w.load(slice(8, None, -1))": "8::-1 leaves the 8 elements",
    "w.remote_load(0, slice(0, 8, 0))": "slice step cannot be zero",
    "w.store([1, 2.5], slice(0, 2))": "the slice holds (2,) of int64, the value is (2,) of float64",
    "w.store(2.5, 3)": "the slice holds () of int64, the value is () of float64",
    "w.store('a', 3)": "the slice holds () of int64, the value is () of <U1",
    "ctx.window('o', 4, object)": 'ValueError: rank 0: window("o", shape=(4,), dtype=object): whole numbers',
    "ctx.window('o', -1, 'i4')": 'window("o", shape=(-1,), dtype=int32): whole numbers from 0 up',
    "ctx.window('o', (2, 1.5), 'i4')": 'window("o", shape=(2, 1.5), dtype=int32): whole numbers from 0 up',
    "ctx.signals('t', -1)": 'ValueError: rank 0: signals("t", rows=-1): a whole number is accepted',
    "ctx.signals('t', 1.5)": 'ValueError: rank 0: signals("t", rows=1.5): a whole number is accepted',
    "s.wait(0, 0, None)": "at_least=None): a whole number of notifications is accepted",
    "s.wait(0, 0, 0.5)": "at_least=0.5): a whole number of notifications is accepted",
    "cl.kernels.mesh.all_reduce(ctx, w.load(), ['sum'])": "ValueError: op=['sum']: one of sum, prod, min, max, avg",
}


def refused(ctx, calls):
    w, s, said = ctx.window("w", 8, np.int64), ctx.signals("s", 1), []
    for call in calls:
        try:
            said.append(f"returned {eval(call, {'ctx': ctx, 'w': w, 's': s, 'cl': cl, 'np': np})}")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def accepted(ctx):
    w = ctx.window("w", (2, 4), np.float32)
    w.store([1, 2, 3, True], 0)
    w.store(7, (1, 0))
    with w.storing((1, 1)) as part:  # one element
        part[...] = 5
    with w.storing((1, slice(3, 1, -1))) as part:
        part[:] = 8, 9
    return w.load().tolist(), ctx.signals("none", 0).rows, ctx.window("empty", (0, 3), np.int8).shape


@pytest.fixture(scope="module", params=("simulated", "mpi"))
def run(request):
    """A function that runs a program on one rank of the fabric."""
    if request.param == "simulated":
        yield lambda program, *args: cl.simulate(program, *args, ranks=1)
        return
    with cl.launch(1, device="cpu") as ranks:
        yield lambda program, *args: ranks.submit(program, *args).wait(60)


def test_what_is_wrong_is_refused_in_words(run):
    done = run(refused, list(REFUSED))
    assert done.ok, done.report()
    for said, wanted in zip(done.results[0], REFUSED.values(), strict=True):
        assert wanted in said


def test_what_is_right_is_not(run):
    done = run(accepted)
    assert done.ok, done.report()
    assert done.results[0] == ([[1, 2, 3, 1], [7, 5, 9, 8]], 0, (0, 3))


@pytest.mark.parametrize("traced", (True, False))
def test_an_error_says_in_which_step_of_the_rank_it_is_where_steps_are_noted(traced):
    def program(ctx):
        w, s = ctx.window("w", 8, np.int64), ctx.signals("s", 2)
        w.store(np.arange(8))
        ctx.barrier(s, 0)  # a notification and a wait
        if ctx.rank == 1:
            w.remote_load(0, slice(6, 9))
        s.wait(1, 1, 1)

    outside = f"rank 1{', in its step 4' * traced}: window \"w\".remote_load(at=6:9): 6:9 leaves the 8 elements"
    line = program.__code__.co_firstlineno + 6
    waits = f'rank 0 waits for rank 1 ("s" row 1, at least 1; it is 0) at line {line}'
    for run in (
        cl.simulate(program, ranks=2, trace=traced),
        cl.run(program, ranks=2, device="cpu", trace=traced, timeout=3),
    ):
        assert outside in run.report(), run.report()
        said = next(line for line in run.report().splitlines() if waits in line)
        assert said.endswith(", in its step 4") == traced, run.report()


@pytest.mark.parametrize("kernel", (ring, rabenseifner, recursive_doubling, two_phase))
def test_the_order_of_the_bytes_is_no_other_dtype(kernel):
    xs = [np.arange(7).astype(">i4") + rank for rank in range(3)]
    done = cl.simulate(kernel.all_reduce, cl.per_rank(xs), ranks=3)
    assert done.ok, done.report()
    for y in done.results:
        np.testing.assert_array_equal(y, sum(xs))


@pytest.mark.parametrize("n", ("0", "-1", "two"))
def test_a_number_of_ranks_on_a_host_that_is_none_is_refused(n, monkeypatch):
    monkeypatch.setenv("COLLECTLAB_RANKS_PER_HOST", n)
    done = cl.run(lambda ctx: ctx.window("w", 1, "int8").shape, ranks=1, device="cpu")
    assert f"COLLECTLAB_RANKS_PER_HOST is '{n}': a number of ranks is accepted" in done.report()


def test_a_window_that_shared_memory_cannot_hold_is_refused_before_a_store_crashes():
    there = os.statvfs("/dev/shm")
    size = there.f_blocks * there.f_frsize // 2 + 1  # both ranks' together is more than there is at all
    done = cl.run(lambda ctx, n: ctx.window("w", n, np.int8).shape, size, ranks=2, device="cpu")
    assert "MemoryError: windows of" in done.report() and "docker run --shm-size" in done.report()

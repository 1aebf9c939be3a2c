"""Kernels on a rank whose arrays are not NumPy's: no call of theirs may be NumPy's own."""

import numpy as np
import pytest
import strict_arrays
from kernel_cases import KERNELS, inputs

import collectlab as cl
from collectlab.fabric.simulated import Simulation
from collectlab.kernels.disciplines import DISCIPLINES
from collectlab.kernels.disciplines import all_reduce as by_discipline


def on_device(program, xs, *args, schedule=None, arrays=strict_arrays.asarray):
    """A run whose ranks have the stand-in for their array module, and get their input as `arrays` makes it."""
    nranks = len(xs)
    start = [arrays(x) for x in xs]
    simulation = Simulation(nranks, schedule, array_module="strict_arrays")
    return simulation.run(lambda ctx: program(ctx, start[ctx.rank], *args), ())


def taken(run):
    """What the ranks returned, copied to the host."""
    assert run.ok, run.report()
    assert all(isinstance(y, strict_arrays.ndarray) for y in run.results)
    return [y.get() for y in run.results]


@pytest.mark.parametrize("nranks", (1, 2, 3, 6))
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_makes_no_call_that_is_numpys_own(name, nranks):
    kernel = KERNELS[name]
    for count, dtype, op in [(n, d, o) for n in (0, 5) for d in (np.int64, np.float16) for o in kernel.ops or ("",)]:
        xs = inputs(kernel, nranks, count, dtype)
        ops = (op,) if op else ()
        ys = taken(on_device(kernel.program, xs, *ops))
        for y, want in zip(ys, kernel.reference(xs, *ops), strict=True):
            assert y.dtype == want.dtype
            np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_so_does_the_kernel_of_every_discipline(discipline):
    xs = [np.arange(5) + rank for rank in range(3)]
    for y in taken(on_device(by_discipline, xs, "sum", discipline, schedule=1)):
        np.testing.assert_array_equal(y, sum(xs))


@pytest.mark.parametrize("name", KERNELS)
def test_an_input_that_is_still_on_the_host_is_taken_too(name):
    kernel = KERNELS[name]
    xs = inputs(kernel, 3, 4)
    run = on_device(kernel.program, xs, arrays=lambda x: x)
    assert run.ok, run.report()
    results = [y.get() if isinstance(y, strict_arrays.ndarray) else y for y in run.results]
    for y, want in zip(results, kernel.reference(xs), strict=True):
        np.testing.assert_array_equal(y, want)


def test_windows_give_and_take_arrays_of_the_device():
    def program(ctx, x):
        window = ctx.window("w", 4, np.int64)
        window.store(x)
        window.store(np.array([7]), slice(0, 1))  # from the host: it is copied anyway
        into = window.load(slice(0, 2), out=ctx.xp.empty(2, np.int64))
        return ctx.xp.concatenate([into, window.load(slice(1, 3)), window.remote_view(0, slice(3, 4))])

    (result,) = taken(on_device(program, [np.arange(4)]))
    assert result.tolist() == [7, 1, 1, 2, 3]


def test_a_program_with_a_numpy_call_does_not_pass():
    def program(ctx, x):
        return cl.semantics.all_reduce([x])[0] + np.ones(4)

    assert not on_device(program, [np.arange(4.0)]).ok
    assert not on_device(lambda ctx, x: np.add(x, x), [np.arange(4)]).ok
    assert not on_device(lambda ctx, x: x + np.arange(4), [np.arange(4)]).ok
    assert not on_device(lambda ctx, x: np.empty(4).__setitem__(slice(4), x), [np.arange(4)]).ok

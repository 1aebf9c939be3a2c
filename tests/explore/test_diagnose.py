"""What one call says about a program: nothing when it is right, and what is wrong when it is not."""

import functools

import numpy as np
import pytest

import collectlab as cl
from collectlab.explore import diagnose

KERNELS = {"mesh": cl.kernels.mesh, "two_phase": cl.kernels.two_phase, "ring": cl.kernels.ring}


def inputs(nranks, count, dtype=np.float32):
    """Normal numbers that differ by rank."""
    rng = np.random.default_rng(nranks * 100 + count)
    return [rng.standard_normal(count).astype(dtype) for _ in range(nranks)]


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_is_said_of_a_kernel_that_is_right(name):
    kernel, cost = KERNELS[name].all_reduce, KERNELS[name].all_reduce_cost
    for nranks in (1, 2, 3, 5):
        for count in (0, 1, 7):
            for op in ("sum", "avg", "max"):
                found = diagnose(
                    kernel, inputs(nranks, count), op, cost=cost, calls=2,
                    expected=functools.partial(cl.semantics.all_reduce, op=op),
                )  # fmt: skip
                assert not found and str(found) == "nothing is wrong", str(found)

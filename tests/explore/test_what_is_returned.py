"""What a program returns beside the values: no array, another dtype; and numbers whose order of rounding is all."""

import numpy as np
import pytest

from collectlab import explore, semantics
from collectlab.kernels import mesh, rabenseifner, recursive_doubling, ring

XS = [np.arange(8.0) + rank for rank in range(3)]


@pytest.mark.parametrize("calls", (1, 2))
@pytest.mark.parametrize(
    ("change", "said"),
    (
        (lambda ctx, y: (y, 1), "every rank returns a tuple instead of an array"),
        (lambda ctx, y: y.tolist(), "every rank returns a list instead of an array"),
        (lambda ctx, y: None, "every rank returns None instead of an array: is there a return?"),
        (lambda ctx, y: y.astype("f4"), "every rank returns an array of float32 instead of float64"),
        (lambda ctx, y: y if ctx.rank else y.sum(), "rank 0 returns a float64 instead of an array"),
        (lambda ctx, y: y[ctx.rank :].astype(int), "every rank returns an array of int64 instead of float64"),
    ),
)
def test_what_is_no_array_of_the_right_dtype_is_named(change, said, calls):
    def program(ctx, x):
        return change(ctx, mesh.all_reduce(ctx, x))

    found = explore.diagnose(program, XS, expected=semantics.all_reduce, calls=calls)
    assert (found.kinds, str(found)) == (["wrong"], said)


@pytest.mark.parametrize("kernel", (mesh, ring, recursive_doubling, rabenseifner))
def test_another_order_is_no_fault_where_numbers_leave_the_normal_range(kernel):
    draw = np.random.default_rng(1)
    small = [(draw.normal(size=30) * 10.0 ** draw.integers(-3, 3, 30)).astype(np.float16) for _ in range(3)]
    large = [np.full(4, 30_000 * (-1) ** rank, np.float16) for rank in range(4)]  # the sum is 0, or passes 65504
    for xs, op in ((small, "prod"), (large, "sum")):
        expected = lambda xs, op=op: semantics.all_reduce(xs, op)  # noqa: E731
        assert not explore.diagnose(kernel.all_reduce, xs, op, expected=expected)


def test_a_missing_factor_is_found_among_small_numbers():
    xs = [np.full(3, 0.02, np.float16) for _ in range(3)]

    def program(ctx, x):
        return mesh.all_reduce(ctx, x if ctx.rank else np.ones_like(x), "prod")

    assert explore.diagnose(program, xs, expected=lambda xs: semantics.all_reduce(xs, "prod")).kinds == ["wrong"]

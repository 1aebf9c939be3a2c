"""The table of kernels, and what must hold of every run of one: the values, the cost cards, and no race."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from collectlab import semantics
from collectlab.kernels import direct, mesh, rabenseifner, recursive_doubling, ring, tree, two_phase
from collectlab.layout import Partition

OPS = ("sum", "prod", "min", "max", "avg")
DTYPES = (np.int32, np.int64, np.float16, np.float32, np.float64)


class Kernel(NamedTuple):
    program: Callable  # (ctx, x), and an op where it reduces, which those with a depth do
    cost: Callable  # (nranks, count, itemsize, rank)
    reference: Callable  # (xs), and an op where it reduces: one result per rank
    depth: Callable | None = None  # nranks -> the most additions that a summand goes through
    blocks: bool = False  # the input is cut into nranks equal blocks

    @property
    def ops(self):
        return OPS if self.depth else ()


def _chunks(xs, op="sum"):
    return semantics.reduce_scatter_v(xs, Partition.uneven(xs[0].size, len(xs)), op)


def _registered(ctx, x, op="sum"):
    """two_phase.all_reduce_registered, its input stored where the trace sees it and its result copied."""
    data = ctx.window("tensor", x.size, x.dtype)
    data.store(x.reshape(-1))
    return ctx.xp.asarray(two_phase.all_reduce_registered(ctx, data, op).copy()).reshape(x.shape)


def _chain(nranks):
    return nranks - 1


def _tree(nranks):
    return (nranks - 1).bit_length()  # log2, rounded up


KERNELS = {
    "mesh.all_reduce": Kernel(mesh.all_reduce, mesh.all_reduce_cost, semantics.all_reduce, _chain),
    "two_phase.all_reduce": Kernel(
        two_phase.all_reduce, two_phase.all_reduce_cost, semantics.all_reduce, _chain
    ),
    "two_phase.all_reduce_registered": Kernel(
        _registered, two_phase.all_reduce_registered_cost, semantics.all_reduce, _chain
    ),
    "two_phase.reduce_scatter": Kernel(
        two_phase.reduce_scatter, two_phase.reduce_scatter_cost, _chunks, _chain
    ),
    "two_phase.all_gather": Kernel(two_phase.all_gather, two_phase.all_gather_cost, semantics.all_gather),
    "ring.all_reduce": Kernel(ring.all_reduce, ring.all_reduce_cost, semantics.all_reduce, _chain),
    "ring.reduce_scatter": Kernel(ring.reduce_scatter, ring.reduce_scatter_cost, _chunks, _chain),
    "ring.all_gather": Kernel(ring.all_gather, ring.all_gather_cost, semantics.all_gather),
    "recursive_doubling.all_reduce": Kernel(
        recursive_doubling.all_reduce, recursive_doubling.all_reduce_cost, semantics.all_reduce, _tree
    ),
    "rabenseifner.all_reduce": Kernel(
        rabenseifner.all_reduce, rabenseifner.all_reduce_cost, semantics.all_reduce, _tree
    ),
    "direct.all_to_all": Kernel(
        direct.all_to_all, direct.all_to_all_cost, semantics.all_to_all, blocks=True
    ),
    "tree.broadcast": Kernel(tree.broadcast, tree.broadcast_cost, semantics.broadcast),
}  # fmt: skip
ALL_REDUCE = [name for name in KERNELS if ".all_reduce" in name]
REDUCE = [name for name, kernel in KERNELS.items() if kernel.depth]


def inputs(kernel, nranks, count, dtype=np.int64):
    """An array per rank of `count` elements, or of nranks blocks of so many.

    Their values are 1 to 4, so that no order of additions or multiplications changes a digit.
    """
    rng = np.random.default_rng([nranks, count])
    return [rng.integers(1, 5, count * (nranks if kernel.blocks else 1)).astype(dtype) for _ in range(nranks)]


def complaints(kernel, xs, run, *op):
    """What is wrong with one call of a kernel on `xs`: some of "failed", "values", "card" and "race"."""
    if not run.ok:
        return ["failed"]
    found = []
    if not all(map(same, run.results, kernel.reference(xs, *op))):
        found.append("values")
    nranks, count, itemsize = len(xs), xs[0].size, xs[0].itemsize
    cards = [kernel.cost(nranks, count, itemsize, rank) for rank in range(nranks)]
    if cards != [run.trace.measured(rank) for rank in range(nranks)]:
        found.append("card")
    if run.trace.races():
        found.append("race")
    return found


def same(y, expected):
    """Whether two arrays agree in dtype, shape and every element."""
    return y.dtype == expected.dtype and y.shape == expected.shape and np.array_equal(y, expected)

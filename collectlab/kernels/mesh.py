"""One phase: every rank reads every peer's whole vector and reduces it alone.

Reads (nranks - 1) * N bytes a rank, N being the bytes of one rank's vector. All ranks add in rank order, so they
agree with each other to the last bit.
"""

from collectlab.cost import Card
from collectlab.kernels.reduction import reduce


def all_reduce(ctx, x, op="sum"):
    """The reduction of everyone's `x`, on every rank."""
    data = ctx.window("mesh.data", x.size, x.dtype)
    signals = ctx.signals("mesh", rows=2)

    data.store(x.ravel())
    ctx.barrier(signals, 0)  # every input lies in its window

    y = ctx.xp.empty(x.size, x.dtype)
    reduce(ctx, data, slice(0, x.size), op, out=y)
    ctx.barrier(signals, 1)  # every peer has read: the next call may store
    return y.reshape(x.shape)


def all_reduce_cost(nranks, count, itemsize, rank):
    """The Card of `all_reduce` of `count` elements on `rank`."""
    peers = nranks - 1
    return Card(peers * count * itemsize, peers if count else 0, 2 * peers, 2 * peers, 2, 2)

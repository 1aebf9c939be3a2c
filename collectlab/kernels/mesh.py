"""One phase: every rank reads every peer's whole vector and reduces it alone.

Reads (nranks - 1) * N bytes a rank, N being the bytes of one rank's vector. All ranks add in rank order, so they
agree with each other to the last bit.
"""

from collectlab.cost import Card
from collectlab.kernels.reduction import combine, finish


def all_reduce(ctx, x, op="sum"):
    """The reduction of everyone's `x`, on every rank."""
    add = combine(ctx, op)
    data = ctx.window("mesh.data", x.size, x.dtype)
    signals = ctx.signals("mesh", rows=2)

    data.store(x.reshape(-1))
    ctx.barrier(signals, 0)  # every input lies in its window

    total = data.remote_load(0)
    for peer in range(1, ctx.nranks):
        total = add(total, data.remote_load(peer))

    ctx.barrier(signals, 1)  # every peer has read: the next call may store
    return finish(ctx, op, total).reshape(x.shape)


def all_reduce_cost(nranks, count, itemsize, rank):
    """The Card of `all_reduce` of `count` elements on `rank`."""
    peers = nranks - 1
    return Card(peers * count * itemsize, peers if count else 0, 2 * peers, 2 * peers, 2, 2)

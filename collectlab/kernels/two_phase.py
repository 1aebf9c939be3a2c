"""Two phases: rank r reduces chunk r, then everyone collects the reduced chunks.

Reads 2 * (nranks - 1) / nranks * N bytes a rank where nranks divides the vector: 2 / nranks of what the mesh reads,
which at two ranks is no saving. One owner computes each element and all copy it, so all ranks agree to the last
bit. Each of the two barriers also proves that the other window is free again, so a second call needs no third.
"""

from collectlab.cost import Card
from collectlab.kernels.reduction import reduce
from collectlab.layout import Partition


def all_reduce(ctx, x, op="sum"):
    """The reduction of everyone's `x`, on every rank."""
    chunks = Partition.uneven(x.size, ctx.nranks)
    data = ctx.window("two_phase.data", x.size, x.dtype)
    result = ctx.window("two_phase.result", x.size, x.dtype)
    signals = ctx.signals("two_phase.all_reduce", rows=2)

    data.store(x.ravel())
    ctx.barrier(signals, 0)  # every input lies in its window

    y, mine = ctx.xp.empty(x.size, x.dtype), chunks.slice(ctx.rank)
    total = y[mine]
    reduce(ctx, data, mine, op, out=total)
    result.store(total, mine)
    ctx.barrier(signals, 1)  # every chunk is reduced

    for owner in range(ctx.nranks):
        if owner != ctx.rank:
            part = chunks.slice(owner)
            result.remote_load(owner, part, out=y[part])
    return y.reshape(x.shape)


def all_reduce_registered(ctx, data, op="sum"):
    """The reduction of what lies in everyone's `data.local`, on every rank: no rank copies its input.

    `data` is a window of one dimension. What is returned is the local array of another window: it holds until the
    next call on `data`, and nobody may write to it. `data.local` may be written again at once.
    """
    chunks = Partition.uneven(data.shape[0], ctx.nranks)
    result = ctx.window(f"{data.name}.reduced", data.shape, data.dtype)
    signals = ctx.signals("two_phase.registered", rows=2)

    ctx.barrier(signals, 0)  # every input lies in its window
    mine = chunks.slice(ctx.rank)
    with result.storing(mine) as total:
        reduce(ctx, data, mine, op, out=total)
    ctx.barrier(signals, 1)  # every chunk is reduced

    for owner in range(ctx.nranks):
        if owner != ctx.rank:
            part = chunks.slice(owner)
            result.store(result.remote_view(owner, part), part)
    return result.local


def reduce_scatter(ctx, x, op="sum"):
    """Chunk r of the reduction of everyone's `x`, on rank r; the first chunks are one longer where they differ."""
    mine = Partition.uneven(x.size, ctx.nranks).slice(ctx.rank)
    data = ctx.window("two_phase.scatter", x.size, x.dtype)
    signals = ctx.signals("two_phase.reduce_scatter", rows=2)

    data.store(x.ravel())
    ctx.barrier(signals, 0)  # every input lies in its window
    y = ctx.xp.empty(mine.stop - mine.start, x.dtype)
    reduce(ctx, data, mine, op, out=y)
    ctx.barrier(signals, 1)  # every peer has read: the next call may store
    return y


def all_gather(ctx, x):
    """Everyone's `x` behind one another in rank order, on every rank; all have the same length."""
    data = ctx.window("two_phase.gather", x.size, x.dtype)
    signals = ctx.signals("two_phase.all_gather", rows=2)

    data.store(x.ravel())
    ctx.barrier(signals, 0)  # every contribution lies in its window
    y = ctx.xp.empty(x.size * ctx.nranks, x.dtype)
    for peer in range(ctx.nranks):
        y[peer * x.size : (peer + 1) * x.size] = data.remote_load(peer)
    ctx.barrier(signals, 1)  # every peer has read: the next call may store
    return y


def all_reduce_cost(nranks, count, itemsize, rank):
    """The Card of `all_reduce` of `count` elements on `rank`."""
    counts, peers = Partition.uneven(count, nranks).counts, nranks - 1
    loads = peers * (counts[rank] > 0) + sum(counts[peer] > 0 for peer in range(nranks) if peer != rank)
    elements = peers * counts[rank] + count - counts[rank]
    return Card(elements * itemsize, loads, 2 * peers, 2 * peers, 2, 2)


def all_reduce_registered_cost(nranks, count, itemsize, rank):
    """The Card of `all_reduce_registered` of `count` elements on `rank`: what is saved are copies, not loads."""
    return all_reduce_cost(nranks, count, itemsize, rank)


def reduce_scatter_cost(nranks, count, itemsize, rank):
    """The Card of `reduce_scatter` of `count` elements (the input) on `rank`."""
    mine, peers = Partition.uneven(count, nranks).counts[rank], nranks - 1
    return Card(peers * mine * itemsize, peers * (mine > 0), 2 * peers, 2 * peers, 2, 2)


def all_gather_cost(nranks, count, itemsize, rank):
    """The Card of `all_gather` of `count` elements (one rank's contribution) on `rank`."""
    peers = nranks - 1
    return Card(peers * count * itemsize, peers * (count > 0), 2 * peers, 2 * peers, 2, 2)

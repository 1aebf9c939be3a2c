"""Direct all-to-all: every rank reads its block from every peer, with nobody in between.

Reads (nranks - 1) / nranks * N bytes a rank, N being the bytes of one rank's vector: what must move at least, in
nranks - 1 messages. Nothing is computed, so nothing is rounded. The first barrier says that every block may be read,
the second that all have been: it frees the window for the next call.
"""

from collectlab.cost import Card


def all_to_all(ctx, x):
    """Block r of everyone's `x`, in rank order, on rank r; `x` holds nranks blocks of equal length.

    The result has one axis. ValueError where nranks does not divide the length.
    """
    block, rest = divmod(x.size, ctx.nranks)
    if rest:
        raise ValueError(
            f"direct.all_to_all(ctx, x): {x.size} elements cannot be cut into {ctx.nranks} equal blocks; "
            f"pad x to {ctx.nranks} x {block + 1} = {ctx.nranks * (block + 1)} (layout.Partition.padded)"
        )
    data = ctx.window("direct.data", x.size, x.dtype)
    signals = ctx.signals("direct", rows=2)

    data.store(x.ravel())
    ctx.barrier(signals, 0)  # every block lies in its window
    y = ctx.xp.empty(x.size, x.dtype)
    mine = slice(ctx.rank * block, (ctx.rank + 1) * block)
    for distance in range(ctx.nranks):  # each begins with itself, so that not all read from rank 0 at once
        peer = (ctx.rank + distance) % ctx.nranks
        y[peer * block : (peer + 1) * block] = data.remote_load(peer, mine)
    ctx.barrier(signals, 1)  # every peer has read: the next call may store
    return y


def all_to_all_cost(nranks, count, itemsize, rank):
    """The Card of `all_to_all` of `count` elements (the whole input) on `rank`."""
    peers = nranks - 1
    return Card(peers * (count // nranks) * itemsize, peers * (count > 0), 2 * peers, 2 * peers, 2, 2)

"""Broadcast down a binomial tree: each rank that has the vector passes it on, so the ranks that have it double.

Every rank but the root reads N bytes once, N being the bytes of the vector; out of a rank's window go N bytes for
each child, at most ceil(log2(nranks)) times N, where a flat broadcast takes (nranks - 1) * N out of the root's. A
rank's card counts its own waits, not the ranks above it whose turn comes first: up to log2(nranks) of them. Nothing
is computed, so all ranks agree. A child tells its parent when it has read; a rank that has heard all its children
may store again, so the window is free when the call returns.
"""

from collectlab.cost import Card


def broadcast(ctx, x, root=0):
    """The root's `x`, on every rank.

    Every other rank passes an array of the same shape and dtype, of which the values are not looked at: it
    says how large the window is. ValueError where `root` is no rank.
    """
    parent, children = _family(ctx.rank, ctx.nranks, root)
    data = ctx.window("tree.data", x.size, x.dtype)
    signals = ctx.signals(f"tree.root{root}", rows=2)  # each root's calls are counted apart: another tree

    if parent is None:
        y = ctx.xp.asarray(x).flatten()
    else:
        signals.wait(parent, 0, signals.generation)
        y = data.remote_load(parent)
        signals.notify(parent, 1)
    if children:
        data.store(y)
    for child in children:
        signals.notify(child, 0)
    for child in children:
        signals.wait(child, 1, signals.generation)  # it has read: the next call may store
    return y.reshape(x.shape)


def _family(rank, nranks, root):
    """(parent, children) in the binomial tree of `root`, the child with the most descendants first.

    Counted from the root, the parent of place v is v without its lowest set bit.
    """
    if root not in range(nranks):
        raise ValueError(f"tree.broadcast(ctx, x, root={root!r}): root is a rank, 0 to {nranks - 1}")
    place = (rank - root) % nranks
    low = place & -place or 1 << nranks.bit_length()
    below = [place + 2**k for k in reversed(range(low.bit_length() - 1))]
    children = [(child + root) % nranks for child in below if child < nranks]
    return (place - low + root) % nranks if place else None, children


def broadcast_cost(nranks, count, itemsize, rank, root=0):
    """The Card of `broadcast` of `count` elements on `rank`."""
    parent, children = _family(rank, nranks, root)
    reads = int(parent is not None)
    signals = reads + len(children)
    return Card(reads * count * itemsize, reads * (count > 0), signals, signals, 0, signals)

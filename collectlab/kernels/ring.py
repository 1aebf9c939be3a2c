"""The ring: every rank reads from its left neighbour only, one chunk a round, and each round has its own row.

Reduce-scatter and all-gather each read (nranks - 1) / nranks * N bytes a rank in nranks - 1 rounds, N being the bytes
of the whole vector; all-reduce is one after the other: 2 * (nranks - 1) / nranks * N, as in two phases, but
2 * (nranks - 1) rounds instead of two barriers.

Chunk c begins on rank c + 1 and has gone through every rank when rank c finishes it, so each chunk is added in
another order, by nranks - 1 additions one after another. One owner finishes it and all copy, so all ranks agree to
the last bit. Before a chunk is overwritten in the gathering half, signals have gone all the way round since it was
read; the last reads are known to be over by one more signal, from the right neighbour, which frees the window for
the next call.
"""

from collectlab.cost import Card
from collectlab.kernels.reduction import combine, finish
from collectlab.layout import Partition


def all_reduce(ctx, x, op="sum"):
    """The reduction of everyone's `x`, on every rank."""
    chunks = Partition.uneven(x.size, ctx.nranks)
    work = ctx.window("ring.work", x.size, x.dtype)
    rounds = ctx.signals("ring.all_reduce", rows=2 * ctx.nranks - 1)

    work.store(x.ravel())
    _reduce(ctx, work, rounds, chunks, op)
    _hand_on(ctx, work, rounds, chunks, first=ctx.nranks - 1)
    y = work.load()
    _wait_for_reader(ctx, rounds)
    return y.reshape(x.shape)


def reduce_scatter(ctx, x, op="sum"):
    """Chunk r of the reduction of everyone's `x`, on rank r; the first chunks are one longer where they differ."""
    chunks = Partition.uneven(x.size, ctx.nranks)
    work = ctx.window("ring.scatter", x.size, x.dtype)
    rounds = ctx.signals("ring.reduce_scatter", rows=ctx.nranks)

    work.store(x.ravel())
    _reduce(ctx, work, rounds, chunks, op)
    y = work.load(chunks.slice(ctx.rank))
    _wait_for_reader(ctx, rounds)
    return y


def all_gather(ctx, x):
    """Everyone's `x` behind one another in rank order, on every rank; all have the same length."""
    chunks = Partition.equal(x.size * ctx.nranks, ctx.nranks)
    work = ctx.window("ring.gather", x.size * ctx.nranks, x.dtype)
    rounds = ctx.signals("ring.all_gather", rows=ctx.nranks)

    work.store(x.ravel(), chunks.slice(ctx.rank))
    _hand_on(ctx, work, rounds, chunks, first=0)
    y = work.load()
    _wait_for_reader(ctx, rounds)
    return y


def _reduce(ctx, work, rounds, chunks, op):
    """nranks - 1 rounds, after which rank r holds chunk r reduced."""
    add = combine(ctx, op)
    for step in range(ctx.nranks - 1):
        part = chunks.slice((ctx.rank - step - 2) % ctx.nranks)
        value = add(_from_left(ctx, work, rounds, step, part), work.load(part))
        work.store(finish(ctx, op, value) if step == ctx.nranks - 2 else value, part)


def _hand_on(ctx, work, rounds, chunks, first):
    """nranks - 1 rounds, after which every rank holds all chunks; `first` is the row of the first of them."""
    for step in range(ctx.nranks - 1):
        part = chunks.slice((ctx.rank - step - 1) % ctx.nranks)
        work.store(_from_left(ctx, work, rounds, first + step, part), part)


def _from_left(ctx, work, rounds, row, part):
    """`part` of the left neighbour, once that has finished the round before."""
    left, right = (ctx.rank - 1) % ctx.nranks, (ctx.rank + 1) % ctx.nranks
    rounds.notify(right, row)
    rounds.wait(left, row, rounds.generation)
    return work.remote_load(left, part)


def _wait_for_reader(ctx, rounds):
    """The right neighbour has read, on the last row: the next call may store."""
    if ctx.nranks > 1:
        rounds.notify((ctx.rank - 1) % ctx.nranks, rounds.rows - 1)
        rounds.wait((ctx.rank + 1) % ctx.nranks, rounds.rows - 1, rounds.generation)


def all_reduce_cost(nranks, count, itemsize, rank):
    """The Card of `all_reduce` of `count` elements on `rank`."""
    counts = Partition.uneven(count, nranks).counts
    return _card([counts[(rank - step - 2) % nranks] for step in range(2 * nranks - 2)], itemsize)


def reduce_scatter_cost(nranks, count, itemsize, rank):
    """The Card of `reduce_scatter` of `count` elements (the input) on `rank`."""
    counts = Partition.uneven(count, nranks).counts
    return _card([counts[(rank - step - 2) % nranks] for step in range(nranks - 1)], itemsize)


def all_gather_cost(nranks, count, itemsize, rank):
    """The Card of `all_gather` of `count` elements (one rank's contribution) on `rank`."""
    return _card([count] * (nranks - 1), itemsize)


def _card(read, itemsize):
    """The Card of rounds that read so many elements each."""
    signals = len(read) + bool(read)  # one a round, and one for the reader
    return Card(sum(read) * itemsize, sum(c > 0 for c in read), signals, signals, 0, signals)

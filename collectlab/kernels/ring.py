"""The ring: every rank reads from its left neighbour only, one chunk a round, and each round has its own row.

Reads 2 * (nranks - 1) / nranks * N bytes a rank, as two phases do, in 2 * (nranks - 1) rounds instead of two. The
chunk that rank r begins with has gone through every rank when it is finished, so each chunk is added in another
order; one owner finishes it and all copy, so all ranks agree to the last bit.
"""

from collectlab.cost import Card
from collectlab.kernels.reduction import combine, finish
from collectlab.layout import Partition


def all_reduce(ctx, x, op="sum"):
    """The reduction of everyone's `x`, on every rank."""
    add, p = combine(ctx, op), ctx.nranks
    left, right = (ctx.rank - 1) % p, (ctx.rank + 1) % p
    chunks = Partition.uneven(x.size, p)
    work = ctx.window("ring.work", x.size, x.dtype)
    rounds = ctx.signals("ring.round", rows=2 * p)

    work.store(x.reshape(-1))
    for step in range(2 * (p - 1)):
        rounds.notify(right, step)
        rounds.wait(left, step, rounds.generation)  # the left neighbour has finished the round before
        part = chunks.slice((ctx.rank - step - 1) % p)
        value = work.remote_load(left, part)
        if step < p - 1:  # still reducing; afterwards finished chunks are only handed on
            value = add(value, work.load(part))
            if step == p - 2:
                value = finish(ctx, op, value)
        work.store(value, part)

    y = work.load() if p > 1 else finish(ctx, op, work.load())
    if p > 1:
        rounds.notify(left, 2 * p - 1)
        rounds.wait(right, 2 * p - 1, rounds.generation)  # the right neighbour has read: the next call may store
    return y.reshape(x.shape)


def all_reduce_cost(nranks, count, itemsize, rank):
    """The Card of `all_reduce` of `count` elements on `rank`."""
    if nranks == 1:
        return Card(0, 0, 0, 0, 0, 0)
    counts, steps = Partition.uneven(count, nranks).counts, 2 * (nranks - 1)
    read = [counts[(rank - step - 1) % nranks] for step in range(steps)]
    return Card(sum(read) * itemsize, sum(c > 0 for c in read), steps + 1, steps + 1, 0, steps + 1)

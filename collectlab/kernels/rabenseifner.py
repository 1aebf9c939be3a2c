"""Rabenseifner's all-reduce: recursive halving reduces, recursive doubling collects.

Partners q/2, ..., 2, 1 apart (q members) each keep one half of what they shared and read the partner's part of it,
until member m holds chunk m reduced; then partners 1, 2, ..., q/2 apart read each other's finished chunks.
With q members that is 2 * (q - 1) / q * N bytes a member, N being the bytes of one rank's vector, in 2 * log2(q)
steps: as few bytes as two phases and the ring read, where nranks is a power of two. Where it is not, the ranks too
many hand in their vectors before and get out the result after that, N bytes each way: see `Fold`.

One owner finishes each chunk and all copy it, so all ranks agree to the last bit; a summand goes through
ceil(log2(nranks)) additions. Within a call, what a partner read while halving is overwritten only after its signal
of the same distance while doubling. Two windows take turns: a partner's signal in the next call proves that it has
read all of this one, and only the call after that stores here again.
"""

from collectlab.cost import Card
from collectlab.kernels.folding import Fold
from collectlab.kernels.reduction import combine, finish
from collectlab.layout import Partition


def all_reduce(ctx, x, op="sum"):
    """The reduction of everyone's `x`, on every rank."""
    add, fold = combine(ctx, op), Fold(ctx.nranks)
    member, twin = fold.member(ctx.rank), fold.twin(ctx.rank)
    signals = ctx.signals("rabenseifner", rows=2 * fold.steps + 2)
    work = ctx.window(f"rabenseifner.{signals.generation % 2}", x.size, x.dtype)

    work.store(x.ravel())
    if member is None:
        signals.notify(twin, 0)
        signals.wait(twin, 2 * fold.steps + 1, signals.generation)
        return work.remote_load(twin).reshape(x.shape)
    if twin is not None:
        signals.wait(twin, 0, signals.generation)
        work.store(add(work.load(), work.remote_load(twin)))

    for step, (distance, part) in enumerate(_parts(fold, member, x.size), 1):
        partner = fold.rank(member ^ distance)
        signals.notify(partner, step)
        signals.wait(partner, step, signals.generation)
        value = work.remote_load(partner, part)
        if step <= fold.steps:  # still reducing; afterwards finished chunks are only collected
            value = add(work.load(part), value)
            if step == fold.steps:
                value = finish(ctx, op, value)
        work.store(value, part)

    if twin is not None:
        signals.notify(twin, 2 * fold.steps + 1)
    return work.load().reshape(x.shape)


def _parts(fold, member, count):
    """(distance of the partner, slice that is read from it) of each step."""
    chunks = Partition.uneven(count, 2**fold.steps)
    edges = (*chunks.displacements, count)
    distances = [2**k for k in range(fold.steps)]
    halving = [(d, member // d * d) for d in reversed(distances)]  # of 2d chunks shared, the d with one's own
    doubling = [(d, (member ^ d) // d * d) for d in distances]  # the d chunks that the partner has finished
    return [(d, slice(edges[first], edges[first + d])) for d, first in halving + doubling]


def all_reduce_cost(nranks, count, itemsize, rank):
    """The Card of `all_reduce` of `count` elements on `rank`."""
    fold = Fold(nranks)
    read = [count] if fold.twin(rank) is not None else []
    if fold.member(rank) is not None:
        read += [part.stop - part.start for _, part in _parts(fold, fold.member(rank), count)]
    return Card(sum(read) * itemsize, sum(c > 0 for c in read), len(read), len(read), 0, len(read))

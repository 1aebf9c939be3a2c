"""Recursive doubling: partners 1, 2, 4, ... apart exchange all they have, so what each has reduced doubles.

Reads log2(nranks) * N bytes a rank, N being the bytes of one rank's vector: what two phases read at 2 ranks, and
more from there on, but with one partner a step instead of all peers at once. Where nranks is no power of two, the
ranks too many hand in their vectors before and get out the result after that, N bytes each way: see `Fold`.

Partners combine the same two operands, the lower ranks' first, so all ranks agree to the last bit; a summand goes
through ceil(log2(nranks)) additions. Each step has a slot of its own in the window, so nothing is overwritten
within a call. Two windows take turns: a partner's signal in the next call proves that it has read all of this one,
and only the call after that stores here again.
"""

from collectlab.cost import Card
from collectlab.kernels.folding import Fold
from collectlab.kernels.reduction import combine, finish


def all_reduce(ctx, x, op="sum"):
    """The reduction of everyone's `x`, on every rank."""
    add, fold = combine(ctx, op), Fold(ctx.nranks)
    member, twin, last = fold.member(ctx.rank), fold.twin(ctx.rank), fold.steps + 1
    signals = ctx.signals("recursive_doubling", rows=last + 1)  # 0 and last: twins
    slots = ctx.window(f"recursive_doubling.{signals.generation % 2}", (last + 1) * x.size, x.dtype)

    def give(peer, step, value):
        slots.store(value, slice(step * x.size, (step + 1) * x.size))
        signals.notify(peer, step)

    def take(peer, step):
        signals.wait(peer, step, signals.generation)
        return slots.remote_load(peer, slice(step * x.size, (step + 1) * x.size))

    total = ctx.xp.asarray(x).flatten()
    if member is None:
        give(twin, 0, total)
        return take(twin, last).reshape(x.shape)
    if twin is not None:
        total = add(total, take(twin, 0))
    for step in range(1, last):
        partner = fold.rank(member ^ 2 ** (step - 1))
        give(partner, step, total)
        theirs = take(partner, step)
        total = add(total, theirs) if ctx.rank < partner else add(theirs, total)
    total = finish(ctx, op, total)
    if twin is not None:
        give(twin, last, total)
    return total.reshape(x.shape)


def all_reduce_cost(nranks, count, itemsize, rank):
    """The Card of `all_reduce` of `count` elements on `rank`."""
    fold = Fold(nranks)
    steps = 1 if fold.member(rank) is None else fold.steps + (fold.twin(rank) is not None)
    return Card(steps * count * itemsize, steps * (count > 0), steps, steps, 0, steps)

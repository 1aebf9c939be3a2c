"""One mesh all-reduce, five ways to keep one round of signals from being taken for another.

A signal says "it has happened", not when. What keeps rounds apart is a generation: something that differs from one
use of a cell to the next. Each discipline finds it elsewhere:

    fresh_row          a cell is used once and never again           cells grow with the number of calls
    rising_generation  one cell, and each wait asks for one more     nothing to reset; vLLM, NVSHMEM, mscclpp
    consume_and_reset  the reader clears the cell; the writer waits  two signals for each; PyTorch's symmetric memory
    credits            the reader says that it has read, and the     the wait moves to the next call, where it is
                       writer asks for that before it stores again   over before it is asked for
    flag_in_data       every word carries its lap; buffers rotate    twice the bytes, no signal; "LL" in NCCL
"""

from collectlab.cost import Card
from collectlab.fabric.packets import words_for
from collectlab.kernels.reduction import combine, finish


def all_reduce(ctx, x, op="sum", discipline="rising_generation"):
    """The reduction of everyone's `x`, on every rank; `discipline` is one of DISCIPLINES."""
    if discipline not in DISCIPLINES:
        raise ValueError(f"all_reduce(discipline={discipline!r}): one of {', '.join(DISCIPLINES)} is accepted")
    if discipline == "flag_in_data":
        return flag_in_data(ctx, x, op)
    add = combine(ctx, op)
    data = ctx.window(f"{discipline}.data", x.size, x.dtype)
    before_store, stored, have_read = DISCIPLINES[discipline](ctx)

    before_store()
    data.store(x.ravel())
    stored()  # every input lies in its window
    total = data.remote_load(0)
    for peer in range(1, ctx.nranks):
        total = add(total, data.remote_load(peer))
    have_read()
    return finish(ctx, op, total).reshape(x.shape)


def fresh_row(ctx):
    """Every call has rows of its own, and every wait asks for 1."""
    call = ctx.signals("fresh_row.calls", rows=1).generation
    rows = ctx.signals(f"fresh_row.{call}", rows=2)
    return _nothing, lambda: _meet(ctx, rows, 0, 1), lambda: _meet(ctx, rows, 1, 1)


def rising_generation(ctx):
    """One row: the first barrier of call g asks for 2 * g - 1, the second for 2 * g."""
    row = ctx.signals("rising_generation", rows=1)
    target = 2 * row.generation
    return _nothing, lambda: _meet(ctx, row, 0, target - 1), lambda: _meet(ctx, row, 0, target)


def consume_and_reset(ctx):
    """The cell is 1 or 0, set by its writer and cleared by its reader; each waits for the other.

    Here it is two counters that only go up, SET and CLEARED: the cell is their difference.
    """
    cell = ctx.signals("consume_and_reset", rows=2)
    SET, CLEARED = 0, 1

    def meet(times):
        for peer in _peers(ctx):
            cell.wait(peer, CLEARED, times - 1)  # it is 0 again
            cell.notify(peer, SET)
        for peer in _peers(ctx):
            cell.wait(peer, SET, times)
            cell.notify(peer, CLEARED)

    last = 2 * cell.generation
    return _nothing, lambda: meet(last - 1), lambda: meet(last)


def credits(ctx):
    """Who has read gives a credit back at once; who wants to store again waits for everyone's."""
    rows = ctx.signals("credits", rows=2)
    READY, CREDIT = 0, 1

    def before_store():
        for peer in _peers(ctx):
            rows.wait(peer, CREDIT, rows.generation - 1)

    def have_read():
        for peer in _peers(ctx):
            rows.notify(peer, CREDIT)

    return before_store, lambda: _meet(ctx, rows, READY, rows.generation), have_read


def flag_in_data(ctx, x, op="sum"):
    """Everyone pushes its vector to everyone, and each word says in which lap it was written.

    Two slots take turns. A rank that writes a slot again has everyone's packets of the call between, and a peer
    sent those only after it had taken what lay here before: nothing else has to say that a slot is free.
    """
    add = combine(ctx, op)
    call = ctx.signals(f"flag_in_data.calls.{x.size}.{x.dtype}", rows=1).generation
    slot, lap = call % 2, (call + 1) // 2
    packets, mine = ctx.packets("flag_in_data", 2, x.size, x.dtype), ctx.xp.asarray(x).reshape(-1)
    for peer in _peers(ctx):
        packets.post(peer, slot, mine, lap)
    parts = [mine if peer == ctx.rank else packets.take(peer, slot, lap) for peer in range(ctx.nranks)]
    total = parts[0]
    for part in parts[1:]:
        total = add(total, part)
    return finish(ctx, op, total).reshape(x.shape)


DISCIPLINES = {
    "fresh_row": fresh_row,
    "rising_generation": rising_generation,
    "consume_and_reset": consume_and_reset,
    "credits": credits,
    "flag_in_data": flag_in_data,
}


def _meet(ctx, signals, row, at_least):
    """A barrier by hand, with a target of its own."""
    for peer in _peers(ctx):
        signals.notify(peer, row)
    for peer in _peers(ctx):
        signals.wait(peer, row, at_least)


def _peers(ctx):
    return [peer for peer in range(ctx.nranks) if peer != ctx.rank]


def _nothing():
    pass


def all_reduce_cost(nranks, count, itemsize, rank, discipline="rising_generation"):
    """The Card of `all_reduce` of `count` elements on `rank`."""
    peers = nranks - 1
    if discipline == "flag_in_data":
        nbytes = 8 * words_for(count, f"V{itemsize}") if count else 0
        return Card(peers * nbytes, peers * (count > 0), 0, peers, 0, peers)
    signals = {"consume_and_reset": 4}.get(discipline, 2)
    waits = signals * peers
    return Card(peers * count * itemsize, peers * (count > 0), signals * peers, waits, 0, waits)

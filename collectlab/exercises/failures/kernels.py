"""Broken kernels, each an all-reduce of a flat array `x`. The catalogue says what is wrong with each."""

from collectlab.layout import Partition


def case_1(ctx, x):
    """Two phases."""
    chunks = Partition.uneven(x.size, ctx.nranks)
    data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
    rows = ctx.signals("rows", rows=2)

    data.store(x)
    ctx.barrier(rows, 0)
    mine = chunks.slice(ctx.rank)
    result.store(sum(data.remote_load(peer, mine) for peer in range(ctx.nranks)), mine)
    ctx.barrier(rows, 0)
    y = ctx.xp.zeros_like(x)
    for owner in range(ctx.nranks):
        y[chunks.slice(owner)] = result.remote_load(owner, chunks.slice(owner))
    return y


def case_2(ctx, x):
    """Two phases."""
    n = x.size // ctx.nranks
    chunks = [slice(rank * n, (rank + 1) * n) for rank in range(ctx.nranks)]
    data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
    rows = ctx.signals("rows", rows=2)

    data.store(x)
    ctx.barrier(rows, 0)
    mine = chunks[ctx.rank]
    result.store(sum(data.remote_load(peer, mine) for peer in range(ctx.nranks)), mine)
    ctx.barrier(rows, 1)
    y = ctx.xp.zeros_like(x)
    for owner in range(ctx.nranks):
        y[chunks[owner]] = result.remote_load(owner, chunks[owner])
    return y


def case_3(ctx, x):
    """Two phases."""
    chunks = Partition.uneven(x.size, ctx.nranks)
    data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
    rows = ctx.signals("rows", rows=2)

    data.store(x)
    ctx.barrier(rows, 0)
    mine = chunks.slice(ctx.rank)
    result.store(sum(data.remote_load(peer, mine) for peer in range(ctx.nranks)), mine)
    ctx.barrier(rows, 1)
    y = []
    for step in range(ctx.nranks):
        owner = (ctx.rank + step) % ctx.nranks
        y.append(result.remote_load(owner, chunks.slice(owner)))
    return ctx.xp.concatenate(y)


def case_4(ctx, x):
    """Two phases in one window: nobody reads from rank r the chunk that rank r stores."""
    mine = Partition.uneven(x.size, ctx.nranks).slice(ctx.rank)
    data = ctx.window("data", x.size, x.dtype)
    rows = ctx.signals("rows", rows=2)

    data.store(x)
    ctx.barrier(rows, 0)
    data.store(sum(data.remote_load(peer, mine) for peer in range(ctx.nranks)), mine)
    ctx.barrier(rows, 1)
    return data.load()


def case_5(ctx, x):
    """Two phases."""
    chunks = Partition.uneven(x.size, ctx.nranks)
    data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
    rows = ctx.signals("rows", rows=2)

    data.store(x)
    ctx.barrier(rows, 0)
    mine = chunks.slice(ctx.rank)
    order = [(ctx.rank + step) % ctx.nranks for step in range(ctx.nranks)]
    result.store(sum(data.remote_load(peer, mine) for peer in order), mine)
    ctx.barrier(rows, 1)
    y = ctx.xp.zeros_like(x)
    for owner in range(ctx.nranks):
        y[chunks.slice(owner)] = result.remote_load(owner, chunks.slice(owner))
    return y


def case_6(ctx, x):
    """Two phases."""
    ends = [x.size * rank // ctx.nranks for rank in range(ctx.nranks + 1)]
    data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
    rows = ctx.signals("rows", rows=2)

    data.store(x)
    ctx.barrier(rows, 0)
    mine = slice(ends[ctx.rank], ends[ctx.rank + 1])
    result.store(sum(data.remote_load(peer, mine) for peer in range(ctx.nranks)), mine)
    ctx.barrier(rows, 1)
    y = ctx.xp.zeros_like(x)
    for owner in range(ctx.nranks):
        part = slice(ends[owner], max(ends[owner], ends[owner + 1] - 1))
        y[part] = result.remote_load(owner, part)
    return y


def case_7(ctx, x):
    """Two phases."""
    chunks = Partition.uneven(x.size, ctx.nranks)
    data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
    rows = ctx.signals("rows", rows=2)

    data.store(x)
    ctx.barrier(rows, 0)
    mine = chunks.slice(ctx.rank)
    total = data.load(mine)
    for peer in range(ctx.nranks):
        total = total + data.remote_load(peer, mine)
    result.store(total, mine)
    ctx.barrier(rows, 1)
    y = ctx.xp.zeros_like(x)
    for owner in range(ctx.nranks):
        y[chunks.slice(owner)] = result.remote_load(owner, chunks.slice(owner))
    return y


def case_8(ctx, x):
    """One phase, with a barrier by hand."""
    data, rows = ctx.window("data", x.size, x.dtype), ctx.signals("rows", rows=2)

    data.store(x)
    for peer in range(ctx.nranks - 1):
        if peer != ctx.rank:
            rows.notify(peer, 0)
    for peer in range(ctx.nranks):
        if peer != ctx.rank:
            rows.wait(peer, 0, rows.generation)
    y = sum(data.remote_load(peer) for peer in range(ctx.nranks))
    ctx.barrier(rows, 1)
    return y


def case_9(ctx, x):
    """One phase, with a barrier by hand."""
    data, rows = ctx.window("data", x.size, x.dtype), ctx.signals("rows", rows=2)
    peers = [peer for peer in range(ctx.nranks) if peer != ctx.rank]

    data.store(x)
    for peer in peers:
        rows.notify(peer, 0)
    for peer in peers:
        rows.wait(peer, 0, rows.generation - 1)
    y = sum(data.remote_load(peer) for peer in range(ctx.nranks))
    ctx.barrier(rows, 1)
    return y


def case_10(ctx, x):
    """Two phases."""
    chunks = Partition.uneven(x.size, ctx.nranks)
    data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
    rows = ctx.signals("rows", rows=2)

    data.store(x)
    ctx.barrier(rows, 0)
    mine = chunks.slice(ctx.rank)
    total = sum(data.remote_load(peer, mine) for peer in range(ctx.nranks))
    ctx.barrier(rows, 1)
    result.store(total, mine)
    y = ctx.xp.zeros_like(x)
    for owner in range(ctx.nranks):
        y[chunks.slice(owner)] = result.remote_load(owner, chunks.slice(owner))
    return y


def case_11(ctx, x):
    """One phase, with barriers by hand; called more than once."""
    data, rows = ctx.window("data", x.size, x.dtype), ctx.signals("rows", rows=2)
    peers = [peer for peer in range(ctx.nranks) if peer != ctx.rank]

    def meet(row):
        for peer in peers:
            rows.notify(peer, row)
        for peer in peers:
            rows.wait(peer, row, 1)

    data.store(x)
    meet(0)
    y = sum(data.remote_load(peer) for peer in range(ctx.nranks))
    meet(1)
    return y


def case_12(ctx, x):
    """One phase in place: the sum replaces the input in its window."""
    data, rows = ctx.window("data", x.size, x.dtype), ctx.signals("rows", rows=2)

    data.store(x)
    ctx.barrier(rows, 0)
    y = sum(data.remote_load(peer) for peer in range(ctx.nranks))
    data.store(y)
    ctx.barrier(rows, 1)
    return data.load()


def case_13(ctx, x):
    """One phase."""
    data, rows = ctx.window("data", x.size, x.dtype), ctx.signals("rows", rows=2)

    data.store(x)
    ctx.barrier(rows, 0)
    y = sum(data.remote_load(peer) for peer in range(4))
    ctx.barrier(rows, 1)
    return y


def case_14(ctx, x):
    """Two phases, after a restart in which each process took the rank after its own."""
    chunks = Partition.uneven(x.size, ctx.nranks)
    data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
    rows, before = ctx.signals("rows", rows=2), (ctx.rank - 1) % ctx.nranks

    data.store(x)
    ctx.barrier(rows, 0)
    total = sum(data.remote_load(peer, chunks.slice(before)) for peer in range(ctx.nranks))
    result.store(total, slice(0, total.size))
    ctx.barrier(rows, 1)
    y = ctx.xp.zeros_like(x)
    for owner in range(ctx.nranks):
        y[chunks.slice(owner)] = result.remote_load(owner, slice(0, chunks.counts[owner]))
    return y


def case_15(ctx, x):
    """Two phases; the average."""
    chunks = Partition.uneven(x.size, ctx.nranks)
    data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
    rows = ctx.signals("rows", rows=2)

    data.store(x)
    ctx.barrier(rows, 0)
    mine = chunks.slice(ctx.rank)
    result.store(sum(data.remote_load(peer, mine) for peer in range(ctx.nranks)) / ctx.nranks, mine)
    ctx.barrier(rows, 1)
    y = ctx.xp.zeros_like(x)
    for owner in range(ctx.nranks):
        y[chunks.slice(owner)] = result.remote_load(owner, chunks.slice(owner))
    return y / ctx.nranks


def case_16(ctx, x):
    """One phase; rank 0 counts who has arrived and lets everyone go."""
    data, arrived = ctx.window("data", x.size, x.dtype), ctx.window("arrived", 1, x.dtype)
    rows, one = ctx.signals("rows", rows=2), ctx.xp.ones(1, x.dtype)

    data.store(x)
    arrived.remote_store(0, one)
    if ctx.rank == 0:
        while arrived.load()[0] != 1:
            pass
        for peer in range(1, ctx.nranks):
            rows.notify(peer, 0)
    else:
        rows.wait(0, 0, rows.generation)
    y = sum(data.remote_load(peer) for peer in range(ctx.nranks))
    ctx.barrier(rows, 1)
    return y


def case_17(ctx, x):
    """One phase, with a barrier by hand."""
    data, rows = ctx.window("data", x.size, x.dtype), ctx.signals("rows", rows=3)
    peers = [peer for peer in range(ctx.nranks) if peer != ctx.rank]

    data.store(x)
    for peer in peers:
        rows.notify(peer, 0)
    for peer in peers:
        rows.wait(peer, 1, rows.generation)
    y = sum(data.remote_load(peer) for peer in range(ctx.nranks))
    ctx.barrier(rows, 2)
    return y


def case_18(ctx, x):
    """One phase, with a barrier by hand that waits for as many signals as there are peers."""
    data, rows = ctx.window("data", x.size, x.dtype), ctx.signals("rows", rows=2)

    data.store(x)
    for peer in range(ctx.nranks):
        rows.notify(peer, 0)
    for peer in range(ctx.nranks - 1):
        rows.wait(peer, 0, rows.generation)
    y = sum(data.remote_load(peer) for peer in range(ctx.nranks))
    ctx.barrier(rows, 1)
    return y


def case_19(ctx, x):
    """One phase; calls take turns with two windows and two rows, so one barrier a call is enough."""
    rows = ctx.signals("rows", rows=2)
    turn = rows.generation % 2
    data = ctx.window(f"data {turn}", x.size, x.dtype)
    peers = [peer for peer in range(ctx.nranks) if peer != ctx.rank]

    data.store(x)
    for peer in peers:
        rows.notify(peer, turn)
    for peer in peers:
        rows.wait(peer, turn, 1)
    return sum(data.remote_load(peer) for peer in range(ctx.nranks))


def case_20(ctx, x):
    """Two phases in one window, the reduced chunks behind the input; called with half of `x`, then with all of it."""
    both = ctx.window("both", 2 * x.size, x.dtype)

    def all_reduce(x):
        chunks, rows = Partition.uneven(x.size, ctx.nranks), ctx.signals("rows", rows=2)
        both.store(x, slice(0, x.size))
        ctx.barrier(rows, 0)
        mine, behind = chunks.slice(ctx.rank), x.size
        total = sum(both.remote_load(peer, mine) for peer in range(ctx.nranks))
        both.store(total, slice(behind + mine.start, behind + mine.stop))
        ctx.barrier(rows, 1)
        parts = [chunks.slice(owner) for owner in range(ctx.nranks)]
        loads = [both.remote_load(r, slice(behind + p.start, behind + p.stop)) for r, p in enumerate(parts)]
        return ctx.xp.concatenate(loads)

    half, whole = all_reduce(x[: x.size // 2]), all_reduce(x)
    return ctx.xp.concatenate([half, whole[half.size :]])


def case_21(ctx, x):
    """One phase; called more than once."""
    data, rows = ctx.window("data", x.size, x.dtype), ctx.signals("rows", rows=1)

    data.store(x)
    ctx.barrier(rows, 0)
    return sum(data.remote_load(peer) for peer in range(ctx.nranks))


def case_22(ctx, x):
    """Two phases."""
    chunks = Partition.uneven(x.size, ctx.nranks)
    data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
    rows, mine = ctx.signals("rows", rows=2), chunks.slice(ctx.rank)
    y = ctx.xp.zeros_like(x)

    data.store(x)
    ctx.barrier(rows, 0)
    if chunks.counts[ctx.rank] == 0:
        return y
    result.store(sum(data.remote_load(peer, mine) for peer in range(ctx.nranks)), mine)
    ctx.barrier(rows, 1)
    for owner in range(ctx.nranks):
        y[chunks.slice(owner)] = result.remote_load(owner, chunks.slice(owner))
    return y


def case_23(ctx, x):
    """One phase, with a barrier by hand."""
    data, rows = ctx.window("data", x.size, x.dtype), ctx.signals("rows", rows=2)
    peers = [peer for peer in range(ctx.nranks) if peer != ctx.rank]

    data.store(x)
    for peer in peers:
        rows.wait(peer, 0, rows.generation)
        rows.notify(peer, 0)
    y = sum(data.remote_load(peer) for peer in range(ctx.nranks))
    ctx.barrier(rows, 1)
    return y


def case_24(ctx, x):
    """A ring."""
    p, chunks = ctx.nranks, Partition.uneven(x.size, ctx.nranks)
    left, right = (ctx.rank - 1) % p, (ctx.rank + 1) % p
    work, rounds = ctx.window("work", x.size, x.dtype), ctx.signals("rounds", rows=2)

    work.store(x)
    for step in range(2 * (p - 1)):
        rounds.notify(right, 0)
        rounds.wait(left, 0, 1)
        part = chunks.slice((ctx.rank - step - 1) % p)
        value = work.remote_load(left, part)
        work.store(value + work.load(part) if step < p - 1 else value, part)
    y = work.load()
    rounds.notify(left, 1)
    rounds.wait(right, 1, rounds.generation)
    return y


def case_25(ctx, x):
    """A ring."""
    p, chunks = ctx.nranks, Partition.uneven(x.size, ctx.nranks)
    left, right = (ctx.rank - 1) % p, (ctx.rank + 1) % p
    work, rounds = ctx.window("work", x.size, x.dtype), ctx.signals("rounds", rows=2 * p)

    work.store(x)
    for step in range(2 * (p - 1)):
        rounds.notify(right, step)
        rounds.wait(left, step, rounds.generation)
        part = chunks.slice((ctx.rank - step - 1) % p)
        value = work.remote_load(left, part)
        work.store(value + work.load(part) if step < p - 2 else value, part)
    y = work.load()
    rounds.notify(left, 2 * p - 1)
    rounds.wait(right, 2 * p - 1, rounds.generation)
    return y


def case_26(ctx, x):
    """One phase; a flag beside the data says that it is there."""
    data, ready = ctx.window("data", x.size, x.dtype), ctx.window("ready", 1, x.dtype)

    data.store(x)
    ready.store(ctx.xp.ones(1, x.dtype))
    y = ctx.xp.zeros_like(x)
    for peer in range(ctx.nranks):
        while ready.remote_load(peer)[0] == 0:
            pass
        y = y + data.remote_load(peer)
    return y


def case_27(ctx, x):
    """One phase; rank 0 counts who has arrived and lets everyone go."""
    data, rows = ctx.window("data", x.size, x.dtype), ctx.signals("rows", rows=3)

    data.store(x)
    if ctx.rank > 0:
        rows.notify(0, 0)
        rows.wait(0, 1, rows.generation)
    else:
        rows.wait(1, 0, (ctx.nranks - 1) * rows.generation)
        for peer in range(1, ctx.nranks):
            rows.notify(peer, 1)
    y = sum(data.remote_load(peer) for peer in range(ctx.nranks))
    ctx.barrier(rows, 2)
    return y


def case_28(ctx, x):
    """Everyone adds to one sum on rank 0, then reads it."""
    total, rows = ctx.window("total", x.size, x.dtype), ctx.signals("rows", rows=3)

    if ctx.rank == 0:
        total.store(x)
    ctx.barrier(rows, 0)
    if ctx.rank > 0:
        total.remote_store(0, total.remote_load(0) + x)
    ctx.barrier(rows, 1)
    y = total.remote_load(0)
    ctx.barrier(rows, 2)
    return y


def case_29(ctx, x):
    """Two phases; a rank keeps no more of the result than its chunk."""
    chunks = Partition.uneven(x.size, ctx.nranks)
    data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", chunks.counts[0], x.dtype)
    rows = ctx.signals("rows", rows=2)

    data.store(x)
    ctx.barrier(rows, 0)
    mine = chunks.slice(ctx.rank)
    result.store(sum(data.remote_load(p, mine) for p in range(ctx.nranks)), slice(0, chunks.counts[ctx.rank]))
    ctx.barrier(rows, 1)
    y = ctx.xp.zeros_like(x)
    for owner in range(ctx.nranks):
        y[chunks.slice(owner)] = result.remote_load(owner, chunks.slice(owner))
    return y


def case_30(ctx, x):
    """One phase; rank 0 also notes something in its log. Called more than once."""
    data, rows = ctx.window("data", x.size, x.dtype), ctx.signals("rows", rows=2)

    data.store(x)
    if ctx.rank == 0:
        ctx.log(f"generation {ctx.signals('rows', rows=2).generation}")
    ctx.barrier(rows, 0)
    y = sum(data.remote_load(peer) for peer in range(ctx.nranks))
    ctx.barrier(rows, 1)
    return y


def case_31(ctx, x):
    """A ring."""
    p, chunks = ctx.nranks, Partition.uneven(x.size, ctx.nranks)
    left, right = (ctx.rank - 1) % p, (ctx.rank + 1) % p
    work, rounds = ctx.window("work", x.size, x.dtype), ctx.signals("rounds", rows=2 * p)

    work.store(x)
    for step in range(2 * (p - 1)):
        rounds.notify(left, step)
        rounds.wait(right, step, rounds.generation)
        part = chunks.slice((ctx.rank - step - 1) % p)
        value = work.remote_load(left, part)
        work.store(value + work.load(part) if step < p - 1 else value, part)
    y = work.load()
    rounds.notify(left, 2 * p - 1)
    rounds.wait(right, 2 * p - 1, rounds.generation)
    return y


def case_32(ctx, x):
    """One phase, with packets; called more than once."""
    packets, lap = ctx.packets("data", 1, x.size, x.dtype), ctx.signals("calls", rows=1).generation
    peers = [peer for peer in range(ctx.nranks) if peer != ctx.rank]

    for peer in peers:
        packets.post(peer, 0, x, lap)
    return x + sum(packets.take(peer, 0, lap) for peer in peers)

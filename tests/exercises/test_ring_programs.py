"""Programs that a learner may write for the ring of notebook 07, and what the exercises expect."""

import numpy as np
import pytest

import collectlab as cl
from collectlab.exercises import rings
from collectlab.exercises.rings import ring_reduce_scatter
from collectlab.layout import Partition


def ring(
    ctx, x, part=2, keep=0, row=lambda step: step, rounds=lambda p: p - 1, source="left", target=None,
    value=lambda theirs, mine, x: theirs + mine, store=True, free=True, wait=True, wait_first=False, rise=False,
    around=True, last=False, whole=False,
):  # fmt: skip
    """A ring's reduce-scatter with one thing in it that may be wrong."""
    p = ctx.nranks
    left, right = (ctx.rank - 1) % p, (ctx.rank + 1) % p
    chunks = Partition.uneven(x.size, p)
    work = ctx.window("work", x.size, x.dtype)
    signals = ctx.signals("rounds", rows=p + 1)
    work.store(x)
    for step in range(rounds(p)):
        if not wait_first:
            signals.notify(right, row(step))
        if wait:
            signals.wait(left, row(step), signals.generation if target is None else target)
        if wait_first:
            signals.notify(right, row(step))
        chunk = ctx.rank - part + (step if rise else -step)
        where, peer = chunks.slice(chunk % p if around else chunk), left if source == "left" else right
        theirs = work.remote_load(peer)[where] if whole else work.remote_load(peer, where)
        added = value(theirs, work.load(where), x[where])
        if store:
            work.store(added, where)
    y = added if last and p > 1 else work.load(chunks.slice((ctx.rank + keep) % p))
    if p > 1 and free:
        signals.notify(left, p)
        signals.wait(right, p, signals.generation if target is None else target)
    return y


def with_bare_names(ctx, x):
    p = ctx.nranks
    work, rounds = ctx.window("w", x.size, x.dtype), ctx.signals("r", rows=p)
    chunks = cl.layout.Partition.uneven(x.size, p)
    work.store(x)
    for k in range(p - 1):
        rounds.notify((ctx.rank + 1) % p, k)
        rounds.wait(ctx.rank - 1 if ctx.rank else p - 1, k, rounds.generation)
        part = chunks.slice((ctx.rank - k - 2) % p)
        work.store(x[part] + work.remote_load((ctx.rank - 1) % p, part), part)
    mine = work.load(chunks.slice(ctx.rank))
    ctx.barrier(ctx.signals("end", rows=1), 0)
    return mine


def always_its_own(ctx, x):
    p = ctx.nranks
    mine = Partition.uneven(x.size, p).slice(ctx.rank)
    work, rounds = ctx.window("w", x.size, x.dtype), ctx.signals("r", rows=p)
    work.store(x)
    for k in range(p - 1):
        rounds.notify((ctx.rank + 1) % p, k)
        rounds.wait((ctx.rank - 1) % p, k, rounds.generation)
        work.store(work.load(mine) + work.remote_load((ctx.rank - 1) % p, mine), mine)
    return work.load(mine)


def of_everyone(ctx, x):
    """Right, but everybody reads from everybody."""
    mine = Partition.uneven(x.size, ctx.nranks).slice(ctx.rank)
    work, signals = ctx.window("w", x.size, x.dtype), ctx.signals("r", rows=2)
    work.store(x)
    ctx.barrier(signals, 0)
    total = sum(work.remote_load(peer, mine) for peer in range(ctx.nranks))
    ctx.barrier(signals, 1)
    return total


def the_other_way_round(ctx, x):
    """A right ring whose chunks travel to the left."""
    p = ctx.nranks
    work, rounds = ctx.window("w", x.size, x.dtype), ctx.signals("r", rows=p)
    chunks = Partition.uneven(x.size, p)
    work.store(x)
    for k in range(p - 1):
        rounds.notify((ctx.rank - 1) % p, k)
        rounds.wait((ctx.rank + 1) % p, k, rounds.generation)
        part = chunks.slice((ctx.rank + k + 2) % p)
        work.store(x[part] + work.remote_load((ctx.rank + 1) % p, part), part)
    mine = work.load(chunks.slice(ctx.rank))
    ctx.barrier(ctx.signals("end", rows=1), 0)
    return mine


def pushed_on(ctx, x):
    """A right ring in which a rank stores into an inbox of its right neighbour, and reads its own."""
    p, left, right = ctx.nranks, (ctx.rank - 1) % ctx.nranks, (ctx.rank + 1) % ctx.nranks
    inbox, rounds = ctx.window("inbox", (p, x.size), x.dtype), ctx.signals("rounds", rows=p)
    chunks, have = Partition.uneven(x.size, p), x.copy()
    for step in range(p - 1):
        part = chunks.slice((ctx.rank - step - 1) % p)
        inbox.remote_store(right, have[part], (step, part))
        rounds.notify(right, step)
        rounds.wait(left, step, rounds.generation)
        part = chunks.slice((ctx.rank - step - 2) % p)
        have[part] += inbox.load((step, part))
    if p > 1:
        rounds.notify(left, p - 1)
        rounds.wait(right, p - 1, rounds.generation)
    return have[chunks.slice(ctx.rank)]


def rounds_of(act):
    """The ring of the notebook, with `act(work, left, right, part, wait)` in the place of its dots."""

    def program(ctx, x):
        p, left, right = ctx.nranks, (ctx.rank - 1) % ctx.nranks, (ctx.rank + 1) % ctx.nranks
        chunks = Partition.uneven(x.size, p)
        work, rounds = ctx.window("work", x.size, x.dtype), ctx.signals("rounds", rows=p)
        work.store(x)
        for step in range(p - 1):
            rounds.notify(right, step)
            part = chunks.slice((ctx.rank - step - 2) % p)
            act(work, left, right, part, lambda row=step: rounds.wait(left, row, rounds.generation))
        mine = work.load(chunks.slice(ctx.rank))
        if p > 1:
            rounds.notify(left, p - 1)
            rounds.wait(right, p - 1, rounds.generation)
        return mine

    return program


def only_waits(work, left, right, part, wait):
    wait()


def reads_then_waits(work, left, right, part, wait):
    added = work.load(part) + work.remote_load(left, part)
    wait()
    work.store(added, part)


def stores_all(work, left, right, part, wait):
    wait()
    y = work.load()
    y[part] += work.remote_load(left, part)
    work.store(y)


def stores_to_the_right(work, left, right, part, wait):
    wait()
    work.remote_store(right, work.load(part) + work.remote_load(left, part), part)


def stores_at_the_beginning(work, left, right, part, wait):
    wait()
    y = work.load(part) + work.remote_load(left, part)
    work.store(y, slice(0, y.size))


def of(**wrong):
    return lambda ctx, x: ring(ctx, x, **wrong)


WRONG = {
    "waits for too many": of(target=2),
    "waits first": of(wait_first=True),
    "whole store": rounds_of(stores_all),
    "stores to a peer": rounds_of(stores_to_the_right),
    "reads, then waits": rounds_of(reads_then_waits),
    "nothing read": rounds_of(only_waits),
    "reads from the right": of(source="right"),
    "a fixed target": of(target=1),
    "window not free": of(free=False),
    "one row for all rounds": of(row=lambda step: 0),
    "no wait": of(wait=False),
    "never reached": of(part=1),
    "the next rank's chunk": of(part=1, keep=1),
    "handed on": of(value=lambda theirs, mine, x: theirs),
    "not stored": of(store=False),
    "two ranks": of(part=0),
    "stored elsewhere": rounds_of(stores_at_the_beginning),
    "chunks rise": of(part=0, rise=True),
    "whole part": of(whole=True),
    "not round the ring": of(around=False),
    "the same chunk each round": always_its_own,
    "its own twice": of(value=lambda theirs, mine, x: theirs + mine + x),
    "no ring": of_everyone,
    "borrowed": lambda ctx, x: cl.kernels.ring.reduce_scatter(ctx, x),
}


@pytest.mark.parametrize("program", [ring, with_bare_names, pushed_on])
def test_right_rings_pass(program):
    assert ring_reduce_scatter(program)


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_rings_are_recognised_by_how_they_go_wrong(mistake):
    verdict = ring_reduce_scatter(WRONG[mistake])
    assert not verdict and verdict.mistake == mistake, verdict


SAME_CHUNK = {
    "rise by one from r - 2": (of(part=-2, rise=True), "chunks rise"),
    "rise by one from r + 1": (of(part=-1, rise=True), "chunks rise"),
    "rise, and add what the window holds": (of(rise=True, value=lambda theirs, mine, x: theirs + x), "chunks rise"),
    "not stored, but returned": (of(store=False, last=True), "not stored"),
    "two ranks, with x": (of(part=0, value=lambda theirs, mine, x: theirs + x), "two ranks"),
}


@pytest.mark.parametrize(("program", "mistake"), SAME_CHUNK.values(), ids=SAME_CHUNK)
def test_wrong_chunk_numbers_are_not_taken_for_wrong_signals(program, mistake):
    verdict = ring_reduce_scatter(program)
    assert not verdict and verdict.mistake == mistake, verdict


def test_a_chunk_that_is_not_there_is_told_with_the_line_of_the_program():
    text = ring_reduce_scatter(of(around=False)).text
    assert "ranks are 0 to 2\n    line " in text and "in ring:  where, peer = chunks.slice(" in text


def test_one_round_too_few_never_reaches_the_last_chunk():
    assert ring_reduce_scatter(of(rounds=lambda p: p - 2)).mistake == "never reached"


def test_a_ring_the_other_way_round_reads_other_chunks():
    assert ring_reduce_scatter(the_other_way_round).mistake == "no ring"


def test_every_mistake_has_its_program_and_its_own_message():
    names = [mistake.name for mistake in ring_reduce_scatter.mistakes]
    messages = {mistake.message for mistake in ring_reduce_scatter.mistakes}
    assert set(names) <= set(WRONG) and len(names) == len(set(names)) == len(messages) >= 5


# What the other exercises expect, held against runs of the kernels


def loads(run, rank):
    """(peer, chunk) of each remote load of a rank, in the order of its rounds, for vectors of one element a chunk."""
    return [(e.peer, e.elements[0]) for e in run.trace.events if e.kind == "load" and e.rank == rank != e.peer]


def run_of(kernel, nranks, count, dtype=np.int64):
    return cl.simulate(kernel.all_reduce, cl.per_rank([np.arange(count, dtype=dtype)] * nranks), ranks=nranks)


def test_the_chunks_are_those_that_the_kernel_reads():
    read = loads(run_of(cl.kernels.ring, 4, 4), 1)
    assert read == [(0, chunk) for chunk in rings.chunks_of_rank_1.expected]


def test_the_contributions_are_those_of_a_run():
    def two_rounds(ctx, x):
        p = ctx.nranks
        work, rounds = ctx.window("w", x.size, x.dtype), ctx.signals("r", rows=p)
        work.store(x)
        for step in range(2):
            rounds.notify((ctx.rank + 1) % p, step)
            rounds.wait((ctx.rank - 1) % p, step, rounds.generation)
            at = slice((ctx.rank - step - 2) % p, (ctx.rank - step - 2) % p + 1)
            work.store(work.load(at) + work.remote_load((ctx.rank - 1) % p, at), at)
        return work.load()

    run = cl.simulate(two_rounds, cl.per_rank([np.full(5, 10**rank) for rank in range(5)]), ranks=5)
    held = [rank for rank in range(5) if run.results[3][0] // 10**rank % 10]
    assert held == rings.contributions.expected


def test_bytes_and_rounds_are_those_of_runs():
    ring, two = (run_of(k, 8, 64, np.float32) for k in (cl.kernels.ring, cl.kernels.two_phase))
    rounds = {(e.name, e.row) for e in ring.trace.events if e.kind == "wait"}
    moved, barriers = ring.trace.measured(3).nbytes, two.trace.measured(3).barriers
    # the last row of the ring's signals frees the window; all others are rounds
    assert rings.bytes_and_rounds.expected == [moved, len(rounds) - 1, two.trace.measured(3).nbytes, barriers]


def test_what_crosses_between_hosts_is_measured():
    crossing = [run_of(k, 8, 64, np.float32).traffic[:4, 4:].sum() for k in (cl.kernels.ring, cl.kernels.two_phase)]
    assert crossing == rings.across_the_hosts.expected


def test_the_partners_are_those_of_the_kernel():
    peers = [peer for peer, _ in loads(run_of(cl.kernels.recursive_doubling, 8, 1), 5)]
    assert peers == list(rings.partners.expected)


def test_each_case_has_one_winner_and_all_three_differ():
    assert len(set(rings.winners.expected)) == 3
    for case, winner in zip(rings.CASES, rings.winners.expected, strict=True):
        times = {name: rings.modelled(name, *case)[1] for name in rings.KERNELS}
        assert all(times[winner] < time for name, time in times.items() if name != winner)

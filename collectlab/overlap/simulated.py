"""Plans carried out in the simulator: each lane is a simulated rank, so any order of their steps can be had again.

A collective is made of loads from the buffers of all ranks. Its lanes meet before, so that each source is there, and
before they give their events, so that each source is free again.
"""

import copy

import numpy as np

from collectlab.fabric.per_rank import PerRank
from collectlab.fabric.simulated import MOST_RANKS, checked, simulate
from collectlab.layout import Partition
from collectlab.overlap import lanes
from collectlab.overlap.plan import COMPUTE, Streams
from collectlab.trace.events import NOTIFY


def recorded(plan, args, nranks):
    """What the plan returns on each rank, and what each rank has Done: two lists."""
    checked("overlap.simulate", plan, args, nranks)
    returned, done = [], []
    for rank in range(nranks):
        mine = [copy.deepcopy(a.values[rank] if isinstance(a, PerRank) else a) for a in args]
        ctx = Streams(rank, nranks)
        returned.append(plan(ctx, *mine))
        done.append(ctx.finish(returned[-1])[1])
    _alike(done)
    return returned, done


def _alike(done):
    """ValueError when the ranks call other collectives, or make other buffers: MPI and NCCL would mix them up."""
    for rank, one in enumerate(done):
        mine, others = (
            [f"{op.kind} on the stream {op.stream!r}{op.place}" for op in d.collectives] for d in (one, done[0])
        )
        if mine != others:
            at = next(i for i in range(max(len(mine), len(others))) if mine[i : i + 1] != others[i : i + 1])
            theirs = [(calls[at] if at < len(calls) else "none") for calls in (others, mine)]
            raise ValueError(
                f"collective {at + 1} of rank 0 is {theirs[0]}, of rank {rank} {theirs[1]}: all ranks call the same "
                "collectives in the same order"
            )
        if [part.name for part in one.buffers] != [part.name for part in done[0].buffers]:
            raise ValueError(f"rank {rank} has other buffers than rank 0: all ranks make the same ones, in one order")


def carried_out(done, in_order, schedule=None):
    """The SimulatedRun of the lanes of all ranks; the results of a lane 0 are the arrays that its rank returns."""
    of_ranks = [lanes.lanes(one, in_order) for one in done]
    total = lanes.width(of_ranks) * len(done)
    if total > MOST_RANKS:
        raise ValueError(
            f"overlap.simulate: {len(done)} ranks with {lanes.width(of_ranks)} lanes each are {total}, and "
            f"{MOST_RANKS} can be simulated; take fewer ranks or collectives"
        )
    return simulate(program(done, in_order), ranks=total, schedule=schedule)


def program(done, in_order):
    """The program of the lanes, one to a simulated rank; for cl.simulate and cl.explore."""
    of_ranks = [lanes.lanes(one, in_order) for one in done]
    wide = lanes.width(of_ranks)
    parts = [part for one in done for part in one.buffers]
    lengths = {name: max(len(p) for p in parts if p.name == name) for name in dict.fromkeys(p.name for p in parts)}
    dtypes = {part.name: part.dtype for part in parts}
    rows = 2 * max(len(one.steps) for one in done)

    def lane(ctx):
        rank, number = divmod(ctx.rank, wide)
        windows = {name: ctx.window(name, length, dtypes[name]) for name, length in lengths.items()}
        events = ctx.signals(lanes.EVENTS, rows)
        meetings = ctx.signals("collectives", 2 * max(len(done[0].collectives), 1))
        memory = _Memory(windows, rank * wide)
        result = None
        for item in of_ranks[rank][number] if number < len(of_ranks[rank]) else ():
            if isinstance(item, lanes.Signal):
                peer = rank * wide + item.lane
                events.notify(peer, item.row) if item.kind == NOTIFY else events.wait(peer, item.row, 1)
            elif item[1].kind == COMPUTE:
                result = memory.compute(item[1])
            else:
                at = done[rank].collectives.index(item[1])
                _collective(memory, meetings, done, at, rank, number, wide)
        return result

    return lane


class _Memory:
    """The buffers of a rank, which belong to its lane 0, as one of its lanes reaches them."""

    def __init__(self, windows, owner):
        self.windows, self.owner = windows, owner

    def load(self, part, owner=None):
        return self.windows[part.name].remote_load(self.owner if owner is None else owner, part_slice(part))

    def store(self, part, value):
        self.windows[part.name].remote_store(self.owner, value, part_slice(part))

    def compute(self, operation):
        """Do it; where there is nothing to call, what was read is the result."""
        reads, writes = [self.load(part) for part in operation.reads], [self.load(part) for part in operation.writes]
        if operation.call is None:
            return reads
        for array in reads:
            array.flags.writeable = False
        operation.call(*reads, *writes)
        for part, array in zip(operation.writes, writes, strict=True):
            self.store(part, array)
        return None


def part_slice(part):
    """Where a part lies in its buffer: a slice."""
    return slice(part.start, part.stop)


def _collective(memory, meetings, done, at, rank, number, wide):
    """Collective `at` of the plan on one rank: `number` is its lane, the same on every rank."""
    operations = [one.collectives[at] for one in done]
    mine, peers = operations[rank], [r for r in range(len(done)) if r != rank]
    source, target = mine.reads[0], mine.writes[0]

    def tell(row):
        for peer in peers:
            meetings.notify(peer * wide + number, row)

    def hear(row):
        for peer in peers:
            meetings.wait(peer * wide + number, row, 1)

    tell(2 * at)
    hear(2 * at)
    block = Partition.uneven(len(source), len(done)).slice(rank) if mine.kind == "reduce_scatter" else slice(0, None)
    loaded = [memory.load(operation.reads[0][block], peer * wide) for peer, operation in enumerate(operations)]
    tell(2 * at + 1)
    memory.store(target, np.concatenate(loaded) if mine.kind == "all_gather" else sum(loaded[1:], loaded[0]))
    hear(2 * at + 1)

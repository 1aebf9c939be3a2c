"""Which operation comes after which: a plan as lanes of operations and signals, and the trace that they make.

A lane is a sequence: what is done in it comes in order. Lane 0 of a rank is its compute stream. The others are

    in order    its other streams, as CUDA has them: an operation waits for what its stream was given before, and for
                the events that it is given as `after`
    by request  one lane for each collective, as MPI has them: it begins when the rank comes to it, and then goes on
                by itself

An event is a signal from the lane where it is recorded to each lane that waits for it. So a trace of lanes is one of
ranks to `trace.order` and `trace.races`, with lanes in the place of ranks.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from collectlab.overlap.plan import COMPUTE, Event, Operation, Wait
from collectlab.trace import Trace
from collectlab.trace import events as trace_events
from collectlab.trace.events import LOAD, NOTIFY, STORE, WAIT

EVENTS = "events"  # the name of the signals; their rows are the numbers of events


@dataclass(frozen=True)
class Signal:
    """Notify, or wait for, another lane of the rank, on a row."""

    kind: str
    lane: int
    row: int


@dataclass(slots=True)
class Access(trace_events.Event):
    """What an operation loads or stores; `step` is its place among the steps of its rank."""

    operation: Operation | None = None
    step: int = -1


def lanes(done, in_order):
    """The lanes of one rank: lists of Signals and of (step, Operation)."""
    found, at = [[]], {}  # stream or operation -> its lane
    for operation in done.collectives:
        key = operation.stream if in_order else operation
        if key not in at:
            at[key] = len(found)
            found.append([])

    def lane(operation):
        if operation is None or operation.kind == COMPUTE:
            return 0
        return at[operation.stream if in_order else operation]

    waiters = _waiters(done, in_order, lane)
    compute = found[0]
    rows = sum(isinstance(step, Event | Operation) for step in done.steps)

    def notify(number, mine):
        found[mine].extend(Signal(NOTIFY, other, number) for other in sorted(waiters[number] - {mine}))

    def wait(event, mine):
        if lane(event.operation) != mine:
            found[mine].append(Signal(WAIT, lane(event.operation), event.number))

    events = _events(done)
    for number, step in enumerate(done.steps):
        if isinstance(step, Wait):
            wait(step.event, 0)
        elif isinstance(step, Event):
            notify(step.number, 0)
        elif step.kind == COMPUTE:
            compute.append((number, step))
        else:
            mine = lane(step)
            for event in step.after:
                wait(event, mine if in_order else 0)
            if not in_order:
                compute.append(Signal(NOTIFY, mine, rows + number))
                found[mine].append(Signal(WAIT, 0, rows + number))
            found[mine].append((number, step))
            notify(events[step], mine)
    return found


def _events(done):
    """Operation -> the number of its event: operations and record()ed events are numbered together."""
    numbered = [step for step in done.steps if not isinstance(step, Wait)]
    return {step: number for number, step in enumerate(numbered) if isinstance(step, Operation)}


def _waiters(done, in_order, lane):
    """The number of an event -> the lanes that wait for it."""
    waiters = defaultdict(set)
    for step in done.steps:
        if isinstance(step, Wait):
            waiters[step.event.number].add(0)
        elif isinstance(step, Operation):
            for event in step.after:
                waiters[event.number].add(lane(step) if in_order else 0)
    return waiters


def width(of_ranks):
    """The most lanes that a rank has; lane k of rank r is number r * width + k among all."""
    return max(map(len, of_ranks))


def trace(of_ranks):
    """The Trace of the lanes of all ranks: accesses to buffers, which belong to lane 0 of a rank, and signals."""
    wide = width(of_ranks)
    per_lane = [[] for _ in range(wide * len(of_ranks))]
    for rank, found in enumerate(of_ranks):
        for number, items in enumerate(found):
            here = rank * wide + number
            for item in items:
                if isinstance(item, Signal):
                    peer = rank * wide + item.lane
                    per_lane[here].append(Access(item.kind, here, peer, EVENTS, row=item.row, at_least=1))
                else:
                    per_lane[here] += _accesses(here, rank * wide, *item)
    return Trace.merged(per_lane)


def _accesses(lane, owner, step, operation):
    for kind, parts in ((LOAD, operation.reads), (STORE, operation.writes)):
        for part in parts:
            yield Access(
                kind, lane, owner, part.name, part.elements, len(part) * np.dtype(part.dtype).itemsize,
                file=operation.file, line=operation.line, operation=operation, step=step,
            )  # fmt: skip

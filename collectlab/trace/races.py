"""Races: two accesses to the same element, at least one a store, that no chain of signals orders.

A run in which every signal cell has one writer and only grows, and in which no two accesses race, gives the
same result under every schedule. Each load then has one last store before it in every schedule, and a wait
can only be passed later, never with other data. So one run without a race is a proof about all of them.
"""

import os
from collections import defaultdict
from dataclasses import dataclass

from collectlab.trace.events import LOAD, NOTIFY, STORE, WAIT, Event, spell
from collectlab.trace.order import clocks


@dataclass(frozen=True)
class Race:
    """Two accesses, `first` and `second` in the observed order, to `elements` of `window` of rank `owner`."""

    window: str
    owner: int
    elements: object
    first: Event
    second: Event
    why: str

    def __str__(self):
        verbs = {STORE: "stores", LOAD: "loads"}
        lines = [f'race on window "{self.window}", {spell(self.elements)} of rank {self.owner}']
        for event in (self.first, self.second):
            lines.append(f"    rank {event.rank} {verbs[event.kind]} them" + _line(event))
        return "\n".join([*lines, self.why])


def find(trace):
    """The races of a trace, one for each window, owner and pair of program lines, in the order they occur."""
    times = clocks(trace)
    accesses = defaultdict(list)
    races, seen = [], set()
    for at, event in enumerate(trace.events):
        if event.kind not in (STORE, LOAD) or not len(event.elements):
            continue
        place = accesses[event.peer, event.name]
        for before in place:
            other = trace.events[before]
            if other.rank == event.rank or other.kind == event.kind == LOAD:
                continue
            if times[at][other.rank] >= times[before][other.rank]:
                continue
            both = _common(other.elements, event.elements)
            key = (
                event.peer,
                event.name,
                other.rank,
                event.rank,
                other.line,
                event.line,
                other.kind,
                event.kind,
            )
            if both is not None and key not in seen:
                seen.add(key)
                why = _missing(trace, before, at)
                races.append(Race(event.name, event.peer, both, other, event, why))
        place.append(at)
    return races


def _common(a, b):
    """The indices in both, or None."""
    if isinstance(a, range) and isinstance(b, range) and a.step == b.step == 1:
        low, high = max(a.start, b.start), min(a.stop, b.stop)
        return range(low, high) if low < high else None
    both = sorted(set(a) & set(b))
    return both or None


def _missing(trace, before, at):
    """Why nothing orders the two: the last wait that could have, and what it is content with."""
    first, second = trace.events[before], trace.events[at]
    waits = [
        e for e in trace.events[:at] if e.kind == WAIT and e.rank == second.rank and e.peer == first.rank
    ]
    if not waits:
        return (
            f"nothing orders the two: rank {second.rank} waits for no signal of rank {first.rank} before it"
        )
    wait = waits[-1]
    cell = (wait.name, wait.row)
    asks = f"the wait on row {wait.row}{_at(wait)} asks for {wait.at_least}"
    if wait.at_least <= 0:
        return f"nothing orders the two: {asks}, which is so from the start"
    notifies = [
        (i, e)
        for i, e in enumerate(trace.events)
        if e.kind == NOTIFY and e.rank == first.rank and e.peer == second.rank and (e.name, e.row) == cell
    ]
    given = notifies[wait.at_least - 1]
    if given[0] < before:
        said = (
            f"nothing orders the two: {asks}, and rank {first.rank}'s notify{_at(given[1])} already gave it"
        )
        later = [i for i, _ in notifies if i > before]
        if later or len(notifies) > wait.at_least:
            said += f"\nmend: give the second barrier a row of its own, or let its wait ask for {wait.at_least + 1}"
        return said
    return f"nothing orders the two: rank {second.rank} gives rank {first.rank} no signal between them"


def _line(event):
    return f"   {os.path.basename(event.file)}, line {event.line}" if event.file else ""


def _at(event):
    return f" at line {event.line}" if event.line else ""

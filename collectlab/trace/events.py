"""What a run does, event by event, and what can be counted from it."""

from dataclasses import dataclass, field

import numpy as np

STORE, LOAD, NOTIFY, WAIT = "store", "load", "notify", "wait"


@dataclass(slots=True)
class Event:
    """One step of one rank.

    kind     "store", "load", "notify" or "wait"
    rank     who does it
    peer     whose window is stored to or loaded from; who is notified; whose notification is waited for
    name     of the window, or of the signals
    elements the flat indices into the window: a range, or a sorted integer array
    nbytes   that it moves
    row      of the signals; `at_least` is what a wait asks for, and the count that a notify reaches
    file, line   the program's own
    """

    kind: str
    rank: int
    peer: int
    name: str
    elements: object = None
    nbytes: int = 0
    row: int = -1
    at_least: int = 0
    file: str = ""
    line: int = 0

    def __str__(self):
        if self.kind in (STORE, LOAD):
            verb = {STORE: "stores", LOAD: "loads"}[self.kind]
            whose = "its own" if self.peer == self.rank else f"rank {self.peer}'s"
            return f'rank {self.rank} {verb} {spell(self.elements)} of {whose} "{self.name}"'
        if self.kind == NOTIFY:
            return f'rank {self.rank} notifies rank {self.peer} on row {self.row} of "{self.name}"'
        return f'rank {self.rank} waits for rank {self.peer}, row {self.row} of "{self.name}", at least {self.at_least}'


def spell(elements):
    """Flat indices in words: "elements 4:8", "element 3", "elements 0, 2, 4"."""
    if isinstance(elements, range) and elements.step == 1:
        return (
            f"element {elements.start}"
            if len(elements) == 1
            else f"elements {elements.start}:{elements.stop}"
        )
    listed = list(elements)
    return "elements " + ", ".join(map(str, listed[:6])) + (", ..." if len(listed) > 6 else "")


@dataclass
class Trace:
    """The events of a run in an order in which they could have happened: each wait after what satisfied it."""

    nranks: int
    events: list = field(default_factory=list)

    @classmethod
    def merged(cls, per_rank):
        """The trace of the events that each rank noted for itself, in an order that respects every signal."""
        trace, given, at = cls(len(per_rank)), {}, [0] * len(per_rank)
        moved = True
        while moved:
            moved = False
            for rank, events in enumerate(per_rank):
                while at[rank] < len(events):
                    event = events[at[rank]]
                    if event.kind == WAIT:
                        if given.get((rank, event.name, event.row, event.peer), 0) < event.at_least:
                            break
                    elif event.kind == NOTIFY:
                        given[event.peer, event.name, event.row, rank] = event.at_least
                    trace.events.append(event)
                    at[rank] += 1
                    moved = True
        return trace

    def traffic(self):
        """int64 (nranks, nranks): bytes that row rank read from column rank's windows.

        The diagonal holds what a rank read from its own. Stores to a peer's window are not reads; `pushed`
        counts them.
        """
        return self._bytes(LOAD)

    def pushed(self):
        """int64 (nranks, nranks): bytes that row rank stored into column rank's windows."""
        return self._bytes(STORE)

    def _bytes(self, kind):
        matrix = np.zeros((self.nranks, self.nranks), np.int64)
        for event in self.events:
            if event.kind == kind:
                matrix[event.rank, event.peer] += event.nbytes
        return matrix

    def races(self):
        """Pairs of accesses that nothing orders, of which at least one is a store. Empty: there is no race."""
        from collectlab.trace.races import find

        return find(self)

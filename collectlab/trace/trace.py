"""A run's events together, and what can be counted from them."""

from dataclasses import dataclass, field

import numpy as np

from collectlab.cost import Card
from collectlab.trace import races
from collectlab.trace.events import LOAD, NOTIFY, STORE, WAIT


@dataclass
class Trace:
    """The events of a run in an order in which they could have happened: each wait after what satisfied it.

    noted    False where tracing was off: then there are no events
    waiting  rank -> (the wait that it is in, as an Event; the count that it finds), of ranks that could not go on
    clocks   rank -> its Clock, of real ranks that used windows or signals
    """

    nranks: int
    events: list = field(default_factory=list)
    waiting: dict = field(default_factory=dict)
    noted: bool = True
    clocks: dict = field(default_factory=dict)

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

    def measured(self, rank):
        """What `rank` did, counted from its events: a Card to hold against a kernel's."""
        counts = [e.counts for e in self.events if e.rank == rank]
        return Card(*map(sum, zip(*counts, strict=True))) if counts else Card(0, 0, 0, 0, 0, 0)

    def races(self):
        """Pairs of accesses that nothing orders, of which at least one is a store. Empty: there is no race."""
        return races.find(self)

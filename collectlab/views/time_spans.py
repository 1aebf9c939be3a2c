"""What every rank did when: spans of moving, waiting and set-up from the times of events, and who was waited for."""

import math
from dataclasses import dataclass

import numpy as np

from collectlab.trace.events import BARRIER, NOTIFY, PACKET, WAIT

KINDS = MOVE, WAITING, SET_UP = range(3)


@dataclass(frozen=True)
class Wait:
    """A wait of one rank: from `began` to `ended` (None: it never ended), in seconds since the run began.

    peer    the one that came last, None where that is not known; `came` is when it did
    event   the wait as an Event, the last of its group; None where it waited for all ranks to ask for memory, which
            is over when the last one comes; the set-up of the memory follows, up to `ended`
    """

    rank: int
    began: float
    ended: float | None
    peer: int | None
    came: float | None
    event: object = None

    @property
    def over(self):
        """When it was over; None where it never was."""
        return self.came if self.event is None else self.ended

    @property
    def seconds(self):
        """How long it took; infinite where it never ended."""
        return math.inf if self.over is None else self.over - self.began


class TimeSpans:
    """The spans of a trace's ranks, in seconds since the first rank of a host began.

    began, ended  of each rank's program, as far as it is known: arrays (nranks), NaN for a rank that left no word
    waits         every Wait, the longest first
    untimed       how many events carry no time and are left out
    """

    def __init__(self, trace, hosts=()):
        self.nranks = trace.nranks
        mine, self.untimed = [[] for _ in range(self.nranks)], 0
        for event in trace.events:
            if event.kind == BARRIER or (event.kind == NOTIFY and event.cause == PACKET):
                continue  # made of others, or part of the store before it
            if not 0 < event.began <= event.ended < math.inf:
                self.untimed += 1
            else:
                mine[event.rank].append(event)
        zero = self._zeros(trace, mine, hosts)
        asked = [self._asked(trace, rank, zero) for rank in range(self.nranks)]
        spans = [[*_set_up(asked[rank]), *self._events(mine[rank], zero)] for rank in range(self.nranks)]
        self.began, self.ended = np.full(self.nranks, np.nan), np.full(self.nranks, np.nan)
        for rank, found in enumerate(spans):
            clock = trace.clocks.get(rank)
            found.sort(key=lambda span: span[1])
            ends = [span[2] for span in found]
            if clock is not None:
                self.began[rank] = clock.began - zero[rank]
                ends.append(clock.ended - zero[rank] if clock.ended else self.began[rank])
            elif found:
                self.began[rank] = found[0][1]
            self.ended[rank] = max(ends, default=np.nan)
        self._open = {}
        for rank, (event, _) in trace.waiting.items():
            if event.began > 0:
                self._open[rank] = event.began - zero[rank]
                self.ended[rank] = np.fmax(self.ended[rank], self._open[rank])
        self._cover = [[_cover(found, kind) for kind in KINDS] for found in spans]
        given = {(e.peer, e.name, e.row, e.rank, e.at_least): e.ended - zero[e.rank] for m in mine for e in m
                 if e.kind == NOTIFY}  # fmt: skip
        asks = [wait for waits in asked for wait in waits if wait.seconds > 0]
        waits = [*asks, *self._waits(trace, mine, zero, given)]
        self.waits = sorted(waits, key=lambda wait: (-wait.seconds, wait.began, wait.rank))

    @property
    def last(self):
        """When the last thing happened that is known: seconds, 0.0 where nothing is."""
        return float(np.nanmax(self.ended)) if np.isfinite(self.ended).any() else 0.0

    def _zeros(self, trace, mine, hosts):
        """When each rank's time begins: with the first rank of its host, as the clocks of hosts are not the same."""
        first = {}
        of = list(hosts) if len(hosts) == self.nranks else [""] * self.nranks
        for rank, host in enumerate(of):
            times = [event.began for event in mine[rank][:1]]
            times += [trace.clocks[rank].began] if rank in trace.clocks else []
            first[host] = min([first.get(host, math.inf), *times])
        return [first[host] for host in of]

    def _asked(self, trace, rank, zero):
        """The Waits until the last rank asked for the same memory; what follows in the stretch is set-up."""
        waits, clocks = [], trace.clocks
        for number, (began, ended) in enumerate(clocks[rank].asked if rank in clocks else ()):
            came = {r: clock.asked[number][0] - zero[r] for r, clock in clocks.items() if len(clock.asked) > number}
            last, began, ended = max(came, key=came.get), began - zero[rank], ended - zero[rank]
            waits.append(Wait(rank, began, ended, last, min(max(came[last], began), ended)))
        return waits

    def _events(self, events, zero):
        return [(WAITING if e.kind == WAIT else MOVE, e.began - zero[e.rank], e.ended - zero[e.rank]) for e in events]

    def _waits(self, trace, mine, zero, given):
        for rank in range(self.nranks):
            for group in _groups(mine[rank]):
                came = {e.peer: given.get((rank, e.name, e.row, e.peer, e.at_least), -math.inf) for e in group}
                peer = max(came, key=came.get)
                known = came[peer] > -math.inf
                yield Wait(
                    rank, group[0].began - zero[rank], group[-1].ended - zero[rank], peer if known else None,
                    came[peer] if known else None, group[-1],
                )  # fmt: skip
            if rank in self._open:
                event = trace.waiting[rank][0]
                yield Wait(rank, self._open[rank], None, event.peer, None, event)

    def shares(self, ranks, edges):
        """float (len(edges) - 1, 4): between two edges, the shares of the ranks' time that went into moving, waiting,
        set-up and anything else; they add up to less than 1 where a rank had not begun or was over."""
        found = np.zeros((len(edges) - 1, 4))
        for rank in ranks:
            if np.isnan(self.began[rank]):
                continue
            stop = self.ended[rank] if rank not in self._open else edges[-1]
            alive = np.diff(np.clip(edges, self.began[rank], max(stop, self.began[rank])))
            parts = [np.diff(np.interp(edges, *cover)) for cover in self._cover[rank]]
            if rank in self._open:
                parts[WAITING] = parts[WAITING] + np.diff(np.maximum(edges, self._open[rank]))
            for kind in KINDS:
                found[:, kind] += parts[kind]
            found[:, -1] += np.maximum(alive - sum(parts), 0)
        return found / (np.diff(edges)[:, None] * max(len(ranks), 1))

    def seconds(self, rank, begin=0.0, end=None):
        """(moving, waiting, set-up, anything else) of a rank between two moments: seconds."""
        end = self.last if end is None else end
        if not end > begin:
            return 0.0, 0.0, 0.0, 0.0
        return tuple((self.shares([rank], np.array([begin, end]))[0] * (end - begin)).tolist())

    def waited_for(self):
        """float (nranks): how long others waited for each rank, where it came last; waits without an end not."""
        found = np.zeros(self.nranks)
        for wait in self.waits:
            if wait.ended is not None and wait.peer not in (None, wait.rank):
                found[wait.peer] += wait.seconds
        return found


def _set_up(waits):
    """What a rank did when it asked for memory: spans."""
    for wait in waits:
        yield WAITING, wait.began, wait.came
        yield SET_UP, wait.came, wait.ended


def _groups(events):
    """The waits that follow each other on one row: lists of events."""
    group, place = [], None
    for event in events:
        at = event.name, event.row
        if event.kind != WAIT or at != place:
            if group:
                yield group
            group = []
        if event.kind == WAIT:
            group.append(event)
            place = at
    if group:
        yield group


def _cover(spans, kind):
    """(moments, seconds spent in that kind until then), for np.interp."""
    times, sums, before = [0.0], [0.0], 0.0
    for found, began, ended in spans:
        began = max(began, before)  # what is noted together began together
        before = max(before, ended)
        if found == kind and ended > began:
            times += [began, ended]
            sums += [sums[-1], sums[-1] + ended - began]
    return times, sums

"""The steps of a run, and what lies where, who waits and what has been moved after each of them.

What a person wants to see in one step is what ranks do side by side. So a rank's events are joined to actions first:
one load or store; the notifications that follow each other on one row; the waits that follow each other on one row
and the barrier that they are. Where a run has no race, every order that its signals allow is as good as the recorded
one (trace/races.py), and a step is the next action of each rank that need not wait for another action of the step:
the ranks go in step. Where it has a race, the order decides, so the recorded one is kept, and a step is a stretch
of it in which no rank begins a second action, nobody waits for what the stretch brings, and no two accesses collide.
"""

import os
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import numpy as np

from collectlab.cost import Card
from collectlab.explore.contributions import RUBBISH, NotKnown, contributions
from collectlab.fabric.per_rank import PerRank
from collectlab.trace import Trace, races
from collectlab.trace.events import BARRIER, LOAD, NOTIFY, PACKET, STORE, WAIT

MOST_ROWS = 16  # of one window; where it is cut into more, neighbours share a row
MOST_PAIRS = 3_000_000  # of accesses, among which races are looked for
LOADED, RETURNED = "loaded", "returned"
_EMPTY = -2  # in the place of a share, as RUBBISH


@dataclass(frozen=True)
class Row:
    """Elements start:stop of a window, or of the arrays that are returned; `label` names the chunks."""

    start: int
    stop: int
    label: str


@dataclass(frozen=True)
class Holding:
    """What a rank holds in one row.

    kind    "empty", "own" (one rank's), "partial" (of several ranks, not all), "whole" (of every rank, once), "again"
            (of some rank more than once), "none" (of no rank), "mixed" (its elements differ), "rubbish" (memory that
            nobody has written), or "written", where contributions are not known
    shares  how often each rank has contributed, at most; for "written", which ranks have stored there
    """

    kind: str
    shares: tuple = ()

    @cached_property
    def ranks(self):
        """Those with a share: a list."""
        return [rank for rank, share in enumerate(self.shares) if share > 0]


EMPTY = Holding("empty")


class States:
    """The steps of a run; state s is what there is after s of them.

    events  of the trace; `steps` is a list of sequences, the places of each step's events
    in_step whether the ranks go in step; else the order is that of the trace
    races   the races, or None where there are too many accesses to look; `first_race` is the one that is complete
            first, at `race_step`
    blocks  a list of (name, rows): what ranks have loaded since they last stored (LOADED), the windows, and what is
            returned (RETURNED)
    rows    of signals: a list of (name, row)
    unknown why contributions are not known; "" where they are
    """

    def __init__(self, run):
        trace = run if isinstance(run, Trace) else run.trace
        self.nranks, self.events, self.stuck = trace.nranks, trace.events, trace.waiting
        self.races = trace.races() if _collisions(trace) <= MOST_PAIRS else None
        self.in_step = self.races == []
        self.steps = _in_step(trace) if self.in_step else _in_order(trace)
        self.step_of = [0] * len(self.events)
        for step, places in enumerate(self.steps, 1):
            for place in places:
                self.step_of[place] = step
        complete = {self._step_of_race(race): race for race in (self.races or ())[::-1]}
        self.race_step = min(complete, default=None)
        self.first_race = complete.get(self.race_step)
        self.theirs = [[] for _ in range(self.nranks)]  # of each rank: the places of its events
        for place, event in enumerate(self.events):
            self.theirs[event.rank].append(place)
        self.program = partial(_call, run)  # and its arguments; NotKnown where they are not to be had
        try:
            found, self.unknown = contributions(trace, *self.program()) if self.events else None, ""
        except NotKnown as error:
            found, self.unknown = None, str(error)
        self.counted = found is None or found.counted
        self._past = defaultdict(_unchanged)  # what changes -> the steps at which it does, and to what
        self._cut()
        self._signal()
        self._store(found)
        self._moves = self._tallies = None
        self._waiting = None, {}

    def _step_of_race(self, race):
        return max(self.step_of[i] for i, e in enumerate(self.events) if e is race.first or e is race.second)

    def _note(self, key, step, value):
        steps, values = self._past[key]
        if not steps or steps[-1] != step:
            steps.append(step)
            values.append(value)
        else:
            values[-1] = value

    def _when(self, key, step, otherwise):
        if key not in self._past:
            return otherwise
        steps, values = self._past[key]
        at = bisect_right(steps, step)
        return values[at - 1] if at else otherwise

    # Windows

    def _cut(self):
        """Cut each window where an access begins or ends."""
        ends, self.packets = {}, {e.name for e in self.events if e.cause == PACKET}
        accesses = (e for e in self.events if e.kind in (STORE, LOAD))
        for name, elements in {(e.name, id(e.elements)): (e.name, e.elements) for e in accesses}.values():
            if len(elements):
                ends.setdefault(name, set()).update(_ends(elements))
        self.blocks = [(name, _rows([*pairwise(sorted(cuts))])) for name, cuts in ends.items()]
        self._starts = {name: [row.start for row in rows] for name, rows in self.blocks}
        self._of = dict(self.blocks)

    def touched(self, name, elements):
        """The rows that an access touches."""
        if not len(elements):
            return []
        starts, (begin, end) = self._starts[name], _ends(elements)
        return self._of[name][bisect_right(starts, begin) - 1 : bisect_left(starts, end)]

    def holding(self, name, row, rank, step):
        """What the rank holds there in that state: a Holding."""
        return self._when((name, rank, row.start, row.stop), step, EMPTY)

    def loaded_last(self, rank, step):
        """The row of LOADED that the rank has loaded last; None if there is none."""
        rows = [row for name, rows in self.blocks if name == LOADED for row in rows]
        steps = {row: self._past.get((LOADED, rank, row.start, row.stop), ((),))[0] for row in rows}
        at = {row: bisect_right(steps[row], step) for row in rows if self.holding(LOADED, row, rank, step) != EMPTY}
        return max(at, key=lambda row: (steps[row][at[row] - 1], row.start), default=None)

    def _store(self, found):
        if found is None:
            for place in (place for places in self.steps for place in places):
                e = self.events[place]
                for row in self.touched(e.name, e.elements) if e.kind == STORE else ():
                    key = e.name, e.peer, row.start, row.stop
                    by = self._when(key, self.step_of[place], Holding("written", (0,) * self.nranks)).shares
                    if not by[e.rank]:
                        by = tuple(max(n, r == e.rank) for r, n in enumerate(by))
                        self._note(key, self.step_of[place], Holding("written", by))
            return
        changes, looks = self._changes(found.looks), defaultdict(list)
        for look in found.looks:
            looks[look.event].append(look)
        held, loaded = _Held(self), [{} for _ in range(self.nranks)]
        for place in (place for places in self.steps for place in places):
            e, step = self.events[place], self.step_of[place]
            for name, owner, *change in changes[place]:
                self._see(name, owner, step, *change, held[name, owner])
            for look in looks[place] if e.kind == LOAD else ():
                self._load(e, step, look, loaded[e.rank])
            if e.kind == STORE:
                for start, stop in loaded[e.rank]:
                    self._note((LOADED, e.rank, start, stop), step, EMPTY)
                loaded[e.rank].clear()
        used = {key[2:] for key in self._past if key[0] == LOADED}
        rows = {(row.start, row.stop): row for _, rows in self.blocks for row in rows}
        self.blocks[:0] = [(LOADED, [rows[at] for at in sorted(used)])] * bool(used)
        self._return(found.returned)

    def _changes(self, looks):
        """place of an event -> what is seen to have changed there: (window, owner, elements, shares).

        Found in the order of the trace: what was written without a trace is seen when it is loaded, or when its rank
        notifies somebody; what another rank has stored there by then may come at a later step.
        """
        changes, held = defaultdict(list), _Held(self)
        for look in looks:
            if look.window not in self._of:
                continue
            array = held[look.window, look.owner]
            where, stored = np.asarray(look.elements, int), self.events[look.event].kind == STORE
            new = (where < len(array)) & (stored | (look.shares.max(axis=1) > 0))
            where, shares = where[new], look.shares[new]
            differ = (array[where] != shares).any(axis=1)
            where, shares = where[differ], shares[differ]
            array[where] = shares
            if len(where):
                changes[look.event].append((look.window, look.owner, where, shares))
        return changes

    def _see(self, window, owner, step, where, shares, held):
        """Bring what is held in line with what lies there."""
        held[where] = shares
        for row in self.touched(window, where):
            holding = self._summary(held[row.start : row.stop], window in self.packets)
            self._note((window, owner, row.start, row.stop), step, holding)

    def _load(self, e, step, look, loaded):
        """Add what a rank loads to what it has loaded since its last store."""
        for row in self.touched(e.name, e.elements):
            sums = loaded.setdefault((row.start, row.stop), np.zeros((row.stop - row.start, self.nranks), np.int16))
            where = np.asarray(e.elements) - row.start
            inside = (where >= 0) & (where < len(sums))
            new = look.shares[inside]
            old = sums[where[inside]]
            both = old + new if self.counted else np.maximum(old, new)
            sums[where[inside]] = np.where((new < 0) | (old < 0), RUBBISH, both)
            holding = self._summary(sums, e.name in self.packets)
            self._note((LOADED, e.rank, row.start, row.stop), step, holding)

    def _summary(self, shares, loose=False):
        """The Holding of some elements. In packets, whose words hold parts of a number, the shares are joined."""
        if loose:
            shares = np.minimum(shares.max(axis=0, keepdims=True), 1)
        low, high = shares.min(axis=0), shares.max(axis=0)
        counts = tuple(map(int, np.maximum(high, 0)))
        if (low != high).any():
            return Holding("mixed", counts)
        if high[0] < 0:
            return EMPTY if high[0] == _EMPTY else Holding("rubbish", counts)
        if max(counts) > 1:
            return Holding("again", counts)
        several = {0: "none", 1: "own"}.get(sum(counts), "partial")
        return Holding("whole" if sum(counts) == self.nranks else several, counts)

    def _return(self, returned):
        """A row for each stretch of the returned arrays in which every rank's shares stay the same."""
        sizes = [0 if shares is None else len(shares) for shares in returned]
        if not any(sizes):
            return
        cuts = {0, *sizes}
        for shares in filter(lambda shares: shares is not None, returned):
            cuts.update((1 + np.flatnonzero((shares[1:] != shares[:-1]).any(axis=1))).tolist())
        rows = _rows([*pairwise(sorted(cuts))])
        for rank, shares in enumerate(returned):
            last = max(map(self.step_of.__getitem__, self.theirs[rank]), default=0)
            for row in rows if shares is not None else ():
                if row.start < len(shares):
                    holding = self._summary(shares[row.start : row.stop])
                    self._note((RETURNED, rank, row.start, row.stop), last, holding)
        self.blocks.append((RETURNED, rows))

    # Signals

    def _signal(self):
        self.rows, self._waits = {}, defaultdict(list)
        self._writers = defaultdict(set)  # of a signal row of one rank: those who notify, or are waited for
        self._over = {WAIT: {}, BARRIER: {}}  # the steps in which there are some
        for step, places in enumerate(self.steps, 1):
            for e in map(self.events.__getitem__, places):
                if e.kind == NOTIFY:
                    steps, counts = self._past[e.peer, e.name, e.row, e.rank]
                    if not steps or steps[-1] != step:
                        steps.append(step)
                        counts.append(counts[-1] if counts else 0)
                    counts[-1] += 1
                elif e.kind == WAIT:
                    self._waits[e.rank, e.name, e.row, e.peer].append((step, e.at_least))
                if e.kind in self._over:
                    self._over[e.kind][step] = True
                if e.kind in (NOTIFY, WAIT):
                    self.rows[e.name, e.row] = True
        for e, _ in self.stuck.values():
            others = {*range(self.nranks)} - {e.rank} if e.cause == BARRIER else ()
            for peer in {e.peer, *others}:
                waits = self._waits[e.rank, e.name, e.row, peer]
                if not waits or waits[-1][1] < e.at_least:
                    waits.append((len(self.steps) + 1, e.at_least))
            self.rows[e.name, e.row] = True
        names = list(dict.fromkeys(name for name, _ in self.rows))
        self.rows = sorted(self.rows, key=lambda row: (names.index(row[0]), row[1]))
        for *cell, writer in [*self._past, *self._waits]:
            self._writers[tuple(cell)].add(writer)

    def writers(self, owner, name, row):
        """The ranks that ever notify `owner` on that row, or are waited for there."""
        return self._writers.get((owner, name, row), ())

    def count(self, owner, name, row, writer, step):
        """How often `writer` has notified `owner` on that row."""
        return self._when((owner, name, row, writer), step, 0)

    def needed(self, owner, name, row, writer, step):
        """What the owner's last wait there asked for, and what its next one will ask for; 0 where there is none."""
        waits = self._waits.get((owner, name, row, writer), ())
        at = bisect_right(waits, step, key=lambda wait: wait[0])
        return waits[at - 1][1] if at else 0, waits[at][1] if at < len(waits) else 0

    def waiting(self, step):
        """The ranks that cannot go on: rank -> the waits, as Events, whose notifications are missing."""
        if self._waiting[0] == step:
            return self._waiting[1]
        found = {}
        for rank, places in enumerate(self.theirs):
            done = bisect_right(places, step, key=self.step_of.__getitem__)
            waits = []
            for at in range(done, len(places)):
                e = self.events[places[at]]
                if e.kind != WAIT or (waits and (e.name, e.row) != (waits[0].name, waits[0].row)):
                    break
                waits.append(e)
            if done == len(places) and rank in self.stuck:
                waits = [self.stuck[rank][0]]
            missing = [e for e in waits if self.count(rank, e.name, e.row, e.peer, step) < e.at_least]
            if missing:
                found[rank] = missing
        self._waiting = step, found
        return found

    def over(self, rank, step):
        """Whether the rank has made its last event."""
        places = self.theirs[rank]
        return not places or self.step_of[places[-1]] <= step

    # Bytes

    def moved(self, step, of_this_step=False):
        """int64 (nranks, nranks): bytes that came from column rank's memory to row rank's; own loads, not stores."""
        if self._moves is None:
            moves = [
                (step, *((e.rank, e.peer) if e.kind == LOAD else (e.peer, e.rank)), e.nbytes)
                for step, e in zip(self.step_of, self.events, strict=True)
                if e.kind == LOAD or (e.kind == STORE and e.peer != e.rank)
            ]
            self._moves = _by_step(np.array(moves, np.int64).reshape(-1, 4))
        matrix = np.zeros((self.nranks, self.nranks), np.int64)
        first = np.searchsorted(self._moves[:, 0], step) if of_this_step else 0
        _, to, source, nbytes = self._moves[first : np.searchsorted(self._moves[:, 0], step, "right")].T
        np.add.at(matrix, (to, source), nbytes)
        return matrix

    def measured(self, step):
        """What each rank has done: a list of `cost.Card`."""
        if self._tallies is None:
            tallies = [(step, e.rank, *e.counts) for step, e in zip(self.step_of, self.events, strict=True)]
            self._tallies = _by_step(np.array(tallies, np.int64).reshape(-1, 8))
        part = self._tallies[: np.searchsorted(self._tallies[:, 0], step, "right")]
        sums = np.zeros((self.nranks, 6), np.int64)
        np.add.at(sums, part[:, 1], part[:, 2:])
        return [Card(*map(int, row)) for row in sums]

    def barriers(self):
        """The steps in which a rank leaves a barrier; where the run has none, those in which a wait is over."""
        return sorted(self._over[BARRIER] or self._over[WAIT])

    @property
    def has_barriers(self):
        """Whether a rank ever leaves a barrier."""
        return bool(self._over[BARRIER])


def _unchanged():
    """The steps at which something changes, and to what: none yet."""
    return [], []


class _Held(dict):
    """(window, owner) -> the shares of what lies there, int16 (elements, nranks): nothing at first."""

    def __init__(self, states):
        super().__init__()
        self.states = states

    def __missing__(self, key):
        self[key] = np.full((self.states._of[key[0]][-1].stop, self.states.nranks), _EMPTY, np.int16)
        return self[key]


def _ends(elements):
    """The first element of an access, and the one after its last; they are sorted."""
    return int(elements[0]), int(elements[-1]) + 1


def _by_step(rows):
    return rows[np.argsort(rows[:, 0], kind="stable")]


def _rows(segments):
    """The Rows of segments (start, stop), neighbours together where there are too many."""
    group = -(-len(segments) // MOST_ROWS)
    rows = []
    for at in range(0, len(segments), group or 1):
        few = segments[at : at + group]
        label = f"chunk {at}" if len(few) == 1 else f"chunks {at}–{at + len(few) - 1}"
        rows.append(Row(few[0][0], few[-1][1], "whole" if len(segments) == 1 else label))
    return rows


def _collisions(trace):
    """How many pairs of accesses the search for races looks at, at most."""
    places = Counter((e.peer, e.name) for e in trace.events if e.kind in (STORE, LOAD))
    return sum(n * n // 2 for n in places.values())


def _begins(trace):
    """Of each event whether it begins an action of its rank: a list."""
    last, begins = [None] * trace.nranks, []
    for e in trace.events:
        if e.kind == NOTIFY and e.cause == PACKET:  # it goes with its data
            begins.append(False)
            continue
        key = None if e.kind in (STORE, LOAD) else (WAIT if e.kind == BARRIER else e.kind, e.name, e.row)
        begins.append(key is None or key != last[e.rank])
        last[e.rank] = key
    return begins


def _actions(trace):
    """Of each rank: its actions, as lists of places."""
    actions = [[] for _ in range(trace.nranks)]
    for place, (e, begins) in enumerate(zip(trace.events, _begins(trace), strict=True)):
        if begins:
            actions[e.rank].append([])
        actions[e.rank][-1].append(place)
    return actions


def _may(e, counts):
    return e.kind != WAIT or counts[e.rank, e.name, e.row, e.peer] >= e.at_least


def _give(places, trace, counts):
    for place in places:
        e = trace.events[place]
        if e.kind == NOTIFY:
            counts[e.peer, e.name, e.row, e.rank] += 1


def _in_step(trace):
    """The steps in which every rank that can go on makes its next action."""
    left = [actions[::-1] for actions in _actions(trace)]
    counts, steps = Counter(), []
    while any(left):
        free = [ahead for ahead in left if ahead and all(_may(trace.events[p], counts) for p in ahead[-1])]
        if not free:  # no run leaves such a trace, but a person may make one
            free = [min(filter(None, left), key=lambda ahead: ahead[-1][0])]
        steps.append([place for ahead in free for place in ahead.pop()])
        _give(steps[-1], trace, counts)
    return steps


def _in_order(trace):
    """The steps in the order of the trace."""
    counts, steps, first, begun, touched, given = Counter(), [], 0, set(), {}, []
    for place, (e, begins) in enumerate(zip(trace.events, _begins(trace), strict=True)):
        access = e.kind in (STORE, LOAD)
        others = touched.get((e.peer, e.name)) if access else None
        hit = others and any(
            other.rank != e.rank and STORE in (other.kind, e.kind) and races.common(other.elements, e.elements)
            for other in others
        )
        if place > first and (hit or (begins and e.rank in begun) or not _may(e, counts)):
            for cell in given:
                counts[cell] += 1
            steps.append(range(first, place))
            first = place
            begun.clear(), touched.clear(), given.clear()  # new ones would cost more than all the rest
        begun.add(e.rank)
        if access:
            touched.setdefault((e.peer, e.name), []).append(e)
        elif e.kind == NOTIFY:
            given.append((e.peer, e.name, e.row, e.rank))
    return [*steps, range(first, len(trace.events))] if trace.events else []


def _call(run):
    """The program of a run and its arguments; NotKnown where they are not to be had."""
    if hasattr(run, "call"):
        return run.call
    path = getattr(run, "path", None)
    if path is None:
        raise NotKnown("a trace alone does not hold the program")
    from collectlab.launcher import objects

    try:
        program, args, places = objects.read(os.path.join(path, "program"))
        mine = [objects.read(os.path.join(path, f"mine.{rank}")) for rank in range(run.nranks) if places]
    except Exception as error:  # what unpickling raises depends on what was pickled
        raise NotKnown(f"the run's program cannot be read again ({type(error).__name__}: {error})") from None
    for at, place in enumerate(places):
        args[place] = PerRank([values[at] for values in mine])
    return program, args

"""Races: two accesses to the same element, at least one a store, that no chain of signals orders.

One run without a race is a proof about every schedule. The premises:

1. A rank is deterministic: what it does next follows from its arguments and from what it has loaded, and from
   nothing else (no clock, no random numbers, no memory beside the windows).
2. Each signal cell has one writer, and only grows; a wait asks for "at least". Signals are built so.
3. Ranks meet only in windows and signals, and all of that is traced (what goes through `window.local` is not), at
   the moment at which it happens. What `remote_view` shows is read later, but before the rank's next signal: a
   store that is ordered after the load comes after that signal. The same goes for what `storing` fills.

The claim: if some complete run R has no race, then in every schedule each rank makes the same steps as in R and
loads the same values, and nobody gets stuck. The proof goes by induction over the steps of another run S. Suppose
all steps of S so far are steps of R, with the same loaded values, and each step of R that is ordered before one of
them (order.py) lies before it in S as well. Now rank r makes its next step: by premise 1 r's next one in R, say e.

- e is a wait for at least k of writer w. If it can be passed, w has notified k times in S; these are, by the
  hypothesis, the first k of w's notifications of R (premise 2: nobody else counts there), so all that is ordered
  before e lies before e in S. How much more has arrived is not seen by r.
- e is a load. Every store of R to those elements is ordered before e or after e, since there is no race. Those
  ordered before e have been made in S. One ordered after e has not: e would lie before it in S. Two stores to one
  element are ordered among themselves as well. So the last store before e is the same in S, and e loads the same.
- e is a store or a notification: it does what it does in R, by premise 1.

Nobody gets stuck: of the steps of R that S has not made, the earliest in R can be made, because if it is a wait, its
notifications lie before it in R, so they have been made. So S ends as R ended. Nothing is claimed of a run that has
a race, or that did not end.

Brute force agrees at small sizes: `explore.every_schedule`, and the tests.
"""

import os
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass

from collectlab.trace.events import LOAD, NOTIFY, STORE, WAIT, Event, spell
from collectlab.trace.order import clocks

_VERB = {STORE: "stores", LOAD: "loads"}


@dataclass(frozen=True)
class Race:
    """Two accesses to `elements` of `window` of rank `owner`, which could come in either order.

    first, second  in the order that the program means: a store before the load that has nothing else to load,
                   else the one that its rank reaches after fewer steps of its own
    steps          how many steps (accesses, notifications, waits) the rank of each one makes before it
    why            which edge between the two is missing
    mend           what would order them
    """

    window: str
    owner: int
    elements: object
    first: Event
    second: Event
    steps: tuple
    why: str
    mend: str

    @property
    def lines(self):
        """What races, and why, as lines of text."""
        said = [f'race on window "{self.window}", {spell(self.elements)} of rank {self.owner}']
        for event in (self.first, self.second):
            them = "it" if len(self.elements) == 1 else "them"
            said.append(f"    rank {event.rank} {_VERB[event.kind]} {them}{_place(event)}")
        return [*said, f"nothing orders the two: {self.why}"]

    @property
    def key(self):
        """What this race has in common with its repetitions."""
        return key(self.first, self.second)

    def __str__(self):
        return "\n".join([*self.lines, f"mend: {self.mend}"])


def key(a, b):
    """The window, and rank, kind and line of each: two racing pairs with the same are one race."""
    one, other = (a.rank, a.kind, a.file, a.line), (b.rank, b.kind, b.file, b.line)
    return (a.name, a.peer, one, other) if one <= other else (a.name, a.peer, other, one)


def find(trace):
    """The races of a trace, one for each window, owner and pair of program lines, in the order they occur."""
    races, seen, mine = [], set(), None
    for before, at, both in pairs(trace):
        a, b = trace.events[before], trace.events[at]
        if (name := key(a, b)) not in seen:
            seen.add(name)
            mine = mine or _Steps(trace)
            first, second = mine.meant(before, at, both)
            steps = (mine.number[first], mine.number[second])
            why, mend = mine.missing(first, second)
            races.append(Race(b.name, b.peer, both, trace.events[first], trace.events[second], steps, why, mend))
    return races


def pairs(trace):
    """Every two accesses that race: (place in trace.events of the one, of the later one, the elements of both)."""
    accesses, made, times = defaultdict(dict), [0] * trace.nranks, None
    for at, event in enumerate(trace.events):
        mine, does = event.rank, event.kind
        made[mine] += 1
        if (does != STORE and does != LOAD) or not len(event.elements):
            continue
        place, unordered = accesses[event.peer, event.name], []
        for (rank, kind), (places, numbers) in place.items():
            if rank != mine and (does == STORE or kind == STORE):
                times = times or clocks(trace)
                if numbers[-1] > times[at][rank]:  # a rank's become certain in turn
                    unordered += places[bisect_right(numbers, times[at][rank]) :]
        for before in sorted(unordered):
            if both := common(trace.events[before].elements, event.elements):
                yield before, at, both
        places, numbers = place.setdefault((mine, does), ([], []))
        places.append(at)
        numbers.append(made[mine])


def common(a, b):
    """The indices in both: a range, or a list."""
    if isinstance(a, range) and isinstance(b, range) and a.step == b.step == 1:
        low, high = max(a.start, b.start), min(a.stop, b.stop)
        return range(low, high) if low < high else []
    return sorted(set(a) & set(b))


class _Steps:
    """The events of a trace by rank, to see which signal is missing between two of them."""

    def __init__(self, trace):
        self.events, self.times = trace.events, clocks(trace)
        self.number, made = [], [0] * trace.nranks
        self.by_rank, self.stores = defaultdict(list), defaultdict(list)
        for i, event in enumerate(trace.events):
            self.number.append(made[event.rank])
            made[event.rank] += event.is_step
            self.by_rank[event.rank, event.kind].append((i, event))
            if event.kind == STORE:
                self.stores[event.peer, event.name].append((i, event))

    def meant(self, before, at, elements):
        """The two places, that of the access first which the program means to come first."""
        pair = sorted((before, at), key=lambda i: (self.number[i], self.events[i].kind == LOAD))
        loads = [i for i in pair if self.events[i].kind == LOAD]
        if loads and not self._written_before(loads[0], elements):
            pair.sort(key=lambda i: self.events[i].kind == LOAD)
        return pair

    def _written_before(self, load, elements):
        """Whether some store to the elements is certain to come before the load."""
        at = self.events[load]
        return any(
            self.times[load][e.rank] >= self.times[i][e.rank] and common(e.elements, elements)
            for i, e in self.stores[at.peer, at.name]
        )

    def missing(self, first, second):
        """Why no signal leads from the one to the other, and what would mend that."""
        a, b = self.events[first], self.events[second]
        waits = [(i, e) for i, e in self._of(b.rank, WAIT) if e.peer == a.rank]
        earlier = [(i, e) for i, e in waits if i < second]
        after = [(i, e) for i, e in self._of(a.rank, NOTIFY) if e.peer == b.rank and i > first]
        heard = [(n, w) for _, n in after for _, w in waits if _cell(w) == _cell(n) and w.at_least >= n.at_least]
        unheard = [e for _, e in after if not any(e is n for n, _ in heard)]
        mend, move = self._apart(first, second), None
        if heard and self.number[after[0][0]] <= self.number[second] and not self._told(second, heard[0][1], after):
            move = f"move the {_kind(heard[0][1])}{_at(heard[0][1])} up, before rank {b.rank} {_does(b)}"
        if not earlier:
            return self._unawaited(a, b, second, unheard, mend, move)
        at, wait = earlier[-1]
        asks = f"the {_kind(wait)} on row {wait.row}{_at(wait)} asks for {wait.at_least}"
        if wait.at_least <= 0:
            needed = next((e.at_least for _, e in after if _cell(e) == _cell(wait)), 1)
            return f"{asks}, which is so from the start", mend or f"let that wait ask for {needed}"
        given_at, given = next(
            (i, e)
            for i, e in self._of(a.rank, NOTIFY)
            if (e.peer, _cell(e), e.at_least) == (b.rank, _cell(wait), wait.at_least)
        )
        why = f"{asks}, and rank {a.rank}'s {_kind(given)}{_at(given)} already gave it"
        if again := next((e for e in unheard if _cell(e) == _cell(wait)), None):
            return why, mend or self._used_again(at, again.at_least)
        if unheard:
            why += f"; what it notifies afterwards is row {unheard[0].row} ({_at(unheard[0]).removeprefix(' at ')})"
            return why, f"notify and wait on the same row: let rank {b.rank} wait on row {unheard[0].row}"
        if not heard and not any(given_at < i < first for i, _ in self._of(a.rank, WAIT)):
            move = f"notify later: move the notify{_at(given)} below the line at which rank {a.rank} {_does(a)}"
        barrier = f"a barrier on a row of its own, after rank {a.rank} {_does(a)} and before {_next(a, b)}"
        return why, mend or move or barrier

    def _told(self, store, wait, after):
        """Whether the rank tells of a store before that wait, in a line in which its peer gives one of `after`."""
        if self.events[store].kind != STORE:
            return False
        lines = {(e.file, e.line) for _, e in after}
        end = next(i for i, e in self._of(wait.rank, WAIT) if e is wait)
        return any(store < i < end and (e.file, e.line) in lines for i, e in self._of(wait.rank, NOTIFY))

    def _apart(self, first, second):
        """The mend where both ranks store to the same elements, and neither knows of the other; else None."""
        a, b = self.events[first], self.events[second]
        if a.kind == b.kind == STORE:
            barrier = "" if a.line == b.line else ", or put a barrier between the two"
            lost = "of two stores to one element, one is lost"
            return f"give each rank elements of its own to store to: {lost}{barrier}"
        store = first if a.kind == STORE else second
        load = self.events[first + second - store]
        for i, e in self._of(load.rank, STORE):
            same = (e.peer, e.name) == (load.peer, load.name) and common(e.elements, load.elements)
            if same and common(e.elements, self.events[store].elements) and not self._ordered(i, store):
                between = "between its load and its store others may store"
                return f"give each rank elements of its own to store to: {between}"
        return None

    def _ordered(self, i, k):
        i, k = sorted((i, k))
        return self.times[k][self.events[i].rank] >= self.times[i][self.events[i].rank]

    def _unawaited(self, a, b, second, unheard, mend, move):
        """Why and mend where the second rank waits for no signal of the first."""
        why = f"rank {b.rank} waits for no signal of rank {a.rank} before it"
        others = [e for i, e in self._of(b.rank, WAIT) if i < second]
        if own := next((e for e in others if e.peer == b.rank), None):
            why += f"; its wait{_at(own)} is for its own notification, which says nothing of a peer"
        elif others:
            why += f", only for one of rank {others[-1].peer}{_at(others[-1])}"
        if mend:
            return why, mend
        if unheard:
            told = f"which rank {a.rank} notifies{_at(unheard[0])}"
            return why, f"let rank {b.rank} wait for rank {a.rank} on row {unheard[0].row}, {told}"
        if move:
            return why, move
        signal = f"rank {a.rank} notifies rank {b.rank} after it {_does(a)}"
        return why, f"a signal: {signal}, and rank {b.rank} waits for that before it {_does(b)}"

    def _used_again(self, at, count):
        """The mend where a row that was used before is used again, and the wait asks for no more than then."""
        wait, before = self.events[at], [(i, e) for i, e in self._of(self.events[at].rank, WAIT) if i < at]
        repeats = any(
            (e.peer, _cell(e), e.at_least, e.line) == (wait.peer, _cell(wait), wait.at_least, wait.line)
            for _, e in before
        )
        if wait.cause:
            return self._barrier_again(wait) if repeats else "give the second barrier a row of its own"
        if not repeats:
            return f"give the second barrier a row of its own, or let its wait ask for {count}"
        if self._call(at) == count:
            return f"let that wait ask for signals.generation, which rises with each call (here {count})"
        rising = f"let that wait ask for one more each time the row is used (here {count})"
        return f"{rising}, or take another row each time"

    def _barrier_again(self, wait):
        """The mend where a barrier of the same line, on the same row, was passed with the same generation before."""
        own_row = "give each barrier of a call a row of its own"
        generations = {e.at_least for _, e in self._of(wait.rank, WAIT) if e.cause and e.name == wait.name}
        if len(generations) > 1 or self._calls(wait.rank)[1] == 1:
            return own_row
        return f"ask for the signals anew in each call, which raises their generation; in one call, {own_row}"

    def _call(self, at):
        """The how many-th call this is, counted from 1."""
        mine = [i for i, e in enumerate(self.events) if e.rank == self.events[at].rank]
        return mine.index(at) // self._calls(self.events[at].rank)[0] + 1

    def _calls(self, rank):
        """How many steps a call has, and how many calls there are: a rank that makes the same steps over and over
        calls the same kernel over and over."""
        lines = [(e.kind, e.file, e.line) for e in self.events if e.rank == rank]
        cuts = (p for p in range(1, len(lines)) if len(lines) % p == 0 and lines[p:] == lines[:-p])
        period = next(cuts, len(lines))
        return period, len(lines) // period

    def _of(self, rank, kind):
        return self.by_rank[rank, kind]


def _cell(event):
    return event.name, event.row


def _kind(event):
    return event.cause or event.kind


def _does(event):
    return _VERB[event.kind] + (f" (line {event.line})" if event.line else "")


def _next(a, b):
    """What `b` does; after `a`, an earlier line is one of the next round or call."""
    return f"rank {b.rank} {_does(b)}" + (" again" if b.line < a.line and b.file == a.file else "")


def _place(event):
    if not event.file:
        return ""
    file = "" if "ipykernel" in event.file else f"{os.path.basename(event.file)}, "  # a cell's file says nothing
    return f"   {file}line {event.line}"


def _at(event):
    return f" at line {event.line}" if event.line else ""

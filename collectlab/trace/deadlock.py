"""Deadlocks: who waits for which signal, the circle if there is one, what was notified instead, and what mends it."""

from collections import defaultdict, deque

from collectlab.trace.events import BARRIER, NOTIFY, WAIT
from collectlab.words import ranks_named


def explain(trace, ends):
    """Lines of text about the waits of `trace.waiting`, which nothing will satisfy.

    ends  rank -> how it ended, in words ("is over", "raised ValueError"), of ranks that do not wait
    """
    waits = [
        f'rank {rank} waits for rank {e.peer} ("{e.name}" row {e.row}, at least {e.at_least}; it is {count}){at(e)}'
        + (f", in its step {e.step}" if e.step else "")
        for rank, (e, count) in sorted(trace.waiting.items())
    ]
    busy = any(e.peer not in trace.waiting and e.peer not in ends for e, _ in trace.waiting.values())
    head = "waiting: " if busy else "stuck: "
    lines = [head + waits[0], *(" " * len(head) + wait for wait in waits[1:])]
    given = _Given(trace)
    if circle := _circle(_edges(trace, given)):
        lines.append("the circle: " + " -> ".join(map(str, circle)))
    said = {}  # what is said of several ranks -> them
    for rank, (event, count) in sorted(trace.waiting.items()) if trace.noted else ():
        said.setdefault(_instead(trace, given, event, count, ends), []).append(rank)
    return lines + [text.replace(_THEM, ranks_named(ranks)) for text, ranks in said.items()]


_THEM = "{them}"  # stands for the ranks of which a line is true


_MOST_ROWS = 4  # that are listed one by one


class _Given:
    """The notifications of a trace, found once."""

    def __init__(self, trace):
        self._cells, self._rows = defaultdict(list), defaultdict(list)
        for e in trace.events:
            if e.kind == NOTIFY:
                self._cells[e.rank, e.peer, e.name].append(e)
                self._rows[e.rank, e.name, e.row].append(e)

    def to(self, rank, writer, name, row=None):
        """Those of `rank` by `writer`: on that row, or on any."""
        return [e for e in self._cells.get((writer, rank, name), ()) if row in (None, e.row)]

    def instead(self, e):
        """Those by the awaited rank on the row that is waited for, of anybody."""
        return self._rows.get((e.peer, e.name, e.row), ())


def _edges(trace, given):
    """rank -> the ranks that it waits for: one, or in a barrier all that have not come."""
    edges = {}
    for rank, (e, _) in trace.waiting.items():
        others = range(trace.nranks) if e.cause == BARRIER and trace.noted else ()
        late = [p for p in others if p != rank and len(given.to(rank, p, e.name, e.row)) < e.at_least]
        edges[rank] = [e.peer, *(p for p in late if p != e.peer)]
    return edges


def _circle(edges):
    """The shortest closed chain of ranks that wait for each other, its first rank again at the end; [] if none."""
    found = []
    for start in sorted(edges):
        chains, seen = deque([[start]]), set()
        while chains and not (found and len(chains[0]) >= len(found) - 1):
            chain = chains.popleft()
            for peer in edges.get(chain[-1], ()):
                if peer == start:
                    found = [*chain, start]
                    chains.clear()
                    break
                if peer not in seen:
                    seen.add(peer)
                    chains.append([*chain, peer])
    return found


def _together(trace, given, e, count):
    """The ranks whose notifications on the row make up what is asked of one of them; [] where they do not."""
    counts = {r: len(given.to(e.rank, r, e.name, e.row)) for r in range(trace.nranks) if r != e.peer}
    return [r for r, n in counts.items() if n] if count and count + sum(counts.values()) == e.at_least else []


def _instead(trace, given, e, count, ends):
    """What the awaited rank did about the signal that is waited for."""
    over = f", and {ends[e.peer]}" if e.peer in ends else ""
    if e.peer == e.rank:
        return f"rank {e.rank} waits for its own notification, which nobody else can give"
    if times := given.to(e.rank, e.peer, e.name, e.row):
        often = {1: "once", 2: "twice"}.get(len(times), f"{len(times)} times")
        asked = f"last{at(times[-1])}; {e.at_least} are asked for"
        text = f"rank {e.peer} notified row {e.row} of {_THEM} {often}, {asked}"
        if others := _together(trace, given, e, count):
            each = "each " * (len(others) > 1)
            text += f"; {ranks_named(others)} notified that row too, {each}in a cell of its own"
        return text + over
    if row := given.instead(e):
        others = ranks_named({x.peer for x in row})
        return f"rank {e.peer} never notified row {e.row} of {_THEM}; it notified that of {others}{at(row[-1])}{over}"
    if rows := {event.row: event for event in given.to(e.rank, e.peer, e.name)}:
        other = ", ".join(f"row {row}{at(event)}" for row, event in rows.items())
        if len(rows) > _MOST_ROWS:
            last = list(rows.values())[-1]
            other = f"{len(rows)} others, the last of them row {last.row}{at(last)}"
        return f"rank {e.peer} never notified row {e.row} of {_THEM}; it notified {other}{over}"
    itself = ", and waits itself" if e.peer in trace.waiting else ", and is still at work"
    return f"rank {e.peer} never notified {_THEM}{over or itself}"


def mend(trace, ends):
    """What would end the waiting, where it is plain; else None."""
    if not trace.noted:
        return None
    given = _Given(trace)
    circle = _circle(_edges(trace, given))
    waits = sorted(trace.waiting.items(), key=lambda wait: (wait[1][0].at_least, wait[0] not in circle, wait[0]))
    for rank, (e, _) in waits:
        came = len(given.to(e.peer, rank, e.name, e.row))
        if e.cause == BARRIER and came != e.at_least:
            where = f"rank {rank} comes to row {e.row} for the {came}. time and waits for generation {e.at_least}"
            return f'let all ranks ask for the signals "{e.name}" equally often: {where}'
    for rank, (e, count) in waits:  # those of the earliest generation first: the others may follow from them
        if e.peer == rank:
            return f"let rank {rank} wait for its peers only{at(e)}"
        if _together(trace, given, e, count):
            return f"each writer has a cell of its own: wait for each of them, not for {e.at_least} of rank {e.peer}"
        if count and not e.cause:
            return f"let rank {rank} ask for as many notifications as rank {e.peer} gives: {count} by then"
        further = e.peer in trace.waiting and trace.waiting[e.peer][0].at_least > e.at_least
        if e.cause == BARRIER and (e.peer in ends or further):
            return f"let rank {e.peer} come to the barrier on row {e.row}{at(e)} too, or let nobody wait for it there"
        if (row := given.instead(e)) and not count:
            return f"let rank {e.peer} notify rank {rank} on row {e.row} too{at(row[-1])}"
        if e.peer in ends:
            return f"let rank {e.peer} notify row {e.row} as well before it ends, or let nobody wait for it there"
        if rows := sorted({x.row for x in given.to(rank, e.peer, e.name)} - _passed(trace, e)):
            return f"notify and wait on the same row: {rows[0]} is notified, {e.row} is waited for"
    return "notify before waiting: in the circle each waits before it notifies" if circle else None


def _passed(trace, e):
    """The rows on which the rank has passed a wait for the same peer."""
    return {x.row for x in trace.events if (x.kind, x.rank, x.peer, x.name) == (WAIT, e.rank, e.peer, e.name)}


def at(event):
    """ " at line 12", where the line is known."""
    return f" at line {event.line}" if event.line else ""

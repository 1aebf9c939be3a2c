"""Deadlocks: who waits for which signal, the circle if there is one, and what was notified instead."""

from collectlab.trace.events import NOTIFY


def explain(trace, stuck):
    """Lines of text about waits that nothing will satisfy.

    stuck  rank -> (peer, name, row, at_least) of the wait that the rank is in
    """
    waits = []
    for rank, (peer, name, row, at_least) in sorted(stuck.items()):
        now = len(_notified(trace, peer, rank, name, row))
        waits.append(
            f'rank {rank} waits for rank {peer} ("{name}" row {row}, at least {at_least}; it is {now})'
        )
    lines = [f"stuck: {waits[0]}", *(f"       {wait}" for wait in waits[1:])]
    if circle := _circle({rank: wait[0] for rank, wait in stuck.items()}):
        lines.append("the circle: " + " -> ".join(map(str, circle)))
    for rank, wait in sorted(stuck.items()):
        lines.append(_instead(trace, stuck, rank, *wait))
    return lines


def _notified(trace, writer, rank, name, row):
    cell = (NOTIFY, writer, rank, name, row)
    return [e for e in trace.events if (e.kind, e.rank, e.peer, e.name, e.row) == cell]


def _circle(waits_for):
    """A closed chain of ranks that wait for each other, its first rank again at the end; empty if there is none."""
    for start in sorted(waits_for):
        chain = [start]
        while chain[-1] in waits_for and waits_for[chain[-1]] not in chain:
            chain.append(waits_for[chain[-1]])
        if waits_for.get(chain[-1]) == start:
            return [*chain, start]
    return []


def _instead(trace, stuck, rank, peer, name, row, at_least):
    """What `peer` did about the signal that `rank` waits for."""
    given = _notified(trace, peer, rank, name, row)
    if given:
        often = "once" if len(given) == 1 else f"{len(given)} times"
        last = f"{often}, last{_at(given[-1])}; {at_least} are asked for"
        return f"rank {peer} notified row {row} of rank {rank} {last}"
    rows = [e for e in trace.events if (e.kind, e.rank, e.peer, e.name) == (NOTIFY, peer, rank, name)]
    if rows:
        other = ", ".join(f"row {e.row}{_at(e)}" for e in {e.row: e for e in rows}.values())
        return f"rank {peer} never notified row {row} of rank {rank}; it notified {other}"
    end = "waits itself" if peer in stuck else "is over"
    return f"rank {peer} never notified rank {rank}, and {end}"


def _at(event):
    return f" at line {event.line}" if event.line else ""

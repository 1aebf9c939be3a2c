"""Happens-before: which event is certain to lie before which, whatever the speed of the ranks.

The edge into a wait comes from the notification that its target guarantees: a wait for at least k on a cell
with one writer is certain to come after that writer's k-th notification, and after nothing later, even when
more had arrived by luck. (The vector clocks are those of Fidge and Mattern.)
"""

from collectlab.trace.events import NOTIFY, WAIT


def clocks(trace):
    """A vector clock for each event of the trace: entry r counts the events of rank r that are certain by then.

    Event a of rank r precedes event b if and only if clocks[b][r] >= clocks[a][r].
    """
    now = [[0] * trace.nranks for _ in range(trace.nranks)]
    notified = {}  # (waiter, name, row, writer, count) -> the writer's clock when its notification made the count
    found = []
    for event in trace.events:
        clock = now[event.rank]
        if event.kind == WAIT and event.at_least > 0:
            past = notified[event.rank, event.name, event.row, event.peer, event.at_least]
            clock = list(map(max, clock, past))
        else:
            clock = clock.copy()
        clock[event.rank] += 1
        now[event.rank] = clock
        if event.kind == NOTIFY:
            notified[event.peer, event.name, event.row, event.rank, event.at_least] = clock
        found.append(clock)
    return found

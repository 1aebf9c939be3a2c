"""Hazards: an operation that uses memory which another one may still use, since nothing orders the two.

They are the races of a trace of lanes (lanes.py): two accesses to the same elements, at least one a store, that no
chain of signals orders. So the proof in trace/races.py speaks for plans as well: without a hazard, every order in
which the streams may go on gives the same values.
"""

from dataclasses import dataclass

from collectlab.overlap import lanes
from collectlab.overlap.plan import COMPUTE, Wait
from collectlab.trace import races
from collectlab.trace.events import LOAD, STORE, spell
from collectlab.words import ranks_named


@dataclass(frozen=True)
class Hazard:
    """Two operations of a rank that use `elements` of a buffer in no certain order.

    what           in words, for example "read before the reduce_scatter is complete"
    ranks          on which it is so, with these elements or others; `elements` are those of the first
    first, second  the two Accesses, in the order in which the plan has the operations
    why            which edge between the two is missing
    mend           what would order them
    """

    what: str
    buffer: str
    elements: object
    ranks: tuple
    first: lanes.Access
    second: lanes.Access
    why: str
    mend: str
    in_order: bool

    @property
    def lines(self):
        """The hazard, as lines of text."""
        said = [f'hazard on "{self.buffer}", {spell(self.elements)} of {ranks_named(self.ranks[:1])}: {self.what}']
        if self.ranks[1:]:
            said[0] = said[0].replace(f"of {ranks_named(self.ranks[:1])}", f"of {ranks_named(self.ranks)}", 1)
        them = "it" if len(self.elements) == 1 else "them"
        for access in (self.first, self.second):
            verb = "reads" if access.kind == LOAD else "writes"
            said.append(f"    {access.operation} {verb} {them}, {_where(access.operation, self.in_order)}")
        return [*said, f"nothing orders the two: {self.why}"]

    def __str__(self):
        return "\n".join([*self.lines, f"mend: {self.mend}"])


def find(done, in_order):
    """The Hazards of a plan, from what each rank has Done; one for each two lines of the plan and buffer."""
    of_ranks = [lanes.lanes(one, in_order) for one in done]
    trace, wide = lanes.trace(of_ranks), lanes.width(of_ranks)
    found = {}
    for one, other, elements in races.pairs(trace):
        first, second = sorted((trace.events[one], trace.events[other]), key=lambda access: access.step)
        key = first.name, *((a.operation.kind, a.operation.file, a.operation.line) for a in (first, second))
        found.setdefault(key, {}).setdefault(first.peer // wide, (first, second, elements))
    return [_hazard(by_rank, done, in_order) for by_rank in found.values()]


def _hazard(by_rank, done, in_order):
    rank, (first, second, elements) = next(iter(by_rank.items()))
    why, mend = _missing(first, second, done[rank].steps, in_order)
    what = _what(first, second)
    return Hazard(what, first.name, elements, tuple(by_rank), first, second, why, mend, in_order)


def _where(operation, in_order):
    if operation.kind == COMPUTE or in_order:
        return f'on the stream "{operation.stream}"'
    return "as a request"


def _what(first, second):
    """What goes wrong, in words."""
    a, b = first.operation, second.operation
    if a.kind == COMPUTE:
        done = "written" if first.kind == STORE else "read"
        return f"the {b.kind} may begin before they are {done}"
    if first.kind == STORE and second.kind == LOAD:
        return f"read before the {a.kind} is complete"
    if first.kind == LOAD:
        return f"overwritten while the {a.kind} may still read them"
    return f"changed before the {a.kind} is complete"


def _missing(first, second, steps, in_order):
    """Why no event leads from the first operation to the second, and what would mend that."""
    a, b = first.operation, second.operation
    if a.kind == COMPUTE:
        return _begins_early(a, b)
    if b.kind != COMPUTE:
        return _both_under_way(a, b, in_order)
    waits = [(at, step) for at, step in enumerate(steps) if isinstance(step, Wait)]
    late = next((step for at, step in waits if at > second.step and step.event.operation is a), None)
    between = [step for at, step in waits if first.step < at < second.step]
    line = f"line {b.line}" if b.line else str(b)
    if late is not None:
        return (
            f"the compute stream waits for the {a.kind} at line {late.line}, after it was given {b}",
            f"move that wait up, before {line}",
        )
    if not between:
        return (
            f"the compute stream waits for no event between {a} and {b}",
            f"keep what the {a.kind} returns, and call its wait() before {line}",
        )
    wrong = between[-1]
    operation = wrong.event.operation
    waited = str(operation) if operation else f"what the compute stream had been given at line {wrong.event.line}"
    why = f"the wait at line {wrong.line} is for {waited}, and says nothing of {a}"
    if operation is not None and operation.stream == a.stream and not in_order:
        why += "; requests are complete each by itself, in no order"
    return why, f"wait for the event of {a} before {line}"


def _begins_early(a, b):
    """Of a collective that does not wait for a computation given before it."""
    if not b.after:
        why = f"the {b.kind} waits for no event, and its stream knows nothing of the compute stream"
    else:
        lines = ", ".join(f"line {event.line}" for event in b.after)
        why = f"what the {b.kind} waits for, the event of {lines}, does not come after {a}"
    return why, f"leave `after` out, or give it an event that is recorded after line {a.line}"


def _both_under_way(a, b, in_order):
    """Of two collectives."""
    if in_order:
        why = f'they are on the streams "{a.stream}" and "{b.stream}", and the second waits for no event of the first'
    else:
        why = "both requests may be under way at once: the first was not waited for before the second was started"
    return why, f"wait for the event of {a} before line {b.line}, or give it to the {b.kind} as `after`"

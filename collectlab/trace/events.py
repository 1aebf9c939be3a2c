"""What a run does, event by event."""

from dataclasses import dataclass, field

STORE, LOAD, NOTIFY, WAIT, BARRIER = "store", "load", "notify", "wait", "barrier"
PACKET = "packet"


@dataclass(slots=True)
class Event:
    """One step of one rank.

    kind     "store", "load", "notify", "wait", or "barrier" when the rank leaves one
    rank     who does it
    peer     whose window is stored to or loaded from; who is notified; whose notification is waited for
    name     of the window, or of the signals
    elements the flat indices into the window: a range, or a sorted integer array
    nbytes   that it moves
    row      of the signals; `at_least` is what a wait asks for, and the count that a notify reaches
    cause    "barrier" for a notification and a wait that a barrier makes, "packet" for a flag that travels in the
             data; "" for the program's own
    file, line   the program's own
    began, ended seconds on the clock of the rank's host; 0 where there is no clock, as in the simulator
    step     of a wait that is not over: the how many-th step of its rank it is; 0 where steps are not noted
    """

    kind: str
    rank: int
    peer: int
    name: str
    elements: object = ()
    nbytes: int = 0
    row: int = -1
    at_least: int = 0
    cause: str = ""
    file: str = ""
    line: int = 0
    began: float = field(default=0.0, compare=False)
    ended: float = field(default=0.0, compare=False)
    step: int = field(default=0, compare=False)

    @property
    def counts(self):
        """What it adds to the Card of its rank, in the order of its fields: six numbers."""
        from_or_to_a_peer = self.peer != self.rank
        moved = self.nbytes if from_or_to_a_peer and self.kind in (LOAD, STORE) else 0
        notified = from_or_to_a_peer and self.kind == NOTIFY and self.cause != PACKET
        waited = from_or_to_a_peer and self.kind == WAIT
        barrier = self.kind == BARRIER
        return moved, moved > 0, notified, waited, barrier, barrier or (waited and self.cause != BARRIER)

    @property
    def is_step(self):
        """Whether it is a step of its own: a barrier consists of others, and a packet's flag comes with its data."""
        return self.kind != BARRIER and not (self.kind == NOTIFY and self.cause == PACKET)

    def __str__(self):
        if self.kind in (STORE, LOAD):
            verb = {STORE: "stores", LOAD: "loads"}[self.kind]
            whose = "its own" if self.peer == self.rank else f"rank {self.peer}'s"
            return f'rank {self.rank} {verb} {spell(self.elements)} of {whose} "{self.name}"'
        if self.kind == NOTIFY:
            return f'rank {self.rank} notifies rank {self.peer} on row {self.row} of "{self.name}"'
        where = f'row {self.row} of "{self.name}"'
        if self.kind == BARRIER:
            return f"rank {self.rank} leaves the barrier on {where}"
        return f"rank {self.rank} waits for rank {self.peer}, {where}, at least {self.at_least}"


@dataclass(frozen=True, slots=True)
class Clock:
    """When a rank was given its program and when it left it (None: it did not), in seconds on its host's clock.

    asked  the stretches (began, ended) in which it waited for all ranks to ask for the same memory
    """

    began: float
    ended: float | None
    asked: list


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

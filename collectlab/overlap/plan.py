"""What a plan is written with: buffers, operations on streams, events.

A plan is a function `plan(ctx, *args)`. Each call on `ctx` gives one operation to a stream of the rank and comes back
at once, whether that operation has been done or not:

    ctx.buffer(name, array)                  memory, which begins as a copy of the array
    ctx.compute(function, reads, writes)     the function is called with these arrays, on the compute stream
    ctx.reduce_scatter(source, target)       on a stream for communication; each returns its Event, and
    ctx.all_gather(source, target)           event.wait() makes the compute stream wait for it
    ctx.all_reduce(source, target)
    ctx.record()                             the Event of all that the compute stream was given so far

The arguments are buffers or slices of them. Operations of one stream come one after the other; between streams there
is only the order that `after` and `wait` make. What the plan returns is read by the compute stream at the end.
"""

import os
import sys
from dataclasses import dataclass, field

import numpy as np

from collectlab.layout import Partition

COMPUTE = "compute"
NOW = "now"
START = "the first values"  # what fills a buffer
END = "the end of the plan"  # what reads the values that the plan returns
_HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
_INSIDE = tuple(_HERE + name for name in ("plan.py", "on_ranks.py", "runs.py", "simulated.py"))


@dataclass(frozen=True)
class Part:
    """Elements start to stop of the buffer of that name, of `length` elements; `part[2:4]` is a part of the part."""

    name: str
    start: int
    stop: int
    length: int
    dtype: str

    def __len__(self):
        return self.stop - self.start

    def __getitem__(self, at):
        if type(at) is not slice or at.step not in (None, 1):
            raise IndexError(f'"{self.name}"[{at!r}]: a slice without a step is accepted')
        start, stop = at.start or 0, len(self) if at.stop is None else at.stop
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f'"{self.name}"[{start}:{stop}]: it has {len(self)} elements')
        return Part(self.name, self.start + start, self.start + stop, self.length, self.dtype)

    def _is_no_array(self, *_):
        raise TypeError(f"{self} is memory that streams use, not an array: give ctx.compute a function that uses it")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _is_no_array
    __neg__ = __setitem__ = __array__ = _is_no_array

    @property
    def whole(self):
        """The buffer."""
        return Part(self.name, 0, self.length, self.length, self.dtype)

    @property
    def elements(self):
        """The indices into the buffer: a range."""
        return range(self.start, self.stop)

    def __str__(self):
        return f'"{self.name}"' if len(self) == self.length else f'"{self.name}"[{self.start}:{self.stop}]'


@dataclass(frozen=True, eq=False)
class Operation:
    """What a stream was given to do.

    kind     "compute", "reduce_scatter", "all_gather" or "all_reduce"
    label    the name of the function, of a computation
    call     the function
    after    the Events that it waits for, of other streams
    """

    kind: str
    stream: str
    label: str
    call: object
    reads: tuple
    writes: tuple
    after: tuple
    file: str
    line: int

    @property
    def place(self):
        """ " (line 12)" of a notebook's cell; of another file, " (backward.py, line 12)"."""
        file = "" if "ipykernel" in self.file else f"{os.path.basename(self.file)}, "  # a cell's file says nothing
        return f" ({file}line {self.line})" if self.line else ""

    def __str__(self):
        if self.label == END:
            return END
        return (f'compute "{self.label}"' if self.kind == COMPUTE else f"the {self.kind}") + self.place


@dataclass(frozen=True, eq=False)
class Event:
    """A point in the work of a stream: after `operation`, or, where that is None, all the compute stream had then.

    Of a collective it is what MPI calls a request.
    """

    number: int
    operation: Operation | None
    streams: object = field(repr=False, compare=False)
    line: int = 0

    def wait(self):
        """Let the compute stream wait for it before it goes on."""
        self.streams.wait(self)

    def __reduce__(self):
        return Event, (self.number, self.operation, None, self.line)


@dataclass(frozen=True, eq=False)
class Wait:
    """The compute stream waits for an event."""

    event: Event
    line: int


@dataclass(frozen=True, eq=False)
class Done:
    """What a rank gave its streams to do: `steps`, its Operations, Waits and record()ed Events, in their order."""

    steps: list

    @property
    def buffers(self):
        """The buffers, in the order in which they were made: Parts."""
        parts = (part for step in self.steps if isinstance(step, Operation) for part in (*step.reads, *step.writes))
        return list(dict.fromkeys(part.whole for part in parts))

    @property
    def collectives(self):
        """The Operations that are none of the compute stream, in their order."""
        return [step for step in self.steps if isinstance(step, Operation) and step.kind != COMPUTE]


class Streams:
    """The `ctx` of a plan; it notes what it is given. What carries it out is added by its children.

    rank, nranks   the rank's index in the group, and the group's size
    xp             the array module: numpy or cupy
    """

    def __init__(self, rank, nranks, xp=np):
        self.rank, self.nranks, self.xp = rank, nranks, xp
        self._steps, self._events, self._buffers = [], 0, {}

    # what a plan calls

    def buffer(self, name, array):
        """Memory of that name, one axis, which the compute stream fills with a copy of `array`."""
        array = np.asarray(array)
        if array.ndim != 1:
            raise ValueError(f'buffer("{name}", array): an array of one axis is accepted, not {array.shape}')
        if name in self._buffers:
            raise ValueError(f'buffer("{name}", array): there is one of that name; take another name')
        part = self._buffers[name] = Part(name, 0, array.size, array.size, str(array.dtype))
        self._make(part)
        self._give(COMPUTE, COMPUTE, START, _Fill(self.xp, array), (), (part,), ())
        return part

    def compute(self, function, reads=(), writes=()):
        """Call function(*reads, *writes) on the compute stream; it may change the arrays of `writes`, in place."""
        if not callable(function):
            raise TypeError(f"compute({function!r}): a function is accepted")
        label = getattr(function, "__name__", type(function).__name__)
        self._give(COMPUTE, COMPUTE, label, function, _parts(reads), _parts(writes), ())

    def reduce_scatter(self, source, target, stream="communication", after=NOW):
        """Add `source` over the ranks; `target` gets this rank's block of the sum, as Partition.uneven cuts it.

        stream   on which it is done, after what that stream was given before (MPI: by itself, whatever is given)
        after    an Event that it waits for, or several; NOW: all that the compute stream was given so far; None: none
        """
        return self._collective("reduce_scatter", source, target, stream, after)

    def all_gather(self, source, target, stream="communication", after=NOW):
        """Join `source` of all ranks in `target`, in rank order, each rank's block as Partition.uneven cuts it."""
        return self._collective("all_gather", source, target, stream, after)

    def all_reduce(self, source, target, stream="communication", after=NOW):
        """Add `source` over the ranks; `target` gets the whole sum."""
        return self._collective("all_reduce", source, target, stream, after)

    def record(self):
        """The Event of all that the compute stream was given so far."""
        event = self._event(None)
        self._steps.append(event)
        self._record(event)
        return event

    def wait(self, event):
        """Let the compute stream wait for the event."""
        if not isinstance(event, Event) or event.streams is not self:
            raise TypeError(f"wait({event!r}): an event of this rank is accepted, as its operations return them")
        self._steps.append(Wait(event, _place()[1]))
        self._wait(event)

    def advance(self):
        """Give collectives that are under way a chance to go on: MPI works on them only while it is called."""

    def finish(self, returned):
        """Read the Parts in what the plan returned, and bring all streams to their end.

        Returns an array for each Part, in order, which `with_values` puts in the Part's place; and what was Done.
        """
        parts = tuple(_found(returned))
        self._give(COMPUTE, COMPUTE, END, None, parts, (), (), ("", 0))
        return self._read(parts), Done(self._steps)

    # what carries it out

    def _make(self, part):
        """Get memory for a buffer."""

    def _do(self, operation, event):
        """Give an operation to its stream, and record its event there."""

    def _record(self, event):
        """Record an event of the compute stream."""

    def _wait(self, event):
        """Let the compute stream wait."""

    def _read(self, parts):
        """The values of the parts, read on the compute stream; then all streams come to their end."""

    # checks

    def _collective(self, kind, source, target, stream, after):
        (source,), (target,) = _parts(source), _parts(target)
        call = f"rank {self.rank}: {kind}({source}, {target})"
        whole, block = (target, source) if kind == "all_gather" else (source, target)
        length = len(whole) if kind == "all_reduce" else self.counts(len(whole))[self.rank]
        if len(block) != length:
            what = "elements" if kind == "all_reduce" else f"elements are rank {self.rank}'s of {len(whole)}"
            raise ValueError(f"{call}: {length} {what}; {block} has {len(block)}")
        if source.dtype != target.dtype:
            raise ValueError(f"{call}: they are of {source.dtype} and {target.dtype}; one is accepted")
        if source.name == target.name and source.start < target.stop and target.start < source.stop:
            raise ValueError(f"{call}: the two overlap, and the result would be undefined")
        if stream == COMPUTE:
            raise ValueError(f'{call}: the stream "{COMPUTE}" computes; give it another one')
        if after == NOW:
            after = self.record()
        after = () if after is None else tuple(after) if isinstance(after, list | tuple) else (after,)
        if not all(isinstance(event, Event) and event.streams is self for event in after):
            raise TypeError(f"{call}: after={after!r}: this rank's events, NOW or None are accepted")
        return self._give(kind, stream, "", None, (source,), (target,), after)

    def counts(self, length):
        """Elements of each rank's block, where so many are cut."""
        return Partition.uneven(length, self.nranks).counts

    def _give(self, kind, stream, label, call, reads, writes, after, place=None):
        operation = Operation(kind, stream, label, call, reads, writes, after, *(place or _place()))
        event = self._event(operation)
        self._steps.append(operation)
        self._do(operation, event)
        return event

    def _event(self, operation):
        self._events += 1
        return Event(self._events - 1, operation, self, operation.line if operation else _place()[1])


class _Fill:
    """The computation that copies an array into a buffer."""

    def __init__(self, xp, array):
        self.xp, self.array = xp, array.copy()

    def __call__(self, target):
        target[:] = self.xp.asarray(self.array)


def _parts(given):
    parts = (given,) if isinstance(given, Part) else tuple(given)
    for part in parts:
        if not isinstance(part, Part):
            raise TypeError(f"{part!r}: buffers and slices of them are accepted, as ctx.buffer returns them")
    return parts


def _place():
    """The file and the line of the plan that led here."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in _INSIDE:
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame else ("", 0)


def _found(value):
    """The Parts in a value, also inside tuples, lists and dicts."""
    if isinstance(value, Part):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _found(one)
    elif isinstance(value, dict):
        yield from _found(list(value.values()))


def with_values(returned, arrays):
    """What a plan returned, each Part in it replaced by the next of the arrays, an iterator."""
    if isinstance(returned, Part):
        return next(arrays)
    if isinstance(returned, tuple | list):
        return type(returned)([with_values(one, arrays) for one in returned])
    if isinstance(returned, dict):
        return {key: with_values(one, arrays) for key, one in returned.items()}
    return returned

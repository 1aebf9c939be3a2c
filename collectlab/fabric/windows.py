"""Windows and signals: what a kernel stands on, the same on every fabric.

A fabric hands out memory that every rank can reach, counts notifications, and decides who goes on when.
Everything that a learner calls, and every check of it, is here.
"""

import operator
import os
import sys
from functools import lru_cache

import numpy as np

from collectlab.trace.events import BARRIER, LOAD, NOTIFY, PACKET, STORE, WAIT, Event

WHOLE = slice(None)
_MOST_PLACES = 4096  # that a window keeps
_MOST_SLICES = 256  # of which a window knows by the object itself where they lie
_WHOLE_NUMBER = (int, np.integer)
_KINDS = {kind: at for at, kinds in enumerate(("b", "iu", "f", "c")) for kind in kinds}  # of numbers, one in the next


class Window:
    """Memory of one name on every rank: `shape` elements of `dtype` each, stored to and loaded from by all.

    `at` is a slice or an index tuple, as NumPy takes it, and must lie inside the window. What is loaded is an
    array of the rank's array module.

    local  this rank's own part as a NumPy array. What is done through it is not traced, so another rank may
           only look at it after a signal that follows.
    """

    def __init__(self, fabric, rank, name, memory, xp=np):
        self.name, self.rank, self.local = name, rank, memory.local
        self.shape, self.dtype = self.local.shape, self.local.dtype
        self._fabric, self._memory, self._xp = fabric, memory, xp
        self._places, self._slices, self._of_all = {}, {}, {}

    def store(self, value, at=WHOLE):
        """Write `value` into this rank's part."""
        self._store(self.rank, value, at, "store")

    def storing(self, at=WHOLE):
        """For `with window.storing(at) as part`: stores what the block computes into the array `part`.

        Nothing is copied where the memory can be reached. Fill all of `part`; give no signal inside the block.
        """
        return _Storing(self, at)

    def load(self, at=WHOLE, out=None):
        """A copy of this rank's part; or `out`, an array, filled with it."""
        return self._load(self.rank, at, out, "load")

    def remote_store(self, peer, value, at=WHOLE):
        """Write `value` into the part of `peer` (a push)."""
        self._store(peer, value, at, "remote_store")

    def remote_load(self, peer, at=WHOLE, out=None):
        """A copy of the part of `peer` (a pull); or `out`, an array, filled with it."""
        return self._load(peer, at, out, "remote_load")

    def remote_view(self, peer, at=WHOLE):
        """What remote_load returns, without the copy where the memory can be reached: read-only.

        It is good until the next signal that this rank gives: after that, `peer` may store again.
        """
        return self._load(peer, at, None, "remote_view")

    def remote_views(self, at=WHOLE):
        """The `remote_view` of every rank's part, in rank order: a tuple."""
        known = self._of_all.get(id(at))
        if known and not self._fabric.told_of_steps:
            return known[0]
        views = tuple(self.remote_view(peer, at) for peer in range(self._fabric.nranks))
        if type(at) is slice and self._memory.shared and self._xp is np and len(self._of_all) < _MOST_SLICES:
            self._of_all[id(at)] = views, at  # kept, so that no other slice gets its id
        return views

    def _place(self, peer, at, call):
        """The peer, the flat indices of `at`, the shape of the part there, and that part twice: to read from, None
        where it has to be fetched, and to write into, None where `memory.store` has to.

        The places of slices are found once and kept, by their ends and by the very slice: a kernel asks for the
        same ones at each call.
        """
        if type(peer) is not int or type(at) is not slice:
            return self._find(peer, at, call)
        if known := self._slices.get((peer, id(at))):
            return known[0]
        start, stop = at.start, at.stop
        if at.step is not None or not (type(start) is type(stop) is int or start is stop is None):
            return self._find(peer, at, call)
        found = self._places.get((peer, start, stop))
        if found is None:
            found = self._find(peer, at, call)
            if len(self._places) < _MOST_PLACES:
                self._places[peer, start, stop] = found
        elif len(self._slices) < _MOST_SLICES:
            self._slices[peer, id(at)] = found, at  # kept, so that no other slice gets its id
        return found

    def _find(self, peer, at, call):
        peer = self._peer(peer, at, call)
        elements = self._elements(at, call)
        shape = np.shape(self.local[at])
        if not self._memory.shared:
            return peer, elements, shape, None, None
        part = self._memory.parts[peer][at] if type(at) is slice else None  # else it may be a number, not a place
        return peer, elements, shape, self._memory.view(peer, at, elements), part

    def _peer(self, peer, at, call):
        if not isinstance(peer, _WHOLE_NUMBER) or not 0 <= peer < self._fabric.nranks:
            raise IndexError(
                f'{self._fabric.who(self.rank)}: window "{self.name}".{call}(peer={peer!r}, at={_spell(at)}): '
                f"peers are ranks 0 to {self._fabric.nranks - 1}"
            )
        return int(peer)

    def _load(self, peer, at, out, call):
        fabric = self._fabric
        peer, elements, shape, found, _ = self._place(peer, at, call)
        if told := fabric.told_of_steps:
            fabric.pause(self.rank)
        if found is None:
            found = self._memory.view(peer, at, elements)
        if out is not None:
            if getattr(out, "dtype", None) is not self.dtype or out.shape != shape:
                self._fits(shape, out, at, call, "out")
            value = out
            value[...] = found if self._xp is np else self._xp.asarray(found)
        elif self._xp is not np:
            value = self._xp.asarray(found)
        else:
            value = found[()] if call == "remote_view" else found.copy()  # a view of its own each time
        if told and fabric.events is not None:
            fabric.note(LOAD, self.rank, peer, self.name, elements, found.nbytes)
        return value

    def _store(self, peer, value, at, call, is_there=False):
        fabric = self._fabric
        peer, elements, shape, _, part = self._place(peer, at, call)
        if getattr(value, "dtype", None) is not self.dtype or value.shape != shape:
            self._fits(shape, value, at, call, "value")
        if self._xp is not np and hasattr(value, "get"):  # it lies on a GPU
            value = value.get()
        if told := fabric.told_of_steps:
            fabric.pause(self.rank)
        if is_there:
            pass
        elif part is None:
            self._memory.store(peer, at, elements, value)
        else:
            part[...] = value
        if told and fabric.events is not None:
            fabric.note(STORE, self.rank, peer, self.name, elements, len(elements) * self.dtype.itemsize)

    def _fits(self, shape, value, at, call, argument):
        dtype = getattr(value, "dtype", None)
        given = np.shape(value) if dtype is None else value.shape
        if given != shape or not self._takes(value, dtype):
            spelled, what = ("value", "value") if argument == "value" else ("out=...", "array to load into")
            raise ValueError(
                f'{self._fabric.who(self.rank)}: window "{self.name}".{call}({spelled}, at={_spell(at)}): the slice '
                f"holds {shape} of {self.dtype}, the {what} is {given} of {dtype or np.asarray(value).dtype}"
            )

    def _takes(self, value, dtype):
        """Whether elements of that dtype can be held as they are; of a list, without cutting any part off."""
        if dtype is not None:
            return np.can_cast(dtype, self.dtype, "equiv")  # the same, in any order of the bytes
        given = np.asarray(value)
        return given.size == 0 or _KINDS.get(given.dtype.kind, 9) <= _KINDS.get(self.dtype.kind, -1)

    def _elements(self, at, call):
        parts = at if type(at) is tuple else (at,)
        try:
            return _flat(self.shape, tuple(map(_ends, parts)))
        except (IndexError, TypeError, ValueError) as error:
            raise IndexError(
                f'{self._fabric.who(self.rank)}: window "{self.name}".{call}(at={_spell(at)}): {error}; the window '
                f"has shape {self.shape}, and a slice or a tuple of slices and indices is accepted"
            ) from None

    def __repr__(self):
        return f"Window({self.name!r}, {self.shape}, {self.dtype}, rank {self.rank} of {self._fabric.nranks})"


class _Storing:
    """The `with` of `Window.storing`: the step is made, and noted, at its end."""

    def __init__(self, window, at):
        self.window, self.at = window, at

    def __enter__(self):
        window, at = self.window, self.at
        *_, part = window._place(window.rank, at, "storing")
        if type(at) is not slice:  # an array, also where it is one element
            at = (*at, ...) if isinstance(at, tuple) else (at, ...)
        self.part = window.local[at] if part is None else part[()]
        self.in_place = window._fabric.in_place and window._xp is np
        if not self.in_place:
            self.part = window._xp.empty(self.part.shape, window.dtype)
        return self.part

    def __exit__(self, error, *_):
        window = self.window
        if error is None and not (self.in_place and window._fabric.events is None):
            window._store(window.rank, self.part, self.at, "storing", self.in_place)


class Signals:
    """Rows of counters: cell (row, writer) of a rank counts how often `writer` has notified it on that row.

    Counters only go up. `generation` says how often signals of this name have been asked for, so a barrier of
    the second call of a kernel waits for the second notification.
    """

    __slots__ = ("_fabric", "generation", "name", "rank", "rows")

    def __init__(self, fabric, rank, name, rows, generation):
        self.name, self.rank, self.rows, self.generation = name, rank, rows, generation
        self._fabric = fabric

    def notify(self, peer, row):
        """Add one to this rank's cell in `row` of `peer`. Everything done before is seen by who waits for it."""
        self._check(peer, row, "notify")
        self._notify(peer, row)

    def wait(self, peer, row, at_least):
        """Wait until `peer` has notified this rank on `row` at least so often."""
        self._check(peer, row, "wait")
        if not isinstance(at_least, _WHOLE_NUMBER):
            raise TypeError(
                f'{self._fabric.who(self.rank)}: signals "{self.name}".wait(peer={peer!r}, row={row!r}, '
                f"at_least={at_least!r}): a whole number of notifications is accepted"
            )
        self._wait(peer, row, at_least)

    def barrier(self, row):
        """Notify every peer on `row`, then wait for every peer's notification of this generation."""
        if type(row) is not int or not 0 <= row < self.rows:
            self._check(self.rank, row, "barrier")
        if self._fabric.meet(self.rank, self.name, row, self.generation):
            return
        peers = [peer for peer in range(self._fabric.nranks) if peer != self.rank]
        for peer in peers:
            self._notify(peer, row, BARRIER)
        for peer in peers:
            self._wait(peer, row, self.generation, BARRIER)
        if self._fabric.events is not None:
            self._fabric.note(BARRIER, self.rank, self.rank, self.name, row=row, at_least=self.generation)

    def _notify(self, peer, row, cause=""):
        fabric = self._fabric
        if fabric.told_of_steps:
            fabric.pause(self.rank)
        count = fabric.notify(self.rank, peer, self.name, row)
        if fabric.events is not None:
            fabric.note(NOTIFY, self.rank, peer, self.name, row=row, at_least=count, cause=cause)

    def _wait(self, peer, row, at_least, cause=""):
        fabric = self._fabric
        if fabric.told_of_steps:
            fabric.pause(self.rank)
        fabric.wait(self.rank, peer, self.name, row, at_least)
        if fabric.events is not None:
            fabric.note(WAIT, self.rank, peer, self.name, row=row, at_least=at_least, cause=cause)

    def _check(self, peer, row, call):
        nranks = self._fabric.nranks
        if type(peer) is type(row) is int and 0 <= peer < nranks and 0 <= row < self.rows:
            return
        for what, value, end in (("peers are ranks", peer, nranks), ("rows are", row, self.rows)):
            if not isinstance(value, _WHOLE_NUMBER) or not 0 <= value < end:
                raise IndexError(
                    f'{self._fabric.who(self.rank)}: signals "{self.name}".{call}(peer={peer!r}, row={row!r}): '
                    f"{what} 0 to {end - 1}"
                )


class Fabric:
    """What the fabrics share. Each one adds memory(), generation(), pause(), notify() and wait().

    memory() returns an object with `local`, this rank's part; `shared`, whether every part can be reached;
    view(peer, at, elements), a part to read from, and only to read; store(peer, at, elements, value); and
    replace(peer, start, words), which writes each 64-bit word at once. For packets, post() writes words with their
    flags and take() waits until all of them carry it.
    """

    began, now = 0.0, staticmethod(float)  # when the step began that is noted next, and a clock: here there is none
    told_of_steps = True  # whether pause() is called before each step, and each is noted if there are events
    in_place = False  # whether what is computed for a window may be written there before the step that stores it

    def __init__(self, nranks, traced=True):
        self.nranks = nranks
        self.events = [] if traced else None
        self._rows, self._kinds = {}, {}

    def window(self, rank, name, shape, dtype, xp):
        """The Window of `rank` with that name, shape and dtype.

        Where the name had another shape or dtype before, both are added to it, so that events tell the two apart.
        """
        shape, dtype = self._made_of(rank, name, shape, dtype)
        if self._kinds.setdefault((rank, name), (shape, dtype)) != (shape, dtype):
            name = f"{name}[{'x'.join(map(str, shape))} {dtype}]"
        return Window(self, rank, name, self.memory(rank, name, shape, dtype), xp)

    def _made_of(self, rank, name, shape, dtype):
        kind = np.dtype(dtype)
        if not all(isinstance(n, _WHOLE_NUMBER) and n >= 0 for n in shape) or kind.hasobject:
            raise ValueError(
                f'rank {rank}: window("{name}", shape={shape}, dtype={kind}): whole numbers from 0 up, and a dtype '
                "whose elements are no Python objects, are accepted"
            )
        return tuple(map(int, shape)), kind

    def signals(self, rank, name, rows):
        """The Signals of `rank` with that name, in their next generation."""
        if not isinstance(rows, _WHOLE_NUMBER) or rows < 0:
            raise ValueError(f'rank {rank}: signals("{name}", rows={rows!r}): a whole number is accepted')
        return Signals(self, rank, name, rows, self.generation(rank, name, rows))

    def note(self, kind, rank, peer, name, elements=(), nbytes=0, row=-1, at_least=0, cause=""):
        """Append an event, with the line of the program that caused it."""
        frame = sys._getframe(2)
        while frame.f_code.co_filename in _INSIDE:
            frame = frame.f_back
        place, times = (frame.f_code.co_filename, frame.f_lineno), (self.began, self.now())
        self.events.append(Event(kind, rank, peer, name, elements, nbytes, row, at_least, cause, *place, *times))

    def step_of(self, rank):
        """The how many-th of its steps a rank is about to make, counted from 1; 0 where steps are not noted."""
        return 0 if self.events is None else 1 + sum(e.rank == rank and e.is_step for e in self.events)

    def who(self, rank):
        """The rank, and its step, at the head of an error."""
        step = self.step_of(rank)
        return f"rank {rank}, in its step {step}" if step else f"rank {rank}"

    def meet(self, rank, name, row, at_least):
        """A whole barrier at once, where the fabric has a faster way than peer by peer; whether it had."""
        return False

    def waiting(self, frame, rank, peer, name, row, at_least):
        """The wait that a rank is in, as an event that is not noted; `frame` is the innermost of its program."""
        cause = ""
        while os.path.dirname(frame.f_code.co_filename) == os.path.dirname(__file__):
            cause = {"barrier": BARRIER, "take": PACKET}.get(frame.f_code.co_name, cause)
            frame = frame.f_back
        place = frame.f_code.co_filename, frame.f_lineno
        step = self.step_of(rank)
        return Event(WAIT, rank, peer, name, (), 0, row, at_least, cause, *place, self.began, step=step)

    def keep_rows(self, rank, name, rows):
        """ValueError when signals of this name have another number of rows already."""
        had = self._rows.setdefault(name, rows)
        if had != rows:
            raise ValueError(
                f'rank {rank}: signals("{name}", rows={rows}): they were made with rows={had}, and keep them; '
                "take another name for more rows"
            )

    def agree(self, rank, wanted, peer, other):
        """ValueError when two ranks ask for different memory in the place of the same one."""
        if wanted != other:
            raise ValueError(
                f"rank {rank}: {_asked(*wanted)}: in its place rank {peer} asks for {_asked(*other)}; all ranks "
                "must ask for the same windows and signals, in the same order"
            )


class SharedMemory:
    """Memory of one window that this process can reach on every rank: one array per rank."""

    shared = True

    def __init__(self, rank, parts):
        self.local, self.parts = parts[rank], parts
        self._shown = [part.view() for part in parts]
        for part in self._shown:
            part.flags.writeable = False

    def view(self, peer, at, elements):
        """The part of `peer` at `at`, read-only."""
        return self._shown[peer][at]

    def store(self, peer, at, elements, value):
        """Write `value` there."""
        self.parts[peer][at] = value

    def replace(self, peer, start, words):
        """Write 64-bit words from `start` on, each at once."""
        self.parts[peer].reshape(-1)[start : start + len(words)] = words


def _asked(kind, name, shape, dtype):
    return f'{kind}("{name}", {shape}, {dtype})' if kind == "window" else f'{kind}("{name}", rows={shape[0]})'


_INSIDE = {__file__, __file__.replace("windows.py", "context.py")}


@lru_cache(maxsize=4096)
def _flat(shape, key):
    """The flat indices of an index in a window of that shape; IndexError when it leaves the window.

    The parts of `key` are indices, and slices as (start, stop, step).
    """
    for part, length in zip(key, shape, strict=False):
        if isinstance(part, tuple):
            _inside(*part, length)
    if len(shape) == len(key) == 1 and isinstance(key[0], tuple) and key[0][2] in (None, 1):
        start, stop = key[0][0] or 0, shape[0] if key[0][1] is None else key[0][1]
        return range(start, max(start, stop))
    index = tuple(slice(*part) if isinstance(part, tuple) else part for part in key)
    flat = np.sort(np.arange(int(np.prod(shape))).reshape(shape)[index].ravel()).tolist()
    whole = range(flat[0], flat[-1] + 1) if flat else range(0)
    return whole if len(whole) == len(flat) else tuple(flat)


def _ends(part):
    if type(part) is not slice:
        return operator.index(part)
    start, stop, step = part.start, part.stop, part.step
    return (
        None if start is None else operator.index(start),
        None if stop is None else operator.index(stop),
        None if step is None else operator.index(step),
    )


def _inside(start, stop, step, length):
    back = step is not None and step < 0
    if not (start is None or 0 <= start <= length - back) or not (stop is None or 0 <= stop <= length):
        raise IndexError(f"{_spell(slice(start, stop, step))} leaves the {length} elements")


def _spell(at):
    if isinstance(at, slice):
        ends = ("" if end is None else str(end) for end in (at.start, at.stop))
        return ":".join([*ends, *([] if at.step is None else [str(at.step)])])
    return str(at)

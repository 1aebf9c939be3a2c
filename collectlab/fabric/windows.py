"""Windows and signals: what a kernel stands on, the same on every fabric.

A fabric hands out memory that every rank can reach, counts notifications, and decides who goes on when.
Everything that a learner calls, and every check of it, is here.
"""

import operator
import sys
from functools import lru_cache

import numpy as np

from collectlab.trace.events import BARRIER, LOAD, NOTIFY, STORE, WAIT, Event

WHOLE = slice(None)


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

    def store(self, value, at=WHOLE):
        """Write `value` into this rank's part."""
        self._store(self.rank, value, at, "store")

    def load(self, at=WHOLE, out=None):
        """A copy of this rank's part; or `out`, an array, filled with it."""
        return self._load(self.rank, at, out, "load")

    def remote_store(self, peer, value, at=WHOLE):
        """Write `value` into the part of `peer` (a push)."""
        self._store(self._peer(peer, at, "remote_store"), value, at, "remote_store")

    def remote_load(self, peer, at=WHOLE, out=None):
        """A copy of the part of `peer` (a pull); or `out`, an array, filled with it."""
        return self._load(self._peer(peer, at, "remote_load"), at, out, "remote_load")

    def remote_view(self, peer, at=WHOLE):
        """What remote_load returns, without the copy where the memory can be reached: read-only.

        It shows what lies there now, so it is good until the signal after which `peer` may store again.
        """
        return self._load(self._peer(peer, at, "remote_view"), at, None, "remote_view")

    def _peer(self, peer, at, call):
        if not isinstance(peer, int | np.integer) or not 0 <= peer < self._fabric.nranks:
            raise IndexError(
                f'rank {self.rank}: window "{self.name}".{call}(peer={peer!r}, at={_spell(at)}): '
                f"peers are ranks 0 to {self._fabric.nranks - 1}"
            )
        return int(peer)

    def _load(self, peer, at, out, call):
        elements = self._elements(at, call)
        fabric = self._fabric
        fabric.pause(self.rank)
        found = self._memory.view(peer, at, elements)
        if out is not None:
            self._fits(found, out, at, f"{call}(out=..., ", "array to load into")
            value = out
            value[...] = found if self._xp is np else self._xp.asarray(found)
        elif self._xp is not np:
            value = self._xp.asarray(found)
        elif call == "remote_view":
            value = found
            if value.ndim:
                value.flags.writeable = False
        else:
            value = found.copy()
        if fabric.events is not None:
            fabric.note(LOAD, self.rank, peer, self.name, elements, found.nbytes)
        return value

    def _store(self, peer, value, at, call):
        elements = self._elements(at, call)
        fabric = self._fabric
        self._fits(self.local[at], value, at, f"{call}(value, ", "value")
        if hasattr(value, "get"):  # it lies on a GPU
            value = value.get()
        fabric.pause(self.rank)
        self._memory.store(peer, at, elements, value)
        if fabric.events is not None:
            fabric.note(STORE, self.rank, peer, self.name, elements, len(elements) * self.dtype.itemsize)

    def _fits(self, place, value, at, call, what):
        shape, dtype = np.shape(value), getattr(value, "dtype", None)
        if shape != place.shape or (dtype is not None and dtype != self.dtype):
            raise ValueError(
                f'rank {self.rank}: window "{self.name}".{call}at={_spell(at)}): the slice holds {place.shape} '
                f"of {self.dtype}, the {what} is {shape} of {dtype or type(value).__name__}"
            )

    def _elements(self, at, call):
        parts = at if type(at) is tuple else (at,)
        try:
            key = tuple((p.start, p.stop, p.step) if type(p) is slice else operator.index(p) for p in parts)
            return _flat(self.shape, key)
        except (IndexError, TypeError, ValueError) as error:
            raise IndexError(
                f'rank {self.rank}: window "{self.name}".{call}(at={_spell(at)}): {error}; the window has '
                f"shape {self.shape}, and a slice or a tuple of slices and indices is accepted"
            ) from None

    def __repr__(self):
        return f"Window({self.name!r}, {self.shape}, {self.dtype}, rank {self.rank} of {self._fabric.nranks})"


class Signals:
    """Rows of counters: cell (row, writer) of a rank counts how often `writer` has notified it on that row.

    Counters only go up. `generation` says how often signals of this name have been asked for, so a barrier of
    the second call of a kernel waits for the second notification.
    """

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
        self._wait(peer, row, at_least)

    def barrier(self, row):
        """Notify every peer on `row`, then wait for every peer's notification of this generation."""
        self._check(self.rank, row, "barrier")
        peers = [peer for peer in range(self._fabric.nranks) if peer != self.rank]
        for peer in peers:
            self._notify(peer, row, BARRIER)
        for peer in peers:
            self._wait(peer, row, self.generation, BARRIER)
        if self._fabric.events is not None:
            self._fabric.note(BARRIER, self.rank, self.rank, self.name, row=row, at_least=self.generation)

    def _notify(self, peer, row, cause=""):
        fabric = self._fabric
        fabric.pause(self.rank)
        count = fabric.notify(self.rank, peer, self.name, row)
        if fabric.events is not None:
            fabric.note(NOTIFY, self.rank, peer, self.name, row=row, at_least=count, cause=cause)

    def _wait(self, peer, row, at_least, cause=""):
        fabric = self._fabric
        fabric.pause(self.rank)
        fabric.wait(self.rank, peer, self.name, row, at_least)
        if fabric.events is not None:
            fabric.note(WAIT, self.rank, peer, self.name, row=row, at_least=at_least, cause=cause)

    def _check(self, peer, row, call):
        nranks = self._fabric.nranks
        for what, value, end in (("peers are ranks", peer, nranks), ("rows are", row, self.rows)):
            if not isinstance(value, int | np.integer) or not 0 <= value < end:
                raise IndexError(
                    f'rank {self.rank}: signals "{self.name}".{call}(peer={peer!r}, row={row!r}): '
                    f"{what} 0 to {end - 1}"
                )


class Fabric:
    """What the fabrics share. Each one adds memory(), generation(), pause(), notify() and wait().

    memory() returns an object with `local`, this rank's part; view(peer, at, elements), a part to read from;
    store(peer, at, elements, value); and replace(peer, start, words), which writes each 64-bit word at once. For
    packets, post() writes words with their flags and take() waits until all of them carry it.
    """

    def __init__(self, nranks, traced=True):
        self.nranks = nranks
        self.events = [] if traced else None
        self._rows = {}

    def note(self, kind, rank, peer, name, elements=(), nbytes=0, row=-1, at_least=0, cause=""):
        """Append an event, with the line of the program that caused it."""
        frame = sys._getframe(2)
        while frame.f_code.co_filename in _INSIDE:
            frame = frame.f_back
        code = frame.f_code
        self.events.append(
            Event(kind, rank, peer, name, elements, nbytes, row, at_least, cause, code.co_filename, frame.f_lineno)
        )

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

    def __init__(self, rank, parts):
        self.local, self._parts = parts[rank], parts

    def view(self, peer, at, elements):
        """The part of `peer` at `at`."""
        return self._parts[peer][at]

    def store(self, peer, at, elements, value):
        """Write `value` there."""
        self._parts[peer][at] = value

    def replace(self, peer, start, words):
        """Write 64-bit words from `start` on, each at once."""
        self._parts[peer].reshape(-1)[start : start + len(words)] = words


def _asked(kind, name, shape, dtype):
    return f'{kind}("{name}", {shape}, {dtype})' if kind == "window" else f'{kind}("{name}", rows={shape[0]})'


_INSIDE = {__file__, __file__.replace("windows.py", "context.py")}


@lru_cache(maxsize=4096)
def _flat(shape, key):
    """The flat indices of an index in a window of that shape; IndexError when it leaves the window.

    The parts of `key` are indices, and slices as (start, stop, step).
    """
    for part, length in zip(key, shape, strict=False):
        if isinstance(part, tuple) and part[2] in (None, 1):
            _inside(part[0] or 0, length if part[1] is None else part[1], length)
    if len(shape) == len(key) == 1 and isinstance(key[0], tuple) and key[0][2] in (None, 1):
        start, stop = key[0][0] or 0, shape[0] if key[0][1] is None else key[0][1]
        return range(start, max(start, stop))
    index = tuple(slice(*part) if isinstance(part, tuple) else part for part in key)
    flat = np.sort(np.arange(int(np.prod(shape))).reshape(shape)[index].ravel()).tolist()
    whole = range(flat[0], flat[-1] + 1) if flat else range(0)
    return whole if len(whole) == len(flat) else tuple(flat)


def _inside(start, stop, length):
    if not (0 <= start <= length and 0 <= stop <= length):
        raise IndexError(f"{start}:{stop} leaves the {length} elements")


def _spell(at):
    if isinstance(at, slice):
        return f"{'' if at.start is None else at.start}:{'' if at.stop is None else at.stop}"
    return str(at)

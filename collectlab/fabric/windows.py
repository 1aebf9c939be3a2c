"""Windows and signals: what a kernel stands on, the same on every fabric.

A fabric hands out memory that every rank can reach, counts notifications, and decides who goes on when.
Everything that a learner calls, and every check of it, is here.
"""

import operator
import sys
from functools import lru_cache

import numpy as np

from collectlab.trace.events import LOAD, NOTIFY, STORE, WAIT, Event

WHOLE = slice(None)


class Window:
    """Memory of one name on every rank: `shape` elements of `dtype` each, stored to and loaded from by all.

    `at` is a slice or an index tuple, as NumPy takes it, and must lie inside the window. Loads return copies.
    """

    def __init__(self, fabric, rank, name, memories):
        self.name, self.rank = name, rank
        self.shape, self.dtype = memories[rank].shape, memories[rank].dtype
        self._fabric, self._memories = fabric, memories

    def store(self, value, at=WHOLE):
        """Write `value` into this rank's part."""
        self._store(self.rank, value, at, "store")

    def load(self, at=WHOLE):
        """A copy of this rank's part."""
        return self._load(self.rank, at, "load")

    def remote_store(self, peer, value, at=WHOLE):
        """Write `value` into the part of `peer` (a push)."""
        self._store(self._peer(peer, at, "remote_store"), value, at, "remote_store")

    def remote_load(self, peer, at=WHOLE):
        """A copy of the part of `peer` (a pull)."""
        return self._load(self._peer(peer, at, "remote_load"), at, "remote_load")

    def _peer(self, peer, at, call):
        if not isinstance(peer, int | np.integer) or not 0 <= peer < len(self._memories):
            raise IndexError(
                f'rank {self.rank}: window "{self.name}".{call}(peer={peer!r}, at={_spell(at)}): '
                f"peers are ranks 0 to {len(self._memories) - 1}"
            )
        return int(peer)

    def _load(self, peer, at, call):
        elements = self._elements(at, call)
        fabric = self._fabric
        fabric.pause(self.rank)
        value = self._memories[peer][at].copy()
        if fabric.events is not None:
            fabric.note(LOAD, self.rank, peer, self.name, elements, value.nbytes)
        return value

    def _store(self, peer, value, at, call):
        elements = self._elements(at, call)
        fabric = self._fabric
        place = self._memories[peer][at]
        shape, dtype = np.shape(value), getattr(value, "dtype", None)
        if shape != place.shape or (dtype is not None and dtype != self.dtype):
            raise ValueError(
                f'rank {self.rank}: window "{self.name}".{call}(value, at={_spell(at)}): the slice holds '
                f"{place.shape} of {self.dtype}, the value is {shape} of {dtype or type(value).__name__}"
            )
        fabric.pause(self.rank)
        self._memories[peer][at] = value
        if fabric.events is not None:
            fabric.note(STORE, self.rank, peer, self.name, elements, place.nbytes)

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
        return f"Window({self.name!r}, {self.shape}, {self.dtype}, rank {self.rank} of {len(self._memories)})"


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
        self._fabric.pause(self.rank)
        count = self._fabric.notify(self.rank, peer, self.name, row)
        if self._fabric.events is not None:
            self._fabric.note(NOTIFY, self.rank, peer, self.name, None, 0, row, count)

    def wait(self, peer, row, at_least):
        """Wait until `peer` has notified this rank on `row` at least so often."""
        self._check(peer, row, "wait")
        self._fabric.pause(self.rank)
        self._fabric.wait(self.rank, peer, self.name, row, at_least)
        if self._fabric.events is not None:
            self._fabric.note(WAIT, self.rank, peer, self.name, None, 0, row, at_least)

    def _check(self, peer, row, call):
        nranks = self._fabric.nranks
        if not 0 <= peer < nranks:
            where = f'rank {self.rank}: signals "{self.name}".{call}(peer={peer!r}, row={row!r})'
            raise IndexError(f"{where}: peers are ranks 0 to {nranks - 1}")
        if not 0 <= row < self.rows:
            where = f'rank {self.rank}: signals "{self.name}".{call}(peer={peer!r}, row={row!r})'
            raise IndexError(f"{where}: rows are 0 to {self.rows - 1}")


class Fabric:
    """What the fabrics share. Each one adds memory(), pause(), notify() and wait()."""

    def __init__(self, nranks, traced=True):
        self.nranks = nranks
        self.events = [] if traced else None

    def note(self, kind, rank, peer, name, elements, nbytes, row=-1, at_least=0):
        """Append an event, with the line of the program that caused it."""
        frame = sys._getframe(2)
        while frame.f_code.co_filename in _INSIDE:
            frame = frame.f_back
        code = frame.f_code
        self.events.append(
            Event(kind, rank, peer, name, elements, nbytes, row, at_least, code.co_filename, frame.f_lineno)
        )


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

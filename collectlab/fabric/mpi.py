"""The MPI fabric: shared memory inside one host, one-sided communication (RMA) between hosts."""

import atexit
import gc
import os
import sys
import time
import weakref

import numpy as np
from mpi4py import MPI

from collectlab.fabric.windows import Fabric, SharedMemory

_LINE = 8  # int64 cells: each has a cache line of its own, so that no writer disturbs another's cell
_LOOKS = 2000  # at a cell before a rank gives up its core, some 100 us; 1 where ranks have to share cores
_LONG = 0.2  # seconds after which a wait is told to others
_YIELDS = 20_000  # looks, each after giving it up, before a rank sleeps between two of them; some 10 ms
_ARENA = 1 << 20  # bytes of each rank: small windows lie side by side in one of MPI's, of which there are some 2,000
_SMALL = _ARENA // 16
_SHARED = "/dev/shm"  # where Linux keeps the memory that ranks share
_RANKS_PER_HOST = "COLLECTLAB_RANKS_PER_HOST"  # a variable: so many ranks in turn are taken for those of one host


def fabric(comm, traced=True):
    """The fabric for the ranks of `comm`; collective."""
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    if n := os.environ.get(_RANKS_PER_HOST):
        if not n.isdecimal() or int(n) == 0:
            raise ValueError(f"the variable {_RANKS_PER_HOST} is {n!r}: a number of ranks is accepted, 1 or more")
        whole, host = host, host.Split(comm.rank // int(n))
        whole.Free()
    if comm.allreduce(host.size == comm.size, MPI.LAND):
        host.Free()  # warm ranks make a fabric for each run, and MPI has some 2,000 communicators
        return SharedWindows(comm, traced)
    return OneSided(comm, host, traced)


class _Windows(Fabric):
    """What both have: windows and signals that are made together and freed together."""

    in_place = True
    ends_with_run = True  # else what is `opened` is freed by who keeps it
    now = staticmethod(time.monotonic)

    def __init__(self, comm, traced=True):
        self.told = lambda waiting: None  # called with a long wait, as in Trace.waiting, and with None after it
        self.comm, self.started, self.asked = comm.Dup(), time.monotonic(), []
        super().__init__(comm.size, traced)
        self.told_of_steps = traced
        self._looks = _LOOKS if comm.size <= len(os.sched_getaffinity(0)) else 1
        self.opened = _Opened(self.comm)
        self._windows, self._memories, self._cells, self._generations = self.opened.windows, {}, {}, {}
        self._arena, self._used, self._boards, self._meetings = None, 0, {}, {}

    def memory(self, rank, name, shape, dtype, fill=None):
        """The memory of a window; collective when it is new."""
        wanted = ("window", name, shape, np.dtype(dtype))
        if wanted not in self._memories:
            began = time.monotonic()
            self._together(rank, wanted)
            self._memories[wanted] = self._allocate(rank, shape, wanted[3], fill)
            self.asked.append((began, time.monotonic()))
        return self._memories[wanted]

    def _allocate(self, rank, shape, dtype, fill=None):
        memory = self._made(rank, shape, dtype, *self._room(int(np.prod(shape)) * dtype.itemsize))
        if fill is not None:
            memory.local[:] = fill
            self.comm.Barrier()
        return memory

    def _room(self, nbytes):
        """Room for so many bytes on each rank: what _open returns, and the place in it; the same on all ranks."""
        nbytes += -nbytes % 64  # what is written often by different ranks shares no line of the cache
        if nbytes > _SMALL:
            return self._open(nbytes), 0
        if self._arena is None or self._used + nbytes > _ARENA:
            self._arena, self._used = self._open(_ARENA), 0
        self._used += nbytes
        return self._arena, self._used - nbytes

    def generation(self, rank, name, rows):
        """How often this rank has asked for signals of this name, this time included."""
        made = self._generations.get(name, 0) + 1
        if made == 1 or self._rows[name] != rows:
            began = time.monotonic()
            self.keep_rows(rank, name, rows)
            self._together(rank, ("signals", name, (rows,), None))
            self._cells[name] = self._allocate(rank, (rows, self.nranks, _LINE), np.dtype(np.int64), 0)
            self.asked.append((began, time.monotonic()))
        self._generations[name] = made
        return made

    def _together(self, rank, wanted):
        for peer, other in enumerate(self.comm.allgather(wanted)):
            self.agree(rank, wanted, peer, other)

    def pause(self, rank):
        """Real ranks go on by themselves; it is only noted when a step begins."""
        self.began = time.monotonic()

    def clock(self, over=True):
        """When the program of this rank began and ended, and when it asked for memory: the fields of a Clock."""
        return self.started, time.monotonic() if over else None, self.asked

    def wait(self, rank, peer, name, row, at_least):
        """Come back when the cell of `peer` has reached `at_least`; give up the core meanwhile."""
        cell = self._cells[name].local[row, peer]
        self._until(lambda: cell[0] >= at_least, (rank, peer, name, row, at_least), lambda: int(cell[0]))

    def post(self, rank, peer, name, slot, memory, start, words, lap):
        """Write packets. Each is whole for whoever sees its flag, so nothing has to follow."""
        memory.replace(peer, start, words)

    def take(self, rank, peer, name, slot, words, lap):
        """Come back when every packet carries the flag."""
        self._until(lambda: (words >> 32 == lap).all(), (rank, peer, name, slot, lap), lambda: int(words[0] >> 32))

    def _until(self, there, wait, count):
        looks, began, long = 0, 0.0, False
        while not there():
            looks += 1
            self._progress()
            if looks < _YIELDS:
                os.sched_yield()  # and not time.sleep(0), which takes 75 us: the kernel's timers have some slack
            else:
                time.sleep(0.0005)
            if looks % 256 == 0 and not long:
                began = began or time.monotonic()
                if long := time.monotonic() - began > _LONG:
                    self.told((self.waiting(sys._getframe(), *wait), count()))
        self._windows[0].Sync()
        if long:
            self.told(None)

    def _keep(self, window):
        window.Lock_all(MPI.MODE_NOCHECK)
        self._windows.append(window)
        return window

    def free(self):
        """Free the windows; collective. Without it the ranks would hang in MPI_Finalize.

        Where an array on their memory is still referred to, on any rank, that memory is kept until a later `free`
        or the end of the process. A window refuses to be used any more in either case.
        """
        for memories in (self._memories, self._cells, self._boards, self._meetings):
            memories.clear()
        self._arena, self.told_of_steps, self.pause, self.meet = None, True, _over, _over
        if not _kept:
            atexit.register(_free_kept)
        _kept.append(self.opened)
        mine = [opened.in_use for opened in _kept]
        if any(mine):
            gc.collect()
            mine = [opened.in_use for opened in _kept]
        held = np.array(mine)
        self.comm.Allreduce(MPI.IN_PLACE, held, MPI.LOR)
        unused = [opened for opened, in_use in zip(_kept, held, strict=True) if not in_use]
        _kept[:] = [opened for opened, in_use in zip(_kept, held, strict=True) if in_use]
        for opened in unused:
            opened.free()


_kept = []  # what freed fabrics had opened and somebody still refers to; the same on all ranks


def _free_kept():
    while _kept:
        _kept.pop().free()


def _over(rank, *_):
    raise RuntimeError(
        f"rank {rank}: a window or signals of a run that is over; they end with their run: ask for new ones with "
        "ctx.window(...) and ctx.signals(...)"
    )


def _have_room(nbytes, nranks):
    """MemoryError where the host's shared memory cannot hold that: MPI takes it, and the first store would crash."""
    if nranks > 1 and nbytes > _ARENA and os.path.isdir(_SHARED):  # of an arena little may be used
        there = os.statvfs(_SHARED)
        free = there.f_bavail * there.f_frsize
        if nbytes * nranks > free:
            raise MemoryError(
                f"windows of {nbytes >> 20} MiB on each of {nranks} ranks of one host: {free >> 20} MiB are free in "
                f"{_SHARED}; take smaller windows, or give it more (in a container: docker run --shm-size=1g)"
            )


class _Opened:
    """What a fabric has taken from MPI."""

    def __init__(self, *comms):
        self.windows, self.comms, self._arrays = [], [*comms], []

    def array(self, buffer):
        """The bytes of a buffer; `in_use` as long as anything refers to them."""
        array = np.frombuffer(buffer, np.uint8)
        self._arrays.append(weakref.ref(array))
        return array

    @property
    def in_use(self):
        """Whether there is still an array, a window or a signal of this rank on that memory."""
        return any(array() is not None for array in self._arrays)

    def free(self):
        """Give all of it back; collective."""
        while self.windows:  # the last first: one may lie on the memory of another
            window = self.windows.pop()
            window.Unlock_all()
            window.Free()
        while self.comms:
            self.comms.pop().Free()


class SharedWindows(_Windows):
    """Ranks that share a host: every part of a window is memory that each of them can reach."""

    def __init__(self, comm, traced=True):
        super().__init__(comm, traced)
        self._peers = [peer for peer in range(comm.size) if peer != comm.rank]

    def _open(self, nbytes):
        """Memory of so many bytes on each rank: the buffers, by rank."""
        _have_room(nbytes, self.nranks)
        window = self._keep(MPI.Win.Allocate_shared(nbytes, 1, comm=self.comm))
        return [self.opened.array(window.Shared_query(peer)[0]) for peer in range(self.nranks)]

    def _made(self, rank, shape, dtype, buffers, at):
        return SharedMemory(rank, [np.ndarray(shape, dtype, buffer, at) for buffer in buffers])

    def _flat_cells(self, name):
        """The cells of signals on every rank as flat memoryviews: one number is read much faster than by NumPy."""
        found = self._boards.get(name)
        if found is None:
            found = self._boards[name] = [memoryview(part.reshape(-1)) for part in self._cells[name].parts]
        return found

    def notify(self, rank, peer, name, row):
        """Raise the cell of this rank at `peer`; returns its new count."""
        cells, at = self._flat_cells(name)[peer], (row * self.nranks + rank) * _LINE
        count = cells[at] + 1
        self._windows[0].Sync()  # a memory barrier: what was stored before is seen before the signal
        cells[at] = count
        return count

    def meet(self, rank, name, row, at_least):
        """A barrier, unless each of its steps is to be noted."""
        if self.events is not None:
            return False
        cells, mine, given, awaited, sync = self._meetings.get((name, row)) or self._meeting(rank, name, row)
        sync()
        for board in given:
            board[mine] += 1
        for peer, at in awaited:
            if cells[at] < at_least:
                self._look(cells, at, (rank, peer, name, row, at_least))
        sync()
        return True

    def _meeting(self, rank, name, row):
        """What a barrier on that row touches, found once: the cells of this rank, the place of its own in those of
        its peers, these, and (peer, place among its own) of each that it waits for."""
        boards, first = self._flat_cells(name), row * self.nranks
        awaited = [(peer, (first + peer) * _LINE) for peer in self._peers]
        given, sync = [boards[peer] for peer in self._peers], self._windows[0].Sync
        self._meetings[name, row] = boards[rank], (first + rank) * _LINE, given, awaited, sync
        return self._meetings[name, row]

    def wait(self, rank, peer, name, row, at_least):
        """Come back when the cell of `peer` has reached `at_least`."""
        at = (row * self.nranks + peer) * _LINE
        self._look(self._flat_cells(name)[rank], at, (rank, peer, name, row, at_least))
        self._windows[0].Sync()

    def _look(self, cells, at, wait):
        at_least = wait[-1]
        for _ in range(self._looks):
            if cells[at] >= at_least:
                return
        self._until(lambda: cells[at] >= at_least, wait, lambda: cells[at])

    def _progress(self):
        """Shared memory needs none."""


class OneSided(_Windows):
    """Ranks on several hosts: a part on another host is read with MPI_Get and written with MPI_Put.

    The parts of the ranks of `host`, a communicator, are memory that each of them can reach. A rank that computes
    without calling MPI may keep those of other hosts waiting for its memory until its next call: whether MPI moves
    data meanwhile is left to the library (MPI 4.1, section 12.7.3, Progress).
    """

    def __init__(self, comm, host, traced=True):
        super().__init__(comm, traced)
        self._given, self._host = {}, host
        self.opened.comms.append(host)
        self._mates = host.allgather(comm.rank)

    def _open(self, nbytes):
        """Memory of so many bytes on each rank: a window, and the buffers of this host, by rank."""
        _have_room(nbytes, self._host.size)
        shared = self._keep(MPI.Win.Allocate_shared(nbytes, 1, comm=self._host))
        buffers = {mate: shared.Shared_query(at)[0] for at, mate in enumerate(self._mates)}
        window = self._keep(MPI.Win.Create(buffers[self.comm.rank], 1, comm=self.comm))
        return window, {mate: self.opened.array(buffer) for mate, buffer in buffers.items()}

    def _made(self, rank, shape, dtype, opened, at):
        window, buffers = opened
        parts = {mate: np.ndarray(shape, dtype, buffer, at) for mate, buffer in buffers.items()}
        return _RemoteMemory(rank, window, parts, at)

    def notify(self, rank, peer, name, row):
        """Raise the cell of this rank at `peer`; returns its new count."""
        count = self._given[peer, name, row] = self._given.get((peer, name, row), 0) + 1
        memory = self._cells[name]
        self._windows[0].Sync()
        memory.replace(peer, (row * self.nranks + rank) * _LINE, np.array([count]))
        return count

    def _progress(self):
        """A call of MPI, in which it may serve the others, and a look at what they have written."""
        self.comm.Iprobe()
        self._windows[0].Sync()


class _RemoteMemory:
    """Memory of one window of which only the parts of this host can be reached without MPI: rank -> array."""

    shared = False

    def __init__(self, rank, window, parts, at):
        self.window, self.parts, self.local, self._at = window, parts, parts[rank], at
        self._shown = {mate: part.view() for mate, part in parts.items()}
        for part in self._shown.values():
            part.flags.writeable = False

    def view(self, peer, at, elements):
        """The part of `peer` at `at`, read-only: from another host, a copy."""
        if peer in self._shown:
            return self._shown[peer][at]
        found = np.empty(np.shape(self.local[at]), self.local.dtype)
        if found.size:
            self.window.Get([found, found.nbytes, MPI.BYTE], peer, self._target(at, elements))
            self.window.Flush(peer)
        found.flags.writeable = False
        return found

    def store(self, peer, at, elements, value):
        """Write `value` there, and come back when it is there."""
        if peer in self.parts:
            self.parts[peer][at] = value
            return
        value = np.ascontiguousarray(np.broadcast_to(value, np.shape(self.local[at])), self.local.dtype)
        if value.size:
            self.window.Put([value, value.nbytes, MPI.BYTE], peer, self._target(at, elements))
            self.window.Flush(peer)

    def replace(self, peer, start, words):
        """Write 64-bit words from `start` on, each at once: MPI_Accumulate is atomic by element."""
        if peer in self.parts:
            self.parts[peer].reshape(-1)[start : start + len(words)] = words
        elif len(words):
            place = [self._at + 8 * start, len(words), MPI.INT64_T]
            self.window.Accumulate([words, len(words), MPI.INT64_T], peer, place, MPI.REPLACE)
            self.window.Flush(peer)

    def _target(self, at, elements):
        """Where the elements lie: displacement, count and type, in bytes."""
        size = self.local.itemsize
        if isinstance(elements, range) and not _turned(at):
            return [self._at + elements.start * size, len(elements) * size, MPI.BYTE]
        places = tuple(np.arange(self.local.size).reshape(self.local.shape)[at].ravel() * size)
        if (size, places) not in _SCATTERED:
            _SCATTERED[size, places] = MPI.BYTE.Create_hindexed_block(size, places).Commit()
        return [self._at, 1, _SCATTERED[size, places]]


_SCATTERED = {}  # the datatypes of slices with gaps, each made once


def _turned(at):
    """Whether a slice runs backwards."""
    parts = at if isinstance(at, tuple) else (at,)
    return any(isinstance(part, slice) and (part.step or 1) < 0 for part in parts)

"""The MPI fabric inside one host: windows are shared memory, signals are counters in it."""

import time

import numpy as np
from mpi4py import MPI

from collectlab.fabric.windows import Fabric

_LINE = 8  # int64 cells: each has a cache line of its own, so that no writer disturbs another's cell


class SharedWindows(Fabric):
    """Windows and signals of the ranks of `comm`, which must share a host."""

    def __init__(self, comm, traced=True):
        self.comm = comm.Dup()
        super().__init__(comm.size, traced)
        self._windows, self._memories, self._cells, self._generations = [], {}, {}, {}
        self._notified = {}

    def memory(self, rank, name, shape, dtype):
        """The memories of a window, one per rank; collective when the name is new."""
        wanted = (shape, np.dtype(dtype))
        found = self._memories.get(name)
        if found is None:
            found = self._memories[name] = self._allocate(rank, name, wanted)
        if (found[0].shape, found[0].dtype) != wanted:
            raise ValueError(
                f'rank {rank}: window("{name}", {shape}, {wanted[1]}): an earlier call made it with '
                f"shape {found[0].shape} and dtype {found[0].dtype}; all must agree"
            )
        return found

    def _allocate(self, rank, name, wanted):
        everyone = self.comm.allgather((name, *wanted))
        for peer, other in enumerate(everyone):
            if other != everyone[rank]:
                raise ValueError(
                    f'rank {rank}: window("{name}", {wanted[0]}, {wanted[1]}): at the same time rank {peer} asks '
                    f'for window("{other[0]}", {other[1]}, {other[2]}); all must agree'
                )
        shape, dtype = wanted
        nbytes = int(np.prod(shape)) * dtype.itemsize
        window = MPI.Win.Allocate_shared(max(nbytes, 1), dtype.itemsize, comm=self.comm)
        window.Lock_all(MPI.MODE_NOCHECK)
        self._windows.append(window)
        return [
            np.ndarray(shape, dtype, buffer=window.Shared_query(peer)[0])
            if nbytes
            else np.empty(shape, dtype)
            for peer in range(self.nranks)
        ]

    def generation(self, rank, name, rows):
        """How often this rank has asked for signals of this name, this time included."""
        if name not in self._cells:
            self._cells[name] = self._allocate(
                rank, f"signals {name}", ((rows, self.nranks, _LINE), np.dtype(np.int64))
            )
            self._cells[name][rank][:] = 0
            self.comm.Barrier()
        self._generations[name] = self._generations.get(name, 0) + 1
        return self._generations[name]

    def pause(self, rank):
        """Real ranks go on by themselves."""

    def notify(self, rank, peer, name, row):
        """Raise the cell of this rank at `peer`; returns its new count."""
        cell = self._cells[name][peer][row, rank]
        count = int(cell[0]) + 1
        self._windows[0].Sync()  # a memory barrier: what was stored before is seen before the signal
        cell[0] = count
        return count

    def wait(self, rank, peer, name, row, at_least):
        """Come back when the cell of `peer` has reached `at_least`; give up the core meanwhile."""
        cell = self._cells[name][rank][row, peer]
        spins = 0
        while cell[0] < at_least:
            spins += 1
            time.sleep(0 if spins < 2000 else 0.0005)
        self._windows[0].Sync()

    def free(self):
        """Free the windows; collective. Without it the ranks would hang in MPI_Finalize."""
        for window in self._windows:
            window.Unlock_all()
            window.Free()
        self.comm.Free()

"""The first argument of every program."""

import sys


class Context:
    """What a rank knows.

    rank, nranks   its index in the group, and the group's size
    comm           its mpi4py communicator
    device         the name of the device that holds its data ("cpu", "cuda:1", or what the rank map says)
    xp             the array module of that device: cupy on a GPU, numpy elsewhere
    """

    def __init__(self, rank, nranks, comm, device, array_module, progress):
        self.rank, self.nranks, self.comm, self.device = rank, nranks, comm, device
        self._array_module, self._progress = array_module, progress

    @property
    def xp(self):
        return __import__(self._array_module)

    def log(self, text):
        """Write one line to this rank's log, at once."""
        print(text, file=sys.stdout, flush=True)

    def progress(self, done, total):
        """Say how far this rank is: `done` of `total`, in any unit."""
        self._progress(done, total)

    def __repr__(self):
        return f"Context(rank={self.rank}, nranks={self.nranks}, device={self.device!r})"

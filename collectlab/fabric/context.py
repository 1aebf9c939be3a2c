"""The first argument of every program."""

from functools import cached_property


class Context:
    """What a rank knows, and what it can do beside computing.

    rank, nranks   its index in the group, and the group's size
    comm           its mpi4py communicator; None when simulated
    device         the name of the device that holds its data ("cpu:0", "cuda:1", or what the rank map says)
    xp             the array module of that device: cupy on a GPU, numpy elsewhere
    """

    def __init__(self, rank, nranks, comm, device, array_module, fabric, log, progress):
        self.rank, self.nranks, self.comm, self.device = rank, nranks, comm, device
        self._array_module, self._make_fabric = array_module, fabric
        self._log, self._progress = log, progress
        self._windows = {}

    @cached_property
    def xp(self):
        """The array module: numpy or cupy."""
        return __import__(self._array_module)

    def log(self, text):
        """Write one line to this rank's log, at once."""
        self._log(text)

    def progress(self, done, total):
        """Say how far this rank is: `done` of `total`, in any unit; a total of 0 is one that is not known."""
        try:
            self._progress(float(done), float(total))
        except (TypeError, ValueError):
            said = f"progress(done={done!r}, total={total!r})"
            raise TypeError(f"{said}: two numbers are accepted, such as progress(3, 10)") from None

    def window(self, name, shape, dtype):
        """The Window of that name: every rank calls this, with the same shape and dtype.

        The same name, shape and dtype is the same memory, also in a later call.
        """
        if type(shape) is not int:
            shape = tuple(shape) if hasattr(shape, "__iter__") else shape
        found = self._windows.get((name, shape, dtype))
        if found is None:
            found = self._fabric.window(self.rank, name, shape if type(shape) is tuple else (shape,), dtype, self.xp)
            self._windows[name, shape, dtype] = found
        return found

    def signals(self, name, rows):
        """The Signals of that name, with so many rows; each call begins a new generation."""
        return self._fabric.signals(self.rank, name, rows)

    def packets(self, name, slots, count, dtype):
        """Packets of that name: so many slots, each for `count` elements of `dtype` from every peer."""
        import numpy as np  # here, as a rank that uses no windows starts without it, in half the time

        from collectlab.fabric.packets import Packets, words_for

        name = f"{name}[{slots} x {count} {np.dtype(dtype)}]"  # other sizes are other packets, with laps of their own
        memory = self._fabric.memory(self.rank, name, (slots, self.nranks, words_for(count, dtype)), "int64", 0)
        return Packets(self._fabric, self.rank, name, memory, count, dtype, self.xp)

    def barrier(self, signals, row):
        """Notify every peer on `row`, then wait for every peer's notification of this generation.

        A row serves one barrier of a generation: counters only go up, so a second barrier on it waits for
        nothing.
        """
        signals.barrier(row)

    def forget_windows(self):
        """Let go of the windows that were asked for, for who frees the memory that they lie on."""
        self._windows.clear()

    @cached_property
    def _fabric(self):
        # made when it is first needed: most programs of the first lessons only use the communicator
        return self._make_fabric()

    def __repr__(self):
        return f"Context(rank={self.rank}, nranks={self.nranks}, device={self.device!r})"

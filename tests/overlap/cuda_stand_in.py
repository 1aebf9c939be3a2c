"""A stand-in for CuPy with streams, events and NCCL, stricter than a GPU.

What is given to a stream for communication is done as late as the events allow, so that who does not wait finds old
values. And every access is held against the earlier ones: two streams that touch the same bytes, one of them writing,
must be ordered by events. `unordered` lists those that are not. A GPU would mostly let such a program pass.
"""

import operator
import threading

import numpy as np


class World:
    """What the ranks share: where the sources of a collective meet."""

    def __init__(self, nranks):
        self.nranks, self.sources = nranks, [None] * nranks
        self.barrier = threading.Barrier(nranks, timeout=20)

    def exchange(self, rank, source):
        """The sources of all ranks, in rank order."""
        self.sources[rank] = source
        self.barrier.wait()
        found = list(self.sources)
        self.barrier.wait()
        return found


class Cupy:
    """The module, as one rank sees it."""

    def __init__(self, world, rank):
        self.world, self.rank, self.cuda = world, rank, Cuda(self)
        self.current, self.accesses, self.unordered = None, [], []

    def touch(self, stream, held, writes):
        """Note an access, and hold it against those before it."""
        if stream is None:
            raise AssertionError("an array was used outside of a stream")
        low, high = np.lib.array_utils.byte_bounds(held)
        stream.clock[stream.ptr] = stream.clock.get(stream.ptr, 0) + 1
        for other, time, start, stop, wrote in self.accesses:
            clash = start < high and low < stop and (writes or wrote)
            if clash and stream.clock.get(other, 0) < time:
                self.unordered.append((other, stream.ptr))
        self.accesses.append((stream.ptr, stream.clock[stream.ptr], low, high, writes))

    def array(self, held):
        return Array(self, held)

    def empty(self, count, dtype):
        assert self.current is not None, "memory of the default stream"
        return self.array(np.full(count, 99, dtype))

    def asarray(self, value):
        return value if isinstance(value, Array) else self.array(np.array(value))

    def tanh(self, x):
        return self.array(np.tanh(x.read()))

    def matmul(self, a, b, out):
        out.write()[...] = a.read() @ b.read()


class Array:
    """An array of the device, which NumPy may not touch."""

    __array_ufunc__ = None

    def __init__(self, cupy, held):
        self.cupy, self.held = cupy, held
        self.dtype, self.size, self.shape = held.dtype, held.size, held.shape
        self.data = type("Pointer", (), {"ptr": Pointer(held)})

    def __array__(self, *_, **__):
        raise TypeError("implicit conversion to a NumPy array is not allowed; use .get()")

    def read(self):
        self.cupy.touch(self.cupy.current, self.held, False)
        return self.held

    def write(self):
        self.cupy.touch(self.cupy.current, self.held, True)
        return self.held

    def get(self):
        for stream in self.cupy.cuda.streams:
            assert not stream.queue and stream.synchronized, "read before its stream was synchronized"
        return self.held.copy()

    def copy(self):
        return self.cupy.array(self.read().copy())

    def reshape(self, *shape):
        return self.cupy.array(self.held.reshape(*shape))

    @property
    def T(self):
        return self.cupy.array(self.held.T)

    def __iter__(self):
        return (self.cupy.array(row) for row in self.held)

    def __getitem__(self, at):
        return self.cupy.array(self.held[at])

    def __setitem__(self, at, value):
        if isinstance(value, np.ndarray):
            raise TypeError(f"Unsupported type {type(value)}")
        self.write()[at] = value.read() if isinstance(value, Array) else value


def _operator(name):
    function = getattr(operator, name)

    def call(a, b):
        return a.cupy.array(np.asarray(function(a.read(), b.read() if isinstance(b, Array) else b)))

    def turned(a, b):
        return a.cupy.array(np.asarray(function(b, a.read())))

    def in_place(a, b):
        a.write()[...] = function(a.read(), b.read() if isinstance(b, Array) else b)
        return a

    return call, turned, in_place


for _name in ("add", "sub", "mul", "matmul", "pow"):
    for _prefix, _call in zip(("", "r", "i"), _operator(_name), strict=True):
        setattr(Array, f"__{_prefix}{_name}__", _call)


class Pointer(int):
    """An address that knows the memory there."""

    def __new__(cls, held):
        found = super().__new__(cls, held.ctypes.data)
        found.held = held
        return found


class Cuda:
    """cupy.cuda"""

    def __init__(self, cupy):
        self.streams, self.nccl = [], Nccl(cupy)

        class Stream(_Stream):
            def __init__(self, *, non_blocking):
                assert non_blocking, "such a stream is ordered with the default stream"
                super().__init__(cupy)

        self.Stream, self.Event = Stream, Event


class _Stream:
    def __init__(self, cupy):
        self.cupy, self.queue, self.clock, self.synchronized = cupy, [], {}, True
        cupy.cuda.streams.append(self)
        self.ptr = len(cupy.cuda.streams)

    def __enter__(self):
        assert self.cupy.current is None
        self.cupy.current, self.synchronized = self, False

    def __exit__(self, *_):
        self.cupy.current = None

    def wait_event(self, event):
        assert event.stream is not None, "an event that was never recorded orders nothing"
        if self is not event.stream:
            event.reach()
            for stream, time in event.clock.items():
                self.clock[stream] = max(self.clock.get(stream, 0), time)

    def drain(self, count=None):
        """Do what was given to it, as far as the first `count`."""
        while self.queue and count != 0:
            self.queue.pop(0)()
            count = None if count is None else count - 1

    def synchronize(self):
        self.drain()
        self.synchronized = True


class Event:
    """cupy.cuda.Event"""

    def __init__(self, *, disable_timing):
        assert disable_timing
        self.stream, self.clock, self.reached = None, {}, False

    def record(self, stream):
        self.stream, self.clock = stream, dict(stream.clock)
        stream.queue.append(self._reach)

    def _reach(self):
        self.reached = True

    def reach(self):
        """Let its stream come as far as here."""
        while not self.reached:
            self.stream.drain(1)


class Nccl:
    """cupy.cuda.nccl"""

    NCCL_INT64, NCCL_FLOAT32, NCCL_FLOAT64, NCCL_SUM = 4, 7, 8, 0

    def __init__(self, cupy):
        self._cupy = cupy

    def get_unique_id(self):
        return "the id of rank", self._cupy.rank

    def NcclCommunicator(self, ndev, commId, rank):
        assert commId == ("the id of rank", 0) and rank == self._cupy.rank and ndev == self._cupy.world.nranks
        return Communicator(self._cupy)


class Communicator:
    """NCCL's calls: each is only given to a stream."""

    def __init__(self, cupy):
        self._cupy = cupy

    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream):
        self._give(sendbuf, recvbuf, count, count, datatype, stream, lambda xs: sum(xs[1:], xs[0]))

    def reduceScatter(self, sendbuf, recvbuf, recvcount, datatype, op, stream):
        mine = slice(self._cupy.rank * recvcount, (self._cupy.rank + 1) * recvcount)
        ranks = self._cupy.world.nranks
        self._give(
            sendbuf, recvbuf, ranks * recvcount, recvcount, datatype, stream, lambda xs: sum(xs[1:], xs[0])[mine]
        )

    def allGather(self, sendbuf, recvbuf, count, datatype, stream):
        self._give(sendbuf, recvbuf, count, self._cupy.world.nranks * count, datatype, stream, np.concatenate)

    def _give(self, sendbuf, recvbuf, sends, gets, datatype, ptr, result):
        source, target = sendbuf.held, recvbuf.held
        assert (source.size, target.size) == (sends, gets)
        assert datatype == {"float32": 7, "float64": 8, "int64": 4}[source.dtype.name]
        cupy, stream = self._cupy, self._cupy.cuda.streams[ptr - 1]
        cupy.touch(stream, source, False)
        cupy.touch(stream, target, True)
        stream.synchronized = False

        def do():
            target[...] = result(cupy.world.exchange(cupy.rank, source.copy()))

        stream.queue.append(do)


class Comm:
    """What of MPI a plan uses on a GPU: rank 0's value for everyone."""

    def __init__(self, world, rank):
        self._world, self._rank = world, rank

    def bcast(self, value):
        return self._world.exchange(self._rank, value)[0]


def on_every_rank(nranks, program):
    """What program(ctx) returns on each rank, each in a thread of its own, and the Cupy of each rank."""
    world, results, errors = World(nranks), [None] * nranks, []
    modules = [Cupy(world, rank) for rank in range(nranks)]

    def body(rank):
        context = type("Context", (), {})()
        context.rank, context.nranks, context.xp, context.comm = rank, nranks, modules[rank], Comm(world, rank)
        try:
            results[rank] = program(context)
        except BaseException as error:
            errors.append(error)
            world.barrier.abort()

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(nranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results, modules

"""Plans carried out on real ranks: with MPI's requests where NumPy computes, with streams where CuPy does.

On the CPU the rank itself is the compute stream: what it computes is done when the call comes back, and each
collective is a request that goes on by itself, in no order with other requests. On a GPU every operation is only
given to a CUDA stream, the collectives are NCCL's, and events order the streams; the CPU waits at the end.
"""

import numpy as np

from collectlab.layout import Partition
from collectlab.overlap.plan import COMPUTE, Streams


def streams(ctx):
    """The Streams of a real rank, which carry a plan out on its device; `ctx` is the context of a program."""
    if ctx.comm is None:
        raise ValueError("streams(ctx): simulated ranks have no MPI; overlap.simulate carries a plan out there")
    return (OnRequests if ctx.xp is np else OnCuda)(ctx)


class _OnRanks(Streams):
    """Memory of the rank's device."""

    def __init__(self, ctx):
        super().__init__(ctx.rank, ctx.nranks, ctx.xp)
        self._comm, self._memory = ctx.comm, {}

    def _array(self, part):
        return self._memory[part.name][part.start : part.stop]


class OnRequests(_OnRanks):
    """The CPU: this process computes, and MPI works on requests."""

    def __init__(self, ctx):
        super().__init__(ctx)
        self._requests = {}  # the number of an event -> its request, until it was waited for

    def _make(self, part):
        self._memory[part.name] = np.empty(part.length, part.dtype)

    def _do(self, operation, event):
        if operation.kind != COMPUTE:
            for earlier in operation.after:
                self._wait(earlier)
            self._requests[event.number] = self._started(operation)
        elif operation.call is not None:
            reads = [self._array(part) for part in operation.reads]
            for array in reads:
                array.flags.writeable = False
            operation.call(*reads, *map(self._array, operation.writes))

    def _started(self, operation):
        source, target = self._array(operation.reads[0]), self._array(operation.writes[0])
        if operation.kind == "all_reduce":
            return self._comm.Iallreduce(source, target)
        if operation.kind == "reduce_scatter":
            return self._comm.Ireduce_scatter(source, target, self.counts(source.size))
        counts = self.counts(target.size)
        if len(set(counts)) == 1:
            return self._comm.Iallgather(source, target)
        displacements = Partition.uneven(target.size, self.nranks).displacements
        return self._comm.Iallgatherv(source, [target, (counts, displacements)])

    def _wait(self, event):
        request = self._requests.pop(event.number, None)
        if request is not None:
            request.Wait()

    def advance(self):
        """Test the requests that are under way: MPI goes on with them."""
        for request in self._requests.values():
            request.Test()

    def _read(self, parts):
        values = [self._array(part).copy() for part in parts]
        for request in self._requests.values():  # that nobody waited for: MPI still uses their memory
            request.Wait()
        return values


class OnCuda(_OnRanks):
    """A GPU: CUDA streams of CuPy, and NCCL.

    NCCL takes equal blocks only, and refuses two ranks on one GPU.
    """

    def __init__(self, ctx):
        super().__init__(ctx)
        self._cuda, self._nccl = ctx.xp.cuda, None
        self._streams, self._recorded = {}, {}

    def _stream(self, name):
        if name not in self._streams:
            self._streams[name] = self._cuda.Stream(non_blocking=True)  # the default stream would order all others
        return self._streams[name]

    def _make(self, part):
        with self._stream(COMPUTE):
            self._memory[part.name] = self.xp.empty(part.length, part.dtype)

    def _do(self, operation, event):
        stream = self._stream(operation.stream)
        if operation.kind != COMPUTE:
            for earlier in operation.after:
                stream.wait_event(self._recorded[earlier.number])
            self._start(operation, stream.ptr)
            self._note(event, stream)
        elif operation.call is not None:
            with stream:
                operation.call(*map(self._array, (*operation.reads, *operation.writes)))

    def _start(self, operation, stream):
        nccl, source, target = self._cuda.nccl, self._array(operation.reads[0]), self._array(operation.writes[0])
        if self._nccl is None:
            number = self._comm.bcast(nccl.get_unique_id() if self.rank == 0 else None)
            self._nccl = nccl.NcclCommunicator(self.nranks, number, self.rank)
        dtype = getattr(nccl, f"NCCL_{source.dtype.name.upper()}")
        block = min(source.size, target.size)
        if operation.kind == "all_reduce":
            self._nccl.allReduce(source.data.ptr, target.data.ptr, block, dtype, nccl.NCCL_SUM, stream)
            return
        if max(source.size, target.size) != block * self.nranks:
            raise ValueError(f"{operation}: NCCL takes equal blocks; pad to a multiple of {self.nranks} elements")
        if operation.kind == "reduce_scatter":
            self._nccl.reduceScatter(source.data.ptr, target.data.ptr, block, dtype, nccl.NCCL_SUM, stream)
        else:
            self._nccl.allGather(source.data.ptr, target.data.ptr, block, dtype, stream)

    def _note(self, event, stream):
        recorded = self._recorded[event.number] = self._cuda.Event(disable_timing=True)
        recorded.record(stream)

    def _record(self, event):
        self._note(event, self._stream(COMPUTE))

    def _wait(self, event):
        self._stream(COMPUTE).wait_event(self._recorded[event.number])

    def _read(self, parts):
        with self._stream(COMPUTE):
            values = [self._array(part).copy() for part in parts]
        for stream in self._streams.values():
            stream.synchronize()
        return [value.get() for value in values]

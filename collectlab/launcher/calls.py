"""The communicator that programs get: mpi4py's own, and it notes each blocking call while it lasts."""

import sys

from mpi4py import MPI

_COLLECTIVE = """Barrier Bcast Gather Gatherv Scatter Scatterv Allgather Allgatherv Alltoall Alltoallv
    Alltoallw Reduce Allreduce Reduce_scatter Reduce_scatter_block Scan Exscan
    barrier bcast gather scatter allgather alltoall reduce allreduce scan exscan""".split()
_SEND = "Send Ssend Bsend Rsend send ssend bsend Sendrecv sendrecv".split()
_RECEIVE = "Recv recv Probe probe Mprobe mprobe".split()


def traced(record):
    """COMM_WORLD with its calls noted in `record`; those of its duplicates and splits are noted too."""

    def noting(name, peer_at, collective):
        bare, word = getattr(MPI.Intracomm, name), name.encode()

        def call(self, *args, **kwargs):
            count, dtype = _message(args, kwargs) if name[0].isupper() else (-1, b"")
            peer = _peer(args, kwargs, peer_at) if peer_at is not None else -1
            record.enter(word, count, dtype, peer, sys._getframe(1), collective)
            try:
                return bare(self, *args, **kwargs)
            finally:
                record.leave()

        call.__name__, call.__doc__, call.__qualname__ = name, bare.__doc__, f"Intracomm.{name}"
        return call

    members = {name: noting(name, None, True) for name in _COLLECTIVE}
    members |= {name: noting(name, 1, False) for name in _SEND}
    members |= {name: noting(name, 0 if "robe" in name else 1, False) for name in _RECEIVE}
    return type("Intracomm", (MPI.Intracomm,), members)(MPI.COMM_WORLD)


def _message(args, kwargs):
    """Elements and dtype of the first buffer argument that is one."""
    for value in (*args[:2], *kwargs.values()):
        if value is None or value is MPI.IN_PLACE:
            continue
        if isinstance(value, (list, tuple)) and value:
            buffer, rest = value[0], value[1:]
            if rest and isinstance(rest[0], int):
                return rest[0], _dtype(buffer)
            value = buffer
        size = getattr(value, "size", None)
        if isinstance(size, int):
            return size, _dtype(value)
        try:
            return memoryview(value).nbytes, b"byte"
        except TypeError:
            return -1, b""
    return -1, b""


def _dtype(value):
    return str(getattr(value, "dtype", "")).encode()[:16]


def _peer(args, kwargs, at):
    value = kwargs.get("dest", kwargs.get("source", args[at] if len(args) > at else -1))
    return value if isinstance(value, int) and value >= 0 else -1

"""The communicator that programs get: mpi4py's own, and it notes each blocking call while it lasts."""

import os
import sys

from mpi4py import MPI

_COLLECTIVE = """Barrier Bcast Gather Gatherv Scatter Scatterv Allgather Allgatherv Alltoall Alltoallv
    Alltoallw Reduce Allreduce Reduce_scatter Reduce_scatter_block Scan Exscan
    barrier bcast gather scatter allgather alltoall reduce allreduce scan exscan""".split()
_SEND = "Send Ssend Bsend Rsend send ssend bsend Sendrecv sendrecv".split()
_RECEIVE = "Recv recv Probe probe Mprobe mprobe".split()
_BUFFERS = {name for name in (*_COLLECTIVE, *_SEND, *_RECEIVE) if name[0].isupper()} - {"Barrier", "Probe", "Mprobe"}
_MAKING = "Dup Clone Split Split_type Create".split()


def traced(record):
    """COMM_WORLD with its calls noted in `record`; those of communicators made from it are noted too.

    It takes the place of `MPI.COMM_WORLD`, for programs that use that one. Collective calls are numbered where the
    communicator's attribute `numbered` is set.
    """

    def noting(name, peer_at, making=False):
        bare, word = getattr(MPI.Intracomm, name), name.encode()

        def call(self, *args, **kwargs):
            count, dtype = _message(name, args, kwargs) if name in _BUFFERS else (-1, b"")
            peer = -1 if peer_at is None else _peer(args, kwargs, peer_at)
            numbered = self.numbered and peer_at is None and not making
            record.enter(word, count, dtype, peer, sys._getframe(1), numbered)
            try:
                value = bare(self, *args, **kwargs)
            finally:
                record.leave()
            return Intracomm(value) if making and value else value

        call.__name__, call.__doc__, call.__qualname__ = name, bare.__doc__, f"Intracomm.{name}"
        return call

    def abort(self, errorcode=0):
        record.enter(b"Abort", errorcode, b"", -1, sys._getframe(1), False)
        os._exit(errorcode & 0xFF)  # MPI would end the others at once, before anyone could see where they are

    members = {name: noting(name, None) for name in _COLLECTIVE}
    members |= {name: noting(name, 1) for name in _SEND}
    members |= {name: noting(name, 0 if "robe" in name else 1) for name in _RECEIVE}
    members |= {name: noting(name, None, making=True) for name in _MAKING}
    Intracomm = type("Intracomm", (MPI.Intracomm,), {**members, "Abort": abort, "numbered": False})
    MPI.COMM_WORLD = Intracomm(MPI.COMM_WORLD)
    return MPI.COMM_WORLD


def _message(name, args, kwargs):
    """Elements and dtype of what this rank gives, or gets in a scatter; -1 where MPI_IN_PLACE hides it."""
    buffers = [*args[:2], *(kwargs[key] for key in ("buf", "sendbuf", "recvbuf") if key in kwargs)]
    if name.startswith("Scatter"):
        buffers = buffers[1:]
    elif buffers and buffers[0] is MPI.IN_PLACE and not name.startswith(("Gather", "Allgather")):
        buffers = buffers[1:]  # input and result have the same length
    value = buffers[0] if buffers else None
    if isinstance(value, (list, tuple)) and value:
        value, rest = value[0], value[1:]
        if rest and isinstance(rest[0], int):
            return rest[0], _dtype(value)
    size = getattr(value, "size", None)
    if isinstance(size, int):
        return size, _dtype(value)
    try:
        return memoryview(value).nbytes, b"byte"
    except TypeError:
        return -1, b""


def _dtype(value):
    return str(getattr(value, "dtype", "")).encode()[:16]


def _peer(args, kwargs, at):
    value = kwargs.get("dest", kwargs.get("source", args[at] if len(args) > at else -1))
    return value if isinstance(value, int) and value >= 0 else -1

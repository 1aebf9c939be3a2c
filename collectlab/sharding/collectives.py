"""MPI's collectives on a vector that a `layout.Partition` cuts, one block for each rank.

Blocks of equal length go through the calls that NCCL has too (Reduce_scatter_block, Allgather), others through MPI's
forms with one count per rank (Reduce_scatter, Allgatherv). Padding is put in here and taken out again: it never
comes back to the caller.

MPI's MPICH wheel reads host memory only: arrays of a GPU are copied to the host and back.
"""

import sys

import numpy as np

_MPI_OP = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX"}
IN_PLACE = None  # mpi4py takes None for MPI.IN_PLACE


def identity(op, dtype):
    """The value that changes no result of `op`: 0 for sum, 1 for prod, the largest for min, the smallest for max.

    A scalar of that dtype. TypeError where min and max have none, among complex numbers.
    """
    dtype = np.dtype(dtype)
    if op not in _MPI_OP:
        raise ValueError(f"identity(op={op!r}): one of {', '.join(_MPI_OP)} is accepted")
    if op in ("sum", "prod"):
        return dtype.type(op == "prod")
    if dtype.kind == "f":
        return dtype.type(np.inf if op == "min" else -np.inf)
    if dtype.kind == "b":
        return dtype.type(op == "min")
    if dtype.kind not in "iu":
        raise TypeError(f"identity(op={op!r}, dtype={dtype}): {op} has no identity among {dtype}")
    return dtype.type(np.iinfo(dtype).max if op == "min" else np.iinfo(dtype).min)


def padded(x, partition, op="sum"):
    """`x` and the padding of the partition behind it, which is the identity of `op`: shape (partition.total,).

    ValueError where `x` has another length than the data of the partition: a larger buffer is none that fits.
    """
    data = partition.total - partition.padding
    if x.size != data:
        raise ValueError(
            f"padded: x has {x.size} elements and the partition {data}"
            + f" (and {partition.padding} of padding, which is added here)" * bool(partition.padding)
            + "; a buffer that is large enough does not say which of its elements are meant: pass exactly the data"
        )
    x = _on_host(x).reshape(-1)
    if not partition.padding:
        return x
    return np.concatenate([x, np.full(partition.padding, identity(op, x.dtype))])


def all_reduce(ctx, x, op="sum", out=None):
    """The reduction of everyone's `x`, on every rank; `out` may be `x` itself."""
    if out is not None and (out.shape, out.dtype) != (x.shape, x.dtype):
        raise ValueError(f"all_reduce: x is {x.shape} of {x.dtype}, `out` {out.shape} of {out.dtype}; make it like x")
    y = x.copy() if out is None else out
    there = _on_host(y)
    ctx.comm.Allreduce(IN_PLACE if out is x or out is None else _on_host(x), there, op=_mpi_op(op))
    return _bring(there, y)


def reduce_scatter(ctx, x, partition, op="sum", out=None):
    """This rank's block of the reduction of everyone's `x`, without padding: shape (data_counts[rank],).

    x    the data of the partition, the same on every rank: shape (total - padding,)
    out  where the block is to lie; only for a partition without padding
    """
    x, counts = padded(x, partition, op), partition.counts
    _check_out("reduce_scatter", out, partition, counts[ctx.rank], x.dtype)
    block = np.empty(counts[ctx.rank], x.dtype) if out is None or not _is_host(out) else out
    if len(set(counts)) == 1:
        ctx.comm.Reduce_scatter_block(x, block, op=_mpi_op(op))
    else:
        ctx.comm.Reduce_scatter(x, block, recvcounts=counts, op=_mpi_op(op))
    block = block[: partition.data_counts[ctx.rank]]
    return ctx.xp.asarray(block) if out is None else _bring(block, out)


def all_gather(ctx, block, partition, out=None):
    """Everyone's block in rank order, without padding, on every rank: shape (total - padding,).

    block  this rank's data, shape (data_counts[rank],); None where it already lies at its place in `out`
    out    where the whole is to lie; only for a partition without padding
    """
    counts, data = partition.counts, partition.total - partition.padding
    if block is None and out is None:
        raise ValueError("all_gather(block=None): then the own block lies in `out`, which is missing")
    _check_out("all_gather", out, partition, partition.total, (out if block is None else block).dtype)
    whole = np.empty(partition.total, block.dtype) if out is None else _on_host(out)
    if block is None:
        mine = IN_PLACE
    else:
        mine = _own(_on_host(block), partition, ctx.rank)
    if len(set(counts)) == 1:
        ctx.comm.Allgather(mine, whole)
    else:
        ctx.comm.Allgatherv(mine, [whole, list(counts)])
    return ctx.xp.asarray(whole[:data]) if out is None else _bring(whole, out)


def _check_out(call, out, partition, count, dtype):
    if out is not None and (partition.padding or out.size != count or out.dtype != dtype):
        why = (
            "padding would lie in it" if partition.padding
            else f"it has {out.size} elements and {count} come" if out.size != count
            else f"it is of {out.dtype} and {dtype} comes"
        )  # fmt: skip
        raise ValueError(f"{call}: `out` does not fit: {why}; leave it away, and the result is a new array")


def _own(block, partition, rank):
    """A rank's data, filled up to its count."""
    data, count = partition.data_counts[rank], partition.counts[rank]
    if block.size != data:
        raise ValueError(f"all_gather: rank {rank}'s block has {block.size} elements; the partition gives it {data}")
    return block if data == count else np.concatenate([block, np.zeros(count - data, block.dtype)])


def _mpi_op(op):
    if op not in _MPI_OP:
        raise ValueError(f"op={op!r}: one of {', '.join(_MPI_OP)} is accepted")
    return getattr(sys.modules["mpi4py.MPI"], _MPI_OP[op])  # which a rank has loaded, and the notebook must not


def _is_host(array):
    return isinstance(array, np.ndarray)


def _on_host(array):
    return array if _is_host(array) else array.get()


def _bring(there, array):
    """`array`, which now holds what lies on the host."""
    if not _is_host(array):
        array.set(there)
    return array

"""What each collective returns, as NumPy on a list of per-rank arrays: the reference for everything else.

Every function takes ``xs``, a list with one array per rank, and returns a list with one result per rank.

- Rank order is list order. Nothing here knows about hosts, devices or time.
- A collective sees the elements of an array in C order, as MPI does. ``all_reduce``, ``reduce`` and
  ``broadcast`` keep the shape of the arrays; every other function cuts or joins vectors, so what it returns
  has one axis.
- The result has the dtype of the inputs, as in MPI and NCCL: an int32 sum wraps and is not widened. Elements
  are integers, floats (float16 too) or complex numbers; complex numbers have no ``min`` and ``max``.
- A reduction adds rank 0, then rank 1, and so on, in the dtype of the inputs. That order is a choice made
  here: MPI and NCCL may take another one, and then the last digits of a float differ.
- ``avg`` is the sum divided by the rank count. On integers the quotient is cut towards zero, as in NCCL; MPI
  has no ``avg``. (On floats NCCL multiplies each input by 1 / nranks first, so its sum overflows later.)
- Where an operation gives a rank nothing, its entry is None. MPI and NCCL leave that rank's receive buffer
  as it was.
- Results are new arrays; they share memory neither with the inputs nor with each other.

The functions whose name ends in ``_v`` are MPI's variable-count forms. NCCL 2.32.3 has none of them.
"""

import operator
from collections import Counter

import numpy as np

OPS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "avg": np.add}


def all_reduce(xs, op="sum"):
    """Every rank gets the reduction of all arrays, position by position.

    >>> all_reduce([np.array([1, 2, 3, 4]), np.array([10, 20, 30, 40])])[1]
    array([11, 22, 33, 44])
    """
    arrays = _alike(f"all_reduce(xs, op={op!r})", xs)
    total = _reduction(f"all_reduce(xs, op={op!r})", arrays, op)
    return [total.copy() for _ in arrays]


def reduce(xs, op="sum", root=0):
    """The root gets what ``all_reduce`` would give it; every other rank gets None."""
    call = f"reduce(xs, op={op!r}, root={root!r})"
    arrays = _alike(call, xs)
    return _at_root(call, _reduction(call, arrays, op), root, len(arrays))


def reduce_scatter(xs, op="sum"):
    """Rank r gets block r of the reduction, cut into one equal block per rank.

    This is NCCL's ReduceScatter and MPI's Reduce_scatter_block. The rank count must divide the length.
    """
    call = f"reduce_scatter(xs, op={op!r})"
    arrays = _alike(call, xs)
    block = _equal_block(call, arrays[0].size, len(arrays))
    return _blocks(_reduction(call, arrays, op), [block] * len(arrays))


def reduce_scatter_v(xs, counts, op="sum"):
    """Rank r gets ``counts[r]`` elements of the reduction, the blocks lying in rank order (MPI_Reduce_scatter).

    ``counts`` has one entry per rank, zero allowed, or is a ``layout.Partition``.
    """
    call = f"reduce_scatter_v(xs, counts={counts!r}, op={op!r})"
    arrays = _alike(call, xs)
    counts = _counts(call, "counts", counts, len(arrays), arrays[0].size)
    return _blocks(_reduction(call, arrays, op), counts)


def all_gather(xs):
    """Every rank gets all arrays, joined in rank order; they have equal lengths."""
    arrays = _alike("all_gather(xs)", xs)
    return [_joined(arrays) for _ in arrays]


def all_gather_v(xs):
    """Every rank gets all arrays, joined in rank order; their lengths may differ (MPI_Allgatherv)."""
    arrays = _alike("all_gather_v(xs)", xs, shapes=False)
    return [_joined(arrays) for _ in arrays]


def gather(xs, root=0):
    """The root gets all arrays, joined in rank order, of equal lengths; every other rank gets None."""
    call = f"gather(xs, root={root!r})"
    arrays = _alike(call, xs)
    return _at_root(call, _joined(arrays), root, len(arrays))


def gather_v(xs, root=0):
    """``gather`` for arrays whose lengths may differ (MPI_Gatherv)."""
    call = f"gather_v(xs, root={root!r})"
    arrays = _alike(call, xs, shapes=False)
    return _at_root(call, _joined(arrays), root, len(arrays))


def broadcast(xs, root=0):
    """Every rank gets the root's array.

    The other entries of ``xs`` are the buffers that it overwrites: None, or of the root's shape and dtype.
    """
    call = f"broadcast(xs, root={root!r})"
    source = _of_root(call, xs, root)
    _alike(call, [source if x is None else x for x in xs])
    return [source.copy() for _ in xs]


def scatter(xs, root=0):
    """Rank r gets block r of the root's array, cut into one equal block per rank.

    Only the root's entry of ``xs`` is read; the others may be None.
    """
    call = f"scatter(xs, root={root!r})"
    source = _of_root(call, xs, root)
    return _blocks(source, [_equal_block(call, source.size, len(xs))] * len(xs))


def scatter_v(xs, counts, root=0):
    """Rank r gets ``counts[r]`` elements of the root's array, the blocks lying in rank order (MPI_Scatterv)."""
    call = f"scatter_v(xs, counts={counts!r}, root={root!r})"
    source = _of_root(call, xs, root)
    return _blocks(source, _counts(call, "counts", counts, len(xs), source.size))


def all_to_all(xs):
    """Rank r gets block r of every array, in rank order; every array is cut into one equal block per rank."""
    arrays = _alike("all_to_all(xs)", xs)
    block = _equal_block("all_to_all(xs)", arrays[0].size, len(arrays))
    sent = [_blocks(x, [block] * len(arrays)) for x in arrays]
    return [_joined(received) for received in zip(*sent, strict=True)]


def all_to_all_v(xs, sendcounts):
    """``all_to_all`` where rank s sends ``sendcounts[s][r]`` elements to rank r (MPI_Alltoallv)."""
    call = f"all_to_all_v(xs, sendcounts={sendcounts!r})"
    arrays = _alike(call, xs, shapes=False)
    if not isinstance(sendcounts, list | tuple | np.ndarray) or len(sendcounts) != len(arrays):
        raise ValueError(f"{call}: sendcounts has one row per rank, {len(arrays)} rows of as many numbers")
    sent = [
        _blocks(x, _counts(call, f"sendcounts[{s}]", row, len(arrays), x.size))
        for s, (x, row) in enumerate(zip(arrays, sendcounts, strict=True))
    ]
    return [_joined(received) for received in zip(*sent, strict=True)]


def _alike(call, xs, shapes=True):
    """The arrays of all ranks, after a check that dtypes, and shapes too if asked, agree."""
    arrays = [_array(call, rank, x) for rank, x in enumerate(_ranks(call, xs))]
    for what, of in (("dtype", lambda a: a.dtype), ("shape", lambda a: a.shape))[: 1 + shapes]:
        usual = Counter(map(of, arrays)).most_common(1)[0][0]
        for rank, array in enumerate(arrays):
            if of(array) != usual:
                also = f"; {call.split('(')[0]}_v takes different lengths" if _has_v(call, what) else ""
                raise ValueError(
                    f"{call}: rank {rank} passes {what} {of(array)}, the others {usual}; "
                    f"every rank must pass the same {what}{also}"
                )
    return arrays


def _has_v(call, what):
    return what == "shape" and call.split("(")[0] in ("all_gather", "gather")


def _ranks(call, xs):
    if not isinstance(xs, list | tuple) or not xs:
        raise TypeError(f"{call}: xs is a list with one array per rank, at least one, not {_brief(xs)}")
    return xs


def _array(call, rank, x):
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise TypeError(f"{call}: rank {rank} passes {_brief(x)}, which is not one array: {error}") from None
    if array.dtype.kind not in "iufc" or not array.dtype.isnative:
        raise TypeError(
            f"{call}: rank {rank} passes {'None' if x is None else f'dtype {array.dtype}'}; elements are "
            "integers, floats or complex numbers in the machine's byte order (store bool as uint8)"
        )
    return array


def _of_root(call, xs, root):
    return _array(call, root, _ranks(call, xs)[_root(call, root, len(xs))])


def _root(call, root, nranks):
    if isinstance(root, int | np.integer) and not isinstance(root, bool) and 0 <= root < nranks:
        return int(root)
    raise ValueError(f"{call}: root is a rank, 0 to {nranks - 1}, not {root!r}")


def _at_root(call, result, root, nranks):
    root = _root(call, root, nranks)
    return [result if rank == root else None for rank in range(nranks)]


def _reduction(call, arrays, op):
    if not isinstance(op, str) or op not in OPS:
        raise ValueError(f"{call}: op is one of {', '.join(OPS)}, not {op!r}")
    dtype, nranks = arrays[0].dtype, len(arrays)
    if dtype.kind == "c" and op in ("min", "max"):
        raise TypeError(f"{call}: complex numbers have no order, so no {op}; sum, prod and avg are defined")
    total = arrays[0].flatten()
    with np.errstate(all="ignore"):  # integers wrap and floats become inf or nan without a word, as in MPI
        for x in arrays[1:]:
            total = OPS[op](total, x.reshape(-1))
        if op == "avg":
            total = average(total, nranks)
    return total.astype(dtype, copy=False).reshape(arrays[0].shape)


def average(total, nranks):
    """A sum over ``nranks`` ranks divided by their number, in its own dtype; integers are cut towards zero."""
    if total.dtype.kind not in "iu":
        return (total / nranks).astype(total.dtype)
    wide = total.astype(np.uint64 if total.dtype.kind == "u" else np.int64)
    floor = wide // wide.dtype.type(nranks)
    return (floor + ((wide < 0) & (floor * nranks != wide))).astype(total.dtype)


def _equal_block(call, length, nranks):
    if length % nranks:
        block = -(-length // nranks)
        variable = "" if call.startswith("all_to_all") else f" or use {call.split('(')[0]}_v"
        raise ValueError(
            f"{call}: {length} elements cannot be cut into {nranks} equal blocks; "
            f"pad them to {nranks} x {block} = {nranks * block} (layout.Partition.padded){variable}"
        )
    return length // nranks


def _counts(call, name, counts, nranks, length):
    try:
        counts = [operator.index(c) for c in getattr(counts, "counts", counts)]
    except TypeError:
        raise TypeError(f"{call}: {name} holds one whole number per rank, not {counts!r}") from None
    if len(counts) != nranks or min(counts) < 0 or sum(counts) != length:
        raise ValueError(
            f"{call}: {name} holds one number per rank ({nranks}), none negative, that add up to "
            f"{length} elements; these are {len(counts)} and add up to {sum(counts)}"
        )
    return counts


def _blocks(array, counts):
    vector, start, blocks = array.reshape(-1), 0, []
    for count in counts:
        blocks.append(vector[start : start + count].copy())
        start += count
    return blocks


def _joined(arrays):
    return np.concatenate([x.reshape(-1) for x in arrays])


def _brief(value):
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"

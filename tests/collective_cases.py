"""Calls of collectives, drawn so that NumPy's reference and real MPI ranks can both be tried on the same ones."""

from dataclasses import dataclass

import numpy as np

REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_v")
MOVES = (
    "all_gather", "all_gather_v", "gather", "gather_v", "broadcast",
    "scatter", "scatter_v", "all_to_all", "all_to_all_v",
)  # fmt: skip
ROOTED = ("reduce", "gather", "gather_v", "broadcast", "scatter", "scatter_v")
CUT = ("reduce_scatter", "scatter", "all_to_all")  # their input is cut into equal blocks

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = (*INTEGERS, "float16", "float32", "float64", "complex64", "complex128")
MPI_DTYPES = tuple(dtype for dtype in DTYPES if dtype != "float16")
MPI_OPS = ("sum", "prod", "min", "max")


@dataclass(frozen=True)
class Case:
    """One call: ``operation(xs, **kwargs)``, the array of each rank in ``xs``."""

    operation: str
    xs: list
    kwargs: dict

    def __str__(self):
        sizes = [None if x is None else x.size for x in self.xs]
        return f"{self.operation}({sizes} elements of {_first(self.xs).dtype}, {self.kwargs})"


def make(operation, nranks, block, dtype, op="sum", seed=0, exact=False):
    """A case with about ``block`` elements in a block; the _v forms get uneven counts, zero among them.

    ``exact`` keeps the numbers so small that no order of additions changes a digit, and no product overflows
    a wide type.
    """
    rng = np.random.default_rng([seed, nranks, block])
    kwargs = {"op": op} if operation in REDUCTIONS else {}
    if operation in ROOTED:
        kwargs["root"] = int(rng.integers(nranks))
    counts = [int(n) for n in rng.integers(0, block + 1, nranks)]
    if operation in ("reduce_scatter_v", "scatter_v"):
        kwargs["counts"], lengths = counts, [sum(counts)] * nranks
    elif operation == "all_to_all_v":
        kwargs["sendcounts"] = rng.integers(0, block + 1, (nranks, nranks)).tolist()
        lengths = [sum(row) for row in kwargs["sendcounts"]]
    elif operation.endswith("_v"):
        lengths = counts
    else:
        lengths = [block * (nranks if operation in CUT else 1)] * nranks
    xs = [_values(rng, np.dtype(dtype), length, op, exact) for length in lengths]
    if operation in ("broadcast", "scatter", "scatter_v"):
        xs = [x if rank == kwargs["root"] else None for rank, x in enumerate(xs)]
    return Case(operation, xs, kwargs)


def grid(nranks, dtypes=DTYPES, ops=MPI_OPS, exact=False):
    """Every operation with every dtype, and with every op where it reduces; blocks of 0, 1, 2, 3 elements in turn."""
    named = [(o, dtype, op) for o in REDUCTIONS for dtype in dtypes for op in ops if _defined(dtype, op)]
    named += [(o, dtype, "sum") for o in MOVES for dtype in dtypes]
    for turn, (operation, dtype, op) in enumerate(named):
        yield make(operation, nranks, (turn + turn // 4) % 4, dtype, op, seed=turn, exact=exact)


def _defined(dtype, op):
    return not (dtype.startswith("complex") and op in ("min", "max"))


def _values(rng, dtype, length, op, exact):
    if exact or (dtype.kind == "c" and op == "prod"):
        low = 1 if op == "prod" else 0 if dtype.kind == "u" else -8
        x = rng.integers(low, 3 if op == "prod" else 8, length)
        return (x + (1j * rng.integers(0, 2, length) if dtype.kind == "c" else 0)).astype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, length, dtype, endpoint=True)
    x = rng.normal(0, 100, length) + (1j * rng.normal(0, 100, length) if dtype.kind == "c" else 0)
    if dtype.kind == "f" and length > 2:
        x[rng.integers(length)] = rng.choice([np.inf, -np.inf, np.nan, -0.0])
    return x.astype(dtype)


def _first(xs):
    return next(x for x in xs if x is not None)

"""What every rank holds before and after each of several collectives, and where a run differs from that.

The values follow from `semantics`. So do the contributors: the collectives are run once more for each rank, on
vectors that are 1 on that rank and 0 elsewhere; where the result is not 0, that rank has contributed.
"""

from dataclasses import dataclass

import numpy as np

from collectlab import provenance, semantics
from collectlab.layout import Partition

# operation: which chunks a rank holds before it and after it, every one or its own only
OPERATIONS = {
    "all_reduce": ("all", "all"),
    "reduce_scatter": ("all", "own"),
    "all_gather": ("own", "all"),
    "all_to_all": ("all", "all"),
}
MOST_RANKS = 256


@dataclass(frozen=True)
class Cell:
    """One chunk on one rank.

    kind           "own" (one rank's input), "partial" (it lacks someone, and a reduction is under way),
                   "complete", "differs" (a run's, and not what the definition says) or "empty" (no elements)
    window         name of the buffer
    chunk          number of the chunk
    start, length  its elements in the whole vector
    shares         how often each rank has contributed; None where that is not known
    values, want   what it holds, and what it should hold; None where no values are shown
    note           what is wrong with the form of a run's result, else empty
    """

    kind: str
    window: str
    chunk: int
    start: int
    length: int
    shares: tuple | None
    values: np.ndarray | None
    want: np.ndarray | None
    note: str

    @property
    def holders(self):
        """The ranks whose contributions it holds: a list; empty where that is not known."""
        return [rank for rank, share in enumerate(self.shares or ()) if share]


class Holdings:
    """The states of a sequence of collectives: state 0 is the input, state s what operation s - 1 returned.

    operations       names, a list
    inputs, results  as `ownership` takes them
    states           [state][rank]: a list of Cells
    got, want        [state][rank]: what the run returned (None where it does not tell) and what it should have
    identified       whether the inputs are those of `provenance.identify`, so that shares can be read
    """

    def __init__(self, operation, inputs, results, op):
        self.operations = _names(operation)
        self.op = op
        self.want = _defined(self.operations, inputs, op)
        self.inputs = self.want[0]
        self.nranks = len(self.inputs)
        self.got = [None, *_results(results, self.nranks, len(self.operations))]
        self.identified = _identified(self.inputs)
        self.reduces = any(map(_reduces, self.operations))
        self.rounds = self.reduces and op in ("sum", "prod", "avg") and self.inputs[0].dtype.kind in "fc"
        self.width = provenance.words(self.nranks) if self.identified else 1  # array elements per element
        shares = _shares(self.operations, self.nranks)
        slack = self._slack()
        self.states = [
            [self._cells(s, rank, shares[s], slack and slack[s][rank]) for rank in range(self.nranks)]
            for s in range(len(self.want))
        ]

    @property
    def wrong(self):
        """The cells that differ from the definition: a list of (rank, Cell)."""
        every = ((rank, c) for state in self.states for rank, cells in enumerate(state) for c in cells)
        return [(rank, cell) for rank, cell in every if cell.kind == "differs"]

    def window(self, s):
        """The name of the buffer that holds state s."""
        return "input" if s == 0 else "result" if len(self.operations) == 1 else f"result {s}"

    def _cells(self, s, rank, shares, slack):
        rows = OPERATIONS[self.operations[max(s - 1, 0)]][s > 0]
        want = self.want[s][rank].reshape(-1)
        length = want.size // self.width
        if rows == "own":
            chunks = [(rank, slice(0, length), rank * length)]
        else:
            parts = Partition.uneven(length, self.nranks)
            chunks = [(c, parts.slice(c), parts.displacements[c]) for c in range(self.nranks)]
        got, note = None, ""
        if self.got[s] is not None:
            got, note = _flat(self.got[s][rank], want.size)
        cells = []
        for row, (chunk, elements, start) in enumerate(chunks):
            part = slice(elements.start * self.width, elements.stop * self.width)
            counts = tuple(int(one[rank].reshape(len(chunks), -1)[row].max()) for one in shares)
            kind, values = self._kind(s, counts, part), want[part]
            if self.got[s] is not None:
                values = None if got is None else got if note and rows == "own" else got[part]
                if note or not _equal(values, want[part], None if slack is None else slack.reshape(-1)[part]):
                    kind, counts = "differs", self._read(values)
            shown = (None, None) if self.identified else (values, want[part])
            size = elements.stop - elements.start
            cells.append(Cell(kind, self.window(s), chunk, start, size, counts, *shown, note))
        return cells

    def _kind(self, s, counts, part):
        if part.start == part.stop:
            return "empty"
        if s == 0:
            return "own"
        last = s == len(self.operations)
        return "partial" if self.reduces and 0 in counts and not last else "complete"

    def _read(self, values):
        """Whose identified elements a chunk holds, and how often at most; None if that cannot be read."""
        if not self.identified or values is None or values.dtype != np.int64 or values.size % self.width:
            return None
        held = provenance.read(values, self.nranks)
        if provenance.UNREADABLE in held:
            return None
        often = lambda rank, items: sum(n for (r, _), n in items.items() if r == rank)  # noqa: E731
        return tuple(max((often(rank, items) for items in held), default=0) for rank in range(self.nranks))

    def _slack(self):
        """[state][rank]: how far elements may be off because the order of a reduction is free; or None."""
        if not self.rounds:
            return None
        eps = np.finfo(self.inputs[0].dtype).eps * 2 * self.nranks * len(self.operations)
        with np.errstate(all="ignore"):
            return [
                [x * eps for x in state]
                for state in _run(
                    self.operations, [np.abs(x).astype(np.float64) for x in self.inputs], self.op
                )
            ]


def _names(operation):
    names = [operation] if isinstance(operation, str) else operation
    names = list(names) if isinstance(names, list | tuple) and names else [operation]
    for name in names:
        if not isinstance(name, str) or name not in OPERATIONS:
            raise ValueError(
                f"ownership: operation is one of {', '.join(OPERATIONS)}, or a list of them, not {name!r}"
            )
    return names


def _reduces(name):
    return name in ("all_reduce", "reduce_scatter")


def _run(names, xs, op):
    states = [xs]
    for name in names:
        collective = getattr(semantics, name)
        states.append(collective(states[-1], op=op) if _reduces(name) else collective(states[-1]))
    return states


def _defined(names, inputs, op):
    if not isinstance(inputs, list | tuple) or not 1 <= len(inputs) <= MOST_RANKS:
        given = f"{len(inputs)} of them" if isinstance(inputs, list | tuple) else f"a {type(inputs).__name__}"
        raise ValueError(
            f"ownership: inputs is a list with one array per rank, 1 to {MOST_RANKS}, not {given}"
        )
    try:
        states = _run(names, list(inputs), op)
    except (TypeError, ValueError) as error:
        raise type(error)(f"ownership: inputs: {error}") from None
    return [[np.asarray(x) for x in inputs], *states[1:]]


def _shares(names, nranks):
    """[state][contributor][rank]: how often each unit of that rank's vector holds the contributor's part."""
    units = nranks ** sum(name != "all_gather" for name in names)
    marks = lambda of: [np.full(units, int(rank == of), np.int64) for rank in range(nranks)]  # noqa: E731
    return [*zip(*(_run(names, marks(rank), "sum") for rank in range(nranks)), strict=True)]


def _identified(inputs):
    width = provenance.words(len(inputs))
    if any(x.dtype != np.int64 or x.size == 0 or x.size % width for x in inputs):
        return False
    made = provenance.identify(len(inputs), [x.size // width for x in inputs])
    return all(np.array_equal(x.reshape(-1), y) for x, y in zip(inputs, made, strict=True))


def _results(results, nranks, nstates):
    """Per operation: one result per rank, or None where the run does not tell."""
    if results is None:
        return [None] * nstates
    found = getattr(results, "results", results)
    if not isinstance(found, list | tuple) or len(found) != nranks:
        given = f"{len(found)} of them" if isinstance(found, list | tuple) else f"a {type(found).__name__}"
        raise ValueError(
            f"ownership: results is a Run, or a list with one result per rank, {nranks} as in inputs, not {given}"
        )
    if nstates == 1 or not any(isinstance(x, tuple) for x in found):
        return [*[None] * (nstates - 1), list(found)]
    for rank, x in enumerate(found):
        if x is not None and not (isinstance(x, tuple) and len(x) == nstates):
            raise ValueError(
                f"ownership: results: rank {rank} returned a {type(x).__name__}, "
                f"not a tuple of {nstates} arrays, one per operation"
            )
    return [[None if x is None else x[s] for x in found] for s in range(nstates)]


def _flat(result, size):
    """A rank's result as a vector, or None if it is none; and what is wrong with its form."""
    if result is None:
        return None, "no result"
    try:
        array = np.asarray(result).reshape(-1)
    except ValueError:
        return None, f"no array: a {type(result).__name__}"
    if array.dtype.kind not in "biufc":
        return None, f"no array of numbers: {type(result).__name__}"
    return array, "" if array.size == size else f"{array.size} elements, not {size}"


def _equal(got, want, slack):
    if slack is None:
        return bool(np.array_equal(got, want, equal_nan=want.dtype.kind in "fc"))
    with np.errstate(all="ignore"):
        near = (np.abs(got - want) <= slack) & np.isfinite(want) & np.isfinite(slack)
        return bool((near | (got == want) | (np.isnan(got) & np.isnan(want))).all())

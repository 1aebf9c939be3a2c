"""Whose contributions lie in what a run stored and loaded.

A trace holds accesses and no values. So the program is run again, in the simulator and in the order of the trace, on
inputs that are known: first every array argument holds ones, on every rank, and then, once for each rank, twos on
that rank. Where a number changes, that rank has contributed to it, and by how much it changes says how often. This is
what the run itself did, as long as each rank makes the same steps, which is checked event by event: the order is the
same, so it holds of a run with a race too, in the order in which its trace has the accesses.

A minimum does not change when one rank's number rises. Where the changes do not add up, as they do in sums and
averages, the ranks' numbers are lowered as well, and nothing is said of how often.
"""

import contextlib
import io
import sys
from dataclasses import dataclass

import numpy as np
from greenlet import GreenletExit

from collectlab.fabric.per_rank import PerRank
from collectlab.fabric.simulated import Simulation
from collectlab.trace.events import BARRIER, LOAD, NOTIFY, STORE

MOST_EVENTS = 100_000  # of all replays together, about a second
MOST_NUMBERS = 20_000_000
_RANKS_ONLY = ("mpi4py", "cupy")  # which this process must not load
RUBBISH = -1  # in the place of a share: memory that nobody has written


class NotKnown(Exception):
    """Why nothing can be said of contributions, as a sentence."""


@dataclass(frozen=True)
class Look:
    """What lay in one rank's part of a window when an event of the trace was over.

    event   the place in trace.events
    window  its name; `owner` is the rank whose part it is
    elements  flat indices: a range, or a tuple
    shares  int16 (elements, nranks): how often each rank has contributed; RUBBISH throughout for memory that nobody
            has written, or what was computed from it
    """

    event: int
    window: str
    owner: int
    elements: object
    shares: np.ndarray


@dataclass(frozen=True)
class Contributions:
    """looks    a list of `Look`, in the order of the trace: one for each store and each load, and before a
                   notification one for each part of the rank, which may have been written without a trace
    returned  per rank: the shares of the array that it returned, or None if it returned no array
    counted   whether shares say how often; else they are 0 and 1
    """

    looks: list
    returned: list
    counted: bool


def contributions(trace, program, args):
    """The Contributions in a run of `program(ctx, *args)` that left this trace; NotKnown if they cannot be found.

    The program is run nranks + 3 times, or twice as often; what it prints is dropped.
    """
    nranks = trace.nranks
    if len(trace.events) * (nranks + 3) > MOST_EVENTS:
        raise NotKnown(f"the run has {len(trace.events):,} events, too many to be made again for each rank")
    numbers = sum(len(e.elements) for e in trace.events)
    if numbers * (nranks + 3) > MOST_NUMBERS:
        raise NotKnown(f"the run moved {numbers:,} numbers, too many to be followed; take shorter arrays")
    kinds = "fc" if _kinds(args) & {*"fc"} else "iu"
    if not _kinds(args) & {*kinds}:
        raise NotKnown("no argument of the program is an array of numbers, which could be followed")

    def numbers_of(levels):
        """What lay where in a run in which rank r's arrays hold levels[r]: one flat array, and where it is cut."""
        replay = _Replay(trace)
        replay.follow(program, [_leveled(arg, levels, kinds) for arg in args])
        results = [np.asarray(x).ravel() if _is_numbers(x) else np.zeros(0) for x in replay.results]
        values = [np.asarray(x, complex).real for x in [*(x for *_, x in replay.looks), *results]]
        return np.concatenate([*values, np.zeros(0)]), replay

    def with_rank(rank, level):
        return numbers_of([level if r == rank else 1 for r in range(nranks)])[0]

    with np.errstate(all="ignore"):
        base, replay = numbers_of([1] * nranks)
        if not np.array_equal(base, numbers_of([1] * nranks)[0], equal_nan=True):
            raise NotKnown("the program computes something else each time: it draws random numbers, or reads a clock")
        rises = np.array([with_rank(rank, 2) - base for rank in range(nranks)])
        together = numbers_of([2] * nranks)[0] - base
        clean = np.isfinite(base) & np.isfinite(rises).all(axis=0)
        counted = bool(np.isclose(rises.sum(axis=0), together, rtol=1e-2)[clean].all())
        changed = rises != 0
        if not counted:
            changed |= np.array([with_rank(rank, 0) != base for rank in range(nranks)])
        shares = (_counts(np.abs(rises)) if counted else changed).astype(np.int16)
    shares[:, _unwritten(base, replay)] = RUBBISH
    return _cut(shares.T, replay, counted)


def _counts(rises):
    """How often, by the rises of a number: as often as they say, or as often as the smallest of them, if divided."""
    counts, least = (rises != 0).astype(float), np.where(rises, rises, np.inf).min(axis=0)
    for often in (rises / least, rises):
        near = np.rint(often)
        good = (near <= 1_000) & (near >= (rises != 0)) & np.isclose(often, near, rtol=1e-2)
        counts = np.where(good.all(axis=0), near, counts)
    return counts


def _unwritten(base, replay):
    """Where a number is what simulated memory holds before anybody writes there, or computed from that."""
    dtypes = [x.dtype for *_, x in replay.looks] + [np.asarray(x).dtype for x in replay.results if _is_numbers(x)]
    sizes = [x.size for *_, x in replay.looks] + [np.size(x) for x in replay.results if _is_numbers(x)]
    low = [np.iinfo(dtype).min / 2 if dtype.kind == "i" else -np.inf for dtype in dtypes]
    return np.isnan(base) | (base < np.repeat(low, sizes))


def _cut(shares, replay, counted):
    """The Contributions, from the shares of all numbers behind one another."""
    at, looks, returned = 0, [], []
    for event, window, owner, elements, values in replay.looks:
        looks.append(Look(event, window, owner, elements, shares[at : at + values.size]))
        at += values.size
    for value in replay.results:
        size = np.size(value) if _is_numbers(value) else 0
        returned.append(shares[at : at + size] if size else None)
        at += size
    return Contributions(looks, returned, counted)


def _is_numbers(value):
    return isinstance(value, np.ndarray) and value.dtype.kind in "iufc"


def _kinds(value):
    """The kinds of the arrays in an argument, in NumPy's letters."""
    if isinstance(value, np.ndarray):
        return {value.dtype.kind} if value.size else set()
    if isinstance(value, PerRank):
        value = value.values
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return set().union(*map(_kinds, parts))


def _leveled(arg, levels, kinds):
    """The argument, with arrays of those kinds full of levels[r] on rank r."""

    def put(value, level):
        if isinstance(value, np.ndarray):
            return np.full(value.shape, level, value.dtype) if value.dtype.kind in kinds else value
        if isinstance(value, dict):
            return {key: put(part, level) for key, part in value.items()}
        if type(value) in (list, tuple):
            return type(value)(put(part, level) for part in value)
        return value

    values = arg.values if isinstance(arg, PerRank) else [arg] * len(levels)
    return PerRank([put(value, level) for value, level in zip(values, levels, strict=True)])


class _Over(Exception):
    """The trace has been followed to its end, or as far as it can be."""


class _Replay(Simulation):
    """The run of a trace once more, in its order; it ends where the trace ends.

    looks  (place of the event, window, owner, elements, a copy of what lies there)
    """

    def __init__(self, trace):
        super().__init__(trace.nranks)
        self.wanted = trace.events
        steps = (event.rank for event in trace.events if event.is_step)
        self.turns = iter([*range(trace.nranks), *steps])  # the first turn brings a rank to its first step
        self.parts = [{} for _ in range(trace.nranks)]  # of each rank: window -> the parts of all ranks
        self.looks, self.size, self.last = [], 0, [None] * trace.nranks
        self.refused = ""

    def follow(self, program, args):
        """Run it; NotKnown if it does something else than the trace says."""
        away = {name: None for name in _RANKS_ONLY if name not in sys.modules}  # importing one of these now fails
        try:
            sys.modules.update(away)
            with contextlib.redirect_stdout(io.StringIO()):
                self.run(program, args)
        except _Over:
            pass
        finally:
            for name in away:
                del sys.modules[name]
            for let in self.lets:
                if let:
                    let.throw(GreenletExit)
        if self.refused or len(self.events) != len(self.wanted):
            raise NotKnown(self.refused or _UNLIKE)

    def stand(self, rank):
        """Every step is a turn of its own."""
        self.hub.switch()

    def pick(self):
        """Whose turn it is in the trace."""
        for rank in self.turns:
            if rank not in self.ready or self.refused:
                break
            return rank
        raise _Over

    def memory(self, rank, name, shape, dtype, fill=None):
        """The memory of a window, kept to be looked at."""
        memory = super().memory(rank, name, shape, dtype, fill)
        wanted = ("window", name, shape, np.dtype(dtype))
        self.parts[rank][name] = [part.reshape(-1) for part in self.memories[wanted]]
        return memory

    def note(self, kind, rank, peer, name, elements=(), nbytes=0, row=-1, at_least=0, cause=""):
        """Hold the event against the trace, and look at what it touches."""
        super().note(kind, rank, peer, name, elements, nbytes, row, at_least, cause)
        at = len(self.events) - 1
        if at >= len(self.wanted) or _key(self.events[at]) != _key(self.wanted[at]):
            self.refused = self.refused or _UNLIKE  # an error raised here would be the program's own
            return
        if kind in (STORE, LOAD):
            self._look(at, name, peer, elements, self.parts[rank][name][peer])
        elif kind == NOTIFY and self.last[rank] != NOTIFY:
            for window, parts in self.parts[rank].items():
                self._look(at, window, rank, range(parts[rank].size), parts[rank])
        if kind != BARRIER:
            self.last[rank] = kind

    def _look(self, at, window, owner, elements, part):
        where = slice(elements.start, elements.stop) if isinstance(elements, range) else list(elements)
        self.looks.append((at, window, owner, elements, part[where].copy()))
        self.size += len(elements)
        if self.size * self.nranks > MOST_NUMBERS:
            self.refused = "the run's windows hold too many numbers to be followed; take shorter arrays"


_UNLIKE = "made again on other numbers, the program takes other steps than in this run"


def _key(event):
    return (event.kind, event.rank, event.peer, event.name, event.elements, event.nbytes, event.row, event.at_least)

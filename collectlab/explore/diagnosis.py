"""What is wrong with a program, in the order in which a person wants to know it.

A rank that raised; a deadlock; races, each with a schedule in which it does harm; results that are wrong, explained
by where their elements came from; bytes beyond the cost card. Nothing is said when all is right.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from collectlab.explore import origin
from collectlab.explore.witness import InStep, part, same, witness
from collectlab.fabric.per_rank import PerRank
from collectlab.trace import deadlock
from collectlab.trace.events import LOAD, STORE

RAISED, DEADLOCK, RACE, WRONG, BYTES = "raised", "deadlock", "race", "wrong", "bytes"
_MOST = 3  # races that are told in full, and ranks whose results are


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: its kind ("raised", "deadlock", "race", "wrong" or "bytes"), and the text."""

    kind: str
    text: str

    def __str__(self):
        return self.text


class Diagnosis(list):
    """The Findings of a run, most urgent first; empty when nothing is wrong. `run` is the run that shows them."""

    def __init__(self, found, run):
        super().__init__(found)
        self.run = run

    @property
    def kinds(self):
        """The kind of each finding."""
        return [finding.kind for finding in self]

    def __str__(self):
        return "\n\n".join(map(str, self)) or "nothing is wrong"


def diagnose(program, inputs, *args, expected=None, cost=None, calls=1):
    """The Diagnosis of `program(ctx, x, *args)`, run in the simulator with one rank for each input.

    inputs    what each rank passes as `x`: arrays, in rank order
    expected  what the ranks should return, as a function from inputs to results: lists of arrays in rank order, such
              as semantics.all_reduce; None: results are not looked at
    cost      the Card of a call as a function of (nranks, count, itemsize, rank); None: bytes are not looked at
    calls     how often the ranks call the program, one call after another, with other values each time
    """
    nranks, many = len(inputs), repeated(program, calls)
    given = [[_shifted(x, call) for x in inputs] for call in range(calls)]
    passed = PerRank([list(xs) for xs in zip(*given, strict=True)])
    run = InStep(nranks).run(many, (passed, *args))
    found = _ends(run)
    want = None
    if expected is not None:
        by_call = [expected(xs) for xs in given]
        want = [[by_call[call][rank] for call in range(calls)] for rank in range(nranks)]

    def seek(race):
        right = want and [(ys, xs) for ys, xs in zip(want, passed.values, strict=True)]
        return witness(many, passed, *args, ranks=nranks, race=race, expected=right)

    found += _races(run, seek if run.ok else None)
    if run.ok and want is not None:
        found += _wrong([results for results, _ in run.results], want, calls, program, given, args, expected)
    if run.ok:
        found += _touched(run, passed.values)
    if run.ok and cost is not None:
        budget = [calls * cost(nranks, x.size, x.itemsize, rank).nbytes for rank, x in enumerate(inputs)]
        found += _bytes(run, budget)
    return Diagnosis(found, run)


def findings(run, expected=None, cards=None):
    """The Diagnosis of a run that is over, simulated or on real ranks.

    expected  what the ranks should have returned: arrays, in rank order. Where these are identified elements (see
              provenance), wrong ones are explained by where they came from
    cards     the Card of each rank
    """
    found = _ends(run) + _races(run, None)
    if run.ok and expected is not None:
        found += _wrong([[y] for y in run.results], [[y] for y in expected], 1)
    if run.ok and cards is not None:
        found += _bytes(run, [card.nbytes for card in cards])
    return Diagnosis(found, run)


def repeated(program, calls):
    """A program that calls `program` with each of the arrays that it gets; it returns the results, and its arrays."""

    def many(ctx, xs, *args):
        return [program(ctx, x, *args) for x in xs], xs

    many.__name__ = getattr(program, "__name__", type(program).__name__)
    return many


def _shifted(x, call):
    """The input of a later call: other values than before."""
    x = np.asarray(x)
    return x if call == 0 else (x + call * np.ones((), x.dtype)).astype(x.dtype)


def _ends(run):
    """Who raised, or who waits for ever."""
    if run.ok:
        return []
    if not hasattr(run, "stuck"):  # of real ranks, whose report says it all
        said = run.report()
        return [Finding(DEADLOCK if run.status == "timeout" else RAISED, said)]
    lines = run.report().splitlines()[1:]
    if run.errors:
        return [Finding(RAISED, "\n".join(lines))]
    mend = deadlock.mend(run.trace, run.ends)
    return [Finding(DEADLOCK, "\n".join([*lines, f"mend: {mend}"] if mend else lines))]


def _races(run, seek):
    """The races of a run, the first ones with a witness where one can be sought."""
    races = run.trace.races()
    found = []
    for race in races[:_MOST]:
        shown = seek(race) if seek else None
        middle = str(shown).splitlines() if shown is not None else []
        found.append(Finding(RACE, "\n".join([*race.lines, *middle, f"mend: {race.mend}"])))
    if len(races) > _MOST:
        others = Counter((race.window, race.first.line, race.second.line) for race in races[_MOST:])
        lines = [
            f"{often} more on window {name!r} between lines {first} and {second}"
            for (name, first, second), often in others.items()
        ]
        found.append(Finding(RACE, "races: " + "\n       ".join(lines)))
    return found


def _wrong(got, want, calls, *how):
    """What is wrong with results; got[rank][call] and want[rank][call] are arrays."""
    wrong = [
        (rank, call)
        for rank in range(len(want))
        for call in range(calls)
        if not same(got[rank][call], want[rank][call])
    ]
    if not wrong:
        return []
    lines = []
    for rank, call in wrong[:_MOST]:
        where, holds, instead = part(got[rank][call], want[rank][call])
        lines.append(f"rank {rank}{_call(call, calls)} ends with {holds}{where} instead of {instead}")
    if len(wrong) > _MOST:
        ranks = len({rank for rank, _ in wrong})
        lines.append(f"... {ranks} of {len(want)} ranks end with something else than they should")
    for call in sorted({call for _, call in wrong})[:1]:
        said = origin.planes(call, *how) if how else origin.identified([y[0] for y in got], [y[0] for y in want])
        lines += [f"    {line}" for line in said]
    return [Finding(WRONG, "\n".join(lines))]


def _call(call, calls):
    return f", call {call + 1}," if calls > 1 else ""


def _touched(run, inputs):
    """Ranks whose own input has changed, while their result lies elsewhere."""
    found = []
    for rank, (results, xs) in enumerate(run.results):
        for call, (y, x, before) in enumerate(zip(results, xs, inputs[rank], strict=True)):
            apart = not (isinstance(y, np.ndarray) and np.shares_memory(x, y))
            if apart and not np.array_equal(x, before, equal_nan=x.dtype.kind in "fc"):
                where, holds, instead = part(x, before)
                calls = _call(call, len(xs))
                text = f"rank {rank}{calls} has changed its own input: it is {holds}{where}, it was {instead}"
                found.append(Finding(WRONG, text))
    return found[:1]


def _bytes(run, budget):
    """Ranks that move more bytes from and to their peers than their card says."""
    found = []
    for rank, most in enumerate(budget):
        moved = run.trace.measured(rank).nbytes
        if moved > most:
            by_line = Counter()
            for e in run.trace.events:
                if e.kind in (LOAD, STORE) and e.rank == rank != e.peer:
                    by_line[e.line] += e.nbytes
            lines = ", ".join(f"{n} at line {line}" for line, n in sorted(by_line.items()))
            found.append((rank, moved, moved - most, lines))
    if not found:
        return []
    rank, moved, more, lines = found[0]
    others = f"; {len(found)} of {len(budget)} ranks do" if len(found) > 1 else ""
    text = f"rank {rank} moves {moved} bytes, {more} more than the card says{others}\n    {lines}"
    return [Finding(BYTES, text)]

"""What is wrong with a program, in the order in which a person wants to know it.

A rank that raised; a deadlock; races, each with a schedule in which it does harm; results that are wrong, explained
by where their elements came from; bytes beyond the cost card. Nothing is said when all is right.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from collectlab.explore import origin
from collectlab.explore.origin import names
from collectlab.explore.witness import Calls, InStep, part, same, witness
from collectlab.fabric.per_rank import PerRank
from collectlab.fabric.simulated import checked
from collectlab.trace import deadlock
from collectlab.trace.events import LOAD, STORE
from collectlab.words import program_named

RAISED, DEADLOCK, RACE, WRONG, BYTES = "raised", "deadlock", "race", "wrong", "bytes"
_TRIES = 100  # schedules in search of a witness
_MOST = 3  # races that are told in full, and lines on results


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

    __repr__ = __str__  # a notebook shows the texts


def diagnose(program, inputs, *args, expected=None, cost=None, calls=1):
    """The Diagnosis of `program(ctx, x, *args)`, run in the simulator with one rank for each input.

    inputs    what each rank passes as `x`: arrays, in rank order
    expected  what the ranks should return, as a function from inputs to results: lists of arrays in rank order, such
              as semantics.all_reduce; None: results are not looked at
    cost      the Card of a call as a function of (nranks, count, itemsize, rank); None: bytes are not looked at
    calls     how often the ranks call the program, one call after another, with other values each time
    """
    if not isinstance(inputs, list | tuple):
        raise TypeError(f"diagnose(program, inputs={inputs!r}): a list is accepted, with one array for each rank")
    if not isinstance(calls, int) or calls < 1:
        raise ValueError(f"diagnose(calls={calls!r}): a whole number is accepted, 1 or more")
    nranks, many = checked("diagnose", program, args, len(inputs)), repeated(program, calls)
    given = [[_shifted(x, call) for x in inputs] for call in range(calls)]
    passed = PerRank([list(xs) for xs in zip(*given, strict=True)])
    run = InStep(nranks).run(many, (passed, *args))
    held, wrong, want = dict(many.inputs), [], None
    if expected is not None:
        want = _by_rank([expected(xs) for xs in given])
        sizes = _by_rank([expected([_size(x) for x in xs]) for xs in given])
        got = [[y] if calls == 1 else y for y in run.results]
        if run.ok:
            wrong = _wrong(got, want, sizes, program, given, args, expected)

    def seek(race):
        right = [ys[0] if calls == 1 else Calls(ys) for ys in want] if wrong else None
        return witness(many, passed, *args, ranks=nranks, race=race, expected=right, tries=_TRIES)

    found = _ends(run) + _races(run, seek if run.ok else None) + wrong
    if run.ok:
        found += _touched(run, held, passed.values)
    if run.ok and cost is not None:
        budget = [calls * cost(nranks, x.size, x.itemsize, rank).nbytes for rank, x in enumerate(given[0])]
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
        found += _wrong([[y] for y in run.results], [[y] for y in expected])
    if run.ok and cards is not None:
        found += _bytes(run, [card.nbytes for card in cards])
    return Diagnosis(found, run)


def repeated(program, calls):
    """A program that calls `program` with each of the arrays that it gets, and returns the results.

    Its `inputs` holds the arrays that each rank got, as they are after a simulated run.
    """

    def many(ctx, xs, *args):
        many.inputs[ctx.rank] = xs
        ys = Calls(program(ctx, x, *args) for x in xs)
        return ys if calls > 1 else ys[0]

    many.inputs, many.__name__ = {}, program_named(program)
    return many


def _by_rank(results):
    """results[call][rank] as lists [rank][call]."""
    return [list(ys) for ys in zip(*results, strict=True)]


def _size(x):
    """The size of each element: what is computed from these bounds the rounding of what is computed from `x`."""
    return np.abs(np.asarray(x).astype(np.float64))


def _shifted(x, call):
    """The input of a later call: other values than before."""
    x = np.asarray(x)
    return x if call == 0 else (x + call * np.ones((), x.dtype)).astype(x.dtype)


def _ends(run):
    """Who raised, or who waits for ever."""
    if run.ok:
        return []
    waiting, said = run.trace.waiting, run.report()
    if run.path is None:
        said = said.partition("\n")[2]  # without the headline: a simulation is told of by what follows
    if not waiting or any(end.startswith("raised") for end in run.ends.values()):
        return [Finding(RAISED, said)]
    mend = deadlock.mend(run.trace, run.ends)
    return [Finding(DEADLOCK, f"{said}\nmend: {mend}" if mend else said)]


def _races(run, seek):
    """The races of a run, once for each two lines, with a witness where one can be sought."""
    groups = {}
    for race in run.trace.races():
        lines = (race.window, race.first.kind, race.first.line, race.second.kind, race.second.line)
        groups.setdefault(lines, []).append(race)
    found = []
    for race, *more in list(groups.values())[:_MOST]:
        lines = list(race.lines)
        if more:
            pairs = f"do {len(more)} more pairs" if more[1:] else "does one more pair"
            lines.append(f"    and so {pairs} of ranks")
        if seek:
            lines += str(seek(race)).splitlines()
        found.append(Finding(RACE, "\n".join([*lines, f"mend: {race.mend}"])))
    if rest := list(groups)[_MOST:]:
        others = ", ".join(f'{first} and {second} ("{window}")' for window, _, first, _, second in rest)
        found.append(Finding(RACE, f"there are more races, of lines {others}"))
    return found


def _wrong(got, want, sizes=None, *how):
    """What is wrong with results; got[rank][call] and want[rank][call] are arrays."""
    calls = len(want[0])
    if other := _no_arrays(got, want):
        return [Finding(WRONG, "\n".join(other))]
    said, wrong = {}, []
    for rank, ys in enumerate(want):
        for call in range(calls):
            size = None if sizes is None or ys[call] is None else len(want) * sizes[rank][call]
            if not same(got[rank][call], ys[call], size):
                where, holds, instead = part(got[rank][call], ys[call], size)
                said.setdefault((_call(call, calls), holds, where, instead), []).append(rank)
                wrong.append(call)
    if not said:
        return []
    lines = [
        f"{names(ranks, len(want))}{call} end{'s' if len(ranks) in (1, len(want)) else ''} "
        f"with {holds}{where} instead of {instead}"
        for (call, holds, where, instead), ranks in said.items()
    ]
    lines = lines[:_MOST] + ["..."] * (len(lines) > _MOST)
    if how:
        more = origin.planes(min(wrong), *how)
    elif named := origin.identified([ys[0] for ys in got], [ys[0] for ys in want]):
        return [Finding(WRONG, "\n".join(named))]
    else:
        more = []
    return [Finding(WRONG, "\n".join(lines + [f"    {line}" for line in more]))]


def _no_arrays(got, want):
    """What is returned in the place of arrays, or of another dtype."""
    said = {}
    for rank, (ys, rights) in enumerate(zip(got, want, strict=True)):
        for y, right in zip(ys, rights, strict=True):
            if not isinstance(right, np.ndarray):
                continue
            if y is None:
                text = "None instead of an array: is there a return?"
            elif not isinstance(y, np.ndarray):
                text = f"a {type(y).__name__} instead of an array"
            elif y.dtype != right.dtype:
                text = f"an array of {y.dtype} instead of {right.dtype}"
            else:
                continue
            ranks = said.setdefault(text, [])
            ranks += [rank] * (rank not in ranks)
    return [
        f"{names(ranks, len(want))} return{'s' if len(ranks) in (1, len(want)) else ''} {text}"
        for text, ranks in said.items()
    ]


def _call(call, calls):
    return f", call {call + 1}," if calls > 1 else ""


def _touched(run, held, inputs):
    """Ranks whose own input has changed, while their result lies elsewhere."""
    for rank, xs in sorted(held.items()):
        results = [run.results[rank]] if len(xs) == 1 else run.results[rank]
        for call, (y, x, before) in enumerate(zip(results, xs, inputs[rank], strict=True)):
            apart = not (isinstance(y, np.ndarray) and np.shares_memory(x, y))
            if apart and not np.array_equal(x, before, equal_nan=x.dtype.kind in "fc"):
                where, holds, instead = part(x, before)
                who = f"rank {rank}{_call(call, len(xs))}"
                return [Finding(WRONG, f"{who} has changed its own input: {holds}{where}; it was {instead}")]
    return []


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
    others = names([r for r, *_ in found], len(budget))
    others = f"; {others} move{'s' * (others == 'every rank')} more than that" if len(found) > 1 else ""
    text = f"rank {rank} moves {moved} bytes, {more} more than its card says{others}\n    {lines}"
    return [Finding(BYTES, text)]

"""The witness of a race: a schedule in which it changes what a rank ends with.

The search turns races round. Of two accesses that race in a run, the rank that made the first is delayed just before
it; the other access then comes first, since nothing makes it wait. That is one more delay in the number of the
schedule (see fabric/simulated.py), so runs with one delay are tried before runs with two. Random schedules follow.
"""

from collections import Counter, deque
from dataclasses import dataclass
from itertools import count, pairwise

import numpy as np

from collectlab.explore.schedules import frozen, outcome
from collectlab.fabric.simulated import ENDLESS, IDLE, LONG, Simulation, checked, delayed, simulate
from collectlab.trace.events import LOAD, STORE, Event, spell
from collectlab.trace.races import Race, key, pairs

_MOST_DELAYED = 0.75  # of the tries: the rest is drawn at random
_FURTHER = 20  # tries after the first schedule that does harm: the one that turns the fewest races round is shown
_MANY = 2000  # pairs of accesses that race; where there are more, the first schedule that does harm is shown


@dataclass(frozen=True)
class Witness:
    """A race, and a schedule in which it does harm; true when one was found.

    schedule  its number, for cl.simulate(program, ..., schedule=number); None when none was found
    place     where in that run's trace it goes wrong: `event` is there, `late` should have come first
    rank      a rank that ends otherwise in that run: with `holds` instead of `instead`
    tried     how many schedules were tried
    """

    race: Race
    tried: int
    schedule: int | None = None
    place: int | None = None
    event: Event | None = None
    late: Event | None = None
    rank: int | None = None
    holds: object = None
    instead: object = None

    def __bool__(self):
        return self.schedule is not None

    def __str__(self):
        if not self:
            return f"none of {self.tried} schedules tried changed the result: the race is there, and did no harm"
        holds, instead = _difference(self.holds, self.instead, self.event.elements)
        return "\n".join(
            [
                f"a schedule in which it does harm: number {self.schedule}",
                f"    event {self.place} of its trace: {self.event} before {_late(self.event, self.late)}",
                f"    rank {self.rank} then {holds} instead of {instead}",
            ]
        )


def witness(program, *args, ranks=4, race=None, expected=None, tries=200):
    """A Witness of `race`, or of the first race of a run; None when a run has no race, which proves it for all.

    expected  what the ranks should end with, in rank order; None: what they end with when they go in step, each rank
              one step in turn
    tries     how many schedules are tried at most
    """
    ranks = checked("witness", program, args, ranks)
    if race is None:
        races = simulate(program, *args, ranks=ranks).trace.races()
        if not races:
            return None
        race = races[0]
    step_by_step = InStep(ranks).run(program, args)
    right = expected if expected is not None else outcome(step_by_step)[0]
    in_order = differs(step_by_step, right) is None
    first = _orders(step_by_step.trace)
    orders, further = first if in_order else {}, _FURTHER if len(first) <= _MANY else 0
    tried, harmful = 0, []
    for run in _candidates(program, args, ranks, race, int(tries * _MOST_DELAYED), _most_idle(step_by_step)):
        tried += 1
        turned = _turned(run.trace, race, orders) if differs(run, right) is not None else None
        if turned is not None:
            step, late, others = turned
            harmful.append((others, tried, run, _harmed(run, right, step), step, late))
        enough = any(others == 1 or _endless(run, rank) for others, _, run, rank, *_ in harmful)
        if enough or tried == tries or (harmful and tried == harmful[0][1] + further):
            break
    if not harmful:
        return Witness(race, tried)
    _, _, run, rank, step, late = min(harmful, key=lambda found: found[:2])
    if rank in run.errors:
        run = simulate(program, *args, ranks=ranks, schedule=run.schedule)  # of a loop that waits: in full length
    at = run.trace.events[step]
    return Witness(race, tried, run.schedule, step, at, late, rank, _ended(run, rank), right[rank])


class InStep(Simulation):
    """A run in which the ranks go in step: one step each, in turn."""

    def stand(self, rank):
        """Let the next one go on."""
        self.hub.switch()


class _Counted(Simulation):
    """A run that notes who made each step."""

    def __init__(self, nranks, schedule):
        super().__init__(nranks, schedule)
        self.turns = []

    def stand(self, rank):
        super().stand(rank)
        self.turns.append(rank)


def _most_idle(run):
    """After how many steps without a notification a loop of the program is taken to wait for ever.

    While one rank looks again and again, the others go on every LONG steps; this is enough for each of them to make
    more steps than in all of `run`, in which the ranks went in step.
    """
    steps = Counter(event.rank for event in run.trace.events)
    return min(IDLE, run.nranks * 2 * (max(steps.values(), default=0) + LONG))


def _candidates(program, args, ranks, race, most, most_idle):
    """Runs under one schedule after another: those that turn races round, `most` of them, and random ones."""
    todo, seen, given = deque([()]), set(), 0
    while todo and given < most:
        delays = todo.popleft()
        counted = _Counted(ranks, delayed(delays))
        counted.most_idle = most_idle
        run = counted.run(program, args)
        if not delays:
            run.schedule = delayed([max(1, len(counted.turns))])  # a delay at the last step changes nothing
        given += 1
        yield run
        at, events = _steps(run.trace, counted.turns), run.trace.events
        turned = {(key(events[a], events[b]) != race.key, at[a]) for a, b, _ in pairs(run.trace)}
        for _, step in sorted(turned):
            further = (*(d for d in delays if d <= step), step)
            if further not in seen:
                seen.add(further)
                todo.append(further)
    for schedule in count():
        drawn = Simulation(ranks, schedule)
        drawn.most_idle = most_idle
        yield drawn.run(program, args)


def _steps(trace, turns):
    """Place of an event in the trace -> which step of the run it was, counted from 1."""
    at = {}
    for step, rank in enumerate(turns, 1):
        at.setdefault(rank, []).append(step)
    made = [0] * trace.nranks
    found = {}
    for i, event in enumerate(trace.events):
        if event.is_step:
            found[i] = at[event.rank][made[event.rank]]
            made[event.rank] += 1
    return found


def _orders(trace):
    """What two racing accesses are called in any run of the program -> the rank that comes first in this one."""
    return {name: trace.events[a].rank for a, _, name in _named(trace)}


def _named(trace):
    """Every two accesses that race: the places of the earlier and of the later, and what the two are called."""
    numbers, made = [], [0] * trace.nranks
    for event in trace.events:
        numbers.append((event.rank, made[event.rank]))
        made[event.rank] += event.is_step
    for a, b, _ in pairs(trace):
        yield a, b, frozenset((numbers[a], numbers[b]))


def _turned(trace, race, orders):
    """Where this race goes wrong first: the place, the access that should have come first, and how many pairs of
    accesses come in another order than in `orders`; None where it does not go wrong."""
    wrong, others = [], 0
    for a, b, name in _named(trace):
        first = trace.events[a].rank
        others += first != orders.get(name, first)
        if first != orders.get(name, race.first.rank) and key(trace.events[a], trace.events[b]) == race.key:
            wrong.append((a, b))
    if not wrong:
        return None
    step, late = min(wrong)
    return step, trace.events[late], others


def _harmed(run, right, step):
    """A rank that ends otherwise than it should: the one that makes the step if it does; None if none does."""
    first = differs(run, right)
    maker = run.trace.events[step].rank
    return maker if first is not None and differs(run, right, maker) is not None else first


def differs(run, right, rank=None):
    """The first rank (or `rank`) that does not end with what is right; None when it does."""
    for r in range(len(right)) if rank is None else [rank]:
        if r in run.errors or r in run.stuck or not same(run.results[r], right[r]):
            return r
    return None


def same(got, want, size=None):
    """Whether a result is what it should be; floating-point numbers may differ by what an order of sums does.

    size  for each element, the number of ranks times the sum of the absolute values that it is computed from: two
          sums of p numbers differ by no more than 2 (p - 1) u of that sum, u being half the dtype's epsilon (Higham,
          Accuracy and Stability of Numerical Algorithms, 2002, chapter 4). None where it is not known: then the
          square root of epsilon is allowed, far above rounding and far below a wrong element
    """
    if isinstance(want, list | tuple) and isinstance(got, list | tuple):
        return len(got) == len(want) and all(map(same, got, want))
    if want is None or got is None or isinstance(want, dict):
        return frozen(got) == frozen(want)
    return not _differing(got, want, size).any()


def _differing(got, want, size=None):
    """Which elements differ: bool, of the shape of `want`; one True where the shapes differ."""
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        return np.array([True])
    if got.dtype.kind not in "fc" and want.dtype.kind not in "fc":
        return got != want
    coarse = max((np.finfo(a.dtype) for a in (got, want) if a.dtype.kind in "fc"), key=lambda info: info.eps)
    wide = np.result_type(want, np.float64)
    got, want = got.astype(wide), want.astype(wide)
    if size is None:
        most = np.max(np.abs(want), initial=1, where=np.isfinite(want))
        return ~np.isclose(got, want, rtol=0, atol=coarse.eps**0.5 * most, equal_nan=True)
    # below the normal numbers rounding is absolute; beyond the largest, whether a sum overflows depends on its order
    size = np.asarray(size, float)
    bound = 2 * float(coarse.eps) * size + 4 * float(coarse.smallest_subnormal)
    return ~np.isclose(got, want, rtol=0, atol=bound, equal_nan=True) & (size <= float(coarse.max))


def _endless(run, rank):
    return ENDLESS in str(run.errors.get(rank))


def _ended(run, rank):
    if rank in run.errors:
        return run.errors[rank]
    return "stuck" if rank in run.stuck else run.results[rank]


def _difference(holds, instead, near):
    """What a rank ends with, and what it should, in few words: arrays from where they part."""
    if isinstance(holds, Exception) and ENDLESS in str(holds):
        return f"never comes back ({ENDLESS})", "going on"
    if isinstance(holds, Exception):
        return f"raises {type(holds).__name__}: {holds}", "going on"
    if isinstance(holds, str) and holds == "stuck":
        return "waits for ever", "going on"
    where, got, want = part(holds, instead, near=near)
    return f"ends with {got}{where}", want


class Calls(list):
    """The results of several calls in a row."""


_SHOWN = 4  # values of a wrong result


def part(got, want, size=None, near=()):
    """Where two results part (" in elements 3:7", " in element 0 of call 2"), and what each of them has there.

    size is as in `same`; elements that are in `near` are shown rather than others.
    """
    if isinstance(want, list | tuple) and isinstance(got, list | tuple) and len(got) == len(want):
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            if not same(a, b):
                where, a, b = part(a, b, near=near)
                return f"{where} of call {i + 1}" if isinstance(got, Calls) else f"{where} of item {i}", a, b
    if isinstance(want, np.ndarray) and isinstance(got, np.ndarray) and got.shape == want.shape and got.size:
        a, b = got.reshape(-1), want.reshape(-1)
        wrong = np.flatnonzero(_differing(a, b, None if size is None else np.reshape(size, -1))).tolist()
        if wrong:
            told = [i for i in wrong if i in near] or wrong
            shown = [_listed(array[told]) for array in (a, b)]
            if all(map(_unwritten, a[told])):
                shown[0] = "memory that nobody has written"
            if len(told) == a.size <= _SHOWN:
                return "", *shown
            return f" in {_spelled(told)}{', among others,' * (told != wrong)}", *shown
    return "", _short(got), _short(want)


def _listed(values):
    """The values, the first of them where they are many."""
    return "[" + ", ".join(map(_element, values[:_SHOWN])) + ", ..." * (len(values) > _SHOWN) + "]"


def _spelled(elements):
    """All elements of a rising list in words: "element 3", "elements 0:3, 5 and 7:9"."""
    cuts = [i for i in range(1, len(elements)) if elements[i] != elements[i - 1] + 1]
    runs = [elements[i:j] for i, j in pairwise([0, *cuts, len(elements)])]
    *most, last = [f"{run[0]}" if len(run) == 1 else f"{run[0]}:{run[-1] + 1}" for run in runs]
    word = "element" if len(elements) == 1 else "elements"
    return f"{word} {', '.join(most)} and {last}" if most else f"{word} {last}"


def _unwritten(x):
    """Whether this is what simulated memory holds before anybody writes there, or a sum with that."""
    return (x.dtype.kind == "i" and x < np.iinfo(x.dtype).min // 2) or (x.dtype.kind == "f" and np.isnan(x))


def _element(x):
    return "unwritten" if _unwritten(x) else f"{x:.6g}" if x.dtype.kind == "f" else str(x)


def _short(value):
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _late(event, late):
    """The access that should have come first, said after `event`, which touches the same elements."""
    verb = {STORE: "stores", LOAD: "loads"}[late.kind]
    them = "it" if len(event.elements) == 1 else "them"
    if list(late.elements) != list(event.elements):
        them = spell(late.elements)
    return f"rank {late.rank} {verb} {them}" + (f" at line {late.line}" if late.line else "")

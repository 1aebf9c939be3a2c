"""Exercises whose answer is a kernel: it is simulated under many schedules, then run on real ranks."""

import dis
import inspect
import linecache
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from collectlab.exercises import on_ranks, reading
from collectlab.exercises.exercise import Verdict
from collectlab.fabric.per_rank import per_rank
from collectlab.layout import Partition
from collectlab.words import listed

_KERNELS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "kernels", "")

LENGTHS = (6, 7, 10, 1, 0)  # elements on each rank, in the order of trying
SCHEDULES = (None, 1, 2, 3)
ON_RANKS = 3


def digits(nranks, count):
    """One int64 array per rank: 11, 10, 13, 12, 15, ... times 100**rank, so each rank has two digits of its own.

    Of 10, 11, 12, ... each two neighbours are exchanged, so that a sorted result is a wrong one.
    """
    values = np.array([10 + _neighbour(i, count) for i in range(count)], int)
    return [values * 100**rank for rank in range(nranks)]


def _neighbour(i, count):
    return i ^ 1 if i ^ 1 < count else i


@dataclass(frozen=True)
class Finding:
    """How a kernel went wrong, in the first run in which it did.

    kind      "raised", "deadlock", "unanswered", "kind" (what is returned cannot be read), "race", "wrong", "input"
              (was changed), "view" (of a window was returned), "borrowed" (a kernel of this package was called),
              "silent" (nothing was moved), "bytes" (a rank got too many) or "detour" (too many from one peer)
    nranks, count   of that run
    call      0, or 1 when the second of two calls is concerned, or both
    calls     how many calls were made in a row
    text      the report on it, in lines; "" where there is none
    results   what each rank returned from that call, or None
    races     of the run, and its `events`
    """

    kind: str
    nranks: int
    count: int
    call: int = 0
    text: str = ""
    results: list | None = None
    calls: int = 1
    races: list = field(default_factory=list)
    events: list = field(default_factory=list)


@dataclass(frozen=True)
class KernelMistake:
    """A wrong kernel, or a wrong plan, recognised by how it goes wrong.

    shows    from the Finding to whether this is the mistake
    message  the sentence; the finding's text follows it
    """

    name: str
    shows: Callable
    message: str


def of_kind(kind, call=None, words="", where=None):
    """A rule for a KernelMistake: a finding of that kind in that call, with these words, of which `where` holds."""
    return lambda finding: (
        finding.kind == kind
        and (call is None or finding.call == call)
        and words in finding.text
        and (where is None or where(finding))
    )


@dataclass(frozen=True)
class Case:
    """What is tried: inputs[k] and expected[k] belong to call k, one array per rank.

    gets   the bytes that row rank may get from column rank in a call, or None
    exact  whether fewer bytes are wrong as well
    """

    nranks: int
    count: int
    inputs: list
    expected: list
    gets: np.ndarray | None
    exact: bool = False


@dataclass(frozen=True)
class KernelExercise:
    """Call it with a function ``program(ctx, x)`` made of windows and signals: a Verdict comes back.

    question  for the learner
    expected  from the inputs, one array per rank, to the right results, one array per rank
    why       one sentence about a right program
    mistakes  ProgramMistakes (by what is returned) and KernelMistakes (by how it goes wrong), in the order of trying
    gets      who moves what, if that is asked for: from the counts of Partition.uneven, one per rank, to the elements
              that row rank may get from column rank in a call, be they read by the one or stored by the other
    exact     whether fewer are wrong as well
    ranks     the numbers of simulated ranks, in the order of trying
    timeout   seconds after which the simulations, or the real run, count as hanging

    Each number of ranks is simulated with each of the LENGTHS under each of the SCHEDULES: first one call, then two
    in a row on the same windows. Then ON_RANKS real ranks make the two calls. Both parts run in processes of their
    own, so a program that never ends is ended. ctx.comm is None in both.
    """

    question: str
    expected: Callable
    why: str
    mistakes: tuple
    gets: Callable | None = None
    exact: bool = False
    ranks: tuple = (2, 3, 4, 5, 7, 1)
    timeout: float = 10.0

    def __call__(self, program):
        for verdict_on in (on_ranks.no_program, self._simulate, self._run):
            if (verdict := verdict_on(program)) is not None:  # a wrong one is false
                return verdict
        return self._right()

    def __repr__(self):
        return f"{self.question} Answer with a function, program(ctx, x)."

    def _right(self):
        tried = f"{listed(self.ranks)} simulated ranks with {listed(LENGTHS)} elements, in one call and in two"
        return Verdict(True, f"right on {tried}, and on {ON_RANKS} real ranks: {self.why}")

    def _simulate(self, program):
        """The verdict after the simulated runs, or None when all are right."""
        cases = [self._case(nranks, count) for nranks in self.ranks for count in LENGTHS]
        done = on_ranks.run_quietly(_simulated, program, cases, ranks=1, timeout=self.timeout)
        if isinstance(done, Verdict):
            return done
        if not done.ok:
            reached = _reached(done.log(0))
            where = self._where(*reached) if reached else "in the simulator"
            return _of_simulation(on_ranks.ended_badly(done, where, self.timeout))
        finding = done.results[0]
        if finding is None:
            return None
        said = self._said(finding, self._where(finding.nranks, finding.count, finding.calls - 1))
        if finding.kind in ("deadlock", "race", "wrong") and (names := " and ".join(sorted(_globals(program)))):
            note = f"({names}: simulated ranks run in one process, and share its globals.)"
            return replace(said, text=f"{said.text}\n{note}")
        return said

    def _run(self, program):
        """The verdict after two calls on real ranks, or None when all is right."""
        case = self._case(ON_RANKS, LENGTHS[1], np.float64)
        where = f"right in the simulator, but on {ON_RANKS} real ranks with {_elements(case.count)} of float64"
        xs = per_rank(list(zip(*case.inputs, strict=True)))
        done = on_ranks.run_quietly(_called_on_a_rank, program, xs, ranks=ON_RANKS, timeout=self.timeout)
        if isinstance(done, Verdict):
            return done
        if not done.ok:
            return on_ranks.ended_badly(done, where, self.timeout)
        finding = _judged(case, done.results, done.trace)
        return None if finding is None else self._said(finding, where)

    def _case(self, nranks, count, dtype=None):
        xs = [x if dtype is None else x.astype(dtype) for x in digits(nranks, count)]
        inputs = [xs, [2 * x for x in xs]]
        gets = None
        if self.gets is not None:
            counts = np.array(Partition.uneven(count, nranks).counts)
            gets = xs[0].itemsize * self.gets(counts) * (1 - np.eye(nranks, dtype=int))
        return Case(nranks, count, inputs, [self.expected(xs) for xs in inputs], gets, self.exact)

    def _where(self, nranks, count, before):
        """In words: where it went wrong first, and how far the program is right."""
        at = f"on {nranks} rank{'s' * (nranks != 1)} with {_elements(count)}"
        ranks, lengths = self.ranks[: self.ranks.index(nranks)], LENGTHS[: LENGTHS.index(count)]
        if before:
            return f"every single call is right, but in two calls on the same windows, {at},"
        if ranks:
            return f"right on {listed(ranks)} ranks, but {at}"
        return f"right with {listed(lengths)} elements, but {at}" if lengths else at

    def _said(self, finding, where):
        """The verdict on a finding."""
        if finding.kind == "unanswered":
            return Verdict(False, "no answer yet: the program still returns three dots.", "unanswered")
        case = self._case(finding.nranks, finding.count)
        xs, expected = case.inputs[finding.call], case.expected[finding.call]
        if finding.kind == "wrong":
            count = finding.count if finding.call == 0 else None
            said, name = _difference(finding.results, expected, count, finding.calls), None
        else:
            said, name = _SAID[finding.kind], finding.kind
        return verdict(finding, where, self.mistakes, xs, said, name)


def verdict(finding, where, mistakes, xs, said, name, same=reading.same):
    """The verdict on a finding: of the first of the `mistakes` that it shows, or else what is `said` by `name`."""
    for mistake in mistakes:
        if isinstance(mistake, KernelMistake):
            found = mistake.shows(finding)
        else:
            found = finding.kind == "wrong" and all(map(same, finding.results, mistake.wrong(xs)))
        if found:
            said, name = mistake.message, mistake.name
            break
    return Verdict(False, "\n".join([f"not yet: {where} {said}", *finding.text.splitlines()]), name)


_SAID = {
    "raised": "the program fails.",
    "deadlock": "the ranks wait for ever.",
    "kind": "what is returned cannot be read.",
    "race": "two accesses to the same elements are in no order, so the result is a matter of luck.",
    "input": "x is changed. Leave to the caller what belongs to the caller.",
    "view": "a result changes after it was returned: it is still the memory of a window. Return a copy.",
    "borrowed": "a kernel of collectlab made the result. Write the steps by yourself.",
    "silent": "nothing was moved through a window.",
    "bytes": "too many bytes are moved.",
    "detour": "more comes from one peer than is to come from it.",
}


# in the process that simulates


def _simulated(ctx, program, cases):
    """The first Finding over all cases and schedules, of one call and then of two; None when there is none."""
    for calls in (1, 2):
        for case in cases:
            ctx.log(f"\n{_REACHED}{case.nranks} {case.count} {calls - 1}")
            for schedule in SCHEDULES:
                with on_ranks.unheard():
                    finding = _look(program, case, schedule, calls)
                if finding is not None:
                    return finding
    return None


def _look(program, case, schedule, calls):
    """The Finding of one simulated run."""
    from collectlab.fabric.simulated import simulate

    xs = per_rank(list(zip(*case.inputs[:calls], strict=True)))
    run = simulate(_called, program, xs, ranks=case.nranks, schedule=schedule)
    if run.ok:
        finding = _judged(case, run.results, run.trace)
        if finding is not None and finding.kind == "race":
            return replace(finding, text=f"{finding.text}\n{_harm(program, case, calls, finding.races[0])}")
        return finding
    report = run.report().splitlines()[1:]
    if run.errors:  # one rank's will do; what the others waited for follows from it
        end = (i for i, line in enumerate(report) if i and re.match(r"rank \d+ raised |stuck: ", line))
        report = report[: next(end, None)]
    kind, text = "raised" if run.errors else "deadlock", "\n".join(report)
    return Finding(kind, case.nranks, case.count, calls - 1, text, None, calls, [], run.trace.events)


def _harm(program, case, calls, race):
    """A schedule in which a race changes the result, in words; or that none was found."""
    from collectlab.explore.witness import Calls, witness

    def results(ctx, xs):
        returned = Calls(program(ctx, x) for x in xs)
        return returned if calls > 1 else returned[0]

    xs = per_rank(list(zip(*case.inputs[:calls], strict=True)))
    return witness(results, xs, ranks=case.nranks, race=race)


# on every rank, simulated or not


def _called(ctx, program, xs):
    """For each call: what the program returned, a copy made at once, and whether it left its input alone."""
    ctx.comm, calls = None, []
    for x in xs:
        given = x.copy()
        y = program(ctx, x)
        calls.append((y, y.copy() if isinstance(y, np.ndarray) else y, np.array_equal(given, x)))
    return calls


def _called_on_a_rank(ctx, program, xs):
    with on_ranks.unheard():
        return _called(ctx, program, xs)


def _judged(case, ranks, trace):
    """The Finding on a run in which every rank returned; `ranks` has one result of _called per rank."""
    last = len(ranks[0]) - 1
    races = trace.races()

    def found(kind, text="", call=last, results=None):
        return Finding(kind, case.nranks, case.count, call, text, results, last + 1, races, trace.events)

    results = []
    for call in range(last + 1):
        returned = [calls[call][1] for calls in ranks]
        if all(one is ... for one in returned):
            return found("unanswered")
        for rank, one in enumerate(returned):
            expected = case.expected[call][rank]
            try:
                returned[rank] = on_ranks.read_result(one, expected)
            except Exception as error:  # also of an object whose own methods raise
                why = f"There, {error}. " if isinstance(error, reading.NotAnAnswer) else ""
                kind = reading.expected_kind(expected)
                said = f"rank {rank} returns {reading.shown(one)}. {why}What is expected: {kind}."
                if not races:
                    return found("kind", said, call)
        results.append(returned)
    if races:
        return found("race", _spelled(races[0]))
    for call, returned in enumerate(results):
        if not all(map(reading.same, returned, case.expected[call])):
            return found("wrong", "", call, returned)
    for rank, calls in enumerate(ranks):
        for call, (y, copy, untouched) in enumerate(calls):
            if not untouched:
                return found("input", "", call)
            if isinstance(y, np.ndarray) and not np.array_equal(y, copy):
                return found("view", f"rank {rank}, call {call + 1} of {len(calls)}: {reading.shown(y)}")
    if any(event.file.startswith(_KERNELS) for event in trace.events):
        return found("borrowed")
    return None if case.gets is None else _moved(case, trace, last + 1, found)


def _moved(case, trace, calls, found):
    """The Finding where bytes were moved in another way than the question asks for."""
    got, asked = trace.traffic() + trace.pushed().T, calls * case.gets
    np.fill_diagonal(got, 0)
    if asked.any() and not got.any():
        return found("silent")
    each = " in two calls" if calls > 1 else ""
    for rank, (nbytes, enough) in enumerate(zip(got.sum(axis=1), asked.sum(axis=1), strict=True)):
        said = f"rank {rank} gets {nbytes} bytes from its peers{each}; {enough} are"
        if nbytes > enough:
            return found("bytes", f"{said} enough")
        if case.exact and nbytes < enough:
            return found("detour", f"{said} expected")
    for rank, peer in np.argwhere(got > asked):
        said = f"rank {rank} gets {got[rank, peer]} bytes from rank {peer}{each}; {asked[rank, peer]} are expected"
        return found("detour", said)
    return None


def _spelled(race):
    """A race in words, with the lines of the program themselves."""
    head, *accesses, why = race.lines
    for i, event in enumerate((race.first, race.second)):
        place = f"line {event.line}:  {linecache.getline(event.file, event.line).strip()}"
        accesses[i] = f"{accesses[i].rpartition('   ')[0]}   {place}"
    return "\n".join([head, *accesses, why, f"mend: {race.mend}"])


# words


def _globals(program, seen=()):
    """The globals that a program, or a function beside it that it calls, assigns to, or could change in place."""
    if not inspect.isfunction(program) or program in seen:
        return set()
    known, names = program.__globals__, set()
    for step in dis.get_instructions(program):
        value = known.get(step.argval) if step.opname in ("LOAD_GLOBAL", "STORE_GLOBAL") else None
        if step.opname == "STORE_GLOBAL" or isinstance(value, list | dict | set):
            names.add(step.argval)
        elif inspect.isfunction(value) and value.__globals__ is known:
            names |= _globals(value, (*seen, program))
    return names


_REACHED = "case reached: "


def _reached(log):
    """(nranks, count, call) of the case in which the simulating process was; None before the first."""
    cases = re.findall(rf"^{_REACHED}(\d+) (\d+) (\d)$", log, re.MULTILINE)
    return tuple(map(int, cases[-1])) if cases else None


def _of_simulation(verdict):
    """The same verdict, without words on the process that simulated all ranks."""
    text = re.sub(r"\nrank 0 was not in an MPI call +\((.*)\)", r"\nit was in \1", verdict.text)
    text = re.sub(r"\n    it printed last:(\n {8}.*)+", "", text)  # which case it had reached
    return Verdict(False, text.replace("\nfailed: rank 0 ", "\nthe process "), verdict.mistake)


def _difference(results, expected, count, calls):
    """Where wrong results differ first, and what that says, if they are made of `count` digits."""
    rank = next(r for r, result in enumerate(results) if not reading.same(result, expected[r]))
    got, want = results[rank], np.asarray(expected[rank])
    said = f"the result is wrong: rank {rank} returned {reading.shown(got)}"
    if got.shape != want.shape:
        return f"{said}, and {reading.expected_kind(want)} is expected."
    if want.ndim != 1:
        return f"{said}, and {reading.shown(want)} is expected."
    at = int(np.flatnonzero(got != want)[0])
    said += f". Its position {at} (counted from 0) is {reading.shown(got[at])}"
    said += f", and {reading.shown(want[at])} is expected"
    if count is not None and (parts := _parts(got[at], int(want[at]), len(results), count, calls)):
        said += f": {parts}"
    return f"{said}."


def _parts(got, want, nranks, count, calls):
    """What a sum of `digits` holds of each rank, where that differs from what it should hold."""
    if not abs(float(got)) < 100**nranks:
        return "such a number lies in a window before anything is stored there" if abs(float(got)) > 1e17 else ""
    parts = []
    for rank in range(nranks):
        have, need = int(got) // 100**rank % 100, want // 100**rank % 100
        if have == need:
            continue
        if not have:
            parts.append(f"rank {rank}'s contribution is missing")
        elif need and have == 2 * need and calls > 1:  # every single call was right
            parts.append(f"rank {rank}'s contribution is that of the next call")
        elif need and have == 2 * need:
            parts.append(f"rank {rank}'s contribution is in it twice")
        elif 10 <= have < 10 + min(count, 10):
            held, wanted = _neighbour(have - 10, count), _neighbour(need - 10, count)
            parts.append(f"it holds rank {rank}'s element {held}" + f" instead of {wanted}" * bool(need))
        else:
            return ""
    return "; ".join(parts)


def _elements(count):
    return f"{count} element{'s' * (count != 1)}"

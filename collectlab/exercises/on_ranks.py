"""Exercises whose answer is a program: it is run on several numbers of ranks, and told what went wrong where."""

import contextlib
import inspect
import io
import re
from collections.abc import Callable
from dataclasses import dataclass

from collectlab.exercises import reading
from collectlab.exercises.exercise import Verdict
from collectlab.fabric.per_rank import per_rank


@dataclass(frozen=True)
class ProgramMistake:
    """A wrong program, recognised by what it returns.

    wrong    from the inputs, one array per rank, to what such a program returns, one result per rank
    message  the sentence
    """

    name: str
    wrong: Callable
    message: str


@dataclass(frozen=True)
class ProgramExercise:
    """Call it with a function ``program(ctx, x)``: it is run on ranks, and a Verdict comes back.

    question  for the learner
    inputs    from a number of ranks to one array per rank
    expected  from those arrays to the right results, one array per rank
    why       one sentence about a right program
    mistakes  ProgramMistakes, in the order in which they are tried
    reserved  collective calls that would leave nothing to do: name -> what is said when the program makes it
    ranks     the numbers of ranks it is tried on, one after another
    timeout   seconds after which a run counts as hanging
    """

    question: str
    inputs: Callable
    expected: Callable
    why: str
    mistakes: tuple
    reserved: dict
    ranks: tuple = (2, 3, 4)
    timeout: float = 10.0

    def __call__(self, program):
        if reading.unanswered(program):
            return Verdict(False, "no answer yet: put a function, program(ctx, x), there.", "unanswered")
        if not callable(program):
            said = reading.shown(program)
            return Verdict(
                False,
                f"not yet: you answered {said}. What is expected: a function, program(ctx, x), without calling it.",
                "kind",
            )
        try:
            inspect.signature(program).bind("ctx", "x")
        except TypeError:
            return Verdict(
                False,
                "not yet: the function cannot be called as program(ctx, x); it takes these two arguments.",
                "arguments",
            )
        except ValueError:
            pass  # a builtin that does not tell: the ranks will
        passed = []
        for nranks in self.ranks:
            verdict = self._try(program, nranks, passed)
            if verdict is not None:
                return verdict
            passed.append(nranks)
        return Verdict(True, f"right on {_and(passed)} ranks: {self.why}")

    def __repr__(self):
        return f"{self.question} Answer with a function, program(ctx, x)."

    def _try(self, program, nranks, passed):
        """The verdict after a run on `nranks` ranks, or None when all is right."""
        from collectlab.launcher.ranks import run

        xs = self.inputs(nranks)
        before = f"right on {_and(passed)} ranks, but on {nranks}" if passed else f"on {nranks} ranks"
        try:
            with contextlib.redirect_stderr(
                io.StringIO()
            ):  # the report of a failed run is part of the verdict
                done = run(_checked, program, per_rank(xs), ranks=nranks, device="cpu", timeout=self.timeout)
        except TypeError as error:
            return Verdict(False, f"not yet: the program cannot be sent to the ranks: {error}", "not sent")
        if not done.ok:
            hangs = done.status == "timeout"
            what = f"is not done after {self.timeout:g} s" if hangs else "fails"
            lines = _without_times(done.report())[
                hangs:
            ]  # the first line of a timeout says no more than this one
            return Verdict(
                False,
                "\n".join([f"not yet: {before} the program {what}.", *lines]),
                "hangs" if hangs else "fails",
            )
        results = [result for result, _ in done.results]
        if all(result is ... for result in results):
            return Verdict(False, "no answer yet: the program still returns three dots.", "unanswered")
        expected = self.expected(xs)
        for rank, result in enumerate(results):
            try:
                results[rank] = reading.read(result, expected[rank])
            except reading.NotAnAnswer as error:
                return Verdict(
                    False,
                    f"not yet: {before}, rank {rank} returns {reading.shown(result)}. There, {error}. "
                    f"What is expected: {reading.expected_kind(expected[rank])}.",
                    "kind",
                )
        called = sorted({name for _, names in done.results for name in names})
        if all(map(reading.same, results, expected)):
            for name in filter(self.reserved.get, called):
                return Verdict(False, f"not yet: {self.reserved[name]}", f"calls {name}")
            return None
        for mistake in self.mistakes:
            if all(map(reading.same, results, mistake.wrong(xs))):
                return Verdict(False, f"not yet: {before} {mistake.message}", mistake.name)
        rank = next(r for r, result in enumerate(results) if not reading.same(result, expected[r]))
        where, kind = reading.difference(results[rank], expected[rank]), reading.expected_kind(expected[rank])
        given = f"Rank {rank} was given {reading.shown(xs[rank])} and returned {reading.shown(results[rank])}"
        return Verdict(
            False, f"not yet: {before} the result is wrong. {given}: {where}. What is expected: {kind}."
        )


class _Noting:
    """A communicator that notes the names of the calls made on it."""

    def __init__(self, comm):
        self._comm, self.names = comm, set()

    def __getattr__(self, name):
        self.names.add(name)
        return getattr(self._comm, name)


def _checked(ctx, program, x):
    """What the program returns on this rank, and the names of the communicator that it used."""
    ctx.comm = comm = _Noting(ctx.comm)
    return program(ctx, x), sorted(comm.names)


def _without_times(report):
    """The lines of a run's report, but for what differs from one time to the next."""
    report = re.sub(r" after [\d.]+ s(?=:)|, for [\d.]+ s", "", report)
    return [line for line in report.splitlines() if "run.log(" not in line]


def _and(numbers):
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last

"""Exercises whose answer is a program: it is run on several numbers of ranks, and told what went wrong where."""

import contextlib
import inspect
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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
    required  calls out of which the program is to be made: it has to make one of them
    ranks     the numbers of ranks it is tried on, one after another
    timeout   seconds after which a run counts as hanging
    """

    question: str
    inputs: Callable
    expected: Callable
    why: str
    mistakes: tuple
    reserved: dict
    required: tuple = ()
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
                results[rank] = _read(result, expected[rank])
            except reading.NotAnAnswer as error:
                return Verdict(
                    False,
                    f"not yet: {before}, rank {rank} returns {reading.shown(result)}. There, {error}. "
                    f"What is expected: {reading.expected_kind(expected[rank])}.",
                    "kind",
                )
        if all(map(reading.same, results, expected)):
            return self._calls({name for _, names in done.results for name in names})
        for mistake in self.mistakes:
            if all(map(reading.same, results, mistake.wrong(xs))):
                return Verdict(False, f"not yet: {before} {mistake.message}", mistake.name)
        rank = next(r for r, result in enumerate(results) if not reading.same(result, expected[r]))
        where, kind = reading.difference(results[rank], expected[rank]), reading.expected_kind(expected[rank])
        given = f"Rank {rank} was given {reading.shown(xs[rank])} and returned {reading.shown(results[rank])}"
        return Verdict(
            False, f"not yet: {before} the result is wrong. {given}: {where}. What is expected: {kind}."
        )


    def _calls(self, called):
        """The verdict on a program whose results are right, from the names of its calls; None when they will do."""
        for name in sorted(called & set(self.reserved)):
            return Verdict(False, f"not yet: {self.reserved[name]}", f"calls {name}")
        if self.required and not called & set(self.required):
            name = self.required[0]
            said = f"the result is right, but the program never calls {name}, and it is to be made out of that."
            return Verdict(False, f"not yet: {said}", f"lacks {name}")
        return None


def _read(result, expected):
    """What a rank returned, as reading.read gives it."""
    if result is None:
        raise reading.NotAnAnswer("None is what comes back from a function without a return")
    if isinstance(result, slice):
        raise reading.NotAnAnswer("that is a slice; return x[...] of it")
    return reading.read(result, expected)


class _Noting:
    """A communicator that notes the names of the calls made on it, and refuses arrays of two dtypes.

    MPI is told each array's dtype, and where they differ it fails with a trace of its own, or fills the
    array with something else.
    """

    def __init__(self, comm):
        self._comm, self.names = comm, set()

    def __getattr__(self, name):
        call = getattr(self._comm, name)
        if not callable(call):
            return call

        def noted(*args, **kwargs):
            self.names.add(name)
            _same_dtype(name, *args[:2], *map(kwargs.get, ("sendbuf", "recvbuf")))
            return call(*args, **kwargs)

        return noted


def _same_dtype(name, *buffers):
    """TypeError when a call is given an array to send and one of another dtype to receive into."""
    dtypes = [buffer.dtype for buffer in buffers if isinstance(buffer, np.ndarray)]
    if name[0].isupper() and len(set(dtypes)) > 1:
        raise TypeError(
            f"{name}: the array to send has {dtypes[0]}, the one to receive into {dtypes[1]}; make it with x.dtype"
        )


def _checked(ctx, program, x):
    """What the program returns on this rank, and the names of the calls that it made."""
    ctx.comm = comm = _Noting(ctx.comm)
    return program(ctx, x), comm.names


def _without_times(report):
    """The lines of a run's report, but for what differs from one time to the next, and for lines of this file."""
    report = re.sub(r" after [\d.]+ s(?=:)|, for [\d.]+ s", "", report)
    ours = "run.log(", f"which called {Path(__file__).name}"
    return [line for line in report.splitlines() if not any(words in line for words in ours)]


def _and(numbers):
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last

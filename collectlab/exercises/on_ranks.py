"""Exercises whose answer is a program: it is run on several numbers of ranks, and told what went wrong where."""

import ast
import contextlib
import inspect
import io
import numbers
import os
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collectlab.exercises import reading
from collectlab.exercises.exercise import Verdict
from collectlab.fabric.per_rank import per_rank
from collectlab.words import listed


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
class Call:
    """A call that a program made on its communicator.

    name  of the blocking form: Allgather for Iallgather
    sent  a copy of the array that the call was given to read, or None
    """

    name: str
    sent: object = None


@dataclass(frozen=True)
class CallMistake:
    """A program that returns the right results in another way than the question asks for.

    shows    from the Calls of each rank, in their order, and the inputs, to whether it does
    message  the sentence, from "the result is right, but" on
    """

    name: str
    shows: Callable
    message: str


@dataclass(frozen=True)
class ProgramExercise:
    """Call it with a function ``program(ctx, x)``: it is run on ranks, and a Verdict comes back.

    question  for the learner
    inputs    from a number of ranks to one array per rank
    expected  from those arrays to the right results, one array per rank
    why       one sentence about a right program
    mistakes  ProgramMistakes, in the order in which they are tried
    reserved  collective calls that would leave nothing to do: name -> what is said, as in a CallMistake, when the
              program makes it, or its form with a request, as Iallreduce of Allreduce
    required  calls out of which the program is to be made: it has to make one of them
    by_calls  CallMistakes, in the order in which they are tried where the results are right
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
    by_calls: tuple = ()
    ranks: tuple = (2, 3, 4)
    timeout: float = 10.0

    def __call__(self, program):
        refused = no_program(program)
        if refused is not None:
            return refused
        passed = []
        for nranks in self.ranks:
            verdict = self._try(program, nranks, passed)
            if verdict is not None:
                return verdict
            passed.append(nranks)
        return Verdict(True, f"right on {listed(passed)} ranks: {self.why}")

    def __repr__(self):
        return f"{self.question} Answer with a function, program(ctx, x)."

    def _try(self, program, nranks, passed):
        """The verdict after a run on `nranks` ranks, or None when all is right."""
        xs = self.inputs(nranks)
        before = f"right on {listed(passed)} ranks, but on {nranks}" if passed else f"on {nranks} ranks"
        done = run_quietly(_checked, program, per_rank(xs), ranks=nranks, timeout=self.timeout)
        if isinstance(done, Verdict):
            return done
        if not done.ok:
            return ended_badly(done, before, self.timeout)
        results = [result for result, _ in done.results]
        if all(result is ... for result in results):
            return Verdict(False, "no answer yet: the program still returns three dots.", "unanswered")
        expected = self.expected(xs)
        for rank, result in enumerate(results):
            try:
                results[rank] = read_result(result, expected[rank])
            except reading.NotAnAnswer as error:
                return Verdict(
                    False,
                    f"not yet: {before}, rank {rank} returns {reading.shown(result)}. There, {error}. "
                    f"What is expected: {reading.expected_kind(expected[rank])}.",
                    "kind",
                )
        if all(map(reading.same, results, expected)):
            for name, message in self._ways([calls for _, calls in done.results], xs):
                return Verdict(False, f"not yet: the result is right, but {message}", name)
            return None
        for mistake in self.mistakes:
            if all(map(reading.same, results, mistake.wrong(xs))):
                return Verdict(False, f"not yet: {before} {mistake.message}", mistake.name)
        rank = next(r for r, result in enumerate(results) if not reading.same(result, expected[r]))
        where, kind = reading.difference(results[rank], expected[rank]), reading.expected_kind(expected[rank])
        given = f"Rank {rank} was given {reading.shown(xs[rank])} and returned {reading.shown(results[rank])}"
        return Verdict(False, f"not yet: {before} the result is wrong. {given}: {where}. What is expected: {kind}.")

    def _ways(self, calls, xs):
        """(name, message) of each way to right results that is refused and shows in the Calls of each rank."""
        if len(calls) == 1:  # with nobody to talk to, no call need be made
            return
        called = {call.name for of_rank in calls for call in of_rank}
        for name in sorted(called & set(self.reserved)):
            yield f"calls {name}", self.reserved[name]
        if self.required and not called & set(self.required):
            name = self.required[0]
            yield f"lacks {name}", f"the program never calls {name}, and it is to be made out of that."
        for mistake in self.by_calls:
            if mistake.shows(calls, xs):
                yield mistake.name, mistake.message


def _blocking(name):
    """The name of the call that does the same and returns when it is done: Allgather for Iallgather."""
    return name[1:].capitalize() if re.match("I[a-z]", name) else name


def no_program(answer, called="program"):
    """The verdict on an answer that is no function program(ctx, x), or one with gaps; None when it can be run.

    called  what such a function is called in the exercise
    """
    if reading.unanswered(answer):
        return Verdict(False, f"no answer yet: put a function, {called}(ctx, x), there.", "unanswered")
    if not callable(answer):
        said = reading.shown(answer)
        return Verdict(
            False,
            f"not yet: you answered {said}. What is expected: a function, {called}(ctx, x), without calling it.",
            "kind",
        )
    try:
        inspect.signature(answer).bind("ctx", "x")
    except TypeError:
        return Verdict(
            False,
            f"not yet: the function cannot be called as {called}(ctx, x); it takes these two arguments.",
            "arguments",
        )
    except ValueError:
        pass  # a builtin that does not tell: the ranks will
    if line := _gap(answer):
        return Verdict(False, f"no answer yet: three dots still stand in line {line} of the {called}.", "unanswered")
    return None


def _gap(program):
    """The line of a function in which three dots stand in the place of code, or None; x[...] is no gap."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(program)))
    except (OSError, TypeError, SyntaxError):  # there is no source, or it is a piece of a longer line
        return None
    if not isinstance(tree.body[0], ast.FunctionDef):  # a lambda, in the line where it stands
        return None
    fine = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            fine.update(map(id, ast.walk(node.slice)))
        elif isinstance(node, ast.Return):
            fine.add(id(node.value))  # what is returned is looked at when the program has run
    dots = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value is ... and id(n) not in fine)
    return min((node.lineno for node in dots), default=None)


class _Check:
    """A program that tries a learner's: `collectlab runs` lists it under the name of that one."""

    def __init__(self, body, program):
        self.body, self.__name__ = body, f"check of {getattr(program, '__name__', 'program')}"

    def __call__(self, ctx, *args):
        return self.body(ctx, *args)


def run_quietly(body, program, *args, ranks, timeout):
    """The Run of `body(ctx, program, *args)`, which prints no report; a Verdict when that cannot be sent."""
    from collectlab.launcher.ranks import run

    try:
        with contextlib.redirect_stderr(io.StringIO()):  # the report is part of the verdict
            return run(_Check(body, program), program, *args, ranks=ranks, device="cpu", timeout=timeout)
    except TypeError as error:
        return Verdict(False, f"not yet: the program cannot be sent to the ranks: {error}", "not sent")


@contextlib.contextmanager
def unheard():
    """What is printed meanwhile goes nowhere: no verdict shows it, and a loop that prints for ever fills the disk."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def ended_badly(run, where, timeout, called="program"):
    """The verdict on a run that failed or was not done in time, `where` being such as "on 3 ranks"."""
    hangs = run.status == "timeout"
    what = f"is not done after {timeout:g} s" if hangs else "fails"
    lines = without_times(run.report())[hangs:]  # the first line of a timeout says no more than this one
    said = "\n".join([f"not yet: {where} the {called} {what}.", *lines])
    return Verdict(False, said, "hangs" if hangs else "fails")


def read_result(result, expected):
    """What a rank returned, as reading.read gives it."""
    if result is None:
        raise reading.NotAnAnswer("None is what comes back from a function without a return")
    if isinstance(result, slice):
        raise reading.NotAnAnswer("that is a slice; return x[...] of it")
    return reading.read(result, expected)


_READY_MADE = "collectlab.sharding.collectives"
_WITH_COUNTS = ("Allgatherv", "Gatherv", "Scatterv", "Alltoallv")


def goes_only_into(*names):
    """The CallMistake of giving a rank's x to other calls than those of these names, or not to those."""

    def shows(calls, xs):
        for of_rank, x in zip(calls, xs, strict=True):
            here = [call.sent for call in of_rank if call.name in names]
            beside = [call.sent for call in of_rank if call.name not in names]
            if _hold(beside, x) or not (_hold(here, x) or any(sent is None for sent in here)):
                return True
        return False

    return CallMistake("for nothing", shows, f"x is to go into {names[0]} and into no other call.")


def _hold(arrays, x):
    """Whether every element of x is in one of the arrays, up to signs and zeros."""
    elements = [np.ravel(array) for array in arrays if array is not None]
    return np.isin(x[x != 0], np.abs(np.concatenate([x[:0], *elements]))).all()


class _Noting:
    """A communicator that notes the calls made on it and on those made from it, and refuses buffers that do not fit.

    MPI is told each array's dtype, and where they differ it fails with a trace of its own, or fills the
    array with something else. So it does where one lies in the other. What collectlab's own collectives
    call is noted, and that it was they who called it.
    """

    def __init__(self, comm, calls):
        self._comm, self.calls = comm, calls

    def __getattr__(self, name):
        call = getattr(self._comm, name)
        if not callable(call):
            return call

        def noted(*args, **kwargs):
            self.calls.append(Call(_blocking(name), _sent(args, kwargs)))
            if inspect.currentframe().f_back.f_globals.get("__name__") == _READY_MADE:
                self.calls.append(Call(_READY_MADE))
            if name[0].isupper():
                buffers = [*args[:2], *map(kwargs.get, ("sendbuf", "recvbuf"))]
                _fit_for_mpi(name, buffers, self._comm.Get_size())
            value = call(*args, **kwargs)
            return _Noting(value, self.calls) if hasattr(value, "Allreduce") else value  # that of Dup or Split

        return noted


def _sent(args, kwargs):
    """A copy of the array, or list of numbers, that a call is given to read: its first, whatever place that has."""
    for given in (*args[:2], *map(kwargs.get, ("sendbuf", "recvbuf"))):
        if isinstance(given, list) and given and all(isinstance(one, numbers.Number) for one in given):
            return np.array(given)
        array = given[0] if isinstance(given, list | tuple) and given else given
        if isinstance(array, np.ndarray):
            return array.copy()
    return None


def _fit_for_mpi(name, buffers, nranks):
    """TypeError or ValueError when a call is given buffers that MPI would not refuse in words, if at all."""
    for buffer in buffers:
        match buffer:
            case [_, tuple((int(), int())), *_] if _blocking(name) in _WITH_COUNTS:
                raise TypeError(
                    f"{name}: mpi4py takes a tuple of two numbers for a count and a displacement; "
                    "pass the counts as a list, or (counts, displacements)"
                )
    arrays = [buffer[0] if isinstance(buffer, list | tuple) and buffer else buffer for buffer in buffers]
    arrays = [array for array in arrays if isinstance(array, np.ndarray)]
    if not all(array.flags.c_contiguous or array.flags.f_contiguous for array in arrays):
        raise ValueError(
            f"{name}: the elements of an array do not lie one after another in memory, as in a column or backwards; "
            "np.ascontiguousarray makes a copy in which they do"
        )
    if len(arrays) != 2:
        return
    sent, received = arrays
    if _blocking(name) == "Reduce_scatter_block" and sent.size != nranks * received.size:
        raise ValueError(
            f"{name}: every rank sends one block for each of {nranks} ranks, as long as the array to receive into, "
            f"which has {received.size} elements; the array to send has {sent.size}, not {nranks * received.size}"
        )
    if sent.dtype != received.dtype:
        raise TypeError(
            f"{name}: the array to send has {sent.dtype}, the one to receive into {received.dtype}; "
            "make it with x.dtype"
        )
    if np.shares_memory(sent, received):
        raise ValueError(
            f"{name}: the array to send lies in the one to receive into, which MPI forbids; send a copy of it"
        )


def _checked(ctx, program, x):
    """What the program returns on this rank, and the Calls that it made, on whatever communicator."""
    MPI = sys.modules["mpi4py.MPI"]  # which every rank has, and no notebook
    calls, known = [], getattr(program, "__globals__", {})
    taken = {name: value for name, value in known.items() if isinstance(value, MPI.Comm)}
    world, ctx.comm = MPI.COMM_WORLD, _Noting(ctx.comm, calls)
    MPI.COMM_WORLD = ctx.comm
    known.update({name: _Noting(comm, calls) for name, comm in taken.items()})
    try:
        with unheard():
            return program(ctx, x), calls
    finally:
        MPI.COMM_WORLD = world
        known.update(taken)


def without_times(report):
    """The lines of a run's report, but for what differs from one time to the next, and for lines of this package."""
    report = re.sub(r" after [\d.]+ s(?=:)|, for [\d.]+ s", "", report)
    ours = "run.log(", *(f"which called {file.name}" for file in Path(__file__).parent.glob("on_*.py"))
    return [line for line in report.splitlines() if not (any(words in line for words in ours) or _refuses(line))]


def _refuses(line):
    """Whether a line of a report is one of collectlab that raises: the error says more."""
    place = re.match(r"    (?:which called )?(\S+\.py), line \d+, in \w+:  raise ", line)
    return place is not None and any(Path(__file__).parents[1].rglob(place[1]))

"""Exercises whose answer is a plan: it is simulated on streams and on requests, searched for hazards, then run."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from collectlab.exercises import on_ranks, reading
from collectlab.exercises.exercise import Verdict
from collectlab.exercises.on_kernels import verdict
from collectlab.fabric.per_rank import per_rank
from collectlab.words import listed

RANKS = (2, 3, 1)  # that are simulated, in the order of trying
ON_RANKS = 3


@dataclass(frozen=True)
class PlanFinding:
    """How a plan went wrong, in the first run in which it did.

    kind      "unanswered", "kind" (what is returned cannot be read), "hazard", "wrong"; or, of a plan that is right
              otherwise, what the exercise calls it that it falls short of
    nranks, in_order   of that run
    text      the report on it, in lines; "" where there is none
    hazard    the first one
    results   what the ranks returned
    """

    kind: str
    nranks: int = 0
    in_order: bool = False
    text: str = ""
    hazard: object = None
    results: list = field(default_factory=list)


@dataclass(frozen=True)
class PlanExercise:
    """Call it with a plan, ``plan(ctx, x)``: a Verdict comes back.

    question  for the learner
    inputs    from a number of ranks to one array per rank
    expected  from those arrays to the right results, one array per rank
    falls_short  from what a rank has Done to the kind of finding where it does not overlap as the question asks, or
                 None; a KernelMistake says each kind
    why       one sentence about a right plan
    mistakes  ProgramMistakes (by what is returned) and KernelMistakes (by the PlanFinding), in the order of trying
    timeout   seconds after which the simulations, or the real run, count as hanging

    It is simulated on each of the RANKS, then run on ON_RANKS real ones.
    """

    question: str
    inputs: Callable
    expected: Callable
    falls_short: Callable
    why: str
    mistakes: tuple
    timeout: float = 10.0

    def __call__(self, plan):
        if (refused := on_ranks.no_program(plan, "plan")) is not None:  # a wrong verdict is false
            return refused
        for verdict_on in (self._simulate, self._run):
            if (verdict := verdict_on(plan)) is not None:
                return verdict
        return Verdict(True, f"right on {listed(RANKS)} ranks, with streams and with requests: {self.why}")

    def __repr__(self):
        return f"{self.question} Answer with a plan, plan(ctx, x)."

    def _simulate(self, plan):
        """The verdict after the simulated runs, or None when all are right."""
        cases = [(nranks, self.inputs(nranks)) for nranks in RANKS]
        done = on_ranks.run_quietly(_simulated, plan, self, cases, ranks=1, timeout=self.timeout)
        if isinstance(done, Verdict):
            return done
        if not done.ok:
            return on_ranks.ended_badly(done, "in the simulator", self.timeout, "plan")
        return None if done.results[0] is None else self._said(done.results[0])

    def _run(self, plan):
        """The verdict after a run on real ranks, or None when it is right."""
        from collectlab.overlap.runs import carried_out

        xs = self.inputs(ON_RANKS)
        done = on_ranks.run_quietly(carried_out, plan, per_rank(xs), ranks=ON_RANKS, timeout=self.timeout)
        if isinstance(done, Verdict):
            return done
        where = f"right in the simulator, but on {ON_RANKS} real ranks"
        if not done.ok:
            return on_ranks.ended_badly(done, where, self.timeout, "plan")
        results = [result for result, *_ in done.results]
        if not all(map(_same, results, self.expected(xs))):
            return Verdict(False, f"not yet: {where} the result is {reading.shown(results[0])} on rank 0.")
        return None

    def _said(self, finding):
        """The verdict on a finding."""
        if finding.kind == "unanswered":
            return Verdict(False, "no answer yet: the plan still returns three dots.", "unanswered")
        xs = self.inputs(finding.nranks)
        where = f"on {finding.nranks} rank{'s' * (finding.nranks != 1)}"
        where += ", with streams," if finding.in_order else ", with requests,"
        return verdict(finding, where, self.mistakes, xs, _SAID.get(finding.kind, ""), finding.kind, _same)


_SAID = {
    "kind": "what is returned cannot be read.",
    "hazard": "the result is a matter of luck.",
    "wrong": "the result is wrong.",
}


def _same(result, expected):
    return isinstance(result, np.ndarray) and reading.same(result, expected)


# in the process that simulates


def _simulated(ctx, plan, exercise, cases):
    """The first PlanFinding over all cases; None when there is none."""
    for nranks, xs in cases:
        for in_order in (False, True):
            with on_ranks.unheard():
                finding = _look(plan, exercise, nranks, xs, in_order)
            if finding is not None:
                return finding
    return None


def _look(plan, exercise, nranks, xs, in_order):
    from collectlab import overlap

    run = overlap.simulate(plan, per_rank(xs), ranks=nranks, in_order=in_order)
    if not run.ok:
        raise next(iter(run.run.errors.values()), RuntimeError(run.run.report()))
    if all(result is ... for result in run.results):
        return PlanFinding("unanswered")
    hazards, expected = run.hazards(), exercise.expected(xs)
    if hazards:
        return PlanFinding("hazard", nranks, in_order, str(hazards[0]), hazards[0], run.results)
    for rank, result in enumerate(run.results):
        try:
            on_ranks.read_result(result, expected[rank])
            if not isinstance(result, np.ndarray):
                raise reading.NotAnAnswer("that is not one buffer; return the one that holds all of it")
        except reading.NotAnAnswer as error:
            said = f"rank {rank} returns {reading.shown(result)}. There, {error}."
            return PlanFinding("kind", nranks, in_order, said)
    if not all(map(_same, run.results, expected)):
        rank = next(r for r, result in enumerate(run.results) if not _same(result, expected[r]))
        where = reading.difference(run.results[rank], expected[rank])
        kind = reading.expected_kind(expected[rank])
        said = f"rank {rank} returns {reading.shown(run.results[rank])}: {where}. What is expected: {kind}."
        return PlanFinding("wrong", nranks, in_order, said, None, run.results)
    short = next(filter(None, map(exercise.falls_short, run.done)), None)
    return short and PlanFinding(short, nranks, in_order)

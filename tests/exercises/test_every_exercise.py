"""Every exercise of every notebook: right answers pass, likely wrong ones are each explained, junk never raises."""

from importlib import import_module

import numpy as np
import pytest

import collectlab.exercises
from collectlab.exercises.exercise import Exercise
from collectlab.exercises.on_ranks import ProgramExercise, ProgramMistake

MODULES = [import_module(f"collectlab.exercises.{name}") for name in collectlab.exercises.__all__]
EVERY = [
    pytest.param(found, id=f"{module.__name__.rpartition('.')[2]}.{name}")
    for module in MODULES
    for name, found in vars(module).items()
    if isinstance(found, Exercise)
]
PROGRAMS = [
    pytest.param(found, id=f"{module.__name__.rpartition('.')[2]}.{name}")
    for module in MODULES
    for name, found in vars(module).items()
    if isinstance(found, ProgramExercise)
]
JUNK = (None, "x", "", b"x", float("nan"), [float("nan")], object(), [], {}, set(), 3j, [[[]]], [None], ["4"], True)
JUNK += (np.array(["a"]), np.array([None]), np.zeros((2, 0)), [[1], 2], [[1], "x"], -(10**30), iter([1]))


def forms(value):
    """The same answer as a learner might write it."""
    yield value
    if isinstance(value, str):
        yield f" {value.upper()} "
    elif isinstance(value, frozenset):
        yield from (" ".join(value), sorted(value))
    elif isinstance(value, tuple):
        yield list(value)
    elif np.ndim(value) == 0:
        yield from (int(value), np.int64(value), np.array(value), float(value))
    else:
        array = np.asarray(value)
        yield from (array, array.tolist(), tuple(array.tolist()), array.astype(float), list(array.astype(np.int32)))


@pytest.mark.parametrize("exercise", EVERY)
def test_the_right_answer_passes_in_every_form_and_says_why(exercise):
    for answer in forms(exercise.expected):
        verdict = exercise(answer)
        assert verdict and repr(verdict) == f"right: {exercise.why}", (answer, verdict)


@pytest.mark.parametrize("exercise", EVERY)
def test_at_least_five_wrong_answers_are_each_told_what_they_mix_up(exercise):
    told = set()
    for mistake in exercise.mistakes:
        if callable(mistake.wrong):
            continue
        for answer in forms(mistake.wrong):
            verdict = exercise(answer)
            assert not verdict and verdict.mistake == mistake.name, (answer, verdict)
        told.add(repr(verdict))
    assert len(told) >= 5
    assert len({mistake.name for mistake in exercise.mistakes}) == len(exercise.mistakes)


@pytest.mark.parametrize("exercise", [*EVERY, *PROGRAMS])
def test_no_answer_is_no_mistake(exercise):
    verdict = exercise(...)
    assert not verdict and repr(verdict).startswith("no answer yet")


@pytest.mark.parametrize("exercise", [*EVERY, *PROGRAMS])
def test_junk_is_told_what_is_expected_and_never_raises(exercise):
    for junk in JUNK:
        verdict = exercise(junk)
        assert not verdict and repr(verdict).startswith("not yet") and len(repr(verdict)) > 20, junk


@pytest.mark.parametrize("exercise", PROGRAMS)
def test_wrong_results_of_a_program_differ_from_the_right_ones_on_some_number_of_ranks(exercise):
    assert len({mistake.name for mistake in exercise.mistakes}) == len(exercise.mistakes) >= 5
    for mistake in exercise.mistakes:
        assert isinstance(mistake, ProgramMistake)
        inputs = [exercise.inputs(nranks) for nranks in exercise.ranks]
        assert not all(all(map(np.array_equal, mistake.wrong(xs), exercise.expected(xs))) for xs in inputs), mistake


@pytest.mark.parametrize("exercise", PROGRAMS)
def test_programs_that_fail_or_return_nothing_are_told(exercise):
    assert repr(exercise(lambda ctx, x: ...)).startswith("no answer yet")
    assert "ZeroDivisionError" in repr(exercise(lambda ctx, x: 1 / 0))

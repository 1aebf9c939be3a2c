"""The ten cases of the last lesson: each stage has one call that fits it, and a wrong answer says what it leaves."""

import numpy as np
import pytest

from collectlab.exercises import decisions
from collectlab.exercises.decisions import Stage


@pytest.mark.parametrize("name", decisions.STAGES)
def test_one_call_fits_each_stage(name):
    for stage in decisions.STAGES[name]:
        assert sum(decisions.fits(option, stage) for option in decisions.SINGLE) == 1
    exercise = getattr(decisions, name)
    assert exercise.expected == decisions.right(decisions.STAGES[name])
    assert {mistake.name for mistake in exercise.mistakes} == set(decisions.OPTIONS) - {exercise.expected}


def test_there_are_ten_cases_and_they_differ():
    expected = [getattr(decisions, name).expected for name in decisions.STAGES]
    assert len(expected) == 10 and len(set(expected)) == 8


def test_a_wrong_answer_says_what_a_rank_would_hold():
    said = decisions.owned_block("scatter").text
    assert "If the ranks have [1, 2, 3, 4] and [10, 20, 30, 40], rank 0 ends with [1, 2], but" in said
    assert said.endswith(", but reads [11, 22] next.")
    assert "If the ranks have [7] and [5], rank 0 ends with [7, 5], but reads [12] next." in (
        decisions.line_in_the_log("gather").text
    )
    assert "rank 1 ends with nothing, but reads [11, 22, 33, 44] next." in decisions.replicated_update("reduce").text


def test_two_calls_that_end_with_the_same_are_not_told_to_hold_something_else():
    assert "ends with" not in decisions.replicated_update(decisions.BOTH).text


def test_a_stage_that_no_call_fits_or_that_two_fit_is_refused():
    xs = [np.array([1, 2]), np.array([10, 20])]
    zeros = [np.array([0, 0])] * 2
    for stage in (Stage(xs, [np.array([3, 3])] * 2), Stage(zeros, zeros)):
        with pytest.raises(ValueError, match="one call that fits it"):
            decisions.right([stage])


def test_a_case_with_a_message_too_few_is_refused():
    stage = decisions.STAGES["owned_block"]
    with pytest.raises(ValueError, match="a sentence is needed for"):
        decisions._case("owned_block", "?", stage, "because", all_reduce="too much")

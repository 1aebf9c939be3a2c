"""What `collectlab bench overlap` measures is a step that trains; how long it takes, no test says."""

import numpy as np
import pytest

import collectlab as cl
from collectlab.bench import overlap


@pytest.mark.parametrize("elsewhere", (False, True))
def test_each_round_has_a_time_for_each_way(elsewhere):
    run = cl.run(overlap.steps, elsewhere, 2, 1, {"width": 16, "depth": 4}, ranks=2, device="cpu")
    assert run.ok and np.shape(run.results) == (2, 1, 3) and np.min(run.results) > 0
    if elsewhere:  # the backward pass of 4 layers is waited for in each
        assert np.min(run.results) >= 4 * overlap.SECONDS


def test_medians_are_of_the_slowest_rank_in_milliseconds():
    rounds = [[(1, 2, 3), (5, 2, 3), (3, 2, 3)], [(2, 1, 3), (1, 1, 4), (1, 1, 5)]]
    assert overlap.medians(rounds) == [3000.0, 2000.0, 4000.0]

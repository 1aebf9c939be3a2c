"""Training and checkpoints with arrays of a device, by a stand-in for CuPy: no GPU takes part in these tests."""

import numpy as np
import pytest
import strict_arrays

import collectlab as cl
from collectlab import sharding
from collectlab.sharding import Adam, Sgd, Task

BEFORE, AFTER = 6, 5  # steps


def train_and_go_on(ctx, task, strategy, folder):
    """The losses before and after a restart, and the parameters, copied to the host."""
    ctx.xp = strict_arrays
    before = sharding.train(ctx, task, strategy, BEFORE, save_to=folder)
    after = sharding.train(ctx, task, strategy, AFTER, start_from=folder)
    return np.concatenate([before["losses"], after["losses"]]), after["params"].get()


@pytest.mark.parametrize("optimizer", (Adam(), Sgd()), ids=str)
@pytest.mark.parametrize("strategy", sharding.STRATEGIES)
def test_every_strategy_makes_no_call_that_is_numpys_own(strategy, optimizer, tmp_path):
    task = Task(optimizer=optimizer)
    losses, params = sharding.reference(task, BEFORE + AFTER)
    run = cl.run(train_and_go_on, task, strategy, str(tmp_path), ranks=3, device="cpu")
    assert run.ok, run.report()
    for found, held in run.results:
        np.testing.assert_allclose(found, losses, rtol=1e-9)
        np.testing.assert_allclose(held, params, rtol=1e-7, atol=1e-9)

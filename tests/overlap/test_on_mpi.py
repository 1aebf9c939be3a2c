"""Plans with MPI's requests on real ranks: the values of the simulator, and the same hazards, word for word."""

import numpy as np
import plans
import pytest

import collectlab as cl
from collectlab import overlap
from collectlab.overlap.backward import Layers, reference, train

RIGHT = (*plans.RIGHT, *plans.BROKEN_IN_ORDER)
BROKEN = (*plans.BROKEN_ON_BOTH, *plans.BROKEN_BY_REQUEST)


@pytest.fixture(scope="module", params=(2, 3))
def ranks(request):
    with cl.launch(request.param, device="cpu") as started:
        yield started


def vectors(nranks, count=5):
    return cl.per_rank([np.arange(1.0, count + 1) * 10**rank for rank in range(nranks)])


@pytest.mark.parametrize("plan", RIGHT, ids=lambda plan: plan.__name__)
def test_right_plans_return_what_the_simulator_returns(ranks, plan):
    run = overlap.run(plan, vectors(ranks.nranks), ranks=ranks)
    assert run.ok and not run.in_order and run.hazards() == []
    simulated = overlap.simulate(plan, vectors(ranks.nranks), ranks=ranks.nranks)
    assert str(run.results) == str(simulated.results)


@pytest.mark.parametrize("plan", BROKEN, ids=lambda plan: plan.__name__)
def test_broken_plans_have_the_hazards_of_the_simulator(ranks, plan):
    run = overlap.run(plan, vectors(ranks.nranks), ranks=ranks)
    simulated = overlap.simulate(plan, vectors(ranks.nranks), ranks=ranks.nranks)
    assert run.ok and [str(h) for h in run.hazards()] == [str(h) for h in simulated.hazards()] != []


@pytest.mark.parametrize("meanwhile", (False, True))
def test_the_backward_pass_in_buckets(ranks, meanwhile):
    layers = Layers(width=8, depth=5)
    x, y = layers.samples(12, seed=1)
    rows = [cl.per_rank(np.array_split(array, ranks.nranks)) for array in (x, y)]
    for per_bucket in (1, 2, 5):
        run = overlap.run(train, layers, *rows, 0.05, 3, per_bucket, meanwhile, ranks=ranks)
        assert run.hazards() == []
        for weights in run.results:
            np.testing.assert_allclose(weights, reference(layers, x, y, 0.05, 3), rtol=1e-10)


def test_large_messages_that_are_still_under_way(ranks):
    """Long enough for MPI to move them in pieces, later than the call."""
    run = overlap.run(plans.two_buckets, vectors(ranks.nranks, 300_000), ranks=ranks)
    simulated = overlap.simulate(plans.two_buckets, vectors(ranks.nranks, 300_000), ranks=ranks.nranks)
    assert run.hazards() == []
    for real, expected in zip(run.results, simulated.results, strict=True):
        assert all(map(np.array_equal, real, expected))


def test_a_plan_that_fails_is_reported(ranks, capsys):
    def plan(ctx):
        raise KeyError("nothing there")

    run = overlap.run(plan, ranks=ranks)
    assert not run.ok and run.results == [None] * ranks.nranks and "KeyError" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="did not come to its end"):
        run.hazards()


@pytest.mark.needs("Open MPI")
def test_under_open_mpi():
    for plan in (plans.sharded_step, plans.two_buckets, plans.wrong_request):
        run = overlap.run(plan, vectors(2), ranks=2, site="openmpi", device="cpu")
        simulated = overlap.simulate(plan, vectors(2), ranks=2)
        assert [str(hazard) for hazard in run.hazards()] == [str(hazard) for hazard in simulated.hazards()]
        if not run.hazards():
            assert str(run.results) == str(simulated.results)


def test_the_simulator_has_no_requests():
    run = cl.simulate(lambda ctx: overlap.streams(ctx), ranks=1)
    assert "overlap.simulate carries a plan out there" in run.report()

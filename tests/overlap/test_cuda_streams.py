"""Plans on CUDA streams, against a stand-in for CuPy and NCCL: no GPU takes part in these tests."""

import cuda_stand_in
import numpy as np
import plans
import pytest

import collectlab as cl
from collectlab import overlap
from collectlab.overlap import hazards
from collectlab.overlap.backward import Layers, reference, train
from collectlab.overlap.plan import with_values

RIGHT = (*plans.RIGHT, *plans.BROKEN_BY_REQUEST)
BROKEN = (*plans.BROKEN_ON_BOTH, *plans.BROKEN_IN_ORDER)


def carried_out(plan, nranks, *args):
    """What the plan returns on each rank, what was done, and the pairs of streams that no event ordered."""

    def program(ctx):
        streams = overlap.streams(ctx)
        returned = plan(streams, *(arg[ctx.rank] if isinstance(arg, list) else arg for arg in args))
        values, done = streams.finish(returned)
        return with_values(returned, iter(values)), done

    results, modules = cuda_stand_in.on_every_rank(nranks, program)
    unordered = [pair for module in modules for pair in module.unordered]
    return [values for values, _ in results], [done for _, done in results], unordered


def vectors(nranks):
    return [np.arange(1.0, 5) * 10**rank for rank in range(nranks)]


@pytest.mark.parametrize("nranks", (1, 2, 4))
@pytest.mark.parametrize("plan", RIGHT, ids=lambda plan: plan.__name__)
def test_right_plans_are_in_order_and_return_what_the_simulator_returns(plan, nranks):
    results, done, unordered = carried_out(plan, nranks, vectors(nranks))
    assert unordered == [] and hazards.find(done, in_order=True) == []
    simulated = overlap.simulate(plan, cl.per_rank(vectors(nranks)), ranks=nranks, in_order=True)
    assert str(results) == str(simulated.results)


@pytest.mark.parametrize("plan", BROKEN, ids=lambda plan: plan.__name__)
def test_broken_plans_are_caught_by_the_stand_in_and_by_the_hazards(plan):
    _, done, unordered = carried_out(plan, 2, vectors(2))
    assert unordered and hazards.find(done, in_order=True)


def test_a_missing_wait_finds_old_values():
    results, *_ = carried_out(plans.never_gathered, 2, vectors(2))
    assert all((weights == 0).all() for weights in results)


@pytest.mark.parametrize("meanwhile", (False, True))
def test_the_backward_pass_in_buckets(meanwhile):
    layers = Layers(width=2, depth=3)
    x, y = layers.samples(8, seed=1)
    rows = [np.split(array, 2) for array in (x, y)]
    results, done, unordered = carried_out(train, 2, layers, *rows, 0.1, 2, 2, meanwhile)
    assert unordered == [] and hazards.find(done, in_order=True) == []
    for weights in results:
        np.testing.assert_allclose(weights, reference(layers, x, y, 0.1, 2), rtol=1e-12)


def test_unequal_blocks_are_refused():
    with pytest.raises(ValueError, match="NCCL takes equal blocks; pad to a multiple of 3"):
        carried_out(plans.sharded_step, 3, vectors(3))


@pytest.mark.needs("gpu")
def test_a_plan_on_a_gpu():
    vector = np.arange(1.0, 5)
    for plan in RIGHT:
        run = overlap.run(plan, vector, ranks=1, device="cuda")
        assert run.in_order and run.hazards() == []
        assert str(run.results) == str(overlap.simulate(plan, cl.per_rank([vector]), ranks=1).results)

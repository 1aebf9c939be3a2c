"""Every strategy on every number of ranks learns what one process learns."""

import gang
import numpy as np
import pytest

import collectlab as cl
from collectlab import sharding
from collectlab.sharding import Adam, Buckets, Network, Sgd, Task

RANKS = (1, 2, 3, 4, 8)
STEPS = 16
TASKS = {
    "adam, 103 parameters": Task(),  # 103 is a prime number: no number of ranks divides it
    "sgd, 103 parameters": Task(optimizer=Sgd()),
    "adam, 1 feature, 2 wide": Task(Network(1, 2, 1), batch=12),  # 7 parameters: on 8 ranks some own none
    "sgd, 13 samples": Task(Network(4, 8, 8), Sgd(0.02), batch=13, batches=3),
}
TOLERANCE = 1e-9  # relative, of a loss in float64 over STEPS steps


def all_ways(ctx, tasks, steps):
    return {
        (name, strategy): sharding.train(ctx, task, strategy, steps)
        for name, task in tasks.items()
        for strategy in sharding.STRATEGIES
    }


@pytest.fixture(scope="module")
def references():
    return {name: sharding.reference(task, STEPS) for name, task in TASKS.items()}


@pytest.mark.parametrize("nranks", RANKS)
def test_loss_curves_are_those_of_one_process(nranks, references):
    run = cl.run(all_ways, TASKS, STEPS, ranks=nranks, device="cpu", timeout=300)
    assert run.ok, run.report()
    for (name, strategy), first in run.results[0].items():
        losses, params = references[name]
        np.testing.assert_allclose(first["losses"], losses, rtol=TOLERANCE, err_msg=f"{name}, {strategy}")
        np.testing.assert_allclose(first["params"], params, rtol=1e-7, atol=1e-9)
        for found in run.results:
            assert found[name, strategy]["params"].tobytes() == first["params"].tobytes(), "ranks differ"
            assert found[name, strategy]["losses"].tobytes() == first["losses"].tobytes()


@pytest.mark.needs("Open MPI")
def test_under_open_mpi(references, tmp_path):
    run = cl.run(gang.train_and_go_on, Task(), (5, STEPS - 5), str(tmp_path), ranks=3, site="openmpi", device="cpu")
    assert run.ok, run.report()
    for found in run.results:
        for name, losses in found.items():
            np.testing.assert_allclose(losses, references["adam, 103 parameters"][0], rtol=TOLERANCE, err_msg=name)


def test_the_reference_learns(references):
    for losses, _ in references.values():
        assert losses[-4:].mean() < 0.9 * losses[:4].mean()


def test_single_precision_agrees_as_far_as_it_goes():
    task = Task(Network(6, 10, 3, "float32"))
    losses, params = sharding.reference(task, STEPS)
    exact, _ = sharding.reference(Task(), STEPS)
    assert losses.dtype == np.float64 and params.dtype == np.float32
    np.testing.assert_allclose(losses, exact, rtol=1e-4)
    for found in cl.run(all_ways, {"": task}, STEPS, ranks=3, device="cpu").results[0].values():
        assert found["params"].dtype == np.float32
        np.testing.assert_allclose(found["losses"], losses, rtol=1e-4)


def test_the_gradient_is_the_slope_of_the_loss():
    task = Task(Network(3, 4, 2), batch=5, batches=1)
    params, ((x, y),) = task.start(), task.rows(1, 0)
    _, gradient = task.gradient(np, params, x, y)
    for at in range(params.size):
        step = np.zeros_like(params)
        step[at] = 1e-6
        up, down = (task.gradient(np, params + sign * step, x, y)[0] for sign in (1, -1))
        assert gradient[at] == pytest.approx((up - down) / 2e-6, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("nranks", (1, 2, 3, 5, 13, 50))
def test_gradients_of_the_ranks_rows_add_up_to_that_of_the_batch(nranks):
    task = Task(batch=13)
    loss, gradient = task.gradient(np, task.start(), *task.rows(1, 0)[1])
    parts = [task.gradient(np, task.start(), *task.rows(nranks, rank)[1]) for rank in range(nranks)]
    assert sum(part for part, _ in parts) == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(sum(part for _, part in parts), gradient, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("optimizer", (Sgd(), Adam()), ids=str)
def test_an_optimizer_updates_a_slice_as_it_does_the_whole(optimizer, monkeypatch):
    monkeypatch.setattr(sharding.optimizers, "TILE", 5)
    rng = np.random.default_rng(0)
    whole, parts = ({"p": np.linspace(-1, 1, 13)} | {name: np.zeros(13) for name in optimizer.names} for _ in "ab")
    for step in range(1, 4):
        gradient = rng.standard_normal(13)
        optimizer.update(np, whole["p"], gradient, whole, step)
        for part in (slice(0, 7), slice(7, 7), slice(7, 13)):
            mine = {name: array[part] for name, array in parts.items()}
            optimizer.update(np, mine["p"], gradient[part], mine, step)
    assert all(whole[name].tobytes() == parts[name].tobytes() for name in whole)


def test_adam_is_adam():
    adam, p, state = Adam(rate=0.1), np.array([1.0]), {"mean": np.zeros(1), "square": np.zeros(1)}
    adam.update(np, p, np.array([3.0]), state, 1)
    assert p == pytest.approx(1 - 0.1 * 3 / (3 + 1e-8))  # the first step is the rate, whatever the gradient
    adam.update(np, p, np.array([-1.0]), state, 2)
    mean, square = (0.9 * 0.3 - 0.1) / (1 - 0.9**2), (0.999 * 0.009 + 0.001) / (1 - 0.999**2)
    assert p == pytest.approx(0.9 - 0.1 * mean / (square**0.5 + 1e-8), rel=1e-7)


def test_sgd_has_momentum():
    p, state = np.array([1.0]), {"momentum": np.zeros(1)}
    for want in (1 - 0.1 * 2, 0.8 - 0.1 * (0.5 * 2 + 2)):
        Sgd(0.1, 0.5).update(np, p, np.array([2.0]), state, 0)
        assert p == pytest.approx(want)


@pytest.mark.parametrize("lengths", [(10,), (3, 7), (1, 0, 9), (2, 2, 2, 2, 2)], ids=str)
@pytest.mark.parametrize("nranks", (1, 2, 3, 4, 12))
def test_every_element_has_one_owner(lengths, nranks):
    buckets, vector = Buckets(lengths, nranks), np.arange(10)
    assert buckets.total == 10 and [span.stop - span.start for span in buckets.spans] == [*lengths]
    shards = [buckets.shard(vector, rank) for rank in range(nranks)]
    assert sorted(np.concatenate(shards)) == [*vector]
    for rank, shard in enumerate(shards):
        assert shard.size == buckets.count(rank)
        for part, place in zip(buckets.slices(rank), buckets.in_shard(rank), strict=True):
            assert shard[place].tolist() == vector[part].tolist()


def test_a_strategy_that_is_none_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match="one of replicated, sharded_optimizer, sharded_parameters is accepted"):
        sharding.train(None, Task(), "zero", 1)
    with pytest.raises(ValueError, match="one of replicated, sharded_optimizer, sharded_parameters is accepted"):
        sharding.plan(Task(), "zero", 4)

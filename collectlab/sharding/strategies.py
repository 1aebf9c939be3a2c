"""Three ways to train on ranks that divide each batch. They differ in what a rank keeps between two steps.

    replicated            parameters and optimizer state on every rank; gradients are all-reduced
    sharded_optimizer     parameters on every rank; gradients are reduce-scattered, each rank updates the parameters
                          that it owns, with its shard of the state, and the updated ones are all-gathered
    sharded_parameters    each rank keeps what it owns; a layer's parameters are gathered where they are needed, and
                          released

The samples of a batch are divided; sums over ranks make the gradient of the whole batch. So all three compute what
one process computes, up to rounding.
"""

from dataclasses import asdict

import numpy as np

from collectlab.sharding import checkpoint, collectives
from collectlab.sharding.buckets import Buckets
from collectlab.sharding.manifest import CheckpointError


class _Trainer:
    """What the three have in common: `step` trains on one batch.

    phase  is called with the name of each part of a step when it begins
    """

    def __init__(self, ctx, task, phase=lambda name: None):
        self.ctx, self.task, self.phase = ctx, task, phase
        self.buckets = Buckets(self._lengths(task.network), ctx.nranks)
        self.rows = [tuple(map(ctx.xp.asarray, rows)) for rows in task.rows(ctx.nranks, ctx.rank)]
        self.done = 0
        self._keep(ctx.xp.asarray(task.start()))

    def _lengths(self, network):
        return (network.parameters,)

    def step(self):
        """Train on the next batch; returns what this rank's samples add to its loss."""
        x, y = self.rows[self.done % len(self.rows)]
        self.done += 1
        return self._step(x, y)

    def steps(self, count):
        """Train on so many batches; returns their losses, the same on every rank: float64, shape (count,)."""
        losses = np.array([self.step() for _ in range(count)])
        return collectives.all_reduce(self.ctx, losses, out=losses)

    def _update(self, params, gradient):
        self.phase("update")
        self.task.optimizer.update(self.ctx.xp, params, gradient, self.state, self.done)

    def _zeros(self, like):
        return {name: self.ctx.xp.zeros_like(like) for name in self.task.optimizer.names}

    # what goes into a checkpoint, and comes out of it

    def go_on(self, loaded):
        """Go on from what checkpoint.load returned; CheckpointError where it is of another model or optimizer."""
        held = {name: array.dtype.name for name, array in loaded.shard.items()}
        needed = dict.fromkeys(("params", *self.task.optimizer.names), self.task.network.dtype)
        if held != needed:
            raise CheckpointError(f"train: the checkpoint of step {loaded.step} holds {held}; the task has {needed}")
        model = asdict(self.task.network)
        if loaded.model not in (None, model):
            raise CheckpointError(f"train: the checkpoint of step {loaded.step} is of {loaded.model}, not of {model}")
        self.restore({name: self.ctx.xp.asarray(array) for name, array in loaded.shard.items()})
        self.done = loaded.step

    def shard(self):
        """What this rank owns: {"params": ..., and the optimizer's state}, each of shape (buckets.count(rank),)."""
        return {"params": self.buckets.shard(self.params, self.ctx.rank), **self.state}


class Replicated(_Trainer):
    """Everything on every rank."""

    def _keep(self, params):
        self.params, self.state = params, self._zeros(params)

    def _step(self, x, y):
        loss, gradient = self.task.gradient(self.ctx.xp, self.params, x, y, self.phase)
        self.phase("all-reduce")
        collectives.all_reduce(self.ctx, gradient, out=gradient)
        self._update(self.params, gradient)
        return loss

    def shard(self):
        whole = {"params": self.params, **self.state}
        return {name: self.buckets.shard(array, self.ctx.rank) for name, array in whole.items()}

    def restore(self, shard):
        """Go on from the shards of all ranks."""
        for name, array in {"params": self.params, **self.state}.items():
            collectives.all_gather(self.ctx, shard[name], self.buckets.partitions[0], out=array)

    def whole(self):
        """The parameters, complete."""
        return self.params


class ShardedOptimizer(_Trainer):
    """The optimizer's state in shards; parameters on every rank."""

    def _keep(self, params):
        self.params, (self.mine,) = params, self.buckets.slices(self.ctx.rank)
        self.state = self._zeros(params[self.mine])

    def _step(self, x, y):
        loss, gradient = self.task.gradient(self.ctx.xp, self.params, x, y, self.phase)
        self.phase("reduce-scatter")
        (partition,) = self.buckets.partitions
        shard = collectives.reduce_scatter(self.ctx, gradient, partition)
        del gradient
        self._update(self.params[self.mine], shard)
        del shard
        self.phase("all-gather")
        collectives.all_gather(self.ctx, None, partition, out=self.params)
        return loss

    def restore(self, shard):
        """Go on from the shards of all ranks."""
        collectives.all_gather(self.ctx, shard["params"], self.buckets.partitions[0], out=self.params)
        for name, array in self.state.items():
            array[:] = shard[name]

    def whole(self):
        """The parameters, complete."""
        return self.params


class ShardedParameters(_Trainer):
    """Parameters in shards too, a bucket for each layer."""

    def _lengths(self, network):
        return network.layers

    def _keep(self, params):
        self.params = self.buckets.shard(params, self.ctx.rank)
        self.state = self._zeros(self.params)
        self.hidden, self.output = self.buckets.in_shard(self.ctx.rank)

    def _gather(self, layer):
        shard = self.params[(self.hidden, self.output)[layer]]
        return collectives.all_gather(self.ctx, shard, self.buckets.partitions[layer])

    def _reduce(self, gradient, layer, into):
        place = (self.hidden, self.output)[layer]
        collectives.reduce_scatter(self.ctx, gradient, self.buckets.partitions[layer], out=into[place])

    def _step(self, x, y):
        xp, task, network = self.ctx.xp, self.task, self.task.network
        self.phase("forward, hidden layer")
        layer = self._gather(0)
        a = network.activations(xp, layer, x)
        del layer  # released before the next one is gathered
        self.phase("forward, output layer")
        layer = self._gather(1)
        e = network.errors(layer, a, y)
        loss = task.loss(xp, e)

        self.phase("backward, output layer")
        shard = xp.empty_like(self.params)
        gradient = xp.empty(network.layers[1], layer.dtype)
        d = network.back_through_output(xp, layer, a, e, gradient)
        del layer, a, e
        self.phase("reduce-scatter, output layer")
        self._reduce(gradient, 1, shard)
        del gradient

        self.phase("backward, hidden layer")  # takes no parameters: nobody asks for a gradient of x
        gradient = xp.empty(network.layers[0], shard.dtype)
        network.back_through_hidden(xp, x, d, gradient)
        del d
        self.phase("reduce-scatter, hidden layer")
        self._reduce(gradient, 0, shard)
        del gradient
        self._update(self.params, shard)
        return loss

    def shard(self):
        return {"params": self.params, **self.state}

    def restore(self, shard):
        """Go on from the shards of all ranks."""
        for name, array in self.shard().items():
            array[:] = shard[name]

    def whole(self):
        """The parameters, complete: a new vector."""
        return self.ctx.xp.concatenate([self._gather(0), self._gather(1)])


STRATEGIES = {
    "replicated": Replicated,
    "sharded_optimizer": ShardedOptimizer,
    "sharded_parameters": ShardedParameters,
}


def train(ctx, task, strategy, steps, start_from=None, save_to=None):
    """Train `steps` steps; returns {"losses": float64 (steps,), "params": the whole vector}, alike on all ranks.

    strategy    "replicated", "sharded_optimizer" or "sharded_parameters"
    start_from  a folder with checkpoints, to go on from the newest; its ranks and its strategy may be others
    save_to     a folder for a checkpoint after the last step
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"train(strategy={strategy!r}): one of {', '.join(STRATEGIES)} is accepted")
    trainer = STRATEGIES[strategy](ctx, task)
    if start_from is not None:
        trainer.go_on(checkpoint.load(ctx, start_from, trainer.buckets))
    losses = trainer.steps(steps)
    if save_to is not None:
        checkpoint.save(ctx, save_to, trainer.done, trainer.shard(), trainer.buckets, asdict(task.network))
    return {"losses": losses, "params": trainer.whole()}

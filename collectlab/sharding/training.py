"""What is trained, and how it goes on a single process: the reference for all that share the work."""

from dataclasses import dataclass

import numpy as np

from collectlab.layout import Partition
from collectlab.sharding.model import Network
from collectlab.sharding.optimizers import Adam, Sgd

_SMALL, _ADAM = Network(features=6, hidden=10, outputs=3), Adam()


@dataclass(frozen=True)
class Task:
    """A model, an optimizer and seeded samples. Step n takes batch n % batches, of `batch` samples in all.

    The loss of a batch is half the sum of the squared errors over its samples, divided by `batch`.
    """

    network: Network = _SMALL
    optimizer: Sgd | Adam = _ADAM
    batch: int = 48
    batches: int = 4
    seed: int = 0

    def start(self):
        """The parameters to start from: a NumPy vector."""
        return self.network.start(self.seed)

    def rows(self, nranks, rank):
        """The samples of one rank, for each batch: a list of (x, y), NumPy. Ranks divide each batch."""
        x, y = self.network.samples(self.batch * self.batches, self.seed)
        mine = Partition.uneven(self.batch, nranks).slice(rank)
        cut = [slice(n * self.batch + mine.start, n * self.batch + mine.stop) for n in range(self.batches)]
        return [(x[part].copy(), y[part].copy()) for part in cut]

    def loss(self, xp, e):
        """What these errors add to the loss of the batch; afterwards they are divided by `batch`, too."""
        found = float(xp.vdot(e, e)) / 2 / self.batch
        e /= self.batch
        return found

    def gradient(self, xp, params, x, y, phase=lambda name: None):
        """(loss, gradient) of some rows: what they add to those of the whole batch."""
        network = self.network
        hidden, output = params[: network.layers[0]], params[network.layers[0] :]
        phase("forward")
        a = network.activations(xp, hidden, x)
        e = network.errors(output, a, y)
        loss = self.loss(xp, e)
        phase("backward")
        gradient = xp.empty(params.size, params.dtype)
        d = network.back_through_output(xp, output, a, e, gradient[hidden.size :])
        network.back_through_hidden(xp, x, d, gradient[: hidden.size])
        return loss, gradient


def reference(task, steps):
    """Train on this process alone: (losses, parameters), float64 of shape (steps,) and the final vector."""
    params, rows, losses = task.start(), task.rows(1, 0), []
    state = {name: np.zeros_like(params) for name in task.optimizer.names}
    for step in range(1, steps + 1):
        loss, gradient = task.gradient(np, params, *rows[(step - 1) % task.batches])
        task.optimizer.update(np, params, gradient, state, step)
        losses.append(loss)
    return np.array(losses), params

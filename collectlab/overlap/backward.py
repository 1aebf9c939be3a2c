"""A backward pass whose gradients are reduced in buckets: meanwhile, or when it is over.

The model is a stack of square layers, x -> tanh(x W). A backward pass finishes the gradient of the last layer first,
and nothing changes it afterwards; so its reduction may begin while the gradients of the other layers are computed. A
bucket is some layers whose gradients are reduced in one call. The rank updates its block of each bucket, and the new
weights are gathered, bucket by bucket.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from collectlab.layout import Partition


@dataclass(frozen=True)
class Layers:
    """So many layers of width x width weights, which lie one behind the other in a vector."""

    width: int
    depth: int
    dtype: str = "float64"

    @property
    def weights(self):
        """Weights of all layers together."""
        return self.depth * self.width**2

    def span(self, first, stop):
        """Where the weights of the layers first to stop lie in the vector: a slice."""
        return slice(first * self.width**2, stop * self.width**2)

    def start(self, seed):
        """Weights to start from: a vector, random."""
        rng = np.random.default_rng([seed, 1])
        return (rng.standard_normal(self.weights) / np.sqrt(self.width)).astype(self.dtype)

    def samples(self, rows, seed):
        """(x, y): rows of random features, and what is to be learned of them."""
        rng = np.random.default_rng([seed, 2])
        x = rng.standard_normal((rows, self.width))
        return x.astype(self.dtype), np.sin(x[:, ::-1]).astype(self.dtype)


class Training:
    """Trains a stack of layers on the streams of a rank, each rank with samples of its own.

    ctx         the Streams of a plan
    per_bucket  layers whose gradients are reduced together
    weights     the buffer of all weights, the same on every rank
    """

    def __init__(self, ctx, layers, start, rate, per_bucket=1):
        self.ctx, self.layers, self.rate = ctx, layers, rate
        cuts = [*range(layers.depth, 0, -per_bucket), 0]
        self.buckets = [(low, high) for high, low in pairwise(cuts)]  # the last layers first
        self.weights = ctx.buffer("weights", start)
        self.gradient = ctx.buffer("gradient", np.zeros_like(start))
        counts = [ctx.counts(high * layers.width**2 - low * layers.width**2)[ctx.rank] for low, high in self.buckets]
        ends = np.cumsum([0, *counts]).tolist()
        self.places = [slice(*span) for span in pairwise(ends)]  # of each bucket in the rank's shards
        self.sums = ctx.buffer("sums", np.zeros(ends[-1], layers.dtype))
        self.updated = ctx.buffer("updated", np.zeros(ends[-1], layers.dtype))
        self._held = {}  # activations and errors, which only the compute stream sees

    def step(self, x, y, meanwhile=True):
        """One step on a batch, its gradients being reduced meanwhile, or after the backward pass."""
        self.ctx.compute(self._forward(x, y), reads=self.weights)
        reduced = []
        for low, high in self.buckets:
            for layer in reversed(range(low, high)):
                span = self.layers.span(layer, layer + 1)
                self.ctx.compute(self.back(layer), reads=self.weights[span], writes=self.gradient[span])
                self.ctx.advance()
            if meanwhile:
                reduced.append(self._reduce(len(reduced)))
        if not meanwhile:
            reduced = [self._reduce(bucket) for bucket in range(len(self.buckets))]
        gathered = []
        for bucket, event in enumerate(reduced):
            event.wait()
            gathered.append(self._update(bucket))
        for event in gathered:
            event.wait()

    def _span(self, bucket):
        return self.layers.span(*self.buckets[bucket])

    def _reduce(self, bucket):
        return self.ctx.reduce_scatter(self.gradient[self._span(bucket)], self.sums[self.places[bucket]])

    def _update(self, bucket):
        """Change the rank's block of a bucket, and gather the bucket."""
        whole, place = self.weights[self._span(bucket)], self.places[bucket]
        own = whole[Partition.uneven(len(whole), self.ctx.nranks).slice(self.ctx.rank)]

        def update(weights, sums, updated):
            updated[:] = weights
            updated -= self.rate * sums

        self.ctx.compute(update, reads=[own, self.sums[place]], writes=self.updated[place])
        return self.ctx.all_gather(self.updated[place], whole)

    # what is computed

    def _forward(self, x, y):
        def forward(weights):
            xp, n = self.ctx.xp, self.layers.width
            activations = [xp.asarray(x)]
            for layer in weights.reshape(self.layers.depth, n, n):
                activations.append(xp.tanh(activations[-1] @ layer))
            self._held = {"activations": activations, "errors": activations[-1] - xp.asarray(y)}

        return forward

    def back(self, layer):
        """The function that computes the gradient of a layer; those of the layers above it come before."""

        def backward(weights, gradient):
            a, n = self._held["activations"], self.layers.width
            errors = self._held["errors"] * (1 - a[layer + 1] ** 2)
            self.ctx.xp.matmul(a[layer].T, errors, out=gradient.reshape(n, n))
            self._held["errors"] = errors @ weights.reshape(n, n).T

        return backward


def train(ctx, layers, x, y, rate=0.01, steps=2, per_bucket=1, meanwhile=True):
    """The plan of so many steps on the rows of this rank; returns the weights."""
    training = Training(ctx, layers, layers.start(0), rate, per_bucket)
    for _ in range(steps):
        training.step(x, y, meanwhile)
    return training.weights


def reference(layers, x, y, rate=0.01, steps=2):
    """The weights that one process finds with all rows: a vector."""
    weights, n = layers.start(0), layers.width
    for _ in range(steps):
        matrices, activations = weights.reshape(layers.depth, n, n).copy(), [x]
        for layer in matrices:
            activations.append(np.tanh(activations[-1] @ layer))
        errors = activations[-1] - y
        for layer in reversed(range(layers.depth)):
            errors = errors * (1 - activations[layer + 1] ** 2)
            weights[layers.span(layer, layer + 1)] -= rate * (activations[layer].T @ errors).ravel()
            errors = errors @ matrices[layer].T
    return weights

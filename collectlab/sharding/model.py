"""The model that is trained: two layers, y = W2 tanh(W1 x + b1) + b2, and the samples that it learns.

The parameters of a layer are one vector: the weights, row after row, then the biases. The parameters of the model
are those of both layers, one behind the other.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Network:
    """How wide the layers are, and the dtype of everything: "float64" or "float32"."""

    features: int
    hidden: int
    outputs: int
    dtype: str = "float64"

    @property
    def layers(self):
        """Parameters of the hidden layer and of the output layer."""
        return self.hidden * (self.features + 1), self.outputs * (self.hidden + 1)

    @property
    def parameters(self):
        """Parameters of the model."""
        return sum(self.layers)

    @property
    def itemsize(self):
        """Bytes of one parameter."""
        return np.dtype(self.dtype).itemsize

    def start(self, seed):
        """Parameters to start from: a NumPy vector. Small random weights, biases of zero."""
        rng, parts = np.random.default_rng([seed, 1]), []
        for rows, columns in ((self.hidden, self.features), (self.outputs, self.hidden)):
            parts += [rng.standard_normal(rows * columns) / np.sqrt(columns), np.zeros(rows)]
        return np.concatenate(parts).astype(self.dtype)

    def samples(self, count, seed):
        """(x, y), NumPy: `count` rows of features, and of outputs: waves in a few directions, with some noise."""
        rng = np.random.default_rng([seed, 2])
        x = rng.standard_normal((count, self.features))
        directions = rng.standard_normal((self.features, self.outputs)) / np.sqrt(self.features)
        y = np.sin(2 * x @ directions) + 0.1 * rng.standard_normal((count, self.outputs))
        return x.astype(self.dtype), y.astype(self.dtype)

    # One layer at a time: `layer` is its vector of parameters, and `out` is where its gradient goes

    def activations(self, xp, layer, x):
        """What the hidden layer gives: shape (rows, hidden)."""
        weights, bias = _split(layer, self.hidden)
        a = x @ weights.T
        a += bias
        return xp.tanh(a, out=a)

    def errors(self, layer, a, y):
        """How far the output layer is off: shape (rows, outputs)."""
        weights, bias = _split(layer, self.outputs)
        e = a @ weights.T
        e += bias
        e -= y
        return e

    def back_through_output(self, xp, layer, a, e, out):
        """The output layer's gradient into `out`; returns the hidden layer's errors. `a` is used up."""
        weights, bias = _split(out, self.outputs)
        xp.matmul(e.T, a, out=weights)
        xp.sum(e, axis=0, out=bias)
        d = e @ _split(layer, self.outputs)[0]
        a *= a
        xp.subtract(1, a, out=a)
        d *= a
        return d

    def back_through_hidden(self, xp, x, d, out):
        """The hidden layer's gradient into `out`."""
        weights, bias = _split(out, self.hidden)
        xp.matmul(d.T, x, out=weights)
        xp.sum(d, axis=0, out=bias)


def _split(layer, rows):
    """The weights, shape (rows, columns), and the biases, shape (rows,): views."""
    weights = layer[: layer.size - rows]
    return weights.reshape(rows, -1), layer[layer.size - rows :]

"""SGD with momentum, and Adam. Both treat each element by itself, so a slice can be updated without the others."""

from dataclasses import dataclass
from math import sqrt

TILE = 1 << 16  # elements that are updated at a time: the scratch is so long, whatever the length of the parameters


@dataclass(frozen=True)
class Sgd:
    """m <- momentum * m + g;  p <- p - rate * m."""

    rate: float = 0.05
    momentum: float = 0.9
    names = ("momentum",)

    def update(self, xp, params, gradient, state, step):
        """Change `params` and the arrays of `state` in place; `step` counts from 1."""
        for t, p, g, m in _tiles(xp, params, gradient, state["momentum"]):
            m *= self.momentum
            m += g
            xp.multiply(m, self.rate, out=t)
            p -= t


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015): a running mean of g, and one of g * g, each divided by 1 - beta ** step."""

    rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    names = ("mean", "square")

    def update(self, xp, params, gradient, state, step):
        """Change `params` and the arrays of `state` in place; `step` counts from 1."""
        first, second = 1 - self.beta1**step, 1 - self.beta2**step
        for t, p, g, m, v in _tiles(xp, params, gradient, state["mean"], state["square"]):
            m *= self.beta1
            xp.multiply(g, 1 - self.beta1, out=t)
            m += t
            v *= self.beta2
            xp.multiply(g, g, out=t)
            t *= 1 - self.beta2
            v += t
            xp.sqrt(v, out=t)
            t /= sqrt(second)
            t += self.epsilon
            xp.divide(m, t, out=t)
            t *= self.rate / first
            p -= t


def _tiles(xp, *arrays):
    """Scratch and views of the arrays, tile after tile."""
    size = arrays[0].size
    scratch = xp.empty(min(TILE, size), arrays[0].dtype)
    for start in range(0, size, TILE):
        tile = slice(start, min(size, start + TILE))
        yield scratch[: tile.stop - start], *(array[tile] for array in arrays)

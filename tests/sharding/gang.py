"""Ranks that stay for a module's tests, and one rank that needs no MPI."""

import contextlib

import numpy as np

import collectlab as cl
from collectlab.sharding import STRATEGIES, Buckets, checkpoint, train


class Gangs:
    """Warm ranks, by number; each is started when it is first asked for."""

    def __init__(self, stack):
        self._stack, self._gangs = stack, {}

    def run(self, nranks, program, *args):
        """What the program returned on each rank."""
        if nranks not in self._gangs:
            self._gangs[nranks] = self._stack.enter_context(cl.launch(nranks, device="cpu"))
        run = self._gangs[nranks].submit(program, *args).wait(60)
        assert run.ok, run.report()
        return run.results


@contextlib.contextmanager
def gangs():
    """Gangs that are stopped at the end."""
    with contextlib.ExitStack() as stack:
        yield Gangs(stack)


class Alone:
    """The context of a single rank, for what takes no more of MPI than that ranks agree."""

    rank, nranks, device = 0, 1, "cpu:0"

    class comm:
        bcast = staticmethod(lambda value: value)
        gather = allgather = staticmethod(lambda value: [value])


def vector(name, elements, dtype="float64"):
    """Values that tell the name and the place."""
    return (np.arange(elements) + 1000 * len(name)).astype(dtype)


def write(ctx, folder, step, lengths, dtypes):
    """A checkpoint of vectors that tell their place; returns its path."""
    buckets = Buckets(lengths, ctx.nranks)
    shard = {name: buckets.shard(vector(name, buckets.total, dtype), ctx.rank) for name, dtype in dtypes.items()}
    return checkpoint.save(ctx, folder, step, shard, buckets)


def read(ctx, folder, lengths):
    """(step, shard) of this rank."""
    loaded = checkpoint.load(ctx, folder, Buckets(lengths, ctx.nranks))
    return loaded.step, loaded.shard


def train_and_go_on(ctx, task, steps, folder):
    """The losses of each way to train, with a restart after the first of two numbers of steps."""
    found = {}
    for name in STRATEGIES:
        before = train(ctx, task, name, steps[0], save_to=f"{folder}/{name}")["losses"]
        after = train(ctx, task, name, steps[1], start_from=f"{folder}/{name}")["losses"]
        found[name] = np.concatenate([before, after])
    return found

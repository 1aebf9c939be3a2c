"""Programs that a learner may write for notebook 01, on real ranks."""

import numpy as np
import pytest

from collectlab.exercises.three_collectives import all_reduce_by_hand


def gathered(ctx, x):
    everyone = np.empty(ctx.nranks * x.size, x.dtype)
    ctx.comm.Allgather(x, everyone)
    return everyone


def rows(ctx, x):
    return gathered(ctx, x).reshape(ctx.nranks, x.size)


def in_a_loop(ctx, x):
    everyone, total = gathered(ctx, x), np.zeros_like(x)
    for rank in range(ctx.nranks):
        total += everyone[rank * x.size : (rank + 1) * x.size]
    return total


RIGHT = {
    "axis 0": lambda ctx, x: rows(ctx, x).sum(axis=0),
    "in a loop": in_a_loop,
    "objects": lambda ctx, x: sum(ctx.comm.allgather(x)),
    "a list": lambda ctx, x: rows(ctx, x).sum(axis=0).tolist(),
}
WRONG = {
    "gathered": gathered,
    "its own": lambda ctx, x: x,
    "one number": lambda ctx, x: gathered(ctx, x).sum(),
    "one sum for each rank": lambda ctx, x: rows(ctx, x).sum(axis=1),
    "neighbours": lambda ctx, x: gathered(ctx, x).reshape(-1, ctx.nranks).sum(axis=1),
    "rank 0's": lambda ctx, x: rows(ctx, x)[0],
    "two ranks only": lambda ctx, x: gathered(ctx, x)[: x.size] + gathered(ctx, x)[x.size : 2 * x.size],
    "its own twice": lambda ctx, x: x + rows(ctx, x).sum(axis=0),
    "mean": lambda ctx, x: rows(ctx, x).mean(axis=0),
    "calls allreduce": lambda ctx, x: ctx.comm.allreduce(x),
}


@pytest.mark.parametrize("program", RIGHT.values(), ids=RIGHT)
def test_right_programs_pass(program):
    assert all_reduce_by_hand(program)


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_programs_are_recognised_by_what_they_return(mistake):
    verdict = all_reduce_by_hand(WRONG[mistake])
    assert not verdict and verdict.mistake == mistake, verdict


def test_every_rule_has_its_program():
    assert {m.name for m in all_reduce_by_hand.mistakes} <= set(WRONG)

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


def around_a_ring(ctx, x):
    total = moving = x
    for _ in range(ctx.nranks - 1):
        moving = ctx.comm.sendrecv(moving, (ctx.rank + 1) % ctx.nranks, source=(ctx.rank - 1) % ctx.nranks)
        total = total + moving
    return total


def by_a_scan(ctx, x):
    return ctx.comm.bcast(ctx.comm.scan(x), root=ctx.nranks - 1)


def not_blocking(ctx, x):
    total = np.empty_like(x)
    ctx.comm.Iallreduce(x, total).Wait()
    return total


def by_broadcasts(send):
    """Allgather is called, and what it brings is thrown away."""

    def program(ctx, x):
        gathered(ctx, x)
        return sum(np.asarray(ctx.comm.bcast(send(x), root)) for root in range(ctx.nranks))

    return program


def by_a_formula(ctx, x):
    return x // 10**ctx.rank * sum(10**rank for rank in range(ctx.nranks))


RIGHT = {
    "axis 0": lambda ctx, x: rows(ctx, x).sum(axis=0),
    "in a loop": in_a_loop,
    "objects": lambda ctx, x: sum(ctx.comm.allgather(x)),
    "a list": lambda ctx, x: rows(ctx, x).sum(axis=0).tolist(),
    "lists": lambda ctx, x: np.sum(ctx.comm.allgather(x.tolist()), axis=0),
    "with its rank": lambda ctx, x: sum(part for _, part in ctx.comm.allgather((ctx.rank, x))),
    "one by one": lambda ctx, x: [sum(ctx.comm.allgather(one)) for one in x],
}
WRONG = {
    "gathered": gathered,
    "rows": rows,
    "its own": lambda ctx, x: x,
    "one number": lambda ctx, x: gathered(ctx, x).sum(),
    "one sum for each rank": lambda ctx, x: rows(ctx, x).sum(axis=1),
    "neighbours": lambda ctx, x: gathered(ctx, x).reshape(-1, ctx.nranks).sum(axis=1),
    "rank 0's": lambda ctx, x: rows(ctx, x)[0],
    "two ranks only": lambda ctx, x: gathered(ctx, x)[: x.size] + gathered(ctx, x)[x.size : 2 * x.size],
    "its own twice": lambda ctx, x: x + rows(ctx, x).sum(axis=0),
    "mean": lambda ctx, x: rows(ctx, x).mean(axis=0),
    "calls allreduce": lambda ctx, x: ctx.comm.allreduce(x),
    "calls Allreduce": not_blocking,
    "calls scan": by_a_scan,
    "for nothing": by_broadcasts(np.copy),
}


@pytest.mark.parametrize("program", RIGHT.values(), ids=RIGHT)
def test_right_programs_pass(program):
    assert all_reduce_by_hand(program)


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_programs_are_recognised_by_what_they_return(mistake):
    verdict = all_reduce_by_hand(WRONG[mistake])
    assert not verdict and verdict.mistake == mistake, verdict


def test_the_list_of_allgather_is_rows_too():
    assert all_reduce_by_hand(lambda ctx, x: ctx.comm.allgather(x)).mistake == "rows"


@pytest.mark.parametrize("program", (around_a_ring, by_a_formula))
def test_a_program_that_gathers_nothing_is_not_right(program):
    verdict = all_reduce_by_hand(program)
    assert not verdict and verdict.mistake == "lacks Allgather", verdict
    assert "never calls Allgather" in verdict.text


def test_a_call_for_nothing_is_seen_whatever_the_others_are_given():
    text = all_reduce_by_hand(by_broadcasts(np.ndarray.tolist)).text
    assert text == "not yet: the result is right, but x is to go into Allgather and into no other call."
    assert all_reduce_by_hand(lambda ctx, x: (gathered(ctx, 0 * x), by_a_formula(ctx, x))[1]).mistake == "for nothing"


def test_every_rule_has_its_program():
    assert {m.name for m in all_reduce_by_hand.mistakes} <= set(WRONG)

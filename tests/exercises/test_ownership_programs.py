"""Programs that a learner may write for notebook 03, on real ranks."""

import pytest

from collectlab.exercises import ownership
from collectlab.layout import Partition


def right(ctx, x):
    return x[Partition.uneven(x.size, ctx.nranks).slice(ctx.rank)]


def by_hand(ctx, x):
    each, more = divmod(x.size, ctx.nranks)
    start = ctx.rank * each + min(ctx.rank, more)
    return x[start : start + each + (ctx.rank < more)].tolist()


def whole(ctx, x):
    return x


def always_the_first(ctx, x):
    return x[Partition.uneven(x.size, ctx.nranks).slice(0)]


def from_the_back(ctx, x):
    return x[Partition.uneven(x.size, ctx.nranks).slice(ctx.nranks - 1 - ctx.rank)]


def dealt_out(ctx, x):
    return x[ctx.rank :: ctx.nranks]


def the_rest_is_lost(ctx, x):
    n = x.size // ctx.nranks
    return x[ctx.rank * n : (ctx.rank + 1) * n]


def two_ranks_only(ctx, x):
    n = (x.size + 1) // 2
    return x[ctx.rank * n : (ctx.rank + 1) * n]


@pytest.mark.parametrize("program", (right, by_hand))
def test_right_programs_pass(program):
    assert ownership.slice_of_this_rank(program)


WRONG = (whole, always_the_first, from_the_back, dealt_out, the_rest_is_lost, two_ranks_only)


@pytest.mark.parametrize("program", WRONG)
def test_wrong_programs_are_recognised_by_what_they_return(program):
    verdict = ownership.slice_of_this_rank(program)
    assert not verdict and verdict.mistake == program.__name__.replace("_", " ")

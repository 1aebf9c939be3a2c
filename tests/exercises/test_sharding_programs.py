"""Programs that a learner may write for notebooks 10 to 12, on real ranks."""

import numpy as np
import pytest

import collectlab as cl
from collectlab.exercises import restart, sharded_optimizer, uneven_blocks
from collectlab.layout import Partition

# notebook 10: reduce-scatter in equal blocks


def equal(fill=0, front=False, cut=True, own=False, less=0):
    def program(ctx, x):
        parts = Partition.padded(x.size, ctx.nranks)
        padding = np.full(parts.padding, fill, x.dtype)
        sent = np.concatenate([padding, x] if front else [x, padding])
        block = np.empty(parts.counts[ctx.rank], x.dtype)
        ctx.comm.Reduce_scatter_block(sent, block)
        if own:
            block = sent[parts.slice(ctx.rank)]
        return block[: parts.data_counts[ctx.rank] - less] if cut else block

    return program


def the_whole_rounded_up(ctx, x):
    count = -(-x.size // ctx.nranks)
    sent, block = np.zeros(count * ctx.nranks, x.dtype), np.empty(count, x.dtype)
    sent[: x.size] = x
    ctx.comm.Reduce_scatter_block(sent, block)
    return block[: max(0, min(count, x.size - ctx.rank * count))]


def rounded_down(ctx, x):
    block = np.empty(x.size // ctx.nranks, x.dtype)
    ctx.comm.Reduce_scatter_block(x[: block.size * ctx.nranks].copy(), block)
    return block


def with_counts(ctx, x):
    parts = Partition.uneven(x.size, ctx.nranks)
    block = np.empty(parts.counts[ctx.rank], x.dtype)
    ctx.comm.Reduce_scatter(x, block, recvcounts=parts.counts)
    return block


def summed_and_cut(partition):
    def program(ctx, x):
        total = np.empty_like(x)
        ctx.comm.Allreduce(x, total)
        return total[partition(x.size, ctx.nranks).slice(ctx.rank)]

    return program


def block_0(ctx, x):
    total = ctx.comm.allreduce(x)
    return total[: -(-x.size // ctx.nranks)]


def the_last_cuts(stop):
    """Only the last rank takes padding off, up to stop(length of the block, padding)."""

    def program(ctx, x):
        parts, block = Partition.padded(x.size, ctx.nranks), equal(cut=False)(ctx, x)
        return block[: stop(block.size, parts.padding)] if ctx.rank == ctx.nranks - 1 else block

    return program


def stops_below_0(ctx, x):
    block = equal(cut=False)(ctx, x)
    return block[: x.size - ctx.rank * block.size]


def cuts_on_every_rank(ctx, x):
    return equal(cut=False)(ctx, x)[: -Partition.padded(x.size, ctx.nranks).padding]


EQUAL = {
    "padding that is no identity": equal(fill=7),
    "cut on every rank": cuts_on_every_rank,
    "kept by all but the last": the_last_cuts(lambda count, padding: max(0, count - padding)),
    "kept by all but the last, and a stop below 0": the_last_cuts(lambda count, padding: count - padding),
    "a stop below 0": stops_below_0,
    "mean": lambda ctx, x: equal()(ctx, x) / ctx.nranks,
    "padding returned": equal(cut=False),
    "padded with ones": equal(fill=1, cut=False),
    "cut off": rounded_down,
    "padded in front": equal(front=True, cut=False),
    "nothing reduced": equal(own=True),
    "MPI's uneven blocks": lambda ctx, x: with_counts(ctx, x) if ctx.nranks > 3 else equal()(ctx, x),
    "block 0": block_0,
    "last element lost": equal(less=1),
    "calls Reduce_scatter": with_counts,
    "calls Allreduce": summed_and_cut(Partition.padded),
    "calls Reduce": lambda ctx, x: reduced_and_told(ctx, x),
    "for nothing": lambda ctx, x: equal_by_broadcasts(ctx, x),
    "calls collectlab.sharding.collectives": lambda ctx, x: cl.sharding.collectives.reduce_scatter(
        ctx, x, Partition.padded(x.size, ctx.nranks)
    ),
}


def equal_without_what_is_0(ctx, x):
    block = equal(cut=False)(ctx, x)
    return block[block != 0]


def reduced_and_told(ctx, x):
    """The call is made, for nothing."""
    total = np.empty_like(x)
    ctx.comm.Reduce(x, total)
    ctx.comm.Bcast(total)
    ctx.comm.Reduce_scatter_block(np.zeros(ctx.nranks), np.empty(1))
    return total[Partition.padded(x.size, ctx.nranks).slice(ctx.rank)]


def summed_elsewhere(ctx, x):
    """The call is made, with nothing."""
    total = sum(ctx.comm.bcast(x, root) for root in range(ctx.nranks))
    ctx.comm.Reduce_scatter_block(np.zeros(ctx.nranks), np.empty(1))
    return total


def equal_by_broadcasts(ctx, x):
    part = Partition.padded(x.size, ctx.nranks)
    return summed_elsewhere(ctx, x)[part.slice(ctx.rank)][: part.data_counts[ctx.rank]]


def told(ctx, x):
    """The sum, by broadcasts of x."""
    total = np.zeros_like(x)
    for root in range(ctx.nranks):
        part = x.copy()
        ctx.comm.Bcast(part, root)
        total += part
    return total


def the_call_beside(ctx, x):
    part = Partition.padded(x.size, ctx.nranks)
    equal()(ctx, x)
    return told(ctx, x)[part.slice(ctx.rank)][: part.data_counts[ctx.rank]]


def alone(ctx, x):
    """On one rank nothing has to be called."""
    return x if ctx.nranks == 1 else equal()(ctx, x)


def test_what_is_0_need_not_be_padding():
    assert not uneven_blocks.equal_blocks(equal_without_what_is_0)


def padded_with_the_last_element(ctx, x):
    parts = Partition.padded(x.size, ctx.nranks)
    block = np.empty(parts.counts[ctx.rank], x.dtype)
    ctx.comm.Reduce_scatter_block(np.pad(x, (0, parts.padding), "edge"), block)
    return block[: parts.data_counts[ctx.rank]]


def test_the_last_element_is_no_padding():
    assert uneven_blocks.equal_blocks(padded_with_the_last_element).mistake == "padding that is no identity"


# notebook 11: a step that updates one slice


def step(own=False, gather=True, sign=-1, mean=False, whole=False, times=1):
    def program(ctx, x):
        params = np.full_like(x, 100_000)
        parts = Partition.uneven(x.size, ctx.nranks)
        mine, shard = parts.slice(ctx.rank), np.empty(parts.counts[ctx.rank], x.dtype)
        ctx.comm.Reduce_scatter(x, shard, recvcounts=parts.counts)
        if own:
            shard = x[mine]
        if mean:
            params, shard = (params, shard // ctx.nranks) if whole else (params / 1, shard / ctx.nranks)
        params[mine] += sign * times * shard
        if gather:
            ctx.comm.Allgatherv(params[mine].copy(), [params, list(parts.counts)])
        return params

    return program


def step_with_padding(ctx, x):
    block = -(-x.size // ctx.nranks)
    sent, shard = np.zeros(block * ctx.nranks, x.dtype), np.empty(block, x.dtype)
    sent[: x.size] = x
    ctx.comm.Reduce_scatter_block(sent, shard)
    params = np.empty_like(sent)
    ctx.comm.Allgather(100_000 - shard, params)
    return params[: x.size]


def step_with_requests(ctx, x):
    params, parts = np.full_like(x, 100_000), Partition.uneven(x.size, ctx.nranks)
    mine, shard = parts.slice(ctx.rank), np.empty(parts.counts[ctx.rank], x.dtype)
    ctx.comm.Ireduce_scatter(x, shard, recvcounts=parts.counts).Wait()
    params[mine] -= shard
    ctx.comm.Iallgatherv(params[mine].copy(), [params, (parts.counts, parts.displacements)]).Wait()
    return params


def step_in_place(ctx, x):
    params, parts = np.full_like(x, 100_000), Partition.uneven(x.size, ctx.nranks)
    mine, shard = parts.slice(ctx.rank), np.empty(parts.counts[ctx.rank], x.dtype)
    ctx.comm.Reduce_scatter(x, shard, recvcounts=parts.counts)
    params[mine] -= shard
    ctx.comm.Allgatherv(None, [params, list(parts.counts)])
    return params


def gradients(ctx, x):
    parts = Partition.uneven(x.size, ctx.nranks)
    shard, y = np.empty(parts.counts[ctx.rank], x.dtype), np.empty_like(x)
    ctx.comm.Reduce_scatter(x, shard, recvcounts=parts.counts)
    ctx.comm.Allgatherv(shard, [y, list(parts.counts)])
    return y


def end_left_out(ctx, x):
    params, block = np.full_like(x, 100_000), x.size // ctx.nranks
    shard, mine = np.empty(block, x.dtype), slice(ctx.rank * block, (ctx.rank + 1) * block)
    ctx.comm.Reduce_scatter_block(x[: block * ctx.nranks].copy(), shard)
    params[mine] -= shard
    ctx.comm.Allgather(params[mine].copy(), params[: block * ctx.nranks])
    return params


def all_reduced(ctx, x):
    total = np.empty_like(x)
    ctx.comm.Allreduce(x, total)
    return 100_000 - total


def everything_everywhere(in_place=False, sign=1):
    """The line that is given was changed: every rank updates all parameters."""

    def program(ctx, x):
        params, parts = np.full_like(x, 100_000), Partition.uneven(x.size, ctx.nranks)
        shard, total = np.empty(parts.counts[ctx.rank], x.dtype), np.zeros_like(x)
        ctx.comm.Reduce_scatter(x, shard, recvcounts=parts.counts)
        shard *= sign
        if in_place:
            total[parts.slice(ctx.rank)] = shard
        ctx.comm.Allgatherv(None if in_place else shard, [total, list(parts.counts)])
        params -= sign * total
        return params

    return program


def gathered_on_rank_0(ctx, x):
    params, parts = step(gather=False)(ctx, x), Partition.uneven(x.size, ctx.nranks)
    ctx.comm.Gatherv(params[parts.slice(ctx.rank)].copy(), [params, list(parts.counts)])
    return params


STEP = {
    "everything everywhere": everything_everywhere(),
    "not gathered": step(gather=False),
    "gathered on rank 0": gathered_on_rank_0,
    "own gradient": lambda ctx, x: 100_000 - x,
    "owners' gradients": step(own=True),
    "gradients gathered": gradients,
    "added": step(sign=1),
    "mean": step(mean=True),
    "mean, rounded down": step(mean=True, whole=True),
    "end left out": end_left_out,
    "nothing updated": lambda ctx, x: np.full_like(x, 100_000),
    "twice": step(times=2),
    "for nothing": lambda ctx, x: 100_000 - summed_elsewhere(ctx, x),
    "calls Allreduce": all_reduced,
    "lacks Reduce_scatter": lambda ctx, x: 100_000 - sum(ctx.comm.bcast(x, root) for root in range(ctx.nranks)),
}


@pytest.mark.parametrize(
    ("exercise", "program"),
    [
        (uneven_blocks.equal_blocks, the_call_beside),
        (sharded_optimizer.sharded_step, lambda ctx, x: (step()(ctx, x), 100_000 - told(ctx, x))[1]),
    ],
)
def test_a_call_whose_result_is_thrown_away_is_made_for_nothing(exercise, program):
    verdict = exercise(program)
    assert not verdict and verdict.mistake == "for nothing", verdict
    assert "is to go into Reduce_scatter" in verdict.text and "into no other call." in verdict.text


@pytest.mark.parametrize("settings", ({"in_place": True}, {"sign": -1}), ids=str)
def test_gradients_are_not_what_is_handed_round(settings):
    verdict = sharded_optimizer.sharded_step(everything_everywhere(**settings))
    assert not verdict and verdict.mistake == "everything everywhere"


# notebook 12: the shard of this rank


def shard(ctx, x):
    return x.ravel()[Partition.uneven(x.size, ctx.nranks).slice(ctx.rank)]


def block_of(ctx, x, size):
    return x.ravel()[ctx.rank * size : (ctx.rank + 1) * size]


OWN = {
    "dealt": lambda ctx, x: x[ctx.rank :: ctx.nranks].ravel(),
    "its old shard": lambda ctx, x: x[min(ctx.rank, 3)],
    "every so many elements": lambda ctx, x: x.ravel()[ctx.rank :: ctx.nranks],
    "columns": lambda ctx, x: shard(ctx, x.T),
    "cut off": lambda ctx, x: block_of(ctx, x, x.size // ctx.nranks),
    "rounded up": lambda ctx, x: block_of(ctx, x, -(-x.size // ctx.nranks)),
    "backwards": lambda ctx, x: x.ravel()[Partition.uneven(x.size, ctx.nranks).slice(ctx.nranks - 1 - ctx.rank)],
    "rows counted": lambda ctx, x: x.ravel()[Partition.uneven(len(x), ctx.nranks).slice(ctx.rank)],
    "each shard cut": lambda ctx, x: x[:, Partition.uneven(x.shape[1], ctx.nranks).slice(ctx.rank)].ravel(),
    "everything": lambda ctx, x: x.ravel(),
    "rows shared out": lambda ctx, x: np.array_split(x, ctx.nranks)[ctx.rank].ravel(),
}

CASES = (
    (uneven_blocks.equal_blocks, (equal(), the_whole_rounded_up, alone), EQUAL),
    (sharded_optimizer.sharded_step, (step(), step_with_padding, step_with_requests, step_in_place), STEP),
    (restart.own_shard, (shard,), OWN),
)


@pytest.mark.parametrize(("exercise", "program"), [(e, p) for e, right, _ in CASES for p in right])
def test_right_programs_pass(exercise, program):
    assert exercise(program)


@pytest.mark.parametrize(
    ("exercise", "mistake", "program"), [(e, *pair) for e, _, wrong in CASES for pair in wrong.items()], ids=str
)
def test_wrong_programs_are_recognised_by_what_they_return(exercise, mistake, program):
    verdict = exercise(program)
    assert not verdict and verdict.mistake == mistake, verdict


def test_every_mistake_has_such_a_program():
    for exercise, _, wrong in CASES:
        assert {mistake.name for mistake in (*exercise.mistakes, *exercise.by_calls)} <= set(wrong)

"""Programs that a learner may write for notebook 06, right and wrong."""

import numpy as np
import pytest

from collectlab.exercises import two_phases
from collectlab.layout import Partition

# the kernels of the notebook, with their gap


def reduce_scatter(gap):
    def program(ctx, x):
        chunks = Partition.uneven(x.size, ctx.nranks)
        mine = chunks.slice(ctx.rank)
        data, signals = ctx.window("data", x.size, x.dtype), ctx.signals("reduce_scatter", rows=2)
        data.store(x)
        ctx.barrier(signals, 0)
        total = gap(ctx, data, mine, chunks)
        ctx.barrier(signals, 1)
        return total

    return program


def all_gather(gap):
    def program(ctx, x):
        chunks = Partition.uneven(x.size, ctx.nranks)
        mine = chunks.slice(ctx.rank)
        result, signals = ctx.window("result", x.size, x.dtype), ctx.signals("all_gather", rows=2)
        result.store(x[mine], mine)
        ctx.barrier(signals, 0)
        y = np.zeros_like(x)
        y = gap(ctx, result, y, mine, chunks)
        ctx.barrier(signals, 1)
        return y

    return program


def two(between=None, before=None, behind=None):
    def program(ctx, x):
        chunks = Partition.uneven(x.size, ctx.nranks)
        data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
        signals = ctx.signals("two_phases", rows=2)
        mine = chunks.slice(ctx.rank)
        data.store(x)
        ctx.barrier(signals, 0)
        total = data.remote_load(0, mine)
        for peer in range(1, ctx.nranks):
            total = total + data.remote_load(peer, mine)
        if before:
            before(ctx, signals)
        result.store(total, mine)
        if between:
            between(ctx, signals)
        y = np.empty_like(x)
        for owner in range(ctx.nranks):
            y[chunks.slice(owner)] = result.remote_load(owner, chunks.slice(owner))
        if behind:
            behind(ctx, signals)
        return y

    return program


# the loop of the reduce-scatter


def summed(ctx, data, mine, chunks):
    total = data.remote_load(0, mine)
    for peer in range(1, ctx.nranks):
        total = total + data.remote_load(peer, mine)
    return total


def from_its_own(ctx, data, mine, chunks):
    total = data.load(mine)
    for peer in range(ctx.nranks):
        if peer != ctx.rank:
            total += data.remote_load(peer, mine)
    return total


def over_a_list(ctx, data, mine, chunks):
    return sum(data.remote_load(peer, mine) for peer in range(ctx.nranks))


def whole_arrays(ctx, data, mine, chunks):
    return sum(data.remote_load(peer) for peer in range(ctx.nranks))


def its_own(ctx, data, mine, chunks):
    return data.load(mine)


def the_last_one(ctx, data, mine, chunks):
    for peer in range(ctx.nranks):
        total = data.remote_load(peer, mine)
    return total


def rank_0s(ctx, data, mine, chunks):
    return data.remote_load(0, mine)


def own_start_rank_0_left_out(ctx, data, mine, chunks):
    total = data.load(mine)
    for peer in range(1, ctx.nranks):
        total = total + data.remote_load(peer, mine)
    return total


def own_twice(ctx, data, mine, chunks):
    return data.load(mine) + summed(ctx, data, mine, chunks)


def own_missing(ctx, data, mine, chunks):
    return summed(ctx, data, mine, chunks) - data.load(mine)


def last_missing(ctx, data, mine, chunks):
    total = data.remote_load(0, mine)
    for peer in range(1, ctx.nranks - 1):
        total = total + data.remote_load(peer, mine)
    return total


def two_ranks_only(ctx, data, mine, chunks):
    return data.remote_load(0, mine) + (data.remote_load(1, mine) if ctx.nranks > 1 else 0)


def never_remote(ctx, data, mine, chunks):
    return sum(data.load(mine) for peer in range(ctx.nranks))


def each_peers_chunk(ctx, data, mine, chunks):
    return sum(data.remote_load(peer, chunks.slice(peer)) for peer in range(ctx.nranks))


def chunk_0(ctx, data, mine, chunks):
    return sum(data.remote_load(peer, chunks.slice(0)) for peer in range(ctx.nranks))


def mean(ctx, data, mine, chunks):
    return summed(ctx, data, mine, chunks) / ctx.nranks


def read_whole_then_cut(ctx, data, mine, chunks):
    return whole_arrays(ctx, data, mine, chunks)[mine]


REDUCE_SCATTER = {
    whole_arrays: "whole arrays", its_own: "its own", the_last_one: "the last one", rank_0s: "rank 0's",
    own_start_rank_0_left_out: "own start, rank 0 left out", own_twice: "own twice", own_missing: "own missing",
    last_missing: "rank 0's",  # on two ranks it is all that is left
    two_ranks_only: "last missing", never_remote: "never remote", each_peers_chunk: "each peer's chunk",
    chunk_0: "chunk 0", mean: "mean", read_whole_then_cut: "read whole, then cut",
}  # fmt: skip


# the loop of the all-gather


def gathered(ctx, result, y, mine, chunks):
    for owner in range(ctx.nranks):
        y[chunks.slice(owner)] = result.remote_load(owner, chunks.slice(owner))
    return y


def own_without_reading(ctx, result, y, mine, chunks):
    for owner in range(ctx.nranks):
        part = chunks.slice(owner)
        y[part] = result.load(part) if owner == ctx.rank else result.remote_load(owner, part)
    return y


def concatenated(ctx, result, y, mine, chunks):
    return np.concatenate([result.remote_load(owner, chunks.slice(owner)) for owner in range(ctx.nranks)])


def nothing(ctx, result, y, mine, chunks):
    return y


def its_own_only(ctx, result, y, mine, chunks):
    y[mine] = result.load(mine)
    return y


def its_own_missing(ctx, result, y, mine, chunks):
    y = gathered(ctx, result, y, mine, chunks)
    y[mine] = 0
    return y


def the_last_missing(ctx, result, y, mine, chunks):
    for owner in range(ctx.nranks - 1):
        y[chunks.slice(owner)] = result.remote_load(owner, chunks.slice(owner))
    return y


def the_first_missing(ctx, result, y, mine, chunks):
    for owner in range(1, ctx.nranks):
        y[chunks.slice(owner)] = result.remote_load(owner, chunks.slice(owner))
    return y


def its_own_first(ctx, result, y, mine, chunks):
    owners = [(ctx.rank + step) % ctx.nranks for step in range(ctx.nranks)]
    return np.concatenate([result.remote_load(owner, chunks.slice(owner)) for owner in owners])


def backwards(ctx, result, y, mine, chunks):
    owners = range(ctx.nranks - 1, -1, -1)
    return np.concatenate([result.remote_load(owner, chunks.slice(owner)) for owner in owners])


def sorted_at_the_end(ctx, result, y, mine, chunks):
    return np.sort(gathered(ctx, result, y, mine, chunks))


def each_chunk_sorted(ctx, result, y, mine, chunks):
    for owner in range(ctx.nranks):
        y[chunks.slice(owner)] = np.sort(result.remote_load(owner, chunks.slice(owner)))
    return y


def each_chunk_falling(ctx, result, y, mine, chunks):
    for owner in range(ctx.nranks):
        y[chunks.slice(owner)] = np.sort(result.remote_load(owner, chunks.slice(owner)))[::-1]
    return y


def cut_evenly(ctx, result, y, mine, chunks):
    size = y.size // ctx.nranks
    for owner in range(ctx.nranks):
        part = slice(owner * size, (owner + 1) * size if owner < ctx.nranks - 1 else y.size)
        y[part] = result.remote_load(owner, part)
    return y


def all_in_one_place(ctx, result, y, mine, chunks):
    for owner in range(ctx.nranks):
        y[mine] = result.remote_load(owner, chunks.slice(owner))
    return y


def from_its_own_window(ctx, result, y, mine, chunks):
    for owner in range(ctx.nranks):
        y[chunks.slice(owner)] = result.load(chunks.slice(owner))
    return y


def its_own_chunk_of_all(ctx, result, y, mine, chunks):
    for owner in range(ctx.nranks):
        y[chunks.slice(owner)] = result.remote_load(owner, mine)
    return y


def whole_windows(ctx, result, y, mine, chunks):
    for owner in range(ctx.nranks):
        y += result.remote_load(owner)
    return y


def cut_afterwards(ctx, result, y, mine, chunks):
    for owner in range(ctx.nranks):
        y[chunks.slice(owner)] = result.remote_load(owner)[chunks.slice(owner)]
    return y


def by_way_of_rank_0(ctx, result, y, mine, chunks):
    rows = ctx.signals("rank 0", rows=2)
    if ctx.rank == 0:
        result.store(gathered(ctx, result, y, mine, chunks))
    ctx.barrier(rows, 0)
    for owner in range(ctx.nranks):
        part = chunks.slice(owner)
        y[part] = result.load(part) if owner == ctx.rank else result.remote_load(0, part)
    ctx.barrier(rows, 1)
    return y


ALL_GATHER = {
    nothing: "nothing", its_own_only: "its own only", its_own_missing: "its own missing",
    the_last_missing: "the last missing", the_first_missing: "the first missing", its_own_first: "its own first",
    backwards: "backwards", all_in_one_place: "all in one place", from_its_own_window: "never stored",
    its_own_chunk_of_all: "never stored", whole_windows: "never stored", cut_afterwards: "read whole, then cut",
    by_way_of_rank_0: "not from its owner", sorted_at_the_end: None, each_chunk_sorted: None,
    each_chunk_falling: None, cut_evenly: "never stored",
}  # fmt: skip


# what stands between the phases


def a_barrier(ctx, signals):
    ctx.barrier(signals, 1)


def a_new_generation(ctx, signals):
    ctx.barrier(ctx.signals("two_phases", rows=2), 0)


def signals_of_its_own(ctx, signals):
    ctx.barrier(ctx.signals("between", rows=1), 0)


def by_hand(ctx, signals):
    for peer in range(ctx.nranks):
        signals.notify(peer, 1)
    for peer in range(ctx.nranks):
        signals.wait(peer, 1, signals.generation)


def the_same_row(ctx, signals):
    ctx.barrier(signals, 0)


def the_same_row_by_hand(ctx, signals):
    for peer in range(ctx.nranks):
        signals.notify(peer, 0)
    for peer in range(ctx.nranks):
        if peer != ctx.rank:
            signals.wait(peer, 0, signals.generation)


def waits_for_0(ctx, signals):
    for peer in range(ctx.nranks):
        signals.notify(peer, 1)
    for peer in range(ctx.nranks):
        signals.wait(peer, 1, 0)


def a_fixed_target(ctx, signals):
    for peer in range(ctx.nranks):
        signals.notify(peer, 1)
    for peer in range(ctx.nranks):
        signals.wait(peer, 1, 1)


def nobody_waits(ctx, signals):
    for peer in range(ctx.nranks):
        signals.notify(peer, 1)


def one_neighbour(ctx, signals):
    signals.notify((ctx.rank + 1) % ctx.nranks, 1)
    signals.wait((ctx.rank - 1) % ctx.nranks, 1, signals.generation)


def its_own_signal(ctx, signals):
    signals.notify(ctx.rank, 1)
    signals.wait(ctx.rank, 1, signals.generation)


def nobody_notifies(ctx, signals):
    for peer in range(ctx.nranks):
        signals.wait(peer, 1, signals.generation)


def waits_first(ctx, signals):
    nobody_notifies(ctx, signals)
    nobody_waits(ctx, signals)


def rank_0_only(ctx, signals):
    if ctx.rank == 0:
        ctx.barrier(signals, 1)


def row_2(ctx, signals):
    ctx.barrier(signals, 2)


BETWEEN = {
    "nothing": (two(), "nothing"),
    "the same row": (two(the_same_row), "the same row"),
    "the same row by hand": (two(the_same_row_by_hand), "the same row"),
    "too early": (two(before=a_barrier), "too early"),
    "too late": (two(behind=a_barrier), "too late"),
    "waits for 0": (two(waits_for_0), "waits for 0"),
    "a fixed target": (two(a_fixed_target), "a fixed target"),
    "nobody waits": (two(nobody_waits), "nobody waits"),
    "one neighbour": (two(one_neighbour), "not every peer"),
    "its own signal": (two(its_own_signal), "not every peer"),
    "nobody notifies": (two(nobody_notifies), "nobody notifies"),
    "waits first": (two(waits_first), "nobody notifies"),
    "rank 0 only": (two(rank_0_only), "not every rank"),
    "row 2": (two(row_2), "raised"),
}


@pytest.mark.parametrize("gap", (summed, from_its_own, over_a_list))
def test_a_right_loop_of_the_reduce_scatter_passes(gap):
    verdict = two_phases.reduce_scatter_loop(reduce_scatter(gap))
    assert verdict, verdict.text


@pytest.mark.parametrize(("gap", "mistake"), REDUCE_SCATTER.items())
def test_a_wrong_loop_of_the_reduce_scatter_is_recognised(gap, mistake):
    verdict = two_phases.reduce_scatter_loop(reduce_scatter(gap))
    assert not verdict and verdict.mistake == mistake, verdict.text


@pytest.mark.parametrize("gap", (gathered, own_without_reading, concatenated))
def test_a_right_loop_of_the_all_gather_passes(gap):
    verdict = two_phases.all_gather_loop(all_gather(gap))
    assert verdict, verdict.text


@pytest.mark.parametrize(("gap", "mistake"), ALL_GATHER.items())
def test_a_wrong_loop_of_the_all_gather_is_recognised(gap, mistake):
    verdict = two_phases.all_gather_loop(all_gather(gap))
    assert not verdict and verdict.mistake == mistake, verdict.text


def test_an_array_handed_back_is_recognised():
    assert two_phases.all_gather_loop(lambda ctx, x: x).mistake == "x itself"


@pytest.mark.parametrize("between", (a_barrier, a_new_generation, signals_of_its_own, by_hand))
def test_a_right_barrier_passes(between):
    verdict = two_phases.second_barrier(two(between))
    assert verdict, verdict.text


@pytest.mark.parametrize(("program", "mistake"), BETWEEN.values(), ids=BETWEEN)
def test_a_wrong_barrier_is_recognised(program, mistake):
    verdict = two_phases.second_barrier(program)
    assert not verdict and verdict.mistake == mistake, verdict.text


def test_every_mistake_has_such_a_program():
    def names(exercise):
        return {mistake.name for mistake in exercise.mistakes}

    assert names(two_phases.reduce_scatter_loop) == set(REDUCE_SCATTER.values())
    assert names(two_phases.all_gather_loop) == {"x itself", *ALL_GATHER.values()} - {None}
    assert names(two_phases.second_barrier) == {mistake for _, mistake in BETWEEN.values()} - {"raised"}


def test_the_report_on_a_reused_row_shows_the_lines_and_the_mend():
    text = two_phases.second_barrier(two(the_same_row)).text
    assert "both barriers ask for the same count on the same row" in text
    assert ":  result.store(total, mine)\n" in text and "mend: give the second barrier a row of its own" in text


def test_a_target_that_does_not_rise_shows_in_the_second_call():
    text = two_phases.second_barrier(two(a_fixed_target)).text
    assert "every single call is right, but in two calls on the same windows" in text

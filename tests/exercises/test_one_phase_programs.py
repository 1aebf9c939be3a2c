"""Programs that a learner may write for notebook 05, simulated and on real ranks, and what they are told."""

import numpy as np
import pytest

import collectlab as cl
from collectlab.exercises import one_phase
from collectlab.exercises.one_phase import mesh_all_reduce


def program(ctx, x, rows=(0, 1), combine=None):
    data, done = ctx.window("data", x.size, x.dtype), ctx.signals("done", rows=2)
    data.store(x)
    if rows[0] is not None:
        ctx.barrier(done, rows[0])
    loaded = {peer: data.remote_load(peer) for peer in range(ctx.nranks) if peer != ctx.rank}
    total = combine(ctx, x, loaded) if combine else sum(loaded.values(), x)
    if rows[1] is not None:
        ctx.barrier(done, rows[1])
    return total


def in_rank_order(ctx, x):
    data, done = ctx.window("data", x.size, x.dtype), ctx.signals("done", rows=2)
    data.store(x)
    ctx.barrier(done, 0)
    total = data.remote_load(0)
    for peer in range(1, ctx.nranks):
        total = total + data.remote_load(peer)
    ctx.barrier(done, 1)
    return total


def onto_a_copy(ctx, x):
    def add(ctx, x, loaded):
        total = x.copy()
        for array in loaded.values():
            total += array
        return total

    return program(ctx, x, combine=add)


def two_windows(ctx, x):
    """One barrier a call: the one of the call between says that the window is free again."""
    done = ctx.signals("done", rows=1)
    data = ctx.window(f"data {done.generation % 2}", x.size, x.dtype)
    data.store(x)
    ctx.barrier(done, 0)
    return sum(data.remote_load(peer) for peer in range(ctx.nranks) if peer != ctx.rank) + x


def onto_the_input(ctx, x):
    def add(ctx, x, loaded):
        total = x
        for array in loaded.values():
            total += array
        return total

    return program(ctx, x, combine=add)


def read_twice(ctx, x):
    data, done = ctx.window("data", x.size, x.dtype), ctx.signals("done", rows=2)
    data.store(x)
    ctx.barrier(done, 0)
    total = x.copy()
    for peer in range(ctx.nranks):
        if peer != ctx.rank and data.remote_load(peer).size:
            total = total + data.remote_load(peer)
    ctx.barrier(done, 1)
    return total


def one_too_many(ctx, x):
    data, done = ctx.window("data", x.size, x.dtype), ctx.signals("done", rows=2)
    data.store(x)
    ctx.barrier(done, 0)
    total = data.remote_load(0)
    for peer in range(1, ctx.nranks + 1):
        total = total + data.remote_load(peer)
    ctx.barrier(done, 1)
    return total


def onto_the_window(ctx, x):
    data, done = ctx.window("data", x.size, x.dtype), ctx.signals("done", rows=2)
    data.store(x)
    ctx.barrier(done, 0)
    for peer in range(ctx.nranks):
        if peer != ctx.rank:
            data.store(data.load() + data.remote_load(peer))
    ctx.barrier(done, 1)
    return data.load()


def added_by_rank_0(ctx, x):
    """Right, with fewer bytes, and no mesh."""
    data, done = ctx.window("data", x.size, x.dtype), ctx.signals("done", rows=3)
    data.store(x)
    ctx.barrier(done, 0)
    if ctx.rank == 0:
        data.store(sum(data.remote_load(peer) for peer in range(ctx.nranks)))
    ctx.barrier(done, 1)
    total = data.remote_load(0)
    ctx.barrier(done, 2)
    return total


def combined(combine):
    return lambda ctx, x: program(ctx, x, combine=combine)


RIGHT = {
    "own first": program, "in rank order": in_rank_order, "onto a copy": onto_a_copy, "two windows": two_windows,
}  # fmt: skip
WRONG = {
    "its own": combined(lambda ctx, x, loaded: x.copy()),
    "its own twice": combined(lambda ctx, x, loaded: sum(loaded.values(), 2 * x)),
    "without its own": combined(lambda ctx, x, loaded: sum(loaded.values(), 0 * x)),
    "rank 0's": combined(lambda ctx, x, loaded: {**loaded, ctx.rank: x}[0].copy()),
    "mean": combined(lambda ctx, x, loaded: sum(loaded.values(), x) / ctx.nranks),
    "two ranks only": combined(lambda ctx, x, loaded: sum({**loaded, ctx.rank: x}[rank] for rank in (0, 1))),
    "nothing after the loads": lambda ctx, x: program(ctx, x, rows=(0, None)),
    "nothing before the loads": lambda ctx, x: program(ctx, x, rows=(None, 1)),
    "the input": onto_the_input,
    "read twice": read_twice,
    "stores between the loads": onto_the_window,
    "not one phase": added_by_rank_0,
    "no such rank": one_too_many,
}


@pytest.mark.parametrize("right", RIGHT.values(), ids=RIGHT)
def test_right_programs_pass(right):
    assert mesh_all_reduce(right)


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_programs_are_recognised(mistake):
    verdict = mesh_all_reduce(WRONG[mistake])
    assert not verdict and verdict.mistake == mistake, verdict


def test_every_mistake_has_its_program_and_its_message():
    names = [mistake.name for mistake in mesh_all_reduce.mistakes]
    assert set(names) == set(WRONG) and len({m.message for m in mesh_all_reduce.mistakes}) == len(names) >= 5


def test_the_ready_kernel_is_no_answer():
    assert mesh_all_reduce(cl.kernels.mesh.all_reduce).mistake == "borrowed"


def own_first(ctx, x):
    return program(ctx, x)


def bits(program, nranks, dtype, place=cl.simulate):
    drawn = np.random.default_rng(nranks).standard_normal((nranks, 1000)) * 1e6
    return np.stack(place(program, cl.per_rank(list(drawn.astype(dtype))), ranks=nranks).results)


def agree(results):
    return bool(np.all(results == results[0]))


def test_the_statements_about_bits_are_so():
    holds = {
        "a": agree(bits(own_first, 2, np.float32)),
        "b": agree(bits(own_first, 3, np.float32)),
        "c": all(agree(bits(own_first, nranks, np.int32)) for nranks in (2, 3, 4, 8)),
        "d": all(agree(bits(in_rank_order, nranks, np.float32)) for nranks in (2, 3, 4, 8)),
        "e": np.array_equal(bits(in_rank_order, 3, np.float32), bits(in_rank_order, 3, np.float64)),
        "f": agree(bits(own_first, 3, np.float32)),
        "g": not np.array_equal(bits(own_first, 3, np.float32), bits(own_first, 3, np.float32, cl.run)),
    }
    assert {letter for letter, so in holds.items() if so} == one_phase.same_bits.expected
    assert holds.keys() == one_phase.same_bits.options.keys()


@pytest.mark.parametrize(("nranks", "share"), [(2, 0), (3, 0.32), (4, 0.51), (8, 0.83)])
def test_so_many_elements_differ_somewhere(nranks, share):
    """Of normal float32, each rank beginning with its own; the lesson prints these shares."""
    results = bits(own_first, nranks, np.float32)
    assert abs(np.mean(np.any(results != results[0], axis=0)) - share) < 0.05


def test_a_fast_rank_gives_a_slow_one_what_the_exercise_says():
    def calls(ctx, numbers):
        return [int(program(ctx, np.array([number]), rows=(0, None))[0]) for number in numbers]

    numbers = cl.per_rank([(1, 100), (10, 1000)])
    runs = [cl.simulate(calls, numbers, ranks=2, schedule=number) for number in range(60)]
    assert {run.results[1][0] for run in runs} == {11, one_phase.sum_of_a_slow_rank.expected}
    lucky = [run for run in runs if run.results == [[11, 1100]] * 2]
    assert lucky and all(run.trace.races() for run in runs)


def test_the_counts_are_those_of_runs():
    run = cl.simulate(program, cl.per_rank([np.ones(1000, np.float32)] * 4), ranks=4)
    assert one_phase.bytes_read(int(run.traffic[0].sum()))
    run = cl.simulate(program, cl.per_rank([np.ones(1000, np.float32)] * 5), ranks=5)
    assert one_phase.notifications(run.trace.measured(0).notifications)

"""KernelExercise against right kernels and against kernels that go wrong in every way that it knows."""

import dataclasses
import itertools
import os

import numpy as np
import pytest

import collectlab as cl
from collectlab import kernels, semantics
from collectlab.exercises import on_kernels
from collectlab.exercises.on_kernels import KernelExercise, KernelMistake
from collectlab.exercises.on_ranks import ProgramMistake

SAMPLE = KernelExercise(
    "Add the arrays of all ranks.",
    expected=semantics.all_reduce,
    why="every rank has the sum.",
    mistakes=(
        ProgramMistake("its own", lambda xs: xs, "every rank returns what it was given."),
        KernelMistake("no wait", lambda f: f.kind == "race" and "waits for no" in f.races[0].why, "nobody waits."),
    ),
    gets=lambda counts: counts.sum(),
    timeout=60,
)


def right(ctx, x):
    data, signals = ctx.window("data", x.size, x.dtype), ctx.signals("s", rows=2)
    data.store(x)
    ctx.barrier(signals, 0)
    total = data.remote_load(0)
    for peer in range(1, ctx.nranks):
        total = total + data.remote_load(peer)
    ctx.barrier(signals, 1)
    return total


def pushed(ctx, x):
    inbox, signals = ctx.window("inbox", (ctx.nranks, x.size), x.dtype), ctx.signals("s", rows=2)
    for peer in range(ctx.nranks):
        inbox.remote_store(peer, x, (ctx.rank, slice(0, x.size)))
    ctx.barrier(signals, 0)
    total = inbox.load().sum(axis=0)
    ctx.barrier(signals, 1)
    return total


@pytest.mark.parametrize("program", (right, pushed, lambda ctx, x: right(ctx, x).tolist()))
def test_a_right_kernel_passes(program):
    verdict = SAMPLE(program)
    assert verdict, verdict.text
    assert verdict.text == (
        "right on 1 to 5 and 7 simulated ranks with 0, 1, 6, 7 and 10 elements, in one call and in two, and "
        "on 3 real ranks: every rank has the sum."
    )


def its_own(ctx, x):
    return x.copy()


def raises(ctx, x):
    if ctx.nranks > 2:
        ctx.window("data", x.size, x.dtype).load(slice(0, x.size + 1))
    return right(ctx, x)


def never_notified(ctx, x):
    signals = ctx.signals("s", rows=1)
    if ctx.rank:
        signals.wait(0, 0, 1)
    return x.copy()


def nothing_waits(ctx, x):
    data = ctx.window("data", x.size, x.dtype)
    data.store(x)
    return sum(data.remote_load(peer) for peer in range(ctx.nranks))


def reused_row(ctx, x):
    data, signals = ctx.window("data", x.size, x.dtype), ctx.signals("s", rows=1)
    total = ctx.window("total", x.size, x.dtype)
    data.store(x)
    ctx.barrier(signals, 0)
    if ctx.rank == 0:
        total.store(sum(data.remote_load(peer) for peer in range(ctx.nranks)))
    ctx.barrier(signals, 0)
    return total.remote_load(0)


def only_once(ctx, x):
    """Right in one call; the second may store before everyone has read."""
    data, signals = ctx.window("data", x.size, x.dtype), ctx.signals("s", rows=1)
    data.store(x)
    ctx.barrier(signals, 0)
    return sum(data.remote_load(peer) for peer in range(ctx.nranks))


def only_if_divisible(ctx, x):
    total, n = right(ctx, x), x.size // ctx.nranks * ctx.nranks
    return np.concatenate([total[:n], x[n:]])


def only_two_ranks(ctx, x):
    data, signals = ctx.window("data", x.size, x.dtype), ctx.signals("s", rows=2)
    data.store(x)
    ctx.barrier(signals, 0)
    total = data.remote_load(0) + data.remote_load(1 if ctx.nranks > 1 else 0)
    ctx.barrier(signals, 1)
    return total


def not_on_an_even_number(ctx, x):
    """Right on 1, 2, 3, 5 and 7 ranks."""
    return right(ctx, x) + (ctx.nranks in (4, 6))


def beyond_the_last_rank(ctx, x):
    return x[cl.layout.Partition.uneven(x.size, ctx.nranks).slice(ctx.rank + 1)]


def as_rows(ctx, x):
    return np.stack([x, x[1:]])


def sees_the_next_call(ctx, x):
    """Stores without the window's store, so that no trace shows what races: the first call may see the second."""
    data, signals = ctx.window("data", x.size, x.dtype), ctx.signals("s", rows=1)
    data.local[...] = x
    ctx.barrier(signals, 0)
    return sum(data.remote_load(peer) for peer in range(ctx.nranks))


def own_twice(ctx, x):
    return right(ctx, x) + x


def another_element(ctx, x):
    return right(ctx, x) + 100 * np.eye(1, x.size, dtype=x.dtype)[0]


def never_stored(ctx, x):
    data, signals = ctx.window("data", x.size, x.dtype), ctx.signals("s", rows=1)
    ctx.barrier(signals, 0)
    return data.remote_load(ctx.nranks - 1)


def changes_x(ctx, x):
    y = right(ctx, x)
    x *= 3
    return y


def returns_the_window(ctx, x):
    y = ctx.window("y", x.size, x.dtype)
    y.store(right(ctx, x))
    return y.local


def twice_the_bytes(ctx, x):
    right(ctx, x)
    return right(ctx, x)


def reads_twice_on_many(ctx, x):
    return right(ctx, x) if ctx.nranks < 3 else twice_the_bytes(ctx, x)


SEEN = []


def by_a_global(ctx, x):
    """Works only where ranks share a process."""
    SEEN.append(x)
    signals = ctx.signals("s", rows=2)
    ctx.barrier(signals, 0)
    total = sum(SEEN[-ctx.nranks :])
    ctx.barrier(signals, 1)
    return total


calls, seen = 0, {"calls": 0}


def wait_for_all(ctx, signals):
    """A barrier that counts its calls in globals, which are each rank's own only where it has a process."""
    global calls
    calls += 1
    seen["calls"] += 1
    for peer in range(ctx.nranks):
        signals.notify(peer, 0)
    for peer in range(ctx.nranks):
        signals.wait(peer, 0, seen["calls"])


def counts_in_globals(ctx, x):
    data, signals = ctx.window("data", x.size, x.dtype), ctx.signals("s", rows=1)
    data.store(x)
    wait_for_all(ctx, signals)
    total = sum(data.remote_load(peer) for peer in range(ctx.nranks))
    wait_for_all(ctx, signals)
    return total


def by_the_kernel(ctx, x):
    return kernels.mesh.all_reduce(ctx, x)


def by_mpi(ctx, x):
    return ctx.comm.allreduce(x)


def loads_for_ever(ctx, x):
    data = ctx.window("data", x.size, x.dtype)
    while True:
        data.load()


def notifies_for_ever(ctx, x):
    signals = ctx.signals("s", rows=1)
    while True:
        signals.notify(0, 0)


def spins(ctx, x):
    while ctx.nranks > 2:
        pass
    return right(ctx, x)


def spins_and_swallows(ctx, x):
    data = ctx.window("data", x.size, x.dtype)
    while True:
        try:
            data.load()
        except Exception:
            pass


def prints_for_ever(ctx, x):
    while True:
        print("still here")


def dies(ctx, x):
    print("goodbye", flush=True)
    os._exit(3)


def leaves(ctx, x):
    raise SystemExit(2)


def another_dtype(ctx, x):
    data, signals = ctx.window("data", x.size, np.int64), ctx.signals("s", rows=2)
    data.store(x)
    ctx.barrier(signals, 0)
    total = sum((data.remote_load(peer) for peer in range(ctx.nranks)), np.zeros(x.size, np.int64))
    ctx.barrier(signals, 1)
    return total


TWO = "on 2 ranks with 6 elements "
WRONG = [
    (its_own, "its own", f"not yet: {TWO}every rank returns what it was given."),
    (raises, "raised", "not yet: right on 2 ranks, but on 3 ranks with 6 elements the program fails.\nrank 0 raised"),
    (raises, "raised", "in raises:  ctx.window("),
    (never_notified, "deadlock", f"{TWO}the ranks wait for ever.\nstuck: rank 1 waits for rank 0"),
    (nothing_waits, "no wait", f'{TWO}nobody waits.\nrace on window "data", elements 0:6 of rank'),
    (nothing_waits, "no wait", ":  data.store(x)\n"),
    (reused_row, "race", "already gave it"),
    (only_once, "race", f"every single call is right, but in two calls on the same windows, {TWO[:-1]}, two acc"),
    (only_if_divisible, None, "not yet: right with 6 elements, but on 2 ranks with 7 elements the result is wrong"),
    (only_if_divisible, None, "(counted from 0) is 16, and 1616 is expected: rank 1's contribution is missing."),
    (only_two_ranks, None, "right on 2 ranks, but on 3 ranks with 6 elements the result is wrong"),
    (not_on_an_even_number, None, "right on 2 and 3 ranks, but on 4 ranks with 6 elements the result is wrong"),
    (beyond_the_last_rank, "raised", "are 0 to 1\n    line "),
    (beyond_the_last_rank, "raised", "in beyond_the_last_rank:  return x["),
    (as_rows, "raised", "in as_rows:  return np.stack("),
    (sees_the_next_call, None, "every single call is right, but in two calls on the same windows, on"),
    (sees_the_next_call, None, "contribution is that of the next call."),
    (only_once, "race", "of call 1 instead of"),
    (own_twice, None, "rank 0's contribution is in it twice"),
    (another_element, None, "it holds rank 1's element 3 instead of 0."),
    (never_stored, None, "such a number lies in a window before anything is stored there"),
    (changes_x, "input", f"{TWO}x is changed"),
    (returns_the_window, "view", "in two calls on the same windows, on 2 ranks with 6 elements, a result changes"),
    (twice_the_bytes, "bytes", "rank 0 gets 96 bytes from its peers; 48 are enough"),
    (reads_twice_on_many, "bytes", "right on 2 ranks, but on 3 ranks with 6 elements too many bytes are moved."),
    (by_a_global, "silent", f"{TWO}nothing was moved through a window."),
    (counts_in_globals, "deadlock", "\n(calls and seen: simulated ranks run in one process, and share its globals.)"),
    (by_the_kernel, "borrowed", f"{TWO}a kernel of collectlab made the result."),
    (by_mpi, "raised", "AttributeError: 'NoneType' object has no attribute 'allreduce'"),
    (loads_for_ever, "raised", "it waits in a loop for a value that no rank stores"),
    (dies, "fails", f"{TWO}the program fails.\nthe process ended without returning, with exit code 3"),
    (leaves, "raised", "rank 0 raised SystemExit: 2\n    line "),
    (another_dtype, "fails", "right in the simulator, but on 3 real ranks with 7 elements of float64 the program"),
    (lambda ctx, x: None, "kind", "rank 0 returns None. There, None is what comes back from a function without"),
    (lambda ctx, x: ctx.window("w", 2, int), "kind", "rank 0 returns a Window. There, that is"),
    (lambda ctx, x: right(ctx, x)[:2], None, "and a list of 6 whole numbers is expected"),
    (lambda ctx, x: ..., "unanswered", "no answer yet: the program still returns three dots"),
    (lambda ctx: 3, "arguments", "program(ctx, x)"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "mistake", "said"), WRONG)
def test_a_wrong_kernel_is_told_what_is_wrong(program, mistake, said, capsys):
    verdict = SAMPLE(program)
    assert not verdict and said in verdict.text and verdict.mistake == mistake, verdict.text
    assert capsys.readouterr() == ("", "")
    assert "on_kernels.py" not in verdict.text and " at 0x" not in verdict.text
    assert "printed last" not in verdict.text and "case reached" not in verdict.text


@pytest.mark.parametrize("program", (spins, prints_for_ever, spins_and_swallows, notifies_for_ever))
def test_a_program_that_never_ends_is_ended(program):
    verdict = dataclasses.replace(SAMPLE, timeout=5)(program)  # a busy machine takes a while to get there
    assert verdict.mistake == "hangs"
    where = "right on 2 ranks, but on 3 ranks" if program is spins else "on 2 ranks"
    assert verdict.text.startswith(f"not yet: {where} with 6 elements the program is not done after 5 s.\nit was in ")
    assert f"in {program.__name__}:  " in verdict.text


class Unreadable:
    """A program that can be sent and not read."""

    def __reduce__(self):
        return int, ("seven",)

    def __call__(self, ctx, x):
        return x


def test_a_program_that_does_not_arrive_gets_a_sentence():
    text = SAMPLE(Unreadable()).text
    assert text.startswith("not yet: in the simulator the program fails.\nthe process raised ValueError"), text


def with_a_gap(ctx, x):
    data = ctx.window("data", x.size, x.dtype)
    data.store(x)
    total = ...
    return total


def with_a_bare_gap(ctx, x):
    for _ in range(ctx.nranks):
        ...
    return x


def with_an_index(ctx, x):
    y = right(ctx, x)
    y[...] = y[..., :]
    return y


def test_three_dots_are_found_where_code_should_stand():
    for program, line in ((with_a_gap, 4), (with_a_bare_gap, 3)):
        verdict = SAMPLE(program)
        assert verdict.text == f"no answer yet: three dots still stand in line {line} of the program."
        assert verdict.mistake == "unanswered"
    assert SAMPLE(with_an_index)


@pytest.mark.parametrize("answer", (..., None, 3, "text", np.arange(3), [], len, object(), np.empty))
def test_what_is_no_program_gets_a_sentence(answer):
    verdict = SAMPLE(answer)
    assert not verdict and verdict.text.startswith("no answer yet" if answer is ... else "not yet: ")


def test_digits_leave_every_rank_two_of_its_own_and_no_chunk_of_three_is_sorted():
    assert sum(on_kernels.digits(3, 3)).tolist() == [111111, 101010, 121212]
    for x in on_kernels.digits(3, 7):
        assert all(np.unique(np.sign(np.diff(x[i : i + 3]))).size > 1 for i in range(4))


EXERCISES = {
    f"{lesson}.{name}": found
    for lesson in cl.exercises.__all__
    for name, found in vars(getattr(cl.exercises, lesson)).items()
    if isinstance(found, KernelExercise)
}


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("one_phase.mesh_all_reduce", kernels.mesh.all_reduce),
        ("two_phases.reduce_scatter_loop", kernels.two_phase.reduce_scatter),
        ("two_phases.second_barrier", kernels.two_phase.all_reduce),
        ("rings.ring_reduce_scatter", kernels.ring.reduce_scatter),
    ],
)
def test_what_is_to_be_moved_is_what_the_kernel_moves(name, kernel):
    for nranks, count in ((2, 3), (3, 7), (4, 2)):
        run = cl.simulate(kernel, np.arange(count), ranks=nranks)
        got = run.traffic + run.trace.pushed().T
        np.fill_diagonal(got, 0)
        assert np.array_equal(got, EXERCISES[name]._case(nranks, count).gets), (nranks, count)


def passed_on(ctx, x):
    """The arrays go round from neighbour to neighbour: each rank gets as many bytes as in a mesh, all from one."""
    left, total = (ctx.rank - 1) % ctx.nranks, x
    data, signals = ctx.window("data", (ctx.nranks, x.size), x.dtype), ctx.signals("s", rows=ctx.nranks)
    data.store(x, 0)
    for step in range(1, ctx.nranks):
        ctx.barrier(signals, step - 1)
        data.store(data.remote_load(left, step - 1), step)
        total = total + data.load(step)
    ctx.barrier(signals, ctx.nranks - 1)
    return total


def test_the_right_bytes_from_another_rank_are_seen():
    verdict = dataclasses.replace(SAMPLE, ranks=(3,))(passed_on)
    assert verdict.text.startswith(
        "not yet: on 3 ranks with 6 elements more comes from one peer than is to come from it.\n"
        "rank 0 gets 96 bytes from rank 2; 48 are expected"
    ), verdict.text


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
def test_at_least_five_wrong_kernels_are_told_apart(exercise):
    """By name and message; and those that are known by their results, by the results."""
    assert len({m.name for m in exercise.mistakes}) == len({m.message for m in exercise.mistakes}) >= 5
    inputs = [on_kernels.digits(nranks, count) for nranks in exercise.ranks for count in on_kernels.LENGTHS]
    results = [[[np.asarray(y).tolist() for y in wrong(xs)] for xs in inputs] for wrong in by_value(exercise)]
    assert all(a != b for a, b in itertools.combinations(results, 2))


def by_value(exercise):
    """What the wrong kernels that are known by their results return, and the right one."""
    return [exercise.expected, *(m.wrong for m in exercise.mistakes if isinstance(m, ProgramMistake))]

"""Exercises whose answer is a program: right, wrong, failing, hanging and useless programs on real ranks."""

import dataclasses
import itertools

import numpy as np
import pytest

import collectlab as cl
from collectlab import semantics
from collectlab.exercises.on_ranks import ProgramExercise, ProgramMistake

EXERCISES = {
    f"{lesson}.{name}": found
    for lesson in cl.exercises.__all__
    for name, found in vars(getattr(cl.exercises, lesson)).items()
    if isinstance(found, ProgramExercise)
}
SAMPLE = ProgramExercise(
    "Add the arrays of all ranks.",
    inputs=lambda nranks: [np.arange(3) + 10**rank for rank in range(nranks)],
    expected=semantics.all_reduce,
    why="every rank has the sum.",
    mistakes=(ProgramMistake("gathered", semantics.all_gather, "the arrays stand side by side."),),
    reserved={"Allreduce": "Allreduce does all of it."},
    ranks=(2, 3),
    timeout=60,
)


def by_hand(ctx, x):
    gathered = np.empty(x.size * ctx.nranks, x.dtype)
    ctx.comm.Allgather(x, gathered)
    return gathered.reshape(ctx.nranks, x.size).sum(axis=0)


def side_by_side(ctx, x):
    gathered = np.empty(x.size * ctx.nranks, x.dtype)
    ctx.comm.Allgather(x, gathered)
    return gathered


def of_two(ctx, x):
    gathered = side_by_side(ctx, x)
    return gathered[: x.size] + gathered[x.size : 2 * x.size]


def by_the_library(ctx, x):
    total = np.empty_like(x)
    ctx.comm.Allreduce(x, total)
    return total


def raises(ctx, x):
    if ctx.rank == 1:
        raise ValueError("too many")
    ctx.comm.Barrier()


def hangs(ctx, x):
    if ctx.rank == 0:
        ctx.comm.Barrier()
    return x


def test_a_right_program_passes():
    verdict = SAMPLE(by_hand)
    assert verdict and verdict.text == "right on 2 and 3 ranks: every rank has the sum."
    assert SAMPLE(lambda ctx, x: by_hand(ctx, x).tolist())


@pytest.mark.parametrize(
    ("program", "mistake", "said"),
    [
        (side_by_side, "gathered", "on 2 ranks the arrays stand side by side."),
        (
            of_two,
            None,
            "right on 2 ranks, but on 3 the result is wrong. Rank 0 was given [1, 2, 3] and returned",
        ),
        (by_the_library, "calls Allreduce", "not yet: the result is right, but Allreduce does all of it."),
        (raises, "fails", "rank 1 raised ValueError: too many"),
        (lambda ctx, x: None, "kind", "rank 0 returns None. There, None is what comes back from a function without"),
        (lambda ctx, x: slice(1, 2), "kind", "that is a slice; return x[...] of it"),
        (lambda ctx, x: "sum", "kind", "that is text"),
        (
            lambda ctx, x: x[:1],
            None,
            "that is a list of 1 number. What is expected: a list of 3 whole numbers.",
        ),
        (lambda ctx, x: ctx.comm, "fails", "exists only in its rank"),
        (lambda ctx: 3, "arguments", "program(ctx, x)"),
        (lambda ctx, x: ..., "unanswered", "no answer yet"),
    ],
)
def test_a_wrong_program_is_told_what_is_wrong(program, mistake, said, capsys):
    verdict = SAMPLE(program)
    assert not verdict and verdict.mistake == mistake and said in verdict.text
    assert capsys.readouterr() == ("", "")


def test_a_hanging_program_is_told_who_waits(capsys):
    verdict = dataclasses.replace(SAMPLE, timeout=3)(hangs)
    assert verdict.mistake == "hangs" and "is not done after 3 s" in verdict.text
    assert "rank 0 was waiting in Barrier" in verdict.text and "rank 1 returned" in verdict.text
    assert capsys.readouterr() == ("", "")


OUT_OF_ALLGATHER = dataclasses.replace(SAMPLE, required=("Allgather", "allgather"))


def not_blocking(ctx, x):
    total = np.empty_like(x)
    ctx.comm.Iallreduce(x, total).Wait()
    return total


def on_a_duplicate(ctx, x):
    return ctx.comm.Dup().allreduce(x)


def on_the_world(ctx, x):
    from mpi4py import MPI

    return MPI.COMM_WORLD.allreduce(x)


class World:
    """In a rank it is MPI.COMM_WORLD; here nothing imports MPI."""

    def __reduce__(self):
        return eval, ("__import__('mpi4py.MPI').MPI.COMM_WORLD",)


def by_a_global():
    """A program that uses a communicator from another cell of the notebook."""
    exec("def program(ctx, x):\n    return comm.allreduce(x)", cell := {"comm": World()})
    return cell["program"]


def gathered_on_a_part(ctx, x):
    return sum(ctx.comm.Split(0, ctx.rank).allgather(x))


SAID = "not yet: the result is right, but no."


@pytest.mark.parametrize("program", (on_a_duplicate, on_the_world, by_a_global()), ids=("Dup", "world", "global"))
def test_calls_on_other_communicators_are_calls(program):
    assert dataclasses.replace(SAMPLE, reserved={"allreduce": "no."}, ranks=(2,))(program).text == SAID


def test_what_is_required_may_be_called_on_another_communicator():
    assert dataclasses.replace(OUT_OF_ALLGATHER, ranks=(2,))(gathered_on_a_part)


def named_but_not_called(ctx, x):
    assert ctx.comm.Allgather
    return sum(np.arange(3) + 10**rank for rank in range(ctx.nranks))


def test_a_program_is_made_out_of_what_is_required():
    assert OUT_OF_ALLGATHER(by_hand)
    assert OUT_OF_ALLGATHER(lambda ctx, x: sum(ctx.comm.allgather(x)))
    for program in (by_the_library, not_blocking):
        assert OUT_OF_ALLGATHER(program).mistake == "calls Allreduce"
    verdict = OUT_OF_ALLGATHER(named_but_not_called)
    assert not verdict and verdict.mistake == "lacks Allgather"
    assert "the result is right, but the program never calls Allgather" in verdict.text


def other_dtype(ctx, x):
    gathered = np.empty(x.size * ctx.nranks)
    ctx.comm.Allgather(x, gathered)
    return gathered


def other_dtype_by_name(ctx, x):
    ctx.comm.Allreduce(sendbuf=x, recvbuf=np.empty(x.size, np.int32))


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (other_dtype, "TypeError: Allgather: the array to send has int64, the one to receive into float64"),
        (other_dtype_by_name, "TypeError: Allreduce: the array to send has int64, the one to receive into int32"),
    ],
)
def test_arrays_of_two_dtypes_are_refused(program, said):
    text = SAMPLE(program).text
    assert said in text and "make it with x.dtype" in text and f"in {program.__name__}: " in text
    assert "on_ranks.py" not in text


def into_itself(ctx, x):
    y = np.tile(x, ctx.nranks)
    ctx.comm.Allgatherv(y[: x.size], [y, [x.size] * ctx.nranks])
    return y


def a_column(ctx, x):
    ctx.comm.Allgather(np.stack([x, x], axis=1)[:, 0], np.empty(x.size * ctx.nranks, x.dtype))


def not_so_many_blocks(ctx, x):
    ctx.comm.Reduce_scatter_block(x, np.empty(2, x.dtype))


def counts_as_a_tuple(ctx, x):
    y = np.empty(x.size * ctx.nranks, x.dtype)
    ctx.comm.Iallgatherv(x, [y, (x.size,) * ctx.nranks]).Wait()
    return y


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (into_itself, "ValueError: Allgatherv: the array to send lies in the one to receive into"),
        (a_column, "ValueError: Allgather: the elements of an array do not lie one after another in memory"),
        (not_so_many_blocks, "which has 2 elements; the array to send has 3, not 4"),
        (counts_as_a_tuple, "TypeError: Iallgatherv: mpi4py takes a tuple of two numbers for a count and a disp"),
    ],
)
def test_buffers_that_mpi_would_not_refuse_in_words_are_refused(program, said):
    text = SAMPLE(program).text
    assert said in text and f"in {program.__name__}: " in text and "on_ranks.py" not in text


def test_a_call_that_does_not_exist_is_cited_at_the_line_of_the_program():
    text = SAMPLE(lambda ctx, x: ctx.comm.AllGather(x, x)).text
    assert "has no attribute 'AllGather'" in text and "ctx.comm.AllGather" in text
    assert "on_ranks.py" not in text and "__getattr__" not in text


def test_the_lines_of_a_failing_program_are_cited():
    text = SAMPLE(raises).text
    assert 'raise ValueError("too many")' in text and "rank 0 was waiting in Barrier" in text
    assert text == SAMPLE(raises).text


@pytest.mark.parametrize("exercise", [SAMPLE, *EXERCISES.values()], ids=["sample", *EXERCISES])
@pytest.mark.parametrize(
    "answer", [..., None, 3, "text", np.arange(3), float("nan"), [], len, object(), np.empty]
)
def test_what_is_no_program_gets_a_sentence(exercise, answer):
    verdict = exercise(answer)
    assert not verdict and verdict.text.startswith("no answer yet" if answer is ... else "not yet: ")
    assert " at 0x" not in verdict.text


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
def test_at_least_five_wrong_programs_are_told_apart(exercise):
    """What the rules expect of wrong programs; that such programs return it is tested beside each exercise."""
    assert len({m.name for m in exercise.mistakes}) == len({m.message for m in exercise.mistakes}) >= 5
    results = {
        m.name: [[np.asarray(r).tolist() for r in m.wrong(exercise.inputs(n))] for n in exercise.ranks]
        for m in exercise.mistakes
    }
    right = [[np.asarray(r).tolist() for r in exercise.expected(exercise.inputs(n))] for n in exercise.ranks]
    assert right not in results.values()
    assert all(a != b for a, b in itertools.combinations(results.values(), 2))

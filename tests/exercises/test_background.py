"""Notebook 00's exercises against real ranks, and its program exercise against wrong programs."""

import pytest

import collectlab as cl
from collectlab.exercises import background

seen = []


def run(program, **limits):
    return cl.run(program, ranks=4, device="cpu", **limits)


def test_what_is_expected_is_what_ranks_return():
    def note(ctx):
        seen.append(ctx.rank)
        return len(seen)

    with cl.launch(4, device="cpu") as ranks:
        tenfold = ranks.submit(lambda ctx: 10 * ctx.rank).wait().results
        total = ranks.submit(lambda ctx: ctx.comm.allreduce(ctx.rank)).wait().results
        lengths = ranks.submit(note).wait().results
    assert background.tenfold(tenfold)
    assert background.allreduce_of_ranks(total)
    assert background.length_on_each_rank(lengths)
    assert background.length_in_the_notebook(len(seen))


def test_what_becomes_of_the_other_three_when_rank_2_raises():
    def program(ctx):
        if ctx.rank == 2:
            raise RuntimeError("before the collective")
        return ctx.comm.allreduce(ctx.rank)

    report = run(program).report()
    assert "rank 2 raised RuntimeError" in report
    assert "ranks 0, 1 and 3 were waiting in allreduce" in report
    assert background.the_other_three("all three wait")


def test_the_status_of_a_hang():
    def program(ctx):
        return None if ctx.rank == 3 else ctx.comm.allreduce(ctx.rank)

    assert background.status_of_a_hang(run(program, timeout=1).status)


@pytest.mark.parametrize(
    "program",
    [
        lambda ctx, x: ctx.comm.allreduce(x) - x,
        lambda ctx, x: float(sum(n for rank, n in enumerate(ctx.comm.allgather(x)) if rank != ctx.rank)),
    ],
)
def test_right_programs_pass(program):
    verdict = background.sum_of_the_others(program)
    assert verdict, verdict
    assert verdict.text.startswith("right on 1, 3 and 4 ranks: ")


WRONG = {
    "with its own": lambda ctx, x: ctx.comm.allreduce(x),
    "its own": lambda ctx, x: x,
    "less the rank": lambda ctx, x: ctx.comm.allreduce(x) - ctx.rank,
    "wrong sign": lambda ctx, x: x - ctx.comm.allreduce(x),
    "own number for others": lambda ctx, x: x * (ctx.nranks - 1),
    "the others' ranks": lambda ctx, x: ctx.comm.allreduce(ctx.rank) - ctx.rank,
    "hangs": lambda ctx, x: ctx.comm.allreduce(x) - x if ctx.rank else x,
    "fails": lambda ctx, x: ctx.comm.all_reduce(x) - x,
    "kind": lambda ctx, x: print(ctx.comm.allreduce(x) - x),
    "unanswered": lambda ctx, x: ...,
    None: lambda ctx, x: ctx.comm.allreduce(x) - 5,  # right on rank 0 alone
}


def test_wrong_programs_are_each_told_what_they_do():
    verdicts = {name: background.sum_of_the_others(program) for name, program in WRONG.items()}
    assert {name: verdict.mistake for name, verdict in verdicts.items()} == {name: name for name in WRONG}
    assert not any(verdicts.values())
    assert len({verdict.text for verdict in verdicts.values()}) == len(WRONG)
    assert "Rank 1 was given 7 and returned 18: it is too large" in verdicts[None].text
    assert {mistake.name for mistake in background.sum_of_the_others.mistakes} <= set(WRONG)


def test_what_is_no_program_is_told_so():
    for junk in (None, ..., "x", float("nan"), object(), [], {}, 3j, [[...]]):
        verdict = background.sum_of_the_others(junk)
        assert not verdict and verdict.text.startswith(("not yet: ", "no answer yet: "))

"""Programs that a learner may write for notebook 03, on real ranks."""

import numpy as np
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


def ceil_blocks_cut_short(ctx, x):
    n = -(-x.size // ctx.nranks)
    return x[ctx.rank * n : (ctx.rank + 1) * n]


def the_rest_to_the_last(ctx, x):
    n = x.size // ctx.nranks
    return x[ctx.rank * n :] if ctx.rank == ctx.nranks - 1 else x[ctx.rank * n : (ctx.rank + 1) * n]


def the_rest_to_rank_0(ctx, x):
    n, over = divmod(x.size, ctx.nranks)
    return x[: n + over] if ctx.rank == 0 else x[over + n * ctx.rank : over + n * (ctx.rank + 1)]


def one_too_short(ctx, x):
    part = Partition.uneven(x.size, ctx.nranks).slice(ctx.rank)
    return x[part.start : part.stop - 1]


def stop_is_a_count(ctx, x):
    part = Partition.uneven(x.size, ctx.nranks)
    return x[part.displacements[ctx.rank] : part.counts[ctx.rank]]


def start_and_stop(ctx, x):
    part = Partition.uneven(x.size, ctx.nranks).slice(ctx.rank)
    return part.start, part.stop


def its_count(ctx, x):
    return Partition.uneven(x.size, ctx.nranks).counts[ctx.rank]


def all_counts(ctx, x):
    return Partition.uneven(x.size, ctx.nranks).counts


def extra_to_the_last_ranks(ctx, x):
    parts = np.split(x, np.cumsum(Partition.uneven(x.size, ctx.nranks).counts[::-1])[:-1])
    return parts[ctx.rank]


@pytest.mark.parametrize("program", (right, by_hand))
def test_right_programs_pass(program):
    assert ownership.slice_of_this_rank(program)


WRONG = (
    whole, always_the_first, from_the_back, dealt_out, the_rest_is_lost, two_ranks_only, ceil_blocks_cut_short,
    the_rest_to_the_last, the_rest_to_rank_0, one_too_short, stop_is_a_count, start_and_stop, its_count, all_counts,
)  # fmt: skip


@pytest.mark.parametrize("program", WRONG)
def test_wrong_programs_are_recognised_by_what_they_return(program):
    verdict = ownership.slice_of_this_rank(program)
    assert not verdict and verdict.mistake == program.__name__.replace("_", " ")


def test_every_mistake_has_such_a_program():
    names = {mistake.name for mistake in ownership.slice_of_this_rank.mistakes}
    assert names == {program.__name__.replace("_", " ") for program in WRONG}


def test_a_remainder_of_two_shows_who_takes_it():
    text = ownership.slice_of_this_rank(the_rest_to_rank_0).text
    assert text.startswith("not yet: right on 2 and 3 ranks, but on 4 rank 0 takes all that is left over")


def test_on_two_ranks_extra_elements_at_the_end_are_one_mistake():
    assert ownership.slice_of_this_rank(extra_to_the_last_ranks).mistake == "the rest to the last"


def test_the_slice_object_is_not_its_elements():
    verdict = ownership.slice_of_this_rank(
        lambda ctx, x: Partition.uneven(x.size, ctx.nranks).slice(ctx.rank)
    )
    assert verdict.mistake == "kind" and "that is a slice" in verdict.text


@pytest.mark.parametrize("answer", (slice(2, 4), range(2, 4), "2:4", "[2:4]", (2, 4)))
def test_a_slice_may_be_written_in_many_ways(answer):
    assert ownership.slice_after_reorder(answer)


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [(slice(0, 2), "as before"), ("4:6", "order read backwards"), (range(2, 2), "empty slice")],
)
def test_a_wrong_slice_is_recognised_in_many_ways(answer, mistake):
    verdict = ownership.slice_after_reorder(answer)
    assert not verdict and verdict.mistake == mistake


@pytest.mark.parametrize("exercise", (ownership.gathered_after_swap, ownership.shard_of_device_a))
def test_the_length_is_not_said_where_it_is_the_point(exercise):
    length = str(len(exercise.expected))
    for answer in (..., [7], [7] * 5):
        assert length not in exercise(answer).text
    assert "the length is not right" in exercise([7]).text
    assert length not in repr(exercise).partition("Answer with")[2]


def test_all_that_is_left_over_on_rank_0_is_a_mistake_with_a_name():
    assert ownership.uneven_counts([4, 2, 2, 2]).mistake == "the rest to rank 0"

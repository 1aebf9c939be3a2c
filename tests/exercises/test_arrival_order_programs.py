"""Programs that a learner may write for notebook 09, on real ranks; and the sums behind its questions."""

import itertools

import numpy as np
import pytest

from collectlab.exercises import arrival_order
from collectlab.exercises.arrival_order import place_by_rank


def arrivals(ctx, x, a):
    """As in the notebook."""
    for turn in range(ctx.nranks):
        sender = turn * a % ctx.nranks
        if ctx.rank == sender:
            for peer in range(ctx.nranks):
                if peer != sender:
                    ctx.comm.send((sender, x), peer)
            yield sender, x
        else:
            yield ctx.comm.recv()
        ctx.comm.barrier()


def gathering(place):
    """A program that puts each chunk where place(y, rank, source, chunk, turn) puts it."""

    def program(ctx, x):
        y = np.zeros(x.size * ctx.nranks, x.dtype)
        for turn, (source, chunk) in enumerate(arrivals(ctx, x, a=-1)):
            place(y, ctx.rank, source, chunk, turn)
        return y

    return program


def slot(y, chunk, number):
    return y[number * chunk.size : (number + 1) * chunk.size]


def right(y, rank, source, chunk, turn):
    slot(y, chunk, source)[:] = chunk


def by_reshape(y, rank, source, chunk, turn):
    y.reshape(-1, chunk.size)[source] = chunk


def appended(y, rank, source, chunk, turn):
    slot(y, chunk, turn)[:] = chunk


def nothing_placed(y, rank, source, chunk, turn):
    pass


def its_own_is_missing(y, rank, source, chunk, turn):
    if source != rank:
        right(y, rank, source, chunk, turn)


def its_own_only(y, rank, source, chunk, turn):
    if source == rank:
        y.reshape(-1, chunk.size)[:] = chunk


def all_in_slot_0(y, rank, source, chunk, turn):
    y[: chunk.size] = chunk


def from_the_back(y, rank, source, chunk, turn):
    y[::-1].reshape(-1, chunk.size)[source] = chunk[::-1]


def turned_round(y, rank, source, chunk, turn):
    slot(y, chunk, y.size // chunk.size - 1 - turn)[:] = chunk


def one_slot_further(y, rank, source, chunk, turn):
    slot(y, chunk, (source + 1) % (y.size // chunk.size))[:] = chunk


def seen_from_here(y, rank, source, chunk, turn):
    slot(y, chunk, (source - rank) % (y.size // chunk.size))[:] = chunk


def one_element_apart(y, rank, source, chunk, turn):
    y[source : source + chunk.size] = chunk


def dealt_out(y, rank, source, chunk, turn):
    y[source :: y.size // chunk.size] = chunk


def added(y, rank, source, chunk, turn):
    y[: chunk.size] += chunk


WRONG = (
    appended, nothing_placed, its_own_is_missing, its_own_only, all_in_slot_0, from_the_back, turned_round,
    one_slot_further, seen_from_here, one_element_apart, dealt_out, added,
)  # fmt: skip


@pytest.mark.parametrize("place", (right, by_reshape))
def test_right_programs_pass(place):
    assert place_by_rank(gathering(place))


def without_its_own(ctx, x):
    return np.concatenate([chunk for source, chunk in sorted(arrivals(ctx, x, a=-1)) if source != ctx.rank])


@pytest.mark.parametrize("place", WRONG)
def test_wrong_programs_are_recognised_by_what_they_return(place):
    verdict = place_by_rank(gathering(place))
    assert not verdict and verdict.mistake == place.__name__.replace("_", " ")


def test_every_mistake_has_such_a_program():
    names = {place.__name__.replace("_", " ") for place in WRONG} | {"its own is left out"}
    assert {m.name for m in place_by_rank.mistakes} == names
    assert place_by_rank(without_its_own).mistake == "its own is left out"


def sort_what_came(ctx, x):
    return np.sort(np.concatenate([chunk for _, chunk in arrivals(ctx, x, a=-1)]))


def by_dict(ctx, x):
    chunks = dict(arrivals(ctx, x, a=-1))
    return np.concatenate([chunks[rank] for rank in range(ctx.nranks)])


def values_of_the_dict(ctx, x):
    return np.concatenate(list(dict(arrivals(ctx, x, a=-1)).values()))


def library(ctx, x):
    return np.concatenate(ctx.comm.allgather(x))


def in_rank_order(place):
    """The line that is given was changed: a=1 in the place of a=-1."""

    def program(ctx, x):
        chunks = dict(arrivals(ctx, x, a=1))
        return np.concatenate([chunks[source] for source in place(chunks)])

    return program


@pytest.mark.parametrize("place", (list, sorted))
def test_chunks_that_come_in_rank_order_show_nothing(place):
    verdict = place_by_rank(in_rank_order(place))
    assert not verdict and verdict.mistake == "came in rank order" and "a=-1" in verdict.text


def test_all_chunks_may_be_on_their_way_at_once():
    def program(ctx, x):
        requests = [ctx.comm.isend((ctx.rank, x), peer) for peer in range(ctx.nranks)]
        chunks = dict(ctx.comm.recv() for _ in range(ctx.nranks))
        for request in requests:
            request.wait()
        return np.concatenate([chunks[source] for source in range(ctx.nranks)])

    assert place_by_rank(program)


def test_a_dict_by_source_is_as_good():
    assert place_by_rank(by_dict)


def gathered_and_told(ctx, x):
    return np.concatenate(ctx.comm.bcast(ctx.comm.gather(x)))


def with_a_request(ctx, x):
    y = np.empty(x.size * ctx.nranks, x.dtype)
    ctx.comm.Iallgather(x, y).Wait()
    return y


AROUND = (
    (sort_what_came, None), (library, "calls allgather"), (gathered_and_told, "calls gather"),
    (with_a_request, "calls Allgather"), (values_of_the_dict, "appended"),
)  # fmt: skip


@pytest.mark.parametrize(("program", "mistake"), AROUND)
def test_ways_around_the_exercise_do_not_pass(program, mistake):
    verdict = place_by_rank(program)
    assert not verdict and verdict.mistake == mistake


def test_the_answers_are_what_counting_gives():
    orbit = [0]
    while len(orbit) < 6:
        orbit.append((orbit[-1] + 3) % 8)
    assert arrival_order.residues.expected == orbit[1:]
    steps = []
    for m, a in ((8, 1), (8, 3), (8, 2), (8, 6), (12, 8)):
        steps.append(next(n for n in itertools.count(1) if n * a % m == 0))
    assert arrival_order.periods.expected == steps

"""Programs that a learner may write for notebook 04, simulated and on real ranks, and what they are told."""

import numpy as np
import pytest

import collectlab as cl
from collectlab.exercises import windows_and_signals
from collectlab.exercises.windows_and_signals import barrier_by_hand


def wait_for_all(ctx, signals, row, at_least):
    others = [peer for peer in range(ctx.nranks) if peer != ctx.rank]
    for peer in others:
        signals.notify(peer, row)
    for peer in others:
        signals.wait(peer, row, at_least)


def program(ctx, x, rows=(0, 1), counted=True, to=lambda rank, nranks: (rank + 1) % nranks):
    data, arrived = ctx.window("data", x.size, x.dtype), ctx.signals("arrived", rows=2)
    at_least = arrived.generation if counted else 1
    data.store(x)
    if rows[0] is not None:
        wait_for_all(ctx, arrived, rows[0], at_least)
    y = data.remote_load(to(ctx.rank, ctx.nranks))
    if rows[1] is not None:
        wait_for_all(ctx, arrived, rows[1], at_least)
    return y


def neighbours_only(ctx, x):
    data, arrived = ctx.window("data", x.size, x.dtype), ctx.signals("arrived", rows=2)
    left, right = (ctx.rank - 1) % ctx.nranks, (ctx.rank + 1) % ctx.nranks
    data.store(x)
    arrived.notify(left, 0)
    arrived.wait(right, 0, arrived.generation)
    y = data.remote_load(right)
    arrived.notify(right, 1)
    arrived.wait(left, 1, arrived.generation)
    return y


def pushed(ctx, x):
    data, arrived = ctx.window("data", x.size, x.dtype), ctx.signals("arrived", rows=2)
    data.remote_store((ctx.rank - 1) % ctx.nranks, x)
    wait_for_all(ctx, arrived, 0, arrived.generation)
    y = data.load()
    wait_for_all(ctx, arrived, 1, arrived.generation)
    return y


def hears_from_one(ctx, x):
    data, arrived = ctx.window("data", x.size, x.dtype), ctx.signals("arrived", rows=2)
    left, right = (ctx.rank - 1) % ctx.nranks, (ctx.rank + 1) % ctx.nranks
    data.store(x)
    arrived.notify(left, 0)
    arrived.wait(right, 0, arrived.generation)
    y = data.remote_load(right)
    arrived.notify(left, 1)
    arrived.wait(right, 1, arrived.generation)
    return y


def loads_at_the_number_of_a_peer(ctx, x):
    data, arrived = ctx.window("data", x.size, x.dtype), ctx.signals("arrived", rows=2)
    data.store(x)
    wait_for_all(ctx, arrived, 0, arrived.generation)
    y = data.load((ctx.rank + 1) % ctx.nranks)
    wait_for_all(ctx, arrived, 1, arrived.generation)
    return y


def ready_made(ctx, x):
    data, arrived = ctx.window("data", x.size, x.dtype), ctx.signals("arrived", rows=2)
    data.store(x)
    ctx.barrier(arrived, 0)
    y = data.remote_load((ctx.rank + 1) % ctx.nranks)
    ctx.barrier(arrived, 1)
    return y


def only_waits(ctx, x):
    arrived = ctx.signals("arrived", rows=2)
    for peer in range(ctx.nranks):
        arrived.wait(peer, 0, arrived.generation)
    return x


def summed(ctx, x):
    y = x.copy()
    data, arrived = ctx.window("data", x.size, x.dtype), ctx.signals("arrived", rows=2)
    data.store(x)
    wait_for_all(ctx, arrived, 0, arrived.generation)
    for peer in range(ctx.nranks):
        if peer != ctx.rank:
            y += data.remote_load(peer)
    wait_for_all(ctx, arrived, 1, arrived.generation)
    return y


def one_peer_too_many(ctx, x):
    arrived = ctx.signals("arrived", rows=2)
    for peer in range(1, ctx.nranks + 1):
        arrived.notify(peer, 0)
    return x


def waits_for_one_too_many(ctx, x):
    arrived = ctx.signals("arrived", rows=2)
    arrived.wait(ctx.nranks, 0, 1)
    return x


def third_row(ctx, x):
    return program(ctx, x, rows=(0, 2))


RIGHT = {"by hand": program, "neighbours only": neighbours_only, "pushed": pushed}
WRONG = {
    "nothing after the load": lambda ctx, x: program(ctx, x, rows=(0, None)),
    "met before its time": lambda ctx, x: program(ctx, x, counted=False),
    "not heard of": hears_from_one,
    "load for remote_load": loads_at_the_number_of_a_peer,
    "a missing barrier": lambda ctx, x: program(ctx, x, rows=(None, 1)),
    "unheard": only_waits,
    "no such rank": lambda ctx, x: program(ctx, x, to=lambda rank, nranks: rank + 1),
    "no such peer": one_peer_too_many,
    "no such row": third_row,
    "its own": lambda ctx, x: program(ctx, x, to=lambda rank, nranks: rank),
    "left": lambda ctx, x: program(ctx, x, to=lambda rank, nranks: (rank - 1) % nranks),
    "rank 0's": lambda ctx, x: program(ctx, x, to=lambda rank, nranks: 0),
    "sum": summed,
    "calls barrier": ready_made,
}


@pytest.mark.parametrize("right", RIGHT.values(), ids=RIGHT)
def test_right_programs_pass(right):
    verdict = barrier_by_hand(right)
    assert verdict and "whichever call it is" in verdict.text, verdict


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_programs_are_recognised_by_how_they_go_wrong(mistake):
    verdict = barrier_by_hand(WRONG[mistake])
    assert not verdict and verdict.mistake == mistake, verdict


def test_a_peer_that_is_waited_for_has_to_exist_too():
    assert barrier_by_hand(waits_for_one_too_many).mistake == "no such peer"


def test_one_row_for_both_barriers_is_met_before_its_time():
    verdict = barrier_by_hand(lambda ctx, x: program(ctx, x, rows=(0, 0)))
    assert verdict.mistake == "met before its time" and "a row of its own" in verdict.text


def test_every_mistake_has_its_program_and_its_message():
    names = [mistake.name for mistake in barrier_by_hand.mistakes]
    assert set(names) <= set(WRONG) and len({m.message for m in barrier_by_hand.mistakes}) == len(names) >= 5


def test_the_dots_are_asked_for():
    def dots(ctx, x):
        ...
        return x

    assert barrier_by_hand(dots).mistake == "unanswered"


def test_what_the_exercises_expect_is_what_runs_give():
    def own_slice(ctx):
        board = ctx.window("board", 6, np.int64)
        board.store(np.zeros(6, np.int64))
        board.store(np.full(2, ctx.rank + 1), cl.layout.Partition.equal(6, ctx.nranks).slice(ctx.rank))
        return board.load()

    def pull(ctx):
        board, ready = ctx.window("board", 4, np.int32), ctx.signals("ready", rows=1)
        if ctx.rank == 0:
            board.store(np.arange(4, dtype=np.int32))
            for peer in range(1, ctx.nranks):
                ready.notify(peer, 0)
        else:
            ready.wait(0, 0, 1)
            board.remote_load(0)

    def hand_on(ctx):
        word = ctx.signals("word", rows=2)
        if ctx.rank == 0:
            word.notify(1, 0)
        elif ctx.rank == 1:
            word.wait(0, 0, 1)
            word.notify(2, 1)
        else:
            word.wait(1, 0, 1)

    def five_calls(ctx):
        for _ in range(5):
            signals = ctx.signals("arrived", rows=3)
        return signals.generation

    assert windows_and_signals.part_of_rank_2(cl.simulate(own_slice, ranks=3).results[2])
    assert windows_and_signals.traffic_of_a_pull(cl.simulate(pull, ranks=3).traffic)
    assert list(cl.simulate(hand_on, ranks=3).stuck) == [2] and windows_and_signals.who_waits("only rank 2")
    assert windows_and_signals.asked_in_the_fifth_call(cl.simulate(five_calls, ranks=2).results[0])


def test_a_second_barrier_on_the_row_is_passed_at_once():
    def twice(ctx):
        arrived = ctx.signals("arrived", rows=1)
        arrived.notify(1 - ctx.rank, 0)
        for _ in range(1 + ctx.rank):  # rank 0 never reaches the second barrier
            arrived.wait(1 - ctx.rank, 0, 1)

    assert cl.simulate(twice, ranks=2).ok and windows_and_signals.second_wait("at once")

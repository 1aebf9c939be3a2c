"""Every signal discipline keeps repeated calls apart; each one without its generation does not."""

import numpy as np
import pytest

import collectlab as cl
from collectlab.kernels import disciplines
from collectlab.kernels.disciplines import DISCIPLINES, all_reduce, all_reduce_cost

SCHEDULES = (None, 1, 2, 3)


def _inputs(nranks, count, dtype=np.int64):
    return [(np.arange(count) + 3 * rank).astype(dtype) for rank in range(nranks)]


def _four(discipline):
    def four(ctx, x):
        return [all_reduce(ctx, x * k, discipline=discipline) for k in (1, 2, 3, 4)]

    return four


@pytest.mark.parametrize("nranks", (1, 2, 3, 5))
@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_repeated_calls_are_right_and_race_free_under_every_discipline(discipline, nranks):
    for count, dtype, schedule in [(n, d, s) for n in (0, 1, 5) for d in (np.int64, np.float16) for s in SCHEDULES]:
        xs = _inputs(nranks, count, dtype)
        run = cl.simulate(_four(discipline), cl.per_rank(xs), ranks=nranks, schedule=schedule)
        assert run.ok, run.report()
        assert run.trace.races() == []
        for ys in run.results:
            np.testing.assert_array_equal(ys, [k * sum(xs) for k in (1, 2, 3, 4)])


@pytest.mark.parametrize("nranks", (1, 2, 3, 8))
@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_a_call_moves_what_its_card_says(discipline, nranks):
    for count, dtype in [(n, d) for n in (0, 1, 5) for d in (np.int64, np.float16, np.float32)]:
        xs = _inputs(nranks, count, dtype)
        run = cl.simulate(all_reduce, cl.per_rank(xs), "max", discipline, ranks=nranks)
        np.testing.assert_array_equal(run.results[0], np.max(xs, axis=0))
        for rank in range(nranks):
            card = all_reduce_cost(nranks, count, xs[0].itemsize, rank, discipline)
            assert run.trace.measured(rank) == card, (count, dtype)


@pytest.mark.parametrize("apart", ("", "1"), ids=("one host", "one-sided"))
@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_many_calls_on_real_ranks(discipline, apart, monkeypatch):
    monkeypatch.setenv("COLLECTLAB_RANKS_PER_HOST", apart)

    def many(ctx, x):
        return [all_reduce(ctx, x + k, discipline=discipline) for k in range(60)]

    xs = _inputs(3, 300, np.float32)
    run = cl.run(many, cl.per_rank(xs), ranks=3, device="cpu")
    assert run.ok, run.report()
    for ys in run.results:
        np.testing.assert_array_equal(ys, [sum(xs) + 3 * k for k in range(60)])
    assert run.trace.races() == []


def test_calls_of_several_lengths_may_alternate():
    def program(ctx, discipline):
        return [all_reduce(ctx, np.arange(n), discipline=discipline).tolist() for n in (5, 3, 3, 5, 3)]

    for discipline in DISCIPLINES:
        for schedule in SCHEDULES:
            run = cl.simulate(program, discipline, ranks=2, schedule=schedule)
            assert run.ok, run.report()
            long, short = [0, 2, 4, 6, 8], [0, 2, 4]
            assert run.results[1] == [long, short, short, long, short]


def fixed_target(ctx):
    """One row, and every wait asks for 1."""
    row = ctx.signals("fixed", rows=1)
    return disciplines._nothing, *[lambda: disciplines._meet(ctx, row, 0, 1)] * 2


def two_rows_and_a_fixed_target(ctx):
    """Right in the first call, not in the second."""
    rows = ctx.signals("two", rows=2)
    return disciplines._nothing, *[lambda row=row: disciplines._meet(ctx, rows, row, 1) for row in (0, 1)]


def nobody_says_that_it_has_read(ctx):
    before, _, _ = disciplines.rising_generation(ctx)
    row = ctx.signals("once", rows=1)
    return before, lambda: disciplines._meet(ctx, row, 0, row.generation), disciplines._nothing


def credits_nobody_asks_for(ctx):
    _, stored, have_read = disciplines.credits(ctx)
    return disciplines._nothing, stored, have_read


BROKEN = (fixed_target, two_rows_and_a_fixed_target, nobody_says_that_it_has_read, credits_nobody_asks_for)


@pytest.mark.parametrize("nranks", (2, 3))
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_discipline_without_its_generation_races_in_every_run_and_is_wrong_in_some(broken, nranks, monkeypatch):
    monkeypatch.setitem(DISCIPLINES, "broken", broken)
    xs, wrong = _inputs(nranks, 4), 0
    for schedule in range(40):
        run = cl.simulate(_four("broken"), cl.per_rank(xs), ranks=nranks, schedule=schedule)
        assert run.trace.races(), schedule
        wrong += any(not np.array_equal(ys, [k * sum(xs) for k in (1, 2, 3, 4)]) for ys in run.results)
    assert wrong


def test_packets_in_one_slot_are_overwritten_before_they_are_taken():
    def program(ctx, slots):
        packets, peer = ctx.packets("p", slots, 2, np.int32), 1 - ctx.rank
        seen = []
        for call in range(4):
            slot, lap = call % slots, call // slots + 1
            packets.post(peer, slot, np.full(2, call, np.int32), lap)
            seen.append(packets.take(peer, slot, lap).tolist())
        return seen

    def races(slots):
        return [cl.simulate(program, slots, ranks=2, schedule=s).trace.races() for s in range(10)]

    assert not any(races(2)) and all(races(1))
    run = cl.simulate(program, 2, ranks=2, schedule=3)
    assert run.results[0] == [[k, k] for k in range(4)]


def test_packets_are_known_by_their_lap_and_not_by_their_number():
    def program(ctx, posted, taken):
        packets, peer = ctx.packets("p", 1, 2, np.int32), 1 - ctx.rank
        for lap in posted:
            packets.post(peer, 0, np.full(2, lap, np.int32), lap)
        return packets.take(peer, 0, taken).tolist()

    run = cl.simulate(program, [5], 5, ranks=2)  # as on real ranks
    assert run.results == [[5, 5]] * 2 and run.trace.races() == []
    for posted in ([1, 1], [1, 3]):
        stuck = cl.simulate(program, posted, 2, ranks=2).stuck
        assert stuck == {rank: (1 - rank, "p[1 x 2 int32]", 0, 2) for rank in range(2)}


@pytest.mark.parametrize(
    ("act", "said"),
    (
        (lambda p: p.post(1, 0, np.zeros(3, np.int32), 1), "2 elements of int32 are accepted; the value is (3,)"),
        (lambda p: p.post(1, 0, np.zeros(2, np.int64), 1), "is (2,) of int64"),
        (lambda p: p.post(2, 0, np.zeros(2, np.int32), 1), "peers are ranks 0 to 1, not 2"),
        (lambda p: p.take(1, 5, 1), "slots are 0 to 1, not 5"),
    ),
)
def test_packets_refuse_what_does_not_fit(act, said):
    run = cl.simulate(lambda ctx: act(ctx.packets("p", 2, 2, np.int32)), ranks=2)
    assert said in run.report() and 'packets "p[' in run.report()


def test_an_unknown_discipline_is_named():
    run = cl.simulate(all_reduce, np.ones(2), "sum", "hope", ranks=2)
    assert "discipline='hope'" in run.report() and "credits" in run.report()

"""A witness is a schedule in which a race changes a result; its number replays that, and its step shows where."""

import numpy as np
import pytest

import collectlab as cl
from collectlab.explore import every_schedule, witness
from collectlab.fabric.simulated import IDLE, delayed, delays


def two_phases(reused):
    """Two phases by hand, with the row of the first barrier for the second one too, or with a row for each."""

    def program(ctx, x):
        n = x.size // ctx.nranks
        mine = slice(ctx.rank * n, (ctx.rank + 1) * n)
        data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
        rows = ctx.signals("rows", rows=2)
        data.store(x)
        ctx.barrier(rows, 0)
        result.store(sum(data.remote_load(peer, mine) for peer in range(ctx.nranks)), mine)
        ctx.barrier(rows, 0 if reused else 1)
        return np.concatenate([result.remote_load(c, slice(c * n, (c + 1) * n)) for c in range(ctx.nranks)])

    return program


def inputs(nranks):
    """Vectors of which every rank's chunk of the sum is another."""
    return [np.arange(2 * nranks) * 10**rank for rank in range(nranks)]


@pytest.mark.parametrize("nranks", (2, 3, 4, 6))
def test_every_race_of_a_reused_row_has_a_witness_that_replays(nranks):
    program, xs = two_phases(reused=True), cl.per_rank(inputs(nranks))
    total = sum(inputs(nranks))
    races = cl.simulate(program, xs, ranks=nranks).trace.races()
    assert len(races) == nranks * (nranks - 1)
    for race in races[:4] + races[-2:]:
        found = witness(program, xs, ranks=nranks, race=race)
        assert found and found.tried <= 150
        run = cl.simulate(program, xs, ranks=nranks, schedule=found.schedule)
        np.testing.assert_array_equal(run.results[found.rank], found.holds)
        np.testing.assert_array_equal(found.instead, total)
        assert not np.array_equal(found.holds, total)
        loads, stores = run.trace.events[found.place], found.late
        assert (loads.kind, stores.kind) == ("load", "store")
        assert {loads.rank, stores.rank} == {race.first.rank, race.second.rank}
        assert (loads.line, stores.line) == (race.second.line, race.first.line)
        side = (stores.rank, "store", stores.line)
        where = [i for i, e in enumerate(run.trace.events) if (e.rank, e.kind, e.line) == side]
        assert where[0] > found.place, "the store comes first after all"


def test_what_a_witness_says():
    program, xs = two_phases(reused=True), cl.per_rank(inputs(2))
    line = program.__code__.co_firstlineno + 7
    text = str(witness(program, xs, ranks=2, expected=[sum(inputs(2))] * 2))
    first, second, third = text.splitlines()
    assert first.startswith("a schedule in which it does harm: number -")
    assert second.startswith("    event ") and second.endswith(f"stores them at line {line}")
    assert "then ends with memory that nobody has written in elements " in third and " instead of [" in third
    assert '"result" before rank' in second


def test_a_program_without_a_race_needs_no_witness():
    assert witness(two_phases(reused=False), cl.per_rank(inputs(3)), ranks=3) is None


def harmless(ctx):
    """Both ranks store the same number; whoever is last, the sum is the same."""
    window, rows = ctx.window("w", 1, np.int64), ctx.signals("s", rows=1)
    window.remote_store(0, np.array([7]))
    ctx.barrier(rows, 0)
    return int(window.remote_load(0)[0])


def test_a_race_that_does_no_harm_is_said_to_do_none_and_does_none():
    found = witness(harmless, ranks=2, tries=60)
    assert not found and found.schedule is None and found.tried == 60
    assert str(found) == "none of 60 schedules tried changed the result: the race is there, and did no harm"
    assert every_schedule(harmless, ranks=2, reduced=False).one


def needs_two(ctx):
    """Wrong only when rank 1 stores between the loads of rank 0: too late, and too early, do no harm."""
    window, rows = ctx.window("w", 1, np.int64), ctx.signals("s", rows=2)
    if ctx.rank == 0:
        window.store(np.array([1]))
        rows.notify(1, 0)
        seen = [int(window.load()[0]) for _ in range(3)]
        rows.wait(1, 1, 1)
        return "torn" if seen == [1, 2, 1] else "whole"
    rows.wait(0, 0, 1)
    window.remote_store(0, np.array([2]))
    window.remote_store(0, np.array([1]))
    rows.notify(0, 1)
    return None


def test_a_harm_that_takes_two_delays_is_found():
    found = witness(needs_two, ranks=2, expected=["whole", None])
    assert found and found.holds == "torn" and len(delays(found.schedule)) >= 2
    assert cl.simulate(needs_two, ranks=2, schedule=found.schedule).results[0] == "torn"
    kinds = {run.results[0] for run in every_schedule(needs_two, ranks=2).outcomes}
    assert kinds == {"torn", "whole"}


def test_a_rank_that_only_raises_or_waits_for_ever_in_some_schedules_is_harm_too():
    def program(ctx, how):
        window, rows = ctx.window("w", 1, np.int64), ctx.signals("s", rows=1)
        if ctx.rank == 0:
            window.store(np.array([1]))
        elif window.remote_load(0)[0] != 1:
            if how == "raises":
                raise ValueError("too early")
            rows.wait(0, 0, 1)

    found = witness(program, "raises", ranks=2, expected=[None, None])
    assert found.rank == 1 and "rank 1 then raises ValueError: too early instead of going on" in str(found)
    found = witness(program, "waits", ranks=2, expected=[None, None])
    assert found.rank == 1 and "rank 1 then waits for ever instead of going on" in str(found)


def test_numbers_of_delays_are_read_as_they_are_written():
    rng = np.random.default_rng(0)
    for _ in range(500):
        steps = sorted(rng.integers(1, rng.choice([5, 40, 3000]), rng.integers(1, 6)).tolist())
        assert delays(delayed(steps)) == steps
    assert (delayed([23]), delayed([23, 27]), delayed([23, 23]), delayed([])) == (-23, -23004, -23000, None)


def test_a_delay_sends_the_running_rank_to_the_end_of_the_queue():
    def program(ctx):
        window = ctx.window("w", 1, np.int64)
        for _ in range(3):
            window.load()

    def order(schedule):
        return [event.rank for event in cl.simulate(program, ranks=3, schedule=schedule).trace.events]

    assert order(None) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert order(-2) == [0, 1, 1, 1, 2, 2, 2, 0, 0]
    assert order(-2001) == [0, 1, 2, 2, 2, 0, 0, 1, 1]
    assert order(-1000) == [2, 2, 2, 0, 0, 0, 1, 1, 1]


def test_a_loop_that_waits_for_a_store_goes_on_when_it_comes_and_is_given_up_when_it_does_not():
    def program(ctx, comes):
        window, rows = ctx.window("w", 1, np.int64), ctx.signals("s", rows=1)
        if ctx.rank == 0:
            while window.load()[0] != 5:
                pass
        elif comes:
            window.remote_store(0, np.array([5]))
        ctx.barrier(rows, 0)

    for schedule in (None, 3, -4):
        assert cl.simulate(program, True, ranks=2, schedule=schedule).ok
    report = cl.simulate(program, False, ranks=2).report()
    assert "rank 0 raised RuntimeError" in report and "waits in a loop for a value that no rank stores" in report


def polled(ctx):
    """Everyone waits, in a loop, until its left neighbour has come to the very phase that it is in itself."""
    phase = ctx.window("phase", 1, np.int64)
    phase.store(np.array([0]))
    ctx.barrier(ctx.signals("s", rows=1), 0)
    for number in (1, 2):
        phase.store(np.array([number]))
        while phase.remote_load((ctx.rank - 1) % ctx.nranks)[0] != number:
            pass


@pytest.mark.parametrize("nranks", (2, 3))
def test_a_loop_that_misses_its_value_is_the_harm_and_no_further_schedule_is_tried(nranks):
    """A phase that has passed is never seen; the tries are cut short, and the replay is not."""
    found = witness(polled, ranks=nranks, race=cl.simulate(polled, ranks=nranks, schedule=1).trace.races()[0])
    assert found and found.tried <= 10
    assert f"rank {found.rank} then never comes back (it waits in a loop for a value" in str(found)
    run = cl.simulate(polled, ranks=nranks, schedule=found.schedule)
    assert f"{IDLE:,} accesses have been made" in str(run.errors[found.rank]) == str(found.holds)
    assert run.trace.events[found.place].line == found.event.line


def test_looks_in_a_loop_are_not_cut_short_where_the_value_comes():
    """One rank makes many steps, alone and without a notification, before it stores what the others wait for."""

    def program(ctx, steps):
        window, own = ctx.window("w", 1, np.int64), ctx.window("own", 1, np.int64)
        if ctx.rank == 0:
            for _ in range(steps):
                own.load()
            window.store(np.array([5]))
        else:
            while window.remote_load(0)[0] != 5:
                pass

    assert not witness(program, 2_000, ranks=3, tries=4)


def test_where_thousands_of_accesses_race_the_first_schedule_that_does_harm_is_shown():
    """To find the one that turns the fewest round would take a run, and all of its pairs, for each of twenty more."""

    def program(ctx, rounds):
        window = ctx.window("w", 1, np.int64)
        for number in range(rounds):
            window.store([number])
            total = sum(int(window.remote_load(peer)[0]) for peer in range(ctx.nranks))
        return total

    few, many = (witness(program, rounds, ranks=3) for rounds in (3, 30))
    assert few and many and many.tried < few.tried <= 22
    run = cl.simulate(program, 30, ranks=3, schedule=many.schedule)
    assert run.results[many.rank] == many.holds != many.instead

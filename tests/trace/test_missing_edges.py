"""Which access a race means to come first, and which circle a deadlock has, where a simpler rule would be wrong."""

import numpy as np

import collectlab as cl
from collectlab.trace import deadlock


def test_a_load_of_what_nobody_else_has_stored_means_the_store_first_however_early_its_rank_comes_to_it():
    def program(ctx):
        window, rows = ctx.window("w", 1, np.int64), ctx.signals("s", rows=1)
        if ctx.rank == 0:
            for _ in range(3):
                rows.notify(0, 0)
            window.store(np.ones(1, np.int64))
        else:
            window.remote_load(0)

    for schedule in (None, -1, 5):
        (race,) = cl.simulate(program, ranks=2, schedule=schedule).trace.races()
        assert (race.first.kind, race.second.kind, race.steps) == ("store", "load", (3, 0))


def test_of_a_load_and_a_store_in_the_same_step_of_their_ranks_the_store_is_meant_to_come_first():
    def program(ctx):
        window, rows = ctx.window("w", 1, np.int64), ctx.signals("s", rows=1)
        if ctx.rank == 0:
            window.store(np.ones(1, np.int64))
            rows.notify(1, 0)
            window.store(np.ones(1, np.int64))
        else:
            rows.wait(0, 0, 1)
            window.load()
            window.remote_load(0)

    for schedule in (None, -1, 5):
        (race,) = cl.simulate(program, ranks=2, schedule=schedule).trace.races()
        assert (race.first.kind, race.second.kind, race.steps) == ("store", "load", (2, 2))


def test_ranks_that_store_to_the_same_elements_in_turn_are_not_told_to_keep_apart():
    def program(ctx):
        window, rows = ctx.window("w", 1, np.int64), ctx.signals("s", rows=2)
        if ctx.rank == 0:
            window.store(np.ones(1, np.int64))
            rows.notify(1, 0)
            rows.wait(1, 1, 1)
            window.store(np.ones(1, np.int64))
        else:
            rows.wait(0, 0, 1)
            window.remote_store(0, np.ones(1, np.int64))
            rows.notify(0, 1)
            window.remote_load(0)

    (race,) = cl.simulate(program, ranks=2).trace.races()
    assert {race.first.kind, race.second.kind} == {"store", "load"} and "elements of its own" not in race.mend


def test_a_circle_is_seen_through_any_rank_that_is_missing_in_a_barrier():
    def program(ctx):
        rows = ctx.signals("s", rows=2)
        if ctx.rank == 0:
            ctx.barrier(rows, 0)  # stands at rank 1, which is over, and would wait for rank 2 as well
        elif ctx.rank == 2:
            rows.wait(0, 1, 1)

    run = cl.simulate(program, ranks=3)
    assert run.trace.waiting[0][0].peer == 1
    assert "the circle: 0 -> 2 -> 0" in deadlock.explain(run.trace, run.ends)

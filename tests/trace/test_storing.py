"""A store that is computed in place, views that cannot be written, and places that are looked up only once."""

import numpy as np
import pytest

import collectlab as cl


def one_rank(program):
    """The run of `program(ctx, window)` on one simulated rank, with a window of 6 whole numbers."""
    return cl.simulate(lambda ctx: program(ctx, ctx.window("w", 6, np.int64)), ranks=1)


def test_storing_is_one_store_that_is_noted_at_the_end_of_its_block():
    def program(ctx, window):
        window.store(np.zeros(6, np.int64))
        with window.storing(slice(1, 4)) as part:
            part[:] = window.remote_view(0, slice(0, 3)) + 7
        return window.load()

    run = one_rank(program)
    assert run.results[0].tolist() == [0, 7, 7, 7, 0, 0]
    steps = [(event.kind, event.elements, event.nbytes) for event in run.trace.events]
    stored = [("store", range(6), 48), ("load", range(3), 24), ("store", range(1, 4), 24), ("load", range(6), 48)]
    assert steps == stored
    block = run.trace.events[2]
    assert block.file == __file__


def test_a_block_that_raises_stores_nothing():
    def program(ctx, window):
        window.store(np.zeros(6, np.int64))
        try:
            with window.storing() as part:
                part[:] = 5
                raise KeyError
        except KeyError:
            return window.load()

    run = one_rank(program)
    assert run.results[0].tolist() == [0] * 6
    assert [event.kind for event in run.trace.events] == ["store", "load"]


def test_storing_outside_of_the_window_names_the_slice():
    def program(ctx, window):
        with window.storing(slice(4, 9)):
            pass

    assert 'window "w".storing(at=4:9): 4:9 leaves the 6 elements' in one_rank(program).report()


def test_a_store_by_storing_is_found_in_a_race():
    def program(ctx):
        window = ctx.window("w", 2, np.int64)
        if ctx.rank == 0:
            with window.storing() as part:
                part[:] = 1
        else:
            window.remote_load(0)

    (race,) = cl.simulate(program, ranks=2).trace.races()
    assert {race.first.kind, race.second.kind} == {"store", "load"}


def test_what_a_view_shows_cannot_be_written_and_changing_its_shape_changes_no_other_view():
    def program(ctx, window):
        window.store(np.arange(6))
        view = window.remote_view(0, slice(0, 4))
        view.shape = (2, 2)
        with pytest.raises(ValueError, match="read-only"):
            view[0, 0] = 1
        return window.remote_view(0, slice(0, 4)).copy()

    run = one_rank(program)
    assert run.ok, run.report()
    assert run.results[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("at", (slice(0, 4.0), slice(0.0, 4), slice(0, 4, 1.0)))
def test_a_slice_that_is_no_slice_of_whole_numbers_stays_wrong_after_a_right_one(at):
    def program(ctx, window):
        window.store(np.arange(6))
        window.load(slice(0, 4))
        window.load(at)

    run = one_rank(program)
    assert not run.ok and 'window "w".load(at=0' in run.report()


def test_a_peer_that_is_no_whole_number_stays_wrong_after_a_right_one():
    def program(ctx, window):
        window.store(np.arange(6))
        window.remote_load(0, slice(0, 4))
        window.remote_load(0.0, slice(0, 4))

    assert "remote_load(peer=0.0, at=0:4): peers are ranks 0 to 0" in one_rank(program).report()

"""Each kind of race: which edge is said to be missing, what is proposed, and that the proposal mends it."""

import re

import numpy as np
import pytest

import collectlab as cl


def meet(ctx, rows, row, target):
    """A barrier by hand."""
    peers = [peer for peer in range(ctx.nranks) if peer != ctx.rank]
    for peer in peers:
        rows.notify(peer, row)
    for peer in peers:
        rows.wait(peer, row, target)


def window_and_rows(ctx):
    """What every program here begins with."""
    return ctx.window("w", 1, np.int64), ctx.signals("s", rows=3)


def one():
    """What is stored."""
    return np.ones(1, np.int64)


def row_reused_by_hand(ctx, mended):
    w, rows = window_and_rows(ctx)
    meet(ctx, rows, 0, 1)
    w.store(one())
    meet(ctx, rows, 0, 2 if mended else 1)
    w.remote_load(1 - ctx.rank)


def row_reused_by_a_barrier(ctx, mended):
    w, rows = window_and_rows(ctx)
    ctx.barrier(rows, 0)
    w.store(one())
    ctx.barrier(rows, 1 if mended else 0)
    w.remote_load(1 - ctx.rank)


def barrier_in_a_helper(ctx, mended):
    def sync(rows, row):
        ctx.barrier(rows, row)

    w, rows = window_and_rows(ctx)
    sync(rows, 0)
    w.store(one())
    sync(rows, 1 if mended else 0)
    w.remote_load(1 - ctx.rank)


def barrier_in_a_helper_twice(ctx, mended):
    def sync(rows, row):
        ctx.barrier(rows, row)

    for _ in range(2):
        w, rows = window_and_rows(ctx)
        w.store(one())
        sync(rows, 0)
        w.remote_load(1 - ctx.rank)
        sync(rows, 1 if mended else 0)


def wait_for_nothing(ctx, mended):
    w, rows = window_and_rows(ctx)
    w.store(one())
    meet(ctx, rows, 0, 1 if mended else 0)
    w.remote_load(1 - ctx.rank)


def notified_too_early(ctx, mended):
    w, rows = window_and_rows(ctx)
    if not mended:
        rows.notify(1 - ctx.rank, 0)
    w.store(one())
    if mended:
        rows.notify(1 - ctx.rank, 0)
    rows.wait(1 - ctx.rank, 0, 1)
    w.remote_load(1 - ctx.rank)


def no_barrier_between_calls(ctx, mended):
    for _ in range(2):
        w, rows = window_and_rows(ctx)
        w.store(one())
        ctx.barrier(rows, 0)
        w.remote_load(1 - ctx.rank)
        if mended:
            ctx.barrier(rows, 1)


def own_notification(ctx, mended):
    w, rows = window_and_rows(ctx)
    w.store(one())
    for peer in range(ctx.nranks):
        rows.notify(peer, 0)
    for peer in [1 - ctx.rank] if mended else [ctx.rank]:
        rows.wait(peer, 0, 1)
    w.remote_load(1 - ctx.rank)


def rows_that_do_not_match(ctx, mended):
    w, rows = window_and_rows(ctx)
    rows.notify(1 - ctx.rank, 0)
    w.store(one())
    rows.notify(1 - ctx.rank, 1)
    rows.wait(1 - ctx.rank, 1 if mended else 0, 1)
    w.remote_load(1 - ctx.rank)


def fixed_target_in_the_second_call(ctx, mended):
    for _ in range(2):
        w, rows = window_and_rows(ctx)
        w.store(one())
        meet(ctx, rows, 0, rows.generation if mended else 1)
        w.remote_load(1 - ctx.rank)
        meet(ctx, rows, 1, rows.generation)


def one_row_for_all_rounds(ctx, mended):
    w, rows = window_and_rows(ctx)
    w.store(one())
    for step in range(3):
        meet(ctx, rows, 0, 2 * step + 1)
        w.remote_load(1 - ctx.rank)
        meet(ctx, rows, 1, step + 1 if mended else 1)
        w.store(one())
        meet(ctx, rows, 0, 2 * step + 2)


def signals_kept_from_the_first_call(ctx, mended):
    w, rows = window_and_rows(ctx)
    for call in range(2):
        if mended and call:
            w, rows = window_and_rows(ctx)
        w.store(one())
        ctx.barrier(rows, 0)
        w.remote_load(1 - ctx.rank)
        ctx.barrier(rows, 1)


def signals_kept_while_others_are_asked_for_anew(ctx, mended):
    w, rows = window_and_rows(ctx)
    for call in range(2):
        if mended and call:
            w, rows = window_and_rows(ctx)
        w.store(one())
        ctx.barrier(rows, 0)
        w.remote_load(1 - ctx.rank)
        ctx.barrier(ctx.signals("others", rows=1), 0)


def two_stores(ctx, mended):
    w = ctx.window("w", 2, np.int64)
    w.remote_store(0, one(), slice(ctx.rank, ctx.rank + 1) if mended else slice(0, 1))


def load_add_store(ctx, mended):
    w, rows = ctx.window("w", 2, np.int64), ctx.signals("s", rows=1)
    if ctx.rank == 0:
        w.store(np.zeros(2, np.int64))
    ctx.barrier(rows, 0)
    at = slice(ctx.rank, ctx.rank + 1) if mended else slice(0, 1)
    w.remote_store(0, w.remote_load(0, at) + 1, at)


def no_signal(ctx, mended):
    w, rows = window_and_rows(ctx)
    if ctx.rank == 0:
        w.store(one())
        if mended:
            rows.notify(1, 0)
    else:
        if mended:
            rows.wait(0, 0, 1)
        w.remote_load(0)


def awaited_too_late(ctx, mended):
    w, rows = window_and_rows(ctx)
    w.store(one())
    rows.notify(1 - ctx.rank, 0)
    if mended:
        rows.wait(1 - ctx.rank, 0, 1)
    w.remote_load(1 - ctx.rank)
    if not mended:
        rows.wait(1 - ctx.rank, 0, 1)


def stored_again_by_the_slower(ctx, mended):
    """The barrier tells of the store: it cannot be moved up before that, although it would order these two."""
    for _ in range(2):
        w, rows = window_and_rows(ctx)
        if ctx.rank == 0:
            w.store(one())
        ctx.barrier(rows, 0)
        for _ in range(4 if ctx.rank == 0 else 1):
            w.remote_load(0)
        if mended:
            ctx.barrier(rows, 1)


KINDS = {
    row_reused_by_hand: (r"asks for 1, and .* already gave it", r"one more each time the row is used \(here 2\)"),
    row_reused_by_a_barrier: (r"the barrier on row 0 .* already gave it", "give the second barrier a row of its own"),
    barrier_in_a_helper: ("already gave it", "mend: give each barrier of a call a row of its own$"),
    barrier_in_a_helper_twice: ("already gave it", "mend: give each barrier of a call a row of its own$"),
    wait_for_nothing: ("asks for 0, which is so from the start", "let that wait ask for 1"),
    notified_too_early: ("already gave it", "notify later: move the notify at line {3} below"),
    no_barrier_between_calls: ("already gave it", "loads .line {5}. and before rank . stores .line {3}. again"),
    stored_again_by_the_slower: ("already gave it", "loads .line {8}. and before rank 0 stores .line {5}. again"),
    own_notification: ("for its own notification", "wait for rank . on row 0, which rank . notifies at line {4}"),
    rows_that_do_not_match: ("what it notifies afterwards is row 1 .line {4}.", "let rank . wait on row 1"),
    fixed_target_in_the_second_call: ("asks for 1", r"ask for signals.generation, .*\(here 2\)"),
    one_row_for_all_rounds: ("asks for 1", r"one more each time the row is used \(here 2\)"),
    signals_kept_from_the_first_call: ("asks for 1", "ask for the signals anew in each call"),
    signals_kept_while_others_are_asked_for_anew: ("asks for 1", "ask for the signals anew in each call"),
    two_stores: ("waits for no signal", "elements of its own to store to: of two stores to one element, one is lost"),
    load_add_store: ("", "elements of its own to store to"),
    no_signal: ("waits for no signal of rank 0", "a signal: rank 0 notifies rank 1 after it stores .line {3}."),
    awaited_too_late: ("waits for no signal", "move the wait at line {8} up, before rank . loads .line {6}."),
}


@pytest.mark.parametrize("program", KINDS)
@pytest.mark.parametrize("schedule", (None, 1, 2, 3, -4))
def test_the_mend_fits_the_race_and_mends_it(program, schedule):
    races = cl.simulate(program, False, ranks=2, schedule=schedule).trace.races()
    first = program.__code__.co_firstlineno
    why, mend = (re.sub(r"\{(\d+)\}", lambda at: str(first + int(at[1])), text) for text in KINDS[program])
    said = [(race.why, f"mend: {race.mend}") for race in races]
    assert any(re.search(why, one) and re.search(mend, other) for one, other in said), said
    for race in races:
        assert str(race).endswith(f"mend: {race.mend}") and f"nothing orders the two: {race.why}" in str(race)
    mended = cl.simulate(program, True, ranks=2, schedule=schedule)
    assert mended.ok and mended.trace.races() == [], mended.report()


@pytest.mark.parametrize("program", KINDS)
def test_what_a_race_says_does_not_depend_on_the_schedule(program):
    """The order that the program means is named, whichever access was first by luck."""
    said = set()
    for schedule in (None, *range(12), -3, -7):
        races = cl.simulate(program, False, ranks=2, schedule=schedule).trace.races()
        said.add(frozenset((race.key, race.first.kind, race.first.rank) for race in races[:1]))
    kinds = {side[1:] for group in said for side in group}
    if program not in (two_stores, load_add_store):
        assert len({kind for kind, _ in kinds}) == 1, said

"""What is said about waits that nothing will satisfy."""

import random
from itertools import pairwise

import pytest

import collectlab as cl
from collectlab.trace import Trace, deadlock
from collectlab.trace.events import WAIT, Event


def _report(program, ranks):
    run = cl.simulate(program, ranks=ranks)
    assert run.status == "failed"
    return run.report().splitlines()[1:]


def test_two_ranks_that_wait_for_each_other_on_the_wrong_rows():
    def program(ctx):
        signals = ctx.signals("s", rows=2)
        if ctx.rank == 1:
            signals.notify(0, 0)
        signals.wait(1 - ctx.rank, 1 - ctx.rank, 1)

    line = program.__code__.co_firstlineno + 3
    assert _report(program, 2) == [
        f'stuck: rank 0 waits for rank 1 ("s" row 1, at least 1; it is 0) at line {line + 1}, in its step 1',
        f'       rank 1 waits for rank 0 ("s" row 0, at least 1; it is 0) at line {line + 1}, in its step 2',
        "the circle: 0 -> 1 -> 0",
        f"rank 1 never notified row 1 of rank 0; it notified row 0 at line {line}",
        "rank 0 never notified rank 1, and waits itself",
    ]


def test_a_circle_of_three_and_one_that_waits_for_it():
    def program(ctx):
        ctx.signals("s", rows=1).wait((ctx.rank + 1) % 3 if ctx.rank < 3 else 0, 0, 1)

    assert "the circle: 0 -> 1 -> 2 -> 0" in _report(program, 4)


def test_a_rank_that_is_over_leaves_no_circle():
    def program(ctx):
        if ctx.rank == 0:
            ctx.signals("s", rows=1).wait(1, 0, 1)

    report = _report(program, 2)
    assert not any("circle" in line for line in report)
    assert report[-1] == "rank 1 never notified rank 0, and is over"


def test_a_notification_too_few():
    def program(ctx):
        signals = ctx.signals("s", rows=1)
        if ctx.rank == 0:
            signals.wait(1, 0, 2)
        else:
            signals.notify(0, 0)

    line = program.__code__.co_firstlineno + 5
    said = f"rank 1 notified row 0 of rank 0 once, last at line {line}; 2 are asked for, and is over"
    assert _report(program, 2)[-1] == said


def stuck(body, ranks):
    """What is said of a program that gets stuck, and what would mend it."""
    run = cl.simulate(body, ranks=ranks)
    assert run.stuck
    return "\n".join(deadlock.explain(run.trace, run.ends)), deadlock.mend(run.trace, run.ends)


def test_a_rank_that_nobody_notifies_though_it_does_others():
    def program(ctx):
        signals = ctx.signals("s", rows=2)
        for peer in range(ctx.nranks - 1):
            signals.notify(peer, 0)
        for peer in range(ctx.nranks):
            signals.wait(peer, 0, 1)
        ctx.barrier(signals, 1)

    line = program.__code__.co_firstlineno + 3
    said, mend = stuck(program, 3)
    assert f"rank 0 never notified row 0 of rank 2; it notified that of ranks 0 and 1 at line {line}" in said
    assert "the circle: 0 -> 2 -> 0" in said  # rank 2 waits for rank 0, which waits in the barrier for all
    assert mend == f"let rank 0 notify rank 2 on row 0 too at line {line}"


def test_of_many_rows_that_were_notified_instead_the_last_is_named():
    def program(ctx, rows):
        signals = ctx.signals("s", rows=rows + 1)
        if ctx.rank:
            signals.wait(0, rows, 1)
        else:
            for row in range(rows):
                signals.notify(1, row)

    def instead(rows):
        return cl.simulate(program, rows, ranks=2).report().splitlines()[-1]

    line = program.__code__.co_firstlineno + 6
    rows = ", ".join(f"row {row} at line {line}" for row in range(4))
    assert instead(4) == f"rank 0 never notified row 4 of rank 1; it notified {rows}, and is over"
    last = f"500 others, the last of them row 499 at line {line}"
    assert instead(500) == f"rank 0 never notified row 500 of rank 1; it notified {last}, and is over"


def test_all_signals_expected_in_the_cell_of_one_writer():
    def program(ctx):
        signals = ctx.signals("s", rows=1)
        if ctx.rank:
            signals.notify(0, 0)
        else:
            signals.wait(1, 0, ctx.nranks - 1)

    said, mend = stuck(program, 4)
    assert "3 are asked for; ranks 2 and 3 notified that row too, each in a cell of its own, and is over" in said
    assert mend.startswith("each writer has a cell of its own")


def test_a_self_notification_counted_as_one_of_the_peers():
    def program(ctx):
        signals = ctx.signals("s", rows=1)
        for peer in range(ctx.nranks):
            signals.notify(peer, 0)
        signals.wait(1 - ctx.rank, 0, ctx.nranks)

    said, mend = stuck(program, 2)
    assert "2 are asked for; rank 0 notified that row too, in a cell of its own" in said
    assert mend.startswith("each writer has a cell of its own")


def test_a_rank_that_waits_for_itself():
    def program(ctx):
        ctx.signals("s", rows=1).wait(ctx.rank, 0, 1)

    said, mend = stuck(program, 1)
    assert said.endswith("the circle: 0 -> 0\nrank 0 waits for its own notification, which nobody else can give")
    assert mend.startswith("let rank 0 wait for its peers only")


def test_a_rank_that_raised_or_returned_is_said_to_have():
    def program(ctx, how):
        signals = ctx.signals("s", rows=1)
        if ctx.rank == 2 and how == "raises":
            raise ValueError("no")
        if ctx.rank != 2:
            ctx.barrier(signals, 0)

    for how, said in (("raises", "and raised ValueError"), ("returns", "and is over")):
        run = cl.simulate(program, how, ranks=3)
        text = "\n".join(deadlock.explain(run.trace, run.ends))
        assert f"rank 2 never notified ranks 0 and 1, {said}" in text and "circle" not in text
        assert deadlock.mend(run.trace, run.ends).startswith("let rank 2 come to the barrier on row 0 at line")


def test_signals_asked_for_more_often_by_one_rank():
    def program(ctx):
        for _ in range(2 if ctx.rank == 0 else 1):
            signals = ctx.signals("s", rows=1)
        ctx.barrier(signals, 0)

    _, mend = stuck(program, 2)
    assert mend == (
        'let all ranks ask for the signals "s" equally often: rank 0 comes to row 0 for the 1. time and waits for '
        "generation 2"
    )


def test_signals_on_rows_that_do_not_match():
    def program(ctx):
        signals = ctx.signals("s", rows=2)
        signals.notify(1 - ctx.rank, 0)
        signals.wait(1 - ctx.rank, 1, 1)

    _, mend = stuck(program, 2)
    assert mend == "notify and wait on the same row: 0 is notified, 1 is waited for"


def test_of_waits_that_ask_for_as_much_those_in_the_circle_are_mended_first():
    def program(ctx):
        signals = ctx.signals("s", rows=3)
        if ctx.rank == 0:  # waits for the circle of the two others
            signals.wait(1, 0, 1)
        elif ctx.rank == 1:
            signals.notify(0, 2)
            signals.wait(2, 0, 1)
        else:
            signals.notify(1, 1)
            signals.wait(1, 0, 1)

    said, mend = stuck(program, 3)
    assert "the circle: 1 -> 2 -> 1" in said
    assert mend == "notify and wait on the same row: 1 is notified, 0 is waited for"


def test_everyone_waits_before_it_notifies():
    def program(ctx):
        signals, left, right = ctx.signals("s", rows=1), (ctx.rank - 1) % 3, (ctx.rank + 1) % 3
        signals.wait(left, 0, 1)
        signals.notify(right, 0)

    said, mend = stuck(program, 3)
    assert "the circle: 0 -> 2 -> 1 -> 0" in said and mend.startswith("notify before waiting")


@pytest.mark.parametrize("seed", range(200))
def test_a_circle_is_named_exactly_where_there_is_one(seed):
    draw = random.Random(seed)
    nranks = draw.randint(1, 6)
    awaited = {rank: draw.randrange(nranks) for rank in range(nranks) if draw.random() < 0.8}
    waiting = {rank: (Event(WAIT, rank, peer, "s", row=0, at_least=1), 0) for rank, peer in awaited.items()}
    if not waiting:
        return
    lines = deadlock.explain(Trace(nranks, [], waiting), {r: "is over" for r in range(nranks) if r not in waiting})
    circles = [line.removeprefix("the circle: ").split(" -> ") for line in lines if line.startswith("the circle")]

    def comes_back(rank):
        at = rank
        for _ in range(nranks):
            at = awaited.get(at)
            if at in (rank, None):
                return at == rank
        return False

    assert bool(circles) == any(map(comes_back, awaited))
    for circle in circles:
        chain = list(map(int, circle))
        assert chain[0] == chain[-1] and len(set(chain)) == len(chain) - 1
        assert all(awaited[a] == b for a, b in pairwise(chain))

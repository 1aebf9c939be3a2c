"""What is said about waits that nothing will satisfy."""

import collectlab as cl


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
        'stuck: rank 0 waits for rank 1 ("s" row 1, at least 1; it is 0)',
        '       rank 1 waits for rank 0 ("s" row 0, at least 1; it is 0)',
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
    assert _report(program, 2)[-1] == f"rank 1 notified row 0 of rank 0 once, last at line {line}; 2 are asked for"

"""Kernels that wait for ever on real ranks: the report says who waits for whom, as in the simulator."""

import os
import time

import pytest

import collectlab as cl


def mismatched(ctx):
    """Notify on row 0, wait on row 1."""
    signals = ctx.signals("s", rows=2)
    signals.notify(1 - ctx.rank, 0)
    signals.wait(1 - ctx.rank, 1, 1)


def left_early(ctx):
    """Rank 2 does not come to the second barrier."""
    signals = ctx.signals("s", rows=2)
    ctx.barrier(signals, 0)
    if ctx.rank < 2:
        ctx.barrier(signals, 1)


def lines_of(report):
    """The lines about waiting."""
    starts = ("stuck", "waiting", "   ", "the circle", "rank ")
    return [line for line in report.splitlines() if line.startswith(starts)]


@pytest.mark.parametrize(("program", "ranks"), ((mismatched, 2), (left_early, 3)))
def test_a_kernel_ended_by_its_timeout_is_told_as_in_the_simulator(program, ranks):
    run = cl.run(program, ranks=ranks, device="cpu", timeout=3)
    assert run.status == "timeout"
    assert lines_of(run.report()) == cl.simulate(program, ranks=ranks).report().splitlines()[1:]
    assert lines_of(cl.attach(run.path).report()) == lines_of(run.report())
    assert len(run.trace.events) == len(cl.simulate(program, ranks=ranks).trace.events)


def seen(run, words):
    """Wait until the report of a run that goes on says this."""
    end = time.monotonic() + 60
    while words not in run.report():
        assert time.monotonic() < end and run.status == "running", run.report()
        time.sleep(0.05)


@pytest.mark.parametrize("one_sided", (False, True))
def test_who_waits_is_seen_while_the_run_goes_on_and_after_it_was_interrupted(monkeypatch, one_sided):
    if one_sided:
        monkeypatch.setenv("COLLECTLAB_RANKS_PER_HOST", "1")
    with cl.launch(2, device="cpu") as ranks:
        run = ranks.submit(mismatched)
        seen(run, "the circle: 0 -> 1 -> 0")
        ranks.interrupt()
        run.wait()
        assert run.status == "interrupted"
        assert "rank 1 never notified row 1 of rank 0; it notified row 0 at line" in run.report()


def test_without_a_trace_it_is_said_who_waits_and_nothing_that_is_not_known():
    with cl.launch(2, device="cpu") as ranks:
        run = ranks.submit(mismatched, trace=False)
        seen(run, "the circle: 0 -> 1 -> 0")
        ranks.interrupt()
        assert "notified" not in run.wait().report()


def test_a_wait_for_a_rank_that_is_still_at_work_is_no_deadlock():
    def busy(ctx, done):
        signals = ctx.signals("s", rows=1)
        if ctx.rank == 0:
            while not os.path.exists(done):
                time.sleep(0.01)
        ctx.barrier(signals, 0)
        return ctx.rank

    with cl.launch(3, device="cpu") as ranks:
        done = os.path.join(os.path.dirname(ranks.submit(lambda ctx: 0).wait().path), f"done-{os.getpid()}")
        try:
            run = ranks.submit(busy, done)
            seen(run, "rank 0 never notified ranks 1 and 2, and is still at work")
            assert "waiting: rank 1 waits for rank 0" in run.report() and "stuck" not in run.report()
            with open(done, "w"):
                pass
            assert run.wait().results == [0, 1, 2] and run.trace.waiting == {}
            assert "waits" not in run.report() and len(run.trace.events) == 15
        finally:
            if os.path.exists(done):
                os.unlink(done)



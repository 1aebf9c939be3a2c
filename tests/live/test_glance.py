"""A glance: what each rank does, how far it is, its last lines. Bounded, whatever a rank prints or says."""

import itertools
import math
import os
import signal
import sys
import threading
import time

import pytest

import collectlab as cl
from collectlab.fabric.context import Context
from collectlab.launcher import glance
from collectlab.launcher.glance import LINES, LONGEST, Follower, Glance, RankGlance, Watch, last_lines
from collectlab.launcher.ranks import Ranks


def at_gate(ctx, gate, done=None, total=None, text="here\n"):
    sys.stdout.write(text)
    if total is not None:
        ctx.progress(done, total)
    open(f"{gate}.{ctx.rank}").read()
    return ctx.rank


# The last lines


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", ()),
        (b"\n\n \n", ()),
        (b"one\ntwo\n", ("one", "two")),
        (b"no newline", ("no newline",)),
        (b"one\n 1 %\r 50 %\r 99 %", ("one", " 99 %")),
        (b"10 %\r20 %\r", ("20 %",)),
        (b"windows\r\nlines\r\n", ("windows", "lines")),
        (b"\x1b[31mred\x1b[0m \x1b[2Kgone\x1b]0;title\x07", ("red gone",)),
        (b"a\tb\x00\x07c", ("a bc",)),
        ("über \u202e \xff".encode(), ("über � ÿ",)),
        (b"half a letter \xc3", ("half a letter �",)),
        (b"<b>markup</b>\n", ("<b>markup</b>",)),
    ],
)
def test_the_last_lines_of_a_log(data, lines):
    assert last_lines(data) == lines


def test_only_the_last_lines_are_kept_and_long_ones_are_cut():
    assert last_lines(b"\n".join(b"%d" % n for n in range(50))) == tuple(map(str, range(50 - LINES, 50)))
    (ended,) = last_lines(b"a" + b"b" * 1000 + b"c\n")
    assert len(ended) == LONGEST and ended.startswith("ab") and ended.endswith("b…")
    (rising,) = last_lines(b"a" + b"." * 1000 + b"c")
    assert len(rising) == LONGEST and rising.startswith("…") and rising.endswith(".c")
    assert last_lines(b"rest of a line\nwhole\n", whole=False) == ("…est of a line", "whole")


# How far a rank is


@pytest.mark.parametrize(
    ("done", "total", "share", "words"),
    [
        (3, 10, 0.3, "3 of 10"),
        (None, None, None, ""),
        (5, 0, None, "5 done"),
        (12, 10, 1.0, "12 of 10"),
        (-1, 10, 0.0, "-1 of 10"),
        (3, -10, None, "3 of -10"),
        (math.nan, 10, None, "nan of 10"),
        (3, math.nan, None, "3 of nan"),
        (3, math.inf, None, "3 of inf"),
        (1500000, 2000000, 0.75, "1,500,000 of 2,000,000"),
        (0.25, 1, 0.25, "0.25 of 1"),
        (1e30, 2e30, 0.5, "1e+30 of 2e+30"),
    ],
)
def test_progress_is_a_share_where_that_makes_sense(done, total, share, words):
    rank = RankGlance("running", "running", 0, done, total)
    assert (rank.share, rank.progress) == (share, words)
    assert "rank 0  running" in Glance("work", "running", 2, (rank,)).text()


@pytest.mark.parametrize("said", [("a", 2), (None, None), (1, [2]), (1j, 2)])
def test_progress_that_is_no_number_is_refused(said):
    with pytest.raises(TypeError, match=r"^progress\(done=.*two numbers are accepted"):
        Context(0, 1, None, "cpu:0", "numpy", None, None, lambda done, total: None).progress(*said)


# Many ranks


def test_sixteen_ranks_have_a_line_each_and_seventeen_stand_together():
    ranks = [RankGlance("running", "running", 0, n, 20, (f"line of {n}",)) for n in range(17)]
    each = Glance("work", "running", 3, tuple(ranks[:16])).text().splitlines()
    assert each[0] == "work on 16 ranks is running, for 3 s" and len(each) == 17
    assert each[5] == "  rank 4   running  4 of 20  | line of 4"
    together = Glance("work", "running", 3, tuple(ranks)).text().splitlines()
    assert together[1:] == [
        "  ranks 0 to 16  running  0% to 80%, median 40%  | rank 0: line of 0",
        "  (17 ranks; those that do the same stand together)",
    ]


def test_of_64_ranks_the_one_that_is_late_has_a_line_of_its_own():
    wait = RankGlance("waiting", "waiting in allreduce", 4)
    ranks = [wait] * 64
    ranks[9] = RankGlance("running", "running", 0, 1, 10)
    ranks[30] = RankGlance("failed", "raised ValueError: no")
    rows = Glance("work", "running", 5, tuple(ranks)).rows()
    assert [(row.name, row.words) for row in rows] == [
        ("ranks 0 to 8, 10 to 29 and 31 to 63", "waiting in allreduce, for 4 s"),
        ("rank 9", "running"),
        ("rank 30", "raised ValueError: no"),
    ]
    assert [row.failed for row in rows] == [False, False, True]


def test_where_all_of_64_ranks_do_something_else_their_states_are_counted():
    ranks = tuple(RankGlance("waiting", f"waiting in recv with rank {n}", n) for n in range(64))
    (row,) = Glance("work", "running", 70, ranks).rows()
    assert (row.name, row.words) == ("ranks 0 to 63", "waiting")


# On real ranks


def test_what_ranks_do_is_seen_while_they_do_it(gate, wait_for):
    def program(ctx, gate):
        ctx.progress(2 * ctx.rank + 1, 10)
        sys.stdout.write(f"at {ctx.rank}")  # and no newline
        if ctx.rank == 1:
            open(f"{gate}.1").read()
            ctx.comm.send("go", dest=2)
        if ctx.rank == 2:
            ctx.comm.recv(source=1)

    with cl.launch(3, device="cpu") as ranks:
        run = ranks.submit(program, gate.path)
        waits = "waiting in recv with rank 1"
        wait_for(lambda: run.glance().ranks[2].doing == waits, complaint=lambda: run.glance().text())
        seen = run.glance()
        assert [rank.state for rank in seen.ranks] == ["done", "running", "waiting"]
        assert [(rank.done, rank.total) for rank in seen.ranks] == [(1, 10), (3, 10), (5, 10)]
        assert [rank.lines for rank in seen.ranks] == [("at 0",), ("at 1",), ("at 2",)]
        assert (seen.status, seen.over) == ("running", False)
        assert run.status == "running"
        open(f"{gate.path}.1", "w").close()
        assert run.wait().ok
        after = run.glance()
        assert after.over and [rank.state for rank in after.ranks] == ["done"] * 3
        assert after.text().splitlines()[0].startswith("done after ")


def test_a_glance_disturbs_no_rank(gate, wait_for):
    """A look stops each rank for a moment, by a signal that may cut a system call short; a glance does not."""
    with cl.launch(2, device="cpu") as ranks:
        run = ranks.submit(at_gate, gate.path)
        wait_for(lambda: all(rank.lines for rank in run.glance().ranks))
        pids = _readers(run)
        assert len(pids) == 2
        wait_for(lambda: all(_sleeps(pid) for pid in pids))  # they printed before they came to the gate
        before = [_switches(pid) for pid in pids]
        for _ in range(50):
            assert [rank.state for rank in run.glance().ranks] == ["running"] * 2
        assert [_switches(pid) for pid in pids] == before
        gate.open(2)
        assert run.wait().results == [0, 1]


def _readers(run):
    """The processes of the ranks: of those with the tag, the ones that have the log open."""
    found, tag = [], run.spec["tag"].encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as env:
                if tag in env.read() and os.readlink(f"/proc/{pid}/fd/1").startswith(run.path):
                    found.append(int(pid))
        except OSError:
            continue
    return found


def _sleeps(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "S"


def _switches(pid):
    with open(f"/proc/{pid}/status") as status:
        return [line for line in status if "ctxt_switches" in line]


def test_the_progress_of_a_rank_that_died_stays(wait_for):
    def program(ctx):
        ctx.progress(7, 10)
        print("so far", flush=True)
        ctx.comm.Barrier()
        if ctx.rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        ctx.comm.Barrier()

    with cl.launch(2, device="cpu") as ranks:
        run = ranks.submit(program)
        ranks._wait_for(lambda: run._final is not None, 30)
        seen = run.glance()
    assert seen.status == "failed" and [rank.state for rank in seen.ranks] == ["stopped", "failed"]
    assert seen.ranks[1].doing == "was killed by SIGSEGV (signal 11)" and seen.ranks[1].progress == "7 of 10"
    assert seen.ranks[0].lines == ("so far",) and "stopped in Barrier" in seen.text()
    assert "failed after" in seen.headline and "ranks stopped" in seen.report


def test_a_run_behind_another_is_queued_and_ranks_that_come_are_starting(gate, wait_for):
    ranks = Ranks(2, device="cpu")
    try:
        first = ranks.submit(at_gate, gate.path)
        second = ranks.submit(at_gate, gate.path, 1, 2)
        assert {rank.state for rank in first.glance().ranks} <= {"starting", "running"}
        wait_for(lambda: first.glance().status == "running")
        seen = second.glance()
        assert (seen.status, {rank.state for rank in seen.ranks}) == ("queued", {"queued"})
        assert seen.headline == "at_gate on 2 ranks waits for the run before it"
        gate.open(2)
        wait_for(lambda: [rank.done for rank in second.glance().ranks] == [1, 1])
        gate.open(2)
        assert second.wait().ok and first.ok
    finally:
        ranks.stop()


SITE = """
command = ["{script}", "{{python}}", "-I", "-S", "{{launcher}}/mpiexec.py", "-n", "{{n}}"]
rank = "PMI_RANK"
local_rank = "MPI_LOCALRANKID"
needs = "a gate that opens"
"""


def test_what_a_slow_start_waits_for_is_said(gate, tmp_path, monkeypatch, capsys, wait_for):
    script = tmp_path / "wait"
    script.write_text(f'#!/bin/sh\nread line < {gate.path}.0\nexec "$@"\n')
    script.chmod(0o755)
    (tmp_path / "gated.toml").write_text(SITE.format(script=script))
    monkeypatch.setenv("COLLECTLAB_SITES", str(tmp_path))
    ranks, said = Ranks(1, device="cpu", site="gated"), []
    starts = threading.Thread(target=ranks.start)
    starts.start()
    try:
        wait_for(lambda: ranks.status == "starting")
        run = ranks.submit(lambda ctx: ctx.rank)
        for place in ("third", "second"):
            ranks.note = f"{place} in the queue"  # as the listener does with what the supervisor tells
            ranks._ring()
            wait_for(lambda place=place: said.append(capsys.readouterr().err) or place in "".join(said))
            assert run.glance().headline == f"<lambda> on 1 rank is starting: {place} in the queue"
        gate.open(1)
        assert run.wait().results == [0] and run.glance().note == ""
    finally:
        ranks.stop()
        starts.join(20)
    assert "".join(said) == "launch(1): third in the queue\nlaunch(1): second in the queue\n"


def test_nobody_who_answers_is_no_reason_to_wait_or_to_forget(gate, wait_for):
    with cl.launch(2, device="cpu") as ranks:
        run = ranks.submit(at_gate, gate.path, 4, 8)
        watch = Watch(run)
        wait_for(lambda: [rank.share for rank in watch.glance().ranks] == [0.5, 0.5])
        supervisor = ranks._link.process.pid
        os.kill(supervisor, signal.SIGSTOP)
        try:
            for _ in range(5):
                assert [rank.share for rank in watch.glance().ranks] == [0.5, 0.5]
        finally:
            os.kill(supervisor, signal.SIGCONT)
        gate.open(2)
        assert run.wait().ok


def test_a_run_of_another_process_is_seen_by_its_logs(gate, wait_for):
    with cl.launch(2, device="cpu") as ranks:
        run = ranks.submit(at_gate, gate.path)
        other = cl.attach(run.path)
        wait_for(lambda: [rank.lines for rank in other.glance().ranks] == [("here",)] * 2)
        assert other.glance().status == "running"
        gate.open(2)
        run.wait()
        assert other.glance().over


def test_a_wait_for_a_signal_is_named(wait_for):
    def program(ctx):
        signals = ctx.signals("s", 2)
        if ctx.rank:
            signals.wait(0, 1, 1)

    with cl.launch(2, device="cpu") as ranks:
        run = ranks.submit(program)
        said = 'waiting for rank 0 ("s" row 1, at least 1; it is 0)'
        wait_for(lambda: run.glance().ranks[1].doing == said, complaint=lambda: run.glance().text())


def test_a_million_lines_are_followed_in_bounded_memory_and_their_end_is_kept(wait_for):
    def program(ctx):
        lines = [f"line {n}\n" for n in range(1000)]
        for k in range(1000):
            for line in lines:
                sys.stdout.write(line)
            ctx.progress(k + 1, 1000)
        print("the last line")

    with cl.launch(2, device="cpu") as ranks:
        run = ranks.submit(program)
        shown = []
        follower = Follower(run, shown.append)
        run.wait(None)
        follower.thread.join(10)
    assert shown[-1].over and all(rank.lines[-1] == "the last line" for rank in shown[-1].ranks)
    assert all(len(rank.lines) <= LINES for seen in shown for rank in seen.ranks)
    assert os.path.getsize(os.path.join(run.path, "log.0")) > 1_000_000 * 7


# Following


class FakeRanks:
    """Ranks of which somebody else says what they do."""

    places, note = [None], None

    def __init__(self):
        self.asked, self.progress, self.many = 0, 1.0, threading.Event()

    def _glance(self):
        self.asked += 1
        if self.asked == 6:
            self.many.set()
        where = {"call": None, "inside": False, "peer": None, "seconds": 0.0, "progress": [self.progress, 10.0]}
        return {"id": "run", "ready": True, "ranks": [{"end": None, "where": where}]}


class FakeRun:
    nranks, path = 1, "/nowhere/run"

    def __init__(self):
        self._ranks, self.final = FakeRanks(), None
        self.spec = {"program": "work", "created": 0.0}

    def _state(self):
        return self.final


def test_nothing_is_shown_while_nothing_changes(monkeypatch):
    monkeypatch.setattr(glance.time, "time", lambda: 1000.0)
    run, shown = FakeRun(), []
    follower = Follower(run, shown.append)
    assert run._ranks.many.wait(20)
    assert len(shown) == 1
    run.final = {"status": "done", "seconds": 1.0, "ranks": [{"state": "returned"}]}
    follower.thread.join(20)
    assert [seen.over for seen in shown] == [False, True] and not follower.thread.is_alive()
    assert shown[1].ranks[0].progress == "", "whether it came to 10 before it was done, nobody has seen"


def test_what_changes_all_the_time_is_shown_at_most_ten_times_a_second():
    run, at = FakeRun(), []

    def show(seen):
        at.append(time.monotonic())
        run._ranks.progress += 1
        if len(at) == 8:
            follower.stop()

    follower = Follower(run, show)
    follower.thread.join(20)
    assert len(at) == 8 and min(b - a for a, b in itertools.pairwise(at)) > 0.099


def test_after_stop_nothing_is_shown():
    run, shown, inside, go = FakeRun(), [], threading.Event(), threading.Event()

    def show(seen):
        inside.set()
        go.wait(20)
        shown.append(seen)

    follower = Follower(run, show)
    assert inside.wait(20)
    stops = threading.Thread(target=follower.stop)
    stops.start()
    assert not shown
    go.set()
    stops.join(20)
    assert len(shown) == 1, "stop waits for what is being shown"
    follower.stop()
    follower.thread.join(20)
    assert len(shown) == 1 and not follower.thread.is_alive()

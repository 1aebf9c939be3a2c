"""A rank fails: who, how, where, and where the others were; afterwards nothing is left."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time

import cloudpickle
import numpy as np
import pytest
from marks import wait_for

import collectlab as cl
from collectlab.launcher import sweep

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the environment of Open MPI has no pytest


class Odd(BaseException):
    pass


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def on_rank_1(act):
    def program(ctx):
        if ctx.rank == 1:
            act(ctx)
        ctx.comm.Barrier()

    return program


def raise_value(ctx):
    raise ValueError("first line\nsecond line")


def raise_note(ctx):
    error = ValueError("the message")
    error.add_note("a note")
    raise error


def raise_group(ctx):
    raise ExceptionGroup("several", [ValueError(1), TypeError(2)])


def raise_odd(ctx):
    raise Odd("x" * 5_000_000)


def raise_mute(ctx):
    raise Mute


def raise_syntax(ctx):
    eval("1 +")


def recurse(ctx):
    recurse(ctx)


def with_output(act):
    def program(ctx):
        print("before the end", end="")
        act()

    return program


def abort_world(ctx):
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(3)


def abort_itself(ctx):
    """As a library does that calls MPI by itself."""
    from mpi4py import MPI

    MPI.COMM_SELF.Abort(3)


def kill_guard(ctx):
    """And stays, since a run of which every result arrived is done, whatever became of its guards."""
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()


def close_output(ctx):
    os.close(1)
    os.close(2)
    print("nowhere")


FAILURES = {
    "raise": (raise_value, "raised ValueError: first line ...", 'raise ValueError("first line'),
    "note": (raise_note, "raised ValueError: the message\n", "raise error"),
    "group": (raise_group, "raised ExceptionGroup: several (2 sub-exceptions)", "raise ExceptionGroup"),
    "odd": (raise_odd, "raised Odd: xxx", "raise Odd"),
    "mute": (raise_mute, "raised Mute: its message cannot be shown", "raise Mute"),
    "syntax": (raise_syntax, "raised SyntaxError: invalid syntax", 'eval("1 +")'),
    "recursion": (recurse, "raised RecursionError: maximum recursion depth exceeded", "times)"),
    "exit 0": (lambda ctx: sys.exit(0), "left by sys.exit(0)", "sys.exit(0)"),
    "exit 3": (lambda ctx: sys.exit(3), "left by sys.exit(3)", "sys.exit(3)"),
    "exit text": (lambda ctx: sys.exit("a farewell"), "left by sys.exit(1)", "        a farewell"),
    "os._exit": (with_output(lambda: os._exit(5)), "with exit code 5", "before the end"),
    "os._exit 0": (with_output(lambda: os._exit(0)), "with exit code 0", "before the end"),
    "segfault": (with_output(lambda: ctypes.string_at(0)), "killed by SIGSEGV", "ctypes.string_at(0)"),
    "abort": (with_output(os.abort), "killed by SIGABRT", "before the end"),
    "kill": (with_output(lambda: os.kill(os.getpid(), signal.SIGKILL)), "killed by SIGKILL", "before the end"),
    "group term": (with_output(lambda: os.killpg(0, signal.SIGTERM)), "killed by SIGTERM", "before the end"),
    "guard": (kill_guard, "lost", "watches over"),
    "Abort": (lambda ctx: ctx.comm.Abort(7), "called comm.Abort(7)", "run.log(1)"),
    "Abort world": (abort_world, "called comm.Abort(3)", "run.log(1)"),
    "MPI_Abort": (abort_itself, "aborted by MPI", "run.log(1)"),
    "closed output": (close_output, "raised OSError", "print("),
}


@pytest.mark.parametrize("case", FAILURES)
def test_one_rank_fails(case, capfd, each_site):
    act, said, place = FAILURES[case]
    run = cl.run(on_rank_1(act), ranks=3, device="cpu", timeout=30)
    report = run.report()
    assert run.status == "failed" and not run.ok
    assert report.splitlines()[0].startswith("failed after"), report
    names = report.splitlines()[0].partition(" lost")[0] if case == "guard" else "rank 1 "
    # MPI kills the other guards at once, and which was first cannot be told: all are named
    assert re.search(r"\b1\b", names) and names in report.splitlines()[0], report
    assert said in report and place in report, report
    if case not in ("guard", "MPI_Abort"):  # there MPI kills the others before anyone can look
        assert "ranks 0 and 2 were waiting in Barrier, their 1st collective" in report, report
    assert "all ranks stopped" in report, report
    assert capfd.readouterr().err.strip() == report.strip()
    assert cl.attach(run.path).report() == report


def test_all_ranks_fail_before_inside_and_after_a_collective(each_site):
    def inside(ctx):
        return ctx.comm.allreduce(ctx.rank, op=lambda a, b: {}["key"])

    def after(ctx):
        ctx.comm.Barrier()
        return {}["key"]

    run = cl.run(lambda ctx: {}["key"], ranks=3, device="cpu")
    assert "ranks 0, 1 and 2 raised KeyError: 'key'" in run.report() and run.results == [None] * 3
    run = cl.run(inside, ranks=3, device="cpu")
    assert "raised KeyError" in run.report() and "waiting in allreduce, their 1st collective" in run.report()
    assert ".pyx" not in run.report(), "a line of a compiled module means nothing to a learner"
    run = cl.run(after, ranks=3, device="cpu")
    assert "raised KeyError" in run.report() and 'return {}["key"]' in run.report()


def disagree(ctx, case):
    mine = np.zeros(4)
    if case == "calls":
        ctx.comm.Bcast(mine) if ctx.rank else ctx.comm.Allreduce(mine.copy(), mine)
    elif case == "counts":
        ctx.comm.Bcast(np.zeros(4 if ctx.rank else 1))
        ctx.comm.Barrier()
        time.sleep(60)
    elif case == "big counts":
        mine = np.zeros(4 + ctx.rank * 100000)
        ctx.comm.Allreduce(mine.copy(), mine)
    elif case == "dtypes":
        mine = np.zeros(4, np.float32 if ctx.rank else np.float64)
        ctx.comm.Allreduce(mine.copy(), mine)
    elif case == "some":
        ctx.comm.Barrier() if ctx.rank != 1 else None
    elif case == "truncated":
        if ctx.rank == 0:
            ctx.comm.Send(np.zeros(4), 1)
        elif ctx.rank == 1:
            ctx.comm.Recv(np.zeros(2), 0)
    elif case == "agree":
        ctx.comm.Scatter(np.zeros(12) if ctx.rank == 0 else None, mine)
        ctx.comm.Allgatherv(np.zeros(ctx.rank), [np.zeros(3), [0, 1, 2], [0, 0, 1], "d"])
        half = ctx.comm.Split(ctx.rank == 0)
        half.Barrier() if ctx.rank else half.allreduce(1)
        time.sleep(60) if ctx.rank else ctx.comm.Barrier()


WORDS = {
    "calls": ["rank 0 called Allreduce with 4 elements of float64; ranks 1 and 2 called Bcast with 4 elements"],
    "counts": ["rank 0 called Bcast with 1 element of float64; ranks 1 and 2 called Bcast with 4 elements"],
    "big counts": ["rank 0 called Allreduce with 4 elements", "rank 1 called Allreduce with 100004 elements"],
    "dtypes": ["rank 0 called Allreduce with 4 elements of float64; ranks 1 and 2", "4 elements of float32"],
    "some": ["ranks 0 and 2 were waiting in Barrier, their 1st coll", "rank 1 returned after no collective calls"],
    "truncated": ["rank 1 raised mpi4py.MPI.Exception: ", "runcate", "ctx.comm.Recv(np.zeros(2), 0)",
                  "the ranks disagree about a message: rank 0 called Send with 4 elements of float64; rank 1 called "
                  "Recv with 2 elements of float64"],
    "agree": ["rank 0 was waiting in Barrier, its 3rd collective", "ranks 1 and 2 were not in an MPI call"],
}  # fmt: skip


@pytest.mark.parametrize("case", WORDS)
def test_ranks_that_disagree_are_told_so_in_words(case, each_site):
    report = cl.run(disagree, case, ranks=3, device="cpu", timeout=1.5).report()
    assert all(words in report for words in WORDS[case]), report
    disagreed = case in ("calls", "counts", "big counts", "dtypes")
    assert ("the ranks disagree about their 1st collective" in report) == disagreed, report


def test_a_rank_that_hangs_is_named_with_its_line(each_site):
    def program(ctx):
        if ctx.rank == 0:
            time.sleep(600)
        ctx.comm.recv(source=0)

    run = cl.run(program, ranks=2, device="cpu", timeout=1)
    assert run.status == "timeout" and "was not done after 1 s" in run.report()
    assert "rank 0 was not in an MPI call  (test_failures.py" in run.report()
    assert "rank 1 was waiting in recv with rank 0, for" in run.report()


def test_what_cannot_be_killed_is_named(monkeypatch):
    with subprocess.Popen(["sleep", "600"], env={sweep.TAG: "unkillable"}) as sleeper:
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", lambda pid, number: None)
            assert sweep.kill("unkillable", within=0.1) == [sleeper.pid]
        assert sweep.kill("unkillable") == []


def test_what_a_launcher_of_unknown_number_leaves_is_found_by_the_number_of_none(tmp_path):
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    live, other = os.getpid(), tmp_path / "ompi.letters"
    made = [tmp_path / f"ompi.{pid}" for pid in (ended.pid, live)]
    for folder in (*made, other):
        folder.mkdir()
    leaves = [str(tmp_path / "ompi.{pid}"), str(tmp_path / "nowhere" / "{pid}")]
    assert sweep.kill("nobody", since=time.time() + 60, leaves=leaves) == [] and made[0].exists(), "it is older"
    assert sweep.kill("nobody", since=time.time() - 60, leaves=leaves) == []
    assert [folder.exists() for folder in (*made, other)] == [False, True, True]


def test_what_a_program_starts_does_not_outlive_the_ranks(mark, each_site):
    seconds = str(time.time_ns() // 1_000_000)  # by which these sleepers are known

    def program(ctx):
        if os.fork() == 0:
            time.sleep(600)
        orphan = f"import subprocess; subprocess.Popen(['sleep', '{seconds}'], env={{}}, start_new_session=True)"
        subprocess.run([sys.executable, "-c", orphan], check=True, env={})
        return subprocess.Popen(["sleep", seconds], start_new_session=True).pid

    def sleepers():
        found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        return found.splitlines().count(f"sleep {seconds}")

    with cl.launch(2, device="cpu") as ranks:
        assert ranks.submit(program).wait().ok
        assert sleepers() == 4, "the test must find what it looks for"
    assert sleepers() == 0
    mark.gone()


def test_threads_and_exit_functions_do_not_hold_a_rank(each_site):
    def program(ctx):
        import atexit
        import threading

        threading.Thread(target=time.sleep, args=(600,)).start()
        atexit.register(time.sleep, 600)
        return ctx.rank

    start = time.monotonic()
    assert cl.run(program, ranks=2, device="cpu").results == [0, 1]
    assert time.monotonic() - start < 10, "bounded by the supervisor, not by the program"


def test_every_line_is_kept_as_it_was_printed(each_site):
    def program(ctx, n):
        for i in range(n):
            print(i)
        print("tick", end="\r")
        sys.stderr.write("to stderr\n")
        sys.stdout.buffer.write(b"\xff\xfe\n")
        os.write(1, b"unbuffered\n")
        print("\udcff")
        sys.stdout = None
        os._exit(0)

    n = 100_000
    run = cl.run(program, n, ranks=1, device="cpu")
    lines = run.log(0).split("\n")
    assert lines[:n] == [str(i) for i in range(n)]
    assert lines[n:] == ["tick\rto stderr", "\ufffd\ufffd", "unbuffered", "\\udcff", ""]
    with open(os.path.join(run.path, "log.0"), "rb") as f:
        assert f.read().endswith(b"tick\rto stderr\n\xff\xfe\nunbuffered\n\\udcff\n")


def prints_for_ever(ctx, how):
    if ctx.rank == 0:
        ctx.comm.Barrier()
    print("the first line")
    if how == "child":
        subprocess.run([sys.executable, "-c", "while True: print('x' * 1000)"])
    while True:
        print("y" * 1000)


@pytest.mark.parametrize("how", ("print", "child"))
def test_a_rank_that_prints_for_ever_does_not_fill_the_disk(how, mark, monkeypatch):
    monkeypatch.setenv("COLLECTLAB_LOG_MIB", "3")
    run = cl.run(prints_for_ever, how, ranks=2, device="cpu")
    first, *more = run.report().splitlines()
    assert run.status == "failed" and "rank 1 printed more than 3 MiB; the variable COLLECTLAB_LOG_MIB" in first
    assert ('print("y" * 1000)' if how == "print" else "subprocess.run(") in "\n".join(more), run.report()
    assert "rank 0 was waiting in Barrier" in run.report()
    text = run.log(1)
    assert text.startswith("the first line\n") and text.endswith(("xxx\n", "yyy\n", "xxx", "yyy"))
    assert len(text) < 2.001 * (1 << 20) and "bytes of what was printed are left out here]\n" in text
    mark.gone()


def test_lines_and_bars_are_read_as_they_come(tmp_path):
    def bar(ctx, go):
        for share in (50, 100):
            sys.stdout.write(f"\r{share:3} %")  # no line ends here
            while share == 50 and not os.path.exists(go):
                time.sleep(0.01)
        os.write(2, b" done\n")

    with cl.launch(1, device="cpu") as ranks:
        run = ranks.submit(bar, str(tmp_path / "go"))
        wait_for(lambda: run.log(0) == "\r 50 %", complaint=lambda: repr(run.log(0)))
        (tmp_path / "go").touch()
        assert run.wait().log(0) == "\r 50 %\r100 % done\n"


def test_a_program_that_ruins_its_streams_does_not_harm_the_next():
    def ruins(ctx):
        sys.stdout.close()
        sys.stderr = None
        os.close(1)

    def prints(ctx):
        print("still here")
        return input() if ctx.rank else 1

    with cl.launch(2, device="cpu") as ranks:
        assert ranks.submit(ruins).wait().ok
        run = ranks.submit(prints).wait()
        assert run.log(0) == "still here\n"
        assert "rank 1 raised EOFError" in run.report(), "no rank may wait for a keyboard"


def test_a_stream_that_ends_the_program_ends_no_rank():
    def ruins(ctx):
        class Stream:
            def write(self, text):
                raise KeyboardInterrupt

            def flush(self):
                raise SystemExit(3)

        sys.stdout = sys.stderr = Stream()
        return ctx.rank

    assert cl.run(ruins, ranks=2, device="cpu").results == [0, 1]


def test_a_report_can_be_shown_whatever_an_error_says():
    def program(ctx):
        raise ValueError("a \ud800 is no letter")

    run = cl.run(program, ranks=1, device="cpu")
    assert "raised ValueError: a \\ud800 is no letter" in run.report().encode().decode()


def test_a_run_whose_directory_goes_before_it_begins_says_so():
    import shutil

    with cl.launch(2, device="cpu") as ranks:
        first = ranks.submit(lambda ctx: time.sleep(1))
        second = ranks.submit(lambda ctx: None)
        shutil.rmtree(second.path)
        assert first.wait().ok
        assert second.wait().status == "failed" and "raised FileNotFoundError" in second.report()
        assert second.path in second.report()
        assert ranks.submit(lambda ctx: ctx.rank).wait().results == [0, 1]


def test_a_module_that_starts_ranks_where_it_is_imported_does_not_multiply(tmp_path, monkeypatch, mark):
    (tmp_path / "lesson_of_mine.py").write_text("""
import collectlab

def program(ctx):
    return ctx.rank

run = collectlab.run(program, ranks=2, device="cpu", timeout=20)
""")
    monkeypatch.syspath_prepend(tmp_path)
    import lesson_of_mine

    said = lesson_of_mine.run.report()
    assert "raised RuntimeError: ranks are started by the module that this rank imports" in said
    assert "lesson_of_mine.py, line 7" in said
    mark.gone()


def test_what_hides_from_the_ranks_does_not_outlive_a_killed_supervisor(mark, tmp_path):
    seconds = str(time.time_ns() // 1_000_000)  # by which these sleepers are known

    def program(ctx, place):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve("/bin/sleep", ["sleep", seconds], {})
            os._exit(0)
        os.wait()
        ctx.comm.barrier()
        with open(place, "a") as found:
            found.write("there\n")
        time.sleep(600)

    def hidden():
        found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        return found.splitlines().count(f"sleep {seconds}")

    with cl.launch(2, device="cpu") as ranks:
        run = ranks.submit(program, str(tmp_path / "there"))
        wait_for(lambda: (tmp_path / "there").exists() and (tmp_path / "there").read_text().count("there") == 2)
        assert hidden() == 2
        ranks._link.process.kill()
        assert run.wait(20).status == "failed"
        wait_for(lambda: not hidden(), complaint=lambda: f"{hidden()} are alive")

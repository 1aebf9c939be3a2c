"""Interrupts, stops and kills, at any moment: bounded in time, nothing left, and the status says what happened."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import pytest
from jupyter_client.manager import start_new_kernel
from marks import wait_for

import collectlab as cl
from collectlab.launcher import link

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the environment of Open MPI has no pytest

NOTEBOOK = """
import os, sys, time
import collectlab as cl

def works(ctx):
    for i in range(5000):
        ctx.comm.allreduce(i)
        time.sleep(0.002)

def trivial(ctx):
    return ctx.rank

print("up", flush=True)
what = sys.argv[1]
try:
    if what == "run":
        cl.run(works, ranks=3, device="cpu")
    elif what == "fork":
        ranks = cl.launch(3, device="cpu")
        if os.fork() == 0:  # as multiprocessing does: the child holds a copy of every socket
            time.sleep(600)
        run = ranks.submit(works)
        print(run.path, flush=True)
        run.wait(None)
    else:
        while True:
            with cl.launch(3, device="cpu") as ranks:
                ranks.submit(trivial).wait()
                if what == "submit":
                    run = ranks.submit(works)
                    print(run.path, flush=True)
                    run.wait(None)
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def notebook():
    """Start a process that does `what`, as a notebook would; ended afterwards."""
    started = []

    def start(what):
        command = [sys.executable, "-c", NOTEBOOK, what]
        found = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(found)
        assert found.stdout.readline() == "up\n"
        return found

    yield start
    for found in started:
        os.killpg(found.pid, signal.SIGKILL)  # with what it has forked
        with found:
            found.stdin = None


def hangs(ctx):
    if ctx.rank:
        ctx.comm.Barrier()
    time.sleep(600)


def fine(ctx):
    return ctx.comm.allreduce(ctx.rank)


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def seconds(act):
    start = time.monotonic()
    act()
    return time.monotonic() - start


@pytest.mark.parametrize("act", ["interrupt", "stop"])
def test_from_another_thread_while_this_one_waits(act, mark, each_site):
    with cl.launch(3, device="cpu") as ranks:
        run = ranks.submit(hangs)
        queued = ranks.submit(fine)
        waits = threading.Thread(target=run.wait, args=(None,))
        waits.start()
        stuck = (
            "running for",
            "rank 0 was not in an MPI call  (test_life",
            "ranks 1 and 2 were waiting in Barrier",
        )
        wait_for(lambda: all(words in run.report() for words in stuck), complaint=run.report)
        assert run.status == "running"
        assert seconds(getattr(ranks, act)) < 3 and seconds(getattr(ranks, act)) < 3
        waits.join(3)
        assert not waits.is_alive()
        assert (run.status, queued.status) == ("interrupted", "interrupted")
        assert all(words in run.report() for words in stuck[1:])
        assert "ranks 0, 1 and 2 did not start" in queued.report()
        mark.gone()
        assert ranks.submit(fine).wait().results == [3] * 3, "the next submit starts new ranks"


def test_submitting_does_not_wait_for_another_threads_run():
    with cl.launch(2, device="cpu") as ranks:
        first = ranks.submit(lambda ctx: time.sleep(2))
        waits = threading.Thread(target=first.wait, args=(None,))
        waits.start()
        assert seconds(lambda: ranks.submit(fine)) < 1 and first.status == "running"
        waits.join()


ONE_WAITS = """
import os
if "2" in map(os.environ.get, ("PMI_RANK", "OMPI_COMM_WORLD_RANK")):
    open({gate!r})
"""


@pytest.mark.parametrize("act", ["interrupt", "stop"])
def test_while_starting(act, mark, each_site, tmp_path, monkeypatch):
    raised = []
    os.mkfifo(tmp_path / "gate")  # which nobody opens: two ranks wait in MPI_Init for the third
    (tmp_path / "sitecustomize.py").write_text(ONE_WAITS.format(gate=str(tmp_path / "gate")))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def start():
        try:
            ranks.start()
        except RuntimeError as error:
            raised.append(str(error))

    from collectlab.launcher.ranks import Ranks

    ranks = Ranks(3, device="cpu")
    starts = threading.Thread(target=start)
    starts.start()
    wait_for(lambda: mark.pids("worker"))
    assert seconds(getattr(ranks, act)) < 3 and seconds(getattr(ranks, act)) < 3
    starts.join(3)
    assert not starts.is_alive() and raised and act in raised[0]
    mark.gone()


def lingers(ctx):
    import atexit

    atexit.register(time.sleep, 600)
    ctx.comm.isend(bytes(1 << 20), (ctx.rank + 1) % ctx.nranks)  # never received: MPI has something to finish


@pytest.mark.parametrize("act", ["interrupt", "stop"])
def test_while_stopping(act, mark, each_site):
    ranks = cl.launch(2, device="cpu")
    assert ranks.submit(lingers).wait().ok
    stops = threading.Thread(target=ranks.stop)
    stops.start()
    assert seconds(getattr(ranks, act)) < 3 and seconds(getattr(ranks, act)) < 3
    stops.join(3)
    assert not stops.is_alive()
    mark.gone()


def test_what_was_done_before_an_interrupt_stays_readable(each_site):
    def partly(ctx):
        print("so far")
        if ctx.rank == 0:
            return list(range(1000))
        time.sleep(600)

    with cl.launch(2, device="cpu") as ranks:
        before = ranks.submit(fine).wait()
        run = ranks.submit(partly)
        wait_for(lambda: "rank 0 returned" in run.report() and run.log(1) == "so far\n", complaint=run.report)
        ranks.interrupt()
        assert run.status == "interrupted" and run.results == [list(range(1000)), None]
        assert run.log(0) == run.log(1) == "so far\n" and cl.attach(run.path).results == run.results
        assert before.results == [1, 1]


def test_idle_ranks_survive_an_interrupt_and_leave_at_a_stop(mark):
    ranks = cl.launch(2, device="cpu")
    before = mark.alive()
    assert seconds(ranks.interrupt) < 1 and mark.alive() == before and "ready" in repr(ranks)
    assert seconds(ranks.stop) < 3 and seconds(ranks.stop) < 1 and "stopped" in repr(ranks)
    mark.gone()


def test_a_run_that_fails_ends_what_is_queued_and_the_next_submit_starts_anew():
    with cl.launch(2, device="cpu") as ranks:
        first = ranks.submit(lambda ctx: 1 / ctx.rank)
        second = ranks.submit(fine)
        second.wait()
        assert second.status == "failed" and "the run before it ended the ranks" in second.report()
        assert "rank 0 raised ZeroDivisionError" in first.report() and "rank 0" not in repr(second)
        for _ in range(4):
            assert ranks.submit(lambda ctx: 1 / ctx.rank).wait().status == "failed"
            assert ranks.submit(fine).wait().results == [1, 1], "however soon it comes"


def test_ranks_that_are_dropped_end(mark):
    ranks = cl.launch(2, device="cpu")
    assert ranks.submit(fine).wait().ok
    del ranks
    mark.gone()


@pytest.mark.parametrize("victim", ["supervisor", "mpiexec", "worker"])
def test_idle_ranks_whose_processes_are_killed_end_and_start_anew(victim, mark):
    with cl.launch(2, device="cpu") as ranks:
        for pid in mark.pids(victim)[:1]:
            os.kill(pid, signal.SIGKILL)
        mark.gone()
        assert ranks.submit(fine).wait().results == [1, 1]


@pytest.mark.parametrize("wait", [0, 0.1])
@pytest.mark.parametrize("victim", ["launcher", "guard", "rank"])
def test_a_run_for_idle_ranks_that_are_about_to_end_goes_to_new_ones(victim, wait, mark, each_site):
    """It comes before the supervisor knows, or while it looks for what else has ended."""
    with cl.launch(3, device="cpu") as ranks:
        tree = {pid: parent_of(pid) for pid in mark.alive()}
        kinds = {"rank": set(tree) - set(tree.values()) - set(mark.pids("supervisor"))}  # one of those is its heir
        kinds["guard"] = {tree[pid] for pid in kinds["rank"]}
        kinds["launcher"] = {tree[pid] for pid in kinds["guard"]}
        assert len(kinds["guard"]) == len(kinds["rank"]) == 3
        os.kill(max(kinds[victim]), signal.SIGKILL)
        time.sleep(wait)
        run = ranks.submit(fine).wait(8)
        assert run.results == [3, 3, 3] or run.status == "failed", run.report()
        assert ranks.submit(fine).wait().results == [3, 3, 3]


def test_a_supervisor_that_does_not_answer_is_given_up(mark):
    with cl.launch(2, device="cpu") as ranks:
        run = ranks.submit(hangs)
        (supervisor,) = mark.pids("supervisor")
        os.kill(supervisor, signal.SIGSTOP)
        assert seconds(ranks.interrupt) < 5.5
        assert run.status == "failed" and "supervisor of the ranks did not answer" in run.report()
        mark.gone()


def stops_its_supervisor(ctx):
    pid = os.getpid()
    for _ in range(3):  # its guard, their launcher, the supervisor
        pid = parent_of(pid)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(600)


@pytest.mark.parametrize(("program", "late"), [(stops_its_supervisor, 0.5), (hangs, -0.9)], ids=["stopped", "slow"])
def test_a_run_whose_supervisor_is_stopped_ends_soon_after_its_timeout(program, late, mark, monkeypatch):
    monkeypatch.setattr(link, "_LATE", late)
    run = cl.run(program, ranks=1, device="cpu", timeout=1)
    assert run.status == "failed" and "supervisor of the ranks did not answer" in run.report()
    mark.gone()


def test_a_run_that_comes_as_the_supervisor_is_killed_goes_to_new_ranks(mark):
    with cl.launch(2, device="cpu") as ranks:
        there = ranks._link.process
        os.kill(there.pid, signal.SIGSTOP)
        run = ranks.submit(fine)  # which the socket keeps
        os.kill(there.pid, signal.SIGKILL)
        assert run.wait(20).results == [1, 1], run.report()
    mark.gone()


@pytest.mark.parametrize("why", ["it has begun", "a stop has come", "it does not answer"])
def test_a_run_does_not_outlive_its_supervisor_where(why, mark):
    with cl.launch(2, device="cpu") as ranks:
        there, stops = ranks._link, threading.Thread(target=ranks.stop)
        if why != "it has begun":
            os.kill(there.process.pid, signal.SIGSTOP)
        run = ranks.submit(hangs)
        if why == "it has begun":
            wait_for(lambda: os.path.exists(os.path.join(run.path, "log.0")))
        elif why == "a stop has come":
            stops.start()
            wait_for(lambda: there.unwanted)
        if why == "it does not answer":
            there.give_up()
        else:
            os.kill(there.process.pid, signal.SIGKILL)
        wait_for(lambda: run.status != "running")
        fallen = "did not answer" if why == "it does not answer" else "was killed"
        assert run.status == "failed" and f"the supervisor of the ranks {fallen}" in run.report()
        assert ranks._link is None
        if why == "a stop has come":
            stops.join()
    mark.gone()


def test_a_file_system_that_does_not_answer_holds_up_no_interrupt(mark, each_site):
    with cl.launch(2, device="cpu") as ranks:
        run = ranks.submit(hangs)
        wait_for(lambda: "rank 1 was waiting in Barrier" in run.report())
        draft = f"{run.path}/status.json.{ranks._link.process.pid}"
        os.mkfifo(draft)  # to write there is to wait for somebody who reads
        assert seconds(ranks.interrupt) < 3
        os.unlink(draft)
        assert run.status == "interrupted" and "rank 1 was waiting in Barrier" in run.report()
        mark.gone()
        assert ranks.submit(fine).wait().results == [1, 1]


KILLS_ALL = """#!/bin/sh
kill -9 "$PPID" "$NOTEBOOK"
mkdir "$TMPDIR/session.$$"
sleep 600
"""
SITE = """
command = ["{launcher}", "{{n}}"]
rank = "R"
local_rank = "L"
leaves = ["{{tmp}}/session.{{pid}}"]
needs = "a launcher that kills"
"""
BEGINS = """
import os
import collectlab as cl
os.environ["NOTEBOOK"] = str(os.getpid())
cl.launch(2, device="cpu", site="kills")
"""


def test_notebook_and_supervisor_are_killed_as_the_launcher_begins(mark, tmp_path, monkeypatch):
    launcher = tmp_path / "kills"
    launcher.write_text(KILLS_ALL)
    launcher.chmod(0o755)
    (tmp_path / "kills.toml").write_text(SITE.format(launcher=launcher))
    monkeypatch.setenv("COLLECTLAB_SITES", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", BEGINS], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    mark.gone()


WITHDRAWS = """#!/bin/sh
echo withdrawn >>"$0.said"
mkdir "$0.first" && kill -9 "$NOTEBOOK" "$PPID"
"""  # in this order, as the notebook would withdraw it too


def test_notebook_and_supervisor_are_killed_as_a_job_is_withdrawn(mark, tmp_path, monkeypatch):
    withdraws = tmp_path / "withdraws"
    withdraws.write_text(WITHDRAWS)
    withdraws.chmod(0o755)
    local = Path(cl.__file__).parents[1] / "launch" / "sites" / "local.toml"
    (tmp_path / "kills.toml").write_text(f"cancel = ['{withdraws}', '{{job}}']\n" + local.read_text())
    monkeypatch.setenv("COLLECTLAB_SITES", str(tmp_path))
    ends = BEGINS.replace("cl.", "ranks = cl.") + "ranks.submit(lambda ctx: ctx.comm.recv())\nranks.interrupt()"
    done = subprocess.run([sys.executable, "-c", ends], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    mark.gone()
    assert (tmp_path / "withdraws.said").read_text() == "withdrawn\n" * 2  # by the supervisor, and by its heir


@pytest.mark.parametrize("what", ["submit", "fork"])
def test_the_notebook_process_is_killed(what, notebook, mark, each_site):
    child = notebook(what)
    path = child.stdout.readline().strip()
    run = cl.attach(path)
    wait_for(lambda: os.path.exists(os.path.join(path, "log.2")))
    assert run.status == "running" and len(mark.alive()) > 6
    forked = [pid for pid, command in mark.alive().items() if NOTEBOOK.split()[-1] in command]
    child.kill()
    mark.gone(but=forked)
    assert run.status == "interrupted" and "because the notebook process went away" in run.report()


def test_attached_from_elsewhere_a_run_is_followed_to_its_end(notebook, mark):
    child = notebook("submit")
    run = cl.attach(child.stdout.readline().strip())
    assert run.wait(0.1).status == "running" and run.results == [None] * 3
    assert "ranks 0, 1 and 2 cannot be asked from here" in run.report()
    child.send_signal(signal.SIGINT)
    assert run.wait(5).status == "interrupted"


@pytest.fixture
def kernel():
    """A kernel of JupyterLab: `run(cell)` gives what is shown under it, as (stream text, tracebacks)."""
    manager, client = start_new_kernel(extra_arguments=["--log-level=ERROR"])

    def run(cell, meanwhile=lambda: None):
        shown = "", []
        asked = client.execute(cell)
        meanwhile()
        while True:
            message = client.get_iopub_msg(timeout=20)
            kind, content = message["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") == asked:
                if kind == "status" and content["execution_state"] == "idle":
                    return shown
                if kind == "stream":
                    shown = shown[0] + content["text"], shown[1]
                if kind == "error":
                    shown[1].append(content["traceback"])

    run.interrupt = manager.interrupt_kernel
    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


HANGS = """
import time
import collectlab as cl

def hangs(ctx):
    if ctx.rank:
        ctx.comm.Barrier()
    print("here")
    time.sleep(600)
"""


def test_an_interrupted_cell_shows_the_report_and_one_line(each_site, kernel, mark, tmp_path):
    def when_ranks_wait():
        wait_for(lambda: [log for log in tmp_path.glob("runs/*/log.0") if log.read_text() == "here\n"])
        kernel.interrupt()

    assert kernel(HANGS) == ("", [])
    for cell in (
        "cl.run(hangs, ranks=2, device='cpu')",
        "with cl.launch(2) as r:\n    r.submit(hangs).wait(None)",
    ):
        text, tracebacks = kernel(cell, when_ranks_wait)
        assert text.startswith("interrupted: hangs on 2 ranks was interrupted after ")
        assert "rank 0 was not in an MPI call  (cell 1, line 8, in hangs:  time.sleep(600))" in text
        assert tracebacks == [["KeyboardInterrupt: hangs was interrupted; its report stands above"]]
        for log in tmp_path.glob("runs/*/log.0"):
            log.unlink()
    assert len(kernel("1 / 0")[1][0]) > 2, "any other traceback is as long as ever"


SEEDS = [("local", seed) for seed in range(6)]
SEEDS += [pytest.param("openmpi", seed, marks=pytest.mark.needs("Open MPI")) for seed in range(3)]


@pytest.mark.parametrize(("site", "seed"), SEEDS)
def test_ctrl_c_at_a_random_moment_once_or_twice(site, seed, notebook, mark, monkeypatch):
    monkeypatch.setenv("COLLECTLAB_SITE", site)
    chance = random.Random(seed)
    child = notebook(["run", "submit", "cycle"][seed % 3])
    time.sleep(chance.random() * 0.8)  # a moment is what is being drawn
    for _ in range(chance.choice((1, 2))):
        child.send_signal(signal.SIGINT)
        time.sleep(chance.choice((0.0005, 0.01, 0.1)))
    mark.gone(but=[child.pid])


# put before what a supervisor does: its notebook is killed, and it is not yet told
KILLER = """
import os, sys, time

def kill_notebook():
    notebook = os.getppid()
    os.kill(notebook, 9)
    while os.getppid() == notebook:
        time.sleep(0.001)
"""
STARTED = """
pidfd_open = os.pidfd_open

def late(pid):  # by then the launcher has started, and may come as far as it does
    os.pidfd_open = pidfd_open
    kill_notebook()
    from collectlab.launcher import sweep
    while len(sweep.tagged(os.environ[sweep.TAG])) < 4:
        time.sleep(0.001)
    return pidfd_open(pid)

os.pidfd_open = late
"""
TELLS = """
def send(self, fds=(), **message):
    if message["op"] == "{op}":
        kill_notebook()
    self.put(wire.packed(message), fds)

sys.path.append("{root}")
from collectlab.launcher import wire
wire.Channel.send = send
"""
KILLED = """
import sys
import collectlab as cl
from collectlab.launcher import link

fault = repr(sys.argv[1]).replace("{", "{{").replace("}", "}}")
link.START = f"if {{module!r}} == 'supervisor': exec({fault})\\n{link.START}"
cl.run(lambda ctx: ctx.rank, ranks=3, device="cpu")
"""


@pytest.mark.parametrize("op", ["started", "launcher", "ready", "done"])
def test_the_notebook_process_is_killed_as_its_supervisor_acts(op, mark, each_site, tmp_path):
    fault = STARTED if op == "started" else TELLS.format(op=op, root=link.ROOT)
    child = subprocess.Popen([sys.executable, "-c", KILLED, KILLER + fault])
    assert child.wait(20) == -signal.SIGKILL
    mark.gone()
    words = {"because the notebook process went away"}
    if op in ("started", "launcher"):  # it may not have come to hand the run over
        words.add("or the notebook before it had handed the run over")
    for spec in (tmp_path / "runs").glob("*/spec.json"):
        run = cl.attach(spec.parent)
        assert run.ok if op == "done" else any(said in run.report() for said in words), run.report()


KILLS = ["supervisor", "mpiexec", "worker", "worker worker worker", "notebook", "notebook supervisor",
         "notebook supervisor mpiexec", "supervisor mpiexec"]  # fmt: skip


@pytest.mark.parametrize("victims", KILLS)
def test_kills_at_a_random_moment(victims, notebook, mark, tmp_path):
    chance = random.Random(victims)
    child = notebook("submit")
    time.sleep(chance.random())  # a moment is what is being drawn
    doomed = []
    for victim in victims.split():
        pids = [child.pid] if victim == "notebook" else mark.pids(victim)
        doomed += [pid for pid in chance.sample(pids, min(1, len(pids))) if pid not in doomed]
    for pid in doomed:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    if child.pid not in doomed:
        child.send_signal(signal.SIGINT)
    mark.gone(but=[child.pid])
    for path in (tmp_path / "runs").glob("*"):
        if (path / "spec.json").exists():
            run = cl.attach(path)
            assert run.status in ("done", "failed", "interrupted") and run.report().startswith(run.status)


def test_idle_ranks_use_no_processor(mark, each_site):
    def ticks():
        found = 0
        for pid in mark.alive():
            with open(f"/proc/{pid}/stat") as f:
                found += sum(map(int, f.read().rpartition(")")[2].split()[11:13]))
        return found

    with cl.launch(4, device="cpu") as ranks:
        ranks.submit(fine).wait()
        before, switches = ticks(), _switches(mark)
        time.sleep(2)  # the idleness that is looked at
        assert ticks() - before <= 1 and _switches(mark) - switches < 200


def _switches(mark):
    found = 0
    for pid in mark.alive():
        with open(f"/proc/{pid}/status") as f:
            found += sum(int(line.split()[1]) for line in f if "ctxt_switches" in line)
    return found


ON_A_GPU = """
import sys, time
import collectlab as cl

def holds(ctx):
    kept = ctx.xp.ones(1 << 28)  # 2 GiB
    print("here")
    time.sleep(600)

cl.run(holds, ranks=2, device="cuda", timeout=600)
"""


@pytest.mark.needs("gpu")
def test_a_killed_notebook_leaves_nothing_on_the_gpu(mark, tmp_path):
    def used():  # MiB on the first GPU
        ask = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return int(subprocess.run(ask, capture_output=True, text=True, check=True).stdout)

    before = used()
    with subprocess.Popen([sys.executable, "-c", ON_A_GPU]) as child:
        logs = tmp_path / "runs"
        wait_for(lambda: [log.read_text() for log in logs.glob("*/log.*")] == ["here\n"] * 2, 60)
        assert used() > before + 2000
        child.kill()
    mark.gone()
    wait_for(lambda: used() < before + 200, 10, lambda: f"{before} MiB became {used()} MiB")


def starts_more(ctx, delay):
    """Rank 0 starts ranks of its own, and rank 1 fails while they come up."""
    ctx.comm.Barrier()
    if ctx.rank == 0:
        cl.run(hangs, ranks=4, device="cpu")
    time.sleep(delay)
    raise ValueError("enough")


@pytest.mark.parametrize("delay", (0.0, 0.05, 0.1, 0.15, 0.2))
def test_ranks_that_a_program_starts_end_with_it(delay, mark):
    run = cl.run(starts_more, delay, ranks=2, device="cpu")
    assert run.status == "failed" and "rank 1 raised ValueError: enough" in run.report()

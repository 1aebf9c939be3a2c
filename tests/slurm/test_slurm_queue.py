"""From a login node: a start asks for an allocation, says how it stands in the queue, and leaves no job there."""

import os
import signal
import time

import pytest
from marks import wait_for
from slurm_cluster import pid_of

pytestmark = pytest.mark.needs("slurm")


@pytest.fixture
def filled(cluster):
    """All of the cluster is taken; call it to give it back."""
    cluster.said("sbatch", "--nodes=2", "--exclusive", "--job-name=other", "--output=/dev/null", "--wrap=sleep 600")
    wait_for(lambda: cluster.said("squeue", "-h", "-t", "RUNNING", "-o", "%j").split() == ["other"])

    def empty():
        cluster.said("scancel", "--name=other")

    yield empty
    empty()


@pytest.fixture
def login(script):
    """A script that is in no allocation."""
    return lambda code, *arguments, **more: script(code, *arguments, within=(), **more)


WAITS = """
from collectlab.launcher.ranks import Ranks
ranks = Ranks(4, device="cpu", site="slurm-queue")
run = ranks.submit(fine)
while not (ranks.note and "reason" in ranks.note):
    time.sleep(0.01)
tell(note=ranks.note, report=run.report(), status=run.status, glance=str(run.glance()))
"""


def test_ranks_from_a_login_node(login):
    said = login("""
run = cl.run(where, ranks=4, device="cpu", site="slurm-queue")
tell(results=run.results, report=run.report(), hosts=run.rank_map.hosts)
""").answer()
    assert said["results"] == [[6, "n1"], [6, "n1"], [6, "n2"], [6, "n2"]], said["report"]
    assert said["hosts"] == ["n1", "n1", "n2", "n2"]


def test_a_start_that_waits_says_how_it_stands_and_goes_on_when_there_is_room(login, filled):
    going = login(WAITS + """
run.wait(None)
tell(results=run.results, note=ranks.note)
ranks.stop()
""", COLLECTLAB_START_SECONDS="3")  # fmt: skip
    said = going.told()
    assert said["note"] == "in the queue, no other job waits; reason: Resources"
    assert said["status"] == "running" and said["report"].splitlines()[0].endswith(f": {said['note']}")
    assert said["note"] in said["glance"].splitlines()[0]
    time.sleep(3.5)  # longer than a start may take: waiting in the queue does not count
    filled()
    assert going.answer() == {"results": [6] * 4, "note": None}


def test_the_place_in_the_queue(login, filled, cluster):
    cluster.said("sbatch", "--nodes=2", "--job-name=other", "--output=/dev/null", "--wrap=sleep 600")
    going = login(WAITS)
    assert going.told()["note"].startswith("in the queue, number 2 of 2 that wait; reason: ")
    going.process.wait(10)


@pytest.mark.parametrize("act", ("interrupt", "stop", "Ctrl-C"))
def test_a_start_that_is_ended_while_it_waits_leaves_no_job(act, login, filled, cluster):
    going = login(WAITS + """
began = time.monotonic()
try:
    if given[0] == "Ctrl-C":
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        run.wait()
    else:
        getattr(ranks, given[0])()
except KeyboardInterrupt:
    pass
tell(status=run.status, report=run.report(), seconds=time.monotonic() - began)
input()
""", act)  # fmt: skip
    going.told()
    said = going.told()
    assert said["status"] == "interrupted" and said["seconds"] < 3, said
    assert cluster.said("squeue", "-h", "-t", "PENDING") == ""
    going.go_on()


def test_an_interrupt_at_any_moment_of_a_start_leaves_no_job(login, cluster):
    said = login("""
from collectlab.launcher.ranks import Ranks
slowest = 0
for pause in (0, 0.02, 0.04, 0.06, 0.1, 0.2, 0.4, 0.6):
    ranks = Ranks(4, device="cpu", site="slurm-queue")
    run = ranks.submit(naps)
    time.sleep(pause)
    began = time.monotonic()
    ranks.interrupt()
    slowest = max(slowest, time.monotonic() - began)
    assert run.status == "interrupted", run.report()
tell(slowest=slowest)
""").answer()
    assert said["slowest"] < 3


@pytest.mark.parametrize("who", ("notebook", "supervisor", "salloc", "notebook and supervisor"))
def test_a_kill_while_it_waits_leaves_no_job(who, login, filled, cluster, mark):
    going = login(WAITS + "run.wait(20); tell(status=run.status, report=run.report())\nranks.stop()\n")
    going.told()
    for pid in [pid_of(mark, kind) for kind in who.split(" and ")]:
        os.kill(pid, signal.SIGKILL)
    if "notebook" not in who:
        said = going.told()
        assert said["status"] == "failed", said["report"]
    wait_for(lambda: not cluster.said("squeue", "-h", "-t", "PENDING"), 3, lambda: cluster.said("squeue"))


@pytest.mark.parametrize("who", ("supervisor", "salloc", "notebook and supervisor"))
def test_a_kill_while_it_runs_leaves_no_job_and_no_process(who, login, cluster, mark):
    going = login("""
ranks = cl.launch(4, device="cpu", site="slurm-queue")
run = ranks.submit(naps)
while not os.path.exists(os.path.join(run.path, "log.3")):
    time.sleep(0.01)
tell(up=True)
run.wait(20)
tell(status=run.status, report=run.report())
""")
    going.told()
    for pid in [pid_of(mark, kind) for kind in who.split(" and ")]:
        os.kill(pid, signal.SIGKILL)
    if "notebook" not in who:
        said = going.told()
        assert said["status"] == "failed", said["report"]
    mark.gone(5)
    wait_for(lambda: not cluster.jobs(), 3, lambda: cluster.said("squeue"))


START = """
began = time.monotonic()
run = cl.run(fine, ranks=given[0], device="cpu", site="slurm-queue")
tell(status=run.status, first=run.report().splitlines()[0], report=run.report())
"""
REFUSED = {
    "no such partition": (4, {"SALLOC_PARTITION": "nowhere"}, "invalid partition specified: nowhere; set SALLOC_"),
    "too many ranks": (99, {}, ": take fewer ranks, or set SALLOC_"),
    "too much time": (2, {"SALLOC_PARTITION": "short", "SALLOC_TIMELIMIT": "30"}, "set SALLOC_TIMELIMIT"),
    "too many nodes": (4, {"SALLOC_PARTITION": "short"}, "configuration is not available; no partition node"),
    "no such node": (1, {"SALLOC_CONSTRAINT": "moon"}, "Invalid feature specification; see the variables SALLOC_"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_slurm_refuses_is_said_in_one_line(case, login):
    nranks, variables, words = REFUSED[case]
    said = login(START, nranks, **variables).answer()
    assert said["status"] == "failed" and " did not start: " in said["first"], said["report"]
    assert words in said["first"], said["report"]


def test_a_job_that_is_cancelled_from_outside_is_told(login, cluster):
    going = login("""
ranks = cl.launch(4, device="cpu", site="slurm-queue")
run = ranks.submit(naps)
while not os.path.exists(os.path.join(run.path, "log.3")):
    time.sleep(0.01)
tell(up=True)
run.wait(20)
tell(status=run.status, report=run.report())
""")
    going.told()
    (name,) = cluster.jobs()
    assert name.startswith("collectlab-")
    cluster.said("scancel", f"--name={name}")
    said = going.told()
    assert said["status"] == "failed" and "Slurm has ended this job" in said["report"], said["report"]

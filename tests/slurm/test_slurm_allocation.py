"""Inside an allocation of two nodes: ranks on both, what they leave behind when something dies, and what is said of a
site that cannot start any.
"""

import os
import re
import signal

import pytest
from marks import wait_for
from slurm_cluster import INSIDE, ROOT, pid_of

pytestmark = pytest.mark.needs("slurm")


def test_ranks_on_two_nodes_compute_and_say_where_they_are(script):
    said = script("""
import numpy as np

def program(ctx, x):
    kernels = cl.kernels.mesh, cl.kernels.two_phase, cl.kernels.ring
    print("rank", ctx.rank, "prints")
    host = os.uname().nodename, os.environ["SLURMD_NODENAME"]
    return host, ctx.comm.allreduce(ctx.rank), [kernel.all_reduce(ctx, x).tolist() for kernel in kernels]

xs = [np.arange(6) + rank for rank in range(4)]
run = cl.run(program, cl.per_rank(xs), ranks=4, device="cpu", site="slurm")
tell(report=run.report(), results=run.results, places=[vars(place) for place in run.rank_map.places],
     log=run.log(3), races=len(run.trace.races()), traffic=int(run.traffic.sum()), want=sum(xs).tolist())
""").answer()
    results = said["results"]
    assert results, said["report"]
    hosts = [host for (host, name), *_ in results if host == name]
    assert hosts == ["n1", "n1", "n2", "n2"]
    assert [(total, ys) for _, total, ys in results] == [(6, [said["want"]] * 3)] * 4
    places = [(place["host"], place["device"], place["local_rank"]) for place in said["places"]]
    assert places == [("n1", "cpu:0", 0), ("n1", "cpu:1", 1), ("n2", "cpu:0", 0), ("n2", "cpu:1", 1)]
    assert said["log"] == "rank 3 prints\n" and said["races"] == 0 and said["traffic"] > 0


def test_two_ranks_take_a_node_each(script):
    said = script("""
run = cl.run(lambda ctx: os.uname().nodename, ranks=2, device="cpu", site="slurm")
tell(results=run.results, hosts=run.rank_map.hosts)
""").answer()
    assert said == {"results": ["n1", "n2"], "hosts": ["n1", "n2"]}


def test_a_rank_that_raises_is_told_with_those_on_the_other_node_and_the_next_run_works(script):
    said = script("""
def program(ctx):
    if ctx.rank == 3:
        raise ValueError("not I")
    ctx.comm.barrier()

with cl.launch(4, device="cpu", site="slurm") as ranks:
    run = ranks.submit(program).wait()
    tell(report=run.report(), status=run.status, next=ranks.submit(fine).wait().results)
""").answer()
    assert said["status"] == "failed" and said["report"].startswith("failed after")
    assert "rank 3 raised ValueError: not I" in said["report"]
    assert "ranks 0, 1 and 2 were waiting in barrier, their 1st collective" in said["report"]
    assert said["next"] == [6] * 4


def test_a_run_that_hangs_on_one_node_ends_in_time_and_says_who_waits(script):
    said = script("""
def program(ctx):
    if ctx.rank == 2:
        naps(ctx)
    ctx.comm.barrier()

run = cl.run(program, ranks=4, device="cpu", site="slurm", timeout=1)
tell(report=run.report(), status=run.status)
""").answer()
    assert said["status"] == "timeout", said["report"]
    assert "ranks 0, 1 and 3 were waiting in barrier" in said["report"]
    assert "rank 2 was not in an MPI call  (<string>, line" in said["report"] and "in naps" in said["report"]


LIVES = """
ranks = cl.launch(4, device="cpu", site="slurm")

def program(ctx):
    import subprocess
    subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
    print("began")
    return naps(ctx)

run = ranks.submit(program)
while not all(run.log(rank) for rank in range(4)):
    time.sleep(0.01)
tell(up=True)
run.wait(20)
tell(status=run.status, report=run.report(), next=ranks.submit(fine).wait().results)
ranks.stop()
"""


def workers(mark):
    """The pids of ranks and their guards, by node."""
    found = {"n1": [], "n2": []}
    for pid in mark.pids("worker"):
        with open(f"/proc/{pid}/environ") as variables:
            node = re.search("SLURMD_NODENAME=([^\0]*)", variables.read())
        if node:  # and not srun, which names a rank's words
            found[node[1]].append(pid)
    return found


@pytest.mark.parametrize("who", ("rank on n2", "srun", "supervisor"))
def test_a_kill_leaves_nothing_on_either_node_and_the_next_run_works(who, script, mark):
    going = script(LIVES)
    going.told()
    kind, _, node = who.partition(" on ")
    victim = max(workers(mark)[node]) if node else pid_of(mark, kind)
    before = set(mark.alive())
    os.kill(victim, signal.SIGKILL)
    said = going.told()
    assert said["status"] == "failed" and said["next"] == [6] * 4, said["report"]
    why = {"srun": "srun ended before them (killed by SIGKILL", "supervisor": "the supervisor of the ranks was"}
    assert why.get(who, "was killed by SIGKILL") in said["report"].splitlines()[0]
    going.process.wait(10)
    wait_for(lambda: not before & set(mark.alive()), 3)


def test_a_notebook_that_is_killed_takes_all_with_it(script, mark):
    going = script(LIVES)
    going.told()
    os.kill(pid_of(mark, "notebook"), signal.SIGKILL)
    mark.gone(5)


def test_interrupt_and_stop_end_both_nodes(script):
    said = script("""
ranks, ended = cl.launch(4, device="cpu", site="slurm"), []
for act in (ranks.interrupt, ranks.stop):
    run = ranks.submit(naps)
    while not os.path.exists(os.path.join(run.path, "log.3")):
        time.sleep(0.01)
    began = time.monotonic()
    act()
    ended.append((run.status, time.monotonic() - began < 3))
tell(ended=ended)
""").answer()
    assert said["ended"] == [["interrupted", True]] * 2


# GPUs: Slurm deals out two on each node; a stand-in for CuPy takes what CUDA_VISIBLE_DEVICES names

CUPY = """
import os
from numpy import *
seen = [word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word]

class cuda:
    class runtime:
        getDeviceCount = staticmethod(lambda: len(seen))
        deviceGetPCIBusId = staticmethod(lambda at: f"0000:0{seen[at]}:00.0")

    class Device:
        def __init__(self, at):
            self.at = at

        def use(self):
            seen[self.at]
"""
PLACES = """
for site in given:
    run = cl.run(lambda ctx: os.environ["CUDA_VISIBLE_DEVICES"], ranks=4, device="cuda", site=site)
    places = [(place.host, place.device, place.identity) for place in run.rank_map.places]
    tell(seen=run.results, places=places, report=run.report())
"""
GPU_PLACES = [
    ["n1", "cuda:0", "0000:00:00.0"], ["n1", "cuda:1", "0000:01:00.0"],
    ["n2", "cuda:0", "0000:00:00.0"], ["n2", "cuda:1", "0000:01:00.0"],
]  # fmt: skip


def test_a_rank_takes_a_gpu_of_its_node_or_the_one_that_slurm_bound_it_to(script, tmp_path):
    (tmp_path / "cupy.py").write_text(CUPY)
    (tmp_path / "sites").mkdir()
    site = (ROOT / "launch" / "sites" / "slurm.toml").read_text()
    (tmp_path / "sites" / "bound.toml").write_text(site.replace('"--overlap"', '"--gpus-per-task=1", "--overlap"'))
    variables = {"PYTHONPATH": str(tmp_path), "COLLECTLAB_SITES": str(tmp_path / "sites")}
    going = script(PLACES, "slurm", "bound", within=(*INSIDE, "--gpus-per-node=2"), **variables)
    for seen in (["0,1"] * 4, ["0", "1"] * 2):
        said = going.told()
        assert said["seen"] == seen, said["report"]
        assert said["places"] == GPU_PLACES


# what cannot start

START = """
try:
    run = cl.run(fine, ranks=given[0], device="cpu", site="slurm")
    tell(status=run.status, said=run.report())
except OSError as error:
    tell(status="raised", said=str(error))
"""


def test_an_allocation_that_is_too_small_says_so(script):
    said = script(START, 5).answer()
    first = said["said"].splitlines()[0]
    assert said["status"] == "failed" and first.startswith("failed: fine on 5 ranks did not start: "), said["said"]
    assert "the allocation has fewer CPUs than that: take fewer ranks" in first


def test_an_allocation_that_is_over_says_so(script):
    said = script(START, 4, within=(), SLURM_JOB_ID="424242").answer()
    first = said["said"].splitlines()[0]
    assert said["status"] == "failed" and "this allocation is over: ask for a new one" in first, said["said"]


def test_an_allocation_that_ends_during_a_run_says_so(script, cluster):
    going = script("""
ranks = cl.launch(4, device="cpu", site="slurm")
run = ranks.submit(naps)
while not os.path.exists(os.path.join(run.path, "log.3")):
    time.sleep(0.01)
tell(job=os.environ["SLURM_JOB_ID"])
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # salloc sends it to what it has started
run.wait(20)
tell(status=run.status, report=run.report())
""")
    cluster.said("scancel", going.told()["job"])
    said = going.told()
    assert said["status"] == "failed" and "the launcher said: " in said["report"], said["report"]
    assert "CANCELLED AT" in said["report"] and "Slurm has ended this job" in said["report"]


def test_outside_of_an_allocation_the_site_says_what_it_needs(script):
    said = script(START, 4, within=()).answer()
    assert said["status"] == "raised"
    assert "the variable SLURM_JOB_ID is not set" in said["said"] and "site='slurm-queue'" in said["said"]


def test_without_srun_the_site_says_what_it_needs(script, tmp_path):
    said = script(START, 4, within=(), SLURM_JOB_ID="1", PATH=str(tmp_path)).answer()
    assert said["status"] == "raised"
    assert "needs Slurm's srun" in said["said"] and "srun was not found" in said["said"]


# JupyterLab that srun has started

STEP = ("srun", "--nodes=1", "--ntasks=1", "--mpi=pmi2")


def test_a_process_that_srun_started_has_ranks_of_both_kinds(script):
    said = script("""
tell(step=os.environ["SLURM_STEP_ID"], pmi=os.environ["PMI_SIZE"], nodes=os.environ["SLURM_NNODES"],
     here=cl.run(where, ranks=3, device="cpu").results,
     all=cl.run(where, ranks=4, device="cpu", site="slurm").results)
""", within=(*INSIDE, *STEP)).answer()
    assert (said["step"], said["pmi"], said["nodes"]) == ("0", "1", "1"), "an outer launcher's variables are there"
    assert said["here"] == [[3, "n1"]] * 3
    assert said["all"] == [[6, "n1"], [6, "n1"], [6, "n2"], [6, "n2"]]

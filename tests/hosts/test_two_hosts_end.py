"""However ranks on two hosts end, nothing stays on either, and the next run works."""

import os
import signal
import time

import pytest
from marks import wait_for
from two_hosts import parent

pytestmark = pytest.mark.needs("second host")

BUSY = """
    def busy(ctx):
        import os, subprocess, time
        if ctx.rank in (1, 3):  # what a program starts, in a session of its own
            subprocess.Popen(["sleep", "600"], start_new_session=True)
        ctx.comm.barrier()
        print("go", flush=True)
        time.sleep(600) if ctx.rank < 3 else ctx.comm.barrier()

    run = ranks.submit(busy)
    words = "not in an MPI call", "waiting in barrier"
    until(lambda: run.log(3) and all(word in run.report() for word in words), run.report)
"""


@pytest.fixture
def busy(hosts, notebook, ranks):
    """A run on four ranks, of which 0 to 2 compute and 3 waits; 1 and 3 have started processes of their own."""
    notebook.run(BUSY)
    return hosts


def pid_of(host, word):
    """The process with that word in its command; the first of them, as the supervisor has a fork."""
    return min(host.processes(word))


def keeper(host):
    """The one among the Python processes there that leads a session and is a child of one of them."""
    python = host.processes("launcher.worker")
    (found,) = [pid for pid in python if os.getsid(pid) == pid and parent(pid) in python]
    return found


VICTIMS = {
    "mpiexec": (lambda hosts: pid_of(hosts.alpha, "mpiexec"), "lost its ranks: mpiexec ended"),
    "supervisor": (lambda hosts: pid_of(hosts.alpha, "launcher.supervisor"), "the supervisor of the ranks was"),
    "keeper": (lambda hosts: keeper(hosts.beta), "lost host beta after"),
    "daemon": (lambda hosts: max(hosts.beta.processes("hydra_pmi_proxy")), "lost its ranks"),
    "remote shell": (lambda hosts: pid_of(hosts.alpha, "machine.py run"), None),
    "rank": (lambda hosts: hosts.beta.rank(2), "rank 2 was killed by SIGKILL"),
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_kill_leaves_nothing_on_either_host(busy, notebook, victim):
    find, said = VICTIMS[victim]
    os.kill(find(busy), signal.SIGKILL)
    if said is None:
        notebook.run("ranks.interrupt()")
    else:
        notebook.run("run.wait(20)")
        assert said in notebook("run.report()")
        assert notebook("run.status") == "failed"
    busy.gone()
    assert notebook("ranks.submit(lambda ctx: ctx.comm.allreduce(1)).wait().results") == [4] * 4


def test_the_death_of_the_notebook_leaves_nothing_on_either_host(busy):
    busy.kill_notebook()
    busy.gone()


@pytest.mark.parametrize("both", ((0, 1), (1, 0)))
def test_notebook_and_supervisor_killed_at_once_leave_nothing(busy, both):
    victims = [busy.notebook.pid, pid_of(busy.alpha, "launcher.supervisor")]
    os.kill(victims[both[0]], signal.SIGKILL)
    os.kill(victims[both[1]], signal.SIGKILL)
    busy.kill_notebook()
    busy.gone()


def test_a_host_that_is_cut_off_is_named_with_its_ranks_and_both_sides_are_cleaned(busy, notebook):
    busy.alpha.cable("down")
    try:
        start = time.monotonic()
        notebook.run("run.wait(20)")
        busy.gone(5.0 - (time.monotonic() - start))
    finally:
        busy.alpha.cable("up")
    said = notebook("run.report()")
    assert "lost host beta" in said and "ranks 2 and 3: the network between it and alpha was cut" in said
    assert notebook("ranks.submit(lambda ctx: ctx.comm.allreduce(1)).wait().results") == [4] * 4


def test_a_host_cut_off_between_two_runs_is_named_too(hosts, notebook, ranks):
    hosts.alpha.cable("down")
    try:
        notebook.run("run = ranks.submit(lambda ctx: ctx.comm.allreduce(1)).wait(20)")
        hosts.gone(5.0)
    finally:
        hosts.alpha.cable("up")
    assert "lost host beta" in notebook("run.report()")


@pytest.mark.parametrize("moment", range(4))
def test_a_kill_while_ranks_start_leaves_nothing(hosts, notebook, moment):
    notebook.begin("ranks = cl.launch(4, site='hosts')")
    words = ("launcher.supervisor", "mpiexec", "machine.py", "launcher.worker")
    host = hosts.beta if moment == 3 else hosts.alpha
    wait_for(lambda: host.processes(words[moment]))
    hosts.kill_notebook()
    hosts.gone()

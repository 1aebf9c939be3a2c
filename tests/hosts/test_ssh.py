"""Site "hosts" as it is shipped, with a real ssh and a real sshd between two hosts."""

import base64
import contextlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path

import pytest
from marks import wait_for
from ssh_server import SshServer
from two_hosts import ROOT, NotebookError

from collectlab.launcher import sites

pytestmark = pytest.mark.needs("second host", "ssh")


@pytest.fixture(scope="module")
def _server(_hosts):
    server = SshServer(_hosts)
    _hosts.staying.add(server.pid)
    yield server
    _hosts.staying.remove(server.pid)
    server.end()


@pytest.fixture
def server(hosts, _server, monkeypatch):
    """sshd on beta; the notebook names no other remote shell than the site does."""
    named = hosts.environment["HYDRA_LAUNCHER_EXEC"]
    monkeypatch.delitem(hosts.environment, "HYDRA_LAUNCHER_EXEC")
    hosts.notebook.run("import os; os.environ.pop('HYDRA_LAUNCHER_EXEC', None)")
    yield _server
    _server.restore()
    if hosts._notebook:
        hosts.notebook.run(f"os.environ['HYDRA_LAUNCHER_EXEC'] = {named!r}")


def test_ssh_starts_ranks_that_compute_together_and_leave_no_session(hosts, server, notebook, ranks):
    (command,) = hosts.alpha.processes("bin/ssh -x").values()
    assert f"ssh -x {sites.find('hosts').variables['HYDRA_LAUNCHER_EXTRA_ARGS']} beta " in command
    assert server.sessions()
    notebook.run("""
        import numpy as np

        def program(ctx, x):
            return os.uname().nodename, ctx.comm.allreduce(ctx.rank), cl.kernels.two_phase.all_reduce(ctx, x)

        run = ranks.submit(program, cl.per_rank([np.arange(100) * rank for rank in range(4)])).wait()
    """)
    names = ["alpha", "alpha", "beta", "beta"]
    assert notebook("[(host, total) for host, total, _ in run.results]") == [(name, 6) for name in names]
    assert notebook("[y.tolist() for *_, y in run.results]") == [list(range(0, 600, 6))] * 4
    assert notebook("run.rank_map.hosts") == tuple(names)
    notebook.run("ranks.stop()")
    hosts.gone()


def test_a_name_that_only_ssh_knows_is_a_host(hosts, server, notebook, tmp_path):
    (tmp_path / "hosts").write_text("alpha\nelsewhere\n")
    server.add_to_config("Host elsewhere\nHostName beta\nHost *\n")
    notebook.run(f"os.environ['COLLECTLAB_HOSTS'] = {str(tmp_path / 'hosts')!r}")
    notebook.run("run = cl.run(lambda ctx: ctx.comm.allreduce(1), ranks=2, site='hosts')")
    notebook.run(f"os.environ['COLLECTLAB_HOSTS'] = {str(hosts.file)!r}")
    assert notebook("run.results") == [2, 2] and notebook("run.rank_map.hosts") == ("alpha", "beta")


def test_a_connection_that_the_user_shares_is_none_of_ours_to_end(hosts, server, notebook):
    shared = f"ControlMaster auto\nControlPath {server.folder}/shared\nControlPersist 60\n"
    server.add_to_config(shared + "LocalForward 8888 beta:8888\n")
    notebook.run("ranks = cl.launch(4, site='hosts')")
    assert not hosts.alpha.processes("[mux]") and not (server.folder / "shared").exists()
    assert "22B8" not in [port for places in hosts.alpha.listening().values() for _, port in places]  # 8888
    notebook.run("ranks.stop()")


def test_a_rank_that_raises_over_there_is_told_and_no_session_is_left(hosts, server, notebook, ranks):
    notebook.run("""
        def program(ctx):
            if ctx.rank == 3:
                raise ValueError("not on this host")
            ctx.comm.barrier()

        run = ranks.submit(program).wait()
    """)
    said = notebook("run.report()")
    assert "rank 3 raised ValueError: not on this host" in said and 'raise ValueError("not on this host")' in said
    assert "ranks 0, 1 and 2 were waiting in barrier" in said
    hosts.gone()


BUSY = """
    def busy(ctx):
        import subprocess, time
        if ctx.rank % 2:  # what a program starts, in a session of its own
            subprocess.Popen(["sleep", "600"], start_new_session=True)
        print("go", flush=True)
        ctx.comm.barrier() if ctx.rank else time.sleep(600)

    run = ranks.submit(busy)
    until(lambda: "waiting in barrier" in run.report() and all(map(run.log, range(4))), run.report)
"""


@pytest.mark.parametrize("victim", ("notebook", "ssh", "sshd"))
def test_a_kill_leaves_nothing_on_either_side(hosts, server, notebook, ranks, victim):
    notebook.run(BUSY)
    if victim == "notebook":
        hosts.kill_notebook()
    else:
        (ssh,) = hosts.alpha.processes("bin/ssh -x")
        for pid in [ssh] if victim == "ssh" else server.sessions():
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not server.sessions() and not hosts.alpha.processes("bin/ssh -x"))
        notebook.run("ranks.interrupt()")
        assert notebook("run.status") == "interrupted"
    hosts.gone()


def test_a_host_that_is_cut_off_is_told_and_both_sides_are_cleaned(hosts, server, notebook, ranks):
    notebook.run(BUSY)
    hosts.alpha.cable("down")
    try:
        start = time.monotonic()
        notebook.run("run.wait(20)")
        hosts.staying.update(sessions := server.sessions())  # which sshd itself ends, when it misses the other side
        hosts.gone(5.0 - (time.monotonic() - start))
    finally:
        hosts.alpha.cable("up")
        hosts.staying.difference_update(sessions)
    said = notebook("run.report()")
    assert "lost host beta" in said and "ranks 2 and 3: the network between it and alpha was cut" in said
    assert notebook("ranks.submit(lambda ctx: ctx.comm.allreduce(1)).wait().results") == [4] * 4


def test_the_notebook_is_killed_while_the_far_side_logs_in(hosts, server, notebook):
    notebook.begin("ranks = cl.launch(4, site='hosts')")
    wait_for(server.sessions)
    hosts.kill_notebook()
    hosts.gone()


LOST = "a host was not reached, or lacks this environment"  # mpiexec may end before it has read what ssh said
REFUSALS = {
    "key": (
        lambda server: server.write("authorized_keys", ""),
        "Permission denied (", "`ssh-copy-id HOST` ends the need",
    ),
    "unknown": (
        lambda server: server.write("known_hosts", ""),
        "Host key verification failed", "shows its key and asks",
    ),
    "changed": (
        lambda server: server.write("known_hosts", f"beta {server.key('user')}"),
        "key for beta has changed", "shows its key and what to do",
    ),
    "no server": (
        lambda server: server.add_to_config("Port 9\n"),
        "port 9: Connection refused", "has it an ssh server?",
    ),
    "no name": (
        lambda server: server.add_to_config("HostName nowhere.invalid\n"),
        "resolve hostname nowhere.invalid", "is it spelt right",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_what_ssh_refuses_is_told_at_once_with_the_cure(hosts, server, notebook, case):
    change, said, cure = REFUSALS[case]
    before = server.log().count("password for")
    change(server)
    with pytest.raises(NotebookError, match="did not start: ") as raised:
        notebook.run("cl.launch(4, site='hosts')")
    lines = str(raised.value).splitlines()[:2]  # the second, where a rank ended because mpiexec did
    assert any((said in line and cure in line) or LOST in line for line in lines), raised.value
    assert server.log().count("password for") == before  # not even an empty one was tried
    hosts.gone()


LACKS = {
    "programs": (
        Path(sys.executable).parent, f"hydra_pmi_proxy: .*does not hold this|{LOST}", f"{sys.executable}: No such",
    ),
    "package": (
        ROOT / "collectlab", r"did not start: No module named 'collectlab(.|\n)*; a host does not hold it",
        "No module named 'collectlab",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", LACKS)
def test_a_host_that_lacks_this_environment_is_told(hosts, server, notebook, what):
    folder, told, found = LACKS[what]
    hosts.beta.do("mount", "-t", "tmpfs", "tmpfs", folder)
    try:
        with pytest.raises(NotebookError, match=told) as raised:
            notebook.run("cl.launch(4, site='hosts')")
        assert "at fault may be MPI" not in str(raised.value)
        notebook.run("from collectlab import doctor")
        said = notebook("str(doctor.ssh())")
    finally:
        hosts.beta.do("umount", folder)
    assert "ssh: beta: " in said and found in said and "it has to hold the same" in said
    hosts.gone()


def test_no_secret_is_on_a_command_line_of_either_host(hosts, server, notebook):
    notebook.run("os.environ['SECRET_OF_THE_USER'] = 'correct horse battery staple'")
    notebook.begin("ranks = cl.launch(4, site='hosts')")
    commands, secrets = set(), {"correct horse battery staple"}
    while not select.select([notebook.talk], [], [], 0)[0]:  # until the ranks are there
        for host in hosts.machines:
            commands |= {(host.name, command) for command in host.processes().values()}
        for path in (hosts.folder / "runs").glob("*.key"):
            with contextlib.suppress(FileNotFoundError):  # it is removed as soon as all ranks are there
                key = path.read_bytes()
                secrets |= {key.hex(), base64.b64encode(key).decode()} if key else set()
    notebook.end()
    rank = Path(f"/proc/{max(hosts.beta.processes('launcher.worker'))}/environ").read_text()
    assert "SECRET_OF_THE_USER=correct horse" in rank
    control = next(text for text in rank.split("\0") if text.startswith("COLLECTLAB_CONTROL="))
    secrets.add(json.loads(control.partition("=")[2])["token"])
    assert len(secrets) == 4
    assert {host for host, command in commands if "ssh" in command} == {"alpha", "beta"}
    assert [(host, command) for host, command in commands if any(secret in command for secret in secrets)] == []


def test_the_doctor_tries_each_host(hosts, server, notebook):
    notebook.run("from collectlab import doctor")
    assert notebook("str(doctor.ssh())").endswith("ssh: starts Python, and finds the runs, on beta")
    server.write("authorized_keys", "")
    said = notebook("str(doctor.ssh())")
    assert "warning" in said and "beta: " in said and "Permission denied (" in said and "`ssh-copy-id beta`" in said
    server.restore()
    private = str(hosts.folder / "private" / "runs")
    notebook.run(f"os.environ['COLLECTLAB_RUNS'] = {private!r}")
    said = notebook("str(doctor.ssh())")
    notebook.run(f"os.environ['COLLECTLAB_RUNS'] = {str(hosts.folder / 'runs')!r}")
    assert f"beta: it does not share {private}, where the runs lie" in said and "COLLECTLAB_RUNS" in said
    hosts.gone()

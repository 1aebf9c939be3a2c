"""The notebook goes away, in each way in which Jupyter makes it go; and Jupyter inside a launcher of MPI."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from jupyter_client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel
from marks import wait_for

import collectlab as cl

HANGS = """
import time
import collectlab as cl

def hangs(ctx):
    print("here", flush=True)
    if ctx.rank:
        ctx.comm.Barrier()
    time.sleep(600)

ranks = cl.launch(3, device="cpu")
run = ranks.submit(hangs)
"""
GOES = {
    "restarted": lambda manager, client: manager.restart_kernel(now=True),
    "shut down": lambda manager, client: manager.shutdown_kernel(),
    "crashed": lambda manager, client: client.execute("import ctypes; ctypes.string_at(0)"),
    "left with a run going on": lambda manager, client: client.execute("import os; os._exit(3)"),
}


def the_run(runs):
    """The run that has begun to print on each of three ranks."""
    wait_for(lambda: [log.read_text() for log in runs.glob("*/log.*")] == ["here\n"] * 3)
    (path,) = runs.iterdir()
    return cl.attach(path)


@pytest.mark.parametrize("way", GOES)
def test_a_kernel_that_goes_takes_its_ranks_along(way, mark, tmp_path, each_site):
    manager, client = start_new_kernel(extra_arguments=["--log-level=ERROR"])
    try:
        client.execute(HANGS)
        run = the_run(tmp_path / "runs")
        assert run.status == "running"
        kernel = manager.provisioner.pid
        GOES[way](manager, client)
        others = [pid for pid in mark.alive() if pid not in (kernel, manager.provisioner.pid)]
        wait_for(lambda: not set(mark.alive()).intersection(others), 3.0)
        assert run.status == "interrupted" and "because the notebook process went away" in run.report()
        assert cl.attach(run.path).report() == run.report()
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/\S*token=(\w+)")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Start Jupyter's server, behind the words `before`; a client of a kernel on it comes back."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    clients = []

    def start(*before):
        words = ["--ip=127.0.0.1", "--port=0", "--no-browser", "--allow-root", f"--ServerApp.root_dir={tmp_path}"]
        with open(tmp_path / "server.log", "wb") as out:
            process = subprocess.Popen(
                [*before, sys.executable, "-m", "jupyter_server", *words], stdout=out, stderr=out,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        clients.append(process)
        found = tmp_path / "runtime"
        log = tmp_path / "server.log"
        wait_for(lambda: ADDRESS.search(log.read_text()), 30, log.read_text)
        port, token = ADDRESS.search(log.read_text()).groups()
        with socket.socket() as knocks:  # the address is printed shortly before the server listens
            wait_for(lambda: knocks.connect_ex(("127.0.0.1", int(port))) == 0)
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/api/kernels", data=b"{}", method="POST")
        asked.add_header("Authorization", f"token {token}")
        with urllib.request.urlopen(asked) as answer:
            kernel = json.load(answer)["id"]
        client = BlockingKernelClient(connection_file=str(found / f"kernel-{kernel}.json"))
        client.load_connection_file()
        client.start_channels()
        clients.append(client)

        def ready():  # a kernel that has not begun to answer is taken for a dead one
            try:
                client.wait_for_ready(timeout=2)
            except RuntimeError:
                return False
            return True

        wait_for(ready, 60)
        return process, client

    yield start
    for found in clients:
        if isinstance(found, subprocess.Popen):
            found.kill()
            found.wait()
        else:
            found.stop_channels()


OUTER = [
    pytest.param((), id="no launcher"),
    pytest.param((os.path.join(os.path.dirname(sys.executable), "mpiexec"), "-n", "1"), id="MPICH"),
    pytest.param(
        ("{openmpi}/bin/mpiexec", "--allow-run-as-root", "-n", "1"),
        id="Open MPI",
        marks=pytest.mark.needs("Open MPI"),
    ),
]
ON_EACH_SITE = """
import os
import collectlab as cl
sites = ["local", "openmpi"] if os.environ.get("COLLECTLAB_OPENMPI") else ["local"]
for site in sites:
    run = cl.run(lambda ctx: ctx.comm.allreduce(ctx.rank), ranks=3, device="cpu", site=site, timeout=30)
    print(run.results, run.report() if not run.ok else "ok")
"""


@pytest.mark.parametrize("outer", OUTER)
def test_jupyter_that_was_started_by_mpiexec_has_ranks_and_a_stop_ends_them(outer, server, mark, tmp_path):
    openmpi = os.environ.get("COLLECTLAB_OPENMPI", "")
    process, client = server(*(word.replace("{openmpi}", openmpi) for word in outer))
    said = []
    client.execute_interactive(ON_EACH_SITE, timeout=60, output_hook=lambda message: said.append(message["content"]))
    text = "".join(content.get("text", "") for content in said)
    assert text.splitlines() == ["[3, 3, 3] ok"] * (2 if openmpi else 1), said
    for path in (tmp_path / "runs").iterdir():
        path.rename(tmp_path / path.name)
    client.execute(HANGS)
    run = the_run(tmp_path / "runs")
    process.send_signal(signal.SIGTERM)
    process.wait(20)
    mark.gone(10)  # the server gives its kernels a few seconds
    assert run.status == "interrupted" and "because the notebook process went away" in run.report()

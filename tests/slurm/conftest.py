"""One Slurm cluster for all tests here. Each test leaves no process on any node, no job, no step and no file."""

import json
import os
import signal
import time

import pytest
from marks import Mark, wait_for
from slurm_cluster import INSIDE, Cluster

PRELUDE = """
import json, os, signal, sys, threading, time
import collectlab as cl

def fine(ctx):
    return ctx.comm.allreduce(ctx.rank)

def where(ctx):
    return ctx.comm.allreduce(ctx.rank), os.uname().nodename

def naps(ctx):
    while True:
        time.sleep(0.1)

def tell(**said):
    print(json.dumps(said), flush=True)

given = [json.loads(word) for word in sys.argv[1:]]
"""
@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    found = Cluster(tmp_path_factory.mktemp("slurm"))
    yield found
    found.stop()


@pytest.fixture(autouse=True)
def mark(request, tmp_path, monkeypatch):
    """Runs go to tmp_path/runs; all processes that a test starts carry its mark, and none is left."""
    found = Mark(f"{os.getpid()}-{time.monotonic_ns()}")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("COLLECTLAB_TEST", found.value)
    monkeypatch.setenv("COLLECTLAB_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    yield found
    if "cluster" in request.fixturenames:
        cluster = request.getfixturevalue("cluster")
        try:
            found.gone()
            wait_for(lambda: not cluster.jobs(), 3, lambda: cluster.said("squeue"))
            assert not os.listdir(tmp_path / "tmp")
        except BaseException:  # what this test leaves must not become the fault of the next one
            for pid in found.alive():
                os.kill(pid, signal.SIGKILL)
            cluster.empty()
            raise


@pytest.fixture
def script(cluster, mark):
    """Start Python text on the login node, after PRELUDE, within an allocation unless told otherwise: a Script."""
    started = []

    def start(code, *arguments, within=INSIDE, **more):
        found = Script(cluster.python(PRELUDE + code, *arguments, within=within, **more))
        started.append(found)
        return found

    yield start
    for found in started:
        for pipe in (found.process.stdin, found.process.stdout, found.process.stderr):
            pipe.close()


class Script:
    """A process that tells what it finds, a line of JSON at a time."""

    def __init__(self, process):
        self.process = process

    def told(self):
        """The next that it tells: a dict."""
        line = self.process.stdout.readline()
        assert line, f"it ended: {self.process.communicate()[1]}"
        return json.loads(line)

    def go_on(self):
        """Let its next `input()` return."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self):
        """The last that it tells, after its end."""
        said, complaint = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, complaint
        return json.loads(said.splitlines()[-1])

"""Runs in a folder that several hosts share: those of another host cannot be looked at from here."""

import json
import os
import time

import pytest

import collectlab as cl
from collectlab.launcher import rundir


@pytest.fixture
def run_of(tmp_path, monkeypatch):
    """Call it with a host: the path of a run that was begun there, has no end yet, and is no process here."""
    monkeypatch.setenv("COLLECTLAB_RUNS", str(tmp_path))

    def begun(host):
        path = rundir.create("program")
        spec = {"version": 1, "program": "program", "nranks": 2, "device": "cpu", "tag": "0123456789abcdef"}
        spec |= {"created": time.time(), "names": None, "sources": {}, "host": host}
        with open(os.path.join(path, "spec.json"), "w") as file:
            json.dump(spec, file)
        return path

    return begun


def test_a_run_of_another_host_goes_on_as_far_as_can_be_told(run_of):
    assert cl.attach(run_of("elsewhere")).status == "running"
    assert cl.attach(run_of(os.uname().nodename)).status == "failed"


def test_pruning_leaves_the_runs_of_another_host_for_a_week(run_of, monkeypatch):
    monkeypatch.setattr(rundir, "KEEP", 0)
    here, elsewhere, old = run_of(os.uname().nodename), run_of("elsewhere"), run_of("elsewhere")
    for path, age in ((here, 2 * 3600), (elsewhere, 6 * 86400), (old, 8 * 86400)):
        os.utime(path, (time.time() - age,) * 2)
    rundir.prune()
    assert [os.path.exists(path) for path in (here, elsewhere, old)] == [False, True, False]

"""Every test here runs under a mark that all processes inherit, and must leave nothing: no process, no file."""

import gc
import os
import time

import pytest
from marks import Mark, wait_for
from played import Clock

from collectlab.launcher import supervisor, sweep


@pytest.fixture(autouse=True)
def mark(tmp_path, monkeypatch):
    """Runs go to tmp_path/runs, temporary files to tmp_path/tmp; afterwards nothing else is left."""
    found = Mark(f"{os.getpid()}-{time.monotonic_ns()}")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("COLLECTLAB_TEST", found.value)
    monkeypatch.setenv("COLLECTLAB_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    began = time.time()
    yield found
    gc.collect()
    found.gone()
    left = sweep.abandoned(began)

    def own_gone():  # other programs on this machine end ranks too, and remove their files a moment later
        left.intersection_update(sweep.abandoned(began))
        return not left

    wait_for(own_gone, 10, lambda: f"left: {left}")
    assert not os.listdir(tmp_path / "tmp")
    if (tmp_path / "runs").is_dir():
        kinds = ("spec.json", "status.json", "program", "mine", "log", "result", "events", "clock")
        for path in (tmp_path / "runs").glob("*/*"):
            name, _, rank = path.name.partition(".")
            assert path.name in kinds or (name in kinds and rank.isdigit()), f"left half-written: {path}"


@pytest.fixture
def clock(monkeypatch):
    """The clock of every supervisor that is played to here; there is nothing for it to sweep."""
    monkeypatch.setattr(supervisor, "time", Clock())
    monkeypatch.setattr(supervisor.sweep, "kill", lambda *_, **__: [])
    monkeypatch.setattr(supervisor.network, "confine", lambda pid: None)
    monkeypatch.setattr("collectlab.launcher.surroundings.at_fault", lambda *_: [])

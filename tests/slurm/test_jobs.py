"""What is read from a queue, without one."""

import os
import select

import pytest
from marks import wait_for

from collectlab.launcher import jobs, sites, sweep

QUEUE = """\
other Resources
collectlab-1 Priority
a name with spaces Priority
collectlab-12 ReqNodeNotAvail, UnavailableNodes:n1
"""


@pytest.mark.parametrize(
    ("text", "job", "standing"),
    (
        (QUEUE, "collectlab-1", (2, 4, "Priority")),
        (QUEUE, "collectlab-12", (4, 4, "ReqNodeNotAvail, UnavailableNodes:n1")),
        (QUEUE, "collectlab-2", None),
        ("", "collectlab-1", None),
        ("slurm_load_jobs error: Unable to contact slurm controller\n", "collectlab-1", None),
        ("\n\ncollectlab-1\n", "collectlab-1", (1, 1, "")),
    ),
)
def test_where_a_job_stands(text, job, standing):
    assert jobs.standing(text, job) == standing


@pytest.mark.parametrize(
    ("standing", "words"),
    (
        ((1, 1, "Resources"), "in the queue, no other job waits; reason: Resources"),
        ((3, 7, "Priority"), "in the queue, number 3 of 7 that wait; reason: Priority"),
        ((1, 2, "None"), "in the queue, number 1 of 2 that wait"),
        ((1, 1, ""), "in the queue, no other job waits"),
    ),
)
def test_a_standing_in_words(standing, words):
    assert jobs.in_words(*standing) == words


@pytest.mark.parametrize(
    ("queue", "hopeless", "answer"),
    (
        ("mine Resources", {"Config": "ask for less"}, ("in the queue, no other job waits; reason: Resources", None)),
        ("other Resources", {"Res": "no"}, (None, None)),
        ("mine BadConfig", {"Config": "ask for less"}, ("in the queue, no other job waits; reason: BadConfig",
                                                        "BadConfig: ask for less")),
    ),
)  # fmt: skip
def test_a_look_at_the_queue(queue, hopeless, answer):
    job = jobs.Job("mine", ["echo", queue], hopeless)
    for _ in range(2):
        pidfd = job.ask()
        select.select([pidfd], [], [])
        os.close(pidfd)
        assert job.answer() == answer
    pauses = [job.pause() for _ in range(20)]
    assert pauses == sorted(pauses) and pauses[0] < 1 and pauses[-1] == 10


@pytest.mark.parametrize("name", ("slurm", "slurm-queue"))
def test_the_sites_are_read(name, monkeypatch):
    site = sites.find(name)
    assert site.across and site.hints and bool(site.queue) == bool(site.cancel) == (name == "slurm-queue")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(sites.shutil, "which", lambda word: None if word == "scancel" else f"/bin/{word}")
    if name == "slurm-queue":
        with pytest.raises(FileNotFoundError, match=r"needs Slurm's salloc.*; scancel was not found"):
            sites.command(site, 2, [])
    else:
        assert sites.command(site, 2, [])[:2] == ["/bin/srun", "--jobid=7"]


def test_a_job_is_withdrawn_by_a_command_that_takes_longer_than_the_end_of_the_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "_PATIENCE", 0.1)
    monkeypatch.setenv(sweep.TAG, "ranks-that-end")
    script = 'until [ -e "$0/go" ]; do sleep 0.01; done; touch "$0/done"'
    assert "has not answered" in jobs.withdraw(["sh", "-c", script, str(tmp_path)])
    assert sweep.kill("ranks-that-end", spare={os.getpid()}) == []
    (tmp_path / "go").touch()
    wait_for((tmp_path / "done").exists)


def test_what_a_launcher_says_is_explained():
    said = "salloc: Pending\nsalloc: error: Job submit failed: no account\nsalloc: error: other\n"
    assert jobs.explained(said, {"nothing": "x", "no account": "set it"}) == "Job submit failed: no account; set it"
    assert jobs.explained(said, {"nothing": "x"}) is None and jobs.explained("", {"": "x"}) is None


def test_a_job_that_cannot_be_withdrawn_is_told(tmp_path, monkeypatch):
    assert jobs.withdraw([]) == jobs.withdraw(["true"]) == ""
    assert jobs.withdraw(["sh", "-c", "echo no controller >&2; exit 1"]).endswith("exit 1: no controller")
    assert "No such file" in jobs.withdraw([str(tmp_path / "scancel"), "--name=x"])

"""Ranks are killed at random moments while they write one checkpoint after another.

A few kills here; COLLECTLAB_KILLS=200 pytest tests/sharding/test_kills.py for as many as that.
"""

import contextlib
import os
import random
import select
import shutil
import signal
import time

import numpy as np

import collectlab as cl
from collectlab.sharding import Buckets, checkpoint

KILLS = int(os.environ.get("COLLECTLAB_KILLS", "8"))
NRANKS, ELEMENTS = 2, 300_001
NAMES = ("params", "mean")
WITHIN = 0.08  # seconds after the first checkpoint in which a kill comes: several are written in that time
BUCKETS = Buckets((ELEMENTS,), NRANKS)


def value(name, step):
    return np.float32(step + len(name) / 16)


def write_on(ctx, folder, step, told):
    """Write checkpoints until the end of this process; each rank says when its first one is there."""
    count = BUCKETS.count(ctx.rank)
    while True:
        step += 1
        shard = {name: np.full(count, value(name, step)) for name in NAMES}
        checkpoint.save(ctx, folder, step, shard, BUCKETS)
        if told:
            with open(told, "w") as pipe:
                pipe.write(f"{os.getpid()}\n")
            told = None
        if ctx.rank == 0:
            shutil.rmtree(os.path.join(folder, f"step-{step - 3:08d}"), ignore_errors=True)


def processes(pipe, run):
    """The process of each rank, once all have said that they have written."""
    said = b""
    while said.count(b"\n") < NRANKS:
        ready, *_ = select.select([pipe], [], [], 60)
        assert ready, run.report()
        said += os.read(pipe.fileno(), 1024)
    return [int(line) for line in said.split()]


def step_of(path):
    return int(path.rpartition("-")[2])


def test_the_last_complete_checkpoint_is_readable_after_a_kill_at_any_moment(tmp_path):
    rng, step, in_writing, told = random.Random(os.urandom(8)), 0, 0, str(tmp_path / "told")
    folder = str(tmp_path / "checkpoints")
    os.mkfifo(told)
    with cl.launch(NRANKS, device="cpu") as ranks, open(told, "r+b", buffering=0) as pipe:
        for kill in range(KILLS):
            run = ranks.submit(write_on, folder, step, told)
            pids = processes(pipe, run)
            written = step_of(checkpoint.latest(folder))
            time.sleep(rng.uniform(0, WITHIN))  # a random moment is what is tested
            for pid in rng.sample(pids, rng.randint(1, NRANKS)):  # one rank, or the whole job
                with contextlib.suppress(ProcessLookupError):  # ended already, since another one was killed
                    os.kill(pid, signal.SIGKILL)
            run.wait(30)
            assert run.status == "failed" and "SIGKILL" in run.report(), run.report()
            shutil.rmtree(run.path)

            path = checkpoint.latest(folder)
            step = step_of(path)
            assert step >= written, f"kill {kill}"
            for name, array in checkpoint.read(path, (slice(0, ELEMENTS),)).items():
                assert (array == value(name, step)).all(), f"kill {kill}, {name}"
            in_writing += any(entry.endswith(".partial") for entry in os.listdir(folder))
    print(f"{KILLS} of {KILLS} readable; {in_writing} kills came while a folder was being written")
    assert in_writing > 0

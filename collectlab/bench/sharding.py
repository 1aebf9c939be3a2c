"""Sharded training beside replicated training, and resharding beside copying the same files.

Steps take turns in each round; a round's time is from the first rank's start to the last rank's end. A checkpoint is
resharded from files to files; the copy of its files is made by one process, and both end when the disk has it all
(fsync).
"""

import os
import shutil
import tempfile
import time
import tracemalloc
from statistics import median

import numpy as np

from collectlab import sharding
from collectlab.bench import Row
from collectlab.launcher.ranks import launch, run

NRANKS, ROUNDS = 4, 20
WIDE = sharding.Network(features=1000, hidden=2000, outputs=1000, dtype="float32")  # 4,003,000 parameters
MIB = 1 << 20
CHECKPOINT = 256 * MIB
NAMES = ("params", "mean", "square")
COPIES = 5


def rows(rounds=ROUNDS, nbytes=CHECKPOINT):
    """The figures; the runs made here are removed again."""
    task = sharding.Task(WIDE, batch=32)
    seconds = _steps(task, rounds)
    found = [
        Row(f"step, {name}, {NRANKS} ranks, 4 million parameters", seconds[name] * 1e3, "ms", "<= 1.3 x peer",
            "replicated", seconds["replicated"] * 1e3)
        for name in ("sharded_optimizer", "sharded_parameters")
    ]  # fmt: skip
    found.append(Row("memory plan, furthest from what was measured", _off(task), "%", "<= 5"))
    return found + _reshard(nbytes)


def _returned(done):
    if not done.ok:
        raise ChildProcessError(done.report())
    results = done.results
    shutil.rmtree(done.path)
    return results


def _steps(task, rounds):
    """The median seconds of a step, by strategy."""
    times = np.array(_returned(run(_take_turns, task, rounds, ranks=NRANKS, device="cpu", timeout=600)))
    medians = np.median(times[..., 1].max(0) - times[..., 0].min(0), axis=1)  # rank, strategy, round, (start, end)
    return dict(zip(sharding.STRATEGIES, medians.tolist(), strict=True))


def _take_turns(ctx, task, rounds):
    trainers = [strategy(ctx, task) for strategy in sharding.STRATEGIES.values()]
    times = np.zeros((len(trainers), rounds + 2, 2))
    for n in range(rounds + 2):
        for trainer, of_trainer in zip(trainers, times, strict=True):
            ctx.comm.Barrier()
            of_trainer[n, 0] = time.monotonic()
            trainer.step()
            of_trainer[n, 1] = time.monotonic()
    return times[:, 2:]


def _off(task):
    """By how many per cent a plan is off, at most, over strategies, ranks and phases."""
    off = []
    for strategy in sharding.STRATEGIES:
        for rank, measured in enumerate(_returned(run(sharding.measure, task, strategy, ranks=NRANKS, device="cpu"))):
            plan = sharding.plan(task, strategy, NRANKS, rank)
            off += [abs(measured[phase.name] / phase.held - 1) * 100 for phase in plan.phases]
    return max(off)


def _reshard(nbytes):
    elements = nbytes // (4 * len(NAMES))
    with tempfile.TemporaryDirectory() as folder:
        _returned(run(_write, folder, elements, ranks=4, device="cpu"))
        source = sharding.checkpoint.latest(folder)
        ours, copies = [], []
        with launch(3, device="cpu") as ranks:
            for _ in range(COPIES + 1):
                target = os.path.join(folder, "copy")
                copies.append(_seconds_of_copy(source, target))
                shutil.rmtree(target)
                times = np.array(_returned(ranks.submit(_read_and_write, source, target, elements).wait(None)))
                shutil.rmtree(target)
                ours.append(times[:, 1].max() - times[:, 0].min())
            held = max(_returned(ranks.submit(_held, source, os.path.join(folder, "held"), elements).wait(None)))
    rate, peer = (nbytes / MIB / median(times[1:]) for times in (ours, copies))
    size = f"{nbytes // MIB} MiB"
    return [
        Row(f"reshard {size}, 4 ranks to 3", rate, "MiB/s", ">= 0.5 x peer", "copying its files", peer),
        Row("most that a rank holds meanwhile", held / MIB, "MiB", "<= 0.4 x peer", "the whole", nbytes / MIB),
    ]


def _write(ctx, folder, elements):
    buckets = sharding.Buckets((elements,), ctx.nranks)
    rng = np.random.default_rng(ctx.rank)
    shard = {name: rng.random(buckets.count(ctx.rank), np.float32) for name in NAMES}
    sharding.checkpoint.save(ctx, folder, 1, shard, buckets)


def _read_and_write(ctx, source, target, elements):
    ctx.comm.Barrier()
    start = time.monotonic()
    sharding.checkpoint.reshard(ctx, source, target, sharding.Buckets((elements,), ctx.nranks))
    return start, time.monotonic()


def _held(ctx, source, target, elements):
    """The most bytes of arrays that this rank holds at once."""
    tracemalloc.start()
    try:
        _read_and_write(ctx, source, target, elements)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _seconds_of_copy(source, target):
    start = time.monotonic()
    os.mkdir(target)
    for name in os.listdir(source):
        shutil.copyfile(os.path.join(source, name), os.path.join(target, name))
        fd = os.open(os.path.join(target, name), os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    return time.monotonic() - start

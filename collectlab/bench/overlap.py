"""Gradients reduced in buckets during the backward pass, beside the same step that reduces them afterwards.

Two steps without overlap take turns with it in one run: one makes the same calls after the backward pass, the other
reduces all gradients in one call; the faster of the two is the peer. A figure is the median over the rounds of the
slowest rank's time. Two kinds of backward pass:

    on these cores     NumPy computes it. Then computing and adding up gradients want the same cores, and MPI moves
                       data only while a rank is inside a call of it: there is nothing to hide the communication
                       behind but the waiting for other ranks. No gain is promised; the goal is to lose little
    somewhere else     the rank only waits for as long, its core being free, as where a GPU computes; now and then it
                       lets MPI go on. The goal is a gain, however small: how much of the reduction fits into the
                       waiting, and what more calls cost, belong to the machine and to the library
"""

import shutil
import time

import numpy as np

from collectlab.bench import Row

ROUNDS = 25
LAYERS = {"width": 1024, "depth": 4, "dtype": "float32"}  # 16 MiB of gradients
ROWS = 16  # samples of each rank
SECONDS = 5e-3  # for the backward pass of a layer, where it is computed somewhere else


def rows():
    """The rows: ours is the step that overlaps, its peer the faster one of those that do not."""
    found = []
    for nranks in (2, 4):
        for elsewhere in (False, True):
            for per_bucket in (1, 2):
                found.append(_row(nranks, elsewhere, per_bucket))
    return found


def _row(nranks, elsewhere, per_bucket):
    from collectlab.launcher.ranks import launch

    with launch(nranks, device="cpu") as ranks:
        run = ranks.submit(steps, elsewhere, per_bucket).wait(None)
        if not run.ok:
            raise ChildProcessError(run.report())
        ours, *without = medians(run.results)
        shutil.rmtree(run.path)
    peer = min(without)
    name = "afterwards, in one call" if peer == without[1] else "afterwards, in the same buckets"
    where = "somewhere else" if elsewhere else "on these cores"
    case = f"backward pass {where}, {nranks} ranks, {LAYERS['depth']} layers, {per_bucket} in a bucket"
    return Row(case, ours, "ms", "< 1 x peer" if elsewhere else "<= 1.1 x peer", name, peer)


def medians(of_ranks):
    """Milliseconds, from what `steps` returned: overlapping, afterwards in the same buckets, and in one call."""
    return [float(median) * 1e3 for median in np.median(np.max(of_ranks, axis=0), axis=0)]


def steps(ctx, elsewhere, per_bucket, rounds=ROUNDS, size=LAYERS):
    """For each round the seconds of a step on this rank: overlapping, then the two without overlap."""
    from collectlab.overlap import streams
    from collectlab.overlap.backward import Layers, Training, reference

    layers, lanes = Layers(**size), streams(ctx)
    x, y = layers.samples(ROWS * ctx.nranks, seed=1)
    mine = slice(ctx.rank * ROWS, (ctx.rank + 1) * ROWS)
    bucketed = Training(lanes, layers, layers.start(0), 1e-3, per_bucket)
    other = streams(ctx)
    whole = Training(other, layers, layers.start(0), 1e-3, layers.depth)
    if elsewhere:
        bucketed.back, whole.back = _waits(lanes), _waits(other)
    found = []
    for number in range(rounds + 1):
        times = []
        for training, meanwhile in ((bucketed, True), (bucketed, False), (whole, False)):
            ctx.comm.Barrier()
            start = time.perf_counter()
            training.step(x[mine], y[mine], meanwhile)
            times.append(time.perf_counter() - start)
        found.append(times)
        if number == 0 and not elsewhere:
            for training, taken in ((bucketed, 2), (whole, 1)):
                (weights,), _ = training.ctx.finish(training.weights)
                if not np.allclose(weights, reference(layers, x, y, 1e-3, taken), atol=1e-5):
                    raise AssertionError("the steps do not train as one process does")
    return found[1:]


def _waits(lanes):
    """In the place of a layer's backward pass: a wait, in which the rank is free to let MPI go on."""

    def back(layer):
        def waiting(weights, gradient):
            end = time.perf_counter() + SECONDS
            while (left := end - time.perf_counter()) > 0:
                lanes.advance()
                time.sleep(min(left, 2e-4))

        return waiting

    return back

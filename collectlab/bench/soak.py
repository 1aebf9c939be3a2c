"""Many runs and random kills under each MPI that is here: what is left of them. It takes half an hour.

The moments and victims of the kills follow from seeds; one of them is made again by

    python -m collectlab.bench.soak SITE SEED
"""

import contextlib
import io
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from statistics import median

from collectlab.bench import Row
from collectlab.launcher import rundir, sites, sweep
from collectlab.launcher.ranks import launch, run
from collectlab.launcher.run import attach

MARK = "COLLECTLAB_SOAK"  # a variable: everything that is started under one value of it is found again
COLD, WARM, KILLS, FAILURES = 200, 5000, 100, 15
LINES, ARRAY = 1_000_000, 2 << 30
_BOUND = 3.0  # seconds after which nothing may be left
_WEDGED = 90  # seconds after which a notebook that waits is given up
_START = {"local": 0.5, "openmpi": 2.0}  # seconds, about, in which ranks start: kills are spread over them


def rows():
    """A row for each figure and each site that is here."""
    return [row for site in here() for row in _of(site)]


def here():
    """The sites of this machine whose MPI can be started here."""
    found = []
    for name in ("local", "openmpi"):
        with contextlib.suppress(sites.Lacking):
            sites.command(sites.find(name), 2, ())
            found.append(name)
    return found


def _of(site):
    for what, left in ((f"{COLD} cold runs", cold(site, COLD)), (f"{WARM} warm runs", warm(site, WARM))):
        for kind, count in left.items():
            goal = "< 8" if kind == "memory" else "<= 0"
            yield Row(f"{site}: {what}: {kind} left", count, "MiB" if kind == "memory" else "", goal)
    first = secrets.randbelow(1_000_000)
    clean = 0
    for seed in range(first, first + KILLS):
        wrong = kill(site, seed)
        clean += not wrong
        if wrong:
            print(f"{wrong}\n    again: python -m collectlab.bench.soak {site} {seed}", file=sys.stderr, flush=True)
    said = f"{site}: random kills that left nothing (seeds from {first})"
    yield Row(said, clean, f"of {KILLS}", f">= {KILLS}")
    yield Row(f"{site}: failure on screen, median", median(failures(site, FAILURES)), "s", "<= 2.0")
    kept, pause = lines(site, LINES)
    yield Row(f"{site}: {LINES} printed lines, those kept", kept, "", f">= {LINES}")
    yield Row(f"{site}: longest pause of the notebook meanwhile", pause, "s", "< 0.5")
    for who, share in array(site, ARRAY).items():
        yield Row(f"{site}: memory for a result of {ARRAY >> 30} GiB, {who}", share, "of its size", "<= 0.05")


class Place:
    """A folder for runs and one for temporary files, and a mark for all that is started meanwhile."""

    def __init__(self, runs, temporary):
        self.runs, self.temporary, self.began = runs, temporary, time.time()
        self.mark = secrets.token_hex(8)
        self.environment = {MARK: self.mark, "COLLECTLAB_RUNS": self.runs, "TMPDIR": self.temporary}

    def paths(self):
        """What lies where the runs are."""
        return [entry.path for entry in os.scandir(self.runs)]

    def processes(self, but=()):
        """The pids of live processes that carry the mark."""
        return sweep.tagged(self.mark, but, MARK)

    def files(self):
        """What lies about and belongs to no run that is over."""
        found = [entry.path for entry in os.scandir(self.temporary)]
        return found + [path for path in sweep.abandoned(self.began) if os.path.exists(path)]

    def left(self, but=()):
        """What is still there after _BOUND seconds at most, in words; "" when nothing is."""
        end = time.monotonic() + _BOUND
        while (alive := self.processes(but)) or self.files():
            if time.monotonic() > end:
                said = [f"process {pid} is alive: {_words(pid)}" for pid in alive]
                return "; ".join([*said, *(f"{path} is left" for path in self.files())])
            time.sleep(0.01)
        return ""


@contextlib.contextmanager
def place():
    """A Place whose variables are those of this process meanwhile; it is removed afterwards."""
    before, made = dict(os.environ), tempfile.TemporaryDirectory
    with made(prefix="runs-", dir=os.path.dirname(rundir.home())) as runs, made(prefix="soak-") as temporary:
        found = Place(runs, temporary)
        os.environ.update(found.environment)
        try:
            yield found
        finally:
            os.environ.clear()
            os.environ.update(before)


def _held(pids):
    """Descriptors and MiB that these processes hold."""
    descriptors = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
    return descriptors, sum(_memory(pid, "VmRSS") for pid in pids) / 2**20


def _memory(pid, what):
    """Bytes, as a line of /proc/PID/status has them."""
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith(what))


def _growth(found, before, after):
    descriptors, memory = (now - then for then, now in zip(before, after, strict=True))
    odd = [path for path in found.paths() if not os.path.isfile(os.path.join(path, "status.json"))]
    return {"descriptors": max(0, descriptors), "files": len(found.files()) + len(odd), "memory": max(0.0, memory)}


def cold(site, n):
    """Make n runs, each on fresh ranks; what is left of them: processes, descriptors, files, MiB of memory."""
    with place() as found:
        for number in range(n + 3):
            done = run(lambda ctx: ctx.comm.allreduce(ctx.rank), ranks=2, device="cpu", site=site)
            assert done.results == [1, 1], done.report()
            if number == 2:  # what is made once is there now
                before = _held([os.getpid()])
        del done
        after = _held([os.getpid()])
        found.left([os.getpid()])
        return {"processes": len(found.processes()), **_growth(found, before, after)}


def warm(site, n):
    """Make n runs on the same ranks; what grew meanwhile, in this process and theirs, and what is left."""
    with place() as found:
        with launch(2, device="cpu", site=site) as ranks:
            warming = min(n, 250)  # as many runs as are kept, and then the oldest of them go
            for number in range(warming + n):
                done = ranks.submit(lambda ctx: ctx.comm.allreduce(ctx.rank)).wait()
                assert done.results == [1, 1], done.report()
                if number == warming - 1:
                    before = _held([os.getpid(), *found.processes()])
            after = _held([os.getpid(), *found.processes()])
        del done, ranks
        found.left()
        return {"processes": len(found.processes()), **_growth(found, before, after)}


_NOTEBOOK = """
import sys, time
import collectlab as cl

def works(ctx):
    end = time.monotonic() + 0.5
    while ctx.comm.bcast(time.monotonic() < end):
        pass
    return ctx.nranks

def say(word):
    print(word, flush=True)

site = sys.argv[1]
say("up")
try:
    say("start")
    ranks = cl.launch(3, device="cpu", site=site)
    say("run")
    ranks.submit(works).wait(None)
    say("stop")
    ranks.stop()
except RuntimeError as error:  # the ranks did not start
    print(error, file=sys.stderr)
say("over")
sys.stdin.readline()
again = cl.run(lambda ctx: ctx.nranks, ranks=2, device="cpu", site=site)
say("again" if again.results == [2, 2] else again.report())
"""
_KINDS = ("notebook", "supervisor", "mpiexec", "daemon", "guard", "rank")


def kill(site, seed):
    """Kill processes of a notebook, its ranks and what is between them; what is wrong afterwards, in words, or ""."""
    chance = random.Random(seed)
    with place() as found:
        words = [sys.executable, "-c", _NOTEBOOK, site]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(words, **pipes, text=True) as notebook:
            wedged = threading.Timer(_WEDGED, notebook.kill)
            wedged.start()
            said = _killed(site, chance, found, notebook)
            wedged.cancel()
            notebook.kill()
    return f"{site}, seed {seed}: {said}" if said else ""


def _killed(site, chance, found, notebook):
    phase = chance.choice(("start", "run", "stop"))
    longest = {"start": _START.get(site, 1.0), "run": 0.5, "stop": 0.1}[phase]
    while (line := notebook.stdout.readline()) != f"{phase}\n":
        if not line:
            return f"before {phase}: the notebook ended: {notebook.stderr.read()}"
    time.sleep(chance.random() * longest)  # a moment is what is being drawn
    there = {kind: pids for kind, pids in _processes(found, notebook.pid).items() if pids}
    kinds = chance.sample(sorted(there), min(len(there), chance.choice((1, 1, 1, 2, 3))))
    for kind in kinds:
        for pid in chance.sample(there[kind], chance.randint(1, len(there[kind])) if len(kinds) > 1 else 1):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    did = f"killed {' and '.join(kinds)} at {phase}"
    survives = "notebook" not in kinds
    if survives:
        while (line := notebook.stdout.readline()) not in ("over\n", ""):
            pass
        if not line:
            return f"{did}: the notebook ended: {notebook.stderr.read()}"
    else:
        notebook.wait()
    if left := found.left([notebook.pid] if survives else []):
        return f"{did}: {left}"
    for path in found.paths():
        if os.path.exists(os.path.join(path, "spec.json")) and attach(path).status == "running":
            return f"{did}: {path} is still called running"
    if survives:
        notebook.stdin.write("\n")
        notebook.stdin.flush()
        if (line := notebook.stdout.readline()) != "again\n":
            return f"{did}: the next run did not work: {line}{notebook.stdout.read()}{notebook.stderr.read()}"
    return ""


def _processes(found, notebook):
    """kind -> pids, of the processes that carry the mark."""
    kinds = {kind: [] for kind in _KINDS}
    kinds["notebook"].append(notebook)
    workers = []
    for pid in found.processes([notebook]):
        words = _words(pid)
        program = os.path.basename(words.split(" ")[0])
        if "launcher.supervisor" in words:
            kinds["supervisor"].append(pid)
        elif program in ("hydra_pmi_proxy", "prted"):
            kinds["daemon"].append(pid)
        elif program in ("mpiexec", "mpiexec.hydra", "mpirun", "prterun") or "launcher/mpiexec.py" in words:
            kinds["mpiexec"].append(pid)
        elif "launcher.worker" in words:
            workers.append(pid)
    supervisors = kinds["supervisor"]  # and its heir, a fork of it, for the case that all these are killed at once
    kinds["supervisor"] = [pid for pid in supervisors if _parent(pid) not in supervisors]
    for pid in workers:  # a rank is the child of its guard
        kinds["rank" if _parent(pid) in workers else "guard"].append(pid)
    return kinds


def _parent(pid):
    try:
        return _memory(pid, "PPid") >> 10
    except (OSError, StopIteration):
        return 0


def _words(pid):
    try:
        with open(f"/proc/{pid}/cmdline", errors="replace") as f:
            return f.read().replace("\0", " ").strip()
    except OSError:
        return ""


def failures(site, n):
    """Seconds from an error in a rank to the return of the call that tells it, n times."""

    def program(ctx):
        if ctx.rank == 1:
            raise RuntimeError(time.time())
        ctx.comm.Barrier()

    found = []
    with place(), contextlib.redirect_stderr(io.StringIO()):
        for _ in range(n):
            done = run(program, ranks=4, device="cpu", site=site)
            found.append(time.time() - float(done.report().partition("raised RuntimeError: ")[2].split()[0]))
    return found


def lines(site, n):
    """Let a rank print n lines while this process goes on; (lines kept, the longest pause of a thread here in s)."""

    def program(ctx):
        for number in range(n):
            print(number)

    with place(), launch(1, device="cpu", site=site) as ranks:
        pauses, over = [0.0], threading.Event()

        def tick():
            last = time.perf_counter()
            while not over.wait(0.01):
                now = time.perf_counter()
                pauses.append(now - last - 0.01)
                last = now

        ticks = threading.Thread(target=tick)
        ticks.start()
        done = ranks.submit(program)
        while done.status == "running":
            done.glance()
            done.wait(0.1)
        over.set()
        ticks.join()
        kept = done.log(0).split()
        return sum(line == str(number) for number, line in enumerate(kept)), max(pauses)


def array(site, nbytes):
    """Let a rank return an array of so many bytes, and read all of it here; the memory that each took for it beside
    the array itself, as a share of its size."""

    def program(ctx, count):
        import numpy as np

        x = np.ones(count)
        before = _memory("self", "VmRSS")
        return {"before": before, "x": x}

    with place(), launch(1, device="cpu", site=site) as ranks:
        ranks.submit(program, 8).wait()
        done = ranks.submit(program, nbytes // 8).wait()
        peaks = ranks.submit(lambda ctx: _memory("self", "VmHWM")).wait().results
        anonymous = _memory("self", "RssAnon")
        result = done.results[0]
        assert result["x"].sum() == nbytes // 8
        here = _memory("self", "RssAnon") - anonymous
        shutil.rmtree(done.path)
        return {"the rank": (peaks[0] - result["before"]) / nbytes, "the notebook": here / nbytes}


if __name__ == "__main__":
    wrong = kill(sys.argv[1], int(sys.argv[2]))
    print(wrong or "nothing is left")
    sys.exit(bool(wrong))

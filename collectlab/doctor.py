"""`collectlab doctor`: what this machine has for the course, what it lacks, and the cure for each lack.

Nothing here imports MPI or CuPy into this process: what can hang or crash is tried in a throw-away one.
"""

import os
import platform
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from importlib import metadata

from collectlab.launcher import link, network, rundir, sites, surroundings, sweep
from collectlab.launcher.surroundings import FAULT, OK, WARNING, Finding, shared_memory, temporary

_PATIENCE = 60  # seconds for whatever is tried


def examine():
    """The Findings, one after another, as they are made. A fault keeps the course from running."""
    for check in CHECKS:
        yield check()


def python():
    """The interpreter."""
    there = f"{platform.python_version()} at {sys.executable}"
    wanted = filter(None, map(_name, metadata.requires("collectlab") or ()))
    lacking = sorted(name for name in wanted if not _version(name))
    if lacking:
        cure = f"{sys.executable} -m pip install {' '.join(lacking)}"
        return Finding("Python", FAULT, f"{there} lacks {', '.join(lacking)}", cure)
    return Finding("Python", OK, there)


def _name(requirement):
    """The package that a requirement asks for; "" for one of an extra."""
    return "" if "extra ==" in requirement else re.match(r"[\w.-]+", requirement)[0]


def _version(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def mpi():
    """The MPI of the ranks where no site is named."""
    return _two_ranks("MPI", sites.find(None))


def open_mpi():
    """The MPI of site "openmpi", where one is named."""
    if not os.environ.get("COLLECTLAB_OPENMPI"):
        return Finding("Open MPI", OK, "none named in COLLECTLAB_OPENMPI: only site='openmpi' wants it")
    found = _two_ranks("Open MPI", sites.find("openmpi"))
    if found.state == OK and not network.can_confine():
        said = f"{found.found}; its mpiexec listens on every network, as this system lets nobody confine it"
        cure = "docker run --cap-add=SYS_PTRACE; or see that no other machine reaches the ports of this one"
        return Finding("Open MPI", WARNING, said, cure)
    return found


def _two_ranks(what, site):
    """Whether mpi4py's MPI and the launcher that starts it belong together: two ranks are started."""
    try:
        words = sites.command(site, 2, ["-c", _TWO_RANKS])
    except (OSError, ValueError) as error:
        return Finding(what, FAULT, getattr(error, "found", str(error)), site.cure)
    tried = _try(words, env=sites.environment(site, {}))
    if tried.returncode:
        blamed = surroundings.at_fault(tried.stdout + tried.stderr, site.cure)
        found = f"two ranks could not be started: {_last(tried)}"
        return Finding(what, FAULT, found, blamed[0].cure if blamed else site.cure)
    size, _, library = tried.stdout.partition("\n")[0].rstrip(",").partition(" ")
    if size != "2":
        return replace(surroundings.other_mpi(library, site.cure), what=what)
    launcher = next((word for word in words if "mpiexec" in os.path.basename(word)), words[0])
    return Finding(what, OK, f"{library}; started by {launcher}")


_TWO_RANKS = """
from mpi4py import MPI
words = MPI.Get_library_version().replace("\\0", "").split()[:3]
if MPI.COMM_WORLD.rank == 0:
    print(MPI.COMM_WORLD.size, *words)
"""


def cores():
    """How many cores ranks can have."""
    n = len(os.sched_getaffinity(0))
    if n < 4:
        said = f"{n}: four ranks share them, so times say little"
        return Finding("cores", WARNING, said, "take times with no more ranks than cores")
    return Finding("cores", OK, str(n))


def user():
    """Root or not: only Open MPI minds."""
    if os.geteuid() != 0:
        return Finding("user", OK, "not root")
    if os.environ.get("OMPI_ALLOW_RUN_AS_ROOT") and os.environ.get("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        return Finding("user", OK, "root, and Open MPI is allowed to run as root")
    return Finding("user", OK, "root: MPICH takes it; Open MPI would want OMPI_ALLOW_RUN_AS_ROOT=1 and ..._CONFIRM=1")


def runs():
    """Where Runs are kept."""
    what, cure = "runs", "set COLLECTLAB_RUNS to a folder that can be written, with 1 GiB free"
    try:
        place = rundir.home()
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Finding(what, FAULT, str(error), cure)
    state = OK if free >= 1 << 30 else WARNING
    return Finding(what, state, f"{place}, {free >> 20} MiB free", "" if state == OK else cure)


def gpus():
    """GPUs: found by the driver and by CuPy, which has to compute something on each."""
    driver = shutil.which("nvidia-smi")
    if driver is None:
        return Finding("GPU", OK, "none here (no nvidia-smi): ranks use NumPy")
    listed = _try([driver, "-L"])
    if listed.returncode or not listed.stdout.strip():
        return Finding("GPU", WARNING, f"the driver answers: {_last(listed)}", "ask whoever runs this machine")
    tried = _try([sys.executable, "-c", _EACH_GPU])
    if tried.returncode:
        cure = "conda env create -f environment.yml; by hand: python -m pip install cupy-cuda12x"
        said = f"{len(listed.stdout.splitlines())} by the driver, none by CuPy ({_last(tried)}): ranks use NumPy"
        return Finding("GPU", WARNING, said, cure)
    return Finding("GPU", OK, "; ".join(tried.stdout.splitlines()))


_EACH_GPU = """
import cupy
for index in range(cupy.cuda.runtime.getDeviceCount()):
    with cupy.cuda.Device(index):
        assert int(cupy.arange(3).sum()) == 3
    print(f"cuda:{index}", cupy.cuda.runtime.getDeviceProperties(index)["name"].decode())
"""


def cuda_aware():
    """Whether MPI takes arrays that lie on a GPU: two throw-away ranks try, as MPI may crash."""
    what = "MPI on GPU arrays"
    if shutil.which("nvidia-smi") is None:
        return Finding(what, OK, "not tried: no GPU")
    site = sites.find(None)
    try:
        words = sites.command(site, 2, ["-c", _GPU_PAIR])
    except FileNotFoundError as error:
        return Finding(what, WARNING, f"not tried: {error}")
    tried = _try(words, env=sites.environment(site, {}))
    if tried.returncode == 0 and tried.stdout.split() == ["3", "3"]:
        return Finding(what, OK, "taken as they are")
    said = "not taken: programs copy to the host first, as those of the course do"
    return Finding(what, WARNING, said, "build mpi4py on an MPI with CUDA support, where there is one")


_GPU_PAIR = """
import cupy
from mpi4py import MPI
x = cupy.full(1, MPI.COMM_WORLD.rank + 1)
y = cupy.zeros_like(x)
MPI.COMM_WORLD.Allreduce(x, y)
both = MPI.COMM_WORLD.gather(int(y[0]))
if both:
    print(*both)
"""


def slurm():
    """Slurm: whether it answers, and whether it starts MPICH's ranks, by pmi2; in an allocation two are started."""
    srun = shutil.which("srun")
    if srun is None:
        return Finding("Slurm", OK, "none here")
    version = _try([srun, "--version"]).stdout.strip()
    inside = "SLURM_JOB_ID" in os.environ
    said = f"{version or srun}, {'in' if inside else 'outside of'} an allocation"
    if (asked := _try(["scontrol", "ping"])).returncode:
        cure = "ask whoever runs this cluster; only site='slurm' and site='slurm-queue' want it"
        return Finding("Slurm", WARNING, f"{said}; it does not answer: {_last(asked)}", cure)
    known = _try([srun, "--mpi=list"])
    if not re.search(r"\bpmi2\b", known.stdout + known.stderr):
        return Finding("Slurm", WARNING, f"{said}, without pmi2", "ask for Slurm's pmi2 plugin (Debian: slurm-wlm)")
    if not inside:
        return Finding("Slurm", OK, said)
    tried = _two_ranks("Slurm", sites.find("slurm"))
    state = OK if tried.state == OK else WARNING  # ranks on this node alone need no Slurm
    return replace(tried, state=state, found=f"{said}; {tried.found}")


def ssh():
    """ssh, for ranks on several hosts; the others of a file of hosts are tried, in turn, as site "hosts" does."""
    if not os.environ.get("COLLECTLAB_HOSTS"):
        found = shutil.which("ssh") or "none here: it is only needed for ranks on several hosts without Slurm"
        return Finding("ssh", OK, found)
    site = sites.find("hosts")
    try:
        others = [host for host in dict(sites.hosts(site)) if not _is_here(host)]
        mark = tempfile.NamedTemporaryFile(dir=rundir.home())
    except OSError as error:
        return Finding("ssh", WARNING, getattr(error, "found", str(error)), site.cure)
    fine = Finding("ssh", OK, f"starts Python, and finds the runs, on {', '.join(others) or 'no other host'}")
    with mark:
        return next(filter(None, (_unreached(site, host, mark.name) for host in others)), fine)


def _is_here(host):
    try:
        return bool(network.own_address(host))
    except OSError:
        return False


def _unreached(site, host, mark):
    """What keeps ranks from that host, as a Finding, or None. `mark` is a file in the folder of the runs."""
    env = sites.environment(site, {})
    shell = env.get("HYDRA_LAUNCHER_EXEC") or env.get("HYDRA_LAUNCHER", "ssh")
    there = shlex.join([sys.executable, "-P", "-c", _ON_A_HOST, link.ROOT, mark])
    tried = _try([shell, *env.get("HYDRA_LAUNCHER_EXTRA_ARGS", "").split(), host, there], env=env)
    if tried.returncode == 0:
        return None
    cure = f"it has to hold the same {sys.prefix} and {link.ROOT}, and to share the runs (COLLECTLAB_RUNS)"
    if tried.returncode not in (1, 127):  # of Python, and of a shell that finds none
        hints = (hint for words, hint in site.hints.items() if words in tried.stderr)
        cure = next(hints, "`ssh HOST true` must work without a password").replace("HOST", host)
    return Finding("ssh", WARNING, f"{host}: {_last(tried)}", cure)


_ON_A_HOST = """
import os, sys
sys.path.append(sys.argv[1])
import collectlab.launcher.worker, mpi4py
if not os.access(sys.argv[2], os.W_OK):
    sys.exit(f"it does not share {os.path.dirname(sys.argv[2])}, where the runs lie")
"""


def jupyter():
    """JupyterLab, its kernel and its widgets."""
    there = {name: _version(name) for name in ("jupyterlab", "ipykernel", "ipywidgets")}
    lacking = [name for name, version in there.items() if not version]
    if lacking:
        cure = f"{sys.executable} -m pip install {' '.join(lacking)}"
        return Finding("JupyterLab", FAULT, f"{' and '.join(lacking)} not installed", cure)
    return Finding("JupyterLab", OK, ", ".join(f"{name} {version}" for name, version in there.items()))


def browser():
    """A browser on this machine; without one JupyterLab is opened from another."""
    names = ("xdg-open", "x-www-browser", "chromium", "google-chrome", "firefox")
    found = next(filter(None, map(shutil.which, names)), None)
    if found and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return Finding("browser", OK, found)
    cure = "./launch/lab --no-browser here; ssh -L 8888:127.0.0.1:8888 THIS-MACHINE on your own, and open its address"
    return Finding("browser", WARNING, f"{found or 'none'}, and no display", cure)


CHECKS = (
    python, mpi, open_mpi, cores, user, shared_memory, temporary, runs, gpus, cuda_aware, slurm, ssh, jupyter,
    browser,
)  # fmt: skip


def main(as_json=False):
    """Print the findings; returns 1 when there is a fault, 0 otherwise."""
    import json

    found = []
    for finding in examine():
        found.append(finding)
        if not as_json:
            print(finding, flush=True)
    fault = any(finding.state == FAULT for finding in found)
    if as_json:
        print(json.dumps([asdict(finding) for finding in found]))
    else:
        print("the course does not run here before the fault is cured" if fault else "no fault: the course runs here")
    return int(fault)


def _try(words, env=None):
    """Run a command that may hang or crash; nothing that it started is left."""
    env, tag = dict(os.environ if env is None else env), secrets.token_hex(8)
    env[sweep.TAG], began = tag, time.time()
    try:
        return subprocess.run(
            words, env=env, text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, "", f"no answer within {_PATIENCE} s")
    except OSError as error:
        return subprocess.CompletedProcess(words, 126, "", str(error))
    finally:
        sweep.kill(tag, since=began)


def _last(tried):
    """The last line of what a command complained about."""
    lines = [line.strip() for line in (tried.stderr + tried.stdout).splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {tried.returncode}"

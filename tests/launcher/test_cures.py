"""Ranks that cannot start: the first error that a learner meets names the cause, and the doctor's cure."""

import json
import os
import shutil
import subprocess
import sys

import cloudpickle
import pytest

import collectlab as cl
from collectlab import doctor
from collectlab.launcher import surroundings

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the environment of Open MPI has no pytest

MPICH = os.path.join(os.path.dirname(sys.executable), "mpiexec")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Let a site of this command and these keys be the one that is taken."""

    def install(*command, **more):
        keys = {"rank": "PMI_RANK", "local_rank": "MPI_LOCALRANKID", "needs": "an MPI of your own", **more}
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in keys.items()]
        (tmp_path / "sites").mkdir()
        (tmp_path / "sites" / "mine.toml").write_text(f"command = {json.dumps(command)}\n{''.join(lines)}")
        monkeypatch.setenv("COLLECTLAB_SITES", str(tmp_path / "sites"))
        monkeypatch.setenv("COLLECTLAB_SITE", "mine")

    return install


def fine(ctx):
    return ctx.comm.allreduce(ctx.rank)


def refused(mark):
    """The report of a run whose ranks did not start, which is also the error of a launch."""
    run = cl.run(fine, ranks=2, device="cpu", timeout=30)
    assert run.status == "failed" and "did not start" in run.report().splitlines()[0], run.report()
    assert cl.attach(run.path).report() == run.report()
    mark.gone()
    return run.report()


def test_no_mpiexec(site):
    site("mpiexec-of-nowhere", "-n", "{n}")
    with pytest.raises(FileNotFoundError) as raised:
        cl.run(fine, ranks=2)
    finding = doctor.mpi()
    assert finding.cure in str(raised.value) and finding.found in str(raised.value)


@pytest.mark.parametrize("fault", ("No module named 'mpi4py'", "libmpi.so.12: cannot open shared object file"))
def test_mpi4py_is_missing_or_finds_no_library(fault, tmp_path, monkeypatch, mark, each_site):
    (tmp_path / "mpi4py.py").write_text(f"raise ImportError({fault!r})")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report, finding = refused(mark), doctor.mpi()
    assert finding.state == "fault" and finding.cure
    assert f"    cure: {finding.cure}\n" in report and fault in report and report.endswith("ranks need here")
    with pytest.raises(RuntimeError) as raised:
        cl.launch(2, device="cpu")
    assert f"    cure: {finding.cure}\n" in str(raised.value)


@pytest.mark.needs("Open MPI")
def test_mpi4py_of_mpich_under_the_mpiexec_of_open_mpi(site, mark):
    mpiexec = os.path.join(os.environ["COLLECTLAB_OPENMPI"], "bin", "mpiexec")
    words = (mpiexec, "--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE", "-n", "{n}")
    site(*words, rank="OMPI_COMM_WORLD_RANK", local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
         python=sys.executable, leaves=["{tmp}/ompi.{pid}"])  # fmt: skip
    report = refused(mark)
    assert "unsupported PMI version" in report
    assert "at fault may be MPI: it did not come up in the ranks\n    cure: site 'mine' needs an" in report, report


@pytest.mark.needs("Open MPI")
def test_mpi4py_of_open_mpi_under_the_mpiexec_of_mpich(site, mark, tmp_path):
    site(MPICH, "-hosts", "127.0.0.1", "-iface", "lo", "-n", "{n}", python="$COLLECTLAB_OPENMPI/bin/python")
    report, finding = refused(mark), doctor.mpi()
    for folder in (tmp_path / "tmp").glob("ompi.*"):  # which lone processes of Open MPI share, by host and user
        shutil.rmtree(folder)
    assert "takes itself for the only one" in report.splitlines()[0]
    assert f"at fault may be {finding.what}: {finding.found}\n    cure: {finding.cure}\n" in report, report


@pytest.mark.needs("Open MPI")
def test_open_mpi_that_lets_no_ranks_share_cores(site, mark, monkeypatch):
    monkeypatch.setenv("PRTE_ALLOW_RUN_AS_ROOT", "1")
    words = ("mpiexec", "--allow-run-as-root", "--host", "localhost:1", "-n", "{n}")
    site(*words, rank="OMPI_COMM_WORLD_RANK", local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
         python="$COLLECTLAB_OPENMPI/bin/python")  # fmt: skip
    run = cl.run(fine, ranks=2, device="cpu", timeout=30)
    finding = doctor.mpi()
    assert ":OVERSUBSCRIBE" in finding.cure and f"    cure: {finding.cure}\n" in run.report(), run.report()


def test_a_launcher_that_hangs_ends_with_a_hint(site, mark, monkeypatch, tmp_path):
    (tmp_path / "hangs").write_text("#!/bin/sh\nsetsid sleep 600 &\nsleep 600\n")
    (tmp_path / "hangs").chmod(0o755)
    site(str(tmp_path / "hangs"), "{n}")
    monkeypatch.setenv("COLLECTLAB_START_SECONDS", "0.5")
    report = refused(mark)
    assert "were not ready within 0.5 s" in report and "COLLECTLAB_START_SECONDS" in report
    assert report.endswith("`collectlab doctor` looks at all that ranks need here")


SMALL = """
import sys
import collectlab as cl
from collectlab.launcher import surroundings
def windows(ctx):
    return ctx.window("w", 1 << 20, "float64").local.sum()
run = cl.run(windows, ranks=4, device="cpu", timeout=20)
print(run.ok, surroundings.shared_memory().cure in run.report() or "docker run --shm-size" in run.report())
print(run.report())
"""


@pytest.mark.needs("mounts")
@pytest.mark.parametrize("size", ("16k", "4m"))
def test_little_shared_memory(size, each_site, mark):
    script = f'mount -t tmpfs -o size={size} none /dev/shm && exec "$@"'
    apart = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    said = subprocess.run([*apart, sys.executable, "-c", SMALL], capture_output=True, text=True)
    assert said.stdout.startswith("False True\n"), said.stdout + said.stderr


def test_a_long_temporary_folder_starts_or_says_so(tmp_path, monkeypatch, mark, each_site):
    deep = tmp_path / "tmp" / ("long" * 40)
    deep.mkdir()
    monkeypatch.setenv("TMPDIR", str(deep))
    run = cl.run(fine, ranks=2, device="cpu", timeout=30)
    assert run.ok or f"    cure: {surroundings.temporary().cure}\n" in run.report(), run.report()
    mark.gone()
    deep.rmdir()

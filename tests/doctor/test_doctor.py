"""Each line of the doctor on a machine that has the thing, and on one that lacks it."""

import json
import os
import subprocess
import sys
import textwrap
from collections import namedtuple

import pytest

from collectlab import doctor
from collectlab.launcher import sites, surroundings, sweep


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Put commands of these names, with that shell text, before all others on the PATH."""

    def install(**texts):
        for name, text in texts.items():
            path = tmp_path / name.replace("_", "-")
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


@pytest.fixture
def cupy(tmp_path, monkeypatch):
    """Let throw-away processes find a `cupy` with this text."""

    def install(text):
        (tmp_path / "cupy.py").write_text(textwrap.dedent(text))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return install


def test_this_machine_can_run_the_course():
    found = list(doctor.examine())
    assert len(found) == len(doctor.CHECKS)
    assert [str(finding) for finding in found if finding.state == "fault"] == []
    assert all(finding.cure for finding in found if finding.state != "ok")
    by_name = {finding.what: finding for finding in found}
    assert "MPICH" in by_name["MPI"].found and "mpiexec" in by_name["MPI"].found


def test_the_command_prints_a_line_each_and_its_json_says_the_same():
    words = [sys.executable, "-m", "collectlab", "doctor"]
    text, parsed = (subprocess.run([*words, *more], capture_output=True, text=True) for more in ([], ["--json"]))
    assert text.returncode == parsed.returncode == 0, text.stderr + parsed.stderr
    found = json.loads(parsed.stdout)
    assert {frozenset(line) for line in found} == {frozenset({"what", "state", "found", "cure"})}
    for line in found:
        assert f"{line['what']}: " in text.stdout


def test_a_fault_makes_the_exit_code_1(monkeypatch, capsys):
    broken = doctor.Finding("thing", doctor.FAULT, "not there", "get one")
    monkeypatch.setattr(doctor, "CHECKS", (lambda: doctor.Finding("other", doctor.OK, "fine"), lambda: broken))
    assert doctor.main() == 1
    told = "ok      other: fine\nfault   thing: not there\n        cure: get one\n"
    assert capsys.readouterr().out == f"{told}the course does not run here before the fault is cured\n"
    monkeypatch.setattr(doctor, "CHECKS", (lambda: doctor.Finding("thing", doctor.WARNING, "poor", "mend"),))
    assert doctor.main() == 0
    assert capsys.readouterr().out.endswith("\nno fault: the course runs here\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Let a site with this command be the one that is taken."""

    def install(*command):
        words = json.dumps([*command, "{n}"])
        text = f'command = {words}\nrank = "R"\nlocal_rank = "L"\nneeds = "an MPI, by hand"\n'
        (tmp_path / "faked.toml").write_text(text)
        monkeypatch.setenv("COLLECTLAB_SITES", str(tmp_path))
        monkeypatch.setenv("COLLECTLAB_SITE", "faked")

    return install


def test_no_mpiexec_is_a_fault(site):
    site("mpiexec-of-nowhere")
    finding = doctor.mpi()
    assert (finding.state, finding.found) == ("fault", "mpiexec-of-nowhere was not found")
    assert finding.cure == "site 'faked' needs an MPI, by hand"


@pytest.mark.parametrize(
    ("said", "cure"),
    (
        ("ModuleNotFoundError: No module named 'mpi4py'", "an MPI, by hand"),
        ("ImportError: libmpi.so.12: cannot open shared object file: No such file", "an MPI, by hand"),
        ("There are not enough slots available in the system", ":OVERSUBSCRIBE"),
        ("something that nobody has met before", "an MPI, by hand"),
    ),
)
def test_what_a_start_that_failed_printed_decides_the_cure(site, commands, said, cure):
    commands(mpifake=f'echo "{said}" >&2; exit 1')
    site("mpifake")
    finding = doctor.mpi()
    assert finding.state == "fault" and said in finding.found and cure in finding.cure


def test_open_mpi_is_looked_at_where_one_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("COLLECTLAB_OPENMPI", raising=False)
    assert doctor.open_mpi().state == "ok" and "none named" in doctor.open_mpi().found
    monkeypatch.setenv("COLLECTLAB_OPENMPI", str(tmp_path))
    finding = doctor.open_mpi()
    assert finding.state == "fault" and f"{tmp_path}/bin/python: it was not found" in finding.found
    assert "launch/sites/openmpi.toml" in finding.cure


@pytest.mark.needs("Open MPI")
def test_an_open_mpi_that_is_there_is_tried():
    assert doctor.open_mpi().state == "ok" and doctor.open_mpi().found.startswith("Open MPI v5")


def test_an_mpiexec_of_another_mpi_is_a_fault(monkeypatch):
    twice = f'"{sys.executable}" -c "$0"; "{sys.executable}" -c "$0"'
    monkeypatch.setattr(sites, "command", lambda site, n, words: ["sh", "-c", twice, words[-1]])
    finding = doctor.mpi()
    assert finding.state == "fault" and "is of another MPI than their mpi4py, which uses MPICH" in finding.found


def test_ranks_that_do_not_start_are_a_fault(monkeypatch):
    monkeypatch.setattr(sites, "command", lambda *_: ["sh", "-c", "echo no such fabric >&2; exit 3"])
    finding = doctor.mpi()
    assert finding.state == "fault" and finding.found.endswith("no such fabric")


def test_what_does_not_answer_is_ended_with_all_that_it_started(monkeypatch):
    monkeypatch.setattr(doctor, "_PATIENCE", 0.5)
    tags = []
    monkeypatch.setattr(doctor.secrets, "token_hex", lambda n: tags.append("doctor-test") or "doctor-test")
    monkeypatch.setattr(sites, "command", lambda *_: ["sh", "-c", "setsid sleep 600 & setsid sleep 600"])
    finding = doctor.mpi()
    assert finding.state == "fault" and "no answer within 0.5 s" in finding.found
    assert tags and not sweep.tagged("doctor-test")


@pytest.mark.parametrize(("n", "state"), ((1, "warning"), (3, "warning"), (4, "ok"), (64, "ok")))
def test_cores(monkeypatch, n, state):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(n)))
    assert doctor.cores().state == state and str(n) in doctor.cores().found


def test_root_is_told_what_open_mpi_wants(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "OMPI_ALLOW_RUN_AS_ROOT" in doctor.user().found
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    assert doctor.user().found == "root, and Open MPI is allowed to run as root"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert doctor.user().found == "not root"


def test_little_or_closed_shared_memory(monkeypatch):
    stat = namedtuple("stat", "f_bavail f_frsize")
    monkeypatch.setattr(os, "statvfs", lambda _: stat(1 << 20, 64))
    assert doctor.shared_memory().state == "ok"
    monkeypatch.setattr(os, "statvfs", lambda _: stat(1 << 20, 63))
    assert doctor.shared_memory().state == "warning" and "63 MiB" in doctor.shared_memory().found
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert doctor.shared_memory().state == "fault" and "--shm-size" in doctor.shared_memory().cure


def test_a_temporary_folder_that_is_not_there(tmp_path, monkeypatch):
    for named, state in ((tmp_path, "ok"), (tmp_path / "gone", "warning")):
        monkeypatch.setenv("TMPDIR", str(named))
        monkeypatch.setattr(surroundings.tempfile, "tempdir", None)  # looked for anew
        monkeypatch.setattr(surroundings, "_SOCKET_PATH", 1000)
        assert doctor.temporary().state == state and (state == "ok" or str(named) in doctor.temporary().found)


def test_a_long_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("TMPDIR", raising=False)
    assert doctor.temporary().state == "ok" or len(surroundings.tempfile.gettempdir()) > 47
    deep = tmp_path / ("d" * 60)
    monkeypatch.setattr(surroundings.tempfile, "gettempdir", lambda: str(deep))
    assert doctor.temporary().state == "warning" and str(deep) in doctor.temporary().found


def test_a_place_for_runs_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLECTLAB_RUNS", str(tmp_path / "runs"))
    assert doctor.runs().state == "ok" and str(tmp_path / "runs") in doctor.runs().found
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COLLECTLAB_RUNS", str(tmp_path / "file" / "runs"))
    finding = doctor.runs()
    assert finding.state == "fault" and str(tmp_path / "file" / "runs") in finding.found
    assert "COLLECTLAB_RUNS" in finding.cure


def test_gpus_that_answer_are_named(commands, cupy):
    commands(nvidia_smi="echo 'GPU 0: a GPU'")
    cupy(
        """
        import numpy
        from numpy import *
        class cuda:
            class runtime:
                getDeviceCount = staticmethod(lambda: 2)
                getDeviceProperties = staticmethod(lambda index: {"name": b"a GPU"})
            class Device:
                __init__ = lambda self, index: None
                __enter__ = __exit__ = lambda self, *_: None
        """
    )
    assert (doctor.gpus().state, doctor.gpus().found) == ("ok", "cuda:0 a GPU; cuda:1 a GPU")


def test_a_gpu_that_cupy_does_not_find(commands, cupy):
    commands(nvidia_smi="echo 'GPU 0: a GPU'")
    cupy("raise ImportError('libcudart.so.12: cannot open shared object file')")
    finding = doctor.gpus()
    assert finding.state == "warning" and "libcudart.so.12" in finding.found and "cupy" in finding.cure


def test_a_driver_that_does_not_answer(commands):
    commands(nvidia_smi="echo 'NVIDIA-SMI has failed' >&2; exit 9")
    assert doctor.gpus().state == "warning" and "NVIDIA-SMI has failed" in doctor.gpus().found


def test_an_mpi_that_crashes_on_gpu_arrays_is_found_out(commands, cupy):
    commands(nvidia_smi="echo 'GPU 0: a GPU'")
    cupy("import os; os.kill(os.getpid(), 11)")
    finding = doctor.cuda_aware()
    assert finding.state == "warning" and "copy to the host first" in finding.found
    cupy("from numpy import *")
    assert doctor.cuda_aware().found == "taken as they are"


def test_slurm_with_and_without_pmi2(commands, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    commands(srun='[ "$1" = --version ] && echo slurm 22.05.8 || echo "cray_shasta none pmi2"', scontrol="")
    assert (doctor.slurm().state, doctor.slurm().found) == ("ok", "slurm 22.05.8, outside of an allocation")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    commands(srun='[ "$1" = --version ] && echo slurm 22.05.8 || echo "none pmix"')
    finding = doctor.slurm()
    assert finding.state == "warning" and finding.found == "slurm 22.05.8, in an allocation, without pmi2"


def test_a_slurm_without_a_controller_is_not_said_to_lack_pmi2(commands, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    commands(srun="echo 'srun: fatal: no configuration' >&2; exit 1", scontrol="echo no configuration >&2; exit 1")
    finding = doctor.slurm()
    assert finding.state == "warning" and finding.found.endswith("it does not answer: no configuration")
    assert finding.found.startswith("/") and "pmi2" not in finding.found + finding.cure


def test_ssh_is_named_where_it_is(commands, monkeypatch, tmp_path):
    monkeypatch.delenv("COLLECTLAB_HOSTS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.ssh().state == "ok" and "several hosts without Slurm" in doctor.ssh().found
    commands(ssh="")
    assert (doctor.ssh().state, doctor.ssh().found) == ("ok", str(tmp_path / "ssh"))


def test_no_slurm_is_no_fault(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (doctor.slurm().state, doctor.slurm().found) == ("ok", "none here")


def test_packages_that_are_missing_are_named(monkeypatch):
    version = doctor.metadata.version

    def lacking(name):
        if name in ("ipywidgets", "numpy"):
            raise doctor.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(doctor.metadata, "version", lacking)
    assert doctor.jupyter().state == "fault" and doctor.jupyter().cure.endswith("pip install ipywidgets")
    assert doctor.python().state == "fault" and doctor.python().cure.endswith("pip install ipywidgets numpy")


def test_no_display_says_how_to_open_the_lab_from_elsewhere(commands, monkeypatch):
    commands(xdg_open="")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    assert doctor.browser().state == "ok"
    monkeypatch.delenv("DISPLAY")
    assert doctor.browser().state == "warning" and "ssh -L" in doctor.browser().cure

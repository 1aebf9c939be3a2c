"""The MPI that a cluster's modules bring: a Python and an mpiexec, on one host and on two."""

import os
import sys
from pathlib import Path

import pytest

import collectlab as cl

MPICH = Path(sys.executable).parent
OPENMPI = Path(os.environ.get("COLLECTLAB_OPENMPI", "/nowhere")) / "bin"
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
SHARING = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


@pytest.fixture
def module(monkeypatch, tmp_path):
    """Call it with the folders of the Python and of the mpiexec that are loaded."""

    def load(python, mpiexec):
        settings = {"COLLECTLAB_RANK_PYTHON": f"{python}/python", "COLLECTLAB_MPIEXEC": f"{mpiexec}/mpiexec"}
        for name, value in {**settings, **ROOT, **SHARING, "COLLECTLAB_RUNS": str(tmp_path / "runs")}.items():
            monkeypatch.setenv(name, value)

    return load


@pytest.mark.parametrize(
    ("folder", "name"), ((MPICH, "MPICH"), pytest.param(OPENMPI, "Open MPI", marks=pytest.mark.needs("Open MPI")))
)
def test_ranks_are_of_the_mpi_that_is_loaded(module, folder, name):
    module(folder, folder)

    def vendor(ctx):
        from mpi4py import MPI

        return MPI.get_vendor()[0], ctx.comm.allreduce(ctx.rank)

    run = cl.run(vendor, ranks=2, device="cpu", site="module")
    assert run.results == [(name, 1), (name, 1)], run.report()


@pytest.mark.needs("Open MPI")
@pytest.mark.parametrize("python", ("MPICH", "OPENMPI"))
def test_an_mpiexec_of_another_mpi_is_told_with_the_cure(module, python):
    module(*((MPICH, OPENMPI) if python == "MPICH" else (OPENMPI, MPICH)))
    run = cl.run(lambda ctx: None, ranks=2, device="cpu", site="module")
    assert run.status == "failed" and "named by COLLECTLAB_RANK_PYTHON and COLLECTLAB_MPIEXEC" in run.report()


@pytest.mark.needs("Open MPI")
def test_what_is_not_loaded_is_told(module, monkeypatch):
    module(MPICH, OPENMPI)
    monkeypatch.delenv("COLLECTLAB_MPIEXEC")
    with pytest.raises(FileNotFoundError, match="the variable COLLECTLAB_MPIEXEC is not set"):
        cl.launch(2, site="module")


@pytest.mark.needs("Open MPI", "second host")
def test_open_mpi_on_two_hosts_runs_and_is_cleaned_when_one_is_cut_off(hosts):
    file = hosts.folder / "slots"
    file.write_text("alpha slots=2\nbeta slots=2\n")
    settings = {
        "COLLECTLAB_RANK_PYTHON": f"{OPENMPI}/python", "COLLECTLAB_MPIEXEC": f"{OPENMPI}/mpiexec", **ROOT,
        "PRTE_MCA_plm_ssh_agent": str(hosts.shell), "PRTE_MCA_prte_default_hostfile": str(file),
        "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp", "OMPI_MCA_btl_tcp_if_include": "10.77.31.0/24",
    }  # fmt: skip
    notebook = hosts.another_notebook(settings)
    notebook.run("""
        import os, time
        ranks = cl.launch(4, device="cpu", site="module")
        run = ranks.submit(lambda ctx: (os.uname().nodename, ctx.comm.allreduce(ctx.rank))).wait()
        stuck = ranks.submit(lambda ctx: time.sleep(600))
    """)
    assert notebook("run.results") == [("alpha", 6), ("alpha", 6), ("beta", 6), ("beta", 6)]
    hosts.alpha.cable("down")
    try:
        notebook.run("stuck.wait(20)")
        hosts.gone(5.0)
    finally:
        hosts.alpha.cable("up")
    assert "lost host beta" in notebook("stuck.report()") and "ranks 2 and 3" in notebook("stuck.report()")
    hosts.kill_notebook()

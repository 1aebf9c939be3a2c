"""launch/jupyter.sbatch, submitted for real: its output leads to JupyterLab, and scancel leaves nothing."""

import os
import re
import subprocess
import sys

import pytest
from marks import wait_for
from slurm_cluster import ROOT

pytestmark = pytest.mark.needs("slurm")

FETCH = """
import sys, urllib.error, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], timeout=20) as answer:
        print(answer.status, answer.geturl(), "JupyterLab" in answer.read().decode())
except (urllib.error.URLError, OSError) as error:
    print(error)
"""


@pytest.fixture
def batch(cluster, tmp_path):
    """Submit the script from a folder, with a home of its own: the number of the job, and its output file."""
    home = tmp_path / "home"
    home.mkdir()

    def submit(folder):
        output = tmp_path / "job.out"
        variables = {**cluster.environment, **os.environ, "HOME": str(home), "VIRTUAL_ENV": sys.prefix}
        variables = {name: value for name, value in variables.items() if not name.startswith(("JUPYTER", "XDG"))}
        process = cluster.start(
            "login",
            ["sbatch", f"--chdir={folder}", f"--output={output}", str(ROOT / "launch" / "jupyter.sbatch")],
            stdout=subprocess.PIPE, text=True, env={**variables, "SLURM_CONF": cluster.environment["SLURM_CONF"]},
        )  # fmt: skip
        return process.communicate()[0].split()[-1], output

    yield submit


def fetch(cluster, node, address):
    process = cluster.start(node, [sys.executable, "-c", FETCH, address], stdout=subprocess.PIPE, text=True)
    return process.communicate(timeout=60)[0]


def test_the_output_leads_to_the_page_and_scancel_leaves_nothing(batch, cluster, mark, tmp_path):
    job, output = batch(ROOT)
    wait_for(lambda: output.exists() and "It ends with" in output.read_text(), 60, lambda: cluster.said("squeue"))
    said = output.read_text()
    tunnel = r"runs on (\S+)\. .*?ssh -N -L (\d+):127\.0\.0\.1:\2 -J \S+@login \S+@(\S+)"
    node, port, to = re.search(tunnel, said, re.S).groups()
    assert node == to == "n1" and f"scancel {job}" in said
    private = re.search(r"cat (\S+)/address", said)[1]
    assert os.stat(private).st_mode & 0o777 == 0o700 and os.stat(f"{private}/address").st_mode & 0o777 == 0o600
    address = open(f"{private}/address").read().strip()
    token = address.rpartition("=")[2]
    assert address == f"http://127.0.0.1:{port}/?token={token}" and len(token) > 20
    # the end of the tunnel is loopback of that node
    assert fetch(cluster, node, address).startswith(f"200 http://127.0.0.1:{port}/lab/tree/00")
    assert "403" in fetch(cluster, node, f"http://127.0.0.1:{port}/api/contents")
    assert "refused" in fetch(cluster, "login", address.replace("127.0.0.1", "10.77.41.2"))
    commands = " ".join(mark.alive().values())
    assert token not in said and token not in commands and "jupyterlab" in commands
    cluster.said("scancel", job)
    mark.gone(10)
    wait_for(lambda: not cluster.jobs(), 10)
    assert not os.path.exists(private)


def test_from_elsewhere_than_the_checkout_it_says_what_to_do(batch, cluster, tmp_path):
    _, output = batch(tmp_path)
    wait_for(lambda: not cluster.jobs(), 20)
    assert f"{tmp_path} is no checkout of the course: run sbatch in it" in output.read_text()


def test_its_options_are_those_that_sbatch_takes():
    lines = (ROOT / "launch" / "jupyter.sbatch").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [number for number, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert options and max(options) < first, "sbatch reads no option after the first command"
    assert lines[0].startswith("#!")

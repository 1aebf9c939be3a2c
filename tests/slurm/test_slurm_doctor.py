"""The doctor's line on Slurm, before the real one."""

import re

import pytest

pytestmark = pytest.mark.needs("slurm")

ASK = """
from dataclasses import asdict
from collectlab import doctor
tell(**asdict(doctor.slurm()))
"""


def test_outside_of_an_allocation(script):
    said = script(ASK, within=()).answer()
    assert (said["state"], said["cure"]) == ("ok", "")
    assert said["found"].startswith("slurm") and "outside of an allocation" in said["found"]


def test_inside_of_one_two_ranks_find_each_other(script):
    said = script(ASK).answer()
    assert said["state"] == "ok" and re.search(r", in an allocation; MPICH .*; started by /.*/srun$", said["found"])


def test_a_controller_that_does_not_answer(script, cluster, tmp_path):
    dead = tmp_path / "slurm.conf"
    dead.write_text((cluster.folder / "slurm.conf").read_text() + "SlurmctldPort=6999\nMessageTimeout=2\n")
    said = script(ASK, within=(), SLURM_CONF=str(dead)).answer()
    assert said["state"] == "warning" and "does not answer" in said["found"] and said["cure"]

"""pyproject.toml and environment.yml ask for the same packages in the same versions."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

# conda-forge's name, where it is not PyPI's
CONDA_NAME = {"cupy-cuda12x": "cupy"}


def requirements(lines):
    """Name -> set of version clauses, of lines such as "numpy >=2.0,<3"."""
    pins = {}
    for line in lines:
        name, versions = re.fullmatch(r"([\w.-]+)\s*([<>=!~].*)?", line).groups()
        pins[name] = frozenset((versions or "").replace(" ", "").split(","))
    return pins


def pyproject_pins(text):
    project = tomllib.loads(text)["project"]
    lines = project["dependencies"] + [
        line for extra in project["optional-dependencies"].values() for line in extra
    ]
    pins = {CONDA_NAME.get(name, name): versions for name, versions in requirements(lines).items()}
    return pins | {"python": frozenset(project["requires-python"].split(","))}


def environment_pins(text):
    entries = yaml.safe_load(text)["dependencies"]
    conda = [entry for entry in entries if isinstance(entry, str)]
    (pip,) = (entry["pip"] for entry in entries if isinstance(entry, dict))
    assert "-e ." in pip and "pip" in conda
    return requirements([line for line in conda + pip if line not in ("pip", "-e .")])


def disagreements(pyproject, environment):
    ours, theirs = pyproject_pins(pyproject), environment_pins(environment)
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


PYPROJECT = (ROOT / "pyproject.toml").read_text()
ENVIRONMENT = (ROOT / "environment.yml").read_text()


def test_the_same_packages_in_the_same_versions():
    assert disagreements(PYPROJECT, ENVIRONMENT) == []


def test_every_pin_has_both_ends():
    for name, versions in pyproject_pins(PYPROJECT).items():
        ends = ("<", ">") if name != "python" else (">",)
        assert {version[0] for version in versions} == set(ends), name


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("numpy >=2.0,<3", "numpy >=1.26,<3", "numpy"),
        ("  - nbval >=0.11,<1\n", "", "nbval"),
        ("  - pip\n", "  - pip\n  - scipy\n", "scipy"),
        ("cupy >=13.4", "cupy >=13.5", "cupy"),
        ("mpich>=5.0", "mpich>=4.0", "mpich"),
        ("python >=3.11", "python >=3.12", "python"),
    ],
)
def test_a_difference_is_found(old, new, named):
    assert old in ENVIRONMENT
    assert disagreements(PYPROJECT, ENVIRONMENT.replace(old, new)) == [named]

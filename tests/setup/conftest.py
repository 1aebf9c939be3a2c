"""Checkouts to set up in seconds: launch/, venv and pip are real, the packages they install are stand-ins."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = getattr(sys, "_base_executable", sys.executable)  # not a virtual environment's

# All that launch/ may ask of a machine beside Python: every Debian has these.
TOOLS = """awk bash cat chmod cut df dirname env find flock getent grep head id mkdir mktemp mv readlink rm sed sh
    sha256sum tail tee touch""".split()

ECHO = """import json, os, sys
given = {"argv": sys.argv[1:], "cwd": os.getcwd(), "home": os.environ["HOME"], "prefix": sys.prefix}
print(json.dumps(given))
if gathered := os.environ.get("COLLECTLAB_LEFT_OUT"):
    with open(gathered, "a") as file:
        print("1 left out", file=file)
sys.exit(int(os.environ.get("FAILS", "nothing") in sys.argv))
"""

# What pip needs of a build backend for an editable install. It leaves a line in `builds`, and where the
# checkout holds the named pipes `building` and `go`, it says that it has begun and waits to be let go.
BACKEND = """import os, tomllib, zipfile

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    if os.access(".", os.W_OK):
        with open("builds", "a") as builds:
            builds.write("built\\n")
    if os.path.exists("building"):
        with open("building", "w") as building:
            building.write("building")
        with open("go") as go:
            go.read()
    with open("pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    metadata = ["Metadata-Version: 2.1", "Name: collectlab", "Version: " + project["version"]]
    metadata += ["Requires-Dist: " + wanted for wanted in project["dependencies"]]
    for extra, wants in project["optional-dependencies"].items():
        metadata += ["Provides-Extra: " + extra]
        metadata += ["Requires-Dist: %s; extra == '%s'" % (wanted, extra) for wanted in wants]
    name = "collectlab-%s-py3-none-any.whl" % project["version"]
    info = "collectlab-%s.dist-info/" % project["version"]
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        wheel.writestr("collectlab.pth", os.getcwd())
        wheel.writestr(info + "METADATA", "\\n".join(metadata) + "\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""


def stand_in(folder, name, version, files):
    """Write a wheel called NAME and VERSION that holds FILES (path -> text)."""
    wheel_name = name.replace("-", "_")
    info = f"{wheel_name}-{version}.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    path = folder / f"{wheel_name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(text.encode())}")
        wheel.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory):
    """A folder of stand-ins for what pyproject.toml names, each at the lowest version that it allows."""
    folder = tmp_path_factory.mktemp("wheelhouse")
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    files = {
        "hatchling": {"hatchling/__init__.py": "", "hatchling/build.py": BACKEND},
        "jupyterlab": {"jupyterlab/__init__.py": "", "jupyterlab/__main__.py": ECHO},
        "pytest": {"pytest/__init__.py": "", "pytest/__main__.py": ECHO},
        "numpy": {"numpy/__init__.py": "", "numpy/bulk": "\0" * 2**25},
    }
    for requirement in (
        pyproject["build-system"]["requires"]
        + pyproject["project"]["dependencies"]
        + pyproject["project"]["optional-dependencies"]["test"]
    ):
        name, version = re.match(r"([\w-]+)>=([\d.]+)", requirement).groups()
        stand_in(folder, name, version, files.get(name, {}))
    return folder


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def lesson(source, output):
    """The text of a notebook with one cell, executed."""
    result = {
        "output_type": "execute_result",
        "metadata": {},
        "execution_count": 1,
        "data": {"text/plain": [output]},
    }
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "execution_count": 1, "source": [source]}
    title = {"cell_type": "markdown", "id": "b", "metadata": {}, "source": ["# Größe"]}
    cells = [title, cell | {"outputs": [result]}]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells})


class Checkout:
    """A copy of what launch/ works on, and the bare machine that it is started on."""

    def __init__(self, path, machine, wheelhouse):
        self.path, self.machine = path, machine
        for name in ("launch", ".ci"):
            shutil.copytree(ROOT / name, path / name)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, path)
        for name, text in {
            "collectlab/__init__.py": "",
            "collectlab/__main__.py": ECHO,
            "notebooks/00-first.ipynb": lesson("1 + 1", "2"),
            "notebooks/01-second.ipynb": lesson("2 + 2", "4"),
            "notebooks/pictures/one.png": "a picture",
            "tests/conftest.py": "",
        }.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
        (machine / "home").mkdir(parents=True)
        (machine / "tmp").mkdir()
        for tool in TOOLS:
            (machine / "tools").mkdir(exist_ok=True)
            (machine / "tools" / tool).symlink_to(shutil.which(tool))
        self.environment = {
            "PATH": f"{machine / 'python'}:{machine / 'tools'}",
            "HOME": str(machine / "home"),
            "TMPDIR": str(machine / "tmp"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": wheelhouse.as_uri(),
        }
        self.python()

    def python(self, name="python3", before="", interpreter=PYTHON):
        """Put a command called NAME on the machine: INTERPRETER, after the shell lines BEFORE."""
        return executable(self.machine / "python" / name, f'#!/bin/sh\n{before}\nexec {interpreter} "$@"\n')

    @property
    def venv(self):
        return self.path / ".venv"

    @property
    def copy(self):
        """The notebooks that the learner works on."""
        return self.machine / "home" / "collectlab-notebooks"

    def command(self, *command, **environment):
        """Keyword arguments for subprocess; an environment variable given as None is unset."""
        environment = {k: str(v) for k, v in (self.environment | environment).items() if v is not None}
        command = [str(self.path / command[0]), *map(str, command[1:])]
        return {
            "args": command,
            "env": environment,
            "cwd": "/",
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
        }

    def start(self, *command, wrapper=(), **environment):
        command = self.command(*command, **environment)
        command["args"] = [*wrapper, *command["args"]]
        return subprocess.run(**command)

    def reached(self, *command, **options):
        """What the stand-in that launch/ handed over to was given, and what launch/ said."""
        result = self.start(*command, **options)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout) | {"said": result.stderr}

    def refusal(self, *command, **options):
        """The one line with which launch/ gave up."""
        result = self.start(*command, **options)
        assert result.returncode == 1 and result.stdout == "", result
        *earlier, last = result.stderr.splitlines()
        assert all(re.match("collectlab: (making|bringing) ", line) for line in earlier), earlier
        return last.removeprefix("collectlab: ")


@pytest.fixture
def bare_checkout(wheelhouse):
    """Makes a checkout in a given folder, on a machine of its own."""
    return lambda folder: Checkout(folder / "checkout", folder / "machine", wheelhouse)


@pytest.fixture
def checkout(bare_checkout, tmp_path):
    return bare_checkout(tmp_path)


@pytest.fixture(scope="session")
def ready(tmp_path_factory, wheelhouse):
    """A checkout whose environment is set up with the tests' packages. Tests leave it as it is."""
    folder = tmp_path_factory.mktemp("ready")
    checkout = Checkout(folder / "a path" / "with spaces", folder / "machine", wheelhouse)
    result = checkout.start("launch/test")
    assert result.returncode == 0, result.stderr
    return checkout

"""launch/ makes its environment once, from whatever the machine has, and mends a broken one."""

import ensurepip
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEBIAN_WITHOUT_VENV = """case "$*" in
"-m venv --without-pip"*) ;;
"-m venv"*) echo "The virtual environment was not created: ensurepip is not available."; exit 1 ;;
"-m pip"* | *"import virtualenv"*) echo "No module of that name"; exit 1 ;;
esac"""


def test_a_second_start_installs_nothing_and_hands_arguments_on(ready):
    log = (ready.venv / "launch" / "log").stat()
    again = ready.reached("launch/test", "-k", "a name")
    assert again["said"] == "" and again["cwd"] == str(ready.path)
    assert again["argv"][-2:] == ["-k", "a name"] and "--nbval" in again["argv"]
    assert again["prefix"] == str(ready.venv)
    lab = ready.reached("launch/lab", "--port", "9000")
    assert lab["argv"][-3:] == ["--LabApp.default_url=/lab/tree/00-first.ipynb", "--port", "9000"]
    assert f"--ServerApp.root_dir={ready.copy}" in lab["argv"] and lab["cwd"] == str(ready.copy)
    assert "--ip=127.0.0.1" in lab["argv"] and ("--allow-root" in lab["argv"]) == (os.getuid() == 0)
    assert (ready.venv / "launch" / "log").stat() == log
    assert (ready.path / "builds").read_text() == "built\n"


def test_the_whole_suite_is_run_in_parts_and_what_they_left_out_is_listed_at_the_end(ready):
    result = ready.start("launch/test", "--all", "--without", "gpu")
    said, left_out = result.stdout.split("=== left out ===\n")
    *left_out, last = left_out.splitlines()
    parts = [json.loads(line)["argv"] for line in [*said.splitlines(), last]]
    assert result.returncode == 0 and len(parts) == 4 and left_out == 4 * ["1 left out"] and result.stderr == ""
    assert all(part[2:5] == ["--all", "--without", "gpu"] for part in parts)
    parts = [[word for word in part[5:] if not word.startswith("-p")] for part in parts]
    (rest,) = (part for part in parts if part[0] == "tests")
    folders = [folder for part in parts if part is not rest for folder in part]
    assert all((ROOT / folder).is_dir() for folder in folders) and len({*folders}) == len(folders)
    assert "notebooks" in folders  # pytest collects what it is told to collect, whatever it is to ignore
    assert sorted(rest) == sorted(["tests", *(f"--ignore={folder}" for folder in folders)])


@pytest.mark.parametrize("fails", ["tests/views", "tests/exercises", "tests/browser", "--ignore=tests/views"])
def test_a_failure_in_any_part_is_one(ready, fails):
    result = ready.start("launch/test", FAILS=fails)
    assert result.returncode == 1 and result.stdout.count('"argv"') == 4
    assert result.stderr.startswith("collectlab: there were failures")


def test_a_need_without_a_name_is_left_to_pytest(ready):
    assert ready.reached("launch/test", "--all", "--without")["argv"][-2:] == ["--all", "--without"]


def test_lab_check_runs_the_first_notebook(ready):
    check = ready.reached("launch/lab", "--check")
    assert check["argv"] == ["run", str(ready.path / "notebooks" / "00-first.ipynb")]


def test_through_a_symbolic_link(ready, tmp_path):
    (tmp_path / "lab").symlink_to(ready.path / "launch" / "lab")
    command = ready.command("launch/lab")
    command["args"] = [str(tmp_path / "lab")]
    result = subprocess.run(**command)
    assert result.returncode == 0 and str(ready.copy) in result.stdout


@pytest.mark.parametrize("script", ["lab", "test"])
def test_help_sets_nothing_up(checkout, script):
    result = checkout.start(f"launch/{script}", "--help")
    assert result.returncode == 0 and f"usage: ./launch/{script}" in result.stdout
    assert not checkout.venv.exists()


def test_lab_needs_no_test_packages_and_a_changed_pyproject_is_followed(checkout):
    checkout.reached("launch/lab")
    installed = [path.name for path in checkout.venv.glob("lib/python3*/site-packages/*.dist-info")]
    assert not any(name.startswith("hypothesis") for name in installed)
    assert "bringing" in checkout.reached("launch/test", "-q")["said"]
    assert checkout.reached("launch/lab")["said"] == ""
    pyproject = checkout.path / "pyproject.toml"
    pyproject.write_text(pyproject.read_text() + "\n[tool.something]\n")
    assert checkout.reached("launch/lab")["said"] == ""
    pyproject.write_text(pyproject.read_text().replace('version = "', 'version = "9.'))
    assert "bringing" in checkout.reached("launch/lab")["said"]
    # a package taken away by hand comes back
    for path in checkout.venv.glob("lib/python3*/site-packages/mpich-*"):
        shutil.rmtree(path)
    assert "bringing" in checkout.reached("launch/lab")["said"]


@pytest.mark.parametrize("name", ["it's \"odd\" $HOME & ü;", "[1]", "a[test]", "-n", "a%20b#c?d"])
def test_a_path_of_any_characters(bare_checkout, tmp_path, name):
    checkout = bare_checkout(tmp_path / name)
    checkout.path.rename(tmp_path / name / name)  # the last name of the path, too
    checkout.path = tmp_path / name / name
    for command, locale in (("launch/lab", None), ("launch/test", None), ("launch/test", "C")):
        assert checkout.reached(command, "-q", LC_ALL=locale)["prefix"] == str(checkout.venv)
    assert checkout.reached("launch/lab", "--check")["argv"] == ["run", f"{checkout.path}/notebooks/00-first.ipynb"]


def test_old_python(checkout):
    checkout.python(before='echo "Python 3.10.13"; exit')
    refusal = checkout.refusal("launch/lab")
    python = checkout.machine / "python/python3"
    assert f"found Python 3.10.13 at {python}; collectlab needs 3.11 or newer" in refusal
    assert not (checkout.venv / "bin").exists()


def test_no_python(checkout):
    (checkout.machine / "python/python3").unlink()
    assert "found no Python; collectlab needs 3.11" in checkout.refusal("launch/lab")
    refusal = checkout.refusal("launch/lab", COLLECTLAB_PYTHON="/nowhere/python3")
    assert "COLLECTLAB_PYTHON is /nowhere/python3" in refusal


def test_the_newest_python_first_and_a_named_one_before_all(checkout):
    checkout.python("python3.10", before='echo "Python 3.10.13"; exit')
    refuses = 'if [ "$*" = --version ]; then echo "Python 3.%s.0"; exit; fi; echo no ensurepip; exit 1'
    checkout.python("python3.12", before=refuses % 12)
    checkout.python("python3", before=refuses % 14)
    refusal = checkout.refusal("launch/lab")
    assert refusal.index("python/python3.12") < refusal.index("python/python3:")
    elsewhere = checkout.python("../elsewhere/python", before=refuses % 13)
    refusal = checkout.refusal("launch/lab", COLLECTLAB_PYTHON=elsewhere)
    assert str(elsewhere) in refusal and "python3.12" not in refusal


def test_python_without_ensurepip(checkout):
    checkout.python(before=DEBIAN_WITHOUT_VENV)
    refusal = checkout.refusal("launch/lab")
    assert "no ensurepip" in refusal and "apt install python3." in refusal and "-venv" in refusal
    # As after the installation of that package:
    checkout.python()
    assert "making" in checkout.reached("launch/lab")["said"]


@pytest.mark.parametrize("way", ["pip", "virtualenv"])
def test_another_way_where_ensurepip_is_missing(checkout, wheelhouse, tmp_path, way):
    has = {
        "pip": f'"-m pip"*) exec {shlex.quote(sys.executable)} "$@" ;;',
        "virtualenv": '*"import virtualenv"*) exit ;;\n"-m virtualenv"*) shift 2; set -- -m venv "$@" ;;',
    }[way]
    checkout.python(before=DEBIAN_WITHOUT_VENV.replace("in\n", f"in\n{has}\n", 1))
    # pip comes from the package index then; Python carries a copy of it for ensurepip.
    bundled = Path(ensurepip.__file__).parent / "_bundled", Path("/usr/share/python-wheels")
    wheel = next(wheel for folder in bundled for wheel in folder.glob("pip-*.whl"))
    shutil.copy(wheel, tmp_path)
    links = f"{wheelhouse.as_uri()} {tmp_path.as_uri()}"
    assert "making" in checkout.reached("launch/lab", PIP_FIND_LINKS=links)["said"]


def test_the_next_python_where_the_first_has_no_ensurepip(checkout):
    checkout.python("python3.14", before=DEBIAN_WITHOUT_VENV)
    said = checkout.reached("launch/lab")["said"]
    assert said.index("python/python3.14") < said.index("python/python3)")


@pytest.mark.parametrize("half_made", ["empty", "no python", "no packages", "another place"])
def test_a_broken_environment_is_made_again(checkout, ready, half_made):
    if half_made == "empty":
        checkout.venv.mkdir()
    elif half_made == "no python":
        (checkout.venv / "bin").mkdir(parents=True)
        (checkout.venv / "bin" / "python").symlink_to("/nowhere/python3")
    elif half_made == "no packages":
        command = [checkout.machine / "python/python3", "-m", "venv", "--without-pip", checkout.venv]
        subprocess.run(command, check=True)
    else:
        shutil.copytree(ready.venv, checkout.venv, symlinks=True)
    lab = checkout.reached("launch/lab")
    assert lab["prefix"] == str(checkout.venv) and "making" in lab["said"]
    assert checkout.reached("launch/lab")["said"] == ""


def test_a_start_killed_half_way(checkout):
    for pipe in ("building", "go"):
        os.mkfifo(checkout.path / pipe)
    first = subprocess.Popen(**checkout.command("launch/lab"), start_new_session=True)
    assert (checkout.path / "building").read_text() == "building"
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    for pipe in ("building", "go"):
        (checkout.path / pipe).unlink()
    assert "making" in checkout.reached("launch/lab")["said"]
    assert checkout.reached("launch/lab")["said"] == ""


def test_two_starts_at_once(checkout):
    for pipe in ("building", "go"):
        os.mkfifo(checkout.path / pipe)
    first = subprocess.Popen(**checkout.command("launch/lab"))
    assert (checkout.path / "building").read_text() == "building"
    second = subprocess.Popen(**checkout.command("launch/lab"))
    assert "another start is making" in second.stderr.readline()
    (checkout.path / "go").write_text("go")
    for process in (first, second):
        process.communicate()
        assert process.returncode == 0
    assert (checkout.path / "builds").read_text() == "built\n"


@pytest.fixture
def active(ready, tmp_path):
    """An environment that was not made by launch/ and holds the collectlab of `ready`."""
    shutil.copytree(ready.venv, tmp_path / "active", symlinks=True)
    shutil.rmtree(tmp_path / "active" / "launch")
    return tmp_path / "active"


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_active_environment_is_used_as_it_is(ready, active, variable):
    lab = ready.reached("launch/lab", **{variable: active})
    assert lab["prefix"] == str(active) and "using the active environment" in lab["said"]
    assert not (active / "launch").exists()


def test_an_active_environment_that_lacks_something(ready, active):
    for path in active.glob("lib/python3*/site-packages/nbval-*"):
        shutil.rmtree(path)
    assert ready.reached("launch/lab", VIRTUAL_ENV=active)["prefix"] == str(active)
    refusal = ready.refusal("launch/test", VIRTUAL_ENV=active)
    assert "lacks nbval;" in refusal and f"{active}/bin/python -m pip install nbval" in refusal


def test_an_active_environment_with_another_checkout_is_not_used(ready, checkout, active):
    (checkout.machine / "python/python3").unlink()
    result = checkout.start("launch/lab", VIRTUAL_ENV=active)
    assert result.returncode == 1
    assert f"holds the collectlab of another checkout, {ready.path}: not used" in result.stderr
    # an installed copy belongs to no checkout
    for path in active.glob("lib/python3*/site-packages/collectlab.pth"):
        path.unlink()
        shutil.copytree(ready.path / "collectlab", path.with_suffix(""))
    assert checkout.reached("launch/lab", VIRTUAL_ENV=active)["prefix"] == str(active)


def test_an_environment_made_by_hand_is_kept(ready, checkout):
    subprocess.run([checkout.machine / "python/python3", "-m", "venv", checkout.venv], check=True)
    (checkout.venv / "kept").touch()
    assert checkout.reached("launch/lab")["prefix"] == str(checkout.venv)
    assert (checkout.venv / "kept").exists()

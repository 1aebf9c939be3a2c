"""Tests that a machine cannot run are listed with reason and cure, and are failures under --all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[1]
CONFTEST = f"""
from importlib.util import module_from_spec, spec_from_file_location

spec = spec_from_file_location("left_out", {str(BESIDE / "conftest.py")!r})
left_out = module_from_spec(spec)
spec.loader.exec_module(left_out)
left_out.NEEDS["moon"] = left_out.Need(lambda: "there is no moon", "wait for the night")
left_out.NEEDS["tide"] = left_out.Need(lambda: "there is no tide", "wait for the moon")
left_out.NEEDS["air"] = left_out.Need(lambda: None, "open a window")
globals().update({{name: value for name, value in vars(left_out).items() if not name.startswith("__")}})
"""

TESTS = """
import pytest

def test_plain():
    pass

@pytest.mark.needs("air")
def test_air():
    pass

@pytest.mark.needs("moon")
def test_moon():
    raise AssertionError("this machine has no moon")
"""


@pytest.fixture
def suite(tmp_path, monkeypatch):
    monkeypatch.delenv("COLLECTLAB_LEFT_OUT", raising=False)  # of the launch/test that runs this test

    def run(tests, *arguments):
        (tmp_path / "conftest.py").write_text(CONFTEST)
        (tmp_path / "test_it.py").write_text(tests)
        (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = '{BESIDE}'\n")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        return result.returncode, result.stdout + result.stderr

    return run


def test_listed_with_reason_and_cure(suite):
    code, out = suite(TESTS)
    assert code == 0 and "2 passed, 1 skipped" in out
    listed = out[out.index("= left out =") :]
    assert "1 left out: needs moon: there is no moon\n" in listed
    assert "to run: wait for the night\n" in listed and "test_it.py::test_moon" in listed


def test_listed_where_launch_test_gathers_the_parts(suite, tmp_path, monkeypatch):
    monkeypatch.setenv("COLLECTLAB_LEFT_OUT", str(tmp_path / "gathered"))
    for _ in range(2):
        code, out = suite(TESTS)
        assert code == 0 and "1 skipped" in out and "left out" not in out
    one = "1 left out: needs moon: there is no moon\n    to run: wait for the night\n      test_it.py::test_moon\n"
    assert (tmp_path / "gathered").read_text() == 2 * one


def test_a_failure_under_all(suite):
    code, out = suite(TESTS, "--all")
    assert code == 1 and "2 passed, 1 error" in out and "skipped" not in out
    assert "left out under --all: needs moon: there is no moon" in out and "wait for the night" in out


def test_excepted_by_without(suite):
    assert suite(TESTS, "--all", "--without", "moon")[0] == 0
    assert suite(TESTS, "--all", "--without", "tide")[0] == 1
    both = "import pytest\n@pytest.mark.needs('moon', 'tide')\ndef test_both(): pass\n"
    assert suite(both, "--all", "--without", "moon")[0] == 1
    assert suite(both, "--all", "--without", "moon", "--without", "tide")[0] == 0


SKIPS = """
import pytest

def test_in_the_test():
    pytest.skip("rain")

@pytest.mark.skip(reason="rain")
def test_marked():
    pass

@pytest.mark.skipif(True, reason="rain")
def test_marked_on_condition():
    pass

@pytest.fixture
def wet():
    pytest.skip("rain")

def test_in_a_fixture(wet):
    pass
"""


def test_any_other_skip_counts_as_left_out(suite):
    code, out = suite(SKIPS)
    assert code == 0 and "4 left out: rain\n" in out
    code, out = suite(SKIPS, "--all", "--without", "moon")
    assert code == 1 and out.count("left out under --all: rain") >= 4 and "1 failed, 3 errors" in out


def test_a_skipped_module_counts_as_left_out(suite):
    module = "import pytest\npytest.skip('rain', allow_module_level=True)\n"
    assert "1 left out: rain\n" in suite(module)[1]
    code, out = suite(module, "--all")
    assert code == 2 and "left out under --all: rain" in out


def test_expected_failures_are_not_left_out(suite):
    code, out = suite("import pytest\n@pytest.mark.xfail\ndef test_it(): assert False\n", "--all")
    assert code == 0 and "left out" not in out


def test_nothing_left_out_nothing_listed(suite):
    assert "left out" not in suite("def test_plain(): pass\n")[1]


def test_an_unknown_need_is_an_error(suite):
    code, out = suite("import pytest\n@pytest.mark.needs('sun')\ndef test_it(): pass\n")
    assert code != 0 and "'sun'" in out and "moon" in out
    code, out = suite(TESTS, "--all", "--without", "sun")
    assert code != 0 and "'sun'" in out

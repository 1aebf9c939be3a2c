"""The command line: what it prints, what it leaves, and its exit code."""

import json
import subprocess
import sys

import nbformat
import pytest

from collectlab import cli
from collectlab.bench import Row, table
from collectlab.launcher import rundir


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Run directories of this test alone."""
    monkeypatch.setenv("COLLECTLAB_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def notebook(tmp_path):
    """Write a notebook of the given code cells; returns its path."""

    def write(*cells):
        path = tmp_path / "lesson.ipynb"
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), path)
        return path

    return write


@pytest.fixture
def program(tmp_path):
    """A file with two programs."""
    path = tmp_path / "programs.py"
    path.write_text(
        "def program(ctx):\n    ctx.log(f'hello from {ctx.rank}')\n    return ctx.comm.allreduce(ctx.rank)\n\n"
        "def fails(ctx):\n    raise KeyError(ctx.rank)\n\nnumber = 3\n"
    )
    return path


def test_run_executes_a_program_and_prints_each_rank(runs, program, capsys):
    assert cli.main(["run", str(program), "-n", "3"]) == 0
    out = capsys.readouterr().out
    assert "rank 2 | hello from 2\n" in out
    assert "rank 1 returned 3\n" in out
    (left,) = runs.iterdir()
    assert f"run directory: {left}\n" in out


def test_run_of_a_failing_program_is_a_failure(runs, program, capsys):
    assert cli.main(["run", f"{program}:fails", "-n", "2", "--json"]) == 1
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert said["status"] == "failed" and "KeyError" in said["report"] and "KeyError" in err


@pytest.mark.parametrize(
    ("file", "said"),
    (
        ("nowhere.py", "there is no file 'nowhere.py'"),
        ("{program}:absent", "has no function 'absent'"),
        ("{program}:number", "has no function 'number'"),
        ("nowhere.ipynb", "there is no such notebook"),
        ("{program}.ipynb", "there is no such notebook"),
    ),
)
def test_run_names_what_it_does_not_find(runs, program, capsys, file, said):
    assert cli.main(["run", file.format(program=program)]) == 2
    assert said in capsys.readouterr().err
    assert not runs.exists()


def test_a_notebook_that_is_none_is_named(runs, tmp_path, capsys):
    path = tmp_path / "not.ipynb"
    path.write_text("{")
    assert cli.main(["run", str(path)]) == 2
    assert "not a notebook" in capsys.readouterr().err


CELLS = ("import collectlab as cl\nrun = cl.run(lambda ctx: ctx.rank, ranks=2)", "run.results", "print('said')")


def test_run_executes_a_notebook_and_names_its_runs(runs, notebook, capsys):
    path = notebook(*CELLS)
    before = path.read_text()
    assert cli.main(["run", str(path)]) == 0
    out = capsys.readouterr().out
    assert "[2] [0, 1]\n" in out and "[3] said\n" in out
    (left,) = runs.iterdir()
    assert f"run directory: {left}\n" in out
    assert path.read_text() == before


def test_save_writes_the_outputs_back_and_nothing_else(runs, notebook, capsys):
    path = notebook(*CELLS)
    assert cli.main(["run", str(path), "--save", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] and said["outputs"][1] == "[0, 1]\n" and len(said["runs"]) == 1
    saved = nbformat.read(path, as_version=4)
    assert saved.cells[1].outputs[0].data["text/plain"] == "[0, 1]"
    assert [file.name for file in path.parent.iterdir() if file.name.startswith("lesson")] == ["lesson.ipynb"]


def test_saving_twice_gives_the_same_file(runs, notebook):
    path = notebook("import ipywidgets\nipywidgets.IntSlider(value=3)", "import time\ntime.time()")
    kept = nbformat.read(path, as_version=4)
    kept.cells[1].metadata["tags"] = ["nbval-ignore-output"]
    nbformat.write(kept, path)
    saved = []
    for _ in range(2):
        assert cli.main(["run", str(path), "--save"]) == 0
        saved.append(path.read_text())
    assert saved[0] == saved[1]
    assert "IntSlider(value=3)" in saved[0] and "model_id" not in saved[0]


def test_a_failing_cell_is_a_failure_and_is_not_saved(runs, notebook, capsys):
    path = notebook("1 / 0")
    before = path.read_text()
    assert cli.main(["run", str(path), "--save"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert path.read_text() == before


def test_runs_lists_what_is_kept_and_what_cannot_be_read(runs, program, capsys):
    cli.main(["run", str(program), "-n", "2"])
    rundir.create("halves")
    capsys.readouterr()
    assert cli.main(["runs", "--json"]) == 0
    rows = {row["program"]: row for row in json.loads(capsys.readouterr().out)["runs"]}
    assert rows.pop("program")["status"] == "done"
    ((why, rubbish),) = rows.items()
    assert rubbish["status"] == "unreadable" and "spec.json" in why
    assert cli.main(["runs"]) == 0
    assert "2 runs in" in capsys.readouterr().out


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "collectlab", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "bench" in done.stdout


@pytest.mark.parametrize(
    ("row", "ratio", "met"),
    (
        (Row("a", 3.0, "s", "<= 1.6 x peer", "p", 2.0), 1.5, True),
        (Row("a", 3.4, "s", "<= 1.6 x peer", "p", 2.0), 1.7, False),
        (Row("a", 0.9, "%", "< 1.0"), None, True),
        (Row("a", 1.0, "%", "< 1.0"), None, False),
        (Row("a", 1.4, "GiB/s", ">= 1.5"), None, False),
        (Row("a", 10.0, "GiB/s", ">= 5.0 x peer", "p", 2.0), 5.0, True),
    ),
)
def test_a_row_says_whether_its_goal_is_met(row, ratio, met):
    found = row.to_dict()
    assert (found["ratio"], found["met"]) == (ratio, met)
    assert set(found) == {"case", "ours", "peer", "peer_value", "unit", "ratio", "goal", "met"}
    assert ("yes" if met else "NO") in table([found])

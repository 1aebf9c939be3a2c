"""The command line: what it prints, what it leaves, and its exit code."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from collectlab import cli, exercises
from collectlab.bench import Row, table
from collectlab.launcher import rundir
from collectlab.launcher.ranks import launch


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
    assert said["results"] == [None, None]


def test_a_failing_programs_own_lines_are_shown_and_none_of_ours(runs, program, capsys):
    assert cli.main(["run", f"{program}:fails", "-n", "1"]) == 1
    out, err = capsys.readouterr()
    shown = [line.removeprefix("rank 0 | ") for line in out.splitlines() if line.startswith("rank 0 |")]
    assert shown == [
        "Traceback (most recent call last):",
        f'  File "{program}", line 6, in fails',
        "    raise KeyError(ctx.rank)",
        "KeyError: 0",
    ]
    assert "returned" not in out
    assert "worker.py" not in out + err


RETURNS = """
import numpy as np

def program(ctx):
    return {
        "number": 1, "real": 0.5, "flag": True, "none": None, "text": "a", "list": [1, (2, 3)],
        "array": np.arange(4, dtype=np.int32).reshape(2, 2) + ctx.rank, "empty": np.zeros((0, 2)),
        "point": np.array(7),
        "scalar": np.int64(5), "nan": float("nan"), "holes": np.array([1.0, np.inf]), "complex": 1j,
        "waves": np.array([1j]), "keys": {1: 2}, "set": {3},
    }
"""


def test_results_are_json_where_json_has_a_form_for_them(runs, tmp_path, capsys):
    (tmp_path / "returns.py").write_text(RETURNS)
    assert cli.main(["run", str(tmp_path / "returns.py"), "-n", "2", "--json"]) == 0

    def no_constant(name):
        raise AssertionError(f"{name} is no JSON")

    results = json.loads(capsys.readouterr().out, parse_constant=no_constant)["results"]
    assert results[1] == {
        "number": 1, "real": 0.5, "flag": True, "none": None, "text": "a", "list": [1, [2, 3]],
        "array": {"dtype": "int32", "shape": [2, 2], "values": [[1, 2], [3, 4]]},
        "empty": {"dtype": "float64", "shape": [0, 2], "values": []},
        "point": {"dtype": "int64", "shape": [], "values": 7},
        "scalar": 5, "nan": {"repr": "nan"}, "complex": {"repr": "1j"}, "waves": {"repr": "array([0.+1.j])"},
        "holes": {"dtype": "float64", "shape": [2], "values": [1.0, {"repr": "inf"}]},
        "keys": {"repr": "{1: 2}"}, "set": {"repr": "{3}"},
    }  # fmt: skip
    assert results[0]["array"]["values"] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("file", "said"),
    (
        ("nowhere.py", "there is no file 'nowhere.py'"),
        ("{program}:absent", "has no function 'absent'"),
        ("{program}:number", "has no function 'number'"),
        ("nowhere.ipynb", "there is no such notebook"),
        ("{program}.ipynb", "there is no such notebook"),
        (".", "'.' is a folder; a NOTEBOOK.ipynb or a PROGRAM.py is accepted"),
    ),
)
def test_run_names_what_it_does_not_find(runs, program, capsys, file, said):
    assert cli.main(["run", file.format(program=program)]) == 2
    assert said in capsys.readouterr().err
    assert not runs.exists()


@pytest.mark.parametrize("seconds", ("0", "-1", "inf"))
def test_a_timeout_is_more_than_nothing(runs, notebook, program, capsys, seconds):
    for file in (notebook("1"), program):
        assert cli.main(["run", str(file), "--timeout", seconds]) == 2
        assert "seconds are accepted, more than 0" in capsys.readouterr().err


def test_a_program_that_exits_when_it_is_read_is_named(runs, tmp_path, capsys):
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(3)\n")
    assert cli.main(["run", str(tmp_path / "exits.py")]) == 2
    assert "exits.py cannot be executed: SystemExit(3)\n" in capsys.readouterr().err


def test_what_is_neither_notebook_nor_program_is_told_what_is_accepted(runs, tmp_path, capsys):
    (tmp_path / "README.md").write_text("# Read me\n\nThis is no program.\n")
    assert cli.main(["run", str(tmp_path / "README.md")]) == 2
    assert "; a NOTEBOOK.ipynb or a PROGRAM.py is accepted" in capsys.readouterr().err


@pytest.mark.parametrize("option", (("--ranks", "2"), ("--device", "cpu"), ("--site", "local")))
def test_what_only_programs_take_is_refused_for_a_notebook(runs, notebook, capsys, option):
    assert cli.main(["run", str(notebook("1")), *option]) == 2
    assert f"{option[0]}: for a PROGRAM.py; a notebook's cells start their own ranks" in capsys.readouterr().err


def test_what_only_notebooks_take_is_refused_for_a_program(runs, program, capsys):
    assert cli.main(["run", str(program), "--save"]) == 2
    assert "--save: for a NOTEBOOK.ipynb" in capsys.readouterr().err
    assert not runs.exists()


def test_run_takes_a_site(runs, program, capsys, monkeypatch, tmp_path):
    assert cli.main(["run", str(program), "--site", "nowhere"]) == 2
    assert "site='nowhere' is unknown" in capsys.readouterr().err
    mine = (Path(__file__).parents[2] / "launch" / "sites" / "local.toml").read_text()
    (tmp_path / "mine.toml").write_text(f'{mine}PLACE = "mine"\n')
    monkeypatch.setenv("COLLECTLAB_SITES", str(tmp_path))
    program.write_text("import os\n\ndef program(ctx):\n    return os.environ['PLACE']\n")
    assert cli.main(["run", str(program), "-n", "1", "--site", "mine"]) == 0
    assert "rank 0 returned 'mine'" in capsys.readouterr().out


def test_a_notebook_that_is_none_is_named(runs, tmp_path, capsys):
    path = tmp_path / "not.ipynb"
    path.write_text("{")
    assert cli.main(["run", str(path)]) == 2
    assert "not a notebook" in capsys.readouterr().err


def test_a_notebook_for_another_kernel_is_named(runs, notebook, capsys):
    path = notebook("1")
    other = nbformat.read(path, as_version=4)
    other.metadata["kernelspec"] = {"name": "fortran", "display_name": "Fortran"}
    nbformat.write(other, path)
    assert cli.main(["run", str(path)]) == 2
    assert "it asks for a kernel 'fortran', which is not here" in capsys.readouterr().err


def test_a_kernel_that_cannot_start_is_named(notebook, tmp_path):
    path = notebook("1")
    (tmp_path / "profile_default").touch()  # IPython wants a folder of that name
    result = subprocess.run(
        [sys.executable, "-m", "collectlab", "run", path],
        env={**os.environ, "IPYTHONDIR": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    *_, last = result.stderr.splitlines()
    assert result.returncode == 2 and result.stdout == ""
    why = "no kernel starts here (Kernel died before replying to kernel_info)"
    assert last == f"collectlab: run {str(path)!r}: {why}"


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


HANGS, DIES = "import threading\nthreading.Event().wait()", "import os\nos._exit(3)"


@pytest.mark.parametrize(
    ("cell", "why"),
    (
        ("1 / 0", "cell 2: ZeroDivisionError: division by zero"),
        (HANGS, "cell 2: it was not done after 3 s; --timeout takes another number"),
        (DIES, "cell 2: it ended the kernel"),
    ),
)
def test_a_cell_that_does_not_end_well_is_named_and_nothing_is_saved(runs, notebook, capfd, cell, why):
    path = notebook("print('before')", cell, "print('never')")
    kept = nbformat.read(path, as_version=4)
    kept.cells[2].outputs = [nbformat.v4.new_output("stream", text="never, but another time\n")]
    nbformat.write(kept, path)
    before = path.read_text()
    assert cli.main(["run", str(path), "--save", "--timeout", "3"]) == 1
    out, err = capfd.readouterr()
    assert err == f"collectlab: {path}: {why}\n"
    assert "[1] before\n" in out and "never" not in out and "\x1b" not in out
    assert path.read_text() == before
    assert cli.main(["run", str(path), "--json", "--timeout", "3"]) == 1
    said = json.loads(capfd.readouterr().out)
    assert not said["ok"] and said["outputs"][0] == "before\n" and said["outputs"][2] == ""


def test_a_notebook_names_the_runs_of_its_own_kernel_only(runs, notebook, program, capsys):
    another = f"collectlab.cli.main(['run', {str(program)!r}, '-n', '1'])"  # as another user of the directory would
    elsewhere = f"subprocess.run([sys.executable, '-c', {'import collectlab.cli; ' + another!r}], env=environment)"
    path = notebook(
        "import os, subprocess, sys\nenvironment = dict(os.environ)\ndel environment['COLLECTLAB_SESSION']",
        f"assert {elsewhere}.returncode == 0",
        *CELLS,
        f"assert {elsewhere.replace('env=environment', '')}.returncode == 0",
    )
    assert cli.main(["run", str(path), "--json"]) == 0
    names = sorted(path.split("-")[-2] for path in json.loads(capsys.readouterr().out)["runs"])
    assert names == ["lambda", "program"] and len(list(runs.iterdir())) == 3


def test_runs_lists_the_newest_first_under_headings(runs, program, capsys):
    for ranks, name in ((2, "program"), (1, "fails")):
        cli.main(["run", f"{program}:{name}", "-n", str(ranks)])
    capsys.readouterr()
    assert cli.main(["runs"]) == 0
    head, *rows, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["when", "took", "status", "ranks", "program", "directory"]
    assert [row.split()[4:7] for row in rows] == [["failed", "1", "fails"], ["done", "2", "program"]]
    for row in rows:
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +\d+\.\d s  ", row)
        assert row.index(str(runs)) == head.index("directory")
    assert last.startswith(f"2 runs in {runs}; ")


def test_runs_lists_the_check_of_an_exercise_by_the_name_of_the_program(runs, capsys):
    def mine(ctx, x):
        return x

    assert exercises.one_phase.mesh_all_reduce(mine).mistake
    assert cli.main(["runs"]) == 0
    assert "  check of mine  " in capsys.readouterr().out


def test_runs_in_json_has_all_of_it_and_what_cannot_be_read(runs, program, capsys):
    before = time.time()
    cli.main(["run", str(program), "-n", "2", "--device", "cpu"])
    halves = rundir.create("halves")
    capsys.readouterr()
    assert cli.main(["runs", "--json"]) == 0
    rubbish, row = json.loads(capsys.readouterr().out)["runs"]
    assert before <= row.pop("created") <= time.time() and 0 < row.pop("seconds") < time.time() - before
    (path,) = set(runs.iterdir()) - {Path(halves)}
    about = {"status": "done", "ranks": 2, "device": "cpu", "program": "program", "why": None}
    assert row == {"path": str(path), **about}
    assert (rubbish["path"], rubbish["status"]) == (halves, "unreadable") and "spec.json" in rubbish["why"]
    assert rubbish.keys() == row.keys() | {"created", "seconds"}
    assert cli.main(["runs"]) == 0
    out = capsys.readouterr().out
    assert "unreadable" in out and "it holds no spec.json" in out and "2 runs in" in out


def test_runs_tells_a_run_that_goes_on_and_one_whose_end_nobody_wrote(runs, capsys):
    spec = {"version": 1, "nranks": 1, "program": "lost", "device": "cpu", "tag": "nobody", "names": None}
    rundir.write_json(f"{rundir.create('lost')}/spec.json", spec | {"created": time.time() - 1000})
    with launch(1, device="cpu") as ranks:
        going = ranks.submit(lambda ctx: ctx.comm.recv())
        assert cli.main(["runs", "--json"]) == 0
        first, lost = json.loads(capsys.readouterr().out)["runs"]
        assert first["status"] == going.status == "running" and first["seconds"] > 0
        assert lost["status"] == "failed" and lost["seconds"] is None
        assert cli.main(["runs"]) == 0
        assert "  -  failed " in capsys.readouterr().out
        ranks.interrupt()


def test_a_reader_that_leaves_early_is_no_error(runs, program):
    for _ in range(2):
        cli.main(["run", str(program), "-n", "1"])
    command = f"{sys.executable} -m collectlab runs | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("met", "code"), ((True, 0), (False, 1)))
def test_bench_fails_when_a_goal_is_missed_and_names_it(monkeypatch, capsys, met, code):
    from collectlab.bench import views

    rows = [Row("quick", 1.0, "ms", "< 2.0"), Row("slow", 1.0, "ms", "< 2.0" if met else "< 1.0")]
    monkeypatch.setattr(views, "rows", lambda: rows)
    assert cli.main(["bench", "views", "--json"]) == code
    out, err = capsys.readouterr()
    assert [row["met"] for row in json.loads(out)["rows"]] == [True, met]
    assert err == ("" if met else "collectlab: 1 of 2 goals missed: slow\n")
    assert cli.main(["bench", "views"]) == code


def test_an_interrupt_is_one_line(monkeypatch, capsys):
    from collectlab.bench import views

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(views, "rows", interrupted)
    assert cli.main(["bench", "views"]) == 130
    assert capsys.readouterr().err == "collectlab: interrupted\n"


def test_no_command_is_a_call_for_help(capsys):
    with pytest.raises(SystemExit) as left:
        cli.main([])
    assert left.value.code == 0
    said = capsys.readouterr().out
    assert all(f"    {command} " in said for command in ("run", "runs", "bench", "doctor"))


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

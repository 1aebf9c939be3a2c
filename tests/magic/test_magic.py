"""`%%ranks`: cells on warm ranks, in a namespace that stays."""

import re

import nbformat
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

import collectlab  # noqa: F401
from collectlab.magic import CellFailed


@pytest.fixture(scope="module", params=["local", pytest.param("openmpi", marks=pytest.mark.needs("Open MPI"))])
def shell(request):
    """An IPython shell with the extension, with ranks of MPICH, then of Open MPI; they are stopped at the end."""
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "collectlab")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLECTLAB_SITE", request.param)
        yield shell
    shell.run_line_magic("ranks", "stop")
    InteractiveShell.clear_instance()


@pytest.fixture
def cell(shell, capsys):
    """Run a cell and return what it printed; a cell that fails raises."""

    def run(source, line="-n 3"):
        capsys.readouterr()
        run.number = shell.execution_count
        result = shell.run_cell(f"%%ranks {line}\n{source}", store_history=True)
        printed = capsys.readouterr().out
        if result.error_in_exec:
            raise result.error_in_exec
        return printed

    return run


def test_what_is_the_same_on_all_ranks_is_shown_once(cell):
    assert cell("total = comm.allreduce(rank)\ntotal") == "all 3 ranks: 3\n"


def test_what_differs_is_shown_under_its_rank(cell):
    assert cell("print('I am', rank)\nrank % 2 == 0") == (
        "rank 0:\nI am 0\nTrue\nrank 1:\nI am 1\nFalse\nrank 2:\nI am 2\nTrue\n"
    )
    assert cell("rank % 2 == 0") == "ranks 0 and 2: True\nrank 1: False\n"


def test_many_ranks_that_say_the_same_are_a_span(cell):
    assert cell("rank > 0", "-n 6") == "rank 0: False\nranks 1 to 5: True\n"


def test_names_stay_and_the_last_value_is_kept(cell):
    cell("import numpy as np\nx = np.arange(3) + rank\ndef double(a):\n    return 2 * a")
    assert cell("double(x).tolist()", "") == "rank 0: [0, 2, 4]\nrank 1: [2, 4, 6]\nrank 2: [4, 6, 8]\n"
    assert cell("_[0] + 1", "").splitlines() == ["rank 0: 1", "rank 1: 3", "rank 2: 5"]


def test_windows_and_signals_may_be_used_in_later_cells(cell):
    made = "w = ctx.window('w', 2, 'int64')\ns = ctx.signals('s', 2)"
    cell(f"{made}\nw.store([rank, 7])\npart = w.local\nctx.barrier(s, 0)")
    assert cell("w.remote_load((rank + 1) % 3).tolist()") == "rank 0: [1, 7]\nrank 1: [2, 7]\nrank 2: [0, 7]\n"
    cell("ctx.barrier(s, 1)\nw.store([5, 5])\ndel w, s\nctx.window('w', 2, 'int64').store([8, 8])")
    assert cell("part.tolist()") == "all 3 ranks: [5, 5]\n"


def test_windows_without_a_name_are_freed(cell):
    cell("from collectlab.launcher import cells\npart = None")
    assert cell("w = ctx.window('w', 2, 'int64')\nlen(cells._opened)") == "all 3 ranks: 0\n"
    assert cell("if rank: del w\nlen(cells._opened)") == "all 3 ranks: 1\n"
    assert cell("if rank == 0: del w\nlen(cells._opened)") == "all 3 ranks: 1\n"  # rank 0 had a name for it
    assert cell("len(cells._opened)") == "all 3 ranks: 0\n"


def test_objects_of_a_class_of_a_cell_can_be_sent(cell):
    cell("class Point:\n    def __init__(self, x):\n        self.x = x")
    assert cell("comm.bcast(Point(rank), root=2).x") == "all 3 ranks: 2\n"


@pytest.mark.parametrize("source", ("y = 1", "1;", "None", "# nothing", "for i in range(3): pass"))
def test_a_cell_without_a_last_value_shows_nothing(cell, source):
    assert cell(source) == ""


def test_a_subset_of_the_ranks(cell):
    cell("mark = 0")
    assert cell("mark = 1\nrank", "--ranks 2,0") == "rank 0: 0\nrank 2: 2\n"
    assert cell("mark") == "ranks 0 and 2: 1\nrank 1: 0\n"
    assert cell("print('the same')", "--ranks 2,0") == "ranks 0 and 2: the same\n", "not all of them"


def test_an_error_names_the_cells_and_lines_and_leaves_the_ranks_alive(cell):
    cell("kept = 7\ndef divide(a):\n    return 1 / a")
    first = cell.number
    with pytest.raises(CellFailed) as failed:
        cell("before = 1\n\ndivide(rank - 1)")
    lines = failed.value._render_traceback_()
    assert str(failed.value) == lines[0] == "rank 1 raised ZeroDivisionError: division by zero"
    assert lines[1:] == [
        f"    cell {cell.number}, line 4:  divide(rank - 1)",
        f"    cell {first}, line 4, in divide:  return 1 / a",
    ]
    assert cell("kept") == "all 3 ranks: 7\n"
    with pytest.raises(CellFailed, match=r"^all 3 ranks raised NameError: name 'nowhere' is not defined"):
        cell("nowhere")


def test_an_error_in_a_kernel_names_the_lines_of_the_cell_and_of_the_kernel(cell):
    cell("import numpy as np\nfrom collectlab.kernels import mesh")
    with pytest.raises(CellFailed) as failed:
        cell("mesh.all_reduce(ctx, np.ones(3 + rank))")
    assert "window(\"mesh.data\", (3,), float64): in its place rank 1 asks for" in failed.value.details
    places = [line.split(", line ")[0] for line in failed.value.details.splitlines() if line.startswith("    ")]
    assert places == [f"    cell {cell.number}", "    mesh.py"] * 3


def test_an_error_that_leaves_others_waiting_ends_the_ranks_and_says_so(cell):
    with pytest.raises(CellFailed) as failed:
        cell("gone = 1\nif rank == 1:\n    raise ValueError('not I')\ncomm.barrier()")
    text = failed.value.details
    assert "rank 1 raised ValueError: not I" in text and "ranks 0 and 2 were waiting in barrier" in text
    assert re.search(r"cell \d+, line 4", text) and "the ranks were ended" in text
    assert str(failed.value) == "the cell failed, and its ranks were ended"
    with pytest.raises(CellFailed, match="name 'gone' is not defined"):
        cell("gone", "")
    assert cell("nranks", "") == "all 3 ranks: 3\n"


def test_what_was_printed_before_a_failure_is_shown(cell, shell, capsys):
    with pytest.raises(CellFailed):
        cell("print('so far')\nif rank == 1:\n    raise ValueError\ncomm.barrier()")
    shell.run_cell("%%ranks\nprint('so far')\nif rank == 1:\n    raise ValueError\ncomm.barrier()")
    printed = capsys.readouterr().out
    assert "all 3 ranks: so far" in printed


def test_a_cell_that_takes_too_long_is_ended(cell):
    cell("rank")  # the ranks are there
    with pytest.raises(CellFailed, match=r"the cell was not done after 0\.5 s") as failed:
        cell("if rank == 1:\n    comm.recv(source=0, tag=9)", "--timeout 0.5")
    assert "rank 1 was waiting in recv" in failed.value.details
    assert cell("1 + 1") == "all 3 ranks: 2\n"


def test_a_cell_that_names_where_it_runs_keeps_its_names_when_it_runs_again(cell):
    cell("here = 1", "-n 3 --device cpu --site local")
    assert cell("here", "-n 3 --device cpu --site local") == cell("here", "") == "all 3 ranks: 1\n"


def test_other_ranks_are_started_when_others_are_asked_for(cell):
    cell("here = 1")
    assert cell("nranks", "-n 2") == "all 2 ranks: 2\n"
    with pytest.raises(CellFailed, match="name 'here' is not defined"):
        cell("here", "")


def test_python_that_is_none_is_told_before_anything_runs(cell):
    with pytest.raises(CellFailed) as failed:
        cell("x = 1\nx = = 2")
    assert failed.value.details == f"{failed.value}\n    cell {cell.number}, line 3:  x = = 2"
    assert str(failed.value) == "SyntaxError: invalid syntax"
    for line in ("await x", "return 3"):  # Python that is none outside a function
        with pytest.raises(CellFailed) as failed:
            cell(f"x = 1\n{line}")
        assert failed.value.details.endswith(f"outside function\n    cell {cell.number}, line 3:  {line}")
    for line in ("!echo hello", "%time 1"):
        with pytest.raises(CellFailed, match="ranks run Python alone, without the commands and magics"):
            cell(line)


def test_an_error_without_words_and_one_that_no_page_can_show_leave_the_ranks_alive(cell):
    cell("kept = 7\nclass Mute(Exception):\n    def __str__(self):\n        raise RuntimeError")
    with pytest.raises(CellFailed, match=r"raised Mute: .*cannot be shown: str\(\) of it raised RuntimeError"):
        cell("raise Mute()")
    with pytest.raises(CellFailed, match=r"raised ValueError: a \\ud800"):
        cell("raise ValueError('a \\ud800')")
    assert cell("del Mute\nkept") == "all 3 ranks: 7\n"


@pytest.mark.parametrize(
    ("line", "said"),
    (
        ("--ranks 7", "numbers from 0 to 2 are accepted"),
        ("--ranks 0,x", "numbers from 0 to 2 are accepted"),
        ("--timeout 0", "more than 0"),
        ("--timeout inf", "more than 0"),
        ("--timeout nan", "more than 0"),
        ("--ranks '0", "No closing quotation"),
        ("-n 0", "%%ranks: ranks=0: 1 to 256 ranks are accepted"),
        ("-n many", "invalid int value"),
        ("--site moon", "%%ranks: site='moon' is unknown"),
        ("--device moon", "%%ranks: device='moon' is unknown"),
    ),
)
def test_bad_arguments_are_named_and_the_ranks_stay(cell, line, said, capsys):
    cell("still = 1")
    with pytest.raises(UsageError, match=said):
        cell("still", line)
    assert cell("still") == "all 3 ranks: 1\n"


def test_the_line_magic_says_what_is_running(shell, cell, capsys):
    cell("a = 1\nif rank: b = 2")
    shell.run_cell("%ranks")
    printed = capsys.readouterr().out
    assert "cpu:0" in printed and "rank 0: names: a" in printed and "ranks 1 and 2: names: a, b" in printed
    shell.run_cell("%ranks stop\n%ranks stop\n%ranks")
    assert capsys.readouterr().out == "no ranks are running; a %%ranks cell starts them\n"


def test_a_long_output_keeps_its_ends_and_is_the_same_only_where_all_of_it_is(cell):
    shown = cell("for n in range(20_000): print('line', n if n != 10_000 else rank // 2)\nrank // 2")
    first, second = shown.split("rank 2:\n")
    assert first.startswith("ranks 0 and 1:\nline 0\nline 1\n") and first.endswith("\nline 19999\n0\n")
    assert second.startswith("line 0\nline 1\n") and second.endswith("\nline 19999\n1\n")
    assert len(shown) < 110_000 and shown.count("kB are left out here ...]\nline ") == 2
    shown = cell("for n in range(20_000): print('line', n if n != 10_000 else rank // 2)")
    assert shown.count("line 0\n") == 2, "their ends are the same, and still they differ"


def test_a_long_value_is_cut_and_told_from_another(cell):
    shown = cell("'a' * 100_000 + str(rank // 2)")
    assert shown.startswith("ranks 0 and 1: 'aaa") and "\nrank 2: 'aaa" in shown
    assert shown.count("' ... [") == 0 and shown.count("aaa ... [83,619 more characters]\n") == 2


def test_a_line_without_an_end_and_an_empty_one(cell):
    assert cell("print('a', end='')") == "all 3 ranks: a\n"
    assert cell("print()\nprint('b', end='')\nrank") == "rank 0:\n\nb\n0\nrank 1:\n\nb\n1\nrank 2:\n\nb\n2\n"


def test_the_line_magic_starts_no_ranks_after_a_cell_has_ended_them(shell, cell, capsys):
    with pytest.raises(CellFailed):
        cell("if rank == 1: raise ValueError\ncomm.barrier()")
    capsys.readouterr()
    shell.run_cell("%ranks")
    assert capsys.readouterr().out == "no ranks are running; a %%ranks cell starts them\n"


def test_a_notebook_of_such_cells_compares_with_itself(tmp_path):
    import subprocess
    import sys

    sources = [
        "%load_ext collectlab",
        "%%ranks -n 2\nx = comm.allgather(rank * 10)\nx",
        "%%ranks\nprint(x[rank])",
        "%%ranks\n1 / rank",
    ]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    cells[-1].metadata["tags"] = ["raises-exception"]
    path = tmp_path / "cells.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    for command in (["collectlab", "run", str(path), "--save"], ["pytest", "-q", "--nbval", str(path)]):
        found = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, cwd=tmp_path)
        assert found.returncode == 0, found.stdout + found.stderr
    saved = nbformat.read(path, as_version=4).cells
    assert saved[1].outputs[0].text == "all 2 ranks: [0, 10]\n"
    assert saved[2].outputs[0].text == "rank 0: 0\nrank 1: 10\n"
    assert "rank 0 raised ZeroDivisionError" in "".join(saved[3].outputs[-1].traceback)

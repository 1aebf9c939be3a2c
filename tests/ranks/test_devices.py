"""Which device a rank takes. A stand-in for CuPy says how many GPUs there are and notes which one is used.

Whether a driver is there, a rank finds by loading the driver's library; any library of that name stands in for it.
"""

import sys
import textwrap
from pathlib import Path

import pytest

import collectlab as cl

STAND_IN = """
    import numpy
    from numpy import *
    used = []

    class cuda:
        class runtime:
            @staticmethod
            def getDeviceCount():
                {count}

            @staticmethod
            def deviceGetPCIBusId(index):
                import os
                visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3").split(",")
                return f"0000:0{{visible[index]}}:00.0"

        class Device:
            def __init__(self, index):
                self.index = index

            def use(self):
                used.append(self.index)
"""


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """Let the ranks find a `cupy` that has so many devices (or that raises)."""

    def install(count):
        (tmp_path / "cupy.py").write_text(textwrap.dedent(STAND_IN).format(count=count))
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Let the ranks find a libcuda.so.1, or (False) one that is none."""

    def install(works=True):
        (tmp_path / "driver").mkdir()
        library = tmp_path / "driver" / "libcuda.so.1"
        if works:
            lines = Path("/proc/self/maps").read_text().splitlines()
            library.symlink_to(
                next(line.split()[-1] for line in lines if "/libc." in line or "/libc-" in line)
            )
        else:
            library.write_text("this is no library")
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))

    return install


def where(ctx):
    """The device, the array module, and the index that was made current."""
    return ctx.device, ctx.xp.__name__, getattr(ctx.xp, "used", None)


def test_cpu_ranks_have_a_name_of_their_own_and_numpy():
    run = cl.run(where, ranks=3, device="cpu")
    assert run.results == [("cpu:0", "numpy", None), ("cpu:1", "numpy", None), ("cpu:2", "numpy", None)]
    assert run.rank_map.devices == ("cpu:0", "cpu:1", "cpu:2")
    assert [place.local_rank for place in run.rank_map.places] == [0, 1, 2]


def test_gpu_ranks_take_devices_by_local_rank_and_share_them_when_there_are_too_few(gpus):
    gpus("return 2")
    run = cl.run(where, ranks=3, device="cuda")
    assert run.results == [("cuda:0", "cupy", [0]), ("cuda:1", "cupy", [1]), ("cuda:0", "cupy", [0])]
    assert run.rank_map.devices == ("cuda:0", "cuda:1", "cuda:0")
    assert "cupy" not in sys.modules


def test_a_rank_map_decides_which_gpu_a_rank_takes(gpus):
    gpus("return 2")
    run = cl.run(where, ranks=2, device="cuda", rank_map=["cuda:1", "cuda:0"])
    assert run.results == [("cuda:1", "cupy", [1]), ("cuda:0", "cupy", [0])]


def test_gpus_are_called_as_the_host_calls_them_and_have_an_identity(gpus, monkeypatch):
    gpus("return 2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    run = cl.run(where, ranks=2, device="cuda")
    assert run.results == [("cuda:3", "cupy", [0]), ("cuda:1", "cupy", [1])]
    assert [place.identity for place in run.rank_map.places] == ["0000:03:00.0", "0000:01:00.0"]
    assert "identity" in str(run.rank_map) and "0000:03:00.0" in str(run.rank_map)
    run = cl.run(where, ranks=2, device="cuda", rank_map=["cuda:1", "cuda:3"])
    assert run.results == [("cuda:1", "cupy", [1]), ("cuda:3", "cupy", [0])]
    run = cl.run(where, ranks=1, device="cuda", rank_map=["cuda:0"])
    assert "cuda:0 is asked for, and CUDA_VISIBLE_DEVICES lets this rank see 3, 1" in run.report()


def test_a_gpu_that_is_named_by_its_uuid_has_that_identity(gpus, monkeypatch):
    gpus("return 1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0123")
    (place,) = cl.run(where, ranks=1, device="cuda").rank_map.places
    assert (place.device, place.identity) == ("cuda:0", "GPU-0123")


def test_a_rank_map_names_the_devices_of_cpu_ranks():
    run = cl.run(where, ranks=2, device="cpu", rank_map=cl.layout.RankMap(["B", "A"]))
    assert [device for device, *_ in run.results] == ["B", "A"]
    assert run.rank_map.devices == ("B", "A")
    assert run.rank_map.rank_of("A") == 1


def test_cuda_without_a_gpu_says_what_answered(gpus, capsys):
    gpus("raise RuntimeError('no CUDA-capable device is detected')")
    run = cl.run(where, ranks=2, device="cuda")
    assert run.status == "failed"
    assert "no CUDA-capable device is detected" in run.report()
    assert "device='cpu'" in run.report()
    assert run.results == [None, None]


def test_auto_takes_the_gpus_that_answer(gpus, driver):
    gpus("return 2")
    driver()
    run = cl.run(where, ranks=3)  # "auto" is the default
    assert run.results == [("cuda:0", "cupy", [0]), ("cuda:1", "cupy", [1]), ("cuda:0", "cupy", [0])]
    assert run.rank_map.devices == ("cuda:0", "cuda:1", "cuda:0")
    assert "cupy" not in sys.modules


NUMPY = [("cpu:0", "numpy", None), ("cpu:1", "numpy", None)]


@pytest.mark.parametrize(
    "count",
    ["raise RuntimeError('no CUDA-capable device is detected')", "raise ImportError('libcuda')", "return 0"],
)
def test_auto_falls_back_to_numpy_where_a_driver_is_but_no_gpu_answers(gpus, driver, count):
    gpus(count)
    driver()
    run = cl.run(where, ranks=2, device="auto")
    assert run.ok and run.results == NUMPY
    assert run.rank_map.devices == ("cpu:0", "cpu:1")


def imported(ctx):
    return "cupy" in sys.modules


def test_auto_with_a_driver_and_without_cupy(driver, tmp_path, monkeypatch):
    (tmp_path / "cupy.py").write_text("raise ImportError('no CuPy here')")
    monkeypatch.syspath_prepend(str(tmp_path))
    driver()
    run = cl.run(where, ranks=2, device="auto")
    assert run.results == NUMPY and run.rank_map.devices == ("cpu:0", "cpu:1")


def test_auto_without_a_driver_does_not_even_import_cupy(gpus, driver):
    gpus("return 2")
    driver(works=False)
    assert cl.run(where, ranks=2, device="auto").results == NUMPY
    assert cl.run(imported, ranks=2, device="auto").results == [False, False]


@pytest.mark.parametrize("bad", ("gpu", "CPU", "", None, 0))
def test_an_unknown_device_names_the_three_that_are_known(bad):
    with pytest.raises(ValueError, match=r"device=.* accepted: 'auto', 'cpu' or 'cuda'"):
        cl.run(where, ranks=2, device=bad)


@pytest.mark.parametrize("bad", (["A"], ["A", "B", "C"]))
def test_a_rank_map_of_another_size_is_refused(bad):
    with pytest.raises(ValueError, match=rf"rank_map places {len(bad)} ranks?, but ranks=2"):
        cl.run(where, ranks=2, rank_map=bad)


def test_a_rank_starts_without_numpy_and_cupy():
    """They take as long to import as all the rest of its start."""
    run = cl.run(lambda ctx: [name for name in ("numpy", "cupy") if name in __import__("sys").modules], ranks=2)
    assert run.results == [[], []]

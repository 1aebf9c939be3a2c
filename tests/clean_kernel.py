"""A notebook that nbval runs leaves its run directories behind, and nothing else.

It is given surroundings of its own, which are looked at when its kernel is gone: nbval kills it.
"""

import contextlib
import os
import secrets
import tempfile
import threading
from pathlib import Path
from unittest import mock

import matplotlib
import pytest
from marks import Mark, wait_for
from nbval.plugin import IPyNbFile

PATIENCE = 5  # seconds that the last process has to end after the kernel did


class SharedMemory(threading.Thread):
    """Looks every tenth of a second which names in /dev/shm the marked processes have mapped."""

    def __init__(self, mark):
        super().__init__(daemon=True)
        self.mark, self.names, self.over, self.others = mark, set(), threading.Event(), set()

    def run(self):
        while not self.over.wait(0.1):
            for pid in filter(str.isdigit, os.listdir("/proc")):
                if pid not in self.others:
                    self.look(pid)

    def look(self, pid):
        if not self.mark.on(pid):
            self.others.add(pid)  # a process has its environment from birth
            return
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            return
        found = (line[line.index("/dev/shm/") :] for line in lines if "/dev/shm/" in line)
        self.names |= {name.removesuffix(" (deleted)") for name in found}

    def existing(self):
        """Those that are there now: a list."""
        return [name for name in sorted(self.names) if os.path.exists(name)]


class Surroundings:
    """Of one notebook: what its kernel finds in the environment, and what it has left there in the end."""

    def __init__(self, book):
        self.book, self.beside = book, {*os.listdir(book.parent)}
        self.folder = tempfile.TemporaryDirectory()
        self.runs, self.temporary, self.home, *others = (
            Path(self.folder.name, name) for name in ("runs", "tmp", "home", "ipython", "jupyter")
        )
        for folder in (self.runs, self.temporary, self.home, *others):
            folder.mkdir()
        self.mark = Mark(secrets.token_hex(8))
        ipython, jupyter = others
        own = {"COLLECTLAB_RUNS": self.runs, "TMPDIR": self.temporary, "HOME": self.home}
        # what IPython, Jupyter and Matplotlib keep for any notebook
        own |= {"IPYTHONDIR": ipython, "JUPYTER_RUNTIME_DIR": jupyter, "MPLCONFIGDIR": matplotlib.get_cachedir()}
        self.environment = {"COLLECTLAB_TEST": self.mark.value} | {name: str(path) for name, path in own.items()}
        self.memory = SharedMemory(self.mark)
        self.memory.start()

    def left(self):
        """What is there that should not be: {where: names}."""
        with contextlib.suppress(AssertionError):  # they are named below
            wait_for(lambda: not self.mark.alive(), PATIENCE)
        self.memory.over.set()
        self.memory.join()
        found = {
            "processes": [*self.mark.alive().values()],
            "shared memory": self.memory.existing(),
            "beside the notebook": sorted({*os.listdir(self.book.parent)} - self.beside),
            "TMPDIR": sorted(os.listdir(self.temporary)),
            "HOME": sorted(os.listdir(self.home)),
            "runs": [run.name for run in self.runs.iterdir() if not (run / "status.json").is_file()],  # without end
        }
        return {where: names for where, names in found.items() if names}

    def used(self):
        """Whether ranks were seen at work: their memory, and their runs."""
        return bool(self.memory.names) and any(self.runs.iterdir())


class EachNotebook:
    """The pytest plugin."""

    def __init__(self):
        self.around = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item):
        if not isinstance(item.parent, IPyNbFile) or (self.around and self.around.book == item.path):
            return (yield)
        self.around = Surroundings(item.path)
        with mock.patch.dict(os.environ, self.around.environment):
            return (yield)  # the kernel is started

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item, nextitem):
        yield  # the kernel has gone with the last cell
        if self.around and (nextitem is None or nextitem.path != self.around.book):
            around, self.around = self.around, None
            with around.folder:
                left = around.left()
                assert not left, f"{around.book.name} leaves behind: {left}"
                cells = sum(cell.cell_type == "code" for cell in item.parent.nb.cells)
                if cells == sum(other.path == item.path for other in item.session.items):
                    assert around.used(), f"no rank of {around.book.name} was seen at work"

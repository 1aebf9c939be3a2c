"""Every notebook runs from a clean kernel, and leaves its run directories behind and nothing else."""

import os
import secrets
import select
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import matplotlib
import nbformat
import pytest
from nbclient import NotebookClient

PATHS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
MARK = "NOTEBOOK_UNDER_TEST"
PATIENCE = 5  # seconds that the last process has to end after the kernel did


def carries(pid, mark):
    """Whether the environment of `pid` holds the mark; a process that has ended has no environment."""
    try:
        return f"{MARK}={mark}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
    except OSError:
        return False


def marked(mark):
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and carries(name, mark)]


def still_there(mark):
    """The marked processes that have not ended by themselves within PATIENCE."""
    end = time.monotonic() + PATIENCE
    for pid in marked(mark):
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            select.select([process], [], [], max(0, end - time.monotonic()))
        finally:
            os.close(process)
    return marked(mark)


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
        if not carries(pid, self.mark):
            self.others.add(pid)  # a process has its environment from birth
            return
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            return
        found = (line[line.index("/dev/shm/") :] for line in lines if "/dev/shm/" in line)
        self.names |= {name.removesuffix(" (deleted)") for name in found}

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()

    def left(self):
        return {name for name in self.names if os.path.exists(name)}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_leaves_nothing_but_its_runs(path, tmp_path):
    course, runs, temporary, home = (tmp_path / name for name in ("course", "runs", "tmp", "home"))
    for folder in (course, runs, temporary, home):
        folder.mkdir()
    shutil.copy(path, course)
    mark = secrets.token_hex(8)
    environment = {**os.environ, MARK: mark, "COLLECTLAB_RUNS": str(runs)}
    environment |= {"TMPDIR": str(temporary), "HOME": str(home)}
    # what IPython and Matplotlib keep for any notebook
    environment |= {"IPYTHONDIR": str(tmp_path / "ipython"), "MPLCONFIGDIR": matplotlib.get_cachedir()}
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(course)}})
    with SharedMemory(mark) as memory:
        client.execute(env=environment)
    assert still_there(mark) == []
    assert memory.names, "no rank was seen at work"
    assert memory.left() == set()
    assert [*temporary.iterdir(), *home.iterdir()] == []
    assert [file.name for file in course.iterdir()] == [path.name]
    assert list(runs.iterdir()) and all((run / "status.json").is_file() for run in runs.iterdir())


def test_a_process_left_behind_would_be_seen(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PATIENCE", 0.2)
    mark = secrets.token_hex(8)
    left = subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={**os.environ, MARK: mark})
    try:
        assert still_there(mark) == [left.pid]
    finally:
        left.communicate()
    assert still_there(mark) == []


def test_shared_memory_left_behind_would_be_seen():
    mark, name = secrets.token_hex(8), f"/dev/shm/{secrets.token_hex(8)}"
    code = f"import mmap; f = open({name!r}, 'w+b'); f.truncate(1); m = mmap.mmap(f.fileno(), 1)"
    code += "; print(flush=True); input()"
    left = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, MARK: mark}
    )
    try:
        left.stdout.readline()
        memory = SharedMemory(mark)
        memory.look(left.pid)
        left.communicate(b"\n")
        assert memory.left() == {name}
    finally:
        left.kill()
        left.wait()
        os.unlink(name)

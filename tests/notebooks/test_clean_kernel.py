"""What a notebook leaves behind is seen. That no notebook of the course does is tested as nbval runs them."""

import os
import secrets
import subprocess
import sys
from pathlib import Path

import nbformat
from clean_kernel import SharedMemory
from marks import Mark

CONFTEST = """import clean_kernel

clean_kernel.PATIENCE = 0.2

def pytest_configure(config):
    config.pluginmanager.register(clean_kernel.EachNotebook())"""
LEAVES = """import os, subprocess, tempfile
from pathlib import Path

Path("beside").touch()
Path.home().joinpath("kept").touch()
Path(tempfile.gettempdir(), "scratch").touch()
Path(os.environ["COLLECTLAB_RUNS"], "half").mkdir()
left = subprocess.Popen(["cat", "gate"], start_new_session=True, stdout=subprocess.DEVNULL)"""


def nbval(folder, source):
    """What pytest says of a notebook with this one cell, under the plugin."""
    (folder / "conftest.py").write_text(CONFTEST)
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]), folder / "book.ipynb")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nbval", "--nbval-current-env"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    how = {"capture_output": True, "text": True, "cwd": folder}
    return subprocess.run([*command, "book.ipynb"], env=environment, **how).stdout


def test_what_is_left_behind_is_named(tmp_path):
    os.mkfifo(tmp_path / "gate")
    try:
        said = nbval(tmp_path, LEAVES)
    finally:
        os.close(os.open(tmp_path / "gate", os.O_RDWR))  # ends the cat
    left = {"processes": ["cat gate "], "beside the notebook": ["beside"], "TMPDIR": ["scratch"], "HOME": ["kept"]}
    assert "1 passed, 1 error" in said and f"book.ipynb leaves behind: {left | {'runs': ['half']}}" in said


def test_that_no_rank_was_at_work_is_named(tmp_path):
    said = nbval(tmp_path, "2 + 2")
    assert "1 passed, 1 error" in said and "no rank of book.ipynb was seen at work" in said


def test_shared_memory_left_behind_is_seen():
    mark, name = Mark(secrets.token_hex(8)), f"/dev/shm/{secrets.token_hex(8)}"
    code = f"import mmap; f = open({name!r}, 'w+b'); f.truncate(1); m = mmap.mmap(f.fileno(), 1)"
    code += "; print(flush=True); input()"
    environment = os.environ | {"COLLECTLAB_TEST": mark.value}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    left = subprocess.Popen([sys.executable, "-c", code], **pipes, env=environment)
    try:
        left.stdout.readline()
        memory = SharedMemory(mark)
        memory.look(left.pid)
        left.communicate(b"\n")
        assert memory.existing() == [name]
    finally:
        left.kill()
        left.wait()
        os.unlink(name)

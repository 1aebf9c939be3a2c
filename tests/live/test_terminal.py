"""A terminal shows what ranks do while a script waits, and nothing of it is left afterwards."""

import io
import os
import pty
import subprocess
import sys

import pytest

import collectlab as cl
from collectlab.launcher import terminal

SCRIPT = """
import sys
import collectlab as cl

def program(ctx, gate):
    ctx.progress(1, 4)
    print("at the gate", flush=True)
    open(f"{gate}.{ctx.rank}").read()

run = cl.run(program, sys.argv[1], ranks=2, device="cpu")
print("the end:", run.status)
"""


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def beside(monkeypatch):
    """`terminal.beside`, and the screen of 40 columns on which it draws; pytest has one of its own in each test."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "24")

    def start(run):
        screen = Screen()
        monkeypatch.setattr(sys, "stderr", screen)
        return terminal.beside(run), screen

    return start


def held(ctx, gate):
    print("日本" * 40, flush=True)
    open(f"{gate}.{ctx.rank}").read()


def test_lines_are_written_over_fitted_and_taken_away(beside, gate, wait_for):
    with cl.launch(2, device="cpu") as ranks:
        run = ranks.submit(held, gate.path)
        view, screen = beside(run)
        wait_for(lambda: "日" in screen.getvalue(), complaint=lambda: f"{run.glance()}\n{screen.getvalue()!r}")
        gate.open(2)
        ranks._wait_for(lambda: run._final is not None, 20)
        view.close()
        view.close()
    drawn = screen.getvalue().split("\x1b[J")
    assert drawn[1].startswith("held on 2 ranks is ") and drawn[-1] == ""
    assert drawn[-2].endswith("\r") or "\x1b[3A" in drawn[-2]
    for picture in drawn[1:-1]:
        for line in picture.partition("\x1b[")[0].splitlines():
            assert sum(2 if letter in "日本" else 1 for letter in line) <= 39


@pytest.mark.parametrize("term", ["dumb", None])
def test_a_terminal_that_cannot_go_back_shows_nothing(term, beside, monkeypatch):
    monkeypatch.delenv("TERM") if term is None else monkeypatch.setenv("TERM", term)
    assert beside(None)[0] is None


def test_no_terminal_shows_nothing(capsys):
    assert terminal.beside(None) is None


def test_a_terminal_that_goes_away_is_no_fault_of_the_run(beside, gate, wait_for):
    with cl.launch(2, device="cpu") as ranks:
        run = ranks.submit(held, gate.path)
        view, screen = beside(run)
        wait_for(lambda: "held" in screen.getvalue())
        screen.close()
        gate.open(2)
        assert run.wait().ok
        view.close()


def _read_until(fd, words):
    found = b""
    while words not in found:
        found += os.read(fd, 1 << 16)
    return found


def test_a_script_in_a_terminal(tmp_path, gate):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, str(path), gate.path], stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
    )  # fmt: skip
    os.close(theirs)
    shown = _read_until(ours, b"1 of 4  | at the gate")
    assert b"program on 2 ranks is running" in shown
    gate.open(2)
    rest = _read_until(ours, b"the end: done")
    assert rest.rpartition(b"\x1b[J")[2].strip() == b"the end: done"
    assert child.wait(20) == 0
    os.close(ours)


def test_a_script_whose_output_is_a_pipe(tmp_path, gate, wait_for):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    child = subprocess.Popen(
        [sys.executable, str(path), gate.path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    gate.open(2)
    assert child.communicate(timeout=30)[0] == "the end: done\n"

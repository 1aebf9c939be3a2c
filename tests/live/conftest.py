"""Runs that go on as long as a test wants: each rank waits at a gate of its own. Afterwards no thread is left."""

import os
import threading

import ipywidgets
import marks
import pytest


def wait_for(happened, within=20.0, complaint=lambda: "it did not happen"):
    """As `marks.wait_for`, with the patience that ranks need where several tests share the cores."""
    marks.wait_for(happened, within, complaint)


def our_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("collectlab")]


@pytest.fixture(autouse=True)
def quiet(tmp_path, monkeypatch):
    """Runs go to tmp_path/runs, and the threads that show them end with them, none of them by an error."""
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    monkeypatch.setenv("COLLECTLAB_RUNS", str(tmp_path / "runs"))
    yield
    wait_for(lambda: not our_threads(), 10, lambda: f"threads are left: {our_threads()}")
    assert not failed


@pytest.fixture(name="wait_for")
def _wait_for():
    return wait_for


@pytest.fixture(name="our_threads")
def _our_threads():
    return our_threads


class Gate:
    """A program can wait at it: `open(gate.at(rank)).read()`; `gate.open(n)` lets n ranks pass."""

    def __init__(self, folder, most=4):
        self.path = str(folder / "gate")
        for rank in range(most):
            os.mkfifo(f"{self.path}.{rank}")

    def open(self, nranks):
        for rank in range(nranks):
            wait_for(lambda rank=rank: self._pass(rank), complaint=lambda: "a rank does not come to the gate")

    def _pass(self, rank):
        try:
            os.close(os.open(f"{self.path}.{rank}", os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # nobody reads
            return False
        return True


@pytest.fixture
def gate(tmp_path):
    return Gate(tmp_path)


def parts(widget):
    """The widget and everything in it."""
    yield widget
    for child in getattr(widget, "children", ()):
        yield from parts(child)


@pytest.fixture
def markup():
    """All HTML that a widget shows: str."""
    return lambda widget: "\n".join(w.value for w in parts(widget) if isinstance(w, ipywidgets.HTML))


@pytest.fixture
def control():
    """Finds a control of a widget by its description."""
    return lambda widget, name: next(w for w in parts(widget) if getattr(w, "description", None) == name)


@pytest.fixture
def widgets():
    """The number of widgets that are alive."""
    return lambda: len(ipywidgets.widgets.widget._instances)


@pytest.fixture(name="parts")
def _parts():
    return parts

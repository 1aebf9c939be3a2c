"""One JupyterLab on a learner's copy of the course, as ./launch/lab starts it, and a Chromium for each file of tests.

Pictures of what was tested are left for a person to look at, in a folder that the summary names.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
from marks import Mark

from collectlab.bench import browser

ROOT = Path(__file__).resolve().parents[2]
SHOTS = pytest.StashKey[Path]()


class Course(NamedTuple):
    served: tuple  # address and token
    folder: Path  # with the learner's notebooks
    mark: Mark  # of every process that was started from there

    def write(self, name, sources):
        """A notebook with these cells; returns its name."""
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        book = nbformat.v4.new_notebook(cells=cells)
        book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(book, self.folder / name)
        return name


@pytest.fixture(scope="session")
def course(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    mark = Mark(f"{os.getpid()}-{time.monotonic_ns()}")
    outside = ("JUPYTER", "CONDA", "XDG", "COLLECTLAB", "PYTEST")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(outside)}
    own = {"VIRTUAL_ENV": sys.prefix, "HOME": str(home), "COLLECTLAB_TEST": mark.value}
    command = [ROOT / "launch" / "lab", "--no-browser"]
    with browser.serving(command, env=kept | own, stdout=subprocess.DEVNULL) as served:
        yield Course(served, home / "collectlab-notebooks", mark)
    mark.gone(within=10)


@pytest.fixture(scope="module")
def chromium():
    """For one module: while it is open, no other test of this process could run an event loop."""
    with browser.chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def expect(chromium):
    """Playwright's assertions, which wait until they hold."""
    from playwright.sync_api import expect

    expect.set_options(timeout=30_000)
    return expect


@pytest.fixture(scope="session")
def shots(tmp_path_factory, pytestconfig):
    """The folder for pictures of the page."""
    folder = pytestconfig.stash[SHOTS] = tmp_path_factory.mktemp("screenshots")
    return folder


@pytest.fixture(scope="module")
def opened(course, chromium):
    """Opens notebooks; at the end of the module it ends their kernels, and nothing of theirs is left."""
    tabs = []

    def open_(name, **how):
        tabs.append(browser.Notebook(chromium, course.served, name, **how))
        return tabs[-1]

    yield open_
    for tab in tabs:
        tab.close()


def pytest_terminal_summary(terminalreporter, config):
    if SHOTS in config.stash:
        terminalreporter.section("pictures of the browser")
        terminalreporter.line(str(config.stash[SHOTS]))

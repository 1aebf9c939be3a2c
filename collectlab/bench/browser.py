"""JupyterLab in a Chromium: what a learner sees, to be measured or tested.

The package playwright drives a browser that is already there; Debian and Ubuntu call it chromium.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import threading
from contextlib import contextmanager

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+)/lab\S*\?token=(\w+)")

# What the notebook in front shows: cells that wait for the kernel, errors of cells, and of their widgets
_PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
_BEGUN = f"""() => [...document.querySelectorAll("{_PANEL} .jp-CodeCell .jp-InputPrompt")]
    .some(prompt => /\\[(\\*|\\d+)\\]/.test(prompt.textContent))"""
_OVER = f"""() => ![...document.querySelectorAll("{_PANEL} .jp-CodeCell .jp-InputPrompt")]
    .some(prompt => prompt.textContent.includes("*"))"""
_ERRORS = f"""() => [...document.querySelectorAll(
    '{_PANEL} [data-mime-type="application/vnd.jupyter.error"], {_PANEL} [data-mime-type$=stderr]'
    + ', {_PANEL} .jupyter-widgets-error-widget')].map(output => output.textContent.trim())"""


def missing():
    """Why no browser can be driven here: str; None where one can."""
    if importlib.util.find_spec("playwright") is None:
        return "the package playwright is not installed"
    return None if _program() else f"this machine has no {PROGRAMS[0]}"


def _program():
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@contextmanager
def serving(command, **how):
    """Start a JupyterLab, with `how` for subprocess.Popen; gives its address and the token that opens it."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **how)
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if found := _ADDRESS.search(line):
                break
        else:
            raise OSError(f"JupyterLab ended with {process.wait()} and gave no address: {''.join(said)[-2000:]}")
        threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would stop the server
        yield found.groups()
    finally:
        process.terminate()  # it ends the kernels first
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def chromium():
    """A Chromium without a window: Playwright's Browser."""
    from playwright.sync_api import sync_playwright

    # Chromium's own sandbox does not start as root
    arguments = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_program(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


class Notebook:
    """A notebook that is open in a tab of its own, and what a person does with it.

    name    its path, as the server has it
    page    Playwright's Page
    faults  what the page has written to its console as an error, and exceptions that nobody caught
    """

    def __init__(self, browser, served, name, size=(1400, 900)):
        self.name, (self._address, self._token) = name, served
        self.page = browser.new_page(viewport=dict(zip(("width", "height"), size, strict=True)))
        self.page.set_default_timeout(60_000)
        self.faults = []
        self.page.on("console", lambda said: said.type == "error" and self.faults.append(said.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.goto(f"{self._address}/lab/tree/{name}?token={self._token}&reset")
        # while it says "Connecting" there, cells that are run are forgotten
        self.page.wait_for_selector("#jp-main-statusbar :text('| Idle')")
        self.page.wait_for_selector(f"{_PANEL} .jp-Cell")

    @property
    def cells(self):
        """The code cells, in their order: a Locator."""
        return self.page.locator(f"{_PANEL} .jp-CodeCell")

    @property
    def errors(self):
        """What cells or their widgets show of errors: a list of texts."""
        return self.page.evaluate(_ERRORS)

    def menu(self, *labels):
        """Choose an entry of a menu, as menu("Run", "Run All Cells")."""
        bar, *entries = labels
        self.page.locator(".lm-MenuBar-itemLabel", has_text=re.compile(f"^{bar}$")).click()
        for entry in entries:
            self.page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{re.escape(entry)}$")).click()

    def save(self):
        """Save it, and wait until the server has it."""
        with self.page.expect_response(lambda said: said.request.method == "PUT" and self.name in said.url):
            self.menu("File", "Save Notebook")

    def run_all(self, seconds=120):
        """Run all cells, and wait until none is left to be run."""
        self.menu("Run", "Run All Cells")
        self.page.wait_for_function(_BEGUN)
        self.settled(seconds)

    def settled(self, seconds=60):
        """Wait until no cell is running, or waits to."""
        self.page.wait_for_function(_OVER, timeout=1000 * seconds)

    def close(self):
        """End its kernel, and close the tab."""
        sessions, allowed = f"{self._address}/api/sessions", {"Authorization": f"token {self._token}"}
        for session in self.page.request.get(sessions, headers=allowed).json():
            if session["path"] == self.name:
                self.page.request.delete(f"{sessions}/{session['id']}", headers=allowed)
        self.page.close()

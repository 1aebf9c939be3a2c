"""launch/lab, for real: JupyterLab on loopback, for those who know the token, with the start page open."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest
from jupyter_server.services.kernels.websocket import KernelWebsocketHandler
from nbconvert import HTMLExporter
from traitlets.config import PyFileConfigLoader

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """Keyword arguments that start a command of the checkout in this environment, with a home of its own."""
    home = tmp_path_factory.mktemp("home")
    outside = ("JUPYTER", "CONDA", "XDG")
    keep = {name: value for name, value in os.environ.items() if not name.startswith(outside)}
    return {
        "env": keep | {"VIRTUAL_ENV": sys.prefix, "HOME": str(home)},
        "stdin": subprocess.DEVNULL,
        "text": True,
    }


@pytest.fixture(scope="module")
def lab(course):
    """The running server's addresses, as it prints them: port, page and token."""
    command = [ROOT / "launch" / "lab", "--no-browser"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, **course)
    try:
        for line in process.stderr:
            if url := re.search(r"http://127\.0\.0\.1:(\d+)/lab/tree/(\S+)\?token=(\w+)", line):
                break
            assert "Use Control-C to stop this server" not in line, (
                "the addresses printed do not name the page"
            )
        else:
            pytest.fail(f"launch/lab ended with {process.wait()} and printed no address")
        while True:  # the addresses are printed shortly before the server listens
            try:
                socket.create_connection(("127.0.0.1", int(url[1]))).close()
                break
            except ConnectionRefusedError:
                assert process.poll() is None, "launch/lab ended"
                time.sleep(0.01)
        yield url.groups()
    finally:
        process.terminate()
        process.communicate()


def read(lab, path, token="", method="GET"):
    port, _, _ = lab
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", method=method)
    if token:
        request.add_header("Authorization", f"token {token}")
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()


def ask(lab, path, token=""):
    return json.loads(read(lab, path, token))


def test_the_token_opens_the_course(lab):
    _, page, token = lab
    assert page == min(path.name for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"))
    assert ask(lab, f"api/contents/{page}?content=0", token)["writable"]


def test_without_the_token_the_door_is_shut(lab):
    for token in ("", "guessed"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            ask(lab, "api/contents", token)


@pytest.fixture
def config():
    return PyFileConfigLoader("jupyter_server_config.py", str(ROOT / "launch")).load_config()


def test_what_a_kernel_says_is_sent_at_once(config, monkeypatch):
    """Else a step of a view waits up to 40 ms for the browser to confirm the message before."""
    chosen, done = config.ServerApp.kernel_websocket_connection_class, []
    monkeypatch.setattr(chosen.__base__, "connect", lambda self: done.append("connected"))
    handler = object.__new__(KernelWebsocketHandler)
    handler.set_nodelay = done.append
    chosen(websocket_handler=handler).connect()
    assert done == [True, "connected"]


def book(outputs, **states):
    """A notebook that shows widgets of these names, as the server is asked to save it."""
    shown = [{"data": {"application/vnd.jupyter.widget-view+json": {"model_id": name}}} for name in outputs]
    cells = [{"source": "gone"}, *({"outputs": [output]} for output in shown)]
    kept = {"version_major": 2, "version_minor": 0, "state": states}
    metadata = {"widgets": {"application/vnd.jupyter.widget-state+json": kept}}
    return {"type": "notebook", "content": {"cells": cells, "metadata": metadata}}


def test_a_saved_notebook_holds_the_widgets_that_it_shows_and_no_others(config, tmp_path):
    """JupyterLab gives what this kernel has made: not the cell that was not run, but the box from before it was."""
    manager = config.ServerApp.contents_manager_class(root_dir=str(tmp_path))
    old, new = ({"state": {"children": [f"IPY_MODEL_{name}"]}} for name in ("picture", "text"))
    first = book(["box", "old"], box=old, old=old, picture={}, style={})
    manager.run_pre_save_hooks(model=first, path="a.ipynb")
    assert first == book(["box", "old"], box=old, old=old, picture={})
    (tmp_path / "a.ipynb").write_text(json.dumps(first["content"]))
    for given in (book(["new", "old"], new=new, text={}, box=old), book(["new", "old"], new=new, text={})):
        manager.run_pre_save_hooks(model=given, path="a.ipynb")
        assert given == book(["new", "old"], old=old, picture={}, new=new, text={})
    bare = book([])
    del bare["content"]["metadata"]["widgets"]
    manager.run_pre_save_hooks(model=bare, path="b.ipynb")
    assert bare["content"]["metadata"] == {}


def test_an_exported_page_shows_pictures_without_a_network(config):
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "one"}, "text/plain": "in words"}
    outputs = [nbformat.v4.new_output("display_data", data) for data in (view | {"image/png": "iVBOR"}, view)]
    cells = [nbformat.v4.new_code_cell(outputs=[output]) for output in outputs]
    metadata = book([], one={"model_name": "HTMLModel", "state": {}})["content"]["metadata"]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
    page, _ = HTMLExporter(config=config).from_notebook_node(notebook)
    assert page.count('src="data:image/png;base64,iVBOR"') == 1
    assert page.count('<script type="application/vnd.jupyter.widget-view+json">') == 1, "it has no picture"


def test_the_first_page_does_not_ask_about_news(lab):
    _, page, token = lab
    source = read(lab, f"lab/tree/{page}", token)
    (config,) = re.findall(r'<script id="jupyter-config-data"[^>]*>(.*?)</script>', source, re.S)
    assert "@jupyterlab/apputils-extension:announcements" in json.loads(config)["disabledExtensions"]


def environments(root):
    """The environments of the shells in terminals of the server of that folder."""
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            found = dict(line.partition("=")[::2] for line in file.read_text().split("\0"))
        except (OSError, UnicodeDecodeError):
            continue  # another user's, or gone
        if found.get("JUPYTER_SERVER_ROOT") == root:
            yield file.parent, found


def test_a_terminal_finds_the_command_collectlab(lab, course):
    token = lab[2]
    name = json.loads(read(lab, "api/terminals", token, "POST"))["name"]
    ((process, environment),) = environments(f"{course['env']['HOME']}/collectlab-notebooks")
    assert shutil.which("collectlab", path=environment["PATH"])
    assert len((process / "cmdline").read_text().rstrip("\0").split("\0")) == 1, "a login shell sets its own PATH"
    read(lab, f"api/terminals/{name}", token, "DELETE")


def test_loopback_only(lab):
    port = f"{int(lab[0]):04X}"
    listening = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not Path(table).exists():
            continue
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == "0A" and local.endswith(f":{port}"):
                listening.append(local)
    assert listening == [f"0100007F:{port}"]


def test_check_runs_the_first_notebook_on_ranks(course):
    check = subprocess.run([ROOT / "launch" / "lab", "--check"], capture_output=True, **course)
    assert check.returncode == 0, check.stderr
    *results, last, verdict = check.stdout.splitlines()
    assert any(results)
    assert verdict.startswith("00") and "code cells ran" in verdict
    assert check.stderr.splitlines()[-1].startswith("collectlab: the course runs here: ./launch/lab opens it")
    directory = Path(last.removeprefix("run directory: "))
    assert directory.is_dir() and directory.is_relative_to(course["env"]["HOME"])


def test_a_check_that_fails_names_the_doctor(course):
    here = {**course, "env": {**course["env"], "COLLECTLAB_RUNS": "/proc/nowhere"}}
    check = subprocess.run([ROOT / "launch" / "lab", "--check"], capture_output=True, **here)
    assert check.returncode == 2 and check.stdout == ""
    *_, why, doctor = check.stderr.splitlines()
    assert "COLLECTLAB_RUNS" in why and doctor.endswith("-m collectlab doctor says what this machine lacks")

"""The server of JupyterLab, as ./launch/lab starts it.

A step of a view is several messages. By default the kernel of the system holds back a message until the browser has
confirmed the one before, which a browser may put off for 40 ms: almost half of what a step then takes.

Of widgets, JupyterLab saves those that the present kernel has made: also what was there before a cell was run again,
and nothing of a cell that has not been run yet. A lesson that is opened, changed and saved would lose its pictures.

A page of HTML that JupyterLab exports fetches a program that shows the saved widgets. Without a network it would be
empty there, so it has the static pictures.
"""

import json
from pathlib import Path

from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from jupyter_server.utils import to_os_path

_WIDGETS, _STATES = "widgets", "application/vnd.jupyter.widget-state+json"
_VIEW = "application/vnd.jupyter.widget-view+json"


class AtOnce(ZMQChannelsWebsocketConnection):
    """The connection of a page to a kernel; what the kernel says is sent when it is said."""

    def connect(self):
        self.websocket_handler.set_nodelay(True)
        return super().connect()


def keep_what_is_shown(path, model, contents_manager, **_):
    """Before a notebook is saved: have it hold the widgets that its outputs show, of whatever kernel."""
    if model["type"] != "notebook":
        return
    book = model["content"]
    try:
        saved = json.loads(Path(to_os_path(path, contents_manager.root_dir)).read_text("utf-8"))
    except (OSError, ValueError):  # it is saved for the first time, or is no notebook
        saved = {"metadata": {}}
    states = _states(saved) | _states(book)
    shown, new = set(), [cell.get("outputs") for cell in book["cells"]]
    while new:
        found = {text.removeprefix("IPY_MODEL_") for text in _texts(new)} & states.keys() - shown
        shown |= found
        new = [states[name] for name in found]
    if states:
        kept = {name: state for name, state in states.items() if name in shown}
        book["metadata"][_WIDGETS] = {_STATES: {"version_major": 2, "version_minor": 0, "state": kept}}


def _states(book):
    """Name of a widget -> its state."""
    return book["metadata"].get(_WIDGETS, {}).get(_STATES, {}).get("state", {})


def _texts(part):
    """All texts in nested lists and dicts."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, list | dict):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from _texts(inner)


class Notebooks(AsyncLargeFileManager):
    """Where notebooks are saved."""

    def __init__(self, **config):
        super().__init__(**config)
        self.register_pre_save_hook(keep_what_is_shown)


c = get_config()  # noqa: F821 (Jupyter gives it)
c.ServerApp.kernel_websocket_connection_class = AtOnce
c.ServerApp.contents_manager_class = Notebooks
c.WidgetsDataTypeFilter.display_data_priority = [
    "application/javascript", "text/html", "text/markdown", "image/svg+xml", "text/vnd.mermaid", "text/latex",
    "image/png", "image/jpeg", _VIEW, "text/plain",
]  # fmt: skip

"""What a notebook shows by itself: a run that is the last value of a cell, and one that a cell waits for.

The launcher, on a lower floor, knows no views. The first use of `cl.run`, `cl.launch` or `%%ranks` in a notebook
connects the two. What is imported for the pictures is imported when the first of them is needed.
"""

import contextvars
import sys
import threading

from collectlab.launcher import run as waits

_WIDGET = "application/vnd.jupyter.widget-view+json"


def connect():
    """Let the notebook of this process, if it is one, show what its runs do. May be called again."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if getattr(shell, "kernel", None) is not None:
        waits.beside = beside
        shell.display_formatter.mimebundle_formatter.for_type(waits.Run, bundle)


def bundle(run):
    """What a notebook shows of a run that goes on, in the place of its text: a live view. {} for one that is over."""
    if run.status != "running":
        return {}
    try:
        from collectlab.views import outputs
        from collectlab.views.live import LiveView, on_page

        view = on_page(run) or LiveView(run)
        outputs.note(view)
        return _model(view.widget())
    except ImportError:  # without ipywidgets
        return {}


def beside(run):
    """Show a live view of `run` under the cell that waits for it, until `close` is called on what is returned."""
    return _Beside(run)


class _Beside:
    """A live view that comes and goes, and leaves no text: one execution of a notebook may be too short for it."""

    def __init__(self, run):
        self._run, self._view, self._shown, self._closed, self._lock = run, None, None, False, threading.Lock()
        here = contextvars.copy_context()  # it holds the cell under which things are shown
        # a thread, as what is imported takes a moment, in which the run may end
        threading.Thread(target=here.run, args=(self._open,), name="collectlab live view", daemon=True).start()

    def _open(self):
        try:
            import ipywidgets  # noqa: F401
            from IPython.display import display

            from collectlab.views.live import LiveView, on_page
        except ImportError:
            return
        with self._lock:
            if not self._closed and on_page(self._run) is None:
                self._view = LiveView(self._run)
                self._shown = display(_model(self._view.widget()), raw=True, display_id=True)

    def close(self):
        with self._lock:
            self._closed = True
        if self._view is not None:
            self._view.close()
        if self._shown is not None:  # a saved notebook would ask for the widget, which is gone
            self._shown.update({}, raw=True)


def _model(widget):
    return {_WIDGET: {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}}

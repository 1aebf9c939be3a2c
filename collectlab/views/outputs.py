"""Which cell of a notebook shows which views: what a cell has shown is closed when that cell is run again.

ipywidgets keeps a widget until somebody closes it, and JupyterLab saves all that there are: a lesson that is gone
through three times would have three times its size.
"""

import sys

_shown = {}  # cell -> the message that had it executed, and the views that it has shown since


def notebook():
    """IPython's shell, where this process is the kernel of a notebook; None elsewhere."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell if getattr(shell, "kernel", None) is not None else None


def note(view):
    """The cell that is executed now will show `view`: close what it showed before, and no other cell shows."""
    request = getattr(notebook(), "parent_header", None) or {}
    cell = request.get("metadata", {}).get("cellId")  # JupyterLab says it, and nothing else known
    if cell is None:
        return
    execution, (before, views) = request["header"]["msg_id"], _shown.get(cell, (None, []))
    if execution == before:
        views.append(view)
        return
    _shown[cell] = execution, [view]  # not to be closed: its widget may be part of another one
    still = [other for _, others in _shown.values() for other in others]
    for old in views:
        if not any(old is other for other in still):
            old.close()

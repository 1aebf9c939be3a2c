"""Which cell of a notebook shows which views: what a cell has shown is closed when that cell is run again.

ipywidgets keeps a widget until somebody closes it, and with it the view and its run: of a lesson that is gone through
ten times, the kernel and the page would hold all ten.
"""

import sys

_shown = {}  # cell -> the message that had it executed, and the views that it has shown since


def notebook():
    """IPython's shell, where this process is the kernel of a notebook; None elsewhere."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell if getattr(shell, "kernel", None) is not None else None


def note(view):
    """The cell that is executed now will show `view`: close what it showed before, where nothing else shows that."""
    request = getattr(notebook(), "parent_header", None) or {}
    cell = request.get("metadata", {}).get("cellId")  # JupyterLab says it, and nothing else known
    if cell is None:
        return
    execution, (before, views) = request["header"]["msg_id"], _shown.get(cell, (None, []))
    if execution == before:
        views.append(view)
        return
    _shown[cell] = execution, [view]
    still = [other for _, others in _shown.values() for other in others]
    for old in views:
        if not any(old is other for other in still) and not _in_a_box(old._widget):
            old.close()


def _in_a_box(widget):
    """Whether the widget is a part of another one, as of a Tab that somebody has made."""
    registry = sys.modules.get("ipywidgets.widgets.widget")
    every = [*registry._instances.values()] if registry else []
    return any(part is widget for other in every for part in getattr(other, "children", ()))

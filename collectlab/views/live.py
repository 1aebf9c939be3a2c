"""A run while it goes on: what each rank does, how far it is, and what it prints, with a button that ends it."""

import contextvars
import html
import threading
import weakref

from collectlab.launcher.glance import Follower
from collectlab.launcher.run import Run
from collectlab.views import outputs, palette
from collectlab.views.drawing import fitting, number_of, width_of
from collectlab.views.view import View, _close

MOST = 16  # ranks that have a row of their own
_MARGIN, _ROW, _BAR = 28, 24, 120  # pixels
_open = weakref.WeakSet()  # the live views that have a widget
_FONT = "font-family:var(--jp-code-font-family,monospace);font-size:var(--jp-code-font-size,13px)"


def live(run):
    """What the ranks of a run do, while they do it: a `LiveView`.

    run  a Run, as `Ranks.submit`, `run` or `attach` returns it; one that is over is shown as it ended

    The widget follows the run until it is over, also while cells are executed, at most ten times a second. A notebook
    shows it by itself for a run that is the last value of a cell and still goes on.
    """
    return LiveView(run)


class Living(View):
    """A view of something that goes on by itself, so that its text is another one at each moment.

    In a notebook its text/plain is therefore only its `name()`: two executions of the notebook have the same.
    """

    def _check(self, settings):
        return settings

    def _bare(self):
        return super()._bare() | {"_follower": None, "_keeper": None}

    def name(self):
        """What the view is of, in words that do not depend on the moment: str."""
        raise NotImplementedError

    def caption(self):
        return self.text().partition("\n")[0]

    def _repr_mimebundle_(self, include=None, exclude=None):
        bundle = super()._repr_mimebundle_(include, exclude)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        if outputs.notebook() is not None:
            data["text/plain"] = self.name()
        return bundle

    def close(self):
        """Take the widget off the page, and follow no longer what it showed. It may be shown again."""
        if self._widget is None:
            return
        for control in self._inputs.values():
            control.unobserve_all()
        for button, action in self._buttons:
            button.on_click(action, remove=True)
        widget, self._widget = self._widget, None
        _close(widget)
        self._inputs, self._buttons = {}, []

    def _paint_glances(self, drawing, lines, glance):
        """Lines of text, and under them a row for each rank."""
        rows = glance.rows(MOST) if glance else []
        drawing.begin(2 * _MARGIN + _ROW * (len(lines) + len(rows)))
        y, width = _MARGIN, drawing.width - 2 * _MARGIN
        for line in lines:
            drawing.label(_MARGIN, y, fitting([line], width), 11 if y == _MARGIN else 9)
            y += _ROW
        if not rows:
            return
        x_words = _MARGIN + 16 + min(200, max(width_of(row.name, weight="bold") for row in rows))
        x_bar = x_words + 16 + min(260, max(width_of(row.words) for row in rows))
        x_line = x_bar + 2 * _BAR if any(row.progress for row in rows) else x_bar
        for row in rows:
            drawing.label(_MARGIN, y, fitting([row.name], 200, weight="bold"), weight="bold")
            colour = palette.WRONG if row.failed else palette.INK
            drawing.label(x_words, y, fitting([row.words], 260), colour=colour)
            if row.share is not None:
                drawing.box(x_bar, y - 7, _BAR, 14, edge=palette.LINE)
                drawing.box(x_bar, y - 7, _BAR * row.share, 14, face=palette.tint(0), edge=palette.LINE, hatch="////")
            if row.progress:
                drawing.label(x_bar + _BAR + 6, y, fitting([row.progress], _BAR - 16))
            if row.lines:
                drawing.label(x_line, y, fitting([row.lines[-1]], drawing.width - _MARGIN - x_line))
            y += _ROW


class LiveView(Living):
    """The view that `live` returns. It has no settings."""

    def __init__(self, run):
        if not isinstance(run, Run):
            raise TypeError(f"live(run={run!r}): a Run is accepted, as Ranks.submit, run or attach returns it")
        self.run = run
        super().__init__()

    def name(self):
        return f"live view of {self.run.spec['program']} on {number_of(self.run.nranks, 'rank')}"

    def text(self):
        """What the ranks do at this moment: str. Of more than 16 ranks, those that do the same stand together."""
        return self.run.glance().text(MOST)

    def _paint(self, drawing, static):
        glance = self.run.glance()
        self._paint_glances(drawing, [glance.headline, *glance.report.splitlines()], glance)

    def widget(self):
        """The ipywidgets widget. It follows the run, from a thread, until that is over or the view is closed."""
        if self._widget is None:
            apart(self._make)
        return self._widget

    def _make(self):
        import ipywidgets

        self._stop = self._button(ipywidgets, "Stop", self._end_run, "end this run, and its ranks with it")
        self._head, self._table = ipywidgets.HTML(f"<span>{html.escape(self.name())}</span>"), ipywidgets.HTML()
        row = [self._head] if self.run._ranks is None else [self._stop, self._head]
        self._widget = ipywidgets.VBox([ipywidgets.HBox(row), self._table])
        _open.add(self)
        if self.run.status == "running":
            self._follower = Follower(self.run, self._show_glance)
        else:
            self._show_glance(self.run.glance())

    def _show(self):
        pass  # it has no settings

    def _show_glance(self, glance):
        set_markup(self._head, heading(glance))
        set_markup(self._table, table(glance))
        if glance.over:  # nothing refers to the run any longer but who asked for the view
            self._stop.layout.display = "none"
            for button, action in self._buttons:
                button.on_click(action, remove=True)

    def _end_run(self, _):
        ranks, self._stop.disabled, self._stop.description = self.run._ranks, True, "Stopping"
        if ranks is not None:  # in a thread, as it may take two seconds
            threading.Thread(target=ranks.interrupt, name="collectlab stop", daemon=True).start()

    def close(self):
        """Take the widget off the page, and follow the run no longer; the run goes on. It may be shown again."""
        if self._follower is not None:
            self._follower.stop()
        _open.discard(self)
        super().close()
        self._follower = self._stop = self._head = self._table = None


def on_page(run):
    """The live view of `run` that has a widget, or None."""
    return next((view for view in list(_open) if view.run is run), None)


def apart(act):
    """Call `act()`, so that the buttons of the widgets that it makes or changes work while a cell is executed.

    ipykernel hands what a page says to a widget to the thread whose request made the widget speak last: that of the
    cells, which has to finish its cell first. A widget that spoke without a request is heard in the thread that
    JupyterLab keeps for widgets.
    """
    request = getattr(getattr(outputs.notebook(), "kernel", None), "_shell_parent", None)
    here = contextvars.copy_context()
    if request is not None:
        here.run(request.set, {})
    return here.run(act)


def set_markup(widget, markup):
    """Set the markup of an HTML widget; nothing is sent to the page where it is the same."""
    if widget.value != markup:
        widget.value = markup


def heading(glance):
    """The state of a run as markup, which a screen reader reads out when it changes."""
    return f"<span role='status'>{html.escape(glance.headline)}</span>"


def table(glance):
    """What each rank does, as markup: at most 16 rows, each with the last lines of one rank."""
    lines = 3 if len(glance.ranks) <= 8 else 1
    whole, rows = "white-space:nowrap", []
    for row in glance.rows(MOST):
        words = f"<b>{html.escape(row.words)}</b>" if row.failed else html.escape(row.words)
        printed = "<br>".join(map(html.escape, row.lines[-lines:]))
        cells = f"<td>{words}</td><td style='{whole}'>{_bar(row)}</td><td style='white-space:pre-wrap'>{printed}</td>"
        name = f"<th scope='row' style='{whole if len(row.ranks) == 1 else ''}'>{html.escape(row.name)}</th>"
        rows.append(f"<tr style='vertical-align:top'>{name}{cells}</tr>")
    under = [f"{glance.seconds:g} s so far"] if glance.seconds and not glance.over else []
    if len(rows) < len(glance.ranks):
        under.append(f"{len(glance.ranks)} ranks; those that do the same stand together")
    if glance.report:
        rest = f"<pre style='white-space:pre-wrap'>{html.escape(glance.report)}</pre>"
    else:
        rest = f"<div>{'; '.join(under)}</div>"
    spaced = f"border-spacing:1em 0;margin-left:-1em;text-align:left;line-height:1.4;{_FONT}"
    return f"<table style='{spaced}'>{''.join(rows)}</table>{rest}"


def _bar(row):
    said = html.escape(row.progress)
    if row.share is None:
        return said
    label = html.escape(f"{row.name}: {row.progress}", quote=True)
    return f"<progress max='1' value='{row.share:.3f}' aria-label='{label}'></progress> {said}"

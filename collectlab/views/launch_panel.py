"""A panel that starts ranks, gives them a program, shows what they do, and stops them."""

import html
import threading

from collectlab.launcher import sites
from collectlab.launcher.glance import Follower
from collectlab.launcher.ranks import MOST_RANKS, Ranks
from collectlab.views.drawing import number_of
from collectlab.views.live import MOST, Living, apart, heading, set_markup, table
from collectlab.views.view import CHANGING, NotAccepted, alone
from collectlab.views.words import is_whole
from collectlab.words import program_named

DEVICES = ("auto", "cpu", "cuda")


def launch_panel(program=None, *args, ranks=4, site=None, device="auto"):
    """A panel for warm ranks: a `LaunchPanel`, whose buttons start them, run the program, and stop them.

    program  a function, called as program(ctx, *args) by the button Run; without one there is no such button
    args     its arguments
    ranks    how many ranks, at first; `site` and `device` likewise, as `launch` takes them

    Nothing is started before somebody asks for it, and no button keeps the notebook waiting. `panel.submit` gives
    the ranks another program, `panel.ranks` are the ranks, `panel.run` is the last run.
    """
    if program is not None and not callable(program):
        raise TypeError(f"launch_panel(program={program!r}): a function is accepted, called as program(ctx, *args)")
    return LaunchPanel(program, args, ranks=ranks, site=sites.find(site).name, device=device)


class LaunchPanel(Living):
    """The view that `launch_panel` returns. Settings: ranks, site, device; they hold for the next start.

    ranks  the Ranks that were started last, or None     run  the Run that was submitted last, or None
    """

    def __init__(self, program, args, **settings):
        self.program, self.args = program, args
        self.ranks = self.run = None
        self._glance = None
        self._why, self._came = "", False  # what went wrong; whether the ranks have been ready
        super().__init__(**settings)

    def _check(self, settings):
        n, site, device = settings["ranks"], settings["site"], settings["device"]
        if not is_whole(n) or not 1 <= n <= MOST_RANKS:
            said = f"a whole number of ranks is accepted, 1 to {MOST_RANKS}"
            raise NotAccepted(f"launch_panel(ranks={n!r}): {said}", f"{n!r}: {said}.")
        if device not in DEVICES:
            said = f"one of {', '.join(DEVICES)} is accepted"
            raise NotAccepted(f"launch_panel(device={device!r}): {said}", f"{device!r}: {said}.")
        sites.find(site)
        return settings | {"ranks": int(n)}

    # What it does

    def start(self):
        """Start ranks as the settings say, in place of those that are running; returns the panel at once."""
        if self.ranks is not None:
            self.ranks.stop()
        self.ranks = self.run = self._glance = None
        self._why, self._came = "", False
        try:
            ranks = Ranks(self._settings["ranks"], self._settings["device"], self._settings["site"])
            ranks._ensure()
            self.ranks = ranks
        except (ValueError, OSError) as error:
            self._why = str(error)
        self._keep()
        return self

    def stop(self):
        """Stop the ranks, and end what they run; returns the panel. Safe at any moment, also twice."""
        if self.ranks is not None:
            self.ranks.stop()
        self._show()
        return self

    def submit(self, program, *args):
        """Give the ranks a program, and show what they do with it; returns its Run at once.

        Starts ranks where none are running. RuntimeError when that cannot be done.
        """
        if self.ranks is None:
            self.start()
        if self.ranks is None:
            raise RuntimeError(f"launch_panel: no ranks can be started: {self._why}")
        self.run, self._why = self.ranks.submit(program, *args), ""
        self._keep()
        self._follow()
        return self.run

    def _run_program(self, _):
        try:
            self.submit(self.program, *self.args)
        except (TypeError, ValueError, OSError, RuntimeError) as error:
            self._why = str(error)
            self._show()

    def _start_once(self, _):
        if not self._there():  # a second click of a double click finds them
            self.start()

    def _there(self):
        """Whether ranks are running, or on their way."""
        return self.ranks is not None and self.ranks.status != "stopped"

    def _stop_all(self, _):  # in a thread, as it may take two seconds
        threading.Thread(target=self.stop, name="collectlab stop", daemon=True).start()

    def _keep(self):
        """Show the ranks now, and again whenever their state changes, as long as there is a widget."""
        self._show()
        if self._widget is not None and self.ranks is not None and not (self._keeper and self._keeper.is_alive()):
            self._keeper = threading.Thread(target=self._keep_showing, name="collectlab panel", daemon=True)
            self._keeper.start()

    def _keep_showing(self):
        ranks, self._seen = self.ranks, None
        while self._widget is not None and self.ranks is ranks and ranks.status != "stopped":
            self._seen = ranks.status, ranks.note
            self._came = self._came or ranks.places is not None
            self._show()
            ranks._wait_for(lambda: self._widget is None or (ranks.status, ranks.note) != self._seen, None)
        self._show()

    def _follow(self):
        if self._follower is not None:
            self._follower.stop()
        self._follower = None
        if self._widget is not None and self.run is not None and self.run.status == "running":
            self._follower = Follower(self.run, self._take)

    def _take(self, glance):
        self._glance = glance
        self._show()

    # In words

    def name(self):
        n, site, device = (self._settings[key] for key in ("ranks", "site", "device"))
        of = f" for {program_named(self.program)}" if self.program else ""
        return f"launch panel{of}: {number_of(n, 'rank')}, site {site}, device {device}"

    def state(self):
        """What there is to say of the ranks: str, of one line or more."""
        if self.ranks is None:
            return self._why or "no ranks are running"
        status, places, note = self.ranks.status, self.ranks.places, self.ranks.note
        said = f"{number_of(self.ranks.nranks, 'rank')} on site {self.ranks.site.name}: {status}"
        if places:
            said += f", {_devices(places)}"
        elif status == "starting" and note:
            said += f", {note}"
        elif status == "stopped" and not self._came and self.run is None and self.ranks._last["status"] == "failed":
            said = self.ranks._why()
        return "\n".join(filter(None, [said, self._why]))

    def text(self):
        """The settings, the state of the ranks, and what the last run does: str."""
        glance = self.run and self.run.glance()
        return "\n".join([self.name(), self.state(), *([glance.text(MOST)] if glance else [])])

    def _paint(self, drawing, static):
        glance = self.run and self.run.glance()
        said = [glance.headline, *glance.report.splitlines()] if glance else []
        self._paint_glances(drawing, [self.name(), *self.state().splitlines(), *said], glance)

    # The widget

    def _controls(self, widgets):
        now = self._settings
        inputs = {
            "site": widgets.Dropdown(options=sites.names(), value=now["site"], description="site"),
            "ranks": widgets.BoundedIntText(now["ranks"], min=1, max=MOST_RANKS, description="ranks"),
            "device": widgets.Dropdown(options=DEVICES, value=now["device"], description="device"),
        }
        start = self._button(widgets, "Start", self._start_once, "start ranks that wait for programs")
        stop = self._button(widgets, "Stop", self._stop_all, "end what is running, and the ranks with it")
        buttons = [start, stop]
        if self.program:
            run = self._button(widgets, "Run", self._run_program, "run the program once")
            buttons.insert(1, run)
        return inputs, [widgets.HBox([*inputs.values()]), widgets.HBox(buttons)]

    def widget(self):
        """The ipywidgets widget, made when it is first asked for."""
        if self._widget is None:
            apart(self._make)
        return self._widget

    def _make(self):
        import ipywidgets

        rows = self._heard_controls(ipywidgets)
        self._caption, self._head, self._table = (ipywidgets.HTML() for _ in range(3))
        self._widget = ipywidgets.VBox([*rows, self._caption, self._head, self._table])
        self._glance = self.run and self.run.glance()
        self._keep()
        self._follow()

    def _show(self):
        apart(self._show_now)

    @alone
    def _show_now(self):
        if self._widget is None:
            return
        self._set_controls()
        for control in self._inputs.values():  # not the buttons: one that goes off under the keys loses the focus
            control.disabled = self._there()
        said = "<br>".join(map(html.escape, self.state().splitlines()))
        set_markup(self._caption, f"<span role='status'>{said}</span>")
        set_markup(self._head, heading(self._glance) if self._glance else "")
        set_markup(self._table, table(self._glance) if self._glance else "")

    def close(self):
        """Take the widget off the page. The ranks go on; `stop` stops them. It may be shown again."""
        if self._follower is not None:
            self._follower.stop()
        with CHANGING:
            super().close()
            self._follower = self._head = self._table = None
        if self.ranks is not None:
            self.ranks._ring()  # the thread that waits for a change of their state goes


def _devices(places):
    """The devices of the ranks in one line: which rank is where."""
    shown = ", ".join(f"rank {rank} on {place['device']}" for rank, place in enumerate(places[:4]))
    return shown + (f", and {len(places) - 4} more" if len(places) > 4 else "")

"""Time lanes: when each rank of a real run moved data, waited for another, and did anything else."""

from reprlib import repr

import numpy as np

from collectlab.trace import Trace, deadlock
from collectlab.trace.events import BARRIER
from collectlab.views.drawing import number_of
from collectlab.views.lanes_picture import LanesPicture
from collectlab.views.time_spans import TimeSpans
from collectlab.views.view import SteppedView
from collectlab.views.words import groups, ranks_listed, seconds_of, table

MOST = 16  # ranks that have a lane of their own
MOST_WAITS = 20  # that can be picked out
MOST_LINES = 64  # of the text that tells ranks apart
NOT = (
    "Moving: loads, stores, notifications. Set-up: the ranks make windows together. Anything else: the program's own "
    "work, and what no window sees."
)
FEW = "Spans shorter than a pixel are drawn by their share of it; the figures have every one."
HOSTS = "The ranks are on several hosts, whose clocks differ: each host's lanes begin with its own first rank."


def lanes(run, name=None, *, step=0, zoom=False):
    """When each rank of a run moved data, waited, and did anything else: a `Lanes`.

        views.lanes(cl.run(program, ranks=4))

    run   a Run on real ranks that used windows or signals, finished, failed, or still going on
    name  what the title calls it; the default is the name of the run's program
    step  which wait is picked out first: 0 none, 1 the longest, 2 the one after it, and so on
    zoom  whether the lanes show only the time around that wait

    The times are those that the ranks noted. A simulated rank has no clock, so its run is refused with a ValueError;
    TypeError or ValueError name any other argument that is not accepted.
    """
    return Lanes(run, name, step, zoom)


class Lanes(SteppedView):
    """The view that `lanes` returns. Settings: step (the wait that is picked out) and zoom.

    spans  the times: a `time_spans.TimeSpans`
    waits  the waits that can be picked out, the longest first
    """

    def __init__(self, run, name, step, zoom):
        trace = run if isinstance(run, Trace) else getattr(run, "trace", None)
        if not isinstance(trace, Trace):
            raise TypeError(f"lanes(run={repr(run)}): a Run is accepted, as cl.run returns it")
        places = getattr(run, "rank_map", None) or ()
        hosts = [place.host for place in places]
        self.spans, self.nranks, self._trace = TimeSpans(trace, hosts), trace.nranks, trace
        if trace.events and self.spans.untimed == len([e for e in trace.events if e.kind != BARRIER]):
            raise ValueError(
                "lanes(run): its events carry no times, as simulated ranks have no clock; run the program on real "
                "ranks, with cl.run(program, ranks=...)"
            )
        program = getattr(run, "program", None) or getattr(run, "spec", {}).get("program", "a trace")
        self.name, self.status = str(program if name is None else name), getattr(run, "status", "")
        self.ends, self._hosts = getattr(run, "ends", {}), len(set(hosts))
        self.waits = self.spans.waits[:MOST_WAITS]
        self.groups = groups(self.nranks, MOST)
        super().__init__(step=step, zoom=zoom)

    @property
    def last(self):
        return len(self.waits)

    def _check(self, settings):
        if not isinstance(settings["zoom"], bool):
            raise ValueError(f"lanes: zoom is True or False, not {settings['zoom']!r}")
        return self._checked_step("lanes", settings)

    def _controls(self, widgets):
        inputs, rows = self._step_controls(widgets)
        zoom = widgets.ToggleButton(
            self._settings["zoom"], description="Zoom", tooltip="only the time around the wait that is picked out",
            layout={"width": "auto"},
        )  # fmt: skip
        rows[-1].children = (*rows[-1].children, zoom)
        return {**inputs, "zoom": zoom}, rows

    # What it says

    @property
    def picked(self):
        """The wait that is picked out: a `time_spans.Wait`, or None."""
        return self.waits[self._settings["step"] - 1] if self._settings["step"] else None

    @property
    def empty(self):
        """Whether no rank has noted a time: bool."""
        return not np.isfinite(self.spans.began).any()

    def nothing(self):
        """What there is to say where no rank has noted a time."""
        return "Nothing was traced: the program used no window and no signal, or it ran with trace=False."

    def verdicts(self):
        """Who is stuck, who raised, and whom the others waited for: a list of sentences."""
        said = []
        stuck = [wait.rank for wait in self.waits if wait.ended is None]
        if stuck:
            said.append(f"{ranks_listed(stuck).capitalize()} still waited at the end.")
            circle = [line for line in deadlock.explain(self._trace, self.ends) if line.startswith("the circle")]
            said += [f"{line.capitalize()}: each of them waits for the next." for line in circle]
        raised = {rank: end for rank, end in self.ends.items() if end.startswith("raised")}
        said += [f"Rank {rank} {end}." for rank, end in sorted(raised.items())[:3]]
        waited = self.spans.waited_for()
        if waited.sum() > 0 and not stuck:
            rank = int(waited.argmax())
            said.append(
                f"Rank {rank} let the others wait longest: {seconds_of(waited[rank])} in all, "
                f"{waited[rank] / waited.sum():.0%} of the waiting that ended."
            )
        if not said and self.spans.waits:
            every = seconds_of(sum(wait.seconds for wait in self.spans.waits))
            said.append(f"The ranks waited {every} in all; for whom is not known.")
        return said or ["Nobody waited for anybody."]

    def told(self, wait):
        """A wait in a sentence."""
        who, e = f"rank {wait.rank}", wait.event
        what = "to ask for the same memory" if e is None else f'on row {e.row} of "{e.name}"{deadlock.at(e)}'
        if wait.ended is None:
            return f"{who} waits for rank {wait.peer} {what}, and this wait never ended"
        if wait.peer is None:
            return f"{who} waited {seconds_of(wait.seconds)} {what}"
        spent = self.spans.seconds(wait.peer, wait.began, min(wait.ended, max(wait.came, wait.began)))
        most, doing = max(zip(spent, ("moved data", "waited itself", "set up", "did something else"), strict=True))
        meanwhile = f"; that one {doing} meanwhile" if most > 0 else ""
        return f"{who} waited {seconds_of(wait.seconds)} for rank {wait.peer} {what}{meanwhile}"

    def caption(self):
        if self.empty:
            return self.nothing()
        if self.picked is None:
            return f"{seconds_of(self.spans.last)} in all. {' '.join(self.verdicts())}"
        first = ", the longest" * (self._settings["step"] == 1)
        return f"Wait {self._settings['step']} of {self.last}{first}: {self.told(self.picked)}."

    def title(self):
        """What was run: str."""
        return f"time lanes of {self.name} on {number_of(self.nranks, 'rank')}"

    def text(self):
        if self.empty:
            return f"{self.title()}\n{self.nothing()}"
        lines = [self.title(), self.caption(), ""]
        waited = self.spans.waited_for()
        rows = [("", "begins", "ends", "moves", "waits", "sets up", "anything else", "waited for")]
        for rank in range(self.nranks):
            rows.append((f"rank {rank}", *self._figures(rank), seconds_of(waited[rank])))
        if len(rows) > MOST_LINES + 1:
            rows[MOST_LINES + 1 :] = [(f"... and {len(rows) - MOST_LINES - 1} more ranks", *[""] * 7)]
        lines += table(rows)
        if self.waits:
            lines += ["", f"waits, the longest of {len(self.spans.waits)} first:"]
            for number, wait in enumerate(self.waits, 1):
                mark = ">" if number == self._settings["step"] else " "
                lines.append(f"{mark} {number:>2}  from {seconds_of(wait.began)} on, {self.told(wait)}")
        if self._trace.waiting:
            lines += ["", *deadlock.explain(self._trace, self.ends)]
        return "\n".join([*lines, "", *self.verdicts(), *self.notes()])

    def _figures(self, rank):
        """When a rank began and ended, and how long it did what: six texts."""
        if np.isnan(self.spans.began[rank]):
            return "no word", "", "", "", "", ""
        stuck = any(wait.rank == rank and wait.ended is None for wait in self.waits)
        end = "never" if stuck else seconds_of(self.spans.ended[rank])
        return seconds_of(self.spans.began[rank]), end, *map(seconds_of, self.spans.seconds(rank))

    def notes(self):
        """What has to be known of the picture: a list of sentences."""
        group = len(self.groups[0])
        notes = [f"Aggregated: a lane stands for {group} ranks, and shows what share of them did what."] * (group > 1)
        notes += [HOSTS] * (self._hosts > 1)
        notes += [f"{number_of(self.spans.untimed, 'event')} without a time left out."] * bool(self.spans.untimed)
        return [*notes, FEW, NOT]

    # As a picture

    def _paint(self, drawing, static):
        LanesPicture(self, drawing).paint()

"""Signal rows made visible: who notified whom on which row and how far, and who waits for it."""

from bisect import bisect_right
from collections import Counter
from itertools import groupby
from reprlib import repr

from collectlab.trace import Trace
from collectlab.trace.events import NOTIFY, WAIT
from collectlab.views import palette
from collectlab.views.drawing import fitting, width_of
from collectlab.views.view import SteppedView
from collectlab.views.words import begin, groups, head, listed, names_of

MOST_RANKS = 64
MOST_GROUPS = 16  # ranks, or groups of equally many, that have a lane and cells of their own
MOST_ROWS = 6  # signal rows that are drawn; those around the row of the step
MOST_COLUMNS = 30  # steps that are drawn: the last ones; what comes later is a question until it has happened
FORTH = 10  # steps by which the columns move on, so that they stay where they are in most steps
EVERY, MOST_KEPT = 256, 64  # steps after which the counts are kept, and how often; the rest is counted from there
ORDER = "The steps stand in an order in which they can have happened: each wait after the notification it asks for."

_MARGIN, _GAP, _LABEL, _LANE, _CELL = 14, 16, 46, 32, 34  # pixels


def arrivals(run, signals=None, step=None):
    """The arrival rows of a run's signals, step by step: an `Arrivals`.

        views.arrivals(run)                          # the run's only signals
        views.arrivals(run, "two_phase.all_reduce")  # one name among several

    run      a Run, a SimulatedRun or a Trace, of 1 to 64 ranks; of more than 16, several share a lane and their cells
    signals  the name that the program gave to `ctx.signals`; needed where the run has several
    step     the state that is shown first, 0 to the number of notifications and waits; the default is the last

    Each rank has a cell for each row and each writer, which counts how often that writer has notified it.
    TypeError or ValueError name the argument that is not accepted.
    """
    return Arrivals(run, signals, step)


class Arrivals(SteppedView):
    """The view that `arrivals` returns. Its one setting is `step`: so many notifications and waits are over.

    steps   the events, notifications and waits, in their order
    rows    how many rows the signals have, as far as the run used them
    """

    def __init__(self, run, signals, step):
        trace = run if isinstance(run, Trace) else getattr(run, "trace", None)
        if not isinstance(trace, Trace):
            raise TypeError(f"arrivals(run={repr(run)}): a Run, a SimulatedRun or a Trace is accepted")
        self.nranks, self._events = trace.nranks, trace.events
        if self.nranks > MOST_RANKS:
            raise ValueError(
                f"arrivals(run): the run has {self.nranks} ranks; 1 to {MOST_RANKS} can be drawn; "
                "kernel_player(run) shows the notifications of more"
            )
        self.groups = groups(self.nranks, MOST_GROUPS)
        stuck = {rank: event for rank, (event, _) in trace.waiting.items()}
        names = [e.name for e in [*self._events, *stuck.values()] if e.kind in (NOTIFY, WAIT)]
        self.signals = _chosen(signals, list(dict.fromkeys(names)))
        self._places = [
            at for at, e in enumerate(self._events) if e.kind in (NOTIFY, WAIT) and e.name == self.signals
        ]
        self.steps = [self._events[at] for at in self._places]
        self._stuck = {rank: e for rank, e in stuck.items() if e.name == self.signals}
        self.rows = 1 + max(e.row for e in [*self.steps, *self._stuck.values()])
        self._theirs = [[] for _ in range(self.nranks)]  # of each rank: the places of its events
        for at, e in enumerate(self._events):
            self._theirs[e.rank].append(at)
        self._every = max(EVERY, len(self.steps) // MOST_KEPT)
        self._kept, self._recent = [*self._keep()], {}
        super().__init__(step=self.last if step is None else step)

    @property
    def last(self):
        return len(self.steps)

    def _check(self, settings):
        return self._checked_step("arrivals", settings)

    def _controls(self, widgets):
        return self._step_controls(widgets)

    # What it shows. A cell is (owner, row, writer)

    def count(self, owner, row, writer):
        """How often `writer` has notified `owner` on `row` by now: int."""
        return self._state[0][owner, row, writer]

    def passed(self, owner, row, writer):
        """The most that a wait of `owner` on that cell has asked for and got by now: int, 0 if there was none."""
        return self._state[1][owner, row, writer]

    def waiting(self):
        """The ranks that cannot go on now: a dict from the rank to (row, writer, at_least)."""
        return dict(self._state[2])

    @property
    def _state(self):
        return self._at(self._settings["step"])

    def _at(self, number):
        """After so many steps: the counts, the waits passed, and who waits for what."""
        if number not in self._recent:
            first = number // self._every
            counts, passed = (kept.copy() for kept in self._kept[first])
            for e in self.steps[first * self._every : number]:
                _make(e, counts, passed)
            waiting, place = {}, self._places[number - 1] if number else -1
            for rank, places in enumerate(self._theirs):
                done = bisect_right(places, place)
                wait = self._next_wait(rank, places[done : done + 1])
                if wait and counts[rank, wait[0], wait[1]] < wait[2]:
                    waiting[rank] = wait
            if len(self._recent) > EVERY:
                self._recent.clear()
            self._recent[number] = counts, passed, waiting
        return self._recent[number]

    def _keep(self):
        """The counts and the waits passed, at every so many steps."""
        counts, passed = Counter(), Counter()
        for number, e in enumerate(self.steps):
            if number % self._every == 0:
                yield counts.copy(), passed.copy()
            _make(e, counts, passed)
        yield counts, passed

    def _next_wait(self, rank, place):
        """(row, writer, at_least) of the wait that the rank comes to next, or None if it does something else."""
        e = self._events[place[0]] if place else self._stuck.get(rank)
        return (e.row, e.peer, e.at_least) if e and e.kind == WAIT and e.name == self.signals else None

    # In words

    def _said(self, number):
        """What step `number`, counted from 1, does."""
        e = self.steps[number - 1]
        if e.kind == NOTIFY:
            count = self._at(number)[0][e.peer, e.row, e.rank]
            return f"rank {e.rank} notifies rank {e.peer} on row {e.row}; its cell there is now {count}"
        count = self._at(number)[0][e.rank, e.row, e.peer]
        asked = f"row {e.row}, at least {e.at_least}"
        return f"rank {e.rank} has waited for rank {e.peer}, {asked}; the cell is {count}"

    def _waits_said(self):
        stuck = self._stuck if self._settings["step"] == self.last else ()
        said = [
            f"rank {rank} waits for rank {writer}, row {row}, at least {at_least}; "
            f"the cell is {self.count(rank, row, writer)}" + ", and there the trace ends" * (rank in stuck)
            for rank, (row, writer, at_least) in self.waiting().items()
        ]
        return said or ["nobody waits"]

    def caption(self):
        number = self._settings["step"]
        return f"State {number} of {self.last}: {self._said(number) if number else 'nobody has notified anybody'}."

    def text(self):
        number = self._settings["step"]
        rows = [("at", "row", *(f"from {head(writers)}" for writers in self.groups))]
        rows += [
            (head(owners), f"{row}", *(self._cell_said(owners, row, writers) for writers in self.groups))
            for owners in self.groups
            for row in range(self.rows)
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        columns = self._columns()
        past = [n for n in columns if n <= number]
        steps = [f"{'>' if n == number else ' '} {n:>3}  {self._said(n)}{_line(self.steps[n - 1])}" for n in past]
        return "\n".join(
            [
                self._title(),
                self.caption(),
                "",
                *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows),
                "",
                *self._waits_said(),
                "",
                f"steps {columns.start} to {number} of {self.last}:" if steps else f"no steps of {self.last}",
                *steps,
                ORDER,
                *self._aggregated(),
            ]
        )

    def _title(self):
        rows = "row 0" if self.rows == 1 else f"rows 0–{self.rows - 1}"
        return f'arrivals on signals "{self.signals}", {rows}, {self.nranks} rank{"s" * (self.nranks > 1)}'

    def _aggregated(self):
        """A sentence that says so, where several ranks share a lane: a list of at most one."""
        each = len(self.groups[0])
        said = f"Aggregated: a lane stands for {each} ranks, a cell adds up the notifications of {each} by {each};"
        return [f"{said} past: so many of its waits are over."] if each > 1 else []

    def _together(self, owners, row, writers):
        """Notifications in these cells, what waits there ask for, what was asked for and got; None without a cell."""
        counts, passed, waits = self._state
        waits = {owner: waits[owner] for owner in owners if owner in waits and waits[owner][0] == row}
        asked = {(owner, row, writer): least for owner, (_, writer, least) in waits.items() if writer in writers}
        cells = [(owner, row, writer) for owner in owners for writer in writers]
        cells = [c for c in cells if c[0] != c[2] or counts[c] or c in asked]  # nobody has to notify itself
        return (sum(counts[c] for c in cells), [*asked.values()], [passed[c] for c in cells]) if cells else None

    def _cell_said(self, owners, row, writers):
        cell = self._together(owners, row, writers)
        if cell is None:
            return "-"
        count, asked, got = cell
        if len(self.groups[0]) > 1:
            past = sum(map(bool, got))
            return f"{count}" + f", {len(asked)} wait" * bool(asked) + f", {past} of {len(got)} past" * bool(past)
        return f"{count}" + (f", waits for {asked[0]}" if asked else f", past its wait for {got[0]}" * bool(got[0]))

    def _columns(self):
        """The numbers of the steps that have a column: a range, the step that is shown among its last."""
        behind = -(-max(self._settings["step"] - MOST_COLUMNS, 0) // FORTH) * FORTH
        first = max(1, min(behind + 1, self.last - MOST_COLUMNS + 1))
        return range(first, min(first + MOST_COLUMNS, self.last + 1))

    def _drawn_rows(self):
        """The signal rows that are drawn: a range around the row of the step."""
        now = self.steps[max(self._settings["step"], 1) - 1].row if self.steps else 0
        first = max(0, min(now - MOST_ROWS // 2, self.rows - MOST_ROWS))
        return range(first, min(first + MOST_ROWS, self.rows))

    # As a picture

    def _paint(self, drawing, static):
        columns, rows, waits = self._columns(), self._drawn_rows(), self._waits_said()
        n, room, notes = len(self.groups), self.WIDTH - 2 * _MARGIN, self._aggregated()
        per_line = n if n <= 4 else 4 if n <= 8 else 2
        panel = 44 + _CELL * len(rows) + _GAP
        lanes, cells = 92, 92 + 24 + _LANE * n + 26
        foot = cells + panel * -(-n // per_line) + 8
        drawing.begin(foot + 18 + 18 * len(notes))
        drawing.label(_MARGIN, 20, fitting([self._title()], room, 14, "bold"), 14, "bold")
        drawing.label(_MARGIN, 44, fitting([self.caption()], room, 10), 10)
        told = "; ".join(waits)
        few = f"{len(waits)} ranks wait: {', '.join(map(str, self.waiting()))}"
        drawing.label(_MARGIN, 66, fitting([told, few], room, 10), 10, colour=palette.QUIET)
        part = "" if len(columns) == self.last else f", {columns.start} to {columns.stop - 1} of {self.last}"
        drawing.label(_MARGIN, lanes, f"what each rank does{part}", 10, "bold")
        before = _LABEL + 8 + 24 * bool(notes)
        wide = min((room - before) / max(len(columns), 1), 54)
        names = names_of(self.groups, (head, listed), lambda name: width_of(name) <= before - 2)
        for at, group in enumerate(self.groups):
            y = lanes + 16 + _LANE * at
            drawing.label(_MARGIN, y + _LANE / 2 - 2, names[at])
            now = range(columns.start, min(self._settings["step"] + 1, columns.stop))
            for done, numbers in groupby(now, key=lambda number: self._done(group, number)):
                first, *more = numbers
                x = _MARGIN + before + (first - columns.start) * wide
                self._box(drawing, group, done, x, y, wide * (1 + len(more)) - 2, _LANE - 4)
        part = "" if len(rows) == self.rows else f", rows {rows.start} to {rows.stop - 1} of 0 to {self.rows - 1}"
        drawing.label(_MARGIN, cells - 12, f"how often each rank has been notified{part}", 10, "bold")
        across = (room + _GAP) / per_line
        for at, owners in enumerate(self.groups):
            x, y = _MARGIN + at % per_line * across, cells + at // per_line * panel
            self._panel(drawing, owners, rows, x, y, across - _GAP)
        self._legend(drawing, foot)
        for note in notes:
            drawing.label(_MARGIN, foot + 20, note, 8, colour=palette.QUIET)

    def _done(self, group, number):
        """`number` if that is a step of these ranks; else the waits in which they are: a tuple of (rank, wait)."""
        if self.steps[number - 1].rank in group:
            return number
        waits = self._at(number)[2]
        return tuple((rank, waits[rank]) for rank in group if rank in waits)

    def _box(self, drawing, group, done, x, y, w, h):
        """One step of these ranks, or the steps of others for which they wait."""
        if not done:
            return
        if isinstance(done, tuple):
            drawing.box(x, y + 4, w, h - 8, palette.PAPER, palette.LINE, 1.0, "--")
            size = 7 if width_of("waits", 7) <= w - 2 else 6
            words = [f"waits for {done[0][1][1]}", "waits", ""] if len(group) == 1 else [f"{len(done)} wait", ""]
            words = fitting(words, w - 2, size)
            drawing.label(x + w / 2, y + h / 2, words, size, colour=palette.QUIET, align="center")
            return
        e, line = self.steps[done - 1], 2.5 if done == self._settings["step"] else 1.0
        face = palette.tint(group[0]) if e.kind == NOTIFY else palette.PAPER
        drawing.box(x, y, w, h, face, palette.INK, line, layer=2)
        asked = f" ≥{e.at_least}" if e.kind == WAIT else ""
        arrow = "→" if e.kind == NOTIFY else "←"
        peer = [f"{arrow} {e.peer}", f"{arrow}{e.peer}"]
        words = [f"row {e.row}{asked}", f"r{e.row}{asked}", f"r{e.row}{asked.strip()}", f"r{e.row}"]
        if len(group) > 1:
            words = [f"{peer[0]}, {words[0]}", f"{peer[1]} {words[-1]}", peer[1]]
            peer = [f"rank {e.rank}", f"{e.rank}"]
        drawing.label(x + w / 2, y + 9, fitting(peer, w, 8, "bold"), 8, "bold", align="center")
        drawing.label(x + w / 2, y + 21, fitting(words, w - 3, 7), 7, align="center")

    def _panel(self, drawing, owners, rows, x, y, wide):
        """The cells of a rank, or of several: a line for each row, a column for each writer."""
        w = (wide - _LABEL) / len(self.groups)
        drawing.label(x, y + 9, head(owners), 9, "bold")
        words = fitting(["notified by rank", "by rank", "by"], wide - 52)
        drawing.label(x + wide, y + 9, words, colour=palette.QUIET, align="right")
        for at, name in enumerate(names_of(self.groups, (listed, begin), lambda name: width_of(name, 8) <= w - 3)):
            drawing.label(x + _LABEL + (at + 0.5) * w, y + 27, name, 8, align="center")
        for line, row in enumerate(rows):
            top = y + 38 + line * _CELL
            drawing.label(x, top + _CELL / 2 - 2, f"row {row}", 8)
            for at, writers in enumerate(self.groups):
                cell = self._together(owners, row, writers)
                self._cell(drawing, cell, writers, x + _LABEL + at * w, top, w - 3, _CELL - 5)

    def _cell(self, drawing, cell, writers, x, y, w, h):
        if cell is None:
            drawing.label(x + w / 2, y + h / 2, "–", 8, colour=palette.QUIET, align="center")
            return
        count, waits, got = cell
        one, passed = len(self.groups[0]) == 1, all(got)
        if count:
            drawing.box(x, y, w, h, palette.tint(writers[0]))
        if count and one:
            edge, hatch = palette.colour(writers[0]), palette.hatch(writers[0])
            drawing.box(x, y + h - 4, w, 4, edge=edge, line=0.8, hatch=hatch)
        frame = "waits" if waits else "passed" if passed else "arrived" if count else "none"
        edge, line, dash = _FRAMES[frame]
        drawing.box(x, y, w, h, edge=edge, line=line, dash=dash, layer=3)
        ink = palette.INK if count else palette.QUIET
        drawing.label(x + w / 2, y + 9, f"{count}", 9, "bold", ink, align="center")
        if one:
            asked = waits[0] if waits else got[0]
            words = [f"{'waits' if waits else 'passed'} ≥{asked}", f"≥{asked}"] if asked else [""]
        else:
            words = [f"{len(waits)} wait", "wait", ""] if waits else [f"{sum(map(bool, got))} past", ""]
            words = words if waits or any(got) else [""]
        drawing.label(x + w / 2, y + 20, fitting(words, w - 4, 7), 7, align="center")

    def _legend(self, drawing, y):
        x = _MARGIN + 1
        for frame, word in _WORDS.items():
            edge, line, dash = _FRAMES[frame]
            drawing.box(x, y - 6, 22, 12, edge=edge, line=line, dash=dash)
            drawing.label(x + 29, y, word, 8, colour=palette.QUIET)
            x += 50 + width_of(word, 8)
        drawing.label(x, y, "→ 1  notifies rank 1      ← 1  has waited for rank 1", 8, colour=palette.QUIET)


# kind of cell: edge, line width, dash
_FRAMES = {
    "none": (palette.LINE, 1.0, ":"),
    "arrived": (palette.INK, 1.0, "-"),
    "passed": (palette.INK, 2.5, "-"),
    "waits": (palette.INK, 2.0, "--"),
}
_WORDS = {
    "none": "not notified yet",
    "arrived": "notified",
    "passed": "its wait is over",
    "waits": "the rank waits here",
}


def _make(e, counts, passed):
    """Count a step, a notification or a wait."""
    if e.kind == NOTIFY:
        counts[e.peer, e.row, e.rank] += 1
    else:
        cell = e.rank, e.row, e.peer
        passed[cell] = max(passed[cell], e.at_least)


def _chosen(signals, names):
    if not names:
        raise ValueError("arrivals(run): the run has no notification and no wait: no signals, or not traced")
    if signals is None and len(names) == 1:
        return names[0]
    if signals not in names:
        wanted = "several signals" if signals is None else f"no signals {signals!r}"
        raise ValueError(f"arrivals(run, signals): the run has {wanted}; choose one of {', '.join(map(repr, names))}")
    return signals


def _line(event):
    return f"  (line {event.line})" if event.line else ""

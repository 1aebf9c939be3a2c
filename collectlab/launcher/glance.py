"""A glance at a run that goes on: what each rank does at this moment, how far it is, and what it printed last.

A rank writes its MPI call and its progress into memory that the supervisor reads, and prints into its log. A glance
asks the supervisor for the one and reads the end of the other; no rank is disturbed by it. `Run.report` says more,
and stops the ranks for a moment to ask each for its Python stack.
"""

import contextvars
import os
import threading
import time
from dataclasses import dataclass, field, replace
from statistics import median

from collectlab.launcher import objects, report, rundir
from collectlab.words import ranks_named

LINES = 5  # of a rank's output, the last ones
LONGEST = 160  # characters of such a line that are kept
QUICK, SLOW = 0.1, 0.5  # seconds between two glances of a Follower: while something changes, and when nothing does
_TAIL = 1 << 12  # bytes at the end of a log that are read
_LONG = 0.2  # seconds in one MPI call after which a rank is said to wait


@dataclass(frozen=True)
class RankGlance:
    """What one rank does.

    state  "queued", "starting", "running", "waiting", "done", "failed" or "stopped"
    doing  the same in words, without times
    for_   whole seconds that it has waited, or 0
    done   how far it is and of how much, as it last told `ctx.progress`; both None if it never did
    total
    lines  a tuple of what it printed last: at most LINES lines, of at most LONGEST characters, without control
           characters; of a line with carriage returns what follows the last one
    """

    state: str
    doing: str
    for_: int = 0
    done: float | None = None
    total: float | None = None
    lines: tuple = ()

    @property
    def words(self):
        """What it does, with the seconds that it has waited."""
        return f"{self.doing}, for {self.for_} s" if self.for_ else self.doing

    @property
    def share(self):
        """How much of its work is done, 0.0 to 1.0; None where that cannot be said."""
        if self.total is None or not 0 < self.total < float("inf") or self.done != self.done:
            return None
        return min(max(self.done / self.total, 0.0), 1.0)

    @property
    def progress(self):
        """How far it is, in words; "" where it has not said."""
        if self.done is None:
            return ""
        return f"{_number(self.done)} of {_number(self.total)}" if self.total else f"{_number(self.done)} done"


@dataclass(frozen=True)
class Row:
    """One line of a picture of the ranks: one rank, or several that do the same."""

    ranks: tuple
    name: str
    words: str
    progress: str
    share: float | None
    lines: tuple
    failed: bool = False


@dataclass(frozen=True)
class Glance:
    """What all ranks of a run do.

    status   the run's; "starting" or "queued" before its program has begun
    seconds  whole seconds since the run was submitted; when it is over, what it took, with fractions
    ranks    a `RankGlance` for each
    note     what the site says about the start, or ""
    over     whether the run has ended
    """

    program: str
    status: str
    seconds: float
    ranks: tuple
    note: str = ""
    over: bool = False
    _report: str = field(default="", repr=False)

    @property
    def headline(self):
        """The run and its state in one line, without times: str."""
        n = len(self.ranks)
        on = f"{self.program} on {n} rank{'s' * (n != 1)}"
        if self.over:
            return self._report.partition("\n")[0]
        said = {"queued": "waits for the run before it", "starting": "is starting"}.get(self.status, "is running")
        return f"{on} {said}" + (f": {self.note}" if self.note else "")

    @property
    def report(self):
        """What is left to say when the run did not end well: the report without its first line, else ""."""
        return self._report.partition("\n")[2]

    def rows(self, most=16):
        """The ranks as a list of `Row`: one for each where there are at most so many, else those that do the same
        together, with the progress of the slowest, the fastest and the median, and the last line of one of them.
        """
        each = [(rank,) for rank in range(len(self.ranks))]
        if len(each) <= most:
            return [self._row(ranks) for ranks in each]
        for kind in (lambda r: (r.state, r.doing), lambda r: r.state):
            alike = {}
            for number, rank in enumerate(self.ranks):
                alike.setdefault(kind(rank), []).append(number)
            if len(alike) <= most:
                break
        return [self._row(tuple(ranks)) for ranks in alike.values()]

    def _row(self, ranks):
        name = ranks_named(ranks)
        mine = [self.ranks[number] for number in ranks]
        first = mine[0]
        if len(mine) == 1:
            return Row(ranks, name, first.words, first.progress, first.share, first.lines, first.state == "failed")
        longest = max(mine, key=lambda rank: rank.for_)
        words = longest.words if len({rank.doing for rank in mine}) == 1 else first.state
        told = sorted((rank for rank in mine if rank.share is not None), key=lambda rank: rank.share)
        progress, share = "", None
        if told:
            share = median(rank.share for rank in told)
            progress = f"{told[0].share:.0%} to {told[-1].share:.0%}, median {share:.0%}"
        spoke = next(((number, r.lines[-1]) for number, r in zip(ranks, mine, strict=True) if r.lines), None)
        lines = (f"rank {spoke[0]}: {spoke[1]}",) if spoke else ()
        return Row(ranks, name, words, progress, share, lines, first.state == "failed")

    def text(self, most=16):
        """The glance as plain text: str. With more than `most` ranks, those that do the same are in one line."""
        head = self.headline if self.over or not self.seconds else f"{self.headline}, for {self.seconds:g} s"
        rows = self.rows(most)
        names, words = (max(len(getattr(row, cell)) for row in rows) for cell in ("name", "words"))
        lines = [head]
        for row in rows:
            tail = "  ".join(filter(None, [row.progress, f"| {row.lines[-1]}" if row.lines else ""]))
            lines.append(f"  {row.name:{names}}  {row.words:{words}}  {tail}".rstrip())
        if len(rows) < len(self.ranks):
            lines.append(f"  ({len(self.ranks)} ranks; those that do the same stand together)")
        return "\n".join([*lines, *filter(None, [self.report])])

    __str__ = text


class Watch:
    """Takes one glance after another at a run. What it keeps is bounded, however much the ranks print."""

    def __init__(self, run):
        self.run = run
        n = run.nranks
        self._sizes, self._lines = [0] * n, [()] * n
        self._told = [RankGlance("starting", "starting")] * n

    def glance(self):
        """What the ranks do now: a `Glance`. It takes no longer than 0.3 s, also when nobody answers."""
        run = self.run
        final = run._state()  # before the logs are read: what was printed last must not be missed
        ranks = run._ranks
        if final:
            status, told = final["status"], [_ended(rank) for rank in final["ranks"]]
        else:
            status, told = self._asked(ranks)
        if told is not None:
            self._told = [_with_progress(now, before) for now, before in zip(told, self._told, strict=True)]
        rows = tuple(replace(rank, lines=self._printed(number)) for number, rank in enumerate(self._told))
        seconds = final["seconds"] if final else int(time.time() - run.spec["created"])
        note = "" if final else getattr(ranks, "note", None) or ""
        said = _last_words(run, final) if final else ""
        return Glance(run.spec["program"], status, seconds, rows, note, final is not None, said)

    def _asked(self, ranks):
        """(status, what each rank does) of a run that goes on; None in the place of the ranks when nobody answers."""
        if ranks is None:  # another process runs it: only the logs tell
            begun = [os.path.exists(rundir.log(self.run.path, rank)) for rank in range(self.run.nranks)]
            said = {True: RankGlance("running", "running"), False: RankGlance("starting", "starting")}
            return ("running" if any(begun) else "starting"), [said[there] for there in begun]
        answer = ranks._glance()
        if answer is None:
            return ("starting" if ranks.places is None else "running"), None
        if answer["id"] == os.path.basename(self.run.path):
            return "running", [self._now(number, rank) for number, rank in enumerate(answer["ranks"])]
        state = "queued" if answer["ready"] else "starting"
        return state, [RankGlance(state, state)] * self.run.nranks

    def _now(self, number, rank):
        """A rank of the present run, from what the supervisor says of it."""
        if rank["end"]:
            return _ended(rank["end"])
        where = rank["where"]
        if where is None:
            return RankGlance("starting", "starting")
        state, doing, seconds = "running", "running", 0
        if where["inside"] and where["seconds"] > _LONG:
            state, doing, seconds = "waiting", f"waiting in {where['call']}", int(where["seconds"])
            if where["peer"] is not None:
                doing += f" with rank {where['peer']}"
        elif wait := self._signal(number):
            state, doing = "waiting", wait
        return RankGlance(state, doing, seconds, *_told(where["progress"]))

    def _signal(self, number):
        """The signal for which a rank has waited long enough to leave word of it, in words; or None."""
        try:
            event, count = objects.read(os.path.join(self.run.path, f"waits.{number}"))
        except (OSError, ValueError):
            return None  # it does not wait, or has just gone on
        asked = f'"{event.name}" row {event.row}, at least {event.at_least}; it is {count}'
        return f"waiting for rank {event.peer} ({asked})"

    def _printed(self, number):
        log = rundir.log(self.run.path, number)
        try:
            size = os.stat(log).st_size
            if size != self._sizes[number]:
                with open(log, "rb") as file:
                    file.seek(max(0, size - _TAIL))
                    self._lines[number] = last_lines(file.read(_TAIL), size <= _TAIL)
                self._sizes[number] = size
        except OSError:
            pass  # it has not begun, or the directory is gone
        return self._lines[number]


class Follower:
    """Calls `show(glance)` whenever a glance at `run` differs from the last one, and once more when the run is over.

    It does so from a thread of its own, at most ten times a second. The thread ends with the run, or soon after
    `stop`.
    """

    def __init__(self, run, show):
        self._watch, self._show = Watch(run), show
        self._stopped, self._showing = threading.Event(), threading.RLock()
        here = contextvars.copy_context()  # a notebook finds the cell in it under which things are shown
        self.thread = threading.Thread(target=here.run, args=(self._follow,), name="collectlab glances", daemon=True)
        self.thread.start()

    def _follow(self):
        last, pause = None, QUICK
        while not self._stopped.is_set():
            glance = self._watch.glance()
            pause = QUICK if glance != last else min(1.5 * pause, SLOW)
            with self._showing:
                if glance != last and not self._stopped.is_set():
                    self._show(glance)
            if glance.over:
                break
            last = glance
            self._stopped.wait(pause)

    def stop(self):
        """Show nothing from now on. Safe also twice, and from within `show`."""
        with self._showing:
            self._stopped.set()


def last_lines(data, whole=True):
    """The last lines of a log, from the bytes at its end; `whole` says that they are all there is.

    A tuple of str, as `RankGlance.lines` has them. A long line is cut at its end; where its beginning is not known,
    or its end has not come yet, at its beginning.
    """
    *ended, open_ = data.decode(errors="replace").split("\n")
    lines = []
    for number, line in enumerate([*ended, open_]):
        shown = next((part for part in reversed(line.split("\r")) if part.strip()), "")
        shown = report.plain(shown).rstrip()
        known = whole or number > 0
        if len(shown) > LONGEST:
            rising = not known or number == len(ended)
            shown = f"…{shown[1 - LONGEST :]}" if rising else f"{shown[: LONGEST - 1]}…"
        elif shown and not known and "\r" not in line:
            shown = f"…{shown[1:]}"
        if shown:
            lines.append(shown)
    return tuple(lines[-LINES:])


def _number(value):
    return f"{value:,.0f}" if value == value // 1 and abs(value) < 1e15 else f"{value:,.4g}"


def _told(progress):
    done, total = progress
    return (done, total) if done or total else (None, None)


def _with_progress(now, before):
    """What a rank said last of its progress stays when it was ended, and when it is done, if that was all of it."""
    kept = now.state in ("failed", "stopped") or (now.state == "done" and before.share == 1.0)
    return replace(now, done=before.done, total=before.total) if kept and now.done is None else now


_STATES = {"returned": "done", "stopped": "stopped", "not started": "stopped"}


def _ended(end):
    """A rank whose part of the run is over, from the supervisor's word."""
    state = _STATES.get(end["state"], "failed")
    where = end.get("where") or {}
    doing = {"returned": "done", "not started": "did not start"}.get(end["state"]) or report.ending(end)
    if state == "stopped" and where.get("inside"):
        doing += f" in {where['call']}"
    return RankGlance(state, doing, 0, *_told(where.get("progress", (0, 0))))


def _last_words(run, final):
    """The report of a run that is over; of one that ended well the first line, for which no trace is read."""
    n = run.nranks
    if final["status"] == "done":
        return f"done after {final['seconds']:.1f} s: {run.spec['program']} on {n} rank{'s' * (n != 1)}"
    return run.report()

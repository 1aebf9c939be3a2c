"""In whatever order a supervisor hears of things: a death is never forgotten, and no run is given to the dead.

Every order of what two ranks, their launcher and the notebook may say is played to a `Supervisor` that has no
processes, up to one death and one stop; then what it has put off is let happen, until it ends the ranks.
"""

import io
import socket

import pytest

from collectlab.launcher import supervisor
from collectlab.launcher.wire import Channel

DEATHS = {
    "exits": {"op": "exited", "code": 3},
    "is killed": {"op": "exited", "code": -9, "frames": []},
    "is lost": None,
    "is orphaned": {"op": "orphaned"},
}
RUNS = ("first", "second")


class Ended(Exception):
    """How the supervisor would have ended the ranks: its status and its cause."""


class Home:
    """In the place of a Host: remembers which runs the ranks were given."""

    def __init__(self):
        self.numbers, self.runs = (0, 1), []

    def tell(self, numbers, **message):
        self.runs += [message["id"]] if message["op"] == "run" else ()

    def release(self, number):
        pass

    def look(self, going):
        return {}


class Launcher:
    """In the place of mpiexec: it has ended."""

    stdout, args = io.BytesIO(), ["mpiexec"]

    def wait(self):
        return 1


class Played(supervisor.Supervisor):
    """A supervisor that has heard `events`, one after another: (what, of which rank or run)."""

    def __init__(self, events):
        self.theirs, ours = map(Channel, socket.socketpair())
        super().__init__(ours)
        self.ranks, self.daemons, self.here = [supervisor.Rank(), supervisor.Rank()], (), Home()
        self.process, self.launcher, self.hints = Launcher(), "mpiexec", ()
        self._watch(self.theirs, self._on_launcher_exit)
        self.answered, self.dead, self.given_before, self.stopped = {0: 0, 1: 0}, None, None, False
        self.for_new_ones = set()  # runs that came when these ranks were about to end, and to no other run
        for event in events:
            self.play(*event)

    def play(self, what, of):
        if what == "submit":
            self.for_new_ones |= {of} if self.dead is not None and not self.run else set()
            self._do_run(id=of, path="/nowhere", sources={}, search=[], trace=True)
        elif what == "is ready":
            place = {"device": "cpu", "identity": "", "local_rank": 0, "cores": 1}
            self.ranks[of].home, self.ranks[of].host = self.here, "here"
            self._take(self.ranks[of], of, {"op": "ready", **place})
        elif what == "returns":
            self.answered[of] += 1
            self._take(self.ranks[of], of, {"op": "returned", "id": self.here.runs[self.answered[of] - 1]})
        elif what == "stop":
            self.stopped = True
            self._do_stop()
        else:
            self.dead, self.given_before = of, len(self.here.runs)
            if what == "launcher exits":
                self._on_launcher_exit(self.theirs)
            else:
                self._on_guard(self.ranks[of], of, DEATHS[what])

    def next_events(self, submitted):
        """What can come now."""
        yield from [("submit", run) for run in RUNS[submitted : submitted + 1]]
        for number, rank in enumerate(self.ranks):
            if number != self.dead:
                yield from [("is ready", number)] if rank.place is None else ()
                yield from [("returns", number)] if len(self.here.runs) > self.answered[number] else ()
        if not self.stopped:
            yield "stop", None
        if self.dead is None:
            yield from [("launcher exits", "mpiexec"), *((death, 1) for death in DEATHS)]

    def _write(self, run, value):
        return True

    def _end(self, status, cause):
        raise Ended(status, cause["kind"])


@pytest.fixture
def clock(monkeypatch):
    """The supervisor's clock, which stands still: [seconds]."""
    now = [1000.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now[0])
    return now


def ends_within(played, clock):
    """Let what it has put off happen; the seconds until it ends the ranks."""
    began = clock[0]
    while played.deadline:
        (clock[0], at_last), played.deadline = played.deadline, None
        try:
            at_last()
        except Ended:
            return clock[0] - began
    raise AssertionError("it waits for nothing any more, and has not ended the ranks")


def orders(events=()):
    """Each order, before it and all that begin with it; those that have ended the ranks begin no other."""
    try:
        played = Played(events)
    except Ended as ended:
        yield events, None, ended.args
        return
    yield events, played, None
    for event in list(played.next_events(sum(what == "submit" for what, _ in events))):
        yield from orders((*events, event))


def test_no_order_makes_it_forget_a_death_or_a_stop(clock):
    seen = set()
    for events, played, ended in orders():
        if played is None:
            why = "stopped" if any(what == "stop" for what, _ in events) else "rank failed"
            assert ended == ("interrupted" if why == "stopped" else "failed", why), events
        elif played.stopped:
            assert ends_within(played, clock) <= supervisor.FAREWELL, events
        elif played.dead is not None:
            assert len(played.here.runs) == played.given_before, f"a run was given to the dead: {events}"
            assert not played.for_new_ones & {run["id"] for run in played.queue}, events
            assert ends_within(played, clock) <= supervisor.SETTLE_MOST + supervisor.SETTLE, events
        else:
            assert played.deadline is None, events
        seen |= {what for what, _ in events}
    assert seen == {"submit", "is ready", "returns", "stop", "launcher exits", *DEATHS}

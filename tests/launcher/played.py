"""A supervisor without processes, to which all that it may hear is played, one thing after another."""

import io
import signal

from collectlab.launcher import supervisor

ENDS = {  # how a rank may end by itself: what its guard says
    "exits": {"op": "exited", "code": 3},
    "is killed": {"op": "exited", "code": -signal.SIGKILL, "frames": []},
    "is terminated": {"op": "exited", "code": -signal.SIGTERM, "frames": []},
}
SECOND = (tuple(ENDS), ("is killed", "exits"))  # of these, what is played of either rank after a death
ANSWERS = {
    "returns": {"op": "returned"},
    "raises": {"op": "raised", "error": "Error", "message": "", "frames": []},
}
OF_ALL = {  # what else may end them, and what is said then
    "is orphaned": "launcher exit", "launcher exits": "launcher exit", "launcher is killed": "launcher exit",
    "keeper is killed": "lost host",
}  # fmt: skip
READY = (("signs in", 0), ("signs in", 1), ("is ready", 0), ("is ready", 1))
DEATHS = {*ENDS, *OF_ALL, "raises", "loses its guard"}
TIMEOUTS = {"first": None, "second": 5.0}  # of the runs


class Ended(Exception):
    """How `played` has ended the ranks: what it tells of them, and of its runs."""

    def __init__(self, played, value, runs):
        self.played, self.value, self.runs = played, value, runs
        super().__init__(value["cause"])


class Home:
    """In the place of a Host, and of a Kept: remembers what the ranks there were told."""

    channel = ended = None

    def __init__(self, name, numbers):
        self.name, self.numbers, self.told, self.released = name, numbers, [], []

    def tell(self, numbers, **message):
        self.told += [message["op"] if message["op"] != "run" else message["id"]]

    def release(self, number):
        self.released.append(number)

    def look(self, going):
        where = {"inside": True}
        return {number: {"where": where, "frames": []} for number in self.numbers}

    def has_ended(self, end):
        return True

    def read(self):
        return None

    def early(self):
        return []

    def ask(self, going):
        pass

    hang_up = close = early


class Launcher:
    """In the place of mpiexec: it has ended with that code."""

    args, pid, code = ["mpiexec"], 0, None

    def __init__(self):
        self.stdout = io.BytesIO()

    def wait(self):
        return self.code


class Played(supervisor.Supervisor):
    """A supervisor that has heard `events`, one after another: (what, of which rank or run)."""

    def __init__(self, hosts=1, runs=(), deaths=0, events=()):
        super().__init__(self)  # its own notebook
        self.selector.close()
        self.selector = self
        self.ranks, self.daemons, self.names = [supervisor.Rank(), supervisor.Rank()], (), {}
        self.tag, self.leaves, self.cancel, self.cure, self.hints = "", (), (), "", {}
        self.process, self.launcher, self.patience, self.started = Launcher(), "mpiexec", 30.0, 0.0
        self.here = Home("here", [0, 1][: 3 - hosts])
        self.kept = [Home("there", [])] if hosts == 2 else []
        for there in self.kept:
            there.channel = there
        self.homes = [self.here, (self.here, *self.kept)[-1]]
        self.runs, self.most_deaths = runs, deaths
        self.since = supervisor.time.monotonic()
        self.submitted, self.answered, self.done, self.crossed = [], [0, 0], [], []
        self.mute, self.deaths, self.words = set(), [], []  # ranks whose guard is dead; who died, and what was wanted
        self.given_before = self.looks = None
        self._await_ranks()
        for event in events:
            self.play(*event)

    def _watch(self, source, react):
        pass

    def unregister(self, *_):
        pass

    modify = unregister

    def send(self, op, **message):
        self.done += [message["id"]] if op == "done" else []
        self.looks = message["ranks"] if op == "looks" else None

    def _write(self, run, value):
        return True

    def _take_leave(self, value, ended):
        raise Ended(self, value, ended)

    def state(self):
        """What decides how it goes on from here."""
        now, known = supervisor.time.monotonic(), dict(vars(self))
        for name in ("selector", "notebook", "process", "homes", "output", "logs_due", "looks"):
            del known[name]
        known["ranks"] = [(vars(rank) | {"home": rank.home and rank.home.name}) for rank in self.ranks]
        known["here"], known["kept"] = vars(self.here), [there.told for there in self.kept]
        known["deadline"] = self.deadline and (self.deadline[0] - now, self.deadline[1].__name__)
        known["failed"] = self.failed - now if hasattr(self, "failed") else None
        return repr(sorted(known.items()))

    def play(self, what, of):
        if what in DEATHS:
            self.deaths.append((what, of))
            if self.given_before is None:
                self.given_before = self.given()
        if what == "submit":
            self.submitted.append(of)
            going = self.run
            self._do_run(id=of, path="/nowhere", sources={}, search=[], trace=True, timeout=TIMEOUTS[of])
            taken = self.run != going or of in [run["id"] for run in self.queue]
            self.crossed += [] if taken else [of]
            for_others = bool(self.deaths and not going and not self.leaving)
            assert taken != for_others, "a run goes to other ranks where these are about to end and run nothing"
        elif what == "signs in":
            self._heard(self.homes[of], of, "rank", {"op": "rank", "host": "here"})
        elif what == "is ready":
            place = {"device": "cpu", "identity": "", "local_rank": 0, "cores": 1}
            self._heard(self.homes[of], of, "rank", {"op": "ready", **place})
        elif what == "is unfit":
            self._heard(self.homes[of], of, "rank", {"op": "unfit", "kind": "no GPU", "rank": of, "why": ""})
            assert self.deaths, "ranks that cannot run anything are kept"
        elif what in ("returns", "raises"):
            run = self.given()[self.answered[of]]
            self.answered[of] += 1
            self._heard(self.homes[of], of, "rank", {**ANSWERS[what], "id": run})
        elif what in ENDS:
            self._heard(self.homes[of], of, "guard", dict(ENDS[what]))
        elif what == "is orphaned":
            self._heard(self.homes[of], of, "guard", {"op": "orphaned"})
        elif what == "loses its guard":
            self.mute.add(of)
            self._heard(self.homes[of], of, "guard", None)
        elif what in ("launcher exits", "launcher is killed"):
            of_guard = 128 + signal.SIGKILL if "loses its guard" in dict(self.deaths) else 255
            self.process.code = of_guard if what == "launcher exits" else -signal.SIGKILL
            self._on_launcher_exit(None)
        elif what == "keeper is killed":
            self.mute.add(1)
            self._on_kept(self.kept[0])
        elif what == "time passes":
            self.let_pass()
        else:
            self.words.append(what)
            supervisor.time.now += 0.01 * self.leaving
            idle, leaves_at = self._ready() and not self.run and not self.queue, self.leaving and self.deadline
            getattr(self, f"_do_{what}")()
            assert idle, "what starts or runs goes on"
            assert not leaves_at or self.deadline == leaves_at, "a second word puts the end off"

    def given(self):
        return [told for told in self.here.told if told in TIMEOUTS]

    def let_pass(self):
        (supervisor.time.now, at_last), self.deadline = self.deadline, None
        at_last()

    def next_events(self):
        """What can come now."""
        yield from [("submit", run) for run in self.runs[len(self.submitted) :][:1]]
        ended = {of for what, of in self.deaths if what in ENDS}
        for number, rank in enumerate(self.ranks):
            if number not in ended | self.mute:
                if not rank.signed_in:
                    yield "signs in", number
                elif rank.place is None:
                    yield "is ready", number
                    yield from [("is unfit", 1)] if number == 1 else ()
                elif len(self.given()) > self.answered[number]:
                    yield "returns", number
                    yield from [("raises", 1)] if number == 1 and len(self.deaths) < self.most_deaths else ()
            if len(self.deaths) < self.most_deaths and number not in self.mute and (number or self.deaths):
                yield from [("loses its guard", number)]
                yield from [("is orphaned", number)] if ("is orphaned", number) not in self.deaths else ()
                possible = number not in ended and rank.signed_in
                yield from [(end, number) for end in ENDS if possible and (not self.deaths or end in SECOND[number])]
        if len(self.deaths) < self.most_deaths and self.process.code is None:
            yield from [("launcher exits", None), ("launcher is killed", None)]
        if len(self.deaths) < self.most_deaths and self.kept:
            yield "keeper is killed", 1
        if not self.words or (self.words == ["stop"] and not self.deaths):
            yield from [("stop", None), ("interrupt", None)]
        if self.deadline:
            yield "time passes", None


class Clock:
    """The supervisor's clock, which stands still."""

    now = 1000.0

    def monotonic(self):
        return self.now

    def time(self):
        return 0.0


def until_it_ends(played):
    """Let what it has put off happen; (how it ended the ranks, after how many seconds)."""
    began = supervisor.time.now
    while played.deadline:
        try:
            played.let_pass()
        except Ended as ended:
            return ended, supervisor.time.now - began
    return None, 0.0

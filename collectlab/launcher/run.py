"""A Run: one program on all ranks, what it returned, what it printed, and how it ended."""

import base64
import os
import pickle
import sys
import threading
import time
import weakref
from dataclasses import replace

from collectlab.launcher import glance, objects, report, rundir, terminal
from collectlab.layout import Place, RankMap
from collectlab.trace import Clock, Trace, deadlock

beside = terminal.beside  # beside(run) shows it while a wait lasts, until .close(), or returns None; see notebook.py
_CALM = 1.0  # seconds of a wait before that
_open = weakref.WeakValueDictionary()  # the Runs that are in use in this process


class Run:
    """What one program left behind. Made by `run`, `Ranks.submit` and `attach`.

    A Run reads its directory; `attach(run.path)` opens it again, in any process of the same user.
    """

    def __init__(self, path, spec, ranks=None):
        self.path, self.spec = path, spec
        self._ranks = ranks  # the Ranks that run it, as long as it is not over
        self._final = None
        self._results = self._trace = None
        self._told = False
        _open[id(self)] = self

    @staticmethod
    def paths_in_use():
        """The directories that some Run of this process reads."""
        return {run.path for run in map(_call, _open.valuerefs()) if run is not None}

    def _end(self, final):
        self._final, self._ranks = final, None

    def _state(self):
        """The final status, or None while the run goes on."""
        if self._final is None and self._ranks is None:  # another process runs it, or did
            going = rundir.is_alive(self.path, self.spec)  # asked first: what it writes last must not be missed
            self._final = rundir.status(self.path, self.nranks)
            if self._final is None and not going:
                self._final = ended_by({"kind": "no word"}, self.nranks)
        return self._final

    @property
    def status(self):
        """ "running", "done", "failed", "timeout" or "interrupted"."""
        final = self._state()
        return final["status"] if final else "running"

    @property
    def ok(self):
        """Whether every rank returned."""
        return self.status == "done"

    @property
    def nranks(self):
        return self.spec["nranks"]

    def wait(self, timeout=60.0):
        """Wait until the run is over, at most `timeout` seconds (None: as long as it takes); returns the run.

        A run that is not over by then goes on: its status is still "running", `report()` says who waits for
        whom, and `Ranks.interrupt` ends it. Interrupting the wait (Ctrl-C, the stop button) ends the run.
        """
        if timeout is not None and not (isinstance(timeout, (int, float)) and 0 <= timeout <= threading.TIMEOUT_MAX):
            raise ValueError(f"wait(timeout={timeout!r}): seconds are accepted, 0 or more, or None")
        end = None if timeout is None else time.monotonic() + timeout
        ranks = self._ranks
        try:
            if ranks is not None:
                self._wait_beside(ranks, timeout)
            else:
                while self._state() is None and (end is None or time.monotonic() < end):
                    time.sleep(0.02)  # another process runs it, which sends this one nothing
        except KeyboardInterrupt as error:
            try:
                in_one_line(error, f"{self.spec['program']} was interrupted; its report stands above")
                if ranks is not None:
                    ranks.interrupt()
            finally:
                if ranks is not None and self._final is None:  # interrupted once more
                    ranks._hang_up()
            self._tell()
            raise
        self._tell()
        return self

    def _wait_beside(self, ranks, timeout):
        """Wait; after a while, what the ranks do is shown where there is somebody to see it."""
        end, first = (None, _CALM) if timeout is None else (time.monotonic() + timeout, min(timeout, _CALM))
        if ranks._wait_for(lambda: self._final is not None, first):
            return
        shown = beside(self) if threading.current_thread() is threading.main_thread() else None
        try:
            ranks._wait_for(lambda: self._final is not None, end and max(0, end - time.monotonic()))
        finally:
            if shown is not None:
                shown.close()

    def glance(self):
        """What each rank does now: a `Glance`, whose text `print` shows. It disturbs no rank.

        Its `ranks` have, for each, its state, how far it is by `ctx.progress`, and the last lines that it printed.
        """
        return glance.Watch(self).glance()

    def _tell(self):
        if self._final is not None and self._final["status"] != "done" and not self._told:
            self._told = True
            print(self.report(), file=sys.stderr)

    @property
    def results(self):
        """What each rank's program returned, in rank order; None for a rank that did not return.

        Arrays, also inside tuples, lists and dicts, are NumPy arrays mapped from the run's directory: nothing
        is read before it is used. Writing into them changes only this copy.
        """
        final = self._state()
        if self._results is not None:
            return self._results
        found = [self._result(rank) for rank in range(self.nranks)]
        if final:
            self._results = found
        return found

    def _result(self, rank):
        ends = self._final["ranks"] if self._final else None
        if ends and "result" in ends[rank]:
            return pickle.loads(base64.b64decode(ends[rank]["result"]))
        path = os.path.join(self.path, f"result.{rank}")
        if ends and ends[rank]["state"] != "returned":
            return None
        try:
            return objects.read(path)
        except FileNotFoundError:
            if ends:
                raise FileNotFoundError(
                    f"{self!r}: the result of rank {rank} is no longer in {self.path}"
                ) from None
            return None
        except ValueError:
            if ends:
                raise
            return None

    @property
    def trace(self):
        """The Trace of what the program did with windows and signals; empty when it used none."""
        self._state()
        if self._trace is None:
            trace = Trace.merged([self._noted("events", rank) or [] for rank in range(self.nranks)])
            trace.noted = self.spec.get("trace", True)
            for rank in range(self.nranks):
                if waiting := self._noted("waits", rank):
                    trace.waiting[rank] = waiting
                if clock := self._noted("clock", rank):
                    trace.clocks[rank] = Clock(*clock)
            if self._final is None:
                return trace
            self._trace = trace
        return self._trace

    def _noted(self, name, rank):
        """What a rank has written into its file of that name; None where there is none, or not all of one."""
        try:
            return objects.read(os.path.join(self.path, f"{name}.{rank}"))
        except FileNotFoundError:
            return None
        except ValueError:
            if self.ok:
                raise
            return None  # it was ended as it wrote

    @property
    def traffic(self):
        """int64 (nranks, nranks): bytes that row rank read from column rank's windows."""
        return self.trace.traffic()

    @property
    def rank_map(self):
        """rank -> host, device, local rank; what was asked for until the ranks have said where they are."""
        final = self._state()
        places = final["places"] if final else self._ranks.places if self._ranks else None
        if not places or None in places:
            return RankMap.local(self.nranks, self.spec["names"])
        return RankMap(_told_apart([Place(**place) for place in places]))

    def log(self, rank):
        """What `rank` printed, on both streams, up to now; where it was ended for printing too much, the two ends."""
        if isinstance(rank, bool) or not hasattr(rank, "__index__") or not 0 <= rank < self.nranks:
            raise IndexError(f"log({rank!r}): {self!r} has ranks 0 to {self.nranks - 1}")
        try:
            with open(rundir.log(self.path, rank), errors="replace", newline="") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    def report(self):
        """What happened, and to whom, as text."""
        status = self._state() or self._ranks_look()
        trace, ends = self.trace, self.ends
        waits = deadlock.explain(trace, ends) if trace.waiting else ()
        told = {*trace.waiting, *(rank for rank, end in ends.items() if end == "is over")} if waits else ()
        return report.text({**self.spec, "path": self.path}, status, waits, told)

    @property
    def ends(self):
        """rank -> how its program ended, in words, of those that used windows or signals and do not wait."""
        ranks = self._final["ranks"] if self._final else [{"state": "running"}] * self.nranks
        raised = {rank: f"raised {end['error']}" for rank, end in enumerate(ranks) if end["state"] == "raised"}
        noted = [rank for rank in range(self.nranks) if os.path.exists(os.path.join(self.path, f"events.{rank}"))]
        over = {rank: "is over" for rank in noted if rank not in self.trace.waiting}
        return over | raised

    def _ranks_look(self):
        looks = self._ranks._look(self) if self._ranks else None
        if self._final is not None:
            return self._final
        unseen = "not started" if self._ranks else "unseen"  # another Run can ask them
        looks = looks or [{"state": unseen}] * self.nranks
        note = self._ranks and self._ranks.note
        return {"status": "running", "note": note, "seconds": time.time() - self.spec["created"], "ranks": looks}

    def __repr__(self):
        n = self.nranks
        return f"Run({self.spec['program']} on {n} rank{'s' * (n > 1)}: {self.status})"


def _told_apart(places):
    """The places; GPUs of a host that their ranks call alike, as each was let to see no other, by their identity."""
    alike = {}
    for place in places:
        alike.setdefault((place.host, place.device), set()).add(place.identity)

    def named(place):
        if not place.device.startswith("cuda:") or len(alike[place.host, place.device]) == 1:
            return place
        return replace(place, device=f"{place.device} at {place.identity}")

    return [named(place) for place in places]


def in_one_line(error, said):
    """Let a notebook show an interrupt as one line: where this package waited for the ranks tells a learner nothing.

    IPython asks an exception for its own rendering; elsewhere the traceback is the usual one.
    """
    if isinstance(error, KeyboardInterrupt):
        error._render_traceback_ = lambda: [f"KeyboardInterrupt: {said}"]


def ended_by(cause, nranks, state="stopped"):
    """The status of a run whose supervisor was killed before it could write one, or never heard of it."""
    return {
        "version": rundir.VERSION,
        "status": "failed",
        "cause": cause,
        "seconds": 0.0,
        "places": [None] * nranks,
        "ranks": [{"state": state} for _ in range(nranks)],
    }


def _call(reference):
    return reference()


def attach(path):
    """The Run whose directory is `path`, finished or not.

    Raises FileNotFoundError when there is no such directory, PermissionError when it is another user's, and
    ValueError when it is not the directory of a run, only half there, or of a newer collectlab.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"attach(path={path!r}): the path of a run directory is accepted, as run.path gives it"
        )
    path = os.path.abspath(path)
    run = Run(path, rundir.spec(path))
    run._state()
    return run

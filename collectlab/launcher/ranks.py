"""The notebook's side: start ranks, give them programs, stop them."""

import linecache
import math
import operator
import os
import secrets
import shutil
import sys
import threading
import time
import weakref

from collectlab.fabric.per_rank import PerRank, check_per_rank
from collectlab.launcher import jobs, link, objects, rundir, sites, sweep
from collectlab.launcher.run import Run, ended_by, in_one_line
from collectlab.layout import RankMap
from collectlab.words import program_named

MOST_RANKS = 256
_BOUND = 2.5  # seconds after which interrupt and stop kill the supervisor, should it not answer
_BEGINNING = 10.0  # seconds that a supervisor is given, on a busy machine, before it waits for ranks
_WRITING = 1.0  # seconds that a file system is given to take up how runs ended

_mine = set()  # directories of the runs of this process
_all = weakref.WeakSet()  # the Ranks of this process


def run(program, *args, ranks=4, device="auto", site=None, timeout=60, rank_map=None, trace=True):
    """Run `program(ctx, *args)` on `ranks` fresh ranks and wait for it; returns the Run.

    `timeout` seconds after its start the run is ended with status "timeout". A run that fails prints its
    report and is returned like any other; bad arguments raise before anything is started. One in which a rank
    prints more than 256 MiB is ended (the variable COLLECTLAB_LOG_MIB names another bound). With trace=False nothing
    is noted of what the program does with windows and signals, and the run's trace is empty.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise ValueError(f"run(timeout={timeout!r}): seconds are accepted, more than 0")
    gang = Ranks(ranks, device, site, rank_map)
    found = gang._prepare(program, args, timeout, trace)
    try:
        gang._send_run(found)
        found.wait(None)
    finally:
        gang.stop()
    return found


def launch(ranks, device="auto", site=None, rank_map=None):
    """Start `ranks` ranks that stay, and return them when they are ready; use it in a `with` statement."""
    gang = Ranks(ranks, device, site, rank_map)
    gang.start()
    return gang


class Ranks:
    """Warm ranks in the background. They wait without using the processor and run one program after another.

    A run that fails, times out or is interrupted takes the ranks with it; the next `submit` starts new ones.
    """

    def __init__(self, ranks, device="auto", site=None, rank_map=None):
        if objects.opening_program:  # each of them would import it again, and start more
            raise RuntimeError(
                "ranks are started by the module that this rank imports to find its program; put what starts them "
                'under `if __name__ == "__main__":` there'
            )
        self.nranks = _nranks(ranks)
        if device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device={device!r} is unknown; accepted: 'auto', 'cpu' or 'cuda'")
        self.device = device
        self.site = sites.find(site)
        self.names = _device_names(rank_map, self.nranks)
        self._leaves = self._cancel = ()
        rank_program = ["-P", "-c", link.START.format(root=link.ROOT, module="worker")]
        self._command = sites.command(self.site, self.nranks, rank_program)
        self._address = sites.address(self.site)
        self.places = None
        self.note = None  # what there is to say about a start that takes long: str
        self._bells = []  # one for each wait for a change
        self._lock = threading.RLock()  # guards what follows
        self._link = self._last = self._looks = None
        self._asked = self._glances = None  # the link on which a glance is under way; the last answer
        self._calm = 0  # how often the supervisor has said that there was nothing to interrupt
        self._runs = {}
        _all.add(self)

    # starting and stopping

    def start(self):
        """Start the ranks, if they are not running, and wait until they are ready."""
        try:
            there, told = self._ensure(), None
            while self.places is None and self._link is there:
                if self.note != told:
                    told = self.note
                    sys.stderr.write(f"launch({self.nranks}): {told or 'about to start'}\n")
                self._wait_for(lambda: self.places or self._link is not there or self.note != told, None)  # noqa: B023
        except BaseException as error:
            in_one_line(error, "the start of the ranks was interrupted")
            self.stop()
            raise
        if self.places is None:
            raise RuntimeError(f"launch({self.nranks}): {self._why()}")
        return self

    def _ensure(self):
        """The link to a supervisor that has been told to start the ranks; it answers later."""
        with self._lock:
            if self._link is None:
                self.places = new = None
                tag = secrets.token_hex(8)
                key = os.path.join(rundir.home(), f"{tag}.key") if self._address else None
                job = f"collectlab-{secrets.token_hex(4)}"
                self._cancel = jobs.filled(self.site.cancel, job)
                queue = {
                    "job": job, "ask": jobs.filled(self.site.queue, job), "cancel": self._cancel,
                    "hopeless": self.site.hopeless,
                }  # fmt: skip
                new_ones = (path for path in self.site.leaves if not os.path.exists(path))  # else it is another's too
                self._leaves = [*new_ones, *([key] if key else ())]
                site = {
                    "rank": self.site.rank.split(), "local_rank": self.site.local_rank.split(),
                    "host": self.site.host, "daemons": self.site.daemons, "leaves": self._leaves,
                    "launcher": os.path.basename(self._command[0]),
                }  # fmt: skip
                environment = sites.environment(self.site, {sweep.TAG: tag})
                patience = _number("COLLECTLAB_START_SECONDS", 30, "seconds")
                most = _number("COLLECTLAB_LOG_MIB", 256, "MiB")
                try:
                    new = link.Link(environment)
                    new.expect(None if self.site.queue else _BEGINNING + patience)
                    new.tell(
                        op="start", command=jobs.filled(self._command, job), nranks=self.nranks,
                        path=_search_path(self.site), site=site,
                        cure=self.site.cure, device=self.device, names=self.names, tag=tag, patience=patience,
                        most=most * (1 << 20), notebook=os.getpid(), queue=queue, hints=self.site.hints,
                        other_hosts={"address": self._address, "key": key} if key else None,
                    )  # fmt: skip
                    weakref.finalize(self, new.cut).atexit = False
                    threading.Thread(target=link.listen, args=(new, weakref.ref(self)), daemon=True).start()
                    self._link = new
                except BaseException:  # interrupted: what has been started ends, and nobody waits for it
                    if new is not None:
                        new.cut()
                    raise
            return self._link

    def interrupt(self):
        """End what is running, and the ranks with it. Safe at any moment, also twice."""
        self._close("interrupt")

    def stop(self):
        """Let the ranks leave; end what is still running. Safe at any moment, also twice."""
        self._close("stop")

    def _close(self, op):
        there, calm = self._link, self._calm
        if there is None:
            return
        try:
            there.unwanted.update(self._runs)
            there.tell(op=op)
            if not self._wait_for(lambda: self._link is not there or self._calm > calm, _BOUND):
                there.give_up()
                self._wait_for(lambda: self._link is not there, None)
        except BaseException as error:
            there.cut()  # interrupted again: the supervisor, alone, ends the ranks
            in_one_line(error, "interrupted while the ranks were being stopped; they end all the same")
            raise

    def _hang_up(self):
        """Let the supervisor end the ranks, without waiting for it."""
        if (there := self._link) is not None:
            there.cut()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    @property
    def status(self):
        """ "stopped", "starting", "running" or "ready"."""
        if self._link is None:
            return "stopped"
        return "starting" if self.places is None else "running" if self._runs else "ready"

    def __repr__(self):
        return f"Ranks({self.nranks}, device={self.device!r}: {self.status})"

    # programs

    def submit(self, program, *args, trace=True):
        """Give the ranks `program(ctx, *args)`; returns its Run at once. Programs run one after another.

        With trace=False nothing is noted of what it does with windows and signals.
        """
        found = self._prepare(program, args, None, trace)
        self._send_run(found)
        return found

    def _prepare(self, program, args, timeout, trace):
        """The run directory with everything in it that the ranks need."""
        call = "run" if timeout else "submit"
        if not callable(program):
            raise TypeError(
                f"{call}(program={program!r}): a function is accepted, to be called as program(ctx, *args)"
            )
        name = program_named(program)
        places = [i for i, arg in enumerate(args) if isinstance(arg, PerRank)]
        check_per_rank(f"{call}({name}, ...)", args, self.nranks)
        path = rundir.create(name)
        try:
            common = [None if i in places else arg for i, arg in enumerate(args)]
            files = _write(
                os.path.join(path, "program"), (program, common, places), call, name, program, args
            )
            for rank in range(self.nranks) if places else ():
                mine = [args[i].values[rank] for i in places]
                _write(os.path.join(path, f"mine.{rank}"), mine, call, name, None, mine)
            spec = {
                "version": rundir.VERSION, "program": name, "nranks": self.nranks, "device": self.device,
                "site": self.site.name, "names": self.names, "timeout": timeout, "created": time.time(),
                "sources": _sources(files), "trace": bool(trace), "session": os.environ.get(rundir.SESSION),
                "host": os.uname().nodename,
            }  # fmt: skip
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        _mine.add(path)
        if len(_mine) % 50 == 1:
            rundir.prune(Run.paths_in_use(), _mine)
        return Run(path, spec, self)

    def _send_run(self, found):
        key = os.path.basename(found.path)
        try:
            with self._lock:
                there = self._ensure()
                found.spec["tag"] = there.tag
                rundir.write_json(os.path.join(found.path, "spec.json"), found.spec)
                self._runs[key] = found
            spec = found.spec
            there.tell(
                op="run", id=key, path=found.path, timeout=spec["timeout"], sources=spec["sources"],
                search=_search_path(self.site), trace=spec["trace"],
            )  # fmt: skip
        except BaseException:
            self._runs.pop(key, None)
            shutil.rmtree(found.path, ignore_errors=True)
            raise

    # the supervisor

    def _wait_for(self, happened, timeout):
        """Wait for the listener to make `happened` true; whether it did within `timeout` seconds.

        An interrupt may come at any moment: a threading.Condition would then keep its lock, or lose it.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            bell = threading.Lock()
            bell.acquire()
            with self._lock:
                if happened():
                    return True
                self._bells.append(bell)
            if not bell.acquire(timeout=-1 if end is None else max(0.0, end - time.monotonic())):
                with self._lock:
                    self._bells = [other for other in self._bells if other is not bell]
                    return happened()

    def _ring(self):
        """Let those who wait look again."""
        with self._lock:
            while self._bells:
                self._bells.pop().release()

    # what the listener does

    def _take(self, there, message):
        op = message.pop("op")
        with self._lock:
            if self._link is not there:
                return  # a start that was interrupted
            if op == "ready":
                self.places, self.note = message["places"], None
                there.expect(next((found.spec["timeout"] for found in self._runs.values()), None))
            elif op == "done":
                found = self._runs.pop(message.pop("id"), None)
                if found is not None:
                    found._end(message)
            elif op == "looks":
                self._looks = message
            elif op == "glances":
                self._asked, self._glances = None, message
            elif op == "launcher":  # others may have killed it before this process comes to look for what it leaves
                self._leaves = [path.replace("{pid}", str(message["pid"])) for path in self._leaves]
            elif op == "note":
                self.note = message["text"]
            elif op == "calm":
                self._calm += 1
            self._ring()

    def _bury(self, there, last):
        """The supervisor has gone, with the message `last` or, when it was killed, without."""
        with self._lock:
            if self._link is not there:
                if last is None:
                    sweep.kill(there.tag, since=there.started)
                return
            crossed, killed = {}, last is None
            try:
                if killed:
                    patience = 3.0 if there.has_ended() else 1.0  # one that the kernel holds back is among them
                    left = sweep.kill(there.tag, within=patience, since=there.started, leaves=self._leaves)
                    cause = {"kind": "supervisor gone", "left": left, "output": there.complaints()}
                    cause["mute"] = there.is_mute
                    cause["kept"] = jobs.withdraw(self._cancel)
                    last = {"value": ended_by(cause, self.nranks), "runs": {}}
                self._last = last["value"]
                all_end = not self.places or (killed and self._may_have_begun(there))
                ending = self._runs if all_end else there.unwanted
                unheard = [key for key in self._runs if key in ending and key not in last["runs"]]
                ends = last["runs"] | _written([self._runs[key].path for key in unheard], self._last)
                for key, found in self._runs.items():
                    if key in ends:
                        found._end(ends[key])
                    else:
                        crossed[key] = found  # its message crossed the last one: nobody has begun it
            except OSError as error:  # such as one that has no descriptor left
                self._last = ended_by({"kind": "supervisor gone", "left": [], "output": str(error)}, self.nranks)
                for found in self._runs.values():
                    found._end(self._last)
            finally:
                self._runs.clear()
                self._link = self.places = self.note = None
                for found in crossed.values():
                    try:
                        self._send_run(found)
                    except Exception:
                        found._end(ended_by({"kind": "not started"}, self.nranks, "not started"))
                self._ring()

    def _may_have_begun(self, there):
        """Whether a rank has begun a run, or may have, before the supervisor was killed, and all ranks with it."""
        if self._address or there.is_mute or there.complaints():  # of other hosts, who knows; a fault may come again
            return True
        logs = (rundir.log(found.path, rank) for found in self._runs.values() for rank in range(self.nranks))
        return any(map(os.path.exists, logs))

    def _look(self, found):
        """Where the ranks of a run are that goes on, or None."""
        with self._lock:
            self._looks, there = None, self._link
            if there is None:
                return None
            there.tell(op="look", id=os.path.basename(found.path))
        self._wait_for(lambda: self._looks is not None or found._final is not None, 2.0)
        looks = self._looks
        return looks and looks["ranks"]

    def _glance(self):
        """What the supervisor says of the present run, or None where it does not answer in 0.3 s."""
        with self._lock:
            there = self._link
            if there is None:
                return None
            if self._asked is not there:  # one that is slow is not asked again before it has answered
                there.tell(op="glance")
                self._asked, self._glances = there, None
        self._wait_for(lambda: self._asked is not there or self._link is not there, 0.3)
        with self._lock:
            return self._glances if self._asked is None else None

    def _why(self):
        from collectlab.launcher import report

        return report.text({"program": "the start of the ranks"}, self._last)


def _leave_to_parent():
    """In a process that was forked: what runs is the other one's to end; here, nobody listens to a supervisor."""
    for ranks in list(_all):
        for run in ranks._runs.values():
            run._ranks = None
        ranks._lock, ranks._bells, ranks._runs = threading.RLock(), [], {}
        ranks._link = ranks.places = ranks.note = None


os.register_at_fork(after_in_child=_leave_to_parent)


def _written(paths, value):
    """How the runs in those directories ended, by their names: as they say, or else as `value`, which they say then.

    A file system that does not answer is not waited for.
    """
    ends = {os.path.basename(path): value for path in paths}

    def write():
        for path in paths:
            ends[os.path.basename(path)] = rundir.end(path, value)

    if paths:
        writes = threading.Thread(target=write, daemon=True)
        writes.start()
        writes.join(_WRITING)
    return dict(ends)


def _nranks(ranks):
    try:
        if isinstance(ranks, bool):
            raise TypeError
        n = operator.index(ranks)
    except TypeError:
        raise TypeError(f"ranks={ranks!r}: a whole number of ranks is accepted, 1 to {MOST_RANKS}") from None
    if not 1 <= n <= MOST_RANKS:
        raise ValueError(f"ranks={n}: 1 to {MOST_RANKS} ranks are accepted")
    return n


def _device_names(rank_map, nranks):
    """The device name of each rank as asked for, or None."""
    if rank_map is None:
        return None
    if not isinstance(rank_map, RankMap):
        try:
            rank_map = RankMap(rank_map)
        except TypeError as error:
            raise TypeError(
                f"rank_map={rank_map!r}: a RankMap is accepted, or a list of device names ({error})"
            ) from None
    if rank_map.nranks != nranks:
        raise ValueError(
            f"rank_map places {rank_map.nranks} ranks, but ranks={nranks}; one place for each is accepted"
        )
    return [place.device for place in rank_map.places]


def _search_path(site):
    """Where the ranks look for modules: where this process does; None stands for a Python's own places, if theirs is
    another one."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = None  # the working directory was deleted
    path = [entry or here for entry in sys.path if isinstance(entry, str) and (entry or here)]
    if not site.python:
        return path
    own = tuple(os.path.join(prefix, "lib") for prefix in {sys.prefix, sys.base_prefix})
    return [None, *(entry for entry in path if not entry.startswith(own))]


def _number(variable, default, unit):
    """What the environment variable says, or else the default."""
    text = os.environ.get(variable, str(default))
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not 0 < number < math.inf:
        raise ValueError(f"the variable {variable} is {text!r}; {unit} are accepted, more than 0")
    return number


def _write(path, value, call, name, program, args):
    try:
        return objects.write(path, value)
    except TypeError as error:
        raise TypeError(
            f"{call}({name}, ...): {_blame(program, args)} cannot be sent to the ranks: {error}"
        ) from None


def _blame(program, args):
    """Which argument it is that cannot be pickled."""
    for what, value in [
        ("the program", program),
        *((f"argument {i + 1}", arg) for i, arg in enumerate(args)),
    ]:
        try:
            if not isinstance(value, PerRank):
                objects.write(os.devnull, value)
        except TypeError:
            return what
        except OSError:
            pass
    return "the program or an argument"


def _sources(files):
    """The sources, of those files, that exist only in this process: notebook cells."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", {})
    found = {}
    for file in files:
        lines = linecache.cache.get(file, (0, None, ()))[2]
        if lines and not os.path.exists(file):
            label = f"cell {numbers[file]}" if file in numbers else os.path.basename(file)
            found[file] = {"label": label, "text": "".join(lines)}
    return found

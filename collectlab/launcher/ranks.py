"""The notebook's side: start ranks, give them programs, stop them."""

import linecache
import math
import operator
import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
import weakref

from collectlab.launcher import objects, rundir, sites, sweep
from collectlab.launcher.objects import PerRank
from collectlab.launcher.run import Run, lost
from collectlab.launcher.wire import Broken, Channel
from collectlab.layout import RankMap

MOST_RANKS = 256
_BOUND = 5.0  # seconds within which interrupt and stop return, whatever the ranks do

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_START = "import sys; sys.path.append({root!r}); from collectlab.launcher.{module} import main; main()"

_live = weakref.WeakSet()
_mine = set()


def per_rank(values):
    """An argument that differs by rank: rank r gets values[r]. One value for each rank is needed."""
    if isinstance(values, (str, bytes, dict)) or not hasattr(values, "__iter__"):
        raise TypeError(f"per_rank({values!r}): a list with one value for each rank is accepted")
    return PerRank(values)


def run(program, *args, ranks=4, device="auto", site=None, timeout=60, rank_map=None):
    """Run `program(ctx, *args)` on `ranks` fresh ranks and wait for it; returns the Run.

    `timeout` seconds after its start the run is ended with status "timeout". A run that fails prints its
    report and is returned like any other; bad arguments raise before anything is started.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise ValueError(f"run(timeout={timeout!r}): seconds are accepted, more than 0")
    gang = Ranks(ranks, device, site, rank_map)
    found = gang._prepare(program, args, timeout)
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
        self.nranks = _nranks(ranks)
        if device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device={device!r} is unknown; accepted: 'auto', 'cpu' or 'cuda'")
        self.device = device
        self.site = sites.find(site)
        self.names = _device_names(rank_map, self.nranks)
        rank_program = [sys.executable, "-P", "-c", _START.format(root=_ROOT, module="worker")]
        self._command = sites.command(self.site, self.nranks, rank_program)
        self.places = None
        self._channel = self._process = self._tag = None
        self._runs = {}
        self._lock = threading.RLock()
        self._sending = threading.Lock()

    # starting and stopping

    def start(self):
        """Start the ranks, if they are not running, and wait until they are ready."""
        self._ensure()
        try:
            self._wait_for(lambda: self.places is not None or self._channel is None, None)
        except KeyboardInterrupt:
            self.stop()
            raise
        if self.places is None:
            raise RuntimeError(f"launch({self.nranks}): {self._why()}")
        return self

    def _ensure(self):
        """A supervisor that has been told to start the ranks; it answers later."""
        with self._lock:
            self._take_messages()
            if self._channel is not None:
                return
            self.places, self._tag, self._cause = None, secrets.token_hex(8), None
            ours, theirs = socket.socketpair()
            environment = sites.environment(self.site, {sweep.TAG: self._tag})
            start = [sys.executable, "-I", "-S", "-c", _START.format(root=_ROOT, module="supervisor")]
            self._complaints = os.memfd_create("collectlab-supervisor", os.MFD_CLOEXEC)
            self._process = subprocess.Popen(
                start, stdin=theirs, stdout=self._complaints, stderr=self._complaints,
                env=environment, start_new_session=True,
            )  # fmt: skip
            theirs.close()
            self._channel = Channel(ours)
            _live.add(self)
            site = {k: getattr(self.site, k) for k in ("rank_variable", "local_rank_variable")}
            path = [entry or os.getcwd() for entry in sys.path]
            self._tell(
                op="start", command=self._command, nranks=self.nranks, path=path, device=self.device,
                names=self.names, tag=self._tag, site=site, patience=_patience(),
            )  # fmt: skip

    def interrupt(self):
        """End what is running, and the ranks with it. Safe at any moment, also twice."""
        self._close("interrupt")

    def stop(self):
        """Let the ranks leave; end what is still running. Safe at any moment, also twice."""
        self._close("stop")

    def _close(self, op):
        with self._sending:
            channel = self._channel
        if channel is None:
            return
        self._tell(op=op)
        idle = op == "interrupt" and not self._runs
        self._wait_for(lambda: self._channel is not channel or (idle and self.places is not None), _BOUND)
        if self._channel is channel and not idle:
            self._process.kill()
            self._wait_for(lambda: self._channel is not channel, _BOUND)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def __repr__(self):
        state = "stopped" if self._channel is None else "starting" if self.places is None else "ready"
        return f"Ranks({self.nranks}, device={self.device!r}: {state})"

    # programs

    def submit(self, program, *args):
        """Give the ranks `program(ctx, *args)`; returns its Run at once. Programs run one after another."""
        found = self._prepare(program, args, None)
        self._send_run(found)
        return found

    def _prepare(self, program, args, timeout):
        """The run directory with everything in it that the ranks need."""
        call = "run" if timeout else "submit"
        if not callable(program):
            raise TypeError(
                f"{call}(program={program!r}): a function is accepted, to be called as program(ctx, *args)"
            )
        name = getattr(program, "__name__", type(program).__name__)
        places = [i for i, arg in enumerate(args) if isinstance(arg, PerRank)]
        for i in places:
            if len(args[i].values) != self.nranks:
                raise ValueError(
                    f"{call}({name}, ...): argument {i + 1} is per_rank of {len(args[i].values)} values, "
                    f"but there are {self.nranks} ranks; one value for each rank is accepted"
                )
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
                "sources": _sources(files),
            }  # fmt: skip
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        _mine.add(path)
        if len(_mine) % 50 == 1:
            in_use = {run.path for gang in _live for run in gang._runs.values()} | {run.path for run in _open}
            rundir.prune(in_use, _mine)
        found = Run(path, spec, self)
        _open.add(found)
        return found

    def _send_run(self, found):
        self._ensure()
        found.spec["tag"] = self._tag
        rundir.write_json(os.path.join(found.path, "spec.json"), found.spec)
        key = os.path.basename(found.path)
        self._runs[key] = found
        self._tell(
            op="run", id=key, path=found.path, timeout=found.spec["timeout"], sources=found.spec["sources"]
        )  # fmt: skip

    # the supervisor

    def _tell(self, **message):
        with self._sending:
            if self._channel is not None:
                try:
                    self._channel.send(**message)
                except OSError:
                    pass  # reading will find that it is gone

    def _wait_for(self, happened, timeout):
        end = None if timeout is None else time.monotonic() + timeout
        while not happened():
            with self._lock:
                if happened():
                    return True
                left = None if end is None else end - time.monotonic()
                if self._channel is None or (left is not None and left <= 0):
                    return happened()
                if select.select([self._channel], [], [], left)[0]:
                    self._read()
        return True

    def _take_messages(self):
        with self._lock:
            while self._channel is not None and select.select([self._channel], [], [], 0)[0]:
                self._read()

    def _read(self):
        try:
            messages = self._channel.read()
        except Broken as error:
            os.write(self._complaints, f"{error}\n".encode())
            messages = None
        if messages is None:
            return self._bury()
        for message in messages:
            op = message.pop("op")
            if op == "ready":
                self.places = message["places"]
            elif op == "ended":
                found = self._runs.pop(message.pop("id"), None)
                if found is not None:
                    found._end(message)
            elif op == "looks":
                self._looks = message
            elif op == "gone":
                self._cause = message["cause"]
                self._bury()
                break
        return None

    def _bury(self):
        """The supervisor has gone; so must everything that it started."""
        channel, self._channel = self._channel, None
        channel.close()
        if self._cause is None and self._process.poll() is None:
            try:
                self._process.wait(0.5)
            except subprocess.TimeoutExpired:
                self._process.kill()
        if self._runs:
            left = sweep.kill(self._tag)
            for found in self._runs.values():
                final = lost(found.spec)
                final["cause"].update(left=left, output=self._complaint())
                rundir.write_json(os.path.join(found.path, "status.json"), final)
                found._end(final)
            self._runs.clear()
        self._process.wait()
        os.close(self._complaints)
        self.places = None

    def _complaint(self):
        return os.pread(self._complaints, 1 << 14, 0).decode(errors="replace")

    def _look(self, found):
        key = os.path.basename(found.path)
        self._looks = None
        self._tell(op="look", id=key)
        self._wait_for(lambda: self._looks is not None or found._final is not None, 2.0)
        return self._looks["ranks"] if self._looks else None

    def _why(self):
        from collectlab.launcher import report

        status = {**lost({"nranks": self.nranks}), "cause": self._cause or {"kind": "supervisor gone"}}
        return report.text({"program": "the start"}, status)


_open = weakref.WeakSet()


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


def _patience():
    text = os.environ.get("COLLECTLAB_START_SECONDS", "30")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds < math.inf:
        raise ValueError(
            f"the variable COLLECTLAB_START_SECONDS is {text!r}; seconds are accepted, more than 0"
        )
    return seconds


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

"""The process between a notebook and its ranks: it starts them, watches everyone, and leaves nothing behind.

It is alone in its session, so neither Ctrl-C nor the death of the notebook reaches it; the end of the socket
to the notebook does, and then every process that carries the gang's tag is killed. One supervisor serves one
gang: when a run fails, times out or is interrupted, the gang and the supervisor end, and the next run starts
new ones.
"""

import json
import linecache
import os
import re
import resource
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections import deque

from collectlab.launcher import jobs, network, rundir, sweep
from collectlab.launcher.host import Host, react
from collectlab.launcher.keeper import Kept, leave_heir
from collectlab.launcher.wire import LONGEST_WAIT, Broken, Channel

SETTLE = 0.25  # seconds the other ranks are given after a failure, so that all that fail are named
SETTLE_MOST = 1.0  # as long as one of them is neither over nor in an MPI call: on a busy machine
FAREWELL = 1.0  # seconds the ranks are given to leave MPI by themselves, and then other hosts to say that they have
HEARING = 2.0  # seconds that the notebook is given to take the last message: what it has forked may hold the socket
OUTPUT = 1 << 16  # bytes of the launcher's own output that are kept
LOGS = 0.25  # seconds between two looks at how much the ranks have printed
LINE = 200  # characters of a source line that a report cites
UNCONFINED = 0.01  # seconds that a launcher may listen on other networks than `lo`
UNPROVEN = 32  # connections from other hosts that have not yet shown who they are
BAD = ("raised", "left", "exited", "killed", "aborted", "garbled")  # how a rank may end by itself, and not well
BLAMED = ("lost", *BAD)
_ABORT = re.compile(r"Abort\(-?\d+\) on node \d+ .*?: (.*)")  # MPICH's words, in the log of the rank
# Open MPI's, in the output of its mpiexec
_ABORT_BY_RANK = re.compile(r"MPI_ABORT was invoked on .*?Proc: \[\[.*?\],(\d+)\]\s+Errorcode: (-?\d+)", re.DOTALL)
_KILLED = "\n=   EXIT CODE: 9\n"  # MPICH's, in the output of its mpiexec, of a guard that was killed
# a rank's, when it cannot even say so to the supervisor; the second is Python's, where there is no collectlab
_COMPLAINT = re.compile(rb"(?:collectlab: |ModuleNotFoundError: (?=No module named 'collectlab))(.*)\n")


class Rank:
    def __init__(self):
        self.home = self.host = self.place = None  # home: the Host or Kept through which it is reached
        self.signed_in = set()
        self.cores = None  # how many it may use
        self.end = None  # how the present run ended here: a dict, or None while it goes on


class Supervisor:
    def __init__(self, notebook):
        self.notebook = notebook
        self.selector = selectors.DefaultSelector()
        self.queue = deque()
        self.run = None
        self.deadline = None  # (monotonic time, what to do then)
        self.logs_due = self.measuring = None  # when the logs of the present run are looked at; a thread that does so
        self.ranks = []
        self.process = None
        self.leaving, self.heir = False, None
        self.launcher_code, self.from_outside = None, False  # whether it, a guard or a keeper was first to end
        self.job, self.note = None, None  # in the queue of a cluster, and how it stands there
        self.lost = None  # (name, its ranks, why) of another host
        self.output = deque()
        self.here, self.kept = None, []  # the Host here, and a Kept for each other host
        self.open, self.key_file, self.unproven = None, None, deque()  # while keepers may come
        self._watch(notebook, self._on_notebook)

    def _watch(self, source, react):
        self.selector.register(source, selectors.EVENT_READ, react)

    def serve(self):
        while True:
            for there in list(self.kept):
                self._hear(there, there.early())
            react(self.selector, self._pause())
            if self.deadline and time.monotonic() >= self.deadline[0]:
                _, at_last = self.deadline
                self.deadline = None
                at_last()
            if self.run and time.monotonic() >= self.logs_due:
                self._measure_logs()

    def _pause(self):
        """Seconds until there is something to do here without anybody's asking; None for never."""
        moments = [*(self.deadline or ())[:1], *([self.logs_due] if self.run else ())]
        pause = min(max(0.0, min(moments) - time.monotonic()), LONGEST_WAIT) if moments else None
        if self.process is None or self.key_file or any(rank.signed_in for rank in self.ranks):
            return pause
        if os.path.basename(self.process.args[0]) != self.launcher:
            return pause  # it is ours, and listens nowhere
        network.confine(self.process.pid)  # it may listen by now
        return UNCONFINED if pause is None else min(UNCONFINED, pause)

    # what the notebook says

    def _on_notebook(self, channel):
        try:
            messages = channel.read()
        except Broken as error:
            self._end("failed", {"kind": "notebook garbled", "why": str(error)})
        if messages is None:
            self._on_notebook_exit(channel)
        for message in messages:
            getattr(self, "_do_" + message.pop("op"))(**message)

    def _do_start(self, command, nranks, path, device, names, tag, site, cure, patience, most, notebook, other_hosts,
                  queue, hints):
        self.ranks = [Rank() for _ in range(nranks)]
        self.names = {"path": path, "device": device, "names": names}
        self.tag, self.patience, self.most, self.cure = tag, patience, most, cure
        self.leaves, self.hints, self.cancel = site["leaves"], hints, queue.pop("cancel")
        self.daemons = site["daemons"]
        names_in_order = (os.path.basename(word).removesuffix(".py") for word in command)
        self.launcher = next(name for name in names_in_order if not name.startswith(("python", "-")))
        self.job = jobs.Job(**queue) if queue["ask"] else None
        self.started = time.time()
        if other_hosts or self.cancel or self.leaves:  # before there is anything to inherit
            self.lifeline, self.heir = leave_heir(tag, self.started, self.leaves, self.cancel)
        try:
            control = {"nranks": nranks, "tag": tag, "started": self.started, **site}
            control |= self._listen(nranks, other_hosts)
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env={**os.environ, "COLLECTLAB_CONTROL": json.dumps(control)},
            )  # fmt: skip
        except OSError as error:
            self._end("failed", {"kind": "no launcher", "why": str(error)})
        self.leaves = [path.replace("{pid}", str(self.process.pid)) for path in self.leaves]
        sweep.adopt_orphans()
        try:
            # a process that the notebook forked may hold the socket open after the notebook's end
            self._watch(os.pidfd_open(notebook), self._on_notebook_exit)
        except ProcessLookupError:
            self._on_notebook_exit(None)
        self._say(op="launcher", pid=self.process.pid)
        os.set_blocking(self.process.stdout.fileno(), False)
        self._watch(self.process.stdout, self._on_output)
        self._watch(os.pidfd_open(self.process.pid), self._on_launcher_exit)
        self.since = time.monotonic()  # when the wait for the ranks began, or their job last waited in a queue
        self._await_ranks()

    def _listen(self, nranks, other_hosts):
        """Listen on this host, and, where there are others, for their keepers; returns what a rank needs for it."""
        token, address = os.urandom(16).hex(), f"collectlab-{os.urandom(8).hex()}"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("\0" + address)
        listener.listen(2 * nranks)
        self.here = Host(self.selector, listener, token, nranks, self._heard)
        if other_hosts:
            self.key_file, self.key = other_hosts["key"], network.new_key(other_hosts["key"])
            self.open = network.listen(other_hosts["address"])
            self._watch(self.open, self._on_other_host)
            place = self.open.getsockname()[:2]
            other_hosts = {"key": self.key_file, "place": place, "host": self.here.name}
        return {"address": address, "token": token, "network": other_hosts}

    def _close_network(self):
        """Once all ranks are there, nobody else is waited for."""
        while self.unproven:
            self._drop(self.unproven[0])
        if self.open:
            self.selector.unregister(self.open)
            self.open.close()
            self.open = None
        if self.key_file:
            sweep.unlink([self.key_file])

    def _await_ranks(self):
        """Set a deadline for the start; where there is a queue, one for the next look at it."""
        self.deadline = (self.since + self.patience, self._on_slow_start)
        if self.job and time.monotonic() < self.deadline[0]:
            self.deadline = (min(self.deadline[0], time.monotonic() + self.job.pause()), self._ask_queue)

    def _ask_queue(self):
        self.deadline = (time.monotonic() + self.patience, self._on_slow_start)  # should the queue not answer
        self._watch(self.job.ask(), self._on_queue)

    def _on_queue(self, pidfd):
        self.selector.unregister(pidfd)
        note, hopeless = self.job.answer()
        if self._failing() or self._ready() or any(rank.signed_in for rank in self.ranks):
            note = None
        elif hopeless:
            self._end("failed", {"kind": "refused", "why": hopeless})
        elif note or self.note:  # it waits, or did at the last look
            self.since = time.monotonic()
        if note != self.note:
            self.note = note
            self._say(op="note", text=note)
        if not self._failing() and not self._ready():
            self._await_ranks()

    def _say(self, **message):
        try:
            self.notebook.send(**message)
        except OSError:
            self._on_notebook_exit(None)  # this is how it is found when there was more to do

    def _on_notebook_exit(self, _):
        try:
            while self.notebook.has_more() and (heard := self.notebook.read()) is not None:  # the runs submitted last
                self.queue += ({k: v for k, v in run.items() if k != "op"} for run in heard if run["op"] == "run")
        except Broken:
            pass  # it was killed as it spoke
        self._end("interrupted", {"kind": "notebook gone"})

    def _do_run(self, **run):
        if self._failing() and not self.run:
            return  # these ranks run nothing more: the notebook, which hears that they end, gives it to new ones
        self.queue.append(run)
        self._next()

    def _do_look(self, id):
        going = self.run and self.run["id"] == id
        self._say(op="looks", id=id, ranks=self._told(self._look()) if going else None)

    def _do_glance(self):
        """What the ranks do, in short; unlike a look, it does not disturb them."""
        seen, ranks = self._seen() if self.run else {}, None
        if self.run:
            ranks = [self._in_short(rank, seen.get(number)) for number, rank in enumerate(self.ranks)]
        self._say(op="glances", id=self.run and self.run["id"], ready=self._ready(), ranks=ranks)

    def _do_interrupt(self):
        if self.run or self.queue or not self._ready():
            self._end("interrupted", {"kind": "interrupted"})
        self._say(op="calm")

    def _do_stop(self):
        if self.run or self.queue or not self._ready():
            self._end("interrupted", {"kind": "stopped"})
        if self.leaving:
            return
        self.leaving = True
        self._tell_all(op="bye")
        self.deadline = (time.monotonic() + FAREWELL, self._leave)

    # what other hosts say

    def _on_other_host(self, listener):
        sock, (host, *_) = listener.accept()
        try:
            channel = network.Sealed(sock, self.key, b"supervisor")
        except OSError:
            return sock.close()  # it has gone already
        channel.host = host
        self.unproven.append(channel)
        self._watch(channel, self._on_unproven)
        if len(self.unproven) > UNPROVEN:
            self._drop(self.unproven[0])
        return None

    def _on_unproven(self, channel):
        """A connection that has not yet shown that it knows the key."""
        try:
            messages = channel.read()
        except Broken as error:
            self._keep(f"from {channel.host}: {error}\n".encode())
            messages = None
        if messages is None:
            return self._drop(channel)
        if messages:
            there = Kept(channel, messages[0]["host"])
            self.unproven.remove(channel)
            self.kept.append(there)
            self.selector.modify(channel, selectors.EVENT_READ, lambda _: self._on_kept(there))
        return None

    def _on_kept(self, there):
        try:
            heard, why = there.read(), "the process that watches over it was killed"
        except Broken as error:
            heard, why = None, str(error)
        if heard is not None:
            return self._hear(there, heard)
        if there.channel.ended:
            why = f"the network between it and {self.here.name} was cut ({there.channel.ended.strerror})"
        self.kept.remove(there)
        self.selector.unregister(there.channel)
        there.channel.close()
        if not self.leaving:
            self.lost = self.lost or (there.name, there.numbers, why)
            self.from_outside |= not self._bad()
            for number in there.numbers:
                self._settle(self.ranks[number], {"state": "lost"})
            self.deadline = (time.monotonic() + SETTLE, self._collapse)
        return None

    def _hear(self, there, heard):
        for number, who, message in heard:
            self._heard(there, number, who, message)

    # what the ranks say

    def _heard(self, home, number, who, message):
        rank = self.ranks[number]
        if message and message["op"] == who:
            self._sign_in(rank, home, number, message)
        elif who == "guard":
            self._on_guard(rank, number, message)
        elif message:  # how it ended, its guard says
            self._take(rank, number, message)

    def _sign_in(self, rank, home, number, message):
        who = message["op"]
        if who in rank.signed_in:
            if not self._ready():
                self._end("failed", {"kind": "twice", "rank": number})
            return
        if not self.key_file and not any(other.signed_in for other in self.ranks):
            network.confine(self.process.pid)
        rank.signed_in.add(who)
        if who == "rank":
            rank.home, rank.host = home, message["host"]
            if home is not self.here:
                home.numbers.append(number)
            home.tell([number], op="welcome", **self.names)

    def _on_guard(self, rank, number, message):
        if self.leaving:
            if message and message["op"] == "exited":
                rank.home.release(number)  # now the guard leaves too
        elif message:
            self._heed(message, rank)
        else:
            self.from_outside |= not self._bad()
            self._settle(rank, {"state": "lost"})
            self.deadline = (time.monotonic() + SETTLE, self._collapse)

    def _heed(self, message, rank):
        if message["op"] == "orphaned":
            self.deadline = (time.monotonic() + SETTLE, self._collapse)
        elif message["op"] == "garbled":
            self._settle(rank, {"state": "garbled", "message": message["why"]})
        elif message["code"] >= 0:
            self._settle(rank, {"state": "exited", "code": message["code"]})
        else:
            self._settle(rank, {"state": "killed", "signal": -message["code"], "frames": message["frames"]})

    def _take(self, rank, number, message):
        op = message.pop("op")
        if op == "ready" and rank.place is None:
            rank.place = {key: message[key] for key in ("device", "identity", "local_rank")} | {"host": rank.host}
            rank.cores = message["cores"]
            if self._ready():
                self._close_network()
                if self.daemons:  # they are connected, and no others are to come
                    network.confine(self.process.pid)
                self.note = None
                if not self._failing():
                    self.deadline = None
                self._say(op="ready", places=[rank.place for rank in self.ranks])
                self._next()
        elif op == "unfit":
            if not self._failing():  # a rank of Open MPI that has lost its launcher takes itself for the only one
                self._end("failed", {key: message[key] for key in ("kind", "rank", "why")})
        elif op == "garbled":
            self._settle(rank, {"state": "garbled", "message": message["why"]})
        elif op in ("returned", "raised", "left") and self.run and message["id"] == self.run["id"]:
            self._settle(rank, {"state": op, **{k: v for k, v in message.items() if k not in ("id", "rank")}})

    def _tell_all(self, **message):
        for home in (self.here, *self.kept):
            home.tell(home.numbers, **message)

    # one run

    def _ready(self):
        return all(rank.place for rank in self.ranks)

    def _next(self):
        if self.run or not self.queue or not self._ready() or self.leaving or self._failing():
            return
        self.run = self.queue.popleft()
        self.began = time.time()
        timeout = self.run.get("timeout")
        self.deadline = (time.monotonic() + timeout, self._on_timeout) if timeout else None
        self.logs_due = time.monotonic() + LOGS
        for rank in self.ranks:
            rank.end = None
        self._tell_all(op="run", **{key: self.run[key] for key in ("id", "path", "sources", "search", "trace")})

    def _measure_logs(self):
        """End a run in which a rank, or what it has started, prints for ever: it would fill the disk.

        A file system that does not answer is not waited for.
        """
        path, lengths = self.run["path"], []

        def measure():
            lengths.extend(rundir.log_length(path, number) for number in range(len(self.ranks)))

        if self.measuring is None or not self.measuring.is_alive():
            self.measuring = threading.Thread(target=measure, daemon=True)
            self.measuring.start()
            self.measuring.join(LOGS / 5)
        if too_long := [number for number, length in enumerate(lengths) if length > self.most]:
            self._end("failed", {"kind": "too much output", "who": too_long, "most": self.most})
        self.logs_due = time.monotonic() + LOGS

    def _settle(self, rank, how):
        """The present run has ended on `rank`, and how."""
        if rank.end is None or rank.end["state"] == "returned" != how["state"]:
            rank.end = {**how, "seconds": time.time() - self.began if self.run else 0.0}
        states = [r.end and r.end["state"] for r in self.ranks]
        if self.run and all(state == "returned" for state in states):
            value = self._finished(self.run, "done", None, [r.end for r in self.ranks])
            self._write(self.run, value)
            run, self.run = self.run, None
            self._say(op="done", id=run["id"], **value)
            if not self._failing():
                self.deadline = None
                self._next()
        elif how["state"] == "returned":
            pass
        elif all(states) and "lost" not in states and self._ready():
            self._collapse()
        elif not self._failing():
            self.failed = time.monotonic()
            self.deadline = (self.failed + SETTLE, self._on_settled)

    def _on_settled(self):
        seen = self._seen()
        busy = any(not self.ranks[number].end and not rank["where"]["inside"] for number, rank in seen.items())
        silent = not self._ready() and not any(self.output)  # why ranks do not start, the launcher has yet to hand on
        if (busy or silent) and time.monotonic() < self.failed + SETTLE_MOST:
            self.deadline = (time.monotonic() + SETTLE / 5, self._on_settled)
        else:
            self._fail()

    def _fail(self):
        self._tell_aborts()
        self._end("failed", {"kind": "rank failed" if self._ready() else "no start"})

    def _on_timeout(self):
        self._end("timeout", {"kind": "timeout", "limit": self.run["timeout"]})

    def _on_slow_start(self):
        self._end("failed", {"kind": "slow start", "limit": self.patience})

    def _on_output(self, stream):
        data = stream.read(1 << 16)
        if data == b"":
            self.selector.unregister(stream)
        self._keep(data or b"")
        self._heed_complaint()

    def _heed_complaint(self):
        if not self._ready() and (complaint := _COMPLAINT.search(b"".join(self.output))):
            self._end("failed", {"kind": "complaint", "why": complaint[1].decode(errors="replace")})

    def _keep(self, data):
        self.output.append(data)
        while sum(map(len, self.output)) > OUTPUT:
            self.output.popleft()

    def _on_launcher_exit(self, pidfd):
        self.launcher_code = self.process.wait()
        self.from_outside |= not self._bad()
        self._keep(self.process.stdout.read(OUTPUT) or b"")
        self._heed_complaint()
        if self.leaving:
            self._leave()
        self.selector.unregister(pidfd)
        self.deadline = (time.monotonic() + SETTLE, self._collapse)

    def _failing(self):
        """Whether something has ended that these ranks cannot do without, and they are about to."""
        return self.deadline is not None and self.deadline[1] in (self._on_settled, self._collapse)

    def _bad(self):
        """The ranks that have ended by themselves, and not well."""
        return [rank for rank in self.ranks if rank.end and rank.end["state"] in BAD]

    def _collapse(self):
        """The launcher or guards were killed, and the ranks with them; find out for whose sake."""
        self._tell_aborts()
        lost = [r for r in self.ranks if r.end and r.end["state"] == "lost"]
        headless = self.from_outside or ((self.launcher_code or 0) > 0 and not self._ready())
        for rank in self._bad():  # MPI ends those that have lost their launcher, or another: Open MPI's by SIGTERM
            terminated = rank.end.get("signal") not in (None, signal.SIGKILL)
            if (terminated and headless) or (rank.end["state"] == "exited" and self.from_outside):
                rank.end["state"] = "stopped"
        bad = self._bad()
        aborted = any(rank.end["state"] == "aborted" for rank in bad)
        # mpiexec ends all when it finds one guard killed, and says so by its exit code, or in words
        output = b"".join(self.output).decode(errors="replace")
        says_so = self.launcher_code in (None, signal.SIGKILL, 128 + signal.SIGKILL) or _KILLED in output
        by_guard = lost and says_so and self.from_outside and not aborted
        for rank in () if by_guard else lost:  # which guard was first cannot be told: all are named
            rank.end["state"] = "stopped"
        if self.lost and not bad and not (self.launcher_code or 0) < 0:
            self._end("failed", {"kind": "lost host", **dict(zip(("host", "ranks", "why"), self.lost, strict=True))})
        if bad or by_guard:
            self._fail()
        if not self._ready() and (why := jobs.explained(output, self.hints)):
            self._end("failed", {"kind": "refused", "why": why})
        self._end("failed", {"kind": "launcher exit", "code": self.launcher_code, "launcher": self.launcher})

    def _tell_aborts(self):
        """Find the ranks that MPI itself has aborted, by its words."""
        said = _ABORT_BY_RANK.findall(b"".join(self.output).decode(errors="replace"))
        why = {int(number): f"application called MPI_Abort with code {code}" for number, code in said}
        for number, rank in enumerate(self.ranks):
            words = rundir.tail(self.run["path"], number, 100) if self.run else ()
            message = next((match[1] for match in map(_ABORT.match, words) if match), why.get(number))
            if message and (rank.end is None or rank.end["state"] in ("lost", "exited")):
                rank.end = {"seconds": time.time() - self.began, **(rank.end or {})}
                rank.end.update(state="aborted", message=message)

    # the end

    def _leave(self):
        self._end("interrupted", {"kind": "stopped"})

    def _end(self, status, cause):
        """End the gang: look where everyone is, kill, write down, say so, exit."""
        looks = [{"state": "not started"} for _ in self.ranks]
        self._close_network()
        if self.process:
            if self.run or self.queue or not self._ready():
                looks = self._look()
            silent = self._end_other_hosts()  # first, as the end of the launcher also ends its daemons there
            calm = self._ready() and not self.run  # else there may be ranks in MPI_Init: a program can start some too
            heir = [self.heir] if self.heir else []  # last, should this process be killed before it is done
            left = sweep.kill(self.tag, heir, since=None if calm else self.started, leaves=self.leaves)
            if self.process.pid not in left:
                self.process.wait()
            for number in cause["who"] if cause["kind"] == "too much output" else ():
                rundir.shorten_log(self.run["path"], number)
            if self.launcher_code is None or self.launcher_code < 0:  # one that ends by itself gives its job back
                cause = {**cause, "kept": jobs.withdraw(self.cancel)}
            for pid in heir:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            output = b"".join(self.output).decode(errors="replace")
            cause = {**cause, "output": output, "left": left, "silent": silent}
            cause["said"] = status == "failed" and jobs.explained(output, self.hints)
        if not self._ready() and status == "failed":
            from collectlab.launcher import surroundings

            library = cause["why"] if cause["kind"] == "other MPI" else None
            blamed = surroundings.at_fault(cause.get("output", ""), self.cure, library)
            cause["cures"] = [(f"{finding.what}: {finding.found}", finding.cure) for finding in blamed]
        ended = {}
        if self.run:
            ended[self.run["id"]] = value = self._finished(self.run, status, cause, looks)
        else:
            value = self._value(status, cause, looks)
        if self.run and status == "failed":
            cause = {**cause, "kind": "not started"}
        for run in self.queue:
            ended[run["id"]] = self._finished(run, status, cause, looks)
        self._take_leave(value, ended)  # first: where the file system does not answer, nobody is to wait for it
        if not all([self._write(run, ended[run["id"]]) for run in (self.run, *self.queue) if run]):
            self._take_leave(value, ended)
        os._exit(0)  # at once: the notebook waits for it

    def _take_leave(self, value, ended):
        try:
            self.notebook.sock.settimeout(HEARING)
            self.notebook.send(op="gone", value=value, runs=ended)
        except OSError:
            pass  # the notebook is gone, or does not listen; the directories tell

    def _finished(self, run, status, cause, ranks):
        """How `run` ended."""
        if run is not self.run and self._ready():
            ranks = [rank if rank["state"] in BLAMED and not self.run else {"state": "not started"} for rank in ranks]
        value = self._value(status, cause, ranks)
        if run is not self.run:
            value["seconds"] = 0.0
        return value

    def _write(self, run, value):
        """Write down how `run` ended; whether that was possible, which `value` tells too."""
        try:
            rundir.write_json(os.path.join(run["path"], "status.json"), value)
        except OSError as error:
            value["cause"] = {**(value["cause"] or {}), "kind": "unwritten", "why": str(error)}
            return False
        return True

    def _value(self, status, cause, ranks):
        return {
            "version": rundir.VERSION,
            "status": status,
            "cause": cause,
            "seconds": time.time() - self.began if self.run else 0.0,
            "places": [rank.place for rank in self.ranks],
            "cores": [rank.cores for rank in self.ranks],
            "ranks": self._told(ranks),
        }

    def _told(self, ranks):
        """`ranks`, with what a report shows of their frames and of their output."""
        ranks = [dict(rank) for rank in ranks]
        for number, rank in enumerate(ranks):
            if "frames" in rank:
                frames = [frame for frame in rank["frames"] if not frame[0].startswith(_HERE)]
                rank["frames"] = [self._cite(*frame) for frame in frames]
            if self.run and rank["state"] in ("left", "exited", "killed", "lost", "aborted"):
                rank["tail"] = rundir.tail(self.run["path"], number)
        return ranks

    def _look(self):
        """How each rank ended, or else where it is: its MPI call, and its Python stack."""
        seen = self._seen(going=[number for number, rank in enumerate(self.ranks) if rank.end is None])
        looks = []
        for number, rank in enumerate(self.ranks):
            look = rank.end or {"state": "not started"}
            if number in seen:
                look = rank.end or {"state": "stopped", "frames": seen[number]["frames"]}
                look = {**look, "where": seen[number]["where"]}
            looks.append(look)
        return looks

    def _seen(self, going=()):
        """What is seen of the ranks from outside, as `Host.look` tells it, for those that can be seen."""
        for there in self.kept:
            there.ask(going)
        seen = self.here.look(going) if self.here else {}
        for there in self.kept:
            seen |= there.look(going)
        return seen

    def _end_other_hosts(self):
        """Let the keepers end what is on their hosts; returns the names of those that do not say that it is done."""
        for there in self.kept:
            there.hang_up()
        end = time.monotonic() + FAREWELL
        return [there.name for there in self.kept if not there.has_ended(end)]

    def _in_short(self, rank, seen):
        end, where = rank.end, None
        if seen:
            where = {**seen["where"], "history": None}
        if end:
            end = {key: value for key, value in end.items() if key not in ("frames", "result")}
            end |= {"message": (end.get("message") or "")[:LINE], "where": where}
        return {"end": end, "where": where}

    def _cite(self, file, line, name):
        """A frame as the report shows it: the text of the line, and the cell that it is in."""
        source = self.run["sources"].get(file) if self.run else None
        if source:
            lines = source["text"].splitlines()
            text, label = lines[line - 1] if 0 < line <= len(lines) else "", source["label"]
        else:
            linecache.checkcache(file)
            text, label = linecache.getline(file, line), os.path.basename(file)
        return {"file": file, "line": line, "name": name, "text": text.strip()[:LINE], "label": label}

    def _drop(self, channel):
        self.unproven.remove(channel)
        self.selector.unregister(channel)
        channel.close()


_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def main():
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # four descriptors for each rank
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    notebook = Channel(socket.socket(fileno=os.dup(0)))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    Supervisor(notebook).serve()


if __name__ == "__main__":
    main()

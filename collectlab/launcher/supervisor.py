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
import struct
import subprocess
import time
from collections import deque

from collectlab.launcher import rundir, sweep, whereabouts
from collectlab.launcher.whereabouts import STACK_SIGNAL
from collectlab.launcher.wire import Broken, Channel

SETTLE = 0.25  # seconds the other ranks are given after a failure, so that all that fail are named
SETTLE_MOST = 1.0  # as long as one of them is neither over nor in an MPI call: on a busy machine
FAREWELL = 1.0  # seconds the ranks are given to leave MPI by themselves
OUTPUT = 1 << 16  # bytes of the launcher's own output that are kept
LOOK = 0.5  # seconds that the ranks are given to write down where they are
LINE = 200  # characters of a source line that a report cites
_ABORT = re.compile(r"Abort\(-?\d+\) on node \d+ .*?: (.*)")  # MPICH's words, in the log of the rank
# Open MPI's, in the output of its mpiexec
_ABORT_BY_RANK = re.compile(r"MPI_ABORT was invoked on .*?Proc: \[\[.*?\],(\d+)\]\s+Errorcode: (-?\d+)", re.DOTALL)
_STACK_LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


class Rank:
    def __init__(self):
        self.pid = self.control = self.place = self.where = self.stack = None
        self.end = None  # how the present run ended here: a dict, or None while it goes on


class Supervisor:
    def __init__(self, notebook):
        self.notebook = notebook
        self.selector = selectors.DefaultSelector()
        self.queue = deque()
        self.run = None
        self.deadline = None  # (monotonic time, what to do then)
        self.ranks = []
        self.process = None
        self.leaving = False
        self.launcher_code = None
        self.output = deque()
        self._watch(notebook, self._on_notebook)

    def _watch(self, source, react):
        self.selector.register(source, selectors.EVENT_READ, react)

    def serve(self):
        while True:
            left = None if self.deadline is None else max(0.0, self.deadline[0] - time.monotonic())
            for key, _ in self.selector.select(left):
                if self.selector.get_map().get(key.fd) is key:  # an earlier reaction may have closed it
                    key.data(key.fileobj)
            if self.deadline and time.monotonic() >= self.deadline[0]:
                _, react = self.deadline
                self.deadline = None
                react()

    # what the notebook says

    def _on_notebook(self, channel):
        messages = self._read(channel)
        if messages is None:
            self._on_notebook_exit(channel)
        for message in messages:
            getattr(self, "_do_" + message.pop("op"))(**message)

    def _do_start(self, command, nranks, path, device, names, tag, site, cure, patience, notebook):
        self.ranks = [Rank() for _ in range(nranks)]
        self.names = {"path": path, "device": device, "names": names}
        self.tag, self.patience, self.cure = tag, patience, cure
        self.token = os.urandom(16).hex()
        address = f"collectlab-{os.urandom(8).hex()}"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("\0" + address)
        listener.listen(2 * nranks)
        listener.setblocking(False)
        self._watch(listener, self._on_connection)
        self.started = time.time()
        control = {"address": address, "token": self.token, "nranks": nranks, "started": self.started, **site}
        self.leaves = site["leaves"]
        environment = {**os.environ, "COLLECTLAB_CONTROL": json.dumps(control)}
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env=environment,
            )  # fmt: skip
            # a process that the notebook forked may hold the socket open after the notebook's end
            self._watch(os.pidfd_open(notebook), self._on_notebook_exit)
        except OSError as error:
            self._end("failed", {"kind": "no launcher", "why": str(error)})
        self.notebook.send(op="launcher", pid=self.process.pid)
        sweep.adopt_orphans()
        os.set_blocking(self.process.stdout.fileno(), False)
        self._watch(self.process.stdout, self._on_output)
        self._watch(os.pidfd_open(self.process.pid), self._on_launcher_exit)
        self.deadline = (time.monotonic() + patience, self._on_slow_start)

    def _on_notebook_exit(self, _):
        self._end("interrupted", {"kind": "notebook gone"})

    def _do_run(self, **run):
        self.queue.append(run)
        self._next()

    def _do_look(self, id):
        going = self.run and self.run["id"] == id
        self.notebook.send(op="looks", id=id, ranks=self._told(self._look()) if going else None)

    def _do_glance(self):
        """What the ranks do, in short; unlike a look, it does not disturb them."""
        ranks = [self._in_short(rank) for rank in self.ranks] if self.run else None
        self.notebook.send(op="glances", id=self.run and self.run["id"], ready=self._ready(), ranks=ranks)

    def _do_interrupt(self):
        if self.run or self.queue or not self._ready():
            self._end("interrupted", {"kind": "interrupted"})
        self.notebook.send(op="calm")

    def _do_stop(self):
        if self.run or self.queue or not self._ready():
            self._end("interrupted", {"kind": "stopped"})
        if self.leaving:
            return
        self.leaving = True
        for rank in self.ranks:
            if rank.control:
                self._tell(rank, op="bye")
        self.deadline = (time.monotonic() + FAREWELL, self._leave)

    # what the ranks say

    def _on_connection(self, listener):
        sock, _ = listener.accept()
        _, uid, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid == os.getuid():
            self._watch(Channel(sock), self._on_stranger)
        else:
            sock.close()

    def _on_stranger(self, channel):
        """A connection that has not yet said who it is."""
        messages = self._read(channel)
        if messages is None:
            return self._drop(channel)
        if not messages:
            return None
        first = messages.pop(0)
        known = first.get("token") == self.token and first.get("op") in ("guard", "rank")
        if not known or not 0 <= first.get("rank", -1) < len(self.ranks):
            return self._drop(channel)
        rank = self.ranks[first["rank"]]
        if first["op"] == "guard":
            self.selector.modify(channel, selectors.EVENT_READ, lambda c: self._on_guard(c, rank))
            return self._heed(messages, rank)
        rank.control, rank.pid, rank.host = channel, first["pid"], first["host"]
        rank.where, rank.stack = channel.fds
        self.selector.modify(channel, selectors.EVENT_READ, lambda c: self._on_rank(c, rank))
        self._tell(rank, op="welcome", **self.names)
        for message in messages:
            self._take(rank, message)
        return None

    def _on_guard(self, channel, rank):
        messages = self._read(channel)
        if messages is None or (messages and self.leaving):
            self._drop(channel)  # now the guard leaves too
        if self.leaving:
            return
        self._heed(messages or (), rank)
        if messages is None:
            self._settle(rank, {"state": "lost"})
            self.deadline = (time.monotonic() + SETTLE, self._collapse)

    def _heed(self, messages, rank):
        for message in messages:
            if message["op"] == "orphaned":
                self.deadline = (time.monotonic() + SETTLE, self._collapse)
                continue
            code = message["code"]
            if code >= 0:
                self._settle(rank, {"state": "exited", "code": code})
            else:
                frames = self._stack(rank, after="Fatal Python error")
                self._settle(rank, {"state": "killed", "signal": -code, "frames": frames})

    def _on_rank(self, channel, rank):
        messages = self._read(channel)
        if messages is None:
            self.selector.unregister(channel)  # how it ended, its guard says
            return
        for message in messages:
            self._take(rank, message)

    def _take(self, rank, message):
        op = message.pop("op")
        if op == "ready":
            rank.place = {"host": rank.host, "device": message["device"], "local_rank": message["local_rank"]}
            if self._ready():
                self.deadline = None
                self.notebook.send(op="ready", places=[rank.place for rank in self.ranks])
                self._next()
        elif op == "unfit":
            self._end("failed", {key: message[key] for key in ("kind", "rank", "why")})
        elif op in ("returned", "raised", "left") and self.run and message["id"] == self.run["id"]:
            self._settle(rank, {"state": op, **{k: v for k, v in message.items() if k not in ("id", "rank")}})

    def _tell(self, rank, **message):
        try:
            rank.control.send(**message)
        except OSError:
            pass  # its guard will say how it ended

    # one run

    def _ready(self):
        return all(rank.place for rank in self.ranks)

    def _next(self):
        if self.run or not self.queue or not self._ready() or self.leaving or self._collapsing():
            return
        self.run = self.queue.popleft()
        self.began = time.time()
        timeout = self.run.get("timeout")
        self.deadline = (time.monotonic() + timeout, self._on_timeout) if timeout else None
        for rank in self.ranks:
            rank.end = None
            self._tell(rank, op="run", **{key: self.run[key] for key in ("id", "path", "sources", "search", "trace")})

    def _settle(self, rank, how):
        """The present run has ended on `rank`, and how."""
        if rank.end is None or rank.end["state"] == "returned" != how["state"]:
            rank.end = {**how, "seconds": time.time() - self.began if self.run else 0.0}
        states = [r.end and r.end["state"] for r in self.ranks]
        if self.run and all(state == "returned" for state in states):
            value = self._finish(self.run, "done", None, [r.end for r in self.ranks])
            self.notebook.send(op="done", id=self.run["id"], **value)
            self.run = None
            if not self._collapsing():
                self.deadline = None
                self._next()
        elif how["state"] == "returned":
            pass
        elif all(states) and "lost" not in states:
            self._fail()
        elif self.deadline is None or self.deadline[1] not in (self._on_settled, self._collapse):
            self.failed = time.monotonic()
            self.deadline = (self.failed + SETTLE, self._on_settled)

    def _on_settled(self):
        busy = [rank for rank in self.ranks if not rank.end and rank.where and not self._where(rank)["inside"]]
        if busy and time.monotonic() < self.failed + SETTLE_MOST:
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

    def _keep(self, data):
        self.output.append(data)
        while sum(map(len, self.output)) > OUTPUT:
            self.output.popleft()

    def _on_launcher_exit(self, pidfd):
        self.launcher_code = self.process.wait()
        self._keep(self.process.stdout.read(OUTPUT) or b"")
        if self.leaving:
            self._leave()
        self.selector.unregister(pidfd)
        self.deadline = (time.monotonic() + SETTLE, self._collapse)

    def _collapsing(self):
        return self.deadline is not None and self.deadline[1] == self._collapse

    def _collapse(self):
        """The launcher or guards were killed, and the ranks with them; find out for whose sake."""
        self._tell_aborts()
        bad = [r for r in self.ranks if r.end and r.end["state"] not in ("lost", "returned")]
        lost = [r for r in self.ranks if r.end and r.end["state"] == "lost"]
        # mpiexec ends all when it finds one guard killed, and then exits with the number of the signal
        by_guard = lost and self.launcher_code in (None, signal.SIGKILL) and not bad
        for rank in () if by_guard else lost:  # which guard was first cannot be told: all are named
            rank.end["state"] = "stopped"
        if bad or by_guard:
            self._fail()
        self._end("failed", {"kind": "launcher exit", "code": self.launcher_code})

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
        if self.process:
            if self.run or not self._ready():
                looks = self._look()
            leaves = [path.replace("{pid}", str(self.process.pid)) for path in self.leaves]
            left = sweep.kill(self.tag, since=None if self._ready() else self.started, leaves=leaves)
            self.process.wait()
            cause = {**cause, "output": b"".join(self.output).decode(errors="replace"), "left": left}
        if not self._ready() and status == "failed":
            from collectlab.launcher import surroundings

            library = cause["why"] if cause["kind"] == "other MPI" else None
            blamed = surroundings.at_fault(cause.get("output", ""), self.cure, library)
            cause["cures"] = [(f"{finding.what}: {finding.found}", finding.cure) for finding in blamed]
        ended = {}
        if self.run:
            ended[self.run["id"]] = value = self._finish(self.run, status, cause, looks)
        else:
            value = self._value(status, cause, looks)
        if self._ready() and status == "failed":
            cause = {**cause, "kind": "not started"}
        for run in self.queue:
            ended[run["id"]] = self._finish(run, status, cause, looks)
        try:
            self.notebook.send(op="gone", value=value, runs=ended)
        except OSError:
            pass  # the notebook is gone; the directories tell
        os._exit(0)  # at once: the notebook waits for it

    def _finish(self, run, status, cause, ranks):
        """Write down how `run` ended; returns that."""
        if run is not self.run and self._ready():
            ranks = [{"state": "not started"} for _ in ranks]
        value = self._value(status, cause, ranks)
        if run is not self.run:
            value["seconds"] = 0.0
        try:
            rundir.write_json(os.path.join(run["path"], "status.json"), value)
        except OSError as error:
            value["cause"] = {**(cause or {}), "kind": "unwritten", "why": str(error)}
        return value

    def _value(self, status, cause, ranks):
        return {
            "version": rundir.VERSION,
            "status": status,
            "cause": cause,
            "seconds": time.time() - self.began if self.run else 0.0,
            "places": [rank.place for rank in self.ranks],
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
        going = [rank for rank in self.ranks if rank.pid and rank.end is None]
        for rank in going:
            os.ftruncate(rank.stack, 0)
            os.lseek(rank.stack, 0, os.SEEK_SET)
            try:
                os.kill(rank.pid, STACK_SIGNAL)
            except ProcessLookupError:
                pass
        end, before, sizes = time.monotonic() + LOOK, None, [0]
        while (0 in sizes or sizes != before) and going and time.monotonic() < end:
            time.sleep(0.002)
            before, sizes = sizes, [os.fstat(rank.stack).st_size for rank in going]
        looks = []
        for rank in self.ranks:
            look = rank.end or {"state": "not started"}
            if rank.where is not None:
                look = rank.end or {"state": "stopped", "frames": self._stack(rank)}
                look = {**look, "where": self._where(rank)}
            looks.append(look)
        return looks

    def _in_short(self, rank):
        end, where = rank.end, None
        if rank.where is not None:
            where = {**self._where(rank), "history": None}
        if end:
            end = {key: value for key, value in end.items() if key not in ("frames", "result")}
            end |= {"message": (end.get("message") or "")[:LINE], "where": where}
        return {"end": end, "where": where}

    def _where(self, rank):
        where = whereabouts.read(rank.where)
        where["seconds"] = time.time() - where.pop("since")
        return where

    def _stack(self, rank, after=""):
        """The Python stack that the rank has written, outermost frame first."""
        if rank.stack is None:
            return []
        text = os.pread(rank.stack, 1 << 16, 0).decode(errors="replace")
        text = text[text.find(after) :] if after in text else ""
        frames = [(file, int(line), name) for file, line, name in reversed(_STACK_LINE.findall(text))]
        return frames[1:]  # the outermost is the line that started this process

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

    def _read(self, channel):
        try:
            return channel.read()
        except Broken as error:
            self._keep(f"{error}\n".encode())
            return None

    def _drop(self, channel):
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

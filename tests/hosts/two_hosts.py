"""Two hosts on one machine, and a notebook on the first of them."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import machine
from marks import wait_for

NAMES = ("alpha", "beta")
ROOT = Path(__file__).parents[2]


class Machine:
    """A host: a network, a process table, a /dev/shm of its own, joined to the other one by a cable."""

    def __init__(self, name, folder, space, address):
        self.name, self.folder, self.space, self.address = name, folder, space, address
        self.socket = str(folder / name)
        (folder / "private").mkdir(exist_ok=True)
        inside = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
        serve = [sys.executable, "-S", "-E", machine.__file__, "serve", name, self.socket]
        serve += [folder / "known", folder / "private"]
        self._unshare = subprocess.Popen(["ip", "netns", "exec", space, *inside, *serve])
        wait_for(lambda: os.path.exists(self.socket))
        (self.first,) = open(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read().split()
        self._table = os.readlink(f"/proc/{self.first}/ns/pid")

    def processes(self, word=""):
        """{pid: command line} of all that is alive here, without the first process, and with `word` in it."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as f:
                    dead = f.read().rpartition(")")[2].split()[0] in "ZX"
                if not dead and pid != self.first and os.readlink(f"/proc/{pid}/ns/pid") == self._table:
                    with open(f"/proc/{pid}/cmdline") as f:
                        command = f.read().replace("\0", " ")
                    if word in command:
                        found[int(pid)] = command
            except OSError:
                pass  # it ended meanwhile
        return found

    def rank(self, number):
        """The process that is that rank: it writes into the log of the rank."""
        return next(pid for pid in self.processes("launcher.worker") if _output(pid).endswith(f"/log.{number}"))

    def do(self, *words):
        """Run a command here, which has to succeed."""
        with machine.start(self.socket, list(map(str, words)), {}, [0, 1, 2]) as client:
            machine.number(client)
            assert machine.number(client) == 0, words

    def shared_memory(self):
        return os.listdir(os.path.join("/proc", self.first, "root", "dev", "shm"))

    def listening(self):
        """{pid: [(address, port) as the kernel writes them]} of the TCP sockets that listen here."""
        holders = {}
        for pid in self.processes():
            for fd in os.listdir(f"/proc/{pid}/fd"):
                holders.setdefault(os.readlink(f"/proc/{pid}/fd/{fd}"), pid)
        found = {}
        for kind in ("tcp", "tcp6"):
            for row in map(str.split, Path(f"/proc/{self.first}/net/{kind}").read_text().splitlines()[1:]):
                if row[3] == "0A":
                    found.setdefault(holders.get(f"socket:[{row[9]}]"), []).append(row[1].split(":"))
        return found

    def is_refused(self, address, port):
        """Whether a connection from here to there is."""
        code = f"import socket; socket.create_connection(({address!r}, {port}), 5)"
        tried = subprocess.run(
            ["ip", "netns", "exec", self.space, sys.executable, "-c", code], capture_output=True, text=True
        )
        return "ConnectionRefusedError" in tried.stderr

    def cable(self, state):
        """Plug it in ("up"), and wait until it carries, or pull it out ("down")."""
        subprocess.run(["ip", "-n", self.space, "link", "set", self.space, state], check=True)
        if state == "up":
            self.carries()

    def carries(self):
        """Wait until the cable does: the kernel says so up to a second after both ends are up."""
        show = ["ip", "-n", self.space, "link", "show", self.space]
        wait_for(lambda: " state UP " in subprocess.run(show, check=True, capture_output=True, text=True).stdout)

    def end(self):
        self._unshare.kill()
        self._unshare.wait()


def _output(pid):
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return ""  # it ended meanwhile


def parent(pid):
    """The parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def switches(pid):
    """How often a process has been woken so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith("voluntary_ctxt_switches"))


class Notebook:
    """A Python process on a host that runs one piece of code after another, as a kernel does.

    The code finds `until(happened, complaint)`, which waits, and raises what `complaint` says after 30 s.
    """

    _LOOP = """
        import collectlab as cl, faulthandler, json, linecache, signal, time, traceback

        def until(happened, complaint):
            end = time.monotonic() + 30
            while not happened():
                assert time.monotonic() < end, complaint()

        faulthandler.register(signal.SIGUSR1)
        talk, space, cells = open(0, "r+b", buffering=0), {"cl": cl, "until": until}, 0
        while line := talk.readline():
            code, kind = json.loads(line)
            cells += 1
            linecache.cache[f"<cell {cells}>"] = len(code), None, code.splitlines(True), f"<cell {cells}>"
            try:
                code = compile(code, f"<cell {cells}>", kind)
                answer = [None, repr(eval(code, space)) if kind == "eval" else exec(code, space)]
            except BaseException as error:
                answer = [f"{type(error).__name__}: {error}", traceback.format_exc()]
            talk.write(json.dumps(answer).encode() + b"\\n")
    """

    def __init__(self, host, environment):
        ours, theirs = socket.socketpair()
        ours.settimeout(90)
        self.talk = ours.makefile("rwb", buffering=0)
        self.output = open(host.folder / "notebook", "w+b")
        command = [sys.executable, "-c", textwrap.dedent(self._LOOP)]
        with theirs:
            streams = [theirs.fileno(), self.output.fileno(), self.output.fileno()]
            self.client = machine.start(host.socket, command, environment, streams)
        ours.close()
        machine.number(self.client)
        self.pid = wait_for(lambda: list(host.processes("talk, space")))[0]

    def begin(self, code, kind="exec"):
        self.talk.write(json.dumps([textwrap.dedent(code), kind]).encode() + b"\n")

    def end(self):
        try:
            error, value = json.loads(self.talk.readline())
        except TimeoutError:
            raise AssertionError(f"the notebook does not answer; it is here:\n{self._stacks()}") from None
        if error:
            raise NotebookError(error, value)
        return value

    def _stacks(self):
        os.kill(self.pid, signal.SIGUSR1)
        wait_for(lambda: b"most recent call first" in os.pread(self.output.fileno(), 1 << 16, 0))
        os.kill(self.pid, signal.SIGKILL)  # it would not answer the next test either
        return os.pread(self.output.fileno(), 1 << 16, 0).decode()

    def run(self, code):
        """Run statements; NotebookError when they raise."""
        self.begin(code)
        self.end()

    def __call__(self, code):
        """The value of an expression, which is one that repr shows whole."""
        import ast

        self.begin(code, "eval")
        return ast.literal_eval(self.end())

    def close(self):
        self.talk.close()
        machine.number(self.client)
        self.client.close()
        self.output.close()


class NotebookError(Exception):
    def __str__(self):
        return self.args[0]


class Hosts:
    """Both hosts, the files that name them, and the notebook on alpha."""

    def __init__(self, folder):
        self.folder = folder
        self.spaces = [f"cl{os.getpid()}{name[0]}" for name in NAMES]
        (folder / "known").write_text("127.0.0.1 localhost\n10.77.31.1 alpha\n10.77.31.2 beta\n")
        self.file = folder / "hosts"
        self.file.write_text("# two of them\nalpha:2\nbeta:2\n")
        self.shell = folder / "shell"
        self.shell.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {machine.__file__} run {folder} "$@"\n')
        self.shell.chmod(0o755)
        self.environment = {
            "COLLECTLAB_HOSTS": str(self.file), "HYDRA_LAUNCHER_EXEC": str(self.shell), "PYTHONPATH": str(ROOT),
            "COLLECTLAB_RUNS": str(folder / "runs"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            # UCX takes two hosts with one kernel for one, and would look for the other's memory in its own /dev/shm
            "UCX_TLS": "self,tcp",
        }  # fmt: skip
        self.machines, self._notebook, self.staying = [], None, set()  # staying: pids that are not the ranks'

    def build(self):
        for space in self.spaces:
            _ip("netns", "add", space)
        a, b = self.spaces
        _ip("link", "add", a, "netns", a, "type", "veth", "peer", "name", b, "netns", b)
        for side, space in enumerate(self.spaces, 1):
            _ip("-n", space, "address", "add", f"10.77.31.{side}/24", "dev", space)
            for device in ("lo", space):
                _ip("-n", space, "link", "set", device, "up")
            self.machines.append(Machine(NAMES[side - 1], self.folder, space, f"10.77.31.{side}"))
        self.alpha, self.beta = self.machines
        for one in self.machines:
            one.carries()

    @property
    def notebook(self):
        """The notebook, which is started anew where the last test has ended it."""
        if self._notebook and self._notebook.pid not in self.alpha.processes():
            self.kill_notebook()
        if self._notebook is None:
            self._notebook = Notebook(self.alpha, self.environment)
        return self._notebook

    def another_notebook(self, settings):
        """A notebook with other variables, in the place of the present one; `kill_notebook` ends it."""
        if self._notebook:
            self.kill_notebook()
        self._notebook = Notebook(self.alpha, {**self.environment, **settings})
        return self._notebook

    def kill_notebook(self):
        if self._notebook.pid in self.alpha.processes():
            os.kill(self._notebook.pid, 9)
        self._notebook.close()
        self._notebook = None

    def left(self):
        """What is there that no host had before the ranks."""
        spare = self.staying | ({self._notebook.pid} if self._notebook else set())
        found = {m.name: {p: c for p, c in m.processes().items() if p not in spare} for m in self.machines}
        found |= {f"shared memory of {m.name}": m.shared_memory() for m in self.machines}
        keys = [path.name for path in (self.folder / "runs").glob("*.key")]
        return {where: what for where, what in {**found, "keys": keys}.items() if what}

    def gone(self, within=3.0):
        """Wait until nothing is left on either host; fails after `within` seconds."""
        wait_for(lambda: not self.left(), within, lambda: f"left: {self.left()}")

    def tear_down(self):
        if self._notebook:
            self._notebook.close()
        for one in self.machines:
            one.end()
        for space in self.spaces:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)


def _ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

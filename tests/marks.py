"""Processes that carry the mark of a test in their environment."""

import os
import time


class Mark:
    """Finds the processes that carry the mark of the present test in their environment."""

    def __init__(self, value):
        self.value = value
        self._mark = f"COLLECTLAB_TEST={value}\0".encode()

    def on(self, pid):
        """Whether the process of that number carries the mark; one that has ended has no environment."""
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                return self._mark in f.read() + b"\0"
        except OSError:
            return False

    def alive(self):
        """{pid: command line} of live processes with the mark, without this one."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if int(pid) == os.getpid() or not self.on(pid):
                continue
            try:
                with open(f"/proc/{pid}/stat") as f:
                    dead = f.read().rpartition(")")[2].split()[0] in "ZX"
                with open(f"/proc/{pid}/cmdline") as f:
                    command = f.read().replace("\0", " ")
            except OSError:
                continue
            if not dead:
                found[int(pid)] = command
        return found

    def pids(self, kind):
        """The pids of one kind: "supervisor", "mpiexec", "proxy" or "worker" (a rank or its guard)."""
        words = {
            "supervisor": "launcher.supervisor", "mpiexec": "mpiexec", "proxy": "hydra_pmi_proxy",
            "worker": "launcher.worker",
        }  # fmt: skip
        found = []
        for pid, command in self.alive().items():
            first = command.partition("launcher.worker")[0] if "mpiexec" in command else command  # it names its ranks
            kinds = [name for name, word in words.items() if word in first]
            if kinds[-1:] == [kind]:
                found.append(pid)
        return found

    def gone(self, within=3.0, but=()):
        """Wait until no process with the mark is alive; fails after `within` seconds."""
        wait_for(lambda: not set(self.alive()) - set(but), within, lambda: f"still alive: {self.alive()}")


def wait_for(happened, within=10.0, complaint=lambda: "it did not happen"):
    """Wait until `happened()`, and return what it says; what is watched is another process, which sends nothing."""
    end = time.monotonic() + within
    while not (found := happened()):
        assert time.monotonic() < end, complaint()
        time.sleep(0.005)
    return found

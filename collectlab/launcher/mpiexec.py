"""An mpiexec for ranks of MPICH on one host, which listens nowhere.

MPICH's own listens at a port of every network, to which nobody has to prove who he is. This one serves PMI-1, the
wire protocol by which MPICH's ranks find each other (lines of KEY=VALUE), over a pair of sockets with each.

    python mpiexec.py -n 4 COMMAND...
"""

import os
import selectors
import socket
import sys


class Ranks:
    """The processes that run `words`, `n` of them, and what they have told each other."""

    def __init__(self, n, words):
        self.n, self.left = n, n
        self.kept = {"PMI_process_mapping": f"(vector,(0,1,{n}))"}  # one host, and all ranks on it
        self.name = f"ranks_{os.urandom(8).hex()}"  # MPICH names its shared memory after it
        self.waiting, self.parts = [], {}  # those in a barrier; what each has sent of an unfinished line
        self.code = 0
        self.selector = selectors.DefaultSelector()
        for rank in range(n):
            self._start(rank, words)

    def _start(self, rank, words):
        ours, theirs = socket.socketpair()
        own = {"PMI_FD": theirs.fileno(), "PMI_RANK": rank, "PMI_SIZE": self.n}
        own |= {"MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": self.n}
        environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
        with theirs:
            theirs.set_inheritable(True)
            # a group for each, as a program that signals its group means its own; but one session, in which the
            # scheduler (sched_autogroup) gives a core that a waiting rank yields to another rank
            pid = os.posix_spawnp(words[0], words, environment, setpgroup=0)
        self.parts[ours] = b""
        self.selector.register(ours, selectors.EVENT_READ, self._on_rank)
        ended = os.pidfd_open(pid)
        self.selector.register(ended, selectors.EVENT_READ, lambda pidfd: self._on_exit(pidfd, rank, pid))

    def serve(self):
        """Until all have ended, or one has not ended well, for which the others would wait; returns its exit code."""
        while self.left and not self.code:
            for key, _ in self.selector.select():
                key.data(key.fileobj)
        return self.code

    def _on_exit(self, pidfd, rank, pid):
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            print(f"rank {rank} {f'exited with {code}' if code > 0 else f'was killed by signal {-code}'}", flush=True)
        self.code = self.code or (code if code >= 0 else 128 - code)
        self.selector.unregister(pidfd)
        os.close(pidfd)
        self.left -= 1

    def _on_rank(self, rank):
        try:
            data = rank.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self.selector.unregister(rank)
            return
        *lines, self.parts[rank] = (self.parts[rank] + data).split(b"\n")
        for line in lines:
            self._answer(rank, line.decode())

    def _answer(self, rank, line):
        said = dict(word.partition("=")[::2] for word in line.split())
        op = said.get("cmd") or said.get("mcmd")
        if op == "init":
            answer = "response_to_init rc=0 pmi_version=1 pmi_subversion=1"
        elif op == "get_maxes":
            answer = "maxes kvsname_max=256 keylen_max=64 vallen_max=1024"
        elif op == "get_appnum":
            answer = "appnum appnum=0"
        elif op == "get_my_kvsname":
            answer = f"my_kvsname kvsname={self.name}"
        elif op == "put":
            self.kept[said["key"]] = line.partition(" value=")[2]
            answer = "put_result rc=0 msg=success"
        elif op == "get":
            value = self.kept.get(said["key"])
            answer = f"get_result rc=0 msg=success value={value}" if value else "get_result rc=-1 msg=key_not_found"
        elif op == "barrier_in":
            self.waiting.append(rank)
            if len(self.waiting) < self.n:
                return
            for other in self.waiting:
                self._send(other, "barrier_out")
            self.waiting = []
            return
        elif op == "finalize":
            answer = "finalize_ack"
        elif op in (None, "abort"):  # a line of a command that is refused; or the rank is about to end itself
            return
        else:  # more processes, and names for ports
            answer = f"{op.removesuffix('_name')}_result rc=-1 msg=not_on_one_host"
        self._send(rank, answer)

    def _send(self, rank, answer):
        try:
            rank.sendall(f"cmd={answer}\n".encode())
        except OSError:
            pass  # it has ended


def main():
    _, option, n, *words = sys.argv
    if option != "-n" or not words:
        sys.exit("mpiexec.py -n N COMMAND...")
    sys.exit(Ranks(int(n), words).serve())


if __name__ == "__main__":
    main()

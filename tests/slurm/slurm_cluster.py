"""A Slurm cluster on this machine: a login node and two compute nodes.

Each is a set of namespaces: it has a network card, a name, a /dev/shm and processes of its own, and sees no process
of another. A bridge joins them; the file system is shared, as on a real cluster. So what must reach another node has
to travel there, and what one node leaves alive no other could have killed. This process sees them all.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NSENTER = shutil.which("nsenter")
OUTER = ("SLURM", "SALLOC", "SBATCH")
ADDRESSES = {"login": "10.77.41.1", "n1": "10.77.41.2", "n2": "10.77.41.3"}
INSIDE = ("salloc", "--quiet", "--nodes=2", "--ntasks=4")  # of an allocation that takes the whole cluster
# the first process of a node: it takes in what others there leave behind, and the node ends with it
INIT = """
import os, signal, sys
def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
signal.signal(signal.SIGCHLD, reap)
print("up", flush=True)
sys.stdin.read()
"""
NODE = """
hostname "$1" && mount -t tmpfs none /dev/shm && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"
"""
CONFIGURATION = """
ClusterName=collectlab
SlurmctldHost=login(10.77.41.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=300
SlurmdTimeout=300
GresTypes=gpu
NodeName=n1 NodeAddr=10.77.41.2 CPUs=2 Gres=gpu:2
NodeName=n2 NodeAddr=10.77.41.3 CPUs=2 Gres=gpu:2
PartitionName=work Nodes=n1,n2 Default=YES MaxTime=240
PartitionName=short Nodes=n1,n2 MaxTime=1 MaxNodes=1
"""


class Cluster:
    """The cluster, in a folder of its own; `stop` ends all of it."""

    def __init__(self, folder):
        self.folder, self.nodes = Path(folder), {}
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(OUTER)},
            "SLURM_CONF": str(self.folder / "slurm.conf"),
        }  # fmt: skip
        try:
            self._write_files()
            for name in ADDRESSES:
                self.nodes[name] = self._node(name)
            self._join()
            self._serve()
        except BaseException:
            self.stop()
            raise

    def _write_files(self):
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(folder=self.folder))
        for gpu in "01":
            subprocess.run(["mknod", str(self.folder / f"gpu{gpu}"), "c", "1", "3"], check=True)  # a device, no GPU
        (self.folder / "gres.conf").write_text(f"NodeName=n[1-2] Name=gpu File={self.folder}/gpu[0-1]\n")
        names = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in ADDRESSES.items())]
        (self.folder / "hosts").write_text("\n".join(names) + "\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)

    def _node(self, name):
        """Start a node's first process; returns it, with the pid that it has here."""
        apart = ["unshare", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        first = ["sh", "-c", NODE, "sh", name, str(self.folder / "hosts"), sys.executable, "-I", "-c", INIT]
        pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE) | {"stderr": subprocess.DEVNULL}
        node = subprocess.Popen([*apart, *first], text=True, **pipes)
        assert node.stdout.readline() == "up\n", f"node {name} did not start"
        with open(f"/proc/{node.pid}/task/{node.pid}/children") as children:
            node.first = int(children.read().split()[0])
        return node

    def _join(self):
        """Lay the network: a bridge on the login node, and a cable from it to each compute node."""
        self._ip("login", "link", "add", "lan", "type", "bridge")
        for name, address in ADDRESSES.items():
            card = "lan" if name == "login" else "eth0"
            if name != "login":
                pid = str(self.nodes[name].first)
                self._ip("login", "link", "add", name, "type", "veth", "peer", "name", card, "netns", pid)
                self._ip("login", "link", "set", name, "master", "lan", "up")
            self._ip(name, "address", "add", f"{address}/24", "dev", card)
            for device in ("lo", card):
                self._ip(name, "link", "set", device, "up")

    def _ip(self, name, *words):
        subprocess.run(
            [NSENTER, f"--target={self.nodes[name].first}", "--net", "ip", *words],
            check=True, capture_output=True, text=True,
        )  # fmt: skip

    def _serve(self):
        """Start munge and Slurm, and wait until both nodes take jobs."""
        files = [f"--{word}-file={self.folder}/munge.{word}" for word in ("key", "pid", "log", "seed")]
        self._daemon("login", "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *files)
        self._until(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._daemon("login", "slurmctld", "-D")
        for name in ("n1", "n2"):
            self._daemon(name, "slurmd", "-D", "-N", name)
        self._until(lambda: self.said("sinfo", "-h", "-N", "-p", "work", "-o", "%T").split() == ["idle"] * 2, "Slurm")

    def _daemon(self, name, program, *arguments):
        with open(self.folder / f"{program}.{name}.output", "w") as output:
            self.start(name, [program, *arguments], stdout=output, stderr=output, env=self.environment)

    def _until(self, happened, what):
        end = time.monotonic() + 30
        while not happened():
            if time.monotonic() > end:
                files = [*self.folder.glob("*.log"), *self.folder.glob("*.output")]
                logs = "\n".join(f"{file.name}:\n{file.read_text()[-2000:]}" for file in files)
                raise AssertionError(f"{what} does not serve:\n{logs}")
            time.sleep(0.02)

    def stop(self):
        """End each node, and with its first process all of it."""
        for node in self.nodes.values():
            try:
                os.kill(node.first, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for node in self.nodes.values():
            with node:
                node.wait(10)

    # what tests do with it

    def start(self, name, words, **more):
        """Start a command on a node; a Popen."""
        path = f"/usr/local/sbin:/usr/sbin:/sbin:{os.environ['PATH']}"
        program = shutil.which(words[0], path=path) or words[0]
        inside = [NSENTER, f"--target={self.nodes[name].first}", "--net", "--uts", "--ipc", "--pid", "--mount"]
        more = {"stdin": subprocess.DEVNULL, **more}
        return subprocess.Popen([*inside, program, *words[1:]], **more)

    def said(self, *words):
        """What a command says on the login node."""
        process = self.start(
            "login", words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment
        )
        return process.communicate(timeout=60)[0]

    def jobs(self):
        """The names of the jobs that wait or run; Slurm itself may take some seconds to close the book of one."""
        return self.said("squeue", "-h", "-t", "PENDING,CONFIGURING,RUNNING,SUSPENDED", "-o", "%j").split()

    def empty(self):
        """End all jobs, and wait until both nodes are free."""
        self.said("scancel", "--user=root")
        self._until(lambda: not self.said("squeue", "-h"), "the queue")

    def python(self, code, *arguments, within=(), node="login", **variables):
        """Run Python there, in what the words `within` start; a Popen with pipes."""
        words = [*within, sys.executable, "-c", code, *map(json.dumps, arguments)]
        return self.start(
            node, words, env={**self.environment, **own(), **variables}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip


def own():
    """The variables of the present test."""
    return {name: value for name, value in os.environ.items() if name.startswith(("COLLECTLAB_", "TMPDIR"))}


def pid_of(mark, kind):
    """The pid of the one process of that kind: "notebook", "supervisor", "salloc" or "srun"."""
    found = []
    for pid, command in mark.alive().items():
        program = os.path.basename(command.split()[0])
        if kind == program or (program.startswith("python") and _SAYS.get(kind, "\0") in command):
            found.append(pid)
    assert found, f"no {kind} among {mark.alive()}"
    return min(found)


_SAYS = {"notebook": "given = [json", "supervisor": "launcher.supervisor"}

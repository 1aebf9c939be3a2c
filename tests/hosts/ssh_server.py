"""A real sshd on the second host, with keys and files of its own: nothing of the machine's is read or changed."""

import os
import pwd
import shutil
import signal
import subprocess

import machine
from marks import wait_for

SSHD_CONFIG = """
HostKey {folder}/host
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication yes
ListenAddress {address}
PidFile none
"""
SSH_CONFIG = """
IdentityFile {folder}/user
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile none
"""


class SshServer:
    """sshd on beta, and what ssh reads on either host; its pid is that of the process which listens."""

    def __init__(self, hosts):
        self.folder, self.beta = hosts.folder / "ssh", hosts.beta
        (self.folder / "empty").mkdir(parents=True)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name], check=True)
        self._files = {
            "sshd_config": SSHD_CONFIG.format(folder=self.folder, address=hosts.beta.address),
            "ssh_config": SSH_CONFIG.format(folder=self.folder),
            "known_hosts": f"beta {self.key('host')}",
            "authorized_keys": self.key("user"),
        }
        self.restore()
        for host in hosts.machines:
            host.do("mount", "--bind", self.folder / "ssh_config", "/etc/ssh/ssh_config")
            own = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".ssh")
            if os.path.isdir(own):
                host.do("mount", "--bind", self.folder / "empty", own)
        self.beta.do("sh", "-c", "mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd")
        sshd = [shutil.which("sshd", path="/usr/sbin:/sbin"), "-D", "-e", "-f", str(self.folder / "sshd_config")]
        with open(self.folder / "log", "wb") as log, open(os.devnull) as nothing:
            streams = [nothing.fileno(), log.fileno(), log.fileno()]
            self._client = machine.start(self.beta.socket, sshd, {}, streams)
        wait_for(lambda: "Server listening" in self.log(), complaint=self.log)
        (self.pid,) = wait_for(lambda: self.beta.processes("[listener]"))

    def key(self, name):
        """A public key, as it stands in a file."""
        return (self.folder / f"{name}.pub").read_text()

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def add_to_config(self, text):
        """Let ssh read these lines before the others."""
        self.write("ssh_config", text + self._files["ssh_config"])

    def restore(self):
        """Let every file be as it was in the beginning."""
        for name, text in self._files.items():
            self.write(name, text)

    def log(self):
        return (self.folder / "log").read_text()

    def sessions(self):
        """The processes of sshd that serve somebody."""
        return [pid for pid in self.beta.processes("sshd: ") if pid != self.pid]

    def end(self):
        os.kill(self.pid, signal.SIGTERM)
        machine.number(self._client), machine.number(self._client)  # its pid there, and its exit code
        self._client.close()

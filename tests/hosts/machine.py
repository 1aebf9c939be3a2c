"""The first process of a host that is made of namespaces, and the remote shell that starts others there.

    machine.py serve NAME SOCKET HOSTS PRIVATE       as process 1: private /proc, /dev/shm and folder, then serve
    machine.py run FOLDER [OPTIONS] NAME COMMAND...  what Hydra calls in the place of ssh

Like ssh, it gives a command this side's streams, none of its variables, and its exit code back.
"""

import array
import itertools
import json
import os
import socket
import subprocess
import sys
import threading


def serve(name, path, hosts, private):
    socket.sethostname(name)
    os.environ["TMPDIR"] = private
    for folder in ("/dev/shm", private):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen(64)
    os.rename(f"{path}.new", path)
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_start, args=(client,), daemon=True).start()


def _start(client):
    text, streams, _, _ = socket.recv_fds(client, 1 << 16, 3)
    command, environment = json.loads(text)
    plain = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR")}
    process = subprocess.Popen(
        command, stdin=streams[0], stdout=streams[1], stderr=streams[2], env={**plain, **environment},
        shell=isinstance(command, str), start_new_session=True,
    )  # fmt: skip
    for stream in streams:
        os.close(stream)
    try:
        client.sendall(array.array("i", [process.pid]).tobytes())
        client.sendall(array.array("i", [process.wait()]).tobytes())
    except OSError:
        pass  # the client was killed; what it started goes on, as under ssh
    client.close()


def start(path, command, environment, streams):
    """Start a command on the host that serves at `path`; returns the socket over which its pid and its end come."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    socket.send_fds(client, [json.dumps([command, environment]).encode()], streams)
    return client


def number(client):
    """The next number that comes over such a socket."""
    data = client.recv(4, socket.MSG_WAITALL)
    return array.array("i", data)[0] if data else None


def run(folder, *words):
    name, *command = itertools.dropwhile(lambda word: word.startswith("-"), words)
    client = start(f"{folder}/{name}", " ".join(command), {}, [0, 1, 2])
    number(client)
    code = number(client)
    sys.exit(1 if code is None else code if code >= 0 else 128 - code)


if __name__ == "__main__":
    {"serve": serve, "run": run}[sys.argv[1]](*sys.argv[2:])

"""Every process a gang started, found by the tag that each of them inherits in its environment.

Process groups and sessions do not hold a gang together (Hydra gives each rank a session of its own, and a
program may start processes itself); an inherited environment variable does.
"""

import json
import os
import re
import signal
import time

TAG = "COLLECTLAB_TAG"
_LIBRARIES = ("mpich_", "ucx_shm_", "vader_segment", "sm_segment", "ompi_", "psm2_shm")


def tagged(tag, spare=(), variable=TAG):
    """The pids of live processes that belong to `tag`, without the caller and without `spare`.

    Those are the processes whose environment holds the tag, in that variable, and the descendants of all these:
    what a program starts with an environment of its own is found through its parents.
    """
    mark = f"{variable}={tag}\0".encode()
    found, children = [], {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as f:
                _, parent = f.read().rpartition(b")")[2].split()[:2]
            children.setdefault(int(parent), []).append(int(name))
            with open(f"/proc/{name}/environ", "rb") as f:
                if mark in f.read() + b"\0":
                    found.append(int(name))
        except OSError:
            pass  # it ended meanwhile, or it is another user's
    for pid in found:  # grows as it goes
        found += children.pop(pid, ())
    return [pid for pid in dict.fromkeys(found) if pid not in {os.getpid(), *spare} and _alive(pid)]


def adopt_orphans():
    """Make this process the parent of what its descendants leave behind, so that `tagged` finds it."""
    import ctypes

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def turn(tag):
    """Wait until no other process sweeps for `tag`, as two would kill each other half-way; until close() of it."""
    import socket

    found = socket.socket(socket.AF_UNIX)
    while True:
        try:
            found.bind(f"\0collectlab-sweep-{tag}")
            return found
        except OSError:
            time.sleep(0.005)  # the other one will kill this process, unless it is killed itself


def kill(tag, spare=(), within=3.0, since=None, leaves=()):
    """Kill every process that carries `tag`, and the shared-memory files that only they had mapped.

    `since` is when the first of them started, for ranks that may have died inside MPI_Init: what they had made
    by then is removed too. So are the files and folders `leaves`: with {pid} in it, where that of the launcher is not
    known, those of all that have ended.
    Returns the pids that are still alive after `within` seconds (none, unless the kernel holds one back).
    """
    files, killed, end = set(), set(), time.monotonic() + within
    # one that is killed loses its environment first, and its files after that
    while left := list({*(found := tagged(tag, spare)), *filter(_alive, killed)}):
        files = files.union(*map(shared_memory, found))  # of all, as one's death may be another's
        leaves = [*leaves, *(path for pid in found for path in _leaves_of(pid))]
        killed.update(found)
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # it has ended, or it is another user's: then it is reported as left
        if time.monotonic() > end:
            return left
        _await_exit(left, 0.2)
    unlink(files if since is None else files | abandoned(since))
    leaves = [found for path in leaves for found in ([path] if "{pid}" not in path else _orphaned(path, since))]
    unlink(leaves)
    for path in filter(os.path.isdir, leaves):
        import shutil

        shutil.rmtree(path, ignore_errors=True)
    return []


def _leaves_of(pid):
    """What a killed launcher leaves behind that a program on the ranks has started, in ranks of its own."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            control = re.search(rb"(?:\A|\0)COLLECTLAB_CONTROL=([^\0]*)", f.read())
        leaves = json.loads(control[1])["leaves"] if control else ()
        return [path.replace("{pid}", str(pid)) for path in leaves if "{pid}" in path]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []  # it has ended, or the variable is not ours


def _orphaned(path, since):
    """What is called `path`, with the number of no process in the place of {pid}, and was made after `since`."""
    folder, name = os.path.split(path)
    words = re.compile(re.escape(name).replace(re.escape("{pid}"), r"(\d+)"))
    found = []
    for entry in os.scandir(folder) if since and os.path.isdir(folder) else ():
        try:
            about, match = entry.stat(follow_symlinks=False), words.fullmatch(entry.name)
        except OSError:
            continue
        if match and about.st_uid == os.getuid() and about.st_ctime >= since - 0.1 and not _alive(match[1]):
            found.append(entry.path)
    return found


def abandoned(since):
    """This user's files of an MPI library in /dev/shm, made after `since`, that no process has open or mapped."""
    made = set()
    for entry in os.scandir("/dev/shm"):
        try:
            about = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if entry.name.startswith(_LIBRARIES) and about.st_uid == os.getuid() and about.st_ctime >= since - 0.1:
            made.add(entry.path)
    for pid in filter(str.isdigit, os.listdir("/proc")) if made else ():
        try:
            opened = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")}
            if os.path.exists(f"/proc/{pid}/exe"):  # else it has died, up to its descriptors
                made -= opened
        except OSError:
            pass  # it ended meanwhile, or it is another user's
        made -= shared_memory(pid)  # second, as a file is mapped before its descriptor is closed
    return made


def unlink(files):
    """Remove `files`, as far as they are still there."""
    for path in files:
        try:
            os.unlink(path)
        except OSError:
            pass  # another process was faster


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return f.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def _await_exit(pids, seconds):
    end = time.monotonic() + seconds
    while any(_alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.002)


def shared_memory(pid):
    """Files of an MPI library in /dev/shm that `pid` has mapped and that still have a name."""
    try:
        with open(f"/proc/{pid}/maps") as f:
            lines = [line.rstrip("\n") for line in f if "/dev/shm/" in line]
    except OSError:
        return set()
    paths = {line[line.index("/dev/shm/") :] for line in lines if not line.endswith(" (deleted)")}
    return {path for path in paths if os.path.basename(path).startswith(_LIBRARIES)}

"""The directory that a Run is: which files it holds, where it lies, how long it is kept.

spec.json       what was asked for: program, ranks, device, site, sources of notebook cells; and in which session,
                where the variable COLLECTLAB_SESSION names one
program         the program and its arguments; mine.R what per_rank gave to rank R alone
log.R           what rank R printed, both streams, as it was printed; where it printed for ever, the two ends of that
events.R        what rank R did with windows and signals, clock.R when its program began and ended; waits.R the wait
                that it is in, where that is a long one
result.R        what rank R's program returned; a small result without arrays lies in status.json
status.json     the end: status, rank map, and what became of each rank. Written last, in one step
"""

import errno
import json
import os
import re
import shutil
import stat
import time

from collectlab.launcher import sweep

VERSION = 1
ENDS = ("done", "failed", "timeout", "interrupted")  # how a run may end
SESSION = "COLLECTLAB_SESSION"  # a variable; runs that are made under one value of it belong together
KEEP = 200  # runs, the newest
KEEP_BYTES = 8 << 30  # of them together; the oldest go first
_LOG_KEPT = 1 << 20  # bytes at either end of a log that was too long
_HOUR, _WEEK = 3600, 7 * 24 * 3600


def home():
    """The directory that holds the runs of this user, made if needed (mode 0700)."""
    wanted = os.environ.get("COLLECTLAB_RUNS")
    if wanted:
        places = [os.path.abspath(os.path.expanduser(wanted))]
    else:
        state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
        places = [
            os.path.join(state, "collectlab", "runs"),
            os.path.join(os.environ.get("TMPDIR", "/tmp"), f"collectlab-runs-{os.getuid()}"),
            f"/tmp/collectlab-runs-{os.getuid()}",
        ]
    for place in filter(os.path.isabs, places):  # "~" stays as it is for a user without a home
        try:
            os.makedirs(place, mode=0o700, exist_ok=True)
        except OSError as error:
            failed = error
            continue
        about = os.stat(place) if wanted else os.lstat(place)  # in /tmp, a link may be another user's trap
        if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and os.access(place, os.W_OK):
            return place
        failed = PermissionError(f"{place} belongs to another user or cannot be written")
    raise OSError(f"no place for run directories: {failed}; name one in the variable COLLECTLAB_RUNS")


def cured(error, path):
    """The OSError that was met at `path`; one of a full disk, or of a quota that is used up, says what to do."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    cure = "make room there, or name another place for runs in the variable COLLECTLAB_RUNS"
    return OSError(error.errno, f"{error.strerror}; {cure}", path)


def create(program):
    """A new, empty run directory named after the time and the program."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = re.sub(r"\W+", "", program)[:40] or "program"
    while True:
        path = os.path.join(home(), f"{stamp}-{name}-{os.urandom(3).hex()}")
        try:
            os.mkdir(path, 0o700)
            return path
        except FileExistsError:
            pass  # of thousands within a second, two may draw the same
        except OSError as error:
            raise cured(error, path) from None


_NAME = re.compile(r"\d{8}-\d{6}-\w+-[0-9a-f]{6}")


def names():
    """The run directories of this user, oldest first."""
    base = home()
    found = []
    for entry in os.scandir(base):
        try:
            if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                found.append((entry.stat().st_mtime_ns, entry.path))
        except FileNotFoundError:
            pass
    return [path for _, path in sorted(found)]


def prune(in_use=(), mine=()):
    """Remove the oldest runs beyond KEEP and KEEP_BYTES; those `in_use` stay.

    Runs in `mine` go at once, those of other processes when they are over and an hour old.
    """
    kept, held = 0, 0
    for path in reversed(names()):
        kept += 1
        held += _bytes(path) if kept <= KEEP else 0
        if path in in_use or (kept <= KEEP and held <= KEEP_BYTES):
            continue
        try:
            if path in mine or (time.time() - os.stat(path).st_mtime > _HOUR and not _going(path)):
                shutil.rmtree(path)
        except OSError:
            pass  # another process prunes too


def _going(path):
    if os.path.exists(os.path.join(path, "status.json")):
        return False
    try:
        return is_alive(path, spec(path))
    except (OSError, ValueError):
        return False


def is_alive(path, found):
    """Whether processes of the run at `path` are alive, whose spec was `found`.

    Those of another host, with which this one shares the folder, cannot be seen: they are taken to live for a week.
    """
    here = os.uname().nodename
    if found.get("host", here) != here:
        return time.time() - os.stat(path).st_mtime < _WEEK
    return bool(sweep.tagged(found["tag"]))


def _bytes(path):
    try:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(path))
    except OSError:
        return 0


def write_json(path, value):
    """Write `value` so that a reader sees all of it or the previous state, never a part."""
    draft = f"{path}.{os.getpid()}"
    try:
        with open(draft, "w") as f:
            json.dump(value, f)
        os.replace(draft, path)
    except BaseException as error:
        sweep.unlink([draft])
        raise cured(error, path) if isinstance(error, OSError) else error from None


def read_json(path):
    """The value that `write_json` wrote to `path`."""
    with open(path) as f:
        return json.load(f)


def spec(path):
    """The spec of the run at `path`, checked.

    Raises FileNotFoundError or ValueError that says what is there instead: no directory, half a run, a run of
    a newer version.
    """
    call = f"attach({path!r})"
    if not os.path.isdir(path):
        raise FileNotFoundError(
            f"{call}: there is no such directory; `collectlab runs` lists the runs that are kept"
        )
    about = os.stat(path)
    if about.st_uid != os.getuid():
        raise PermissionError(
            f"{call}: the directory belongs to another user; only one's own runs are opened"
        )
    if about.st_mode & stat.S_IWOTH:
        raise PermissionError(f"{call}: everybody may write into it; if it is as you left it, chmod o-w it")
    try:
        found = read_json(os.path.join(path, "spec.json"))
    except FileNotFoundError:
        raise ValueError(f"{call}: not a run directory: it holds no spec.json") from None
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{call}: spec.json cannot be read ({error}); the run was written only in part"
        ) from None
    version = found.get("version") if isinstance(found, dict) else None
    if not isinstance(version, int):
        raise ValueError(f"{call}: spec.json names no version; it is not a run of collectlab")
    if version > VERSION:
        raise ValueError(
            f"{call}: the run has format {version}, this collectlab reads up to {VERSION}; "
            "open it with the newer collectlab that wrote it"
        )
    missing = {"nranks", "program", "device", "tag", "created"} - found.keys()
    if missing:
        raise ValueError(
            f"{call}: spec.json lacks {', '.join(sorted(missing))}; the run was written only in part"
        )
    for key, kind in (("nranks", int), ("program", str), ("tag", str), ("created", float)):
        if type(found[key]) is not kind:
            raise ValueError(f"{call}: spec.json is not as it was written: {key} is {found[key]!r}")
    return found


def status(path, nranks):
    """What status.json of the run at `path` says, or None when there is none; ValueError when it is no status."""
    try:
        found = read_json(os.path.join(path, "status.json"))
        whole = len(found["ranks"]) == len(found["places"]) == nranks and found["status"] in ENDS
        whole = whole and isinstance(found["cause"], dict | None) and isinstance(found["seconds"], float)
        whole = whole and all(isinstance(rank["state"], str) for rank in found["ranks"])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, OSError):
        whole = False
    if not whole:
        raise ValueError(f"attach({path!r}): status.json is not as it was written, or was written only in part")
    return found


def end(path, value):
    """Write `value` as the final status of the run at `path`, unless one is there; returns what holds."""
    try:
        held = status(path, len(value["ranks"]))
        if held is None:
            write_json(os.path.join(path, "status.json"), value)
    except (OSError, ValueError):
        held = None  # the disk is full, or the directory was removed: this process knows, at least
    return held or value


def log(path, rank):
    """The file of what `rank` printed in the run at `path`."""
    return os.path.join(path, f"log.{rank:d}")


def log_length(path, rank):
    """Bytes in that file; 0 where there is none."""
    try:
        return os.stat(log(path, rank)).st_size
    except OSError:
        return 0


def shorten_log(path, rank):
    """Leave of a long log its beginning and its end, and say so between them."""
    try:
        with open(log(path, rank), "r+b") as file:
            left_out = file.seek(-_LOG_KEPT, os.SEEK_END) - _LOG_KEPT
            if left_out > 0:
                end = file.read(_LOG_KEPT)
                file.truncate(file.seek(_LOG_KEPT))
                said = f"\n[collectlab: {left_out:,} bytes of what was printed are left out here]\n"
                file.write(said.encode() + end)
    except OSError:
        pass  # it is shorter, or the directory was removed


def tail(path, rank, lines=3):
    """The last lines that `rank` printed in the run at `path`."""
    try:
        with open(log(path, rank), "rb") as f:
            f.seek(max(0, os.fstat(f.fileno()).st_size - (1 << 12)))
            return f.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []

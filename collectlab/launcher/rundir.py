"""The directory that a Run is: which files it holds, where it lies, how long it is kept.

spec.json       what was asked for: program, ranks, device, site, sources of notebook cells
program         the program and its arguments; mine.R what per_rank gave to rank R alone
log.R           what rank R printed, both streams, as it was printed
result.R        what rank R's program returned
status.json     the end: status, rank map, and what became of each rank. Written last, in one step
"""

import json
import os
import re
import time

VERSION = 1
KEEP = 200  # runs, the newest
KEEP_BYTES = 8 << 30  # of them together; the oldest go first
_HOUR = 3600


def home():
    """The directory that holds the runs of this user, made if needed (mode 0700)."""
    places = [os.environ.get("COLLECTLAB_RUNS")]
    if not places[0]:
        state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
        places = [
            os.path.join(state, "collectlab", "runs"),
            os.path.join(os.environ.get("TMPDIR", "/tmp"), f"collectlab-{os.getuid()}", "runs"),
        ]
    for place in places:
        try:
            os.makedirs(place, mode=0o700, exist_ok=True)
        except OSError as error:
            failed = error
            continue
        if os.stat(place).st_uid == os.getuid() and os.access(place, os.W_OK):
            return place
        failed = PermissionError(f"{place} belongs to another user or cannot be written")
    raise OSError(f"no place for run directories: {failed}; name one in the variable COLLECTLAB_RUNS")


def create(program):
    """A new, empty run directory named after the time and the program."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = re.sub(r"\W+", "", program)[:40] or "program"
    path = os.path.join(home(), f"{stamp}-{name}-{os.urandom(3).hex()}")
    os.mkdir(path, 0o700)
    return path


def names():
    """The run directories of this user, oldest first."""
    base = home()
    found = []
    for entry in os.scandir(base):
        try:
            if entry.is_dir(follow_symlinks=False):
                found.append((entry.stat().st_mtime_ns, entry.path))
        except FileNotFoundError:
            pass
    return [path for _, path in sorted(found)]


def prune(in_use=(), mine=()):
    """Remove the oldest runs beyond KEEP and KEEP_BYTES; those `in_use` stay.

    Runs in `mine` go at once, those of other processes when they are an hour old.
    """
    import shutil

    kept, held = 0, 0
    for path in reversed(names()):
        kept, held = kept + 1, held + _bytes(path)
        if path in in_use or (kept <= KEEP and held <= KEEP_BYTES):
            continue
        try:
            if path in mine or time.time() - os.stat(path).st_mtime > _HOUR:
                shutil.rmtree(path)
        except OSError:
            pass  # another process prunes too


def _bytes(path):
    try:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(path))
    except OSError:
        return 0


def write_json(path, value):
    """Write `value` so that a reader sees all of it or the previous state, never a part."""
    draft = f"{path}.{os.getpid()}"
    with open(draft, "w") as f:
        json.dump(value, f)
    os.replace(draft, path)


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
    if os.stat(path).st_uid != os.getuid():
        raise PermissionError(
            f"{call}: the directory belongs to another user; only one's own runs are opened"
        )
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
    missing = {"nranks", "program", "device", "tag"} - found.keys()
    if missing:
        raise ValueError(
            f"{call}: spec.json lacks {', '.join(sorted(missing))}; the run was written only in part"
        )
    return found

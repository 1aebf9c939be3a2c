"""What ranks find around them when they start: each lack with its cure, in the same words wherever it is met.

`collectlab doctor` looks at all of it; the report of ranks that did not start names what of it may be at fault.
"""

import os
import re
import tempfile
from dataclasses import dataclass

OK, WARNING, FAULT = "ok", "warning", "fault"
_SOCKET_PATH = 107  # bytes that the path of a UNIX socket may have (unix(7))
_SHARED = 64 << 20  # bytes in /dev/shm that four ranks with a few windows want


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, "ok", "warning" or "fault", what was found, and what to do about it."""

    what: str
    state: str
    found: str
    cure: str = ""

    def __str__(self):
        line = f"{self.state:8}{self.what}: {self.found}"
        return f"{line}\n        cure: {self.cure}" if self.cure else line


def shared_memory():
    """Room for windows: MPI keeps them in /dev/shm."""
    what, cure = "/dev/shm", "in a container: docker run --shm-size=1g; elsewhere: mount a larger tmpfs there"
    if not os.access("/dev/shm", os.W_OK):
        return Finding(what, FAULT, "cannot be written, so ranks cannot share windows", cure)
    there = os.statvfs("/dev/shm")
    free = there.f_bavail * there.f_frsize
    state = OK if free >= _SHARED else WARNING
    return Finding(what, state, f"{free >> 20} MiB are free", "" if state == OK else cure)


def temporary():
    """TMPDIR: MPI launchers put sockets there, whose paths have to be short."""
    place = tempfile.gettempdir()
    cure = "set TMPDIR to a short path that can be written, for example /tmp"
    named = os.environ.get("TMPDIR", place)
    if len(os.fsencode(named)) > _SOCKET_PATH - 60:
        return Finding("TMPDIR", WARNING, f"{named} is too long for the sockets of some MPI launchers", cure)
    if os.path.realpath(named) != os.path.realpath(place):
        return Finding("TMPDIR", WARNING, f"{named} cannot be written: {place} is taken, by some programs", cure)
    return Finding("TMPDIR", OK, place)


def loading(output, cure):
    """Whether a rank could load mpi4py and its MPI, from what it printed; `cure` is the site's."""
    error = r"^\w*(?:ImportError|ModuleNotFoundError): (?!No module named 'collectlab).*"
    said = re.search(rf"{error}|.*cannot open shared object file.*", output, re.M)
    if said is None:
        return Finding("MPI", OK, "loaded")
    return Finding("MPI", FAULT, f"a rank could not load it ({said[0].strip()})", cure)


def slots(output):
    """Whether an MPI launcher took more ranks than cores, from what it printed."""
    if "not enough slots" not in output:
        return Finding("slots", OK, "enough")
    cure = 'in the site\'s command: "--map-by", ":OVERSUBSCRIBE" (Open MPI 5), "--oversubscribe" (Open MPI 4)'
    return Finding("slots", FAULT, "the launcher does not let ranks share cores", cure)


def at_fault(output, cure, library=None):
    """The Findings that are not ok after a start that failed; `output` is what was printed during it.

    `library` is the MPI of mpi4py, where its ranks did not find each other.
    """
    found = [loading(output, cure), slots(output), shared_memory(), temporary()]
    if library:
        found.insert(0, other_mpi(library, cure))
    elif "MPI_Init" in output and FAULT not in [finding.state for finding in found]:
        found.insert(0, Finding("MPI", FAULT, "it did not come up in the ranks", cure))
    return [finding for finding in found if finding.state != OK]


def other_mpi(library, cure):
    """Ranks that did not find each other: what starts them belongs to another MPI than their mpi4py."""
    found = f"what starts the ranks is of another MPI than their mpi4py, which uses {library}"
    return Finding("MPI", FAULT, found, cure)

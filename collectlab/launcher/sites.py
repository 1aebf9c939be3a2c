"""Sites: how ranks are started on a machine. A site is a small file, launch/sites/NAME.toml, and not code.

    command      the words that start `{n}` processes; those of a rank follow them. {python} stands for the
                 interpreter of the ranks, {launcher} for the folder of mpiexec.py
    rank         the variable in which each process finds its rank; of several, the first that is set
    local_rank   the variable, or variables, in which it finds its rank on its host
    needs        what there has to be, and how one gets it: the cure that is named when something of it is missing
    python       the interpreter of the ranks, where it is not this one
    across       true where ranks may start on other hosts; {address} in command is where those reach this one
    hosts        the file that lists the hosts, one a line: `name`, `name:4` or `name slots=4`; {hosts} in command
                 stands for them, as name:4,other:4
    host         the variable in which a process finds the name of its host, where the machine's own will not do
    daemons      what the launcher's daemons on other hosts are called; cut off, they would stay there
    leaves       folders that a killed launcher leaves behind, with {pid}, its process, {tmp}, {host} and {uid};
                 those that are there before are not touched
    queue        where a start may have to wait: the words that list the jobs that wait, the next to run first; each
                 line has a job's name, a space, and the reason. {job} in command is the name of this start's job
    cancel       the words that end the job called {job}, wherever it is
    [hopeless]   reasons for which a job waits that will never run, with what to do about each
    [hints]      words of the launcher when it starts nothing, with what to do about each
    keep         prefixes of inherited variables that this launcher itself reads, such as "SLURM_"
    [variables]  set for the ranks, unless the user has set them; those that begin as an outer launcher's (OMPI_, ...)
                 are taken from the user where `keep` names them

$VARIABLES are filled in in command, python and hosts.
The variable COLLECTLAB_SITES names a folder with more of them, which come first. COLLECTLAB_SITE names the site that
is taken where a program names none; without it that is "local".
"""

import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field

from collectlab.launcher import network

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_HERE = (os.path.join(_ROOT, "launch", "sites"), os.path.join(_ROOT, "collectlab", "launch_sites"))
DEFAULT = "local"
_ASKING = 30  # seconds that a Python is given to say what it is: it may lie in a file system that does not answer
# what an outer launcher leaves to those that it starts: ranks would take it for their own
_OUTER = (
    "PMI_", "PMIX_", "PRTE_", "OMPI_", "SLURM_", "HYDRA_", "MPIEXEC_", "HYDI_", "MPI_LOCAL", "PALS_", "FLUX_",
    "PBS_", "LSB_",
)  # fmt: skip


@dataclass(frozen=True)
class Site:
    """A site as its file describes it."""

    name: str
    command: tuple
    rank: str
    local_rank: str
    needs: str
    python: str = ""
    across: bool = False
    hosts: str = ""
    host: str = ""
    daemons: tuple = ()
    queue: tuple = ()
    cancel: tuple = ()
    hopeless: dict = field(default_factory=dict)
    hints: dict = field(default_factory=dict)
    keep: tuple = ()
    leaves: tuple = ()
    variables: dict = field(default_factory=dict)

    @property
    def cure(self):
        """What to do when something that it needs is missing."""
        return f"site {self.name!r} needs {self.needs}"


_KINDS = {
    "command": list, "rank": str, "local_rank": str, "needs": str, "python": str, "across": bool, "hosts": str,
    "host": str, "daemons": list, "queue": list, "cancel": list, "hopeless": dict, "hints": dict,
    "keep": list, "leaves": list, "variables": dict,
}  # fmt: skip
_REQUIRED = {"command", "rank", "local_rank", "needs"}
_WORDS = {list: "a list of strings", str: "a string", dict: "a table of strings", bool: "true or false"}


class Lacking(FileNotFoundError):
    """Something that a site needs is missing; `found` says what."""

    def __init__(self, site, found):
        self.found = found
        super().__init__(f"{site.cure}; {found}")


def names():
    """The names of the sites there are."""
    files = [file for folder in _folders() if os.path.isdir(folder) for file in sorted(os.listdir(folder))]
    return list(dict.fromkeys(file.removesuffix(".toml") for file in files if file.endswith(".toml")))


def find(name):
    """The Site called `name` (None: the default). ValueError names those there are, or what is wrong in its file."""
    named = "" if name is not None else " (the variable COLLECTLAB_SITE)"
    if name is None:
        name = os.environ.get("COLLECTLAB_SITE") or DEFAULT
    if isinstance(name, str) and os.path.basename(name) == name:
        for folder in _folders():
            path = os.path.join(folder, f"{name}.toml")
            if os.path.isfile(path):
                return _read(name, path)
    known = ", ".join(map(repr, names()))
    raise ValueError(f"site={name!r}{named} is unknown; accepted: None or one of {known}")


def _folders():
    own = os.environ.get("COLLECTLAB_SITES")
    return ([own] if own else []) + list(_HERE)


def _read(name, path):
    """The site in that file."""
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ValueError(f"site={name!r}: {path} cannot be read: {error}") from None
    if unknown := sorted(found.keys() - _KINDS.keys()):
        raise ValueError(f"site={name!r}: {path} has {unknown[0]!r}; accepted: {', '.join(_KINDS)}")
    if missing := sorted(_REQUIRED - found.keys()):
        raise ValueError(f"site={name!r}: {path} lacks {missing[0]!r}")
    for key, value in found.items():
        texts = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
        if not isinstance(value, _KINDS[key]) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"site={name!r}: {path}: {key} is {value!r}; {_WORDS[_KINDS[key]]} is accepted")
        if "\0" in "".join([*value, *texts] if texts else [str(value)]):
            raise ValueError(f"site={name!r}: {path}: {key} is {value!r}; a NUL in it reaches no program")
    if wrong := [variable for variable in found.get("variables", ()) if not variable or "=" in variable]:
        raise ValueError(f"site={name!r}: {path}: variables has {wrong[0]!r}, which is no name of a variable")
    if empty := sorted(key for key in ("rank", "local_rank") if not found[key].strip()):
        raise ValueError(f"site={name!r}: {path}: {empty[0]} is empty; the name of a variable is accepted")
    if not any("{n}" in word for word in found["command"]):
        raise ValueError(f"site={name!r}: {path}: no word of command holds {{n}}, the number of ranks")
    temporary = next(filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))), "/tmp")
    here = {"{tmp}": temporary, "{host}": os.uname().nodename.partition(".")[0], "{uid}": str(os.getuid())}
    found["leaves"] = [_replaced(path, here) for path in found.get("leaves", ())]
    return Site(name, **{key: tuple(value) if isinstance(value, list) else value for key, value in found.items()})


def python(site):
    """The interpreter of the ranks. Lacking when the one that the site names will not do."""
    if not site.python:
        return sys.executable
    path = _filled_in(site, site.python)
    why = _unfit(path) if _executable(path) else "it was not found"
    if why:
        raise Lacking(site, f"{path}: {why}")
    return path


def _filled_in(site, text):
    filled = os.path.expanduser(os.path.expandvars(text))
    if unset := re.search(r"\$\{?([A-Za-z_]\w*)", filled):
        raise Lacking(site, f"the variable {unset[1]} is not set")
    return filled


_ASK = """
import importlib.util, sys
print(*sys.version_info[:2], *(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))
"""


@functools.cache
def _unfit(path):
    """Why ranks cannot run in that Python; programs travel to them as code of this version."""
    words = [path, "-c", _ASK, "mpi4py", "numpy", "cloudpickle"]
    try:
        asked = subprocess.run(words, capture_output=True, text=True, timeout=_ASKING)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if asked.returncode:
        return f"it does not start: {asked.stderr.strip()[-200:]}"
    major, minor, *lacking = [*asked.stdout.split(), "", ""]
    if not (major.isdecimal() and minor.isdecimal()):
        return "it does not answer as Python does"
    lacking = list(filter(None, lacking))
    here = sys.version_info
    if (int(major), int(minor)) != here[:2]:
        return f"it is Python {major}.{minor}, and programs come from Python {here[0]}.{here[1]}"
    return f"it lacks {', '.join(lacking)}" if lacking else ""


# a host, and how many ranks it takes in its turn: at 0 mpiexec would wait for ever
_HOST = re.compile(r"((?!-)[^\s:=,]+)(?:(?::|\s+slots=)0*([1-9]\d{0,5}))?", re.ASCII)


def hosts(site):
    """(name, ranks) of each line of the site's file of hosts; none where it has no such file.

    Lacking when a line is none that is accepted. Names may be such as only ssh knows.
    """
    if not site.hosts:
        return []
    path = _filled_in(site, site.hosts)
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = [text for line in file if (text := line.partition("#")[0].strip())]
    except (OSError, UnicodeDecodeError) as error:
        raise Lacking(site, f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    found = []
    for line in lines:
        if not (match := _HOST.fullmatch(line)):
            accepted = "a host's name; name:4, or name slots=4, for four ranks"
            raise Lacking(site, f"{path} names {line}; accepted: {accepted}")
        found.append((match[1], int(match[2] or 1)))
    if not found:
        raise Lacking(site, f"{path} names no host")
    return found


def _replaced(text, values):
    return functools.reduce(lambda text, name: text.replace(name, values[name]), values, text)


def _executable(path):
    # by the rights that count when it is started
    return os.path.isfile(path) and os.access(path, os.X_OK, effective_ids=True)


def address(site):
    """Where ranks on other hosts reach this one, None where there are none. ValueError: see `network.reached_at`."""
    return network.reached_at(dict(hosts(site))) if site.across else None


def command(site, nranks, arguments):
    """The words that start `nranks` ranks, each Python with those arguments.

    Lacking when the site's launcher is not installed, or its file of hosts will not do.
    """
    interpreter = python(site)
    values = {"{n}": str(nranks), "{python}": interpreter, "{launcher}": os.path.dirname(os.path.abspath(__file__))}
    listed = hosts(site)
    values["{hosts}"] = ",".join(f"{name}:{ranks}" for name, ranks in listed)
    if site.across:
        values["{address}"] = network.reached_at(dict(listed))
    program, *words = (_replaced(_filled_in(site, word), values) for word in site.command)
    beside = os.path.join(os.path.dirname(interpreter), program)
    found = beside if _executable(beside) else shutil.which(program)
    for needed in (found or program, *site.queue[:1], *site.cancel[:1]):
        if not (_executable(needed) if os.path.isabs(needed) else shutil.which(needed)):
            raise Lacking(site, f"{needed} was not found")
    return [found, *words, interpreter, *arguments]


def environment(site, extra):
    """The environment of the ranks: this process's, less what would confuse them, one BLAS thread a rank."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_OUTER) or k.startswith(site.keep)}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    home = {"HOME": os.path.expanduser("~")}  # Open MPI does not start without one
    return {**threads, **home, **site.variables, **kept, **extra}

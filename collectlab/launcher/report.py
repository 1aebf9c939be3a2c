"""What happened to a run, in words: to whom, where, and what the others were doing."""

import os
import re
import signal

from collectlab.words import listed, ranks_named

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LINE = 300
_ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\^_])")  # a terminal's commands
_FRAMES = 6  # places of a traceback that are shown; the log has all of them
# calls in which every rank must name the same count (MPI 4.1, chapter 6)
_SAME_COUNT = """Bcast Reduce Allreduce Reduce_scatter Reduce_scatter_block Scan Exscan Allgather Gather Scatter
    Alltoall""".split()


def text(spec, status, waits=(), told=()):
    """The report of a run from its spec and its status (what the supervisor wrote, or its present look).

    `waits` are lines about ranks that wait for a signal; they say what the ranks `told` are doing.
    """
    cause, ranks = status.get("cause") or {}, status["ranks"]
    first = min((r for r in ranks if r["state"] in _BAD), key=lambda r: r["seconds"], default=None)
    lines = [_headline(spec, status, cause, first)]
    if cause.get("said") and cause["kind"] != "refused":
        lines.append(f"the launcher said: {cause['said']}")
    for group in _alike(ranks):
        if not any(ranks[i] is first for i in group) or cause.get("kind") not in ("rank failed", "no start"):
            lines.append(f"{ranks_named(group)} {_bad(ranks[group[0]], group)}")
        lines += _where_from(ranks[group[0]])
    lines += _disagreement(ranks) or _too_long(ranks)
    lines += waits
    lines += _others(ranks, told, ended=status["status"] not in ("done", "running"))
    if status["status"] == "done":
        lines += _sharing(status)
    if status["status"] not in ("done", "running"):
        lines.append(_afterwards(cause, spec, first and ranks.index(first)))
        lines += _launcher_output(cause) + _cures(cause)
    return "\n".join(lines)


def _headline(spec, status, cause, first):
    n, after = len(status["ranks"]), f"after {status['seconds']:.1f} s"
    on = f"{spec['program']} on {n} rank{'s' * (n > 1)}"
    kind = cause.get("kind")
    if kind in ("rank failed", "no start") and first:
        group = next(g for g in _alike(status["ranks"]) if any(status["ranks"][i] is first for i in g))
        who = f"{ranks_named(group)} {_bad(first, group)}"
        if kind == "no start":
            return f"failed: {on} did not start: {who}"
        return f"failed after {first['seconds']:.1f} s: {who}"
    if kind == "unwritten":
        return f"{status['status']} {after}: {on}; its status could not be written: {cause['why']}"
    if status["status"] in ("done", "running"):
        on += f": {status['note']}" if status.get("note") else ""
        return f"{status['status']} {after if status['status'] == 'done' else after.replace('after', 'for')}: {on}"
    if kind == "timeout":
        return f"timeout: {on} was not done after {cause['limit']:g} s"
    return f"{status['status']}: {on} " + {
        "interrupted": f"was interrupted {after}",
        "stopped": f"was stopped with its ranks {after}",
        "notebook gone": f"was ended {after}, because the notebook process went away",
        "supervisor gone": f"was ended, because the supervisor of the ranks {_fallen(cause)}",
        "no word": "was ended, and nobody wrote down how: the supervisor of the ranks was killed, or the notebook "
        "before it had handed the run over",
        "launcher exit": f"lost its ranks: {_launcher(cause)}",
        "slow start": f"did not start: the ranks were not ready within {cause.get('limit', 0):g} s; "
        "try again, or set another patience in the variable COLLECTLAB_START_SECONDS",
        "other MPI": f"did not start: rank {cause.get('rank')} takes itself for the only one",
        "no GPU": f"did not start: rank {cause.get('rank')} found no GPU that answers ({cause.get('why')}); "
        "use device='cpu', or device='auto' to take what is there",
        "refused": f"did not start: {cause.get('why')}",
        "not started": "did not start: the run before it ended the ranks",
        "no launcher": f"did not start: {cause.get('why')}",
        "complaint": f"did not start: {cause.get('why')}",
        "twice": f"did not start: two processes say that they are rank {cause.get('rank')}; "
        "the site names the wrong variable for the rank, or the wrong launcher",
        "lost host": f"lost host {cause.get('host')} {after}"
        + (f", with {ranks_named(cause['ranks'])}" if cause.get("ranks") else "")
        + f": {cause.get('why')}",
        "too much output": f"was ended {after}: {ranks_named(cause.get('who', [0]))} printed more than "
        f"{cause.get('most', 0) / (1 << 20):g} MiB; the variable COLLECTLAB_LOG_MIB names another bound",
        "notebook garbled": f"was ended {after}: something wrote into the notebook's connection to the supervisor "
        f"({cause.get('why')})",
    }.get(kind, f"ended {after}")


_BAD = {
    "raised": lambda r, _: f"raised {r['error']}" + (f": {_first_line(r['message'])}" if r["message"] else ""),
    "left": lambda r, _: f"left by sys.exit({r['code']})",
    "exited": lambda r, _: (
        f"called comm.Abort({r['where']['count']})"
        if r.get("where") and r["where"]["call"] == "Abort"
        else f"ended without returning, with exit code {r['code']}"
    ),
    "killed": lambda r, were: f"{were} killed by {_signal(r['signal'])}",
    "aborted": lambda r, were: f"{were} aborted by MPI: {_first_line(r['message'])}",
    "garbled": lambda r, were: (
        f"wrote into the connection that controls {'it' if were == 'was' else 'them'}: {r['message']}"
    ),
    "lost": lambda r, were: (
        f"{were} lost: something killed the process that watches over {'it' if were == 'was' else 'one of them'}"
    ),
}


def ending(rank):
    """How a rank ended, in words; "stopped" where it was ended from outside."""
    return _bad(rank, [0]) if rank["state"] in _BAD else "stopped"


def _bad(rank, group):
    return _BAD[rank["state"]](rank, "were" if len(group) > 1 else "was")


def plain(line):
    """The line without what a terminal would take for a command, from programs that write what they like: str."""
    return "".join(map(_printable, _ESCAPE.sub("", line)))


def _printable(letter):
    return letter if letter.isprintable() else " " if letter == "\t" else "�" if letter > "\x7f" else ""


def _first_line(message):
    first, _, rest = message.strip().partition("\n")
    first = plain(first)
    short = first[:_LINE].removesuffix(", error stack:")  # MPICH's words; the log has the stack
    return short + " ..." * bool(rest or short != first)


def _alike(ranks):
    """The ranks that ended badly, in groups that ended in the same way at the same place."""
    groups = {}
    for i, rank in enumerate(ranks):
        if rank["state"] in _BAD:
            places = [(f["file"], f["line"]) for f in rank.get("frames", ())]
            groups.setdefault(repr((_bad(rank, "_"), places)), []).append(i)
    return list(groups.values())


def _where_from(rank):
    """The lines of the program that led to the end of `rank`, and what it printed last."""
    frames = rank.get("frames", ())
    shown = [f for f in frames if _learners(f)] or list(frames[-1:])
    places = [_place(frame) for frame in shown]
    lines = [f"    {place}" for place in _folded(places)[-_FRAMES:]]
    if frames and frames[-1] is not shown[-1] and not _compiled(frames[-1]):
        lines.append(f"    which called {_place(frames[-1])}")
    tail = rank.get("tail", ())
    return lines + (["    it printed last:"] if tail else []) + [f"        {plain(line)}" for line in tail]


def _folded(places):
    """Repetitions, as in a recursion, told once."""
    folded = []
    for place in places:
        if folded and folded[-1][0] == place:
            folded[-1][1] += 1
        else:
            folded.append([place, 1])
    return [place if n == 1 else f"{place}  ({n} times)" for place, n in folded]


def _others(ranks, told, ended):
    waiting = any(r.get("where") and r["where"]["inside"] and r["where"]["numbered"] for r in ranks)
    groups = {}
    for i, rank in enumerate(ranks):
        if rank["state"] in ("stopped", "not started", "unseen", "returned") and i not in told:
            groups.setdefault(_doing(rank, waiting, ended), []).append(i)
    lines = []
    for (doing, place), members in groups.items():
        seconds = max((ranks[i].get("where") or {}).get("seconds", 0.0) for i in members)
        words = {"were": "were", "their": "their"} if len(members) > 1 else {"were": "was", "their": "its"}
        lines.append(f"{ranks_named(members)} {doing.format(seconds=f'{seconds:.1f} s', **words)}{place}")
    return lines


def _doing(rank, waiting, ended):
    """What a rank was doing, to be filled in for those that did the same; and the place in the program."""
    where = rank.get("where")
    if rank["state"] == "not started":
        return "did not start" if ended else "had not begun", ""
    if rank["state"] == "unseen":
        return "cannot be asked from here, only by the Run that submit returned", ""
    if rank["state"] == "returned":
        if not waiting or not where:
            return "returned", ""
        n = where["calls"]
        return f"returned after {n or 'no'} collective call{'s' * (n != 1)}", ""
    if not where:
        return "{were} stopped", ""
    shown = [frame for frame in rank.get("frames", ()) if _learners(frame)]
    place = f"  ({_place(shown[-1])})" if shown else ""
    if not where["inside"]:
        done, total = where["progress"]
        return "{were} not in an MPI call" + (f", {done:g} of {total:g} done" if total else ""), place
    doing = "{were} waiting in " + where["call"]
    if where["peer"] is not None:
        doing += f" with rank {where['peer']}"
    if where["numbered"]:
        doing += f", {{their}} {_nth(where['calls'])} collective"
    return doing + ", for {seconds}" + ", until the run was ended" * ended, place


def _disagreement(ranks):
    """The first collective in whose name the ranks differ, or in its count where that must be the same."""
    calls = {}
    for i, rank in enumerate(ranks):
        for number, (name, dtype, count) in (rank.get("where") or {}).get("history", {}).items():
            kind = (name, count, dtype) if name in _SAME_COUNT else (name, None, None)
            calls.setdefault(int(number), {}).setdefault(kind, []).append(i)
    for number, kinds in sorted(calls.items()):
        known = {kind for kind in kinds if kind[1] is not None}
        if len({kind[0] for kind in kinds}) > 1 or len(known) > 1:
            said = "; ".join(f"{ranks_named(who)} called {_call(*kind)}" for kind, who in kinds.items())
            return [f"the ranks disagree about their {_nth(number)} collective: {said}"]
    return []


def _sharing(status):
    """The hosts on which there are fewer cores than ranks, of a run that is over."""
    hosts = {}
    for place, cores in zip(status.get("places", ()), status.get("cores", ()), strict=False):
        if place and cores:
            hosts.setdefault(place["host"], []).append(cores)
    few = {host: (max(cores), len(cores)) for host, cores in hosts.items() if len(cores) > max(cores)}
    return [
        f"{ranks} ranks on {n} core{'s' * (n > 1)}{f' of {host}' * (len(hosts) > 1)}: they share"
        for host, (n, ranks) in few.items()
    ]


def _too_long(ranks):
    """The message that was longer than the buffer of the rank that received it."""
    for rank, receiver in enumerate(ranks):
        call = receiver.get("where") or {}
        if receiver["state"] != "raised" or call.get("call") not in ("Recv", "Sendrecv") or call["peer"] is None:
            continue
        peer = call["peer"]
        sent = (ranks[peer].get("where") or {}) if peer < len(ranks) else {}
        if sent.get("peer") == rank and None not in (sent["count"], call["count"]) and sent["count"] > call["count"]:
            gave, took = (_call(at["call"], at["count"], at["dtype"]) for at in (sent, call))
            return [f"the ranks disagree about a message: rank {peer} called {gave}; rank {rank} called {took}"]
    return []


def _call(name, count, dtype):
    if count is None:
        return name
    return f"{name} with {count} element{'s' * (count != 1)}" + (f" of {dtype}" if dtype else "")


def _afterwards(cause, spec, first):
    if cause.get("left"):
        said = f"still alive after the kill: process{'es' * (len(cause['left']) > 1)} {listed(cause['left'])}"
    elif cause.get("kind") in ("no launcher", "not started"):
        return "nothing is left running"
    elif cause.get("kind") == "lost host":
        said = f"all other ranks stopped; {cause['host']} ends its own when it notices, which takes 3 s at most"
    else:
        said = "all ranks stopped"
    if cause.get("kept"):
        said += f"; its job may still be there ({cause['kept']})"
    if cause.get("silent"):
        said += f"; no word has come that they did on {', '.join(cause['silent'])}"
    if not spec.get("path"):
        return said
    who = "a rank: run.log(rank)" if first is None else f"rank {first}: run.log({first})"
    return f"{said}; output of {who}; everything: {spec['path']}"


def _fallen(cause):
    failed = "Traceback (most recent call last)" in cause.get("output", "")
    if failed:
        return "failed: a fault of collectlab, please report it"
    return "did not answer" if cause.get("mute") else "was killed"


_TOLD_WITH_OUTPUT = ("launcher exit", "slow start", "supervisor gone", "no start", "refused")


def _launcher_output(cause):
    lines = cause.get("output", "").strip().splitlines()
    if not lines or cause.get("kind") not in _TOLD_WITH_OUTPUT:
        return []
    return ["the last output of the launcher:", *(f"    {plain(line)}" for line in lines[-8:])]


def _cures(cause):
    """What may be at fault when ranks did not start, with the cure, as the doctor words both."""
    if "cures" not in cause:
        return []
    lines = [line for found, cure in cause["cures"] for line in (f"at fault may be {found}", f"    cure: {cure}")]
    return [*lines, "`collectlab doctor` looks at all that ranks need here"]


def _learners(frame):
    """Whether a frame belongs to what the learner runs, not to a library or to the course's own machinery."""
    file = frame["file"]
    ours = file.startswith(_PACKAGE) and not file.startswith(os.path.join(_PACKAGE, "kernels"))
    generated = file.startswith("<frozen") or (file == "<string>" and frame["name"].startswith("__"))  # by dataclass
    return not (ours or generated or _compiled(frame) or "site-packages" in file or "/lib/python" in file)


def _compiled(frame):
    return frame["file"].endswith((".pyx", ".pxi"))  # of an extension module: its lines mean nothing here


def _place(frame):
    where = f"{frame['label']}, line {frame['line']}, in {frame['name']}"
    return f"{where}:  {frame['text']}" if frame["text"] else where


def _nth(n):
    suffix = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"


_SENT_WHEN = {  # by the kernel, without a fault in the program's own lines
    signal.SIGKILL: ", as the kernel does when memory runs out",
    signal.SIGBUS: ", as the kernel does when /dev/shm or a disk is full behind mapped memory",
}


def _signal(number):
    try:
        return f"{signal.Signals(number).name} (signal {number}){_SENT_WHEN.get(number, '')}"
    except ValueError:
        return f"signal {number}"


def _launcher(cause):
    code, name = cause.get("code"), cause.get("launcher", "mpiexec")
    if code is None:
        return f"the daemon of {name} that started them was killed"
    how = f"exit code {code}" if code >= 0 else f"killed by {_signal(-code)}"
    return f"{name} ended before them ({how})"

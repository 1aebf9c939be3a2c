"""What happened to a run, in words: to whom, where, and what the others were doing."""


def text(spec, status):
    """The report of a run from its spec and its status (what the supervisor wrote, or its present look)."""
    cause, ranks = status.get("cause") or {}, status["ranks"]
    lines = [_headline(spec, status, cause)]
    for group in _alike(ranks, ("raised", "left", "exited", "killed", "lost")):
        lines += _ended(group, ranks, cause)
    lines += _mismatch(ranks)
    lines += _others(ranks)
    if status["status"] not in ("done", "running"):
        lines.append(_afterwards(cause))
        lines += _launcher_output(cause)
        if spec.get("path"):
            lines.append(f"output of a rank: run.log(rank); everything: {spec['path']}")
    return "\n".join(lines)


def _headline(spec, status, cause):
    what, seconds = spec["program"], f"{status['seconds']:.1f} s"
    n = len(status["ranks"])
    on = f"{what} on {n} rank{'s' * (n > 1)}"
    kind = cause.get("kind")
    if status["status"] == "done":
        return f"done after {seconds}: {on}"
    if status["status"] == "running":
        return f"running for {seconds}: {on}"
    if status["status"] == "timeout":
        return f"timeout: {on} was not done after {cause['limit']:g} s"
    if kind == "rank failed":
        first = min(
            (r for r in status["ranks"] if r["state"] in _BAD), key=lambda r: r["seconds"], default=None
        )
        if first is None:
            return f"failed after {seconds}: {on}"
        who = _names(
            [
                i
                for i, r in enumerate(status["ranks"])
                if r["state"] == first["state"] and _key(r) == _key(first)
            ]
        )
        return f"failed after {first['seconds']:.1f} s: {who} {_BAD[first['state']](first)}"
    return f"{status['status']}: {on} " + {
        "interrupted": f"was interrupted after {seconds}",
        "stopped": f"was stopped with its ranks after {seconds}",
        "notebook gone": f"was ended after {seconds}, because the notebook process went away",
        "supervisor gone": "was ended, because the supervisor of the ranks was killed",
        "launcher exit": f"lost its ranks: the site's launcher ended ({_code(cause.get('code', 0))})",
        "slow start": f"did not start: the ranks were not ready within {cause.get('limit', 0):g} s; "
        "try again, or set another patience in the variable COLLECTLAB_START_SECONDS",
        "unfit": f"did not start: rank {cause.get('rank')} found no GPU that answers ({cause.get('why')}); "
        "use device='cpu', or device='auto' to take what is there",
        "not started": "did not start: the run before it ended its ranks",
        "no launcher": f"did not start: {cause.get('why')}",
        "unwritten": f"ended, but its status could not be written: {cause.get('why')}",
    }.get(kind, f"ended after {seconds}")


_BAD = {
    "raised": lambda r: f"raised {r['error']}" + (f": {r['message']}" if r["message"] else ""),
    "left": lambda r: f"left by sys.exit({r['code']})",
    "exited": lambda r: f"ended its process with exit code {r['code']}",
    "killed": lambda r: f"was killed by {_signal(r['signal'])}",
    "lost": lambda r: "was lost: its guard was killed",
}


def _key(rank):
    return _BAD[rank["state"]](rank), [(f["file"], f["line"]) for f in rank.get("frames", ())]


def _alike(ranks, states):
    groups = {}
    for i, rank in enumerate(ranks):
        if rank["state"] in states:
            groups.setdefault(repr(_key(rank)), []).append(i)
    return groups.values()


def _ended(group, ranks, cause):
    rank = ranks[group[0]]
    lines = (
        []
        if cause.get("kind") == "rank failed" and rank is _first(ranks)
        else [f"{_names(group)} {_BAD[rank['state']](rank)}"]
    )
    frames = rank.get("frames", ())
    shown = [f for f in frames if _learners(f)] or list(frames[-1:])
    lines += [f"    {_place(frame)}" for frame in shown[-6:]]
    if frames and frames[-1] not in shown[-1:]:
        lines.append(f"    which called {_place(frames[-1])}")
    return lines


def _first(ranks):
    return min((r for r in ranks if r["state"] in _BAD), key=lambda r: r["seconds"], default=None)


def _others(ranks):
    groups = {}
    for i, rank in enumerate(ranks):
        if rank["state"] in ("stopped", "not started", "returned"):
            groups.setdefault(_doing(rank), []).append((i, rank))
    lines = []
    for doing, members in groups.items():
        names = _names([i for i, _ in members])
        were = "were" if len(members) > 1 else "was"
        seconds = max((_waiting(rank) or 0 for _, rank in members), default=0)
        lines.append(f"{names} {doing.format(were=were, seconds=f'{seconds:.1f} s')}")
    return lines


def _waiting(rank):
    where = rank.get("where")
    return where["seconds"] if where and where["inside"] else None


def _doing(rank):
    if rank["state"] == "returned":
        return "returned"
    if rank["state"] == "not started":
        return "did not start"
    where = rank.get("where")
    frames = [f for f in rank.get("frames", ()) if _learners(f)] or rank.get("frames", ())[-1:]
    place = f"  ({_place(frames[-1])})" if frames else ""
    place = place.replace("{", "{{").replace("}", "}}")
    if where and where["inside"]:
        peer = "" if where["peer"] is None else f" with rank {where['peer']}"
        which = (
            f", their {_nth(where['calls'])} collective" if where["peer"] is None and where["calls"] else ""
        )
        return f"{{were}} waiting in {where['call']}{peer}{which}, for {{seconds}}{place}"
    return f"{{were}} not in an MPI call{place}" if where else "{were} stopped"


def _mismatch(ranks):
    """Ranks that are in the same collective by number but not by name or count."""
    calls = {}
    for i, rank in enumerate(ranks):
        where = rank.get("where")
        if where and where["call"] and where["peer"] is None and where["calls"]:
            calls.setdefault(where["calls"], {}).setdefault(
                (where["call"], where["count"], where["dtype"]), []
            ).append(i)
    lines = []
    for number, kinds in sorted(calls.items()):
        if len(kinds) > 1:
            said = "; ".join(f"{_names(who)} called {_call(*kind)}" for kind, who in kinds.items())
            lines.append(f"the ranks disagree about their {_nth(number)} collective: {said}")
    return lines


def _call(name, count, dtype):
    return name if count is None else f"{name} with {count} elements" + (f" of {dtype}" if dtype else "")


def _afterwards(cause):
    left = cause.get("left")
    return f"still alive after the kill: processes {left}" if left else "all ranks stopped"


def _launcher_output(cause):
    if (
        cause.get("kind") not in ("launcher exit", "slow start", "supervisor gone")
        or not cause.get("output", "").strip()
    ):
        return []
    return [
        "the launcher's last output:",
        *("    " + line for line in cause["output"].strip().splitlines()[-8:]),
    ]


def _learners(frame):
    return (
        "site-packages" not in frame["file"]
        and not frame["file"].startswith("<frozen")
        and "/lib/python" not in frame["file"]
    )


def _place(frame):
    where = f"{frame['label']}, line {frame['line']}, in {frame['name']}"
    return f"{where}:  {frame['text']}" if frame["text"] else where


def _names(ranks):
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 4 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _nth(n):
    suffix = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"


def _signal(number):
    import signal

    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def _code(code):
    return f"exit code {code}" if code >= 0 else f"killed by {_signal(-code)}"

"""`%%ranks`: a notebook cell that runs on every rank, in a namespace that stays.

    %load_ext collectlab

    %%ranks -n 4
    total = comm.allreduce(rank)
    total

Names in the cell live on the ranks: `rank`, `nranks`, `comm`, `xp` and `ctx` are there from the start. What the
ranks print, and the value of the last expression, is shown once where it is the same on all, and under its rank
where it is not; while a cell takes long, what each rank does and prints is shown as it comes (notebook.py). `%ranks`
says what is running; `%ranks stop` ends it.
"""

import hashlib
import math
import os
import shutil
import sys

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from collectlab.launcher import cells
from collectlab.launcher.ranks import launch
from collectlab.words import ranks_named


class CellFailed(Exception):
    """A cell that ended on some ranks with an error.

    Its text is the same each time. IPython shows the details, which hold times and numbers of cells, in the
    place of a traceback.
    """

    def __init__(self, text, details):
        super().__init__(text)
        self.details = details

    def _render_traceback_(self):
        return self.details.splitlines()


@magics_class
class RanksMagics(Magics):
    """The ranks behind `%%ranks`: one set for each notebook, started by the first cell."""

    def __init__(self, shell):
        super().__init__(shell)
        self.ranks = None
        self._labels = {}  # the file that a cell's code names -> "cell 7"

    @magic_arguments()
    @argument("-n", type=int, help="how many ranks; 4 at first, then as many as there are")
    @argument("--ranks", help="the ranks that run the cell, for example 0,2; all by default")
    @argument("--timeout", type=float, default=60.0, help="seconds after which the cell is ended; 60 by default")
    @argument("--device", help="auto, cpu or cuda, when ranks are started; auto by default")
    @argument("--site", help="where ranks are started")
    @cell_magic("ranks")
    def run_cell(self, line, cell):
        """Run the cell on every rank."""
        try:
            given = parse_argstring(self.run_cell, line)
        except ValueError as error:  # a quotation that does not end
            raise UsageError(f"%%ranks {line}: {error}") from None
        if not 0 < given.timeout < math.inf:
            raise UsageError(f"%%ranks --timeout {given.timeout:g}: seconds are accepted, more than 0")
        source, number = f"\n{cell}", len(self.shell.user_ns["In"]) - 1  # its first line is the magic's
        file, label = self.shell.compile.cache(source, number), f"cell {number}"
        self._labels[file] = label
        try:
            statements, expression = cells.split(source, file)
        except SyntaxError as error:
            line = (error.text or "".join(source.splitlines()[error.lineno - 1 : error.lineno])).strip()
            said = f"SyntaxError: {error.msg}"
            if line.startswith(("!", "%")):
                said += "; ranks run Python alone, without the commands and magics of the notebook"
            raise CellFailed(said, f"{said}\n    {label}, line {error.lineno}:  {line}") from None
        ranks = self._started(given)
        chosen = _chosen(given.ranks, ranks.nranks)
        run = ranks.submit(cells.Cell(label, statements, expression, chosen), trace=False)
        try:
            late = self._wait(run, ranks, given.timeout)
        except KeyboardInterrupt:  # it says that the report stands above
            if run.status != "running":
                self._show(run, chosen)
                print(f"{run.report()}\n{_LOST}", file=sys.stderr)
            raise
        self._show(run, chosen)
        results = run.results
        if not run.ok:
            raise CellFailed(late or "the cell failed, and its ranks were ended", f"{late}{run.report()}\n{_LOST}")
        errors = {rank: results[rank]["error"] for rank in chosen if results[rank]["error"]}
        if errors:
            raise CellFailed(*(self._told(errors, run.nranks, places) for places in (False, True)))

    @line_magic("ranks")
    def state(self, line):
        """What is running: how many ranks, where, and which names the cells have made on them."""
        if line.strip() == "stop":
            if self.ranks is not None:
                self.ranks.stop()
                self.ranks = None
            return
        if line.strip():
            raise UsageError(f"%ranks {line}: nothing, or stop, is accepted; a cell begins with %%ranks")
        if self.ranks is None or self.ranks.status == "stopped":
            print("no ranks are running; a %%ranks cell starts them")
            return
        run = self.ranks.submit(cells.names, trace=False)
        self.ranks._wait_for(lambda: run.status != "running", _ANSWER)
        print(run.rank_map)
        if not run.ok:
            print(f"they do not answer: {run.report()}")
            return
        names = {rank: (f"names: {', '.join(names) or 'none yet'}", "") for rank, names in enumerate(run.results)}
        print(_once(names, self.ranks.nranks), end="")

    def offered(self, owner, start):
        """The names on the ranks that begin with `start`, of what `owner`, dotted names, is there; [] unless idle.

        It takes at most 0.2 s. The ranks are not interrupted when they take longer.
        """
        ranks = self.ranks
        if ranks is None or ranks.status != "ready":
            return []
        run = ranks.submit(cells.Completions(owner, start), trace=False)
        ranks._wait_for(lambda: run.status != "running", _OFFER)
        found = run.results[0] if run.ok else []
        if run.ok:
            shutil.rmtree(run.path, ignore_errors=True)  # nobody asked for this run
        return found

    def _wait(self, run, ranks, timeout):
        """Wait for a cell, and end it when it takes longer; returns what there is to say about that."""
        run._told = True  # the report is part of the cell's error
        run.wait(timeout)
        if run.status != "running":
            return ""
        ranks.interrupt()
        run.wait(None)
        return f"the cell was not done after {timeout:g} s\n"

    def _show(self, run, chosen):
        results = run.results
        print(_once({r: _said(run, r, results[r]) for r in chosen}, run.nranks), end="")

    def _told(self, errors, nranks, with_places):
        """Who raised what, and in which line of which cell."""
        texts = {}
        for rank, (name, message, places) in errors.items():
            lines = [f"raised {name}: {message}"]
            for file, line, function, text in places if with_places else ():
                if file.startswith(_FABRIC):
                    continue
                where = f"{self._labels.get(file, os.path.basename(file))}, line {line}"
                lines.append(f"    {where}{'' if function == '<module>' else f', in {function}'}:  {text}")
            texts[rank] = "\n".join(lines)
        return "\n".join(f"{_names(ranks, nranks)} {text}" for text, ranks in _alike(texts))

    def _started(self, given):
        """The ranks that are running, or new ones where others are asked for."""
        now = self.ranks
        nranks = given.n if given.n is not None else now.nranks if now else 4
        same = now is not None and given.device in (None, now.device) and given.site in (None, now.site.name)
        if same and nranks == now.nranks:
            now.start()  # anew, when a cell has ended them
            return now
        try:
            started = launch(nranks, device=given.device or "auto", site=given.site)
        except (ValueError, FileNotFoundError) as error:  # in one line: the magic was called, nothing else
            raise UsageError(f"%%ranks: {error}") from None
        if now is not None:
            now.stop()
            print("other ranks are started; what the cells had made is gone", file=sys.stderr)
        self.ranks = started
        return started


_FABRIC = os.path.join(os.path.dirname(__file__), "fabric", "")  # where in there an error is raised tells nothing
_ANSWER, _OFFER = 2.0, 0.2  # seconds that idle ranks have to say which names there are: when asked, for a completion
_HEAD, _TAIL = 1 << 14, 1 << 15  # bytes of a rank's output that are shown when there is more than both together
_LOST = "the ranks were ended: the next %%ranks cell starts new ones, without what the cells had made"


def _chosen(text, nranks):
    if text is None:
        return list(range(nranks))
    try:
        chosen = sorted({int(part) for part in text.split(",")})
    except ValueError:
        chosen = [-1]
    if not 0 <= chosen[0] <= chosen[-1] < nranks:
        raise UsageError(f"%%ranks --ranks {text}: numbers from 0 to {nranks - 1} are accepted, for example 0,1")
    return chosen


def _said(run, rank, result):
    """What the rank printed and returned, as a notebook shows it; and a digest of all, where that is not all.

    The traceback of a failed rank is told by the report.
    """
    text, digest = _printed(os.path.join(run.path, f"log.{rank}"))
    if not run.ok and _TRACEBACK in text:
        text = text.rpartition(_TRACEBACK)[0]
    shown = result["shown"] if result else None
    if shown is None:
        return text, digest
    if len(shown) > _HEAD:
        digest += hashlib.sha256(shown.encode(errors="backslashreplace")).hexdigest()
        shown = f"{shown[:_HEAD]} ... [{len(shown) - _HEAD:,} more characters]"
    if text and not text.endswith("\n"):
        text += "\n"
    return f"{text}{shown}\n", digest


_TRACEBACK = "Traceback (most recent call last):\n"


def _printed(path):
    """The text of a log, without the middle of a long one; and "" or a digest of all of it."""
    try:
        log = open(path, "rb")
    except FileNotFoundError:
        return "", ""
    with log:
        size = os.fstat(log.fileno()).st_size
        if size <= _HEAD + _TAIL:
            return log.read().decode(errors="replace"), ""
        digest = hashlib.file_digest(log, "sha256").hexdigest()
        log.seek(0)
        head = log.read(_HEAD).decode(errors="replace")
        log.seek(size - _TAIL)
        tail = log.read().decode(errors="replace")
    head, tail = head[: head.rfind("\n") + 1] or head, tail[tail.find("\n") + 1 :]
    left_out = f"[... {(size - _HEAD - _TAIL) // 1000:,} of {size // 1000:,} kB are left out here ...]"
    return f"{head}{left_out}\n{tail}", digest


def _once(texts, nranks):
    """rank -> (text, digest), as one text: what is the same on several of the `nranks` ranks stands there once."""
    lines = []
    for (text, _), ranks in _alike(texts):
        if text:
            name = _names(ranks, nranks)
            text = text if text.endswith("\n") else f"{text}\n"
            lines.append(f"{name}: {text}" if text.count("\n") == 1 else f"{name}:\n{text}")
    return "".join(lines)


def _alike(texts):
    """(text, the ranks that have it), in the order of the first of them."""
    alike = {}
    for rank, text in texts.items():
        alike.setdefault(text, []).append(rank)
    return alike.items()


def _names(ranks, n):
    return f"all {n} ranks" if len(ranks) == n > 1 else ranks_named(ranks)

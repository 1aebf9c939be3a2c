"""Cells on warm ranks: every rank runs them in one namespace, which stays as long as the ranks do."""

import ast
import time
import traceback

_GRACE = 1.0  # seconds that a rank whose cell has raised waits for the others to come through theirs

namespace = {"__name__": "__main__"}
_agreement = []  # a communicator of its own, so that a cell's calls are never taken for ours


def split(source, file):
    """(statements, expression) of a cell, compiled; the last expression is None where the cell does not end in one.

    SyntaxError when it is no Python. A semicolon after the last expression keeps it from being shown.
    """
    tree = ast.parse(source, file)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or source.rstrip().endswith(";"):
        return compile(tree, file, "exec"), None
    tree.body.pop()
    return compile(tree, file, "exec"), compile(ast.Expression(last.value), file, "eval")


class Cell:
    """A program: the statements of a cell and its last expression, on those `ranks`.

    It returns {"shown": repr of the last expression, or None, "error": None, or its name, message and frames}. An
    error is returned, so that the ranks and what they hold survive, when every other rank comes through the cell
    as well; where one does not, it is raised.
    """

    def __init__(self, label, statements, expression, ranks):
        self.__name__ = label
        self.statements, self.expression, self.ranks = statements, expression, ranks

    def __call__(self, ctx):
        if not _agreement:
            _agreement.append(ctx.comm.Dup())
        shown, error = None, None
        try:
            if ctx.rank in self.ranks:
                shown = self._run(ctx)
        except Exception as raised:
            error = raised
        through = _agreement[0].Ibarrier()
        if error is None:
            through.Wait()
            return {"shown": shown, "error": None}
        end = time.monotonic() + _GRACE
        while not through.Test():
            if time.monotonic() > end:
                raise error
            time.sleep(0.005)
        frames = [at for at in traceback.extract_tb(error.__traceback__) if at.filename != __file__]
        places = [(at.filename, at.lineno, at.name, at.line) for at in frames]
        return {"shown": None, "error": (type(error).__name__, str(error), places)}

    def _run(self, ctx):
        namespace.update(ctx=ctx, comm=ctx.comm, rank=ctx.rank, nranks=ctx.nranks, xp=ctx.xp)
        exec(self.statements, namespace)
        if self.expression is None:
            return None
        value = namespace["_"] = eval(self.expression, namespace)
        return None if value is None else repr(value)


def names(ctx):
    """The names that cells have made on this rank."""
    given = {"ctx", "comm", "rank", "nranks", "xp"}
    return sorted(name for name in namespace if not name.startswith("_") and name not in given)

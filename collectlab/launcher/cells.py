"""Cells on warm ranks: every rank runs them in one namespace, which stays as long as the ranks do."""

import ast
import atexit
import gc
import sys
import time
import traceback
import types

_GRACE = 1.0  # seconds that a rank whose cell has raised waits for the others to come through theirs

_main = types.ModuleType("__main__")  # so that objects of a cell's classes can be sent from rank to rank
namespace = vars(_main)
_agreement = []  # a communicator of its own, so that a cell's calls are never taken for ours
_opened = []  # what the windows of cells lie on: a name for one of them may be used in a later cell


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
            sys.modules["__main__"] = _main
            atexit.register(_free, _opened)
        _free_unused(ctx)
        shown, error = None, None
        try:
            if ctx.rank in self.ranks:
                shown = self._run(ctx)
        except Exception as raised:
            error = raised
        finally:
            if fabric := vars(ctx).get("_fabric"):
                fabric.ends_with_run, fabric.told = False, lambda waiting: None
                _opened.append(fabric.opened)
        through = _agreement[0].Ibarrier()
        if error is None:
            through.Wait()
            return {"shown": shown, "error": None}
        end = time.monotonic() + _GRACE
        while not through.Test():
            if time.monotonic() > end:
                raise error
            time.sleep(0.005)
        from collectlab.launcher.worker import text_of

        frames = [at for at in traceback.extract_tb(error.__traceback__) if at.filename != __file__]
        places = [(at.filename, at.lineno, at.name, at.line) for at in frames]
        return {"shown": None, "error": (type(error).__name__, text_of(error), places)}

    def _run(self, ctx):
        namespace.update(ctx=ctx, comm=ctx.comm, rank=ctx.rank, nranks=ctx.nranks, xp=ctx.xp)
        exec(self.statements, namespace)
        if self.expression is None:
            return None
        value = namespace["_"] = eval(self.expression, namespace)
        return None if value is None else repr(value)


def _free_unused(ctx):
    """Free the windows of earlier cells to which no rank has a name any longer."""
    if _opened:
        namespace.update(ctx=ctx)  # not the one of the last cell
        gc.collect()
        held = zip(*_agreement[0].allgather([opened.in_use for opened in _opened]), strict=True)
        unused = [opened for opened, in_use in zip(_opened[:], held, strict=True) if not any(in_use)]
        for opened in unused:
            _opened.remove(opened)
        _free(unused)


def _free(opened):
    while opened:
        opened.pop().free()


GIVEN = {"ctx", "comm", "rank", "nranks", "xp"}  # names that every cell finds


def names(ctx):
    """The names that cells have made on this rank."""
    return sorted(name for name in namespace if not name.startswith("_") and name not in GIVEN)


class Completions:
    """A program: the names on rank 0 that begin with `start`, or the attributes of what `owner`, dotted names, is.

    Nothing of the learner's is called for it: where a property would have to be, there are no completions.
    """

    __name__ = "completions"

    def __init__(self, owner, start):
        self.owner, self.start = owner, start

    def __call__(self, ctx):
        if ctx.rank:
            return None
        try:
            found = dir(_value(self.owner.split("."))) if self.owner else {*namespace, *GIVEN}
        except (LookupError, AttributeError):
            return []
        return sorted(name for name in found if name.startswith(self.start))


def _value(names):
    import builtins
    import inspect

    first, *rest = names
    value = namespace[first] if first in namespace else vars(builtins)[first]
    for name in rest:
        there = inspect.getattr_static(value, name)
        if isinstance(there, property) or inspect.isfunction(getattr(type(there), "__get__", None)):
            raise LookupError(name)
        value = getattr(value, name)
    return value

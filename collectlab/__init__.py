"""collectlab: collective communication, learned on real MPI ranks.

Importing this package imports neither mpi4py nor CuPy, and starts nothing. Every name below is loaded when
it is first used, so that a rank, which needs two of them, starts quickly.
"""

import sys as _sys
from importlib import import_module as _import_module

_HOME = {
    "run": "launcher.ranks",
    "launch": "launcher.ranks",
    "attach": "launcher.run",
    "simulate": "fabric.simulated",
    "per_rank": "fabric.per_rank",
}
_ROOMS = (
    "semantics", "layout", "payload", "provenance", "cost", "kernels", "explore", "overlap", "sharding", "exercises",
    "views",
)  # fmt: skip

__all__ = [*_HOME, *_ROOMS]


def __getattr__(name):
    if name in _HOME:
        value = getattr(_import_module(f"collectlab.{_HOME[name]}"), name)
        if "IPython" in _sys.modules and _HOME[name].startswith("launcher."):
            _import_module("collectlab.notebook").connect()
    elif name in _ROOMS:
        value = _import_module(f"collectlab.{name}")
    else:
        raise AttributeError(f"module 'collectlab' has no attribute {name!r}; it has {', '.join(__all__)}")
    globals()[name] = value
    return value


def load_ipython_extension(shell):
    """What `%load_ext collectlab` calls: it brings `%%ranks`, and completion in its cells."""
    from collectlab import completion, notebook
    from collectlab.magic import RanksMagics

    magics = RanksMagics(shell)
    shell.register_magics(magics)
    completion.register(shell, magics)
    notebook.connect()


def __dir__():
    return sorted({*globals(), *__all__})

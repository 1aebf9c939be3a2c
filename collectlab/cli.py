"""The command line: `collectlab run`, `collectlab runs`, `collectlab bench`, `collectlab doctor`."""

import argparse
import atexit
import json
import math
import os
import runpy
import secrets
import sys
import time


def main(argv=None):
    """Run one command; returns its exit code (0 when what was asked for holds)."""
    parser = argparse.ArgumentParser(
        prog="collectlab", description="Collective communication on real MPI ranks.",
        epilog="`collectlab COMMAND --help` says more.",
    )  # fmt: skip
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name, does, call, **more):
        added = commands.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.", **more)
        added.set_defaults(command=call)
        return added

    run = command("run", "execute a notebook, or a program on ranks", _run)
    run.add_argument(
        "file", metavar="FILE", help="NOTEBOOK.ipynb, or PROGRAM.py[:FUNCTION]; every rank calls "
        "FUNCTION(ctx), which is program(ctx) where none is named",
    )  # fmt: skip
    of_program = run.add_argument_group("for a program (a notebook's cells start their own ranks)")
    of_program.add_argument("-n", "--ranks", type=int, metavar="N", help="how many (default 4)")
    of_program.add_argument("--device", choices=("auto", "cpu", "cuda"), help="what they compute on (default auto)")
    of_program.add_argument("--site", help="how they are started: a file of launch/sites/ (default local)")
    run.add_argument("--save", action="store_true", help="write the executed notebook back")
    run.add_argument(
        "--timeout", type=float, default=60, metavar="SECONDS",
        help="after which a program, or one cell of a notebook, is ended (default 60)",
    )  # fmt: skip

    runs = command("runs", "list the runs that are kept, the newest first", _runs)

    bench = command(
        "bench", "measure one part beside its peers and its goals", _bench,
        epilog="launcher measures how ranks start and are called, beside bare mpiexec; soak starts and kills ranks "
        "for half an hour; the others measure what they are called by. The exit code is 1 when a goal is missed: on "
        "this machine, at this hour.",
    )  # fmt: skip
    bench.add_argument("what", choices=("kernels", "launcher", "overlap", "sharding", "views", "soak"))

    doctor = command("doctor", "say what this machine lacks for the course, and the cure", _doctor)

    for one in (run, runs, bench, doctor):
        one.add_argument("--json", action="store_true", help="print one JSON object")
    argv = sys.argv[1:] if argv is None else argv
    options = parser.parse_args(argv or ["--help"])
    try:
        code = options.command(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # of `| head`; Python writes what is left when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, ValueError, TypeError) as error:
        print(f"collectlab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("collectlab: interrupted", file=sys.stderr)
        return 130


def _doctor(options):
    from collectlab import doctor

    return doctor.main(options.json)


def _run(options):
    if options.file.endswith(".ipynb"):
        if given := [name for name in ("ranks", "device", "site") if getattr(options, name) is not None]:
            raise ValueError(
                f"run {options.file!r} --{given[0]}: for a PROGRAM.py; a notebook's cells start their own ranks"
            )
        return _run_notebook(options)
    path, _, name = options.file.partition(":")
    if not os.path.isfile(path):
        what = f"{path!r} is a folder" if os.path.isdir(path) else f"there is no file {path!r}"
        raise FileNotFoundError(f"run {options.file!r}: {what}; a NOTEBOOK.ipynb or a PROGRAM.py is accepted")
    if options.save:
        raise ValueError(f"run {options.file!r} --save: for a NOTEBOOK.ipynb; a program's run is kept in any case")
    try:
        found = runpy.run_path(path, run_name="__main__")  # functions of __main__ travel with their code
    except (Exception, SystemExit) as error:
        what = "" if path.endswith(".py") else "; a NOTEBOOK.ipynb or a PROGRAM.py is accepted"
        raise ValueError(f"run {options.file!r}: {path} cannot be executed: {error!r}{what}") from None
    name = name or "program"
    if not callable(found.get(name)):
        raise ValueError(f"run {options.file!r}: {path} has no function {name!r}; name one as FILE.py:FUNCTION")
    from collectlab.launcher.ranks import run

    asked = {name: value for name in ("ranks", "device", "site") if (value := getattr(options, name)) is not None}
    done = run(found[name], timeout=options.timeout, **asked)
    if options.json:
        shown = {"status": done.status, "results": _plain(done.results), "path": done.path}
        print(json.dumps({**shown, "report": done.report()}))
    else:
        for rank in range(done.nranks):
            sys.stdout.writelines(f"rank {rank} | {line}\n" for line in done.log(rank).splitlines())
        for rank, result in enumerate(done.results):
            if done.ok or result is not None:  # else it may not have come so far
                print(f"rank {rank} returned {result!r}")
        print(f"run directory: {done.path}")
    return 0 if done.ok else 1


def _plain(value):
    """`value` as JSON has it; an array as dtype, shape and values, what JSON has no form for as {"repr": ...}."""
    import numpy as np

    if isinstance(value, np.generic) and not isinstance(value, np.longdouble):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.dtype != np.longdouble:
        values = value.tolist()
        if not np.isfinite(value).all():
            values = _plain(values)
        return {"dtype": str(value.dtype), "shape": list(value.shape), "values": values}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(part) for key, part in value.items()}
    return {"repr": repr(value)}


def _run_notebook(options):
    """Execute a notebook in a clean kernel, exactly as the tests do, and print what its cells print."""
    import nbformat
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    from collectlab.launcher import rundir

    if not os.path.isfile(options.file):
        raise FileNotFoundError(f"run {options.file!r}: there is no such notebook")
    try:
        notebook = nbformat.read(options.file, as_version=4)
    except Exception as error:
        raise ValueError(f"run {options.file!r}: not a notebook ({error})") from None
    if not 0 < options.timeout < math.inf:
        raise ValueError(f"run --timeout {options.timeout:g}: seconds are accepted, more than 0")
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []  # else a cell that is not reached would show what it printed another time
    before, session = set(rundir.names()), secrets.token_hex(8)
    where = {"metadata": {"path": os.path.dirname(os.path.abspath(options.file))}}
    client = NotebookClient(
        notebook,
        timeout=options.timeout,
        record_timing=False,
        coalesce_streams=True,  # else a busy machine cuts what a cell prints into other pieces
        resources=where,
        extra_arguments=["--log-level=CRITICAL"],  # of the kernel, which else warns of its loopback connection
    )
    began, why = [0], None  # the places of cells that began, with those of text; what kept one from its end
    client.on_cell_execute = lambda cell, cell_index: began.append(cell_index)
    try:
        client.execute(env={**os.environ, rundir.SESSION: session})
    except NoSuchKernel as error:
        raise ValueError(f"run {options.file!r}: it asks for a kernel {error.name!r}, which is not here") from None
    except CellExecutionError as error:
        why = f"{error.ename}: {error.evalue}" if error.ename else str(error).strip().splitlines()[-1]
    except CellTimeoutError:
        why = f"it was not done after {options.timeout:g} s; --timeout takes another number"
    except DeadKernelError:
        why = "it ended the kernel"
    except RuntimeError as error:  # it has said why
        atexit.unregister(client._cleanup_kernel)
        raise OSError(f"run {options.file!r}: no kernel starts here ({error})") from None
    left = [path for path in rundir.names() if path not in before and _session(path) == session]
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    last = sum(cell.cell_type == "code" for cell in notebook.cells[: began[-1] + 1])
    if options.json:
        texts = ["".join(_texts(cell)) for cell in cells]
        print(json.dumps({"notebook": options.file, "ok": why is None, "outputs": texts, "runs": left}))
    else:
        for number, cell in enumerate(cells, 1):
            if text := "".join(_texts(cell)).rstrip("\n"):
                print(f"[{number}] " + text.replace("\n", "\n" + " " * (len(str(number)) + 3)))
        for path in left:
            print(f"run directory: {path}")
        if why is None:
            runs = f"{len(left)} run{'s' * (len(left) != 1)} of ranks"
            print(f"{os.path.basename(options.file)}: all {len(cells)} code cells ran, on {runs}")
    if why is not None:
        print(f"collectlab: {options.file}: cell {last}: {why}", file=sys.stderr)
    elif options.save:
        draft = f"{options.file}.{os.getpid()}"
        nbformat.write(_to_keep(notebook), draft)
        os.replace(draft, options.file)
    return 0 if why is None else 1


def _to_keep(notebook):
    """The executed notebook without what differs each time: outputs that no test compares, and widget models.

    A reader of the saved page sees the static picture of each view; a run brings the widget.
    """
    notebook.metadata.pop("widgets", None)
    notebook.metadata.get("language_info", {}).pop("version", None)
    for cell in notebook.cells:
        if "nbval-ignore-output" in cell.metadata.get("tags", ()):
            cell.outputs = []
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
        if "outputs" in cell:  # a live view that came and went has no other form
            cell.outputs = [output for output in cell.outputs if output.get("data") != {}]
    return notebook


def _texts(cell):
    from collectlab.launcher import report

    for output in cell.outputs:
        if output.output_type == "stream":
            yield output.text
        elif output.output_type == "error":
            yield "".join(f"{report.plain(line)}\n" for line in "\n".join(output.traceback).split("\n"))
        elif "text/plain" in output.data:  # a live view that came and went has none
            yield output.data["text/plain"] + "\n"


def _session(path):
    from collectlab.launcher import rundir

    try:
        return rundir.spec(path).get("session")
    except (OSError, ValueError):
        return None  # another process is making it, or has removed it


def _runs(options):
    from collectlab.launcher import rundir

    rows = [row for path in rundir.names() if (row := _row(path))]
    rows.sort(key=lambda row: row["created"], reverse=True)
    if options.json:
        print(json.dumps({"runs": rows}))
        return 0
    cells = [("when", "took", "status", "ranks", "program", "directory")]
    for row in rows:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["created"]))
        took = "-" if row["seconds"] is None else f"{row['seconds']:.1f} s"
        ranks, program = row["ranks"] or "-", row["program"] or "-"
        cells.append((when, took, row["status"], str(ranks), program, row["path"]))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        aligned = (f"{c:{side}{w}}" for c, side, w in zip(line, "<><><<", widths, strict=True))
        print("  ".join(aligned).rstrip())
    for why in filter(None, (row["why"] for row in rows)):
        print(why)
    print(f"{len(rows)} runs in {rundir.home()}; the newest {rundir.KEEP} are kept, and all for an hour")
    return 0


def _row(path):
    """What is told of one run, or None when it has just been removed.

    created is in seconds since 1970; seconds is how long it took, or None when nobody wrote that down.
    """
    from collectlab.launcher import rundir
    from collectlab.launcher.run import attach

    row = {"path": path, **dict.fromkeys(("created", "seconds", "status", "ranks", "device", "program", "why"))}
    try:
        row["created"] = os.stat(path).st_mtime
        run = attach(path)
        status, spec = run.status, run.spec
        ended = rundir.status(path, run.nranks)
    except (OSError, ValueError) as error:
        return {**row, "status": "unreadable", "why": str(error)} if os.path.isdir(path) else None
    row |= {"status": status, "ranks": run.nranks} | {key: spec[key] for key in ("created", "device", "program")}
    if ended:
        row["seconds"] = ended["seconds"]
    elif status == "running":
        row["seconds"] = time.time() - spec["created"]
    return row


def _bench(options):
    from importlib import import_module

    from collectlab.bench import machine, table

    module = import_module(f"collectlab.bench.{options.what}")
    about = {**machine(), **getattr(module, "about", dict)()}
    rows = [row.to_dict() for row in module.rows()]
    missed = [row["case"] for row in rows if not row["met"]]
    if options.json:
        print(json.dumps({"machine": about, "rows": rows}))
    else:
        print(table(rows))
    if missed:
        print(f"collectlab: {len(missed)} of {len(rows)} goals missed: {'; '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0

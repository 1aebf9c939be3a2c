"""Hands the course out: a copy of the notebooks to work in, without the outputs that would give answers away.

usage: hand_out.py COURSE COPY

A file of the course that the copy lacks is written there, and one that the learner has not changed is written
again when the course has a newer version. A changed one is never written. COPY/.handed-out.json notes a digest of
each file as it was handed out, which is how a changed one is told.
"""

import hashlib
import json
import os
import platform
import sys
from pathlib import Path

NOTES = ".handed-out.json"


def without_outputs(data):
    """The notebook whose file holds `data`, as it was before any cell ran: bytes."""
    notebook = json.loads(data)
    for cell in notebook.get("cells", ()):
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    if language := notebook.get("metadata", {}).get("language_info"):
        language["version"] = platform.python_version()  # else JupyterLab calls it changed as soon as it is opened
    return f"{json.dumps(notebook, indent=1, ensure_ascii=False)}\n".encode()


def digest(name, data):
    """Of a notebook, its cells and what they show; JupyterLab changes the rest by merely opening it."""
    if name.endswith(".ipynb"):
        try:
            cells = json.loads(data).get("cells", ())
            shown = [(cell["cell_type"], "".join(cell["source"]), cell.get("outputs")) for cell in cells]
            data = json.dumps(shown).encode()
        except (ValueError, AttributeError, KeyError, TypeError):
            pass  # the learner has made something else of it
    return hashlib.sha256(data).hexdigest()


def write(path, data):
    """Write all of it or nothing."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        draft.write_bytes(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def hand_out(course, copy):
    """Bring `copy` up to date with `course`; returns the names that were written and those that were kept."""
    try:
        notes = json.loads((copy / NOTES).read_text())
    except (FileNotFoundError, ValueError):
        notes = {}
    before, written, kept = dict(notes), [], []
    for path in sorted(course.rglob("*")):
        name = str(path.relative_to(course))
        if not path.is_file() or any(part.startswith(".") for part in path.relative_to(course).parts):
            continue
        data = path.read_bytes()
        if name.endswith(".ipynb"):
            data = without_outputs(data)
        wanted, there = digest(name, data), None
        if (copy / name).exists():
            there = digest(name, (copy / name).read_bytes())
            if there != wanted and notes.get(name) == wanted:
                continue  # the learner's own, made from this version
            if there not in (wanted, notes.get(name)):
                kept.append(name)
                continue
        if there != wanted:
            write(copy / name, data)
            written.append(name)
        notes[name] = wanted
    if notes != before:
        write(copy / NOTES, json.dumps(notes, indent=1).encode())
    return written, kept


def main(course, copy):
    first = not (copy / NOTES).exists()
    try:
        written, kept = hand_out(course, copy)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        sys.exit(
            f"collectlab: {course} could not be copied to {copy}: {error}; "
            "mend that, or set another HOME, and run this again"
        )
    if first:
        print(f"collectlab: your notebooks are in {copy}: the course without its outputs", file=sys.stderr)
    elif written:
        print(f"collectlab: brought up to date in {copy}: {', '.join(written)}", file=sys.stderr)
    if kept:
        print(
            f"collectlab: left as you changed it, though the course has a newer version: {', '.join(kept)}; "
            f"to get that, rename or remove yours in {copy}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

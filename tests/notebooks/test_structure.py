"""Every notebook is a lesson of the course's form: its parts, its exercises, its outputs."""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import collectlab as cl
from collectlab.exercises.exercise import Exercise
from collectlab.exercises.on_kernels import KernelExercise
from collectlab.exercises.on_plans import PlanExercise
from collectlab.exercises.on_ranks import ProgramExercise

PATHS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
PARTS = (
    r"^# (\d\d) · \S",  # the title, with the notebook's number
    r"^Afterwards you can$",
    r"^Time needed: (2\d|3\d|4[0-5]) minutes[.,]",  # what a careful student took; more is two lessons
    r"^## What this does not tell you$",
    r"^## Recap$",
)
LINES = 20
BYTES = 1 << 20
ABSOLUTE = re.compile(r"(?<![\w./:])/(?:root|home|Users|tmp|var|usr|opt|work|mnt|private|dev/shm)/")
EXERCISE = re.compile(r"cl\.exercises\.(\w+)\.(\w+)\(")
IGNORED, RAISES = "nbval-ignore-output", "raises-exception"


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell):
    return cell.metadata.get("tags", [])


def prose(notebook):
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def exercises(notebook):
    return {found for cell in code_cells(notebook) for found in EXERCISE.findall(cell.source)}


def texts(cell):
    """What a cell says in its source and, but for pictures, in its outputs."""
    yield cell.source
    for output in cell.get("outputs", ()):
        yield from (output.get("text", ""), *output.get("traceback", ()))
        yield from (str(data) for kind, data in output.get("data", {}).items() if kind.startswith("text/"))


def missing_parts(notebook):
    places = [re.search(part, prose(notebook), re.MULTILINE) for part in PARTS]
    missing = [part for part, place in zip(PARTS, places, strict=True) if place is None]
    starts = [place.start() for place in places if place]
    return missing or [f"order {starts}"] * (starts != sorted(starts))


def too_few_exercises(notebook):
    return [f"{len(exercises(notebook))} exercises"] * (len(exercises(notebook)) < 3)


def not_executed(notebook):
    counts = [cell.execution_count for cell in code_cells(notebook)]
    return [] if counts == list(range(1, len(counts) + 1)) else [f"execution counts {counts}"]


def errors(notebook):
    return [
        cell.source
        for cell in code_cells(notebook)
        if RAISES not in tags(cell) and any(output.output_type == "error" for output in cell.outputs)
    ]


def too_much_ignored(notebook):
    cells = code_cells(notebook)
    ignored = sum(IGNORED in tags(cell) for cell in cells)
    others = {tag for cell in cells for tag in tags(cell)} - {IGNORED, RAISES}
    return [f"{ignored} of {len(cells)} cells ignored"] * (4 * ignored > len(cells)) + sorted(others)


def absolute_paths(notebook):
    return [text for cell in notebook.cells for text in texts(cell) if ABSOLUTE.search(text)]


def too_long(notebook):
    return [cell.source for cell in code_cells(notebook) if len(cell.source.splitlines()) > LINES]


def answered(notebook):
    """Exercises that are answered in the file as it is handed out."""
    return [
        cell.source
        for cell in code_cells(notebook)
        if EXERCISE.search(cell.source) and "no answer yet" not in "".join(texts(cell))
    ]


CHECKS = (
    missing_parts, too_few_exercises, not_executed, errors, too_much_ignored, absolute_paths, too_long, answered,
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_lesson_has_the_form_of_the_course(path, check):
    assert check(nbformat.read(path, as_version=4)) == []


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_lesson_is_small_and_well_formed(path):
    assert path.stat().st_size < BYTES
    nbformat.validate(nbformat.read(path, as_version=4))


def test_the_lessons_are_numbered_in_reading_order():
    assert [path.name[:3] for path in PATHS] == [f"{number:02d}-" for number in range(len(PATHS))]
    assert len(PATHS) >= 4
    for path in PATHS:
        number = re.search(PARTS[0], prose(nbformat.read(path, as_version=4)), re.MULTILINE)[1]
        assert path.name.startswith(number)


def test_every_exercise_is_asked_in_a_lesson_and_every_asked_one_exists():
    asked = set().union(*(exercises(nbformat.read(path, as_version=4)) for path in PATHS))
    there = {
        (module, name)
        for module in cl.exercises.__all__
        for name, found in vars(getattr(cl.exercises, module)).items()
        if isinstance(found, Exercise | ProgramExercise | KernelExercise | PlanExercise)
    }
    assert asked == there


def test_a_lessons_exercises_are_in_the_module_that_has_its_number():
    asked = [{module for module, _ in exercises(nbformat.read(path, as_version=4))} for path in PATHS]
    assert asked == [{module} for module in cl.exercises.__all__]


def test_links_lead_to_lessons_that_exist():
    for path in PATHS:
        for target in re.findall(r"\]\(([^)#]+)", prose(nbformat.read(path, as_version=4))):
            assert target.startswith("https://") or (path.parent / target).is_file(), (path.name, target)


def lesson():
    """A small lesson in which every check is content."""
    form = "# 07 · A title\n\nAfterwards you can\n\n- x\n\nTime needed: 20 minutes.\n"
    cells = [new_markdown_cell(form)]
    for number in range(1, 5):
        said = [new_output("execute_result", {"text/plain": "no answer yet: put a number"}, execution_count=number)]
        source = f"answer = ...\ncl.exercises.some.name_{number}(answer)"
        cells.append(new_code_cell(source, execution_count=number, outputs=said))
    cells.append(new_markdown_cell("## What this does not tell you\n\n- x\n\n## Recap\n\n- x"))
    return new_notebook(cells=cells)


def test_the_checks_are_content_with_a_good_lesson():
    assert [check(lesson()) for check in CHECKS] == [[]] * len(CHECKS)


def stream(text):
    return new_output("stream", name="stdout", text=text)


def in_minutes(cell, minutes):
    return cell.source.replace("20 minutes", f"{minutes} minutes")


def error():
    return new_output("error", ename="ValueError", evalue="no", traceback=[])


BROKEN = {
    "no recap": (missing_parts, lambda cells: cells.pop()),
    "no time": (missing_parts, lambda cells: cells[0].update(source="# 07 · A title\n\nAfterwards you can\n")),
    "too much for one lesson": (missing_parts, lambda cells: cells[0].update(source=in_minutes(cells[0], 50))),
    "no lesson at all": (missing_parts, lambda cells: cells[0].update(source=in_minutes(cells[0], 5))),
    "recap first": (missing_parts, lambda cells: cells.insert(0, cells.pop())),
    "two exercises": (too_few_exercises, lambda cells: cells.__delitem__(slice(1, 3))),
    "the same exercise": (too_few_exercises, lambda cells: [c.update(source=cells[1].source) for c in cells[1:5]]),
    "not run": (not_executed, lambda cells: cells[2].update(execution_count=None)),
    "run twice": (not_executed, lambda cells: cells[4].update(execution_count=9)),
    "an error": (errors, lambda cells: cells[1].outputs.append(error())),
    "half ignored": (too_much_ignored, lambda cells: [c.metadata.update(tags=[IGNORED]) for c in cells[1:3]]),
    "another tag": (too_much_ignored, lambda cells: cells[1].metadata.update(tags=["nbval-skip"])),
    "a path printed": (absolute_paths, lambda cells: cells[1].outputs.append(stream("everything: /home/me/run"))),
    "a path in a report": (absolute_paths, lambda cells: cells[1].outputs.append(stream('File "/tmp/x/a.py"'))),
    "a path in the source": (absolute_paths, lambda cells: cells[1].update(source='open("/home/me/x/y")')),
    "a long cell": (too_long, lambda cells: cells[1].update(source="x = 1\n" * 21)),
    "an answer left in": (answered, lambda cells: cells[2].update(outputs=[stream("right: because")])),
}


@pytest.mark.parametrize(("check", "breaks"), BROKEN.values(), ids=BROKEN)
def test_what_breaks_the_form_is_found(check, breaks):
    broken = lesson()
    breaks(broken.cells)
    assert check(broken) != []

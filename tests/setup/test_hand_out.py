"""launch/lab hands the notebooks out: no answers in the copy, nothing of the learner lost, the checkout clean."""

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "launch" / "hand_out.py"
FIRST, SECOND, PICTURE = "00-first.ipynb", "01-second.ipynb", "pictures/one.png"


class HandedOut:
    """A course and a learner's copy; called, it does what each start of launch/lab does, and returns what it said."""

    def __init__(self, course, folder):
        self.course, self.copy = folder / "a course", folder / "a home" / "collectlab-notebooks"
        shutil.copytree(course, self.course)
        self.copy.parent.mkdir()

    def __call__(self):
        command = [sys.executable, "-I", SCRIPT, self.course, self.copy]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0 and result.stdout == "", result
        return result.stderr.splitlines()


@pytest.fixture
def hand_out(bare_checkout, tmp_path):
    return HandedOut(bare_checkout(tmp_path).path / "notebooks", tmp_path)


def cells(path):
    return json.loads(path.read_text())["cells"]


def change(path, number=1, **fields):
    """Change fields of a cell, as JupyterLab does when it saves."""
    notebook = json.loads(path.read_text())
    notebook["cells"][number].update(fields)
    path.write_text(json.dumps(notebook, indent=1))


def tree(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_copy_is_the_course_without_outputs(hand_out):
    before = tree(hand_out.course)
    (said,) = hand_out()
    assert said == f"collectlab: your notebooks are in {hand_out.copy}: the course without its outputs"
    for name in (FIRST, SECOND):
        (text, code), (text_before, code_before) = cells(hand_out.copy / name), cells(hand_out.course / name)
        assert text == text_before and code["source"] == code_before["source"]
        assert code["outputs"] == [] and code["execution_count"] is None and code_before["outputs"]
        assert "Größe" in (hand_out.copy / name).read_text()
    assert (hand_out.copy / PICTURE).read_bytes() == (hand_out.course / PICTURE).read_bytes()
    assert tree(hand_out.course) == before


def test_the_copy_names_the_python_that_opens_it(hand_out):
    course = hand_out.course / FIRST
    metadata = {"language_info": {"name": "python"}}
    course.write_text(json.dumps(json.loads(course.read_text()) | {"metadata": metadata}))
    hand_out()
    info = json.loads((hand_out.copy / FIRST).read_text())["metadata"]["language_info"]
    assert info == {"name": "python", "version": platform.python_version()}
    assert "version" not in course.read_text()


def test_a_second_start_says_nothing_and_writes_nothing(hand_out):
    hand_out()
    before = {path: path.stat().st_mtime_ns for path in hand_out.copy.rglob("*")}
    assert hand_out() == []
    assert {path: path.stat().st_mtime_ns for path in hand_out.copy.rglob("*")} == before


def work(path):
    change(path, source=["1 + 2"])


def run_a_cell(path):
    change(path, outputs=[{"output_type": "stream", "name": "stdout", "text": ["2"]}])


def add_a_note(path):
    notebook = json.loads(path.read_text())
    notebook["cells"].append({"cell_type": "markdown", "metadata": {}, "source": ["mine"]})
    path.write_text(json.dumps(notebook))


def make_something_else_of_it(path):
    path.write_text("[]")


@pytest.mark.parametrize("touch", [work, run_a_cell, add_a_note, make_something_else_of_it])
def test_what_the_learner_changed_stays_also_beside_a_newer_version(hand_out, touch):
    hand_out()
    mine = hand_out.copy / FIRST
    touch(mine)
    kept = mine.read_bytes()
    assert hand_out() == [] and mine.read_bytes() == kept
    change(hand_out.course / FIRST, source=["3 + 3"])
    for _ in range(2):
        (said,) = hand_out()
        assert (
            said.startswith("collectlab: left as you changed it, ") and FIRST in said and SECOND not in said
        )
        assert f"rename or remove yours in {hand_out.copy}" in said
        assert mine.read_bytes() == kept
    mine.rename(mine.with_name("mine.ipynb"))
    assert hand_out() == [f"collectlab: brought up to date in {hand_out.copy}: {FIRST}"]
    assert cells(mine)[1]["source"] == ["3 + 3"] and mine.with_name("mine.ipynb").read_bytes() == kept


def open_it(path):
    notebook = json.loads(path.read_text())
    notebook["metadata"]["language_info"] = {"name": "python", "version": "3.13.1"}
    for cell in notebook["cells"]:
        cell["metadata"] = {"editable": True}
        cell["source"] = "".join(cell["source"])
    path.write_text(json.dumps(notebook))


@pytest.mark.parametrize("leave", [lambda path: None, open_it], ids=["as it was", "opened and saved"])
def test_a_newer_version_of_what_the_learner_left_alone_is_taken(hand_out, leave):
    hand_out()
    leave(hand_out.copy / FIRST)
    change(hand_out.course / FIRST, source=["3 + 3"])
    (hand_out.course / PICTURE).write_bytes(b"a newer picture")
    assert hand_out() == [f"collectlab: brought up to date in {hand_out.copy}: {FIRST}, {PICTURE}"]
    assert cells(hand_out.copy / FIRST)[1]["source"] == ["3 + 3"]
    assert cells(hand_out.copy / FIRST)[1]["outputs"] == []
    assert (hand_out.copy / PICTURE).read_bytes() == b"a newer picture"


def test_other_outputs_of_the_course_are_no_newer_version(hand_out):
    hand_out()
    change(hand_out.course / FIRST, outputs=[], execution_count=7)
    assert hand_out() == []


def test_a_new_lesson_comes_and_the_learners_own_files_stay(hand_out):
    hand_out()
    (hand_out.copy / "scratch.py").write_text("mine")
    shutil.copy(hand_out.course / FIRST, hand_out.course / "02-third.ipynb")
    (hand_out.course / ".ipynb_checkpoints").mkdir()
    shutil.copy(hand_out.course / FIRST, hand_out.course / ".ipynb_checkpoints" / "00-first-checkpoint.ipynb")
    assert hand_out() == [f"collectlab: brought up to date in {hand_out.copy}: 02-third.ipynb"]
    assert (hand_out.copy / "scratch.py").read_text() == "mine"
    assert not (hand_out.copy / ".ipynb_checkpoints").exists()


@pytest.mark.parametrize("notes", [None, "{"])
def test_without_its_notes_nothing_of_the_learners_is_lost(hand_out, notes):
    hand_out()
    work(hand_out.copy / FIRST)
    mine = (hand_out.copy / FIRST).read_bytes()
    (hand_out.copy / ".handed-out.json").unlink()
    if notes:
        (hand_out.copy / ".handed-out.json").write_text(notes)
    assert any(FIRST in line and SECOND not in line for line in hand_out())
    assert (hand_out.copy / FIRST).read_bytes() == mine


def test_launch_lab_opens_the_copy_and_leaves_the_checkout_alone(ready, tmp_path):
    before = tree(ready.path / "notebooks")
    (tmp_path / "a home").mkdir()
    copy = tmp_path / "a home" / "collectlab-notebooks"
    lab = ready.reached("launch/lab", HOME=copy.parent)
    assert lab["said"].startswith(f"collectlab: your notebooks are in {copy}: ") and lab["cwd"] == str(copy)
    assert f"--ServerApp.root_dir={copy}" in lab["argv"]
    assert cells(copy / FIRST)[1]["outputs"] == []
    work(copy / FIRST)
    assert ready.reached("launch/lab", HOME=copy.parent)["said"] == ""
    assert cells(copy / FIRST)[1]["source"] == ["1 + 2"] and tree(ready.path / "notebooks") == before


def test_a_copy_that_cannot_be_made_is_one_line(ready, tmp_path):
    (tmp_path / "collectlab-notebooks").write_text("a file is in the way")
    said = ready.refusal("launch/lab", HOME=tmp_path)
    assert f"could not be copied to {tmp_path}/collectlab-notebooks: " in said and "run this again" in said
    assert (tmp_path / "collectlab-notebooks").read_text() == "a file is in the way"

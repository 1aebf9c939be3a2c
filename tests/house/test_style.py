"""ruff is clean, public names are documented, and the top level holds what the plan names."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOP = {
    "README.md", "environment.yml", "notebooks", "collectlab", "launch", "tests", "pyproject.toml", ".ci",
    ".gitignore", "LICENSE",
}  # fmt: skip


def _tracked():
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name]


def test_ruff_is_clean():
    files = [name for name in _tracked() if name.endswith((".py", ".ipynb"))]  # not a learner's own notebooks
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_top_level_holds_what_the_plan_names():
    assert {name.split("/")[0] for name in _tracked()} <= TOP


def test_public_functions_and_classes_have_docstrings():
    missing = []
    for path in sorted((ROOT / "collectlab").rglob("*.py")):
        tree = ast.parse(path.read_text())
        if path.name != "__main__.py" and not ast.get_docstring(tree):
            missing.append(str(path))
        for node in tree.body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            if public and not ast.get_docstring(node) and not _inner(path, node):
                missing.append(f"{path}:{node.lineno} {node.name}")
    assert missing == []


def _inner(path, node):
    """Processes of the launcher are started, not called: their entry points document the module instead."""
    return path.parent.name == "launcher" and node.name in ("main", "Rank", "Supervisor")

"""The house stands as its plan says: what may import what, and what the notebook's process never imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "collectlab"
FLOORS = {
    1: {"trace", "semantics", "layout", "payload", "cost", "provenance", "words"},
    2: {"fabric"},
    3: {"launcher", "kernels", "explore", "overlap", "sharding"},
    4: {"views", "exercises", "bench", "doctor", "magic", "completion", "notebook"},
    5: {"cli", "__main__"},
}
FLOOR = {room: floor for floor, rooms in FLOORS.items() for room in rooms}
RANKS_ONLY = {"launcher/worker.py", "launcher/calls.py", "launcher/devices.py", "fabric/mpi.py", "fabric/cuda.py"}


def _files():
    return sorted(PACKAGE.rglob("*.py"))


def _imports(path):
    """(module, line) of every import in the file, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = path.relative_to(PACKAGE.parent).with_suffix("").parts[: -node.level]
                base = ".".join((*parent, *filter(None, [base])))
            yield base, node.lineno
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def _room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def upward(files, imports, room):
    """Imports of a higher floor, as 'file:line imports module'."""
    found = []
    for path in files:
        for module, line in imports(path):
            parts = module.split(".")
            if parts[0] == "collectlab" and len(parts) > 1 and parts[1] in FLOOR:
                if room(path) in FLOOR and FLOOR[parts[1]] > FLOOR[room(path)]:
                    found.append(f"{path}:{line} imports {module}")
    return sorted(set(found))


def test_every_file_has_a_floor():
    assert {_room(path) for path in _files()} - {"__init__"} <= set(FLOOR)


def test_no_floor_imports_a_higher_one():
    assert upward(_files(), _imports, _room) == []


def test_an_upward_import_would_be_seen():
    assert upward([Path("layout.py")], lambda path: [("collectlab.views.view", 3)], lambda path: "layout")
    assert not upward([Path("views.py")], lambda path: [("collectlab.layout", 3)], lambda path: "views")


def test_floor_one_imports_only_numpy_and_the_standard_library():
    allowed = {"numpy", "collectlab", *sys.stdlib_module_names}
    for path in _files():
        if FLOOR.get(_room(path)) == 1:
            outside = [(m, line) for m, line in _imports(path) if m.split(".")[0] not in allowed]
            assert outside == [], path


def _loops(edges):
    """Modules that import themselves by way of others."""
    reach = {module: set(targets) for module, targets in edges.items()}
    for middle in reach:
        for targets in reach.values():
            if middle in targets:
                targets |= reach[middle]
    return sorted(module for module, targets in reach.items() if module in targets)


def test_no_two_files_import_each_other_in_a_loop():
    modules = {}
    for path in _files():
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        modules[name] = path
    edges = {
        name: {m for m, _ in _imports(path) if m in modules and m != name} for name, path in modules.items()
    }
    # `from collectlab.x import y` names the package of x too, which is no import of that package
    for name, targets in edges.items():
        targets -= {parent for parent in modules if name.startswith(parent + ".")} - {name}
        targets.discard("collectlab")
    assert _loops(edges) == []
    assert _loops({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c"]


def test_only_the_ranks_import_mpi4py_and_cupy():
    for path in _files():
        if str(path.relative_to(PACKAGE)) not in RANKS_ONLY:
            heavy = [(m, line) for m, line in _imports(path) if m.split(".")[0] in ("mpi4py", "cupy")]
            assert heavy == [], path


def test_nothing_of_the_notebooks_process_forks():
    for path in _files():
        if path.name in ("worker.py", "keeper.py"):  # of ranks and of supervisors
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("fork", "forkpty", "preexec_fn"), f"{path}:{node.lineno}"
            if isinstance(node, ast.keyword):
                assert node.arg != "preexec_fn", f"{path}:{node.lineno}"
        heads = {module.split(".")[0] for module, _ in _imports(path)}
        assert not heads & {"multiprocessing", "concurrent", "pty"}, path


def _loaded_after(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sorted(sys.modules))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stdout.split())


def test_importing_collectlab_imports_neither_mpi4py_nor_cupy():
    loaded = _loaded_after("import collectlab")
    assert not {
        m for m in loaded if m.split(".")[0] in ("mpi4py", "cupy", "numpy", "matplotlib", "ipywidgets")
    }


def test_the_whole_public_surface_imports_neither_mpi4py_nor_cupy():
    loaded = _loaded_after("import collectlab as cl; [getattr(cl, name) for name in cl.__all__]")
    assert {"collectlab.launcher.ranks", "collectlab.semantics"} <= loaded
    assert not {m for m in loaded if m.split(".")[0] in ("mpi4py", "cupy")}


@pytest.mark.parametrize("part", ("utils", "util", "manager", "helper", "helpers", "misc", "common"))
def test_no_file_hides_behind_a_name_that_says_nothing(part):
    root = PACKAGE.parent
    tracked = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True).stdout.split("\n")
    assert [file for file in tracked if part in Path(file).stem.lower().split("_")] == []

""".ci/run installs what it can and hands over to launch/test, as root and not, with apt-get and without."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def handed_over(ready, tmp_path, commands):
    """Run .ci/run of the set-up checkout, with stand-ins for COMMANDS (name -> shell text) before its own."""
    for name, text in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{ready.environment['PATH']}"
    result = ready.start(".ci/run", "-x", PATH=path, COLLECTLAB_OPENMPI=str(tmp_path / "openmpi"))
    assert result.returncode == 0, result.stderr
    *said, given = result.stdout.splitlines()
    assert '"--all", "--without", "gpu", "-x"' in given
    assert ".ci/run: ./launch/test --all --without gpu -x" in said
    return "\n".join(said)


def test_without_apt_get(ready, tmp_path):
    assert "no apt-get here; going on without" in handed_over(ready, tmp_path, {})


def test_as_root(ready, tmp_path):
    log = tmp_path / "log"
    commands = {"id": "echo 0", "apt-get": f'echo "$@" >> {log}'}
    assert "going on" not in handed_over(ready, tmp_path, commands)
    update, install = log.read_text().splitlines()
    assert update.startswith("update") and install.startswith("install") and "python3-venv" in install


def test_as_another_user(ready, tmp_path):
    commands = {"id": "echo 1000", "apt-get": "echo called"}
    said = handed_over(ready, tmp_path, commands)
    assert "not root" in said and "called" not in said


def test_where_apt_get_fails(ready, tmp_path):
    assert "apt-get failed" in handed_over(ready, tmp_path, {"id": "echo 0", "apt-get": "exit 100"})


def test_a_clone_holds_the_commands_as_commands():
    for command in ("launch/lab", "launch/test", ".ci/run"):
        assert (ROOT / command).stat().st_mode & 0o111 == 0o111, command

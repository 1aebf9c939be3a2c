"""What launch/ does where the machine is short of something: network, disk, rights, a home."""

import os
import shlex
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def in_a_namespace(checkout, script):
    """Run a shell script that may mount, on the checkout's machine; its mounts end with it."""
    return subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-euc", script],
        env=checkout.environment | {"PATH": f"{checkout.environment['PATH']}:/usr/bin:/bin"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def test_no_network_then_network(checkout):
    with socket.create_server(("127.0.0.1", 0)) as server:
        index = f"http://127.0.0.1:{server.getsockname()[1]}/simple"  # closed from here on
    closed = {"PIP_INDEX_URL": index, "PIP_NO_INDEX": None, "PIP_FIND_LINKS": None, "PIP_RETRIES": 0}
    assert "no network" in checkout.refusal("launch/lab", **closed)
    assert checkout.refusal("launch/lab", **closed | {"PIP_RETRIES": 1}).startswith("no network: ")
    assert checkout.reached("launch/lab")["prefix"] == str(checkout.venv)


@pytest.mark.parametrize(
    ("pip_said", "launch_says"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "the disk is full"),
        ("OSError: [Errno 122] Disk quota exceeded: '/home/a/b'", "the disk is full"),
        ("NewConnectionError: Failed to establish a new connection: [Errno -3]", "no network"),
        ("NameResolutionError('Failed')\nERROR: No matching distribution found for x", "no network"),
        ("ProxyError('Cannot connect to proxy.')\nERROR: No matching distribution found", "no network"),
        ("SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]')", "does not trust the certificate"),
        ("Collecting x\nERROR: No matching distribution found for x>=5\n", "distribution found for x>=5;"),
        ("ERROR: first\nERROR: second\n[notice] a new pip", "the set-up failed: ERROR: second"),
        ("Killed", "the set-up failed: Killed"),
    ],
)
def test_a_failure_of_pip_becomes_one_line(ready, tmp_path, pip_said, launch_says):
    give_up = 'source "$1"; environment=$2 output=$3; give_up'
    script = ready.path / "launch" / "environment.sh"
    result = subprocess.run(
        ["bash", "-c", give_up, "bash", script, tmp_path, pip_said], capture_output=True, text=True
    )
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert launch_says in result.stderr


@pytest.mark.needs("mounts")
def test_full_disk_then_room(checkout):
    checkout.venv.mkdir()
    lab, venv = shlex.quote(str(checkout.path / "launch" / "lab")), shlex.quote(str(checkout.venv))
    script = f"""
        mount -t tmpfs -o size=160m tmpfs {venv}
        mkdir {venv}/launch
        head -c 158m /dev/zero > {venv}/launch/ballast
        for ballast in 158m 120m 0; do  # no room for pip itself; none for what it installs; room
            truncate -s $ballast {venv}/launch/ballast
            echo "ballast $ballast" >&2
            {lab} || echo "exit $?" >&2
        done
    """
    result = in_a_namespace(checkout, script)
    lines = result.stderr.splitlines()
    for ballast, following in (("158m", "120m"), ("120m", "0")):
        said = lines[lines.index(f"ballast {ballast}") + 1 : lines.index(f"ballast {following}")]
        assert said[-1] == "exit 1" and said[-2].startswith("collectlab: the disk is full:"), said
    assert lines[-2].startswith("collectlab: making") and str(checkout.venv) in result.stdout


@pytest.mark.needs("mounts")
@pytest.mark.parametrize("command", ["lab", "lab --check", "test"])
def test_full_home_then_room(checkout, ready, command):
    home, command = checkout.environment["HOME"], f"{shlex.quote(str(ready.path / 'launch'))}/{command}"
    script = f"""
        mount -t tmpfs -o size=1200k tmpfs {home}
        head -c 1m /dev/zero > {home}/ballast
        {command} || echo "exit $?" >&2
        rm {home}/ballast
        {command}
        ls -A {home} >&2
    """
    result = in_a_namespace(checkout, script)
    said, code, *kept = result.stderr.splitlines()
    assert said.startswith(f"collectlab: the disk of the home directory is full: no room in {home} for"), said
    assert code == "exit 1" and result.returncode == 0 and '"argv"' in result.stdout
    assert not any(name.startswith(".collectlab") for name in kept)


@pytest.mark.needs("mounts")
def test_read_only_checkout(checkout):
    path, lab = shlex.quote(str(checkout.path)), shlex.quote(str(checkout.path / "launch" / "lab"))
    script = f"""
        mount --bind {path} {path}
        mount -o remount,ro,bind {path}
        {lab} --first
        echo learned > {shlex.quote(str(checkout.copy / "00-first.ipynb"))}
        rm {shlex.quote(str(checkout.copy / "01-second.ipynb"))}
        {lab} --second
    """
    result = in_a_namespace(checkout, script)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count(f"--ServerApp.root_dir={checkout.copy}") == 2, result.stdout
    assert result.stderr.count("making") == 1 and "cannot be written: the environment is" in result.stderr
    assert (checkout.copy / "00-first.ipynb").read_text() == "learned\n"
    assert (checkout.copy / "01-second.ipynb").exists()
    assert not checkout.venv.exists() and not (checkout.path / "builds").exists()


@pytest.mark.parametrize("home", [None, "nowhere"])
def test_no_home(ready, tmp_path, home):
    # Where HOME is not set, the home is the one that the system knows, if it has one.
    test = ready.reached("launch/test", "-q", HOME=home and tmp_path / home, TMPDIR=tmp_path)
    if home or test["said"]:
        assert "cannot be written; using HOME=" in test["said"]
        assert test["home"] == f"{tmp_path}/collectlab-{os.getuid()}"
    assert os.access(test["home"], os.W_OK)


@pytest.mark.needs("another user")
def test_a_user_without_rights_or_home(bare_checkout, wheelhouse):
    # pytest's own folders are closed to other users.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        shutil.copytree(wheelhouse, Path(folder) / "wheelhouse", copy_function=shutil.copyfile)
        (Path(folder) / "wheelhouse").chmod(0o755)
        checkout = bare_checkout(Path(folder))
        checkout.environment["PIP_FIND_LINKS"] = (Path(folder) / "wheelhouse").as_uri()
        nobody = []
        if os.getuid() == 0:
            nobody = NOBODY
            checkout.python(interpreter=shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin"))
            for path in (checkout.path, checkout.machine):
                subprocess.run(["chown", "-R", "65534:65534", path], check=True)
        command = checkout.command("launch/lab", HOME=f"{folder}/nowhere")
        command["args"] = [*nobody, *command["args"]]
        command["env"]["PATH"] += ":/usr/bin:/bin"
        result = subprocess.run(**command)
        assert result.returncode == 0, result.stderr
        assert "using HOME=" in result.stderr and "making" in result.stderr
        assert "--allow-root" not in result.stdout and str(checkout.venv) in result.stdout

"""Many people on one node at once: the ranks, runs, ports, names and temporary files of each are their own.

COLLECTLAB_USERS=40 makes as many of them as a class has.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile

import other_users
import pytest
from marks import wait_for

import collectlab as cl
from collectlab.launcher.ranks import Ranks

USERS = int(os.environ.get("COLLECTLAB_USERS", "5"))
PROGRAM = """
import os, sys
import collectlab as cl
with cl.launch(2, device="cpu") as ranks:
    mine = [ranks.submit(lambda ctx: ctx.comm.allreduce(os.getuid())).wait() for _ in range(3)]
    print([run.results for run in mine], mine[0].path, flush=True)
    sys.stdin.readline()
print(cl.run(lambda ctx: ctx.comm.allreduce(os.getuid()), ranks=2, device="cpu").results)
"""


@pytest.fixture
def commons():
    """A folder for temporary files that all may use, as /tmp is."""
    folder = tempfile.mkdtemp(prefix="cl-", dir="/tmp")
    os.chmod(folder, 0o1777)
    yield folder
    shutil.rmtree(folder)


def listening(pids):
    """The addresses, as /proc/net has them, at which these processes take connections or datagrams."""
    held = set()
    for pid in pids:
        try:
            held |= {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")}
        except OSError:
            pass  # it ended meanwhile
    found = []
    for table, state in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
        if os.path.exists(f"/proc/net/{table}"):
            with open(f"/proc/net/{table}") as f:
                rows = [line.split() for line in f.readlines()[1:]]
            found += [row[1] for row in rows if row[3] == state and f"socket:[{row[9]}]" in held]
    return found


def loopback(address):
    host = address.rpartition(":")[0]
    return host.endswith("7F") if len(host) == 8 else host == "0" * 24 + "01000000" or host.endswith("7F")


def secrets_of(pids):
    """What ranks are known by to their supervisors."""
    found = set()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                variables = dict(part.partition(b"=")[::2] for part in f.read().split(b"\0"))
        except OSError:
            continue
        found.add(variables.get(b"COLLECTLAB_TAG"))
        found |= {
            value.encode()
            for value in json.loads(variables.get(b"COLLECTLAB_CONTROL", b"{}")).values()
            if isinstance(value, str) and len(value) >= 16
        }
    return {secret for secret in found if secret}


@pytest.mark.needs("other users")
def test_many_users_do_not_meet(commons, mark):
    uids = range(other_users.FIRST, other_users.FIRST + USERS)
    theirs = {key: value for key, value in os.environ.items() if key not in ("HOME", "COLLECTLAB_RUNS")}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    here = {**theirs, "TMPDIR": commons, "HOME": "/nonexistent", "XDG_STATE_HOME": "/nonexistent"}
    people = {uid: other_users.start(uid, "-c", PROGRAM, env=here, cwd="/", **pipes) for uid in uids}
    try:
        for uid, person in people.items():
            results, _, path = person.stdout.readline().strip().rpartition(" ")
            assert results == str([[2 * uid] * 2] * 3), person.communicate()[1]
            assert path.startswith(f"{commons}/collectlab-runs-{uid}/")
            for place in (path, os.path.dirname(path)):
                about = os.stat(place)
                assert (about.st_uid, stat.S_IMODE(about.st_mode)) == (uid, 0o700)
            assert all(entry.stat().st_uid == uid for entry in os.scandir(path))
        alive = mark.alive()
        assert len(alive) >= 6 * USERS
        secrets = secrets_of(alive)
        assert len(secrets) >= 2 * USERS
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    command = f.read()
            except OSError:
                continue
            assert not [secret for secret in secrets if secret in command], command
        for uid, person in people.items():
            said, complaints = person.communicate("\n", timeout=60)
            assert said == f"[{2 * uid}, {2 * uid}]\n", complaints
        mark.gone()
        assert sorted(os.listdir(commons)) == sorted(f"collectlab-runs-{uid}" for uid in uids)
    finally:
        for person in people.values():
            person.kill()
            person.wait()


@pytest.mark.needs("other users")
def test_a_place_that_another_user_has_laid_out_is_not_taken(commons):
    trap = os.path.join(commons, f"collectlab-runs-{other_users.FIRST}")
    os.mkdir(trap)
    os.chmod(trap, 0o777)
    ask = "from collectlab.launcher import rundir; print(rundir.home())"
    here = {"TMPDIR": commons, "HOME": "/nonexistent", "PATH": os.environ["PATH"]}
    with other_users.start(other_users.FIRST, "-c", ask, env=here, cwd="/", stdout=subprocess.PIPE) as person:
        place = person.communicate()[0].strip()
    assert place == f"/tmp/collectlab-runs-{other_users.FIRST}" and os.stat(place).st_uid == other_users.FIRST
    os.rmdir(place)


def test_nothing_listens_beyond_this_host(each_site, mark):
    with cl.launch(2, device="cpu") as ranks:
        assert ranks.submit(lambda ctx: ctx.comm.allreduce(ctx.rank)).wait().results == [1, 1]
        anywhere = [address for address in listening(mark.alive()) if not loopback(address)]
        ports = [int(address.rpartition(":")[2], 16) for address in anywhere]
        rows = [_socket(port) for port in ports]
        assert all("%lo:" in row for row in rows), rows


LISTENS = """#!{python}
import signal, socket
for family, everywhere in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
    try:
        socket.create_server((everywhere, 0), family=family).detach()
    except OSError:
        pass  # this machine has no IPv6
signal.pause()
"""
SITE = """
command = ["{launcher}", "{{n}}"]
rank = "R"
local_rank = "L"
needs = "a launcher that listens"
"""


def test_a_launcher_that_listens_is_confined_before_there_are_ranks(tmp_path, monkeypatch, mark):
    launcher = tmp_path / "listens"
    launcher.write_text(LISTENS.format(python=sys.executable))
    launcher.chmod(0o755)
    (tmp_path / "mine.toml").write_text(SITE.format(launcher=launcher))
    monkeypatch.setenv("COLLECTLAB_SITES", str(tmp_path))
    ranks = Ranks(2, device="cpu", site="mine")
    ranks.submit(lambda ctx: None)
    for address in wait_for(lambda: listening(mark.alive())):
        port = int(address.rpartition(":")[2], 16)
        wait_for(lambda port=port: "%lo:" in _socket(port), complaint=lambda port=port: _socket(port))
    ranks.stop()


def _socket(port):
    """A socket that listens at that port, as `ss` shows it: %lo says that it is bound to the device lo."""
    command = ["ss", "--no-header", "--listening", "--tcp", "--numeric", f"sport = :{port}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout

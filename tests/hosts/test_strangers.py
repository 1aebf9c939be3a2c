"""Strangers who come to a supervisor that waits for other hosts: none is let in, and the ranks start all the same."""

import os
import pickle
import socket
from pathlib import Path

import pytest
from marks import wait_for

import collectlab as cl
from collectlab.launcher import network
from collectlab.launcher.ranks import Ranks

SITE = """
command = ["sh", "-c", 'until [ -e {flag} ]; do sleep 0.01; done; exec "$0" "$@"', "mpiexec",
    "-launcher", "fork", "-hosts", "127.0.0.1", "-iface", "lo", "-n", "{{n}}"]
rank = "{rank}"
local_rank = "MPI_LOCALRANKID"
across = true
needs = "MPICH"
"""


@pytest.fixture
def waiting(tmp_path, monkeypatch):
    """Two ranks that are about to start: they do when the file is there that is returned with them."""
    monkeypatch.setenv("COLLECTLAB_SITES", str(tmp_path))
    monkeypatch.setenv("COLLECTLAB_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("COLLECTLAB_ADDRESS", "127.0.0.1")
    flag = tmp_path / "flag"
    (tmp_path / "waiting.toml").write_text(SITE.format(flag=flag, rank="PMI_RANK"))
    ranks = Ranks(2, device="cpu", site="waiting")
    run = ranks.submit(lambda ctx: ctx.comm.allreduce(ctx.rank))
    yield ranks, run, flag
    ranks.stop()
    assert not list((tmp_path / "runs").glob("*.key"))


def place(ranks):
    """Where the supervisor listens."""
    pid = ranks._link.process.pid

    def listening():
        sockets = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
        for row in map(str.split, Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]):
            if row[3] == "0A" and f"socket:[{row[9]}]" in sockets:
                return row[1]
        return None

    address, port = wait_for(listening).split(":")
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(address))), int(port, 16)


def key(run):
    (path,) = Path(run.path).parent.glob("*.key")
    assert path.stat().st_mode & 0o777 == 0o600
    return path.read_bytes()


def test_it_listens_on_one_address_and_no_longer_than_ranks_start(waiting):
    ranks, run, flag = waiting
    at = place(ranks)
    assert at[0] == "127.0.0.1"
    flag.touch()
    assert run.wait(20).results == [1, 1]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(at)


def test_the_secret_is_in_no_command_line_and_in_no_environment(waiting):
    ranks, run, flag = waiting
    place(ranks)
    secret = key(run)
    flag.touch()
    run.wait(20)
    for kind in ("cmdline", "environ"):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                said = Path(f"/proc/{pid}/{kind}").read_bytes()
            except OSError:
                continue
            assert secret not in said and secret.hex().encode() not in said


def test_strangers_are_let_in_by_nothing_they_say_and_hold_nothing_up(waiting):
    ranks, run, flag = waiting
    at, pid = place(ranks), ranks._link.process.pid
    texts = b"", b"GET / HTTP/1.1\r\n\r\n" * 10, bytes(32) + pickle.dumps(print), os.urandom(1 << 16), bytes(40)
    strangers = []
    for text in texts * 20:
        strangers.append(socket.create_connection(at))
        try:
            strangers[-1].sendall(text)
        except ConnectionError:
            pass  # it has heard enough
    held = lambda: len(os.listdir(f"/proc/{pid}/fd"))  # noqa: E731
    wait_for(lambda: held() < 60, complaint=lambda: f"the supervisor holds {held()} descriptors")
    flag.touch()
    assert run.wait(20).results == [1, 1]
    for stranger in strangers:
        stranger.settimeout(5)
        try:
            while stranger.recv(1 << 16):
                pass  # its random number
        except ConnectionError:
            pass
        stranger.close()


def test_one_with_another_key_is_let_in_by_nothing(waiting):
    ranks, run, flag = waiting
    stranger = network.Sealed(socket.create_connection(place(ranks)), os.urandom(32), b"keeper")
    while not stranger.knows_peer:
        stranger.read()
    stranger.send(op="keeper", host="elsewhere")
    assert stranger.read() is None
    flag.touch()
    assert run.wait(20).results == [1, 1]


def keeper(ranks, run):
    """One that knows the key, and is taken for the keeper of a host."""
    channel = network.Sealed(socket.create_connection(place(ranks)), key(run), b"keeper")
    while not channel.knows_peer:
        channel.read()
    channel.send(op="keeper", host="elsewhere")
    assert channel.read() == [{"op": "welcome"}]
    return channel


def test_a_corrupt_message_of_another_host_ends_the_ranks_and_is_told(waiting):
    ranks, run, flag = waiting
    channel = keeper(ranks, run)
    channel.sock.sendall(bytes(100))
    assert run.wait(20).status == "failed"
    assert "lost host elsewhere" in run.report() and "does not carry the seal of these ranks" in run.report()
    flag.touch()
    assert ranks.submit(lambda ctx: ctx.rank).wait().results == [0, 1]


def test_a_keeper_that_goes_is_told(waiting):
    ranks, run, _ = waiting
    keeper(ranks, run).close()
    assert run.wait(20).status == "failed"
    assert "lost host elsewhere" in run.report() and "the process that watches over it was killed" in run.report()


def test_a_host_that_does_not_hang_up_does_not_hold_up_the_end(waiting):
    ranks, run, _ = waiting
    channel = keeper(ranks, run)
    ranks.interrupt()  # which would kill the supervisor in the end, and then the report would say so
    assert run.status == "interrupted"
    assert "no word has come that they did on elsewhere" in run.report()
    channel.close()


@pytest.mark.parametrize(
    ("rank", "said"),
    (
        ("ALWAYS_ZERO", "two processes say that they are rank 0"),
        ("NOT_SET", "gave a process the rank None of 2"),
        ("ALWAYS_SEVEN", "gave a process the rank 7 of 2"),
    ),
)
def test_ranks_that_cannot_be_told_apart_do_not_start(tmp_path, monkeypatch, rank, said):
    monkeypatch.setenv("COLLECTLAB_SITES", str(tmp_path))
    monkeypatch.setenv("ALWAYS_ZERO", "0")
    monkeypatch.setenv("ALWAYS_SEVEN", "7")
    (tmp_path / "wrong.toml").write_text(SITE.format(flag="/", rank=rank))
    with pytest.raises(RuntimeError, match="did not start") as raised:
        cl.launch(2, device="cpu", site="wrong")
    assert said in str(raised.value)

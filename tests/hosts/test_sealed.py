"""The channel between hosts: what is not said with the key, in its turn and in its direction, is not heard."""

import os
import pickle
import socket
import struct

import pytest

from collectlab.launcher import network
from collectlab.launcher.wire import Broken

KEY = b"k" * 32


def pair():
    """Two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return near, far


@pytest.fixture
def ends():
    """A supervisor's and a keeper's end that know the same key, and have introduced themselves."""
    near, far = pair()
    both = network.Sealed(near, KEY, b"supervisor"), network.Sealed(far, KEY, b"keeper")
    for end in both:
        read(end, 0)
    yield both
    for end in both:
        end.close()


def read(channel, at_least=1):
    """So many messages, or more; None when the peer is gone."""
    messages = []
    while not channel.knows_peer or len(messages) < at_least:
        if (batch := channel.read()) is None:
            return None
        messages += batch
    return messages


def tapped():
    """A sealed supervisor's end, and the bare socket of whoever is at the other end, past the introduction."""
    near, far = pair()
    supervisor = network.Sealed(near, KEY, b"supervisor")
    theirs = far.recv(32, socket.MSG_WAITALL)
    return supervisor, far, theirs


def test_messages_go_both_ways_in_order_and_whole(ends):
    supervisor, keeper = ends
    said = [{"op": "tell", "number": n, "text": "ä" * n} for n in (0, 1, 70_000)]
    for message in said:
        keeper.send(**message)
    assert read(supervisor, 3) == said
    supervisor.send(op="bye")
    assert read(keeper) == [{"op": "bye"}]
    keeper.close()
    assert supervisor.read() is None


@pytest.mark.parametrize("roles", ((b"supervisor", b"keeper"), (b"keeper", b"supervisor")))
def test_neither_end_hears_one_that_has_another_key(roles):
    near, far = pair()
    knows, other = network.Sealed(near, KEY, roles[0]), network.Sealed(far, b"o" * 32, roles[1])
    read(knows, 0), read(other, 0)
    other.send(op="keeper", host="x")
    with pytest.raises(Broken, match="does not carry the seal of these ranks"):
        read(knows)
    knows.send(op="welcome")
    with pytest.raises(Broken, match="does not carry the seal"):
        read(other)


def test_two_ends_of_the_same_role_do_not_hear_each_other():
    near, far = pair()
    one, other = network.Sealed(near, KEY, b"keeper"), network.Sealed(far, KEY, b"keeper")
    read(one, 0), read(other, 0)
    one.send(op="keeper")
    with pytest.raises(Broken, match="seal"):
        read(other)


def test_what_comes_back_from_an_echo_is_not_heard():
    supervisor, far, theirs = tapped()
    far.sendall(theirs)
    read(supervisor, 0)
    supervisor.send(op="welcome")
    far.sendall(far.recv(1 << 16))
    with pytest.raises(Broken, match="seal"):
        read(supervisor)


def between(change):
    """What a supervisor hears when `change(frames)` is done to three messages on their way from a keeper."""
    near, middle = pair()
    inner, far = pair()
    supervisor, keeper = network.Sealed(near, KEY, b"supervisor"), network.Sealed(far, KEY, b"keeper")
    inner.sendall(middle.recv(32, socket.MSG_WAITALL))
    middle.sendall(inner.recv(32, socket.MSG_WAITALL))
    read(supervisor, 0), read(keeper, 0)
    frames = []
    for number in range(3):
        keeper.send(op="heard", number=number)
        length = inner.recv(4, socket.MSG_WAITALL)
        frames.append(length + inner.recv(struct.unpack("!I", length)[0], socket.MSG_WAITALL))
    for frame in change(frames):
        middle.sendall(frame)
    middle.close()
    heard = []
    while (batch := supervisor.read()) is not None:
        heard += batch
    return [message["number"] for message in heard]


def flipped(frame, at):
    frame = bytearray(frame)
    frame[at] ^= 1
    return bytes(frame)


def test_what_is_passed_on_unchanged_is_heard():
    assert between(lambda frames: frames) == [0, 1, 2]


@pytest.mark.parametrize(
    "change",
    (
        lambda f: [f[0], flipped(f[1], -2), f[2]],
        lambda f: [f[0], flipped(f[1], 10), f[2]],
        lambda f: [f[0], f[0], f[1]],
        lambda f: [f[1], f[0], f[2]],
        lambda f: [f[0], f[2]],
    ),
    ids=("text altered", "seal altered", "repeated", "exchanged", "left out"),
)
def test_what_is_altered_repeated_or_left_out_on_the_way_is_found(change):
    with pytest.raises(Broken, match="seal"):
        between(change)


def test_a_message_of_another_connection_with_the_same_key_is_not_heard():
    recorded = []
    between(lambda frames: recorded.extend(frames) or frames)
    with pytest.raises(Broken, match="seal"):
        between(lambda _: recorded)


class Trap:
    """Leaves a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("case", ("pickle", "text", "zeros", "long"))
def test_a_stranger_is_not_heard_and_nothing_is_unpickled(tmp_path, case):
    trap = pickle.dumps(Trap(str(tmp_path / "sprung")))
    framed = struct.pack("!I", 32 + len(trap)) + bytes(32) + trap
    sent = {"pickle": framed, "text": b"GET / HTTP/1.1\r\n\r\n", "zeros": bytes(100), "long": struct.pack("!I", 5000)}
    supervisor, far, _ = tapped()
    far.sendall(bytes(32) + sent[case])
    with pytest.raises(Broken, match=r"seal|at most 4096 are accepted"):
        read(supervisor)
    assert not (tmp_path / "sprung").exists()


def test_the_key_lies_in_a_file_of_ones_own_and_is_new_each_time(tmp_path):
    keys = [network.new_key(tmp_path / name) for name in ("a.key", "b.key")]
    assert keys[0] != keys[1] and len(keys[0]) == 32
    assert (tmp_path / "a.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        network.new_key(tmp_path / "a.key")

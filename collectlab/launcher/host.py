"""The ranks on one host, for the process there that watches over them: the supervisor, or a keeper on its behalf."""

import os
import re
import selectors
import socket
import struct
import time

from collectlab.launcher import whereabouts, wire
from collectlab.launcher.link import START
from collectlab.launcher.whereabouts import STACK_SIGNAL

LOOK = 0.5  # seconds that the ranks are given to write down where they are
_SENDING = 1, 0  # seconds, microseconds: a rank that is stopped, and takes no message, is waited for no longer
_OUTERMOST = f'  File "<string>", line {len(START.splitlines())} in <module>\n'.encode()  # where a rank was started
_STACK_LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_GUARD = {"guard": {"pid": int, "daemon": int}, "orphaned": {}, "exited": {"code": int}}
_RANK = {
    "rank": {"pid": int, "host": str},
    "ready": {"device": str, "identity": str, "local_rank": int, "cores": int},
    "unfit": {"kind": str, "why": str},
    "returned": {"id": str},
    "raised": {"id": str, "error": str, "message": str, "frames": list},
    "left": {"id": str, "code": int, "frames": list},
}
_SAID = {"guard": _GUARD, "rank": _RANK}  # what each may say, and what must be in it
_DESCRIPTORS = {"guard": 0, "rank": 2}  # that come with its sign-in


def react(selector, timeout=None):
    """Let each source that has something call the function that it is registered with."""
    for key, _ in selector.select(timeout):
        if selector.get_map().get(key.fd) is key:  # an earlier reaction may have closed it
            key.data(key.fileobj)


class _Rank:
    pid = guard = rank = where = stack = None  # guard and rank are channels


class Host:
    """The ranks on this host. `heard(host, rank, who, message)` is told what the guards and ranks say.

    `who` is "guard" or "rank"; the first message of each is its sign-in, and None the end of its connection. What
    is no message of theirs is told as {"op": "garbled", "why": ...}.
    """

    def __init__(self, selector, listener, token, nranks, heard):
        self.name, self.numbers = os.uname().nodename, []
        self._selector, self._token, self._heard = selector, token, heard
        self._ranks, self._refused = [_Rank() for _ in range(nranks)], []
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self._on_connection)

    # what the watcher wants

    def tell(self, numbers, **message):
        """Send a message to those ranks."""
        text = wire.packed(message)
        for number in numbers:
            try:
                self._ranks[number].rank.put(text)
            except OSError:
                pass  # its guard will say how it ended

    def release(self, number):
        """Let the guard of a rank that has ended leave too."""
        try:
            self._ranks[number].guard.send(op="bye")
        except OSError:
            pass  # it has been killed

    def look(self, going):
        """rank -> {"where": its MPI call, "frames": its Python stack, where it is one of those `going`}."""
        asked = [self._ranks[number] for number in going if self._ranks[number].pid]
        for rank in asked:
            os.ftruncate(rank.stack, 0)
            os.lseek(rank.stack, 0, os.SEEK_SET)
            try:
                os.kill(rank.pid, STACK_SIGNAL)
            except ProcessLookupError:
                pass
        end = time.monotonic() + LOOK
        while not all(map(_is_told, asked)) and time.monotonic() < end:
            time.sleep(0.002)
        seen = {}
        for number in self.numbers:
            rank = self._ranks[number]
            where = whereabouts.read(rank.where)
            where["seconds"] = time.time() - where.pop("since")
            seen[number] = {"where": where, "frames": _stack(rank) if rank in asked else []}
        return seen

    # what the ranks say

    def _on_connection(self, listener):
        sock, _ = listener.accept()
        _, uid, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid == os.getuid():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", *_SENDING))
            self._selector.register(wire.Channel(sock), selectors.EVENT_READ, self._on_stranger)
        else:
            sock.close()

    def _on_stranger(self, channel):
        """A connection that has not yet said who it is."""
        try:
            messages = channel.read()
        except wire.Broken:
            messages = None
        if messages == []:
            return
        first = messages[0] if messages else {}
        who, number = first.get("op"), first.get("rank")
        known = first.pop("token", None) == self._token and who in ("guard", "rank") and _is_whole(who, first)
        known = known and len(channel.fds) == _DESCRIPTORS[who]
        if not known or not isinstance(number, int) or not 0 <= number < len(self._ranks):
            self._drop(channel)
            return
        rank = self._ranks[number]
        if getattr(rank, who) is not None:
            self._selector.unregister(channel)
            self._refused.append(channel)  # left open: a guard that is hung up on would end everything
            self._heard(self, number, who, first)
            return
        setattr(rank, who, channel)
        if who == "rank":
            rank.pid, (rank.where, rank.stack) = first["pid"], channel.fds
            self.numbers.append(number)
        self._selector.modify(channel, selectors.EVENT_READ, lambda c: self._on_message(c, number, who))
        self._pass_on(number, who, messages)

    def _on_message(self, channel, number, who):
        try:
            messages = channel.read()
        except wire.Broken as error:
            messages = [{"op": "garbled", "why": str(error)}]
            self._selector.unregister(channel)
        if messages is None:
            self._drop(channel)
        self._pass_on(number, who, [None] if messages is None else messages)

    def _pass_on(self, number, who, messages):
        for message in messages:
            if message is not None and not _is_whole(who, message):
                message = {"op": "garbled", "why": f"a control message of no known kind: {str(message)[:60]}"}
            elif message is not None and message["op"] == "exited" and message["code"] < 0:
                message["frames"] = _stack(self._ranks[number], after="Fatal Python error")
            self._heard(self, number, who, message)

    def _drop(self, channel):
        if channel in self._selector.get_map():
            self._selector.unregister(channel)
        channel.close()


def _is_whole(who, message):
    op = message.get("op")
    said = {**_SAID[who], "garbled": {"why": str}}.get(op) if isinstance(op, str) else None
    return said is not None and all(isinstance(message.get(key), kind) for key, kind in said.items())


def _is_told(rank):
    """Whether a rank has written its stack to the end, which on a busy machine is not at once."""
    text = os.pread(rank.stack, 1 << 16, 0)
    return text.endswith((_OUTERMOST, b"  ...\n"))  # of very many frames the outer ones are left out


def _stack(rank, after=""):
    """The Python stack that the rank has written, outermost frame first."""
    if rank.stack is None:
        return []
    text = os.pread(rank.stack, 1 << 16, 0).decode(errors="replace")
    text = text[text.find(after) :] if after in text else ""
    frames = [(file, int(line), name) for file, line, name in reversed(_STACK_LINE.findall(text))]
    return frames[1:]  # the outermost is the line that started this process

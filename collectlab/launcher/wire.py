"""Control messages: a length, then JSON. None is ever unpickled; programs and results travel as files."""

import json
import select
import socket
import struct

_HEAD = struct.Struct("!I")
LONGEST = 1 << 24
LONGEST_WAIT = 1 << 20  # seconds, twelve days: poll(2) takes no more than twice as many


class Broken(ConnectionError):
    """The peer sent something that is not a control message."""


class Channel:
    """One end of a stream socket that carries messages, and file descriptors beside them."""

    longest = LONGEST  # bytes of a message that is accepted

    def __init__(self, sock):
        self.sock = sock
        self.fds = []
        self.ended = None  # the OSError that ended it, where the peer did not simply hang up
        self._data = bytearray()

    def fileno(self):
        return self.sock.fileno()

    def send(self, fds=(), **message):
        self.put(packed(message), fds)

    def put(self, text, fds=()):
        """Send a message that is packed already."""
        data = _HEAD.pack(len(text)) + text
        if fds:
            sent = socket.send_fds(self.sock, [data], list(fds))
            data = data[sent:]
        self.sock.sendall(data)

    def has_more(self, seconds=0):
        """Whether there is something to read, or the end, within so many seconds (None: as long as it takes)."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(None if seconds is None else 1000 * seconds))

    def read(self):
        """The messages that one recv completes, maybe none; None when the peer is gone."""
        try:
            data = self._receive()
        except BlockingIOError:
            return []
        except OSError as error:
            self.ended = error
            return None
        if not data:
            return None
        self._data += data
        messages = []
        while (text := self._next()) is not None:
            try:
                message = json.loads(text)
            except (ValueError, RecursionError):
                raise Broken(f"a control message is not JSON: {text[:60]!r}") from None
            if not isinstance(message, dict):
                raise Broken(f"a control message is not an object: {text[:60]!r}")
            messages.append(message)
        return messages

    def _receive(self):
        data, fds, _, _ = socket.recv_fds(self.sock, 1 << 16, 8)
        self.fds += fds
        return data

    def _next(self):
        """The text of the next message, if all of it is there."""
        if len(self._data) < _HEAD.size:
            return None
        (length,) = _HEAD.unpack_from(self._data)
        if length > self.longest:
            raise Broken(f"a control message announced {length} bytes; at most {self.longest} are accepted")
        if len(self._data) < _HEAD.size + length:
            return None
        text = bytes(self._data[_HEAD.size : _HEAD.size + length])
        del self._data[: _HEAD.size + length]
        return text

    def close(self):
        self.sock.close()


def packed(message):
    """A message as it travels, without its length."""
    text = json.dumps(message).encode()
    if len(text) > LONGEST:
        raise ValueError(f"a control message of {len(text)} bytes; at most {LONGEST} are accepted")
    return text

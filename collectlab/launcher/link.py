"""The connection of a `Ranks` to its supervisor: a process, a socket, and a thread that listens."""

import os
import socket
import struct
import subprocess
import sys
import threading
import time

from collectlab.launcher import sweep
from collectlab.launcher.wire import LONGEST_WAIT, Broken, Channel

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
START = "import sys; sys.path.append({root!r}); from collectlab.launcher.{module} import main; main()"
_SENDING = 2  # seconds after which a supervisor that takes no message is given up
_ENDING = 1.5  # seconds after which one is that has said its last word, and does not end
_LATE = 5.0  # seconds after which one is that should have ended a run, or a start, and has said no word of it


class Link:
    """A supervisor, started with `environment`, and the socket to it."""

    def __init__(self, environment):
        self.tag, self.started = environment[sweep.TAG], time.time()
        self._owner = os.getpid()
        self._due = None  # when it has said its last word at the latest, by the monotonic clock
        self.is_mute, self.unwanted = False, set()  # whether it has not answered; runs that are to end with it
        self._sending = threading.Lock()
        self._complaints = os.memfd_create("collectlab-supervisor", os.MFD_CLOEXEC)
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _SENDING, 0))
        self._channel = Channel(ours)
        command = [sys.executable, "-I", "-S", "-c", START.format(root=ROOT, module="supervisor")]
        try:
            with theirs:
                self.process = subprocess.Popen(
                    command, stdin=theirs, stdout=self._complaints, stderr=self._complaints,
                    env=environment, start_new_session=True, cwd=_somewhere(),
                )  # fmt: skip
        except BaseException:  # interrupted: one that has been started ends
            ours.close()
            raise

    def __del__(self):
        self._channel.close()
        os.close(self._complaints)

    def tell(self, **message):
        """Send a message; a supervisor that does not take it is killed."""
        with self._sending:
            try:
                self._channel.send(**message)
            except BlockingIOError:
                self.give_up()
            except OSError:
                pass  # it is gone, as the listener hears

    def cut(self):
        """Hang up, at once: the supervisor ends everything, as if the notebook had gone."""
        if os.getpid() == self._owner:  # the socket is shared with whatever this process has forked
            try:
                self._channel.sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    def expect(self, seconds):
        """It is to end what it does by itself, after so many seconds at the latest, or None: who knows when."""
        known = seconds is not None and seconds < LONGEST_WAIT
        self._due = time.monotonic() + seconds + _LATE if known else None

    def messages(self):
        """What the supervisor says, until it is gone, or has not ended by itself what it was to end."""
        try:
            while self._channel.has_more(self._due and max(0.0, self._due - time.monotonic())):
                if (batch := self._channel.read()) is None:
                    break
                yield from batch
            else:
                self.give_up()
        except Broken as error:
            os.write(self._complaints, f"{error}\n".encode())
        self.cut()
        try:
            self.process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            self.give_up()

    def hurry(self):
        """It has said its last word, and may take some time to write that down."""
        self._due = time.monotonic() + _ENDING

    def give_up(self):
        """Kill it, and hear no more of it than it has said."""
        self.is_mute = True
        self.process.kill()
        try:
            self._channel.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has hung up

    def has_ended(self):
        """Whether it has; one that was killed may not, as long as it waits for a file system that does not answer."""
        return self.process.poll() is not None

    def complaints(self):
        """What the supervisor itself wrote on its streams: nothing, unless it failed."""
        return os.pread(self._complaints, 1 << 14, 0).decode(errors="replace")


def _somewhere():
    """None, or another folder than the present one, where that has been removed: Open MPI does not start there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return "/"


def listen(link, ranks):
    """Hand the messages of `link` to what the weak reference `ranks` refers to, as long as that is there."""
    last = None
    try:
        for message in link.messages():
            if message["op"] == "gone":
                last = message
                link.hurry()
            elif (there := ranks()) is not None:
                there._take(link, message)
                del there
    finally:
        if (there := ranks()) is not None:
            there._bury(link, last)

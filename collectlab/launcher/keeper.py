"""On every host but the supervisor's: a process that does there what the supervisor does on its own host.

The first rank of a host makes it. It listens where the supervisor would, so that ranks and guards find no
difference, passes on what they say, and sweeps the host when the supervisor goes, when the network does, or when
all is over. It is alone in its session: no daemon of MPI knows it and takes it along.
"""

import os
import selectors
import signal
import socket
import time

from collectlab.launcher import jobs, network, sweep
from collectlab.launcher.host import LOOK, Host, react
from collectlab.launcher.wire import Broken

_NAME_TAKEN = 98  # EADDRINUSE


class Kept:
    """The ranks on another host, in the place of `Host`: the supervisor's end of the channel to their keeper."""

    def __init__(self, channel, name):
        self.channel, self.name, self.numbers = channel, name, []
        self._asked, self._early = 0, []
        self._send(op="welcome")

    def tell(self, numbers, **message):
        self._send(op="tell", numbers=list(numbers), message=message)

    def release(self, number):
        self._send(op="release", number=number)

    def ask(self, going):
        """Ask for a look at the ranks; `look` waits for it. So all hosts look at the same time."""
        self._asked += 1
        self._send(op="look", asked=self._asked, going=[number for number in going if number in self.numbers])

    def look(self, going):
        end = time.monotonic() + 2 * LOOK
        while (left := end - time.monotonic()) > 0 and self.channel.has_more(left):
            try:
                messages = self.channel.read()
            except Broken:
                break
            if messages is None:
                break
            for message in messages:
                if message["op"] != "looked":
                    self._early.append(message)
                elif message["asked"] == self._asked:
                    return dict(message["seen"])
        return {}

    def read(self):
        """What the keeper says: pairs (rank, who, message) as `Host` hears them; None when it is gone."""
        messages = self.channel.read()
        return None if messages is None else self._heard(messages)

    def early(self):
        """What it said while it was waited for with `look`."""
        early, self._early = self._early, []
        return self._heard(early)

    def hang_up(self):
        """The keeper ends everything on its host."""
        try:
            self.channel.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it is gone

    def has_ended(self, end):
        """Whether it hangs up too, which it does when all is over there, before the moment `end`."""
        try:
            while (left := end - time.monotonic()) > 0 and self.channel.has_more(left):
                if self.channel.read() is None:
                    return True
        except Broken:
            pass
        return False

    def _heard(self, messages):
        return [(m["rank"], m["who"], m["message"]) for m in messages if m["op"] == "heard"]

    def _send(self, **message):
        try:
            self.channel.send(**message)
        except OSError:
            pass  # reading will tell


def start(control):
    """Make the keeper of this host, unless there is one already. Raises network.Unreached."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind("\0" + control["address"])
    except OSError as error:
        if error.errno != _NAME_TAKEN:
            raise
        time.sleep(0.005)  # another rank is about to make it
        return
    channel = network.reach(control["network"])
    listener.listen(2 * control["nranks"])
    if os.fork() == 0:
        try:
            _detach({listener.fileno(), channel.fileno()})
            _Keeper(channel, listener, control).serve()
        finally:
            os._exit(1)  # never back into the rank that it was forked from
    listener.close()
    channel.close()


def leave_heir(tag, since, leaves, cancel):
    """Fork a process that sweeps this host should the supervisor, which calls this, be killed.

    Returns its lifeline, and its pid.

    It also withdraws the job from the queue of a cluster, with the words `cancel`.

    The keepers sweep their hosts then, and MPI may take the guards here along before they have done so here.
    """
    end, lifeline = os.pipe()
    if pid := os.fork():
        os.close(end)
        return lifeline, pid
    try:
        _detach({end})
        os.read(end, 1)
        jobs.withdraw(cancel)
        with sweep.turn(tag):
            sweep.kill(tag, since=since, leaves=leaves)
    finally:
        os._exit(0)


def _detach(kept):
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd < 3:
            os.dup2(nothing, fd)
        elif fd not in kept:  # a daemon of MPI waits for the end of some of these
            try:
                os.close(fd)
            except OSError:
                pass  # it was the one through which the folder was read


class _Keeper:
    def __init__(self, channel, listener, control):
        self.channel, self.control = channel, control
        self.channel_ended = False
        self.started, self.daemons = time.time(), {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(channel, selectors.EVENT_READ, self._on_supervisor)
        self.host = Host(self.selector, listener, control["token"], control["nranks"], self._pass_on)

    def serve(self):
        try:
            while not self.channel_ended:
                react(self.selector)
        finally:  # also when it cannot be told or understood any more
            self._end()

    def _pass_on(self, _, number, who, message):
        if message and message["op"] == "guard":
            self._note_daemon(message["daemon"])
        self.channel.send(op="heard", rank=number, who=who, message=message)

    def _on_supervisor(self, channel):
        messages = channel.read()
        self.channel_ended = messages is None
        for message in messages or ():
            op = message.pop("op")
            if op == "tell":
                self.host.tell(message["numbers"], **message["message"])
            elif op == "release":
                self.host.release(message["number"])
            elif op == "look":
                seen = list(self.host.look(message["going"]).items())
                self.channel.send(op="looked", asked=message["asked"], seen=seen)

    def _note_daemon(self, pid):
        """Remember the daemon of the launcher that started a rank, where it is one of those that the site names."""
        try:
            with open(f"/proc/{pid}/comm") as file:
                if file.read().strip() in self.control["daemons"] and pid not in self.daemons:
                    self.daemons[pid] = os.pidfd_open(pid)
        except OSError:
            pass  # it ended meanwhile

    def _end(self):
        leaves = [path.replace("{pid}", str(pid)) for path in self.control["leaves"] for pid in (self.daemons or "-")]
        sweep.kill(self.control["tag"], since=self.started, leaves=leaves)
        for daemon in self.daemons.values():  # cut off from its launcher, it would wait for ever
            try:
                signal.pidfd_send_signal(daemon, signal.SIGKILL)
            except OSError:
                pass  # it has ended by itself
        os._exit(0)  # which the supervisor takes for: nothing is left here

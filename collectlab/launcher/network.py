"""Control messages between hosts: an address that the other hosts reach, a key beside the runs, and sealed channels.

Every message carries an HMAC-SHA256 under a key of this connection and this direction, made from the key of the
gang and a random number of either side. So the first one proves the peer, and none can be altered, repeated or
left out. (multiprocessing.connection also proves the peer, but blocks meanwhile, and proves nothing afterwards.)
"""

import errno
import os
import socket

from collectlab.launcher.wire import LONGEST, Broken, Channel

_SIZE = 32  # bytes of a key, of a random number, of a seal
_UNPROVEN = 1 << 12  # bytes of a message that is read before the peer has proved that it knows the key
_QUIET = 3  # seconds after which a peer whose kernel answers nothing is taken to be cut off
_REACHING = 10  # seconds that a keeper is given to reach the supervisor
_ADDRESS = "COLLECTLAB_ADDRESS"
_PIDFD_GETFD = 438  # a system call for which Python has no function
_ROLES = {b"supervisor", b"keeper"}


class Unreached(Exception):
    """What is in the way between two hosts, and what to do about it, in words."""


# the address


def reached_at(hosts):
    """The address at which the other `hosts` reach this one. ValueError when the one that is named will not do."""
    wanted = os.environ.get(_ADDRESS)
    if wanted:
        try:
            address = own_address(wanted)
            if address in ("0.0.0.0", "::"):
                raise OSError("it means every address there is")
        except OSError as error:
            raise ValueError(
                f"the variable {_ADDRESS} is {wanted!r}; an address of this host is accepted ({error})"
            ) from None
        return address
    beyond = "192.0.2.1"  # an address for documentation (RFC 5737): the default route leads there
    for place in (*hosts, socket.gethostname(), beyond):
        address = _source(place)
        if address and not address.startswith("127.") and address != "::1":
            return address
    return "127.0.0.1"


def own_address(name):
    """The address of this host that `name` stands for. OSError when it stands for none."""
    family, kind, place = _looked_up(name, 0, socket.SOCK_STREAM)
    with socket.socket(family, kind) as trial:
        trial.bind(place)
    return place[0]


def _source(place):
    """The address from which this host would send to `place`; nothing is sent."""
    try:
        family, kind, there = _looked_up(place, 9, socket.SOCK_DGRAM)
        with socket.socket(family, kind) as sock:
            sock.connect(there)
            return sock.getsockname()[0]
    except OSError:
        return None


def _looked_up(name, port, kind):
    try:
        family, kind, _, _, place = socket.getaddrinfo(name, port, type=kind)[0]
    except UnicodeError as error:  # such as a name with two dots in a row
        raise OSError(f"it is no name of a host: {error}") from None
    return family, kind, place


# what others listen at


def confine(pid):
    """Let nobody from another host reach what that process listens at: the launchers of MPI take any network.

    The sockets are bound to the device `lo`. Where the system forbids that (`can_confine`), they stay as they are.
    """
    try:
        there = os.pidfd_open(pid)
    except OSError:
        return  # it has ended
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            _confine(there, pid, number)
    except OSError:
        pass  # it has ended meanwhile
    finally:
        os.close(there)


def _confine(there, pid, number):
    try:
        if os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:"):
            with _borrowed(there, int(number)) as sock:
                if _takes_all(sock):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
    except OSError:
        pass  # it has been closed, or the system lets nobody do this


def can_confine():
    """Whether the system allows `confine`: a container may be forbidden to take up sockets of other processes."""
    here = os.pidfd_open(os.getpid())
    try:
        with socket.socket() as own, _borrowed(here, own.fileno()) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
            return True
    except OSError:
        return False
    finally:
        os.close(here)


def _borrowed(pidfd, number):
    """The socket that is descriptor `number` of that process. OSError where the system does not allow it."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(_PIDFD_GETFD, pidfd, number, 0)
    if found < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return socket.socket(fileno=found)


def _takes_all(sock):
    """Whether it listens at every address of this host."""
    listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return bool(listens) and sock.getsockname()[:1] in (("0.0.0.0",), ("::",))


# the key


def new_key(path):
    """A new key, also in a file that only this user can read."""
    key = os.urandom(_SIZE)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(key)
    return key


def _read_key(path):
    folder, here = os.path.dirname(path), os.uname().nodename
    try:
        with open(path, "rb") as file:
            key = file.read()
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, "it cannot be written")
    except OSError as error:
        raise Unreached(
            f"host {here} does not share {folder}, where the runs lie ({error.strerror}); "
            "name a folder that all hosts see in the variable COLLECTLAB_RUNS"
        ) from None
    return key


# the connection


def listen(address):
    """A socket that listens there, at a port that is free."""
    family, kind, place = _looked_up(address, 0, socket.SOCK_STREAM)
    listener = socket.socket(family, kind)
    listener.bind(place)
    listener.listen()
    listener.setblocking(False)
    return listener


def reach(network):
    """The sealed channel from this host to the supervisor, which has proved itself. Raises Unreached."""
    key, (address, port), host = _read_key(network["key"]), network["place"], network["host"]
    here = os.uname().nodename
    try:
        channel = Sealed(socket.create_connection((address, port), timeout=_REACHING), key, b"keeper")
        while not channel.knows_peer:
            if channel.read() is None:
                raise channel.ended or ConnectionError("it hung up")
        channel.send(op="keeper", host=here)
        while not (messages := channel.read()):
            if messages is None:
                raise channel.ended or PermissionError("it does not accept the key")
    except OSError as error:
        raise Unreached(
            f"host {here} does not reach host {host} at {address}, port {port} ({error}); "
            f"name an address of {host} that it reaches in the variable {_ADDRESS}"
        ) from None
    channel.sock.settimeout(None)
    return channel


class Sealed(Channel):
    """A channel over TCP. Both ends know the `key`; the `role` of one is b"supervisor", of the other b"keeper"."""

    longest = _UNPROVEN

    def __init__(self, sock, key, role):
        super().__init__(sock)
        for level, option, value in (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _QUIET),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _QUIET * 1000),
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        ):
            sock.setsockopt(level, option, value)
        self._key, self._role = key, role
        self._sent = self._got = 0
        self._own, self._sends, self._reads = os.urandom(_SIZE), None, None
        sock.sendall(self._own)

    @property
    def knows_peer(self):
        """Whether the random number of the peer has come: only then can anything be sent."""
        return self._reads is not None

    def put(self, text, fds=()):
        super().put(_seal(self._sends, self._sent, text) + text)
        self._sent += 1

    def _receive(self):
        return self.sock.recv(1 << 16)

    def _next(self):
        if not self.knows_peer:
            if len(self._data) < _SIZE:
                return None
            theirs = bytes(self._data[:_SIZE])
            del self._data[:_SIZE]
            (other,) = _ROLES - {self._role}
            self._sends = _mac(self._key, self._role + self._own + theirs)
            self._reads = _mac(self._key, other + theirs + self._own)
        sealed = super()._next()
        if sealed is None:
            return None
        import hmac

        seal, text = sealed[:_SIZE], sealed[_SIZE:]
        if not hmac.compare_digest(seal, _seal(self._reads, self._got, text)):
            raise Broken("a control message does not carry the seal of these ranks")
        self._got, self.longest = self._got + 1, LONGEST + _SIZE
        return text


def _mac(key, text):
    import hmac  # only where ranks are on several hosts

    return hmac.digest(key, text, "sha256")


def _seal(key, number, text):
    return _mac(key, number.to_bytes(8) + text)

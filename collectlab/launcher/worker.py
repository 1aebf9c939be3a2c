"""A rank: a guard, and the process that it guards, which runs one program after another.

The guard does nothing but wait, so it can always tell how its rank ended (an exit code, a signal) and can
always end it: when the supervisor is gone, the guard kills everything that carries the gang's tag.
"""

import atexit
import base64
import builtins
import faulthandler
import fcntl
import importlib.machinery
import importlib.util
import io
import json
import linecache
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback

from collectlab.launcher import devices, sweep, whereabouts
from collectlab.launcher.whereabouts import STACK_SIGNAL
from collectlab.launcher.wire import Channel

_FAREWELL = 10  # seconds that the guard of a rank which has ended waits for the supervisor's word
_BATCH = 16
_SMALL = 2048  # bytes of a result that the answer carries itself: making a file costs more than all the rest
_FRAMES = 60  # of a traceback, that the supervisor is told
_MESSAGE = 2000  # characters of an exception's text; the log has all of it
_INSTALLED = (  # modules below these are not edited while ranks run
    os.path.join(sys.prefix, "lib"),
    os.path.join(sys.base_prefix, "lib"),
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
)


def main():
    control = json.loads(os.environ["COLLECTLAB_CONTROL"])
    rank = _number(control, "rank")
    if rank is None or not 0 <= rank < control["nranks"]:
        _complain_of_start(
            f"{control['launcher']} gave a process the rank {rank} of {control['nranks']}; it was looked for in the "
            f"variable {' or '.join(control['rank'])}"
        )
    guard = _connect(control)
    launcher = os.getppid()
    daemon = os.pidfd_open(launcher)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        ours.close()
        leaves = [path.replace("{pid}", str(launcher)) for path in control["leaves"]]
        me = {"rank": rank, "token": control["token"], "daemon": launcher}
        started = min(control["started"], time.time() - 1)  # by the clock of this host
        _guard(guard, pid, me, theirs, daemon, leaves, started)
    theirs.close()
    guard.close()
    _die_with(ours)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _rank(rank, control)


def _number(control, what):
    """What the first of those variables says that the launcher has set, or None."""
    said = next(filter(None, map(os.environ.get, control[what])), None)
    return int(said) if said and said.isdecimal() else None


def _connect(control):
    """The channel to the supervisor, or on another host than its own to the keeper there, which may be made first."""
    while True:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect("\0" + control["address"])
        except ConnectionRefusedError:
            sock.close()
            if not control["network"]:
                raise
            _make_keeper(control)
            continue
        _, uid, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.getuid():
            _complain_of_start(f"user {uid} listens in the place of the supervisor on {os.uname().nodename}")
        return Channel(sock)


def _make_keeper(control):
    from collectlab.launcher import keeper, network

    try:
        keeper.start(control)
    except network.Unreached as why:
        _complain_of_start(why)


def _complain_of_start(why):
    """End this rank before it has reached the supervisor, which finds the line in the launcher's output."""
    print(f"collectlab: {why}", file=sys.stderr, flush=True)
    os._exit(1)


def _die_with(sock):
    """The kernel kills this process when the other end of `sock` closes, whatever it is doing then."""
    fcntl.fcntl(sock, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sock, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(sock, fcntl.F_SETFL, fcntl.fcntl(sock, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([sock], [], [], 0)[0]:
        os._exit(1)
    _die_with.sock = sock  # kept open as long as this process lives


def _guard(channel, pid, me, lifeline, daemon, leaves, started):
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a program that signals its process group means its ranks
    channel.send(op="guard", pid=os.getpid(), **me)
    sweep.adopt_orphans()  # of the rank: the supervisor, to which they would go, may be killed
    child = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(child, select.POLLIN)
    poll.register(channel, select.POLLIN)
    poll.register(daemon, select.POLLIN)
    code = None  # with which the rank has ended
    # its guard's exit makes MPI kill the other ranks: the supervisor looks at them before, and then lets it leave
    while ready := [fd for fd, _ in poll.poll(None if code is None else 1000 * _FAREWELL)]:
        if channel.fileno() in ready:
            heard = channel.read()
            if heard is None:
                _sweep_alone(os.environ[sweep.TAG], pid if code is None else None, leaves, started)
            elif heard:
                break
        try:
            if child in ready:
                poll.unregister(child)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                channel.send(op="exited", rank=me["rank"], code=code)
            if daemon in ready:  # mpiexec itself may not notice
                poll.unregister(daemon)
                if code is None:
                    channel.send(op="orphaned")
        except OSError:
            pass  # the supervisor has gone too, which the channel tells next
    os._exit(code if code >= 0 else 128 - code)


def _sweep_alone(tag, pid, leaves, started):
    """End the gang, its supervisor being gone, and the rank `pid` if that lives: one guard after another would.

    It does so in a process of its own, which no MPI daemon knows and kills, and which kills the other guards first.
    """
    if pid:
        files = sweep.shared_memory(pid)  # as long as it lives
        os.kill(pid, signal.SIGKILL)
        sweep.unlink(files)
    turn = sweep.turn(tag)
    sweeper = os.fork()
    if sweeper == 0:
        try:
            os.setsid()
            sweep.kill(tag, since=started, leaves=leaves)
        finally:
            os._exit(0)
    turn.close()
    os.waitpid(sweeper, 0)
    os._exit(1)


def _rank(rank, control):
    channel = _connect(control)
    record = whereabouts.Record()
    stack = os.memfd_create("collectlab-stack", os.MFD_CLOEXEC)
    faulthandler.register(STACK_SIGNAL, file=stack, all_threads=False)
    faulthandler.enable(file=stack, all_threads=False)
    fds = (record.fd, stack)
    channel.send(
        op="rank", rank=rank, token=control["token"], pid=os.getpid(), fds=fds,
        host=os.environ.get(control["host"]) or os.uname().nodename,
    )  # fmt: skip
    from collectlab.launcher.calls import MPI, traced

    world = traced(record)
    _unname_shared_memory()
    messages = _messages(channel)
    welcome = next(messages)
    own = list(sys.path)
    _look_in(welcome["path"], own)
    sys.argv = ["collectlab rank"]
    if (world.rank, world.size) != (rank, control["nranks"]):
        library = " ".join(MPI.Get_library_version().replace("\0", "").split()[:3]).strip(",")
        channel.send(op="unfit", kind="other MPI", rank=rank, why=library)
        next(messages, None)
        os._exit(1)
    local_rank = _number(control, "local_rank")
    local_rank = rank if local_rank is None else local_rank
    try:
        named = welcome["names"] and welcome["names"][rank]
        device, array_module, identity = devices.take(welcome["device"], named, local_rank)
    except Exception as error:
        channel.send(op="unfit", kind="no GPU", rank=rank, why=f"{type(error).__name__}: {error}")
        next(messages, None)
        os._exit(1)
    cores = len(os.sched_getaffinity(0))
    channel.send(
        op="ready", rank=rank, device=device, identity=identity, local_rank=local_rank, cores=cores
    )  # fmt: skip

    from collectlab.fabric.context import Context

    communicators, modules = _communicators(world), _Modules()
    for message in messages:
        if message["op"] == "bye":
            break
        _look_in(message["search"], own)
        modules.forget_edited()
        comm = next(communicators)
        fabrics = []  # the one that this run makes, if it asks for a window

        def make_fabric(made=fabrics, comm=comm, message=message):
            asked = time.monotonic()
            from collectlab.fabric import mpi

            made.append(mpi.fabric(comm, message["trace"]))
            made[0].started, made[0].asked = message["began"], [(asked, time.monotonic())]
            made[0].told = lambda waiting: _told(message["path"], rank, made[0], waiting)
            return made[0]

        context = Context(rank, world.size, comm, device, array_module, make_fabric, _log, record.progress)
        answer = _run(message, context, record, fabrics)
        modules.note()
        channel.send(rank=rank, id=message["id"], **answer)
    atexit._run_exitfuncs()
    _flush()
    MPI.Finalize()
    os._exit(0)


def _look_in(path, own):
    """Look for modules there; in the place of None, where this Python does by itself."""
    sys.path[:] = [place for entry in path for place in (own if entry is None else [entry])]


def _communicators(world):
    """One for each run: a message that was sent and never received must not reach the next run."""
    world.numbered = True
    yield world
    while True:
        batch = [world.Dup() for _ in range(_BATCH)]  # one at a time, each would wait for the slowest rank
        for comm in batch:
            comm.numbered = True
            yield comm
        for comm in batch:
            if comm:
                comm.Free()


def _log(text):
    print(text, flush=True)


def _messages(channel):
    while (batch := channel.read()) is not None:
        yield from batch


def _run(message, context, record, fabrics):
    """Run one program; the answer says how it ended on this rank."""
    path, rank = message["path"], context.rank
    try:
        log = os.open(
            os.path.join(path, f"log.{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
    except OSError as error:  # the directory was removed, or the disk is full
        return {"op": "raised", "error": _name(error), "message": text_of(error), "frames": []}
    for fd in (1, 2):
        os.dup2(log, fd)
        os.set_inheritable(fd, True)
    if log > 2:  # it takes the place of a stream that an earlier program closed
        os.close(log)
    # new ones, as an earlier program may have closed or replaced them; unbuffered, so that nothing is lost when
    # the process dies
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(open(fd, "wb", 0, closefd=False), "utf-8", "backslashreplace", write_through=True)
        for fd in (1, 2)
    )
    record.reset()
    try:
        from collectlab.launcher import objects

        for file, source in message["sources"].items():
            lines = source["text"].splitlines(keepends=True)
            linecache.cache[file] = (len(source["text"]), None, lines, file)
        objects.opening_program = True
        try:
            program, args, places = objects.read(os.path.join(path, "program"))
        finally:
            objects.opening_program = False
        mine = objects.read(os.path.join(path, f"mine.{rank}")) if places else []
        for place, value in zip(places, mine, strict=True):
            args[place] = value
        message["began"] = time.monotonic()
        try:
            value = program(context, *args)
        finally:
            for fabric in fabrics:
                objects.write(os.path.join(path, f"events.{rank}"), fabric.events or [])
                objects.write(os.path.join(path, f"clock.{rank}"), fabric.clock())
        try:
            kept = objects.write(os.path.join(path, f"result.{rank}"), value, sealed=True, small=_SMALL)
        except TypeError as error:
            raise TypeError(f"what rank {rank} returned cannot be sent back: {error}") from None
        for fabric in fabrics:
            if fabric.ends_with_run:
                value = None
                context.forget_windows()
                fabric.free()
        answer = {"op": "returned"}
        if isinstance(kept, bytes):
            answer["result"] = base64.b64encode(kept).decode()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
        if code != left.code is not None:
            _complain(left.code)
        answer = {"op": "left", "code": code, "frames": _frames(left)}
    except BaseException as error:
        trace = traceback.format_exception(type(error), error, _theirs(error.__traceback__))
        _complain("".join(trace).removesuffix("\n"))
        answer = {"op": "raised", "error": _name(error), "message": text_of(error), "frames": _frames(error)}
    _flush()
    return answer


def _told(path, rank, fabric, waiting):
    """Leave word of a long wait, and of what was done before it, for the report of a run that never ends."""
    from collectlab.launcher import objects

    clock = fabric.clock(over=False)
    files = {f"events.{rank}": fabric.events or [], f"clock.{rank}": clock, f"waits.{rank}": waiting}
    for name, value in files.items():
        file = os.path.join(path, name)
        if waiting is None:
            os.unlink(file)
        else:
            objects.write(f"{file}.new", value)
            os.replace(f"{file}.new", file)


def _complain(text):
    """Onto the log, whatever the program has done to the streams."""
    try:
        os.write(2, f"{text}\n".encode(errors="backslashreplace"))
    except OSError:
        pass  # the disk is full, or the program closed the descriptor; the report tells


def _theirs(trace):
    """A traceback without the frames of this file, through which the program was called."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            pass  # the program closed or replaced it


def _name(error):
    kind = type(error)
    plain = kind.__module__ in ("builtins", "__main__") or not hasattr(builtins, kind.__name__)
    return kind.__name__ if plain else f"{kind.__module__}.{kind.__name__}"  # mpi4py's is called Exception


def text_of(error):
    """What an exception says, as a text that can be shown, whatever it is."""
    try:
        return str(error)[:_MESSAGE].encode(errors="backslashreplace").decode()  # else no notebook could show it
    except BaseException as another:
        return f"its message cannot be shown: str() of it raised {type(another).__name__}"


def _frames(error):
    return [
        (f.filename, f.lineno or 0, f.name)
        for f in traceback.extract_tb(error.__traceback__, limit=-_FRAMES)
    ]


class _Modules:
    """The modules of the learner that this rank has imported: those that were edited are imported anew."""

    def __init__(self):
        self._known, self._stamps = set(), {}
        loader = importlib.machinery.SourceFileLoader
        loader.path_stats = _trusting_what_is_newer(loader.path_stats)

    def note(self):
        """Remember what has been imported, before anyone can edit it."""
        for name in sys.modules.keys() - self._known:
            file = getattr(sys.modules[name], "__file__", None)
            if isinstance(file, str) and not file.startswith(_INSTALLED):
                self._stamps[name] = file, _stamp(file)
        self._known = set(sys.modules)

    def forget_edited(self):
        """Forget all of them when one has changed, since the others may hold what it defined."""
        if all(_stamp(file) == stamp for file, stamp in self._stamps.values()):
            return
        for name in self._stamps:
            sys.modules.pop(name, None)
        self._known, self._stamps = set(sys.modules), {}
        importlib.invalidate_caches()
        linecache.checkcache()


def _trusting_what_is_newer(path_stats):
    """Without it, Python takes compiled code of the same second and size for that of the source as it is now."""

    def stats(self, path):
        compiled = _stamp(importlib.util.cache_from_source(path))
        if compiled and not path.startswith(_INSTALLED) and compiled[0] < _stamp(path)[0]:
            raise OSError(f"{path} was edited after it was compiled")  # it is compiled anew
        return path_stats(self, path)

    return stats


def _stamp(file):
    try:
        about = os.stat(file)
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size


def _unname_shared_memory():
    """MPICH keeps the name of its shared segment until the end; without it, nothing is left after a kill."""
    from collectlab.launcher.calls import MPI

    MPI.COMM_WORLD.Barrier()
    sweep.unlink(sweep.shared_memory(os.getpid()))


if __name__ == "__main__":
    main()

"""What is wrong on the control channel of one host ends the run; the report names the rank, and the next works."""

import os
import socket
import struct

import pytest

import collectlab as cl

# programs find the channel of their own rank where it is kept, as no program would by accident


def channel():
    import gc

    from collectlab.launcher.wire import Channel

    (found,) = (obj for obj in gc.get_objects() if type(obj) is Channel and obj.sock.fileno() >= 0)
    return found


def framed(text):
    return struct.pack("!I", len(text)) + text


WRONG = {
    "too long": struct.pack("!I", 1 << 31) + b"x" * 100,
    "no JSON": framed(b"\x80\x04K\x01."),  # a pickle
    "lists in lists": framed(b"[" * 100_000),
    "no object": framed(b"[1, 2]"),
    "no op": framed(b"{}"),
    "an op that is none": framed(b'{"op": "serve"}'),
    "an op that is no text": framed(b'{"op": ["returned"]}'),
    "half of it missing": framed(b'{"op": "returned"}'),
    "a run that is no text": framed(b'{"op": "returned", "id": {"a": 1}}'),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_control_message_ends_the_run_and_names_the_rank(case, mark):
    def program(ctx, data):
        if ctx.rank == 1:
            channel().sock.sendall(data)
        ctx.comm.Barrier()
        import time

        time.sleep(600)

    with cl.launch(3, device="cpu") as ranks:
        run = ranks.submit(program, WRONG[case]).wait(20)
        assert run.status == "failed", run.report()
        assert "rank 1" in run.report().splitlines()[0] and "control" in run.report(), run.report()
        mark.gone()
        assert ranks.submit(lambda ctx: ctx.nranks).wait().results == [3, 3, 3]


def test_a_rank_that_answers_twice_changes_nothing(mark):
    def twice(ctx, run):
        if ctx.rank == 0:
            channel().send(op="returned", rank=1, id=run, result="bm90IEk=")  # in the name of another rank
            channel().send(op="returned", rank=0, id=run)
        ctx.comm.Barrier()
        return ctx.rank

    def late(ctx, run):
        if ctx.rank == 1:
            channel().send(op="raised", rank=1, id=run, error="Error", message="of the run before", frames=[])
        return ctx.rank

    with cl.launch(2, device="cpu") as ranks:
        first = ranks.submit(lambda ctx: ctx.rank)
        name = os.path.basename(first.wait().path)
        assert ranks.submit(late, name).wait().results == [0, 1], "an answer to a run that is over is not heard"
        second = ranks.submit(twice, "?")
        assert second.wait().results == [0, 1]


def test_an_answer_in_the_place_of_the_rank_loses_nothing(mark):
    """A rank that says that it returned, and then returns: the first word is the one that counts."""

    def program(ctx):
        import base64
        import gc
        import pickle

        if ctx.rank == 0:
            (message,) = (m for m in gc.get_objects() if type(m) is dict and m.get("op") == "run" and "search" in m)
            first = base64.b64encode(pickle.dumps("first")).decode()
            channel().send(op="returned", rank=0, id=message["id"], result=first)
        return ctx.rank

    with cl.launch(2, device="cpu") as ranks:
        run = ranks.submit(program).wait()
        assert run.status == "done" and run.results == ["first", 1]
        assert ranks.submit(lambda ctx: ctx.rank + 5).wait().results == [5, 6]


def test_a_stranger_on_the_socket_learns_nothing_and_ends_nothing(mark):
    with cl.launch(2, device="cpu") as ranks:
        supervisor = f"/proc/{ranks._link.process.pid}/fd"
        held = {os.readlink(entry.path) for entry in os.scandir(supervisor)}
        with open("/proc/net/unix") as f:
            lines = [line.split() for line in f if "@" in line and " 00010000 " in line]  # those that listen
        names = [line[7][1:] for line in lines if f"socket:[{line[6]}]" in held]
        for name in names:
            for data in (b"", WRONG["no JSON"], framed(b'{"op": "rank", "rank": 0, "token": "guessed"}')):
                with socket.socket(socket.AF_UNIX) as stranger:
                    stranger.connect(f"\0{name}")
                    stranger.settimeout(10)
                    stranger.sendall(data)
                    stranger.shutdown(socket.SHUT_WR)
                    assert stranger.recv(100) == b""
        assert names and ranks.submit(lambda ctx: ctx.rank).wait().results == [0, 1]

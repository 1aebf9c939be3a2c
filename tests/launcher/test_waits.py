"""What a process of the ranks waits for may never come: it goes on all the same, and leaves nothing."""

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading

import pytest
from played import READY, Ended, Played, until_it_ends

import collectlab as cl
from collectlab.launcher import host, mpiexec, supervisor, sweep
from collectlab.launcher.keeper import Kept
from collectlab.launcher.wire import Channel


def test_a_process_that_ends_before_it_calls_MPI_ends_the_wait_of_the_others():
    python = [sys.executable, "-I", "-S"]
    program = "import os; me = os.environ; me['PMI_RANK'] == '1' and os.abort(); os.read(int(me['PMI_FD']), 1)"
    command = [*python, mpiexec.__file__, "-n", "3", *python, "-c", program]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (128 + 6, "rank 1 was killed by signal 6\n")


def test_a_message_that_a_stopped_rank_does_not_take_holds_up_nobody(monkeypatch):
    monkeypatch.setattr(host, "_SENDING", (0, 1000))
    heard, name = [], f"\0collectlab-test-{os.getpid()}"
    with selectors.DefaultSelector() as selector, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        here = host.Host(selector, listener, "token", 1, lambda *said: heard.append(said))
        rank = Channel(socket.socket(socket.AF_UNIX))
        rank.sock.connect(name)
        fds = [os.memfd_create("where"), os.memfd_create("stack")]
        rank.send(op="rank", rank=0, token="token", pid=os.getpid(), host="here", fds=fds)
        while not heard:
            host.react(selector, 10)
        here.tell([0], op="run", sources="x" * (1 << 20))
        rank.close()
        host.react(selector, 10)
        assert heard[-1][2:] == ("rank", None)


def test_a_notebook_that_does_not_listen_holds_up_no_end(monkeypatch):
    monkeypatch.setattr(supervisor, "HEARING", 0.01)
    ours, theirs = socket.socketpair()
    with theirs:
        supervisor.Supervisor(Channel(ours))._take_leave({"output": "x" * (1 << 20)}, {})
        ours.close()


def test_a_run_that_is_given_as_the_notebook_ends_is_ended_however_long_it_is(clock):
    ours, theirs = map(Channel, socket.socketpair())
    played = Played()
    played.notebook = ours
    theirs.send(op="run", id="first", path="/nowhere", sources="x" * (100 << 10))
    theirs.close()
    with pytest.raises(Ended) as ended:
        played._on_notebook_exit(None)
    ours.close()
    assert ended.value.runs["first"]["cause"]["kind"] == "notebook gone"


def test_a_queue_that_does_not_answer_is_not_waited_for_for_ever(clock):
    class Job:
        ask = pause = answer = lambda self: 1.0

    played = Played()
    played.job = Job()
    played._await_ranks()
    played.let_pass()  # it asks
    ended, seconds = until_it_ends(played)
    assert ended.value["cause"]["kind"] == "slow start" and seconds <= played.patience


def test_a_keeper_that_has_gone_as_it_was_welcomed_is_heard_to_have_gone(clock):
    ours, theirs = map(Channel, socket.socketpair())
    theirs.send(op="keeper", host="there")
    theirs.close()
    played = Played()
    played.unproven.append(ours)
    played._on_unproven(ours)
    played._on_kept(played.kept[0])
    ended, _ = until_it_ends(played)
    assert ended.value["cause"]["kind"] == "lost host" and ended.value["cause"]["host"] == "there"


def test_what_a_keeper_says_while_its_look_is_waited_for_is_heard(clock):
    class Served(Exception):
        pass

    def select(timeout):
        raise Served

    ours, theirs = map(Channel, socket.socketpair())
    played = Played(hosts=2)
    played.kept, played.select = [Kept(ours, "there")], select
    theirs.send(op="heard", rank=1, who="rank", message={"op": "rank", "host": "there"})
    theirs.send(op="looked", asked=1, seen=[])
    played._seen()
    with pytest.raises(Served):
        played.serve()
    assert played.ranks[1].signed_in == {"rank"}
    for channel in (ours, theirs):
        channel.close()


def test_logs_in_a_file_system_that_does_not_answer_are_not_waited_for(clock, monkeypatch):
    answers, asked = threading.Event(), []

    def log_length(path, number):
        asked.append(number)
        answers.wait()
        return 1 << 40

    monkeypatch.setattr(supervisor.rundir, "log_length", log_length)
    played = Played(1, ("first",), 0, [*READY, ("submit", "first")])
    played.most = 1 << 20
    for _ in range(2):
        played._measure_logs()
    assert asked == [0], "one that waits is enough"
    answers.set()
    played.measuring.join()
    with pytest.raises(Ended) as ended:
        played._measure_logs()
    assert ended.value.runs["first"]["cause"]["who"] == [0, 1]


def leaves_a_process(ctx):
    import os
    import subprocess

    return os.getpid(), os.getppid(), subprocess.Popen(["sleep", "600"], start_new_session=True).pid


@pytest.mark.parametrize("also", ("rank", "launcher"))
def test_a_guard_sweeps_alone_whatever_else_it_hears_with_the_end_of_the_supervisor(also, mark, monkeypatch):
    def fails(*_, **__):
        raise OSError(24, "Too many open files")

    with cl.launch(1, device="cpu") as ranks:
        ((rank, guard, _),) = ranks.submit(leaves_a_process).wait().results
        monkeypatch.setattr(sweep, "kill", fails)  # here: the notebook is of no help
        there = ranks._link.process
        for pid in (there.pid, guard):
            os.kill(pid, signal.SIGSTOP)
        run = ranks.submit(leaves_a_process)  # which nobody begins
        (launcher,) = mark.pids("mpiexec")
        for pid in (rank if also == "rank" else launcher, there.pid):
            os.kill(pid, signal.SIGKILL)
        there.wait()
        os.kill(guard, signal.SIGCONT)
        mark.gone()
        run.wait(10)
        assert run.status == "failed"
        monkeypatch.undo()


def test_a_process_that_is_forked_beside_ranks_stops_nothing_and_waits_for_nothing(mark):
    with cl.launch(1, device="cpu") as ranks:
        run = ranks.submit(sleeps)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                ranks.stop()
                code = 0 if (run.wait(0).status, ranks.status) == ("running", "stopped") else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert (run.status, ranks.status) == ("running", "running")


def sleeps(ctx):
    import time

    time.sleep(600)

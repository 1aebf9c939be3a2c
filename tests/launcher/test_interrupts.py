"""Ctrl-C at each place where Python looks for one while a cell waits, and a second one at each place after the first.

A signal that comes between two of these places is heeded at the next, so that they stand for all moments.
"""

import subprocess
import sys

import pytest

PLACES = """
import ctypes, dis, os, signal, sys, threading, time
import collectlab as cl

HEEDED = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "RESUME", "JUMP_BACKWARD"}  # instructions after which signals are
interrupt = ctypes.pythonapi.PyErr_SetInterrupt  # as the arrival of SIGINT does it
interrupt.restype = None


class Countdown:
    def __init__(self, places):
        self.left, self.counting, self.where = places, False, None

    def trace(self, frame, event, _):
        frame.f_trace_opcodes = True
        code = frame.f_code
        if self.counting and event == "opcode" and dis.opname[code.co_code[frame.f_lasti]] in HEEDED:
            self.left -= 1
            if self.left == 0:
                self.counting, self.where = False, f"{code.co_qualname}, line {frame.f_lineno}"
                for _ in iter(interrupt, None):  # no place here at which it would be heeded
                    pass
                return None
        return self.trace
"""

WAITS = PLACES + """
def hangs(ctx):
    print("here")
    time.sleep(600)


def once(countdown, twice):
    ranks = cl.launch(1, device="cpu")
    run = ranks.submit(hangs)
    while run.status == "running" and not run.log(0):
        time.sleep(0.005)

    def first(*_):
        countdown.counting = twice and countdown.where is None
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, first)
    countdown.counting = not twice
    later = threading.Timer(0.1 if twice else 1, os.kill, (os.getpid(), signal.SIGINT))
    later.start()
    raised = None
    sys.settrace(countdown.trace)
    try:
        run.wait(None)
    except BaseException as error:
        raised = error
    finally:
        countdown.counting = False
        sys.settrace(None)
    later.cancel()
    later.join()
    if countdown.where is None:
        raise SystemExit(f"{place - 1} places")
    end = time.monotonic() + 10
    while run.status == "running" and time.monotonic() < end:
        time.sleep(0.005)
    following = ranks.submit(lambda ctx: ctx.rank).wait(20).results
    ranks.stop()
    fine = type(raised) is KeyboardInterrupt and run.status == "interrupted" and following == [0]
    if not fine:
        print(f"place {place}, {countdown.where}: {raised!r}, {run.status}, {following}", flush=True)


twice, place, step = sys.argv[1] == "twice", int(sys.argv[2]), int(sys.argv[3])
while True:
    once(Countdown(place), twice)
    place += step
"""


RUNS = PLACES + """
from collectlab.launcher import sweep


def fine(ctx):
    return ctx.rank


cl.run(fine, ranks=1, device="cpu")  # what is imported for it is there now
raised, mark, place, step = [], os.environ["COLLECTLAB_TEST"], 1, int(sys.argv[1])
while True:
    countdown = Countdown(place)
    countdown.counting = True
    sys.settrace(countdown.trace)
    try:
        cl.run(fine, ranks=1, device="cpu")
    except KeyboardInterrupt as error:
        raised = [error]  # as a notebook keeps the last one, and with it what its frames hold
    finally:
        countdown.counting = False
        sys.settrace(None)
    if countdown.where is None:
        raise SystemExit(f"{place - 1} places")
    end = time.monotonic() + 10
    while (left := sweep.tagged(mark, variable="COLLECTLAB_TEST")) and time.monotonic() < end:
        time.sleep(0.01)
    if left or not raised:
        print(f"place {place}, {countdown.where}: {raised}, left: {left}", flush=True)
    place += step
"""


def places(code, *words):
    """How many places there are at which it was interrupted, once nothing was said against any of them."""
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=300)
    number, _, word = done.stderr.splitlines()[-1].partition(" ")
    assert done.stdout == "" and word == "places", done.stdout + done.stderr
    return int(number)


@pytest.mark.parametrize(("times", "step", "least"), (("once", 1, 10), ("twice", 9, 30)))
def test_an_interrupted_wait_ends_the_run_and_leaves_no_lock_held(times, step, least, mark):
    assert places(WAITS, times, "1", str(step)) >= least


def test_a_run_that_is_interrupted_while_it_is_begun_or_ended_leaves_nothing(mark):
    assert places(RUNS, "83") >= 1000

"""The simulated fabric: every rank in this process, one at a time, in an order that a number decides.

Ranks are greenlets. Without a schedule each one runs until it has to wait; with a schedule, a whole number, who
goes on is drawn before every step, and the same number draws the same order again.
"""

import copy
import operator
import os
import random
import traceback

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet

from collectlab.fabric.context import Context
from collectlab.fabric.per_rank import PerRank, check_per_rank
from collectlab.fabric.windows import Fabric, SharedMemory
from collectlab.layout import RankMap
from collectlab.trace import Trace, deadlock

MOST_RANKS = 64
_HERE = os.path.dirname(__file__)


def simulate(program, *args, ranks=4, schedule=None, trace=True):
    """Run `program(ctx, *args)` on so many simulated ranks, 1 to 64; returns a SimulatedRun, which has ended.

    `schedule` is None or a whole number: the number picks one of the possible orders of steps, always the same.
    With trace=False no event is noted.
    """
    if not callable(program):
        raise TypeError(
            f"simulate(program={program!r}): a function is accepted, to be called as program(ctx, *args)"
        )
    nranks = _whole("ranks", ranks)
    if not 1 <= nranks <= MOST_RANKS:
        raise ValueError(f"simulate(ranks={ranks}): 1 to {MOST_RANKS} simulated ranks are accepted")
    check_per_rank("simulate(program, ...)", args, nranks)
    schedule = None if schedule is None else _whole("schedule", schedule)
    return Simulation(nranks, schedule, trace).run(program, args)


def _whole(name, value):
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"simulate({name}={value!r}): a whole number is accepted") from None


class Simulation(Fabric):
    """One run of a program on simulated ranks."""

    def __init__(self, nranks, schedule=None, traced=True):
        super().__init__(nranks, traced)
        self.draw = None if schedule is None else random.Random(schedule)
        self.memories, self.made, self.cells = {}, {}, {}
        self.asked = [[] for _ in range(nranks)]  # by each rank: windows and signals, in the order of first asking
        self.blocked = {}  # rank -> (peer, name, row, at least)
        self.results, self.errors = [None] * nranks, {}
        self.logs = [[] for _ in range(nranks)]

    def run(self, program, args):
        """Run it to its end: all returned, or nobody can go on."""
        self.hub = getcurrent()
        self.ready = list(range(self.nranks))
        self.lets = [greenlet(self._rank) for _ in self.ready]
        starts = [(program, rank, args) for rank in self.ready]
        while self.ready:
            at = 0 if self.draw is None else int(self.draw.random() * len(self.ready))
            rank = self.ready[at]
            let = self.lets[rank]
            let.switch(*starts[rank]) if not let else let.switch()
            if let.dead or rank in self.blocked:
                self.ready.remove(rank)
        stuck = dict(self.blocked)
        for rank in stuck:
            self.lets[rank].throw(GreenletExit)
        return SimulatedRun(program, self, stuck)

    def _rank(self, program, rank, args):
        log = self.logs[rank].append
        context = Context(rank, self.nranks, None, f"sim:{rank}", "numpy", lambda: self, log, lambda *_: None)
        mine = [copy.deepcopy(a.values[rank] if isinstance(a, PerRank) else a) for a in args]
        try:
            self.results[rank] = program(context, *mine)
        except GreenletExit:
            raise
        except Exception as error:
            self.errors[rank] = error

    # what windows and signals ask of a fabric

    def memory(self, rank, name, shape, dtype):
        """The memory of a window; the first rank that asks makes it."""
        wanted = ("window", name, shape, np.dtype(dtype))
        parts = self.memories.get(wanted)
        if parts is None:
            kind = wanted[3].kind
            poison = np.nan if kind in "fc" else np.iinfo(dtype).min + 1 if kind in "iu" else 0
            parts = self.memories[wanted] = [np.full(shape, poison, dtype) for _ in range(self.nranks)]
        self._ask(rank, wanted)
        return SharedMemory(rank, parts)

    def _ask(self, rank, wanted):
        """Hold what a rank asks for against what the others asked for in its place."""
        mine = self.asked[rank]
        if wanted not in mine:
            mine.append(wanted)
            for peer, others in enumerate(self.asked):
                if len(others) >= len(mine):
                    self.agree(rank, wanted, peer, others[len(mine) - 1])

    def generation(self, rank, name, rows):
        """How often `rank` has asked for signals of this name, this time included."""
        self.keep_rows(rank, name, rows)
        self._ask(rank, ("signals", name, (rows,), None))
        self.made[rank, name] = self.made.get((rank, name), 0) + 1
        return self.made[rank, name]

    def pause(self, rank):
        """Before every step: let the schedule decide who goes on."""
        if self.draw is not None:
            self.hub.switch()

    def notify(self, rank, peer, name, row):
        """Raise the cell of `rank` at `peer`; returns its new count."""
        cell = (peer, name, row, rank)
        count = self.cells[cell] = self.cells.get(cell, 0) + 1
        waiting = self.blocked.get(peer)
        if waiting is not None and waiting[:3] == (rank, name, row) and count >= waiting[3]:
            del self.blocked[peer]
            self.ready.append(peer)
        return count

    def wait(self, rank, peer, name, row, at_least):
        """Come back when the cell of `peer` has reached `at_least`."""
        if self.cells.get((rank, name, row, peer), 0) < at_least:
            self.blocked[rank] = (peer, name, row, at_least)
            self.hub.switch()


class SimulatedRun:
    """What a simulation left: the surface of a Run, without processes and without a directory."""

    path = None

    def __init__(self, program, simulation, stuck):
        self.nranks, self.results, self.stuck = simulation.nranks, simulation.results, stuck
        self.trace = Trace(simulation.nranks, simulation.events or [])
        self.rank_map = RankMap.local(self.nranks, [f"sim:{rank}" for rank in range(self.nranks)])
        self.program = getattr(program, "__name__", type(program).__name__)
        self._errors, self._logs = simulation.errors, simulation.logs

    @property
    def status(self):
        """ "done", or "failed" when a rank raised or nobody could go on."""
        return "failed" if self.stuck or self._errors else "done"

    @property
    def ok(self):
        """Whether every rank returned."""
        return self.status == "done"

    @property
    def traffic(self):
        """int64 (nranks, nranks): bytes that row rank read from column rank's windows."""
        return self.trace.traffic()

    def wait(self, timeout=None):
        """The run: it is over."""
        return self

    def log(self, rank):
        """What `rank` logged."""
        return "".join(f"{line}\n" for line in self._logs[rank])

    def report(self):
        """What happened, as text: who raised, who waits for whom."""
        lines = [f"{self.status}: {self.program} on {self.nranks} simulated ranks"]
        for rank, error in sorted(self._errors.items()):
            lines.append(f"rank {rank} raised {type(error).__name__}: {error}")
            own = [at for at in traceback.extract_tb(error.__traceback__) if os.path.dirname(at.filename) != _HERE]
            lines += [f"    line {at.lineno}, in {at.name}:  {at.line}" for at in own[-1:]]
        if self.stuck:
            lines += deadlock.explain(self.trace, self.stuck)
        return "\n".join(lines)

    def __repr__(self):
        return f"SimulatedRun({self.program} on {self.nranks} ranks: {self.status})"

"""The simulated fabric: every rank in this process, one at a time, in an order that a number decides.

Ranks are greenlets. Without a schedule they stand in a queue in rank order, and the first that can go on runs
until it has to wait. A schedule is a whole number, and the same number gives the same order again. From 0 up, who
goes on is drawn before every step. Below 0 the ranks run as without a schedule, but with delays (delay-bounded
scheduling: Emmi, Qadeer and Rakamaric, 2011): -23 sends the running rank to the end of the queue when it is about to
make step 23 of the run, counted from 1. Further delays follow in groups of three digits, each counted from the one
before: -23004 delays at steps 23 and 27, -23000 twice at step 23; 999 is a gap without a delay at its end.
"""

import copy
import operator
import os
import random
import sysconfig
import traceback

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet

from collectlab.fabric.context import Context
from collectlab.fabric.per_rank import PerRank, check_per_rank
from collectlab.fabric.windows import Fabric, SharedMemory
from collectlab.layout import RankMap
from collectlab.trace import Trace, deadlock
from collectlab.words import program_named, ranks_named

MOST_RANKS = 64
LONG = 200  # steps after which others go on too, where a rank would go on until it waits
IDLE = 50_000  # steps without a notification after which a loop that waits is given up
ENDLESS = "it waits in a loop for a value that no rank stores"
_HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
_OF_MPI = """allgather allgatherv allreduce alltoall barrier bcast gather ibarrier irecv isend rank recv reduce
    reduce_scatter reduce_scatter_block scan scatter send size split""".split()
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "")
_INSTALLED = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib"))


def simulate(program, *args, ranks=4, schedule=None, trace=True):
    """Run `program(ctx, *args)` on so many simulated ranks, 1 to 64; returns a SimulatedRun, which has ended.

    `schedule` is None or a whole number: the number picks one of the possible orders of steps, always the same
    (from 0 up at random; below 0 by delays, see above). With trace=False no event is noted.
    """
    nranks = checked("simulate", program, args, ranks)
    schedule = None if schedule is None else _whole("simulate", "schedule", schedule)
    return Simulation(nranks, schedule, trace).run(program, args)


def checked(call, program, args, ranks):
    """The number of ranks, where such a call of `call` can be simulated; TypeError or ValueError otherwise."""
    if not callable(program):
        raise TypeError(f"{call}(program={program!r}): a function is accepted, to be called as program(ctx, *args)")
    nranks = _whole(call, "ranks", ranks)
    if not 1 <= nranks <= MOST_RANKS:
        raise ValueError(f"{call}(ranks={ranks}): 1 to {MOST_RANKS} simulated ranks are accepted")
    check_per_rank(f"{call}(program, ...)", args, nranks)
    return nranks


def _whole(call, name, value):
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{call}({name}={value!r}): a whole number is accepted") from None


def delays(number):
    """The steps at which the schedule of that number, below 0, delays the running rank."""
    digits, at, found = str(-number), 0, []
    digits = "0" * (-len(digits) % 3) + digits
    for group in range(0, len(digits), 3):
        at += int(digits[group : group + 3])
        if digits[group : group + 3] != "999":
            found.append(at)
    return found


def delayed(steps):
    """The number of the schedule that delays the running rank at these steps, in rising order; None for no step."""
    groups, at = [], 0
    for step in steps:
        groups += [999] * ((step - at) // 999) + [(step - at) % 999]
        at = step
    return -int("".join(f"{group:03}" for group in groups)) if groups else None


class Simulation(Fabric):
    """One run of a program on simulated ranks."""

    most_idle = IDLE

    def __init__(self, nranks, schedule=None, traced=True, array_module="numpy"):
        super().__init__(nranks, traced)
        self.array_module = array_module
        self.schedule = schedule
        self.draw = random.Random(schedule) if schedule is not None and schedule >= 0 else None
        self.late = delays(schedule)[::-1] if schedule is not None and schedule < 0 else []
        self.step = 1  # of all ranks together: the one to be made next
        self.idle = 0  # steps since a rank last notified another or ended
        self.memories, self.made, self.cells, self.laps = {}, {}, {}, set()
        self.asked = [[] for _ in range(nranks)]  # by each rank: windows and signals, in the order of first asking
        self.blocked = {}  # rank -> (peer, name, row, at least)
        self.results, self.errors = [None] * nranks, {}
        self.logs = [[] for _ in range(nranks)]

    def run(self, program, args):
        """Run it to its end: all returned, or nobody can go on."""
        self.hub = getcurrent()
        self.ready, self.queue = list(range(self.nranks)), list(range(self.nranks))
        self.lets = [greenlet(self._rank) for _ in self.ready]
        self.starts = [(program, rank, args) for rank in self.ready]
        while self.ready:
            self._go_on(self.pick())
            rank = self.running
            if self.lets[rank].dead or rank in self.blocked:
                self.ready.remove(rank)
                self.idle = 0
            elif self.draw is None:
                self.queue.remove(rank)
                self.queue.append(rank)
        waiting = {rank: self._waiting(rank) for rank in sorted(self.blocked)}
        self.pause = self._gone
        for rank in waiting:
            self.lets[rank].throw(GreenletExit)
            self.results[rank] = None
            self.errors.pop(rank, None)
        return SimulatedRun(program, args, self, waiting)

    def _gone(self, rank):
        """In the place of pause: what a rank does on its way out, in a finally, is no step of the run."""
        raise GreenletExit

    def _go_on(self, rank):
        """Let `rank` go on; comes back when this one is to."""
        let, self.running = self.lets[rank], rank
        let.switch() if let else let.switch(*self.starts[rank])

    def _waiting(self, rank):
        """The wait that a rank is in, as an event, and the count that it finds."""
        peer, name, row, at_least = self.blocked[rank]
        event = self.waiting(self.lets[rank].gr_frame, rank, peer, name, row, at_least)
        return event, self.cells.get((rank, name, row, peer), 0)

    def pick(self):
        """Who goes on: one of `ready`."""
        if self.draw is not None:
            return self.ready[int(self.draw.random() * len(self.ready))]
        return self.ready[0] if len(self.ready) == 1 else next(r for r in self.queue if r in self.ready)

    def _rank(self, program, rank, args):
        log = self.logs[rank].append
        device, module = f"sim:{rank}", self.array_module
        context = Context(rank, self.nranks, None, device, module, lambda: self, log, lambda *_: None)
        mine = [copy.deepcopy(a.values[rank] if isinstance(a, PerRank) else a) for a in args]
        try:
            self.results[rank] = program(context, *mine)
        except GreenletExit:
            raise
        except (Exception, SystemExit) as error:  # who calls sys.exit() ends a rank, not the notebook
            self.errors[rank] = error

    # what windows and signals ask of a fabric

    def memory(self, rank, name, shape, dtype, fill=None):
        """The memory of a window; the first rank that asks makes it."""
        wanted = ("window", name, shape, np.dtype(dtype))
        parts = self.memories.get(wanted)
        if parts is None:
            kind = wanted[3].kind
            poison = np.nan if kind in "fc" else np.iinfo(dtype).min + 1 if kind in "iu" else 0
            fill = poison if fill is None else fill
            parts = self.memories[wanted] = [np.full(shape, fill, dtype) for _ in range(self.nranks)]
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
        self.stand(rank)
        self.idle += 1
        if self.idle > self.most_idle:
            raise RuntimeError(
                f"{self.who(rank)}: {self.most_idle:,} accesses have been made since a rank last notified another or "
                f"ended: {ENDLESS}; wait for a notification instead"
            )

    def stand(self, rank):
        """Stand before a step until it may be made."""
        if self.draw is not None:
            other = self.pick()
            if other != rank:
                self._go_on(other)
            return
        while self.late and self.late[-1] == self.step:
            self.late.pop()
            self.hub.switch()
        self.step += 1
        if self.idle and self.idle % LONG == 0:
            self.hub.switch()

    def notify(self, rank, peer, name, row):
        """Raise the cell of `rank` at `peer`; returns its new count."""
        count = self.cells.get((peer, name, row, rank), 0) + 1
        self._raise(rank, peer, name, row, count)
        return count

    def _raise(self, rank, peer, name, row, count):
        self.cells[peer, name, row, rank] = count
        self.idle = 0
        waiting = self.blocked.get(peer)
        if waiting is not None and waiting[:3] == (rank, name, row) and count >= waiting[3]:
            del self.blocked[peer]
            self.ready.append(peer)

    def wait(self, rank, peer, name, row, at_least):
        """Come back when the cell of `peer` has reached `at_least`."""
        if self.cells.get((rank, name, row, peer), 0) < at_least:
            self.blocked[rank] = (peer, name, row, at_least)
            self.hub.switch()

    def post(self, rank, peer, name, slot, memory, start, words, lap):
        """Write packets, whose flags are the lap."""
        memory.replace(peer, start, words)
        self.laps.add((peer, name, slot, rank, lap))
        self._raise(rank, peer, name, slot, lap)

    def take(self, rank, peer, name, slot, words, lap):
        """Come back when the packets of `peer` have carried the flag; one overwritten since then shows as a race."""
        while (rank, name, slot, peer, lap) not in self.laps:
            self.blocked[rank] = (peer, name, slot, lap)
            self.hub.switch()
        self.pause(rank)  # what is there now may be gone before it is read


def _own(error):
    """The places of the program itself that led to the error, outermost first; a kernel of the package is one too."""
    places = [at for at in traceback.extract_tb(error.__traceback__) if not at.filename.startswith(_HERE)]
    return [at for at in places if not at.filename.startswith((_PACKAGE, *_INSTALLED))] or places


class SimulatedRun:
    """What a simulation left: the surface of a Run, without processes and without a directory.

    errors    rank -> the exception that it raised
    stuck     rank -> (peer, name, row, at least) of the wait that nothing would satisfy
    schedule  the number that it was run under, or None
    call      the program and its arguments
    """

    path = None

    def __init__(self, program, args, simulation, waiting):
        self.nranks, self.results, self.stuck = simulation.nranks, simulation.results, dict(simulation.blocked)
        self.trace = Trace(simulation.nranks, simulation.events or [], waiting, simulation.events is not None)
        self.rank_map = RankMap.local(self.nranks, [f"sim:{rank}" for rank in range(self.nranks)])
        self.program, self.call = program_named(program), (program, args)
        self.schedule, self.errors, self._logs = simulation.schedule, simulation.errors, simulation.logs

    @property
    def status(self):
        """ "done", or "failed" when a rank raised or nobody could go on."""
        return "failed" if self.stuck or self.errors else "done"

    @property
    def ok(self):
        """Whether every rank returned."""
        return self.status == "done"

    @property
    def ends(self):
        """rank -> how it ended, in words, of those that do not wait for ever."""
        over = {rank: "is over" for rank in range(self.nranks) if rank not in self.stuck}
        return over | {rank: f"raised {type(error).__name__}" for rank, error in self.errors.items()}

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
        groups = {}  # the same error at the same place is told once
        for rank, error in sorted(self.errors.items()):
            places = [f"    line {at.lineno}, in {at.name}:  {at.line}" for at in _own(error)[-1:]]
            groups.setdefault((type(error).__name__, *places), []).append(rank)
        for (kind, *places), (rank, *others) in groups.items():
            lines += [f"rank {rank} raised {kind}: {self.errors[rank]}", *places]
            if getattr(self.errors[rank], "obj", self) is None and self.errors[rank].name.lower() in _OF_MPI:
                lines.append("    ctx.comm is MPI's, and None in the simulator: use windows and signals here")
            lines += [f"    and so did {ranks_named(others)}"] if others else []
        if self.stuck:
            lines += deadlock.explain(self.trace, self.ends)
        return "\n".join(lines)

    def __repr__(self):
        return f"SimulatedRun({self.program} on {self.nranks} ranks: {self.status})"

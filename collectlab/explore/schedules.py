"""Every schedule of a small program, and the steering that this takes.

A schedule is a sequence of ranks: who makes the next step. Runs cannot be copied, so each schedule is run from the
start. Two searches go through them all:

reduced    dynamic partial-order reduction with source sets (Abdulla, Aronis, Jonsson and Sagonas, 2014) and sleep
           sets (Godefroid, 1996): of schedules that differ only in the order of steps that commute, one is run. Two
           steps of different ranks commute unless they touch the same element of a window and one of them stores.
           Notifications and waits commute with everything: a cell has one writer and only grows, so a wait
           that can be passed stays so, and no order of the two leads elsewhere.
complete   every state that can be reached, with every step that can follow, and no assumption about what commutes:
           two prefixes lead to the same state when the windows and the cells hold the same and every rank has made
           as many steps and has loaded the same values.
"""

from dataclasses import dataclass

import numpy as np
from greenlet import GreenletExit

from collectlab.fabric.simulated import Simulation, checked, delayed
from collectlab.trace.events import BARRIER, LOAD, NOTIFY, STORE, WAIT
from collectlab.trace.races import common
from collectlab.words import program_named


@dataclass
class Outcomes:
    """All that a program can end with.

    outcomes  one SimulatedRun for each different outcome; its `schedule` is the number that replays it
    runs      how many runs the search took
    """

    outcomes: list
    runs: int

    @property
    def one(self):
        """Whether every schedule ends in the same way."""
        return len(self.outcomes) == 1

    def __len__(self):
        return len(self.outcomes)

    def __str__(self):
        many = "one outcome" if self.one else f"{len(self)} different outcomes"
        return f"{many} over all schedules, found in {self.runs} run{'s' * (self.runs != 1)}"


def every_schedule(program, *args, ranks, most=10_000, reduced=True):
    """The Outcomes of `program(ctx, *args)` on so many simulated ranks over all schedules.

    reduced=True runs one schedule of those that differ only in the order of steps that commute, False goes through
    all states. RuntimeError when that takes more than `most` runs.
    """
    ranks = checked("every_schedule", program, args, ranks)
    search = (_Reduced if reduced else _Complete)()
    found, runs = {}, 0
    while True:
        if runs == most:
            raise RuntimeError(
                f"every_schedule({program_named(program)}, ranks={ranks}, most={most}): {most} runs do not suffice "
                f"({len(found)} different outcomes so far); accepted: a smaller program, fewer ranks, a larger most"
            )
        steered = Steered(ranks, search.choose)
        run = steered.run(program, args)
        runs += 1
        if run is not None:
            found.setdefault(frozen(outcome(run)), (run, steered.turns))
        if not search.more(steered):
            break
    outcomes = []
    for run, turns in found.values():
        run.schedule = number(program, args, ranks, turns)
        outcomes.append(run)
    return Outcomes(outcomes, runs)


def outcome(run):
    """How a run ended: its results, who raised what, and who was stuck."""
    errors = {rank: f"{type(error).__name__}: {error}" for rank, error in sorted(run.errors.items())}
    return run.results, errors, dict(sorted(run.stuck.items()))


def frozen(value):
    """The same for values that are the same, to the last bit; it can be a key."""
    if isinstance(value, np.ndarray | np.generic):
        return value.shape, str(value.dtype), value.tobytes()
    if isinstance(value, dict):
        return tuple((key, frozen(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    return repr(value)


class Steered(Simulation):
    """A run in which `choose(self)` says which rank makes the next step, or None to give the run up.

    turns     who made each step so far
    enabled   the ranks that can make the next one
    """

    def __init__(self, nranks, choose):
        super().__init__(nranks)
        self.choose, self.turns, self.standing = choose, [], set()

    def run(self, program, args):
        """The SimulatedRun, or None when it was given up."""
        try:
            return super().run(program, args)
        except _GivenUp:
            for let in filter(None, self.lets):
                let.throw(GreenletExit)
            return None

    def pick(self):
        """A rank that does not stand before a step goes on until it does; then one is chosen."""
        for rank in self.ready:
            if rank not in self.standing:
                return rank
        self.enabled = sorted(self.ready)
        rank = self.choose(self)
        if rank is None:
            raise _GivenUp
        self.turns.append(rank)
        return rank

    def stand(self, rank):
        """Stand before a step until it is chosen."""
        self.standing.add(rank)
        self.hub.switch()
        self.standing.discard(rank)


class _GivenUp(Exception):
    pass


def number(program, args, ranks, turns):
    """The number of the schedule in which the steps are made in the order of `turns`."""
    following = _Following(ranks, turns)
    following.run(program, args)
    # a delay at the last step changes nothing, and makes a number where no delay is needed
    return delayed(following.delays or [len(turns)])


class _Following(Simulation):
    """A run in the order of `turns` that notes the delays which lead to it."""

    def __init__(self, nranks, turns):
        super().__init__(nranks, traced=False)
        self.turns, self.delays = turns, []

    def stand(self, rank):
        while self.step <= len(self.turns) and self.turns[self.step - 1] != rank:
            self.delays.append(self.step)
            self.hub.switch()
        self.step += 1


class _Node:
    """A point at which one of several ranks made the next step.

    before    how many events lay before it
    todo      ranks that are still to be tried here; done: rank -> what its step was, of those that were
    """

    def __init__(self, enabled, before, sleep=()):
        self.enabled, self.before, self.sleep = enabled, before, dict(sleep)
        self.todo, self.done, self.chosen, self.event = set(), {}, None, None


class _Search:
    """Depth first: nodes from the start of the run to where the searched schedules part."""

    def __init__(self):
        self.path = []

    def choose(self, steered):
        """Follow the path, and go on where it ends."""
        depth = len(steered.turns)
        if depth:
            self.path[depth - 1].event = self.stepped(steered, self.path[depth - 1])
        if depth < len(self.path):
            return self.path[depth].chosen
        node = self.node(steered)
        if node is None:
            return None
        self.path.append(node)
        return node.chosen

    def stepped(self, steered, node):
        """The access that was the step made at `node`, None when it was a notification or a wait."""
        new = steered.events[node.before :]
        return next((e for e in new if e.rank == node.chosen and e.kind in (STORE, LOAD)), None)

    def turn_back(self):
        """The path to the next schedule; False when there is none."""
        while self.path:
            node = self.path[-1]
            node.done[node.chosen] = node.event
            node.todo -= node.done.keys() | node.sleep.keys()
            if node.todo:
                node.chosen = min(node.todo)
                node.event = None
                return True
            self.path.pop()
        return False


class _Complete(_Search):
    """Every state, every step."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def node(self, steered):
        """A node where all can be tried, or None in a state that was seen before."""
        state = self._state(steered)
        if state in self.seen:
            return None
        self.seen.add(state)
        node = _Node(steered.enabled, len(steered.events))
        node.todo, node.chosen = set(node.enabled), node.enabled[0]
        return node

    def choose(self, steered):
        """As ever; and keep in mind what was loaded."""
        if not steered.turns:
            steered.loaded = [hash(())] * steered.nranks
        elif step := self.stepped(steered, self.path[len(steered.turns) - 1]):
            if step.kind == LOAD:
                parts = next(parts for key, parts in steered.memories.items() if key[1] == step.name)
                value = parts[step.peer].reshape(-1)[list(step.elements)].tobytes()
                steered.loaded[step.rank] = hash((steered.loaded[step.rank], value))
        return super().choose(steered)

    def _state(self, steered):
        windows = tuple(part.tobytes() for parts in steered.memories.values() for part in parts)
        steps = tuple(steered.turns.count(rank) for rank in range(steered.nranks))
        return windows, frozenset(steered.cells.items()), steps, tuple(steered.loaded)

    def more(self, steered):
        """Whether there is another schedule to run."""
        return self.turn_back()


class _Reduced(_Search):
    """One schedule of those that are the same but for steps that commute."""

    def node(self, steered):
        """A node for the first rank that is not asleep, or None when all are."""
        sleep = {}
        if self.path:
            last = self.path[-1]
            asleep = {**last.sleep, **last.done}
            sleep = {rank: e for rank, e in asleep.items() if rank != last.chosen and _commute(e, last.event)}
        node = _Node(steered.enabled, len(steered.events), sleep)
        awake = [rank for rank in node.enabled if rank not in sleep]
        if not awake:
            return None
        node.chosen = awake[0]
        return node

    def more(self, steered):
        """Whether there is another schedule to run: find where the order of two accesses could be turned."""
        if self.path and len(steered.turns) == len(self.path):
            self.path[-1].event = self.stepped(steered, self.path[-1])
        events = [e for e in steered.events if e.kind != BARRIER]
        clocks, direct = _clocks(events, steered.nranks)
        made_at = {id(node.event): node for node in self.path if node.event is not None}
        for j, befores in direct.items():
            for i in befores:
                self._turn(made_at[id(events[i])], i, j, events, clocks)
        return self.turn_back()

    def _turn(self, node, i, j, events, clocks):
        """See to it that some run makes access j before access i, from the node of i."""
        first = events[i].rank
        free = [k for k in range(i + 1, j) if clocks[k][first] < clocks[i][first]] + [j]  # not after i by any chain
        initials = []  # ranks that can make the first step of those
        for at, k in enumerate(free):
            if not any(_precedes(clocks, events, other, k) for other in free[:at]) and events[k].rank in node.enabled:
                initials.append(events[k].rank)
        tried = node.todo | node.done.keys() | {node.chosen} | node.sleep.keys()
        if initials and not tried & set(initials):
            node.todo.add(events[j].rank if events[j].rank in initials else initials[0])


def _commute(a, b):
    return a is None or b is None or not _conflict(a, b)


def _conflict(a, b):
    """Whether the two accesses touch a common element and one of them stores."""
    return (
        (a.peer, a.name) == (b.peer, b.name)
        and STORE in (a.kind, b.kind)
        and bool(common(a.elements, b.elements))
    )


def _precedes(clocks, events, a, b):
    return clocks[b][events[a].rank] >= clocks[a][events[a].rank]


def _clocks(events, nranks):
    """Vector clocks of this very run, in which conflicting accesses are ordered too; and what could be turned round.

    The second is a dict from the place of an access to those of earlier accesses of other ranks that conflict with it
    and that nothing else orders before it.
    """
    now = [[0] * nranks for _ in range(nranks)]
    notified, accesses, clocks, direct = {}, {}, [], {}
    for j, event in enumerate(events):
        clock = now[event.rank].copy()
        if event.kind == WAIT and event.at_least > 0:
            past = notified[event.rank, event.name, event.row, event.peer, event.at_least]
            clock = list(map(max, clock, past))
        elif event.kind in (STORE, LOAD):
            place = accesses.setdefault((event.peer, event.name), [])
            for i in reversed(place):
                other = events[i]
                if other.rank != event.rank and clock[other.rank] < clocks[i][other.rank] and _conflict(other, event):
                    direct.setdefault(j, []).append(i)
                    clock = list(map(max, clock, clocks[i]))
            place.append(j)
        clock[event.rank] += 1
        now[event.rank] = clock
        if event.kind == NOTIFY:
            notified[event.peer, event.name, event.row, event.rank, event.at_least] = clock
        clocks.append(clock)
    return clocks, direct


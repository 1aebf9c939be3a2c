"""A kernel, step by step: what every rank holds, loads, stores and waits for, and what it has moved."""

from functools import lru_cache
from reprlib import repr

import numpy as np

from collectlab import explore
from collectlab.cost import Card
from collectlab.explore.contributions import NotKnown
from collectlab.fabric.simulated import simulate
from collectlab.trace import Trace
from collectlab.trace.events import BARRIER, LOAD, NOTIFY, STORE, WAIT
from collectlab.views.drawing import number_of
from collectlab.views.kernel_picture import TITLES, VERBS, KernelPicture
from collectlab.views.states import EMPTY, LOADED, States
from collectlab.views.view import NotAccepted, SteppedView
from collectlab.views.words import groups, head, listed, ranks_listed, span, table

MOST_RANKS = 16  # that have a column of their own
IN_STEP = "The ranks are shown in step, which is one of the orders that their signals allow."
ALIKE = " Without a race, all orders end alike."
IN_ORDER = "The steps stand in the order of the trace, "
RACE = "since with a race another order may end otherwise."
REAL = " Which of the racing accesses really came first, the trace does not know."
MANY = "since there are too many accesses to look for races."


def kernel_player(run, cards=None, name=None, *, step=0):
    """A run of a kernel, step by step: a `KernelPlayer`.

        run = cl.simulate(cl.kernels.two_phase.all_reduce, x, ranks=4)
        views.kernel_player(run, [cl.kernels.two_phase.all_reduce_cost(4, x.size, 8, rank) for rank in range(4)])

    run    a Run, a SimulatedRun or a Trace
    cards  a list with the `cost.Card` of each rank, to hold what was done against; None if there are none
    name   what the title calls the run; the default is the name of its program
    step   the state that is shown first, 0 to the number of steps (see views/states.py for what a step is)

    `player.set(witness=True)`, or the button, looks for a schedule in which the first race changes a result and shows
    that run from the step on at which it goes wrong.

    No trace says whose contributions a window holds. The program is run again for that, in the simulator, on numbers
    that tell (explore/contributions.py). Where that cannot be done, as for a Trace alone, it shows who stored where.
    TypeError or ValueError name the argument that is not accepted.
    """
    return KernelPlayer(run, cards, name, step)


class KernelPlayer(SteppedView):
    """The view that `kernel_player` returns. Settings: step, so many steps are over; witness, whether instead of the
    run that was given one is shown in which the first race does harm.

    states  what there is after each step: a `states.States`
    stops   the steps in which a rank leaves a barrier, or, in a run without barriers, those in which a wait is over
    """

    def __init__(self, run, cards, name, step):
        if not isinstance(run if isinstance(run, Trace) else getattr(run, "trace", None), Trace):
            raise TypeError(f"kernel_player(run={repr(run)}): a Run, a SimulatedRun or a Trace is accepted")
        self._taken = {False: (run, States(run), None)}  # witness -> the run, its States, and the Witness
        self._take(False)
        self.nranks = self.states.nranks
        self.cards = _checked(cards, self.nranks)
        program = getattr(run, "program", None) or getattr(run, "spec", {}).get("program", "a trace")
        self.name = str(program if name is None else name)
        places = getattr(run, "rank_map", None) or ()
        self.devices = [str(place.device) for place in places]
        self.groups = groups(self.nranks, MOST_RANKS)
        super().__init__(step=step, witness=False)

    def _take(self, witness):
        """Show the run that was given, or its witness."""
        run, self.states, self.witness = self._taken[witness]
        self.status, self.ends = getattr(run, "status", ""), getattr(run, "ends", {})
        self.report = run.report().splitlines() if self.status not in ("", "done") else []
        self.real = getattr(run, "path", None) is not None
        self.stops = self.states.barriers()

    @property
    def last(self):
        return len(self.states.steps)

    def _check(self, settings):
        witness, step = settings["witness"], settings["step"]
        if not isinstance(witness, bool):
            raise ValueError(f"kernel_player: witness is True or False, not {witness!r}")
        if witness and True not in self._taken:
            self._taken[True] = self._search()
        self._take(witness)
        step = self._first(witness) if step is None else step
        try:
            return self._checked_step("kernel_player", settings | {"step": step})
        except ValueError:
            self._take(getattr(self, "_settings", {}).get("witness", False))
            raise

    def set(self, **settings):
        """Change settings, as the controls do; the witness is shown from the step on at which it goes wrong."""
        if settings.get("witness", self._settings["witness"]) != self._settings["witness"]:
            settings = {"step": None} | settings
        return super().set(**settings)

    def _first(self, witness):
        """The step that is shown first: in the witness, the one at which it goes wrong."""
        return self.states.step_of[self.witness.place] if witness else 0

    def _search(self):
        """The run in which the first race does harm, its States and the Witness; NotAccepted where there is none."""
        try:
            program, args = self.states.program()
        except NotKnown as error:
            said = "where its program is not known, no witness can be looked for"
            raise NotAccepted(f"kernel_player: witness=True: {said} ({error})", f"{error}; {said}.") from None
        witness = explore.witness(program, *args, ranks=self.nranks, race=self.states.first_race)
        if not witness:
            said = "there is no race" if witness is None else f"in {witness.tried} schedules it did no harm"
            raise NotAccepted(f"kernel_player: witness=True: {said}", f"No witness was found: {said}.")
        run = simulate(program, *args, ranks=self.nranks, schedule=witness.schedule)
        return run, States(run), witness

    # Where it goes

    def next_barrier(self):
        """Go to the next step in which a rank leaves a barrier, or, in a run without barriers, a wait is over."""
        return self.set(step=next((s for s in self.stops if s > self._step), self.last))

    def first_race(self):
        """Go to the step that completes the first race; ValueError where no race is known."""
        if self.states.race_step is None:
            raise ValueError("kernel_player.first_race(): the run has no race that is known")
        return self.set(step=self.states.race_step)

    @property
    def _step(self):
        return self._settings["step"]

    def _controls(self, widgets):
        inputs, rows = self._step_controls(widgets)
        waits = not self.states.has_barriers
        ahead = "the next step in which a wait is over" if waits else "the next step in which a barrier is passed"
        name = "Next wait" if waits else "Next barrier"
        self._next = self._button(widgets, name, lambda _: self.next_barrier(), ahead)
        ahead = "the step that completes a race"
        self._race = self._button(widgets, "First race", lambda _: self.first_race(), ahead)
        witness = widgets.ToggleButton(
            self._settings["witness"], description="Witness", layout={"width": "auto"},
            tooltip="another order of the steps, in which the race does harm",
        )  # fmt: skip
        witness.disabled = not self.states.races
        rows[0].children += (self._next, self._race, witness)
        return inputs | {"witness": witness}, rows

    def _show(self):
        super()._show()
        self._race.disabled = self.states.race_step is None
        self._next.disabled = not self.stops

    # What a step does

    def did(self, step):
        """rank -> its events in that step."""
        did = {}
        for place in self.states.steps[step - 1] if step else ():
            event = self.states.events[place]
            did.setdefault(event.rank, []).append(event)
        return did

    def _said(self, events):
        """What one rank does in a step, in words."""
        e, line = events[0], f" (line {events[0].line})" if events[0].line else ""
        rank = f"rank {e.rank}"
        if e.kind in (LOAD, STORE):
            return f"{e}{self._chunks(e)}, {e.nbytes:,} bytes{line}"
        if e.kind == NOTIFY:
            return f'{rank} notifies {ranks_listed([n.peer for n in events])} on row {e.row} of "{e.name}"{line}'
        peers = [w.peer for w in events if w.kind == WAIT]
        what = "leaves the barrier" if events[-1].kind == BARRIER else f"has waited for {ranks_listed(peers)}"
        return f'{rank} {what} on row {e.row} of "{e.name}", at least {max(w.at_least for w in events)}{line}'

    def _chunks(self, e):
        rows = self.states.touched(e.name, e.elements)
        return f" ({rows[0].label})" if len(rows) == 1 and rows[0].label != "whole" else ""

    def caption(self):
        if not self.last:
            return self.nothing()
        if not self._step:
            return f"State 0 of {self.last}: before the first step."
        kinds = {}
        for rank, events in self.did(self._step).items():
            kind = BARRIER if events[-1].kind == BARRIER else events[0].kind
            kinds.setdefault(kind, {})[rank] = sum(e.nbytes for e in events)
        said = []
        for kind, ranks in kinds.items():
            one, several = VERBS[kind]
            nbytes = sum(ranks.values())
            how = f" {nbytes:,} bytes{' in all' * (len(ranks) > 1)}" if nbytes else ""
            said.append(f"{ranks_listed([*ranks])} {several if len(ranks) > 1 else one}{how}")
        waiting = self.states.waiting(self._step)
        said += [f"{ranks_listed([*waiting])} wait{'s' * (len(waiting) == 1)}"] if waiting else []
        race = " Here the first race is complete." if self._step == self.states.race_step else ""
        if self._settings["witness"] and self._step == self._first(True):
            race += " Here the race does harm."
        return f"Step {self._step} of {self.last}: {'; '.join(said)}.{race}"

    def nothing(self):
        """What there is to say where there is no step."""
        return "Nothing was traced: the program used no window and no signal, or it ran with trace=False."

    def waits_said(self):
        """Who waits for whom, a sentence for each rank."""
        waiting = self.states.waiting(self._step)
        return [
            f"rank {rank} waits for {ranks_listed([e.peer for e in waits])}, row {waits[0].row} of "
            f'"{waits[0].name}", at least {max(e.at_least for e in waits)}'
            for rank, waits in waiting.items()
        ]

    def notes(self):
        """What has to be known of the picture: a list of sentences."""
        notes = []
        if self.states.unknown:
            notes.append(f"Whose contributions are where is not known: {self.states.unknown}. Shown is who stored.")
        elif not self.states.counted:
            notes.append("How often a rank has contributed is not known here, only whether.")
        group = len(self.groups[0])
        notes += [f"Aggregated: a column stands for {group} ranks."] * (group > 1)
        if any("–" in row.label for _, rows in self.states.blocks for row in rows):
            notes.append("Aggregated: some rows stand for several chunks.")
        if self.states.moved(self._step).trace():
            where = "in the numbers of its column" if group > 1 else "in brackets in the picture"
            notes.append(f"Bytes from a rank's own memory, {where}, are in no sum.")
        if self.states.in_step:
            return [*notes, IN_STEP + ALIKE * (self.status == "done")]
        return [*notes, IN_ORDER + (MANY if self.states.races is None else RACE + REAL * self.real)]

    def _races_said(self):
        races = self.states.races
        if races is None:
            return ["races: not looked for, there are too many accesses"]
        if not races:
            return ["races: none"]
        at = f"races: {len(races)}; the first is complete at step {self.states.race_step}"
        harm = str(self.witness).split("\n") if self._settings["witness"] else []
        return [at, *str(self.states.first_race).split("\n"), *harm]

    # What a cell says

    def cell_of(self, name, row, group):
        """(kind, texts from long to short, shares or None, share of the whole) of a row of some ranks."""
        return self._summed([self.states.holding(name, row, rank, self._step) for rank in group])

    def loaded_last(self, group):
        """The same of the rows that some ranks have loaded last."""
        rows = [self.states.loaded_last(rank, self._step) for rank in group]
        both = zip(group, rows, strict=True)
        held = [self.states.holding(LOADED, row, rank, self._step) if row else EMPTY for rank, row in both]
        kind, texts, shares, share = self._summed(held)
        if len(group) == 1 and rows[0]:
            number = rows[0].label.rpartition(" ")[2]
            texts = [f"c{number} {text}" for text in texts] + texts[-1:] if number != "whole" else texts
        return kind, texts, shares, share

    def _summed(self, held):
        if len(set(held)) == 1 and (len(held) == 1 or held[0].kind in ("whole", "empty", "rubbish")):
            share = len(held[0].ranks) / self.nranks
            texts = _words(held[0], self.nranks)
            return held[0].kind, texts, held[0].shares if len(held) == 1 else None, share
        counts = [len(h.ranks) for h in held]
        kinds = {h.kind for h in held}
        kind = kinds.pop() if len(kinds) == 1 else "mixed"
        if kinds <= {"empty"} and kind in ("written", "mixed") and self.states.unknown:
            return "written", ["stored", "st."] if kind == "written" else ["in part"], None, 0
        if "rubbish" in {kind, *kinds}:
            return "rubbish", ["some never written", "some unwritten", "some unset"], None, 0
        many = span(counts) if "mixed" not in {h.kind for h in held} else f"at most {max(counts)}"
        texts = [f"{many} of {self.nranks}", many.replace("at most ", "≤ ")]
        return kind, texts, None, sum(counts) / len(counts) / self.nranks

    def signal_of(self, name, row, group):
        """(arrived, awaited, marks, frame) of a signal row of some ranks.

        A wait that is over is shown until something of the next one on that row arrives or is waited for.
        """
        arrived, awaited, passed = 0, 0, True
        marks, waiting = [0] * self.nranks, self.states.waiting(self._step)
        here = [rank for rank, waits in waiting.items() if (waits[0].name, waits[0].row) == (name, row)]
        for owner in group:
            writers = self.states.writers(owner, name, row)
            at = [(owner, name, row, writer, self._step) for writer in writers]
            cells = [(self.states.count(*cell), *self.states.needed(*cell)) for cell in at]
            again = owner in here or any(count > last for count, last, following in cells if following)
            over = not again and any(last for _, last, _ in cells)
            passed = passed and over
            for writer, (count, last, following) in zip(writers, cells, strict=True):
                need = last if over else following or last
                awaited += need > 0
                arrived += count >= need > 0
                marks[writer] = int(count >= max(need, 1))
        frame = "waits" if {*here} & {*group} else "passed" if passed else "arrived" if any(marks) else "none"
        return arrived, awaited, marks if len(group) == 1 else None, frame

    # In words

    def text(self):
        if not self.last and not self.states.rows:
            return "\n".join([self.title(), self.nothing(), *self.report])
        did, heads = self.did(self._step), [head(group) for group in self.groups]
        lines = [self.title(), *self._where(), self.caption(), ""]
        lines += [f"  {self._said(events)}" for _, events in sorted(did.items())]
        lines += [f"  {said}" for said in self.waits_said()]
        for name, rows in self.states.blocks:
            table = [["", *heads]]
            for row in rows:
                cells = [self.cell_of(name, row, group)[1][0] or "-" for group in self.groups]
                table.append([f"{row.label} {row.start}:{row.stop}", *cells])
            lines += ["", TITLES.get(name, f'window "{name}"'), *_table(table)]
        table = [["", *heads]]
        for name, row in self.states.rows:
            cells = []
            for group in self.groups:
                arrived, awaited, _, frame = self.signal_of(name, row, group)
                cells.append(f"{arrived} of {awaited}{_FRAME_WORDS[frame]}" if awaited else "-")
            table.append([f'"{name}" row {row}', *cells])
        lines += ["", "notifications that have arrived, of those that the next wait needs", *_table(table)]
        lines += ["", "bytes from \\ to", *_table([["", *heads], *self.bytes(lambda n: f"{n:,}")])]
        lines += ["", *self._card_lines(), *self._races_said()]
        if self._step == self.last and self.status:
            lines += [f"the run: {self.status}", *self.report]
        return "\n".join([*lines, *self.notes()])

    def _where(self):
        """A line that says on which device each rank of a run on real ranks is; none of another run."""
        ranks = {device: [] for device in self.devices if self.real}
        for device in ranks:
            ranks[device] += [rank for rank, other in enumerate(self.devices) if other == device]
        return ["; ".join(f"{ranks_listed(there)} on {device}" for device, there in ranks.items())] * bool(ranks)

    def title(self):
        """What was run: str."""
        order = f", schedule {self.witness.schedule}" if self._settings["witness"] else ""
        return f"{self.name} on {number_of(self.nranks, 'rank')}{order}"

    def bytes(self, spell):
        """A row for each rank that bytes came from, then the sums, and what the cards predict."""
        sums = self.by_groups(self.states.moved(self._step)).T.tolist()
        rows = [[f"from {head(source)}", *map(spell, row)] for source, row in zip(self.groups, sums, strict=True)]
        cards = self.states.measured(self._step)
        rows.append(["moved by", *(spell(sum(cards[r].nbytes for r in group)) for group in self.groups)])
        if self.cards:
            rows.append(["card", *(spell(sum(self.cards[r].nbytes for r in group)) for group in self.groups)])
        return rows

    def by_groups(self, matrix):
        """The sums of a matrix of ranks over the ranks of each two columns."""
        begin = [group[0] for group in self.groups]
        return np.add.reduceat(np.add.reduceat(matrix, begin, axis=0), begin, axis=1)

    def figures(self):
        """(title, what the ranks have done, what the cards say or None, whether the two part) of each figure."""
        done = self.states.measured(self._step)
        for field, title in _FIELDS.items():
            mine = [getattr(card, field) for card in done]
            said = [getattr(card, field) for card in self.cards] if self.cards else None
            pairs = [*zip(mine, said, strict=True)] if said else []
            yield title, mine, said, any(a > b or (self._step == self.last and a != b) for a, b in pairs)

    def _card_lines(self):
        lines = []
        for title, mine, said, over in self.figures():
            card = f", card: {span(said)}{'; the two differ' * over}" if said else ""
            lines.append(f"{title}, a rank: {span(mine)}{card}")
        return lines

    # As a picture

    def _paint(self, drawing, static):
        KernelPicture(self, drawing).paint()


_FRAME_WORDS = {"waits": ", waits here", "passed": ", passed", "arrived": "", "none": ""}
_FIELDS = {"nbytes": "bytes moved", "messages": "messages", "barriers": "barriers", "steps": "steps (waits)"}
_OFTEN = {1: "", 2: " twice"}


@lru_cache(maxsize=10_000)
def _words(holding, nranks):
    """What a rank holds, in texts from long to short."""
    ranks, n = listed(holding.ranks), len(holding.ranks)
    if holding.kind == "again":
        often = [f"{r}{_OFTEN.get(k, f' {k} times')}" for r, k in enumerate(holding.shares) if k]
        more = [f"{r}{_OFTEN.get(k, f' {k} times')}" for r, k in enumerate(holding.shares) if k > 1]
        same = {*holding.shares}
        every = [f"all{_OFTEN.get(min(same), f' {min(same)} times')}"] if len(same) == 1 else []
        return [*every, ", ".join(often), ", ".join(more), "repeats"]
    return {
        "empty": [""],
        "own": [f"rank {ranks}", ranks],
        "partial": [f"{ranks} ({n} of {nranks})", ranks, f"{n}/{nranks}"],
        "whole": [f"all {nranks}", "all"] if nranks > 1 else ["rank 0"],
        "none": ["no rank's", "none"],
        "rubbish": ["never written", "unwritten", "unset"],
        "mixed": [f"differs: {ranks}" if n else "differs", "differs", "≠"],
        "written": [f"stored by {ranks}", f"by {ranks}", f"by {n}"],
    }[holding.kind]


def _checked(cards, nranks):
    if cards is None:
        return None
    if not isinstance(cards, list | tuple) or not all(isinstance(card, Card) for card in cards):
        raise TypeError("kernel_player(run, cards): cards is a list with the cost.Card of each rank, or None")
    if len(cards) != nranks:
        raise ValueError(f"kernel_player(run, cards): cards has {len(cards)} of them, and the run {nranks} ranks")
    return tuple(cards)


def _table(rows):
    return table(rows, "<" * len(rows[0]))



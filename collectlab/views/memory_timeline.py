"""The memory timeline: what one rank holds in each phase of a step, in three kinds, and where the peak is."""

from itertools import pairwise

from collectlab.views import palette
from collectlab.views.drawing import fitting, number_of, width_of
from collectlab.views.memory_phases import KINDS, UNNAMED, checked_bytes, kept, read_phase
from collectlab.views.view import SteppedView
from collectlab.views.words import size_of, table

MEANS = {
    "retained": "held whole by this rank",
    "sharded": "this rank's part only",
    "temporary": "gone before the step ends",
}
MOST = 24  # phases that are drawn one by one
MOST_LINES = 129  # of the table: 64 phases, what lies between them, and the head
NOT = "A figure between phases is not a peak: what a phase makes and gives up again is not in it."
PLAN = "Bytes of the buffers that were named: not what an allocator reserves for them, and no traffic."

_MARGIN, _LEFT, _TOP, _TALL = 28, 84, 106, 260  # pixels


def memory_timeline(phases, name="one step", *, who="one rank", budget=None, step=None):
    """The bytes that a rank holds over the phases of a step: a `MemoryTimeline`.

        views.memory_timeline([
            {"name": "forward", "retained": {"parameters": 80}, "sharded": {"optimizer": 60}},
            {"name": "backward", "retained": {"parameters": 80}, "sharded": {"optimizer": 60}, "temporary": 80},
        ])

    phases  a list of phases in their order: dicts, or objects with these attributes: name; retained, sharded and
            temporary, each in bytes, as a whole number or a dict label -> whole number. What is missing is 0
    name    the title
    who     whose memory it is
    budget  bytes that there are, to hold the peak against; None if that is not known
    step    the phase that is picked out first, counted from 1; the default is the one with the peak, 0 is none

    The three together are what is held while the phase runs. Between two phases lies what both of them hold, by label
    the smaller amount; so two temporary buffers of which one is gone before the other is made want two labels, and
    those without one are taken to be gone. TypeError or ValueError name the argument that is not accepted.
    """
    return MemoryTimeline(phases, name, who, budget, step)


class MemoryTimeline(SteppedView):
    """The view that `memory_timeline` returns. Its one setting is `step`, the phase that is picked out.

    phases   a list of Phase
    between  bytes held between each phase and the next: a list, one shorter
    peak     (number of the first phase that holds most, counted from 1; its bytes)
    """

    def __init__(self, phases, name, who, budget, step):
        if not isinstance(phases, list | tuple) or not phases:
            raise ValueError(f"memory_timeline(phases): a list of phases is accepted, one at least, not {phases!r}")
        self.phases = [read_phase(number, phase) for number, phase in enumerate(phases, 1)]
        self.between = [kept(a, b) for a, b in pairwise(self.phases)]
        self.name, self.who = str(name), str(who)
        totals = [phase.total for phase in self.phases]
        self.peak = totals.index(max(totals)) + 1, max(totals)
        self.budget = None if budget is None else checked_bytes("memory_timeline(budget)", budget)
        super().__init__(step=self.peak[0] if step is None else step)

    @property
    def last(self):
        return len(self.phases)

    def _check(self, settings):
        return self._checked_step("memory_timeline", settings)

    def _controls(self, widgets):
        return self._step_controls(widgets)

    # In words

    def verdict(self):
        """Where the peak is, whether it fits, and what lies between phases: str."""
        return " ".join(self._sentences())

    def _sentences(self):
        """The sentences of the verdict."""
        number, most = self.peak
        said = [f"Peak: {size_of(most)}, in phase {number}, {self.phases[number - 1].name}."]
        if self.budget is not None:
            over = most - self.budget
            fits = f"It fits into {size_of(self.budget)}."
            said.append(fits if over <= 0 else f"That is {size_of(over)} more than there are.")
        if self.between:
            highest = max(self.between)
            less = f"{size_of(most - highest)} less" if highest < most else "as much"
            said.append(f"Between phases: {size_of(highest)} at most, {less}.")
        return said

    def caption(self):
        step = self._settings["step"]
        if not step:
            return f"{self.who}, {number_of(self.last, 'phase')}. {self.verdict()}"
        phase = self.phases[step - 1]
        parts = ", ".join(f"{kind} {size_of(phase.of(kind))}" for kind in KINDS if phase.of(kind))
        peak = " This is the peak." if step == self.peak[0] else ""
        parts = f" ({parts})" if parts else ""
        return f"Phase {step} of {self.last}, {phase.name}: {size_of(phase.total)}{parts}.{peak}"

    def text(self):
        rows = [("", "phase", *KINDS, "in all", "")]
        for number, phase in enumerate(self.phases, 1):
            mark = "the peak" if number == self.peak[0] else "as much" if phase.total == self.peak[1] else ""
            cells = [f"{phase.of(kind):,}" for kind in KINDS] + [f"{phase.total:,}"]
            rows.append((">" * (number == self._settings["step"]), f"{number} {phase.name}", *cells, mark))
            if number < self.last:
                rows.append(("", "  between", "", "", "", f"{self.between[number - 1]:,}", ""))
        if len(rows) > MOST_LINES:
            rows[MOST_LINES:] = [("", f"... and {self.last - MOST_LINES // 2} more phases", *[""] * 5)]
        parts = []
        for number, phase in enumerate(self.phases, 1):
            held = [f"{label} {size:,}" for kind in KINDS for label, size in getattr(phase, kind).items()
                    if label != UNNAMED and size]  # fmt: skip
            parts += [f"  {number} {phase.name}: {', '.join(held)}"] * bool(held)
        meant = [f"{kind}: {MEANS[kind]}" for kind in KINDS]
        title = f"memory of {self.who}: {self.name}, in bytes"
        head = [title, self.caption(), "", *table(rows, "<<>>>><"), "", *parts[: MOST_LINES // 2]]
        lines = [*head, *meant, self.verdict(), NOT, PLAN]
        return "\n".join(lines)

    # As a picture

    def _bars(self):
        """(first phase, last phase, the Phase that is drawn) of each bar: of neighbours, the one that holds most."""
        group = -(-len(self.phases) // MOST)
        bars = []
        for first in range(0, len(self.phases), group):
            few = self.phases[first : first + group]
            bars.append((first + 1, first + len(few), max(few, key=lambda phase: phase.total)))
        return bars

    def _paint(self, drawing, static):
        bars, room = self._bars(), self.WIDTH - 2 * _MARGIN
        grouped = len(bars) < len(self.phases)
        foot = _TOP + _TALL
        drawing.begin(foot + 150 + 20 * grouped)
        title = f"memory of {self.who}: {self.name}"
        drawing.label(_MARGIN, 26, fitting([title], room, 14, "bold"), 14, "bold")
        over = self.budget is not None and self.peak[1] > self.budget
        ink = palette.WRONG if over else palette.INK
        most_of_it = " ".join(self._sentences()[: 1 + (self.budget is not None)])
        drawing.label(_MARGIN, 50, fitting([self.verdict(), most_of_it], room, 10, "bold"), 10, "bold", ink)
        caption = self.caption().removesuffix(f" {self.verdict()}")
        drawing.label(_MARGIN, 72, fitting([caption], room, 9), 9, colour=palette.QUIET)
        most = max(self.peak[1], self.budget or 0, 1)
        y_of = lambda size: foot - size / most * _TALL  # noqa: E731
        self._grid(drawing, most, y_of)
        across = (room - _LEFT) / len(bars)
        wide = min(across * 0.64, 104)
        for at, (first, stop, phase) in enumerate(bars):
            x = _MARGIN + _LEFT + at * across + (across - wide) / 2
            self._bar(drawing, phase, x, wide, y_of)
            self._names(drawing, first, stop, phase, x + wide / 2, across - 4, foot)
            if first <= self.peak[0] <= stop:
                self._peak(drawing, x, wide, y_of(self.peak[1]))
            if first <= self._settings["step"] <= stop:
                y = y_of(phase.total) - 4
                drawing.box(x - 4, y, wide + 8, foot + 4 - y, edge=palette.INK, line=2.4, layer=6)
            if at + 1 < len(bars):
                y = y_of(self.between[stop - 1])
                drawing.box(x + wide, y - 1.5, across - wide, 3, face=palette.INK, layer=5)
                words = fitting([size_of(self.between[stop - 1]), ""], across - wide - 10, 7)
                middle = x + (wide + across) / 2
                if words:  # on paper, where the line of the budget may run
                    w = width_of(words, 7)
                    drawing.box(middle - w / 2, y - 15, w, 11, palette.PAPER, layer=8)
                drawing.label(middle, y - 9, words, 7, colour=palette.QUIET, align="center")
        words = {kind: f"{kind}: {means}" for kind, means in MEANS.items()}
        drawing.legend(_MARGIN, foot + 76, _LOOKS, words | {"between": "between two phases"})
        for line, note in enumerate([NOT, PLAN, *["Aggregated: a bar is the highest of its phases."] * grouped]):
            drawing.label(_MARGIN, foot + 110 + 20 * line, note, 9, "bold" if note == NOT else "normal")

    def _grid(self, drawing, most, y_of):
        for part in range(5):
            y = y_of(most * part / 4)
            drawing.box(_MARGIN + _LEFT, y, self.WIDTH - 2 * _MARGIN - _LEFT, 0.8, face="#dddddd", layer=0)
            drawing.label(_MARGIN + _LEFT - 8, y, size_of(most * part / 4), 8, colour=palette.QUIET, align="right")
        if self.budget is not None:
            y = y_of(self.budget)
            wide = self.WIDTH - 2 * _MARGIN - _LEFT
            drawing.box(_MARGIN + _LEFT, y, wide, 0.1, edge=palette.WRONG, line=1.6, dash="--", layer=7)
            word = f"there are {size_of(self.budget)}"
            drawing.label(self.WIDTH - _MARGIN, y - 9, word, 8, "bold", palette.WRONG, "right")

    def _bar(self, drawing, phase, x, wide, y_of):
        low = 0
        for kind in KINDS:
            size = phase.of(kind)
            if size:
                y = y_of(low + size)
                tall = y_of(low) - y
                drawing.box(x, y, wide, tall, **_LOOKS[kind])
                lines = [[f"{kind} {size_of(size)}"], [kind, size_of(size)], [size_of(size)]]
                fits = (few for few in lines if tall > 16 * len(few) and max(map(width_of, few)) <= wide - 12)
                if few := next(fits, None):
                    drawing.plate(x + wide / 2, y + tall / 2, *few)
            low += size

    def _names(self, drawing, first, stop, phase, x, wide, y):
        number = f"{first}" if first == stop else f"{first}–{stop}"
        drawing.label(x, y + 14, fitting([f"{number}"], wide, 7, "bold"), 7, "bold", align="center")
        if first != stop:
            return
        words = phase.name.split()
        halves = [(" ".join(words[:at]), " ".join(words[at:])) for at in range(1, len(words) + 1)]
        narrowest = min(halves, key=lambda lines: max(width_of(line, 8) for line in lines), default=("", ""))
        lines = [phase.name] if width_of(phase.name, 8) <= wide else narrowest
        for line, word in enumerate(lines):
            drawing.label(x, y + 30 + 14 * line, fitting([word], wide, 8), 8, align="center")

    def _peak(self, drawing, x, wide, y):
        word = f"peak {size_of(self.peak[1])}"
        w = width_of(word, 9, "bold") + 10
        at = min(max(x + wide / 2, _MARGIN + w / 2), self.WIDTH - _MARGIN - w / 2)
        drawing.box(at - w / 2, y - 22, w, 16, palette.INK, layer=8)
        drawing.label(at, y - 14, word, 9, "bold", palette.PAPER, "center")


_LOOKS = {
    "retained": {"face": palette.tint(0, 0.45), "edge": palette.INK, "line": 0.8},
    "sharded": {"face": palette.tint(2, 0.35), "edge": palette.INK, "line": 0.8, "hatch": "...."},
    "temporary": {"face": palette.tint(1, 0.35), "edge": palette.INK, "line": 0.8, "hatch": "////"},
    "between": {"face": palette.INK},
}

"""A plan as a picture: what each stream of a rank was given, how long each collective may go on, and the hazards."""

from collectlab.overlap.plan import COMPUTE, END, Operation, Wait
from collectlab.overlap.runs import Overlapped
from collectlab.views import palette
from collectlab.views.drawing import fitting, width_of
from collectlab.views.view import View
from collectlab.views.words import is_whole

MOST = 24  # operations that are drawn
NOTE = (
    "Steps come in the order in which the plan gives them. How long each takes is not drawn: a collective may be "
    "under way anywhere in its box."
)
_SHORT = "Steps come in the order in which the plan gives them. How long each takes is not drawn."
_LEGEND = (
    "box with a hatch: a collective, under way somewhere in it; vertical line: one lane waits there for the other; "
    "thick dashed frame: a hazard"
)

_MARGIN, _LEFT, _LANE, _TOP = 14, 150, 46, 76  # pixels


def streams(run, rank=0):
    """What one rank of a plan gave its streams to do: a `Streams`.

        views.streams(cl.overlap.simulate(plan, x, ranks=2))

    run    what overlap.run or overlap.simulate returned, of a plan that came to its end
    rank   whose streams are shown first

    TypeError or ValueError name the argument that is not accepted.
    """
    return Streams(run, rank)


class Streams(View):
    """The view that `streams` returns. Its setting is `rank`.

    hazards   those of the plan
    """

    def __init__(self, run, rank):
        if not isinstance(run, Overlapped):
            raise TypeError(f"streams(run={run!r}): what overlap.run or overlap.simulate returned is accepted")
        self._run, self.nranks, self.hazards = run, len(run.done), run.hazards()
        super().__init__(rank=rank)

    def _check(self, settings):
        rank = settings["rank"]
        if not is_whole(rank) or not 0 <= rank < self.nranks:
            raise ValueError(f"streams: rank is a whole number, 0 to {self.nranks - 1}, not {rank!r}")
        return {"rank": int(rank)}

    def _controls(self, widgets):
        rank = widgets.Dropdown(
            options=list(range(self.nranks)), value=self._settings["rank"], description="rank",
            layout={"width": "160px"},
        )  # fmt: skip
        return {"rank": rank}, [widgets.HBox([rank])]

    # What it says

    @property
    def steps(self):
        """The steps of the rank: Operations, Waits and recorded Events, without the first values of buffers."""
        done = self._run.done[self._settings["rank"]]
        return [s for s in done.steps if not (isinstance(s, Operation) and s.label == "the first values")]

    @property
    def operations(self):
        """The Operations among them; the picture numbers them from 1."""
        return [step for step in self.steps if isinstance(step, Operation) and (step.reads or step.writes)]

    def waited(self):
        """Operation -> how many operations were given before the compute stream waited for it; others are missing."""
        count, found = 0, {}
        for step in self.steps:
            if isinstance(step, Wait):
                found.setdefault(step.event.operation, count)
            elif step in self.operations:
                if not self._run.in_order:
                    for event in step.after:
                        found.setdefault(event.operation, count)
                count += 1
        return found

    def lanes(self):
        """The name of each lane -> its operations: the compute stream, then the other streams or each request."""
        lanes = {COMPUTE: []}
        for operation in self.operations:
            name = operation.stream
            if operation.kind != COMPUTE and not self._run.in_order:
                name = f"request {len(lanes)}"
            lanes.setdefault(name, []).append(operation)
        return lanes

    def caption(self):
        rank, count = self._settings["rank"], len(self.hazards)
        said = f"{count} hazard{'s' * (count > 1)}" if count else "no hazard"
        what = "streams" if self._run.in_order else "requests"
        return f"Rank {rank} of {self.nranks}, with {what}: {said}."

    def text(self):
        waited, numbers = self.waited(), {op: n for n, op in enumerate(self.operations, 1)}
        lines = [self.caption(), ""]
        for name, operations in self.lanes().items():
            lines.append(f"{name}:" if operations else f"{name}: nothing")
            for operation in operations:
                lines.append(f"  {numbers[operation]:>2}  {self._said(operation)}{self._until(operation, waited)}")
        for hazard in self.hazards:
            lines += ["", str(hazard)]
        return "\n".join([*lines, "", NOTE])

    def _said(self, operation):
        uses = []
        if operation.reads:
            uses.append("reads " + " and ".join(map(str, operation.reads)))
        if operation.writes:
            uses.append("writes " + " and ".join(map(str, operation.writes)))
        return f"{operation} {', '.join(uses)}"

    def _until(self, operation, waited):
        if operation.kind == COMPUTE:
            return ""
        begins = "" if operation.after or not self._run.in_order else "; waits for no event"
        if operation not in waited:
            return f"{begins}; nobody waits for it"
        before = waited[operation] + 1
        return f"{begins}; waited for " + (f"before {before}" if before <= len(self.operations) else "at the end")

    # As a picture

    def _paint(self, drawing, static):
        shown, lanes, waited = self.operations[:MOST], self.lanes(), self.waited()
        lanes = {name: [op for op in ops if op in shown] for name, ops in lanes.items()}
        lanes = {name: ops for name, ops in lanes.items() if ops or name == COMPUTE}
        room = self.WIDTH - 2 * _MARGIN
        more = len(self.operations) - len(shown)
        drawing.begin(_TOP + _LANE * len(lanes) + 22 * (len(self.hazards) + 2 + (more > 0)) + 4)
        drawing.label(_MARGIN, 20, "what a rank gives its streams to do", 14, "bold")
        drawing.label(_MARGIN, 44, fitting([self.caption()], room, 10), 10)
        wide = (room - _LEFT) / max(len(shown), 1)
        clash = self._clashes()
        for row, (name, operations) in enumerate(lanes.items()):
            y = _TOP + _LANE * row
            drawing.label(_MARGIN, y + _LANE / 2 - 4, fitting([name], _LEFT - 30, 9, "bold"), 9, "bold")
            drawing.box(_MARGIN + _LEFT, y + _LANE - 7, room - _LEFT, 0.5, edge=palette.LINE, line=0.5)
            for operation in operations:
                at = shown.index(operation)
                stop = at + 1 if operation.kind == COMPUTE else max(waited.get(operation, len(shown)), at + 1)
                stop = min(stop, len(shown))
                x, w = _MARGIN + _LEFT + at * wide, (stop - at) * wide
                if operation.kind != COMPUTE:
                    self._edges(drawing, operation, x, x + w, y, operation in waited)
                after = next((shown.index(other) for other in operations if shown.index(other) > at), len(shown))
                w = min(w, (after - at) * wide)  # those of one stream do not cover each other
                self._box(drawing, operation, at + 1, row, x + 2, y, w - 4, clash.get(operation))
        y = _TOP + _LANE * len(lanes) + 10
        for number, hazard in enumerate(self.hazards, 1):
            drawing.label(_MARGIN, y, f"!{number}", 9, "bold", palette.WRONG)
            drawing.label(_MARGIN + 26, y, fitting([hazard.lines[0]], room - 30), 9)
            y += 22
        said = [_SHORT, _LEGEND] + [f"{more} more operations are not drawn"] * (more > 0)
        for line, words in enumerate(said):
            drawing.label(_MARGIN, y + 22 * line, words, 8, colour=palette.QUIET)

    def _clashes(self):
        """Operation of the rank -> the numbers of its hazards."""
        found = {}
        for number, hazard in enumerate(self.hazards, 1):
            for access in (hazard.first, hazard.second):
                for operation in self.operations:
                    same = (operation.kind, operation.file, operation.line)
                    if same == (access.operation.kind, access.operation.file, access.operation.line):
                        found.setdefault(operation, []).append(number)
        return found

    def _edges(self, drawing, operation, start, stop, y, waited):
        """The lines between a collective and the compute stream."""
        top = _TOP + _LANE - 10
        if operation.after or not self._run.in_order:
            drawing.box(start + 4, top, 1, y - top + 2, palette.INK, palette.INK, 1.0, layer=4)
        if waited:
            drawing.box(stop - 4, top, 1, y - top + 2, palette.INK, palette.INK, 1.0, layer=4)

    def _box(self, drawing, operation, number, row, x, y, w, numbers):
        h = _LANE - 12
        collective = operation.kind != COMPUTE
        drawing.box(x, y, w, h, palette.tint(row), palette.INK, 1.0, layer=2)
        if collective:
            drawing.box(x, y + h - 6, w, 6, edge=palette.colour(row), line=0.8, hatch=palette.hatch(row), layer=3)
        if numbers:
            drawing.box(x, y, w, h, edge=palette.WRONG, line=2.5, dash="--", layer=5)
        name = operation.kind if collective else operation.label
        marks = "".join(f" !{n}" for n in numbers or ())
        words = f"{number} {name}{marks}"
        reads, writes = (", ".join(map(str, parts)) for parts in (operation.reads, operation.writes))
        read, wrote = f"reads {reads}" * bool(reads), f"writes {writes}" * bool(writes)
        lines = [", ".join(filter(None, (read, wrote))), wrote or read, ""]
        if width_of(words, 8, "bold") > w - 8:
            words, lines = f"{number}{marks}", [name, "the end"] if name == END else [name]
        written = (fitting([words, f"{number}"], w - 5, 8, "bold"), "bold"), (fitting(lines, w - 5, 8), "normal")
        for line, (words, weight) in enumerate(written):
            plate = x + 3, y + 3 + 12 * line, width_of(words, 8, weight) + 1, 12
            drawing.box(*plate, palette.tint(row), layer=4.5)  # a line to a lane below does not strike words out
            drawing.label(x + 4, y + 9 + 12 * line, words, 8, weight)

"""Who holds what before and after a collective: columns are ranks, rows are chunks."""

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from collectlab import provenance, semantics
from collectlab.layout import Partition
from collectlab.views import palette
from collectlab.views.drawing import fitting
from collectlab.views.view import SteppedView

# operation: the rows that a rank fills before and after it: every chunk, or its own only
OPERATIONS = {
    "all_reduce": ("all", "all"),
    "reduce_scatter": ("all", "own"),
    "all_gather": ("own", "all"),
    "all_to_all": ("all", "all"),
}
MOST_RANKS = 256
MOST_COLUMNS = 16

# What a cell may hold, the worst first, and how it is framed: edge, line width, dash, face
FRAMES = {
    "differs": (palette.WRONG, 2.5, "--", palette.WRONG_PAPER),
    "partial": (palette.INK, 1.5, "--", palette.PAPER),
    "part": (palette.LINE, 1.0, "-", palette.PAPER),
    "complete": (palette.INK, 2.5, "-", palette.PAPER),
    "empty": (palette.LINE, 1.0, ":", palette.PAPER),
    "later": (palette.LINE, 1.0, ":", palette.PAPER),
}


def ownership(operation, inputs, run=None, *, op="sum", rank_map=None, step=None):
    """The ownership grid of a collective, or of several that follow each other: a view.

        views.ownership("reduce_scatter", inputs=[A, B])                  # as it is defined
        views.ownership("reduce_scatter", inputs=[A, B], run=run)         # what your run returned
        views.ownership(["reduce_scatter", "all_gather"], inputs=[A, B])

    operation  one of all_reduce, reduce_scatter, all_gather, all_to_all, or a list of them
    inputs     a list with one array per rank, as `collectlab.semantics` takes it
    run        a Run, or a list with one result per rank. A rank's result is the array that the last operation
               gave it, or a tuple with one array per operation. Cells that differ from the definition are
               marked; floats may differ by rounding where values are summed or multiplied
    op         the reduction: sum, prod, min, max or avg
    rank_map   names the devices; the default is the run's
    step       which state to show first, 0 to the number of operations; the default is the last

    Inputs made by `provenance.identify` are recognised; then every cell shows whose contributions it really
    holds. With other values a run's cell shows what follows from the definition if its values are right.
    """
    return Ownership(operation, inputs, run, op, rank_map, step)


@dataclass(frozen=True)
class _Cell:
    """One chunk on one rank. `shares` counts each rank's contributions; None if they are not known."""

    kind: str
    window: str
    chunk: int
    start: int
    length: int
    shares: tuple | None
    values: np.ndarray | None
    want: np.ndarray | None = None
    note: str = ""


class Ownership(SteppedView):
    """The view that `ownership` returns."""

    def __init__(self, operation, inputs, run, op, rank_map, step):
        self.operations = _operations(operation)
        self.op = op
        self.inputs, wanted = _defined(self.operations, inputs, op)
        self.nranks = len(self.inputs)
        self.devices = _devices(run, rank_map, self.nranks)
        self._got = _results(run, self.nranks, len(self.operations))
        self._status = getattr(run, "status", None)
        width = provenance.words(self.nranks) if _identified(self.inputs) else 1
        self.identified = width > 1
        names = ["result"] if self.last == 1 else [f"result {s + 1}" for s in range(self.last)]
        shares = _shares(self.operations, self.nranks)
        slack = _rounding(self.operations, self.inputs, op)
        self._cells = []  # per state, per rank, a list of cells
        for s, window in enumerate(["input", *names]):
            rows = OPERATIONS[self.operations[max(s - 1, 0)]][s > 0]
            got = self._got[s - 1] if s and self._got[s - 1] is not None else None
            state = []
            for rank in range(self.nranks):
                layout = _layout(rows, rank, self.nranks, wanted[s][rank].size // width)
                cells = []
                for row, (chunk, here, start) in enumerate(layout):
                    part = slice(here.start * width, here.stop * width)
                    cells.append(
                        self._cell(
                            s, window, rank, chunk, start, here.stop - here.start,
                            _share(shares[s], rank, row, len(layout)), wanted[s][rank].reshape(-1)[part],
                            None if got is None else _part(got[rank], part, wanted[s][rank].size),
                            None if slack is None else slack[s][rank].reshape(-1)[part],
                        )
                    )  # fmt: skip
                state.append(cells)
            self._cells.append(state)
        self._wanted = wanted
        super().__init__(step=self.last if step is None else step)

    @property
    def last(self):
        return len(self.operations)

    def _check(self, settings):
        step = settings["step"]
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= self.last:
            raise ValueError(f"ownership: step is a whole number, 0 to {self.last}, not {step!r}")
        return settings

    def _controls(self, widgets):
        return self._step_controls(widgets)

    def _cell(self, s, window, rank, chunk, start, length, shares, want, got, slack):
        """The cell as defined, or as it was returned: `got` is None without a run, else (values, note)."""
        reduces = any(_reduces(name) for name in self.operations)
        holders = sum(share > 0 for share in shares)
        if length == 0:
            kind = "empty"
        elif s == 0 or (reduces and holders == 1 < self.nranks):
            kind = "part"
        else:
            kind = "partial" if reduces and holders < self.nranks else "complete"
        values, note = want, ""
        if got is not None:
            values, note = got
            if note or not _equal(values, want, slack):
                kind, shares = "differs", self._read(values)
        if self.identified:
            values = want = None
        return _Cell(kind, window, chunk, start, length, shares, values, want, note)

    def _read(self, values):
        """Whose identified contributions a chunk holds; None if that cannot be read."""
        if not self.identified or values is None or values.size % provenance.words(self.nranks):
            return None
        held = provenance.read(values, self.nranks)
        if provenance.UNREADABLE in held:
            return None
        totals = [0] * self.nranks
        for rank in range(self.nranks):
            totals[rank] = max((sum(n for (r, _), n in h.items() if r == rank) for h in held), default=0)
        return tuple(totals)

    # In words

    @property
    def _wrong(self):
        return [
            (rank, cell)
            for state in self._cells
            for rank, cells in enumerate(state)
            for cell in cells
            if cell.kind == "differs"
        ]

    def _title(self):
        names = " then ".join(self.operations)
        op = f" ({self.op})" if any(_reduces(name) for name in self.operations) else ""
        length = self.inputs[0].size // (provenance.words(self.nranks) if self.identified else 1)
        dtype = "identified elements" if self.identified else str(self.inputs[0].dtype)
        return (
            f"{names}{op}",
            f"{_n(self.nranks, 'rank')}, each contributes {_n(length, 'element')} ({dtype})",
        )

    def _state_name(self, s):
        return "before: input" if s == 0 else f"after {self.operations[s - 1]}: {self._cells[s][0][0].window}"

    def verdict(self):
        """Whether the run returned what the definition says, in one sentence: str."""
        if all(got is None for got in self._got):
            return "As defined; nothing was run."
        wrong = self._wrong
        if not wrong:
            rounding = " (floats up to rounding)" if _rounds(self.operations, self.inputs, self.op) else ""
            return f"The run returned what the definition says{rounding}, on every rank."
        ranks = sorted({rank for rank, _ in wrong})
        cells = sum(
            len(cells) for s, state in enumerate(self._cells) for cells in state if s and self._got[s - 1]
        )
        status = f" The run ended with status {self._status!r}." if self._status not in (None, "done") else ""
        return (
            f"{len(wrong)} of the run's {_n(cells, 'cell')} differ{'s' * (len(wrong) == 1)} from the definition, "
            f"on {_ranks(ranks)}.{status}"
        )

    def caption(self):
        s = self._settings["step"]
        return f"State {s} of {self.last}, {self._state_name(s)}. {self.verdict()}"

    def text(self):
        title, sizes = self._title()
        lines = [f"{title}: {sizes}"]
        for s in range(self.last + 1):
            lines.append(
                self._state_name(s) + (" (this run's)" if s and self._got[s - 1] is not None else "")
            )
            told = [(rank, self._rank_words(s, rank)) for rank in range(self.nranks)]
            for words, group in groupby(told, key=lambda item: item[1]):
                ranks = [rank for rank, _ in group]
                where = f" on {', '.join(self.devices[r] for r in ranks[:4])}" if self.devices else ""
                where += ", ..." * (bool(self.devices) and len(ranks) > 4)
                each = ", each" * (len(ranks) > 1)
                if len(words) == 1:
                    lines.append(f"  {_ranks(ranks)}{where}{each}: {words[0]}")
                else:
                    lines += [f"  {_ranks(ranks)}{where}{each}:", *(f"    {line}" for line in words)]
        lines.append(self.verdict())
        lines += [f"  {line}" for line in self._differences()]
        if any(got is not None for got in self._got) and not self.identified:
            lines.append(
                "Whose contributions a cell holds follows from the definition; right values agree with it and do "
                "not prove it. Inputs of provenance.identify would."
            )
        return "\n".join(lines)

    def _rank_words(self, s, rank):
        """What the rank holds, a line for each run of chunks that are alike."""
        lines = []
        for _, group in groupby(
            self._cells[s][rank], key=lambda c: (c.kind, c.shares, c.note, c.kind == "differs" and c.chunk)
        ):
            cells = list(group)
            first, last = cells[0], cells[-1]
            span = f"{first.start}:{last.start + last.length}"
            values = ""
            if first.values is not None and all(c.values is not None for c in cells):
                values = " " + _list(np.concatenate([c.values.reshape(-1) for c in cells]), 8)
            chunks = f"chunk{'s' * (len(cells) > 1)} {_range(first.chunk, last.chunk)}"
            lines.append(f"{first.window} {chunks} ({span}){values}, {self._meaning(first)}")
        return tuple(lines)

    def _meaning(self, cell, brief=False):
        """Whose contributions the cell holds, and whether that is all: str."""
        if cell.kind == "empty":
            return "no elements"
        if cell.kind == "differs":
            held = f" (holds {self._whose(cell.shares)})" if cell.shares and any(cell.shares) else ""
            return f"differs from the definition{': ' + cell.note if cell.note else held}"
        return f"{self._whose(cell.shares)}, {self._finish(cell)}"

    def _finish(self, cell):
        holders = sum(share > 0 for share in cell.shares)
        if cell.kind == "complete":
            return "complete"
        return f"{'partial' if cell.kind == 'partial' else 'its part'}, {holders} of {self.nranks}"

    def _whose(self, shares):
        ranks = [rank for rank, share in enumerate(shares) if share]
        more = max(shares, default=0)
        often = f", some of them {more} times" if more > 1 else ""
        if len(ranks) == self.nranks > 1:
            return f"{self.op} of all {self.nranks} ranks{often}"
        if len(ranks) > 1:
            return f"{self.op} of {_ranks(ranks)}{often}"
        return f"rank {ranks[0]}'s{often}" if ranks else "nothing"

    def _differences(self, most=12):
        wrong = self._wrong
        if not wrong:
            return []
        final = self._got[-1]
        if self.identified and final is not None:
            try:
                return provenance.explain([_flat(x) for x in final], self._wanted[-1], most).split("\n")
            except (TypeError, ValueError) as error:
                return [str(error)]
        lines = []
        for rank, cell in wrong[:most]:
            where = f"rank {rank}, {cell.window} chunk {cell.chunk} ({cell.start}:{cell.start + cell.length})"
            holds = "holds nothing" if cell.values is None else f"holds {_list(cell.values, 8)}"
            note = f" ({cell.note})" if cell.note else ""
            lines.append(f"{where}: {holds}, should hold {_list(cell.want, 8)}{note}")
        return lines + [f"... and {len(wrong) - most} more"] * (len(wrong) > most)

    # As a picture

    def _paint(self, drawing, static):
        group = -(-self.nranks // MOST_COLUMNS)  # ranks per column, and chunks per row
        columns = -(-self.nranks // group)
        states = list(range(self.last + 1))
        margin, gap, head = 16, 30, 84
        side_by_side = (drawing.width - 2 * margin - gap * self.last) / (columns * len(states)) >= 104
        if not side_by_side and not static:
            states = [self._settings["step"]]
        across = len(states) if side_by_side else 1
        column = min((drawing.width - 2 * margin - gap * (across - 1)) / (columns * across), 230)
        row = 70 if columns <= 8 else 46
        labelled = 3 if any(got is not None for got in self._got) else 2
        top = 22 + 17 * labelled
        panel = top + columns * row
        height = head + (panel + 26) * (len(states) // across) + 22
        drawing.begin(height)
        title, sizes = self._title()
        if group > 1:
            sizes += f"; aggregated: a column is {group} ranks, a row {group} chunks"
        drawing.label(margin, 20, fitting([title], drawing.width - 2 * margin, 14, "bold"), 14, "bold")
        drawing.label(margin, 43, fitting([sizes], drawing.width - 2 * margin, 10), 10)
        verdict, right = self.verdict(), not self._wrong
        ink = palette.QUIET if right else palette.WRONG
        weight = "normal" if right else "bold"
        drawing.label(margin, 63, fitting([verdict], drawing.width - 2 * margin, 10, weight), 10, weight, ink)
        for number, s in enumerate(states):
            x = margin + (number % across) * (columns * column + gap)
            y = head + (number // across) * (panel + 26)
            hidden = not static and s > self._settings["step"]
            self._panel(drawing, s, x, y, column, row, top, group, hidden)
        self._legend(drawing, margin, height - 18)

    def _panel(self, drawing, s, x, y, column, row, top, group, hidden):
        groups = [range(g, min(g + group, self.nranks)) for g in range(0, self.nranks, group)]
        name = self._state_name(s)
        now = self._got[s - 1] is not None if s else False
        candidates = [f"{name} (your run's)" if now else name, name, name.split(":")[0]]
        drawing.label(x, y + 8, fitting(candidates, column * len(groups), 11, "bold"), 11, "bold")
        for g, ranks in enumerate(groups):
            middle, left = x + (g + 0.5) * column, x + g * column
            span = _range(ranks[0], ranks[-1])
            head = [f"rank{'s' * (len(ranks) > 1)} {span}", span]
            drawing.label(middle, y + 30, fitting(head, column - 4, 10, "bold"), 10, "bold", align="center")
            if self.devices:
                names = list(dict.fromkeys(self.devices[rank] for rank in ranks))
                device = [names[0]] if len(names) == 1 else [f"{len(names)} devices", f"{len(names)} dev."]
                device = fitting(device, column - 4, 8)
                drawing.label(middle, y + 47, device, 8, colour=palette.QUIET, align="center")
            if now and not hidden:
                wrong = sum(any(c.kind == "differs" for c in self._cells[s][rank]) for rank in ranks)
                word = ["as defined", "right"] if not wrong else ["differs"]
                if wrong and len(ranks) > 1:
                    word = [f"{wrong} of {len(ranks)} differ", f"{wrong} differ"]
                ink, weight = (palette.WRONG, "bold") if wrong else (palette.QUIET, "normal")
                word = fitting(word, column - 4, 8, weight)
                drawing.label(middle, y + 63, word, 8, weight, ink, align="center")
            for r, chunks in enumerate(groups):
                cells = [c for rank in ranks for c in self._cells[s][rank] if c.chunk in chunks]
                if cells:
                    at = left + 2, y + top + r * row + 2, column - 4, row - 4
                    self._draw_cell(drawing, cells, chunks, *at, hidden)

    def _draw_cell(self, drawing, cells, chunks, x, y, w, h, hidden):
        kind = "later" if hidden else next(k for k in FRAMES if any(c.kind == k for c in cells))
        edge, line, dash, face = FRAMES[kind]
        drawing.box(x, y, w, h, face, edge, line, dash)
        if hidden:
            drawing.label(x + w / 2, y + h / 2, "?", 10, colour=palette.QUIET, align="center")
            return
        cell, inner = cells[0], w - 12
        number = _range(chunks[0], chunks[-1])
        chunk = f"chunk{'s' * (len(chunks) > 1)}"
        names = [f"{cell.window} · {chunk} {number}", f"{cell.window} {number}", f"{chunk} {number}", number]
        size = 8 if h > 50 else 7
        drawing.label(x + 6, y + (10 if h > 50 else 8), fitting(names, inner, size), size)
        if kind == "empty":
            drawing.label(
                x + 6, y + h / 2, fitting(["no elements", "none"], inner, size), size, colour=palette.QUIET
            )
            return
        self._draw_shares(drawing, cells, x + 6, y + (18 if h > 50 else 14), inner, 17 if h > 50 else 13)
        word = self._word(cells, kind)
        ink, weight = (palette.WRONG, "bold") if kind == "differs" else (palette.INK, "normal")
        if h > 50:
            if cell.values is not None and len(cells) == 1:
                drawing.label(x + 6, y + 44, fitting(_values(cell.values), inner, 9, "bold"), 9, "bold")
                drawing.label(x + 6, y + 58, fitting(word, inner, 8, weight), 8, weight, ink)
            else:
                drawing.label(x + 6, y + 50, fitting(word, inner, 8, weight), 8, weight, ink)
        else:
            drawing.label(x + 6, y + 34, fitting(word, inner, 7, weight), 7, weight, ink)

    def _word(self, cells, kind):
        """What the cell holds, in ever fewer words."""
        if len(cells) > 1:
            alike = sum(c.kind == kind for c in cells)
            word = {"differs": "differ", "partial": "partial", "part": "parts", "complete": "complete"}[kind]
            return [f"{alike} of {len(cells)} {word}", f"{alike} {word}", word]
        cell = cells[0]
        holders = [rank for rank, share in enumerate(cell.shares or ()) if share]
        n, p = len(holders), self.nranks
        if kind == "differs":
            if cell.note:
                return [cell.note, "differs"]
            if cell.want is not None:
                return [*(f"differs: not {v}" for v in _values(cell.want)[:1]), "differs", "≠"]
            return [f"differs: {n} of {p}", "differs", "≠"]
        if kind == "complete":
            if n == p > 1:
                return [f"{self.op} of all {p}: complete", f"{self.op} of all {p}", f"all {p}"]
            return [f"rank {holders[0]}'s: complete", f"rank {holders[0]}'s", f"r{holders[0]}"]
        if kind == "partial":
            return [f"partial {self.op}, {n} of {p}", f"partial, {n} of {p}", f"part {n}/{p}"]
        return [
            f"rank {holders[0]}'s part, {n} of {p}",
            f"rank {holders[0]}'s part",
            f"rank {holders[0]}'s",
            f"r{holders[0]}",
        ]

    def _draw_shares(self, drawing, cells, x, y, w, h):
        """A box for every rank (or group of ranks): filled where the cells hold its contributions."""
        group = -(-self.nranks // MOST_COLUMNS)
        slots = [range(g, min(g + group, self.nranks)) for g in range(0, self.nranks, group)]
        width = min(w / len(slots), 22)
        known = [c for c in cells if c.shares is not None]
        for slot, ranks in enumerate(slots):
            at = x + slot * width
            held = sum(c.shares[rank] > 0 for c in known for rank in ranks)
            full = held / (len(cells) * len(ranks))
            drawing.box(at, y, width - 1, h, palette.PAPER, "#c4c4c4", 0.8, layer=2)
            if full:
                tall = max(h * full, 2)
                drawing.box(
                    at, y + h - tall, width - 1, tall, palette.tint(slot), palette.colour(slot), 0.8, layer=3
                )
                if palette.hatch(slot):
                    drawing.box(
                        at, y + h - min(5, tall), width - 1, min(5, tall), palette.tint(slot), palette.colour(slot),
                        0.8, hatch=palette.hatch(slot), layer=4,
                    )  # fmt: skip
                times = max((c.shares[rank] for c in known for rank in ranks), default=1)
                label = f"{slot}×{times}" if times > 1 and width > 20 else str(slot)
                if group == 1 and width >= 11:
                    drawing.label(at + width / 2 - 0.5, y + 6, label, 7, "bold", align="center")
            elif not known and group == 1 and width >= 11:
                drawing.label(at + width / 2 - 0.5, y + h / 2, "?", 7, colour=palette.QUIET, align="center")

    def _legend(self, drawing, x, y):
        items = [("part", "one rank's own part"), ("complete", "complete")]
        if any(_reduces(name) for name in self.operations):
            items.insert(1, ("partial", "partial sum"))
        if self._wrong:
            items.append(("differs", "differs from the definition"))
        for kind, words in items:
            edge, line, dash, face = FRAMES[kind]
            drawing.box(x + 1, y - 6, 22, 12, face, edge, line, dash)
            drawing.label(x + 30, y, words, 8, colour=palette.QUIET)
            x += 50 + len(words) * 6.2
        words = ["numbered boxes: whose contributions the cell holds", "boxes: whose contributions"]
        drawing.label(
            drawing.width - 16,
            y,
            fitting(words, drawing.width - 16 - x, 8),
            8,
            colour=palette.QUIET,
            align="right",
        )


def _operations(operation):
    names = (
        [operation]
        if isinstance(operation, str)
        else list(operation)
        if isinstance(operation, list | tuple)
        else []
    )
    for name in names:
        if name not in OPERATIONS:
            raise ValueError(
                f"ownership: operation is one of {', '.join(OPERATIONS)}, or a list of them, not {name!r}"
            )
    if not names:
        raise ValueError(
            f"ownership: operation is one of {', '.join(OPERATIONS)}, or a list of them, not {operation!r}"
        )
    return names


def _reduces(name):
    return name in ("all_reduce", "reduce_scatter")


def _run(names, xs, op):
    states = [xs]
    for name in names:
        collective = getattr(semantics, name)
        states.append(collective(states[-1], op=op) if _reduces(name) else collective(states[-1]))
    return states


def _defined(names, inputs, op):
    """The inputs as arrays, and the state before and after each operation, by the definition."""
    if not isinstance(inputs, list | tuple) or not 1 <= len(inputs) <= MOST_RANKS:
        raise ValueError(
            f"ownership: inputs is a list with one array per rank, 1 to {MOST_RANKS}, not "
            f"{f'{len(inputs)} of them' if isinstance(inputs, list | tuple) else type(inputs).__name__}"
        )
    try:
        states = _run(names, list(inputs), op)
    except (TypeError, ValueError) as error:
        raise type(error)(f"ownership: inputs: {error}") from None
    states[0] = [np.asarray(x) for x in inputs]
    return states[0], states


def _rounds(names, inputs, op):
    return inputs[0].dtype.kind in "fc" and op in ("sum", "prod", "avg") and any(map(_reduces, names))


def _rounding(names, inputs, op):
    """How far each element may be off because the order of a reduction is free; None where it may not."""
    if not _rounds(names, inputs, op):
        return None
    scale = _run(names, [np.abs(x) for x in inputs], op)
    eps = np.finfo(inputs[0].dtype).eps
    return [[2 * len(inputs) * len(names) * eps * x for x in state] for state in scale]


def _shares(names, nranks):
    """Per state, [contributor][rank][unit]: how often the unit of that rank holds the contributor's part."""
    units = nranks ** sum(name != "all_gather" for name in names)
    states = [[] for _ in range(len(names) + 1)]
    for contributor in range(nranks):
        marks = [np.full(units, int(rank == contributor), np.int64) for rank in range(nranks)]
        for state, now in zip(states, _run(names, marks, "sum"), strict=True):
            state.append(now)
    return states


def _share(state, rank, row, rows):
    of = (marks[rank].reshape(rows, -1)[row].max() for marks in state)
    return tuple(int(share) for share in of)


def _layout(rows, rank, nranks, length):
    """The chunks that a rank holds: (chunk, its slice of the rank's array, where it starts in the whole)."""
    if rows == "own":
        return [(rank, slice(0, length), rank * length)]
    parts = Partition.uneven(length, nranks)
    return [(chunk, parts.slice(chunk), parts.displacements[chunk]) for chunk in range(nranks)]


def _identified(inputs):
    width = provenance.words(len(inputs))
    if any(x.dtype != np.int64 or x.size == 0 or x.size % width for x in inputs):
        return False
    made = provenance.identify(len(inputs), [x.size // width for x in inputs])
    return all(np.array_equal(x.reshape(-1), y) for x, y in zip(inputs, made, strict=True))


def _devices(run, rank_map, nranks):
    rank_map = getattr(run, "rank_map", None) if rank_map is None else rank_map
    if rank_map is None:
        return None
    if len(rank_map) != nranks:
        raise ValueError(
            f"ownership: rank_map has {len(rank_map)} ranks and inputs {nranks}; give one place per rank"
        )
    return rank_map.devices


def _results(run, nranks, nstates):
    """Per operation: the results of the run, one per rank, or None where the run does not tell."""
    if run is None:
        return [None] * nstates
    results = getattr(run, "results", run)
    if not isinstance(results, list | tuple) or len(results) != nranks:
        raise ValueError(
            f"ownership: run is a Run or a list with one result per rank, {nranks} as in inputs, not "
            f"{f'{len(results)} results' if isinstance(results, list | tuple) else type(results).__name__}"
        )
    if nstates > 1 and any(isinstance(x, tuple) for x in results):
        for rank, x in enumerate(results):
            if x is not None and not (isinstance(x, tuple) and len(x) == nstates):
                raise ValueError(
                    f"ownership: run: rank {rank} returned {type(x).__name__}, "
                    f"not a tuple of {nstates} arrays, one per operation"
                )
        return [[None if x is None else x[s] for x in results] for s in range(nstates)]
    return [*[None] * (nstates - 1), list(results)]


def _part(result, part, size):
    """The chunk of a rank's result, and what is wrong with its form: (values, note)."""
    if result is None:
        return None, "no result"
    array = _flat(result)
    if array is None:
        return None, f"returned {type(result).__name__}"
    return array[part], "" if array.size == size else f"{array.size} elements, not {size}"


def _flat(result):
    try:
        array = np.asarray(result)
    except ValueError:
        return None
    return array.reshape(-1) if array.dtype.kind in "biufc" else None


def _equal(got, want, slack):
    if slack is None:
        return bool(np.array_equal(got, want, equal_nan=want.dtype.kind in "fc"))
    with np.errstate(all="ignore"):
        same = (got == want) | (np.abs(got - want) <= slack) | (np.isnan(got) & np.isnan(want))
    return bool(same.all())


def _number(value):
    return f"{value:.5g}" if value.dtype.kind in "fc" else str(value)


def _list(array, most):
    array = np.asarray(array).reshape(-1)
    if array.size <= most:
        return "[" + ", ".join(map(_number, array)) + "]"
    return "[" + ", ".join(map(_number, array[: most - 2])) + f", ... {_number(array[-1])}]"


def _values(array):
    """The values in ever fewer signs."""
    shorter = [_list(array, most) for most in (8, 4, 3) if array.size > most or most == 8]
    return [*shorter, _n(array.size, "element"), f"{array.size} el."]


def _n(number, noun):
    return f"{number} {noun}{'s' * (number != 1)}"


def _range(first, last):
    return f"{first}" if first == last else f"{first}–{last}"


def _ranks(ranks):
    """ranks 0, 2 and 5–7"""
    runs = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [_range(a, b) if b - a != 1 else f"{a}, {b}" for a, b in runs]
    parts = ", ".join(parts).split(", ")
    joined = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    return f"rank{'s' * (len(ranks) > 1)} {joined}"

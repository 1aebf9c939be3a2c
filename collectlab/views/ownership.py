"""Who holds what before and after a collective: columns are ranks, rows are chunks."""

from functools import lru_cache
from itertools import groupby

import numpy as np

from collectlab import provenance
from collectlab.views import palette
from collectlab.views.drawing import fitting, width_of
from collectlab.views.holdings import Holdings
from collectlab.views.view import SteppedView
from collectlab.views.words import groups
from collectlab.words import ranks_named

MOST_COLUMNS = 16
MARGIN, GAP = 14, 28  # pixels
# kind of cell, the worst first: edge, line width, dash, face
FRAMES = {
    "differs": (palette.WRONG, 2.5, "--", palette.WRONG_PAPER),
    "partial": (palette.INK, 1.5, "--", palette.PAPER),
    "own": (palette.LINE, 1.0, "-", palette.PAPER),
    "complete": (palette.INK, 2.5, "-", palette.PAPER),
    "empty": (palette.LINE, 1.0, ":", palette.PAPER),
    "later": (palette.LINE, 1.0, ":", palette.PAPER),
}


def ownership(operation, inputs, results=None, rank_map=None, *, op="sum", step=None):
    """The ownership grid of a collective, or of several that follow each other: an `Ownership`.

        views.ownership("reduce_scatter", inputs=[A, B])                     # as it is defined
        views.ownership("reduce_scatter", inputs=[A, B], results=run)        # what your run returned
        views.ownership(["reduce_scatter", "all_gather"], inputs=[A, B])

    operation  one of all_reduce, reduce_scatter, all_gather and all_to_all, or a list of them
    inputs     a list with one array per rank, as `collectlab.semantics` takes it
    results    a Run, or a list with one result per rank: the array that the last operation gave the rank, or a
               tuple with one array per operation. Cells that differ from the definition are marked; where
               floats are summed or multiplied, a difference that rounding explains is none
    rank_map   names the devices; the default is the run's
    op         the reduction: sum, prod, min, max or avg
    step       the state that is shown first, 0 to the number of operations; the default is the last

    Inputs made by `provenance.identify` are recognised: then a cell shows whose contributions it really holds.
    With other inputs the contributors follow from the definition, and are unknown where the values are wrong.
    TypeError or ValueError name the argument that is not accepted.
    """
    return Ownership(operation, inputs, results, rank_map, op, step)


class Ownership(SteppedView):
    """The view that `ownership` returns. Its one setting is `step`, the state that is shown."""

    SHOWS_MORE = True  # every state

    def __init__(self, operation, inputs, results, rank_map, op, step):
        self.holdings = Holdings(operation, inputs, results, op)
        self.nranks = self.holdings.nranks
        rank_map = getattr(results, "rank_map", None) if rank_map is None else rank_map
        if rank_map is not None and len(rank_map) != self.nranks:
            raise ValueError(
                f"ownership: rank_map has {len(rank_map)} ranks, inputs has {self.nranks}; give each a place"
            )
        self.devices = None if rank_map is None else rank_map.devices
        self._status = getattr(results, "status", None)
        self._groups = groups(self.nranks, MOST_COLUMNS)
        super().__init__(step=self.last if step is None else step)

    @property
    def last(self):
        return len(self.holdings.operations)

    def _check(self, settings):
        return self._checked_step("ownership", settings)

    def _controls(self, widgets):
        return self._step_controls(widgets)

    # In words

    def _title(self):
        held = self.holdings
        title = " then ".join(held.operations) + f" ({held.op})" * held.reduces
        each = _n(held.inputs[0].size // held.width, "element")
        dtype = "identified elements" if held.identified else held.inputs[0].dtype
        return title, f"{_n(self.nranks, 'rank')}, each contributes {each} ({dtype})"

    def _state(self, s):
        if s == 0:
            return "before: input"
        return f"after {self.holdings.operations[s - 1]}: {self.holdings.window(s)}"

    def _ran(self, s):
        return self.holdings.got[s] is not None

    def verdict(self):
        """Whether the run returned what the definition says, in a sentence or two: str."""
        held = self.holdings
        ran = [s for s in range(self.last + 1) if self._ran(s)]
        if not ran:
            return "As defined; nothing was run."
        ended = f" The run's status is {self._status!r}." if self._status not in (None, "done") else ""
        wrong = held.wrong
        if wrong:
            ranks = sorted({rank for rank, _ in wrong})
            cells = sum(len(cells) for s in ran for cells in held.states[s])
            differ = "differs" if len(wrong) == 1 else "differ"
            count = f"{len(wrong)} of the run's {_n(cells, 'cell')} {differ}"
            return f"{count} from the definition, on {ranks_named(ranks)}.{ended}"
        dtypes = {np.asarray(x).dtype for s in ran for x in held.got[s]} - {held.inputs[0].dtype}
        other = (
            f" Its dtype is {', '.join(sorted(map(str, dtypes)))}, the inputs' {held.inputs[0].dtype}."
            * bool(dtypes)
        )
        rounding = ", up to rounding" * held.rounds
        return f"On every rank the run returned what the definition says{rounding}.{other}{ended}"

    def caption(self):
        s = self._settings["step"]
        return f"State {s} of {self.last}, {self._state(s)}. {self._verdict_at(s)}"

    def _verdict_at(self, s):
        """The verdict; before the last state is shown, nothing of a run is given away."""
        if s < self.last and any(map(self._ran, range(self.last + 1))):
            return "The last state says whether the run returned what the definition says."
        return self.verdict()

    def text(self):
        title, sizes = self._title()
        lines = [f"{title}: {sizes}"]
        shown = self._settings["step"]
        for s in range(self.last + 1):
            lines.append(self._state(s) + " (the run's)" * self._ran(s) + ": not shown yet" * (s > shown))
            if s > shown:
                continue
            told = [(rank, self._rank_words(s, rank)) for rank in range(self.nranks)]
            for words, ranks in groupby(told, key=lambda item: item[1]):
                who = self._who([rank for rank, _ in ranks])
                lines += (
                    [f"  {who}: {words[0]}"]
                    if len(words) == 1
                    else [f"  {who}:", *map("    {}".format, words)]
                )
        lines.append(self._verdict_at(shown))
        lines += map("  {}".format, self._differences() if shown == self.last else ())
        if any(map(self._ran, range(shown + 1))) and not self.holdings.identified:
            lines.append(
                "Whose contributions a cell holds is taken from the definition; right values do not prove it."
            )
        return "\n".join(lines)

    def _who(self, ranks):
        on = f" on {', '.join(self.devices[rank] for rank in ranks)}" if self.devices else ""
        return f"{ranks_named(ranks)}{on}{', each' * (len(ranks) > 1)}"

    def _rank_words(self, s, rank):
        """What the rank holds: a line for each run of chunks that are alike."""
        lines = []
        alike = lambda c: (c.kind, c.shares, c.note, c.kind == "differs" and c.chunk)  # noqa: E731
        for _, cells in groupby(self.holdings.states[s][rank], key=alike):
            first, *more = cells = list(cells)
            span = f"{first.start}:{cells[-1].start + cells[-1].length}"
            chunks = f"chunk{'s' * bool(more)} {_range(first.chunk, cells[-1].chunk)}"
            values = "" if first.values is None else " " + _list(np.concatenate([c.values for c in cells]), 8)
            lines.append(f"{first.window} {chunks} ({span}){values}, {self._meaning(first)}")
        return tuple(lines)

    def _meaning(self, cell):
        whose = self._whose(cell)
        if cell.kind == "empty":
            return "no elements"
        if cell.kind == "differs":
            held = f" (holds {whose})" if cell.holders else ""
            return f"differs from the definition{f': {cell.note}' if cell.note else held}"
        if cell.kind == "own":
            return f"{whose} own" + f", 1 of {self.nranks} contributions" * self.holdings.reduces
        if cell.kind == "partial":
            return f"{whose}, partial: {len(cell.holders)} of {self.nranks} contributions"
        return f"{whose}, complete"

    def _whose(self, cell):
        ranks, shares = cell.holders, {*(cell.shares or ())} - {0}
        often = f", {'some ' * (len(shares) > 1)}{max(shares)} times" if shares - {1} else ""
        if len(ranks) > 1:
            everyone = f"all {self.nranks} ranks" if len(ranks) == self.nranks else ranks_named(ranks)
            return f"{self.holdings.op} of {everyone}{often}"
        return f"rank {ranks[0]}'s{often}" if ranks else "nothing"

    def _differences(self, most=12):
        held = self.holdings
        wrong = held.wrong
        if wrong and held.identified and self._ran(self.last):
            try:
                return provenance.explain(held.got[-1], held.want[-1], most).split("\n")
            except (TypeError, ValueError) as error:
                return [str(error)]
        lines = []
        for rank, cell in wrong[:most]:
            holds = "nothing" if cell.values is None else _list(cell.values, 8)
            should = "" if cell.want is None else f", should hold {_list(cell.want, 8)}"
            where = f"{cell.window} chunk {cell.chunk} ({cell.start}:{cell.start + cell.length})"
            lines.append(f"rank {rank}, {where}: holds {holds}{should}{f' ({cell.note})' * bool(cell.note)}")
        return lines + [f"... and {len(wrong) - most} more"] * (len(wrong) > most)

    # As a picture

    def _paint(self, drawing, static):
        columns, states = len(self._groups), list(range(self.last + 1))
        width = drawing.width - 2 * MARGIN
        abreast = (width - GAP * self.last) / (columns * len(states)) >= 104  # all states beside each other
        if not abreast and not static:
            states = [self._settings["step"]]
        across = len(states) if abreast else 1
        column = min((width - GAP * (across - 1)) / (columns * across), 230)
        row = 78 if columns <= 8 else 50
        header = 24 + 17 * (1 + bool(self.devices) + any(map(self._ran, states)))
        panel, top, foot = header + columns * row + 22, 84, 28
        height = top + panel * (len(states) // across) + foot
        drawing.begin(height)
        title, sizes = self._title()
        group = len(self._groups[0])
        if group > 1:
            sizes += f"; aggregated: {group} ranks a column, {group} chunks a row"
        elif columns > 8:
            sizes += "; columns are ranks, a cell's number is its chunk"
        shown = self.last if static else self._settings["step"]
        verdict, wrong = self._verdict_at(shown), self.holdings.wrong and shown == self.last
        ink, weight = (palette.WRONG, "bold") if wrong else (palette.QUIET, "normal")
        drawing.label(MARGIN, 20, fitting([title], width, 14, "bold"), 14, "bold")
        drawing.label(MARGIN, 43, fitting([sizes], width, 10), 10)
        drawing.label(MARGIN, 63, fitting([verdict], width, 10, weight), 10, weight, ink)
        for number, s in enumerate(states):
            x = MARGIN + (number % across) * (columns * column + GAP)
            y = top + (number // across) * panel
            self._panel(drawing, s, x, y, column, row, header, s > shown)
        self._legend(drawing, height - 16, shown)

    def _panel(self, drawing, s, x, y, column, row, header, hidden):
        name = self._state(s)
        names = [f"{name} (the run's)"] * self._ran(s) + [name, name.split(":")[0]]
        drawing.label(x, y + 8, fitting(names, column * len(self._groups), 11, "bold"), 11, "bold")
        for number, ranks in enumerate(self._groups):
            left = x + number * column
            for line, (words, size, weight, ink) in enumerate(self._heads(s, ranks, column, hidden)):
                words = fitting(words, column - 6, size, weight)
                drawing.label(left + column / 2, y + 31 + 17 * line, words, size, weight, ink, "center")
            for r, chunks in enumerate(self._groups):
                cells = [c for rank in ranks for c in self.holdings.states[s][rank] if c.chunk in chunks]
                if cells:
                    at = left + 3, y + header + r * row + 3, column - 6, row - 6
                    self._cell(drawing, cells, chunks, *at, hidden)

    def _heads(self, s, ranks, column, hidden):
        """The lines over a column: texts in ever fewer words, size, weight, colour."""
        word, last = f"rank{'s' * (len(ranks) > 1)} ", self._groups[-1]
        named = width_of(word + _range(last[0], last[-1]), 10, "bold") <= column - 6
        yield [word * named + _range(ranks[0], ranks[-1])], 10, "bold", palette.INK
        if self.devices:
            names = list(dict.fromkeys(self.devices[rank] for rank in ranks))
            few = [f"{len(names)} devices", f"{len(names)} dev."]
            yield names if len(names) == 1 else few, 8, "normal", palette.QUIET
        if self._ran(s) and not hidden:
            wrong = sum(any(c.kind == "differs" for c in self.holdings.states[s][rank]) for rank in ranks)
            some = [f"{wrong} of {len(ranks)} differ", f"{wrong} differ"] if len(ranks) > 1 else ["differs"]
            fine = ["as defined", "right"], 8, "normal", palette.QUIET
            yield (some, 8, "bold", palette.WRONG) if wrong else fine

    def _cell(self, drawing, cells, chunks, x, y, w, h, hidden):
        kind = "later" if hidden else next(k for k in FRAMES if any(c.kind == k for c in cells))
        edge, line, dash, face = FRAMES[kind]
        drawing.box(x, y, w, h, face, edge, line, dash)
        if hidden:
            drawing.label(x + w / 2, y + h / 2, "?", 10, colour=palette.QUIET, align="center")
            return
        big, pad = h > 50, 7 if w > 70 else 4
        x, w, size = x + pad, w - 2 * pad, 8 if big else 7
        window, number = cells[0].window, _range(chunks[0], chunks[-1])
        chunk = f"chunk{'s' * (len(chunks) > 1)} {number}"
        names = [f"{window} · {chunk}", f"{window} {number}", chunk, number]
        drawing.label(x, y + (11 if big else 9), fitting(names, w, size), size)
        if kind == "empty":
            drawing.label(
                x, y + h / 2 + 4, fitting(["no elements", "none"], w, size), size, colour=palette.QUIET
            )
            return
        self._shares(drawing, cells, x, y + (20 if big else 16), w, 17 if big else 14)
        ink, weight = (palette.WRONG, "bold") if kind == "differs" else (palette.INK, "normal")
        word = fitting(self._brief(cells, kind), w, size, weight)
        values = cells[0].values if len(cells) == 1 else None
        if big and values is not None:
            words = _values(values)  # rather all of them in small letters than a few in large ones
            look = (9, "bold") if width_of(words[0], 9, "bold") <= w else (8, "normal")
            drawing.label(x, y + 46, fitting(words, w, *look), *look)
        drawing.label(
            x, y + (60 if big and values is not None else 50 if big else 37), word, size, weight, ink
        )

    def _brief(self, cells, kind):
        """What the cells hold, in ever fewer words."""
        p, reduces = self.nranks, self.holdings.reduces
        if len(cells) > 1:
            n = sum(c.kind == kind for c in cells)
            word = {"differs": "differ", "own": "inputs"}.get(kind, kind)
            return (
                [f"{n} of {len(cells)} {word}"] * (n < len(cells))
                + [f"{n} {word}", word]
                + ["done"] * (kind == "complete")
            )
        cell, ranks = cells[0], cells[0].holders
        if kind == "differs":
            return [*self._faults(cell), "differs"]
        everyone = [f"{self.holdings.op} of all {p}", f"all {p}"] * (len(ranks) == p > 1)
        whose = [self._whose(cell), *everyone, f"{len(ranks)} ranks'" if len(ranks) > 1 else f"r{ranks[0]}"]
        if kind == "partial":
            return [f"partial: {text}" for text in (*whose, f"{len(ranks)} of {p}")] + ["partial"]
        if kind == "own":
            return [f"{whose[0]} own, 1 of {p}"] * reduces + [f"{whose[0]} own", *whose]
        return [f"{text}: complete" for text in whose[:-1]] + whose

    def _faults(self, cell):
        """What is wrong with a cell that differs, in ever fewer words."""
        if cell.note:
            return [f"differs: {cell.note}", cell.note, cell.note.replace("elements", "el.")]
        if cell.want is not None:
            should = _values(cell.want)
            return [f"differs: not {should[0]}", *(f"not {values}" for values in should[:-2])]
        if not cell.holders:
            return []
        lacks = [rank for rank, share in enumerate(cell.shares) if not share]
        often = [rank for rank, share in enumerate(cell.shares) if share > 1]
        if not self.holdings.reduces:
            return [f"differs: holds {self._whose(cell)}", f"holds {self._whose(cell)}"]
        if not lacks + often:  # everyone's contributions, but to another position
            return ["differs: other elements", "other elements"]
        faults = [f"{ranks_named(often)} repeated"] if often else []
        faults += [f"lacks {ranks_named(lacks)}"] if lacks else []
        every = ("" if often else "partial: ") + ", ".join(faults)
        return [f"differs, {every}", every, *faults]

    def _shares(self, drawing, cells, x, y, w, h):
        """A box for each rank, or group of ranks: filled where the cells hold its contributions."""
        known = tuple(c.shares for c in cells if c.shares is not None)
        boxes, labels = _strip(tuple(self._groups), known, len(cells), w, h)
        for left, top, *rest in boxes:
            drawing.box(x + left, y + top, *rest)
        for left, top, *rest in labels:
            drawing.label(x + left, y + top, *rest, align="center")

    def _legend(self, drawing, y, shown):
        words = {
            "own": "one rank's own",
            "partial": "partial",
            "complete": "complete",
            "differs": "differs from the definition",
        }
        present = {cell.kind for state in self.holdings.states[: shown + 1] for cells in state for cell in cells}
        x = MARGIN + 1
        for kind, word in words.items():
            if kind not in present:
                continue
            edge, line, dash, face = FRAMES[kind]
            drawing.box(x, y - 6, 22, 12, face, edge, line, dash)
            drawing.label(x + 29, y, word, 8, colour=palette.QUIET)
            x += 50 + width_of(word, 8)
        group = len(self._groups[0])
        boxes = (
            "numbered boxes"
            if self.nranks <= 8
            else "boxes in rank order" + f", {group} ranks each" * (group > 1)
        )
        word = fitting([f"{boxes}: whose contributions a cell holds"], drawing.width - MARGIN - x, 8)
        drawing.label(drawing.width - MARGIN, y, word, 8, colour=palette.QUIET, align="right")


@lru_cache(maxsize=1000)
def _strip(groups, known, count, w, h):
    """The boxes and labels that say whose contributions so many cells hold, from (0, 0): many cells hold the same."""
    lines = 1 if w / len(groups) >= 6 or len(groups) == 1 else 2
    per_line = -(-len(groups) // lines)
    wide, tall = min(w / per_line, 22), h / lines
    boxes, labels = [], []
    for slot, ranks in enumerate(groups):
        left, top = slot % per_line * wide, slot // per_line * tall
        held = [shares[rank] for shares in known for rank in ranks]
        full = sum(share > 0 for share in held) / (count * len(ranks))
        numbered = len(ranks) == 1 and wide >= 11 and lines == 1
        middle = left + (wide - 1) / 2
        if full < 1:
            boxes.append((left, top, wide - 1, tall - 1, palette.PAPER, "#c4c4c4", 0.8, "-", "", 2))
        if full:
            up, edge = max((tall - 1) * full, 2), palette.colour(slot)
            low = min(5, up) if numbered else up
            face, hatched = palette.tint(slot), (0.8, "-", palette.hatch(slot))
            if low < up:
                boxes.append((left, top + tall - 1 - up, wide - 1, up, face, edge, 0.8, "-", "", 3))
                face = "none"
            boxes.append((left, top + tall - 1 - low, wide - 1, low, face, edge, *hatched, 4))
            if numbered:
                text, size = (f"{slot}×{max(held)}", 6) if max(held) > 1 else (str(slot), 7)
                labels.append((middle, top + 6, fitting([text, str(slot)], wide - 1, size, "bold"), size, "bold"))
        elif not known and numbered:
            labels.append((middle, top + h / 2, "?", 7, "normal", palette.QUIET))
    return boxes, labels


def _number(value):
    return f"{value:.5g}" if value.dtype.kind in "fc" else str(value)


def _list(array, most):
    """The values, at most so many of them."""
    if array.size <= most:
        return f"[{', '.join(map(_number, array))}]"
    return f"[{', '.join(map(_number, array[: most - 1]))}, ... {_number(array[-1])}]"


def _values(array):
    """The values in ever fewer signs."""
    shorter = [_list(array, most) for most in (8, 4, 2) if most == 8 or array.size > most]
    return [*shorter, _n(array.size, "element"), f"{array.size} el."]


def _n(number, noun):
    return f"{number} {noun}{'s' * (number != 1)}"


def _range(first, last):
    return f"{first}" if first == last else f"{first}–{last}"

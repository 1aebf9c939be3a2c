"""Traffic: how many bytes went from whose memory to whom, beside what the cost cards said."""

from dataclasses import astuple, fields
from itertools import groupby
from reprlib import repr

import numpy as np

from collectlab.cost import Card
from collectlab.trace import Trace
from collectlab.trace.events import BARRIER, LOAD, STORE, WAIT
from collectlab.views import palette
from collectlab.views.drawing import fitting, number_of, width_of
from collectlab.views.view import SteppedView
from collectlab.views.words import begin, groups
from collectlab.words import ranks_named

MOST = 16  # ranks that have a row and a column of their own
MOST_LINES = 64  # of the text that tells ranks apart
NOT = "Bytes that kernels asked for. Which link they crossed, and how long they took, a trace does not know."
FIELDS = tuple(field.name for field in fields(Card))

_MARGIN, _LEFT, _SUM, _TOP, _STRIP = 28, 76, 84, 122, 74  # pixels
_UNITS = (("bytes", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40))


def traffic(run, cards=None, name=None, *, predicted=None, step=None):
    """The traffic matrix of a run that used windows, beside its cost cards: a `Traffic`.

        cards = [cl.kernels.ring.all_reduce_cost(4, x.size, x.itemsize, rank) for rank in range(4)]
        views.traffic(run, cards)

    run    a Run or a simulated run, finished or not, or a Trace
    cards  a list with the `cost.Card` of each rank, which predict its bytes and the rest, but not from whom;
           None to show only what was measured
    name   what the title calls it; the default is the name of the run's program
    predicted  who gets how many bytes from whom, as you predict it: an integer array (nranks, nranks) whose entry
           [to, from] counts them, or another run of as many ranks. Own windows do not count; None if there is none
    step   the state that is shown first: what had been moved when each rank had waited so often (a barrier is
           one step). The default is the last, all that the run did

    TypeError or ValueError name the argument that is not accepted.
    """
    return Traffic(run, cards, name, step, predicted)


class Traffic(SteppedView):
    """The view that `traffic` returns. Its one setting is `step`.

    Entry [to, from] of the matrix counts the bytes that came from rank from's memory to rank to: loads by to,
    and, where a kernel pushes, stores by from. What a rank reads of its own window is told apart and in no sum.
    """

    def __init__(self, run, cards, name, step, predicted=None):
        trace = run if isinstance(run, Trace) else getattr(run, "trace", None)
        if not isinstance(trace, Trace):
            raise TypeError(f"traffic(run, cards): run is what cl.run or cl.simulate returned, not {repr(run)}")
        self.nranks, self.status = trace.nranks, getattr(run, "status", "done")
        program = getattr(run, "program", None) or getattr(run, "spec", {}).get("program", "program")
        self.name = str(program if name is None else name)
        self.cards = _checked(cards, self.nranks)
        self.predicted = None if predicted is None else _between(predicted, self.nranks)
        self._count(trace)
        self._payload = _payload(getattr(run, "results", []))
        self._groups = groups(self.nranks, MOST)
        super().__init__(step=self.last if step is None else step)

    def _count(self, trace):
        """Sort the events by rank and step, and count them: `_moves` and `_done`."""
        at, moves, counts = [0] * self.nranks, [], []
        for event in trace.events:
            rank = event.rank
            if event.kind == BARRIER or (event.kind == WAIT and event.cause != "barrier" and event.peer != rank):
                at[rank] += 1
            counts.append((at[rank], rank, *event.counts))
            if event.kind == LOAD:
                moves.append((at[rank], rank, event.peer, event.nbytes))
            elif event.kind == STORE and event.peer != rank:
                moves.append((at[rank], event.peer, rank, event.nbytes))
        self._last = max(at)
        self._empty = not trace.events and any(map(any, map(astuple, self.cards or [Card(*[1] * len(FIELDS))])))
        self._moves = np.array(moves, np.int64).reshape(-1, 4)  # step, to, from, bytes
        done = np.zeros((self._last + 1, self.nranks, len(FIELDS)), np.int64)
        step, rank, *figures = np.array(counts, np.int64).reshape(-1, 2 + len(FIELDS)).T
        np.add.at(done, (step, rank), np.transpose(figures))
        self._done = done.cumsum(axis=0)
        self._shown = None, None  # a step, and the matrix then

    @property
    def last(self):
        return self._last

    def _check(self, settings):
        return self._checked_step("traffic", settings)

    def _controls(self, widgets):
        return self._step_controls(widgets)

    # What is counted

    @property
    def matrix(self):
        """int64 (nranks, nranks): bytes from rank column to rank row, in the state that is shown; own windows too."""
        step = self._settings["step"]
        if self._shown[0] != step:
            matrix = np.zeros((self.nranks, self.nranks), np.int64)
            _, to, source, nbytes = self._moves[self._moves[:, 0] <= step].T
            np.add.at(matrix, (to, source), nbytes)
            self._shown = step, matrix
        return self._shown[1].copy()

    @property
    def measured(self):
        """What each rank has done in the state that is shown: a list of `cost.Card`, to hold against `cards`."""
        return [Card(*map(int, row)) for row in self._done[self._settings["step"]]]

    def differences(self):
        """Where the whole run is not what the cards say: a list of (rank, field, measured, predicted).

        Empty without cards, and where nothing was traced.
        """
        if self.cards is None or self._empty:
            return []
        return [
            (rank, field, int(self._done[-1, rank, at]), getattr(card, field))
            for rank, card in enumerate(self.cards)
            for at, field in enumerate(FIELDS)
            if self._done[-1, rank, at] != getattr(card, field)
        ]

    def wrong_pairs(self):
        """Where the whole run is not what was predicted: a list of (to, from, measured, predicted)."""
        if self.predicted is None or self._empty:
            return []
        matrix = np.zeros_like(self.predicted)
        np.add.at(matrix, tuple(self._moves[:, 1:3].T), self._moves[:, 3])
        np.fill_diagonal(matrix, 0)
        found = np.argwhere(matrix != self.predicted).tolist()
        return [(to, source, int(matrix[to, source]), int(self.predicted[to, source])) for to, source in found]

    # In words

    def verdict(self):
        """Whether the run did what the cards and the predictions say, in sentences: str."""
        if self.predicted is None or self._empty:
            return self._of_cards()
        wrong = self.wrong_pairs()
        if not wrong:
            told = "Every rank got from every other the bytes that were predicted."
        else:
            to, source, measured, predicted = wrong[0]
            pairs = f"{len(wrong)} of {number_of(self.nranks * (self.nranks - 1), 'pair')}"
            told = f"{pairs} of ranks differ from the prediction, first rank {to} from rank {source}: "
            told += f"{measured:,} bytes and not {predicted:,}."
        return told if self.cards is None else f"{told} {self._of_cards()}"

    def _of_cards(self):
        ended = f" The run's status is {self.status!r}." if self.status != "done" else ""
        if self._empty:
            return f"Nothing was traced: no window was used, or tracing was off.{ended}"
        if self.cards is None:
            return f"No cards were given, so nothing is predicted.{ended}"
        wrong = self.differences()
        if not wrong:
            said = "Every rank moved the bytes, and made the messages and barriers, that its card says"
            return f"{said}.{ended}"
        rank, field, measured, predicted = wrong[0]
        ranks = len({rank for rank, *_ in wrong})
        first = f"first rank {rank}, whose {field} is {measured:,} and not {predicted:,}"
        many = number_of(self.nranks, "rank")
        return f"{ranks} of {many} did something else than the cards say, {first}.{ended}"

    def _state(self):
        step = self._settings["step"]
        if step == self.last:
            return f"state {step} of {self.last}: the whole run"
        return f"state {step} of {self.last}: what a rank moved before it waited for the {_nth(step + 1)} time"

    def caption(self):
        moved = number_of(int(self._between().sum()), "byte")
        return " ".join([f"{self._state().capitalize()}; {moved} between ranks.", *self._judged()])

    def _judged(self):
        """The verdict, which is on the whole run, where that is shown."""
        return [self.verdict()] if self._settings["step"] == self.last else []

    def text(self):
        matrix, own, predicted = self._grouped(), self._own(), self._predictions()
        foreseen, mine = self._foreseen(), self.predicted is not None
        titles = ["to \\ from", *map(_range, self._groups), "in all"] + ["predicted"] * mine
        rows = [titles + ["card"] * bool(self.cards)]
        for group, row in zip(self._groups, matrix, strict=True):
            cells = list(map(_in, row))
            if len(self._groups) == self.nranks:
                rank = group[0]
                cells[rank] = f"({_in(own[rank])})" if own[rank] else "-"
            at = len(rows) - 1
            more = [*map(_in, foreseen.sum(axis=1)[at:][:1]), *map(_in, predicted[at:][:1])]
            rows.append([_range(group), *cells, _in(row.sum()), *more])
        rows.append(["in all", *map(_in, matrix.sum(axis=0)), _in(matrix.sum()), *[""] * (mine + bool(self.cards))])
        if mine:
            sums = [*map(_in, foreseen.sum(axis=0)), _in(foreseen.sum())]
            rows.append(["predicted", *sums, *[""] * (1 + bool(self.cards))])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]
        return "\n".join(
            [
                f"traffic of {self.name} on {number_of(self.nranks, 'rank')}, in bytes",
                self._state(),
                *self._grouping(),
                "",
                *lines,
                "",
                *self._told(),
                *self._misses(),
                *self._judged(),
                NOT,
            ]
        )

    def _told(self):
        """What the ranks did, in lines, equal neighbours together."""
        lines, done = [], self._done[self._settings["step"]]
        if self._payload:
            lines.append(f"result (payload, not traffic): {_span(self._payload)} bytes a rank")
        if self._own().any():
            lines.append(f"in brackets, and in no sum: own windows, {int(self._own().sum()):,} bytes in all")
        said = [(rank, self._words(rank, done[rank])) for rank in range(self.nranks)]
        for words, ranks in groupby(said, key=lambda item: item[1]):
            lines.append(f"{ranks_named([rank for rank, _ in ranks])}: {words}")
        if len(lines) > MOST_LINES:
            lines[MOST_LINES:] = [f"... and {len(lines) - MOST_LINES} more lines of this kind"]
        return lines

    def _words(self, rank, done):
        words = {"nbytes": "bytes moved"}
        texts = []
        for at, field in enumerate(FIELDS):
            card = f" (card: {getattr(self.cards[rank], field):,})" if self.cards else ""
            texts.append(f"{words.get(field, field)} {done[at]:,}{card}")
        return ", ".join(texts)

    def _misses(self):
        """The pairs that differ from the prediction, in lines; before the last state none."""
        wrong = self.wrong_pairs() if self._settings["step"] == self.last else []
        told = [f"rank {to} from rank {source}: {n:,} bytes (predicted: {want:,})" for to, source, n, want in wrong]
        more = len(told) - MOST_LINES
        return [*told[:MOST_LINES], f"... and {more} more pairs"] if more > 0 else told

    def _foreseen(self):
        """The predicted bytes between ranks, ranks of one group added; all zero where nothing is predicted."""
        if self.predicted is None:
            return np.zeros((0, 0), np.int64)
        return self._added(self.predicted)

    def _grouping(self):
        group = len(self._groups[0])
        return [f"aggregated: {group} ranks a row and a column"] * (group > 1)

    def _between(self):
        """The matrix without what ranks read of their own windows."""
        matrix = self.matrix
        np.fill_diagonal(matrix, 0)
        return matrix

    def _predictions(self):
        """The bytes that the cards predict, one number a row; empty without cards."""
        return [sum(self.cards[rank].nbytes for rank in group) for group in self._groups if self.cards]

    def _own(self):
        return self.matrix.diagonal()

    def _grouped(self):
        """Bytes between ranks, ranks of one group added."""
        return self._added(self._between())

    def _added(self, matrix):
        starts = [group[0] for group in self._groups]
        return np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)

    # As a picture

    def _paint(self, drawing, static):
        matrix, n = self._grouped(), len(self._groups)
        mine = self.predicted is not None
        sums = _SUM * (1 + mine + bool(self.cards))
        wide = min(100, (self.WIDTH - 2 * _MARGIN - _LEFT - sums) // n)
        tall = 48 if n <= 8 and mine and self.wrong_pairs() else 34 if n <= 8 else 25
        below, room = _TOP + (n + 1 + mine) * tall + 22, self.WIDTH - 2 * _MARGIN
        drawing.begin(below + _STRIP + 66)
        (unit, size), text = self._units(matrix, wide)
        drawing.label(_MARGIN, 26, fitting([f"traffic of {self.name}"], room, 14, "bold"), 14, "bold")
        about = [number_of(self.nranks, "rank"), *self._grouping(), f"{unit} from column to row", self._state()]
        drawing.label(_MARGIN, 50, fitting(["    ".join(about)], room, 10), 10, colour=palette.QUIET)
        wrong = bool(self.differences()) or bool(self.wrong_pairs()) or self.status != "done"
        ink, weight = (palette.WRONG, "bold") if wrong else (palette.INK, "normal")
        ended = self._settings["step"] == self.last
        said = self.verdict() if ended else ""
        said = fitting([said, said.partition(". ")[0] + "."], room, 10, weight)
        drawing.label(_MARGIN, 72, said, 10, weight, ink)
        self._matrix(drawing, matrix, wide, tall, size, text)
        self._strip(drawing, below)
        own = n == self.nranks and self._own().any()
        notes = ["hatched, in brackets: read from its own window, in no sum"] * bool(own)
        notes += [f"{unit} are rounded to three digits; the text has every byte"] * bool((matrix % size).any())
        y = below + _STRIP + 14
        drawing.label(_MARGIN, y, fitting(["    ".join(notes)], room, 9), 9, colour=palette.QUIET)
        drawing.box(_MARGIN, y + 14, room, 26, edge=palette.LINE)
        drawing.label(_MARGIN + 10, y + 27, NOT, 10)

    def _units(self, matrix, wide):
        """The smallest unit, and the largest size of text, with which every number fits its cell whole."""
        numbers = {*map(int, matrix.flat), *map(int, matrix.sum(axis=0))}
        foreseen = self._foreseen()
        numbers |= {*map(int, foreseen.flat), *map(int, foreseen.sum(axis=0))}
        sums = [*matrix.sum(axis=1), matrix.sum(), *self._predictions(), *foreseen.sum(axis=1), foreseen.sum()]
        for unit in _UNITS:
            words = {_drawn(n, unit[1]) for n in numbers}
            if len(self._groups) == self.nranks:
                words |= {f"({_drawn(n, unit[1])})" for n in self._own()}
            if max(width_of(_drawn(n, unit[1]), 9, "bold") for n in sums) > _SUM - 10:
                continue
            for text in (9, 8, 7):
                if max(width_of(word, text, "bold") for word in words) <= wide - 3:
                    return unit, text
        return _UNITS[-1], 7

    def _matrix(self, drawing, matrix, wide, tall, size, text):
        n = len(self._groups)
        left, foot = _MARGIN + _LEFT, _TOP + (n + 0.5) * tall + 4
        right = left + n * wide + _SUM - 10
        drawing.label(_MARGIN, _TOP - 12, "to \\ from", 9, colour=palette.QUIET)
        drawing.label(right, _TOP - 12, "in all", 9, "bold", align="right")
        drawing.label(_MARGIN, foot, "in all", 9, "bold")
        words = list(map(_range, self._groups))
        long = [f"rank{'s' * (n < self.nranks)} {word}" for word in words]
        longest = max(width_of(word, 9, "bold") for word in long)
        down, across = (long if longest <= room else words for room in (_LEFT - 8, wide - 4))
        head = 9 if max(width_of(word, 9, "bold") for word in across) <= wide - 4 else 7
        if max(width_of(word, head, "bold") for word in across) > wide - 4:
            head, across = 9, list(map(begin, self._groups))
        for i in range(n):
            x, y = left + (i + 0.5) * wide, _TOP + (i + 0.5) * tall
            drawing.label(_MARGIN, y, down[i], 9, "bold")
            drawing.label(x, _TOP - 12, across[i], head, "bold", align="center")
            drawing.label(x, foot, _drawn(matrix[:, i].sum(), size), text, "bold", align="center")
            drawing.label(right, y, _drawn(matrix[i].sum(), size), 9, "bold", align="right")
            for j in range(n):
                at = left + j * wide, _TOP + i * tall, wide, tall
                if i == j and n == self.nranks:
                    self._own_cell(drawing, i, *at, size, text)
                else:
                    self._cell(drawing, matrix[i, j], int(matrix.max()), *at, size, text)
        drawing.label(right, foot, _drawn(matrix.sum(), size), 9, "bold", align="right")
        if self.predicted is not None:
            right += _SUM
            self._foretold(drawing, matrix, left, right, wide, tall, size, text)
        if self.cards:
            self._predicted(drawing, right + _SUM, tall, size)

    def _foretold(self, drawing, matrix, left, right, wide, tall, size, text):
        """The sums of the prediction; a frame round each cell that differs from it, with what was predicted."""
        foreseen, n = self._foreseen(), len(self._groups)
        drawing.label(right, _TOP - 12, "predicted", 9, align="right")
        foot = _TOP + (n + 1.5) * tall + 4
        drawing.label(_MARGIN, foot, "predicted", 9)
        for i in range(n):
            column, row = _drawn(foreseen[:, i].sum(), size), _drawn(foreseen[i].sum(), size)
            x, y = left + (i + 0.5) * wide, _TOP + (i + 0.5) * tall
            drawing.label(x, foot, column, text, colour=palette.QUIET, align="center")
            drawing.label(right, y, row, 9, colour=palette.QUIET, align="right")
        drawing.label(right - _SUM, foot, _drawn(foreseen.sum(), size), 9, colour=palette.QUIET, align="right")
        for i, j in np.argwhere(matrix != foreseen).tolist() if self._settings["step"] == self.last else ():
            if i != j or n < self.nranks:
                at = left + j * wide + 1, _TOP + i * tall + 1, wide - 2, tall - 2
                drawing.box(*at, edge=palette.WRONG, line=2, dash="--", layer=5)
                if tall > 40:
                    word = fitting([f"not {_drawn(foreseen[i, j], size)}", ""], wide - 6, 7)
                    middle, w = at[0] + at[2] / 2, width_of(word, 7) + 6
                    drawing.box(middle - w / 2, at[1] + tall - 15, w, 12, palette.PAPER, layer=6)
                    drawing.label(middle, at[1] + tall - 9, word, 7, colour=palette.WRONG, align="center")

    def _predicted(self, drawing, x, tall, size):
        """What the cards predict of each row; boxed where the run moved another number of bytes."""
        wrong = {rank for rank, field, *_ in self.differences() if field == "nbytes"}
        drawing.label(x, _TOP - 12, "card", 9, align="right")
        for i, (group, nbytes) in enumerate(zip(self._groups, self._predictions(), strict=True)):
            word, y = _drawn(nbytes, size), _TOP + (i + 0.5) * tall
            ink, weight = palette.QUIET, "normal"
            if wrong & {*group}:
                ink, weight = palette.WRONG, "bold"
                wide = width_of(word, 9, "bold") + 12
                drawing.box(x - wide + 6, y - 10, wide, 20, palette.WRONG_PAPER, palette.WRONG, 2, "--")
            drawing.label(x, y, word, 9, weight, ink, align="right")

    def _cell(self, drawing, nbytes, most, x, y, wide, tall, size, text):
        share = (1 + int(7 * int(nbytes) / most)) / 16 if nbytes else 0
        face, ink = (palette.tint(0, share), palette.INK) if nbytes else (palette.PAPER, palette.QUIET)
        drawing.box(x, y, wide, tall, face, palette.LINE, 0.8)
        drawing.label(x + wide / 2, y + tall / 2, _drawn(nbytes, size), text, colour=ink, align="center")

    def _own_cell(self, drawing, rank, x, y, wide, tall, size, text):
        drawing.box(x, y, wide, tall, palette.PAPER, palette.LINE, 0.8, hatch="////")
        kept = self._own()[rank]
        if kept:
            drawing.box(x + 3, y + tall / 2 - 8, wide - 6, 16, palette.PAPER, layer=4)
            word = f"({_drawn(kept, size)})"
            drawing.label(x + wide / 2, y + tall / 2, word, text, colour=palette.QUIET, align="center")

    def _strip(self, drawing, y):
        """The card strip: what one rank did, what its card says of it, and whether that was enough."""
        done, differences = self._done[self._settings["step"]], self.differences()
        boxes = [("payload (result), bytes", _spans(self._payload) or ["no array"], ["not traffic"], False)]
        for field, title in (("nbytes", "bytes moved"), ("messages",) * 2, ("barriers",) * 2, ("steps",) * 2):
            card = _spans([getattr(card, field) for card in self.cards or ()])
            card = [f"card: {words}" for words in card] or ["no card"]
            wrong = any(field == other for _, other, *_ in differences)
            boxes.append((title, _spans(done[:, FIELDS.index(field)]), card, wrong))
        verdict, why = self._budget(differences)
        boxes.append(("budget of the cards", [verdict], [why], bool(differences)))
        wide = (self.WIDTH - 2 * _MARGIN + 8) / len(boxes)
        for at, (title, value, card, bad) in enumerate(boxes):
            x, bad = _MARGIN + at * wide, bad and self._settings["step"] == self.last
            edge, line, dash = (palette.WRONG, 2, "--") if bad else (palette.LINE, 1, "-")
            ink = palette.WRONG if bad else palette.INK
            drawing.box(x, y, wide - 8, _STRIP - 8, edge=edge, line=line, dash=dash)
            drawing.label(x + 8, y + 14, fitting([title], wide - 22, 8), 8, colour=palette.QUIET)
            drawing.label(x + 8, y + 34, fitting(value, wide - 22, 10, "bold"), 10, "bold", ink)
            drawing.label(x + 8, y + 53, fitting(card, wide - 22, 8), 8, colour=palette.QUIET)

    def _budget(self, differences):
        """Whether the run kept to its cards, in a word, and how."""
        if self.cards is None or self._empty:
            return "not known", "no card" if self.cards is None else "nothing was traced"
        if self._settings["step"] < self.last:
            return "so far", "the run goes on"
        if any(measured > predicted for *_, measured, predicted in differences):
            return "exceeded", "above the cards"
        return ("not used up", "below the cards") if differences else ("met", "as the cards say")


def _checked(cards, nranks):
    """The cards as a tuple, or None; an error when they are not one Card for each rank."""
    if cards is None:
        return None
    if not isinstance(cards, list | tuple) or not all(isinstance(card, Card) for card in cards):
        raise TypeError("traffic(run, cards): cards is a list with the cost.Card of each rank, or None")
    if len(cards) != nranks:
        raise ValueError(f"traffic(run, cards): cards has {len(cards)} of them, and the run {nranks} ranks")
    return tuple(cards)


def _between(predicted, nranks):
    """The predicted bytes between ranks: int64 (nranks, nranks), the diagonal 0."""
    call = "traffic(run, cards, predicted)"
    if isinstance(predicted, Trace) or isinstance(getattr(predicted, "trace", None), Trace):
        predicted = Traffic(predicted, None, None, None).matrix
    try:
        matrix = np.asarray(predicted)
        fits = matrix.dtype.kind in "iu" and (matrix >= 0).all() and matrix.sum(dtype=float) < 2**63
    except ValueError:  # rows of several lengths
        fits = False
    if not fits:
        said = "a run, or an array of whole numbers from 0 up, which together are below 2**63"
        raise TypeError(f"{call}: predicted is {said}, not {repr(predicted)}")
    if matrix.shape != (nranks, nranks):
        raise ValueError(f"{call}: predicted has the shape {matrix.shape}, and the run {nranks} ranks")
    matrix = matrix.astype(np.int64)
    np.fill_diagonal(matrix, 0)
    return matrix


def _payload(results):
    """The bytes of each rank's result, where all are arrays; else an empty list."""
    sizes = [getattr(result, "nbytes", None) for result in results]
    return [] if None in sizes else sizes


def _in(nbytes, size=1):
    """A number of bytes in a unit of so many, rounded to three digits where it does not come out even."""
    nbytes = int(nbytes)
    if nbytes % size == 0:
        return f"{nbytes // size:,}"
    value = nbytes / size
    digits = max(0, 3 - len(str(int(value)))) if value >= 1 else 3
    return f"{value:,.{digits}f}" if value >= 0.0005 else "<0.001"


def _drawn(nbytes, size):
    """The same in the matrix of a picture, where there is no room for commas."""
    return _in(nbytes, size).replace(",", "")


def _span(numbers, size=1):
    """The number, or the smallest and the largest."""
    low, high = _in(min(numbers), size), _in(max(numbers), size)
    return low if low == high else f"{low}–{high}"


def _spans(numbers):
    """The same in ever fewer signs: exact, then in larger units; empty where there are no numbers."""
    if not len(numbers):
        return []
    return [_span(numbers), *(f"{_span(numbers, size)} {unit}" for unit, size in _UNITS[1:])]


def _nth(n):
    return f"{n}{'th' if n % 100 in (11, 12, 13) else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"


def _range(group):
    return f"{group[0]}" if len(group) == 1 else f"{group[0]}–{group[-1]}"

"""The picture of the modular lab: the ring on the left, both results of the all-gather on the right."""

import math
from itertools import pairwise

from collectlab.views import palette
from collectlab.views.drawing import fitting, number_of

NOT = "The orbit reduces nothing and gathers nothing: it only visits numbers in an order."
RULE = "An all-gather places a chunk by the rank that it comes from. When it arrives does not matter."
WORDS = 16  # places whose chunks are named in full
_MARGIN, _RING, _TOP, _ROOM = 28, 404, 96, 372  # pixels: the ring, and the all-gather to its right


class ModularPicture:
    """What a `ModularLab` shows, as it is drawn."""

    def __init__(self, view, drawing):
        self.view, self.drawing = view, drawing

    def paint(self):
        """Draw all of it."""
        drawing, view = self.drawing, self.view
        now, room = view.settings, drawing.width - 2 * _MARGIN
        drawing.begin(_TOP + _ROOM + 74)
        title = f"x → (x {plus(now['a'])}) mod {now['m']}"
        found = f"period {view.period}" if now["step"] >= view.period else "period not found yet"
        drawing.label(_MARGIN, 26, f"{title}    {found}", 14, "bold")
        drawing.label(_MARGIN, 50, fitting([view.caption()], room, 10), 10)
        for line, said in enumerate(view.said_of_predictions()):
            drawing.label(_MARGIN, 70 + 18 * line, fitting([said], room, 10, "bold"), 10, "bold")
        self._ring(_MARGIN + _RING / 2 - 14, _TOP + _ROOM / 2)
        self._gather(_MARGIN + _RING, _TOP + 14, room - _RING)
        for line, (note, weight) in enumerate(((NOT, "bold"), (RULE, "normal"))):
            drawing.label(_MARGIN, _TOP + _ROOM + 26 + 20 * line, note, 10, weight)

    def _place(self, x, y, number):
        """Where a place of the ring is drawn: 0 on top, then clockwise."""
        angle = 2 * math.pi * number / self.view.settings["m"] - math.pi / 2
        radius = _ROOM / 2 - 22
        return x + radius * math.cos(angle), y + radius * math.sin(angle)

    def _ring(self, x, y):
        m, orbit, drawing = self.view.settings["m"], self.view.orbit, self.drawing
        half = 17 if m <= WORDS else 12 if m <= 32 else 7
        places = [self._place(x, y, number) for number in range(m)]
        for at, (before, after) in enumerate(pairwise(orbit), 2):
            now = at == len(orbit)
            if ends := _shorten(places[before], places[after], half + 5):
                drawing.arrow(*ends, palette.INK if now else palette.LINE, 2.4 if now else 0.9, 3 if now else 2)
        first = {}
        for at, number in enumerate(orbit):
            first.setdefault(number, at)
        for number, (px, py) in enumerate(places):
            self._visited(number, first.get(number), number == orbit[-1], px, py, half)
        steps = number_of(self.view.settings["step"], "step")
        drawing.plate(x, y, f"x = {orbit[-1]}", f"after {steps}")

    def _visited(self, number, at, here, x, y, half):
        """A place of the ring, and at which step it was visited first."""
        face = palette.INK if here else palette.PAPER if at is None else palette.tint(0, 0.3)
        edge, dash = (palette.LINE, ":") if at is None else (palette.INK, "-")
        self.drawing.box(x - half, y - half, 2 * half, 2 * half, face, edge, 1.2, dash, layer=4)
        ink, told = palette.PAPER if here else palette.INK, half > 14 and at is not None
        size = 10 if half > 14 else 8 if half > 8 else 6
        self.drawing.label(x, y - 5 * told, f"{number}", size, "bold", ink, "center")
        if told:
            word = fitting([f"step {at}" if at else "start", f"{at}"], 2 * half - 2, 6)
            self.drawing.label(x, y + 9, word, 6, "normal", ink, "center")

    def _gather(self, x, y, room):
        """The chunks as they arrived, and both results."""
        view, drawing = self.view, self.drawing
        m, there = view.settings["m"], view.arrived
        drawing.label(x, y, "an all-gather in that order, on rank 0", 11, "bold")
        told = f"chunks arrive from rank{'s' * (len(there) > 1)} {', '.join(map(str, there))}"
        drawing.label(x, y + 22, fitting([told, f"{len(there)} chunks, last from rank {there[-1]}"], room, 9), 9)
        most = 8 if m <= WORDS else 16
        per_line, lines = min(m, most), -(-m // most)
        tall, wide = 46 if m <= 8 else 32 if m <= WORDS else 24, room / per_line
        names = ("placed by rank layout", "appended in arrival order")
        for at, (name, slots) in enumerate(zip(names, (view.placed, view.appended), strict=True)):
            top, bad = y + 54 + at * (56 + lines * tall), at and view.wrong
            drawing.label(x, top, name, 10, "bold")
            ink, weight = (palette.WRONG, "bold") if bad else (palette.INK, "normal")
            verdict = view.verdict()[at].partition(": ")[2]
            drawing.label(x, top + 18, fitting([verdict], room, 8, weight), 8, weight, ink)
            for slot, rank in enumerate(slots):
                row, column = divmod(slot, per_line)
                self._slot(slot, rank, x + column * wide, top + 30 + row * tall, wide - 3, tall - 4)

    def _slot(self, slot, rank, x, y, w, h):
        """One slot of a result: what lies there, and whether it should."""
        drawing, band = self.drawing, 8 if h > 24 else 0
        if rank is None:
            drawing.box(x, y, w, h, edge=palette.LINE, dash=":")
            word = f"slot {slot}" if w > 40 else f"{slot}"
            drawing.label(x + w / 2, y + h / 2, word, 7, colour=palette.QUIET, align="center")
            return
        wrong = rank != slot
        edge, line, dash = (palette.WRONG, 2.2, "--") if wrong else (palette.INK, 1.2, "-")
        drawing.box(x, y, w, h, palette.WRONG_PAPER if wrong else palette.PAPER, layer=0)
        if band:
            fill = palette.tint(rank, 0.5), palette.colour(rank)
            drawing.box(x, y + h - band, w, band, *fill, 0.7, hatch=palette.hatch(rank))
        drawing.box(x, y, w, h, edge=edge, line=line, dash=dash, layer=3)
        both = h > 40
        name = fitting([f"rank {rank}", f"{rank}"], w - 4, 8, "bold")
        drawing.label(x + w / 2, y + (h - band) / 2 - 7 * both, name, 8, "bold", align="center")
        if both:
            drawing.label(x + w / 2, y + (h - band) / 2 + 7, fitting([f"slot {slot}"], w - 4, 7), 7, align="center")


def plus(a):
    """What a step adds, with its sign: "+ 3", or "- 3"."""
    return f"{'-' if a < 0 else '+'} {abs(a)}"


def _shorten(one, other, by):
    """The line between two points without its ends; None where nothing is left."""
    length = math.dist(one, other)
    if length <= 2 * by:
        return None
    at = lambda share: tuple(p + (q - p) * share for p, q in zip(one, other, strict=True))  # noqa: E731
    return at(by / length), at(1 - by / length)

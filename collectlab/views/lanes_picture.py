"""The picture of the lanes: along each rank's lane, from the bottom, the shares of what it did."""

import math
from itertools import pairwise

import numpy as np

from collectlab.views import palette
from collectlab.views.drawing import fitting, width_of
from collectlab.views.words import head, seconds_of

_MARGIN, _LEFT, _COLUMN, _TOP, _PIXEL = 28, 122, 66, 132, 2
_KINDS = ("move", "wait", "set-up", "else")
_WORDS = {
    "move": "moves data", "wait": "waits", "set-up": "sets up windows", "else": "anything else",
    "over": "over, or not begun",
}  # fmt: skip


class LanesPicture:
    """What a `Lanes` shows, as it is drawn."""

    def __init__(self, view, drawing):
        self.view, self.drawing, self.spans = view, drawing, view.spans
        self.open = {wait.rank for wait in view.spans.waits if wait.ended is None}

    def _edges(self, width):
        """The moments between which the lanes are added up: one for every two pixels."""
        begin, end = 0.0, self.spans.last or 1e-6
        if self.view.settings["zoom"] and self.view.picked is not None:
            stop = end if self.view.picked.over is None else self.view.picked.over
            around = max((stop - self.view.picked.began) / 2, 1e-6)
            begin, end = self.view.picked.began - around, stop + around
        elif self.open:
            end *= 1.15  # a stretch in which the open waits are seen
        return np.linspace(begin, end, int(width // _PIXEL) + 1)

    def paint(self):
        """Draw all of it."""
        drawing, view = self.drawing, self.view
        room, notes = drawing.width - 2 * _MARGIN, view.notes()
        if view.empty:
            drawing.begin(90)
            drawing.label(_MARGIN, 28, fitting([view.title()], room, 14, "bold"), 14, "bold")
            drawing.label(_MARGIN, 56, fitting([view.nothing()], room, 10), 10)
            return
        tall = 44 if len(view.groups) <= 8 else 30
        foot = _TOP + tall * len(view.groups)
        drawing.begin(foot + 78 + 17 * len(notes))
        drawing.label(_MARGIN, 26, fitting([view.title()], room, 14, "bold"), 14, "bold")
        bad = self.open or any(end.startswith("raised") for end in view.ends.values())
        ink = palette.WRONG if bad else palette.INK
        first, *more = view.verdicts()
        drawing.label(_MARGIN, 50, fitting([first], room, 10, "bold"), 10, "bold", ink)
        drawing.label(_MARGIN, 70, fitting([" ".join(more)], room, 10, "bold"), 10, "bold", ink)
        picked = f"picked out: {view.told(view.picked)}" if view.picked else "no wait is picked out"
        drawing.label(_MARGIN, 90, fitting([picked], room, 9), 9, colour=palette.QUIET)
        left, width = _MARGIN + _LEFT, room - _LEFT - 3 * _COLUMN - 6
        edges, waited = self._edges(width), self.spans.waited_for()
        x_of = lambda t: left + (t - edges[0]) / (edges[-1] - edges[0]) * (len(edges) - 1) * _PIXEL  # noqa: E731
        right = left + (len(edges) - 1) * _PIXEL
        for column, word in enumerate(("moves", "waits", "waited for"), 1):
            drawing.label(right + column * _COLUMN, _TOP - 14, word, 8, colour=palette.QUIET, align="right")
        for at, group in enumerate(view.groups):
            y = _TOP + at * tall
            self._lane(group, edges, left, y, tall - 8)
            end = self._end(group, x_of, right, y, tall - 8)
            up = 7 * bool(end)
            drawing.label(_MARGIN, y + tall / 2 - 3 - up, fitting([head(group)], _LEFT - 6, 9, "bold"), 9, "bold")
            drawing.label(_MARGIN, y + tall / 2 + 4, fitting([end], _LEFT - 6, 8), 8, "bold", palette.WRONG)
            moves, waits, *_ = np.sum([self.spans.seconds(rank) for rank in group], axis=0)
            for column, sum_ in enumerate((moves, waits, sum(waited[rank] for rank in group)), 1):
                drawing.label(right + column * _COLUMN, y + tall / 2 - 3, seconds_of(sum_), 8, align="right")
        self._mark(x_of, left, right, tall)
        self._axis(edges, left, right, x_of, foot)
        drawing.legend(_MARGIN, foot + 46, _LOOKS, _WORDS)
        for line, note in enumerate(notes):
            drawing.label(_MARGIN, foot + 68 + 17 * line, fitting([note], room, 8), 8, colour=palette.QUIET)

    def _lane(self, group, edges, x, y, h):
        """In every two pixels, from the bottom, what was done, each kind by its share of the time."""
        self.drawing.box(x, y + h, (len(edges) - 1) * _PIXEL, 1, face=palette.LINE, layer=5)
        tall = np.round(self.spans.shares(group, edges).cumsum(axis=1) * h)
        cuts = [0, *(1 + np.flatnonzero((tall[1:] != tall[:-1]).any(axis=1))).tolist(), len(tall)]
        for first, stop in pairwise(cuts):
            low = 0
            for kind, up in zip(_KINDS, tall[first].tolist(), strict=True):
                if up > low:
                    box = x + first * _PIXEL, y + h - up, (stop - first) * _PIXEL, up - low
                    self.drawing.box(*box, **_LOOKS[kind])
                    word = fitting([_WORDS[kind], ""], box[2] - 12, 8)
                    if word and up - low >= 14 and len(group) == 1:
                        self.drawing.plate(box[0] + box[2] / 2, box[1] + (up - low) / 2, word)
                low = up

    def _end(self, group, x_of, right, y, h):
        """How the ranks of a lane ended, in words, where that is not by returning; a bar marks where one raised."""
        words = []
        for rank in group:
            if rank in self.open:
                words.append("never ends")
            elif self.view.ends.get(rank, "").startswith("raised"):
                words.append(self.view.ends[rank])
                at = min(x_of(self.spans.ended[rank]), right)
                if at >= x_of(0):
                    self.drawing.box(at - 2, y - 2, 4, h + 4, face=palette.WRONG, layer=6)
            elif np.isnan(self.spans.began[rank]):
                words.append("no word of it")
        if len(group) > 1 and words:
            return f"{len(words)}: {words[0]}"
        return "".join(words)

    def _mark(self, x_of, left, right, tall):
        """A frame round the wait that is picked out, and one where the rank that it was for came."""
        wait = self.view.picked
        if wait is None:
            return
        lane = lambda rank: next(at for at, group in enumerate(self.view.groups) if rank in group)  # noqa: E731
        begin, stop = max(x_of(wait.began), left), right if wait.over is None else min(x_of(wait.over), right)
        y = _TOP + lane(wait.rank) * tall
        self.drawing.box(begin - 2, y - 3, max(stop - begin, 1) + 4, tall - 2, edge=palette.INK, line=2.4, layer=7)
        if wait.came is not None and left <= x_of(wait.came) <= right:
            x, y = x_of(wait.came), _TOP + lane(wait.peer) * tall
            self.drawing.box(x - 1, y - 4, 2.5, tall, face=palette.INK, layer=7)
            words = fitting(["comes", ""], 60, 7, "bold")
            wide = width_of(words, 7, "bold") + 6
            self.drawing.box(x - wide / 2, y - 10, wide, 12, palette.INK, layer=8)
            self.drawing.label(x, y - 4, words, 7, "bold", palette.PAPER, "center")

    def _axis(self, edges, left, right, x_of, y):
        step = _tick((edges[-1] - edges[0]) / 6)
        for number in range(math.ceil(edges[0] / step), math.floor(edges[-1] / step) + 1):
            t = number * step
            x = x_of(t)
            if t < 0 or (t > self.spans.last and number):
                continue
            self.drawing.box(x, _TOP - 4, 0.8, y - _TOP + 8, face="#c4c4c4", layer=0)
            word = "0" if number == 0 else seconds_of(t)
            if left - 1 <= x <= right + 1:
                self.drawing.label(x, y + 14, word, 8, colour=palette.QUIET, align="center")
        if edges[-1] > self.spans.last and self.open:
            x = x_of(self.spans.last)
            self.drawing.box(x, _TOP - 6, 0.1, y - _TOP + 12, edge=palette.WRONG, line=1.2, dash="--", layer=6)
            word = fitting(["no end", ""], right - x - 4, 8)
            self.drawing.label((x + right) / 2, y + 14, word, 8, colour=palette.WRONG, align="center")


_LOOKS = {
    "move": {"face": palette.colour(0), "layer": 1},
    "wait": {"face": palette.PAPER, "edge": palette.colour(5), "line": 0.8, "hatch": "////", "layer": 1},
    "set-up": {"face": palette.PAPER, "edge": palette.QUIET, "line": 0.5, "hatch": "....", "layer": 1},
    "else": {"face": palette.tint(6, 0.45), "layer": 1},
    "over": {"face": palette.PAPER, "edge": palette.LINE, "line": 0.8, "dash": ":", "layer": 1},
}


def _tick(about):
    """A round number of seconds, about so large."""
    size = 10.0 ** math.floor(math.log10(about))
    return next(size * k for k in (1, 2, 5, 10) if size * k >= about * 0.999)

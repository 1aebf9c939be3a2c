"""A picture made of boxes and labels, fast enough to be drawn again on every step.

Coordinates are pixels from the upper left corner. Three things make it fast: all boxes of one style are one path;
labels are set from the bitmaps of their letters (Matplotlib needs a millisecond and more to set one line); and
hatches are kept in a form that is quickly drawn. `finish` gives the same picture as a Figure of artists, which can
become PDF or SVG as well.
"""

import functools
import io
import re
import threading
from bisect import bisect_right
from itertools import zip_longest

import numpy as np
from matplotlib.backend_bases import GraphicsContextBase
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.transforms import IdentityTransform

from collectlab.views import palette

DPI = 100
POINT = DPI / 72  # pixels
_BOX = (Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY)
_STROKE = _BOX[:2]
_CORNERS = np.array([(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)])
_HEAD = 7  # pixels: the strokes of an arrow's head
_NO_SIGN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # no font has it, and no SVG may
_BETWEEN = 8  # colours of a ramp, at most: Pillow does not tell apart what differs by less than 4 of 255


class Shapes:
    """What is made of boxes and labels, on whatever has both."""

    def plate(self, x, y, *lines):
        """Lines of text around (x, y), on paper that covers the hatches under them."""
        w, h = max(map(width_of, lines)) + 8, 15 * len(lines)
        self.box(x - w / 2, y - h / 2, w, h, face=palette.PAPER, layer=4)
        for row, text in enumerate(lines):
            self.label(x, y + 15 * (row - (len(lines) - 1) / 2), text, align="center")

    def legend(self, x, y, looks, words):
        """A small box of each look (as `box` takes it) with its word beside it; returns where the last one ends."""
        for kind, word in words.items():
            self.box(x, y - 6, 22, 12, **looks[kind])
            self.label(x + 29, y, word, 8, colour=palette.QUIET)
            x += 50 + width_of(word, 8)
        return x


class Pane(Shapes):
    """A part of a drawing, from x on and so wide, in which x counts from its own left edge."""

    def __init__(self, drawing, x, width):
        self.drawing, self.x, self.width = drawing, x, width

    def box(self, x, *rest, **look):
        """As `Drawing.box`."""
        self.drawing.box(self.x + x, *rest, **look)

    def arrow(self, start, end, *rest, **look):
        """As `Drawing.arrow`."""
        self.drawing.arrow((self.x + start[0], start[1]), (self.x + end[0], end[1]), *rest, **look)

    def label(self, x, *rest, **look):
        """As `Drawing.label`."""
        self.drawing.label(self.x + x, *rest, **look)


class Drawing(Shapes):
    """One picture of a fixed width. `begin`, then any number of `box`, `arrow`, `label`, then `png` or `finish`."""

    def __init__(self, width):
        self.width, self._renderer, self._patches = width, None, {}
        self.begin(1)

    def begin(self, height):
        """Start an empty picture of so many pixels."""
        self.height = int(height)
        self._paths, self._lines, self._labels = {}, {}, []

    def box(self, x, y, w, h, face="none", edge="none", line=1.0, dash="-", hatch="", layer=1):
        """A rectangle; a hatch has the colour of the edge. Boxes of a higher layer cover those of a lower one."""
        key = (layer, face, edge, line, dash, hatch)
        self._paths.setdefault(key, []).append((x, y, w, h))

    def arrow(self, start, end, colour=palette.INK, line=1.0, layer=2):
        """A straight line between two points, with a head at its end."""
        back = np.arctan2(start[1] - end[1], start[0] - end[0])
        turned = [(np.cos(back + turn), np.sin(back + turn)) for turn in (0.45, -0.45)]
        ends = [(end[0] + _HEAD * x, end[1] + _HEAD * y) for x, y in turned]
        strokes = self._lines.setdefault((layer, "none", colour, line, "-", ""), [])
        strokes += [(start, end), (ends[0], end), (ends[1], end)]

    def label(self, x, y, text, size=9, weight="normal", colour=palette.INK, align="left"):
        """One line of text whose left end, middle or right end is at x and whose vertical middle is at y."""
        self._labels.append((x, y, _NO_SIGN.sub(" ", text), size, weight, colour, align))

    def finish(self):
        """The picture: a Matplotlib Figure of its own."""
        figure = Figure(figsize=(self.width / DPI, self.height / DPI), dpi=DPI, facecolor=palette.PAPER)
        FigureCanvasAgg(figure)
        for order, (key, path) in enumerate(self._drawn()):
            patch = figure.add_artist(_patch(*key))
            patch.set(path=path, zorder=key[0] + order / 1e4)
        for x, y, text, size, weight, colour, align in self._labels:
            figure.text(
                x, self.height - y, text, fontsize=size, fontweight=weight, color=colour, ha=align,
                va="center_baseline", parse_math=False, transform=IdentityTransform(), zorder=9,
            )  # fmt: skip
        return figure

    def _drawn(self):
        """(look, Path) of all boxes, then of all strokes; in a layer, what began first lies below."""
        up = np.array([0, self.height]), np.array([1, -1])
        for looks, codes in ((self._paths, _BOX), (self._lines, _STROKE)):
            for key, shapes in looks.items():
                shapes = np.array(shapes, float)
                points = shapes if looks is self._lines else shapes[:, None, :2] + _CORNERS * shapes[:, None, 2:]
                yield key, Path(up[0] + up[1] * points.reshape(-1, 2), np.tile(codes, len(shapes)))

    def _pairs(self):
        """The pairs of colours that meet in this picture: on a face its edge, its hatch and what is written."""
        looks = {key[1:3] for key in [*self._paths, *self._lines]} | {("none", label[5]) for label in self._labels}
        looks |= {(face, palette.INK) for face, _ in looks}
        on_paper = {"none": palette.PAPER}
        return frozenset((on_paper.get(face, face), edge) for face, edge in looks if edge != "none")

    def png(self):
        """The picture as PNG: bytes."""
        from PIL import Image

        pixels = self._pixels()
        file, size = io.BytesIO(), (self.width, self.height)
        picture = Image.frombytes("RGB", size, pixels, "raw", "RGBX")
        picture = picture.quantize(palette=_palette(self._pairs()), dither=Image.Dither.NONE)
        picture.save(file, "png", compress_level=6)
        return file.getvalue()

    def _pixels(self):
        """The picture as RGBA pixels, which the next one draws over."""
        renderer = self._renderer
        if renderer is None or (renderer.width, renderer.height) != (self.width, self.height):
            renderer = self._renderer = _Renderer(self.width, self.height, DPI)
        pixels = renderer.buffer_rgba()
        np.asarray(pixels)[:] = 255  # the paper
        for key, path in sorted(self._drawn(), key=lambda drawn: drawn[0][0]):
            if key not in self._patches:
                self._patches[key] = _patch(*key)
            self._patches[key].set_path(path)
            self._patches[key].draw(renderer)
        for x, y, text, size, weight, colour, align in self._labels:
            if text:
                label, left, low = _bitmap(text, size, weight, colour)
                x -= _BEFORE[align] * width_of(text, size, weight)
                base = round(self.height - y - _capital(size, weight) / 2)
                renderer.draw_image(_PLAIN, round(x) + left, base + low, label)
        return pixels


@functools.lru_cache(maxsize=40_000)
def width_of(text, size=9, weight="normal"):
    """How wide the label is, in pixels."""
    return sum(width for _, width in _set(_NO_SIGN.sub(" ", text), size, weight))


def number_of(n, thing):
    """A number with its noun: "1 rank", "2 ranks"."""
    return f"{n:,} {thing}{'s' * (n != 1)}"


def fitting(candidates, width, size=9, weight="normal"):
    """The first of the texts that is not wider than so many pixels; the last one, cut, if none is."""
    for text in candidates:
        if width_of(text, size, weight) <= width:
            return text
    fits = bisect_right(range(1, len(text)), width, key=lambda length: width_of(text[:length] + "…", size, weight))
    return text[:fits] + "…" if fits else ""


@functools.lru_cache(maxsize=100)
def _palette(pairs):
    """Colours for a PNG: those of each pair, and what lies between them, where edges are smoothed.

    256 colours take a third of the bytes. To choose them from the pixels would take a third of the time of a picture,
    and a state would not look the same each time that it is drawn.
    """
    from PIL import Image

    ends = 255 * np.array([[to_rgb(colour) for colour in pair] for pair in sorted(pairs)])
    share = np.linspace(0, 1, min(_BETWEEN, 256 // len(ends)))[:, None, None]
    found = Image.new("P", (1, 1))
    found.putpalette(np.rint(ends[:, 0] + share * (ends[:, 1] - ends[:, 0])).astype(np.uint8).tobytes())
    return found


_PLAIN = GraphicsContextBase()
_BEFORE = {"left": 0, "center": 0.5, "right": 1}  # the part of a label that lies before its anchor


def _patch(layer, face, edge, line, dash, hatch):
    """An artist of that look, without a path yet."""
    return PathPatch(
        Path(np.zeros((1, 2))), facecolor=face, edgecolor=edge, linewidth=line / POINT, linestyle=dash,
        hatch=hatch or None, joinstyle="miter", transform=IdentityTransform(),
    )  # fmt: skip


class _Context(GraphicsContextBase):
    """Its hatches are made once; Matplotlib keeps eight, and a picture may have sixteen. Their circles have eight
    corners, which nobody sees at that size, and which take a fraction of the time.
    """

    def get_hatch_path(self, density=6.0):
        return self.get_hatch() and _hatch_path(self.get_hatch(), density)


class _Renderer(RendererAgg):
    def new_gc(self):
        return _Context()


@functools.cache
def _hatch_path(hatch, density):
    path = Path.hatch(hatch, density)
    curved = path.codes == Path.CURVE4  # a curve has two points of its own, and ends in the third
    ends = ~curved | (np.cumsum(curved) % 3 == 0)
    return Path(path.vertices[ends], np.where(curved, Path.LINETO, path.codes)[ends])


# Labels are set from glyphs. What is hinted goes on by whole pixels, so a glyph is the same wherever it stands; on a
# baseline that is a whole pixel as well, small ones are sharp


@functools.lru_cache(maxsize=20_000)
def _bitmap(text, size, weight, colour):
    """The label as RGBA pixels, and where the lower left one lies from the left end of its baseline."""
    placed, x = [], 0.0
    for part, width in _set(text, size, weight):
        pixels, left, low = _glyph(part, size, weight)
        placed.append((pixels, round(x) + left, low))
        x += width
    placed = [(pixels, left, low) for pixels, left, low in placed if pixels.size]
    if not placed:
        return np.zeros((1, 1, 4), np.uint8), 0, 0
    left, low = (min(glyph[at] for glyph in placed) for at in (1, 2))
    wide = max(x + pixels.shape[1] for pixels, x, _ in placed) - left
    tall = max(y + pixels.shape[0] for pixels, _, y in placed) - low
    label = np.empty((tall, wide, 4), np.uint8)
    label[..., :3], label[..., 3] = np.rint(255 * np.array(to_rgb(colour))), 0
    for pixels, x, y in placed:
        part = label[y - low : y - low + pixels.shape[0], x - left : x - left + pixels.shape[1], 3]
        np.maximum(part, pixels, out=part)
    return label, left, low


@functools.lru_cache(maxsize=40_000)
def _set(text, size, weight):
    """The parts of which the label is set, each with the distance from there to the next."""
    parts = [text] if any(ord(char) >= _SHAPED and not 0x2000 <= ord(char) < 0x2C00 for char in text) else text
    pairs = zip_longest(parts, parts[1:], fillvalue="")
    return tuple((part, _advance(part, after, size, weight)) for part, after in pairs)


# Between two bars nothing depends on where the ink of a glyph begins and ends
@functools.lru_cache(maxsize=40_000)
def _advance(part, after, size, weight):
    """How far what follows stands from this part, in pixels."""
    return _ink(f"|{part}{after}|", size, weight) - _ink(f"|{after}|", size, weight)


@functools.lru_cache(maxsize=80_000)
def _ink(text, size, weight):
    with _SETTING:
        return _sheet().get_text_width_height_descent(text, _font(size, weight), False)[0]


@functools.lru_cache(maxsize=4_000)
def _glyph(part, size, weight):
    """How much of each pixel the glyph covers, of 255, and where the lower left one lies from its origin."""
    wide = int(_ink(part, size, weight)) + 2 * _AROUND
    with _SETTING:
        sheet = _sheet() if wide <= _WIDE else RendererAgg(wide, _TALL, DPI)
        sheet.clear()
        sheet.draw_text(_PLAIN, _AROUND, _TALL // 2, part, _font(size, weight), 0)
        ink = np.asarray(sheet.buffer_rgba())[::-1, :, 3]
        rows, columns = (np.flatnonzero(ink.any(axis=axis)) for axis in (1, 0))
        if not len(rows):
            return np.zeros((0, 0), np.uint8), 0, 0
        low, left = rows[0], columns[0]
        pixels = ink[low : rows[-1] + 1, left : columns[-1] + 1].copy()
    return pixels, int(left) - _AROUND, int(low) - (_TALL - _TALL // 2)


def _capital(size, weight):
    """How high a capital letter is, in pixels."""
    return len(_glyph("H", size, weight)[0])


# One sheet sets every glyph. The buttons of a widget may act in a thread of their own
_WIDE, _TALL, _AROUND = 1600, 128, 16  # pixels
_SHAPED = 0x250  # from here on there are scripts whose letters depend on each other
_SETTING = threading.Lock()


@functools.cache
def _sheet():
    return RendererAgg(_WIDE, _TALL, DPI)


@functools.cache
def _font(size, weight):
    return FontProperties(size=size, weight=weight)

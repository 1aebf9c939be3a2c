"""A picture made of boxes and labels, fast enough to be drawn again on every step.

Coordinates are pixels from the upper left corner. Two things make it fast: all boxes of one style are one
artist, and a label that was drawn before is copied from its bitmap (Matplotlib needs about half a millisecond
to set one line of text). Other canvases than Agg, for PDF or SVG, draw the same artists in their own way.
"""

import functools
import io
import threading
from bisect import bisect_right

import numpy as np
from matplotlib.backend_bases import GraphicsContextBase
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import Affine2D, IdentityTransform

from collectlab.views import palette

DPI = 100
POINT = DPI / 72  # pixels
_BOX = (Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY)
_CORNERS = np.array([(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)])
_HEAD = 7  # pixels: the strokes of an arrow's head
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
    """One Figure of a fixed width. `begin`, then any number of `box`, `line` and `label`, then `png`."""

    def __init__(self, width):
        self.width = width
        self.figure = Figure(figsize=(width / DPI, 1), dpi=DPI, facecolor=palette.PAPER)
        FigureCanvasAgg(self.figure)
        self._flip = Affine2D()
        self._patches, self._paths, self._lines = {}, {}, {}
        self._labels, self._used = {}, {}

    def begin(self, height):
        """Start an empty picture of so many pixels; artists of the last one are used again."""
        self.height = height
        self.figure.set_size_inches(self.width / DPI, height / DPI)
        self._flip.clear().scale(1, -1).translate(0, height)
        self._paths, self._lines = {}, {}
        self._used = {}

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
        key = (size, weight, colour, align)
        pool = self._labels.setdefault(key, [])
        used = self._used[key] = self._used.get(key, 0) + 1
        if used > len(pool):
            pool.append(
                self.figure.add_artist(
                    _Label(
                        0, 0, "", fontsize=size, fontweight=weight, color=colour, ha=align,
                        va="center_baseline", parse_math=False, transform=IdentityTransform(), zorder=9,
                    )
                )
            )  # fmt: skip
        artist = pool[used - 1]
        artist.set_text(text.replace("\n", " "))
        artist.set_position((x, self.height - y))

    def finish(self):
        """Bring the artists up to date; returns the Figure."""
        for key, boxes in self._paths.items():
            boxes = np.array(boxes, float)[:, None]
            corners = boxes[..., :2] + _CORNERS * boxes[..., 2:]
            self._patch(key).set_path(Path(corners.reshape(-1, 2), np.tile(_BOX, len(boxes))))
        for key, strokes in self._lines.items():
            points = np.array(strokes, float).reshape(-1, 2)
            self._patch((*key, "line")).set_path(Path(points, np.tile(_BOX[:2], len(strokes))))
        # in a layer, what this picture began with lies below, whatever an earlier picture began with
        drawn = {key: at for at, key in enumerate([*self._paths, *((*key, "line") for key in self._lines)])}
        for key, patch in self._patches.items():
            patch.set_visible(key in drawn)
            patch.set_zorder(key[0] + drawn.get(key, 0) / 1e4)
        for key, pool in self._labels.items():
            for number, artist in enumerate(pool):
                artist.set_visible(number < self._used.get(key, 0))
        return self.figure

    def _patch(self, key):
        """The artist of one style."""
        if key not in self._patches:
            layer, face, edge, line, dash, hatch = key[:6]
            self._patches[key] = self.figure.add_artist(
                PathPatch(
                    Path(np.zeros((1, 2))), facecolor=face, edgecolor=edge, linewidth=line / POINT, linestyle=dash,
                    hatch=hatch or None, joinstyle="miter", zorder=layer,
                )
            )  # fmt: skip
            self._patches[key].set_transform(self._flip)
        return self._patches[key]

    def _pairs(self):
        """The pairs of colours that meet in this picture: on a face its edge, its hatch and what is written."""
        looks = {key[1:3] for key in [*self._paths, *self._lines]} | {("none", key[2]) for key in self._used}
        looks |= {(face, palette.INK) for face, _ in looks}
        on_paper = {"none": palette.PAPER}
        return frozenset((on_paper.get(face, face), edge) for face, edge in looks if edge != "none")

    def png(self):
        """The picture as PNG: bytes."""
        from PIL import Image

        self.finish().canvas.draw()
        file = io.BytesIO()
        pixels = self.figure.canvas.buffer_rgba()
        size = pixels.shape[1], pixels.shape[0]
        picture = Image.frombytes("RGB", size, pixels, "raw", "RGBX")
        picture = picture.quantize(palette=_palette(self._pairs()), dither=Image.Dither.NONE)
        picture.save(file, "png", compress_level=3)
        return file.getvalue()


def width_of(text, size=9, weight="normal"):
    """How wide the label is, in pixels."""
    return float(_extent(text, size, weight).width)


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


class _Label(Text):
    """A Text of one line that Agg draws by copying its bitmap."""

    def draw(self, renderer):
        if not isinstance(renderer, RendererAgg) or renderer.dpi != DPI:
            return super().draw(renderer)
        if not self.get_visible() or not self.get_text():
            return None
        size, weight = self.get_fontsize(), self.get_fontweight()
        pixels, x0, y0, width = _bitmap(self.get_text(), size, weight, self.get_color())
        x, y = self.get_position()
        x -= _BEFORE[self.get_horizontalalignment()] * width
        renderer.draw_image(_PLAIN, round(x) + x0, round(y) + y0, pixels)
        self.stale = False
        return None


@functools.lru_cache(maxsize=20_000)
def _bitmap(text, size, weight, colour):
    """The label as RGBA pixels, where the lower left pixel lies from its anchor, and how wide it is."""
    extent = _extent(text, size, weight)
    left, low = int(np.floor(extent.x0)) - 2, int(np.floor(extent.y0)) - 2
    w, h = int(np.ceil(extent.x1)) + 2 - left, int(np.ceil(extent.y1)) + 2 - low
    with _SETTING:
        renderer = _sheet() if w <= _WIDE and h <= _TALL else RendererAgg(w, h, DPI)
        renderer.clear()
        label = _text(size, weight, colour)
        label.set_text(text)
        label.set_position((-left, -low))
        label.draw(renderer)
        return np.asarray(renderer.buffer_rgba())[-h:, :w][::-1].copy(), left, low, float(extent.width)


@functools.lru_cache(maxsize=40_000)
def _extent(text, size, weight):
    """The label's box, from its anchor: many are only measured, to find the one that fits."""
    with _SETTING:
        label = _text(size, weight, palette.INK)
        label.set_text(text)
        label.set_position((0, 0))
        return label.get_window_extent(_sheet())


# One sheet and a few texts set every label: to make them costs more than to use them. The buttons of a widget may act
# in a thread of their own
_WIDE, _TALL = 1600, 64  # pixels
_SETTING = threading.Lock()


@functools.cache
def _sheet():
    return RendererAgg(_WIDE, _TALL, DPI)


@functools.cache
def _text(size, weight, colour):
    label = Text(
        0, 0, "", fontsize=size, fontweight=weight, color=colour, va="center_baseline", parse_math=False
    )
    label.figure = Figure(dpi=DPI)
    return label

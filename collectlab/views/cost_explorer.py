"""The cost explorer: which all-reduce is fastest by its cost card, for which sizes, and where the lines cross."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from numbers import Real

import numpy as np

from collectlab.kernels import mesh, rabenseifner, recursive_doubling, ring, two_phase
from collectlab.views import palette
from collectlab.views.drawing import fitting, number_of, width_of
from collectlab.views.view import NotAccepted, View
from collectlab.views.words import is_whole, size_of

COSTS = {
    "mesh": mesh.all_reduce_cost,
    "two_phase": two_phase.all_reduce_cost,
    "ring": ring.all_reduce_cost,
    "recursive_doubling": recursive_doubling.all_reduce_cost,
    "rabenseifner": rabenseifner.all_reduce_cost,
}
MOST_RANKS, MOST_BYTES = 64, 2**40
BOUNDS = {"latency_us": (0, 1_000_000), "bandwidth_gbs": (0.001, 1_000_000)}
ITEMSIZE = 4  # of float32
MODEL = "Model: (steps + messages) x latency + bytes / bandwidth, by the card of the slowest rank."
NOT = "Left out: links that ranks share, waiting for a rank that is late itself, adding, copying, overlap."

_MARGIN, _TOP, _ROW, _CHART, _WORST, _BARS = 28, 104, 27, 190, 4.0, 660
_COLUMNS = {"steps": 236, "messages": 310, "bytes": 430, "time": 530, "of the fastest": 640}
_SIZES = 6, 30  # the chart's first and last size, as powers of two
_DASHES = ((1, 0), (6, 3), (2, 2), (10, 2), (3, 6))  # of the lines: boxes drawn, boxes left out


def cost_explorer(nranks=4, nbytes=65536, latency_us=1.0, bandwidth_gbs=10.0):
    """How long each all-reduce takes by its cost card, in the latency-bandwidth model: a view with four controls.

    nranks         ranks in the call, 2 to 64
    nbytes         bytes of one rank's vector of float32, so a multiple of 4
    latency_us     microseconds that a signal, or the first byte of a load, needs to arrive; 0 is accepted
    bandwidth_gbs  10**9 bytes a second that one rank can read from its peers

    The model is `cost.Card.seconds`. ValueError names the argument that is not accepted.
    """
    return CostExplorer(nranks=nranks, nbytes=nbytes, latency_us=latency_us, bandwidth_gbs=bandwidth_gbs)


@dataclass(frozen=True)
class Row:
    """One all-reduce: the card of its slowest rank, and its seconds."""

    name: str
    card: object
    seconds: float


class CostExplorer(View):
    """The view that `cost_explorer` returns. Its settings are the four arguments."""

    def _check(self, settings):
        call = f"cost_explorer({', '.join(f'{name}={value!r}' for name, value in settings.items())})"
        nranks, nbytes = settings["nranks"], settings["nbytes"]
        if not is_whole(nranks) or not 2 <= nranks <= MOST_RANKS:
            said = f"is a whole number, 2 to {MOST_RANKS}, not {nranks!r}"
            raise NotAccepted(f"{call}: nranks {said}", f"The number of ranks {said}.")
        if not is_whole(nbytes) or not 0 < nbytes <= MOST_BYTES or nbytes % ITEMSIZE:
            said = f"is a multiple of {ITEMSIZE}, up to {MOST_BYTES:,}, not {nbytes!r}"
            raise NotAccepted(f"{call}: nbytes {said}", f"The number of bytes {said}; a float32 has {ITEMSIZE}.")
        for name, (least, most) in BOUNDS.items():
            value = settings[name]
            if not isinstance(value, Real) or isinstance(value, bool) or not least <= value <= most:
                said = f"is a number, {least:,} to {most:,}, not {value!r}"
                raise NotAccepted(f"{call}: {name} {said}", f"The {name.partition('_')[0]} {said}.")
        settings = {"nranks": int(nranks), "nbytes": int(nbytes)} | {
            name: float(settings[name]) for name in BOUNDS
        }
        return settings

    # What follows from the cards

    @property
    def rows(self):
        """A `Row` for each all-reduce, the fastest first."""
        now = self._settings
        latency, bandwidth = now["latency_us"] / 1e6, now["bandwidth_gbs"] * 1e9
        rows = []
        for name in COSTS:
            cards = _cards(name, now["nranks"], now["nbytes"] // ITEMSIZE)
            slowest = max(cards, key=lambda card: card.seconds(latency, bandwidth))
            rows.append(Row(name, slowest, slowest.seconds(latency, bandwidth)))
        return sorted(rows, key=lambda row: row.seconds)

    @property
    def fastest(self):
        """The names of the fastest: a tuple, of more than one where they take equally long."""
        rows = self.rows
        return tuple(row.name for row in rows if math.isclose(row.seconds, rows[0].seconds))

    @property
    def ranges(self):
        """The fastest for each range of sizes: a list of (first size in bytes, names), the first from 0 on.

        Sizes are those that the ranks divide; others cost up to an element more a chunk.
        """
        now = self._settings
        product = Fraction(now["latency_us"]) * Fraction(now["bandwidth_gbs"]) * 1000  # bytes in one latency
        lines = {}
        for name, (latencies, share) in _lines(now["nranks"]).items():
            lines.setdefault((latencies * bool(product), share), []).append(name)
        at, line = Fraction(0), min(lines)
        found = [(at, line)]
        while flatter := [other for other in lines if other[1] < line[1]]:
            crossing = {other: product * (other[0] - line[0]) / (line[1] - other[1]) for other in flatter}
            line = min(flatter, key=lambda other: (crossing[other], other[1]))
            if crossing[line] <= found[-1][0]:
                found.pop()
            found.append((crossing[line], line))
        return [(float(at), tuple(lines[line])) for at, line in found]

    # In words

    def caption(self):
        rows = self.rows
        slowest = rows[-1]
        times = slowest.seconds / rows[0].seconds if rows[0].seconds else 1
        verb = "is" if len(self.fastest) == 1 else "are"
        return (
            f"{self._about()}: {_or(self.fastest, 'and')} {verb} the fastest with {_time(rows[0].seconds)}; "
            f"{slowest.name} takes {times:.2f} times as long."
        )

    def text(self):
        cells = [("", "steps", "messages", "bytes", "time", "of the fastest")]
        rows = self.rows
        for row in rows:
            cells.append((row.name, *self._cells(row, rows[0])))
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = []
        for first, *others in cells:
            lines.append("  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]))
        return "\n".join(
            [f"cost explorer: {self._about()}", "", *lines, "", "the fastest, by bytes of one rank's vector:"]
            + [f"  {said}" for said in self._ranges()]
            + ["", MODEL, NOT]
        )

    def _about(self):
        now = self._settings
        return (
            f"all-reduce on {number_of(now['nranks'], 'rank')} of {now['nbytes']:,} bytes each, "
            f"latency {now['latency_us']:g} µs, bandwidth {now['bandwidth_gbs']:g} GB/s"
        )

    def _cells(self, row, fastest):
        card = row.card
        ratio = row.seconds / fastest.seconds if fastest.seconds else 1
        return f"{card.steps}", f"{card.messages}", f"{card.nbytes:,}", _time(row.seconds), f"{ratio:.2f} x"

    def _ranges(self):
        ranges = self.ranges
        said = []
        for number, (start, names) in enumerate(ranges, 1):
            where = f"from {start:,.0f}" * (start > 0)
            where += f" up to {ranges[number][0]:,.0f}" if number < len(ranges) else " on" * (start > 0)
            said.append(f"{where.strip() or 'every size'}: {_or(names, 'or')}")
        return said

    # As a picture

    def _paint(self, drawing, static):
        chart = _TOP + _ROW * len(COSTS) + 46
        drawing.begin(chart + _CHART + 140)
        room, rows = self.WIDTH - 2 * _MARGIN, self.rows
        title = f"fastest by the cards: {_or(self.fastest, 'and')}"
        drawing.label(_MARGIN, 26, fitting([title], room, 14, "bold"), 14, "bold")
        drawing.label(_MARGIN, 50, fitting([self._about()], room, 10), 10, colour=palette.QUIET)
        for name, x in _COLUMNS.items():
            drawing.label(_MARGIN + x, _TOP - 16, name, 9, colour=palette.QUIET, align="right")
        drawing.label(_MARGIN + _BARS, _TOP - 16, "hatched: latency; plain: bytes", 9, colour=palette.QUIET)
        longest = rows[-1].seconds or 1
        exact = all(width_of(f"{row.card.nbytes:,}", 10, "bold") <= 112 for row in rows)
        for number, row in enumerate(rows):
            self._row(drawing, row, rows[0], longest, exact, _TOP + number * _ROW)
        self._chart(drawing, chart)
        y = chart + _CHART + 84
        drawing.box(_MARGIN, y, room, 44, edge=palette.LINE)
        for line, said in enumerate((MODEL, NOT)):
            drawing.label(_MARGIN + 10, y + 13 + 18 * line, said, 9)

    def _row(self, drawing, row, fastest, longest, exact, y):
        """One all-reduce: its line in the chart, its figures, and its time as a bar, latency first."""
        at, middle = list(COSTS).index(row.name), y + _ROW / 2 - 4
        weight = "bold" if row.name in self.fastest else "normal"
        self._line(drawing, at, [(_MARGIN + k, middle) for k in range(0, 44, 2)])
        drawing.label(_MARGIN + 54, middle, row.name, 10, weight)
        for column, cell in zip(_COLUMNS, self._cells(row, fastest), strict=True):
            if column == "bytes" and not exact:
                cell = size_of(row.card.nbytes)
            drawing.label(_MARGIN + _COLUMNS[column], middle, cell, 10, weight, align="right")
        left = _MARGIN + _BARS
        scale = (self.WIDTH - _MARGIN - left) / longest
        latency = (row.card.steps + row.card.messages) * self._settings["latency_us"] / 1e6
        drawing.box(left, y + 1, latency * scale, _ROW - 9, palette.PAPER, palette.INK, 0.8, hatch="////")
        rest = (row.seconds - latency) * scale
        drawing.box(left + latency * scale, y + 1, rest, _ROW - 9, palette.tint(at), palette.INK, 0.8)

    def _chart(self, drawing, y):
        """Each time as a multiple of the shortest, over the size; under it who is fastest where."""
        left, right = _MARGIN + 60, self.WIDTH - _MARGIN - 14
        first, last = _SIZES
        x_of = lambda size: left + (math.log2(size) - first) / (last - first) * (right - left)  # noqa: E731
        y_of = lambda ratio: y + _CHART * (1 - (ratio - 1) / (_WORST - 1))  # noqa: E731
        size = self._settings["nbytes"]
        up = f"upwards, as far as {_WORST:g}: time as a multiple of the fastest"
        said = f"{up}; to the right: bytes of each rank, here {size:,}"
        drawing.label(left, y - 18, said, 9, colour=palette.QUIET)
        for ratio in range(1, int(_WORST) + 1):
            drawing.box(left, y_of(ratio) - 0.5, right - left, 1, face="#dddddd")
            drawing.label(left - 8, y_of(ratio), f"{ratio} x", 9, colour=palette.QUIET, align="right")
        foot = y + _CHART + 34
        for power in range(first, last + 1, 4):
            drawing.box(x_of(2**power) - 0.5, y, 1, _CHART, face="#dddddd")
            drawing.label(x_of(2**power), foot - 18, size_of(2**power), 9, colour=palette.QUIET, align="center")
        self._lines(drawing, left, right, y, y_of)
        if 2**first <= size <= 2**last:
            drawing.box(x_of(size) - 1, y - 8, 2, _CHART + 16, face=palette.INK, layer=5)
        self._winners(drawing, foot, left, right, x_of)

    def _lines(self, drawing, left, right, y, y_of):
        first, last = _SIZES
        lines = _lines(self._settings["nranks"])
        product = self._settings["latency_us"] * self._settings["bandwidth_gbs"] * 1000  # bytes in one latency
        xs = np.arange(left, right, 2)
        sizes = 2 ** (first + (xs - left) / (right - left) * (last - first))
        times = np.array([latencies * product + float(share) * sizes for latencies, share in lines.values()])
        ups = y_of(times / times.min(axis=0))
        for at, up in enumerate(ups):
            inside = up >= y - 0.5
            self._line(drawing, at, list(zip(xs[inside].tolist(), up[inside].tolist(), strict=True)))

    def _line(self, drawing, at, points):
        """A line through points two pixels apart; it has its own colour and its own dashes."""
        drawn, gap = _DASHES[at]
        for number, (x, y) in enumerate(points):
            if number % (drawn + gap) < drawn:
                after = points[min(number + 1, len(points) - 1)][1]
                top, low = min(y, after), max(y, after)
                drawing.box(x, top - 1.5, 2, low - top + 3, face=palette.colour(at), layer=3 + at / 10)

    def _winners(self, drawing, y, left, right, x_of):
        """Under the axis, a box for each range of sizes with the names of the fastest."""
        first, last = _SIZES
        ranges = self.ranges
        drawing.label(_MARGIN, y + 14, "fastest", 9, "bold")
        ends = [start for start, _ in ranges[1:]] + [math.inf]
        for (start, names), end in zip(ranges, ends, strict=True):
            low, high = max(start, 2**first), min(end, 2**last)
            if low >= high:
                continue
            x, wide = x_of(low), x_of(high) - x_of(low)
            at = list(COSTS).index(names[0])
            drawing.box(x, y, wide, 28, palette.tint(at, 0.2), palette.INK, 1)
            drawing.label(x + 6, y + 14, fitting([_or(names, "or")], wide - 10, 9), 9)
            if start > 2**first and width_of(size_of(start), 9) < wide:
                drawing.label(x, y + 38, size_of(start), 9, "bold", align="center")

    # As a widget

    def _controls(self, widgets):
        now = self._settings
        wide = {"layout": {"width": "215px"}, "style": {"description_width": "100px"}}
        controls = {
            # not IntText, which would cut a fraction off before anybody could refuse it
            "nranks": widgets.FloatText(now["nranks"], description="ranks", step=1, **wide),
            "nbytes": widgets.FloatText(now["nbytes"], description="bytes a rank", step=ITEMSIZE, **wide),
            "latency_us": widgets.FloatText(now["latency_us"], description="latency, µs", **wide),
            "bandwidth_gbs": widgets.FloatText(now["bandwidth_gbs"], description="GB/s", **wide),
        }
        return controls, [widgets.HBox(list(controls.values()), layout={"flex_flow": "row wrap"})]


@lru_cache(maxsize=4096)
def _cards(name, nranks, count):
    """The different cards among those of all ranks."""
    return tuple({COSTS[name](nranks, count, ITEMSIZE, rank) for rank in range(nranks)})


@lru_cache
def _lines(nranks):
    """name -> (latencies, bytes read for each byte of the vector) where the ranks divide it: the slowest rank's."""
    count = math.lcm(nranks, 2 ** (nranks.bit_length() - 1))
    lines = {}
    for name in COSTS:
        cards = _cards(name, nranks, count)
        most = max(cards, key=lambda card: (card.nbytes, card.steps + card.messages))
        lines[name] = most.steps + most.messages, Fraction(most.nbytes, count * ITEMSIZE)
    return lines


def _time(seconds):
    for unit, size in (("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 1000 * size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds:,.2f} s"


def _or(names, word):
    *most, last = names
    return f"{', '.join(most)} {word} {last}" if most else last

"""The rank map: what each device holds, and which slices move when ranks change places."""

from collectlab.layout import Partition, RankMap
from collectlab.views import palette
from collectlab.views.drawing import fitting, number_of, width_of
from collectlab.views.view import View
from collectlab.views.words import is_whole

MOST = 16  # ranks or devices that are drawn one by one
MOST_CELLS = 4  # ranks of one device that are drawn one by one
RULE = "A slice belongs to a rank. The map says on which device that rank lives, and so where the slice is."

_PER_LINE = 8  # devices beside each other
_MARGIN, _LEFT, _CELL, _GAP, _ROW = 28, 104, 42, 12, 26  # pixels


def rank_map(rank_map, partition, other=None):
    """What each device holds of a partition, before and after ranks change places: a view.

    rank_map   a `RankMap`, the map before
    partition  a `Partition` of the vector among the same number of ranks
    other      the map after, at first; the default is the map before. `swap`, or the controls, change it
    """
    return RankMapView(rank_map, partition, other)


class RankMapView(View):
    """The view that `rank_map` returns. Settings: a, b (the two ranks that `swap` exchanges) and after (the map)."""

    def __init__(self, rank_map, partition, other=None):
        call = "rank_map(rank_map, partition, other)"
        for name, value in (("rank_map", rank_map), ("other", other)):
            if not isinstance(value, RankMap) and (name, value) != ("other", None):
                raise TypeError(f"{call}: {name} is a layout.RankMap, not {value!r}")
        if not isinstance(partition, Partition):
            raise TypeError(f"{call}: partition is a layout.Partition, not {partition!r}")
        for name, value in (("partition", partition), ("other", other or rank_map)):
            if value.nranks != rank_map.nranks:
                raise ValueError(
                    f"{call}: {name} is for {number_of(value.nranks, 'rank')} and rank_map for {rank_map.nranks}; "
                    "both need the same number"
                )
        self.before, self.partition, self._first = rank_map, partition, other or rank_map
        super().__init__(a=0, b=min(1, rank_map.nranks - 1), after=self._first)

    def _check(self, settings):
        for name in ("a", "b"):
            rank = settings[name]
            if not is_whole(rank) or not 0 <= rank < self.before.nranks:
                raise ValueError(f"rank_map: {name} is a rank, 0 to {self.before.nranks - 1}, not {rank!r}")
        after = settings["after"]
        if not isinstance(after, RankMap) or after.nranks != self.before.nranks:
            ranks = number_of(self.before.nranks, "rank")
            raise ValueError(f"rank_map: after is a RankMap of {ranks}, not {after!r}")
        moves = self.before.moves(after, self.partition)
        return {"a": int(settings["a"]), "b": int(settings["b"]), "after": after, "moves": moves}

    @property
    def after(self):
        """The map after: a `RankMap`."""
        return self._settings["after"]

    @property
    def moves(self):
        """What each device holds under both maps: a list of `layout.Move`."""
        return self._settings["moves"]

    def swap(self, a=None, b=None):
        """Let ranks a and b change places in the map after, as the button does; returns the view."""
        settings = self._check(self._settings | {k: v for k, v in (("a", a), ("b", b)) if v is not None})
        return self.set(**settings | {"after": self.after.swap(settings["a"], settings["b"])})

    def reset(self):
        """Go back to the map after that the view began with; returns the view."""
        return self.set(after=self._first)

    # In words

    def _devices(self):
        """The device of each rank before and after, by the names that the moves use."""
        found = [[None] * self.before.nranks for _ in range(2)]
        for move in self.moves:
            for devices, ranks in zip(found, (move.ranks_before, move.ranks_after), strict=True):
                for rank in ranks:
                    devices[rank] = move.device
        return found

    def _moving(self):
        """The ranks whose slice has elements and is on another device after than before."""
        before, after = self._devices()
        return [r for r, n in enumerate(self.partition.counts) if n and before[r] != after[r]]

    def caption(self):
        before, after = self._devices()
        moving = self._moving()
        if not moving:
            return "No slice moves: every device holds the same elements before and after."
        each = [f"rank {r}'s {_span(self.partition.slice(r))} from {before[r]} to {after[r]}" for r in moving[:4]]
        if len(moving) > len(each):
            each.append(f"and {len(moving) - len(each)} more")
        slices = f"{len(moving)} of {number_of(self.before.nranks, 'slice')} move{'s' * (len(moving) == 1)}"
        return f"{slices}: {'; '.join(each)}."

    def text(self):
        before, after = self._devices()
        moving = set(self._moving())
        padding = f", {self.partition.padding} of them padding" * bool(self.partition.padding)
        rows = [("rank", "slice", "elements", "device before", "device after", "")]
        for rank, count in enumerate(self.partition.counts):
            span = _span(self.partition.slice(rank))
            rows.append((f"{rank}", span, f"{count}", before[rank], after[rank], "moves" * (rank in moving)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join(
            [
                f"rank map: {number_of(self.partition.total, 'element')}{padding}, on "
                f"{number_of(self.before.nranks, 'rank')} and {number_of(len(self.moves), 'device')}",
                "",
                *lines,
                "",
                *map(str, self.moves),
                "",
                self.caption(),
                RULE,
            ]
        )

    # As a picture

    def _paint(self, drawing, static):
        shown, left_out = self._shown()
        per_line = -(-len(shown) // -(-len(shown) // _PER_LINE))
        lines = [shown[at : at + per_line] for at in range(0, len(shown), per_line)]
        tallest = [max(_height(m.ranks_before, m.ranks_after) for m in line) for line in lines]
        hosts = len({*self.before.hosts, *self.after.hosts}) > 1
        head = 34 if hosts else 20
        strip = self._strip_rows(hosts)
        room, moving = self.WIDTH - 2 * _MARGIN, self._moving()
        below = 76 + sum(strip) + 20
        drawing.begin(below + sum(head + 46 + 2 * tall for tall in tallest) + 22 * bool(left_out) + 44)
        slices = number_of(self.before.nranks, "slice")
        title = f"{len(moving)} of {slices} change{'s' * (len(moving) == 1)} device"
        padding = f", {self.partition.padding} of them padding" * bool(self.partition.padding)
        about = (
            f"{number_of(self.partition.total, 'element')}{padding}    {number_of(self.before.nranks, 'rank')}    "
            f"{number_of(len(self.moves), 'device')}"
        )
        drawing.label(_MARGIN, 28, title, 14, "bold")
        drawing.label(_MARGIN, 52, fitting([about], room, 10), 10, colour=palette.QUIET)
        self._strip(drawing, 76, strip, hosts)
        y, wide = below, min(196, (self.WIDTH - _MARGIN - _LEFT + _GAP) // per_line)
        for line, tall in zip(lines, tallest, strict=True):
            drawing.label(_MARGIN, y + head / 2 - 2, "device", 10)
            drawing.label(_MARGIN, y + head + _CELL / 2 - 3, "before", 10, "bold")
            drawing.label(_MARGIN, y + head + 8 + tall + _CELL / 2 - 3, "after", 10, "bold")
            for column, move in enumerate(line):
                x, cell = _LEFT + column * wide, wide - _GAP
                _device(drawing, x, y, head - 4, cell, move.device.split("/", hosts), "bold", "left")
                stays = set(move.ranks_before) & set(move.ranks_after)
                self._cells(drawing, x, y + head, cell, move.ranks_before, stays, 1.0)
                self._cells(drawing, x, y + head + 8 + tall, cell, move.ranks_after, stays, 2.6)
                verdict, weight = ("changed", "bold") if move.changed else ("unchanged", "normal")
                drawing.label(x, y + head + 16 + 2 * tall, fitting([verdict], cell, 9, weight), 9, weight)
            y += head + 46 + 2 * tall
        if left_out:
            drawing.label(_MARGIN, y + 2, fitting([left_out], room, 10), 10)
            y += 22
        drawing.box(_MARGIN, y, room, 28, edge=palette.LINE)
        drawing.label(_MARGIN + 10, y + 14, RULE, 10)

    def _shown(self):
        """The devices that are drawn, those that change first, and a sentence about the others."""
        if len(self.moves) <= MOST:
            return self.moves, ""
        changed = [move for move in self.moves if move.changed]
        shown = (changed + [move for move in self.moves if not move.changed])[:MOST]
        more, stay = max(0, len(changed) - MOST), len(self.moves) - max(len(changed), MOST)
        said = [f"{more} changed"] * bool(more) + [f"{stay} unchanged"] * bool(stay)
        more = len(self.moves) - MOST
        return shown, f"{more} more devices are not drawn: {', '.join(said)}. The text has them all."

    def _strip_rows(self, hosts):
        """How tall the rows of the strip are: slices, ranks, devices before and after; one row if it has none."""
        if not self.partition.total or self.before.nranks > MOST:
            return [_ROW]
        return [_ROW, _ROW, *[_ROW + 14 * hosts] * 2]

    def _strip(self, drawing, y, rows, hosts):
        """The vector, cut by rank, and under each slice its device before and after."""
        length, total = self.WIDTH - _MARGIN - _LEFT, self.partition.total
        for row, name in enumerate(("slice", "rank", "before", "after")[: len(rows)]):
            middle = y + sum(rows[:row]) + (rows[row] - 4) / 2
            drawing.label(_MARGIN, middle, name, 10, "bold" if row > 1 else "normal")
        if len(rows) == 1:
            why = f"{self.before.nranks} slices, too many to draw one by one" if total else "no elements"
            drawing.box(_LEFT, y, length, _ROW - 4, edge=palette.LINE, dash=":")
            drawing.label(_LEFT + 10, y + _ROW / 2 - 2, why, colour=palette.QUIET)
            return
        before, after = self._devices()
        moving = set(self._moving())
        for rank, count in enumerate(self.partition.counts):
            if not count:
                continue
            part = self.partition.slice(rank)
            x, wide = _LEFT + part.start / total * length, count / total * length
            span = fitting([_span(part)], wide - 6)
            drawing.box(x, y, wide, _ROW - 4, edge=palette.INK, line=0.8)
            drawing.label(x + wide / 2, y + _ROW / 2 - 2, span, align="center")
            _block(drawing, x, y + _ROW, wide, _ROW - 4, rank)
            names = [text for text in (f"rank {rank}", f"{rank}") if width_of(text) + 24 < wide]
            if names:
                drawing.plate(x + wide / 2, y + _ROW * 1.5 - 2, names[0])
            for row, device in ((2, before[rank]), (3, after[rank])):
                top, moves = y + sum(rows[:row]), row == 3 and rank in moving
                line, weight = (2.6 if moves else 0.8), ("bold" if moves and not hosts else "normal")
                drawing.box(x, top, wide, rows[row] - 4, edge=palette.INK, line=line, layer=3)
                names = device.split("/", hosts)
                _device(drawing, x + wide / 2, top, rows[row] - 4, wide - 8, names, weight, "center")

    def _cells(self, drawing, x, y, wide, ranks, stays, line):
        """What one device holds: a block for each rank. Ranks that come or go have a frame of so wide a line."""
        if not ranks:
            drawing.box(x, y, wide, _CELL - 6, edge=palette.LINE, dash=":")
            drawing.label(x + 8, y + _CELL / 2 - 3, fitting(["no rank"], wide - 12), colour=palette.QUIET)
        ordered = sorted(ranks, key=lambda rank: rank in stays) if len(ranks) > MOST_CELLS else ranks
        drawn = ordered if len(ranks) <= MOST_CELLS else ordered[: MOST_CELLS - 1]
        for row, rank in enumerate(drawn):
            top = y + row * _CELL
            _block(drawing, x, top, wide, _CELL - 6, rank)
            drawing.box(x, top, wide, _CELL - 6, edge=palette.INK, line=1.0 if rank in stays else line, layer=3)
            span = _span(self.partition.slice(rank)) if self.partition.counts[rank] else "empty"
            drawing.plate(x + wide / 2, top + _CELL / 2 - 3, f"rank {rank}", fitting([span], wide - 20))
        if len(drawn) < len(ranks):
            more = [f"and {len(ranks) - len(drawn)} more ranks", f"{len(ranks) - len(drawn)} more"]
            drawing.label(x + 4, y + len(drawn) * _CELL + 14, fitting(more, wide - 8))

    # As a widget

    def _controls(self, widgets):
        ranks = [(f"rank {rank}", rank) for rank in range(self.before.nranks)]
        narrow = {"layout": {"width": "180px"}, "style": {"description_width": "40px"}}
        controls = {
            name: widgets.Dropdown(options=ranks, value=self._settings[name], description=said, **narrow)
            for name, said in (("a", "swap"), ("b", "with"))
        }
        swap = self._button(widgets, "Swap", lambda _: self.swap(), "let the two ranks change places")
        reset = self._button(widgets, "Reset", lambda _: self.reset(), "back to the map at the start")
        return controls, [widgets.HBox([*controls.values(), swap, reset])]


def _height(*stacks):
    return max(1, *(min(len(ranks), MOST_CELLS) for ranks in stacks)) * _CELL


def _block(drawing, x, y, wide, tall, rank):
    drawing.box(x, y, wide, tall, palette.tint(rank), palette.colour(rank), hatch=palette.hatch(rank))
    drawing.box(x, y, wide, tall, edge=palette.INK, line=0.8, layer=2)


def _device(drawing, x, y, tall, wide, lines, weight, align):
    """The name of a device, after that of its host if there are several; too long a name loses its beginning."""
    for row, text in enumerate(lines):
        weight = weight if width_of(text, 9, weight) <= wide else "normal"  # the name says more than its weight
        cut = next((at for at in range(len(text)) if width_of("…" * (at > 0) + text[at:], 9, weight) <= wide), None)
        if cut is not None:
            middle = y + tall / 2 + 14 * (row - (len(lines) - 1) / 2)
            drawing.label(x, middle, "…" * (cut > 0) + text[cut:], 9, weight, align=align)


def _span(part):
    return f"{part.start}:{part.stop}"

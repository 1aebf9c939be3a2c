"""The payload counter: what a call's count argument counts, and how long each side of the call then is."""

from reprlib import repr

import numpy as np

from collectlab import payload
from collectlab.views import palette
from collectlab.views.drawing import fitting, number_of, width_of
from collectlab.views.view import NotAccepted, View
from collectlab.views.words import is_whole

DTYPES = (
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
MOST_BLOCKS = 16  # drawn one by one
MOST_TICKS = 64  # elements drawn one by one
NOT = "Logical payload: what a rank passes in and what it gets back. Not traffic, not time, not memory."

_MARGIN, _LEFT, _LENGTH, _RIGHT, _TALL, _PITCH = 28, 140, 580, 738, 38, 76  # of the bars, in pixels


def payload_counter(operation="reduce_scatter", nranks=2, elements=4, dtype="int32", library="NCCL"):
    """What the count argument of one call counts: a view with these five as controls.

    operation  one of `payload.OPERATIONS`
    nranks     ranks in the call
    elements   elements of one rank's input vector: of every rank's, or of the root's where only the root has
               an input (broadcast, scatter). Not the count argument, which may count something else
    dtype      one of DTYPES, or the NumPy dtype or type of that name
    library    "NCCL" (2.32.3), "MPI" or "nccl-tests"

    ValueError or TypeError names the argument that is not accepted; elements that the rank count does not
    divide are an error where the operation cuts its input into equal blocks.
    """
    return PayloadCounter(operation=operation, nranks=nranks, elements=elements, dtype=dtype, library=library)


class PayloadCounter(View):
    """The view that `payload_counter` returns."""

    def _check(self, settings):
        call = f"payload_counter({', '.join(f'{name}={repr(value)}' for name, value in settings.items())})"
        operation, library = settings["operation"], settings["library"]
        libraries = {name.lower(): name for name in payload.LIBRARIES}
        if not isinstance(library, str) or library.lower() not in libraries:
            raise ValueError(f"{call}: library is one of {', '.join(payload.LIBRARIES)}, not {library!r}")
        if not isinstance(operation, str) or operation not in payload.OPERATIONS:
            raise ValueError(f"{call}: operation is one of {', '.join(payload.OPERATIONS)}, not {operation!r}")
        checked = {
            "operation": operation,
            "nranks": _whole(call, "nranks", settings["nranks"], 1),
            "elements": _whole(call, "elements", settings["elements"], 0),
            "dtype": _dtype_name(call, settings["dtype"]),
            "library": libraries[library.lower()],
        }
        nranks, elements = checked["nranks"], checked["elements"]
        try:
            payload.count_of_input(checked["library"], operation, elements, nranks)
        except ValueError:
            block = -(-elements // nranks)
            function = payload.CALLS[operation][checked["library"]].function
            cuts = f"{function} cuts the input into one equal block per rank, and {nranks} ranks do not divide"
            take = f"take a multiple of {nranks}, such as {nranks * block}"
            raise NotAccepted(
                f"{call}: {cuts} elements={elements}; {take}", f"{cuts} {number_of(elements, 'element')}: {take}."
            ) from None
        return checked

    @property
    def counts(self):
        """The count arguments of the call: a list of `payload.Count`, two of them where MPI has two."""
        now = self._settings
        first = payload.count_of_input(now["library"], now["operation"], now["elements"], now["nranks"])
        return [first.to(first.library, name) for name in payload.CALLS[first.operation][first.library].counts]

    @property
    def sides(self):
        """Who holds which `Payload`: pairs; one if every rank holds the same, else the root's and the others'."""
        count = self.counts[0]
        if count.nranks == 1 or _two(count).at_root == _two(count).elsewhere:
            return [("each rank", count.at_root)]
        return [("the root", count.at_root), ("each other rank", count.elsewhere)]

    # In words

    def caption(self):
        count = self.counts[0]
        names = " and ".join(f"{c.name} = {c.value}" for c in self.counts)
        gets = ", ".join(f"{who} gets {number_of(side.recv_elements, 'element')} back" for who, side in self.sides)
        return (
            f"{count.function} on {number_of(count.nranks, 'rank')}: {self._input()} has "
            f"{number_of(self._settings['elements'], 'element')}, so {names}; {gets}."
        )

    def text(self):
        count, dtype = self.counts[0], self._settings["dtype"]
        rows = [("", "side", "elements", "bytes", "")]
        for who, side in self.sides:
            rows.append((who, "send", f"{side.send_elements:,}", f"{side.input_bytes(dtype):,}", "logical input"))
            rows.append(("", "receive", f"{side.recv_elements:,}", f"{side.output_bytes(dtype):,}", "logical output"))
        return "\n".join(
            [
                f"payload counter: {count.operation}, {count.library}'s {count.function}",
                f"  {number_of(count.nranks, 'rank')}, {self._of_type()}",
                f"  elements = {self._settings['elements']}, the length of {self._input()}",
                "",
                *(f"count argument: {c.name} = {c.value} ({c.side})" for c in self.counts),
                "",
                *_table(rows, "<<>><"),
                "",
                "the same call in each library:",
                *(f"  {line}" for line in _table(self._libraries(), "<<<")),
                *(f"  {line}" for line in self._rounding()),
                "",
                f"in place: {payload.CALLS[count.operation][count.library].in_place}",
                NOT,
            ]
        )

    def _input(self):
        only_root = _two(self.counts[0]).elsewhere.send_elements == 0
        return "the root's input vector" if only_root else "one rank's input vector"

    def _of_type(self):
        return f"{self._settings['dtype']}, {number_of(payload.itemsize(self._settings['dtype']), 'byte')} an element"

    def _libraries(self):
        """A row for each library: its name, its call, and its count arguments with these numbers."""
        rows = []
        for library in payload.LIBRARIES:
            other = self.counts[0].to(library)
            names = ", ".join(f"{name} = {other.value}" for name in payload.CALLS[other.operation][library].counts)
            if library == "nccl-tests":
                names += f", size = {other.size_column(self._settings['dtype'])} (bytes of the larger side)"
            rows.append((library, other.function, names))
        return rows

    def _rounding(self):
        """A line if nccl-tests prints another row when it is asked for this size, else none."""
        row = self.counts[0].to("nccl-tests")
        size = row.size_column(self._settings["dtype"])
        printed = payload.nccl_tests_count(row.operation, size, row.nranks, self._settings["dtype"])
        if printed.value == row.value:
            return []
        return [
            f"nccl-tests rounds a block down to a multiple of 16 bytes: asked for size {size}, it prints count "
            f"{printed.value}."
        ]

    # As a picture

    def _paint(self, drawing, static):
        count, now = self.counts[0], self._settings
        rounding = self._rounding()
        drawing.begin(232 + len(self.sides) * 2 * _PITCH + (len(self.sides) > 1) * 56 + len(rounding) * 22)
        room = self.WIDTH - 2 * _MARGIN
        title = f"{count.function}: {' and '.join(f'{c.name} = {c.value}' for c in self.counts)}"
        drawing.label(_MARGIN, 28, fitting([title], room, 14, "bold"), 14, "bold")
        given = f"elements = {now['elements']}, the length of {self._input()}"
        about = f"{number_of(count.nranks, 'rank')}    {self._of_type()}    {given}"
        drawing.label(_MARGIN, 52, fitting([about], room, 10), 10, colour=palette.QUIET)
        longest = max(max(side.send_elements, side.recv_elements) for _, side in self.sides) or 1
        two, y = _two(count), 74
        for (who, side), unit in zip(self.sides, (two.at_root, two.elsewhere), strict=False):
            if len(self.sides) > 1:
                drawing.label(_MARGIN, y + 10, who, 10, "bold")
                y += 28
            self._bar(drawing, y, "send", side.send_elements, unit.send_elements, longest)
            self._bar(drawing, y + _PITCH, "receive", side.recv_elements, unit.recv_elements, longest)
            y += 2 * _PITCH
        drawing.box(_MARGIN, y + 2, room, 1, face=palette.LINE)
        drawing.label(_MARGIN, y + 20, "the same call in each library", 9, colour=palette.QUIET)
        for row, (library, function, names) in enumerate(self._libraries()):
            weight = "bold" if library == now["library"] else "normal"
            for x, cell, width in ((0, library, 100), (_LEFT - _MARGIN, function, 210), (340, names, room - 340)):
                drawing.label(_MARGIN + x, y + 44 + 22 * row, fitting([cell], width, 10, weight), 10, weight)
        for line in rounding:
            drawing.label(_MARGIN, y + 110, fitting([line], room, 9), 9, colour=palette.QUIET)
            y += 22
        drawing.box(_MARGIN, y + 114, room, 28, edge=palette.LINE)
        drawing.label(_MARGIN + 10, y + 128, NOT, 10)

    def _bar(self, drawing, y, side, elements, unit, longest):
        """One buffer. `unit` is its length with a count of 1 on 2 ranks: 2 is one block for each rank."""
        size = elements * payload.itemsize(self._settings["dtype"])
        logical = {"send": "logical input", "receive": "logical output"}[side]
        middle = y + _TALL / 2
        drawing.label(_MARGIN, middle - 8, side, 10, "bold")
        drawing.label(_MARGIN, middle + 9, logical, 9, colour=palette.QUIET)
        room = self.WIDTH - _MARGIN - _RIGHT
        long = fitting([number_of(elements, "element"), f"{elements:,}"], room, 10, "bold")
        drawing.label(_RIGHT, middle - 8, long, 10, "bold")
        drawing.label(_RIGHT, middle + 9, fitting([number_of(size, "byte"), f"{size:,} B"], room, 9), 9)
        if not elements:
            why = "an empty buffer" if unit else "not used on this rank"
            drawing.box(_LEFT, y, width_of(why) + 20, _TALL, edge=palette.LINE, dash=":")
            drawing.label(_LEFT + 10, middle, why, colour=palette.QUIET)
            return
        scale = _LENGTH / longest
        blocks = self._settings["nranks"] if unit == 2 else 1
        self._blocks(drawing, y, side, elements, blocks, unit, scale)
        block = max(elements // blocks * scale, 1)
        named = [c for c in self.counts if side in _bars(c.side)]
        if named:
            low = y + _TALL + 5
            drawing.box(_LEFT, low, 1.5, 6, face=palette.INK)
            drawing.box(_LEFT, low + 6, block, 1.5, face=palette.INK)
            drawing.box(_LEFT + block - 1.5, low, 1.5, 6, face=palette.INK)
            text = " = ".join([*(c.name for c in named), str(named[0].value)])
            drawing.label(_LEFT, low + 17, text, 9, "bold")
            after = _LEFT + width_of(text, 9, "bold") + 10
            drawing.label(after, low + 17, fitting([named[0].side], self.WIDTH - _MARGIN - after), 9)

    def _blocks(self, drawing, y, side, elements, blocks, unit, scale):
        wide, middle = elements * scale / blocks, y + _TALL / 2
        if blocks > MOST_BLOCKS:
            said = f"{blocks:,} blocks of {number_of(elements // blocks, 'element')}, too many to draw one by one"
            drawing.box(_LEFT, y, wide * blocks, _TALL, face="#dddddd", edge=palette.INK)
            drawing.plate(_LEFT + wide * blocks / 2, middle, said)
            return
        for rank in range(blocks):
            x = _LEFT + rank * wide
            if unit == 2:
                way = {"send": "for", "receive": "from"}[side]
                texts = [f"{way} rank {rank}", f"rank {rank}", f"{rank}"]
                drawing.box(
                    x, y, wide, _TALL, palette.tint(rank), palette.colour(rank), 1.0, hatch=palette.hatch(rank)
                )
            else:
                texts = [{"send": "its input", "receive": "its result"}[side], side]
                drawing.box(x, y, wide, _TALL, "#dddddd", palette.LINE)
            drawing.box(x, y, wide, _TALL, edge=palette.INK, line=1.2, layer=3)
            text = next((text for text in texts if width_of(text) + 12 <= wide), "")
            if text:
                drawing.plate(x + wide / 2, middle - 3, text)
        if elements <= MOST_TICKS and scale >= 6:
            for at in range(1, elements):
                drawing.box(_LEFT + at * scale - 0.5, middle + _TALL / 2 - 8, 1, 8, face=palette.INK, layer=2)

    # As a widget

    def _controls(self, widgets):
        now = self._settings
        wide = {"layout": {"width": "230px"}, "style": {"description_width": "80px"}}
        controls = {
            "operation": widgets.Dropdown(
                options=payload.OPERATIONS, value=now["operation"], description="operation", **wide
            ),
            # not IntText, which would cut a fraction off before anybody could refuse it
            "nranks": widgets.FloatText(now["nranks"], description="ranks", step=1, **wide),
            "elements": widgets.FloatText(now["elements"], description="elements", step=1, **wide),
            "dtype": widgets.Dropdown(options=DTYPES, value=now["dtype"], description="dtype", **wide),
            "library": widgets.Dropdown(
                options=payload.LIBRARIES, value=now["library"], description="library", **wide
            ),
        }
        return controls, [widgets.HBox(list(controls.values()), layout={"flex_flow": "row wrap"})]

    def _show(self):
        super()._show()
        now = self._settings
        try:
            payload.count_of_input(now["library"], now["operation"], 1, 2)
            self._inputs["elements"].step = 1
        except ValueError:  # equal blocks: the arrows go from one length that can be cut to the next
            self._inputs["elements"].step = now["nranks"]


def _bars(side):
    """Which buffers a count describes, from payload's words for its side; MPI_Bcast's one buffer is both."""
    head = side.partition(":")[0]
    return [name for name in ("send", "receive") if name in head] or ["send", "receive"]


def _two(count):
    """The same call with a count of 1 on 2 ranks: its lengths tell the sides of the call apart."""
    return payload.Count(count.library, count.operation, count.name, 1, 2)


def _table(rows, sides):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    ]


def _whole(call, name, value, least):
    if not is_whole(value) or not least <= value < 2**63:
        said = f"is a whole number, {least} to 2**63 - 1, not {repr(value)}"
        raise NotAccepted(f"{call}: {name} {said}", f"The number of {name.removeprefix('n')} {said}.")
    return int(value)


def _dtype_name(call, dtype):
    try:
        name = dtype if dtype == "bfloat16" else np.dtype(dtype).name
    except TypeError:
        name = None
    if dtype is None or name not in DTYPES:
        raise TypeError(f"{call}: dtype={dtype!r}: dtype is one of {', '.join(DTYPES)}")
    return name

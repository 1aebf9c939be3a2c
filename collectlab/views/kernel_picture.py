"""The picture of a kernel's step: everything about a rank stands in its column."""

from collectlab.trace.events import BARRIER, LOAD, NOTIFY, STORE, WAIT
from collectlab.views import palette
from collectlab.views.drawing import fitting, number_of, width_of
from collectlab.views.states import LOADED, RETURNED, Row
from collectlab.views.words import begin, head, listed, names_of, span

BESIDE = 8  # ranks up to which signals and bytes stand beside the windows, not below them
MOST_SIGNALS = 6  # rows that are drawn; those around the row of the step
MOST_DIGITS = 4  # ranks up to which a mark has its rank's number in it
MOST_DRAWN = 28  # rows of windows; above, of what was loaded only the last is drawn

_M, _TOP, _LABEL, _SHORT_LABEL, _PANEL, _NARROW, _LANE = 14, 150, 92, 70, 300, 62, 34  # pixels
_PANEL_TOP, _BOX, _BOXES = 92, 72, 6
_NARROW_PICTURE = 800  # pixels; up to there the signals stand below the windows
TITLES = {LOADED: "loaded since its last store (added up)", RETURNED: "returned by the program"}


class KernelPicture:
    """What a `KernelPlayer` shows, as it is drawn."""

    def __init__(self, view, drawing):
        self.view, self.drawing = view, drawing
        self.states, self.nranks, self.groups, self.cards = view.states, view.nranks, view.groups, view.cards
        self.step, n, room = view.settings["step"], len(self.groups), drawing.width - 2 * _M
        self.wide = drawing.width > _NARROW_PICTURE
        self.signals = self._drawn_signals()
        self.blocks, count = self.states.blocks, sum(len(rows) for _, rows in self.states.blocks)
        if count > MOST_DRAWN and self.blocks[0][0] == LOADED:
            self.blocks = [(LOADED, [_LAST]), *self.blocks[1:]]
        self.signs = {}  # (window, row, rank) -> the middle, top and foot of its cell's sign, if it has one
        self.beside = self.nranks <= BESIDE and self.wide
        self.across = 2 if self.beside else _BOXES if self.wide else 3
        self.label, self.room = _LABEL if self.wide else _SHORT_LABEL, room - (_PANEL + 18) * self.beside
        self.column = w = (self.room - self.label) / n
        self.tall = 32 if count <= 14 and w >= 96 else 26 if count <= 18 else 22 if self.nranks <= BESIDE else 17
        self.bytes_tall = 20 if n <= 8 else 15
        self.small = 8 if w >= 96 else 7

    def height(self):
        """How many pixels `body` takes."""
        left = sum(24 + self.tall * len(rows) for _, rows in self.blocks)
        bytes_rows = len(self.groups) + 1 + bool(self.cards)
        panel = 38 + 24 * len(self.signals) + 26 + self.bytes_tall * bytes_rows
        if self.beside:
            return max(_TOP + left, _PANEL_TOP + panel + 14 + self._strip_height()) + 8
        return _TOP + left + panel + 26 + self._strip_height()

    def notes(self):
        """What has to be known of the picture, and of the race that this step completes: a list of sentences."""
        if self.step != self.states.race_step:
            return self.view.notes()
        race = self.states.first_race
        return [race.lines[-1], f"mend: {race.mend}", *self.view.notes()]

    def paint(self):
        """Draw all of it."""
        view, room, notes = self.view, self.drawing.width - 2 * _M, self.notes()
        if not view.last and not self.states.rows:
            self.drawing.begin(90 + 16 * len(view.report))
            self.drawing.label(_M, 24, fitting([view.title()], room, 14, "bold"), 14, "bold")
            for line, text in enumerate([view.nothing(), *view.report]):
                self.drawing.label(_M, 52 + 16 * line, fitting([text], room, 10), 10)
            return
        height = self.height()
        self.drawing.begin(height + 22 + 16 * len(notes) + 8)
        self.body()
        self.foot(height + 4, notes)

    def body(self):
        """Draw what there is but for the foot."""
        view, room, w = self.view, self.drawing.width - 2 * _M, self.column
        self.drawing.label(_M, 22, fitting([view.title()], room, 14, "bold"), 14, "bold")
        self.drawing.label(_M, 46, fitting(_ever_shorter(view.caption()), room, 10), 10)
        self.drawing.label(_M, 66, fitting(self._third_line(), room, 9), 9, colour=palette.QUIET)
        x, y = _M + self.label, 86
        self._heads(x, y, w)
        self.drawing.label(_M, y + 40, "this step", 9, "bold")
        did = view.did(self.step)
        for at, group in enumerate(self.groups):
            self._lane(group, did, x + at * w, y + 24, w - 4)
        tags, y = self._tags(did), _TOP
        for name, rows in self.blocks:
            title = TITLES.get(name, f'window "{name}"')
            self.drawing.label(_M, y + 12, fitting([title], self.room, 9, "bold"), 9, "bold")
            y += 24
            for row in rows:
                texts = [f"{row.label}  {row.start}:{row.stop}", row.label]
                texts = texts if row is not _LAST else [row.label, "last chunk", "last"]
                self.drawing.label(_M, y + self.tall / 2 - 2, fitting(texts, self.label - 6, 8), 8)
                for at, group in enumerate(self.groups):
                    self._cell(name, row, group, tags, x + at * w, y, w - 4, self.tall - 4)
                y += self.tall
        self._arrows(did)
        if self.beside:
            width = (_PANEL - _NARROW) / len(self.groups)
            x = self.drawing.width - _M - _PANEL
            y = self._panel(did, x, _PANEL_TOP, _NARROW, width)
            self._strip(x, y + 14, _PANEL)
        else:
            y = self._panel(did, _M, y, self.label, w)
            self._strip(_M, y + 8, room)

    def foot(self, y, notes):
        """The legend and the notes, from y on."""
        self._legend(y)
        room = self.drawing.width - 2 * _M
        for line, note in enumerate(notes):
            self.drawing.label(_M, y + 20 + 16 * line, fitting([note], room, 8), 8, colour=palette.QUIET)

    def _third_line(self):
        """The race that this step completes, or who waits for whom: texts from long to short."""
        if self.step == self.states.race_step:
            race, *accesses, _ = self.states.first_race.lines
            return [f"{race}: {' and '.join(' '.join(line.split()) for line in accesses)}", race]
        waiting = self.states.waiting(self.step)
        long = [f"{rank} waits for {listed([e.peer for e in waits])}" for rank, waits in waiting.items()]
        return ["; ".join(self.view.waits_said()) or "nobody waits", "; ".join(long), f"{len(long)} ranks wait"]

    def _heads(self, x, y, w):
        names = names_of(self.groups, (head, listed, begin), lambda name: width_of(name, 9, "bold") <= w - 4)
        for at, group in enumerate(self.groups):
            middle = x + at * w + (w - 4) / 2
            self.drawing.label(middle, y, names[at], 9, "bold", align="center")
            if len(group) == 1 and self.view.devices:
                device = fitting([self.view.devices[group[0]]], w - 4, self.small)
                self.drawing.label(middle, y + 14, device, self.small, colour=palette.QUIET, align="center")

    def _lane(self, group, did, x, y, w):
        """What the ranks of a column do in this step, in two lines."""
        acting = [did[rank] for rank in group if rank in did]
        waiting = self.states.waiting(self.step)
        edge, line, dash, face = palette.INK, 1.0, "-", palette.PAPER
        if len(group) > 1:
            held = [rank for rank in group if rank in waiting]
            first = [f"{len(acting)} of {len(group)} act", f"{len(acting)} act"] if acting else [""]
            verbs = ", ".join(dict.fromkeys(VERBS[events[0].kind][1] for events in acting))
            second = [f"{len(held)} wait"] if held else [verbs, verbs.partition(" ")[0]]
        elif acting:
            first, second = self._lane_words(acting[0])
            face = palette.tint(group[0], 0.2)
            if group[0] in waiting:
                peers = listed([e.peer for e in waiting[group[0]]])
                second = [f"then waits for {peers}", f"waits for {peers}", "waits"]
                edge, line, dash = _FRAMES["waits"]
        elif group[0] in waiting:
            waits = waiting[group[0]]
            first, second = ["waits"], [f"for {listed([e.peer for e in waits])}", f"row {waits[0].row}"]
            edge, line, dash = _FRAMES["waits"]
        elif self.states.over(group[0], self.step):
            end = self.view.ends.get(group[0], "is over") if self.step == self.view.last else "is over"
            raised, _, error = end.partition("raised ")
            first, second = ["raised" if error else raised], [error]
            edge, line, dash = (palette.WRONG, 2.0, "-") if error else (palette.LINE, 1.0, ":")
        else:
            first, second, edge, dash = ["–"], [""], palette.LINE, ":"
        self.drawing.box(x, y, w, _LANE - 2, face, edge, line, dash)
        self.drawing.label(x + w / 2, y + 10, fitting(first, w - 4, 8, "bold"), 8, "bold", align="center")
        self.drawing.label(x + w / 2, y + 23, fitting(second, w - 4, self.small), self.small, align="center")

    def _lane_words(self, events):
        e = events[0]
        size = [f"{e.nbytes:,} B", f"{e.nbytes / 1024:.3g} KiB", f"{e.nbytes / 2**20:.3g} MiB"]
        if e.kind in (LOAD, STORE):
            rows = self.states.touched(e.name, e.elements)
            chunk = [f"{rows[0].label}, {size[0]}"] if len(rows) == 1 and rows[0].label != "whole" else []
            arrow = {LOAD: "←", STORE: "→"}[e.kind]
            own = {LOAD: ["loads its own", "← own"], STORE: ["stores"]}[e.kind]
            words = own if e.peer == e.rank else [f"{arrow} rank {e.peer}", f"{arrow} {e.peer}"]
            return words, [f"{e.name.rpartition('.')[2]}, {text}" for text in chunk] + chunk + size
        if e.kind == NOTIFY:
            peers = listed([n.peer for n in events])
            return ["notifies"], [f"{peers} on row {e.row}", f"row {e.row}"]
        over = ["leaves barrier", "barrier"] if events[-1].kind == BARRIER else ["wait is over", "wait over", "over"]
        return over, [f"row {e.row}"]

    def _tags(self, did):
        """(window, start, stop, rank) of a cell -> who loads from it, stores to it, or what it comes from."""
        tags = {}
        for e in (e for events in did.values() for e in events if e.kind in (LOAD, STORE)):
            for row in self.states.touched(e.name, e.elements):
                key = e.name, row.start, row.stop, e.peer
                tags.setdefault(key, {}).setdefault(e.kind, []).append(e.rank)
                if e.kind == LOAD:
                    tags.setdefault((LOADED, row.start, row.stop, e.rank), {}).setdefault("from", []).append(e.peer)
        return tags

    def _arrows(self, did):
        """An arrow for each load from a peer, from where the elements lie to what has been loaded."""
        for e in (e for events in did.values() for e in events if e.kind == LOAD and e.peer != e.rank):
            for row in self.states.touched(e.name, e.elements):
                start, end = (e.name, row, e.peer), (LOADED, row, e.rank)
                if start in self.signs and end in self.signs:
                    (x, y, _), (to_x, _, to_y) = self.signs[start], self.signs[end]
                    for colour, line in ((palette.QUIET, 2.8), (palette.colour(e.rank), 1.6)):
                        self.drawing.arrow((x, y), (to_x, to_y), colour, line, layer=3)

    def _cell(self, name, row, group, tags, x, y, w, h):
        """One rank's part of a row: its frame, what it holds, and the sign of what happens to it in this step."""
        last = row if row is _LAST else None
        if last:
            kind, texts, shares, share = self.view.loaded_last(group)
        else:
            kind, texts, shares, share = self.view.cell_of(name, row, group)
        edge, line, dash = _FRAMES[kind]
        marks = 0 if self.nranks > BESIDE else 4 if h < 20 else 7 if h < 26 else 13
        face = palette.WRONG_PAPER if kind == "rubbish" else palette.PAPER
        self.drawing.box(x, y, w, h, face if marks or kind == "rubbish" else "none", edge, line, dash, layer=1)
        if shares and marks:
            self._marks(shares, x + 2, y + h - marks - 2, w - 4, marks)
            if line > 1:
                self.drawing.box(x, y, w, h, edge=edge, line=line, dash=dash, layer=3)
        elif share:  # the share of ranks that are in it
            self.drawing.box(x, y, w * share, h, palette.tint(0, 0.2), layer=0)
        middle, size = y + (h - marks) / 2 + 0.5, 7 if h < 26 else 8
        free, tall, wide = w - 6, min(h - marks - 2, 13), 0
        mine = [tags.get((name, row.start, row.stop, rank), {}) for rank in group if last is None]
        signs = {k: sorted({r for tag in mine for r in tag.get(k, ())}) for k in (LOAD, STORE, "from")}
        if last is None and self._races_in(name, row, group):
            self.drawing.box(x - 1, y - 1, w + 2, h + 2, edge=palette.WRONG, line=3.0, dash="--", layer=5)
            wide = self._tag("race", x + w - 1, y + 1, tall, palette.PAPER, palette.WRONG)
        elif any(signs.values()):
            wide = self._sign(signs, group, x + w - 1, y + 1, w, tall)
        if wide:
            free -= wide + 2
            if self.nranks <= BESIDE:
                self.signs[name, row, group[0]] = x + w - 1 - wide / 2, y + 1, y + 1 + tall
        named = [f"{row.label} · {texts[0]}"] * (h >= 26 and row.label != "whole" and bool(texts[0]) and last is None)
        ink = palette.WRONG if kind == "rubbish" else palette.INK
        weight = "bold" if kind == "whole" else "normal"
        self.drawing.label(x + 4, middle, fitting([*named, *texts], free, size, weight), size, weight, ink)

    def _races_in(self, name, row, group):
        """Whether this step completes the first race there."""
        race = self.states.first_race if self.step == self.states.race_step else None
        here = race and race.window == name and race.owner in group
        return here and row in self.states.touched(name, race.elements)

    def _sign(self, signs, group, right, y, w, h):
        """The sign of this step in a cell's upper right corner; returns how wide it is."""
        narrow = w < 60
        if signs[LOAD]:
            who = "all" if len(signs[LOAD]) == self.nranks > 1 else listed(signs[LOAD])
            texts, dark = [f"→ {who}", f"→{who}", f"→{len(signs[LOAD])}×", "→"][narrow:], True
        elif signs["from"]:
            who = listed(signs["from"])
            texts, dark = [f"← {who}", f"←{who}", "←"][narrow:], True
        else:
            own = signs[STORE] == [*group]
            who = listed(signs[STORE])
            texts, dark = (["stored", "new", "*"] if own else [f"← {who}", f"←{who}"]), not own
        text = fitting(texts, w * 0.55, 7, "bold")
        ink, paper = (palette.PAPER, palette.INK) if dark else (palette.INK, palette.PAPER)
        return self._tag(text, right, y, h, ink, paper)

    def _tag(self, text, right, y, h, ink, paper):
        """A word in a box that ends at `right`; returns how wide it is."""
        wide = width_of(text, 7, "bold") + 6
        edge = palette.INK if ink == palette.INK else paper
        self.drawing.box(right - wide, y, wide, h, paper, edge, 1.0, layer=4)
        self.drawing.label(right - wide / 2, y + h / 2, text, 7, "bold", ink, "center")
        return wide

    def _marks(self, shares, x, y, w, h):
        """A place for each rank, filled where it has a share."""
        each = w / self.nranks
        for rank, share in enumerate(shares):
            if share <= 0:
                continue
            gap = 1 if each >= 5 else 0
            at = x + rank * each
            self.drawing.box(at, y, each - gap, h, palette.tint(rank, 0.6), layer=2)
            if each >= 6 and h >= 7:  # in smaller ones a hatch is not seen; the place tells the rank
                edge, hatch = palette.colour(rank), palette.hatch(rank)
                self.drawing.box(at, y, each - gap, h, edge=edge, line=0.7, hatch=hatch, layer=2)
                if h >= 12 and self.nranks <= MOST_DIGITS:
                    self.drawing.box(at + each / 2 - 6, y + 1, 12, h - 2, palette.PAPER, layer=4)
                    self.drawing.label(at + each / 2, y + h / 2, f"{rank}", 7, "bold", align="center")

    def _drawn_signals(self):
        """The signal rows that are drawn: those around the row of the step."""
        rows = self.states.rows
        if len(rows) <= MOST_SIGNALS:
            return rows
        now = [(e.name, e.row) for events in self.view.did(self.step).values() for e in events if e.row >= 0]
        now += [(waits[0].name, waits[0].row) for waits in self.states.waiting(self.step).values()]
        if not now:
            steps = range(max(1, self.step - 8), self.step)
            before = [e for step in steps for events in self.view.did(step).values() for e in events]
            now = [(e.name, e.row) for e in before if e.row >= 0][-1:]
        middle = min(map(rows.index, now), default=0)
        first = max(0, min(middle - MOST_SIGNALS // 2, len(rows) - MOST_SIGNALS))
        return rows[first : first + MOST_SIGNALS]

    def _panel(self, did, x, y, label, w):
        """Signal rows and bytes, with a column for each column of the windows; returns where it ends."""
        columns, n, wide = x + label, len(self.groups), label + w * len(self.groups)
        few, every, tall = len(self.signals), len(self.states.rows), self.bytes_tall
        part = f", {few} of {every} rows" * (few < every)
        texts = [f"notifications, of those awaited{part}", f"notifications{part}"]
        self.drawing.label(x, y + 10, fitting(texts, wide, 9, "bold"), 9, "bold")
        names = names_of(self.groups, (listed, begin), lambda name: width_of(name, 8, "bold") <= w - 3)
        for at, name in enumerate(names):
            self.drawing.label(columns + at * w + (w - 3) / 2, y + 27, name, 8, "bold", align="center")
        y += 38
        names = {name for name, _ in self.states.rows}
        for name, row in self.signals:
            said = f"{name.rpartition('.')[2]} row {row}" if len(names) > 1 else f"row {row}"
            self.drawing.label(x, y + 10, fitting([said, f"row {row}"], label - 4, 8), 8)
            for at, group in enumerate(self.groups):
                self._signal_cell(name, row, group, columns + at * w, y, w - 3, 20)
            y += 24
        self.drawing.label(x, y + 12, "bytes moved, from row to column", 9, "bold")
        y += 26
        now, before = self.view.by_groups(self.states.moved(self.step, of_this_step=True)).tolist(), []
        for line, (name, *numbers) in enumerate(self.view.bytes(int)):
            sums = line >= n
            name = name.replace("from ", "") if label <= _SHORT_LABEL else name.replace("ranks ", "")
            names = [name, name.removeprefix("ranks ")]
            self.drawing.label(x, y + tall / 2, fitting(names, label - 4, 8), 8, "bold" if sums else "normal")
            for at, number in enumerate(numbers):
                own = not sums and line == at and len(self.groups[at]) == 1
                fresh = self.step > 0 and not sums and now[at][line] > 0
                over = name == "card" and numbers[at] < before[at]
                hatch = "////" if own and not number else ""
                if not sums:
                    face = palette.tint(0, (number > 0 and not own) * 0.25)
                    self.drawing.box(columns + at * w, y, w, tall, face, palette.LINE, 0.6, hatch=hatch)
                if fresh:
                    inside = columns + at * w + 1, y + 1, w - 2, tall - 2
                    self.drawing.box(*inside, edge=palette.INK, line=2.2, layer=3)
                texts = [f"({text})" for text in _shorter(number)] if own else _shorter(number)
                text = "" if hatch else fitting(texts, w - 4, self.small)
                ink = palette.WRONG if over else palette.INK if number else palette.QUIET
                middle = columns + at * w + w / 2
                weight = "bold" if fresh or over else "normal"
                self.drawing.label(middle, y + tall / 2, text, self.small, weight, ink, "center")
            before = numbers
            y += tall
        return y

    def _signal_cell(self, name, row, group, x, y, w, h):
        arrived, awaited, marks, frame = self.view.signal_of(name, row, group)
        edge, line, dash = _FRAMES[frame]
        self.drawing.box(x, y, w, h, palette.PAPER, edge, line, dash)
        if marks:
            self._marks(marks, x + 2, y + h - 7, w - 4, 5)
        if awaited or any(marks or ()):
            texts = [f"{arrived} of {awaited}", f"{arrived}/{awaited}"] if awaited else [f"{sum(marks)}"]
            self.drawing.label(x + w / 2, y + 7, fitting(texts, w - 4, self.small), self.small, align="center")

    def _strip_height(self):
        return _BOX * -(-_BOXES // self.across)

    def _strip(self, x, y, room):
        """What a rank has done beside its card, the races, and how the run stands."""
        boxes = []
        for title, mine, said, over in self.view.figures():
            boxes.append((title, [span(mine)], f"card: {span(said)}" if said else "no card", over))
        races = self.states.races
        found = "not looked for" if races is None else f"{len(races)}" if races else "none"
        proved = "in every order" if races == [] and self.view.status == "done" else ""
        where = f"first ends at step {self.states.race_step}" if races else proved
        boxes.append(("races", [found], where, bool(races)))
        waiting, over = len(self.states.waiting(self.step)), self.step == self.view.last
        said, bad = [self.view.status or "a trace"] if over else ["goes on"], over and self.view.status == "failed"
        boxes.append(("the run", said, f"{number_of(waiting, 'rank')} waiting", bad))
        wide, left, top = (room + 8) / self.across, x, y
        for at, (title, value, more, bad) in enumerate(boxes):
            x, y = left + at % self.across * wide, top + at // self.across * _BOX
            ink = palette.WRONG if bad else palette.INK
            edge, line, dash = (palette.WRONG, 2, "--") if bad else (palette.LINE, 1, "-")
            self.drawing.box(x, y, wide - 8, _BOX - 8, edge=edge, line=line, dash=dash)
            self.drawing.label(x + 8, y + 13, fitting([title], wide - 22, 8), 8, colour=palette.QUIET)
            self.drawing.label(x + 8, y + 33, fitting(value, wide - 22, 10, "bold"), 10, "bold", ink)
            self.drawing.label(x + 8, y + 52, fitting([more], wide - 22, 8), 8, colour=palette.QUIET)

    def _legend(self, y):
        words = _ACCESSES if self.states.unknown else _WORDS
        x = _M + 1
        for frame, word in words.items():
            edge, line, dash = _FRAMES[frame]
            self.drawing.box(x, y - 6, 18, 11, edge=edge, line=line, dash=dash)
            self.drawing.label(x + 24, y, word, 8, colour=palette.QUIET)
            x += 38 + width_of(word, 8)
        by_arrows = ", by an arrow" * (self.nranks <= BESIDE)
        self.drawing.label(x, y, f"→ read by   ← comes from{by_arrows}", 8, colour=palette.QUIET)


_LAST = Row(0, 0, "the last chunk")

# kind of cell: edge, line width, dash
_FRAMES = {
    "empty": (palette.LINE, 0.8, ":"),
    "none": (palette.LINE, 0.8, ":"),
    "own": (palette.INK, 1.0, "-"),
    "written": (palette.INK, 1.0, "-"),
    "arrived": (palette.INK, 1.0, "-"),
    "partial": (palette.INK, 1.4, "--"),
    "again": (palette.INK, 1.4, "--"),
    "mixed": (palette.INK, 1.4, "-."),
    "whole": (palette.INK, 2.6, "-"),
    "passed": (palette.INK, 2.6, "-"),
    "waits": (palette.WRONG, 2.0, "--"),
    "rubbish": (palette.WRONG, 2.0, "--"),
}
_WORDS = {
    "own": "one rank's",
    "partial": "partial sum",
    "whole": "finished: every rank's, or wait is over",
    "mixed": "elements differ",
    "waits": "waits here",
}
_ACCESSES = {"written": "stored", "waits": "waits here", "passed": "wait is over"}
VERBS = {
    STORE: ("stores", "store"),
    LOAD: ("loads", "load"),
    NOTIFY: ("notifies", "notify"),
    WAIT: ("passes its wait", "pass their waits"),
    BARRIER: ("leaves the barrier", "leave the barrier"),
}


def _ever_shorter(text):
    """The text, and the text without its last sentence, and so on."""
    sentences = text.split(". ")
    return [". ".join(sentences[:n]) + "." * (n < len(sentences)) for n in range(len(sentences), 0, -1)]


def _shorter(number):
    units = (("K", 2**10), ("M", 2**20), ("G", 2**30))
    return [f"{number:,}", *(f"{number / size:.3g}{unit}" for unit, size in units)]

"""Two kernel players beside each other: one kernel and another, or a broken one and the mended one."""

from collectlab.views.drawing import Pane, number_of
from collectlab.views.kernel_picture import KernelPicture
from collectlab.views.kernel_player import KernelPlayer
from collectlab.views.view import SteppedView
from collectlab.views.words import groups

MOST_RANKS = 8  # of each, that have a column of their own
BY = ("step", "barrier")
NOT = "Steps are no time: that one kernel takes fewer of them does not say that it is done earlier."
_GAP = 12  # pixels


def side_by_side(one, two, *, by="step", step=0):
    """Two kernel players that are stepped together: a `SideBySide`.

        views.side_by_side(views.kernel_player(mesh_run), views.kernel_player(two_phase_run))
        views.side_by_side(views.kernel_player(broken).set(witness=True), views.kernel_player(mended))

    one, two  two players, as `kernel_player` returns them; they are not changed by it
    by        "step": both make one step at a time; "barrier": both go on until they have passed their next barrier
    step      the state that is shown first. A player that has come to its end stays there

    TypeError or ValueError name the argument that is not accepted.
    """
    return SideBySide(one, two, by, step)


class SideBySide(SteppedView):
    """The view that `side_by_side` returns. Settings: step and by.

    players  the two players, each at its own state
    """

    LINES = 2

    def __init__(self, one, two, by, step):
        for name, player in (("one", one), ("two", two)):
            if not isinstance(player, KernelPlayer):
                raise TypeError(f"side_by_side(one, two): {name} is what kernel_player returns, not {player!r}")
        self.players = one.alike(), two.alike()
        for player in self.players:
            player.groups = groups(player.nranks, MOST_RANKS)
        super().__init__(by=by, step=step)

    def _stops(self, by):
        """For each player, at which of its states it is in each state of this view."""
        if by == "step":
            return [range(player.last + 1) for player in self.players]
        return [sorted({0, *player.stops, player.last}) for player in self.players]

    @property
    def last(self):
        return max(map(len, self._stops(self._settings["by"]))) - 1

    def _check(self, settings):
        if settings["by"] not in BY:
            raise ValueError(f"side_by_side: by is one of {', '.join(BY)}, not {settings['by']!r}")
        found = self._stops(settings["by"])
        settings = self._checked_step("side_by_side", settings, max(map(len, found)) - 1)
        for player, stops in zip(self.players, found, strict=True):
            player.set(step=stops[min(settings["step"], len(stops) - 1)])
        return settings

    def set(self, **settings):
        """Change settings, as the controls do; going on by something else begins anew. Returns the view."""
        if settings.get("by", self._settings["by"]) != self._settings["by"]:
            settings = {"step": 0} | settings
        return super().set(**settings)

    def __getstate__(self):
        return super().__getstate__() | {"players": tuple(player.alike() for player in self.players)}

    def first_race(self):
        """Go to the step that completes the first race of either; ValueError where neither has one that is known."""
        races = [player.states.race_step for player in self.players]
        if not any(races):
            raise ValueError("side_by_side.first_race(): neither run has a race that is known")
        return self.set(by="step", step=min(filter(None, races)))

    def _controls(self, widgets):
        inputs, rows = self._step_controls(widgets)
        by = widgets.Dropdown(
            options=BY, value=self._settings["by"], description="go on by", layout={"width": "180px"}
        )
        race = self._button(widgets, "First race", lambda _: self.first_race(), "the step that completes a race")
        race.disabled = not any(player.states.race_step for player in self.players)
        rows[0].children += (by, race)
        return inputs | {"by": by}, rows

    # What it says

    def _titled(self):
        """What each run is called, and its player; where both are called alike, by its side."""
        titles = [player.title() for player in self.players]
        sides = ("left, ", "right, ") if len({*titles}) == 1 else ("", "")
        return [(side + title, player) for side, title, player in zip(sides, titles, self.players, strict=True)]

    def caption(self):
        return "  ".join(f"{title}: {player.caption()}" for title, player in self._titled())

    def text(self):
        one, two = (title + player.text().removeprefix(player.title()) for title, player in self._titled())
        rule = "-" * 40
        return f"{one}\n{rule}\n{two}\n{rule}\n{self.comparison()}\n{NOT}"

    def comparison(self):
        """What the two have done in all by now, in a sentence: str."""
        return f"{'; '.join(self._compared())}."

    def _compared(self):
        for title, player in self._titled():
            cards = player.states.measured(player.settings["step"])
            moved, waits = sum(card.nbytes for card in cards), max(card.steps for card in cards)
            steps = f"{player.settings['step']} of {player.last} steps"
            yield f"{title}: {steps}, {moved:,} bytes moved in all, {number_of(waits, 'wait')} a rank"

    # As a picture

    def _paint(self, drawing, static):
        wide = (drawing.width - _GAP) / 2
        panes = [Pane(drawing, at * (wide + _GAP), wide) for at in range(2)]
        pictures = [KernelPicture(player, pane) for player, pane in zip(self.players, panes, strict=True)]
        notes = [*dict.fromkeys(note for picture in pictures for note in picture.notes())]
        notes += [*(f"{told}." for told in self._compared()), NOT]
        height = max(picture.height() for picture in pictures)
        drawing.begin(height + 30 + 16 * len(notes))
        for picture in pictures:
            picture.body()
        drawing.box(wide + _GAP / 2, 14, 1, height - 20, face="#c4c4c4")
        KernelPicture(self.players[0], drawing).foot(height + 6, notes)

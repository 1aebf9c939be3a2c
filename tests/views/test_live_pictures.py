"""The static pictures of the live view and the launch panel: every label apart and inside, at every size."""

import math

import pytest

from collectlab.launcher.glance import Glance, RankGlance
from collectlab.launcher.run import Run
from collectlab.views import launch_panel
from collectlab.views.live import LiveView, table

LONG = "x" * 150
SEEN = {
    "1 rank": [RankGlance("running", "running", 0, 3, 10, ("step 3",))],
    "16 ranks": [RankGlance("running", "running", 0, r, 16, (f"step {r}", LONG)) for r in range(16)],
    "17 ranks": [RankGlance("running", "running", 0, r, 17, (LONG,)) for r in range(17)],
    "64 that differ": [RankGlance("waiting", f"waiting in recv with rank {r}", r, 1, 2, (LONG,)) for r in range(64)],
    "a failed one": [
        RankGlance("failed", f"raised ValueError: {LONG}", 0, 1e9, 2e9),
        RankGlance("stopped", "stopped in Reduce_scatter_block"),
    ],
    "odd progress": [RankGlance("running", "running", 0, *told) for told in ((1, 0), (math.nan, 1), (9, 1), (1, -1))],
    "nothing said": [RankGlance("starting", "starting")] * 3,
}


class Seen(Run):
    """A run of which a glance is given."""

    def __init__(self, ranks):
        self.spec = {"program": "<b>work</b> $x$", "nranks": len(ranks)}
        self.ranks = tuple(ranks)

    def glance(self):
        return Glance(self.spec["program"], "running", 9, self.ranks)


@pytest.mark.parametrize("ranks", SEEN.values(), ids=SEEN)
def test_every_label_is_apart_and_inside(ranks, misplaced):
    view = LiveView(Seen(ranks))
    figure = view.figure()
    figure.canvas.draw()
    assert misplaced(figure) == []
    assert view.png().startswith(b"\x89PNG") and len(view.text().splitlines()) <= 18
    assert len(table(view.run.glance())) < 10_000


def test_the_panel_too(misplaced):
    panel = launch_panel(print)
    panel.run = Seen(SEEN["16 ranks"])
    figure = panel.figure()
    figure.canvas.draw()
    assert misplaced(figure) == []

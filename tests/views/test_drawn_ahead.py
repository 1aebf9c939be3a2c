"""Once somebody steps a view, the next picture is there before it is asked for: it is only shown."""

import asyncio
import html

import pytest

from collectlab.bench import views as bench
from collectlab.views import view as module

STEPPED = [name for name in bench.VIEWS if name not in bench._OTHER]
EVERY_STEPPED_VIEW = pytest.mark.parametrize("name", STEPPED)


class Used:
    """A view with a widget, used as in a notebook. `drawn` are the steps whose pictures were drawn."""

    def __init__(self, name, nranks):
        self.view, self.drawn = bench.make(name, nranks), []
        self.view.widget()

    def press(self, name):
        """Press a button; returns the steps that were drawn before it had done its work."""
        (button,) = (button for button, _ in self.view._buttons if button.description == name)
        before = len(self.drawn)
        button.click()
        return self.drawn[before:]

    def pressed(self, *names):
        """Press buttons, and let the kernel rest after each; returns the steps that were drawn in the presses."""

        async def press():
            waited_for = []
            for name in names:
                waited_for += self.press(name)
                await rest()
            return waited_for

        return asyncio.run(press())

    def agrees(self):
        """Whether picture and caption are those of the same view that was never drawn ahead."""
        view, fresh = self.view, self.view.alike()
        fresh.widget()
        same = view._image.value == fresh._image.value
        fresh.close()
        said = fresh.caption()
        return same and view._image.tooltip == said and said in html.unescape(view._caption.value)


async def rest():
    """Let the event loop do what is due, and what is due then."""
    for _ in range(len(module.AHEAD) + 1):
        await asyncio.sleep(1e-9)


@pytest.fixture
def used(monkeypatch):
    monkeypatch.setattr(module, "AHEAD", (0, 0))
    made = []

    def use(name, nranks=4):
        it = Used(name, nranks)
        made.append(it)
        paint = type(it.view)._paint

        def noted(view, drawing, static):
            it.drawn.append(view.settings["step"])
            paint(view, drawing, static)

        monkeypatch.setattr(type(it.view), "_paint", noted)
        return it

    yield use
    for it in made:
        it.view.close()


@EVERY_STEPPED_VIEW
def test_a_step_shows_what_was_drawn_ahead_and_words_and_picture_agree(used, name):
    it = used(name)
    assert it.pressed("Step") == [1]  # nobody had stepped before
    for button in ("Step", "Back", "Back", "Step"):
        if button == "Step" and it.view.settings["step"] == it.view.last:
            button = "Reset"
        before = it.view.caption()
        assert it.pressed(button) == []
        assert it.view.caption() != before
        it.drawn.clear()
        assert it.agrees() and it.drawn == [it.view.settings["step"]]


def test_the_way_one_goes_is_the_way_that_is_drawn(used):
    it = used("kernel player")
    it.pressed("Step")
    assert it.drawn == [1, 2, 3]
    it.view.set(step=9)
    it.drawn.clear()
    it.pressed("Back", "Back")
    assert it.drawn == [8, 7, 6, 5]
    it.drawn.clear()
    it.pressed("Reset")
    assert it.drawn == [0, 1, 2]


def test_both_steps_of_a_double_click_are_there(used):
    it = used("kernel player")
    it.pressed("Step")

    async def double_click():
        return it.press("Step") + it.press("Step")

    assert asyncio.run(double_click()) == []
    assert it.view.settings["step"] == 3 and it.agrees()


def test_at_the_last_state_the_first_is_drawn(used):
    it = used("kernel player")
    last = it.view.last
    for step in range(last):
        it.view.set(step=step)
    it.drawn.clear()
    assert it.pressed("Step", "Reset") == [last]
    assert it.drawn == [last, 0, 1, 2]
    assert it.agrees()


def test_a_number_that_is_written_is_gone_on_from(used):
    it = used("traffic")

    async def write():
        it.view._inputs["step"].value = 1
        await rest()

    asyncio.run(write())
    assert it.drawn == [1, 2]


def test_play_shows_what_was_drawn_ahead(used):
    it = used("ownership")
    it.view.pace, shown = 0, []

    async def play():
        it.view._caption.observe(lambda change: shown.append(it.agrees()), "value")
        it.view._play.value = True
        await it.view._task
        await rest()

    asyncio.run(play())
    assert shown == [True] * it.view.last


def test_nothing_is_drawn_ahead_where_nobody_steps(used):
    it = used("kernel player")

    async def as_a_cell_does():
        it.view.step().step()
        it.view.set(step=5)
        await rest()

    asyncio.run(as_a_cell_does())
    assert it.drawn == [1, 2, 5]
    it.press("Step")  # no event loop runs
    assert it.drawn == [1, 2, 5, 6] and it.view._ahead is None


def test_nothing_is_drawn_ahead_for_a_view_that_was_changed_or_closed(used):
    it = used("kernel player")

    async def change():
        it.press("Step")
        it.view.set(step=7)
        await rest()
        it.press("Step")
        it.view.close()
        await rest()

    asyncio.run(change())
    assert it.drawn == [1, 7, 8] and it.view._ahead is None and it.view._finished == {}
    it.view.widget()
    assert it.drawn == [1, 7, 8, 8]


def test_presses_that_come_too_early_draw_each_picture_once(used):
    it = used("kernel player")

    async def thrice():
        for _ in range(3):
            it.press("Step")
        await rest()

    asyncio.run(thrice())
    assert it.drawn == [1, 2, 3, 4, 5]


@EVERY_STEPPED_VIEW
def test_few_pictures_are_kept_and_none_of_another_view(used, name):
    it = used(name)
    for _ in range(3):
        it.pressed("Step", "Step", "Back", "Reset")
        assert 1 < len(it.view._finished) <= module.KEPT
    assert it.view.alike()._finished == {}


def test_what_is_drawn_ahead_leaves_the_view_as_it_is(used):
    it = used("side by side")
    states = [player.settings["step"] for player in it.view.players]

    async def step():
        it.press("Step")
        said = it.view.text()
        await rest()
        assert it.drawn == [1, 2, 3] and it.view.text() == said

    asyncio.run(step())
    assert [player.settings["step"] for player in it.view.players] == [step + 1 for step in states]

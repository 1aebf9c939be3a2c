"""What every view has: forms for a notebook, a page without widgets and a terminal, and nothing that leaks."""

import asyncio
import base64
import copy
import html
import io
import pickle
import re
import subprocess
import sys
import threading
import xml.dom.minidom

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from collectlab import kernels, simulate, views
from collectlab.bench import views as bench
from collectlab.layout import Partition, RankMap
from collectlab.views import palette
from collectlab.views.drawing import Drawing, fitting, width_of
from collectlab.views.view import CHANGING

WIDGET = "application/vnd.jupyter.widget-view+json"
MARKUP = "<script>alert(1)</script> & $x^2$"


def ownership(name="gpu"):
    return views.ownership("all_reduce", [np.arange(4)] * 2, rank_map=RankMap([name, "B"]))


def test_a_notebook_gets_text_picture_and_widget():
    view = ownership()
    data, metadata = view._repr_mimebundle_()
    assert set(data) == {"text/plain", "image/png", WIDGET}
    assert data["text/plain"] == view.text()
    assert base64.b64decode(data["image/png"]) == view.png() and view.png().startswith(b"\x89PNG")
    assert data[WIDGET]["model_id"] == view.widget().model_id
    assert metadata["image/png"]["alt"] == view.caption()
    view.close()


@pytest.mark.parametrize("name", bench.VIEWS)
def test_what_a_notebook_keeps_is_the_static_picture_also_where_the_widget_has_drawn_it(name):
    view = bench.make(name, 3)
    for step in (0, 1):
        if "step" in view.settings:
            view.set(step=step)
        data, _ = view._repr_mimebundle_()
        assert base64.b64decode(data["image/png"]) == view.png()
    view.close()


def _last_line(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip().split("\n")[-1]


USE = (
    "import sys, numpy as np, collectlab as cl; "
    "view = cl.views.ownership('all_reduce', [np.arange(4)] * 2); view.text(); view.png(); view.figure(); "
)


def test_text_and_picture_need_neither_pyplot_nor_ipywidgets():
    heavy = "('matplotlib.pyplot', 'ipywidgets', 'mpi4py', 'cupy')"
    assert _last_line(USE + f"print([m for m in {heavy} if m in sys.modules])") == "[]"


def test_without_ipywidgets_the_picture_is_shown():
    code = "sys.modules['ipywidgets'] = None; print(sorted(view._repr_mimebundle_()))"
    assert _last_line(USE + code) == "['image/png', 'text/plain']"


def test_pyplot_does_not_know_the_figures():
    code = "view.widget(); import matplotlib.pyplot as plt; print(plt.get_fignums())"
    assert _last_line(USE + code) == "[]"


@pytest.mark.parametrize(
    "view",
    [ownership(MARKUP), views.rank_map(RankMap([MARKUP, "B"]), Partition.equal(4, 2))],
    ids=["ownership", "rank_map"],
)
def test_labels_are_text_and_no_markup(view):
    view.widget()
    view._words_button.value = True
    for control in (view._caption, view._in_words):
        assert "<script" not in control.value
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; $x^2$" in view._in_words.value
    labels = [t for t in view.figure().findobj(Text) if "$" in t.get_text() or "<" in t.get_text()]
    assert labels and not any(label.get_parse_math() for label in labels)
    view.close()


def test_a_setting_that_the_view_lacks_is_named():
    with pytest.raises(ValueError, match="no 'speed'; it has step"):
        ownership().set(speed=3)


def test_close_takes_widgets_and_observers_away():
    from ipywidgets.widgets.widget import _instances as alive

    before = len(alive)
    view = ownership()
    (slider,) = (view.widget(), view._inputs["step"])[1:]
    assert len(alive) > before
    view.close()
    assert len(alive) == before
    slider.value = 0  # nobody listens
    assert view.settings == {"step": 1}
    view.close()
    assert view.widget() is not None  # it may be shown again
    view.close()


# Drawing


def ink(picture):
    """Where a picture is dark: left, upper, right and lower edge."""
    dark = np.argwhere(picture[..., 0] < 160)
    (y0, x0), (y1, x1) = dark.min(axis=0), dark.max(axis=0) + 1
    return np.array([x0, y0, x1, y1])


# letters that stand on the line and below it, those that are moved together, and a script whose letters hang together
@pytest.mark.parametrize("text", ["rank 12", "(page) {y}", "AVATAR To", "→ 3 · ≥2 µs", "שלום 3", "x" * 30, "fi"])
@pytest.mark.parametrize(("size", "weight"), [(7, "normal"), (14, "bold")])
def test_a_label_is_the_same_in_the_picture_and_in_the_figure(text, size, weight):
    drawing = Drawing(900)
    for align, begins in (("left", 0), ("center", 0.5), ("right", 1)):
        drawing.begin(60)
        drawing.label(450, 30, text, size, weight, align=align)
        figure = drawing.finish()
        figure.canvas.draw()
        here = ink(np.asarray(Image.open(io.BytesIO(drawing.png())).convert("RGB")))
        there = ink(np.asarray(figure.canvas.buffer_rgba()))
        assert abs(here - there).max() <= 2
        left, wide = 450 - begins * width_of(text, size, weight), width_of(text, size, weight)
        for free in (here[0] - left, left + wide - here[2]):  # beside the first and the last letter
            assert -1 <= free <= size / 4


def test_a_circle_in_a_hatch_is_where_it_was():
    for hatch in palette._HATCHES[1:]:
        drawing = Drawing(200)
        drawing.begin(100)
        drawing.box(10, 10, 180, 80, edge=palette.INK, hatch=hatch)
        figure = drawing.finish()
        figure.canvas.draw()
        exact = np.asarray(figure.canvas.buffer_rgba())[..., 0].astype(float)
        ours = np.asarray(drawing._pixels())[..., 0]
        assert np.corrcoef(exact.ravel(), ours.ravel())[0, 1] > 0.98, hatch


def test_nothing_of_the_last_picture_stays():
    drawing, fresh = Drawing(200), Drawing(200)
    drawing.begin(60)
    drawing.box(10, 10, 50, 30, "#ff0000", hatch="//")
    drawing.label(100, 30, "old")
    drawing.png()
    for one in (drawing, fresh):
        one.begin(40)
        one.box(5, 5, 20, 20, "#00ff00")
        one.label(60, 20, "new")
    assert drawing.png() == fresh.png()


def test_what_was_drawn_before_does_not_decide_what_lies_on_top():
    again, fresh = Drawing(200), Drawing(200)
    again.begin(60)
    again.box(10, 10, 50, 30, "#00ff00")  # this one came first
    again.box(30, 20, 50, 30, "#ff0000")
    again.png()
    for one in (again, fresh):
        one.begin(60)
        one.box(30, 20, 50, 30, "#ff0000")
        one.box(10, 10, 50, 30, "#00ff00")
        one.arrow((5, 5), (190, 50), line=2)
    assert again.png() == fresh.png()
    figure = fresh.finish()
    figure.canvas.draw()
    assert tuple(np.asarray(figure.canvas.buffer_rgba())[25, 35, :3]) == (0, 255, 0)


def test_pictures_stand_on_paper_of_their_own_and_widgets_take_the_colours_of_the_page(markup):
    """So both can be read in a light and in a dark JupyterLab."""
    view = ownership()
    picture = Image.open(io.BytesIO(view.png())).convert("RGBA")
    assert min(picture.getpixel((0, 0))) > 250  # white, but for the rounding of 256 colours
    assert picture.getextrema()[3] == (255, 255)
    assert view.figure().get_facecolor() == (1, 1, 1, 1)
    widget = view.widget()
    view._words_button.value = True
    view._inputs["step"].value = 0
    assert not re.search(r"color|background|#[0-9a-f]{3}", markup(widget))
    view.close()


def test_fitting_takes_the_longest_that_fits_and_cuts_the_last():
    long, short = "result · chunk 3", "chunk 3"
    assert fitting([long, short], width_of(long)) == long
    assert fitting([long, short], width_of(long) - 1) == short
    cut = fitting([long, short], width_of(short) - 1)
    assert cut.endswith("…") and short.startswith(cut[:-1]) and width_of(cut) <= width_of(short) - 1
    assert fitting([long], 0) == ""


def test_the_figure_can_be_saved_for_a_paper(tmp_path):
    figure = ownership("$x$").figure()
    for kind, magic in (("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89PNG")):
        figure.savefig(tmp_path / f"view.{kind}", dpi=200)
        assert (tmp_path / f"view.{kind}").read_bytes().startswith(magic)


# Controls


def test_the_picture_is_named_by_its_caption():
    view = views.payload_counter()
    view.widget()
    for nranks in (2, 4):
        view.set(nranks=nranks)
        assert view._image.tooltip == view.caption()
        assert view._image.get_state()["description"] == ""  # without it, the front end raises
    view.close()


CSS = 0.72  # points in a pixel of the page, where the picture has its own size


@pytest.mark.parametrize("name", [name for name in bench.VIEWS if name not in bench._OTHER])
def test_the_picture_stays_where_it_is_while_captions_change(name):
    """Each is shorter than the lines that there is always room for, also in a wide font of 13 pixels."""
    view = bench.make(name, 8)
    for step in range(view.last + 1):
        view.set(step=step)
        assert width_of(view.caption(), 13 * CSS) <= view.LINES * view.WIDTH
    view.widget()
    assert f"line-height: 1.4; min-height: {1.4 * view.LINES}em" in view._caption.value
    view.close()


def test_words_are_there_while_they_are_wanted(control):
    view = ownership()
    widget = view.widget()
    assert view._in_words.value == ""
    control(widget, "The picture in words").value = True
    for step in (0, 1):
        view.set(step=step)
        assert view.text() in html.unescape(view._in_words.value)
    control(widget, "The picture in words").value = False
    assert view._in_words.value == ""
    view.close()


def played(view, press):
    """The steps that are shown while `press(button)` plays the view: a list."""
    view.widget()
    button, seen = view._play, []
    view.pace = 0
    view._inputs["step"].observe(lambda change: seen.append(change["new"]), "value")

    async def play():
        press(button)
        await view._task

    asyncio.run(play())
    assert not button.value and button.description == "Play"
    return seen


def player():
    return views.kernel_player(simulate(kernels.mesh.all_reduce, np.arange(4.0), ranks=2), step=2)


def test_play_goes_to_the_last_state_and_from_there_begins_anew():
    view = player()
    for start in (2, 0):
        assert played(view, lambda button: button.set_trait("value", True))[-view.last + start :] == [
            *range(start + 1, view.last + 1)
        ]
    view.close()


def test_play_stops_when_it_is_pressed_again_and_when_the_view_is_closed():
    view = player()

    def twice(button):
        button.value = True
        assert button.description == "Pause"
        button.value = False

    assert played(view, twice) == []
    assert played(view, lambda button: (twice(button), button.set_trait("value", True)))[-1] == view.last
    view.set(step=2)

    async def close():
        view._play.value = True
        task = view._task
        view.close()
        await task

    asyncio.run(close())
    assert view.settings["step"] == 2


COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda view: pickle.loads(pickle.dumps(view))}


# a plan that was run holds NumPy itself, of which there is no pickle
OF_VIEWS = [(name, how) for name in bench.VIEWS for how in COPIES if (name, how) != ("streams", "pickle")]


@pytest.mark.parametrize(("name", "how"), OF_VIEWS)
def test_a_copy_has_settings_and_a_widget_of_its_own(name, how):
    view = bench.make(name, 3)
    before, picture, widget = view.text(), view.png(), view.widget()
    other = COPIES[how](view)
    assert (other.text(), other.png(), other._widget) == (before, picture, None)
    if "step" in view.settings:
        other.set(step=0 if view.settings["step"] else 1)
    assert other.widget() is not widget
    other.close()
    assert view.text() == before and widget.comm is not None and view.widget() is widget
    view.close()


def test_one_thread_at_a_time_changes_a_view():
    view, free = player(), []

    def look(drawing, static):
        thread = threading.Thread(target=lambda: free.append(CHANGING.acquire(blocking=False)))
        thread.start()
        thread.join()
        paint(drawing, static)

    paint, view._paint = view._paint, look
    text, view.text = view.text, lambda: look(Drawing(view.WIDTH), True) or text()
    assert str(view) == view._repr_mimebundle_()[0]["text/plain"]
    view.set(step=1)
    view.step(2)
    view._draw_ahead(view.alike().step())
    view._inputs["step"].value = 0
    view.close()
    assert free == [False] * 7


def test_a_view_that_was_closed_draws_nothing_ahead():
    view = player()
    view.widget()
    view.close()
    view._draw_ahead(view.alike().step())
    assert view._finished == {}


@pytest.mark.parametrize("sign", ("\n", "\t", "\x00", "\x9b", "\u2028", "\ud800"))
def test_what_is_no_sign_is_a_space_in_a_picture(sign):
    view, plain = (views.memory_timeline([{"name": f"a{gap}b"}]) for gap in (sign, " "))
    assert view.png() == plain.png()
    file = io.BytesIO()
    view.figure().savefig(file, format="svg")
    xml.dom.minidom.parseString(file.getvalue())


def test_whole_numbers_of_numpy_are_whole_numbers():
    cases = [
        (views.memory_timeline([{"name": "a", "retained": np.uint16(4)}]), "step"),
        (views.modular_lab(np.int8(8)), "step"),
        (views.payload_counter(nranks=np.int64(2)), "nranks"),
        (views.cost_explorer(latency_us=np.float32(1)), "nranks"),
        (bench.make("rank map", 3), "a"),
        (bench.make("streams", 2), "rank"),
        (views.launch_panel(), "ranks"),
        (bench.make("side by side", 3), "step"),
    ]
    for view, name in cases:
        least = 2 if name == "nranks" else 1
        assert repr(view.set(**{name: np.int64(least)}).settings[name]) == f"{least}"
        with pytest.raises(ValueError, match=r"whole number|is a rank"):
            view.set(**{name: np.float64(least)})

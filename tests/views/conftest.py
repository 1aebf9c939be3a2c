"""How a picture is read here: where each label lies, and whether two of them touch or one leaves the picture."""

import base64

import ipywidgets
import pytest
from matplotlib.text import Text


def misplaced_labels(figure):
    """What is wrong with the labels of a figure, in words: a list, empty if each is apart and inside."""
    renderer = figure.canvas.get_renderer()
    width, height = figure.canvas.get_width_height()
    labels = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    assert labels, "a picture without a label"
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in labels]
    wrong = [
        f"{text!r} leaves the picture"
        for text, box in boxes
        if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height
    ]
    for number, (text, box) in enumerate(boxes):
        for other_text, other in boxes[:number]:
            across = min(box.x1, other.x1) - max(box.x0, other.x0)
            down = min(box.y1, other.y1) - max(box.y0, other.y0)
            if across > 1 and down > 2:  # extents include the space above and below the letters
                wrong.append(f"{text!r} lies on {other_text!r}")
    return wrong


@pytest.fixture
def misplaced():
    return misplaced_labels


def parts(widget):
    """The widget and everything in it."""
    yield widget
    for child in getattr(widget, "children", ()):
        yield from parts(child)


@pytest.fixture
def control():
    """Finds a control of a widget by its description; a button by its name."""
    return lambda widget, name: next(w for w in parts(widget) if getattr(w, "description", None) == name)


@pytest.fixture
def markup(control):
    """All HTML that a widget shows, the picture in words with it: str."""

    def find(widget):
        control(widget, "The picture in words").value = True
        return "\n".join(w.value for w in parts(widget) if isinstance(w, ipywidgets.HTML))

    return find


@pytest.fixture
def picture():
    """The one picture that a widget shows, as PNG: bytes."""

    def find(widget):
        (image,) = (w for w in parts(widget) if isinstance(w, ipywidgets.Image))
        kind, _, encoded = bytes(image.value).partition(b",")
        assert kind == b"data:image/png;base64"
        return base64.b64decode(encoded, validate=True)

    return find

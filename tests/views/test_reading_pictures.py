"""The reader of pictures, which other tests here rely on, finds what it should find."""

from collectlab.views.drawing import Drawing


def drawn(*labels):
    drawing = Drawing(300)
    drawing.begin(100)
    for x, y, text in labels:
        drawing.label(x, y, text)
    return drawing.finish()


def test_labels_apart_are_right(misplaced):
    assert misplaced(drawn((10, 20, "rank 0"), (10, 50, "rank 1"), (100, 20, "rank 2"))) == []


def test_a_label_on_another_is_found(misplaced):
    assert misplaced(drawn((10, 20, "rank 0"), (30, 24, "rank 1"))) == ["'rank 1' lies on 'rank 0'"]


def test_a_label_that_leaves_the_picture_is_found(misplaced):
    assert misplaced(drawn((280, 20, "rank 0"))) == ["'rank 0' leaves the picture"]
    assert misplaced(drawn((10, 99, "rank 0"))) == ["'rank 0' leaves the picture"]

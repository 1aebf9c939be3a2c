"""The picture that the README shows is what the view draws today."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import collectlab as cl

PICTURE = Path(__file__).parents[2] / "notebooks" / "pictures" / "ownership.png"
XS = [np.array([1, 2, 3, 4], np.int32), np.array([10, 20, 30, 40], np.int32)]
COMMAND = "python tests/views/test_committed_picture.py"


def reduce_scatter(ctx, x):
    return cl.kernels.two_phase.reduce_scatter(ctx, x)


def picture(operation, results):
    devices = cl.layout.RankMap(["A", "B"])
    return cl.views.ownership(operation, XS, results=results, rank_map=devices).png()


def drawn():
    """The ownership of a reduce-scatter on two ranks, after the run: PNG."""
    run = cl.run(reduce_scatter, cl.per_rank(XS), ranks=2, device="cpu")
    assert run.ok, run.report()
    return picture("reduce_scatter", run.results)


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def differ(one, two):
    """Whether two pictures differ by more than a font renderer may: in size, or in 1 of 200 pixels."""
    return one.shape != two.shape or (abs(one - two).max(axis=2) > 64).mean() > 0.005


def test_it_is_what_the_view_draws_today():
    assert PICTURE.stat().st_size < 150_000
    same = not differ(pixels(PICTURE.read_bytes()), pixels(drawn()))
    assert same, f"{PICTURE.name} is not what the view draws today; draw it anew, look at it, commit it: {COMMAND}"


@pytest.mark.parametrize(
    ("operation", "results"),
    [
        ("reduce_scatter", [[11, 22], [33, 43]]),
        ("reduce_scatter", [[33, 44], [11, 22]]),
        ("all_reduce", [[11, 22, 33, 44]] * 2),
    ],
)
def test_another_picture_is_found(operation, results):
    other = picture(operation, [np.array(result, np.int32) for result in results])
    assert differ(pixels(PICTURE.read_bytes()), pixels(other))


if __name__ == "__main__":
    PICTURE.write_bytes(drawn())

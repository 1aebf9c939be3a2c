"""The picture that the README shows is what the view draws today."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import collectlab as cl
from collectlab.kernels import mesh, two_phase

PICTURE = Path(__file__).with_name("kernel-player.png")
XS = [np.arange(16, dtype=np.float32) + rank for rank in range(4)]
COMMAND = "python tests/views/test_committed_picture.py"


def picture(kernel, step):
    """A step of an all-reduce on four real ranks: PNG."""
    run = cl.run(kernel.all_reduce, cl.per_rank(XS), ranks=4, device="cpu")
    assert run.ok, run.report()
    cards = [kernel.all_reduce_cost(4, 16, 4, rank) for rank in range(4)]
    return cl.views.kernel_player(run, cards, f"{kernel.__name__.split('.')[-1]}.all_reduce", step=step).png()


def drawn():
    """Two phases, in the middle of the first."""
    return picture(two_phase, 6)


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def differ(one, two):
    """Whether two pictures differ by more than a font renderer may: in size, or in 1 of 200 pixels."""
    return one.shape != two.shape or (abs(one - two).max(axis=2) > 64).mean() > 0.005


def test_it_is_what_the_view_draws_today():
    assert PICTURE.stat().st_size < 150_000
    same = not differ(pixels(PICTURE.read_bytes()), pixels(drawn()))
    assert same, f"{PICTURE.name} is not what the view draws today; draw it anew, look at it, commit it: {COMMAND}"


@pytest.mark.parametrize(("kernel", "step"), ((two_phase, 5), (two_phase, 7), (mesh, 6)))
def test_another_picture_is_found(kernel, step):
    assert differ(pixels(PICTURE.read_bytes()), pixels(picture(kernel, step)))


if __name__ == "__main__":
    PICTURE.write_bytes(drawn())

"""The picture of a plan: what it says in words, and that it is drawn."""

import numpy as np
import plans
import pytest
from matplotlib.text import Text

import collectlab as cl
from collectlab import overlap, views
from collectlab.overlap.backward import Layers, train


def carried_out(plan, in_order=False, nranks=2):
    vectors = cl.per_rank([np.arange(1.0, 5) * 10**rank for rank in range(nranks)])
    return overlap.simulate(plan, vectors, ranks=nranks, in_order=in_order)


def labels(view):
    return {text.get_text() for text in view.figure().findobj(Text)}


def test_the_words_of_a_right_plan():
    lines = views.streams(carried_out(plans.sharded_step)).text().splitlines()
    assert lines[0] == "Rank 0 of 2, with requests: no hazard."
    said = "\n".join(lines)
    assert 'reads "gradient", writes "shard"; waited for before 2' in said
    assert "request 1:" in lines and "request 2:" in lines and "hazard on" not in said


def test_streams_and_requests_are_told_apart():
    by_request, in_order = (views.streams(carried_out(plans.chained_on_one_stream, flag)) for flag in (False, True))
    assert list(by_request.lanes()) == ["compute", "request 1", "request 2"] and len(by_request.hazards) == 1
    assert list(in_order.lanes()) == ["compute", "communication"] and in_order.hazards == []


@pytest.mark.parametrize("plan", (*plans.RIGHT, *plans.BROKEN_ON_BOTH, *plans.BROKEN_IN_ORDER))
@pytest.mark.parametrize("in_order", (False, True))
def test_every_hazard_is_said_and_every_operation_is_listed_once(plan, in_order):
    run = carried_out(plan, in_order)
    view = views.streams(run)
    text = view.text()
    assert all(str(hazard) in text for hazard in run.hazards())
    numbers = [int(line.split()[0]) for line in text.splitlines() if line[:4].strip().isdigit()]
    assert sorted(numbers) == list(range(1, len(view.operations) + 1))


def test_who_is_waited_for_when():
    said = views.streams(carried_out(plans.never_gathered)).text()
    assert 'writes "weights"; nobody waits for it' in said
    said = views.streams(carried_out(plans.gathers_what_is_not_updated, in_order=True)).text()
    assert "waits for no event" in said
    assert '"shard", writes "weights"; waited for before' in views.streams(carried_out(plans.straight_on)).text()


def test_the_picture_and_the_widget():
    view = views.streams(carried_out(plans.overwrites_during_the_gather))
    pictures = [view.png()]
    view.widget()
    assert view.set(rank=1).caption().startswith("Rank 1 of 2")
    view.close()
    other = views.streams(carried_out(plans.sharded_step))
    assert other.png() != pictures[0] and pictures[0].startswith(b"\x89PNG")
    assert {"compute", "request 2", "!1"} <= labels(view)


def test_names_are_not_cut_and_a_line_is_drawn_over_the_lanes_that_it_crosses():
    layers = Layers(width=8, depth=4)
    rows = [cl.per_rank(np.split(array, 2)) for array in layers.samples(12, seed=1)]
    view = views.streams(overlap.simulate(train, layers, *rows, 0.01, 1, 2, True, ranks=2))
    assert {"all_gather", "the end", 'writes "weights"[128:256]'} <= labels(view)
    assert not any("…" in label for label in labels(view))
    ups = [(patch.get_path().get_extents(), patch.get_zorder()) for patch in view.figure().artists]
    boxes = max(layer for extent, layer in ups if layer < 3)
    assert any(extent.height > 140 and layer > boxes for extent, layer in ups)  # from compute to request 4


def test_a_long_plan_is_drawn_in_part_and_said_in_full():
    layers = Layers(width=2, depth=4)
    run = overlap.simulate(train, layers, *layers.samples(2, 1), 0.1, 3, ranks=1, in_order=True)
    view = views.streams(run)
    more = len(view.operations) - 24
    assert more > 0 and f"{more} more operations are not drawn" in labels(view)
    assert f"\n  {len(view.operations)}  the end of the plan" in view.text()


def test_what_is_refused():
    with pytest.raises(TypeError, match=r"what overlap\.run or overlap\.simulate returned is accepted"):
        views.streams(cl.simulate(lambda ctx: None, ranks=1))
    with pytest.raises(ValueError, match="0 to 1, not 2"):
        views.streams(carried_out(plans.sharded_step), rank=2)

"""The cost explorer says what the cards and the model say, in words and as a picture."""

import html
import itertools
import math
import re

import numpy as np
import pytest
from matplotlib.text import Text

from collectlab import kernels, views
from collectlab.cost import Card
from collectlab.views.cost_explorer import COSTS, MODEL, NOT

SETTINGS = list(itertools.product((2, 3, 4, 6, 8, 16), (4, 4096, 1_000_000), (0.5, 20.0), (1.0, 50.0)))


def labels(view):
    return [t.get_text() for t in view.figure().findobj(Text) if t.get_visible() and t.get_text()]


def by_hand(name, nranks, nbytes, latency_us, bandwidth_gbs):
    """Seconds of the slowest rank, from the module's own card function."""
    cost = getattr(kernels, name).all_reduce_cost
    cards = [cost(nranks, nbytes // 4, 4, rank) for rank in range(nranks)]
    return max((c.steps + c.messages) * latency_us / 1e6 + c.nbytes / (bandwidth_gbs * 1e9) for c in cards)


def test_the_model_counts_steps_messages_and_bytes():
    card = Card(nbytes=1000, messages=3, notifications=100, waits=100, barriers=1, steps=2)
    assert card.seconds(latency=10, bandwidth=100) == 5 * 10 + 1000 / 100
    assert card.seconds(latency=0, bandwidth=math.inf) == 0


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_times_are_those_of_the_cards(settings):
    view = views.cost_explorer(*settings)
    times = {name: by_hand(name, *settings) for name in COSTS}
    assert {row.name: row.seconds for row in view.rows} == pytest.approx(times)
    assert [row.name for row in view.rows] == sorted(times, key=lambda name: [r.name for r in view.rows].index(name))
    least = min(times.values())
    assert set(view.fastest) == {name for name, time in times.items() if math.isclose(time, least)}
    for row in view.rows:
        line = rf"{row.name} +{row.card.steps} +{row.card.messages} +{row.card.nbytes:,} "
        assert re.search(line, view.text()), (row, view.text())


@pytest.mark.parametrize("nranks", [2, 3, 4, 5, 6, 7, 8, 12, 16, 31, 64])
def test_the_fastest_is_found_by_trying_and_the_lines_cross_where_it_changes(nranks):
    ranges = views.cost_explorer(nranks, 4096, 1.0, 10.0).ranges
    block = 4 * math.lcm(nranks, 2 ** (nranks.bit_length() - 1))  # bytes that ranks and members divide
    ends = [start for start, _ in ranges[1:]] + [2**40]
    for (start, names), end in zip(ranges, ends, strict=True):
        sizes = {block * k for k in (1, *(int(start * (1 - w) + end * w) // block for w in (0.01, 0.3, 0.99)))}
        for size in (size for size in sizes if start < size < end):
            assert set(views.cost_explorer(nranks, size).fastest) == set(names), size
    for (_, left), (start, right) in itertools.pairwise(ranges):
        times = [by_hand(name, nranks, round(start / block) * block, 1.0, 10.0) for name in (left[0], right[0])]
        assert times[0] == pytest.approx(times[1], rel=block / start)


def test_what_the_cards_say_of_who_wins():
    assert views.cost_explorer(4, 4096).fastest == ("recursive_doubling",)
    assert views.cost_explorer(4, 2**20).fastest == ("two_phase", "rabenseifner")
    assert views.cost_explorer(8, 2**20).fastest == ("rabenseifner",)
    assert views.cost_explorer(6, 2**20).fastest == ("two_phase",)
    # recursive doubling: 4 latencies and 2 N; two phases: 8 and 1.5 N. They meet at 8 latencies' worth of bytes
    assert views.cost_explorer(4, 4096, 1.0, 10.0).ranges[1][0] == 8 * 1e-6 * 10e9
    assert views.cost_explorer(4, 4096, 2.0, 10.0).ranges[1][0] == 16 * 1e-6 * 10e9
    assert "up to 80,000: recursive_doubling" in views.cost_explorer(4, 4096).text()
    assert "from 80,000 on: two_phase or rabenseifner" in views.cost_explorer(4, 4096).text()


def test_without_a_latency_only_bytes_count():
    view = views.cost_explorer(5, 2**20, 0)
    assert view.ranges == [(0.0, ("two_phase", "ring"))] and "every size: two_phase or ring" in view.text()
    assert view.png().startswith(b"\x89PNG")


@pytest.mark.parametrize("nranks", [2, 3, 8, 16, 64])
@pytest.mark.parametrize(("nbytes", "latency", "bandwidth"), [(4, 1, 10), (65536, 0, 1e-3), (2**40, 1e6, 1e6)])
def test_labels_are_apart_and_inside(nranks, nbytes, latency, bandwidth, misplaced):
    view = views.cost_explorer(nranks, nbytes, latency, bandwidth)
    assert misplaced(view.figure()) == []
    drawn = labels(view)
    assert {*COSTS, MODEL, NOT, "hatched: latency; plain: bytes"} <= set(drawn)


def test_equal_bytes_are_written_alike():
    for nbytes, written in ((2**20, "1,966,080"), (2**30, "1.88 GiB")):
        assert labels(views.cost_explorer(16, nbytes, 100, 400)).count(written) == 3


def test_it_says_what_the_model_is_and_what_it_leaves_out():
    view = views.cost_explorer()
    assert MODEL in view.text() and NOT in view.text()
    assert view.caption().startswith("all-reduce on 4 ranks of 65,536 bytes each, latency 1 µs, bandwidth 10 GB/s: ")


def test_lines_are_told_apart_without_colour():
    view = views.cost_explorer(8, 65536)
    from collectlab.views.cost_explorer import _DASHES

    assert len(set(_DASHES)) == len(_DASHES) == len(COSTS)
    assert all(row.name in labels(view) for row in view.rows)


def test_controls_and_set_go_the_same_way(control, picture):
    view = views.cost_explorer()
    widget = view.widget()
    control(widget, "ranks").value = 6
    control(widget, "bytes a rank").value = 2**20
    control(widget, "latency, µs").value = 2.5
    control(widget, "GB/s").value = 25
    other = views.cost_explorer(6, 2**20, 2.5, 25)
    assert view.text() == other.text() and picture(widget) == other.png()
    view.set(nbytes=4096)
    assert control(widget, "bytes a rank").value == 4096
    view.close()


def test_a_control_that_is_not_accepted_goes_back_and_says_why(control, markup):
    view = views.cost_explorer()
    widget, before = view.widget(), view.text()
    control(widget, "bytes a rank").value = 4097
    assert control(widget, "bytes a rank").value == 65536 and view.text() == before
    assert "The number of bytes is a multiple of 4" in html.unescape(markup(widget))
    for name, before, wrong, said in [
        ("GB/s", 10, 0, "The bandwidth is a number, 0.001 to 1,000,000, not 0"),
        ("latency, µs", 1, -1, "The latency is a number, 0 to 1,000,000, not -1"),
        ("ranks", 4, 65, "The number of ranks is a whole number, 2 to 64, not 65"),
        ("ranks", 4, 4.5, "The number of ranks is a whole number, 2 to 64, not 4.5"),
    ]:
        control(widget, name).value = wrong
        assert control(widget, name).value == before and said in html.unescape(markup(widget))
        assert "cost_explorer(" not in markup(widget)
    view.close()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"nranks": 1}, "nranks is a whole number, 2 to 64, not 1"),
        ({"nranks": 1000}, "nranks is a whole number, 2 to 64, not 1000"),
        ({"nranks": 4.0}, "nranks is a whole number"),
        ({"nranks": True}, "nranks is a whole number"),
        ({"nbytes": 0}, "nbytes is a multiple of 4"),
        ({"nbytes": -4}, "nbytes is a multiple of 4"),
        ({"nbytes": 6}, "nbytes is a multiple of 4"),
        ({"nbytes": 2**50}, "nbytes is a multiple of 4, up to"),
        ({"nbytes": "4096"}, "nbytes is a multiple of 4"),
        ({"latency_us": -1}, "latency_us is a number, 0 to 1,000,000, not -1"),
        ({"latency_us": float("nan")}, "latency_us is a number"),
        ({"latency_us": math.inf}, "latency_us is a number"),
        ({"latency_us": 1e300}, "latency_us is a number, 0 to 1,000,000, not 1e"),
        ({"bandwidth_gbs": 1e-300}, "bandwidth_gbs is a number, 0.001 to 1,000,000, not 1e"),
        ({"latency_us": None}, "latency_us is a number"),
        ({"bandwidth_gbs": 0}, "bandwidth_gbs is a number, 0.001 to 1,000,000, not 0"),
        ({"bandwidth_gbs": math.inf}, "bandwidth_gbs is a number"),
        ({"bandwidth_gbs": True}, "bandwidth_gbs is a number"),
    ],
)
def test_bad_input_names_the_argument(settings, says):
    with pytest.raises(ValueError) as caught:
        views.cost_explorer(**settings)
    assert says in str(caught.value) and "cost_explorer(" in str(caught.value)


def test_numpy_numbers_are_taken_and_the_same_settings_look_the_same():
    one = views.cost_explorer(np.int64(4), np.int32(65536), np.float64(1), np.float64(10))
    two = views.cost_explorer()
    assert one.text() == two.text() == repr(two) and one.png() == two.png()
    two.set(nranks=8).set(nranks=4)
    assert one.png() == two.png()

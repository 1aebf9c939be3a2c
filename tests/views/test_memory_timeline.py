"""The memory timeline: sums done once more, the peak, what lies between phases, in words and as a picture."""

import itertools
from dataclasses import dataclass, field

import pytest
from matplotlib.text import Text

from collectlab import views
from collectlab.views.memory_timeline import NOT, PLAN

PHASES = [
    {"name": "forward", "retained": {"parameters": 800}, "sharded": {"optimizer": 300}, "temporary": {"view": 50}},
    {
        "name": "backward",
        "retained": {"parameters": 800, "gradients": 800},
        "sharded": {"optimizer": 300},
        "temporary": {"bucket": 400},
    },
    {"name": "reduce-scatter", "retained": {"gradients": 800}, "sharded": {"optimizer": 300, "gradients": 200}},
    {"name": "update", "retained": {"parameters": 800}, "sharded": {"optimizer": 300, "gradients": 200}},
]


def labels(view):
    return [t.get_text() for t in view.figure().findobj(Text) if t.get_visible() and t.get_text()]


def amounts(phase, *kinds):
    return {(kind, label): size for kind in kinds for label, size in phase.get(kind, {}).items()}


def test_the_sums_the_peak_and_what_lies_between():
    view = views.memory_timeline(PHASES)
    totals = [sum(amounts(phase, "retained", "sharded", "temporary").values()) for phase in PHASES]
    assert [phase.total for phase in view.phases] == totals == [1150, 2300, 1300, 1300]
    assert view.peak == (2, 2300) and view.settings == {"step": 2}
    kept = []
    for before, after in itertools.pairwise(PHASES):
        one, two = (amounts(phase, "retained", "sharded") for phase in (before, after))
        kept.append(sum(min(one[key], two[key]) for key in one.keys() & two.keys()))
    assert view.between == kept == [1100, 1100, 500]


def test_a_figure_between_phases_is_never_the_peak_but_by_accident():
    view = views.memory_timeline(PHASES)
    assert max(view.between) < view.peak[1] and "1.17 KiB less" in view.verdict()
    flat = views.memory_timeline([{"name": "a", "retained": 5}, {"name": "b", "retained": 5}])
    assert flat.between == [5] and "Between phases: 5 B at most, as much." in flat.verdict()
    for view_ in (view, flat):
        assert NOT in view_.text() and PLAN in view_.text() and {NOT, PLAN} <= set(labels(view_))


def test_a_buffer_that_moves_from_one_kind_to_another_is_not_kept():
    whole_then_cut = [{"name": "a", "retained": {"p": 8}}, {"name": "b", "sharded": {"p": 2}}]
    assert views.memory_timeline(whole_then_cut).between == [0]


def test_without_labels_the_smaller_sum_is_kept():
    assert views.memory_timeline([{"name": "a", "retained": 8}, {"name": "b", "retained": 5}]).between == [5]


def test_a_temporary_buffer_lasts_as_long_as_its_label():
    phases = [
        {"name": "forward", "temporary": {"activations": 3}},
        {"name": "backward", "temporary": {"activations": 3, "gradient": 8}},
        {"name": "all-reduce", "temporary": {"gradient": 8}},
        {"name": "update", "temporary": {"scratch": 1}},
    ]
    assert views.memory_timeline(phases).between == [3, 8, 0]


def test_temporary_buffers_without_labels_may_be_others_in_each_phase():
    assert views.memory_timeline([{"name": "a", "temporary": 8}, {"name": "b", "temporary": 5}]).between == [0]


@dataclass
class Phase:
    name: str
    retained: dict = field(default_factory=dict)
    sharded: int = 0
    temporary: int = 0


def test_objects_are_read_like_dicts():
    phases = [Phase("a", {"x": 4}, 2, 1), Phase("b", {"x": 3})]
    dicts = [{"name": "a", "retained": {"x": 4}, "sharded": 2, "temporary": 1}, {"name": "b", "retained": {"x": 3}}]
    assert views.memory_timeline(phases).text() == views.memory_timeline(dicts).text()


def test_the_words():
    lines = views.memory_timeline(PHASES, "a step", who="rank 0 of 4", budget=2048).text().splitlines()
    assert lines[:2] == [
        "memory of rank 0 of 4: a step, in bytes",
        "Phase 2 of 4, backward: 2.25 KiB (retained 1.56 KiB, sharded 300 B, temporary 400 B). This is the peak.",
    ]
    assert ">  2 backward           1,600      300        400   2,300  the peak" in lines
    assert "     between                                        1,100" in lines
    assert "  2 backward: parameters 800, gradients 800, optimizer 300, bucket 400" in lines
    assert any("That is 252 B more than there are." in line for line in lines)


def test_the_budget_is_drawn_and_said():
    fits = views.memory_timeline(PHASES, budget=4096)
    assert "It fits into 4 KiB." in fits.verdict() and "there are 4 KiB" in labels(fits)
    assert "peak 2.25 KiB" in labels(fits)
    long = [{"name": f"backward, output layer {n}", "retained": 10**6 + n} for n in range(3)]
    drawn = labels(views.memory_timeline(long, who="rank 1 of 4", budget=10**6 - 7000, step=0))
    assert any(label.endswith("That is 6.84 KiB more than there are.") for label in drawn)
    assert "rank 1 of 4, 3 phases." in drawn


def test_what_a_bar_holds_is_written_inside_it():
    view = views.memory_timeline([{"name": name, "retained": 13_721, "sharded": 4_956} for name in "abcde"])
    figure = view.figure()
    renderer = figure.canvas.get_renderer()
    edges = [patch.get_path().vertices[:, 0] for patch in figure.artists if patch.get_zorder() < 2]
    bars = {(x.min(), x.max()) for x in (xs[at : at + 5] for xs in edges for at in range(0, len(xs), 5))}
    found = [t.get_window_extent(renderer) for t in figure.findobj(Text) if t.get_text() in ("retained", "13.4 KiB")]
    assert len(found) == 10
    assert all(any(low < box.x0 and box.x1 < high for low, high in bars if high - low < 200) for box in found)


def test_the_name_of_a_phase_is_wrapped_where_both_lines_are_short():
    view = views.memory_timeline([{"name": "reduce-scatter, output layer", "retained": n} for n in range(7)])
    assert {"reduce-scatter,", "output layer"} <= set(labels(view))


def test_phases_of_equal_size_name_the_first():
    view = views.memory_timeline([{"name": name, "retained": 4} for name in "abc"])
    assert view.peak == (1, 4)
    marks = [line.rsplit("  ", 1)[-1] for line in view.text().splitlines() if line[3:4].isdigit()]
    assert marks == ["the peak", "as much", "as much"]


@pytest.mark.parametrize("count", (1, 2, 3, 8, 24, 25, 64))
def test_labels_are_apart_and_inside(count, misplaced):
    phases = [{"name": f"phase of {n}", "retained": 2**n, "temporary": 3 * 2 ** (n // 2)} for n in range(count)]
    view = views.memory_timeline(phases, budget=2**count)
    for step in {0, count // 2, count}:
        assert misplaced(view.set(step=step).figure()) == []
    assert ("Aggregated: a bar is the highest of its phases." in labels(view)) == (count > 24)


def test_buttons_and_methods_go_the_same_way(control, picture):
    view, other = (views.memory_timeline(PHASES, step=0) for _ in range(2))
    widget = view.widget()
    for name, steps in (("Step", 1), ("Step", 1), ("Back", -1)):
        control(widget, name).click()
        assert view.text() == other.step(steps).text() and picture(widget) == other.png()
    view.close()


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        ([{"name": "a", "retained": 1.5}], "phase 1, a, retained: bytes are a whole number, 0 to 2**100 - 1"),
        ([{"name": "a", "retained": 10**400}], "bytes are a whole number, 0 to 2**100 - 1, not 10000"),
        ([{"name": "a"}, {"name": "b", "sharded": {"x": True}}], "phase 2, b, sharded: bytes"),
        ([{"name": "a", "temporary": None}], "phase 1, a, temporary: bytes"),
        ([3], "phase 1 has no name"),
        ((), "a list of phases is accepted, one at least"),
    ],
)
def test_what_is_no_phase_is_named(phases, said):
    with pytest.raises((TypeError, ValueError), match=r"^memory_timeline\(phases\)") as caught:
        views.memory_timeline(phases)
    assert said in str(caught.value)


def test_every_step_is_there_and_no_other():
    view = views.memory_timeline(PHASES)
    for step in (-1, 5, 1.0, True, "1"):
        with pytest.raises(ValueError, match="memory_timeline: step is a whole number, 0 to 4"):
            view.set(step=step)

"""The ownership grid shows what the ground floor defines, and marks what a run got wrong."""

import io
import re

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from collectlab import provenance, semantics, views
from collectlab.layout import RankMap
from collectlab.views import holdings

A, B = np.array([1, 2, 3, 4], "i4"), np.array([10, 20, 30, 40], "i4")


def inputs(nranks, count, dtype="i4"):
    return [(np.arange(count) + 100 * rank).astype(dtype) for rank in range(nranks)]


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def shown(figure):
    return [t.get_text() for t in figure.findobj(Text) if t.get_visible() and t.get_text()]


# The text says what semantics says


def test_the_worked_numbers():
    text = views.ownership("reduce_scatter", [A, B], rank_map=RankMap(["A", "B"])).text()
    assert text.split("\n") == [
        "reduce_scatter (sum): 2 ranks, each contributes 4 elements (int32)",
        "before: input",
        "  rank 0 on A: input chunks 0–1 (0:4) [1, 2, 3, 4], rank 0's own, 1 of 2 contributions",
        "  rank 1 on B: input chunks 0–1 (0:4) [10, 20, 30, 40], rank 1's own, 1 of 2 contributions",
        "after reduce_scatter: result",
        "  rank 0 on A: result chunk 0 (0:2) [11, 22], sum of all 2 ranks, complete",
        "  rank 1 on B: result chunk 1 (2:4) [33, 44], sum of all 2 ranks, complete",
        "As defined; nothing was run.",
    ]


@pytest.mark.parametrize("operation", holdings.OPERATIONS)
@pytest.mark.parametrize("nranks", [1, 2, 3, 5, 8])
def test_every_cell_holds_what_is_defined(operation, nranks):
    xs = inputs(nranks, 2 * nranks)
    want = getattr(semantics, operation)(xs)
    state = holdings.Holdings(operation, xs, None, "sum").states[-1]
    for rank in range(nranks):
        held = np.concatenate([cell.values for cell in state[rank]])
        assert held.tolist() == want[rank].tolist()
        for cell in state[rank]:
            everyone = operation in ("all_reduce", "reduce_scatter")
            assert cell.holders == (list(range(nranks)) if everyone else [cell.chunk])
            assert cell.kind == "complete"


def test_a_sequence_takes_each_result_as_the_next_input():
    held = holdings.Holdings(["reduce_scatter", "all_gather"], [A, B], None, "sum")
    assert [[c.values.tolist() for c in cells] for cells in held.states[1]] == [[[11, 22]], [[33, 44]]]
    assert [[c.values.tolist() for c in cells] for cells in held.states[2]] == [[[11, 22], [33, 44]]] * 2
    assert all(cell.holders == [0, 1] for cells in held.states[2] for cell in cells)


def test_a_sum_that_is_not_finished_is_partial():
    view = views.ownership(["all_gather", "all_reduce"], inputs(3, 3))
    assert {c.kind for cells in view.holdings.states[1] for c in cells} == {"partial"}
    assert "partial: 1 of 3 contributions" in view.text()
    assert any(text.startswith("partial") for text in shown(view.figure()))


def test_the_same_call_gives_the_same_text_and_picture():
    one, two = (views.ownership("all_reduce", inputs(4, 10, "f4"), op="avg") for _ in range(2))
    assert one.text() == two.text() == str(one) == repr(two)
    assert one.png() == two.png()


# What a run got wrong is marked

RIGHT = semantics.reduce_scatter([A, B])


def test_a_right_run_is_called_right():
    view = views.ownership("reduce_scatter", [A, B], RIGHT)
    assert view.verdict() == "On every rank the run returned what the definition says."
    assert "differs" not in " ".join(shown(view.figure()))


@pytest.mark.parametrize(
    ("results", "ranks", "said"),
    [
        ([RIGHT[0], B[2:]], [1], "rank 1, result chunk 1 (2:4): holds [30, 40], should hold [33, 44]"),
        ([RIGHT[1], RIGHT[0]], [0, 1], "rank 0, result chunk 0 (0:2): holds [33, 44], should hold [11, 22]"),
        ([RIGHT[0], None], [1], "holds nothing, should hold [33, 44] (no result)"),
        ([RIGHT[0], np.array([11, 22, 33, 44])], [1], "(4 elements, not 2)"),
        ([RIGHT[0], RIGHT[1][:1]], [1], "(1 elements, not 2)"),
        ([RIGHT[0], "a word"], [1], "(no array of numbers: str)"),
        ([RIGHT[0], np.array([33, np.nan])], [1], "holds [33, nan], should hold [33, 44]"),
    ],
)
def test_a_wrong_run_is_marked(results, ranks, said):
    view = views.ownership("reduce_scatter", [A, B], results)
    assert [rank for rank, _ in view.holdings.wrong] == ranks
    assert said in view.text()
    assert "from the definition, on rank" in view.verdict()
    words = shown(view.figure())
    assert words.count("differs") >= len(ranks) and "differs from the definition" in words
    red = np.array([0xB3, 0x26, 0x1E])
    for picture, marked in (
        (view.png(), True),
        (views.ownership("reduce_scatter", [A, B], RIGHT).png(), False),
    ):
        assert (np.abs(pixels(picture) - red).max(axis=2) < 24).any() == marked


def test_every_single_wrong_element_is_found():
    xs = inputs(3, 6, "f8")
    for operation in ("all_reduce", "reduce_scatter", "all_gather"):
        want = getattr(semantics, operation)(xs)
        for rank in range(3):
            for index in range(want[rank].size):
                got = [x.copy() for x in want]
                got[rank][index] += 1
                ((where, cell),) = holdings.Holdings(operation, xs, got, "sum").wrong
                at = index + (2 * rank if operation == "reduce_scatter" else 0)
                assert where == rank and cell.start <= at < cell.start + cell.length


def test_rounding_of_a_sum_is_no_difference_but_of_a_gather_it_is():
    xs = [np.random.default_rng(rank).normal(size=6).astype("f4") for rank in range(3)]
    for operation, differ in (("all_reduce", False), ("all_gather", True)):
        got = [np.nextafter(x, np.float32(9)) for x in getattr(semantics, operation)(xs)]
        assert bool(holdings.Holdings(operation, xs, got, "sum").wrong) == differ
    assert "up to rounding" in views.ownership("all_reduce", xs, semantics.all_reduce(xs)).text()


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_inf_and_nan_are_compared(bad):
    xs = [np.array([np.inf, 1.0, np.nan]), np.array([1.0, 2.0, 3.0])]
    want = semantics.all_reduce(xs)
    assert not holdings.Holdings("all_reduce", xs, want, "sum").wrong
    for index in range(3):
        got = [x.copy() for x in want]
        got[1][index] = bad
        same = np.array_equal(got[1], want[1], equal_nan=True)
        assert [rank for rank, _ in holdings.Holdings("all_reduce", xs, got, "sum").wrong] == [1] * (not same)


def test_another_dtype_is_said():
    view = views.ownership("all_reduce", [A, B], [x.astype("i8") for x in semantics.all_reduce([A, B])])
    assert "Its dtype is int64, the inputs' int32." in view.verdict()


def test_identified_inputs_show_whose_contributions_a_cell_really_holds():
    xs = provenance.identify(4, 8)
    view = views.ownership("reduce_scatter", xs, semantics.reduce_scatter([xs[0], xs[1], xs[2], xs[2]]))
    assert view.holdings.identified
    (cell,) = view.holdings.states[1][3]
    assert cell.kind == "differs" and cell.shares == (1, 1, 2, 0)
    assert "rank 2's elements 0:2 twice, rank 3's are missing" in view.text()
    words = shown(view.figure())
    assert words.count("lacks rank 3") == 4 and words.count("2×2") == 4
    assert not views.ownership("reduce_scatter", xs, semantics.reduce_scatter(xs)).holdings.wrong


def test_a_sum_without_one_rank_is_called_partial():
    xs = provenance.identify(2, 4)
    half = [x if rank == 0 else np.zeros_like(x) for rank, x in enumerate(xs)]
    view = views.ownership("all_reduce", xs, semantics.all_reduce(half))
    assert "partial: lacks rank 1" in " ".join(shown(view.figure()))


def test_right_contributions_in_the_wrong_place_are_called_so():
    xs = provenance.identify(2, 4)
    view = views.ownership("reduce_scatter", xs, semantics.reduce_scatter(xs)[::-1])
    assert shown(view.figure()).count("differs: other elements") == 2
    view = views.ownership("all_gather", xs, [np.concatenate(xs[::-1])] * 2)
    assert shown(view.figure()).count("differs: holds rank 1's") == 2


def test_a_run_is_read_with_its_devices():
    class Run:
        results, status, rank_map = [RIGHT[0], None], "failed", RankMap(["B", "A"])

    text = views.ownership("reduce_scatter", [A, B], Run).text()
    assert "rank 0 on B: result chunk 0" in text and "The run's status is 'failed'." in text


def test_a_tuple_per_rank_shows_every_operation():
    first = semantics.reduce_scatter([A, B])
    second = semantics.all_gather(first)
    names = ["reduce_scatter", "all_gather"]
    view = views.ownership(names, [A, B], [*zip(first, second, strict=True)])
    assert view.text().count("(the run's)") == 2 and not view.holdings.wrong
    assert views.ownership(names, [A, B], second).text().count("(the run's)") == 1
    swapped = views.ownership(names, [A, B], [*zip(first[::-1], second, strict=True)])
    assert [cell.window for _, cell in swapped.holdings.wrong] == ["result 1"] * 2


# The picture

SIZES = [("all_reduce", 1), ("reduce_scatter", 2), ("all_reduce", 4), ("all_gather", 8), ("all_reduce", 16)]
SIZES += [("reduce_scatter", 16), ("all_to_all", 3), ("all_reduce", 17), ("all_gather", 64)]


@pytest.mark.parametrize(("operation", "nranks"), SIZES)
@pytest.mark.parametrize("wrong", [False, True])
def test_labels_are_apart_and_inside(misplaced, operation, nranks, wrong):
    xs = inputs(nranks, 2 * nranks)
    got = getattr(semantics, operation)(xs)
    if wrong:
        got[-1] = got[-1] + 12345
    devices = RankMap([(f"n{rank // 4}", f"cuda:{rank % 4}") for rank in range(nranks)])
    view = views.ownership(operation, xs, got, devices)
    figure = view.figure()
    assert misplaced(figure) == []
    assert bool(view.holdings.wrong) == wrong
    width, height = figure.canvas.get_width_height()
    picture = pixels(view.png())
    assert picture.shape == (height, width, 3) and width == 960
    assert (picture < 200).any(axis=2).mean() > 0.01  # not blank


def test_labels_stay_inside_their_cells():
    figure = views.ownership("all_reduce", inputs(16, 32), rank_map=RankMap.local(16)).figure()
    renderer = figure.canvas.get_renderer()
    frames = [
        box.get_extents()
        for patch in figure.patches + figure.artists
        if int(patch.get_zorder()) == 1
        for box in patch.get_path().to_polygons(patch.get_transform(), closed_only=False)
        for box in [_Box(box)]
        if box.height > 30
    ]
    assert len(frames) == 2 * 16 * 16
    inside = 0
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text():
            box = text.get_window_extent(renderer)
            middle = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
            for frame in frames:
                if frame.x0 < middle[0] < frame.x1 and frame.y0 < middle[1] < frame.y1:
                    assert frame.x0 <= box.x0 and box.x1 <= frame.x1, text.get_text()
                    assert frame.y0 - 1 <= box.y0 and box.y1 <= frame.y1 + 1, text.get_text()
                    inside += 1
    assert inside == 2 * 16 * 16 * 2  # every cell has its name and what it holds


class _Box:
    def __init__(self, corners):
        (self.x0, self.y0), (self.x1, self.y1) = corners.min(axis=0), corners.max(axis=0)
        self.height = self.y1 - self.y0

    def get_extents(self):
        return self


def test_every_cell_names_its_window_its_chunk_and_its_contributors():
    words = shown(views.ownership("reduce_scatter", inputs(4, 8), rank_map=RankMap.local(4)).figure())
    for chunk in range(4):
        assert words.count(f"input · chunk {chunk}") == 4 and words.count(f"result · chunk {chunk}") == 1
        assert words.count(f"rank {chunk}'s own") == 4
        assert words.count(str(chunk)) == 4 + 4  # its box: in 4 cells before, and in each one of the 4 after
    assert sum(word.startswith("all 4") or word.startswith("sum of all 4") for word in words) == 4


def test_more_than_sixteen_ranks_are_aggregated_and_it_says_so():
    view = views.ownership("all_gather", inputs(64, 2))
    words = shown(view.figure())
    assert any("aggregated: 4 ranks a column, 4 chunks a row" in word for word in words)
    assert "ranks 0 to 63, each:" in view.text() and "rank 63's" in view.text()
    got = semantics.all_gather(inputs(64, 2))
    got[9][3] = -1
    words = shown(views.ownership("all_gather", inputs(64, 2), got).figure())
    assert "1 differ" in words  # of the four ranks of that column
    assert len([word for word in words if re.fullmatch("1 of 16 differ|1 differ|differ", word)]) == 2


# Stepping


def test_stepping_through_the_controls(control):
    view = views.ownership(["reduce_scatter", "all_gather"], [A, B])
    widget = view.widget()
    slider = control(widget, "state")
    seen = [view._image.value]
    assert view.settings == {"step": 2} and slider.value == 2
    control(widget, "Back").click()
    seen.append(view._image.value)
    assert slider.value == 1 and "State 1 of 2" in view._caption.value
    slider.value = 0
    seen.append(view._image.value)
    assert view.settings == {"step": 0} and len(set(seen)) == 3
    control(widget, "Back").click()
    assert slider.value == 0
    view.step(), view.step(), view.step()
    assert slider.value == 2 and view._image.value == seen[0]
    control(widget, "Reset").click()
    assert slider.value == 0 and view._image.value == seen[2]
    view.close()


def test_buttons_that_lead_nowhere_stay_on_and_leave_the_state(control, picture):
    view = views.ownership(["reduce_scatter", "all_gather"], [A, B])
    widget = view.widget()
    for step, nowhere in ((2, ["Step"]), (0, ["Reset", "Back"])):
        view.set(step=step)
        before = picture(widget)
        for name in nowhere:
            assert not control(widget, name).disabled
            control(widget, name).click()
            assert view.settings == {"step": step} and picture(widget) == before
    view.close()


@pytest.mark.parametrize("got", [[[11, 22], [33, 44]], [[11, 22], [33, 45]]], ids=["right", "wrong"])
def test_before_the_last_state_nothing_of_the_run_is_given_away(got):
    view = views.ownership("reduce_scatter", [A, B], [np.array(x, "i4") for x in got], step=0)
    view.widget()
    revealing = re.compile("the run returned what|On every rank|differ|right|45|complete")
    words = shown(view._drawing.finish())
    assert view.verdict() not in words
    later = "The last state says whether the run returned what the definition says."
    assert view.caption() == f"State 0 of 1, before: input. {later}" and later in words
    assert not [word for word in words if word != later and revealing.search(word)]
    said = [line for line in view.text().splitlines() if line != later]
    assert "after reduce_scatter: result (the run's): not shown yet" in said
    assert not [line for line in said if revealing.search(line)]
    view.step()
    assert view.caption() == f"State 1 of 1, after reduce_scatter: result. {view.verdict()}"
    assert view.verdict() in shown(view._drawing.finish())
    assert view.verdict() in shown(view.figure()), "the static picture shows every state"
    assert view.verdict() in view.text()
    view.close()


def test_what_is_defined_is_no_secret_of_a_run():
    assert views.ownership("reduce_scatter", [A, B], step=0).caption().endswith("As defined; nothing was run.")


def test_what_has_not_happened_yet_is_not_shown():
    view = views.ownership("reduce_scatter", [A, B], step=0)
    view.widget()
    words = shown(view._drawing.finish())
    assert "[1, 2]" in words and words.count("?") == 2 and not any("11" in word for word in words)
    view.step()
    assert "[11, 22]" in shown(view._drawing.finish())
    assert "[11, 22]" in shown(
        views.ownership("reduce_scatter", [A, B], step=0).figure()
    )  # the static picture
    view.close()


# Bad input


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("all_reduced", [A, B]), r"operation is one of all_reduce.*not 'all_reduced'"),
        ((["all_reduce", 3], [A, B]), "operation is one of .*not 3"),
        (([], [A, B]), "operation is one of"),
        (("all_reduce", []), "inputs is a list with one array per rank, 1 to 256, not 0"),
        (("all_reduce", A), "inputs is a list with one array per rank.*ndarray"),
        (("all_reduce", [A, B[:3]]), "inputs: .*rank 1 passes shape"),
        (("reduce_scatter", [A[:3], B[:3]]), "inputs: .*3 elements cannot be cut into 2 equal blocks"),
        (("all_reduce", [A, B.astype(object)]), "inputs: .*rank 1 passes dtype object"),
        (("all_reduce", [A, B], [A]), "results is a Run, or a list with one result per rank, 2"),
        (("all_reduce", [A, B], 7), "results is a Run.*a int"),
        ((["all_gather", "all_reduce"], [A, B], [(A, A), A]), "rank 1 returned a ndarray, not a tuple of 2"),
        (("all_reduce", [A, B], None, RankMap.local(3)), "rank_map has 3 ranks, inputs has 2"),
    ],
)
def test_what_is_not_accepted_is_named(arguments, said):
    with pytest.raises((TypeError, ValueError), match=said):
        views.ownership(*arguments)


@pytest.mark.parametrize("named", [{"op": "mean"}, {"step": 2}, {"step": -1}, {"step": True}, {"step": 0.5}])
def test_keywords_are_checked(named):
    with pytest.raises(ValueError, match=next(iter(named))):
        views.ownership("all_reduce", [A, B], **named)


def test_no_elements_are_shown_as_none(misplaced):
    view = views.ownership("all_reduce", [np.zeros(0), np.zeros(0)], [np.zeros(0), np.zeros(0)])
    assert "no elements" in view.text() and "no elements" in shown(view.figure())
    assert misplaced(view.figure()) == [] and not view.holdings.wrong


def test_huge_and_odd_values_fit(misplaced):
    xs = [np.array([np.nan, -np.inf, 1e-300, -1.23456789e300] * 4) for _ in range(4)]
    assert misplaced(views.ownership("all_reduce", xs).figure()) == []
    assert misplaced(views.ownership("all_gather", [np.full(100_000, -(2**62))] * 8).figure()) == []

"""The rank map says what `RankMap.moves` says, in words and as a picture."""

import html

import pytest
from matplotlib.text import Text

from collectlab import views
from collectlab.layout import Partition, Place, RankMap

AB = RankMap(["A", "B"])


def labels(view):
    return [t.get_text() for t in view.figure().findobj(Text) if t.get_visible() and t.get_text()]


@pytest.mark.parametrize(
    ("before", "after", "partition"),
    [
        (AB, AB.swap(0, 1), Partition.equal(8, 2)),
        (AB, AB, Partition.equal(8, 2)),
        (AB, RankMap(["B", "C"]), Partition.equal(8, 2)),
        (RankMap.local(5), RankMap.local(5).reorder([4, 0, 1, 2, 3]), Partition.of([3, 0, 1, 0, 7])),
        (RankMap(["x"] * 3 + ["y"]), RankMap(["y"] * 3 + ["x"]), Partition.padded(13, 4)),
        (RankMap([("n1", "g"), ("n2", "g")]), RankMap([("n2", "g"), ("n2", "h")]), Partition.equal(2, 2)),
        (RankMap(["A", "B"]), RankMap([("n1", "A"), ("n2", "B")]), Partition.equal(2, 2)),
    ],
)
def test_every_move_and_every_slice_is_named(before, after, partition):
    view = views.rank_map(before, partition, other=after)
    moves, lines = before.moves(after, partition), view.text().splitlines()
    assert view.moves == moves
    for move in moves:
        assert str(move) in lines
    for rank in range(before.nranks):
        was, now = (next(m.device for m in moves if rank in ranks(m)) for ranks in (_before, _after))
        part, count = partition.slice(rank), partition.counts[rank]
        row = [str(rank), f"{part.start}:{part.stop}", str(count), was, now]
        assert row + ["moves"] * (count > 0 and was != now) in [line.split() for line in lines]
    drawn = labels(view)
    assert drawn.count("changed") == sum(move.changed for move in moves)
    assert drawn.count("unchanged") == sum(not move.changed for move in moves)


def _before(move):
    return move.ranks_before


def _after(move):
    return move.ranks_after


def test_the_words_of_two_ranks_that_change_places():
    view = views.rank_map(AB, Partition.equal(8, 2))
    assert "No slice moves" in view.text()
    view.swap(0, 1)
    assert view.after == AB.swap(0, 1)
    assert "2 of 2 slices move: rank 0's 0:4 from A to B; rank 1's 4:8 from B to A." in view.text()
    assert "A: rank 0 with 0:4 -> rank 1 with 4:8" in view.text()
    view.swap(0, 1)
    assert "No slice moves" in view.text()


def test_an_empty_slice_that_changes_device_moves_no_element():
    view = views.rank_map(AB, Partition.of([0, 0])).swap(0, 1)
    assert "No slice moves" in view.text()
    assert labels(view).count("unchanged") == 2


@pytest.mark.parametrize("nranks", [1, 2, 4, 8, 16, 17, 64])
def test_labels_are_apart_and_inside(nranks, misplaced):
    last = nranks - 1
    for before in (
        RankMap.local(nranks),
        RankMap([(f"a-node-with-a-long-name-{r // 4}", f"cuda:{r % 4}") for r in range(nranks)]),
        RankMap([f"device {r % 2}" for r in range(nranks)]),
    ):
        for partition in (
            Partition.equal(3 * nranks, nranks),
            Partition.equal(0, nranks),
            Partition.of([0, 1, 1_000_000, 50][r % 4] for r in range(nranks)),
        ):
            view = views.rank_map(before, partition).swap(0, last)
            assert misplaced(view.figure()) == [], (before, partition)
    all_move = before.reorder([*range(1, nranks), 0])
    assert misplaced(views.rank_map(before, partition, all_move).figure()) == []


def test_beyond_sixteen_ranks_the_picture_says_what_it_leaves_out():
    view = views.rank_map(RankMap.local(40), Partition.equal(80, 40)).swap(2, 39)
    drawn = labels(view)
    assert "40 slices, too many to draw one by one" in drawn
    assert "24 more devices are not drawn: 24 unchanged. The text has them all." in drawn
    assert drawn.count("changed") == 2
    other = RankMap.local(40).reorder([*range(1, 40), 0])
    shifted = views.rank_map(RankMap.local(40), Partition.equal(80, 40), other)
    assert "24 more devices are not drawn: 24 changed. The text has them all." in labels(shifted)
    assert "and 36 more" in shifted.caption()


def test_a_device_with_many_ranks_draws_first_what_comes_and_goes():
    view = views.rank_map(RankMap(["gpu"] * 6 + ["cpu"]), Partition.equal(7, 7)).swap(5, 6)
    drawn = labels(view)
    assert drawn.count("and 3 more ranks") == 2
    for rank in (5, 6):  # in the strip, and on the device that it leaves and the one that it reaches
        assert drawn.count(f"rank {rank}") == 3


def test_buttons_and_methods_go_the_same_way(control, picture):
    view = views.rank_map(RankMap.local(4), Partition.equal(8, 4))
    widget = view.widget()
    control(widget, "swap").value = 1
    control(widget, "with").value = 3
    control(widget, "Swap").click()
    other = views.rank_map(RankMap.local(4), Partition.equal(8, 4)).swap(1, 3)
    assert view.text() == other.text()
    assert view.png() == other.png() == picture(widget)
    control(widget, "Reset").click()
    assert "No slice moves" in view.text()
    assert view.png() == other.reset().png()
    view.swap(0, 2)
    assert (control(widget, "swap").value, control(widget, "with").value) == (0, 2)
    view.close()


def test_reset_goes_back_to_the_other_map():
    view = views.rank_map(AB, Partition.equal(2, 2), other=AB.swap(0, 1))
    first = view.text()
    assert view.swap(0, 1).text() != first
    assert view.reset().text() == first


def test_device_names_are_text_and_not_markup(markup):
    name = "<b>$x_1$</b>&amp;"
    view = views.rank_map(RankMap([name, "B"]), Partition.equal(2, 2)).swap(0, 1)
    assert name in view.text()
    assert name in labels(view)
    shown = markup(view.widget())
    assert name not in shown
    assert html.unescape(shown).count(name) > 2
    view.close()


PART = Partition.equal(4, 2)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ((["A", "B"], PART), TypeError, "rank_map is a layout.RankMap, not ['A', 'B']"),
        ((None, PART), TypeError, "rank_map is a layout.RankMap"),
        ((AB, [2, 2]), TypeError, "partition is a layout.Partition, not [2, 2]"),
        ((AB, PART, "BA"), TypeError, "other is a layout.RankMap, not 'BA'"),
        ((AB, Partition.equal(4, 4)), ValueError, "partition is for 4 ranks and rank_map for 2"),
        ((AB, PART, RankMap.local(3)), ValueError, "other is for 3 ranks and rank_map for 2"),
    ],
)
def test_bad_input_names_the_argument(given, error, says):
    with pytest.raises(error) as caught:
        views.rank_map(*given)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [(0, 2, "b is a rank, 0 to 1"), (-1, 0, "a is a rank"), ("0", 1, "a is a rank"), (0, True, "b is a rank")],
)
def test_a_swap_with_no_such_rank_changes_nothing(a, b, says):
    view = views.rank_map(AB, PART)
    before = view.text()
    with pytest.raises(ValueError, match=says):
        view.swap(a, b)
    with pytest.raises(ValueError, match="after is a RankMap of 2 ranks"):
        view.set(after=RankMap.local(3))
    assert view.text() == before
    assert view.settings["a"] == 0


def test_one_rank_and_places_with_hosts():
    one = views.rank_map(RankMap(["A"]), Partition.equal(4, 1)).swap(0, 0)
    assert "No slice moves" in one.text()
    hosts = RankMap([Place("n1", "cuda:0"), Place("n2", "cuda:0")])
    assert "rank 0's 0:2 from n1/cuda:0 to n2/cuda:0" in views.rank_map(hosts, PART).swap(0, 1).text()


def test_the_same_settings_give_the_same_text_and_picture():
    one, two = (views.rank_map(RankMap.local(8), Partition.uneven(30, 8)).swap(1, 6) for _ in range(2))
    assert one.text() == two.text() == repr(one)
    assert one.png() == two.png()

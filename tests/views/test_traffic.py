"""The traffic matrix says what the trace and the cards say, in words and as a picture."""

import html
import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.text import Text

import collectlab as cl
from collectlab import kernels, views
from collectlab.cost import Card
from collectlab.trace import Trace
from collectlab.views.traffic import FIELDS


def simulated(kernel, nranks, count, dtype=np.int64):
    return cl.simulate(kernel.all_reduce, cl.per_rank([np.arange(count, dtype=dtype)] * nranks), ranks=nranks)


def cards_of(kernel, nranks, count, itemsize=8):
    return [kernel.all_reduce_cost(nranks, count, itemsize, rank) for rank in range(nranks)]


def both(kernel, nranks, count):
    return simulated(kernel, nranks, count), cards_of(kernel, nranks, count)


def labels(view):
    return [t.get_text() for t in view.figure().findobj(Text) if t.get_visible() and t.get_text()]


def rows_of(text):
    """name -> the cells of the lines of the matrix, as they are written."""
    lines = [line.split() for line in text.split("\n\n")[1].splitlines()]
    return {" ".join(line[:2]) if line[0] == "in" else line[0]: line[2 if line[0] == "in" else 1 :] for line in lines}


KERNELS = (kernels.mesh, kernels.two_phase, kernels.ring, kernels.recursive_doubling, kernels.rabenseifner)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__.rpartition(".")[2])
@pytest.mark.parametrize(("nranks", "count"), [(1, 5), (2, 4), (3, 7), (4, 16), (7, 3)])
def test_matrix_sums_and_cards_stand_in_the_text(kernel, nranks, count):
    run, cards = both(kernel, nranks, count)
    view = views.traffic(run, cards)
    assert (view.matrix == run.traffic).all()
    between = run.traffic * (1 - np.eye(nranks, dtype=int))
    rows = rows_of(view.text())
    for rank in range(nranks):
        cells = [f"{n:,}" for n in run.traffic[rank]]
        cells[rank] = f"({cells[rank]})" if run.traffic[rank, rank] else "-"
        assert rows[str(rank)] == [*cells, f"{between[rank].sum():,}", f"{cards[rank].nbytes:,}"]
    assert rows["in all"] == [f"{n:,}" for n in (*between.sum(axis=0), between.sum())]
    assert view.differences() == [] and "that its card says" in view.verdict()
    assert view.measured == cards == [run.trace.measured(rank) for rank in range(nranks)]
    for step in range(view.last + 1):
        assert (view.verdict() in view.set(step=step).text()) == (step == view.last)


def test_the_ring_reads_from_the_left_only_and_two_phases_from_all():
    ring, two = (views.traffic(*both(kernel, 4, 16)).matrix for kernel in (kernels.ring, kernels.two_phase))
    for matrix in (ring, two):
        np.fill_diagonal(matrix, 0)
    assert (ring.sum(axis=1) == two.sum(axis=1)).all()
    assert [(to, source) for to, source in np.argwhere(ring)] == [(0, 3), (1, 0), (2, 1), (3, 2)]
    assert np.count_nonzero(two) == 12


@pytest.mark.parametrize("field", FIELDS)
def test_a_card_that_the_run_does_not_keep_to_is_named(field):
    run, cards = both(kernels.two_phase, 4, 16)
    for change, budget in ((-1, "exceeded"), (1, "not used up")):
        told = [*cards]
        told[2] = replace(told[2], **{field: getattr(told[2], field) + change})
        view = views.traffic(run, told)
        measured, predicted = getattr(cards[2], field), getattr(told[2], field)
        assert view.differences() == [(2, field, measured, predicted)]
        said = f"1 of 4 ranks did something else than the cards say, first rank 2, whose {field} is {measured}"
        assert view.verdict() == f"{said} and not {predicted}."
        assert view.verdict() in view.text() and view.verdict() in labels(view)
        assert budget in labels(view) and "met" not in labels(view)
        assert f"{measured} (card: {predicted})" in view.text()
        assert "exceeded" not in labels(view.set(step=1))  # so far, nothing can be said


def test_pushes_and_what_the_own_window_gives_are_counted_where_they_arrive():
    def push(ctx):
        window, signals = ctx.window("w", 4, np.int32), ctx.signals("s", rows=1)
        if ctx.rank == 0:
            window.remote_store(1, np.arange(4, dtype=np.int32))
        ctx.barrier(signals, 0)
        return window.load(slice(0, 2)) if ctx.rank == 1 else None

    run = cl.simulate(push, ranks=2)
    view = views.traffic(run, [Card(16, 1, 1, 1, 1, 1), Card(0, 0, 1, 1, 1, 1)])
    assert view.matrix.tolist() == [[0, 0], [16, 8]]
    assert view.differences() == []
    rows = rows_of(view.text())
    assert rows["1"] == ["16", "(8)", "16", "0"] and rows["0"] == ["-", "0", "0", "16"]
    assert "payload" not in view.text()  # one rank returned no array
    assert "no array" in labels(view)


def test_steps_go_from_nothing_to_the_whole_run():
    run, cards = both(kernels.ring, 4, 4)
    view = views.traffic(run, cards, step=0)
    assert view.last == cards[0].steps == 7
    totals = []
    for step in range(view.last + 1):
        view.set(step=step)
        totals.append(int(view.matrix.sum() - view.matrix.trace()))
        assert f"state {step} of 7" in view.text() and view.measured[0].steps == step
    assert totals == [0, 32, 64, 96, 128, 160, 192, 192]  # the last step frees the window
    two = views.traffic(*both(kernels.two_phase, 4, 4), step=1)
    assert "before it waited for the 2nd time" in two.text()
    assert int(two.matrix.sum() - two.matrix.trace()) == 4 * 3 * 8


def test_without_cards_nothing_is_predicted():
    view = views.traffic(simulated(kernels.mesh, 2, 3), name="mine")
    assert view.text().startswith("traffic of mine on 2 ranks") and "card" not in rows_of(view.text())["to"]
    assert "No cards were given" in view.verdict()
    assert "no card" in labels(view) and not any("card:" in label for label in labels(view))


def test_nothing_traced_is_not_taken_for_nothing_moved():
    run = cl.simulate(kernels.mesh.all_reduce, cl.per_rank([np.arange(3)] * 2), ranks=2, trace=False)
    view = views.traffic(run, cards_of(kernels.mesh, 2, 3))
    assert "Nothing was traced: no window was used, or tracing was off." in view.text()
    assert view.differences() == [] and view.last == 0
    assert "nothing was traced" in labels(view) and "met" not in labels(view)


def test_a_run_that_failed_half_way_says_so():
    def fails(ctx, x):
        if ctx.rank == 1:
            raise ValueError("no")
        return kernels.two_phase.all_reduce(ctx, x)

    run = cl.simulate(fails, np.arange(4), ranks=3)
    view = views.traffic(run, cards_of(kernels.two_phase, 3, 4))
    assert "The run's status is 'failed'." in view.verdict() and view.differences()
    assert view.png().startswith(b"\x89PNG")


@pytest.mark.parametrize("nranks", [1, 2, 3, 4, 8, 9, 16, 17, 33, 64])
@pytest.mark.parametrize("count", [0, 64, 12_345, 2**40])
def test_labels_are_apart_inside_and_whole(nranks, count, misplaced):
    run, cards = both(kernels.two_phase, nranks, min(count, 12_345))
    if count == 2**40:  # no such memory: the bytes of the events are enlarged instead
        for event in run.trace.events:
            event.nbytes *= 2**30
    view = views.traffic(run, [replace(card, nbytes=card.nbytes + 1) for card in cards])
    assert misplaced(view.figure()) == []
    numbers = [label for label in labels(view) if re.search(r"\d", label)]
    assert not [label for label in numbers if "…" in label and "did something" not in label]


def test_sixty_four_ranks_are_aggregated_and_it_is_said():
    run, cards = both(kernels.ring, 64, 64)
    view = views.traffic(run, cards)
    text = view.text()
    assert "aggregated: 4 ranks a row and a column" in text
    assert any("aggregated: 4 ranks a row and a column" in label for label in labels(view))
    moved = run.trace.measured(0).nbytes
    rows = rows_of(text)
    assert rows["0–3"][0] == f"{3 * moved:,}" and rows["0–3"][-3:] == [f"{moved:,}", *[f"{4 * moved:,}"] * 2]
    assert "hatched" not in " ".join(labels(view))


def test_rounded_numbers_say_that_they_are():
    run, cards = both(kernels.two_phase, 16, 123_457)
    view = views.traffic(run, cards)
    assert "KiB are rounded to three digits; the text has every byte" in " ".join(labels(view))
    assert f"{cards[0].nbytes:,}" in view.text()
    exact = views.traffic(*both(kernels.two_phase, 16, 1000))
    assert "rounded" not in " ".join(labels(exact)) and "1008" in labels(exact)


def test_a_result_is_named_a_payload_and_no_traffic():
    view = views.traffic(*both(kernels.mesh, 2, 3))
    assert "result (payload, not traffic): 24 bytes a rank" in view.text()
    assert {"payload (result), bytes", "24", "not traffic"} <= set(labels(view))


def test_buttons_and_step_go_the_same_way(control, picture):
    view = views.traffic(*both(kernels.ring, 3, 6))
    widget = view.widget()
    control(widget, "Reset").click()
    assert view.settings == {"step": 0}
    control(widget, "Step").click()
    control(widget, "state").value = 3
    control(widget, "Back").click()
    other = views.traffic(*both(kernels.ring, 3, 6), step=2)
    assert view.text() == other.text() and picture(widget) == other.png()
    view.close()


def test_names_are_no_markup(markup):
    view = views.traffic(simulated(kernels.mesh, 2, 3), name="<script>alert(1)</script> & $x^2$")
    view.widget()
    assert "<script" not in markup(view.widget())
    assert "<script>alert(1)</script> & $x^2$" in html.unescape(markup(view.widget()))
    view.close()


def test_a_run_of_real_ranks_is_read_like_a_simulated_one():
    xs = [np.arange(6.0) + rank for rank in range(3)]
    run = cl.run(kernels.ring.all_reduce, cl.per_rank(xs), ranks=3, device="cpu")
    view = views.traffic(run, cards_of(kernels.ring, 3, 6))
    assert view.differences() == []
    simulated_ = cl.simulate(kernels.ring.all_reduce, cl.per_rank(xs), ranks=3)
    assert view.text() == views.traffic(simulated_, view.cards).text()


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((None,), TypeError, "run is what cl.run or cl.simulate returned, not None"),
        ((np.zeros((2, 2)),), TypeError, "run is what cl.run or cl.simulate returned"),
        ((..., 3), TypeError, "cards is a list with the cost.Card of each rank, or None"),
        ((..., [1, 2]), TypeError, "cards is a list with the cost.Card of each rank"),
        ((..., [Card(0, 0, 0, 0, 0, 0)]), ValueError, "cards has 1 of them, and the run 2 ranks"),
    ],
)
def test_bad_input_names_the_argument(arguments, error, says):
    run = simulated(kernels.mesh, 2, 3)
    with pytest.raises(error) as caught:
        views.traffic(*(run if argument is ... else argument for argument in arguments))
    assert says in str(caught.value) and "traffic(run, cards)" in str(caught.value)


@pytest.mark.parametrize("step", [-1, 99, 1.0, True, None, "1"])
def test_a_step_that_is_not_there_is_named(step):
    view = views.traffic(simulated(kernels.mesh, 2, 3))
    with pytest.raises(ValueError, match=f"step is a whole number, 0 to 2, not {step!r}"):
        view.set(step=step)


def test_a_prediction_of_who_reads_from_whom_is_held_against_the_run():
    run, other = simulated(kernels.ring, 4, 12), simulated(kernels.two_phase, 4, 12)
    right, wrong = views.traffic(run, predicted=run), views.traffic(run, predicted=other)
    for one in (right, wrong):  # the sums are alike, the pattern is not
        rows = rows_of(one.text())
        assert rows["predicted"] == rows["in all"]
    assert right.wrong_pairs() == [] and "the bytes that were predicted" in right.verdict()
    differ = {(to, source): (n, want) for to, source, n, want in wrong.wrong_pairs()}
    for to in range(4):
        for source in range(4):
            n, want = int(run.traffic[to, source]), int(other.traffic[to, source])
            assert differ.get((to, source)) == (None if to == source or n == want else (n, want))
    assert "rank 0 from rank 1: 0 bytes (predicted: 48)" in wrong.text()
    assert labels(wrong).count("not 48") == 12 and "not 48" not in labels(right)
    assert "(predicted: 48)" not in wrong.set(step=3).text() and "not 48" not in labels(wrong)


def test_a_prediction_may_be_written_down():
    run = simulated(kernels.mesh, 2, 3)
    own = np.array([[7, 24], [24, 7]])  # own windows do not count
    assert views.traffic(run, predicted=own).wrong_pairs() == []
    assert views.traffic(run, predicted=[[0, 24], [23, 0]]).wrong_pairs() == [(1, 0, 24, 23)]
    assert own[0, 0] == 7
    for given, error in (
        (np.zeros((3, 3), int), ValueError), (np.zeros((2, 2)), TypeError), (-own, TypeError), ("24", TypeError),
        ([[0, 1], [2]], TypeError), (np.full((2, 2), 2**62), TypeError), (np.full((2, 2), 2**63), TypeError),
        (simulated(kernels.mesh, 3, 3), ValueError),
    ):  # fmt: skip
        with pytest.raises(error, match=r"traffic\(run, cards, predicted\): predicted"):
            views.traffic(run, predicted=given)


@pytest.mark.parametrize("nranks", (2, 4, 8, 9, 16, 64))
def test_labels_are_apart_and_inside_with_a_prediction(nranks, misplaced):
    run, cards = both(kernels.ring, nranks, nranks)
    assert misplaced(views.traffic(run, cards, predicted=np.ones((nranks, nranks), int)).figure()) == []


def test_a_trace_alone_will_do():
    run = simulated(kernels.mesh, 2, 3)
    assert np.array_equal(views.traffic(run.trace).matrix, views.traffic(run).matrix)
    with pytest.raises(TypeError) as caught:
        views.traffic(["a long list"] * 100_000)
    assert len(str(caught.value)) < 200


def test_a_trace_of_many_events_opens():
    run = simulated(kernels.ring, 8, 8)
    many = Trace(8, run.trace.events * 200)
    assert len(many.events) > 50_000
    run.trace = many
    view = views.traffic(run)
    assert view.matrix.sum() == 200 * simulated(kernels.ring, 8, 8).traffic.sum()

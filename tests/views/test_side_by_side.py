"""Two kernel players beside each other, and the witness that one of them may show."""

import numpy as np
import pytest
from matplotlib.text import Text

import collectlab as cl
from collectlab import views
from collectlab.kernels import mesh, ring, two_phase
from collectlab.trace import Trace
from collectlab.views.view import NotAccepted

X = np.arange(16.0)


def labels(view):
    return [t.get_text() for t in view.figure().findobj(Text) if t.get_visible() and t.get_text()]


def player(kernel, nranks=4):
    cards = [kernel.all_reduce_cost(nranks, X.size, X.itemsize, rank) for rank in range(nranks)]
    return views.kernel_player(cl.simulate(kernel.all_reduce, X, ranks=nranks), cards, kernel.__name__[-9:])


def broken(ctx, x):
    data, signals = ctx.window("data", x.size, x.dtype), ctx.signals("s", rows=2)
    data.store(x)
    ctx.barrier(signals, 0)
    y = sum(data.remote_load(peer) for peer in range(ctx.nranks))
    data.store(0 * x)
    return y


def mended(ctx, x):
    data, signals = ctx.window("data", x.size, x.dtype), ctx.signals("s", rows=2)
    data.store(x)
    ctx.barrier(signals, 0)
    y = sum(data.remote_load(peer) for peer in range(ctx.nranks))
    ctx.barrier(signals, 1)
    data.store(0 * x)
    return y


def harmless(ctx, x):
    data = ctx.window("data", x.size, x.dtype)
    data.store(x)
    data.remote_load((ctx.rank + 1) % ctx.nranks)


def test_both_make_the_same_step_and_one_that_is_over_stays():
    one, two = player(mesh), player(two_phase)
    view = views.side_by_side(one, two)
    assert view.last == two.last > one.last
    for step in range(view.last + 1):
        view.set(step=step)
        assert [p.settings["step"] for p in view.players] == [min(step, one.last), step]
        for shown, alone in zip(view.players, (one, two), strict=True):
            assert shown.text() == alone.alike().set(step=shown.settings["step"]).text()
            assert shown.text() in view.text()
    assert one.settings["step"] == two.settings["step"] == 0  # the players that were given are left alone


def test_by_barrier_both_have_passed_the_same_number_of_them():
    view = views.side_by_side(player(mesh), player(two_phase), by="barrier")
    assert view.last == 3  # two barriers, and the end
    for state in range(view.last + 1):
        view.set(step=state)
        passed = [{card.barriers for card in p.states.measured(p.settings["step"])} for p in view.players]
        assert passed == [{min(state, 2)}] * 2
    assert [p.settings["step"] for p in view.players] == [p.last for p in view.players]
    assert view.set(by="step").settings == {"by": "step", "step": 0}


def test_the_comparison_adds_up():
    view = views.side_by_side(player(mesh), player(two_phase))
    view.set(step=view.last)
    moved = [4 * 3 * X.nbytes, 4 * 2 * 3 * X.nbytes // 4]
    assert all(f"{nbytes:,} bytes moved in all, 2 waits a rank" in view.comparison() for nbytes in moved)
    assert "Steps are no time" in view.text() and any("Steps are no time" in label for label in labels(view))


def test_a_broken_kernel_beside_the_mended_one():
    view = views.side_by_side(*(views.kernel_player(cl.simulate(p, X, ranks=3)) for p in (broken, mended)))
    view.first_race()
    one, two = view.players
    assert one.states.race_step == one.settings["step"] == view.settings["step"] and two.states.races == []
    assert "race" in labels(view) and any(label.startswith("mend: ") for label in labels(view))
    with pytest.raises(ValueError, match=r"first_race\(\): neither run has a race"):
        views.side_by_side(two, two).first_race()


def test_controls_and_methods_go_the_same_way(control, picture):
    view, other = (views.side_by_side(player(mesh, 2), player(ring, 2)) for _ in range(2))
    widget = view.widget()
    control(widget, "Step").click()
    control(widget, "state").value = 4
    assert picture(widget) == other.set(step=4).png()
    control(widget, "go on by").value = "barrier"
    control(widget, "Step").click()
    other.set(by="barrier").step()
    assert view.settings == other.settings and picture(widget) == other.png()
    assert control(widget, "state").max == view.last and control(widget, "First race").disabled
    view.close()


@pytest.mark.parametrize("nranks", (1, 2, 4, 8, 16))
def test_labels_are_apart_and_inside(nranks, misplaced):
    view = views.side_by_side(player(mesh, nranks), player(two_phase, nranks))
    for step in {0, 1, view.last // 2, view.last}:
        assert misplaced(view.set(step=step).figure()) == []
    assert any(label.startswith("Aggregated: a column stands for") for label in labels(view)) == (nranks > 8)


def test_bad_input_names_the_argument():
    good = player(mesh, 2)
    for given, said in (((good, 3), "two is what kernel_player returns, not 3"), ((None, good), "one is what")):
        with pytest.raises(TypeError, match=r"side_by_side\(one, two\)") as caught:
            views.side_by_side(*given)
        assert said in str(caught.value)
    with pytest.raises(ValueError, match="by is one of step, barrier, not 'time'"):
        views.side_by_side(good, good, by="time")
    with pytest.raises(ValueError, match="side_by_side: step is a whole number, 0 to"):
        views.side_by_side(good, good, step=99)


# The witness


def test_the_witness_is_a_run_in_which_the_race_does_harm():
    want = X * 3
    runs = (cl.simulate(broken, X, ranks=3, schedule=schedule) for schedule in range(500))
    given = next(run for run in runs if all(np.array_equal(y, want) for y in run.results))  # a lucky one
    view = views.kernel_player(given).set(witness=True)
    replayed = cl.simulate(broken, X, ranks=3, schedule=view.witness.schedule)
    assert not all(np.array_equal(y, want) for y in replayed.results)
    assert view.states.events == replayed.trace.events
    assert view.settings["step"] == view.states.step_of[view.witness.place]
    assert "Here the race does harm." in view.caption() and str(view.witness).splitlines()[0] in view.text()
    assert f"schedule {view.witness.schedule}" in view.title()
    assert "does harm" not in view.step(-1).caption()
    assert view.set(witness=False).settings == {"step": 0, "witness": False}
    assert view.text() == views.kernel_player(given).text()


def test_the_button_looks_for_the_witness(control, markup):
    view = views.kernel_player(cl.simulate(broken, X, ranks=3))
    widget = view.widget()
    control(widget, "Witness").value = True
    assert view.settings["witness"] and control(widget, "state").max == view.last
    control(widget, "Witness").value = False
    assert view.settings == {"step": 0, "witness": False}
    assert control(views.kernel_player(cl.simulate(mended, X, ranks=3)).widget(), "Witness").disabled
    view.close()


def test_where_there_is_no_witness_it_is_said(control, markup):
    view = views.kernel_player(cl.simulate(harmless, X, ranks=2))
    widget = view.widget()
    control(widget, "Witness").value = True
    assert "Not accepted" in markup(widget) and "it did no harm" in markup(widget)
    assert view.settings == {"step": 0, "witness": False} and control(widget, "Witness").value is False
    view.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (cl.simulate(mended, X, ranks=2), "there is no race"),
        (cl.simulate(harmless, X, ranks=2), "it did no harm"),
        (cl.simulate(broken, X, ranks=2).trace, "a trace alone does not hold the program"),
        (Trace(2), "a trace alone"),
    ],
)
def test_a_witness_that_cannot_be_had_leaves_the_view_as_it_was(given, said):
    view = views.kernel_player(given)
    before = view.text()
    with pytest.raises(NotAccepted, match=r"^kernel_player: witness=True") as caught:
        view.set(witness=True)
    assert said in str(caught.value) and said in caught.value.plain
    assert view.text() == before and view.settings == {"step": 0, "witness": False}
    with pytest.raises(ValueError, match="witness is True or False, not 'yes'"):
        view.set(witness="yes")


def test_the_witness_of_a_run_on_real_ranks():
    run = cl.run(broken, X, ranks=2, device="cpu")
    view = views.kernel_player(run).set(witness=True)
    assert "Here the race does harm." in view.caption()


def test_runs_that_are_called_alike_are_told_apart_by_their_side():
    view = views.side_by_side(*(views.kernel_player(cl.simulate(mesh.all_reduce, X, ranks=2)) for _ in range(2)))
    for said in (view.caption(), view.text(), view.comparison()):
        left, right = said.index("left, mesh.all_reduce on 2"), said.index("right, mesh.all_reduce on 2")
        assert left < right
    runs = [cl.simulate(kernel.all_reduce, X, ranks=2) for kernel in (mesh, two_phase)]
    named = views.side_by_side(*map(views.kernel_player, runs))
    assert "left" not in named.text() + named.caption()


def test_what_is_not_accepted_leaves_the_view_as_it_was():
    view = views.side_by_side(player(mesh), player(two_phase), step=1)
    before = view.settings, view.text()
    for wrong in ({"step": 99}, {"by": "barrier", "step": 99}, {"by": "time"}):
        with pytest.raises(ValueError, match="side_by_side"):
            view.set(**wrong)
        assert (view.settings, view.text()) == before
    assert view.step().settings["step"] == 2


def test_a_player_that_is_like_another_has_its_witness_too():
    first = views.kernel_player(cl.simulate(broken, X, ranks=2))
    other = first.alike()
    first.set(witness=True)
    assert other.set(witness=True).text() == first.text()

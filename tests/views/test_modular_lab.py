"""The modular lab: orbits walked once more, predictions, and the two results beside them."""

import itertools
import math

import numpy as np
import pytest
from matplotlib.text import Text

from collectlab import semantics, views
from collectlab.views.modular_picture import NOT, RULE

PAIRS = [(m, a) for m in (1, 2, 7, 8, 12, 16) for a in (0, 1, 3, 6, 8, 17, -1)]


def walk(m, a, steps):
    x, orbit = 0, [0]
    for _ in range(steps):
        x = (x + a) % m
        orbit.append(x)
    return orbit


def labels(view):
    return [t.get_text() for t in view.figure().findobj(Text) if t.get_visible() and t.get_text()]


@pytest.mark.parametrize(("m", "a"), PAIRS)
def test_the_orbit_is_walked_and_its_period_counted(m, a):
    view = views.modular_lab(m, a)
    assert view.last == m
    for step in range(m + 1):
        assert view.set(step=step).orbit == walk(m, a, step)
    back = next(n for n in itertools.count(1) if walk(m, a, n)[-1] == 0)
    assert view.period == back == m // math.gcd(a, m)
    assert f"period: {back} = m / gcd(a, m)" in view.text()
    if back > 1:
        assert "period: not found yet" in view.set(step=back - 1).text()


def test_the_guided_pair():
    one, three = views.modular_lab(8, 1), views.modular_lab(8, 3)
    assert one.step().orbit == [0, 1] and three.step().orbit == [0, 3]
    one.set(step=8), three.set(step=8)
    assert one.period == three.period == 8
    assert set(one.orbit) == set(three.orbit) == set(range(8)) and one.orbit != three.orbit
    assert one.wrong == [] and three.wrong == [1, 2, 3, 5, 6, 7]


@pytest.mark.parametrize(("m", "a"), [(m, a) for m, a in PAIRS if math.gcd(a, m) == 1])
def test_placed_is_the_all_gather_and_appended_is_the_order_of_arrival(m, a):
    view = views.modular_lab(m, a, step=m)
    xs = [np.array([rank]) for rank in range(m)]
    assert view.placed == semantics.all_gather(xs)[0].tolist()
    assert view.appended == np.concatenate([xs[rank] for rank in walk(m, a, m - 1)]).tolist()
    assert view.wrong == [slot for slot, rank in enumerate(view.appended) if slot != rank]
    assert any("luck" in said for said in view.verdict()) == (view.wrong == [] and m > 2)


def test_where_a_divisor_is_shared_chunks_are_missing_for_ever():
    view = views.modular_lab(12, 8, step=12)
    assert view.placed == [0, *[None] * 3, 4, *[None] * 3, 8, *[None] * 3]
    assert view.appended == [0, 8, 4, *[None] * 9]
    assert "gcd(8, 12) = 4, so the orbit visits one rank in 4" in view.verdict()[0]


def test_it_says_that_the_orbit_moves_nothing():
    view = views.modular_lab()
    assert "reduces nothing and gathers nothing" in NOT
    assert {NOT, RULE} <= set(labels(view)) and NOT in view.text()


SAID = [
    ({"residue": "3"}, 0, "You predict residue 3 after step 1. Make the step."),
    ({"residue": "3"}, 1, "You predicted residue 3 after step 1: right."),
    ({"residue": "0"}, 1, "it is 3; that is where the step began"),
    ({"residue": "5"}, 1, "it is 3; 0 + 3 is 3."),
    ({"residue": "8"}, 1, "it is 3; mod 8 leaves 0 to 7"),
    ({"period": "8"}, 7, "It is found when x is back at 0."),
    ({"period": "8"}, 8, "You predicted period 8: right."),
    ({"period": "3"}, 8, "it is 8; that is what each step adds"),
    ({"period": "5"}, 8, "it is 8; x was back at 0 after 8 steps"),
]


@pytest.mark.parametrize(("predictions", "step", "said"), SAID)
def test_predictions_are_held_against_the_orbit(predictions, step, said):
    view = views.modular_lab(8, 3, **predictions).set(step=step)
    (told,) = view.said_of_predictions()
    assert said in told and told in view.text() and any(told in label for label in labels(view))


def test_a_prediction_is_about_the_step_after_it():
    view = views.modular_lab(8, 3, step=2).set(residue="9")
    assert view.settings["of"] == 3
    assert "it is 1; that is 6 + 3; mod 8 is still to be taken" in view.step().said_of_predictions()[0]
    view = views.modular_lab(8, 3, step=2, residue="5").step()
    assert "it is 1; 6 + 3 is 9, and mod 8 takes the multiples of 8 off" in view.said_of_predictions()[0]
    view.set(residue="4")
    assert "You predicted residue 4 after step 4: right." in view.step().said_of_predictions()


def test_nothing_that_it_says_is_cut_in_the_picture():
    for m, a in itertools.product((3, 8, 12, 64), (1, 3, 8, -10**6, 10**6)):
        view = views.modular_lab(m, a, residue="63", period="63")
        for step in (0, m // 2, m):
            shown = labels(view.set(step=step))
            assert {*view.said_of_predictions(), *(said.partition(": ")[2] for said in view.verdict())} <= {*shown}
    (title, *_), said = labels(views.modular_lab(8, -3, step=3)), views.modular_lab(8, -3, step=3).caption()
    assert "(x - 3) mod 8" in title and said == "Step 3: (2 - 3) mod 8 = 7."


def test_m_is_no_period_where_a_divisor_is_shared():
    (said,) = views.modular_lab(8, 6, step=4, period="8").said_of_predictions()
    assert said.startswith("You predicted period 8: it is 4; a and m have the divisor 2 in common")


def test_another_m_or_a_begins_anew():
    view = views.modular_lab(8, 3, step=5, residue="2", period="8")
    for change in ({"a": 1}, {"m": 7}):
        view.set(**change)
        assert [view.settings[name] for name in ("step", "residue", "period")] == [0, "", ""]
        view.set(step=3, residue="1")
    view.set(a=1)  # as it was
    assert view.settings["step"] == 3


def test_controls_and_methods_go_the_same_way(control, picture, markup):
    view, other = views.modular_lab(), views.modular_lab()
    widget = view.widget()
    control(widget, "a").value = 3.0
    control(widget, "residue after the next step").value = "3"
    control(widget, "Step").click()
    other.set(a=3)
    other.set(residue="3")
    other.step()
    assert view.settings == other.settings and picture(widget) == other.png()
    control(widget, "m").value = 12.0
    assert control(widget, "state").max == 12 and control(widget, "residue after the next step").value == ""
    for name, wrong in (("a", 0.5), ("m", 0.0), ("m", 65.0), ("period", "eight")):
        control(widget, name).value = wrong
        assert "Not accepted" in markup(widget) and view.settings["m"] == 12
        assert control(widget, name).value == view.settings[name]
    view.close()


@pytest.mark.parametrize(("m", "a"), [(1, 0), (2, 1), (8, 3), (12, 8), (16, 5), (17, 3), (32, 7), (33, 2), (64, 5)])
def test_labels_are_apart_and_inside(m, a, misplaced):
    view = views.modular_lab(m, a, residue="1", period="1")
    for step in {0, 1, m // 2, m}:
        assert misplaced(view.set(step=step).figure()) == []


def test_every_slot_is_drawn_also_where_there_are_many():
    drawn = labels(views.modular_lab(64, 5, step=64))
    assert all(drawn.count(str(slot)) >= 3 for slot in range(64))  # on the ring, and in both results


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"m": 0}, "m is a whole number, 1 to 64, not 0"),
        ({"m": 65}, "m is a whole number, 1 to 64, not 65"),
        ({"m": True}, "m is a whole number, 1 to 64, not True"),
        ({"a": 1.5}, "a is a whole number"),
        ({"step": 9}, "step is a whole number, 0 to 8, not 9"),
        ({"period": "--5"}, "period is a whole number of nine digits at most, or nothing, not '--5'"),
        ({"residue": "9" * 5000}, "residue is a whole number of nine digits at most, or nothing, not '9999999"),
        ({"residue": "three"}, "residue is a whole number of nine digits at most, or nothing, not 'three'"),
    ],
)
def test_what_is_not_accepted_is_named(settings, said):
    with pytest.raises(ValueError, match=r"^modular_lab\(m=") as caught:
        views.modular_lab(**settings)
    assert said in str(caught.value)


def test_a_step_that_a_prediction_cannot_be_for_is_named():
    for of in ("x", 0, True):
        with pytest.raises(ValueError, match="of is the number of a step, from 1 up"):
            views.modular_lab().set(of=of)

"""Every exercise against right answers in several forms, wrong ones, and junk."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

import collectlab as cl
from collectlab.exercises import reading
from collectlab.exercises.exercise import Exercise, Mistake, Verdict

LESSONS = [getattr(cl.exercises, name) for name in cl.exercises.__all__]
EXERCISES = {
    f"{lesson.__name__.rpartition('.')[2]}.{name}": found
    for lesson in LESSONS
    for name, found in vars(lesson).items()
    if isinstance(found, Exercise)
}


class Hostile:
    """An object whose every method raises."""

    def _no(self, *_, **__):
        raise RuntimeError("no")

    __repr__ = __array__ = __len__ = __iter__ = __eq__ = __index__ = __float__ = __call__ = __getitem__ = _no


JUNK = [
    None, "", "eleven", b"11", True, [True, False], float("nan"), [np.nan, 1], np.inf, 1j, {}, {"a": 1}, {1, 2}, [],
    [[]], [None], [1, None], [[1], [2, 3]], [[[1]]], [[[[1]]]], np.zeros((2, 0)), np.zeros(10_000),
    np.array(["a"]), np.array([object()]), object(), Hostile(), [Hostile()], len, lambda: 1, range(3), Fraction(1, 3),
    10**400, [10**400], "a" * 10_000, frozenset(), frozenset({"z"}), np.datetime64("2026-01-01"), Ellipsis, [..., 1],
    iter([1]), np.ma.masked, type, Exercise, slice(1, 2), -1, [-1, -1], 3.5, ["a", 1], ("nothing",),
]  # fmt: skip


def wrong_values(exercise):
    """(name of the mistake, a wrong answer): where mistakes are rules, every answer with one choice wrong."""
    right, options = exercise.expected, exercise.options
    if isinstance(right, frozenset):
        extra = [(f"takes {letter}", right | {letter}) for letter in options if letter not in right]
        return extra + [(f"lacks {letter}", right - {letter}) for letter in sorted(right)]
    if isinstance(right, tuple):
        return [
            (f"{option} for need {place + 1}", (*right[:place], option, *right[place + 1 :]))
            for place in range(len(right))
            for option in options
            if option != right[place]
        ]
    return [(m.name, m.wrong) for m in exercise.mistakes if not callable(m.wrong)]


@pytest.fixture(params=EXERCISES)
def exercise(request):
    return EXERCISES[request.param]


def as_answers(value):
    """The forms in which a learner may write one value down."""
    if isinstance(value, str):
        return [value, value.upper(), f" {value} ", value.replace("_", "-"), value.replace("_", "")]
    if isinstance(value, frozenset):
        letters = sorted(value)
        texts = ["".join(letters), " ".join(letters), ",".join(letters).upper(), " and ".join(letters)]
        lists = [letters, np.array(letters), [f"{one.upper()})" for one in letters], texts[1:2]]
        return [value, set(value), *texts, *lists]
    if isinstance(value, tuple):
        return [value, list(value), [one.upper() for one in value], ", ".join(value), np.array(value)]
    array = np.asarray(value)
    forms = [array, array.tolist(), array.astype(float), array.astype(float).tolist(), array.astype(np.int64)]
    if array.ndim:
        forms += [tuple(array.tolist()), [*array], tuple(array)]
    return forms


def test_right_answers_pass_in_every_form(exercise):
    for answer in as_answers(exercise.expected):
        verdict = exercise(answer)
        assert verdict and verdict.text.startswith("right: ") and verdict.mistake is None, (answer, verdict)


def test_every_wrong_answer_is_recognised_in_every_form(exercise):
    for name, wrong in wrong_values(exercise):
        for answer in as_answers(wrong):
            verdict = exercise(answer)
            assert not verdict and verdict.mistake == name, (answer, verdict)
            assert verdict.text.startswith("not yet: you answered ")


BY_RULE = [
    ("rings.bytes_and_rounds", [512, 16, 512, 2], "its own chunk too"),
    ("rings.bytes_and_rounds", [512, 14, 512, 2], "its own chunk too"),
    ("rings.bytes_and_rounds", [448, 15, 448, 2], "steps"),
    ("rings.across_the_hosts", [1792, 1792], "all that four ranks read"),
    ("rings.across_the_hosts", [448, 1792], "all that four ranks read"),
    ("rings.across_the_hosts", [1024, 448], "turned round"),
    ("rings.across_the_hosts", [224, 1024], "one phase"),
    ("rings.across_the_hosts", [448, 512], "one phase"),
    ("rings.across_the_hosts", [224, 512], "one phase"),
    ("rings.across_the_hosts", [896, 1024], "both ways"),
    ("rings.across_the_hosts", [896, 2048], "both ways"),
    ("rings.bytes_and_rounds", [256, 14, 256, 2], "the vector"),
    ("rings.bytes_and_rounds", [1792, 14, 448, 2], "the ring as a mesh"),
    ("rings.bytes_and_rounds", [3584, 14, 3584, 2], "all ranks"),
    ("rings.contributions", [3, 2, 1], "falling"),
    ("rings.contributions", [2, 1, 3], "falling"),
    ("rings.partners", [6, 7, 1], "always up"),
    ("rings.partners", [6, 7, 9], "always up"),
    ("arrival_order.residues", [3, 6, 9, 4, 7], "mod now and then"),
    ("arrival_order.residues", [3, 6, 1, 12, 7], "mod now and then"),
    ("arrival_order.periods", [8, 8, 4, 8, 3], "m where it is shared"),
    ("arrival_order.periods", [8, 8, 4, 4, 12], "m where it is shared"),
    ("windows_and_signals.asked_in_the_fifth_call", 2, "the row"),
    ("windows_and_signals.asked_in_the_fifth_call", 3, "the row"),
    ("uneven_blocks.fill_values", [0, 0, 127, -128], "0 for prod"),
    ("uneven_blocks.fill_values", [0, 0, 127, 0], "0 for prod"),
    ("uneven_blocks.fill_values", [1, 1, 127, -128], "not 0 for sum"),
    ("uneven_blocks.fill_values", [0, 1, 127, 127], "alike for min and max"),
    ("uneven_blocks.fill_values", [0, 1, 128, -128], "128"),
    ("uneven_blocks.fill_values", [0, 1, 127, -129], "128"),
    ("overlapping.updated_too_soon", [10, 20, 30, 40], "a gradient"),
    ("two_phases.bytes_on_four_ranks", [192, 48, 48, 96], "its own too"),
    ("two_phases.bytes_on_four_ranks", [144, 48, 48, 96], "its own too"),
    ("one_phase.notifications", 20, "one barrier, all ranks"),
    ("uneven_blocks.displacements", [0, 12, 24, 32], "bytes"),
    ("uneven_blocks.displacements", [0, 24, 48, 64], "bytes"),
    ("uneven_blocks.padded_call", [12, 48, 8, 4], "in bytes"),
    ("uneven_blocks.padded_call", [24, 96, 16, 8], "in bytes"),
    ("sharded_optimizer.kept_bytes", [29.8, 14.9, 7.4], "thousands"),
    ("sharded_optimizer.kept_bytes", [29.1, 14.5, 7.27], "thousands"),
    ("sharded_optimizer.mixed_precision_megabytes", [122.1, 53.4, 42, 30.5], "MiB"),
]


@pytest.mark.parametrize(("name", "answer", "mistake"), BY_RULE)
def test_wrong_answers_that_are_right_in_part_are_recognised(name, answer, mistake):
    for form in as_answers(answer):
        assert EXERCISES[name](form).mistake == mistake


def test_at_least_five_wrong_answers_with_a_message_each(exercise):
    messages = [exercise(wrong).text.partition(". ")[2] for _, wrong in wrong_values(exercise)]
    assert len(messages) == len(set(messages)) >= 5


def test_the_placeholder_is_asked_for_an_answer(exercise):
    verdict = exercise(...)
    assert not verdict and verdict.mistake == "unanswered" and verdict.text.startswith("no answer yet: put ")


def test_junk_gets_a_sentence(exercise):
    for junk in JUNK:
        verdict = exercise(junk)
        assert isinstance(verdict, Verdict) and not verdict
        assert verdict.text.startswith(("not yet: ", "no answer yet: ")) and len(verdict.text) < 700
        assert " object at 0x" not in verdict.text


NUMERIC = {name: e for name, e in EXERCISES.items() if not isinstance(e.expected, str | tuple | frozenset)}


@pytest.mark.parametrize("exercise", NUMERIC.values(), ids=NUMERIC)
def test_an_unknown_wrong_answer_is_told_where_it_differs(exercise):
    right = np.asarray(exercise.expected)
    for step, said in ((-1000.0, "too small"), (1000.0, "too large")):
        wrong = right.astype(float)
        wrong[(-1,) * wrong.ndim] += step
        verdict = exercise(wrong)
        assert not verdict and verdict.mistake is None and said in verdict.text
        assert right.ndim != 1 or f"position {right.size - 1} " in verdict.text
    verdict = exercise(np.full(right.size + 3, 77))
    assert not verdict and f"that is a list of {right.size + 3} numbers" in verdict.text


def test_verdicts_are_the_same_every_time(exercise):
    for answer in (..., exercise.expected, *(wrong for _, wrong in wrong_values(exercise))):
        first, second = exercise(answer), exercise(answer)
        assert repr(first) == repr(second) and first._repr_html_() == second._repr_html_()


def test_the_question_is_shown_with_the_kind_of_answer(exercise):
    assert exercise.question in repr(exercise) and "Answer with" in repr(exercise)


def test_answers_are_cited_in_one_way():
    loop = []
    loop.append(loop)
    for answer, cited in [
        (np.arange(3), "[0, 1, 2]"),
        ([np.int64(1), np.float32(2)], "[1, 2.0]"),
        ((np.arange(2), [3]), "([0, 1], [3])"),
        ({"b", "a"}, "'a b'"),
        ({1, 2}, "a set"),
        ([Hostile()], "a list"),
        ({"a": Hostile()}, "a dict"),
        ([object()], "a list"),
        (Hostile(), "a Hostile"),
        (np.arange(1000), "an array"),
        (loop, "[[[...]]]"),
    ]:
        assert reading.shown(answer) == cited
        assert not reading.unanswered(answer)
    assert len(reading.shown("x" * 1000)) == len(reading.shown([0] * 1000)) == 90
    assert reading.unanswered([[1, ...], [2, 3]])


ASKED = Exercise("?", [1, 2, 3], "because.", (), of="elements", length_is_asked=True)
SPAN = Exercise("?", [2, 4], "because.", (Mistake("as before", [0, 2], "that is another."),), is_slice=True)


def test_a_length_that_is_asked_for_is_not_told():
    assert ASKED([1, 2, 3])
    assert "put a list of whole numbers (elements) in the place" in ASKED(...).text
    assert repr(ASKED) == "? Answer with a list of whole numbers (elements)."
    assert "Look again: that is a list of 2 numbers; the length is not right. What" in ASKED([1, 2]).text
    assert "Look again: that is one number. What" in ASKED(7).text
    assert not any("3" in ASKED(answer).text for answer in (..., None, [1, 2], 7, "x", [[1]], [1, 2, 4, 5]))


def test_a_slice_is_read_in_every_spelling():
    for spelled in ([2, 4], (2, 4), slice(2, 4), range(2, 4), "2:4", "[2:4]", "x[2:4]", np.array([2.0, 4.0])):
        assert SPAN(spelled), spelled
    for spelled in (slice(0, 2), slice(2), range(2), ":2", "[ 0 : 2 ]"):
        assert SPAN(spelled).mistake == "as before", spelled
    for spelled, said in [
        (slice(2, 4, 2), "a step of 2 leaves elements out"),
        (slice(2, None), "a None stands in the list"),
        ("2:4:1", "that is text"),
        ([2], "that is a list of 1 number. What is expected: a slice [start, stop]."),
        (range(2, 5), "you answered range(2, 5). Look again: position 1"),
    ]:
        assert not SPAN(spelled) and said in SPAN(spelled).text, spelled
    assert "that is a slice, not the numbers in it" in ASKED(slice(1, 4)).text
    assert "put a slice [start, stop] in the place" in SPAN(...).text


def test_none_and_nothing_are_no_answers(exercise):
    assert exercise(None).text.startswith("not yet: you answered None. There, None is no answer")
    assert exercise(set()).text.startswith("not yet: you answered an empty set. ")


LETTERS = Exercise("?", frozenset("ad"), "because.", (), options=dict.fromkeys("abcdefg", "?"))


def test_letters_are_found_in_words():
    for answer in ("a and d", "A, D.", ["a d"], ["A)", "(d)"], "option a, option d", np.array(["a", "d"])):
        assert LETTERS(answer), answer
    for answer, said in [
        ("only a", "1 more should"),
        ("none", "'none' is not made of letters to choose, and at least one statement holds"),
        ("all", "'all' is not made of letters to choose"),
        (["a", "both"], "'both' is not made of letters to choose"),
        ("adz", "'adz' is not made of letters to choose"),
        ("a z", "there is no 'z' to choose"),
    ]:
        assert not LETTERS(answer) and said in LETTERS(answer).text, answer


def test_one_name_may_be_written_as_the_calls_that_it_names():
    options = "x_y then z", "z", "none"
    named = Exercise("?", options[0], "because.", (Mistake("z", "z", "that is z."),), options=options)
    for answer in (["x_y", "z"], ("x_y", "z"), np.array(["x-y", "Z"]), ["x_y then z"], "x_y, then z", "xy + z"):
        assert named(answer), answer
    assert named("x_y and z") and named(["z"]).mistake == "z"
    for answer in (["z", "x_y"], "z + x_y", ["x_y"], [["x_y", "z"]], [], "z, z"):
        assert named(answer).mistake == "kind", answer
    assert "There, None is no answer; the name is 'none', in quotation marks. What" in named(None).text


def test_lists_that_stand_in_one_list_are_joined_where_the_answer_is_one_list():
    joined = Exercise("?", [1, 2, 3, 4], "because.", (Mistake("less", [1, 2], "that is less."),), are_joined=True)
    for answer in ([[1, 2], [3, 4]], [(1, 2), (3, 4)], np.array([[1], [2], [3], [4]]), [1, 2, 3, 4]):
        assert joined(answer), answer
    assert joined([[1], [2]]).mistake == "less" and not joined([[1, 3], [2, 4]])
    assert "the inner lists differ in length" in joined([[1, 2, 3], [4]]).text
    assert not ASKED([[1, 2, 3]])


def test_lists_in_lists_are_counted_in_words():
    for answer, said in (([[1, 2]], "a list of 1 list of 2"), ([[1, 2], [3, 4]], "a list of 2 lists of 2")):
        assert f"that is {said}. What" in ASKED(answer).text


def test_html_is_escaped():
    html = Verdict(False, "not yet: you answered '<script>'")._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html


def test_right_wrong_and_unanswered_look_different_in_html():
    answers = ASKED.expected, 77, ...
    looks = [("solid", "<b>right</b>: "), ("dashed", "<b>not yet</b>: you"), ("dotted", "<b>no answer yet</b>: put ")]
    for answer, (line, label) in zip(answers, looks, strict=True):
        html = ASKED(answer)._repr_html_()
        assert f"border-left: 3px {line};" in html and label in html


def test_a_checker_that_lets_a_mistake_pass_would_be_seen():
    sloppy = Exercise("?", 4, "because.", tuple(Mistake(str(n), n, f"message {n}.") for n in (4, 5)))
    with pytest.raises(AssertionError):
        test_every_wrong_answer_is_recognised_in_every_form(sloppy)
    with pytest.raises(AssertionError):
        test_at_least_five_wrong_answers_with_a_message_each(sloppy)


def test_mistakes_differ_from_each_other_and_from_the_answer(exercise):
    values = [repr(np.asarray(wrong).tolist()) for _, wrong in wrong_values(exercise)]
    right = repr(np.asarray(exercise.expected).tolist())
    assert right not in values and all(a != b for a, b in itertools.combinations(values, 2))


def test_every_wrong_order_of_writing_is_told_which_two_steps_are_exchanged():
    exercise = EXERCISES["restart.order_of_writing"]
    for order in itertools.permutations(range(1, 6)):
        assert exercise(order) if list(order) == exercise.expected else exercise(order).mistake, order
    assert exercise([3, 5, 1, 4, 4]).mistake == "a step twice"
    assert exercise([3, 5, 1, 4, 6]).mistake is None

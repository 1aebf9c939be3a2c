"""The payload counter says what `payload` says, in words and as a picture."""

import html
import re

import numpy as np
import pytest
from matplotlib.text import Text

from collectlab import payload, views

CALLS = [(operation, library) for operation in payload.OPERATIONS for library in payload.LIBRARIES]


def labels(view):
    return [t.get_text() for t in view.figure().findobj(Text) if t.get_visible() and t.get_text()]


@pytest.mark.parametrize(("operation", "library"), CALLS)
@pytest.mark.parametrize(("nranks", "elements"), [(1, 6), (2, 4), (4, 12)])
def test_text_and_picture_name_every_figure(operation, library, nranks, elements):
    view = views.payload_counter(operation, nranks, elements, "int32", library)
    count = payload.count_of_input(library, operation, elements, nranks)
    text, drawn = view.text(), labels(view)
    for name, side in payload.CALLS[operation][library].counts.items():
        assert f"count argument: {name} = {count.value} ({side})" in text
        assert any(name in label and str(count.value) in label for label in drawn)
        assert side in drawn
    for side in {count.at_root, count.elsewhere} if nranks > 1 else {count.at_root}:
        sent = rf"send +{side.send_elements} +{side.input_bytes('int32')} +logical input"
        kept = rf"receive +{side.recv_elements} +{side.output_bytes('int32')} +logical output"
        assert re.search(rf"{sent}\n.*{kept}", text)
        for elements_, size in (
            (side.send_elements, side.input_bytes("int32")),
            (side.recv_elements, side.output_bytes("int32")),
        ):
            assert f"{elements_} element{'s' * (elements_ != 1)}" in drawn
            assert f"{size} byte{'s' * (size != 1)}" in drawn
    for other in payload.LIBRARIES:
        assert payload.CALLS[operation][other].function in text
        assert payload.CALLS[operation][other].function in drawn


def test_the_count_is_the_input_only_where_payload_says_so():
    assert "recvcount = 2" in views.payload_counter("reduce_scatter", 2, 4).text()
    assert "sendcount = 4" in views.payload_counter("all_gather", 2, 4).text()
    assert "count argument: count = 4" in views.payload_counter("all_reduce", 2, 4).text()


@pytest.mark.parametrize(
    ("operation", "nranks", "elements", "dtype", "printed"),
    [
        ("reduce_scatter", 2, 4, "int32", 0),  # a block of 8 bytes
        ("reduce_scatter", 2, 14, "int32", 4),  # 28 bytes
        ("all_gather", 2, 3, "float32", 0),  # 12 bytes
        ("scatter", 4, 36, "float16", 8),  # 18 bytes
        ("reduce_scatter", 2, 8, "int32", None),  # 16 bytes
        ("all_to_all", 4, 128, "float32", None),
        ("reduce_scatter", 2, 2, "complex128", None),
        ("all_reduce", 2, 3, "int8", None),  # not in blocks
        ("all_gather", 2, 0, "int32", None),
    ],
)
def test_a_row_that_nccl_tests_would_not_print_is_noted(operation, nranks, elements, dtype, printed, misplaced):
    view = views.payload_counter(operation, nranks, elements, dtype)
    noted = [line.strip() for line in view.text().splitlines() if "rounds a block down" in line]
    drawn = [label for label in labels(view) if "rounds a block down" in label]
    assert noted == drawn and len(noted) == (printed is not None)
    if noted:
        size = payload.count_of_input("nccl-tests", operation, elements, nranks).size_column(dtype)
        assert noted[0].endswith(f"multiple of 16 bytes: asked for size {size}, it prints count {printed}.")
    assert misplaced(view.figure()) == []


def test_it_says_what_elements_counts_and_what_a_payload_is_not():
    for operation, whose in (("all_gather", "one rank's"), ("scatter", "the root's"), ("broadcast", "the root's")):
        view = views.payload_counter(operation, 2, 4)
        said = f"elements = 4, the length of {whose} input vector"
        assert said in view.text()
        assert any(said in label for label in labels(view))
        for where in (view.text(), " ".join(labels(view))):
            assert "Not traffic, not time, not memory" in where


def test_a_buffer_that_is_ignored_is_not_an_empty_one():
    gather = labels(views.payload_counter("gather", 4, 3))
    assert gather.count("not used on this rank") == 1
    assert "an empty buffer" not in gather
    empty = labels(views.payload_counter("all_reduce", 4, 0))
    assert empty.count("an empty buffer") == 2


@pytest.mark.parametrize("nranks", [1, 2, 4, 8, 16, 17, 100_000])
def test_labels_are_apart_and_inside(nranks, misplaced):
    for number, operation in enumerate(payload.OPERATIONS):
        library = payload.LIBRARIES[(number + nranks) % 3]
        elements = (12 * nranks, 2**40 * nranks, 0)[(number + nranks) % 8 % 3]
        view = views.payload_counter(operation, nranks, elements, "float64", library)
        assert misplaced(view.figure()) == [], (operation, library, elements)


def test_many_blocks_are_drawn_as_one_that_says_so():
    assert "15" in labels(views.payload_counter("all_gather", 16, 4))
    many = labels(views.payload_counter("all_gather", 17, 4))
    assert "17 blocks of 4 elements, too many to draw one by one" in many


def test_controls_and_set_go_the_same_way(control, picture):
    view = views.payload_counter()
    widget = view.widget()
    control(widget, "operation").value = "all_gather"
    control(widget, "ranks").value = 3
    control(widget, "elements").value = 5
    control(widget, "dtype").value = "float16"
    control(widget, "library").value = "MPI"
    other = views.payload_counter("all_gather", 3, 5, "float16", "MPI")
    assert view.text() == other.text()
    assert view.png() == other.png() == picture(widget)
    view.set(elements=7)
    assert control(widget, "elements").value == 7
    view.close()
    other.close()


def test_a_control_that_is_not_accepted_goes_back_and_says_why(control, markup):
    view = views.payload_counter("reduce_scatter", 2, 4)
    widget, before = view.widget(), view.text()
    control(widget, "ranks").value = 3
    assert control(widget, "ranks").value == 2
    assert view.text() == before
    said = html.unescape(markup(widget))
    assert (
        "<b>Not accepted.</b> ncclReduceScatter cuts the input into one equal block per rank, and 3 ranks do not "
        "divide 4 elements: take a multiple of 3, such as 6.<" in said
    )
    control(widget, "elements").value = 8
    assert "Not accepted" not in markup(widget)
    view.close()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ranks", 2.5, "The number of ranks is a whole number, 1 to 2**63 - 1, not 2.5."),
        ("ranks", 0, "The number of ranks is a whole number, 1 to 2**63 - 1, not 0."),
        ("elements", 4.5, "The number of elements is a whole number, 0 to 2**63 - 1, not 4.5."),
    ],
)
def test_a_fraction_is_refused_and_not_cut(control, markup, name, value, says):
    view = views.payload_counter("reduce_scatter", 2, 4)
    widget, before = view.widget(), view.settings
    control(widget, name).value = value
    assert view.settings == before and control(widget, name).value == before[{"ranks": "nranks"}.get(name, name)]
    assert f"<b>Not accepted.</b> {says}<" in markup(widget) and "payload_counter(" not in markup(widget)
    control(widget, "ranks").value = 4.0  # as the browser may send a 4
    assert view.settings["nranks"] == 4 and type(view.settings["nranks"]) is int
    view.close()


def test_the_arrows_lead_from_one_length_that_is_accepted_to_the_next(control, markup):
    view = views.payload_counter("reduce_scatter", 3, 6)
    widget = view.widget()
    elements, steps = control(widget, "elements"), []
    for operation in payload.OPERATIONS:
        control(widget, "operation").value = operation
        steps.append(elements.step)
        for way in (1, 1, -1):
            before = elements.value
            elements.value += way * elements.step
            assert view.settings["elements"] == elements.value == before + way * elements.step
            assert "Not accepted" not in markup(widget)
        elements.value = 6
    assert sorted(set(steps)) == [1, 3]
    view.set(operation="reduce_scatter", nranks=2)
    assert elements.step == 2
    view.close()


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"operation": "allreduce"}, ValueError, "operation is one of all_reduce, "),
        ({"operation": ["all_reduce"]}, ValueError, "operation is one of"),
        ({"operation": "all_gather_v"}, ValueError, "operation is one of"),
        ({"nranks": 0}, ValueError, "nranks is a whole number, 1 to 2**63 - 1, not 0"),
        ({"nranks": "four"}, ValueError, "nranks is a whole number"),
        ({"nranks": True}, ValueError, "nranks is a whole number"),
        ({"nranks": float("nan")}, ValueError, "nranks is a whole number"),
        ({"elements": -1}, ValueError, "elements is a whole number, 0 to 2**63 - 1, not -1"),
        ({"elements": float("inf")}, ValueError, "elements is a whole number"),
        ({"elements": 10**400}, ValueError, "elements is a whole number, 0 to 2**63 - 1, not 10000"),
        ({"elements": 5}, ValueError, "elements=5; take a multiple of 2, such as 6"),
        ({"dtype": object}, TypeError, "dtype="),
        ({"dtype": "float31"}, TypeError, "dtype='float31'"),
        ({"dtype": None}, TypeError, "dtype=None"),
        ({"dtype": bool}, TypeError, "dtype is one of int8, "),
        ({"library": "RCCL"}, ValueError, "library is one of NCCL, MPI, nccl-tests"),
        ({"library": None}, ValueError, "library is one of"),
    ],
)
def test_bad_input_names_the_argument(settings, error, says):
    with pytest.raises(error) as caught:
        views.payload_counter(**settings)
    assert says in str(caught.value)
    assert "payload_counter(" in str(caught.value)
    view = views.payload_counter()
    before = view.text()
    with pytest.raises(error):
        view.set(**settings)
    assert view.text() == before


def test_numpy_numbers_types_and_other_cases_are_taken():
    view = views.payload_counter("all_gather", np.int64(2), np.int32(4), np.complex64, "nccl-TESTS")
    assert "complex64, 8 bytes an element" in view.text()
    assert view.settings["library"] == "nccl-tests"
    view.widget()
    view.close()


def test_the_same_settings_give_the_same_text_and_picture():
    one, two = (views.payload_counter("all_to_all", 4, 8, library="MPI") for _ in range(2))
    assert one.text() == two.text() == repr(one)
    assert one.png() == two.png()
    two.set(nranks=2).set(nranks=4)
    assert one.text() == two.text()
    assert one.png() == two.png()


def test_settings_that_only_code_can_give_reach_the_controls(control, markup):
    view = views.payload_counter("all_reduce")
    widget = view.widget()
    view.set(nranks=2**40, elements=2**40, dtype=np.complex128)
    assert control(widget, "ranks").value == control(widget, "elements").value == 2**40
    assert control(widget, "dtype").value == "complex128"
    control(widget, "elements").value = -1
    assert control(widget, "elements").value == 2**40
    assert "The number of elements is a whole number, 0 to 2**63 - 1, not -1." in markup(widget)
    view.close()

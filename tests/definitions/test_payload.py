"""Counts, lengths and in-place rules: against the libraries' own tables, the reference's results, and pointers."""

import itertools
import operator

import numpy as np
import pytest
from collective_cases import CUT, DTYPES, MOVES, REDUCTIONS, make
from hypothesis import given, settings
from hypothesis import strategies as st

from collectlab import payload, semantics
from collectlab.layout import Partition
from collectlab.payload import (
    CALLS,
    LIBRARIES,
    OPERATIONS,
    Count,
    count,
    count_of_input,
    counts,
    nccl_tests_count,
)

# What the libraries' headers, manual pages and sources say of 5 counted elements on 3 ranks: the argument, then
# elements sent and received at the root (or on any rank), then elsewhere.
NCCL = {
    "all_reduce": ("count", (5, 5), (5, 5)),
    "reduce_scatter": ("recvcount", (15, 5), (15, 5)),
    "all_gather": ("sendcount", (5, 15), (5, 15)),
    "broadcast": ("count", (5, 5), (0, 5)),
    "reduce": ("count", (5, 5), (5, 0)),
    "all_to_all": ("count", (15, 15), (15, 15)),
    "gather": ("count", (5, 15), (5, 0)),
    "scatter": ("count", (15, 5), (0, 5)),
}
ARGUMENTS = {
    "NCCL": {operation: [row[0]] for operation, row in NCCL.items()},
    "MPI": {
        "all_reduce": ["count"], "reduce_scatter": ["recvcount"], "all_gather": ["sendcount", "recvcount"],
        "broadcast": ["count"], "reduce": ["count"], "all_to_all": ["sendcount", "recvcount"],
        "gather": ["sendcount", "recvcount"], "scatter": ["sendcount", "recvcount"],
    },
    "nccl-tests": {operation: ["count"] for operation in NCCL},
}  # fmt: skip
SIZE_COLUMN = {"all_reduce": 5, "broadcast": 5, "reduce": 5}  # elements; all others p * count, 15

EVERY = [(library, operation, name) for library in LIBRARIES for operation in OPERATIONS
         for name in ARGUMENTS[library][operation]]  # fmt: skip


@st.composite
def kinds(draw):
    return Count(*draw(st.sampled_from(EVERY)), draw(st.integers(0, 40)), draw(st.integers(1, 17)))


# -- tables --------------------


def wrong_in_the_tables():
    """What differs from the libraries' own tables, in words."""
    for library, operation in itertools.product(LIBRARIES, OPERATIONS):
        if list(CALLS[operation][library].counts) != ARGUMENTS[library][operation]:
            yield f"{library} {operation}: arguments"
        for name in CALLS[operation][library].counts:
            five = Count(library, operation, name, 5, 3)
            for where, lengths in zip(("at_root", "elsewhere"), NCCL[operation][1:], strict=True):
                mine = getattr(five, where)
                if (mine.send_elements, mine.recv_elements) != lengths:
                    yield f"{library} {operation}: {where} {mine}"
            if library == "nccl-tests" and five.size_column("float32") != 4 * SIZE_COLUMN.get(operation, 15):
                yield f"{operation}: size column {five.size_column('float32')}"


def test_arguments_lengths_and_sizes_are_those_of_the_libraries():
    assert set(OPERATIONS) == set(NCCL)
    assert list(wrong_in_the_tables()) == []


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_wrong_length_would_be_noticed(operation, monkeypatch):
    for wrong in set(payload._LENGTHS.values()) - {payload._LENGTHS[operation]}:
        monkeypatch.setitem(payload._LENGTHS, operation, wrong)
        assert list(wrong_in_the_tables())


def test_the_numbers_of_the_lesson():
    sent = {
        "all_reduce": count("NCCL", "all_reduce", count=4, nranks=2),
        "all_gather": count("NCCL", "all_gather", sendcount=4, nranks=2),
        "reduce_scatter": count("NCCL", "reduce_scatter", recvcount=2, nranks=2),
        "all_gather of the shards": count("NCCL", "all_gather", sendcount=2, nranks=2),
    }
    assert [c.value for c in sent.values()] == [4, 4, 2, 2]
    assert [c.output_bytes("float32") for c in sent.values()] == [16, 32, 8, 16]
    for operation in ("all_reduce", "all_gather", "reduce_scatter"):
        assert count_of_input("NCCL", operation, 4, nranks=2) == sent[operation]


def test_each_side_is_said_in_words():
    for library, operation, name in EVERY:
        side = Count(library, operation, name, 1, 2).side
        assert side.startswith(("send", "receive", "the one buffer")), side
        assert ": " in side
    assert count("NCCL", "reduce_scatter", recvcount=2, nranks=2).side == "receive: one rank's block"
    assert "not the total" in count("MPI", "all_gather", recvcount=2, nranks=2).side


def test_a_count_is_a_sentence():
    assert str(count("nccl", "reduce_scatter", recvcount=2, nranks=2)) == (
        "ncclReduceScatter's recvcount = 2 on 2 ranks (receive: one rank's block): "
        "each rank sends 4 elements and receives 2"
    )
    assert str(count("mpi", "gather", sendcount=4, nranks=3)) == (
        "MPI_Gather's sendcount = 4 on 3 ranks (send: one rank's contribution): "
        "the root sends 4 elements and receives 12, every other rank sends 4 and receives 0"
    )


# -- the reference returns what payload says --------------------


def payload_of(case):
    """The payload of each rank of the call."""
    nranks, root = len(case.xs), case.kwargs.get("root", 0)
    sizes = [0 if x is None else x.size for x in case.xs]
    if case.operation in payload.VARIABLE_CALLS:
        (name,) = payload.VARIABLE_CALLS[case.operation].counts
        made = counts(
            "MPI",
            case.operation,
            **{name: case.kwargs.get("counts") or case.kwargs.get("sendcounts") or sizes},
        )
    else:
        made = count_of_input("MPI", case.operation, max(sizes), nranks)
    return [made.on(rank, root) for rank in range(nranks)]


@pytest.mark.parametrize("operation", (*REDUCTIONS, *MOVES))
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_lengths_and_bytes_are_those_of_what_the_reference_takes_and_returns(operation, data):
    dtype = data.draw(st.sampled_from(DTYPES))
    case = make(
        operation,
        data.draw(st.integers(1, 17)),
        data.draw(st.integers(0, 5)),
        dtype,
        seed=data.draw(st.integers(0, 99)),
    )
    results = getattr(semantics, operation)(case.xs, **case.kwargs)
    for mine, x, y in zip(payload_of(case), case.xs, results, strict=True):
        assert mine.send_elements == (0 if x is None else x.size)
        assert mine.recv_elements == (0 if y is None else y.size)
        assert mine.input_bytes(dtype) == (0 if x is None else x.nbytes)
        assert mine.output_bytes(dtype) == (0 if y is None else y.nbytes)


def test_a_partition_serves_as_counts():
    made = counts("mpi", "reduce_scatter_v", recvcounts=Partition.uneven(7, 3))
    assert made.values == (3, 2, 2)
    assert made.nranks == 3
    assert str(made).startswith("MPI_Reduce_scatter's recvcounts = [3, 2, 2] (receive: block r of the result")


# -- conversions --------------------


@settings(max_examples=200, deadline=None)
@given(kinds(), st.sampled_from(LIBRARIES))
def test_there_and_back_is_the_same_count_and_the_payload_stays(one, library):
    there = one.to(library.upper())
    assert there.library == library
    assert there.to(one.library, one.name) == one
    assert (there.at_root, there.elsewhere, there.nranks) == (one.at_root, one.elsewhere, one.nranks)
    for name in ARGUMENTS[library][one.operation]:
        assert one.to(library, name).name == name


@settings(max_examples=100, deadline=None)
@given(kinds())
def test_a_count_follows_from_the_input_it_takes(one):
    first = ARGUMENTS[one.library][one.operation][0]
    assert count_of_input(one.library, one.operation, one.at_root.send_elements, one.nranks) == one.to(
        one.library, first
    )
    named = count(one.library.lower(), one.operation, nranks=one.nranks, **{one.name: one.value})
    assert named == one
    assert hash(named) == hash(one)


@pytest.mark.parametrize("operation", CUT)
def test_an_input_that_cannot_be_cut_is_refused(operation):
    with pytest.raises(ValueError, match=r"pad the input to 3 x 2 = 6 elements \(layout.Partition.padded\)"):
        count_of_input("NCCL", operation, 5, nranks=3)


COMPARE = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.add)


def test_counts_of_one_kind_compare_and_add():
    two, three = (count("MPI", "all_gather", sendcount=n, nranks=4) for n in (2, 3))
    assert two < three and three > two and two <= three and three >= two and two != three
    assert (two + three).value == 5
    assert (two + three).recv_elements == 20
    assert max(three, two) is three


@pytest.mark.parametrize("operate", COMPARE)
def test_counts_of_two_kinds_never_mix(operate):
    everything = [Count(*kind, 2, nranks) for kind in EVERY for nranks in (2, 3)]
    for one, other in itertools.permutations(everything, 2):
        with pytest.raises(TypeError, match=r"cannot (compare|add) .* on . ranks \(.*instead"):
            operate(one, other)


@pytest.mark.parametrize("operate", COMPARE)
@pytest.mark.parametrize("number", (2, 3, 2.0, True, np.int64(2)), ids=repr)
def test_a_count_and_a_number_never_mix(operate, number):
    two = count("NCCL", "all_reduce", count=2, nranks=2)
    for left, right in ((two, number), (number, two)):
        with pytest.raises(TypeError):
            operate(left, right)
    with pytest.raises(TypeError, match=r"cannot compare .* says neither operation nor side"):
        assert two == number


@pytest.mark.parametrize("other", ("2", None, [2], object()), ids=("text", "None", "list", "object"))
def test_what_is_neither_count_nor_number_is_another_thing(other):
    two = count("NCCL", "all_reduce", count=2, nranks=2)
    assert two != other and other != two and not (two == other or other == two)
    with pytest.raises(TypeError):
        assert two < other


@pytest.mark.parametrize(
    "convert", (int, float, operator.index, range, lambda c: [0] * c, lambda c: c * 2, lambda c: c - 1)
)
def test_a_count_is_no_number(convert):
    with pytest.raises(TypeError):
        convert(count("NCCL", "all_reduce", count=2, nranks=2))


def test_a_count_does_not_change():
    two = count("NCCL", "all_reduce", count=2, nranks=2)
    with pytest.raises(AttributeError):
        two.value = 3


def test_root_and_others_are_not_confused():
    for library in LIBRARIES:
        for operation, (_, root, other) in NCCL.items():
            five = Count(library, operation, ARGUMENTS[library][operation][0], 5, 3)
            for at, what in enumerate(("send_elements", "recv_elements")):
                if root[at] == other[at]:
                    assert getattr(five, what) == root[at]
                else:
                    with pytest.raises(
                        ValueError, match=rf"is {root[at]} at the root and {other[at]} on every other"
                    ):
                        getattr(five, what)
                assert [getattr(five.on(rank, root=1), what) for rank in range(3)] == [
                    other[at],
                    root[at],
                    other[at],
                ]


# -- nccl-tests --------------------


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(OPERATIONS), st.integers(0, 5000), st.integers(1, 17), st.sampled_from([1, 2, 4, 8]))
def test_a_row_of_nccl_tests_is_the_largest_that_fits(operation, nbytes, nranks, size):
    row = nccl_tests_count(operation, nbytes, nranks, f"u{size}")
    bits = nbytes // size
    if operation not in SIZE_COLUMN:  # src/*.cu: (count / nranks) & -(16 / eltSize)
        bits = (bits // nranks) & -(16 // size)
    assert row.value == bits
    assert row.size_column(f"u{size}") <= nbytes
    assert row.to("NCCL").value == row.value


def test_small_rows_show_zero():
    assert nccl_tests_count("all_gather", 63, 4, "float32").value == 0
    assert nccl_tests_count("all_gather", 64, 4, "float32").value == 4
    assert nccl_tests_count("all_gather", 64, 4, "float32").size_column("float32") == 64
    assert nccl_tests_count("all_reduce", 4, 4, "float32").value == 1
    assert nccl_tests_count("reduce_scatter", 64, 2, "bfloat16").value == 16


# -- in place --------------------

ADDRESS = {  # NCCL's user guide: where recv (or send) must be, in bytes, given the other
    "all_reduce": lambda send, recv, block, rank, root: recv == send,
    "broadcast": lambda send, recv, block, rank, root: recv == send,
    "reduce": lambda send, recv, block, rank, root: recv == send,
    "reduce_scatter": lambda send, recv, block, rank, root: recv == send + rank * block,
    "all_gather": lambda send, recv, block, rank, root: send == recv + rank * block,
    "gather": lambda send, recv, block, rank, root: rank == root and send == recv + root * block,
    "scatter": lambda send, recv, block, rank, root: rank == root and recv == send + root * block,
    "all_to_all": lambda send, recv, block, rank, root: False,
}


def by_pointers(one, send_offset, recv_offset, rank, root):
    """The verdict from real addresses of real arrays in one allocation."""
    mine, memory = one.on(rank, root), np.zeros(200, np.float32)
    send = memory[send_offset : send_offset + mine.send_elements]
    recv = memory[recv_offset : recv_offset + mine.recv_elements]
    address = [memory.ctypes.data + 4 * offset for offset in (send_offset, recv_offset)]
    if one.library != "MPI" and ADDRESS[one.operation](*address, 4 * one.value, rank, root):
        return "in place"
    return "error" if np.shares_memory(send, recv) else "apart"


def wrong_verdicts(operations=OPERATIONS):
    for library, operation in itertools.product(("NCCL", "nccl-tests", "MPI"), operations):
        if (library, operation) == ("MPI", "broadcast"):
            continue
        for nranks, block, root in ((1, 2, 0), (2, 2, 1), (3, 1, 0), (3, 2, 2), (4, 0, 1)):
            one = Count(library, operation, ARGUMENTS[library][operation][0], block, nranks)
            offsets = range(nranks * block + 2)
            for rank, send, recv in itertools.product(range(nranks), offsets, offsets):
                verdict = payload.placement(one, send, recv, rank, root).verdict
                if verdict != by_pointers(one, send, recv, rank, root):
                    yield f"{library} {operation}: rank {rank} of {nranks}, {send}, {recv}: {verdict}"


def test_in_place_is_what_the_pointers_say():
    assert list(wrong_verdicts()) == []


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_wrong_rule_would_be_noticed(operation, monkeypatch):
    right = payload._nccl_offset
    for wrong in (
        lambda one, rank, root: 1 if (offset := right(one, rank, root)) is None else offset + 1,
        lambda one, rank, root: None if right(one, rank, root) is not None else 0,
    ):
        monkeypatch.setattr(payload, "_nccl_offset", wrong)
        assert next(wrong_verdicts([operation]), None)


@pytest.mark.parametrize("operation", ["reduce_scatter", "all_gather"])
def test_equal_pointers_are_in_place_on_rank_0_only(operation):
    one = count_of_input("NCCL", operation, 6, nranks=3)
    verdicts = [payload.placement(one, 0, 0, rank) for rank in range(3)]
    assert [v.verdict for v in verdicts] == ["in place", "error", "error"]
    assert verdicts[0].in_place and not verdicts[1].in_place
    assert "they overlap, and that is not in place; the rule is: " in str(verdicts[1])


def test_the_rules_are_said_for_every_call():
    assert CALLS["reduce_scatter"]["NCCL"].in_place == "recvbuff == sendbuff + rank * recvcount"
    assert "at the top" in CALLS["reduce_scatter"]["MPI"].in_place
    for operation, library in itertools.product(OPERATIONS, LIBRARIES):
        rule = CALLS[operation][library].in_place
        assert ("MPI_IN_PLACE" in rule) == (library == "MPI" and operation != "broadcast")


# -- bad input --------------------

two = count("NCCL", "reduce_scatter", recvcount=2, nranks=2)
BAD = {
    "wrong keyword": (
        lambda: count("NCCL", "reduce_scatter", count=2, nranks=2),
        TypeError,
        r"ncclReduceScatter has no argument count; ncclReduceScatter takes recvcount \(receive: one rank's block\)",
    ),
    "the other side": (
        lambda: count("NCCL", "all_gather", recvcount=8, nranks=2),
        TypeError,
        r"ncclAllGather takes sendcount \(send: one rank's contribution\)",
    ),
    "no keyword": (
        lambda: count("NCCL", "all_reduce", 4, nranks=2),
        TypeError,
        "a bare 4 does not say which side",
    ),
    "no count": (
        lambda: count("MPI", "all_gather", nranks=2),
        TypeError,
        "the count is missing; MPI_Allgather takes sendcount .* or recvcount",
    ),
    "no nranks": (lambda: count("MPI", "all_gather", sendcount=2), TypeError, "nranks"),
    "the total": (
        lambda: count("MPI", "all_gather", sendcount=4, recvcount=8, nranks=2),
        ValueError,
        "both are the same number: .* not the total",
    ),
    "library": (
        lambda: count("RCCL", "all_reduce", count=1, nranks=1),
        ValueError,
        "library is one of NCCL, MPI, nccl-tests, not 'RCCL'",
    ),
    "library None": (lambda: two.to(None), ValueError, "library is one of"),
    "operation": (
        lambda: count("NCCL", "allreduce", count=1, nranks=1),
        ValueError,
        "operation is one of all_reduce, ",
    ),
    "operation unhashable": (
        lambda: count("NCCL", ["all_reduce"], count=1, nranks=1),
        ValueError,
        "operation is one of",
    ),
    "v-form of NCCL": (
        lambda: count("NCCL", "all_gather_v", sendcount=1, nranks=1),
        ValueError,
        "NCCL has no variable-count forms; MPI's is MPI_Allgatherv",
    ),
    "v-form of MPI": (
        lambda: count("MPI", "reduce_scatter_v", recvcount=1, nranks=1),
        ValueError,
        "MPI_Reduce_scatter takes one count per rank; use payload.counts",
    ),
    "negative": (
        lambda: count("NCCL", "all_reduce", count=-1, nranks=1),
        ValueError,
        "count is a whole number, 0 or more",
    ),
    "fraction": (lambda: count("NCCL", "all_reduce", count=1.5, nranks=1), ValueError, "not 1.5"),
    "bool": (lambda: count("NCCL", "all_reduce", count=True, nranks=1), ValueError, "not True"),
    "a count as a count": (
        lambda: count("NCCL", "all_reduce", count=two, nranks=2),
        ValueError,
        "count is a whole number",
    ),
    "no ranks": (
        lambda: count("NCCL", "all_reduce", count=1, nranks=0),
        ValueError,
        "nranks is a whole number, 1 or more",
    ),
    "ranks in words": (lambda: count("NCCL", "all_reduce", count=1, nranks="four"), ValueError, "not 'four'"),
    "argument of another call": (
        lambda: Count("NCCL", "all_reduce", "recvcount", 1, 1),
        TypeError,
        "no count argument",
    ),
    "name of another call": (
        lambda: two.to("MPI", "sendcount"),
        TypeError,
        "MPI_Reduce_scatter_block takes recvcount",
    ),
    "dtype": (lambda: two.output_bytes("float33"), TypeError, "a NumPy dtype of numbers is accepted"),
    "dtype None": (lambda: two.output_bytes(None), TypeError, "dtype=None"),
    "dtype object": (lambda: two.output_bytes(object), TypeError, "a NumPy dtype of numbers"),
    "dtype text": (lambda: two.output_bytes("U4"), TypeError, "a NumPy dtype of numbers"),
    "size of NCCL": (
        lambda: two.size_column("int8"),
        TypeError,
        r"NCCL has no size column; use .to\('nccl-tests'\)",
    ),
    "rank": (lambda: two.on(2), ValueError, r"on\(rank=2, root=0\): rank is a whole number, 0 to 1"),
    "root": (lambda: two.on(0, root=-1), ValueError, "root is a whole number, 0 to 1"),
    "placement of a number": (lambda: payload.placement(2, 0, 0, 0), TypeError, "count is a payload.Count"),
    "placement before the start": (
        lambda: payload.placement(two, -1, 0, 0),
        ValueError,
        "send_offset is a whole number",
    ),
    "placement of one buffer": (
        lambda: payload.placement(count("MPI", "broadcast", count=1, nranks=1), 0, 0, 0),
        ValueError,
        "MPI_Bcast takes one buffer",
    ),
    "counts of NCCL": (
        lambda: counts("NCCL", "gather_v", recvcounts=[1]),
        ValueError,
        "NCCL has no variable-count forms",
    ),
    "counts of a plain call": (
        lambda: counts("MPI", "gather", recvcounts=[1]),
        ValueError,
        "operation is one of reduce_sc",
    ),
    "counts misnamed": (
        lambda: counts("MPI", "gather_v", sendcounts=[1]),
        TypeError,
        "MPI_Gatherv takes recvcounts",
    ),
    "counts of one": (
        lambda: counts("MPI", "gather_v", recvcounts=3),
        TypeError,
        "a list with one number per rank, not 3",
    ),
    "counts of none": (
        lambda: counts("MPI", "gather_v", recvcounts=[]),
        ValueError,
        "one entry per rank, at least one",
    ),
    "counts negative": (
        lambda: counts("MPI", "gather_v", recvcounts=[-1]),
        ValueError,
        "each of recvcounts is a whole",
    ),
    "counts not square": (
        lambda: counts("MPI", "all_to_all_v", sendcounts=[[1, 2], [3]]),
        ValueError,
        "one row per rank",
    ),
    "counts without rows": (
        lambda: counts("MPI", "all_to_all_v", sendcounts=[1, 2]),
        TypeError,
        r"sendcounts\[0\] is a list",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_named_with_what_is_accepted(bad):
    call, error, message = BAD[bad]
    with pytest.raises(error, match=message):
        call()

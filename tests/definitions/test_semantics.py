"""The reference against plain Python loops, against laws that need no loops, and against wrong references."""

import functools

import numpy as np
import pytest
from collective_cases import DTYPES, MOVES, REDUCTIONS, Case, grid, make
from hypothesis import given, settings
from hypothesis import strategies as st

from collectlab import semantics as s
from collectlab.layout import Partition

OPERATIONS = (*REDUCTIONS, *MOVES)
KEEP_SHAPE = ("all_reduce", "reduce", "broadcast")


# -- the same results by plain loops --------------------


def folded(values, op, dtype):
    """The numbers of all ranks at one position, combined in rank order, with nothing of NumPy's array code."""
    if dtype.kind in "iu":
        combine = {"sum": int.__add__, "avg": int.__add__, "prod": int.__mul__, "min": min, "max": max}[op]
        total = wrapped(functools.reduce(combine, map(int, values)), dtype)
        return abs(total) // len(values) * (-1 if total < 0 else 1) if op == "avg" else total

    total = values[0]
    with np.errstate(all="ignore"):
        for value in values[1:]:
            if op in ("sum", "avg"):
                total = total + value
            elif op == "prod":
                total = total * value
            elif np.isnan(value) or (op == "min" and value < total) or (op == "max" and value > total):
                total = value  # a nan, once taken, is neither greater nor less than what follows
        return total / len(values) if op == "avg" else total


def wrapped(number, dtype):
    bits = dtype.itemsize * 8
    number %= 1 << bits
    return number - (1 << bits) if dtype.kind == "i" and number >> (bits - 1) else number


def cut(vector, counts):
    blocks, vector = [], list(vector)
    for count in counts:
        blocks.append([vector.pop(0) for _ in range(count)])
    return blocks


def loops(case):
    """What the call returns on each rank: lists of numbers, or None."""
    nranks, name, kwargs = len(case.xs), case.operation.removesuffix("_v"), case.kwargs
    rows = [None if x is None else list(x.reshape(-1)) for x in case.xs]
    root = kwargs.get("root")
    dtype = next(x for x in case.xs if x is not None).dtype
    if name in ("all_reduce", "reduce", "reduce_scatter"):
        total = [folded(column, kwargs["op"], dtype) for column in zip(*rows, strict=True)]
        if name == "reduce_scatter":
            return cut(total, kwargs.get("counts") or [len(total) // nranks] * nranks)
        return [total if root in (None, rank) else None for rank in range(nranks)]
    if name in ("all_gather", "gather"):
        joined = [number for row in rows for number in row]
        return [joined if root in (None, rank) else None for rank in range(nranks)]
    if name == "broadcast":
        return [rows[root]] * nranks
    if name == "scatter":
        return cut(rows[root], kwargs.get("counts") or [len(rows[root]) // nranks] * nranks)
    counts = kwargs.get("sendcounts") or [[len(row) // nranks] * nranks for row in rows]
    sent = [cut(row, mine) for row, mine in zip(rows, counts, strict=True)]
    return [[number for sender in range(nranks) for number in sent[sender][rank]] for rank in range(nranks)]


def fault(case, function=None):
    """What is wrong with the results of one call, or None."""
    before = [None if x is None else x.copy() for x in case.xs]
    results = (function or getattr(s, case.operation))(case.xs, **case.kwargs)
    given_arrays = [x for x in case.xs if x is not None]
    dtype, shape = given_arrays[0].dtype, given_arrays[0].shape
    if not isinstance(results, list) or len(results) != len(case.xs):
        return "not one result for each rank"
    for rank, (result, expected) in enumerate(zip(results, loops(case), strict=True)):
        if (result is None) != (expected is None):
            return f"rank {rank}: {'no' if result is None else 'a'} result"
        if result is None:
            continue
        if result.dtype != dtype:
            return f"rank {rank}: dtype {result.dtype}"
        if result.shape != (shape if case.operation in KEEP_SHAPE else (len(expected),)):
            return f"rank {rank}: shape {result.shape}"
        if not np.array_equal(result.reshape(-1), np.array(expected, dtype), equal_nan=dtype.kind in "fc"):
            return f"rank {rank}: {result} instead of {expected}"
        others = [r for q, r in enumerate(results) if q != rank and r is not None]
        if any(np.shares_memory(result, other) for other in (*given_arrays, *others)):
            return f"rank {rank}: its result shares memory"
    for x, old in zip(case.xs, before, strict=True):
        if x is not None and not np.array_equal(x, old, equal_nan=dtype.kind in "fc"):
            return "an input has changed"
    return None


@st.composite
def cases(draw, operations=OPERATIONS, dtypes=DTYPES):
    dtype = draw(st.sampled_from(dtypes))
    ops = ("sum", "prod", "avg") if dtype.startswith("complex") else tuple(s.OPS)
    return make(
        draw(st.sampled_from(operations)),
        nranks=draw(st.integers(1, 17)),
        block=draw(st.integers(0, 5)),
        dtype=dtype,
        op=draw(st.sampled_from(ops)),
        seed=draw(st.integers(0, 2**20)),
    )


@pytest.mark.parametrize("nranks", (1, 2, 3, 4, 5, 8, 17))
def test_the_cases_that_run_on_real_ranks(nranks):
    wrong = {str(case): fault(case) for case in grid(nranks, ops=tuple(s.OPS)) if fault(case)}
    assert wrong == {}


@settings(max_examples=300, deadline=None)
@given(cases())
def test_every_operation_returns_what_plain_loops_return(case):
    assert fault(case) is None


# -- shapes and memory layouts --------------------


@pytest.mark.parametrize("operation", OPERATIONS)
def test_elements_are_taken_in_c_order_whatever_the_memory_layout(operation):
    plain = make(operation, 3, 12, "int64", seed=5)
    lengths = {x.size for x in plain.xs if x is not None}
    layouts = [lambda x: np.repeat(x, 2)[::2], lambda x: x[::-1].copy()[::-1]]
    if all(n % 2 == 0 for n in lengths) and not operation.endswith("_v"):
        layouts += [lambda x: np.asfortranarray(x.reshape(2, -1)), lambda x: x.reshape(2, -1).T.copy().T]
    for layout in layouts:
        xs = [None if x is None else layout(x) for x in plain.xs]
        assert fault(Case(operation, xs, plain.kwargs)) is None


def test_lists_are_taken_for_arrays_and_scalars_for_one_element():
    assert s.all_reduce([[1, 2], [3, 4]])[1].tolist() == [4, 6]
    assert [y.tolist() for y in s.all_gather([1, 2, 3])] == [[1, 2, 3]] * 3
    assert s.all_reduce([np.int16(3), np.int16(4)])[0].shape == ()


def test_a_partition_serves_as_counts():
    xs = [np.arange(7), np.arange(7)]
    blocks = s.reduce_scatter_v(xs, Partition.uneven(7, 2))
    assert [b.tolist() for b in blocks] == [[0, 2, 4, 6], [8, 10, 12]]
    assert [b.tolist() for b in s.scatter_v([xs[0], None], Partition.of([0, 7]))] == [[], list(range(7))]


# -- laws --------------------


def same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)


@settings(max_examples=60, deadline=None)
@given(cases(["reduce_scatter"]))
def test_reduce_scatter_then_all_gather_is_all_reduce(case):
    op = case.kwargs["op"]
    same(s.all_gather(s.reduce_scatter(case.xs, op)), s.all_reduce(case.xs, op))


@settings(max_examples=60, deadline=None)
@given(cases(["reduce_scatter_v"]))
def test_the_same_holds_for_uneven_counts(case):
    op, counts = case.kwargs["op"], case.kwargs["counts"]
    same(s.all_gather_v(s.reduce_scatter_v(case.xs, counts, op)), s.all_reduce(case.xs, op))


@settings(max_examples=60, deadline=None)
@given(cases(["scatter_v"]), st.data())
def test_gather_inverts_scatter(case, data):
    root = case.kwargs["root"]
    home = data.draw(st.integers(0, len(case.xs) - 1))
    blocks = s.scatter_v(case.xs, case.kwargs["counts"], root)
    np.testing.assert_array_equal(s.gather_v(blocks, home)[home], case.xs[root])


@settings(max_examples=60, deadline=None)
@given(cases(["all_to_all"]))
def test_all_to_all_twice_is_the_identity(case):
    same(s.all_to_all(s.all_to_all(case.xs)), case.xs)


@settings(max_examples=60, deadline=None)
@given(cases(["all_to_all_v"]))
def test_all_to_all_with_the_counts_transposed_goes_back(case):
    counts = case.kwargs["sendcounts"]
    same(s.all_to_all_v(s.all_to_all_v(case.xs, counts), np.transpose(counts).tolist()), case.xs)


@settings(max_examples=60, deadline=None)
@given(cases(["all_gather_v"]), st.randoms(use_true_random=False))
def test_permuting_the_ranks_permutes_what_all_gather_joins(case, random):
    order = list(range(len(case.xs)))
    random.shuffle(order)
    same(
        s.all_gather_v([case.xs[rank] for rank in order]),
        [np.concatenate([case.xs[rank] for rank in order])] * len(order),
    )


@settings(max_examples=60, deadline=None)
@given(cases(["all_reduce"], [d for d in DTYPES if "int" in d]), st.randoms(use_true_random=False))
def test_the_rank_order_does_not_matter_to_an_integer_reduction(case, random):
    op, shuffled = case.kwargs["op"], list(case.xs)
    random.shuffle(shuffled)
    same(s.all_reduce(shuffled, op), s.all_reduce(case.xs, op))


@settings(max_examples=60, deadline=None)
@given(cases(["reduce"]))
def test_reduce_then_broadcast_is_all_reduce(case):
    op, root = case.kwargs["op"], case.kwargs["root"]
    same(s.broadcast(s.reduce(case.xs, op, root), root), s.all_reduce(case.xs, op))


@settings(max_examples=60, deadline=None)
@given(cases(["reduce_scatter"]))
def test_a_reduce_scatter_is_an_all_to_all_and_a_sum_of_the_blocks(case):
    blocks = [y.reshape(len(case.xs), -1) for y in s.all_to_all(case.xs)]
    ranks = [s.all_reduce(list(mine), case.kwargs["op"])[0] for mine in blocks]
    same(ranks, s.reduce_scatter(case.xs, case.kwargs["op"]))


@settings(max_examples=40, deadline=None)
@given(cases(["all_to_all"]))
def test_one_rank_keeps_what_it_has(case):
    x = next(x for x in case.xs)
    for operation in (
        "all_reduce",
        "reduce",
        "reduce_scatter",
        "all_gather",
        "gather",
        "broadcast",
        "scatter",
    ):
        np.testing.assert_array_equal(getattr(s, operation)([x])[0], x)


# -- the worked numbers of the lessons --------------------


def test_three_collectives_on_the_same_inputs():
    xs = [np.array([1, 2, 3, 4]), np.array([10, 20, 30, 40])]
    assert [y.tolist() for y in s.all_reduce(xs)] == [[11, 22, 33, 44]] * 2
    assert [y.tolist() for y in s.all_gather(xs)] == [[1, 2, 3, 4, 10, 20, 30, 40]] * 2
    shards = s.reduce_scatter(xs)
    assert [y.tolist() for y in shards] == [[11, 22], [33, 44]]
    assert [y.tolist() for y in s.all_gather(shards)] == [[11, 22, 33, 44]] * 2
    assert s.all_gather(xs[::-1])[0].tolist() == [10, 20, 30, 40, 1, 2, 3, 4]


def test_an_average_of_integers_is_cut_towards_zero():
    xs = [np.array([-7, 7, -1], np.int8), np.array([0, 0, 0], np.int8)]
    assert s.all_reduce(xs, "avg")[0].tolist() == [-3, 3, 0]
    assert s.all_reduce([np.array([100], np.int8)] * 2, "avg")[0].tolist() == [-28]  # the sum wraps first


# -- wrong references are noticed --------------------


def rolled(results):
    return results[1:] + results[:1]


WRONG = {  # the first word names the operation
    "all_reduce leaves out the last rank": (lambda xs, op: [s.all_reduce(xs[:-1] or xs, op)[0] for _ in xs]),
    "all_reduce adds rank 0 twice": (lambda xs, op: s.all_reduce([*xs, xs[0]], op)[:-1]),
    "all_reduce adds from the last rank down": (lambda xs, op: s.all_reduce(xs[::-1], op)),
    "all_reduce always adds": (lambda xs, op: s.all_reduce(xs)),
    "all_reduce widens": (
        lambda xs, op: [y.astype(np.result_type(y, np.float32)) for y in s.all_reduce(xs, op)]
    ),
    "all_reduce hands out one array": (lambda xs, op: s.all_reduce(xs, op)[:1] * len(xs)),
    "all_reduce returns the input of a lone rank": (
        lambda xs, op: xs if len(xs) == 1 else s.all_reduce(xs, op)
    ),
    "all_reduce works in its input": (
        lambda xs, op: (
            [functools.reduce(lambda a, b: np.add(a, b, out=a), xs).copy() for _ in xs[:1]]
            + s.all_reduce(xs, op)[1:]
        )
    ),
    "all_reduce does not divide": (lambda xs, op: s.all_reduce(xs, "sum" if op == "avg" else op)),
    "all_reduce rounds an average down": (
        lambda xs, op: (
            [sum(xs[1:], xs[0]) // xs[0].dtype.type(len(xs)) for _ in xs]
            if op == "avg" and xs[0].dtype.kind == "i"
            else s.all_reduce(xs, op)
        )
    ),
    "reduce gives the result to rank 0": (lambda xs, op, root: s.reduce(xs, op, 0)),
    "reduce gives the result to everyone": (lambda xs, op, root: s.all_reduce(xs, op)),
    "reduce_scatter gives everyone everything": (lambda xs, op: s.all_reduce(xs, op)),
    "reduce_scatter starts at rank 1": (lambda xs, op: rolled(s.reduce_scatter(xs, op))),
    "reduce_scatter only cuts": (lambda xs, op: s.scatter(xs, 0)),
    "reduce_scatter deals elements in turn": (
        lambda xs, op: [y.copy() for y in s.all_reduce(xs, op)[0].reshape(-1, len(xs)).T]
    ),
    "reduce_scatter_v takes the counts backwards": (
        lambda xs, counts, op: s.reduce_scatter_v(xs, counts[::-1], op)
    ),
    "reduce_scatter_v evens the counts out": (
        lambda xs, counts, op: s.reduce_scatter_v(xs, Partition.uneven(sum(counts), len(counts)), op)
    ),
    "all_gather joins backwards": (lambda xs: s.all_gather(xs[::-1])),
    "all_gather leaves out the rank's own block": (
        lambda xs: [
            np.concatenate([xs[0][:0], *(x for q, x in enumerate(xs) if q != rank)])
            for rank in range(len(xs))
        ]
    ),
    "all_gather interleaves": (lambda xs: [np.stack(xs, -1).reshape(-1) for _ in xs]),
    "all_gather stacks": (lambda xs: [np.stack(xs) for _ in xs]),
    "all_gather_v skips short blocks": (lambda xs: s.all_gather_v([x if x.size > 1 else x[:0] for x in xs])),
    "gather gives the result to rank 0": (lambda xs, root: s.gather(xs, 0)),
    "gather_v starts at the root": (lambda xs, root: s.gather_v(xs[root:] + xs[:root], root)),
    "broadcast does nothing at the root": (
        lambda xs, root: [xs[root] if x is not None else xs[root].copy() for x in xs]
    ),
    "broadcast forgets the last rank": (
        lambda xs, root: [*s.broadcast(xs, root)[:-1], np.zeros_like(xs[root])]
    ),
    "scatter goes backwards": (lambda xs, root: s.scatter(xs, root)[::-1]),
    "scatter_v starts at rank 1": (lambda xs, counts, root: rolled(s.scatter_v(xs, counts, root))),
    "all_to_all does nothing": (lambda xs: [x.copy() for x in xs]),
    "all_to_all receives from the last rank first": (
        lambda xs: [y.reshape(len(xs), -1)[::-1].reshape(-1).copy() for y in s.all_to_all(xs)]
    ),
    "all_to_all_v reads the counts by columns": (
        lambda xs, sendcounts: s.all_to_all_v(
            [np.resize(x, sum(c)) for x, c in zip(xs, np.transpose(sendcounts).tolist(), strict=True)],
            np.transpose(sendcounts).tolist(),
        )
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_reference_is_noticed(wrong):
    operation, function = wrong.split()[0], WRONG[wrong]
    tried = [
        case
        for nranks in (1, 2, 3, 5)
        for case in grid(nranks, ops=tuple(s.OPS))
        if case.operation == operation
    ]
    with np.errstate(all="ignore"):
        assert any(fault(case, function) for case in tried)
    assert not any(fault(case) for case in tried)


# -- bad input --------------------

two = [np.arange(4), np.arange(4)]
BAD = {
    "no list": (
        lambda: s.all_reduce(np.arange(4)),
        TypeError,
        r"all_reduce\(.*xs is a list with one array per rank",
    ),
    "no rank": (lambda: s.all_gather([]), TypeError, r"at least one, not \[\]"),
    "None for an array": (lambda: s.all_reduce([np.arange(2), None]), TypeError, "rank 1 passes None"),
    "objects": (
        lambda: s.all_reduce([np.array([{}, 1])]),
        TypeError,
        "rank 0 passes dtype object; elements are",
    ),
    "bool": (lambda: s.all_gather([np.array([True])]), TypeError, "store bool as uint8"),
    "text": (lambda: s.all_gather([np.array(["a"])]), TypeError, "rank 0 passes dtype <U1"),
    "ragged": (lambda: s.all_gather([[[1, 2], [3]]]), TypeError, "rank 0 passes .* which is not one array"),
    "byte order": (lambda: s.all_gather([np.arange(3).astype(">i4")]), TypeError, "the machine's byte order"),
    "dtypes differ": (
        lambda: s.all_reduce([*two, np.ones(4)]),
        ValueError,
        "rank 2 passes dtype float64, the others int64; every rank must pass the same dtype",
    ),
    "lengths differ": (
        lambda: s.all_reduce([*two, np.arange(5)]),
        ValueError,
        r"rank 2 passes shape \(5,\), the others",
    ),
    "lengths differ in a gather": (
        lambda: s.gather([*two, np.arange(5)]),
        ValueError,
        "gather_v takes different lengths",
    ),
    "op": (
        lambda: s.all_reduce(two, "mean"),
        ValueError,
        "op is one of sum, prod, min, max, avg, not 'mean'",
    ),
    "op unhashable": (lambda: s.all_reduce(two, ["sum"]), ValueError, "op is one of sum, prod"),
    "complex order": (
        lambda: s.reduce([np.ones(2, complex)], "max"),
        TypeError,
        "complex numbers have no order, so no max",
    ),
    "root too large": (lambda: s.reduce(two, root=2), ValueError, "root is a rank, 0 to 1, not 2"),
    "root negative": (lambda: s.gather(two, root=-1), ValueError, "root is a rank, 0 to 1, not -1"),
    "root of None": (lambda: s.scatter([None, np.arange(4)], root=0), TypeError, "rank 0 passes None"),
    "root bool": (lambda: s.broadcast(two, root=True), ValueError, "root is a rank"),
    "no equal blocks": (
        lambda: s.reduce_scatter([np.arange(5)] * 2),
        ValueError,
        "5 elements cannot be cut into 2 equal blocks; pad them to 2 x 3 = 6 .* or use reduce_scatter_v",
    ),
    "no equal blocks to all": (lambda: s.all_to_all([np.arange(5)] * 2), ValueError, "pad them to 2 x 3 = 6"),
    "counts too few": (
        lambda: s.reduce_scatter_v(two, [4]),
        ValueError,
        r"one number per rank \(2\).*these are 1",
    ),
    "counts too small": (
        lambda: s.scatter_v(two, [1, 2]),
        ValueError,
        "add up to 4 elements; these are 2 and add up to 3",
    ),
    "counts negative": (lambda: s.scatter_v(two, [5, -1]), ValueError, "none negative"),
    "counts of fractions": (
        lambda: s.scatter_v(two, [2.0, 2.0]),
        TypeError,
        "counts holds one whole number per rank",
    ),
    "counts of nothing": (
        lambda: s.scatter_v(two, 4),
        TypeError,
        "counts holds one whole number per rank, not 4",
    ),
    "rows too few": (
        lambda: s.all_to_all_v(two, [[2, 2]]),
        ValueError,
        "sendcounts has one row per rank, 2 rows of as many numbers",
    ),
    "rows that are none": (
        lambda: s.all_to_all_v(two, 4),
        ValueError,
        "sendcounts has one row per rank, 2 rows",
    ),
    "a row too short": (
        lambda: s.all_to_all_v(two, [[2, 2], [4]]),
        ValueError,
        r"sendcounts\[1\] holds one number per rank",
    ),
    "buffer of another shape": (
        lambda: s.broadcast([np.arange(4), np.arange(3)]),
        ValueError,
        "every rank must pass the same shape",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_named_with_what_is_accepted(bad):
    call, error, message = BAD[bad]
    with pytest.raises(error, match=message):
        call()

"""Identified elements: every mixture within the limits is read back, and every misplacement is found and said."""

from collections import Counter

import numpy as np
import pytest
from collective_cases import MOVES, REDUCTIONS
from hypothesis import given, settings
from hypothesis import strategies as st

from collectlab import provenance as p
from collectlab import semantics as s


def element(mixture, xs):
    """The words of a sum that holds xs[rank]'s element so often, (rank, index) -> times; added one by one."""
    width = p.words(len(xs))
    total = np.zeros(width, np.int64)
    for (rank, index), times in mixture.items():
        for _ in range(times):
            total = total + xs[rank][index * width : (index + 1) * width]
    return total


@st.composite
def mixtures(draw, nranks, count, most=6):
    """Any sum within the limits: at most two different elements of each rank, each a few times."""
    mixture = {}
    for rank in range(nranks):
        for index in draw(st.sets(st.integers(0, count - 1), max_size=2)):
            mixture[rank, index] = draw(st.integers(1, most))
    return mixture


# -- reading --------------------


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 17), st.integers(1, 60), st.data())
def test_every_mixture_within_the_limits_is_read_back(nranks, count, data):
    xs = p.identify(nranks, count)
    several = data.draw(st.lists(mixtures(nranks, count), min_size=1, max_size=3))
    vector = np.concatenate([element(mixture, xs) for mixture in several])
    assert p.read(vector, nranks) == several


@settings(max_examples=100, deadline=None)
@given(st.integers(0, p.ELEMENTS - 1), st.integers(0, p.ELEMENTS - 1), st.integers(1, p.TIMES - 1), st.data())
def test_indices_and_times_up_to_the_limits_are_read_back(low, high, times, data):
    more = data.draw(st.integers(1, p.TIMES - times))
    row = sum(
        t * np.array([1, i, i**2, i**3, int(p._check(0, i))], np.int64)
        for i, t in ((low, times), (high, more))
    )
    assert p.read(row, 1) == [dict(Counter({(0, low): times}) + Counter({(0, high): more}))]


def test_the_largest_sum_does_not_overflow():
    (x,) = p.identify(1, p.ELEMENTS)
    last = x[-p.words(1) :]
    exact = [p.TIMES * int(word) for word in last]
    assert max(exact) < 2**63
    assert (p.TIMES * last).tolist() == exact
    assert p.read(p.TIMES * last, 1) == [{(0, p.ELEMENTS - 1): p.TIMES}]
    assert p.RANKS * p.TIMES * 2**40 < 2**63


def test_no_two_elements_of_17_ranks_and_1000_indices_are_alike():
    xs = [x.reshape(1000, -1) for x in p.identify(17, 1000)]
    rows = {row.tobytes() for x in xs for row in x}
    assert len(rows) == 17 * 1000
    assert len({int(row[-1]) for x in xs for row in x}) == 17 * 1000


def test_a_vector_is_words_of_whole_elements():
    xs = p.identify(3, 4)
    assert [x.shape for x in xs] == [(4 * p.words(3),)] * 3
    assert {x.dtype for x in xs} == {np.dtype(np.int64)}
    assert p.read(xs[1], 3) == [{(1, index): 1} for index in range(4)]
    assert p.read(np.zeros(2 * p.words(3), np.int64), 3) == [{}, {}]
    assert p.read(None, 3) == []


def unreadable(row, nranks=2):
    return p.read(row, nranks) == [p.UNREADABLE]


def test_three_elements_with_the_moments_of_two_are_not_taken_for_two():
    xs = p.identify(2, 5)
    three, two = {(0, 0): 1, (0, 2): 6, (0, 4): 1}, {(0, 1): 4, (0, 3): 4}
    assert element(three, xs)[:4].tolist() == element(two, xs)[:4].tolist()  # the check word tells them apart
    assert unreadable(element(three, xs))
    assert p.read(element(two, xs), 2) == [two]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-(2**62), 2**62), min_size=9, max_size=9))
def test_numbers_that_no_collective_wrote_are_unreadable(numbers):
    row = np.array(numbers, np.int64)
    assert unreadable(row) or not row.any()


@settings(max_examples=200, deadline=None)
@given(mixtures(2, 8), st.integers(0, 8), st.integers(-5, 5).filter(bool))
def test_a_damaged_word_is_noticed(mixture, at, change):
    row = element(mixture, p.identify(2, 8))
    row[at] += change
    assert unreadable(row)


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(0, 30), min_size=3, max_size=8), st.data())
def test_more_than_two_elements_of_a_rank_are_unreadable(indices, data):
    mixture = {(1, index): data.draw(st.integers(1, 5)) for index in indices}
    assert unreadable(element(mixture, p.identify(2, 31)))


def test_more_contributions_than_the_limit_are_unreadable():
    row = p.identify(1, 4)[0][-p.words(1) :]
    assert p.read(p.TIMES * row, 1) == [{(0, 3): p.TIMES}]
    assert unreadable((p.TIMES + 1) * row, 1)


right_weights = p._weights
WEAKER = {
    "one index only": lambda *moments: {moments[1] // moments[0]: moments[0]},
    "the lower of two": lambda *moments: dict(sorted(right_weights(*moments).items())[:1]),
    "weights swapped": lambda *moments: {
        index: moments[0] - weight if weight < moments[0] else weight
        for index, weight in right_weights(*moments).items()
    },
}


@pytest.mark.parametrize("weaker", WEAKER)
def test_a_weaker_reading_is_noticed(weaker, monkeypatch):
    monkeypatch.setattr(p, "_weights", WEAKER[weaker])
    mixture = {(0, 1): 1, (0, 5): 2, (1, 3): 1}
    assert p.read(element(mixture, p.identify(2, 6)), 2) != [mixture]


# -- through the collectives --------------------


def drawn(operation, nranks, block, width):
    """Elements on each rank, and the arguments of the call, counted in elements and in words."""
    counts = [(rank * 2 + 1) % (block + 1) for rank in range(nranks)]
    name = {"reduce_scatter_v": "counts", "scatter_v": "counts", "all_to_all_v": "sendcounts"}.get(operation)
    if name:
        table = np.array([counts] * nranks if name == "sendcounts" else counts)
        return [sum(counts)] * nranks, {name: table.tolist()}, {name: (table * width).tolist()}
    return counts if operation.endswith("_v") else [nranks * block] * nranks, {}, {}


@pytest.mark.parametrize("operation", (*REDUCTIONS, *MOVES))
@pytest.mark.parametrize("nranks", (1, 2, 5, 17))
def test_names_survive_every_operation(operation, nranks):
    counts, in_elements, in_words = drawn(operation, nranks, 3, p.words(nranks))
    call, reduces = getattr(s, operation), operation in REDUCTIONS
    numbers = [np.arange(n) + (0 if reduces else 1000 * rank) for rank, n in enumerate(counts)]
    expected = call(numbers, **in_elements, **({"op": "max"} if reduces else {}))
    results = call(p.identify(nranks, counts), **in_words)
    for y, numbers in zip(results, expected, strict=True):
        if numbers is None:
            assert y is None
        elif reduces:
            assert p.read(y, nranks) == [{(rank, i): 1 for rank in range(nranks)} for i in numbers.tolist()]
        else:
            assert p.read(y, nranks) == [{divmod(number, 1000): 1} for number in numbers.tolist()]
    assert p.misplacements(results, results) == []
    assert p.explain(results, results) == "every element is where it should be"


def test_17_ranks_with_1000_elements_through_two_collectives():
    count = 59 * 17  # 1,003, which 17 divides
    xs = p.identify(17, count)
    blocks = s.reduce_scatter(xs)
    assert p.misplacements(s.all_gather(blocks), s.all_reduce(xs)) == []
    wrong = p.misplacements(blocks[1:] + blocks[:1], blocks)
    assert [(w.rank, w.start, w.stop) for w in wrong] == [(rank, 0, 59) for rank in range(17)]


# -- misplacements --------------------


def expanded(found):
    """(rank, element) -> (should, holds), with every run taken apart."""
    apart = {}
    for one in found:
        for step in range(one.stop - one.start):
            apart[one.rank, one.start + step] = tuple(
                mixture if isinstance(mixture, str) else {(r, i + step): n for (r, i), n in mixture.items()}
                for mixture in (one.should, one.holds)
            )
    return apart


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_random_misplacements_are_found_one_by_one(nranks, block, data):
    xs = p.identify(nranks, nranks * block)
    want = s.reduce_scatter(xs)
    rows = [y.reshape(block, -1).copy() for y in want]
    truth = {}
    for rank, at in data.draw(
        st.sets(st.tuples(st.integers(0, nranks - 1), st.integers(0, block - 1)), max_size=8)
    ):
        mixture = data.draw(mixtures(nranks, nranks * block, most=3))
        should = {(r, rank * block + at): 1 for r in range(nranks)}
        rows[rank][at] = element(mixture, xs)
        if mixture != should:
            truth[rank, at] = (should, mixture)
    found = p.misplacements([row.reshape(-1) for row in rows], want)
    assert expanded(found) == truth
    assert sum(one.stop - one.start for one in found) == len(truth)
    text = p.explain([row.reshape(-1) for row in rows], want, most=100)
    assert text.count("\n") + 1 == max(1, len(found))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(1, 5), st.permutations(range(6)))
def test_blocks_in_another_order_are_one_run_each(nranks, block, order):
    order = [rank for rank in order if rank < nranks]
    want = s.all_gather(p.identify(nranks, block))
    parts = np.split(want[0], nranks)
    found = p.misplacements([np.concatenate([parts[r] for r in order])] * nranks, want)
    assert {(w.rank, w.start // block, min(w.holds)[0]) for w in found} <= {
        (rank, place, order[place]) for rank in range(nranks) for place in range(nranks)
    }
    assert sum(w.stop - w.start for w in found) == nranks * block * sum(r != at for at, r in enumerate(order))
    assert len(found) == nranks * sum(r != at for at, r in enumerate(order))


def said(mixture, length, nranks=4, wanted=6):
    """What is said where rank 1's elements from 2 on hold the mixture instead of everyone's element 6."""
    xs = p.identify(nranks, wanted + length)
    everyone = {(rank, wanted): 1 for rank in range(nranks)}

    def block(mixture):
        rows = [{(r, i + step): n for (r, i), n in mixture.items()} for step in range(length)]
        return np.concatenate([element({(0, 0): 1}, xs)] * 2 + [element(row, xs) for row in rows])

    results = [[None, block(held), None, None] for held in (mixture, everyone)]
    return p.explain(*results)


ONE = "it should hold the sum of everyone's element 6"
TWO = "they should hold the sum of everyone's elements 6:8"
SAID = {
    "twice and missing": ({(1, 6): 1, (2, 6): 1, (3, 6): 2}, 1,
        f"rank 1, element 2: holds rank 3's element 6 twice, rank 0's is missing; {ONE}"),
    "three missing": ({(2, 6): 1}, 1, f"rank 1, element 2: holds only rank 2's; {ONE}"),
    "one missing": ({(0, 6): 1, (1, 6): 1, (3, 6): 1}, 1, f"rank 1, element 2: rank 2's is missing; {ONE}"),
    "two missing": ({(0, 6): 1, (1, 6): 2}, 1,
        f"rank 1, element 2: holds rank 1's element 6 twice, rank 2's and rank 3's are missing; {ONE}"),
    "another element": ({(0, 2): 1, (1, 6): 1, (2, 6): 1, (3, 6): 1}, 1,
        f"rank 1, element 2: holds rank 0's element 2 instead of 6; {ONE}"),
    "one too many": ({(0, 2): 1, (0, 6): 1, (1, 6): 1, (2, 6): 1, (3, 6): 1}, 1,
        f"rank 1, element 2: holds rank 0's element 2 as well; {ONE}"),
    "everyone's, elsewhere": ({(rank, 2): 1 for rank in range(4)}, 1,
        f"rank 1, element 2: holds the sum of everyone's element 2; {ONE}"),
    "everyone's twice": ({(rank, 6): 2 for rank in range(4)}, 1,
        f"rank 1, element 2: holds rank 0's, rank 1's, rank 2's and rank 3's element 6 twice; {ONE}"),
    "zeros": ({}, 1, f"rank 1, element 2: holds nothing (zeros); {ONE}"),
    "three of a rank": ({(0, 1): 1, (0, 2): 1, (0, 3): 1}, 1,
        f"rank 1, element 2: holds no sum of identified elements; {ONE}"),
    "a slice": ({(0, 2): 1, (1, 6): 2, (3, 6): 1}, 2,
        "rank 1, elements 2:4: hold rank 0's elements 2:4 instead of 6:8, rank 1's elements 6:8 twice, "
        f"rank 2's are missing; {TWO}"),
    "a slice of everyone's, and more": ({(0, 2): 1, (1, 2): 1, (2, 2): 1, (3, 2): 2}, 2,
        "rank 1, elements 2:4: hold the sum of everyone's elements 2:4 and once more rank 3's elements 2:4; " + TWO),
}  # fmt: skip


@pytest.mark.parametrize("case", SAID)
def test_a_misplacement_is_said_in_words(case):
    mixture, length, words = SAID[case]
    assert said(mixture, length) == words


def test_the_sentence_of_a_wrong_reduce_scatter():
    xs = p.identify(4, 8)
    want = s.reduce_scatter(xs)
    got = [y.copy() for y in want]
    got[3] += xs[3][6 * p.words(4) :] - xs[0][6 * p.words(4) :]
    assert p.explain(got, want) == (
        "rank 3, elements 0:2: hold rank 3's elements 6:8 twice, rank 0's are missing; "
        "they should hold the sum of everyone's elements 6:8"
    )


def test_a_gathered_element_is_named_whole():
    want = s.all_gather(p.identify(3, 2))
    got = [want[0], want[0][::-1].copy() * 0, np.roll(want[0], 2 * p.words(3))]
    assert p.explain(got, want).splitlines() == [
        "rank 1, elements 0:2: hold nothing (zeros); they should hold rank 0's elements 0:2",
        "rank 1, elements 2:4: hold nothing (zeros); they should hold rank 1's elements 0:2",
        "rank 1, elements 4:6: hold nothing (zeros); they should hold rank 2's elements 0:2",
        "rank 2, elements 0:2: hold rank 2's elements 0:2; they should hold rank 0's elements 0:2",
        "rank 2, elements 2:4: hold rank 0's elements 0:2; they should hold rank 1's elements 0:2",
        "rank 2, elements 4:6: hold rank 1's elements 0:2; they should hold rank 2's elements 0:2",
    ]


def test_results_that_are_too_short_too_long_or_not_there_are_told():
    xs = p.identify(3, 3)
    width = p.words(3)
    want = s.reduce_scatter(xs)
    got = [want[0][:0], np.concatenate([want[1], want[2]]), None]
    assert p.explain(got, want).splitlines() == [
        "rank 0, element 0: does not exist; it should hold the sum of everyone's element 0",
        "rank 1, element 1: should not be there; it holds the sum of everyone's element 2",
        "rank 2, element 0: does not exist; it should hold the sum of everyone's element 2",
    ]
    assert p.misplacements([xs[0][:width], None, None], s.gather(xs))[0].holds == p.ABSENT


def test_long_lists_are_cut_short():
    want = s.all_gather(p.identify(4, 8))
    got = [y.reshape(32, -1)[::-1].reshape(-1) for y in want]
    lines = p.explain(got, want, most=3).splitlines()
    assert len(lines) == 4 and lines[-1] == f"... and {4 * 32 - 3} more"


WRONG = {
    "the next rank's block": lambda xs: s.reduce_scatter(xs)[1:] + s.reduce_scatter(xs)[:1],
    "the last rank left out": lambda xs: s.reduce_scatter([*xs[:-1], np.zeros_like(xs[-1])]),
    "the first rank twice": lambda xs: s.reduce_scatter([*xs[:-1], xs[-1] + xs[0]]),
    "no reduction": lambda xs: [np.split(x, len(xs))[rank] for rank, x in enumerate(xs)],
    "no scatter": lambda xs: s.all_reduce(xs),
    "maximum for sum": lambda xs: s.reduce_scatter(xs, "max"),
    "a block of zeros": lambda xs: [
        *s.reduce_scatter(xs)[:-1],
        np.zeros_like(xs[0])[: len(xs[0]) // len(xs)],
    ],
    "another block size": lambda xs: [y[: len(y) // 2] for y in s.reduce_scatter(xs)],
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("nranks", (2, 3, 8))
def test_a_wrong_collective_is_explained(wrong, nranks):
    xs = p.identify(nranks, 4 * nranks)
    want = s.reduce_scatter(xs)
    assert p.misplacements(want, want) == []
    found = p.misplacements(WRONG[wrong](xs), want)
    assert found
    assert all(str(one).startswith(f"rank {one.rank}, element") for one in found)


# -- bad input --------------------

xs3 = p.identify(3, 2)
BAD = {
    "no ranks": (lambda: p.identify(0, 4), ValueError, "nranks is a whole number, 1 to 1024, not 0"),
    "ranks in words": (lambda: p.identify("four", 4), ValueError, "nranks is a whole number.*not 'four'"),
    "too many ranks": (lambda: p.words(p.RANKS + 1), ValueError, "nranks is a whole number, 1 to 1024"),
    "too many elements": (lambda: p.identify(2, p.ELEMENTS + 1), ValueError, "count is a whole number, 0 to 200000"),
    "negative": (lambda: p.identify(2, -1), ValueError, "count is a whole number, 0 to"),
    "fraction": (lambda: p.identify(2, 1.5), TypeError, "count is one number, or a list"),
    "counts too few": (lambda: p.identify(2, [3]), ValueError, r"or one per rank \(2\), not 1 numbers"),
    "floats": (lambda: p.read(xs3[0].astype(float), 3), TypeError,
        "array has dtype float64; identified elements are int64"),
    "a cut element": (lambda: p.read(xs3[0][:-1], 3), ValueError, r"multiply counts .* by words\(nranks\) = 13"),
    "a cut result": (lambda: p.explain([xs3[0], xs3[1][:5], xs3[2]], xs3), ValueError, r"got\[1\] has 5 words"),
    "results too few": (lambda: p.misplacements(xs3[:2], xs3), ValueError, "got has 2 results and want 3"),
    "want unreadable": (
        lambda: p.explain([np.zeros(13, np.int64)] * 3, [np.full(13, 7)] * 3), ValueError,
        r"element 0 of want\[0\] is no sum of identified elements"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_named_with_what_is_accepted(bad):
    call, error, message = BAD[bad]
    with pytest.raises(error, match=message):
        call()

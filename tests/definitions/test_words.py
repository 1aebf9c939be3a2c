"""Numbers and ranks in words, as every report and diagnosis has them."""

import pytest

from collectlab.words import listed, ranks_named


@pytest.mark.parametrize(
    ("ranks", "said"),
    [([3], "rank 3"), ([0, 1], "ranks 0 and 1"), ((0, 1, 2), "ranks 0, 1 and 2"), ([0, 1, 2, 3], "ranks 0 to 3"),
     ({7, 0, 2, 3, 4, 5}, "ranks 0, 2 to 5 and 7")],
)  # fmt: skip
def test_ranks_in_words(ranks, said):
    assert ranks_named(ranks) == said


def test_numbers_in_words():
    assert listed([5, 3, 2]) == "2, 3 and 5" and listed([1]) == "1" and listed(range(1, 5)) == "1 to 4"

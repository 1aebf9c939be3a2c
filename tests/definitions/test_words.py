"""Numbers, ranks and programs in words, as every report and diagnosis has them."""

import functools

import pytest

from collectlab.kernels import ring, two_phase
from collectlab.words import listed, program_named, ranks_named


@pytest.mark.parametrize(
    ("ranks", "said"),
    [([3], "rank 3"), ([0, 1], "ranks 0 and 1"), ((0, 1, 2), "ranks 0, 1 and 2"), ([0, 1, 2, 3], "ranks 0 to 3"),
     ({7, 0, 2, 3, 4, 5}, "ranks 0, 2 to 5 and 7")],
)  # fmt: skip
def test_ranks_in_words(ranks, said):
    assert ranks_named(ranks) == said


def test_numbers_in_words():
    assert listed([5, 3, 2]) == "2, 3 and 5" and listed([1]) == "1" and listed(range(1, 5)) == "1 to 4"


def test_a_program_by_its_name_and_a_kernel_by_its_modules_too():
    def mine(ctx):
        pass

    assert program_named(mine) == "mine" and program_named(functools.partial(mine)) == "partial"
    assert program_named(two_phase.all_reduce) == "two_phase.all_reduce"
    assert program_named(ring.all_gather) == "ring.all_gather"

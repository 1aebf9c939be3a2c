"""Partition and RankMap: who owns an element, and what moves when ranks change places; wrong ones are noticed."""

from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectlab.layout import Partition, Place, RankMap

counts = st.lists(st.integers(0, 6), min_size=1, max_size=17)
sizes = st.tuples(st.integers(0, 120), st.integers(1, 17))
DEVICES = tuple("ABCDEFGH")


# -- Partition -----------------------------------------------------------------------------------------------


def fault(partition, wanted):
    """What is wrong with a partition of these counts, or None; walks over the vector element by element."""
    walk = [(rank, at) for rank, count in enumerate(wanted) for at in range(count)]
    if (
        partition.nranks != len(wanted)
        or tuple(partition.counts) != tuple(wanted)
        or partition.total != len(walk)
    ):
        return "counts"
    vector = list(range(partition.total))
    slices = [partition.slice(rank) for rank in range(partition.nranks)]
    if [i for part in slices for i in vector[part]] != vector:
        return "the slices do not tile the vector"
    if [len(vector[part]) for part in slices] != list(wanted):
        return "a slice has another length than its count"
    if [part.start for part in slices] != list(partition.displacements):
        return "displacements"
    for index, (rank, at) in enumerate(walk):
        if partition.owner(index) != rank or vector[slices[rank]][at] != index:
            return f"owner of element {index}"
    if partition.owners().tolist() != [rank for rank, _ in walk] or partition.owners().dtype != np.int64:
        return "owners"
    return None


@settings(max_examples=300, deadline=None)
@given(counts)
def test_slices_tile_the_vector_and_owners_agree(wanted):
    assert fault(Partition.of(wanted), wanted) is None


@settings(max_examples=200, deadline=None)
@given(sizes)
def test_uneven_counts_differ_by_one_at_most_and_never_rise(size):
    total, nranks = size
    partition = Partition.uneven(total, nranks)
    assert fault(partition, partition.counts) is None
    assert partition.total == total
    assert set(np.diff(partition.counts).tolist()) <= {0, -1}
    assert partition.counts[0] - partition.counts[-1] <= 1
    if total % nranks == 0:
        assert partition == Partition.equal(total, nranks)


@settings(max_examples=200, deadline=None)
@given(sizes, st.integers(1, 9))
def test_padding_is_the_least_that_makes_equal_blocks(size, multiple):
    total, nranks = size
    partition = Partition.padded(total, nranks, multiple)
    (block,) = set(partition.counts)
    assert block % multiple == 0
    assert block * nranks >= total > (block - multiple) * nranks or total == block == 0
    assert partition.padding == block * nranks - total
    assert partition.is_padding().tolist() == [index >= total for index in range(partition.total)]
    filled = [sum(not pad for pad in partition.is_padding()[partition.slice(rank)]) for rank in range(nranks)]
    assert list(partition.data_counts) == filled
    assert sum(filled) == total


@settings(max_examples=200, deadline=None)
@given(sizes, st.sampled_from([1, 2, 4, 8, 16, 3]), st.sampled_from([1, 4, 16, 64, 6]))
def test_aligned_blocks_start_on_a_boundary_and_are_as_even_as_that_allows(size, itemsize, align_bytes):
    total, nranks = size
    partition = Partition.aligned(total, nranks, itemsize, align_bytes)
    assert fault(partition, partition.counts) is None
    assert partition.total == total and partition.padding == 0
    for rank, start in enumerate(partition.displacements):
        assert start * itemsize % align_bytes == 0 or partition.counts[rank] == 0
    step = np.lcm(itemsize, align_bytes) // itemsize
    steps = [-(-count // step) for count in partition.counts]
    assert max(steps) - min(steps) <= 1


def test_a_partition_is_printed_by_rank():
    assert str(Partition.padded(5, 2)) == (
        "6 elements on 2 ranks, 1 of them padding\n  rank 0  0:3  (3)\n  rank 1  3:6  (3)"
    )
    assert str(Partition.of([2, 0])) == "2 elements on 2 ranks\n  rank 0  0:2  (2)\n  rank 1  2:2  (0)"


class OwnerIgnoresEmptyBlocks(Partition):
    def owner(self, index):
        return bisect_left(self.displacements, index) if index else 0


class OwnerByDivision(Partition):
    def owner(self, index):
        return index * self.nranks // self.total


class SliceByFirstCount(Partition):
    def slice(self, rank):
        return slice(rank * self.counts[0], rank * self.counts[0] + self.counts[rank])


class SliceWithItsLastElementShared(Partition):
    def slice(self, rank):
        part = super().slice(rank)
        return slice(part.start, min(part.stop + 1, self.total))


class DisplacementsOneFurther(Partition):
    @property
    def displacements(self):
        return (*super().displacements[1:], self.total)


class OwnersBackwards(Partition):
    def owners(self):
        return super().owners()[::-1]


@pytest.mark.parametrize(
    "wrong",
    [
        OwnerIgnoresEmptyBlocks, OwnerByDivision, SliceByFirstCount, SliceWithItsLastElementShared,
        DisplacementsOneFurther, OwnersBackwards,
    ],
)  # fmt: skip
def test_a_wrong_partition_is_noticed(wrong):
    wanted = (2, 0, 3, 1)
    assert fault(wrong(wanted), wanted)


# -- RankMap -------------------------------------------------------------------------------------------------

places = st.lists(
    st.tuples(st.sampled_from(["n1", "n2", "n3"]), st.sampled_from(DEVICES)), min_size=1, max_size=17
)


@settings(max_examples=200, deadline=None)
@given(places)
def test_local_ranks_count_the_ranks_of_a_host_in_rank_order(pairs):
    rank_map = RankMap(pairs)
    assert rank_map.nranks == len(rank_map) == len(pairs)
    for rank, (host, device) in enumerate(pairs):
        before = sum(h == host for h, _ in pairs[:rank])
        assert rank_map[rank] == Place(host, device, before)
    assert rank_map.hosts == tuple(host for host, _ in pairs)
    several = len(set(rank_map.hosts)) > 1
    assert rank_map.devices == tuple(f"{host}/{device}" if several else device for host, device in pairs)


@settings(max_examples=200, deadline=None)
@given(places, st.data())
def test_swapping_twice_and_reordering_back_change_nothing(pairs, data):
    rank_map = RankMap(pairs)
    a, b = (data.draw(st.integers(0, len(pairs) - 1)) for _ in "ab")
    swapped = rank_map.swap(a, b)
    assert swapped.swap(a, b) == rank_map
    assert (swapped[a].device, swapped[b].device) == (rank_map[b].device, rank_map[a].device)
    order = data.draw(st.permutations(range(len(pairs))))
    moved = rank_map.reorder(order)
    assert [(p.host, p.device) for p in moved.places] == [pairs[rank] for rank in order]
    assert moved.reorder(np.argsort(order).tolist()) == rank_map
    assert hash(moved.reorder(np.argsort(order).tolist())) == hash(rank_map)


@settings(max_examples=100, deadline=None)
@given(places)
def test_json_and_repr_bring_the_map_back(pairs):
    rank_map = RankMap(pairs)
    assert RankMap.from_json(rank_map.to_json()) == rank_map
    assert eval(repr(rank_map), {"RankMap": RankMap}) == rank_map
    assert RankMap(rank_map.places) == rank_map
    assert str(rank_map).count("\n") == len(pairs)


@settings(max_examples=150, deadline=None)
@given(places, st.data())
def test_moves_are_what_a_walk_over_all_elements_finds(pairs, data):
    before = RankMap(pairs)
    after = before.reorder(data.draw(st.permutations(range(len(pairs)))))
    partition = Partition.of(data.draw(st.lists(st.integers(0, 4), min_size=len(pairs), max_size=len(pairs))))
    moves = before.moves(after, partition)
    assert [move.device for move in moves] == list(dict.fromkeys(before.devices + after.devices))
    for move in moves:
        for rank_map, ranks, slices in (
            (before, move.ranks_before, move.slices_before),
            (after, move.ranks_after, move.slices_after),
        ):
            held = [i for i in range(partition.total) if rank_map.devices[partition.owner(i)] == move.device]
            assert sorted(i for part in slices for i in range(part.start, part.stop)) == held
            assert list(ranks) == [r for r, device in enumerate(rank_map.devices) if device == move.device]
        assert move.changed == (move.slices_before != move.slices_after)


def test_two_devices_change_ranks():
    first = RankMap(["A", "B"])
    second = first.swap(0, 1)
    assert second == RankMap(["B", "A"])
    assert (first.rank_of("A"), second.rank_of("A")) == (0, 1)
    assert [str(move) for move in first.moves(second, Partition.equal(4, 2))] == [
        "A: rank 0 with 0:2 -> rank 1 with 2:4",
        "B: rank 1 with 2:4 -> rank 0 with 0:2",
    ]
    assert [str(move) for move in first.moves(first, Partition.equal(4, 2))] == [
        "A: stays rank 0 with 0:2",
        "B: stays rank 1 with 2:4",
    ]
    assert (
        str(RankMap(["A"]).moves(RankMap(["C"]), Partition.of([3]))[1])
        == "C: no rank, nothing -> rank 0 with 0:3"
    )
    assert str(first) == (
        "rank  host       device  local rank\n0     localhost  A       0\n1     localhost  B       1"
    )


# -- bad input -----------------------------------------------------------------------------------------------

AB = RankMap(["A", "B"])
BAD = {
    "no ranks": (
        lambda: Partition.uneven(4, 0),
        ValueError,
        "Partition.uneven: nranks is a whole number, 1 or more, not 0",
    ),
    "ranks in words": (
        lambda: Partition.equal(4, "four"),
        ValueError,
        "nranks is a whole number.*not 'four'",
    ),
    "negative total": (
        lambda: Partition.padded(-1, 2),
        ValueError,
        "total is a whole number, 0 or more, not -1",
    ),
    "fraction": (lambda: Partition.equal(4.0, 2), ValueError, "total is a whole number.*not 4.0"),
    "not equal": (
        lambda: Partition.equal(5, 2),
        ValueError,
        r"2 does not divide 5; use Partition.padded .* or Partition.un",
    ),
    "negative count": (
        lambda: Partition.of([1, -1]),
        ValueError,
        "each count is a whole number, 0 or more, not -1",
    ),
    "no counts": (lambda: Partition.of([]), ValueError, "at least one"),
    "too much padding": (lambda: Partition((1, 1), padding=3), ValueError, "padding is 0 to 2"),
    "multiple": (lambda: Partition.padded(4, 2, 0), ValueError, "multiple is a whole number, 1 or more"),
    "itemsize": (lambda: Partition.aligned(4, 2, 0, 16), ValueError, "itemsize is a whole number, 1 or more"),
    "align_bytes": (
        lambda: Partition.aligned(4, 2, 4, 0),
        ValueError,
        "align_bytes is a whole number, 1 or more",
    ),
    "rank": (lambda: Partition.equal(4, 2).slice(2), IndexError, r"slice\(rank=2\): ranks are 0 to 1"),
    "negative rank": (lambda: Partition.equal(4, 2).slice(-1), IndexError, "ranks are 0 to 1"),
    "index": (lambda: Partition.equal(4, 2).owner(4), IndexError, "the vector has 4 elements, 0 to 3"),
    "owner in an empty vector": (lambda: Partition.of([0]).owner(0), IndexError, "the vector has 0 elements"),
    "no places": (lambda: RankMap([]), ValueError, "places needs one entry per rank, at least one"),
    "a number for a place": (
        lambda: RankMap(["A", 1]),
        TypeError,
        r"rank 1 is 1; give a device name, a \(host, device\)",
    ),
    "an empty name": (lambda: RankMap([""]), TypeError, "rank 0 is ''"),
    "devices": (lambda: RankMap.local(2, ["A"]), ValueError, "1 devices are named; name one per rank"),
    "map rank": (lambda: AB[2], IndexError, "rank 2: ranks are 0 to 1"),
    "swap": (lambda: AB.swap(0, 2), IndexError, "rank 2: ranks are 0 to 1"),
    "order": (lambda: AB.reorder([0, 0]), ValueError, "order names each rank, 0 to 1, once"),
    "unknown device": (lambda: AB.rank_of("C"), ValueError, r"rank_of\('C'\): the devices are A, B"),
    "shared device": (lambda: RankMap(["A", "A"]).rank_of("A"), ValueError, r"ranks \[0, 1\] share it"),
    "moves": (
        lambda: AB.moves(RankMap(["A"]), Partition.equal(2, 2)),
        ValueError,
        "must have the same rank count",
    ),
    "json": (lambda: RankMap.from_json("[]"), ValueError, "RankMap.from_json: expected"),
    "half of a json": (
        lambda: RankMap.from_json('{"ranks": [{"host": "n"'),
        ValueError,
        "RankMap.from_json: expected",
    ),
    "json of another numbering": (
        lambda: RankMap.from_json('{"ranks": [{"host": "n", "device": "A", "local_rank": 1}]}'),
        ValueError,
        "not numbered in rank order",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_named_with_what_is_accepted(bad):
    call, error, message = BAD[bad]
    with pytest.raises(error, match=message):
        call()

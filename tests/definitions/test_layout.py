"""Partition and RankMap: who owns an element, and what moves when ranks change places; wrong ones are noticed."""

import pickle
from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectlab import semantics
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
    assert str(Partition.padded(5, 2)).splitlines() == [
        "6 elements (1 of padding) on 2 ranks",
        "rank 0 holds 0:3, 3 elements",
        "rank 1 holds 3:6, 3 elements (1 of padding)",
    ]
    assert str(Partition.of([1])).splitlines() == ["1 element on 1 rank", "rank 0 holds 0:1, 1 element"]
    assert str(Partition.of([0, 1])).splitlines()[1] == "rank 0 holds 0:0, 0 elements"


def test_partitions_by_hand():
    assert Partition.uneven(10, 4) == Partition.of([3, 3, 2, 2])
    assert Partition.uneven(10, 4).displacements == (0, 3, 6, 8)
    assert Partition.padded(10, 4) == Partition((3, 3, 3, 3), padding=2)
    assert Partition.padded(10, 4, multiple=8).data_counts == (8, 2, 0, 0)
    assert Partition.aligned(10, 4, itemsize=4, align_bytes=16).counts == (4, 4, 2, 0)
    assert Partition.of([0, 2, 0, 1, 0]).owners().tolist() == [1, 1, 3]
    assert len({Partition.of([1, 2]), Partition.of((1, 2)), Partition.of(np.array([1, 2]))}) == 1


def test_padding_turns_an_indivisible_sum_into_a_divisible_one():
    xs = [np.arange(10) * 10**rank for rank in range(4)]
    partition = Partition.padded(10, 4)
    shards = semantics.reduce_scatter([np.pad(x, (0, partition.padding)) for x in xs])
    data = [shard[:count] for shard, count in zip(shards, partition.data_counts, strict=True)]
    assert [len(x) for x in data] == [3, 3, 3, 1]
    assert semantics.all_gather_v(data)[2].tolist() == sum(xs).tolist()


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
    assert RankMap(rank_map.places) == pickle.loads(pickle.dumps(rank_map)) == rank_map
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
        both = []
        for rank_map, ranks, slices in (
            (before, move.ranks_before, move.slices_before),
            (after, move.ranks_after, move.slices_after),
        ):
            held = [i for i in range(partition.total) if rank_map.devices[partition.owner(i)] == move.device]
            assert sorted(i for part in slices for i in range(part.start, part.stop)) == held
            assert list(ranks) == [r for r, device in enumerate(rank_map.devices) if device == move.device]
            both.append(held)
        assert move.changed == (both[0] != both[1])


@settings(deadline=None)
@given(st.permutations(range(7)), st.lists(st.integers(0, 4), min_size=7, max_size=7))
def test_moves_say_what_a_reduce_scatter_leaves_on_each_device(order, wanted):
    """Each device keeps its contribution; under the new map it gets the block of its new rank."""
    partition, before = Partition.of(wanted), RankMap(list("ABCDEFG"))
    after = before.reorder(order)
    own = {device: np.arange(partition.total) * 10**n for n, device in enumerate(before.devices)}
    for rank_map, which in ((before, "slices_before"), (after, "slices_after")):
        blocks = semantics.reduce_scatter_v([own[device] for device in rank_map.devices], partition)
        for move in before.moves(after, partition):
            (part,) = getattr(move, which)
            assert blocks[rank_map.rank_of(move.device)].tolist() == sum(own.values())[part].tolist()


def test_a_device_may_stay_leave_arrive_or_hold_several_ranks():
    moves = RankMap(["A", "B", "C", "C"]).moves(RankMap(["A", "D", "C", "B"]), Partition.equal(8, 4))
    assert [str(move) for move in moves] == [
        "A: stays rank 0 with 0:2",
        "B: rank 1 with 2:4 -> rank 3 with 6:8",
        "C: rank 2 with 4:6 and rank 3 with 6:8 -> rank 2 with 4:6",
        "D: no rank, nothing -> rank 1 with 2:4",
    ]
    assert [move.changed for move in moves] == [False, True, True, True]


def test_the_same_device_name_on_two_hosts_is_two_devices():
    one, two = RankMap([("n1", "cuda:0"), ("n1", "cuda:1")]), RankMap([("n1", "cuda:0"), ("n2", "cuda:0")])
    assert [str(move) for move in one.moves(two, Partition.equal(4, 2))] == [
        "n1/cuda:0: stays rank 0 with 0:2",
        "n1/cuda:1: rank 1 with 2:4 -> no rank, nothing",
        "n2/cuda:0: no rank, nothing -> rank 1 with 2:4",
    ]


def test_a_rank_may_change_without_an_element_moving():
    before = RankMap(["A", "B", "C"])
    moves = before.moves(before.swap(0, 2), Partition.of([0, 4, 0]))
    assert [move.changed for move in moves] == [False] * 3
    assert str(moves[0]) == "A: rank 0 with 0:0 -> rank 2 with 4:4"


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
    "index": (
        lambda: Partition.equal(4, 2).owner(4),
        IndexError,
        "the vector has 4 elements, numbered from 0",
    ),
    "owner in an empty vector": (lambda: Partition.of([0]).owner(0), IndexError, "the vector has 0 elements"),
    "counts in one number": (
        lambda: Partition.of(4),
        TypeError,
        "counts is a list with one entry per rank, not 4",
    ),
    "counts in words": (lambda: Partition.of("34"), TypeError, "counts is a list .* not '34'"),
    "bool": (lambda: Partition.of(np.array([True])), ValueError, "each count is a whole number"),
    "padding below zero": (lambda: Partition((1,), -1), ValueError, "padding is a whole number, 0 or more"),
    "one device for all": (
        lambda: RankMap("cuda:0"),
        TypeError,
        "places is a list with one entry per rank, not 'cuda:0'",
    ),
    "a number for a map": (lambda: RankMap(4), TypeError, "places is a list with one entry per rank, not 4"),
    "a triple": (lambda: RankMap([("n1", "A", 0)]), TypeError, r"rank 0 is .* a \(host, device\) pair"),
    "order in names": (
        lambda: AB.reorder(["B", "A"]),
        ValueError,
        "each entry of order is a whole number, 0 or more, not 'B'",
    ),
    "json without a device": (
        lambda: RankMap.from_json('{"ranks": [{"host": "n1"}]}'),
        ValueError,
        "from_json: the text is no .*missing.*'device'",
    ),
    "json of no rank": (lambda: RankMap.from_json('{"ranks": []}'), ValueError, "from_json.*at least one"),
    "json of a newer version": (
        lambda: RankMap.from_json('{"ranks": [{"host": "n", "device": "A", "local_rank": 0, "numa": 1}]}'),
        ValueError,
        "from_json.*unexpected.*numa",
    ),
    "no places": (lambda: RankMap([]), ValueError, "places needs one entry per rank, at least one"),
    "a number for a place": (
        lambda: RankMap(["A", 1]),
        TypeError,
        r"rank 1 is 1; give a device name, a \(host, device\)",
    ),
    "an empty name": (lambda: RankMap([""]), TypeError, "rank 0 is ''"),
    "devices": (lambda: RankMap.local(2, ["A"]), ValueError, "devices needs one name per rank, 2, not 1"),
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
    "json": (lambda: RankMap.from_json("[]"), ValueError, "RankMap.from_json: the text is no"),
    "half of a json": (
        lambda: RankMap.from_json('{"ranks": [{"host": "n"'),
        ValueError,
        "RankMap.from_json: the text is no",
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

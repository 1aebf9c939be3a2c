"""Partitions tile the vector, maps say where ranks are, and what a device holds follows from the two."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectlab import semantics
from collectlab.layout import Move, Partition, Place, RankMap

COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=17)
SIZES = st.tuples(st.integers(0, 2000), st.integers(1, 17))


@st.composite
def partitions(draw):
    """Any partition, by any of its constructors."""
    total, nranks = draw(SIZES)
    return draw(
        st.one_of(
            st.builds(Partition.of, COUNTS),
            st.builds(Partition.equal, st.just(total * nranks), st.just(nranks)),
            st.builds(Partition.uneven, st.just(total), st.just(nranks)),
            st.builds(Partition.padded, st.just(total), st.just(nranks), st.integers(1, 40)),
            st.builds(
                Partition.aligned, st.just(total), st.just(nranks), st.integers(1, 16), st.integers(1, 512)
            ),
        )
    )


# -- partitions -----------------------------------------------------------------------------------------------------


@given(partitions())
def test_slices_tile_the_vector_in_rank_order(partition):
    vector = np.arange(partition.total)
    blocks = [vector[partition.slice(rank)] for rank in range(partition.nranks)]
    assert np.concatenate(blocks).tolist() == vector.tolist()
    assert tuple(len(block) for block in blocks) == partition.counts
    assert all(block[0] == start for block, start in zip(blocks, partition.displacements, strict=True) if len(block))


@given(partitions())
def test_the_owner_of_an_element_is_the_one_rank_whose_slice_holds_it(partition):
    vector, owners = np.arange(partition.total), partition.owners()
    assert owners.dtype == np.int64 and owners.shape == (partition.total,)
    for index in vector[:: max(1, partition.total // 50)].tolist():
        holders = [rank for rank in range(partition.nranks) if index in vector[partition.slice(rank)]]
        assert holders == [partition.owner(index)] == [owners[index]]


@given(SIZES)
def test_equal_blocks_exist_only_where_the_rank_count_divides(size):
    total, nranks = size
    if total % nranks:
        with pytest.raises(ValueError, match=rf"{nranks} does not divide {total}; use Partition\.padded"):
            Partition.equal(total, nranks)
    else:
        assert Partition.equal(total, nranks).counts == (total // nranks,) * nranks


@given(SIZES)
def test_uneven_counts_differ_by_at_most_one_and_never_rise(size):
    total, nranks = size
    counts = Partition.uneven(total, nranks).counts
    assert sum(counts) == total and len(counts) == nranks
    assert max(counts) - min(counts) <= 1 and sorted(counts, reverse=True) == list(counts)


@given(SIZES, st.integers(1, 40))
def test_padding_is_the_least_that_makes_equal_blocks_of_the_multiple(size, multiple):
    total, nranks = size
    partition = Partition.padded(total, nranks, multiple)
    assert len(set(partition.counts)) == 1 and partition.counts[0] % multiple == 0
    assert partition.total - partition.padding == total and partition.padding < nranks * multiple
    filling = partition.is_padding()
    assert filling.tolist() == [False] * total + [True] * partition.padding
    data = [int((~filling[partition.slice(rank)]).sum()) for rank in range(nranks)]
    assert partition.data_counts == tuple(data)


@given(SIZES, st.sampled_from(["float16", "float32", "float64", "complex64", "complex128"]), st.integers(1, 512))
def test_aligned_blocks_start_at_the_boundary_and_need_no_padding(size, dtype, align_bytes):
    (total, nranks), itemsize = size, np.dtype(dtype).itemsize
    partition = Partition.aligned(total, nranks, itemsize, align_bytes)
    assert partition.total == total and partition.padding == 0
    for count, start in zip(partition.counts, partition.displacements, strict=True):
        assert start * itemsize % align_bytes == 0 if count else start == total
    step = next(n for n in range(1, align_bytes + 1) if n * itemsize % align_bytes == 0)
    assert max(partition.counts) - min(partition.counts) <= 2 * step - 1


def test_partitions_by_hand():
    assert Partition.uneven(10, 4) == Partition.of([3, 3, 2, 2])
    assert Partition.uneven(10, 4).displacements == (0, 3, 6, 8)
    assert Partition.padded(10, 4) == Partition((3, 3, 3, 3), padding=2)
    assert Partition.padded(10, 4).data_counts == (3, 3, 3, 1)
    assert Partition.padded(10, 4, multiple=8).data_counts == (8, 2, 0, 0)
    assert Partition.aligned(10, 4, itemsize=4, align_bytes=16).counts == (4, 4, 2, 0)
    assert Partition.aligned(10, 4, itemsize=16, align_bytes=16).counts == (3, 3, 2, 2)
    assert Partition.of([0, 2, 0, 1, 0]).owners().tolist() == [1, 1, 3]
    assert [Partition.of([0, 2, 0, 1, 0]).owner(i) for i in range(3)] == [1, 1, 3]
    assert Partition.uneven(0, 3).owners().tolist() == [] and str(Partition.uneven(1, 1)).startswith("1 element on 1 rank")
    assert {Partition.of([1, 2]), Partition.of((1, 2)), Partition.of(np.array([1, 2]))} == {Partition((1, 2))}


def test_a_partition_reads_as_a_table():
    assert str(Partition.padded(10, 4)).splitlines() == [
        "12 elements (2 of padding) on 4 ranks",
        "rank 0 holds 0:3, 3 elements",
        "rank 1 holds 3:6, 3 elements",
        "rank 2 holds 6:9, 3 elements",
        "rank 3 holds 9:12, 3 elements (2 of padding)",
    ]
    assert repr(Partition.of([1, 0])) == "Partition(counts=(1, 0), padding=0)"


def test_padding_turns_an_indivisible_sum_into_a_divisible_one():
    xs = [np.arange(10) * 10**rank for rank in range(4)]
    partition = Partition.padded(10, 4)
    shards = semantics.reduce_scatter([np.pad(x, (0, partition.padding)) for x in xs])
    assert semantics.all_gather(shards)[2][: -partition.padding].tolist() == sum(xs).tolist()
    assert [x[: partition.data_counts[rank]].tolist() for rank, x in enumerate(shards)] == [
        sum(xs)[a:b].tolist() for a, b in ((0, 3), (3, 6), (6, 9), (9, 10))
    ]


# -- rank maps --------------------------------------------------------------------------------------------------------

PAIRS = st.lists(
    st.tuples(st.sampled_from(["n1", "n2", "n3"]), st.sampled_from(["cuda:0", "cuda:1", "cpu:0"])),
    min_size=1,
    max_size=17,
)


def test_a_map_of_two_devices():
    rank_map = RankMap(["A", "B"])
    assert rank_map.nranks == len(rank_map) == 2 and rank_map.devices == ("A", "B")
    assert rank_map[1] == Place("localhost", "B", 1) and list(rank_map) == list(rank_map.places)
    assert rank_map.rank_of("B") == 1 and rank_map.swap(0, 1).rank_of("B") == 0
    assert rank_map.swap(0, 1) == rank_map.reorder([1, 0]) == RankMap(["B", "A"])
    assert repr(rank_map) == "RankMap(['A', 'B'])"
    assert str(rank_map).splitlines() == [
        "rank  host       device  local rank",
        "0     localhost  A       0",
        "1     localhost  B       1",
    ]
    assert RankMap.local(3).devices == ("cpu:0", "cpu:1", "cpu:2")
    assert RankMap.local(2, devices=["A", "B"]) == rank_map


def test_several_hosts_are_part_of_the_device_names():
    rank_map = RankMap([("n1", "cuda:0"), ("n2", "cuda:0"), ("n1", "cuda:1")])
    assert rank_map.devices == ("n1/cuda:0", "n2/cuda:0", "n1/cuda:1") and rank_map.hosts == ("n1", "n2", "n1")
    assert [place.local_rank for place in rank_map] == [0, 0, 1]
    assert rank_map.rank_of("n2/cuda:0") == 1
    assert rank_map.reorder([2, 0, 1])[0] == Place("n1", "cuda:1", 0)


@given(PAIRS)
def test_local_ranks_number_the_ranks_of_each_host_in_rank_order(pairs):
    rank_map = RankMap(pairs)
    for host in set(rank_map.hosts):
        locals_here = [place.local_rank for place in rank_map if place.host == host]
        assert locals_here == list(range(len(locals_here)))


@given(PAIRS, st.randoms(use_true_random=False))
def test_a_map_survives_json_pickle_repr_and_a_reordering_undone(pairs, random):
    rank_map = RankMap(pairs)
    copies = [RankMap.from_json(rank_map.to_json()), pickle.loads(pickle.dumps(rank_map)), eval(repr(rank_map))]
    assert all(copy == rank_map and hash(copy) == hash(rank_map) and str(copy) == str(rank_map) for copy in copies)
    order = list(range(len(pairs)))
    random.shuffle(order)
    moved = rank_map.reorder(order)
    assert [(p.host, p.device) for p in moved] == [pairs[rank] for rank in order]
    assert moved.reorder(np.argsort(order)) == rank_map


@given(PAIRS, st.data())
def test_a_swap_changes_two_places_and_undoes_itself(pairs, data):
    a, b = (data.draw(st.integers(0, len(pairs) - 1)) for _ in "ab")
    rank_map = RankMap(pairs)
    swapped = rank_map.swap(a, b)
    expected = list(pairs)
    expected[a], expected[b] = pairs[b], pairs[a]
    assert [(p.host, p.device) for p in swapped] == expected and swapped.swap(a, b) == rank_map


def test_a_map_is_one_line_of_json():
    text = RankMap([("n1", "cuda:0")]).to_json()
    assert json.loads(text) == {"ranks": [{"host": "n1", "device": "cuda:0", "local_rank": 0}]} and "\n" not in text


# -- what moves -------------------------------------------------------------------------------------------------------


def test_two_devices_change_places():
    before = RankMap(["A", "B"])
    moves = before.moves(before.swap(0, 1), Partition.equal(4, 2))
    assert moves == [
        Move("A", (0,), (1,), (slice(0, 2),), (slice(2, 4),)),
        Move("B", (1,), (0,), (slice(2, 4),), (slice(0, 2),)),
    ]
    assert [str(move) for move in moves] == [
        "A: rank 0 with 0:2 -> rank 1 with 2:4",
        "B: rank 1 with 2:4 -> rank 0 with 0:2",
    ]
    assert all(move.changed for move in moves)


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


@given(st.permutations(range(7)), st.lists(st.integers(0, 4), min_size=7, max_size=7))
def test_moves_say_what_a_reduce_scatter_leaves_on_each_device(order, counts):
    """Each device keeps its contribution; under the new map it gets the block of its new rank."""
    partition, before = Partition.of(counts), RankMap(list("ABCDEFG"))
    after = before.reorder(order)
    own = {device: np.arange(partition.total) * 10**n for n, device in enumerate(before.devices)}
    total = sum(own.values())
    for rank_map, which in ((before, "slices_before"), (after, "slices_after")):
        blocks = semantics.reduce_scatter_v([own[device] for device in rank_map.devices], partition)
        for move in before.moves(after, partition):
            (part,) = getattr(move, which)
            assert blocks[rank_map.rank_of(move.device)].tolist() == total[part].tolist()
    for move in before.moves(after, partition):
        held = [set(range(part.start, part.stop)) for part in (*move.slices_before, *move.slices_after)]
        assert move.changed == (held[0] != held[1])


# -- bad input --------------------------------------------------------------------------------------------------------

two = RankMap(["A", "B"])
BAD = {
    "no counts": (lambda: Partition.of([]), ValueError, "counts needs one entry per rank"),
    "counts no list": (lambda: Partition.of(4), TypeError, "counts is a list with one entry per rank, not 4"),
    "counts text": (lambda: Partition.of("34"), TypeError, "counts is a list with one entry per rank, not '34'"),
    "count negative": (lambda: Partition.of([1, -1]), ValueError, "each count is a whole number, 0 or more, not -1"),
    "count fraction": (lambda: Partition.of([1.0]), ValueError, "each count is a whole number, 0 or more, not 1.0"),
    "count bool": (lambda: Partition.of(np.array([True])), ValueError, "each count is a whole number"),
    "padding too large": (lambda: Partition((1, 1), padding=3), ValueError, "padding is 0 to 2, the whole vector"),
    "padding negative": (lambda: Partition((1,), padding=-1), ValueError, "padding is a whole number, 0 or more"),
    "no ranks": (lambda: Partition.uneven(4, 0), ValueError, "uneven: nranks is a whole number, 1 or more, not 0"),
    "ranks text": (lambda: Partition.equal(4, "four"), ValueError, "equal: nranks is a whole number.*not 'four'"),
    "total negative": (lambda: Partition.padded(-1, 2), ValueError, "padded: total is a whole number, 0 or more"),
    "multiple": (lambda: Partition.padded(4, 2, 0), ValueError, "multiple is a whole number, 1 or more, not 0"),
    "itemsize": (lambda: Partition.aligned(4, 2, 0, 16), ValueError, "itemsize is a whole number, 1 or more"),
    "align": (lambda: Partition.aligned(4, 2, 4, 1.5), ValueError, "align_bytes is a whole number, 1 or more"),
    "slice": (lambda: Partition.equal(4, 2).slice(2), IndexError, r"slice\(rank=2\): ranks are 0 to 1"),
    "slice negative": (lambda: Partition.equal(4, 2).slice(-1), IndexError, "ranks are 0 to 1"),
    "owner": (lambda: Partition.equal(4, 2).owner(4), IndexError, r"owner\(index=4\): the vector has 4 elements"),
    "owner of nothing": (lambda: Partition.equal(0, 2).owner(0), IndexError, "the vector has 0 elements"),
    "map of text": (lambda: RankMap("cuda:0"), TypeError, "places is a list with one entry per rank, not 'cuda:0'"),
    "map of a number": (lambda: RankMap(4), TypeError, "places is a list with one entry per rank, not 4"),
    "map of nothing": (lambda: RankMap([]), ValueError, "places needs one entry per rank"),
    "device number": (lambda: RankMap(["A", 1]), TypeError, "rank 1 is 1; give a device name"),
    "device empty": (lambda: RankMap([""]), TypeError, "rank 0 is ''; give a device name"),
    "triple": (lambda: RankMap([("n1", "A", 0)]), TypeError, "rank 0 is .* a .host, device. pair"),
    "local devices": (lambda: RankMap.local(3, ["A"]), ValueError, "devices needs one name per rank, 3, not 1"),
    "local ranks": (lambda: RankMap.local(0), ValueError, "nranks is a whole number, 1 or more, not 0"),
    "rank": (lambda: two[2], IndexError, "rank 2: ranks are 0 to 1"),
    "swap": (lambda: two.swap(0, 2), IndexError, "rank 2: ranks are 0 to 1"),
    "order short": (lambda: two.reorder([0]), ValueError, r"reorder\(\[0\]\): order names each rank, 0 to 1, once"),
    "order twice": (lambda: two.reorder([1, 1]), ValueError, "order names each rank, 0 to 1, once"),
    "order of names": (lambda: two.reorder(["B", "A"]), ValueError, "each entry of order is a whole number"),
    "unknown device": (lambda: two.rank_of("C"), ValueError, r"rank_of\('C'\): the devices are A, B"),
    "shared device": (lambda: RankMap(["A", "A"]).rank_of("A"), ValueError, r"ranks \[0, 1\] share it"),
    "moves": (lambda: two.moves(two, Partition.of([1])), ValueError, "the same rank count, not 2, 2 and 1"),
    "json": (lambda: RankMap.from_json("{"), ValueError, "from_json: the text is no"),
    "json half": (lambda: RankMap.from_json('{"ranks": [{"host": "n1"}]}'), ValueError, "from_json.*device"),
    "json empty": (lambda: RankMap.from_json('{"ranks": []}'), ValueError, "from_json.*at least one"),
    "json newer": (
        lambda: RankMap.from_json('{"ranks": [{"host": "n", "device": "A", "local_rank": 0, "numa": 1}]}'),
        ValueError,
        "from_json.*numa",
    ),
    "json local ranks": (
        lambda: RankMap.from_json('{"ranks": [{"host": "n", "device": "A", "local_rank": 1}]}'),
        ValueError,
        "not numbered in rank order",
    ),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_named_with_what_is_accepted(bad):
    call, error, message = BAD[bad]
    with pytest.raises(error, match=message):
        call()


# -- the laws above notice wrong partitions ---------------------------------------------------------------------------


WRONG = {
    "an empty block owns the element after it": ("owner", lambda p, i: min(
        rank for rank, start in enumerate(p.displacements) if start == max(d for d in p.displacements if d <= i)
    )),
    "owners by equal division": ("owner", lambda p, i: i * p.nranks // p.total),
    "a slice too long by one": ("slice", lambda p, r: slice(p.displacements[r], p.displacements[r] + p.counts[r] + 1)),
    "slices in reverse rank order": ("slice", lambda p, r: Partition.slice(p, p.nranks - 1 - r)),
    "owners in turn": ("owners", lambda p: np.arange(p.total) % p.nranks),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_partition_is_noticed(wrong):
    name, method = WRONG[wrong]
    mutant = type("Mutant", (Partition,), {name: method})((0, 2, 0, 3, 1))
    laws = (
        test_slices_tile_the_vector_in_rank_order,
        test_the_owner_of_an_element_is_the_one_rank_whose_slice_holds_it,
    )
    noticed = 0
    for law in laws:
        try:
            law.hypothesis.inner_test(mutant)
        except AssertionError:
            noticed += 1
        law.hypothesis.inner_test(Partition(mutant.counts))
    assert noticed

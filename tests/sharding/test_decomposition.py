"""Reduce-scatter and all-gather on real ranks, for every way to cut a vector, beside what they are by definition."""

import numpy as np
import pytest

import collectlab as cl
from collectlab.layout import Partition
from collectlab.sharding import collectives, manifest

RANKS = (1, 2, 3, 4, 5)
OPS = ("sum", "prod", "min", "max")
DTYPES = ("int8", "int32", "int64", "uint8", "float16", "float32", "float64")


def partitions(nranks):
    """Equal, uneven, with empty blocks, padded, all of it padding, aligned, empty."""
    cut = [Partition.uneven(total, nranks) for total in (0, 1, nranks - 1, nranks, 2 * nranks + 1)]
    cut += [Partition.padded(total, nranks, multiple) for total in (0, 1, nranks + 1) for multiple in (1, 4)]
    cut += [Partition.aligned(11, nranks, itemsize=4, align_bytes=16)]
    cut += [Partition.of([0] * (nranks - 1) + [5]), Partition.of([3] + [0] * (nranks - 1))]
    cut += [Partition.of([2 * (rank % 2) for rank in range(nranks)])]
    return cut


def vectors(nranks, partition, dtype, op):
    """One vector of data per rank; so small that no order of operations changes a digit."""
    rng = np.random.default_rng([nranks, partition.total])
    low = 1 if op == "prod" else 0
    return [rng.integers(low, 3, partition.total - partition.padding).astype(dtype) for _ in range(nranks)]


def each(ctx, cases):
    """For each case this rank's block, and the whole that is gathered from the blocks."""
    found = []
    for partition, op, xs in cases:
        x = xs[ctx.rank]
        block = collectives.reduce_scatter(ctx, x, partition, op)
        found.append((block, collectives.all_gather(ctx, block, partition), collectives.all_reduce(ctx, x, op)))
    return found


@pytest.mark.parametrize("nranks", RANKS)
def test_reduce_scatter_then_all_gather_is_an_all_reduce_of_the_data(nranks):
    cases = [
        (partition, op, vectors(nranks, partition, dtype, op))
        for partition in partitions(nranks)
        for op, dtype in [*((op, "int64") for op in OPS), *((op, dtype) for dtype in DTYPES for op in ("min", "max"))]
    ]
    run = cl.run(each, cases, ranks=nranks, device="cpu")
    assert run.ok, run.report()
    for n, (partition, op, xs) in enumerate(cases):
        blocks = cl.semantics.reduce_scatter_v(xs, partition.data_counts, op)
        for rank, (block, whole, total) in enumerate(found[n] for found in run.results):
            np.testing.assert_array_equal(block, blocks[rank], err_msg=f"{partition}, {op}")
            assert block.dtype == whole.dtype == total.dtype == xs[0].dtype
            np.testing.assert_array_equal(whole, total)
            np.testing.assert_array_equal(total, cl.semantics.all_reduce(xs, op)[rank])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_is_what_changes_no_result(op, dtype):
    value = collectives.identity(op, dtype)
    assert value.dtype == dtype
    info = np.iinfo(dtype) if value.dtype.kind in "iu" else np.finfo(dtype)
    for x in np.array([info.min, 0, 1, 3, info.max], dtype):
        assert cl.semantics.OPS[op](x, value) == x


@pytest.mark.parametrize("op", OPS)
def test_the_identities_among_truth_values(op):
    value = collectives.identity(op, "bool")
    assert value.dtype == bool and [cl.semantics.OPS[op](x, value) for x in (False, True)] == [False, True]


def with_padding_that_is_none(ctx, xs, partition):
    """A block and the whole, where the padding is filled with what would be seen in every result."""
    collectives.identity = lambda op, dtype: np.dtype(dtype).type(np.nan)
    block = collectives.reduce_scatter(ctx, xs[ctx.rank], partition)
    return block, collectives.all_gather(ctx, block, partition), manifest.checksums(block)


@pytest.mark.parametrize("total", (2, 9, 12))
def test_padding_reaches_no_result_and_no_checksum_whatever_it_is(total):
    partition = Partition.padded(total, 4, multiple=4)
    xs = [np.arange(float(total)) * 10**rank for rank in range(4)]
    run = cl.run(with_padding_that_is_none, xs, partition, ranks=4, device="cpu")
    assert run.ok and partition.padding > 0
    blocks = cl.semantics.reduce_scatter_v(xs, partition.data_counts)
    for (block, whole, sums), want in zip(run.results, blocks, strict=True):
        assert block.tolist() == want.tolist() and sums == manifest.checksums(want)
        assert whole.tolist() == sum(xs).tolist()


def test_a_padded_vector_is_the_data_and_the_identity():
    partition = Partition.padded(5, 4)
    x = np.arange(5.0)
    for op, value in (("sum", 0), ("prod", 1), ("min", np.inf), ("max", -np.inf)):
        assert collectives.padded(x, partition, op).tolist() == [*x, value, value, value]
    assert collectives.padded(x, Partition.uneven(5, 4)) is not None
    with pytest.raises(ValueError, match="op='avg'"):
        collectives.identity("avg", "int32")
    with pytest.raises(TypeError, match="max has no identity among complex128"):
        collectives.identity("max", "complex128")


def test_a_buffer_that_is_large_enough_is_not_taken_for_a_right_one():
    for size, partition in ((8, Partition.padded(5, 4)), (6, Partition.uneven(5, 2)), (4, Partition.uneven(5, 2))):
        with pytest.raises(ValueError, match=f"x has {size} elements and the partition 5"):
            collectives.padded(np.zeros(size), partition)


def too_large(ctx):
    """What is said of a block that holds its padding too, and of one from another place."""
    said = []
    for size in (2, 3):
        try:
            collectives.all_gather(ctx, np.zeros(size), Partition.of([1] * ctx.nranks))
        except ValueError as error:
            said.append(str(error))
    return said


def test_a_block_of_another_length_is_refused_on_every_rank():
    run = cl.run(too_large, ranks=2, device="cpu")
    for rank, said in enumerate(run.results):
        assert said == [f"all_gather: rank {rank}'s block has {n} elements; the partition gives it 1" for n in (2, 3)]


def test_a_place_for_the_result_has_to_fit():
    class alone:
        rank, nranks = 0, 1

    x, even, padded = np.zeros(5), Partition.uneven(5, 1), Partition.padded(5, 1, multiple=4)
    for size, partition, says in ((6, even, "6 elements and 5 come"), (8, padded, "padding would lie")):
        for call in (collectives.reduce_scatter, collectives.all_gather):
            with pytest.raises(ValueError, match=f"{call.__name__}: `out` does not fit: .*{says}"):
                call(alone, x, partition, out=np.zeros(size))
    for call in (collectives.reduce_scatter, collectives.all_gather):
        with pytest.raises(ValueError, match=f"{call.__name__}: .* does not fit: it is of float32 and float64 comes"):
            call(alone, x, even, out=np.zeros(5, np.float32))
    for out in (np.zeros(5, np.float32), np.zeros(6)):
        with pytest.raises(ValueError, match=r"all_reduce: x is \(5,\) of float64, `out` \("):
            collectives.all_reduce(alone, x, out=out)


def in_place(ctx, partition):
    x = np.arange(partition.total, dtype=np.int64) * 10**ctx.rank
    collectives.all_reduce(ctx, x, out=x)
    y = np.full(partition.total, -1, np.int64)
    mine = partition.slice(ctx.rank)
    y[mine] = x[mine]
    collectives.all_gather(ctx, None, partition, out=y)
    return x, y


@pytest.mark.parametrize("partition", [Partition.of(counts) for counts in ([3, 2, 2], [2, 2, 2], [0, 5, 1])], ids=str)
def test_results_may_lie_where_the_input_did(partition):
    want = np.arange(partition.total) * 111
    for x, y in cl.run(in_place, partition, ranks=3, device="cpu").results:
        assert x.tolist() == y.tolist() == want.tolist()


def rounding(ctx, xs):
    x = xs[ctx.rank]
    block = collectives.reduce_scatter(ctx, x, Partition.uneven(x.size, ctx.nranks))
    return collectives.all_gather(ctx, block, Partition.uneven(x.size, ctx.nranks)), collectives.all_reduce(ctx, x)


def test_floats_agree_among_the_ranks_and_up_to_rounding_with_all_reduce():
    xs = list(np.random.default_rng(1).standard_normal((4, 10_001)).astype(np.float32))
    results = cl.run(rounding, xs, ranks=4, device="cpu").results
    first, total = results[0]
    bound = 2 * 3 * 2.0**-24 * np.abs(xs).sum(axis=0)
    for both, one in results:
        assert both.tobytes() == first.tobytes()
        assert (np.abs(both - one) <= bound).all()
    assert (np.abs(total - np.sum(np.float64(xs), axis=0)) <= bound).all()


class OnDevice:
    """An array that MPI cannot read, as one of CuPy: it has to be brought to the host and back."""

    def __init__(self, held):
        self._held = held

    size = property(lambda self: self._held.size)
    dtype = property(lambda self: self._held.dtype)
    shape = property(lambda self: self._held.shape)

    def copy(self):
        return OnDevice(self._held.copy())

    def get(self):
        return self._held.copy()

    def set(self, values):
        self._held[...] = values


def on_a_device(ctx, partition):
    """Whether each result is an array of the device, and its values."""
    x = OnDevice(np.arange(partition.total - partition.padding) * 10**ctx.rank)
    ctx.xp = type("xp", (), {"asarray": OnDevice})
    block = collectives.reduce_scatter(ctx, x, partition)
    found = [block, collectives.all_gather(ctx, block, partition), collectives.all_reduce(ctx, x)]
    if not partition.padding:
        y, z = OnDevice(np.zeros(block.shape, int)), OnDevice(np.zeros(x.shape, int))
        collectives.reduce_scatter(ctx, x, partition, out=y)
        collectives.all_gather(ctx, y, partition, out=z)
        collectives.all_reduce(ctx, x, out=x)
        found += [y, z, x]
    return [type(one).__name__ for one in found], [one.get() for one in found]


@pytest.mark.parametrize("partition", [Partition.uneven(7, 3), Partition.equal(6, 3), Partition.padded(7, 3)])
def test_arrays_of_a_device_go_by_the_host_and_come_back(partition):
    run = cl.run(on_a_device, partition, ranks=3, device="cpu")
    assert run.ok, run.report()
    for rank, (kinds, values) in enumerate(run.results):
        assert set(kinds) == {"OnDevice"}
        total = np.arange(partition.total - partition.padding) * 111
        for block, whole, again in zip(values[::3], values[1::3], values[2::3], strict=True):
            assert block.tolist() == total[partition.slice(rank)].tolist()
            assert whole.tolist() == again.tolist() == total.tolist()

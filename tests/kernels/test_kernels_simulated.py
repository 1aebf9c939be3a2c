"""Every kernel against NumPy and against its cost card, on simulated ranks."""

from collections import Counter

import numpy as np
import pytest

import collectlab as cl
from collectlab.kernels import mesh, ring, two_phase
from collectlab.layout import Partition

ALL_REDUCE = {
    "mesh": (mesh.all_reduce, mesh.all_reduce_cost),
    "two_phase": (two_phase.all_reduce, two_phase.all_reduce_cost),
    "ring": (ring.all_reduce, ring.all_reduce_cost),
}
DTYPES = (np.int32, np.int64, np.float16, np.float32, np.float64)


def _inputs(nranks, count, dtype=np.int64, seed=0):
    rng = np.random.default_rng([seed, nranks, count])
    return [rng.integers(1, 5, count).astype(dtype) for _ in range(nranks)]


def measured(trace, rank):
    """(bytes, messages, notifications, waits) of a rank, counted from the events."""
    mine = [e for e in trace.events if e.rank == rank]
    loads = [e for e in mine if e.kind == "load" and e.peer != rank]
    kinds = Counter(e.kind for e in mine)
    return sum(e.nbytes for e in loads), sum(e.nbytes > 0 for e in loads), kinds["notify"], kinds["wait"]


def on_card(card):
    return card.nbytes, card.messages, card.notifications, card.waits


@pytest.mark.parametrize("nranks", range(1, 17))
@pytest.mark.parametrize("name", ALL_REDUCE)
def test_all_reduce_returns_the_sum_and_moves_what_its_card_says(name, nranks):
    kernel, cost = ALL_REDUCE[name]
    for count in (0, 1, 5, 12, 16, 33):
        xs = _inputs(nranks, count)
        run = cl.simulate(kernel, cl.per_rank(xs), ranks=nranks)
        assert run.ok, run.report()
        for y in run.results:
            np.testing.assert_array_equal(y, sum(xs))
        for rank in range(nranks):
            assert measured(run.trace, rank) == on_card(cost(nranks, count, 8, rank)), (count, rank)


@pytest.mark.parametrize("name", ALL_REDUCE)
@pytest.mark.parametrize("op", ("sum", "prod", "min", "max", "avg"))
def test_every_operation_and_dtype_is_as_the_semantics_say(name, op):
    for dtype in DTYPES:
        xs = _inputs(3, 7, dtype)
        run = cl.simulate(ALL_REDUCE[name][0], cl.per_rank(xs), op, ranks=3)
        assert run.ok, run.report()
        for y, want in zip(run.results, cl.semantics.all_reduce(xs, op), strict=True):
            assert y.dtype == want.dtype
            np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("name", ALL_REDUCE)
def test_no_schedule_of_three_calls_in_a_row_has_a_race_or_another_result(name):
    def three(ctx, x):
        return [ALL_REDUCE[name][0](ctx, x * k) for k in (1, 2, 3)]

    for nranks, count, schedule in [(p, n, s) for p in (2, 3, 4) for n in (1, 4, 9) for s in (None, 1, 2, 3)]:
        xs = _inputs(nranks, count)
        run = cl.simulate(three, cl.per_rank(xs), ranks=nranks, schedule=schedule)
        assert run.ok, run.report()
        assert run.trace.races() == [], (nranks, count, str(run.trace.races()[0]))
        for ys in run.results:
            np.testing.assert_array_equal(ys, [k * sum(xs) for k in (1, 2, 3)])


@pytest.mark.parametrize("nranks", (1, 2, 3, 5, 8))
def test_reduce_scatter_then_all_gather_is_all_reduce(nranks):
    for count in (0, nranks, 3 * nranks, 3 * nranks + 1):
        xs = _inputs(nranks, count)
        scattered = cl.simulate(two_phase.reduce_scatter, cl.per_rank(xs), ranks=nranks)
        assert scattered.ok and not scattered.trace.races(), scattered.report()
        parts = Partition.uneven(count, nranks)
        for rank, block in enumerate(scattered.results):
            np.testing.assert_array_equal(block, sum(xs)[parts.slice(rank)])
            card = two_phase.reduce_scatter_cost(nranks, count, 8, rank)
            assert measured(scattered.trace, rank) == on_card(card)
        if count % nranks == 0:
            gathered = cl.simulate(two_phase.all_gather, cl.per_rank(scattered.results), ranks=nranks)
            assert not gathered.trace.races()
            for rank, y in enumerate(gathered.results):
                np.testing.assert_array_equal(y, sum(xs))
                card = two_phase.all_gather_cost(nranks, count // nranks, 8, rank)
                assert measured(gathered.trace, rank) == on_card(card)


@pytest.mark.parametrize("nranks", (2, 3, 4, 8))
def test_two_phases_read_two_in_p_of_what_the_mesh_reads(nranks):
    count = 24
    two = two_phase.all_reduce_cost(nranks, count, 4, 0).nbytes
    assert two * nranks == 2 * mesh.all_reduce_cost(nranks, count, 4, 0).nbytes


@pytest.mark.parametrize("name", ("mesh", "two_phase", "ring"))
def test_ranks_agree_to_the_last_bit(name):
    rng = np.random.default_rng(3)
    xs = [rng.standard_normal(40).astype(np.float32) for _ in range(5)]
    run = cl.simulate(ALL_REDUCE[name][0], cl.per_rank(xs), ranks=5)
    assert all(y.tobytes() == run.results[0].tobytes() for y in run.results)
    np.testing.assert_allclose(run.results[0], np.sum(xs, axis=0, dtype=np.float64), rtol=0, atol=5 * 4 * 2**-23 * 5)


def test_an_unknown_operation_is_named():
    run = cl.simulate(mesh.all_reduce, np.ones(2), "mean", ranks=2)
    assert not run.ok
    assert "op='mean'" in run.report()

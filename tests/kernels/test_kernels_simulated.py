"""Every kernel on simulated ranks: its values, its cost cards, its races, its rounding; and that each of these
checks notices a kernel that is wrong."""

import math
from dataclasses import replace

import numpy as np
import pytest
from kernel_cases import ALL_REDUCE, DTYPES, KERNELS, OPS, REDUCE, complaints, inputs, same

import collectlab as cl
from collectlab.kernels import direct, tree
from collectlab.layout import Partition
from collectlab.trace import Trace


def simulated(kernel, xs, *op, schedule=None):
    return cl.simulate(kernel.program, cl.per_rank(xs), *op, ranks=len(xs), schedule=schedule)


@pytest.fixture(params=KERNELS)
def kernel(request):
    return KERNELS[request.param]


@pytest.fixture(params=REDUCE)
def reducing(request):
    return KERNELS[request.param]


def test_value_card_and_races_on_up_to_16_ranks(kernel):
    for nranks in range(1, 17):
        for count in (0, 1, 5, 12, 16, 33):
            xs = inputs(kernel, nranks, count)
            assert complaints(kernel, xs, simulated(kernel, xs)) == [], (nranks, count)


def test_no_correct_kernel_is_accused(kernel):
    for nranks in range(1, 10):
        for count in range(41):
            xs = inputs(kernel, nranks, count)
            assert complaints(kernel, xs, simulated(kernel, xs)) == [], (nranks, count)


def test_every_operation_and_dtype_is_as_the_semantics_say(kernel):
    for nranks in (1, 3, 4, 6):
        for dtype in DTYPES:
            for op in [(op,) for op in kernel.ops] or [()]:
                xs = inputs(kernel, nranks, 7, dtype)
                assert complaints(kernel, xs, simulated(kernel, xs, *op), *op) == [], (nranks, dtype, op)


def test_an_average_of_integers_is_cut_towards_zero(reducing):
    xs = [np.array([-7, -1, 0, 1, 7, 8]) - rank for rank in range(5)]
    assert complaints(reducing, xs, simulated(reducing, xs, "avg"), "avg") == []


def test_shapes_are_kept_by_those_that_say_so():
    for name in [*ALL_REDUCE, "tree.broadcast"]:
        for shape in ((), (2, 3), (0, 4)):
            xs = [np.full(shape, rank + 1.0) for rank in range(3)]
            assert complaints(KERNELS[name], xs, simulated(KERNELS[name], xs)) == [], (name, shape)


def three_calls(kernel):
    """A program of three calls in a row, each with another input; it also says whether its own arrays are intact."""

    def program(ctx, x):
        given = [x * k for k in (1, 2, 3)]
        results = [kernel.program(ctx, g) for g in given]
        intact = all(same(g, x * k) for g, k in zip(given, (1, 2, 3), strict=True))
        return results, intact and not any(np.shares_memory(y, g) for y in results for g in given)

    return program


def test_three_calls_in_a_row_are_right_and_race_free_under_every_schedule_tried(kernel):
    for nranks in (1, 2, 3, 4, 5, 7, 8):
        for count in (1, 4, 9):
            xs = inputs(kernel, nranks, count)
            expected = [kernel.reference([x * k for x in xs]) for k in (1, 2, 3)]
            for schedule in (None, 1, 2, 3):
                run = cl.simulate(three_calls(kernel), cl.per_rank(xs), ranks=nranks, schedule=schedule)
                assert run.ok, run.report()
                assert run.trace.races() == [], (nranks, count, schedule)
                for rank, (results, intact) in enumerate(run.results):
                    assert intact, (nranks, count, rank)
                    assert all(same(y, ys[rank]) for y, ys in zip(results, expected, strict=True))


def in_place(ctx, x, kernel):
    """The result takes the place of the input, which is the input of the next call again as it was."""
    for _ in range(3):
        z = x.copy()
        y = kernel.program(ctx, z)
        z = z if z.shape == y.shape else np.empty_like(y)
        z[...] = y
    return z


def with_gaps(ctx, x, kernel):
    """The elements of the input do not lie side by side."""
    wide = np.zeros(2 * x.size, x.dtype)
    wide[::2] = x
    return kernel.program(ctx, wide[::2])


def turned_round(ctx, x, kernel):
    return kernel.program(ctx, x[::-1].copy()[::-1])


def read_only(ctx, x, kernel):
    x.flags.writeable = False
    return kernel.program(ctx, x)


@pytest.mark.parametrize("passed", (in_place, with_gaps, turned_round, read_only))
def test_an_input_may_be_overwritten_by_the_result_and_lie_in_memory_in_any_way(kernel, passed):
    for nranks in (1, 2, 3, 4, 5, 7):
        for count in (0, 1, 7, 12):
            xs = inputs(kernel, nranks, count)
            run = cl.simulate(passed, cl.per_rank(xs), kernel, ranks=nranks, schedule=1)
            assert run.ok and run.trace.races() == [], run.report()
            assert all(map(same, run.results, kernel.reference(xs))), (nranks, count)


def test_every_wait_is_needed(kernel):
    """Taken out of the trace of three calls, any one wait leaves a race: nothing waits in vain, and the last
    signals of a call free the window for the next."""
    for nranks in (2, 3, 4, 5, 7):
        xs = inputs(kernel, nranks, 2 * nranks)
        trace = cl.simulate(three_calls(kernel), cl.per_rank(xs), ranks=nranks).trace
        cells = {(e.rank, e.peer, e.name, e.row) for e in trace.events if e.kind == "wait"}
        for cell in cells:
            rest = [e for e in trace.events if (e.rank, e.peer, e.name, e.row) != cell or e.kind != "wait"]
            assert Trace(nranks, rest).races(), (nranks, cell)


@pytest.mark.parametrize("name", ("recursive_doubling", "rabenseifner"))
def test_two_windows_in_turn_are_needed(name):
    kernel = KERNELS[f"{name}.all_reduce"]
    for nranks in range(2, 9):
        trace = cl.simulate(three_calls(kernel), cl.per_rank(inputs(kernel, nranks, 16)), ranks=nranks).trace
        one = [replace(e, name=name) if e.name == f"{name}.1" else e for e in trace.events]
        one = [replace(e, name=name) if e.name == f"{name}.0" else e for e in one]
        assert trace.races() == [] and Trace(nranks, one).races(), nranks


def test_a_card_that_is_off_by_one_is_noticed(kernel):
    xs = inputs(kernel, 5, 6)
    run = simulated(kernel, xs)
    for field in ("nbytes", "messages", "notifications", "waits", "barriers", "steps"):
        for wrong in range(5):

            def cost(nranks, count, itemsize, rank, wrong=wrong, field=field):
                card = kernel.cost(nranks, count, itemsize, rank)
                return replace(card, **{field: getattr(card, field) + (rank == wrong)})

            assert complaints(kernel._replace(cost=cost), xs, run) == ["card"], (field, wrong)


class Forgetful:
    """A context in whose windows one rank leaves out one load from a peer, and goes on with zeros."""

    def __init__(self, ctx, nth):
        self._ctx, self._left = ctx, [nth]

    def window(self, name, shape, dtype):
        return ForgetfulWindow(self._ctx, self._ctx.window(name, shape, dtype), self._left)

    def __getattr__(self, name):
        return getattr(self._ctx, name)


class ForgetfulWindow:
    def __init__(self, ctx, window, left):
        self._ctx, self._window, self._left = ctx, window, left

    def remote_load(self, peer, at=slice(None), **out):
        return self._or_zeros(self._window.remote_load, peer, at, **out)

    def remote_view(self, peer, at=slice(None)):
        return self._or_zeros(self._window.remote_view, peer, at)

    def remote_views(self, at=slice(None)):
        return [self.remote_view(peer, at) for peer in range(self._ctx.nranks)]

    def _or_zeros(self, load, peer, at, out=None):
        self._left[0] -= peer != self._ctx.rank
        if peer == self._ctx.rank or self._left[0] != -1:
            return load(peer, at) if out is None else load(peer, at, out=out)
        value = np.zeros_like(self._window.local[at]) if out is None else out
        value[...] = 0
        return value

    def __getattr__(self, name):
        return getattr(self._window, name)


def test_a_load_left_out_is_noticed(kernel):
    nranks = 6
    xs = inputs(kernel, nranks, 2 * nranks)
    for rank in range(nranks):
        loads = kernel.cost(nranks, xs[0].size, 8, rank).messages
        for nth in range(loads):

            def program(ctx, x, rank=rank, nth=nth):
                return kernel.program(Forgetful(ctx, nth) if ctx.rank == rank else ctx, x)

            run = cl.simulate(program, cl.per_rank(xs), ranks=nranks)
            assert complaints(kernel, xs, run) == ["values", "card"], (rank, nth)


@pytest.mark.parametrize("nranks", range(1, 17))
def test_reduce_scatter_then_all_gather_is_all_reduce(nranks):
    for family in ("two_phase", "ring"):

        def both(ctx, x, scatter=KERNELS[f"{family}.reduce_scatter"], gather=KERNELS[f"{family}.all_gather"]):
            return gather.program(ctx, scatter.program(ctx, x))

        whole = KERNELS[f"{family}.all_reduce"]
        xs = inputs(whole, nranks, 3 * nranks, np.float32)
        run = cl.simulate(both, cl.per_rank(xs), ranks=nranks, schedule=nranks)
        assert run.ok and run.trace.races() == []
        assert all(map(same, run.results, simulated(whole, xs).results))


@pytest.mark.parametrize("nranks", range(2, 17))
def test_what_is_read_in_all_is_what_the_docstrings_say(nranks):
    nbytes = 4 * 3 * nranks
    read = {
        name: [kernel.cost(nranks, 3 * nranks, 4, rank).nbytes for rank in range(nranks)]
        for name, kernel in KERNELS.items()
    }
    peers = [nranks - 1] * nranks
    assert read["mesh.all_reduce"] == [p * nbytes for p in peers]
    for name in ("two_phase.all_reduce", "ring.all_reduce"):
        assert read[name] == [2 * p * nbytes // nranks for p in peers]  # 2 / nranks of what the mesh reads
    for name in ("two_phase.reduce_scatter", "ring.reduce_scatter", "direct.all_to_all"):
        assert read[name] == [p * nbytes // nranks for p in peers]
    for name in ("two_phase.all_gather", "ring.all_gather"):
        assert read[name] == [p * nbytes for p in peers]  # N is one rank's contribution here
    assert sorted(read["tree.broadcast"]) == [0, *[nbytes] * (nranks - 1)]
    log2 = nranks.bit_length() - 1
    both_ways = 2 * (nranks - 2**log2)  # vectors that the ranks too many hand in and get out
    assert sum(read["recursive_doubling.all_reduce"]) == (2**log2 * log2 + both_ways) * nbytes
    assert sum(read["rabenseifner.all_reduce"]) == (2 * (2**log2 - 1) + both_ways) * nbytes


def test_steps_are_what_the_docstrings_say():
    for nranks in (2, 4, 8, 16):
        log2 = nranks.bit_length() - 1
        cards = {name: [KERNELS[name].cost(nranks, 99, 4, r) for r in range(nranks)] for name in ALL_REDUCE}
        steps = {name: {card.steps for card in cards[name]} for name in cards}
        assert steps == {
            "mesh.all_reduce": {2},
            "two_phase.all_reduce": {2},
            "two_phase.all_reduce_registered": {2},
            "ring.all_reduce": {2 * (nranks - 1) + 1},
            "recursive_doubling.all_reduce": {log2},
            "rabenseifner.all_reduce": {2 * log2},
        }


# Rounding. Any order of additions: |error| <= depth * u * sum|x| / (1 - depth * u), where u = eps / 2 is the unit
# roundoff and depth is the most additions that a summand goes through (Higham, Accuracy and Stability of Numerical
# Algorithms, 2nd edition, chapter 4). While depth * u <= 1/2, that is at most depth * eps * sum|x|.


def off_by(y, xs, depth):
    """The error of each element of a sum `y`, as a part of what the bound allows: above 1 is too much."""
    bound = depth * float(np.finfo(y.dtype).eps)
    errors = []
    for value, summands in zip(y.tolist(), np.stack(xs).astype(np.float64).T.tolist(), strict=True):
        error = math.fsum([value, *(-s for s in summands)])
        errors.append(abs(error) / (bound * math.fsum(map(abs, summands))) if bound else abs(error))
    return np.array(errors)


def normal(nranks, count, dtype):
    rng = np.random.default_rng(nranks)
    return [rng.standard_normal(count).astype(dtype) for _ in range(nranks)]


def pieces(kernel, xs, results):
    """(what a rank returned, the inputs that went into it), rank by rank."""
    if results[0].size == xs[0].size:
        return [(y, xs) for y in results]
    parts = Partition.uneven(xs[0].size, len(xs))
    return [(y, [x[parts.slice(rank)] for x in xs]) for rank, y in enumerate(results)]


@pytest.mark.parametrize("dtype", (np.float16, np.float32, np.float64))
def test_a_sum_is_as_near_as_its_order_of_additions_promises(reducing, dtype):
    for nranks in range(1, 17):
        xs = normal(nranks, 33, dtype)
        for y, summands in pieces(reducing, xs, simulated(reducing, xs).results):
            assert y.dtype == dtype
            assert (off_by(y, summands, reducing.depth(nranks)) <= 1).all(), nranks


def test_the_bound_notices_another_precision_and_a_summand_left_out(reducing):
    for nranks in (2, 3, 8, 16):
        xs, depth = normal(nranks, 33, np.float32), reducing.depth(nranks)
        half = np.sum(xs, axis=0, dtype=np.float16).astype(np.float32)
        assert (off_by(half, xs, depth) > 1).any()
        assert (off_by(np.sum(xs[1:], axis=0), xs, depth) > 1).all()


def test_the_depth_is_that_of_the_kernel():
    """A large summand and 15 that each vanish beside it: one after another all are lost; in pairs few are."""
    lost = 0.49 * np.finfo(np.float32).eps
    xs = [np.full(16, value, np.float32) for value in [1.0, *[lost] * 15]]
    for name in ALL_REDUCE:
        kernel = KERNELS[name]
        worst = max(off_by(y, xs, 4).max() for y in simulated(kernel, xs).results)
        assert (worst > 1) == (kernel.depth(16) == 15), name


@pytest.mark.parametrize("dtype", (np.float16, np.float32, np.float64))
@pytest.mark.parametrize("name", ALL_REDUCE)
def test_ranks_agree_to_the_last_bit(name, dtype):
    for nranks in range(1, 17):
        xs = normal(nranks, 33, dtype)
        for op in OPS:
            results = simulated(KERNELS[name], xs, op).results
            assert len({y.tobytes() for y in results}) == 1, (nranks, op)


@pytest.mark.parametrize("name", ALL_REDUCE)
def test_ranks_agree_which_zero_is_the_least(name):
    for nranks in range(1, 17):  # 0.0 and -0.0 are equal: minimum takes one of them by their order
        xs = [np.where(np.arange(33) % (rank + 2), 0.0, -0.0) for rank in range(nranks)]
        for op in ("min", "max"):
            results = simulated(KERNELS[name], xs, op).results
            assert len({y.tobytes() for y in results}) == 1, (nranks, op)


def test_agreement_can_be_lost():
    """The check of the two tests above: a mesh in which every rank begins with its own vector does not agree."""

    def own_first(ctx, x):
        data, signals = ctx.window("data", x.size, x.dtype), ctx.signals("signals", rows=1)
        data.store(x)
        ctx.barrier(signals, 0)
        return sum((data.remote_load((ctx.rank + d) % ctx.nranks) for d in range(1, ctx.nranks)), x)

    for dtype in (np.float16, np.float32, np.float64):
        run = cl.simulate(own_first, cl.per_rank(normal(3, 33, dtype)), ranks=3)
        assert len({y.tobytes() for y in run.results}) > 1


def test_every_root_broadcasts_and_roots_may_change_from_call_to_call():
    def from_all(ctx, x):
        return [tree.broadcast(ctx, x + 10 * root, root) for root in (*range(ctx.nranks), 0)]

    for nranks in range(1, 10):
        xs = [np.arange(5) + rank for rank in range(nranks)]
        for schedule in (None, 1, 2):
            run = cl.simulate(from_all, cl.per_rank(xs), ranks=nranks, schedule=schedule)
            assert run.ok and run.trace.races() == [], run.report()
            for ys in run.results:
                np.testing.assert_array_equal(ys, [np.arange(5) + 11 * root for root in (*range(nranks), 0)])
        for root in range(nranks):
            run = cl.simulate(tree.broadcast, cl.per_rank(xs), root, ranks=nranks)
            for rank in range(nranks):
                assert run.trace.measured(rank) == tree.broadcast_cost(nranks, 5, 8, rank, root)


def test_the_root_of_a_tree_is_read_by_log2_of_the_ranks():
    for nranks in range(1, 17):
        run = cl.simulate(tree.broadcast, np.arange(4.0), ranks=nranks)
        readers = (run.traffic > 0).sum(axis=0)
        assert readers.max() == readers[0] == (nranks - 1).bit_length()


def test_values_of_the_others_are_not_looked_at_by_a_broadcast():
    xs = [np.arange(3.0), *[np.full(3, np.nan)] * 4]
    assert all(same(y, np.arange(3.0)) for y in cl.simulate(tree.broadcast, cl.per_rank(xs), ranks=5).results)


@pytest.mark.parametrize("root", (-1, 3, "all"))
def test_a_root_that_is_no_rank_is_named(root):
    run = cl.simulate(tree.broadcast, np.ones(2), root, ranks=3)
    assert f"ValueError: tree.broadcast(ctx, x, root={root!r}): root is a rank, 0 to 2" in run.report()


def test_blocks_that_are_not_equal_are_refused_with_the_length_that_would_do():
    run = cl.simulate(direct.all_to_all, np.ones(10), ranks=4)
    said = "direct.all_to_all(ctx, x): 10 elements cannot be cut into 4 equal blocks; pad x to 4 x 3 = 12"
    assert said in run.report()


@pytest.mark.parametrize("nranks", (1, 2))
def test_an_unknown_operation_is_named(reducing, nranks):
    run = cl.simulate(reducing.program, np.ones(2), "mean", ranks=nranks)
    assert not run.ok
    assert "op='mean'" in run.report()

"""The cases of tests/definitions on real ranks: mpi4py's collectives return what the NumPy reference returns.

Receive buffers have the length that `payload` gives them, so a wrong length there fails here too.
"""

import numpy as np
import pytest
from collective_cases import MOVES, MPI_DTYPES, REDUCTIONS, ROOTED, grid

import collectlab as cl
from collectlab import payload, provenance, semantics


def receive_lengths(case):
    """Elements that each rank receives, as `payload` says."""
    nranks, root, name = len(case.xs), case.kwargs.get("root", 0), case.operation
    if name in payload.VARIABLE_CALLS:
        of_ranks = case.kwargs.get("counts") or case.kwargs.get("sendcounts") or [x.size for x in case.xs]
        argument = next(iter(payload.VARIABLE_CALLS[name].counts))
        count = payload.counts("MPI", name, **{argument: of_ranks})
    else:
        sent = next(x.size for x in case.xs if x is not None)
        count = payload.count_of_input("MPI", name, sent, nranks)
    return [count.on(rank, root).recv_elements for rank in range(nranks)]


def mpi_collectives(ctx, calls):
    """Each call on this rank, ``(operation, x, dtype, elements to receive, arguments)``; the receive buffers."""
    from itertools import accumulate

    from mpi4py import MPI

    comm, results = ctx.comm, []
    ops = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}
    for operation, x, dtype, length, given in calls:
        y = np.full(length, 77, dtype)
        op, root, counts = ops.get(given.get("op")), given.get("root"), given.get("counts")
        placed = None if counts is None else (counts, [0, *accumulate(counts[:-1])])
        at_root = ctx.rank == root
        if operation == "all_reduce":
            comm.Allreduce(x, y, op)
        elif operation == "reduce":
            comm.Reduce(x, y if at_root else None, op, root)
        elif operation == "reduce_scatter":
            comm.Reduce_scatter_block(x, y, op)
        elif operation == "reduce_scatter_v":
            comm.Reduce_scatter(x, y, counts, op)
        elif operation == "all_gather":
            comm.Allgather(x, y)
        elif operation == "all_gather_v":
            comm.Allgatherv(x, [y, placed])
        elif operation == "gather":
            comm.Gather(x, y if at_root else None, root)
        elif operation == "gather_v":
            comm.Gatherv(x, [y, placed] if at_root else None, root)
        elif operation == "broadcast":
            y[:] = x if at_root else y
            comm.Bcast(y, root)
        elif operation == "scatter":
            comm.Scatter(x if at_root else None, y, root)
        elif operation == "scatter_v":
            comm.Scatterv([x, placed] if at_root else None, y, root)
        elif operation == "all_to_all":
            comm.Alltoall(x, y)
        else:
            sent, received = given["sendcounts"][ctx.rank], [row[ctx.rank] for row in given["sendcounts"]]
            comm.Alltoallv(
                [x, (sent, [0, *accumulate(sent[:-1])])],
                [y, (received, [0, *accumulate(received[:-1])])],
            )
        results.append(y.tobytes())
    return results


def on_ranks(ranks, cases):
    """The receive buffer of each rank for each case."""
    calls = [[] for _ in range(ranks.nranks)]
    for case in cases:
        dtype = next(x for x in case.xs if x is not None).dtype
        given = dict(case.kwargs)
        if case.operation in ("all_gather_v", "gather_v"):
            given["counts"] = [x.size for x in case.xs]
        for rank, (x, length) in enumerate(zip(case.xs, receive_lengths(case), strict=True)):
            calls[rank].append((case.operation, x, dtype.str, length, given))
    run = ranks.submit(mpi_collectives, cl.per_rank(calls)).wait(timeout=120)
    assert run.ok, run.report()
    for case, *raw in zip(cases, *run.results, strict=True):
        dtype = next(x for x in case.xs if x is not None).dtype
        yield case, [np.frombuffer(data, dtype) for data in raw]


def faults(case, received, reference=None):
    """Where the buffers differ from the reference: no result means that nothing was received."""
    expected = (reference or getattr(semantics, case.operation))(case.xs, **case.kwargs)
    for rank, (y, want) in enumerate(zip(received, expected, strict=True)):
        want = np.zeros(0, y.dtype) if want is None else want
        if y.dtype != want.dtype or not np.array_equal(y, want):
            yield f"{case}: rank {rank} received {y}, the reference says {want}"


@pytest.fixture(scope="module", params=(1, 2, 3, 4, 5, 8, 17))
def ranks(request):
    with cl.launch(request.param, device="cpu") as warm:
        yield warm


def test_mpi_returns_what_the_reference_returns(ranks):
    cases = list(grid(ranks.nranks, dtypes=MPI_DTYPES, exact=True))
    if ranks.nranks >= 8:  # many more ranks than cores: every third case, each operation and dtype among them
        cases = cases[::3]
    assert {case.operation for case in cases} == {*REDUCTIONS, *MOVES}
    wrong = []
    for case, received in on_ranks(ranks, cases):
        wrong += faults(case, received)
    assert wrong == []


def in_place(ctx, block):
    """Each MPI call with MPI_IN_PLACE as payload.CALLS describes it: its result, per operation."""
    from mpi4py import MPI

    comm, rank, p, root = ctx.comm, ctx.rank, ctx.nranks, ctx.nranks - 1
    whole = np.arange(p * block) + 1000 * rank
    own = slice(rank * block, (rank + 1) * block)
    mine, results = whole[:block].copy(), {}

    y = results["all_reduce"] = whole.copy()
    comm.Allreduce(MPI.IN_PLACE, y)
    y = whole.copy()
    comm.Reduce_scatter_block(MPI.IN_PLACE, y)
    results["reduce_scatter"] = y[:block].copy()
    y = np.zeros(p * block, np.int64)
    y[own] = mine
    comm.Allgather(MPI.IN_PLACE, y)
    results["all_gather"] = y
    y = whole.copy()
    comm.Reduce(MPI.IN_PLACE if rank == root else y, y if rank == root else None, root=root)
    results["reduce"] = y if rank == root else None
    y = results["all_to_all"] = whole.copy()
    comm.Alltoall(MPI.IN_PLACE, y)
    y = np.zeros(p * block, np.int64)
    y[own] = mine
    comm.Gather(MPI.IN_PLACE if rank == root else mine, y if rank == root else None, root)
    results["gather"] = y if rank == root else None
    y = np.zeros(block, np.int64)
    comm.Scatter(whole if rank == root else None, MPI.IN_PLACE if rank == root else y, root)
    results["scatter"] = whole[own].copy() if rank == root else y
    return results


def test_mpi_in_place_works_where_payload_says(ranks):
    p, block, root = ranks.nranks, 3, ranks.nranks - 1
    run = ranks.submit(in_place, block).wait(timeout=60)
    assert run.ok, run.report()
    whole = [np.arange(p * block) + 1000 * rank for rank in range(p)]
    mine = [x[:block] for x in whole]
    expected = {}
    for operation in set(payload.OPERATIONS) - {"broadcast"}:
        xs = mine if operation in ("all_gather", "gather") else whole
        given = {"root": root} if operation in ROOTED else {}
        expected[operation] = getattr(semantics, operation)(xs, **given)
    for rank, results in enumerate(run.results):
        assert results.keys() == expected.keys()
        for operation, result in results.items():
            np.testing.assert_array_equal(result, expected[operation][rank], err_msg=f"{operation} on rank {rank}")


def reduce_scatter_and_back(ctx, x):
    """A block of the sum for each rank, and the blocks gathered again, on real ranks."""
    block = np.zeros(x.size // ctx.nranks, np.int64)
    ctx.comm.Reduce_scatter_block(x, block)
    whole = np.zeros_like(x)
    ctx.comm.Allgather(block, whole)
    return block, whole


def test_identified_elements_survive_a_sum_on_real_ranks(ranks):
    p = ranks.nranks
    count = -(-1000 // p) * p
    xs = provenance.identify(p, count)
    run = ranks.submit(reduce_scatter_and_back, cl.per_rank(xs)).wait(timeout=60)
    assert run.ok, run.report()
    blocks, wholes = zip(*run.results, strict=True)
    assert provenance.misplacements(blocks, semantics.reduce_scatter(xs)) == []
    assert provenance.misplacements(wholes, semantics.all_reduce(xs)) == []
    assert provenance.read(blocks[-1], p)[-1] == {(rank, count - 1): 1 for rank in range(p)}


def wrong_slice(ctx, x):
    """Reduce, then keep the block of the next rank; the last rank adds its own contribution once more."""
    total = np.zeros_like(x)
    ctx.comm.Allreduce(x, total)
    block = x.size // ctx.nranks
    at = (ctx.rank + 1) % ctx.nranks * block
    extra = x[at : at + block] if ctx.rank == ctx.nranks - 1 else 0
    return total[at : at + block] + extra


def test_a_wrong_slice_of_real_ranks_is_explained():
    xs = provenance.identify(4, 8)
    run = cl.run(wrong_slice, cl.per_rank(xs), ranks=4, device="cpu")
    assert run.ok, run.report()
    whole = "the sum of everyone's elements"
    assert provenance.explain(run.results, semantics.reduce_scatter(xs)).splitlines() == [
        f"rank 0, elements 0:2: hold {whole} 2:4; they should hold {whole} 0:2",
        f"rank 1, elements 0:2: hold {whole} 4:6; they should hold {whole} 2:4",
        f"rank 2, elements 0:2: hold {whole} 6:8; they should hold {whole} 4:6",
        f"rank 3, elements 0:2: hold {whole} 0:2 and once more rank 3's elements 0:2; they should hold {whole} 6:8",
    ]


WRONG = {
    "the blocks in another order": ("all_gather", lambda xs: semantics.all_gather(xs[::-1])),
    "a rank left out": ("all_reduce", lambda xs, op: semantics.all_reduce(xs[:-1] + xs[:1], op)),
    "blocks one further": ("reduce_scatter", lambda xs, op: semantics.reduce_scatter(xs, op)[::-1]),
    "another root": ("gather", lambda xs, root: semantics.gather(xs, (root + 1) % len(xs))),
}


@pytest.fixture(scope="module")
def of_three_ranks():
    """Cases of the operations in WRONG, and what three real ranks received."""
    operations = {operation for operation, _ in WRONG.values()}
    cases = [c for c in grid(3, dtypes=MPI_DTYPES, exact=True) if c.operation in operations]
    with cl.launch(3, device="cpu") as warm:
        return list(on_ranks(warm, cases))


@pytest.mark.parametrize("wrong", WRONG)
def test_a_reference_that_real_ranks_contradict_is_noticed(wrong, of_three_ranks):
    operation, function = WRONG[wrong]
    tried = [(case, received) for case, received in of_three_ranks if case.operation == operation]
    assert any(list(faults(case, received, function)) for case, received in tried)
    assert not any(list(faults(case, received)) for case, received in tried)

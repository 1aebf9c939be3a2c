"""A long search for a witness, and results that have no chunks."""

import numpy as np

import collectlab as cl
from collectlab.explore import diagnose, witness


def test_a_search_with_many_delays_comes_to_its_end():
    def harmless(ctx):
        one, other = ctx.window("one", 1, np.int64), ctx.window("other", 1, np.int64)
        for window in (one, other, one):
            window.remote_store(0, np.array([7]))
        ctx.barrier(ctx.signals("s", rows=1), 0)
        return int(one.remote_load(0)[0] + other.remote_load(0)[0])

    found = witness(harmless, ranks=3, tries=200)
    assert not found and found.tried == 200


def test_a_result_that_is_one_chunk_is_not_cut_into_chunks():
    def first_for_all(ctx, x):
        total = cl.kernels.mesh.all_reduce(ctx, x)
        return total[: x.size // ctx.nranks]

    xs = [np.arange(8.0) + 10 * rank for rank in range(4)]
    text = str(diagnose(first_for_all, xs, expected=cl.semantics.reduce_scatter))
    said = "rank 1, elements 0:2: hold the sum of everyone's elements 0:2; they should hold the sum of everyone's"
    assert f"{said} elements 2:4" in text and "chunk" not in text

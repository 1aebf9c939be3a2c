"""The conversions of notebook 02: against MPI on real ranks, and the wrong answers that people give."""

import numpy as np
import pytest

import collectlab as cl
from collectlab.exercises import counting


def exchanged(ctx, sendcount, recvcount):
    from mpi4py import MPI

    p = ctx.nranks
    out, back = np.zeros(p * sendcount, np.float32), np.zeros(p * recvcount, np.float32)
    ctx.comm.Alltoall([out, sendcount, MPI.FLOAT], [back, recvcount, MPI.FLOAT])
    return max(out.nbytes, back.nbytes)


def scattered(ctx, sendcount, recvcount):
    from mpi4py import MPI

    block = np.zeros(200, np.float32)
    everything = (
        [np.ones(ctx.nranks * sendcount, np.float32), sendcount, MPI.FLOAT] if ctx.rank == 0 else None
    )
    ctx.comm.Scatter(everything, [block, recvcount, MPI.FLOAT])
    return int(block.sum()), 0 if everything is None else everything[0].nbytes


def test_all_to_all_takes_the_counts_of_the_answer():
    sendcount, recvcount, _, size = counting.all_to_all.expected
    assert cl.run(exchanged, sendcount, recvcount, ranks=4, device="cpu").results == [size] * 4


def test_scatter_takes_the_counts_of_the_answer():
    _, sendcount, recvcount, received = counting.scatter_row.expected
    results = cl.run(scattered, sendcount, recvcount, ranks=4, device="cpu").results
    assert results == [(received, 512)] + [(received, 0)] * 3


@pytest.mark.parametrize(
    ("exercise", "answer", "mistake"),
    [
        (counting.same_size, [256, 16], "divided twice"),
        (counting.all_to_all, [32, 32, 32, 128], "every count as total"),
        (counting.all_to_all, [8, 32, 8, 128], "recvcount as total"),
        (counting.all_to_all, [8, 8, 8, 32], "one block in bytes"),
        (counting.all_to_all, [2, 2, 2, 32], "divided by the ranks"),
        (counting.all_to_all, [8, 8, 8, 96], "own block left out"),
        (counting.scatter_row, [128, 128, 128, 32], "every count as total"),
        (counting.scatter_row, [128, 128, 32, 32], "what the root passes"),
        (counting.scatter_row, [128] * 4, "all blocks, or bytes of one"),
        (counting.scatter_row, [8] * 4, "divided twice"),
        (counting.scatter_row, [512] * 4, "bytes"),
        (counting.scatter_row, [32, 32, 32, 0], "only the root receives"),
    ],
)
def test_a_wrong_conversion_is_named_and_the_right_one_not_given_away(exercise, answer, mistake):
    verdict = exercise(answer)
    assert not verdict and verdict.mistake == mistake
    message = verdict.text.partition(". ")[2]
    new = {str(n) for n in exercise.expected} - {str(n) for n in answer}
    assert not new & set(message.replace(",", " ").replace(".", " ").split())

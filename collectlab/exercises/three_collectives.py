"""Exercises of notebook 01: three collectives on the same inputs."""

import numpy as np

from collectlab import semantics
from collectlab.exercises.exercise import Exercise, Mistake

A = np.array([1, 2, 3, 4], np.int32)
B = np.array([10, 20, 30, 40], np.int32)

_SUM = semantics.all_reduce([A, B])[0]
_JOINED = semantics.all_gather([A, B])[0]
_SHARDS = semantics.reduce_scatter([A, B])

shard_of_rank_1 = Exercise(
    "Rank 0 passes A, rank 1 passes B to a sum reduce-scatter. What does rank 1 receive?",
    expected=_SHARDS[1],
    why="the reduction has four positions, each rank keeps two of them, and rank 1 keeps the second block; both "
    "values hold a share of A and a share of B.",
    mistakes=(
        Mistake(
            "the shard of the other rank",
            _SHARDS[0],
            "That is the first block of the sum, and it belongs to rank 0. Blocks follow the rank index.",
        ),
        Mistake(
            "the whole sum",
            _SUM,
            "That is the whole sum, which all-reduce returns. Reduce-scatter leaves each rank one block of it.",
        ),
        Mistake(
            "not summed",
            B[2:],
            "That is the second block of B alone. The blocks are cut from the sum, so A's share is in them too.",
        ),
        Mistake(
            "the block of rank 0's input",
            A[2:],
            "That is the second block of A alone. The blocks are cut from the sum, so B's share is in them too.",
        ),
        Mistake(
            "the first half of its own input",
            B[:2],
            "That is a piece of B. Nothing is added yet, and rank 1's block is the second one.",
        ),
        Mistake(
            "every second position",
            _SUM[1::2],
            "Those are positions 1 and 3 of the sum. A block is made of neighbours: rank 1 keeps positions 2 and 3.",
        ),
        Mistake(
            "gathered",
            _JOINED,
            "That is the all-gather: both inputs side by side, and nothing added.",
        ),
    ),
)

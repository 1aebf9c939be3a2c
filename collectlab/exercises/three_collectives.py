"""Exercises of notebook 01: three collectives on the same inputs."""

import numpy as np

from collectlab import semantics
from collectlab.exercises.exercise import Exercise, Mistake, chooses, lacks, takes
from collectlab.exercises.on_ranks import ProgramExercise, ProgramMistake, goes_only_into

A = np.array([1, 2, 3, 4], np.int32)  # what rank 0 passes
B = np.array([10, 20, 30, 40], np.int32)  # what rank 1 passes

_SUM = semantics.all_reduce([A, B])[0]
_JOINED = semantics.all_gather([A, B])[0]
_SHARDS = semantics.reduce_scatter([A, B])
_MORE = [np.arange(1, 7) * 10**rank for rank in range(3)]  # the inputs on three ranks

sum_on_rank_1 = Exercise(
    "Rank 0 passes A, rank 1 passes B to a sum all-reduce. What does rank 1 receive?",
    expected=_SUM,
    why="position by position, both contributions are added, and every rank receives all four sums.",
    length_is_asked=True,
    mistakes=(
        Mistake("both ranks", np.stack([_SUM, _SUM]), "Those are both ranks' results. One rank's is asked for."),
        Mistake("gathered", _JOINED, "Those are the two arrays one after the other. A reduction adds them."),
        Mistake("its own", B, "That is what rank 1 passes. What comes back holds a share of A as well."),
        Mistake("the other's", A, "That is what rank 0 passes. All-reduce is no exchange: both arrays are added."),
        Mistake(
            "its block",
            _SHARDS[1],
            "Those two sums are right, but all-reduce leaves nothing out: every rank gets all four positions.",
        ),
        Mistake(
            "added along the array",
            [A.sum(), B.sum()],
            "Those are the sums of A and of B. The sum goes across the ranks, at each position by itself.",
        ),
        Mistake(
            "one number",
            _SUM.sum(),
            "That adds up everything. The sum goes across the ranks and keeps the four positions apart.",
        ),
        Mistake("multiplied", A * B, "Those are products. The reduction here is a sum."),
    ),
)

gathered_on_rank_1 = Exercise(
    "Rank 0 passes A, rank 1 passes B to an all-gather. What does rank 1 receive?",
    expected=_JOINED,
    why="all-gather lays the contributions one after the other in rank order, the same on every rank.",
    length_is_asked=True,
    mistakes=(
        Mistake(
            "both ranks",
            np.stack([_JOINED, _JOINED]),
            "Those are both ranks' results, and rightly alike. Rank 1's alone is asked for.",
        ),
        Mistake("reduced", _SUM, "Those are the sums. All-gather adds nothing: it keeps the contributions apart."),
        Mistake(
            "own first",
            np.concatenate([B, A]),
            "That puts rank 1's own array first. The order is rank order on every rank: rank 0's comes first.",
        ),
        Mistake("its own", B, "That is rank 1's own array. It receives rank 0's as well."),
        Mistake("the other's", A, "That is rank 0's array. Rank 1's own array has its place in the result too."),
        Mistake(
            "nested",
            np.stack([A, B]),
            "The contributions and their order are right, but the result is one array, with nothing between the two.",
        ),
        Mistake(
            "interleaved",
            np.stack([A, B], axis=1).ravel(),
            "That takes one element of each in turn. Each contribution stays in one piece.",
        ),
        Mistake(
            "half of each",
            np.concatenate([A[2:], B[2:]]),
            "Those are the second halves. All-gather cuts nothing: every contribution is there in full.",
        ),
    ),
)

shard_of_rank_1 = Exercise(
    "Rank 0 passes A, rank 1 passes B to a sum reduce-scatter. What does rank 1 receive?",
    expected=_SHARDS[1],
    why="the sum has four positions, each rank keeps a block of two, and rank 1 keeps the second block; both values "
    "hold a share of A and a share of B.",
    length_is_asked=True,
    mistakes=(
        Mistake("rank 0's", _SHARDS[0], "That is the first block of the sum, and rank 0 keeps it."),
        Mistake("the whole sum", _SUM, "That is the whole sum, as all-reduce returns it. Each rank keeps one block."),
        Mistake("not summed", B[2:], "That is a block of B alone. The block is cut from the sum of A and B."),
        Mistake("of A alone", A[2:], "That is a block of A alone. Both ranks' shares are in each value."),
        Mistake(
            "first half of its own",
            B[:2],
            "That is the first half of B. Nothing is added, and rank 1 keeps the second block.",
        ),
        Mistake(
            "every second position",
            _SUM[1::2],
            "Those are positions 1 and 3 of the sum. A block is made of neighbours.",
        ),
        Mistake("gathered", _JOINED, "That is the all-gather: both arrays side by side, and nothing added."),
        Mistake("both ranks", np.stack(_SHARDS), "Those are both ranks' blocks. Rank 1 receives one of them."),
    ),
)

gathered_shards = Exercise(
    "The two shards of that reduce-scatter go into an all-gather. What does rank 0 receive?",
    expected=semantics.all_gather(_SHARDS)[0],
    why="the contributions are blocks of the sum, of two elements each; in rank order they are the whole sum.",
    length_is_asked=True,
    mistakes=(
        Mistake(
            "the originals gathered",
            _JOINED,
            "That gathers the original arrays. The inputs of this all-gather are the shards, of two elements each.",
        ),
        Mistake(
            "added again",
            semantics.all_reduce(_SHARDS)[0],
            "That adds the two shards. They are sums already, of different positions, and a gather adds nothing.",
        ),
        Mistake("its own shard", _SHARDS[0], "That is what rank 0 passes. It receives rank 1's shard as well."),
        Mistake("the other shard", _SHARDS[1], "That is rank 1's shard. Rank 0's own comes before it."),
        Mistake(
            "swapped",
            np.concatenate(_SHARDS[::-1]),
            "Both shards are there, but in the wrong order: rank 0's contribution stands first.",
        ),
        Mistake(
            "twice",
            np.concatenate([_SUM, _SUM]),
            "That is the sum twice. How many elements does each of the two ranks contribute?",
        ),
        Mistake("nested", np.stack(_SHARDS), "The order is right, but the result is one array, without inner lists."),
        Mistake("both ranks", np.stack([_SUM, _SUM]), "Those are both ranks' results. Rank 0's alone is asked for."),
    ),
)


what_follows = Exercise(
    "Reduce-scatter, then all-gather, is logically all-reduce. Which statements follow from the definitions alone?",
    expected=frozenset("ad"),
    options={
        "a": "for integers, every rank ends with the same array as after all-reduce",
        "b": "both take the same time",
        "c": "a library's all-reduce works in these two stages",
        "d": "between the stages every rank holds a finished block of the sum",
        "e": "both move the same number of bytes between ranks",
        "f": "for floats, both give the same bits",
        "g": "both need the same memory",
    },
    why="the equivalence is about results: which values every rank holds at the end, and at the stage between. Time, "
    "traffic, memory, rounding and the library's inside are other questions.",
    mistakes=(
        takes("b", "Two calls may each have to start and to wait; only a measurement compares times.", "follow"),
        takes("c", "The equivalence tells what comes out. How it is made, the library chooses.", "follow"),
        takes("e", "What is moved depends on the algorithm of each call, and results do not show it.", "follow"),
        takes("f", "Another order of additions may round differently; neither promises an order.", "follow"),
        takes("g", "Two stages may need a buffer between them, and an algorithm buffers of its own.", "follow"),
        lacks("a", "it is what equivalence of results means.", "One more holds"),
        lacks("d", "look at what reduce-scatter has left behind when it is done.", "One more holds"),
    ),
)


needs = Exercise(
    "Need 1: every rank divides all four sums by the largest of them. Need 2: every rank compares A with B at each "
    "position. Need 3: rank 0 updates weights 0 and 1, rank 1 weights 2 and 3, each with the sum at its positions. "
    "Which single collective supplies each need, and no more than it?",
    expected=("all_reduce", "all_gather", "reduce_scatter"),
    options=("all_reduce", "all_gather", "reduce_scatter"),
    why="need 1 reads the whole sum, need 2 both contributions unadded, need 3 only the rank's own block.",
    mistakes=(
        chooses(1, "all_gather", "Need 1: that hands over both arrays unadded; each rank would still have to add."),
        chooses(1, "reduce_scatter", "Need 1: a rank would hold two of the four sums, and it divides all four."),
        chooses(2, "all_reduce", "Need 2: in a sum, A and B can no longer be told apart."),
        chooses(2, "reduce_scatter", "Need 2: a block of the sum holds neither A nor B, and half of the positions."),
        chooses(3, "all_reduce", "Need 3: that supplies it, and two sums more, which this rank does not use."),
        chooses(3, "all_gather", "Need 3: nothing is added there, and the update asks for sums."),
    ),
)

shard_on_three_ranks = Exercise(
    "On three ranks, rank r passes [1, 2, 3, 4, 5, 6] * 10**r to a sum reduce-scatter. What does rank 2 receive?",
    expected=semantics.reduce_scatter(_MORE)[2],
    why="six positions on three ranks make blocks of two, rank 2 keeps the third block, and its three digits show "
    "that all three ranks have contributed.",
    length_is_asked=True,
    mistakes=(
        Mistake("rank 1's", semantics.reduce_scatter(_MORE)[1], "That is the second block, rank 1's."),
        Mistake("rank 0's", semantics.reduce_scatter(_MORE)[0], "That is the first block, rank 0's."),
        Mistake("halves", sum(_MORE)[3:], "That cuts the sum in two. Three ranks get three blocks."),
        Mistake("the whole sum", sum(_MORE), "That is the whole sum. Each of the three ranks keeps a third of it."),
        Mistake("not summed", _MORE[2][4:], "That is the third block of rank 2's own array. Nothing is added yet."),
        Mistake("two ranks' sum", (_MORE[1] + _MORE[2])[4:], "Rank 0's share is missing: all three ranks are added."),
        Mistake("of two only", (_MORE[0] + _MORE[1])[4:], "Rank 2's own share is missing: it is part of the sum."),
        Mistake("dealt out", sum(_MORE)[2::3], "Those are positions 2 and 5. A block is made of neighbours."),
        Mistake(
            "blocks of three",
            sum(_MORE)[:3],
            "That is half of the sum. There are three ranks, and each keeps as much as the others.",
        ),
    ),
)

_NOT_BY_HAND = "{} adds for you. Use Allgather, which adds nothing, and add by yourself."
_REDUCTIONS = "Allreduce", "Reduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan"

all_reduce_by_hand = ProgramExercise(
    "Make a sum all-reduce out of Allgather and NumPy.",
    inputs=lambda nranks: [np.arange(1, 6, dtype=np.int32) * 10**rank for rank in range(nranks)],
    expected=semantics.all_reduce,
    why="everyone's array reaches every rank, and each rank adds position by position. So the result is that of an "
    "all-reduce, made in another way.",
    mistakes=(
        ProgramMistake("gathered", semantics.all_gather, "the arrays stand one after the other; now add them."),
        ProgramMistake("rows", lambda xs: [np.stack(xs)] * len(xs), "one row per rank is there; now add the rows."),
        ProgramMistake(
            "its own", lambda xs: xs, "every rank returns what it was given; nothing came from the others."
        ),
        ProgramMistake(
            "one number",
            lambda xs: [sum(x.sum() for x in xs)] * len(xs),
            "all elements are added to one number. The sum goes across the ranks and keeps the positions apart.",
        ),
        ProgramMistake(
            "one sum for each rank",
            lambda xs: [[x.sum() for x in xs]] * len(xs),
            "there is one sum for each rank's array. Add across the ranks: with one row per rank, that is axis 0.",
        ),
        ProgramMistake(
            "neighbours",
            lambda xs: [np.concatenate(xs).reshape(-1, len(xs)).sum(axis=1)] * len(xs),
            "neighbours are added. The gathered array is one rank's whole array after another: reshape(ctx.nranks, "
            "x.size).",
        ),
        ProgramMistake("rank 0's", lambda xs: [xs[0]] * len(xs), "every rank returns rank 0's array alone."),
        ProgramMistake(
            "two ranks only",
            lambda xs: [xs[0] + xs[1]] * len(xs),
            "only ranks 0 and 1 are added. ctx.nranks says how many there are.",
        ),
        ProgramMistake(
            "its own twice",
            lambda xs: [total + x for total, x in zip(semantics.all_reduce(xs), xs, strict=True)],
            "each rank's own array is added twice. It is in the gathered array already.",
        ),
        ProgramMistake(
            "mean",
            lambda xs: [total / len(xs) for total in semantics.all_reduce(xs)],
            "that is the mean. The sum is not divided by the number of ranks.",
        ),
    ),
    reserved={spelled: _NOT_BY_HAND.format(spelled) for name in _REDUCTIONS for spelled in (name, name.lower())},
    required=("Allgather", "allgather"),
    by_calls=(goes_only_into("Allgather", "allgather"),),
)

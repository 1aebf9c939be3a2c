"""The exercises of notebook 03: which rank, and which device, holds which block."""

import numpy as np

from collectlab import semantics
from collectlab.exercises.exercise import Exercise, Mistake
from collectlab.exercises.on_ranks import ProgramExercise, ProgramMistake
from collectlab.layout import Partition, RankMap

_A, _B = np.array([1, 2, 3, 4]), np.array([10, 20, 30, 40])
_SWAPPED = [_B, _A]  # device B is rank 0 now, device A rank 1

gathered_after_swap = Exercise(
    question="A holds [1, 2, 3, 4] and is rank 1, B holds [10, 20, 30, 40] and is rank 0. What does all-gather give?",
    expected=semantics.all_gather(_SWAPPED)[0].tolist(),
    why="contributions lie in rank order, and rank 0 is B now.",
    mistakes=(
        Mistake(
            "order of the names",
            [*_A, *_B],
            "That is the order of the device names. All-gather places contributions by rank, and B is rank 0.",
        ),
        Mistake("the sum", semantics.all_reduce(_SWAPPED)[0], "That is the sum. All-gather adds nothing."),
        Mistake("one contribution", _B, "That is B's contribution alone; each rank gets everyone's."),
        Mistake(
            "elements reversed",
            [*_B[::-1], *_A[::-1]],
            "The contributions change places; the elements inside each keep their order.",
        ),
        Mistake(
            "turned round",
            [*_A[::-1], *_B[::-1]],
            "That turns the whole row round. Only the two contributions change places.",
        ),
        Mistake(
            "interleaved",
            np.stack([_B, _A], 1).ravel(),
            "That interleaves them. Each contribution stays in one piece.",
        ),
        Mistake(
            "nested",
            np.stack([_B, _A]),
            "The order is right, but the result is one array, with nothing between the contributions.",
        ),
    ),
    length_is_asked=True,
)

shard_of_device_a = Exercise(
    question="In the same second mapping, what does reduce-scatter leave with device A?",
    expected=semantics.reduce_scatter(_SWAPPED)[1].tolist(),
    why="A is rank 1 now, and rank 1 owns the second block of the sum.",
    mistakes=(
        Mistake(
            "the first block",
            semantics.reduce_scatter(_SWAPPED)[0],
            "That is the first block, and it goes to rank 0: to B in this mapping.",
        ),
        Mistake(
            "the whole sum",
            semantics.all_reduce(_SWAPPED)[0],
            "That is the whole sum; reduce-scatter leaves one block of it with each rank.",
        ),
        Mistake(
            "A's input", _A[2:], "That is A's own input at those positions. Each value is a sum over both ranks."
        ),
        Mistake("B's input", _B[2:], "Those are B's inputs at those positions. Each value is a sum over both ranks."),
        Mistake(
            "both shards",
            np.stack(semantics.reduce_scatter(_SWAPPED)),
            "Those are both devices' blocks, in rank order. Which of them is A's?",
        ),
        Mistake("A's first half", _A[:2], "Those are A's own inputs, and from the first block."),
        Mistake(
            "reversed block",
            semantics.reduce_scatter(_SWAPPED)[1][::-1],
            "Inside a block the elements keep their order.",
        ),
    ),
    length_is_asked=True,
)

_UNEVEN = Partition.uneven(10, 4)

uneven_counts = Exercise(
    question="10 elements on 4 ranks, as even as can be, the first ranks taking one more: how many has each?",
    expected=list(_UNEVEN.counts),
    why="10 = 4 * 2 + 2: everyone has 2, and the first two ranks take one more.",
    mistakes=(
        Mistake("nobody's elements", [2, 2, 2, 2], "That is 8 elements; two would belong to nobody."),
        Mistake(
            "the rest to the last",
            [2, 2, 2, 4],
            "Here the last rank takes all that is left over; the rule gives one more to each of the first ranks.",
        ),
        Mistake(
            "the rest to rank 0",
            [4, 2, 2, 2],
            "Here rank 0 takes all that is left over; the rule keeps the counts within one of each other.",
        ),
        Mistake("extra to the last", [2, 2, 3, 3], "The extra elements go to the first ranks, not to the last."),
        Mistake(
            "ceil blocks cut short",
            [3, 3, 3, 1],
            "Those are blocks of ceil(10 / 4), the last one cut short. The rule keeps them within one of each other.",
        ),
        Mistake(
            "padded",
            list(Partition.padded(10, 4).counts),
            "That is 12 elements: blocks of 3 with padding, as NCCL's equal blocks need.",
        ),
        Mistake(
            "displacements",
            list(Partition.uneven(10, 4).displacements),
            "Those are displacements: where each block starts. Counts are asked for.",
        ),
    ),
)

_BEFORE = RankMap(["A", "B", "C", "D"])
_ORDER = [2, 0, 1, 3]
_AFTER = _BEFORE.reorder(_ORDER)
_EIGHT = Partition.equal(8, 4)


def _span(rank):
    part = _EIGHT.slice(rank)
    return [part.start, part.stop]


slice_after_reorder = Exercise(
    question=(
        "A, B, C and D were ranks 0 to 3, with 2 of 8 elements each. After reorder([2, 0, 1, 3]) rank r lives where "
        "rank order[r] lived. From where to where does A's slice go now, as [start, stop]?"
    ),
    expected=_span(_AFTER.rank_of("A")),
    why="A is where rank 0 lived, 0 stands at place 1 of the order, so A is rank 1 and owns 2:4.",
    mistakes=(
        Mistake("as before", _span(0), "That is A's slice from before. A is no longer rank 0."),
        Mistake(
            "order read backwards",
            _span(_ORDER[0]),
            "That reads the order backwards: order[0] = 2 says that rank 0 now lives where rank 2 lived.",
        ),
        Mistake("rank 3's", _span(3), "That is rank 3's slice; D keeps it."),
        Mistake("empty slice", [2, 2], "That slice is empty; stop is start plus the count."),
        Mistake("one too short", [2, 3], "stop is the first element that no longer belongs to the slice."),
        Mistake("in blocks", [1, 2], "Those are ranks or blocks. A slice is counted in elements, 2 to a rank."),
        Mistake("the rank", [1], "That is A's rank. Its slice is asked for, as [start, stop]."),
    ),
    is_slice=True,
)


_LENGTHS = {2: 5, 3: 7, 4: 10, 1: 3}  # 4 ranks leave two elements over, so that it shows who takes them


def _blocks(pick):
    """What every rank of a program returns that takes `pick(x, rank, nranks)` of the same x."""
    return lambda xs: [pick(x, rank, len(xs)) for rank, x in enumerate(xs)]


def _slice(x, rank, nranks):
    return Partition.uneven(x.size, nranks).slice(rank)


def _owned(x, rank, nranks):
    return x[_slice(x, rank, nranks)]


def _equal(x, rank, each):
    return x[rank * each : (rank + 1) * each]


def _rest_to_the_last(x, rank, nranks):
    each = x.size // nranks
    return x[rank * each : x.size if rank == nranks - 1 else (rank + 1) * each]


def _rest_to_rank_0(x, rank, nranks):
    each, over = divmod(x.size, nranks)
    return x[over + rank * each if rank else 0 : over + (rank + 1) * each]


slice_of_this_rank = ProgramExercise(
    "Every rank has the same x. Return the block of it that this rank owns under Partition.uneven.",
    inputs=lambda nranks: [np.arange(_LENGTHS[nranks]) * 10] * nranks,
    expected=_blocks(_owned),
    why="ctx.rank picks the slice, and the partition says where it lies, also when it does not come out even.",
    mistakes=(
        ProgramMistake("whole", lambda xs: xs, "every rank returns all of x; a rank owns one block of it."),
        ProgramMistake(
            "always the first",
            _blocks(lambda x, rank, n: _owned(x, 0, n)),
            "every rank returns the block of rank 0. ctx.rank says which rank this is.",
        ),
        ProgramMistake(
            "from the back",
            _blocks(lambda x, rank, n: _owned(x, n - 1 - rank, n)),
            "the blocks are handed out from the back; rank 0 owns the first one.",
        ),
        ProgramMistake(
            "dealt out",
            _blocks(lambda x, rank, n: x[rank::n]),
            "the elements are dealt out one by one; a rank's block is one contiguous piece.",
        ),
        ProgramMistake(
            "the rest is lost",
            _blocks(lambda x, rank, n: _equal(x, rank, x.size // n)),
            "equal blocks of x.size // nranks leave what is over to nobody; the first ranks own one element more.",
        ),
        ProgramMistake(
            "two ranks only",
            _blocks(lambda x, rank, n: _equal(x, rank, (x.size + 1) // 2)),
            "x is cut in two. ctx.nranks says how many ranks there are.",
        ),
        ProgramMistake(
            "ceil blocks cut short",
            _blocks(lambda x, rank, n: _equal(x, rank, -(-x.size // n))),
            "every block has ceil(x.size / nranks) elements until x is used up; uneven counts differ by one at most.",
        ),
        ProgramMistake(
            "the rest to the last",
            _blocks(_rest_to_the_last),
            "what is left over goes to the end; it goes to the first ranks, one element to each.",
        ),
        ProgramMistake(
            "the rest to rank 0",
            _blocks(_rest_to_rank_0),
            "rank 0 takes all that is left over; it goes to the first ranks, one element to each.",
        ),
        ProgramMistake(
            "one too short",
            _blocks(lambda x, rank, n: _owned(x, rank, n)[:-1]),
            "the last element of each block is missing: stop is the first one that no longer belongs to it.",
        ),
        ProgramMistake(
            "stop is a count",
            _blocks(lambda x, rank, n: x[_slice(x, rank, n).start : Partition.uneven(x.size, n).counts[rank]]),
            "the blocks end at their count; stop is start plus the count.",
        ),
        ProgramMistake(
            "start and stop",
            _blocks(lambda x, rank, n: [_slice(x, rank, n).start, _slice(x, rank, n).stop]),
            "every rank returns start and stop of its slice; return x[start:stop].",
        ),
        ProgramMistake(
            "its count",
            _blocks(lambda x, rank, n: Partition.uneven(x.size, n).counts[rank]),
            "every rank returns how many elements it owns; return the elements.",
        ),
        ProgramMistake(
            "all counts",
            _blocks(lambda x, rank, n: list(Partition.uneven(x.size, n).counts)),
            "every rank returns the counts of all ranks; return the elements of its own block.",
        ),
    ),
    reserved={},
    ranks=tuple(_LENGTHS),
)

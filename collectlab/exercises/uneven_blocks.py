"""The exercises of notebook 10: blocks of unequal length, empty ones, and padding."""

import numpy as np

from collectlab import semantics
from collectlab.exercises import reading
from collectlab.exercises.exercise import Exercise, Mistake
from collectlab.exercises.on_ranks import CallMistake, ProgramExercise, ProgramMistake, goes_only_into
from collectlab.layout import Partition
from collectlab.sharding.collectives import identity

_UNEVEN, _PADDED = Partition.uneven(10, 4), Partition.padded(10, 4)


def _in_bytes(elements):
    """Whether an answer is these numbers in bytes, of four or of eight to the element."""
    return lambda value: any(reading.same(value, size * np.array(elements)) for size in (4, 8))


displacements = Exercise(
    "10 elements on 4 ranks, with the counts 3, 3, 2 and 2. Where does each rank's block start? Write four numbers.",
    expected=list(_UNEVEN.displacements),
    of="elements",
    why="each block starts where the one before it ends: the sum of the counts before it.",
    mistakes=(
        Mistake("the counts", list(_UNEVEN.counts), "Those are the counts. Where a block starts is asked for."),
        Mistake("ends", [3, 6, 8, 10], "That is where each block ends, which is where the next one starts."),
        Mistake(
            "rank times count", [0, 3, 4, 6], "Rank times its own count forgets that blocks before it may be longer."
        ),
        Mistake("equal blocks", [0, 3, 6, 9], "That is for blocks of 3 each. Ranks 2 and 3 have 2."),
        Mistake("short blocks", [0, 2, 4, 6], "That is for blocks of 2 each. Ranks 0 and 1 have 3."),
        Mistake("counted from 1", [1, 4, 7, 9], "Elements are counted from 0."),
        Mistake(
            "bytes",
            _in_bytes(_UNEVEN.displacements),
            "MPI counts displacements in elements of the datatype, not in bytes.",
        ),
        Mistake(
            "not added up",
            [0, *_UNEVEN.counts[:3]],
            "Each of those is the count of one block. Before rank 2 lie two.",
        ),
    ),
)

padded_call = Exercise(
    "The same 10 elements on 4 ranks for NCCL, which has equal blocks only. What is recvcount in ReduceScatter, how "
    "many elements does the send buffer hold, how many of them are padding, and how many elements of data has rank "
    "3?",
    expected=[_PADDED.counts[0], _PADDED.total, _PADDED.padding, _PADDED.data_counts[3]],
    why="ceil(10 / 4) = 3, four blocks of 3 are 12, two of them are padding, and both lie in rank 3's block.",
    mistakes=(
        Mistake("cut off", [2, 8, 0, 2], "Blocks of 2 have room for 8. Elements 8 and 9 would be reduced nowhere."),
        Mistake(
            "uneven blocks",
            [3, 10, 0, 2],
            "Those are MPI's uneven blocks. NCCL's buffer holds 4 * recvcount elements.",
        ),
        Mistake(
            "recvcount of the whole",
            [12, 12, 2, 1],
            "recvcount is the block that one rank receives, not all of them.",
        ),
        Mistake(
            "data only",
            [3, 10, 2, 1],
            "The call reads 4 * recvcount elements, padding included: that many must be there.",
        ),
        Mistake(
            "rank 3 is full", [3, 12, 2, 3], "Rank 3's block has 3 elements, and the padding lies at the end: in it."
        ),
        Mistake(
            "padding shared",
            [3, 12, 2, 2],
            "The padding is not shared among ranks: it lies at the end, in the last block.",
        ),
        Mistake(
            "rank 3 is empty", [3, 12, 2, 0], "Rank 3's block begins at element 9. Is that one of the ten?"
        ),
        Mistake("next power of two", [4, 16, 6, 0], "Blocks of 3 are enough. Nothing asks for a power of two here."),
        Mistake("in bytes", _in_bytes([3, 12, 2, 1]), "Counts are in elements, not in bytes."),
    ),
)

fill_values = Exercise(
    "The elements are int8, from -128 to 127. With what is the padding filled for sum, prod, min and max, so that it "
    "changes no result?",
    expected=[int(identity(op, "int8")) for op in ("sum", "prod", "min", "max")],
    why="x + 0, x * 1, min(x, 127) and max(x, -128) are x: each is the identity of its operation.",
    mistakes=(
        Mistake("always 0", [0, 0, 0, 0], "0 is for the sum. A product with 0 is 0, and a minimum with 0 at most 0."),
        Mistake("min and max exchanged", [0, 1, -128, 127], "The minimum with -128 is -128, whatever x is."),
        Mistake("sum and prod exchanged", [1, 0, 127, -128], "x + 1 is not x, and x * 0 is 0: the other way round."),
        Mistake("0 for prod", lambda fills: fills.shape == (4,) and fills[1] == 0, "A product with 0 is 0."),
        Mistake(
            "not 0 for sum",
            lambda fills: fills.shape == (4,) and fills[0] != 0,
            "The sum of x and what is filled in has to be x.",
        ),
        Mistake("0 for max", [0, 1, 127, 0], "The largest of -3 and 0 is 0, which nobody had."),
        Mistake("0 for min", [0, 1, 0, -128], "The smallest of 3 and 0 is 0, which nobody had."),
        Mistake(
            "0 for both", [0, 1, 0, 0], "Among negative numbers 0 is the largest, among positive ones the smallest."
        ),
        Mistake("1 for all but sum", [0, 1, 1, 1], "The smallest of 3 and 1 is 1, which nobody had."),
        Mistake("symmetric", [0, 1, 127, -127], "max(-128, -127) is -127: the smallest int8 is one less."),
        Mistake(
            "alike for min and max",
            lambda fills: fills.shape == (4,) and fills[2] == fills[3],
            "No one number serves both: what no minimum notices wins every maximum.",
        ),
        Mistake(
            "128",
            lambda fills: fills.shape == (4,) and (127 < fills[2] < 256 or -256 < fills[3] < -128),
            "An int8 goes from -128 to 127. What lies beyond would wrap round: 128 to -128.",
        ),
    ),
)

element_8 = Exercise(
    "Each of 4 ranks fills its own block, of 3, 3, 2 and 2 elements, up to 3, and all-gathers 3 elements. At which "
    "positions of the 12 do elements 8 and 9 of the vector lie?",
    expected=[3 * 3 + at - _UNEVEN.displacements[3] for at in (8, 9)],
    why="rank 3's block starts at 9, and elements 8 and 9 are its first two. There is a hole at 8, and one at 11.",
    mistakes=(
        Mistake(
            "as in the vector",
            [8, 9],
            "Position 8 is the filling of rank 2's block: elements behind it are moved up.",
        ),
        Mistake(
            "at the end",
            [10, 11],
            "Each rank fills the end of its own block, so rank 3's data comes first in its block.",
        ),
        Mistake(
            "of two fillings",
            [9, 11],
            "Both lie in rank 3's block, one behind the other, and its filling behind them.",
        ),
        Mistake("one off", [8, 10], "Where does rank 3's block start, when three blocks of 3 are before it?"),
        Mistake("counted from 1", [10, 12], "Positions are counted from 0."),
        Mistake(
            "the fillings", [8, 11], "Those are the two positions that are filled, not those of the two elements."
        ),
        Mistake("cut off", [6, 7], "That is for blocks of 2. Every rank contributes 3."),
    ),
)


def _vectors(nranks):
    """One vector per rank that the ranks do not divide, every rank with two digits of its own.

    It ends with 0, so what is 0 in a block need not be padding; on 3 ranks it does not, as the last element is none.
    """
    count = {1: 5, 2: 5, 3: 8, 4: 5}[nranks]  # of 5 on 4 ranks, the last two lack data
    return [np.append(np.arange(11, 10 + count), 31 * (nranks == 3)) * 100**rank for rank in range(nranks)]


def _cut(xs):
    """The Partition that pads vectors like these."""
    return Partition.padded(xs[0].size, len(xs))


def _right(xs):
    return semantics.reduce_scatter_v(xs, _cut(xs).data_counts)


def _padded(value, in_front=False):
    """What a program returns that pads with `value` and cuts nothing off."""

    def wrong(xs):
        padding = np.full(_cut(xs).padding, value * len(xs), xs[0].dtype)
        total = np.concatenate([padding, sum(xs)] if in_front else [sum(xs), padding])
        return [total[_cut(xs).slice(rank)] for rank in range(len(xs))]

    return wrong


def _below_0(xs):
    """The last rank's block of a padded sum, up to a stop that is right unless it is below 0."""
    return _padded(0)(xs)[-1][: xs[0].size - (len(xs) - 1) * _cut(xs).counts[0]]


def _rounded_down(xs):
    block = xs[0].size // len(xs)
    return [sum(xs)[rank * block : (rank + 1) * block] for rank in range(len(xs))]


def _sends_other_padding(calls, xs):
    """Whether what is sent behind the data is another value than 0."""
    sent = [call.sent for of_rank in calls for call in of_rank if call.name == "Reduce_scatter_block"]
    return any(array is not None and array[xs[0].size :].any() for array in sent)


equal_blocks = ProgramExercise(
    "Reduce-scatter (sum) a vector of any length with MPI's call for equal blocks.",
    inputs=_vectors,
    expected=_right,
    ranks=(2, 3, 4, 1),
    reserved={
        "Reduce_scatter": "Reduce_scatter takes unequal blocks, as NCCL cannot. Use Reduce_scatter_block and "
        "padding.",
        "Allreduce": "Allreduce gives every rank everything. Use Reduce_scatter_block and padding.",
        "allreduce": "allreduce gives every rank everything. Use Reduce_scatter_block and padding.",
        "reduce": "reduce gives one rank everything. Use Reduce_scatter_block and padding.",
        "Reduce": "Reduce gives one rank everything. Use Reduce_scatter_block and padding.",
        "collectlab.sharding.collectives": "cl.sharding.collectives pads and cuts for you. Here you do that, around "
        "Reduce_scatter_block.",
        "allgather": "to gather everything and add is not needed. Use Reduce_scatter_block and padding.",
    },
    required=("Reduce_scatter_block",),
    by_calls=(
        CallMistake(
            "padding that is no identity",
            _sends_other_padding,
            "what is sent as padding is not 0. Whoever looks at the whole buffer, or at a block before it is cut, "
            "finds numbers that nobody had. Fill it with the identity of the sum.",
        ),
        goes_only_into("Reduce_scatter_block"),
    ),
    why="the blocks are equal, the padding is explicit, and it has gone before anybody sees the result.",
    mistakes=(
        ProgramMistake(
            "padding returned",
            _padded(0),
            "the padding is returned too. The last ranks' data ends before their block: "
            "partition.data_counts[ctx.rank] says where.",
        ),
        ProgramMistake(
            "padded with ones",
            _padded(1),
            "the padding is returned too, and it is not even the identity of the sum: it has become a number.",
        ),
        ProgramMistake(
            "cut on every rank",
            lambda xs: [block[: -_cut(xs).padding] for block in _padded(0)(xs)],
            "every rank takes the length of the whole padding off its block. The padding lies at the end of the "
            "vector: `data_counts` says what each rank has.",
        ),
        ProgramMistake(
            "kept by all but the last",
            lambda xs: [*_padded(0)(xs)[:-1], sum(xs)[:0]],
            "only the last rank takes padding off. There may be more of it than its block is long: `data_counts` "
            "says what each rank has.",
        ),
        ProgramMistake(
            "kept by all but the last, and a stop below 0",
            lambda xs: [*_padded(0)(xs)[:-1], _below_0(xs)],
            "only the last rank takes padding off. There may be more of it than its block is long, and a stop below "
            "0 counts from the end.",
        ),
        ProgramMistake(
            "a stop below 0",
            lambda xs: [*_right(xs)[:-1], _below_0(xs)],
            "the last rank, which has no data, returns padding: a stop below 0 counts from the end. Stop at 0.",
        ),
        ProgramMistake(
            "mean", lambda xs: [part / len(xs) for part in _right(xs)], "the mean was taken. The sum is asked for."
        ),
        ProgramMistake(
            "cut off",
            _rounded_down,
            "elements at the end were dropped: x.size // ctx.nranks rounds down. Round the block up, and pad.",
        ),
        ProgramMistake(
            "padded in front",
            _padded(0, in_front=True),
            "the padding lies in front, so every element has moved. It belongs behind the data.",
        ),
        ProgramMistake(
            "nothing reduced",
            lambda xs: [x[_cut(xs).slice(rank)] for rank, x in enumerate(xs)],
            "every rank returns its block of its own vector: nobody's is added.",
        ),
        ProgramMistake(
            "MPI's uneven blocks",
            lambda xs: semantics.reduce_scatter_v(xs, Partition.uneven(xs[0].size, len(xs))),
            "the blocks are those of Partition.uneven. With padding all but the last are equally long: "
            "Partition.padded.",
        ),
        ProgramMistake("block 0", lambda xs: _padded(0)(xs)[:1] * len(xs), "every rank returns block 0."),
        ProgramMistake(
            "last element lost",
            lambda xs: [part[:-1] for part in _right(xs)],
            "the last element of each block is missing.",
        ),
    ),
)

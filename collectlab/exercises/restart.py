"""The exercises of notebook 12: checkpoints in shards, and other ranks that go on from them."""

import numpy as np

from collectlab.exercises.exercise import Exercise, Mistake, lacks, takes
from collectlab.exercises.on_ranks import ProgramExercise, ProgramMistake
from collectlab.layout import Partition
from collectlab.sharding import checkpoint

_OLD, _NEW = Partition.uneven(12, 4), Partition.uneven(12, 3)
_PIECES = [
    number
    for rank in range(4)
    for there, _ in checkpoint.pieces([[_OLD.slice(rank).start, 3]], [_NEW.slice(1)])
    for number in (rank, there.start, there.stop)
]

pieces_of_rank_1 = Exercise(
    "12 elements were saved by 4 ranks and are loaded by 3. From which old shards does new rank 1 read, and from "
    "where to where in each? Write, for one shard after the other: old rank, start, stop, counted within that shard.",
    expected=_PIECES,
    length_is_asked=True,
    are_joined=True,
    why="new rank 1 owns elements 4:8. Old rank 1 has 3:6, of which it takes 1:3, old rank 2 has 6:9, of which 0:2.",
    mistakes=(
        Mistake(
            "places in the vector",
            [1, 4, 6, 2, 6, 8],
            "Those places are right, in the vector. Count within each shard.",
        ),
        Mistake("its old shard", [1, 0, 3], "That is the old shard of rank 1. New rank 1 owns elements 4:8."),
        Mistake(
            "whole shards", [1, 0, 3, 2, 0, 3], "These shards are right, and less than the whole of them is needed."
        ),
        Mistake(
            "from the start of both",
            [1, 0, 2, 2, 0, 2],
            "Old rank 1's shard starts at element 3. Element 4 is its second.",
        ),
        Mistake(
            "shard 1 and one more",
            [1, 0, 3, 2, 0, 1],
            "The count is right, the slice is not: it starts at element 4, not 3.",
        ),
        Mistake("only the first", [1, 1, 3], "That is elements 4:6. New rank 1 owns four."),
        Mistake(
            "start and count",
            [1, 1, 2, 2, 0, 2],
            "Those are starts and counts, as the manifest has them. Starts and stops are asked for.",
        ),
        Mistake("its slice", [4, 8], "That is what new rank 1 owns, in the vector. In which old shards does it lie?"),
        Mistake("the other one first", [2, 0, 2, 1, 1, 3], "Write them in the order of the elements: shard 1 first."),
        Mistake("counted from 1", [1, 2, 4, 2, 1, 3], "Elements are counted from 0, within a shard as well."),
        Mistake("last included", [1, 1, 2, 2, 0, 1], "A stop is the first element that does not belong to it."),
        Mistake("new rank 0", [0, 0, 3, 1, 0, 1], "That is what new rank 0 reads. Rank 1 is asked for."),
        Mistake("new rank 2", [2, 2, 3, 3, 0, 3], "That is what new rank 2 reads. Rank 1 is asked for."),
    ),
)

_STEPS = ("manifest", "name", "shards", "manifest to disk", "shards to disk")  # as the notebook numbers them, from 1


def _order(*steps):
    return [_STEPS.index(step) + 1 for step in steps]


def _comes_before(order, early, late):
    """Whether an order, which has each of the five steps once, has `early` before `late`."""
    order = order.ravel().tolist()
    return sorted(order) == [1, 2, 3, 4, 5] and order.index(_order(early)[0]) < order.index(_order(late)[0])


order_of_writing = Exercise(
    "In which order are the five steps done, so that a folder that has its name is complete whenever the power "
    "fails?",
    expected=_order("shards", "shards to disk", "manifest", "manifest to disk", "name"),
    why="a name is given to what is on the disk already, and the manifest speaks of shards that are there.",
    mistakes=(
        Mistake(
            "as they are listed",
            [1, 2, 3, 4, 5],
            "Those are the steps as they are listed. Which comes first in time?",
        ),
        Mistake(
            "name first",
            _order("name", "shards", "shards to disk", "manifest", "manifest to disk"),
            "Then a folder has its name while it is empty.",
        ),
        Mistake(
            "name before the manifest",
            _order("shards", "shards to disk", "name", "manifest", "manifest to disk"),
            "Then a folder has its name before it has a manifest.",
        ),
        Mistake(
            "name before the disk",
            _order("shards", "manifest", "name", "shards to disk", "manifest to disk"),
            "Then the name may reach the disk before the files do.",
        ),
        Mistake(
            "name before the last",
            _order("shards", "shards to disk", "manifest", "name", "manifest to disk"),
            "Then the name may reach the disk before the manifest does.",
        ),
        Mistake(
            "manifest first",
            _order("manifest", "manifest to disk", "shards", "shards to disk", "name"),
            "The manifest has the checksums of the shards, so it comes after them.",
        ),
        Mistake(
            "manifest before the shards' disk",
            _order("shards", "manifest", "shards to disk", "manifest to disk", "name"),
            "Rank 0 hears of a shard when the disk has it, and writes the manifest after that.",
        ),
        Mistake(
            "to disk before writing",
            _order("shards to disk", "shards", "manifest to disk", "manifest", "name"),
            "What is not written yet cannot be brought to the disk.",
        ),
        Mistake("counted from 0", [2, 4, 0, 3, 1], "The steps are numbered from 1."),
        Mistake(
            "a step twice",
            lambda order: order.shape == (5,) and set(order.tolist()) < {1, 2, 3, 4, 5},
            "Each of the five steps is done once.",
        ),
        Mistake(
            "to disk before writing",
            lambda order: (
                _comes_before(order, "shards to disk", "shards")
                or _comes_before(order, "manifest to disk", "manifest")
            ),
            "What is not written yet cannot be brought to the disk.",
        ),
        Mistake(
            "name before the last",
            lambda order: _comes_before(order, "name", "manifest to disk"),
            "Then the name may reach the disk before the manifest does.",
        ),
        Mistake(
            "manifest before the shards' disk",
            lambda order: _comes_before(order, "manifest", "shards to disk"),
            "Rank 0 hears of a shard when the disk has it, and writes the manifest after that.",
        ),
    ),
)

what_finds_it = Exercise(
    "Which of these checks find that new rank 0 holds the optimizer state of another slice?",
    expected=frozenset("ef"),
    options={
        "a": "each rank's count of elements",
        "b": "the counts of all ranks together",
        "c": "the dtype and the names of the tensors",
        "d": "the checksums of the shards that were read",
        "e": "a tensor that names the origin of its elements, sent the same way",
        "f": "the loss curve beside that of a run without a restart",
        "g": "the loss of the first step after the restart",
    },
    why="all that is counted is right, and every shard is intact. Only its place is wrong, and e says it at once.",
    mistakes=(
        takes("a", "Slices of equal length have equal counts, right or wrong.", "find it"),
        takes("b", "Exchanged slices add up to the same total.", "find it"),
        takes("c", "The right tensor's wrong slice has its name and its dtype.", "find it"),
        takes("d", "The shards were read as they were written. What is wrong is where they went.", "find it"),
        lacks("e", "what would have to be in a tensor, for its place to show?", "There is another one that does"),
        lacks("f", "what shows in the end, if there is something to compare with?", "There is another one that does"),
        takes("g", "It is computed from the parameters, which are right, before the state is first used.", "find it"),
    ),
)


def _shards(nranks):
    """The shards of four ranks, one a row; every rank of the new ones has them all."""
    return [np.arange(28).reshape(4, 7) + 10] * nranks


def _cut(vector, nranks):
    return [vector[Partition.uneven(vector.size, nranks).slice(rank)] for rank in range(nranks)]


def _blocks(xs, size):
    return [xs[0].ravel()[rank * size : (rank + 1) * size] for rank in range(len(xs))]


def _dealt(xs):
    return [xs[0][rank :: len(xs)].ravel() for rank in range(len(xs))]


own_shard = ProgramExercise(
    "x has the shards of four ranks, one a row. Return the shard of this rank, of ctx.nranks, in the cut of "
    "Partition.uneven.",
    inputs=_shards,
    expected=lambda xs: _cut(xs[0].ravel(), len(xs)),
    ranks=(2, 3, 4, 5, 1),
    reserved={},
    why="the shards make one vector again, and each rank has its slice of that.",
    mistakes=(
        ProgramMistake(
            "dealt",
            _dealt,
            "whole shards were dealt to the new ranks in turn. The counts may be right; the slices are not "
            "contiguous.",
        ),
        ProgramMistake(
            "its old shard",
            lambda xs: [xs[0][min(rank, 3)] for rank in range(len(xs))],
            "each rank returns the old shard of its number. With other ranks, other slices.",
        ),
        ProgramMistake(
            "every so many elements",
            lambda xs: [xs[0].ravel()[rank :: len(xs)] for rank in range(len(xs))],
            "each rank takes every ctx.nranks-th element. A shard is one slice.",
        ),
        ProgramMistake(
            "columns",
            lambda xs: _cut(xs[0].T.ravel(), len(xs)),
            "the vector was read by columns: the first element of each shard, then the second.",
        ),
        ProgramMistake(
            "cut off",
            lambda xs: _blocks(xs, xs[0].size // len(xs)),
            "blocks of x.size // ctx.nranks leave the end to nobody.",
        ),
        ProgramMistake(
            "rounded up",
            lambda xs: _blocks(xs, -(-xs[0].size // len(xs))),
            "the blocks are rounded up, as for padding, and the last rank has less than its share. Partition.uneven "
            "gives no rank more than one element more than another.",
        ),
        ProgramMistake(
            "backwards",
            lambda xs: _cut(xs[0].ravel(), len(xs))[::-1],
            "the slices are dealt from the end: rank 0 has the last one.",
        ),
        ProgramMistake(
            "rows counted",
            lambda xs: _cut(xs[0].ravel()[:4], len(xs)),
            "only the first four elements were given out: len(x) is the number of rows, x.size that of the elements.",
        ),
        ProgramMistake(
            "each shard cut",
            lambda xs: [np.concatenate([_cut(row, len(xs))[rank] for row in xs[0]]) for rank in range(len(xs))],
            "every old shard was cut for the new ranks. It is the whole vector that is cut.",
        ),
        ProgramMistake("everything", lambda xs: [xs[0].ravel() for _ in xs], "every rank returns all of it."),
        ProgramMistake(
            "rows shared out",
            lambda xs: [x.ravel() for x in np.array_split(xs[0], len(xs))],
            "whole rows were given out. Where four rows cannot be shared evenly, a slice begins or ends within one.",
        ),
    ),
)

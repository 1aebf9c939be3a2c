"""Exercises of notebook 14: which collective the next computation needs.

Ten cases on two ranks. A case says in arrays what each rank has and what its next computation reads; the right answer
is the call that hands over exactly that, found with `semantics`, not typed in.
"""

from dataclasses import dataclass

import numpy as np

from collectlab import semantics
from collectlab.exercises import reading
from collectlab.exercises.exercise import Exercise, Mistake, lacks, takes

BOTH = "reduce_scatter then all_gather"
NONE = "none"
SINGLE = (
    "all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast", "gather", "scatter", "all_to_all", NONE,
)  # fmt: skip
OPTIONS = (*SINGLE, BOTH)

A, B = np.array([1, 2, 3, 4]), np.array([10, 20, 30, 40])


@dataclass(frozen=True)
class Stage:
    """What each rank has, and what it reads next: one array per rank, None where a rank reads nothing."""

    has: list
    reads: list


def supplied(option, xs):
    """What a call leaves with each rank: a list of arrays; None where that rank gets nothing.

    ValueError where the arrays cannot be cut into one block for each rank.
    """
    if option == NONE:
        return xs
    if option == BOTH:
        return semantics.all_gather(semantics.reduce_scatter(xs))
    return getattr(semantics, option)(xs)


def _same(got, read):
    return got is read if got is None or read is None else reading.same(got, read)


def fits(option, stage):
    """Whether a call leaves every rank with exactly what it reads next."""
    try:
        return all(map(_same, supplied(option, stage.has), stage.reads))
    except ValueError:
        return False


def right(stages):
    """The option that supplies the stages, each with a call of its own; exactly one does."""
    names = [[option for option in SINGLE if fits(option, stage)] for stage in stages]
    if any(len(fitting) != 1 for fitting in names):
        raise ValueError(f"a stage is to have one call that fits it: {names}")
    return " then ".join(name for (name,) in names)


def _consequence(option, stages):
    """What a wrong answer leaves with the first rank that lacks something, as a sentence; "" where none does."""
    if len(stages) > 1:
        return ""
    try:
        supply = supplied(option, stages[0].has)
    except ValueError:
        return ""
    for rank, (held, read) in enumerate(zip(supply, stages[0].reads, strict=True)):
        if not _same(held, read):
            have = " and ".join(map(_spelled, stages[0].has))
            got = _spelled(held)
            return f" If the ranks have {have}, rank {rank} ends with {got}, but reads {_spelled(read)} next."
    return ""


def _spelled(array):
    return "nothing" if array is None else str(array.tolist())


STAGES = {}  # the name of a case -> its stages


def _case(name, question, stages, why, **said):
    """The exercise of a case; `said` has a sentence for each wrong answer, BOTH being called `both` there."""
    STAGES[name] = stages
    expected = right(stages)
    said = {BOTH if option == "both" else option: text for option, text in said.items()}
    if said.keys() != set(OPTIONS) - {expected}:
        raise ValueError(f"case {name}: a sentence is needed for {set(OPTIONS) - {expected} ^ said.keys()}")
    mistakes = [Mistake(option, option, text + _consequence(option, stages)) for option, text in said.items()]
    return Exercise(question, expected, why, tuple(mistakes), options=OPTIONS, of="the names in the table")


_SUMS = semantics.all_reduce([A, B])
_JOINED = semantics.all_gather([A, B])
_SHARDS = semantics.reduce_scatter([A, B])
_NEW = [100 - shard for shard in _SHARDS]  # the weights of each owner, changed by its shard of the sum
_NORMS = [np.array([int((shard**2).sum())]) for shard in _SHARDS]
_LOSSES = [np.array([7]), np.array([5])]
_WEIGHTS = [np.array([5, 6, 7, 8]), np.array([3, 1, 4, 1])]

replicated_update = _case(
    "replicated_update",
    "Each rank has the gradient of its own samples, and a full copy of the weights. Next, every rank changes "
    "all of its weights by the summed gradient.",
    [Stage([A, B], _SUMS)],
    "every rank reads the sum at every position, and nothing else.",
    all_gather="Both gradients arrive unadded, and twice as long: each rank would still have to add.",
    reduce_scatter="Each rank would get half of the sum, and it changes all of its weights.",
    reduce="Only rank 0 would get the sum. The other copy of the weights would stay as it was.",
    broadcast="Rank 0's gradient would be taken for everyone's; rank 1's samples would count for nothing.",
    gather="Rank 0 would get both gradients, unadded, and rank 1 none.",
    scatter="A scatter cuts rank 0's array up. Nothing is added.",
    all_to_all="An exchange of blocks adds nothing: each rank would hold blocks of both gradients, side by side.",
    none="Each copy would be changed by its own gradient only, and the copies would drift apart.",
    both="That hands over the same sum, in two calls. Nobody does anything with a shard between them, so one call "
    "says what is needed.",
)

compare_contributions = _case(
    "compare_contributions",
    "Each rank has measured four values. Next, every rank takes the median over the ranks at each position, to find "
    "outliers.",
    [Stage([A, B], _JOINED)],
    "a median needs the separate contributions, and every rank takes it.",
    all_reduce="In a sum the contributions can no longer be told apart, and no median can be taken from it.",
    reduce_scatter="Those are sums, and half of them: the contributions are gone.",
    reduce="A sum on rank 0 holds no contribution, and rank 1 holds nothing at all.",
    broadcast="Rank 0's values would be everywhere, rank 1's nowhere.",
    gather="The contributions come together on rank 0 only. Every rank takes the median here.",
    scatter="That deals rank 0's values out. Rank 1's reach nobody.",
    all_to_all="Each rank would get every contribution, but only one block of each: half of the positions. That "
    "would do if each rank took the median of its own block only.",
    none="From its own values alone a rank cannot tell which of them is the outlier.",
    both="The first of the two adds, and what is added cannot be taken apart by a gather.",
)

owned_block = _case(
    "owned_block",
    "Each rank has the gradient of its own samples. Rank 0 owns weights 0 and 1, rank 1 owns weights 2 and 3. "
    "Next, each rank changes the weights that it owns by the summed gradient.",
    [Stage([A, B], _SHARDS)],
    "each rank reads the sum at the positions that it owns; the rest of the sum would lie there unused.",
    all_reduce="That supplies it, and as much again that this rank does not read. To keep the distributed "
    "result may be the very point.",
    all_gather="Nothing is added there, and the update reads sums.",
    reduce="The whole sum would lie on rank 0, which owns half of the weights. The other owner would have none.",
    broadcast="That passes on rank 0's gradient, unadded.",
    gather="The gradients would lie on rank 0, unadded; rank 1 would have nothing to change its weights by.",
    scatter="The blocks are the right ones, cut from the wrong array: from rank 0's gradient, not from the sum.",
    all_to_all="Each owner would get its block of every gradient. It would still have to add them.",
    none="An owner's weights would be changed by its own samples only.",
    both="The first call supplies it. What the second one adds, nobody reads here.",
)

next_forward_pass = _case(
    "next_forward_pass",
    "Each rank has changed the two weights that it owns. Next comes a forward pass, in which every rank reads "
    "all four weights.",
    [Stage(_NEW, semantics.all_gather(_NEW))],
    "the shards are finished; they only have to stand side by side, in rank order, on every rank.",
    all_reduce="That adds weight 0 to weight 2. The two shards are different weights, finished ones.",
    reduce_scatter="That adds the shards, and cuts up what came out. They are finished, and have to be joined.",
    reduce="That adds the two shards, which are different weights, and leaves the result on rank 0 only.",
    broadcast="Everyone would hold rank 0's two weights, and nobody both shards.",
    gather="All four would lie on rank 0. Rank 1 has a forward pass too.",
    scatter="That would cut rank 0's shard up further.",
    all_to_all="Each rank would get one weight of each shard: still two of four.",
    none="Two of four weights are there; a layer that reads all of them cannot go on.",
    both="The reduction came before the update. Reducing again would add weights that have nothing to do with each "
    "other.",
)

sharded_step = _case(
    "sharded_step",
    "The whole of it: each rank has the gradient of its own samples. An owner changes its two weights by the summed "
    "gradient. Then every rank reads all four weights. Which calls, from the gradients to the forward pass?",
    [Stage([A, B], _SHARDS), Stage(_NEW, semantics.all_gather(_NEW))],
    "two consumers, two calls: the owner reads its block of the sum, and later everyone reads all new weights. "
    "The work on the shards lies between, which is what the two halves of an all-reduce are taken apart for.",
    all_reduce="That would hand every rank the whole sum, and the owner of a block needs its block. After the "
    "update, the new weights would still have to reach the others.",
    all_gather="That supplies the last reader. But the owner reads a sum before, which nobody has made.",
    reduce_scatter="That supplies the owner. The new weights lie with their owners then, and everyone reads all "
    "of them.",
    reduce="Rank 0 would hold the sum, and rank 1, which owns two weights, nothing to change them by.",
    broadcast="One rank's array everywhere is neither the sum nor the new weights.",
    gather="Everything on rank 0, unadded, serves neither the owners nor the readers.",
    scatter="Scatter deals out one rank's array: no sum, and no weights for everyone.",
    all_to_all="An owner could add the blocks that it gets, and change its weights. The others would not see them.",
    none="Two ranks that talk to nobody make two models of four weights, each trained on half of the samples.",
)

line_in_the_log = _case(
    "line_in_the_log",
    "Each rank has the loss of its own samples, one number. Next, rank 0 writes the summed loss into a log. The "
    "other ranks go on.",
    [Stage(_LOSSES, [_LOSSES[0] + _LOSSES[1], None])],
    "one rank reads one sum. The others need not even wait for it.",
    all_reduce="That supplies it, and hands the sum to ranks that do not read it.",
    all_gather="Every rank would hold both losses, unadded, and one of them writes the log.",
    reduce_scatter="One number cannot be cut into a block for each of two ranks.",
    broadcast="Rank 0 would pass its own loss on. It is rank 1's that is missing on rank 0.",
    gather="Both losses would lie on rank 0, which would still have to add them.",
    scatter="Scatter hands out; here something has to come in.",
    all_to_all="One number cannot be cut into a block for each rank, and nothing is added in an exchange.",
    none="Rank 0 would log the loss of its own samples, and call it everyone's.",
    both="Its first half cannot cut one number for two ranks, and rank 0 alone reads the sum.",
)

clip_by_norm = _case(
    "clip_by_norm",
    "After a reduce-scatter, each rank has its shard of the summed gradient. The sum of squares of the whole "
    "gradient decides, on every rank, by how much its shard is scaled down. Each rank has the sum of squares of "
    "its own shard.",
    [Stage(_NORMS, semantics.all_reduce(_NORMS))],
    "every rank reads one number that all have contributed to. That the gradient is sharded changes nothing "
    "about it: one element a rank is reduced.",
    all_gather="Every rank would hold both numbers, and would still have to add them. Of two numbers that is little; "
    "it is not what was asked for.",
    reduce_scatter="One number has no block for each rank, and every rank reads the whole of it.",
    reduce="Rank 0 alone would know by how much to scale.",
    broadcast="Rank 0's share would be taken for the whole.",
    gather="Rank 0 would hold both numbers, rank 1 neither a sum nor a number to add.",
    scatter="There is nothing to deal out: the number does not exist yet.",
    all_to_all="One number cannot be cut up for an exchange.",
    none="Each rank would scale by its own shard, and the parts of one gradient would be scaled differently.",
    both="The gradient has been reduce-scattered already. The number that is missing is one that every rank "
    "reads, and it cannot be cut.",
)

same_beginning = _case(
    "same_beginning",
    "Rank 0 has read the weights of an earlier run from a file; rank 1 has drawn weights at random. Next, both "
    "train on from the weights of the file.",
    [Stage(_WEIGHTS, semantics.broadcast(_WEIGHTS))],
    "one rank has it, everyone reads it, nothing is computed.",
    all_reduce="That adds the random weights to those of the file. Nothing is to be added.",
    all_gather="Each rank would get both, twice the length. Rank 1's are not wanted.",
    reduce_scatter="That adds, and leaves each rank with half of the positions.",
    reduce="That adds, and the result lies on rank 0, which had what it needs.",
    gather="That collects on rank 0, where the weights of the file are.",
    scatter="Each rank would begin with one block of the weights. Both read all of them.",
    all_to_all="Each rank would get two weights of the file and two random ones.",
    none="Rank 1 would train on from other weights than rank 0, and the copies would never be copies.",
    both="That is a sum, in two calls. Nothing is to be added.",
)

experts = _case(
    "experts",
    "Each rank has four tokens. The first two go to the expert on rank 0, the last two to the expert on rank 1. "
    "Next, each expert reads the tokens of all ranks that are meant for it.",
    [Stage([A, B], semantics.all_to_all([A, B]))],
    "each rank has another block for each peer, and each block has one reader.",
    all_reduce="Tokens are not to be added.",
    all_gather="That supplies them, and with them all tokens of the other expert: twice as many as this one reads.",
    reduce_scatter="The blocks would reach the right expert, but added: the tokens could not be told apart.",
    reduce="Tokens are not to be added; and the expert on rank 1 would get nothing.",
    broadcast="The tokens of rank 1 would reach no expert, and those of rank 0 each of them.",
    gather="All tokens would lie on rank 0, and half of them are for rank 1.",
    scatter="That deals rank 0's tokens out. Rank 1's stay where they are.",
    none="Each expert would read the tokens that happen to lie on its rank, also those of the other.",
    both="The first of the two adds the tokens, and the second hands the sums to everyone.",
)

between_small_batches = _case(
    "between_small_batches",
    "A large batch is taken in four small ones. After the first small batch each rank has a gradient, to which "
    "it adds that of its second small batch. The weights change after the fourth.",
    [Stage([A, B], [A, B])],
    "each rank reads what it has. The sum over the ranks is read after the fourth batch, and one call then will do.",
    all_reduce="The sum is read after the fourth batch. Taken now, it costs three calls more; and if each rank "
    "adds its own gradients to sums of all ranks, some are counted several times.",
    all_gather="Nobody reads the other rank's gradient now.",
    reduce_scatter="Nobody reads a shard now. (Whoever has no room for a whole gradient may decide otherwise: "
    "that is a question of memory, and not asked here.)",
    reduce="Rank 0 does not read a sum now.",
    broadcast="Rank 1 would lose its own gradient, and with it its samples.",
    gather="Rank 0 does not read rank 1's gradient now.",
    scatter="Each rank would lose its own gradient, for half of rank 0's.",
    all_to_all="An exchange would mix the blocks of both gradients, and nobody reads that.",
    both="Nobody reads a sum, whole or in shards, before the fourth batch.",
)

two_proposals = Exercise(
    "Next, each of two ranks divides all four sums by their largest. Proposal X is a reduce-scatter: it returns "
    "8 bytes a rank, and was measured at 10 microseconds. Proposal Y is an all-reduce: 16 bytes a rank, 16 "
    "microseconds. Which statements hold?",
    expected=frozenset("abf"),
    options={
        "a": "X by itself does not supply what is read next",
        "b": "X followed by an all-gather supplies it, and the time of both calls belongs into the comparison",
        "c": "X is the faster way to what is read next",
        "d": "X moves half as many bytes between the ranks as Y",
        "e": "X needs half of Y's memory at the peak",
        "f": "before times are compared, both have to mean the same ranks, positions, operation and reader",
        "g": "an all-gather of the original arrays supplies it too, since it returns the most",
    },
    why="a result is compared with what its reader needs, first of all. 8 and 16 bytes are what is returned; what is "
    "moved, held and waited for are other figures.",
    mistakes=(
        takes("c", "X alone ends somewhere else: two of four sums on each rank. 10 and 16 are times of "
        "different work."),
        takes("d", "8 and 16 bytes are returned. What is moved depends on the algorithm of each call."),
        takes("e", "Both read the same four elements a rank, and a call may have buffers of its own. Nobody "
        "measured it."),
        takes("g", "It returns 32 bytes a rank, and not one sum among them. More is not the same as enough."),
        lacks("a", "what does a rank hold after X?"),
        lacks("b", "X can be completed, at a price."),
        lacks("f", "when is a comparison of two times one of the same work?"),
    ),
)

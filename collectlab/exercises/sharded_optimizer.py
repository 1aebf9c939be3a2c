"""The exercises of notebook 11: a training step that shares its state, and what a rank holds meanwhile."""

import numpy as np

from collectlab.exercises.exercise import Exercise, Mistake, lacks, takes
from collectlab.exercises.on_ranks import CallMistake, ProgramExercise, ProgramMistake, goes_only_into
from collectlab.layout import Partition
from collectlab.sharding import Adam, Network, Task, mixed_precision, plan


def _in_units(right, *units):
    """Whether an answer is these numbers in another unit, rounded or cut to whole ones at most."""
    return lambda value: any(
        np.shape(value) == np.shape(right) and np.all(np.abs(value - np.divide(right, unit)) < 1) for unit in units
    )


what_an_update_needs = Exercise(
    "Which of these hold for Adam, which updates parameter i from gradient i and its own two state values of i?",
    expected=frozenset("bd"),
    options={
        "a": "a rank needs the whole summed gradient to update its slice of the parameters",
        "b": "a rank needs the summed gradient of its own slice only",
        "c": "every rank needs the whole optimizer state",
        "d": "after the update, a rank needs the updated parameters of all slices for its next forward pass",
        "e": "after the update, the gradients have to be gathered again",
        "f": "each rank may update its slice with its own gradient, as the ranks agree in the end",
    },
    why="the update works element by element, and the forward pass reads every parameter.",
    mistakes=(
        takes("a", "Parameter i is updated from gradient i. What lies in other slices is not read."),
        lacks("b", "what of the summed gradient does the update of a slice read?"),
        takes("c", "The state of parameter i is read where parameter i is updated, and nowhere else."),
        lacks("d", "which parameters does the next forward pass read, and who has them?"),
        takes(
            "e", "Gradients are used up by the update. What changed, and what the next step reads, are parameters."
        ),
        takes("f", "Each rank's gradient comes from its own samples. Without the sum the batch is not learned."),
    ),
)


def _gradients(nranks):
    return [np.arange(1, 8) * 10**rank for rank in range(nranks)]


_START = 100_000


def _new(xs):
    return _START - sum(xs)


def _updated(xs, part):
    params = np.full_like(xs[0], _START)
    params[part] = _new(xs)[part]
    return params


def _own_slice_only(xs):
    parts = Partition.uneven(xs[0].size, len(xs))
    return [_updated(xs, parts.slice(rank)) for rank in range(len(xs))]


def _of_owner(xs):
    parts = Partition.uneven(xs[0].size, len(xs))
    return _START - np.concatenate([x[parts.slice(rank)] for rank, x in enumerate(xs)])


def _hands_gradients_round(calls, xs):
    """Whether elements of the summed gradient are gathered, where the updated parameters are to be."""
    gathered = [call.sent for of_rank in calls for call in of_rank if call.name in ("Allgather", "Allgatherv")]
    return any(np.isin(np.abs(sent), sum(xs)).any() for sent in gathered if sent is not None)


sharded_step = ProgramExercise(
    "x is this rank's gradient. Sum it over the ranks, update only this rank's slice of params, and hand the slices "
    "round.",
    inputs=_gradients,
    expected=lambda xs: [_new(xs)] * len(xs),
    ranks=(2, 3, 4, 1),
    reserved={
        "Allreduce": "Allreduce gives every rank the whole gradient. Reduce-scatter it.",
        "allreduce": "allreduce gives every rank the whole gradient. Reduce-scatter it.",
        "allgather": "allgather moves Python objects. Use Allgatherv, into params.",
    },
    required=("Reduce_scatter", "Reduce_scatter_block"),
    by_calls=(
        CallMistake(
            "everything everywhere",
            _hands_gradients_round,
            "the summed gradient was handed round, and every rank has updated all parameters. Each rank updates its "
            "own slice only, and hands that round.",
        ),
        goes_only_into("Reduce_scatter", "Reduce_scatter_block"),
    ),
    why="each rank received one block of the gradient and updated one slice, and all have all parameters.",
    mistakes=(
        ProgramMistake(
            "not gathered",
            _own_slice_only,
            "each rank has updated its own slice, and the others are still old. All-gather them into params.",
        ),
        ProgramMistake(
            "gathered on rank 0",
            lambda xs: [_new(xs), *_own_slice_only(xs)[1:]],
            "only rank 0 has all updated parameters: a gather brings them to one rank, and every rank reads them "
            "next.",
        ),
        ProgramMistake(
            "own gradient",
            lambda xs: [_START - x for x in xs],
            "each rank has updated with its own gradient, so the models differ. Sum the gradients first.",
        ),
        ProgramMistake(
            "owners' gradients",
            lambda xs: [_of_owner(xs)] * len(xs),
            "each slice was updated with its owner's gradient alone: nobody's was added to it.",
        ),
        ProgramMistake(
            "gradients gathered",
            lambda xs: [sum(xs)] * len(xs),
            "that is the summed gradient. The parameters are to be returned, updated with it.",
        ),
        ProgramMistake(
            "added",
            lambda xs: [_START + sum(xs)] * len(xs),
            "the gradient was added. The parameters go against it: params - gradient.",
        ),
        ProgramMistake(
            "mean",
            lambda xs: [_START - sum(xs) / len(xs)] * len(xs),
            "the mean of the gradients was taken. Their sum is asked for.",
        ),
        ProgramMistake(
            "mean, rounded down",
            lambda xs: [_START - sum(xs) // len(xs)] * len(xs),
            "the mean of the gradients was taken, and rounded down. Their sum is asked for.",
        ),
        ProgramMistake(
            "end left out",
            lambda xs: [_updated(xs, slice(xs[0].size // len(xs) * len(xs)))] * len(xs),
            "the last elements were never updated: the blocks are not equally long, see `parts.counts`.",
        ),
        ProgramMistake(
            "nothing updated", lambda xs: [np.full_like(x, _START) for x in xs], "no parameter has changed."
        ),
        ProgramMistake("twice", lambda xs: [_START - 2 * sum(xs)] * len(xs), "the gradient was subtracted twice."),
    ),
)

_TASK = Task(Network(19, 20, 40), Adam(), batch=32, batches=1)  # 1,240 parameters, which 4 divides, in float64
_PLANS = [plan(_TASK, strategy, 4) for strategy in ("replicated", "sharded_optimizer", "sharded_parameters")]
_ARRAYS = {"parameters", *Adam.names}


def _kept(found):
    first = found.phases[0]
    return sum(n for held in (first.retained, first.sharded) for of, n in held.items() if of in _ARRAYS)


_KEPT = [_kept(found) for found in _PLANS]
_ONE = 8 * _TASK.network.parameters

kept_bytes = Exercise(
    "1,240 parameters in float64, Adam, 4 ranks. How many bytes of parameters and optimizer state does a rank keep "
    "from step to step: replicated, with a sharded optimizer, with sharded parameters?",
    expected=_KEPT,
    of="bytes",
    why="three arrays of 9,920 bytes; of two, and then of all three, only a quarter is kept.",
    mistakes=(
        Mistake("elements", [n // 8 for n in _KEPT], "Those are elements. A float64 takes 8 bytes."),
        Mistake("thousands", _in_units(_KEPT, 1000, 1024), "Those are thousands of bytes. Bytes are asked for."),
        Mistake("float32", [n // 2 for n in _KEPT], "A float64 takes 8 bytes, not 4."),
        Mistake("one state", [2 * _ONE, _ONE * 5 // 4, _ONE // 2], "Adam keeps two values for each parameter."),
        Mistake(
            "parameters only",
            [_ONE, _ONE, _ONE // 4],
            "Those are the parameters. Adam's two values for each of them are kept too.",
        ),
        Mistake(
            "state only",
            [2 * _ONE, _ONE // 2, _ONE // 2],
            "That is the state. The parameters themselves are kept too.",
        ),
        Mistake(
            "gradients too",
            [4 * _ONE, _ONE * 7 // 4, _ONE],
            "Gradients are made anew in each step, and are gone when it ends.",
        ),
        Mistake(
            "all in quarters",
            [_KEPT[0], _KEPT[2], _KEPT[2]],
            "With a sharded optimizer the parameters stay whole on every rank.",
        ),
        Mistake(
            "parameters in quarters",
            [_KEPT[0], _ONE * 9 // 4, _KEPT[2]],
            "It is the state that is in shards, not the rest.",
        ),
        Mistake(
            "samples too",
            [found.kept for found in _PLANS],
            "The rank's samples are in that. Parameters and optimizer state are asked for.",
        ),
        Mistake(
            "the peaks",
            [found.peak.held for found in _PLANS],
            "Those are the peaks of a step. What is kept from step to step is asked for.",
        ),
        Mistake(
            "all ranks",
            [4 * n for n in _KEPT],
            "Those are the bytes of all four ranks together. One rank is asked for.",
        ),
    ),
)

_PHASES = tuple(phase.name for phase in _PLANS[2].phases)
_NOT = {
    "forward, hidden layer": "There the hidden layer's parameters are gathered, and no gradient is there yet.",
    "forward, output layer": "There a layer's parameters are gathered, and no gradient is there yet.",
    "reduce-scatter, output layer": "By then the gathered parameters of the output layer have been released.",
    "backward, hidden layer": "There the gradient is that of the smaller layer, and no parameters are gathered for "
    "it.",
    "reduce-scatter, hidden layer": "There the gradient is that of the smaller layer, and no parameters are "
    "gathered.",
    "update": "The update works on shards, and on a scratch that is shorter still.",
}

where_the_peak_is = Exercise(
    "In which phase does a rank with sharded parameters hold most? The output layer has more parameters than the "
    "hidden one.",
    expected=_PLANS[2].peak.name,
    options=_PHASES,
    why="there the gathered parameters of the larger layer, its whole gradient and the activations are there at "
    "once.",
    mistakes=tuple(Mistake(name, name, said) for name, said in _NOT.items()),
)

_MILLIONS = 8
_MIXED = [round(nbytes * _MILLIONS) for nbytes in mixed_precision(4).values()]

mixed_precision_megabytes = Exercise(
    "8 million parameters in mixed precision, Adam, 4 ranks: how many MB (millions of bytes) does a rank keep when "
    "nothing is sharded, the optimizer's 12 bytes a parameter, gradients as well, parameters as well?",
    expected=_MIXED,
    of="MB",
    why="8 times 16, then 4 + 12/4, 2 + 14/4 and 16/4: what is in shards is divided by the ranks.",
    mistakes=(
        Mistake(
            "all in quarters",
            [128, 32, 32, 32],
            "Only what is sharded is divided. Weights and gradients stay whole at first.",
        ),
        Mistake(
            "without the master copy",
            [96, 48, 36, 24],
            "The optimizer's 12 bytes have the float32 master copy in them: 4 + 4 + 4.",
        ),
        Mistake(
            "without gradients",
            [112, 40, 40, 28],
            "Gradients are kept through the update: 2 bytes, whole or in shards.",
        ),
        Mistake("what is saved", [0, 72, 84, 96], "That is what is saved. What a rank keeps is asked for."),
        Mistake(
            "then what is saved",
            [128, 72, 84, 96],
            "After the first, those are what is saved. What a rank keeps is asked for.",
        ),
        Mistake("MiB", _in_units(_MIXED, 1.048576), "Those are MiB, of 1,048,576 bytes. MB are asked for, of 10**6."),
        Mistake(
            "float32 weights as well",
            [160, 88, 60, 40],
            "The weights in float32 are the master copy, which is among the 12 bytes. Those that are multiplied take "
            "2.",
        ),
        Mistake(
            "all in float32",
            [128, 80, 56, 32],
            "That is 4 + 4 + 8 bytes, all in float32: 16 as well, but less of them belong to the optimizer.",
        ),
        Mistake("shards only", [128, 24, 28, 32], "That is the part in shards. What stays whole has to be added."),
        Mistake(
            "of one parameter",
            lambda megabytes: np.array_equal(megabytes, list(mixed_precision(4).values())),
            "Those are the bytes of one parameter. There are 8 million of them.",
        ),
        Mistake("in bytes", [n * 10**6 for n in _MIXED], "Those are bytes. MB are asked for, millions of them."),
        Mistake(
            "for 2 ranks",
            [round(nbytes * _MILLIONS) for nbytes in mixed_precision(2).values()],
            "That is for 2 ranks.",
        ),
        Mistake("all ranks", [4 * n for n in _MIXED], "That is on all four ranks together. One rank is asked for."),
    ),
)

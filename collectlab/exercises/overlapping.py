"""Exercises of notebook 13: collectives that go on while a rank computes."""

import numpy as np

from collectlab import semantics
from collectlab.exercises.exercise import Exercise, Mistake, lacks, takes
from collectlab.exercises.on_kernels import KernelMistake, of_kind
from collectlab.exercises.on_plans import PlanExercise
from collectlab.exercises.on_ranks import ProgramMistake
from collectlab.overlap.plan import COMPUTE, START, Operation, Wait

_A, _B = np.array([2, 4, 6, 8]), np.array([10, 20, 30, 40])
_SUM = semantics.all_reduce([_A, _B])[0]
_SHARDS = semantics.reduce_scatter([_A, _B])

_HAVE, _NEEDED = "have to hold", "One more is needed"

edges = Exercise(
    "A step: R reduce-scatters the gradient into the shard, U halves the shard, G gathers the shard into the "
    "weights, F reads the weights, C clears the gradient. Which orders does the step need?",
    expected=frozenset("abcf"),
    options={
        "a": "U after R is complete",
        "b": "G after U",
        "c": "F after G is complete",
        "d": "G after C",
        "e": "C after U",
        "f": "C after R is complete",
        "g": "C after G is complete",
        "h": "R after F of the same step",
    },
    why="two operations need an order where both use the same memory and one of them writes: R and U, U and G the "
    "shard, G and F the weights, R and C the gradient.",
    mistakes=(
        takes("d", "G reads the shard and writes the weights. The gradient, which C clears, is neither.", _HAVE),
        takes("e", "U uses the shard, C the gradient. What R and U need is an order of their own.", _HAVE),
        takes("g", "C may clear the gradient long before the gather is over: nobody reads it then.", _HAVE),
        takes("h", "F reads the weights of the step that R begins; it comes last.", _HAVE),
        lacks("a", "who writes the shard before it is halved?", _NEEDED),
        lacks("b", "what is it that the gather hands to everyone?", _NEEDED),
        lacks("c", "when are the weights there?", _NEEDED),
        lacks("f", "who still reads the gradient when it is cleared?", _NEEDED),
    ),
)

updated_too_soon = Exercise(
    "Rank 0 has the gradient [2, 4, 6, 8], rank 1 [10, 20, 30, 40]. The shards begin as zeros. On both ranks the "
    "shard is halved at once, and the reduce-scatter writes its result only after that. What does rank 1 gather?",
    expected=_SUM,
    why="zeros were halved, then the sum was written over them: what is gathered is the sum, not halved.",
    mistakes=(
        Mistake(
            "as it should be", _SUM // 2, "That is the right result. But the halving came before the sum was there."
        ),
        Mistake("zeros", np.zeros(4, int), "Zeros were halved, but the reduction wrote its result after that."),
        Mistake("quartered", _SUM // 4, "It is halved once, and too soon."),
        Mistake(
            "a gradient",
            lambda held: any(np.array_equal(held, x) for x in (_A, _B)),
            "That is the gradient of one rank. Both are added, late as it is.",
        ),
        Mistake("its own", _B // 2, "The reduction adds both gradients, late as it is."),
        Mistake(
            "its own shard only", _SHARDS[1], "Those are the two elements of its shard; it gathers rank 0's too."
        ),
        Mistake("rank 0 in time", [*_SHARDS[0] // 2, *_SHARDS[1]], "Rank 0 halves its shard too soon as well."),
        Mistake("rank 1 in time", [*_SHARDS[0], *_SHARDS[1] // 2], "Rank 1 halves its shard too soon as well."),
        Mistake("rank 0's zeros", [0, 0, *_SHARDS[1]], "Rank 0's shard is written after the halving, too."),
        Mistake("rank 1's zeros", [*_SHARDS[0], 0, 0], "Rank 1's shard is written after the halving, too."),
        Mistake("joined", np.concatenate([_A, _B]), "The gather joins shards of the sum, not the gradients."),
    ),
    are_joined=True,
)

cleared_too_soon = Exercise(
    "The shards are [12, 24] on rank 0 and [36, 48] on rank 1, and a gather is under way. Rank 0 clears its shard "
    "before the gather has read it; rank 1 clears its own afterwards. What does rank 1 end with in its weights?",
    expected=np.concatenate([np.zeros(2, int), _SHARDS[1]]),
    why="rank 0's block was zeros when it was read, and a gather hands those to everyone. Rank 1 has made no "
    "mistake.",
    mistakes=(
        Mistake("as it should be", _SUM, "That is what a gather returns that reads both shards in time."),
        Mistake("both", np.zeros(4, int), "Rank 1's shard was read before it was cleared."),
        Mistake("only rank 0 suffers", [0, 0], "Those are two elements; the weights have four."),
        Mistake(
            "the other one", np.concatenate([_SHARDS[0], np.zeros(2, int)]), "It is rank 0's block that was cleared."
        ),
        Mistake("left out", _SHARDS[1], "A cleared block is not left out: its zeros are gathered."),
        Mistake("own first", np.concatenate([_SHARDS[1], np.zeros(2, int)]), "Rank 0's block comes first."),
        Mistake("half of it", [0, 24, 36, 48], "The whole shard was cleared before it was read."),
    ),
    are_joined=True,
)

one_wait_for_two = Exercise(
    "A plan gives two all-reduces to one stream, first a, then b. It waits for b only, and reads both results. Which "
    "statements hold?",
    expected=frozenset("bdf"),
    options={
        "a": "with CUDA streams, the result of a may be read too early",
        "b": "with CUDA streams, b begins after a is complete, so the wait is enough for both",
        "c": "MPI completes requests in the order in which they were started",
        "d": "with MPI's requests, the result of a may be read too early",
        "e": "if a test run returns the right values, the plan is right there",
        "f": "waiting for a as well makes it right in both worlds",
    },
    why="operations of one CUDA stream come one after the other; MPI's requests are complete each by itself, "
    "whatever the order of their calls.",
    mistakes=(
        takes("a", "In one stream b does not begin before a is complete."),
        takes("c", "The calls must come in one order on all ranks. When each is complete is another matter."),
        takes("e", "The values can be right by luck: a may have been quick this time."),
        lacks("b", "what does a stream do with what it is given?"),
        lacks("d", "of what does the wait for b tell, if each request goes its own way?"),
        lacks("f", "which wait is missing?"),
    ),
)

where_it_pays = Exercise(
    "A backward pass takes 80 ms, the reduction of its gradients 20 ms. The reduction goes on meanwhile, bucket by "
    "bucket. Which statements hold?",
    expected=frozenset("acf"),
    options={
        "a": "the step cannot become shorter than 80 ms by this",
        "b": "the step takes 80 ms",
        "c": "if computing and reducing use the same cores fully, the sum of both remains",
        "d": "if the reduction took 200 ms, overlap would hide it",
        "e": "the smaller the buckets, the shorter the step",
        "f": "the gradient that is finished last has nothing left to hide behind",
    },
    why="overlap hides what goes on beside the computation on something that the computation does not use. What "
    "comes last is never hidden, and nothing is made shorter than its longest part.",
    mistakes=(
        takes("b", "Only if all of it were hidden: the last bucket begins when the backward pass is over."),
        takes("d", "At most 80 of 200 ms can lie beside the backward pass."),
        takes("e", "Each bucket is a call of its own, which costs something whatever its size."),
        lacks("a", "what is the part that cannot be hidden?"),
        lacks("c", "who adds up the gradients?"),
        lacks("f", "think of the last bucket."),
    ),
)


# a plan


def _both_halves(xs):
    total = sum(xs)
    return [np.concatenate([total, 2 * total]) / 2] * len(xs)


def _falls_short(done):
    """None where the first layer's gradient is computed while the second's is reduced; else the kind of finding.

    "alone" where no gradient is computed while one is reduced, "other layer" where they are those of other layers.
    """
    under_way, computed, pairs = set(), {}, []  # element -> what was under way when it was computed
    for step in done.steps:
        if isinstance(step, Wait):
            under_way.discard(step.event.operation)
        elif isinstance(step, Operation) and step.kind != COMPUTE:
            meanwhile = (computed.get((part.name, at), ()) for part in step.reads for at in part.elements)
            pairs += [(earlier, step) for earlier in set().union(*meanwhile)]
            under_way.add(step)
        elif isinstance(step, Operation) and under_way and step.label != START:
            computed.update(((part.name, at), {*under_way}) for part in step.writes for at in part.elements)
    if not pairs:
        return "alone"
    (returned,) = done.steps[-1].reads
    fits = any(_is_of(2, earlier, returned) and _is_of(1, later, returned) for earlier, later in pairs)
    return None if fits else "other layer"


def _is_of(layer, reduction, returned):
    """Whether the sums of a reduction are of a layer: in its half of what is returned, or in another buffer."""
    (target,), middle = reduction.writes, returned.start + len(returned) // 2
    half = target.start < middle if layer == 1 else target.stop > middle
    return half or target.name != returned.name


def _hazard(what, of=lambda hazard: True):
    """The rule of a hazard of which `what` is said, and `of` holds."""
    return of_kind("hazard", where=lambda finding: what in finding.hazard.what and of(finding.hazard))


two_buckets = PlanExercise(
    "Reduce the second layer's gradient while the first layer's is computed; then halve all sums, and return them.",
    inputs=lambda nranks: [np.arange(1.0, 4) * 10**rank for rank in range(nranks)],
    expected=_both_halves,
    falls_short=_falls_short,
    why="each bucket is started as soon as it is computed, and waited for before its sum is used.",
    mistakes=(
        KernelMistake(
            "into the same place",
            _hazard("changed before", lambda h: h.second.operation.kind != COMPUTE),
            "two reductions write the same sums. Each layer has a half of them to itself:",
        ),
        KernelMistake(
            "too soon",
            _hazard("changed before", lambda h: "after it was given" in h.why),
            "the sums are halved before the reduction that fills them is complete. The wait is there, and too late:",
        ),
        KernelMistake(
            "the wrong one",
            _hazard("changed before", lambda h: "says nothing of" in h.why),
            "one reduction was waited for, and the sums of both are halved:",
        ),
        KernelMistake(
            "no wait", _hazard("changed before"), "the sums are halved, and nothing waits for the reductions before:"
        ),
        KernelMistake(
            "given away",
            _hazard("overwritten while"),
            "a gradient is written while its reduction may still read it. Start the reduction of a layer after its "
            "gradient has been computed:",
        ),
        KernelMistake("read too soon", _hazard("read before"), "a sum is read before its reduction is complete:"),
        KernelMistake(
            "one after the other",
            of_kind("alone"),
            "all is in order, and nothing is computed while a reduction is under way. Start the second layer's "
            "before the first layer's gradient is computed, and wait for it afterwards.",
        ),
        KernelMistake(
            "other layer",
            of_kind("other layer"),
            "all is in order, but it is not the first layer's gradient that is computed while the second layer's is "
            "reduced. A backward pass comes to the second layer first.",
        ),
        ProgramMistake(
            "zeros",
            lambda xs: [np.zeros(2 * x.size) for x in xs],
            "no reduction has written to what is returned. It is all_reduce(source, target).",
        ),
        ProgramMistake(
            "not halved", lambda xs: [2 * one for one in _both_halves(xs)], "the sums are right, and not halved."
        ),
        ProgramMistake(
            "halved twice", lambda xs: [one / 2 for one in _both_halves(xs)], "the sums are right, and halved twice."
        ),
        ProgramMistake(
            "exchanged",
            lambda xs: [np.roll(one, xs[0].size) for one in _both_halves(xs)],
            "the sums are in each other's place: the first layer's come first.",
        ),
        ProgramMistake(
            "the gradients",
            lambda xs: [np.concatenate([x, 2 * x]) for x in xs],
            "each rank returns its own gradients, not the sums.",
        ),
        ProgramMistake(
            "nothing reduced",
            lambda xs: [np.concatenate([x, 2 * x]) / 2 for x in xs],
            "each rank returns its own gradients, halved: nothing was added over the ranks.",
        ),
        ProgramMistake(
            "one bucket only",
            lambda xs: [np.concatenate([0 * x, 2 * sum(xs)]) / 2 for x in xs],
            "only the second layer's gradient was reduced.",
        ),
        ProgramMistake(
            "the other bucket only",
            lambda xs: [np.concatenate([sum(xs), 0 * x]) / 2 for x in xs],
            "only the first layer's gradient was reduced.",
        ),
    ),
)

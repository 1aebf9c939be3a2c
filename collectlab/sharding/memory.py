"""The memory plan of a training step: what a rank holds in each phase, and how much of it is a part of a whole.

A plan lists the arrays of the programs in `strategies`. The figure of a phase is what is alive in it, all together;
the peak is the largest of the whole step.

In no plan is what the MPI library takes for itself, nor what NumPy and Python do: less than 100 KB, most of it the
8,192 elements that NumPy buffers when a bias is added to all rows. A step that holds 2 MB is planned within 5 %.
"""

from dataclasses import dataclass, field

from collectlab.layout import Partition
from collectlab.sharding.buckets import Buckets
from collectlab.sharding.optimizers import TILE
from collectlab.sharding.strategies import STRATEGIES

KINDS = ("retained", "sharded", "temporary")


@dataclass(frozen=True)
class Phase:
    """What a rank holds in one phase: {name of the array: bytes} for each kind. A name in two phases is one array.

    retained   whole, from step to step
    sharded    this rank's part only
    temporary  whole, or for this rank's samples, and gone before the step ends
    layer_of   {name of a temporary array that is the whole of one layer: name of the array that the layer is of}
    """

    name: str
    retained: dict
    sharded: dict = field(default_factory=dict)
    temporary: dict = field(default_factory=dict)
    layer_of: dict = field(default_factory=dict)

    @property
    def held(self):
        """Bytes in all."""
        return sum(sum(getattr(self, kind).values()) for kind in KINDS)

    @property
    def overlaps(self):
        """What is there twice, whole or as a layer's whole, and as this rank's part."""
        whole = {self.layer_of.get(of, of) for of in (*self.retained, *self.temporary)}
        return sorted(self.sharded.keys() & whole)


@dataclass(frozen=True)
class Plan:
    """What one rank holds during a step. Printed, it is a table: a row for each array, a column for each phase.

    `phases` is what `views.memory_timeline` draws.
    """

    strategy: str
    nranks: int
    rank: int
    phases: tuple

    @property
    def peak(self):
        """The Phase in which the step holds most."""
        return max(self.phases, key=lambda phase: phase.held)

    @property
    def kept(self):
        """Bytes that stay from one step to the next."""
        first = self.phases[0]
        return sum(first.retained.values()) + sum(first.sharded.values())

    def __str__(self):
        numbers = [f"({n})" for n in range(1, len(self.phases) + 1)]
        rows = [("", "", *numbers)]
        for kind in KINDS:
            for of in dict.fromkeys(of for phase in self.phases for of in getattr(phase, kind)):
                held = [getattr(phase, kind).get(of) for phase in self.phases]
                rows.append((of, kind, *("." if nbytes is None else f"{nbytes:,}" for nbytes in held)))
        rows.append(("in all", "", *(f"{phase.held:,}" for phase in self.phases)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        sides = [str.ljust, str.ljust, *[str.rjust] * len(numbers)]
        twice = {}
        for number, phase in zip(numbers, self.phases, strict=True):
            for of in phase.overlaps:
                twice.setdefault(of, []).append(number)
        overlaps = "; ".join(f"{of} in {' '.join(where)}" for of, where in twice.items())
        cells = ([side(*cell) for side, *cell in zip(sides, row, widths, strict=True)] for row in rows)
        return "\n".join([
            f"{self.strategy}, rank {self.rank} of {self.nranks}: bytes held in each phase of a step",
            "; ".join(f"{n} {phase.name}" for n, phase in zip(numbers, self.phases, strict=True)),
            *("  ".join(row).rstrip() for row in cells),
            *([f"at once whole and in this rank's part: {overlaps}"] if twice else []),
            f"peak of the step: {self.peak.held:,}, in {self.peak.name}; {self.kept:,} stay from step to step",
        ])  # fmt: skip


def plan(task, strategy, nranks, rank=0):
    """The Plan of one rank that trains with `strategies.train`."""
    if strategy not in STRATEGIES:
        raise ValueError(f"plan(strategy={strategy!r}): one of {', '.join(STRATEGIES)} is accepted")
    return Plan(strategy, nranks, rank, tuple(_PHASES[strategy](_Sizes(task, nranks, rank))))


class _Sizes:
    """The bytes of what a rank holds."""

    def __init__(self, task, nranks, rank):
        self.task, self.network, self.nranks, self.rank = task, task.network, nranks, rank
        rows = Partition.uneven(task.batch, nranks).counts[rank]
        self.samples = self.of(rows * task.batches * (task.network.features + task.network.outputs))
        self.whole, self.layers = self.of(task.network.parameters), [*map(self.of, task.network.layers)]
        self.activations = {"activations": self.of(rows * task.network.hidden)}
        self.errors = {"errors": self.of(rows * task.network.outputs)}
        self.hidden_errors = {"errors of the hidden layer": self.of(rows * task.network.hidden)}

    def of(self, elements):
        return elements * self.network.itemsize

    def mine(self, *lengths):
        return self.of(Buckets(lengths, self.nranks).count(self.rank))

    def state(self, nbytes):
        return dict.fromkeys(self.task.optimizer.names, nbytes)

    def scratch(self, nbytes):
        return {"scratch": min(self.of(TILE), nbytes)}


def _replicated(s):
    kept, gradient = {"parameters": s.whole, **s.state(s.whole), "samples": s.samples}, {"gradient": s.whole}
    yield Phase("forward", kept, {}, {**s.activations, **s.errors})
    yield Phase("backward", kept, {}, {**s.activations, **s.errors, **gradient, **s.hidden_errors})
    yield Phase("all-reduce", kept, {}, gradient)
    yield Phase("update", kept, {}, {**gradient, **s.scratch(s.whole)})


def _sharded_optimizer(s):
    mine = s.mine(s.network.parameters)
    kept, state, gradient = {"parameters": s.whole, "samples": s.samples}, s.state(mine), {"gradient": s.whole}
    yield Phase("forward", kept, state, {**s.activations, **s.errors})
    yield Phase("backward", kept, state, {**s.activations, **s.errors, **gradient, **s.hidden_errors})
    yield Phase("reduce-scatter", kept, {**state, "gradient": mine}, gradient)
    yield Phase("update", kept, {**state, "gradient": mine}, s.scratch(mine))
    yield Phase("all-gather", kept, state)


def _sharded_parameters(s):
    kept, mine = {"samples": s.samples}, s.mine(*s.network.layers)
    ours = {"parameters": mine, **s.state(mine)}
    more = {**ours, "gradient": mine}
    tensors, layers = ("parameters", "gradient"), dict(zip(("hidden", "output"), s.layers, strict=True))
    layer_of = {_named(tensor, layer): tensor for tensor in tensors for layer in layers}

    def whole(tensor, layer):
        return {_named(tensor, layer): layers[layer]}

    def phase(name, sharded, *temporary):
        return Phase(name, kept, sharded, {of: n for held in temporary for of, n in held.items()}, layer_of)

    yield phase("forward, hidden layer", ours, whole("parameters", "hidden"), s.activations)
    yield phase("forward, output layer", ours, whole("parameters", "output"), s.activations, s.errors)
    both = whole("parameters", "output"), whole("gradient", "output")
    yield phase("backward, output layer", more, *both, s.activations, s.errors, s.hidden_errors)
    yield phase("reduce-scatter, output layer", more, whole("gradient", "output"), s.hidden_errors)
    yield phase("backward, hidden layer", more, whole("gradient", "hidden"), s.hidden_errors)
    yield phase("reduce-scatter, hidden layer", more, whole("gradient", "hidden"))
    yield phase("update", more, s.scratch(mine))


def _named(tensor, layer):
    return f"{tensor} of the {layer} layer"


_PHASES = {
    "replicated": _replicated,
    "sharded_optimizer": _sharded_optimizer,
    "sharded_parameters": _sharded_parameters,
}


_MIXED = {
    "weights, float16": 2, "gradient, float16": 2,
    "master copy, float32": 4, "mean, float32": 4, "square, float32": 4,
}  # fmt: skip
_IN_SHARDS = {
    "nothing": (),
    "optimizer state": ("master copy, float32", "mean, float32", "square, float32"),
    "optimizer state and gradients": (*_MIXED,)[1:],
    "optimizer state, gradients and parameters": (*_MIXED,),
}


def _mixed(nranks):
    """{what is sharded: {array: bytes a parameter that a rank keeps}}."""
    return {
        what: {of: nbytes / nranks if of in shards else nbytes for of, nbytes in _MIXED.items()}
        for what, shards in _IN_SHARDS.items()
    }


def mixed_precision(nranks):
    """Bytes a parameter that a rank keeps with Adam in mixed precision: {what is sharded: bytes}.

    float16 weights and gradients, 2 + 2 bytes, and in float32 a master copy of the weights, the mean and the square,
    12 bytes: 16 in all on every rank where nothing is sharded (Rajbhandari et al., ZeRO, 2019, section 3.1).
    Activations and temporary arrays come on top.
    """
    return {what: sum(held.values()) for what, held in _mixed(nranks).items()}


def mixed_precision_table(nranks):
    """The same as text: a row for each array, a column for what is sharded."""
    held = _mixed(nranks)
    heads = ("nothing", "optimizer state", "and gradients", "and parameters")
    rows = [("in shards:", *heads)]
    rows += [(of, *(f"{column[of]:.3g}" for column in held.values())) for of in _MIXED]
    rows.append(("in all", *(f"{nbytes:.3g}" for nbytes in mixed_precision(nranks).values())))
    wide = max(len(row[0]) for row in rows)
    lines = [f"{name:{wide}}" + "".join(f"  {cell:>{len(head)}}" for cell, head in zip(cells, heads, strict=True))
             for name, *cells in rows]  # fmt: skip
    return "\n".join([f"bytes a parameter on each of {nranks} rank{'s' * (nranks > 1)}, Adam", *lines])

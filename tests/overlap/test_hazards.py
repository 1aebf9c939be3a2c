"""Plans that are right give no hazard, and each broken one gives the hazard that is in it, in words."""

import inspect
import itertools
import random

import numpy as np
import plans
import pytest

import collectlab as cl
from collectlab import overlap
from collectlab.explore import every_schedule, witness
from collectlab.overlap import lanes, simulated
from collectlab.overlap.backward import Layers, reference, train
from collectlab.overlap.plan import COMPUTE, Operation, Wait

MODES = pytest.mark.parametrize("in_order", (False, True), ids=("by request", "in order"))


def vectors(nranks, count=4):
    return cl.per_rank([np.arange(1.0, count + 1) * 10**rank for rank in range(nranks)])


def broken(in_order):
    return (*plans.BROKEN_ON_BOTH, *(plans.BROKEN_IN_ORDER if in_order else plans.BROKEN_BY_REQUEST))


def cases(which):
    return [(plan, in_order) for in_order in (False, True) for plan in which(in_order)]


def named(case):
    return f"{case[0].__name__} {'in order' if case[1] else 'by request'}"


RIGHT = cases(lambda in_order: (*plans.RIGHT, *(plans.BROKEN_BY_REQUEST if in_order else plans.BROKEN_IN_ORDER)))
BROKEN = cases(broken)


@pytest.mark.parametrize("case", RIGHT, ids=named)
def test_a_right_plan_has_no_hazard_and_one_outcome(case):
    plan, in_order = case
    for nranks, count in ((1, 4), (2, 4), (3, 4), (3, 5)):
        run = overlap.simulate(plan, vectors(nranks, count), ranks=nranks, in_order=in_order)
        assert run.ok and run.hazards() == [] and run.run.trace.races() == []
        again = [
            overlap.simulate(plan, vectors(nranks, count), ranks=nranks, in_order=in_order, schedule=number).results
            for number in range(10)
        ]
        assert all(str(results) == str(run.results) for results in again)


def line_of(plan, word):
    source, start = inspect.getsourcelines(plan)
    (at,) = (number for number, line in enumerate(source, start) if line.rstrip().endswith(f"# {word}"))
    return at


@pytest.mark.parametrize("case", BROKEN, ids=named)
def test_a_broken_plan_gives_the_hazard_that_is_in_it(case):
    plan, in_order = case
    for nranks in (1, 2, 3):
        run = overlap.simulate(plan, vectors(nranks), ranks=nranks, in_order=in_order)
        found = run.hazards()
        assert found and run.run.trace.races()
        hazard = found[0]
        assert hazard.ranks == tuple(range(nranks))
        clash = 0 if plan is plans.never_gathered else line_of(plan, "second")  # the end of a plan has no line
        assert hazard.second.operation.line == clash
        assert hazard.first.operation.line == line_of(plan, "first")
        assert SAID[plan.__name__][0] in hazard.what
        assert SAID[plan.__name__][1] in hazard.why
        assert SAID[plan.__name__][2] in hazard.mend
        assert f'hazard on "{hazard.buffer}"' in str(hazard) and "mend: " in str(hazard)


SAID = {  # what goes wrong, which edge is missing, what would mend it
    "never_waits": ("changed before the reduce_scatter is complete", "waits for no event between", "call its wait()"),
    "reads_early": ("read before the reduce_scatter is complete", "after it was given", "move that wait up"),
    "overwrites_during_the_gather": (
        "overwritten while the all_gather may still read them", "after it was given", "move that wait up",
    ),
    "overwrites_the_gradient": (
        "overwritten while the reduce_scatter may still read them", "after it was given", "move that wait up",
    ),
    "wrong_request": ("changed before the all_reduce is complete", "says nothing of", "wait for the event of"),
    "never_gathered": ("read before the all_gather is complete", "waits for no event between", "call its wait()"),
    "chained_on_two_streams": ("read before the reduce_scatter is complete", "second", "as `after`"),
    "one_target_for_two": ("changed before the all_reduce is complete", "the second", "as `after`"),
    "one_element_too_far": ("overwritten while the all_reduce", "after it was given", "move that wait up"),
    "gathers_what_is_not_updated": (
        "the all_gather may begin before they are written", "waits for no event", "leave `after` out",
    ),
    "recorded_too_early": (
        "the all_gather may begin before they are written", "does not come after", "recorded after line",
    ),
    "waits_for_the_last_only": ("changed before the all_reduce is complete", "in no order", "wait for the event of"),
    "chained_on_one_stream": ("read before the reduce_scatter", "under way at once", "as `after`"),
}  # fmt: skip


def test_the_words_of_a_hazard():
    run = overlap.simulate(plans.overwrites_during_the_gather, vectors(2), ranks=2)
    (hazard,) = run.hazards()
    first, second = (line_of(plans.overwrites_during_the_gather, word) for word in ("first", "second"))
    assert str(hazard).splitlines() == [
        'hazard on "shard", elements 0:2 of ranks 0 and 1: overwritten while the all_gather may still read them',
        f"    the all_gather (plans.py, line {first}) reads them, as a request",
        f'    compute "clear" (plans.py, line {second}) writes them, on the stream "compute"',
        f"nothing orders the two: the compute stream waits for the all_gather at line {second + 1}, after it was "
        f'given compute "clear" (plans.py, line {second})',
        f"mend: move that wait up, before line {second}",
    ]


def test_one_element_in_common_is_named():
    (hazard,) = overlap.simulate(plans.one_element_too_far, vectors(2), ranks=2).hazards()
    assert list(hazard.elements) == [2] and "element 2 of ranks 0 and 1" in str(hazard)


@pytest.mark.parametrize("case", BROKEN, ids=named)
def test_a_hazard_does_harm_in_some_order(case):
    plan, in_order = case
    _, done = simulated.recorded(plan, (vectors(2),), 2)
    found = witness(simulated.program(done, in_order), ranks=2 * lanes.width([lanes.lanes(done[0], in_order)]))
    assert bool(found) == (plan is not plans.never_waits)  # which returns nothing


@MODES
def test_brute_force_agrees(in_order):
    """Every order of the steps of one rank's lanes: one outcome without a hazard, several with one."""
    for plan in (plans.sharded_step, plans.waits_twice, plans.reads_early, plans.overwrites_during_the_gather):
        _, done = simulated.recorded(plan, (vectors(1, 1),), 1)
        wide = lanes.width([lanes.lanes(one, in_order) for one in done])
        outcomes = every_schedule(simulated.program(done, in_order), ranks=wide)
        assert outcomes.one == (plan in plans.RIGHT), plan.__name__


# random plans, against another way of finding what is ordered


def random_plan(seed):
    """Three buffers, two streams, computations and all-reduces between them, and waits here and there."""

    def plan(ctx, x):
        draw = random.Random(seed)
        buffers = [ctx.buffer(name, x + at) for at, name in enumerate("abc")]
        events = [ctx.record()]
        for _ in range(draw.randint(2, 6)):
            source, target = draw.sample(buffers, 2)
            low, high = sorted(draw.sample(range(len(source) + 1), 2))
            act = draw.random()
            if act < 0.4:
                after = draw.choice([overlap.NOW, None, draw.choice(events), events[-1]])
                stream = draw.choice(["one", "two"])
                events.append(ctx.all_reduce(source[low:high], target[low:high], stream=stream, after=after))
            elif act < 0.6:
                draw.choice(events).wait()
            else:
                ctx.compute(plans.add_one, reads=source[low:high], writes=target[low:high])
            if draw.random() < 0.3:
                events.append(ctx.record())
        return buffers

    return plan


def unordered(done, in_order):
    """The pairs of steps that clash and are joined by no path, from the rules of streams and requests alone."""
    steps, before = done.steps, {}
    last, given = {}, {}

    def reached(*sources):
        return set(sources).union(*(before[s] for s in sources))

    for at, step in enumerate(steps):
        if isinstance(step, Wait):
            source = given[step.event.number]
            before[at] = reached(*(s for s in (last.get(COMPUTE), source) if s is not None))
            last[COMPUTE] = at
        elif isinstance(step, Operation) and step.kind != COMPUTE:
            sources = [given[event.number] for event in step.after]
            if in_order:
                sources.append(last.get(step.stream))
            else:  # the rank waits for them, and then begins
                begins = [s for s in (*sources, last.get(COMPUTE)) if s is not None]
                before[at - 0.5], last[COMPUTE] = reached(*begins), at - 0.5
                sources = [at - 0.5]
            before[at] = reached(*(s for s in sources if s is not None))
            last[step.stream if in_order else at] = at
        else:
            before[at] = reached(*(s for s in (last.get(COMPUTE),) if s is not None))
            last[COMPUTE] = at
        if not isinstance(step, Wait):
            given[sum(not isinstance(s, Wait) for s in steps[:at])] = at
    operations = [(at, step) for at, step in enumerate(steps) if isinstance(step, Operation)]
    return {
        (i, j)
        for (i, a), (j, b) in itertools.combinations(operations, 2)
        if i not in before[j] and any(map(_overlap, *zip(*_clashing(a, b), strict=True)) if _clashing(a, b) else ())
    }


def _clashing(a, b):
    return [*itertools.product(a.writes, (*b.reads, *b.writes)), *itertools.product(a.reads, b.writes)]


def _overlap(one, other):
    return one.name == other.name and one.start < other.stop and other.start < one.stop


@MODES
def test_random_plans_have_the_hazards_that_another_search_finds(in_order):
    clean = 0
    for seed in range(300):
        plan = random_plan(seed)
        _, done = simulated.recorded(plan, (vectors(2),), 2)
        trace = lanes.trace([lanes.lanes(one, in_order) for one in done[:1]])
        found = {
            tuple(sorted((trace.events[i].step, trace.events[j].step))) for i, j, _ in cl_pairs(trace)
        }
        assert found == unordered(done[0], in_order), seed
        run = simulated.carried_out(done, in_order)
        assert bool(found) == bool(run.trace.races()), seed
        clean += not found
    assert 30 < clean < 270


def cl_pairs(trace):
    from collectlab.trace import races

    return races.pairs(trace)


# the backward pass


@MODES
@pytest.mark.parametrize("meanwhile", (False, True))
def test_a_backward_pass_in_buckets_is_right_and_has_no_hazard(in_order, meanwhile):
    layers = Layers(width=3, depth=3)
    x, y = layers.samples(7, seed=1)
    for nranks, per_bucket, steps in ((1, 1, 3), (2, 1, 2), (2, 2, 2), (3, 3, 2), (4, 3, 1)):
        rows = [cl.per_rank(np.array_split(array, nranks)) for array in (x, y)]
        run = overlap.simulate(
            train, layers, *rows, 0.1, steps, per_bucket, meanwhile, ranks=nranks, in_order=in_order
        )
        assert run.hazards() == [] and run.run.trace.races() == []
        for weights in run.results:
            np.testing.assert_allclose(weights, reference(layers, x, y, 0.1, steps), rtol=1e-12)


# what is refused


REFUSED = [
    (lambda ctx: ctx.buffer("a", np.zeros((2, 2))), ValueError, "one axis is accepted"),
    (lambda ctx: [ctx.buffer("a", np.zeros(2)) for _ in "ab"], ValueError, "there is one of that name"),
    (lambda ctx: ctx.buffer("a", np.zeros(2))[1:3], IndexError, "it has 2 elements"),
    (lambda ctx: ctx.buffer("a", np.zeros(2))[1], IndexError, "a slice without a step is accepted"),
    (lambda ctx: ctx.compute("update"), TypeError, "a function is accepted"),
    (lambda ctx: ctx.compute(plans.clear, writes=[np.zeros(2)]), TypeError, "as ctx.buffer returns them"),
    (lambda ctx: ctx.wait(None), TypeError, "an event of this rank is accepted"),
    (lambda ctx: _reduced(ctx, 4, 3), ValueError, '"b" has 3'),
    (lambda ctx: _reduced(ctx, 4, 2, dtype="float32"), ValueError, "float64 and float32"),
    (lambda ctx: _reduced(ctx, 4, 2, stream="compute"), ValueError, "give it another one"),
    (lambda ctx: _reduced(ctx, 4, 2, after=3), TypeError, "events, NOW or None are accepted"),
    (lambda ctx: _reduced(ctx, 4, 2, after=[3]), TypeError, "events, NOW or None are accepted"),
    (lambda ctx: _in_place(ctx), ValueError, "the two overlap"),
]


def _reduced(ctx, count, block, dtype="float64", **settings):
    return ctx.reduce_scatter(ctx.buffer("a", np.zeros(count)), ctx.buffer("b", np.zeros(block, dtype)), **settings)


def _in_place(ctx):
    a = ctx.buffer("a", np.zeros(4))
    ctx.all_gather(a[2:], a)


@pytest.mark.parametrize(("plan", "kind", "said"), REFUSED)
def test_what_is_refused_says_what_is_accepted(plan, kind, said):
    with pytest.raises(kind, match=said.replace("(", r"\(")):
        overlap.simulate(plan, ranks=2)


def test_a_computation_may_not_write_what_it_reads_only():
    def plan(ctx):
        ctx.compute(plans.clear, reads=ctx.buffer("a", np.zeros(2)))

    run = overlap.simulate(plan, ranks=1)
    assert not run.ok and "read-only" in run.run.report()
    with pytest.raises(RuntimeError, match="did not come to its end"):
        run.hazards()


def test_ranks_that_call_other_collectives_are_refused():
    def plan(ctx):
        a, b = ctx.buffer("a", np.zeros(2)), ctx.buffer("b", np.zeros(2))
        if ctx.rank:
            ctx.all_reduce(a, b)
        ctx.all_reduce(b, a)

    with pytest.raises(ValueError, match=r"collective 1 of rank 0 is all_reduce .* of rank 1 all_reduce"):
        overlap.simulate(plan, ranks=2)


def test_too_many_lanes_are_refused():
    def plan(ctx):
        a, b = ctx.buffer("a", np.zeros(2)), ctx.buffer("b", np.zeros(2))
        for _ in range(20):
            ctx.all_reduce(a, b).wait()

    with pytest.raises(ValueError, match="take fewer ranks or collectives"):
        overlap.simulate(plan, ranks=4)

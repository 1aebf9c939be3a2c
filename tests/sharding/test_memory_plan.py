"""The memory plan beside what the ranks held, phase by phase."""

import dataclasses
import itertools

import numpy as np
import pytest

import collectlab as cl
from collectlab import sharding
from collectlab.sharding import Adam, Network, Sgd, Task
from collectlab.sharding.meter import _OfDevice

WITHIN = 0.05
TASKS = {
    "wide": Task(Network(200, 401, 151), batch=48),
    "few samples, float32": Task(Network(300, 500, 300, "float32"), Sgd(), batch=7, batches=2),
    "many samples": Task(Network(120, 400, 120), batch=600, batches=1),
}
RANKS = (1, 2, 3, 4)


def every_strategy(ctx, tasks):
    return {(name, s): sharding.measure(ctx, task, s) for name, task in tasks.items() for s in sharding.STRATEGIES}


def off(plan, measured):
    """The largest relative difference over the phases of a step."""
    assert [*measured] == [phase.name for phase in plan.phases]
    return max(abs(measured[phase.name] / phase.held - 1) for phase in plan.phases)


@pytest.mark.parametrize("nranks", RANKS)
def test_what_a_rank_holds_is_what_was_planned(nranks):
    run = cl.run(every_strategy, TASKS, ranks=nranks, device="cpu")
    assert run.ok, run.report()
    for rank, measured in enumerate(run.results):
        for (name, strategy), held in measured.items():
            plan = sharding.plan(TASKS[name], strategy, nranks, rank)
            assert off(plan, held) < WITHIN, (name, strategy, rank, plan, held)
            assert plan.peak.held == pytest.approx(max(held.values()), rel=WITHIN)


def without(plan, kind, of):
    """A plan in which an array is forgotten."""
    phases = []
    for phase in plan.phases:
        rest = {name: n for name, n in getattr(phase, kind).items() if name != of}
        phases.append(dataclasses.replace(phase, **{kind: rest}))
    return dataclasses.replace(plan, phases=tuple(phases))


def test_a_plan_that_forgets_an_array_would_be_seen():
    """In one of the tasks, at least: an array that is small in all of them could be forgotten."""
    measured = cl.run(every_strategy, TASKS, ranks=2, device="cpu").results[0]
    for strategy in sharding.STRATEGIES:
        plans = {name: sharding.plan(task, strategy, 2) for name, task in TASKS.items()}
        for kind in sharding.memory.KINDS:
            for of in {of for plan in plans.values() for phase in plan.phases for of in getattr(phase, kind)}:
                seen = [off(without(plan, kind, of), measured[name, strategy]) for name, plan in plans.items()]
                assert max(seen) > WITHIN, (strategy, kind, of)


def test_the_peak_is_that_of_the_whole_step():
    for task, strategy, nranks in itertools.product(TASKS.values(), sharding.STRATEGIES, (1, 4, 64)):
        plan = sharding.plan(task, strategy, nranks)
        assert plan.peak.held == max(phase.held for phase in plan.phases) > plan.kept
        assert plan.kept < min(phase.held for phase in plan.phases[:-1])


def test_a_whole_and_a_part_of_it_overlap_where_one_is_made_from_the_other():
    def overlaps(strategy):
        plan = sharding.plan(Task(), strategy, 4)
        return {phase.name: phase.overlaps for phase in plan.phases if phase.overlaps}

    assert overlaps("replicated") == {}
    assert overlaps("sharded_optimizer") == {"reduce-scatter": ["gradient"]}
    assert overlaps("sharded_parameters") == {
        "forward, hidden layer": ["parameters"],
        "forward, output layer": ["parameters"],
        "backward, output layer": ["gradient", "parameters"],
        "reduce-scatter, output layer": ["gradient"],
        "backward, hidden layer": ["gradient"],
        "reduce-scatter, hidden layer": ["gradient"],
    }


def test_what_an_array_is_part_of_is_not_read_out_of_its_name():
    shard, whole = {"weights": 2}, {"a copy of the weights": 8}
    assert sharding.Phase("update", {}, shard, whole).overlaps == []
    assert sharding.Phase("update", {}, shard, whole, {"a copy of the weights": "weights"}).overlaps == ["weights"]
    assert sharding.Phase("update", {"weights of the first layer": 8}, shard).overlaps == []


def test_between_two_phases_lies_what_is_made_in_one_and_used_in_the_next():
    def between(strategy):
        return cl.views.memory_timeline(sharding.plan(task, strategy, 4).phases).between

    task = Task(Network(19, 20, 40), Adam(), batch=32, batches=1)  # 400 and 840 parameters, 8 samples a rank
    samples, whole, hidden, output = 8 * 8 * (19 + 40), 8 * 1240, 8 * 400, 8 * 840
    activations, errors = 8 * 8 * 20, 8 * 8 * 40
    full = samples + 3 * whole
    assert between("replicated") == [full + activations + errors, full + whole, full + whole]
    kept = samples + whole + whole // 2
    assert between("sharded_optimizer") == [kept + activations + errors, kept + whole, kept + whole // 4, kept]
    ours = samples + 3 * whole // 4
    more = ours + whole // 4
    assert between("sharded_parameters") == [
        ours + activations,
        ours + output + activations + errors,
        more + output + activations,  # the errors of the hidden layer, which has as many activations
        more + activations,
        more + hidden,
        more,
    ]


def test_a_plan_is_a_table():
    text = str(sharding.plan(Task(Network(6, 10, 3), Adam(), batch=48, batches=4), "sharded_optimizer", 4, rank=1))
    assert text.splitlines() == [
        "sharded_optimizer, rank 1 of 4: bytes held in each phase of a step",
        "(1) forward; (2) backward; (3) reduce-scatter; (4) update; (5) all-gather",
        "                                         (1)    (2)    (3)    (4)    (5)",
        "parameters                  retained     824    824    824    824    824",
        "samples                     retained   3,456  3,456  3,456  3,456  3,456",
        "mean                        sharded      208    208    208    208    208",
        "square                      sharded      208    208    208    208    208",
        "gradient                    sharded        .      .    208    208      .",
        "activations                 temporary    960    960      .      .      .",
        "errors                      temporary    288    288      .      .      .",
        "gradient                    temporary      .    824    824      .      .",
        "errors of the hidden layer  temporary      .    960      .      .      .",
        "scratch                     temporary      .      .      .    208      .",
        "in all                                 5,944  7,728  5,728  5,112  4,696",
        "at once whole and in this rank's part: gradient in (3)",
        "peak of the step: 7,728, in backward; 4,696 stay from step to step",
    ]
    assert "at once" not in str(sharding.plan(Task(), "replicated", 4))


def test_mixed_precision_is_sixteen_bytes_a_parameter_and_less_in_shards():
    nothing, state, gradients, everything = sharding.mixed_precision(4).values()
    assert (nothing, state, gradients, everything) == (16, 4 + 12 / 4, 2 + 14 / 4, 16 / 4)
    assert set(sharding.mixed_precision(1).values()) == {16}
    # ZeRO, 2019, table 1: 7.5 billion parameters on 64 devices take 120, 31.4, 16.6 and 1.88 GB
    of_64 = [7.5 * nbytes for nbytes in sharding.mixed_precision(64).values()]
    assert np.round(of_64, 1).tolist() == [120, 31.4, 16.6, 1.9]


def test_the_master_copy_has_a_row():
    assert sharding.mixed_precision_table(4).splitlines() == [
        "bytes a parameter on each of 4 ranks, Adam",
        "in shards:            nothing  optimizer state  and gradients  and parameters",
        "weights, float16            2                2              2             0.5",
        "gradient, float16           2                2            0.5             0.5",
        "master copy, float32        4                1              1               1",
        "mean, float32               4                1              1               1",
        "square, float32             4                1              1               1",
        "in all                     16                7            5.5               4",
    ]


class StandIn:
    """CuPy's hook for its memory pool, as far as it is used: it is told of each array that is made and freed."""

    class cuda:
        class MemoryHook:
            active = None

            def __enter__(self):
                type(self).__mro__[1].active = self

            def __exit__(self, *_):
                type(self).__mro__[1].active = None

    @classmethod
    def make(cls, size):
        rounded = -(-size // 512) * 512
        cls.cuda.MemoryHook.active.malloc_postprocess(
            device_id=0, size=size, mem_size=rounded, mem_ptr=1, pmem_id=1
        )
        return rounded

    @classmethod
    def free(cls, rounded):
        cls.cuda.MemoryHook.active.free_postprocess(device_id=0, mem_size=rounded, mem_ptr=1, pmem_id=1)


def test_on_a_device_the_pool_is_asked():
    with _OfDevice(StandIn) as meter:
        kept = StandIn.make(1000)
        meter.phase("one")
        StandIn.free(StandIn.make(5000))
        meter.phase("two")
        StandIn.make(10)
        meter.close()
        StandIn.free(kept)
    assert meter.peaks == {"one": 1024 + 5120, "two": 1024 + 512}
    assert StandIn.cuda.MemoryHook.active is None

"""Right count, wrong slice: a resharding that no count finds out trains worse; identifiable tensors tell."""

import numpy as np

import collectlab as cl
from collectlab import provenance, sharding
from collectlab.sharding import Buckets, Task


def contiguous(shards, nranks):
    """The vector of all shards, cut anew: the right way."""
    whole = np.concatenate(shards)
    return [whole[part] for rank in range(nranks) for part in Buckets((whole.size,), nranks).slices(rank)]


def dealt(shards, nranks):
    """Shards dealt to the new ranks like cards: the right count for each, and for half of them the wrong slice."""
    return [np.concatenate(shards[rank::nranks]) for rank in range(nranks)]


TASK = Task(sharding.Network(6, 10, 2), sharding.Adam(0.02))  # 92 parameters: four equal shards, and two


def go_on(ctx, shards, done, steps):
    trainer = sharding.STRATEGIES["sharded_optimizer"](ctx, TASK)
    trainer.restore({name: arrays[ctx.rank] for name, arrays in shards.items()})
    trainer.done = done
    return trainer.steps(steps)


def shards_of_four(ctx, steps):
    trainer = sharding.STRATEGIES["sharded_optimizer"](ctx, TASK)
    trainer.steps(steps)
    return trainer.shard()


def after(ways, saved):
    """The losses after each tensor went its way to two ranks; every count is right."""
    shards = {}
    for name in saved[0]:
        shards[name] = ways.get(name, contiguous)([shard[name] for shard in saved], 2)
        assert [shard.size for shard in shards[name]] == [46, 46]
    run = cl.run(go_on, shards, 20, 20, ranks=2, device="cpu")
    assert run.ok, run.report()
    return run.results[0]


def test_the_broken_way_passes_every_count_and_trains_worse():
    saved = cl.run(shards_of_four, 20, ranks=4, device="cpu").results
    right = after({}, saved)
    np.testing.assert_allclose(right, sharding.reference(TASK, 40)[0][20:], rtol=1e-9)
    all_wrong = after(dict.fromkeys(saved[0], dealt), saved)
    assert np.isfinite(all_wrong).all() and all_wrong.mean() > 1.2 * right.mean()
    assert all_wrong[-4:].mean() < all_wrong[:4].mean()  # it trains, as if it had begun not long ago
    state_wrong = after({"mean": dealt, "square": dealt}, saved)
    assert state_wrong[0] == right[0] and not np.allclose(state_wrong[1:], right[1:], rtol=1e-3)


def test_tensors_that_name_their_origin_find_it_at_once():
    marked = provenance.identify(4, 23)
    right, wrong = ([*way(marked, 2), None, None] for way in (contiguous, dealt))
    assert provenance.explain(right, right) == "every element is where it should be"
    assert provenance.explain(wrong, right).splitlines() == [
        "rank 0, elements 23:46: hold rank 2's elements 0:23; they should hold rank 1's elements 0:23",
        "rank 1, elements 0:23: hold rank 1's elements 0:23; they should hold rank 2's elements 0:23",
    ]

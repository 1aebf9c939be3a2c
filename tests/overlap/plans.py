"""Plans that keep their dependencies, and plans that break one; each broken one marks the two lines that clash."""

import numpy as np

# what ranks compute


def shrink(shard):
    shard *= -0.5


def clear(part):
    part[:] = 0


def add_one(source, target):
    target[:] = source + 1


def _buffers(ctx, x):
    block = ctx.counts(x.size)[ctx.rank]
    return ctx.buffer("gradient", x), ctx.buffer("shard", np.zeros(block)), ctx.buffer("weights", np.zeros(x.size))


# right


def sharded_step(ctx, x):
    gradient, shard, weights = _buffers(ctx, x)
    ctx.reduce_scatter(gradient, shard).wait()
    ctx.compute(shrink, writes=shard)
    ctx.all_gather(shard, weights).wait()
    return weights


def straight_on(ctx, x):
    """From one collective into the next, with nothing computed between."""
    gradient, shard, weights = _buffers(ctx, x)
    reduced = ctx.reduce_scatter(gradient, shard)
    gathered = ctx.all_gather(shard, weights, stream="another", after=[reduced])
    gathered.wait()
    return weights


def two_steps(ctx, x):
    gradient, shard, weights = _buffers(ctx, x)
    for _ in range(2):
        ctx.reduce_scatter(gradient, shard).wait()
        ctx.compute(shrink, writes=shard)
        gathered = ctx.all_gather(shard, weights)
        ctx.compute(shrink, writes=gradient)  # the reduction has read it
        gathered.wait()
    return weights, gradient


def two_buckets(ctx, x):
    gradient, _, weights = _buffers(ctx, x)
    other = ctx.buffer("other gradient", 10 * x)
    total, other_total = ctx.buffer("total", np.zeros(x.size)), ctx.buffer("other total", np.zeros(x.size))
    first = ctx.all_reduce(gradient, total)
    second = ctx.all_reduce(other, other_total, stream="another")
    second.wait()
    ctx.compute(add_one, reads=other_total, writes=weights)
    first.wait()
    ctx.compute(shrink, writes=total)
    return total, weights


def read_during_the_gather(ctx, x):
    """Two readers do not disturb each other."""
    gradient, shard, weights = _buffers(ctx, x)
    ctx.reduce_scatter(gradient, shard).wait()
    gathered = ctx.all_gather(shard, weights)
    kept = ctx.buffer("kept", np.zeros(len(shard)))
    ctx.compute(add_one, reads=shard, writes=kept)
    gathered.wait()
    return weights, kept


def next_to_it(ctx, x):
    """The other half of a buffer that a reduction reads is free."""
    gradient, _, weights = _buffers(ctx, x)
    total = ctx.all_reduce(gradient[:2], weights[:2])
    ctx.compute(clear, writes=gradient[2:])
    total.wait()
    return gradient, weights[:2]


def waits_twice(ctx, x):
    gradient, shard, _ = _buffers(ctx, x)
    reduced = ctx.reduce_scatter(gradient, shard)
    reduced.wait()
    ctx.compute(shrink, writes=shard)
    reduced.wait()
    return shard


def recorded_by_hand(ctx, x):
    gradient, shard, weights = _buffers(ctx, x)
    ready = ctx.record()
    ctx.reduce_scatter(gradient, shard, after=ready).wait()
    ctx.compute(shrink, writes=shard)
    updated = ctx.record()
    ctx.compute(clear, writes=gradient)
    ctx.all_gather(shard, weights, after=updated).wait()
    return weights, gradient


RIGHT = (
    sharded_step, straight_on, two_steps, two_buckets, read_during_the_gather, next_to_it, waits_twice,
    recorded_by_hand,
)  # fmt: skip

# broken: the comments say where the two operations are that nothing orders


def never_waits(ctx, x):
    gradient, shard, _ = _buffers(ctx, x)
    ctx.reduce_scatter(gradient, shard)  # first
    ctx.compute(shrink, writes=shard)  # second
    return None


def reads_early(ctx, x):
    gradient, shard, _ = _buffers(ctx, x)
    kept = ctx.buffer("kept", np.zeros(len(shard)))
    reduced = ctx.reduce_scatter(gradient, shard)  # first
    ctx.compute(add_one, reads=shard, writes=kept)  # second
    reduced.wait()
    return kept


def overwrites_during_the_gather(ctx, x):
    gradient, shard, weights = _buffers(ctx, x)
    ctx.reduce_scatter(gradient, shard).wait()
    gathered = ctx.all_gather(shard, weights)  # first
    ctx.compute(clear, writes=shard)  # second
    gathered.wait()
    return weights


def overwrites_the_gradient(ctx, x):
    gradient, shard, _ = _buffers(ctx, x)
    reduced = ctx.reduce_scatter(gradient, shard)  # first
    ctx.compute(clear, writes=gradient)  # second
    reduced.wait()
    return shard


def wrong_request(ctx, x):
    gradient, _, weights = _buffers(ctx, x)
    total = ctx.buffer("total", np.zeros(x.size))
    first = ctx.all_reduce(gradient, weights, stream="another")
    ctx.all_reduce(gradient, total)  # first
    first.wait()
    ctx.compute(shrink, writes=total)  # second
    return total


def never_gathered(ctx, x):
    gradient, shard, weights = _buffers(ctx, x)
    ctx.reduce_scatter(gradient, shard).wait()
    ctx.all_gather(shard, weights)  # first
    return weights


def chained_on_two_streams(ctx, x):
    gradient, shard, weights = _buffers(ctx, x)
    ctx.reduce_scatter(gradient, shard)  # first
    gathered = ctx.all_gather(shard, weights, stream="another")  # second
    gathered.wait()
    return weights


def one_target_for_two(ctx, x):
    gradient, _, weights = _buffers(ctx, x)
    doubled = ctx.buffer("doubled", 2 * x)
    first = ctx.all_reduce(gradient, weights)  # first
    second = ctx.all_reduce(doubled, weights, stream="another")  # second
    first.wait()
    second.wait()
    return weights


def one_element_too_far(ctx, x):
    gradient, _, weights = _buffers(ctx, x)
    total = ctx.all_reduce(gradient[:3], weights[:3])  # first
    ctx.compute(clear, writes=gradient[2:])  # second
    total.wait()
    return weights[:3]


BROKEN_ON_BOTH = (
    never_waits, reads_early, overwrites_during_the_gather, overwrites_the_gradient, wrong_request, never_gathered,
    chained_on_two_streams, one_target_for_two, one_element_too_far,
)  # fmt: skip

# broken where a stream does not wait for the compute stream by itself; MPI begins a call when the rank comes to it


def gathers_what_is_not_updated(ctx, x):
    gradient, shard, weights = _buffers(ctx, x)
    ctx.reduce_scatter(gradient, shard).wait()
    ctx.compute(shrink, writes=shard)  # first
    ctx.all_gather(shard, weights, after=None).wait()  # second
    return weights


def recorded_too_early(ctx, x):
    gradient, shard, weights = _buffers(ctx, x)
    ctx.reduce_scatter(gradient, shard).wait()
    ready = ctx.record()
    ctx.compute(shrink, writes=shard)  # first
    ctx.all_gather(shard, weights, stream="another", after=ready).wait()  # second
    return weights


BROKEN_IN_ORDER = gathers_what_is_not_updated, recorded_too_early

# right where operations of one stream come in order; on MPI, requests are complete each by itself


def waits_for_the_last_only(ctx, x):
    gradient, _, weights = _buffers(ctx, x)
    total = ctx.buffer("total", np.zeros(x.size))
    ctx.all_reduce(gradient, weights)  # first
    ctx.all_reduce(gradient, total).wait()
    ctx.compute(shrink, writes=weights)  # second
    return weights, total


def chained_on_one_stream(ctx, x):
    gradient, shard, weights = _buffers(ctx, x)
    ctx.reduce_scatter(gradient, shard)  # first
    ctx.all_gather(shard, weights).wait()  # second
    return weights


BROKEN_BY_REQUEST = waits_for_the_last_only, chained_on_one_stream

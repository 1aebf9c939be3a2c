"""The exercise whose answer is a plan, against right plans and wrong ones."""

from dataclasses import replace

import numpy as np
import pytest

from collectlab.exercises.overlapping import two_buckets


def of_layer(layer, x):
    def backward(gradient):
        gradient[:] = layer * x

    return backward


def halve(sums):
    sums *= 0.5


class Halves:
    """The buffers of the exercise, and its steps by name, for plans in any order."""

    def __init__(self, ctx, x):
        self.ctx, self.x, n = ctx, x, x.size
        self.gradients = ctx.buffer("gradients", np.zeros(2 * n))
        self.sums = ctx.buffer("sums", np.zeros(2 * n))
        self.part = {1: slice(0, n), 2: slice(n, 2 * n)}

    def back(self, layer):
        self.ctx.compute(of_layer(layer, self.x), writes=self.gradients[self.part[layer]])

    def reduce(self, layer, **settings):
        part = self.part[layer]
        return self.ctx.all_reduce(self.gradients[part], self.sums[part], **settings)

    def halve(self):
        self.ctx.compute(halve, writes=self.sums)
        return self.sums


def as_asked(ctx, x):
    h = Halves(ctx, x)
    h.back(2)
    second = h.reduce(2)
    h.back(1)
    first = h.reduce(1)
    second.wait()
    first.wait()
    return h.halve()


def on_two_streams(ctx, x):
    h = Halves(ctx, x)
    h.back(2)
    events = [h.reduce(2, stream="one")]
    h.back(1)
    events.append(h.reduce(1, stream="two"))
    for event in reversed(events):
        event.wait()
    return h.halve()


def half_by_half(ctx, x):
    h = Halves(ctx, x)
    h.back(2)
    second = h.reduce(2)
    h.back(1)
    second.wait()
    ctx.compute(halve, writes=h.sums[h.part[2]])
    h.reduce(1).wait()
    ctx.compute(halve, writes=h.sums[h.part[1]])
    return h.sums


def buffers_of_other_names(ctx, x):
    n, sums = x.size, ctx.buffer("of both", np.zeros(2 * x.size))
    late, early = ctx.buffer("late", np.zeros(n)), ctx.buffer("early", np.zeros(n))
    ctx.compute(of_layer(2, x), writes=late)
    second = ctx.all_reduce(late, sums[n:])
    ctx.compute(of_layer(1, x), writes=early)
    second.wait()
    ctx.all_reduce(early, sums[:n]).wait()
    ctx.compute(halve, writes=sums)
    return sums


def in_four_buckets(ctx, x):
    h, events = Halves(ctx, x), []
    for layer in (2, 1):
        h.back(layer)
        for part in (slice(0, 1), slice(1, x.size)):
            events.append(ctx.all_reduce(h.gradients[h.part[layer]][part], h.sums[h.part[layer]][part]))
    for event in events:
        event.wait()
    return h.halve()


def by_way_of_others(ctx, x):
    """The sums are reduced into buffers of their own, and put together at the end."""
    n = x.size
    gradients, sums = ([ctx.buffer(f"{of} {k}", np.zeros(n)) for k in (1, 2)] for of in ("gradient", "sum"))
    both = ctx.buffer("both", np.zeros(2 * n))
    events = []
    for layer in (2, 1):
        ctx.compute(of_layer(layer, x), writes=gradients[layer - 1])
        events.append(ctx.all_reduce(gradients[layer - 1], sums[layer - 1]))

    def join(first, second, both):
        both[:n], both[n:] = first / 2, second / 2

    for event in events:
        event.wait()
    ctx.compute(join, reads=sums, writes=both)
    return both


RIGHT = as_asked, on_two_streams, half_by_half, buffers_of_other_names, in_four_buckets, by_way_of_others


@pytest.mark.parametrize("plan", RIGHT, ids=lambda plan: plan.__name__)
def test_right_plans_pass(plan):
    verdict = two_buckets(plan)
    assert verdict and verdict.text.startswith("right on 1, 2 and 3 ranks, with streams and with requests: "), verdict


def too_soon(ctx, x):
    h = Halves(ctx, x)
    h.back(2)
    second = h.reduce(2)
    h.back(1)
    first = h.reduce(1)
    sums = h.halve()
    second.wait()
    first.wait()
    return sums


def the_wrong_one(ctx, x):
    h = Halves(ctx, x)
    h.back(2)
    h.reduce(2)
    h.back(1)
    h.reduce(1).wait()
    return h.halve()


def no_wait(ctx, x):
    h = Halves(ctx, x)
    h.back(2)
    h.reduce(2)
    h.back(1)
    h.reduce(1)
    return h.halve()


def given_away(ctx, x):
    h = Halves(ctx, x)
    h.back(2)
    second = h.reduce(2)
    first = h.reduce(1)
    h.back(1)
    second.wait()
    first.wait()
    return h.halve()


def read_too_soon(ctx, x):
    h = Halves(ctx, x)
    h.back(2)
    second = h.reduce(2)
    h.back(1)
    first = h.reduce(1)
    halved = ctx.buffer("halved", np.zeros(2 * x.size))

    def half_of(sums, halved):
        halved[:] = sums / 2

    ctx.compute(half_of, reads=h.sums, writes=halved)
    second.wait()
    first.wait()
    return halved


def one_after_the_other(ctx, x):
    h = Halves(ctx, x)
    for layer in (2, 1):
        h.back(layer)
        h.reduce(layer).wait()
    return h.halve()


def all_at_the_end(ctx, x):
    h = Halves(ctx, x)
    h.back(2)
    h.back(1)
    for event in [h.reduce(2), h.reduce(1)]:
        event.wait()
    return h.halve()


def halved_meanwhile(ctx, x):
    """Something is computed while a reduction is under way, and a buffer made; but no layer's gradient."""
    h = Halves(ctx, x)
    h.back(2)
    h.back(1)
    second, first = h.reduce(2), h.reduce(1)
    ctx.buffer("more", np.zeros(3))
    second.wait()
    ctx.compute(halve, writes=h.sums[h.part[2]])
    first.wait()
    ctx.compute(halve, writes=h.sums[h.part[1]])
    return h.sums


def the_first_layer_first(ctx, x):
    h = Halves(ctx, x)
    h.back(1)
    first = h.reduce(1)
    h.back(2)
    for event in (first, h.reduce(2)):
        event.wait()
    return h.halve()


def within_a_layer(ctx, x):
    """The second layer's gradient is computed and reduced in two pieces; the first layer's when that is over."""
    h, events = Halves(ctx, x), []
    for piece in (slice(0, 1), slice(1, x.size)):
        gradient, sums = (buffer[h.part[2]][piece] for buffer in (h.gradients, h.sums))
        ctx.compute(of_layer(2, x[piece]), writes=gradient)
        events.append(ctx.all_reduce(gradient, sums))
    for event in events:
        event.wait()
    h.back(1)
    h.reduce(1).wait()
    return h.halve()


def not_halved(ctx, x):
    h = Halves(ctx, x)
    h.back(2)
    second = h.reduce(2)
    h.back(1)
    for event in (second, h.reduce(1)):
        event.wait()
    return h.sums


def halved_twice(ctx, x):
    ctx.compute(halve, writes=(sums := as_asked(ctx, x)))
    return sums


def exchanged(ctx, x):
    h = Halves(ctx, x)
    h.back(2)
    second = ctx.all_reduce(h.gradients[h.part[2]], h.sums[h.part[1]])
    h.back(1)
    for event in (second, ctx.all_reduce(h.gradients[h.part[1]], h.sums[h.part[2]])):
        event.wait()
    return h.halve()


def the_gradients(ctx, x):
    h = Halves(ctx, x)
    h.back(2)
    second = h.reduce(2)
    h.back(1)
    for event in (second, h.reduce(1)):
        event.wait()
    h.halve()
    return h.gradients


def nothing_reduced(ctx, x):
    h = Halves(ctx, x)
    h.back(2)
    h.back(1)
    ctx.compute(halve, writes=h.gradients)
    return h.gradients


def one_bucket_only(ctx, x):
    h = Halves(ctx, x)
    h.back(2)
    second = h.reduce(2)
    h.back(1)
    second.wait()
    return h.halve()


def the_other_bucket_only(ctx, x):
    h = Halves(ctx, x)
    h.back(2)
    h.back(1)
    h.reduce(1).wait()
    return h.halve()


def zeros(ctx, x):
    """Source and target are exchanged."""
    h = Halves(ctx, x)
    h.back(2)
    second = ctx.all_reduce(h.sums[h.part[2]], h.gradients[h.part[2]])
    h.back(1)
    for event in (second, ctx.all_reduce(h.sums[h.part[1]], h.gradients[h.part[1]])):
        event.wait()
    return h.halve()


def into_the_same_place(ctx, x):
    h = Halves(ctx, x)
    h.back(2)
    second = h.reduce(2)
    h.back(1)
    for event in (second, ctx.all_reduce(h.gradients[h.part[1]], h.sums[h.part[2]])):
        event.wait()
    return h.halve()


WRONG = {
    "into the same place": (into_the_same_place, "two reductions write the same sums"),
    "too soon": (too_soon, "The wait is there, and too late"),
    "the wrong one": (the_wrong_one, "one reduction was waited for"),
    "no wait": (no_wait, "nothing waits for the reductions before"),
    "given away": (given_away, "Start the reduction of a layer after its gradient"),
    "read too soon": (read_too_soon, "a sum is read before its reduction is complete"),
    "one after the other": (one_after_the_other, "nothing is computed while a reduction is under way"),
    "other layer": (the_first_layer_first, "A backward pass comes to the second layer first"),
    "zeros": (zeros, "It is all_reduce(source, target)"),
    "not halved": (not_halved, "not halved"),
    "halved twice": (halved_twice, "halved twice"),
    "exchanged": (exchanged, "in each other's place"),
    "the gradients": (the_gradients, "not the sums"),
    "nothing reduced": (nothing_reduced, "nothing was added over the ranks"),
    "the other bucket only": (the_other_bucket_only, "only the first layer's gradient was reduced"),
    "one bucket only": (one_bucket_only, "only the second layer's gradient was reduced"),
}


@pytest.mark.parametrize(("name", "case"), WRONG.items(), ids=WRONG)
def test_wrong_plans_are_recognised(name, case):
    plan, said = case
    verdict = two_buckets(plan)
    assert not verdict and verdict.mistake == name and said in verdict.text, verdict
    if "hazard on" in verdict.text:
        assert "mend: " in verdict.text and "line " in verdict.text


def test_every_mistake_is_held_against_a_plan():
    assert {mistake.name for mistake in two_buckets.mistakes} == set(WRONG)
    for plan in (all_at_the_end, halved_meanwhile):
        assert two_buckets(plan).mistake == "one after the other"
    assert two_buckets(within_a_layer).mistake == "other layer"


OTHER = [
    (..., "unanswered", "no answer yet"),
    (3, "kind", "a function, plan(ctx, x)"),
    (lambda: None, "arguments", "two arguments"),
    (lambda ctx, x: ..., "unanswered", "three dots"),
    (lambda ctx, x: None, "kind", "a function without a return"),
    (lambda ctx, x: 7.0, "kind", "returns 7.0. There, that is not one buffer"),
    (lambda ctx, x: (as_asked(ctx, x)[: x.size],), "kind", "return the one that holds all of it"),
    (lambda ctx, x: ctx.buffer("ones", np.ones(x.size)), "wrong", "that is a list of 3 numbers. What is expected: a"),
    (lambda ctx, x: ctx.all_reduce(x, x), "fails", "in the simulator the plan fails"),
    (lambda ctx, x: ctx.all_reduce(x, x), "fails", "as ctx.buffer returns them"),
    (lambda ctx, x: ctx.comm.Allreduce(x, x), "fails", "no attribute 'comm'"),
    (lambda ctx, x: as_asked(ctx, x) * 0.5, "fails", '"sums" is memory that streams use, not an array'),
    (lambda ctx, x: ctx.compute(halve(ctx.buffer("sums", x))), "fails", "give ctx.compute a function that uses it"),
    (lambda ctx, x: np.add(ctx.buffer("sums", x), 1), "fails", "give ctx.compute a function that uses it"),
]


@pytest.mark.parametrize(("answer", "mistake", "said"), OTHER)
def test_other_answers_get_a_sentence(answer, mistake, said):
    verdict = two_buckets(answer)
    assert not verdict and verdict.mistake == mistake and said in verdict.text, verdict


def test_what_collectlab_refuses_is_said_without_its_own_lines():
    for plan in (lambda ctx, x: as_asked(ctx, x) * 0.5, lambda ctx, x: Halves(ctx, x).reduce(1) if ctx.rank else x):
        said = two_buckets(plan).text
        assert "raise " not in said and "plan.py" not in said and "simulated.py" not in said
        assert "test_plan_exercise.py, line " in said


def test_a_plan_that_never_ends_is_ended():
    def endless(ctx, x):
        while True:
            pass

    assert replace(two_buckets, timeout=1.0)(endless).mistake == "hangs"

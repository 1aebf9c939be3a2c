"""The exercises of the failure lab: right mends, wrong ones that have a name, and what the drill's answers get."""

from itertools import pairwise, permutations

import numpy as np
import pytest

import collectlab as cl
from collectlab.exercises import failures
from collectlab.layout import Partition


def uneven(count, nranks):
    cut = Partition.uneven(count, nranks)
    return [cut.slice(rank) for rank in range(nranks)]


def equal(n):
    return lambda nranks: [slice(rank * n, (rank + 1) * n) for rank in range(nranks)]


def floor(count, nranks):
    return equal(count // nranks)(nranks)


def ceiling(count, nranks):
    return equal(-(-count // nranks))(nranks)


def rest_to_the_last(count, nranks):
    ends = [count // nranks * rank for rank in range(nranks)] + [count]
    return [slice(*pair) for pair in pairwise(ends)]


def rest_to_the_first(count, nranks):
    n = -(-count // nranks)
    return [slice(min(rank * n, count), min((rank + 1) * n, count)) for rank in range(nranks)]


def by_ctx(ctx, signals, row):
    ctx.barrier(signals, row)


def by_hand(ctx, signals, row):
    peers = [peer for peer in range(ctx.nranks) if peer != ctx.rank]
    for peer in peers:
        signals.notify(peer, row)
    for peer in peers:
        signals.wait(peer, row, 1)


def with_signals_of_its_own(ctx, signals, row):
    ctx.barrier(ctx.signals("more rows", rows=1), 0)


def not_by_rank_0(ctx, signals, row):
    if ctx.rank:
        ctx.barrier(signals, row)


def not_at_all(ctx, signals, row):
    pass


def two_phases(
    cut=uneven, first=by_ctx, second=by_ctx, row=1, late=False, base=np.zeros_like, owners=None, collect=True,
    lay=np.concatenate,
):  # fmt: skip
    """A two-phase all-reduce in which one thing is changed."""

    def program(ctx, x):
        chunks, signals = cut(x.size, ctx.nranks), ctx.signals("rows", rows=2)
        data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
        mine = chunks[ctx.rank]
        data.store(x)
        first(ctx, signals, 0)
        total = sum(data.remote_load(peer, mine) for peer in range(ctx.nranks))
        if late:
            second(ctx, signals, row)
        result.store(total, mine)
        if not late:
            second(ctx, signals, row)
        if owners:
            order = owners(ctx.rank, ctx.nranks)
            return lay([result.remote_load(owner, chunks[owner]) for owner in order])
        y = base(x)
        for owner in range(ctx.nranks) if collect else [ctx.rank]:
            y[chunks[owner]] = result.remote_load(owner, chunks[owner])
        return y

    return program


def one_window(read_early=False, third=by_ctx, rows=3, last=2):
    """The same with the sums in the window of the inputs."""

    def program(ctx, x):
        chunks, signals = uneven(x.size, ctx.nranks), ctx.signals("rows", rows=rows)
        data, mine = ctx.window("data", x.size, x.dtype), chunks[ctx.rank]
        data.store(x)
        ctx.barrier(signals, 0)
        total = sum(data.remote_load(peer, mine) for peer in range(ctx.nranks))
        if read_early:
            y = np.concatenate([data.remote_load(peer, chunk) for peer, chunk in enumerate(chunks)])
        data.store(total, mine)
        ctx.barrier(signals, 1)
        if not read_early:
            y = np.concatenate([data.remote_load(peer, chunk) for peer, chunk in enumerate(chunks)])
        third(ctx, signals, last)
        return y

    return program


def pushed(ctx, x):
    chunks, signals = uneven(x.size, ctx.nranks), ctx.signals("rows", rows=2)
    data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
    mine = chunks[ctx.rank]
    data.store(x)
    ctx.barrier(signals, 0)
    total = sum(data.remote_load(peer, mine) for peer in range(ctx.nranks))
    for peer in range(ctx.nranks):
        result.remote_store(peer, total, mine)
    ctx.barrier(signals, 1)
    return result.load()


def gathered(ctx, x):
    chunks, signals = uneven(x.size, ctx.nranks), ctx.signals("rows", rows=2)
    data = ctx.window("data", x.size, x.dtype)
    data.store(x)
    ctx.barrier(signals, 0)
    y = np.concatenate([data.remote_load(peer, chunk) for peer, chunk in enumerate(chunks)])
    ctx.barrier(signals, 1)
    return y


def one_phase(ctx, x):
    data, signals = ctx.window("data", x.size, x.dtype), ctx.signals("rows", rows=2)
    data.store(x)
    ctx.barrier(signals, 0)
    y = sum(data.remote_load(peer) for peer in range(ctx.nranks))
    ctx.barrier(signals, 1)
    return y


def own_first(rank, nranks):
    return [(rank + step) % nranks for step in range(nranks)]


def past_the_last(ctx, x):
    """Case 3 without % ctx.nranks: the chunks themselves say that there is no such one."""
    chunks, signals = Partition.uneven(x.size, ctx.nranks), ctx.signals("rows", rows=2)
    data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
    mine = chunks.slice(ctx.rank)
    data.store(x)
    ctx.barrier(signals, 0)
    result.store(sum(data.remote_load(peer, mine) for peer in range(ctx.nranks)), mine)
    ctx.barrier(signals, 1)
    owners = [ctx.rank + step for step in range(ctx.nranks)]
    return np.concatenate([result.remote_load(owner % ctx.nranks, chunks.slice(owner)) for owner in owners])


def refuses(ctx, x):
    if x.size % ctx.nranks:
        raise ValueError("the ranks do not divide the length")
    return two_phases()(ctx, x)


EARLY = two_phases(row=0)  # case 1 as it was
RIGHT = {
    "mend_1": [failures.case(1).mended, two_phases(second=with_signals_of_its_own)],
    "mend_2": [failures.case(2).mended, two_phases(cut=rest_to_the_last), two_phases(cut=rest_to_the_first)],
    "mend_3": [two_phases(owners=lambda rank, nranks: range(nranks))],
    "mend_4": [failures.case(4).mended, pushed],
}
WRONG = {
    "mend_1": {
        "no such row": two_phases(row=2),
        "barriers do not match": two_phases(second=not_by_rank_0),
        "input too early": two_phases(first=not_at_all),
        "chunk too early": EARLY,
        "second call": two_phases(first=by_hand, second=by_hand),
        "own chunk only": two_phases(collect=False),
    },
    "mend_2": {
        "tail of zeros": two_phases(cut=floor),
        "tail of its own": two_phases(cut=floor, base=np.copy),
        "cut off": two_phases(cut=floor, owners=lambda rank, nranks: range(nranks)),
        "beyond the end": two_phases(cut=ceiling),
        "refused": refuses,
        "chunk too early": EARLY,
        "too much": one_phase,
    },
    "mend_3": {
        "own first": two_phases(owners=own_first),
        "own last": two_phases(owners=lambda rank, nranks: np.roll(range(nranks), -rank - 1).tolist()),
        "backwards": two_phases(owners=lambda rank, nranks: range(nranks)[::-1]),
        "the other way round": two_phases(
            owners=lambda rank, nranks: [(rank - k) % nranks for k in range(nranks)]
        ),
        "sorted": two_phases(owners=own_first, lay=lambda parts: np.sort(np.concatenate(parts))),
        "no such chunk": past_the_last,
        "own chunk only": two_phases(collect=False),
        "chunk too early": two_phases(late=True),
        "too much": one_phase,
    },
    "mend_4": {
        "own input": two_phases(collect=False, base=np.copy),
        "own chunk only": two_phases(collect=False),
        "inputs gathered": gathered,
        "no such row": one_window(rows=2),
        "barriers do not match": one_window(third=not_by_rank_0),
        "before the barrier": one_window(read_early=True),
        "no third barrier": one_window(third=not_at_all),
        "third barrier on a used row": one_window(last=1),
        "too much": one_phase,
    },
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_mend_passes(name):
    for program in RIGHT[name]:
        verdict = getattr(failures, name)(program)
        assert verdict, verdict.text


@pytest.mark.parametrize(("name", "mistake"), [(name, mistake) for name in WRONG for mistake in WRONG[name]])
def test_a_wrong_mend_is_told_what_is_wrong(name, mistake):
    exercise = getattr(failures, name)
    verdict = exercise(WRONG[name][mistake])
    assert not verdict and verdict.mistake == mistake, verdict.text
    message = next(one.message for one in exercise.mistakes if one.name == mistake)
    assert message in verdict.text


@pytest.mark.parametrize(
    "lay",
    (
        lambda parts: np.sort(np.concatenate(parts))[::-1],
        lambda parts: np.concatenate(sorted(parts, key=lambda part: part[:1].tolist())),
        lambda parts: np.concatenate(sorted(parts, key=lambda part: part.max(initial=0))),
    ),
)
def test_no_way_to_sort_puts_chunks_in_their_places(lay):
    assert not failures.mend_3(two_phases(owners=own_first, lay=lay))


def test_an_index_error_is_cited_at_the_line_of_the_program():
    text = failures.mend_3(past_the_last).text
    assert "in <listcomp>" in text or "in past_the_last" in text, text
    assert "chunks.slice(owner)" in text and "raise IndexError" not in text, text


@pytest.mark.parametrize("name", WRONG)
def test_every_mistake_of_a_mend_has_its_program(name):
    mistakes = [one.name for one in getattr(failures, name).mistakes]
    assert sorted(mistakes) == sorted(WRONG[name]) and len(set(mistakes)) == len(mistakes) >= 5


@pytest.mark.parametrize("number", (1, 2, 3, 4))
def test_a_case_as_it_was_is_no_mend(number):
    verdict = getattr(failures, f"mend_{number}")(failures.case(number).broken)
    assert not verdict and verdict.mistake in (
        "chunk too early",
        "tail of zeros",
        "own first",
        "own input",
    ), verdict.text


def test_the_allowed_difference_holds_for_every_order_and_no_lost_contribution_passes():
    """The bound that the exercise asks for, on the arrays of the exercise and on random ones."""
    rng = np.random.default_rng(8)
    for xs in [failures.ROUNDED, *(rng.standard_normal((4, 9)).astype(np.float32) for _ in range(40))]:
        allowed = 2 * 3 * 2.0**-24 * np.abs(xs).sum(axis=0, dtype=np.float64)
        sums = [((xs[a] + xs[b]) + xs[c]) + xs[d] for a, b, c, d in permutations(range(4))]
        sums += [(xs[a] + xs[b]) + (xs[c] + xs[d]) for a, b, c, d in permutations(range(4))]
        for one in sums:
            assert (np.abs(one.astype(np.float64) - sums[0]) <= allowed).all()
        for lost in xs:
            assert (np.abs(sums[0].astype(np.float64) - lost - sums[0]) > allowed).any()
    assert failures.allowed_in_5(6 * np.abs(failures.ROUNDED).sum(axis=0))
    assert failures.allowed_in_5([96, 6 * 2**25, 24, 1476])
    assert failures.allowed_in_5([96 * 2**-24, 12, 24 * 2**-24, 1476 * 2**-24]).mistake == "not in this unit"
    assert failures.allowed_in_5([1e-5] * 4).mistake == "one for all"


def test_the_sums_of_case_5_differ_at_element_1_alone():
    rank_order = failures.ROUNDED[0] + failures.ROUNDED[1] + failures.ROUNDED[2] + failures.ROUNDED[3]
    run = cl.simulate(failures.kernels.case_5, cl.per_rank(list(failures.ROUNDED)), ranks=4)
    for y in run.results:
        assert (y != rank_order).tolist() == [False, True, False, False]
        assert np.array_equal(y, run.results[0])


@pytest.mark.parametrize("number", range(6, 16))
def test_the_drill_names_each_cause_and_says_of_the_others_how_they_would_show(number):
    exercise = getattr(failures, f"cause_of_{number}")
    assert exercise(exercise.expected.upper())
    assert exercise(...).text == "no answer yet: put one of the causes in the table in the place of the three dots."
    said = [exercise(option) for option in exercise.options if option != exercise.expected]
    assert not any(said) and len({verdict.text for verdict in said}) == len(said) >= 5
    assert [verdict.mistake for verdict in said] == [
        one for one in exercise.options if one != exercise.expected
    ]


def test_the_causes_of_the_drill_are_all_different():
    causes = [getattr(failures, f"cause_of_{number}").expected for number in range(6, 16)]
    assert len(set(causes)) == 10

"""What one call says about a program: nothing when it is right, and what is wrong when it is not."""

import dataclasses
import functools

import numpy as np
import pytest

import collectlab as cl
from collectlab.explore import diagnose, findings, witness
from collectlab.explore.witness import part
from collectlab.layout import Partition

KERNELS = {name: getattr(cl.kernels, name) for name in cl.kernels.__all__}
KERNELS = {name: kernel for name, kernel in KERNELS.items() if hasattr(kernel, "all_reduce")}


def inputs(nranks, count, dtype=np.float32):
    """Normal numbers that differ by rank."""
    rng = np.random.default_rng(nranks * 100 + count)
    return [rng.standard_normal(count).astype(dtype) for _ in range(nranks)]


@pytest.mark.parametrize("name", KERNELS)
def test_no_kernel_is_accused_at_any_number_of_ranks(name):
    kernel, cost = KERNELS[name].all_reduce, KERNELS[name].all_reduce_cost
    for nranks in range(1, 10):
        for count in (0, 1, 2, 3, 5, 8, 9, 13, 40):
            xs = [np.arange(count) * (rank + 1) for rank in range(nranks)]
            found = diagnose(kernel, xs, expected=cl.semantics.all_reduce, cost=cost, calls=2)
            assert not found, f"{nranks} ranks, {count} elements: {found}"


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_is_said_of_a_kernel_that_is_right(name):
    kernel, cost = KERNELS[name].all_reduce, KERNELS[name].all_reduce_cost
    for nranks in (1, 2, 3, 5):
        for count in (0, 1, 7):
            for op in ("sum", "avg", "max"):
                found = diagnose(
                    kernel, inputs(nranks, count), op, cost=cost, calls=2,
                    expected=functools.partial(cl.semantics.all_reduce, op=op),
                )  # fmt: skip
                assert not found and str(found) == "nothing is wrong", str(found)


def two_phases(fault=""):
    """Two phases by hand, right or with one fault."""

    def program(ctx, x):
        p, chunks = ctx.nranks, Partition.uneven(x.size, ctx.nranks)
        data, result = ctx.window("data", x.size, x.dtype), ctx.window("result", x.size, x.dtype)
        rows, mine = ctx.signals("rows", rows=3), chunks.slice(ctx.rank)
        if fault == "stores into its input":
            x += 1
        if fault != "stale input" or rows.generation == 1:
            data.store(x)
        ctx.barrier(rows, 0)
        peers = list(range(p))[: -1 if fault == "one missing" else p] + [0] * (fault == "rank 0 twice")
        total = sum(data.remote_load(peer, mine) for peer in peers)
        if fault == "all of the window":
            total = sum(data.remote_load(peer) for peer in range(p))[mine]
        if fault == "divided":
            total = total / p
        if fault != "result not written" or ctx.rank:
            result.store(total.astype(x.dtype), mine)
        ctx.barrier(rows, 0 if fault == "row reused" else 1)
        y = ctx.xp.zeros_like(x)
        for c in range(0 if fault.startswith("no gather") else p):
            y[chunks.slice((c + (fault == "chunks turned")) % p)] = result.remote_load(c, chunks.slice(c))
        if fault.startswith("no gather"):
            y[:] = x
        if fault == "no gather but of its own":
            y[mine] = result.load(mine)
        if fault == "raises" and ctx.rank == 1:
            raise ValueError("not today")
        if fault == "leaves early" and ctx.rank == 1:
            return y
        if fault == "leaves early":
            ctx.barrier(rows, 2)
        return y[:-1] if fault == "too short" else y

    return program


WRONG = {
    "one missing": ("wrong", "every rank, elements 0:8: rank 3's are missing; they should hold the sum of every"),
    "rank 0 twice": ("wrong", "every rank, elements 0:8: hold rank 0's elements 0:8 twice"),
    "divided": ("wrong", "every rank: divided by the number of ranks once too often"),
    "result not written": ("wrong", "every rank, elements 0:2: hold memory that nobody has written"),
    "chunks turned": ("wrong", "2:4: hold the sum of everyone's elements 0:2; chunk 0 stands where chunk 1 belongs"),
    "no gather": ("wrong", "every rank, elements 0:8: hold only its own contribution"),
    "too short": ("wrong", "every rank, element 7: does not exist"),
    "stores into its input": ("wrong", "hold no sum of identified elements"),
    "stale input": ("wrong", "hold the sum of everyone's elements 0:8 of the call before"),
    "all of the window": ("bytes", "rank 0 moves 288 bytes, 192 more than its card says; every rank moves more than"),
    "row reused": ("race", "mend: give the second barrier a row of its own"),
    "raises": ("raised", "rank 1 raised ValueError: not today\n    line "),
    "leaves early": ("deadlock", "mend: let rank 1 come to the barrier on row 2"),
}  # fmt: skip


def found_in(fault, nranks=4, count=8, dtype=np.float32):
    """The diagnosis of two calls on 4 ranks."""
    xs = inputs(nranks, count, dtype)
    cost = cl.kernels.two_phase.all_reduce_cost
    return diagnose(two_phases(fault), xs, expected=cl.semantics.all_reduce, cost=cost, calls=2)


def ends_with(*pairs):
    """The first line on a rank that returns these values, where the others of `pairs` were expected."""
    got, want = (np.array(side) for side in zip(*pairs, strict=True))
    return diagnose(lambda ctx, x: got, [want], expected=list)[0].text.splitlines()[0]


def test_the_elements_that_are_named_are_those_that_are_wrong_and_values_are_cut_short_instead():
    right = [(k, k) for k in range(1, 4)]
    low = np.iinfo(np.int64).min + 1
    wrong = [(-k, k) for k in range(1, 8)]
    assert ends_with(*wrong) == (
        "rank 0 ends with [-1, -2, -3, -4, ...] in elements 0:7 instead of [1, 2, 3, 4, ...]"
    )
    assert ends_with(right[0], wrong[1], right[2], wrong[3]) == (
        "rank 0 ends with [-2, -4] in elements 1 and 3 instead of [2, 4]"
    )
    assert ends_with(*wrong[:2], *right, wrong[2], *right, *wrong[3:6]) == (
        "rank 0 ends with [-1, -2, -3, -4, ...] in elements 0:2, 5 and 9:12 instead of [1, 2, 3, 4, ...]"
    )
    assert ends_with(*right, (low, 7)) == (
        "rank 0 ends with memory that nobody has written in element 3 instead of [7]"
    )
    assert ends_with(*wrong[:2]) == "rank 0 ends with [-1, -2] instead of [1, 2]"


def test_a_witness_shows_the_elements_that_race_and_says_where_others_are_wrong_too():
    got, want = np.array([9, 9, 3, 9]), np.array([1, 2, 3, 4])
    assert part(got, want, near=range(2)) == (" in elements 0:2, among others,", "[9, 9]", "[1, 2]")
    assert part(got, want, near=range(4)) == (" in elements 0:2 and 3", "[9, 9, 9]", "[1, 2, 4]")


def test_lines_on_single_ranks_come_in_rank_order():
    text = found_in("no gather but of its own")[0].text
    ranks = [int(line.split()[1].rstrip(",")) for line in text.splitlines() if line.startswith("    rank ")]
    assert len(ranks) == 6 and ranks == sorted(ranks), text


@pytest.mark.parametrize("fault", WRONG)
def test_a_fault_is_named(fault):
    kind, said = WRONG[fault]
    found = found_in(fault)
    assert found.kinds[0] == kind, str(found)
    assert said in found[0].text, str(found)
    assert found.run.nranks == 4 and str(found[0]) == found[0].text


@pytest.mark.parametrize(
    ("op", "times", "said"),
    (
        ("sum", 1, "divided by the number of ranks once too often"),
        ("sum", 2, "divided by the number of ranks twice too often"),
        ("avg", 1, "divided by the number of ranks once too often"),
        ("avg", 2, "divided by the number of ranks twice too often"),
        ("avg", -1, "the number of ranks times too large, as if not divided by it"),
        ("sum", -1, "the number of ranks times too large, as if not divided by it"),
        ("avg", 3, None),
        ("sum", -2, None),
    ),
)
def test_a_sum_or_average_that_was_divided_too_often_or_not_at_all_is_named(op, times, said):
    def program(ctx, x):
        return cl.kernels.mesh.all_reduce(ctx, x, op) / float(ctx.nranks) ** times

    xs = [np.arange(1.0, 7.0) * 10**rank for rank in range(3)]
    (found,) = diagnose(program, xs, expected=functools.partial(cl.semantics.all_reduce, op=op))
    lines = [line.strip() for line in found.text.splitlines()]
    assert found.kind == "wrong" and (f"every rank: {said}" in lines if said else "divided" not in found.text), found


@pytest.mark.parametrize(
    ("wasteful", "said"),
    (([1], ""), ([0, 2], "; ranks 0 and 2 move more than that"), ([0, 1, 2], "; every rank moves more than that")),
)
def test_all_ranks_that_move_too_much_are_named(wasteful, said):
    def program(ctx, x):
        y = cl.kernels.mesh.all_reduce(ctx, x)
        if ctx.rank in wasteful:
            ctx.window("more", 2, np.int64).remote_load((ctx.rank + 1) % 3)
        else:
            ctx.window("more", 2, np.int64)
        return y

    xs = [np.arange(4) + rank for rank in range(3)]
    (found,) = diagnose(program, xs, expected=cl.semantics.all_reduce, cost=cl.kernels.mesh.all_reduce_cost)
    first = f"rank {wasteful[0]} moves 80 bytes, 16 more than its card says"
    assert found.kind == "bytes" and found.text.splitlines()[0].startswith(first + said)
    assert said or found.text.splitlines()[0] == first


def test_an_error_is_cited_at_the_line_of_the_program_that_led_to_it():
    """Neither a line of the package that it calls, nor one of NumPy."""

    def no_such_chunk(ctx, x):
        return x[Partition.uneven(x.size, ctx.nranks).slice(ctx.rank + 1)]

    def no_such_axis(ctx, x):
        return np.concatenate([np.roll(x, 1, axis=3)])

    for program, line in ((no_such_chunk, "slice(ctx.rank + 1)]"), (no_such_axis, "np.roll(x, 1, axis=3)])")):
        text = str(diagnose(program, inputs(2, 4)))
        number = program.__code__.co_firstlineno + 1
        assert f"    line {number}, in {program.__name__}:  return " in text and line in text, text
    text = str(diagnose(cl.kernels.mesh.all_reduce, inputs(2, 4), "no such op"))
    assert "    line " in text and "raised" in text, "a kernel of the package is cited too"


def test_an_input_that_has_changed_is_named():
    found = found_in("stores into its input")
    assert found.kinds == ["wrong", "wrong"] and "rank 0, call 1, has changed its own input: [" in found[1].text


def test_the_same_program_without_a_fault_is_not_accused():
    for nranks, count in ((1, 3), (2, 2), (3, 7), (4, 8), (5, 3), (7, 0)):
        for dtype in (np.float32, np.float64, np.int64):
            assert not found_in("", nranks, count, dtype)


def test_another_order_of_sums_is_no_fault_and_a_wrong_last_digit_is():
    def backwards(ctx, x, wrong):
        data, rows = ctx.window("d", x.size, x.dtype), ctx.signals("r", rows=2)
        data.store(x)
        ctx.barrier(rows, 0)
        y = data.remote_load(ctx.nranks - 1)
        for peer in range(ctx.nranks - 2, -1, -1):
            y = y + data.remote_load(peer)
        ctx.barrier(rows, 1)
        return y * np.float32(1 + wrong)

    xs = [np.array([2.0**24, 1, 3e-3], np.float32), *inputs(3, 3), np.array([-(2.0**24), 1, -3e-3], np.float32)]
    assert not diagnose(backwards, xs, 0.0, expected=cl.semantics.all_reduce)
    found = diagnose(backwards, xs, 1e-4, expected=cl.semantics.all_reduce)
    assert found.kinds == ["wrong"]


def test_a_race_is_told_with_its_witness_and_its_mend_in_that_order():
    text = found_in("row reused")[0].text
    order = ["race on window", "nothing orders the two", "a schedule in which it does harm: ", "    event ", "mend: "]
    places = [text.index(words) for words in order]
    assert places == sorted(places) and "and so do 11 more pairs of ranks" in text


def test_one_run_of_real_ranks_is_diagnosed_too():
    def turned(ctx, x):
        y = cl.kernels.two_phase.all_reduce(ctx, x)
        return np.roll(y, x.size // ctx.nranks) if ctx.rank == 1 else y

    def racing(ctx, x):
        window = ctx.window("w", x.size, x.dtype)
        window.store(x)
        ctx.comm.Barrier()
        return sum(window.remote_load(peer) for peer in range(ctx.nranks))

    xs = cl.provenance.identify(3, 6)
    cards = [cl.kernels.two_phase.all_reduce_cost(3, xs[0].size, 8, rank) for rank in range(3)]
    with cl.launch(3, device="cpu") as ranks:
        right = ranks.submit(cl.kernels.two_phase.all_reduce, cl.per_rank(xs)).wait()
        assert findings(right, expected=cl.semantics.all_reduce(xs), cards=cards) == []
        assert findings(right, cards=[dataclasses.replace(card, nbytes=0) for card in cards]).kinds == ["bytes"]
        found = findings(ranks.submit(turned, cl.per_rank(xs)).wait(), expected=cl.semantics.all_reduce(xs))
        assert found.kinds == ["wrong"]
        assert "rank 1, elements 0:2: hold the sum of everyone's elements 4:6" in str(found)
        assert "chunk 2 stands where chunk 0 belongs" in str(found)
        found = findings(ranks.submit(racing, cl.per_rank(xs)).wait(), expected=cl.semantics.all_reduce(xs))
        assert set(found.kinds) == {"race"} and "waits for no signal" in str(found)
        reused, ys = two_phases("row reused"), cl.per_rank(inputs(3, 6))
        race = ranks.submit(reused, ys).wait().trace.races()[0]
        assert witness(reused, ys, ranks=3, race=race), "a race of real ranks has its witness in the simulator"
        found = findings(ranks.submit(lambda ctx: 1 / (ctx.rank - 1)).wait())
        assert found.kinds == ["raised"] and "rank 1 raised ZeroDivisionError" in str(found)


def test_the_root_of_a_reduce_alone_has_a_result():
    def reduce(ctx, x, missing):
        data, rows = ctx.window("d", x.size, x.dtype), ctx.signals("r", rows=2)
        data.store(x)
        ctx.barrier(rows, 0)
        total = sum(data.remote_load(peer) for peer in range(ctx.nranks - missing)) if ctx.rank == 0 else None
        ctx.barrier(rows, 1)
        return total

    assert not diagnose(reduce, inputs(3, 4), 0, expected=cl.semantics.reduce)
    found = diagnose(reduce, inputs(3, 4), 1, expected=cl.semantics.reduce)
    assert "rank 0, elements 0:4: rank 2's are missing" in str(found)


@pytest.mark.parametrize(
    ("bad", "said"),
    (
        ({"inputs": np.ones(4)}, "a list is accepted, with one array for each rank"),
        ({"inputs": []}, r"diagnose\(ranks=0\): 1 to 64"),
        ({"inputs": [np.ones(2)], "calls": 0}, r"diagnose\(calls=0\)"),
    ),
)
def test_what_cannot_be_diagnosed_is_refused_by_name(bad, said):
    with pytest.raises((TypeError, ValueError), match=said):
        diagnose(lambda ctx, x: x, **bad)

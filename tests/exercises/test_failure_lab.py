"""The failure lab: each broken kernel is caught and explained in one run; none that is mended or sound is accused."""

import functools
import inspect
import re
from itertools import product
from pathlib import Path

import nbformat
import numpy as np
import pytest
from kernel_cases import KERNELS, OPS, REDUCE
from kernel_cases import inputs as inputs_of

import collectlab as cl
from collectlab import explore, semantics
from collectlab.exercises import failures
from collectlab.exercises.failures.catalogue import CASES
from collectlab.kernels import disciplines

# the number of a case: the kind of the finding that explains it, words in it, pieces of source whose lines it cites
EXPLAINED = {
    1: (
        "race",
        ('window "result"', "row 0", "asks for 1", "mend: give the second barrier a row of its own"),
        ("result.store(", "result.remote_load("),
    ),
    2: ("wrong", ("elements 4:6", "nothing"), ()),
    3: ("wrong", ("rank 1, elements 0:2", "2:4", "chunk 1 stands where chunk 0 belongs"), ()),
    4: ("wrong", ("rank 0, elements 2:8", "only its own contribution"), ()),
    6: ("wrong", ("element 1", "nothing"), ()),
    7: ("wrong", ("rank 0's", "twice"), ()),
    8: (
        "deadlock",
        ("row 0 of rank 3; it notified that of ranks 1 and 2", "mend: let rank 0 notify rank 3 on row 0"),
        (),
    ),
    9: (
        "race",
        ('window "data"', "row 0", "asks for 0", "mend: let that wait ask for 1"),
        ("data.store(x)", "data.remote_load(", "rows.wait("),
    ),
    10: (
        "race",
        ('window "result"', "row 1", "mend: a barrier on a row of its own, after rank 0 stores"),
        ("result.store(", "result.remote_load("),
    ),
    11: (
        "race",
        ('window "data"', "asks for 1", "mend: let that wait ask for signals.generation"),
        ("data.store(x)", "data.remote_load(", "rows.wait("),
    ),
    12: (
        "race",
        ('window "data"', "mend: a barrier on a row of its own, after rank 1 loads"),
        ("data.store(y)", "data.remote_load("),
    ),
    13: ("wrong", ("rank 4's", "missing"), ()),
    14: ("wrong", ("elements 0:2", "6:8", "chunk 3 stands where chunk 0 belongs"), ()),
    15: ("wrong", ("divided by the number of ranks once too often",), ()),
    16: ("race", ('window "arrived"', "element 0 of rank 0"), ("arrived.remote_store(",)),
    17: (
        "deadlock",
        ("row 1", "it notified row 0", "mend: notify and wait on the same row: 0 is notified, 1 is waited for"),
        ("rows.notify(",),
    ),
    18: (
        "race",
        (
            "rank 3 stores", "waits for no signal of rank 3", "its own notification",
            "mend: let rank 0 wait for rank 3 on row 0",
        ),
        ("data.store(x)", "data.remote_load("),
    ),
    19: ("race", ("asks for 1",), ("data.store(x)", "data.remote_load(", "rows.wait(")),
    20: ("race", ('window "both"',), ("both.store(x", "both.remote_load(r,")),
    21: (
        "race",
        ('window "data"', "mend: a barrier on a row of its own, after rank 1 loads"),
        ("data.store(x)", "data.remote_load("),
    ),
    22: ("deadlock", ("waits for rank 3", "row 1", "is over"), ()),
    23: ("deadlock", ("the circle: 0 -> 1 -> 0", "mend: notify before waiting"), ()),
    24: (
        "race",
        ('window "work"', "row 0", "asks for 1"),
        ("work.remote_load(", "work.store(value", "rounds.wait(left"),
    ),
    25: ("wrong", ("rank 3's", "missing"), ()),
    26: ("race", ('window "ready"', "waits for no signal"), ("ready.store(", "ready.remote_load(")),
    27: (
        "deadlock",
        (
            "rank 0 waits for rank 1", "at least 3", "it is 1",
            "ranks 2 and 3 notified that row too, each in a cell of its own",
        ),
        ("rows.notify(0, 0)",),
    ),
    28: ("race", ('window "total"', "of rank 0", "rank 1 ", "rank 2 "), ("total.remote_store(",)),
    29: ("raised", ('window "result"', "2:4", "(2,)"), ("result.remote_load(",)),
    30: (
        "deadlock",
        (
            "rank 0 waits for rank 1", "at least 3", "it is 2", "row 0 of rank 0 twice", "ask for the signals",
            "generation 3",
        ),
        (),
    ),
    31: ("race", ('window "work"', "waits for no signal"), ("work.store(x)", "work.remote_load(")),
    32: ("race", ("data",), ("packets.post(", "packets.take(")),
}  # fmt: skip
RACES = [case for case in CASES if EXPLAINED[case.number][0] == "race"]
HINTS = (
    "#",
    "bug",
    "broken",
    "wrong",
    "mistake",
    "cause",
    "mend",
    "forgot",
    "should",
    "too early",
    "too late",
    "never",
)


def named(case):
    return f"case {case.number}"


def line(case, piece):
    """The line of the source in which `piece` begins, counted from 1; it stands there once."""
    before, _ = case.source.split(piece)
    return before.count("\n") + 1


@pytest.fixture(params=CASES, ids=named)
def case(request):
    return request.param


def test_the_cases_are_numbered_and_each_has_its_own_cause():
    assert [case.number for case in CASES] == [1, 2, 3, 4, *range(6, 33)]
    assert len({case.cause for case in CASES}) == len(CASES) >= 15
    assert {kind for kind, *_ in EXPLAINED.values()} == {"raised", "deadlock", "race", "wrong"}


def test_the_source_does_not_tell(case):
    assert [hint for hint in HINTS if hint in case.source.lower()] == []
    assert len(case.source.splitlines()) <= 22


def test_a_broken_kernel_is_caught_in_one_run_with_the_words_that_explain_it(case):
    kind, says, cites = EXPLAINED[case.number]
    diagnosis = failures.diagnosis(case.number)
    assert diagnosis.kinds[:1] == [kind], diagnosis
    text = diagnosis[0].text
    assert [words for words in says if words not in text] == [], text
    assert [piece for piece in cites if f"line {line(case, piece)}" not in text] == [], text


@pytest.mark.parametrize("number", (16, 19, 24, 28))
def test_a_mend_that_mends_nothing_is_not_proposed(number):
    """A barrier inside one line, or a target that the row does not reach."""
    text = failures.diagnosis(number)[0].text
    mends = [line for line in text.splitlines() if line.startswith("mend:")]
    assert mends and not re.search(r"\(line (\d+)\) and before rank \d \w+ \(line \1\)", mends[0]), text
    assert "signals.generation" not in mends[0], text


def simulated(case, ranks, schedule):
    """A run of the broken kernel as often as it has to be called, and whether all of its results are right."""
    xs = [np.arange(1, 7) * 10**rank for rank in range(ranks)]

    def program(ctx, x):
        return [case.broken(ctx, k * x) for k in range(1, case.calls + 1)]

    run = cl.simulate(program, cl.per_rank(xs), ranks=ranks, schedule=schedule)
    want = [k * sum(xs) for k in range(1, case.calls + 1)]
    return run, run.ok and all(np.array_equal(ys, want) for ys in run.results)


@pytest.mark.parametrize("case", RACES, ids=named)
def test_a_race_is_found_in_any_one_run_also_where_the_values_came_out_right(case):
    by_luck = 0
    for schedule in (None, *range(30)):
        run, right = simulated(case, 3, schedule)
        assert run.trace.races(), schedule
        by_luck += right
    assert by_luck, "no schedule was kind"


@pytest.mark.parametrize("case", RACES, ids=named)
def test_a_race_has_a_witness_that_replays(case):
    def program(ctx, x):
        return [case.broken(ctx, k * x) for k in range(1, case.calls + 1)]

    xs = cl.per_rank(failures.inputs(case.number))
    witness = explore.witness(program, xs, ranks=case.ranks)
    assert witness and witness.schedule is not None
    replay = cl.simulate(program, xs, ranks=case.ranks, schedule=witness.schedule)
    event = replay.trace.events[witness.place]
    assert (event.kind, event.rank, event.line) == (
        witness.event.kind,
        witness.event.rank,
        witness.event.line,
    )
    again = cl.simulate(program, xs, ranks=case.ranks, schedule=witness.schedule)
    assert repr(again.results) == repr(replay.results)


@pytest.mark.parametrize("nranks", (1, 2, 3, 4, 5))
def test_a_mended_kernel_is_not_accused(case, nranks):
    reference = functools.partial(semantics.all_reduce, op=case.op)
    for count in (0, 1, 6, 8):
        xs = [np.arange(1.0, count + 1) * 2**rank for rank in range(nranks)]
        diagnosis = explore.diagnose(case.mended, xs, expected=reference, calls=3)
        assert not diagnosis, f"{count} elements:\n{diagnosis}"


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_of_the_package_is_not_accused(name):
    kernel = KERNELS[name]
    for nranks in range(1, 10):
        for count in range(41):
            xs = inputs_of(kernel, nranks, count)
            diagnosis = explore.diagnose(
                kernel.program, xs, expected=kernel.reference, cost=kernel.cost, calls=2
            )
            assert not diagnosis, f"{nranks} ranks, {count} elements:\n{diagnosis}"


@pytest.mark.parametrize("name", REDUCE)
def test_a_kernel_is_not_accused_of_rounding(name):
    kernel, rng = KERNELS[name], np.random.default_rng(9)
    for nranks, dtype, op in product((3, 8), (np.float16, np.float32), OPS):
        xs = [rng.standard_normal(11).astype(dtype) for _ in range(nranks)]
        reference = functools.partial(kernel.reference, op=op)
        diagnosis = explore.diagnose(kernel.program, xs, op, expected=reference, calls=2)
        assert not diagnosis, f"{nranks} ranks, {dtype.__name__}, {op}:\n{diagnosis}"


@pytest.mark.parametrize("name", disciplines.DISCIPLINES)
def test_a_discipline_is_not_accused(name):
    program = functools.partial(disciplines.all_reduce, discipline=name)
    for nranks, count in ((1, 4), (2, 5), (3, 0), (4, 8), (7, 3)):
        xs = [np.arange(1, count + 1) * (rank + 2) for rank in range(nranks)]
        diagnosis = explore.diagnose(program, xs, expected=semantics.all_reduce, calls=3)
        assert not diagnosis, f"{nranks} ranks, {count} elements:\n{diagnosis}"


def test_another_order_of_additions_is_not_accused():
    case_5 = failures.kernels.case_5
    rng = np.random.default_rng(5)
    for dtype in (np.float16, np.float32, np.float64):
        xs = [rng.standard_normal(40).astype(dtype) for _ in range(5)]
        assert not explore.diagnose(case_5, xs, expected=semantics.all_reduce, calls=2)
        run = cl.simulate(case_5, cl.per_rank(xs), ranks=5)
        assert all(np.array_equal(y, run.results[0]) for y in run.results)
        assert not np.array_equal(run.results[0], semantics.all_reduce(xs)[0])
    assert not explore.diagnose(case_5, list(failures.ROUNDED), expected=semantics.all_reduce)


def test_a_lost_contribution_is_found_among_floats_too():
    def without_rank_2(ctx, x):
        return failures.kernels.case_5(ctx, 0 * x if ctx.rank == 2 else x)

    rng = np.random.default_rng(5)
    xs = [rng.standard_normal(40).astype(np.float32) for _ in range(5)]
    assert explore.diagnose(without_rank_2, xs, expected=semantics.all_reduce).kinds == ["wrong"]


def test_each_piece_of_a_mend_fits_one_place(case):
    source = case.source
    for old, new in case.mend:
        assert source.count(old) == 1 and old != new
        source = source.replace(old, new)
    assert source == case.mended_source


def test_the_lines_of_a_source_are_numbered_as_reports_cite_them():
    one = failures.case(10)
    lines = failures.source(10).splitlines()
    assert lines[0].endswith("def case_10(ctx, x):") and lines[0].startswith(" 1  ")
    assert "result.store(total, mine)" in lines[line(one, "result.store(") - 1]
    mended = failures.source(10, mended=True).splitlines()
    assert sorted(text[4:] for text in mended) == sorted(text[4:] for text in lines)
    at = line(one, "result.store(") - 1
    assert mended[at - 1 : at + 1] == [f"{at:2d}  {lines[at][4:]}", f"{at + 1:2d}  {lines[at - 1][4:]}"]
    with pytest.raises(ValueError, match="case\\(5\\): one of 1, 2, 3, 4, 6"):
        failures.case(5)


def test_a_report_says_what_was_run_and_is_the_same_each_time():
    text = failures.report(11)
    assert text.startswith(
        "case 11: all-reduce (sum) on 4 ranks, 8 elements, 2 calls on the same windows\n\n"
    )
    assert text == failures.report(11)


def test_the_notebook_shows_the_five_kernels_and_drills_the_next_ten():
    path = Path(__file__).parents[2] / "notebooks" / "08-the-failure-lab.ipynb"
    sources = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    for number in range(1, 6):
        assert inspect.getsource(getattr(failures.kernels, f"case_{number}")).strip() in sources
    for number in range(6, 16):
        at = sources.index(f"print(failures.report({number}))")
        assert sources[at + 1].endswith(f"cl.exercises.failures.cause_of_{number}(answer)")
        assert sources[at + 2] == f"print(failures.source({number}))"

"""Exercises of notebook 08: broken kernels; their symptoms are predicted, their diagnoses read, their faults mended.

kernels.py     the broken kernels, with nothing in them that tells what is wrong
catalogue.py   what is wrong with each, and the mend

source(6)      the kernel of case 6, its lines numbered
report(6)      a run of it, and the diagnosis of that run
"""

import numpy as np

from collectlab import explore, semantics
from collectlab.exercises.exercise import Exercise, Mistake
from collectlab.exercises.failures.catalogue import CASES
from collectlab.exercises.on_kernels import KernelExercise, KernelMistake, of_kind
from collectlab.exercises.on_ranks import ProgramMistake
from collectlab.layout import Partition


def case(number):
    """The Case of that number."""
    for one in CASES:
        if one.number == number:
            return one
    raise ValueError(f"case({number!r}): one of {', '.join(str(one.number) for one in CASES)} is accepted")


def source(number, mended=False):
    """The source of that case, or of its mend, each line with its number; reports cite those of the case."""
    one = case(number)
    lines = (one.mended_source if mended else one.source).splitlines()
    return "\n".join(f"{at:2d}  {line}".rstrip() for at, line in enumerate(lines, 1))


def inputs(number):
    """What the ranks pass in a run of that case: rank r's element i is (i + 1) * 10**r."""
    one = case(number)
    dtype = np.float64 if one.op == "avg" else np.int64
    return [(np.arange(1, one.count + 1) * 10**rank).astype(dtype) for rank in range(one.ranks)]


def diagnosis(number):
    """The explore.Diagnosis of one run of that case."""
    one = case(number)
    return explore.diagnose(
        one.broken, inputs(number), expected=lambda xs: semantics.all_reduce(xs, one.op), calls=one.calls
    )


def report(number):
    """How the case was run, and the first finding of its diagnosis without the mend that it proposes, as text."""
    one, found = case(number), diagnosis(number)
    calls = "one call" if one.calls == 1 else f"{one.calls} calls on the same windows"
    head = f"case {number}: all-reduce ({one.op}) on {one.ranks} ranks, {one.count} elements, {calls}"
    return "\n".join([head, "", *(line for line in found[0].text.splitlines() if not line.startswith("mend:"))])


# Five cases to mend.

_SYMPTOMS = {
    "always right": "The second barrier waits on a row on which everybody has notified already. What does it wait "
    "for?",
    "always wrong": "A rank that reads late finds every chunk in its place, and some schedules let it read late.",
    "right or wrong": "",
    "a hang": "Every wait is satisfied here, and sooner than it should be. A rank hangs when a count is never "
    "reached.",
    "an error": "Every row, slice and peer exists. Nothing in the program checks whether a chunk has been stored.",
    "wrong on rank 0": "Nothing in the program treats rank 0 in another way. Any rank may read too early.",
}

results_of_1 = Exercise(
    "Case 1 runs on 4 ranks, under one schedule after another. What comes out?",
    expected="right or wrong",
    options=tuple(_SYMPTOMS),
    why="whether a chunk is stored before it is read is left to the schedule.",
    mistakes=tuple(Mistake(name, name, said) for name, said in _SYMPTOMS.items() if said),
)

wrong_in_2 = Exercise(
    "Case 2 runs on 4 ranks with 6 elements. Which elements of the result are wrong?",
    expected=[6 // 4 * 4, 6],
    is_slice=True,
    why="6 // 4 is 1, four chunks of one element end at 4, and two elements belong to nobody.",
    mistakes=(
        Mistake("all", [0, 6], "The four chunks of one element are reduced and collected as they should be."),
        Mistake("those that are right", [0, 4], "Those are the four chunks, and they are right."),
        Mistake(
            "the last", [5, 6], "6 // 4 is 1, and four chunks of one element end at 4. More than one is left over."
        ),
        Mistake(
            "the first left over",
            [4, 5],
            "As a slice that is element 4 alone, which is not the only one. A stop lies behind the last element.",
        ),
        Mistake("the last rank's", [3, 6], "Element 3 is rank 3's chunk: 3 * 1 to 4 * 1."),
        Mistake("as if two each", [2, 6], "That would be chunks of two elements on two ranks. 6 // 4 is 1."),
    ),
)

_FOUR_SUMS = np.array([10, 20, 30, 40])

returned_by_3 = Exercise(
    "Case 3 runs on 4 ranks with 4 elements, whose sums are [10, 20, 30, 40]. What does rank 1 return?",
    expected=np.roll(_FOUR_SUMS, -1),
    why="rank 1 reads its own chunk first, and lays the chunks down in the order in which it reads them.",
    length_is_asked=True,
    mistakes=(
        Mistake("in order", _FOUR_SUMS, "That is the result of rank 0. Rank 1 begins with another owner."),
        Mistake(
            "the other way round",
            np.roll(_FOUR_SUMS, 1),
            "After its own chunk comes that of rank 1 + 1, not that of the rank before it.",
        ),
        Mistake("rank 2's", np.roll(_FOUR_SUMS, -2), "That begins with chunk 2, as on rank 2."),
        Mistake("backwards", _FOUR_SUMS[::-1], "The owners are 1, 2, 3 and 0: they rise, and then start again."),
        Mistake(
            "its own", _FOUR_SUMS[1:2], "That is rank 1's chunk alone. It reads one chunk from each of the four."
        ),
        Mistake(
            "only the others", [10, 30, 40], "Its own chunk is among those that it reads: the first owner is itself."
        ),
    ),
)

_PASSED = [np.arange(1, 5) * 10**rank for rank in range(4)]


def _one_chunk(mine, others):
    """`others`, but for element 1, which is `mine`'s."""
    result = np.array(others)
    result[1] = mine[1]
    return result


returned_by_4 = Exercise(
    "Case 4 runs on 4 ranks, and rank r passes [1, 2, 3, 4] * 10**r. What does rank 1 return?",
    expected=_one_chunk(sum(_PASSED), _PASSED[1]),
    why="rank 1 has reduced chunk 1; everywhere else its window holds what it has stored at the start.",
    length_is_asked=True,
    mistakes=(
        Mistake("the sum", sum(_PASSED), "That is the whole sum. Who brings rank 1 the chunks of the others?"),
        Mistake("its input", _PASSED[1], "That is what rank 1 stored first. It has stored one chunk over it since."),
        Mistake(
            "its chunk", sum(_PASSED)[1:2], "That is the chunk that it has reduced. It returns its whole window."
        ),
        Mistake(
            "zeros",
            _one_chunk(sum(_PASSED), [0] * 4),
            "The window is not empty beside its chunk: see the first store.",
        ),
        Mistake("not its place", [2222, 20, 30, 40], "The sum is right. It is stored at the place of chunk 1."),
        Mistake("chunk 0", [1111, 20, 30, 40], "Rank 1 reduces chunk 1. Chunk 0 is rank 0's."),
        Mistake("as rank 0 passes it", [1, 2222, 3, 4], "Rank 1 has passed [10, 20, 30, 40], and stored that first."),
        Mistake("rank 0's", [1111, 2, 3, 4], "That is what rank 0 returns: chunk 0 reduced, and its own input."),
        Mistake(
            "the others' inputs",
            [1, 2222, 300, 4000],
            "That would be each owner's own input. Nothing comes from a peer but the parts of chunk 1.",
        ),
    ),
)


def _only_own(xs, others):
    """Each rank's own chunk of the sum, and elsewhere what `others` gives for the rank."""
    chunks, total = Partition.uneven(xs[0].size, len(xs)), sum(xs)
    results = [np.array(others(rank)) for rank in range(len(xs))]
    for rank, result in enumerate(results):
        result[chunks.slice(rank)] = total[chunks.slice(rank)]
    return results


def _in_order(xs, owners):
    """The chunks of the sum as they lie one after another: those of owners(rank), for each rank."""
    chunks, total = Partition.uneven(xs[0].size, len(xs)), sum(xs)
    return [np.concatenate([total[chunks.slice(owner)] for owner in owners(rank)]) for rank in range(len(xs))]


def _tail(xs, rest):
    """The sum where x.size // nranks cuts chunks, and behind them what `rest` gives for the rank."""
    end = xs[0].size // len(xs) * len(xs)
    return [np.concatenate([sum(xs)[:end], rest(rank)[end:]]) for rank in range(len(xs))]


def _race(window, call):
    """The rule of a race on that window, in that call."""
    return of_kind("race", call, where=lambda found: any(race.window == window for race in found.races))


_NO_SUCH_ROW = KernelMistake(
    "no such row",
    of_kind("raised", words="rows are"),
    "a barrier uses a row that ctx.signals was not asked for: rows=2 makes rows 0 and 1.",
)
_UNMATCHED = KernelMistake(
    "barriers do not match",
    of_kind("deadlock"),
    "some ranks wait for ever: all have to come to the same barriers, on the same rows, and each notifies before it "
    "waits.",
)
_EARLY_INPUT = KernelMistake(
    "input too early",
    _race("data", call=0),
    "a rank may read an input that its peer has not stored yet: the first barrier is gone, or waits for nothing.",
)
_EARLY_CHUNK = KernelMistake(
    "chunk too early",
    _race("result", call=0),
    "a rank may still read a chunk that its owner has not stored: nothing new is waited for between the two.",
)
_OLD_COUNT = KernelMistake(
    "second call",
    of_kind("race", call=1),
    "what keeps one call from the next is missing. Counts stay as they are: a wait by hand asks for rows.generation, "
    "as ctx.barrier does; and before a rank stores again, its peers must have read.",
)
_ZEROS_ELSEWHERE = ProgramMistake(
    "own chunk only",
    lambda xs: _only_own(xs, lambda rank: np.zeros_like(xs[rank])),
    "every rank has its own chunk and zeros elsewhere: the other owners' chunks are not collected.",
)
_TOO_MUCH = KernelMistake(
    "too much",
    of_kind("bytes"),
    "ranks read more than two phases need: each element has one owner, who reads it from everyone, and everyone "
    "reads it from the owner once.",
)


def _two_chunks(counts):
    """What a rank gets from a peer in two phases, where one rank may own all that the ranks do not divide."""
    return 2 * sum(divmod(counts.sum(), counts.size))


mend_1 = KernelExercise(
    "Mend case 1.",
    expected=semantics.all_reduce,
    why="the second barrier waits for signals that are given after the chunks are stored.",
    mistakes=(_NO_SUCH_ROW, _UNMATCHED, _EARLY_INPUT, _EARLY_CHUNK, _OLD_COUNT, _ZEROS_ELSEWHERE),
    gets=_two_chunks,
)

mend_2 = KernelExercise(
    "Mend case 2.",
    expected=semantics.all_reduce,
    why="every element belongs to a chunk, also where the ranks do not divide the length.",
    mistakes=(
        ProgramMistake(
            "tail of zeros",
            lambda xs: _tail(xs, lambda rank: np.zeros_like(xs[rank])),
            "the last elements are still zeros: they belong to no chunk.",
        ),
        ProgramMistake(
            "tail of its own",
            lambda xs: _tail(xs, lambda rank: xs[rank]),
            "the last elements are the rank's own: they belong to no chunk, so nobody adds them.",
        ),
        ProgramMistake(
            "cut off",
            lambda xs: _tail(xs, lambda rank: xs[rank][:0]),
            "the result is too short: the last elements were left out of it.",
        ),
        KernelMistake(
            "beyond the end",
            of_kind("raised", words="leaves the"),
            "a chunk ends beyond the last element. Rounded up, the last chunks have to be shorter, or empty.",
        ),
        KernelMistake(
            "refused",
            of_kind("raised"),
            "the program fails. Lengths that the ranks do not divide are to be cut, not to be refused.",
        ),
        _EARLY_CHUNK,
        _TOO_MUCH,
    ),
    gets=_two_chunks,
)

mend_3 = KernelExercise(
    "Mend case 3.",
    expected=semantics.all_reduce,
    why="chunk c lies at its own place in the result, whoever reads it and whenever.",
    mistakes=(
        ProgramMistake(
            "own first",
            lambda xs: _in_order(xs, lambda rank: np.roll(range(len(xs)), -rank)),
            "each rank's own chunk still stands first.",
        ),
        ProgramMistake(
            "own last",
            lambda xs: _in_order(xs, lambda rank: np.roll(range(len(xs)), -rank - 1)),
            "each rank's own chunk stands last. The order is that of the owners, the same on all ranks.",
        ),
        ProgramMistake(
            "backwards",
            lambda xs: _in_order(xs, lambda rank: range(len(xs))[::-1]),
            "the chunks stand in the reverse order of their owners.",
        ),
        ProgramMistake(
            "the other way round",
            lambda xs: _in_order(xs, lambda rank: [(rank - step) % len(xs) for step in range(len(xs))]),
            "the owners are counted down from the rank. The order is to be the same on all ranks.",
        ),
        ProgramMistake(
            "sorted",
            lambda xs: [np.sort(sum(xs))] * len(xs),
            "the elements are sorted by size. Each belongs where its index says, be it large or small.",
        ),
        KernelMistake(
            "no such chunk",
            of_kind("raised", words="IndexError"),
            "there is no such chunk. The numbers of the owners go round: take them % ctx.nranks.",
        ),
        _ZEROS_ELSEWHERE,
        _EARLY_CHUNK,
        _TOO_MUCH,
    ),
    gets=_two_chunks,
    ranks=(3, 2, 4, 5, 7, 1),  # two ranks cannot tell one turn from the other
)

mend_4 = KernelExercise(
    "Mend case 4.",
    expected=semantics.all_reduce,
    why="after the second barrier everyone reads each chunk from its owner, and nobody stores before all have read.",
    mistakes=(
        ProgramMistake(
            "own input",
            lambda xs: _only_own(xs, lambda rank: xs[rank]),
            "each rank still has its own input outside its chunk: nobody reads the chunks of the others.",
        ),
        _ZEROS_ELSEWHERE,
        ProgramMistake(
            "inputs gathered",
            lambda xs: (
                [np.concatenate([x[Partition.uneven(x.size, len(xs)).slice(r)] for r, x in enumerate(xs)])] * len(xs)
            ),
            "chunk c is rank c's input, not its sum: it is read before the sum is stored, or the sum is stored "
            "elsewhere.",
        ),
        _NO_SUCH_ROW,
        _UNMATCHED,
        KernelMistake(
            "before the barrier",
            _race("data", call=0),
            "a rank may read a chunk before its owner has stored the sum: the all-gather comes after the second "
            "barrier.",
        ),
        KernelMistake(
            "third barrier on a used row",
            of_kind("race", 1, where=lambda found: any("the second barrier" in race.mend for race in found.races)),
            "the last barrier uses a row that has served another one in this call, so what it waits for is there "
            "already. Give it a row of its own.",
        ),
        KernelMistake(
            "no third barrier",
            _race("data", call=1),
            "in the next call a rank stores its input over a sum that a slower peer still reads: one more barrier, "
            "or a window of its own for the sums.",
        ),
        _TOO_MUCH,
    ),
    gets=_two_chunks,
)

ROUNDED = np.array([[3, 1, 1, 100], [5, 1, -1, 20], [-2, 2**24, 1, 3], [6, 2 - 2**24, -1, -123]], np.float32)
"""What four ranks pass in case 5, a row for each: sums in float32, of which element 1 depends on the order."""

_P = len(ROUNDED)
_SIZE = np.abs(ROUNDED).sum(axis=0, dtype=np.float64)
_ALLOWED = 2 * (_P - 1) * _SIZE

allowed_in_5 = Exercise(
    "Two float32 sums of the same four numbers, added in different orders: by how many times 2**-24 may they differ, "
    "at each element of ROUNDED?",
    expected=_ALLOWED.astype(int),
    why="each of the three additions errs by at most 2**-24 of what it returns, no partial sum is larger than all "
    "sizes together, and there are two sums.",
    mistakes=(
        Mistake(
            "one sum",
            (_P - 1) * _SIZE,
            "That is how far one sum can be from the exact one. Both are rounded, and they may err in opposite "
            "directions.",
        ),
        Mistake(
            "eps",
            2 * _ALLOWED,
            "That is twice too wide: 2**-23 is the step from 1 to the next float32, and rounding errs by half a "
            "step.",
        ),
        Mistake(
            "of the result",
            2 * (_P - 1) * np.abs(ROUNDED.sum(axis=0, dtype=np.float64)),
            "That is taken from the size of the result. Where large numbers cancel, the result is small and the "
            "partial sums, which were rounded, are not.",
        ),
        Mistake("four additions", 2 * _P * _SIZE, "Four numbers take three additions, and each rounds once."),
        Mistake("one addition", 2 * _SIZE, "That is one rounding for each sum. Each addition rounds anew."),
        Mistake(
            "the largest",
            2 * (_P - 1) * np.abs(ROUNDED).max(axis=0),
            "That is taken from the largest of the four. A partial sum can be as large as all of them together.",
        ),
        Mistake("sizes", _SIZE, "That is S. How often is it rounded, and in how many sums?"),
        Mistake(
            "not in this unit",
            lambda value: np.shape(value) == (4,) and np.allclose(value, _ALLOWED * 2.0**-24, rtol=1e-6, atol=0),
            "That is the difference itself. How many times 2**-24 is it?",
        ),
        Mistake(
            "one for all",
            lambda value: np.shape(value) == (4,) and len(set(np.asarray(value).tolist())) == 1,
            "That is the same for all elements. What rounding can do grows with the numbers that are added.",
        ),
    ),
)


# Ten more, from their reports.

_CAUSES = {
    "off-by-one chunk": "There the last element of each chunk would be wrong, and no other.",
    "own share twice": "There every element would hold everyone's share, and that of one rank twice.",
    "peer not notified": "There a rank would wait for ever, for a signal that nobody gives it.",
    "wait for 0": "There the report would cite the wait, and the 0 that it asks for.",
    "barrier too early": "There a rank would load too early: the store is meant to come first. See which of the two "
    "the report names first, and in which line the barrier stands.",
    "target of the first call": "There the first call would be harmless. See how often the kernel was called, and "
    "what the wait asks for.",
    "input overwritten": "There a rank would store too early: the load is meant to come first. See which of the two "
    "the report names first.",
    "4 ranks hard-coded": "There nothing would be wrong on 4 ranks, and on more the shares of the further ones would "
    "be missing.",
    "owner of the old order": "There whole chunks would be in wrong places, each a complete sum.",
    "divided twice": "There every element would be too small, by one and the same factor.",
    "one cell for all": "There two ranks would store to the same element.",
    "rows that differ": "There a rank would wait for ever on a row that nobody ever notifies, while all notify "
    "another.",
    "own signal counted": "There the report would name a peer for whose signal a rank does not wait at all.",
}


def _cause(number, cause):
    others = {name: said for name, said in _CAUSES.items() if name != cause}
    return Exercise(
        f"Which cause explains the report of case {number}?",
        expected=cause,
        options=tuple(_CAUSES),
        of="the causes in the table",
        why=case(number).cause[0].lower() + case(number).cause[1:],
        mistakes=tuple(Mistake(name, name, said) for name, said in others.items()),
    )


cause_of_6 = _cause(6, "off-by-one chunk")
cause_of_7 = _cause(7, "own share twice")
cause_of_8 = _cause(8, "peer not notified")
cause_of_9 = _cause(9, "wait for 0")
cause_of_10 = _cause(10, "barrier too early")
cause_of_11 = _cause(11, "target of the first call")
cause_of_12 = _cause(12, "input overwritten")
cause_of_13 = _cause(13, "4 ranks hard-coded")
cause_of_14 = _cause(14, "owner of the old order")
cause_of_15 = _cause(15, "divided twice")

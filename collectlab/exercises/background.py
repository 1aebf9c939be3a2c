"""Exercises of notebook 00: ranks in the background."""

import numpy as np

from collectlab import semantics
from collectlab.exercises.exercise import Exercise, Mistake
from collectlab.exercises.on_ranks import ProgramExercise, ProgramMistake

_RANKS = np.arange(4)
_ALL = np.array(semantics.all_reduce([np.array(rank) for rank in _RANKS]))  # what each rank receives
_SUM = _ALL[0]

tenfold = Exercise(
    "`return 10 * ctx.rank` runs on 4 ranks. What is run.results?",
    expected=10 * _RANKS,
    why="ranks count from 0, and results stand in rank order.",
    length_is_asked=True,
    mistakes=(
        Mistake(
            "counted from 1",
            10 * (_RANKS + 1),
            "That starts at rank 1. The first rank is rank 0, and the last of four is rank 3.",
        ),
        Mistake("five ranks", 10 * np.arange(5), "Those are five ranks. ranks=4 makes the ranks 0 to 3."),
        Mistake("reversed", 10 * _RANKS[::-1], "Those are the values in reverse; rank 0's result stands first."),
        Mistake("the ranks", _RANKS, "Those are the ranks themselves; the program returns ten times its rank."),
        Mistake(
            "one rank for all", [30] * 4, "That is rank 3's result four times. Each rank has a ctx.rank of its own."
        ),
        Mistake("nranks", [40] * 4, "40 is ten times ctx.nranks. ctx.rank is another number on each rank."),
        Mistake(
            "added up",
            sum(10 * _RANKS),
            "That adds up what the ranks return. run.results is a list, with one entry for each rank.",
        ),
        Mistake("one result", 30, "That is one rank's result. run.results is a list, with one entry for each rank."),
    ),
)

length_on_each_rank = Exercise(
    "`seen` is an empty list of the notebook. A program does seen.append(ctx.rank) and then return len(seen), on 4 "
    "fresh ranks. What is run.results?",
    expected=[1, 1, 1, 1],
    why="each rank appends to a list of its own, which was empty; none sees what another appended.",
    length_is_asked=True,
    mistakes=(
        Mistake(
            "one list, filled in turn",
            [1, 2, 3, 4],
            "That would be one list for all, filled one rank after another. Each rank has a list of its own.",
        ),
        Mistake(
            "one list for all",
            [4] * 4,
            "That would be one list for all. A rank is a process: what the others append never reaches it.",
        ),
        Mistake("before the append", [0] * 4, "Each rank appends to its list before it asks for the length."),
        Mistake(
            "the contents", _RANKS, "That is what was appended. The program returns how many elements the list has."
        ),
        Mistake("one rank at work", [1, 0, 0, 0], "That is one rank at work. Every rank runs the whole program."),
        Mistake("one entry", 1, "That is one rank's length. run.results has one entry for each rank."),
        Mistake(
            "one list, one entry", 4, "That would be one list for all. Each rank has its own, and its own result."
        ),
    ),
)

length_in_the_notebook = Exercise(
    "After that run, what is len(seen) in the notebook?",
    expected=0,
    why="the ranks were given copies, and what a rank does to its copy changes nothing in the notebook.",
    mistakes=(
        Mistake(
            "all append here",
            4,
            "That would need the ranks to append to the notebook's own list. Each appended to a copy.",
        ),
        Mistake(
            "as on a rank", 1, "That is the length on a rank. The notebook is another process with another list."
        ),
        Mistake("the last rank", 3, "3 is the last rank's number. None of the four appended to the notebook's list."),
        Mistake("as on all ranks", [1] * 4, "Those are the lengths on the ranks. The notebook has one list."),
        Mistake("the contents", [], "That is what the list holds; the question is its length."),
        Mistake("all contents", _RANKS, "That would be the list after four appends. None reached it."),
        Mistake("minus one", -1, "No list has a length below 0. Ask whose list the ranks appended to."),
    ),
)

allreduce_of_ranks = Exercise(
    "`return ctx.comm.allreduce(ctx.rank)` runs on 4 ranks. What is run.results?",
    expected=_ALL,
    why=f"0 + 1 + 2 + 3 = {_SUM}, and allreduce gives the sum to every rank.",
    length_is_asked=True,
    mistakes=(
        Mistake("one entry", _SUM, f"{_SUM} is the sum. Every rank receives it, and returns it."),
        Mistake("counted from 1", [10] * 4, "10 is 1 + 2 + 3 + 4. The ranks are 0 to 3."),
        Mistake("the inputs", _RANKS, "That is what the ranks put in. Each receives the sum of all."),
        Mistake(
            "at rank 0 only",
            [_SUM, 0, 0, 0],
            "That gives the sum to rank 0 alone. The `all` in allreduce says that every rank receives it.",
        ),
        Mistake(
            "the sum so far",
            np.cumsum(_RANKS),
            "Those are sums of the ranks up to each one. allreduce adds all of them for everyone.",
        ),
        Mistake("the number of ranks", [4] * 4, "4 is how many ranks there are. Each puts in its rank, not 1."),
        Mistake("the largest", [3] * 4, "3 is the largest rank. When it is told nothing else, allreduce adds."),
        Mistake("four times its own", 4 * _RANKS, "That is each rank times 4. The ranks put in different numbers."),
        Mistake(
            "without its own",
            _ALL - _RANKS,
            "That leaves out what the rank itself put in. The sum has every rank's number in it.",
        ),
    ),
)

the_other_three = Exercise(
    "4 ranks; rank 2 raises on the line before allreduce. What becomes of ranks 0, 1 and 3?",
    expected="all three wait",
    why="an all-reduce needs every rank's number; those that have reached it wait for one that never comes.",
    options=(
        "all three return",
        "all three raise",
        "all three wait",
        "only 0 and 1 wait",
        "only 3 waits",
        "it varies",
    ),
    mistakes=(
        Mistake(
            "the others return",
            "all three return",
            "They would need a sum to return. On each rank, allreduce gives one when all four numbers are there.",
        ),
        Mistake(
            "the others raise",
            "all three raise",
            "The exception is rank 2's. The others are processes of their own, and their lines are in order.",
        ),
        Mistake(
            "only those before it wait",
            "only 0 and 1 wait",
            "Rank 3 does not come after rank 2 in time. It needs rank 2's number as much as ranks 0 and 1 do.",
        ),
        Mistake(
            "only those after it wait",
            "only 3 waits",
            "Ranks 0 and 1 do not come before rank 2 in time. They cannot leave allreduce before all four have come.",
        ),
        Mistake(
            "a matter of speed",
            "it varies",
            "Who reaches allreduce first varies. That nobody leaves it before rank 2 has come does not.",
        ),
    ),
)

status_of_a_hang = Exercise(
    "4 ranks; rank 3 returns at once, the others call allreduce; timeout=2. What is run.status?",
    expected="timeout",
    why="no rank raised; three waited, and were ended when the 2 seconds were over.",
    options=("done", "failed", "timeout", "interrupted", "running", "returned"),
    mistakes=(
        Mistake("all well", "done", "A run is done when every rank has returned. Three still wait for rank 3."),
        Mistake(
            "an error", "failed", "No rank raised, and none was lost: three wait, as their program tells them to."
        ),
        Mistake("by hand", "interrupted", "Nobody interrupted it. It was ended by the limit that it was given."),
        Mistake("goes on", "running", "It was, for 2 seconds. cl.run comes back when the run is over."),
        Mistake("rank 3's end", "returned", "Rank 3 returned. The status is that of the run: of all four ranks."),
    ),
)


def _numbers(nranks):
    return (5, 7, 11, 30)[:nranks]


def _others(xs):
    return [np.array(total - x) for total, x in zip(semantics.all_reduce(xs), xs, strict=True)]


sum_of_the_others = ProgramExercise(
    "Write program(ctx, x). x is a number, another on each rank. Return the sum of the other ranks' numbers, without "
    "the rank's own.",
    inputs=_numbers,
    expected=_others,
    why="the sum of all, less the rank's own number. On one rank there are no others, and 0 is left.",
    mistakes=(
        ProgramMistake("with its own", semantics.all_reduce, "that is the sum of all, the rank's own included."),
        ProgramMistake("its own", list, "that is what the rank was given; nothing of the others is in it."),
        ProgramMistake(
            "less the rank",
            lambda xs: [total - rank for rank, total in enumerate(semantics.all_reduce(xs))],
            "that is the sum of all, less ctx.rank. Take away the rank's number x.",
        ),
        ProgramMistake(
            "wrong sign",
            lambda xs: [-others for others in _others(xs)],
            "the sign is wrong: from the sum of all, take away the rank's own number.",
        ),
        ProgramMistake(
            "own number for others",
            lambda xs: [(len(xs) - 1) * x for x in xs],
            "that is the rank's own number, once for each other rank. Theirs come through a collective.",
        ),
        ProgramMistake(
            "the others' ranks",
            lambda xs: [sum(range(len(xs))) - rank for rank in range(len(xs))],
            "that adds the others' ranks. Add their numbers x.",
        ),
    ),
    reserved={},
    ranks=(3, 4, 1),
)

"""Exercises of notebook 04: windows and signals."""

import numpy as np

from collectlab.exercises.exercise import Exercise, Mistake, Verdict
from collectlab.exercises.on_kernels import KernelExercise, KernelMistake, digits, of_kind
from collectlab.exercises.on_ranks import ProgramMistake
from collectlab.fabric.per_rank import per_rank
from collectlab.layout import Partition

_BOARD = np.zeros((3, 6), np.int64)  # what each of three ranks holds in its part of the window
for _rank in range(3):
    _BOARD[_rank, Partition.equal(6, 3).slice(_rank)] = _rank + 1

part_of_rank_2 = Exercise(
    "Three ranks have a window of 6 elements. Each stores zeros, then its rank + 1 in its own slice of two elements. "
    "What does rank 2 load?",
    expected=_BOARD[2],
    why="each rank has a part of its own, six elements long, and a store writes to the caller's part.",
    length_is_asked=True,
    mistakes=(
        Mistake(
            "one memory",
            _BOARD.sum(axis=0),
            "That would be one memory for all ranks. A window has a part for each rank, and nobody but rank 2 stored "
            "to rank 2's.",
        ),
        Mistake("all three", _BOARD, "Those are the parts of all ranks, one a row. What rank 2 loads is its own."),
        Mistake("slice only", [3, 3], "That is the slice it filled. The load takes the rank's whole part."),
        Mistake("everywhere", np.full(6, 3), "The second store takes a slice, not the whole part."),
        Mistake("its rank", [0, 0, 0, 0, 2, 2], "The place is right. What is stored there is the rank plus one."),
        Mistake("rank 1's", _BOARD[1], "That is rank 1's part, in rank 1's slice."),
        Mistake("at the start", [3, 3, 0, 0, 0, 0], "The slice of rank 2 is the third one, not the first."),
        Mistake("nothing stored", np.zeros(6, np.int64), "The zeros came first; the second store followed them."),
    ),
)


def _pulled(nbytes, *pairs):
    """The traffic matrix of so many bytes for each (reader, owner)."""
    matrix = np.zeros((3, 3), np.int64)
    for reader, owner in pairs:
        matrix[reader, owner] = nbytes
    return matrix


traffic_of_a_pull = Exercise(
    "Rank 0 of three stores 4 int32 in its part; ranks 1 and 2 load them from there. What is run.traffic?",
    expected=_pulled(16, (1, 0), (2, 0)),
    why="row 1 and row 2 read, column 0 is read from, 4 * 4 = 16 bytes each; a store is not in this matrix.",
    of="bytes",
    mistakes=(
        Mistake(
            "from writer to reader",
            _pulled(16, (0, 1), (0, 2)),
            "That is turned round: the row is the rank that reads, the column the one whose part is read.",
        ),
        Mistake("elements", _pulled(4, (1, 0), (2, 0)), "Those are elements. An int32 has four bytes."),
        Mistake("int64", _pulled(32, (1, 0), (2, 0)), "An int32 has four bytes, not eight."),
        Mistake(
            "the store too",
            _pulled(16, (0, 0), (1, 0), (2, 0)),
            "Rank 0 has stored 16 bytes, and read none: this matrix counts what is read.",
        ),
        Mistake(
            "handed on", _pulled(16, (1, 0), (2, 1)), "Rank 2 loads from rank 0 as well, and not from its neighbour."
        ),
        Mistake(
            "both ways",
            _pulled(16, (0, 1), (0, 2), (1, 0), (2, 0)),
            "Each load is counted once, with the rank that reads. The owner of the part does nothing.",
        ),
        Mistake(
            "shared out",
            _pulled(8, (1, 0), (2, 0)),
            "Nothing is shared out: each of the two readers loads all four elements.",
        ),
    ),
)

_WAITERS = (
    "nobody", "only rank 0", "only rank 1", "only rank 2", "ranks 1 and 2", "all three",
)  # fmt: skip

who_waits = Exercise(
    "Rank 0 notifies rank 1 on row 0. Rank 1 waits for that, then notifies rank 2 on row 1. Rank 2 waits for rank 1 "
    "on row 0. Who waits for ever?",
    expected="only rank 2",
    options=_WAITERS,
    why="rank 1 notified row 1 of rank 2; the cell in row 0 stays at 0, and no line of the program raises it.",
    mistakes=(
        Mistake(
            "nobody", "nobody", "Rank 2 was notified, but on row 1, and it looks at row 0. Each row counts by itself."
        ),
        Mistake("rank 0", "only rank 0", "Rank 0 only notifies, and a notification waits for nobody."),
        Mistake("rank 1", "only rank 1", "Rank 1 waits on row 0 for rank 0, and rank 0 notifies that row."),
        Mistake(
            "ranks 1 and 2",
            "ranks 1 and 2",
            "Rank 1's wait is met, and it does not wait for rank 2: it goes on, and returns.",
        ),
        Mistake("all", "all three", "One rank that waits does not hold up the others here: nobody waits for rank 2."),
    ),
)

second_wait = Exercise(
    "Two barriers use row 0, and every wait asks for at least 1. Rank 1 has passed the first barrier. When does its "
    "wait for rank 0 in the second barrier come back?",
    expected="at once",
    options=(
        "at once",
        "when rank 0 reaches the second barrier",
        "when rank 0 has passed the second barrier",
        "when all ranks reach the second barrier",
        "when rank 1 notifies a second time",
        "never",
    ),
    why="the cell stands at 1 since the first barrier, which is at least 1; nothing ever takes a counter back.",
    mistakes=(
        Mistake(
            "as a barrier should",
            "when rank 0 reaches the second barrier",
            "That is what a barrier is for. But what does the wait look at? A cell that holds 1 already.",
        ),
        Mistake(
            "later still",
            "when rank 0 has passed the second barrier",
            "No wait depends on another rank's wait, only on its notifications. How many are there by now?",
        ),
        Mistake(
            "everyone",
            "when all ranks reach the second barrier",
            "This one wait looks at one cell, that of rank 0; and how far has it come?",
        ),
        Mistake(
            "its own",
            "when rank 1 notifies a second time",
            "Its own notifications go to cells of the other ranks. It waits on the cell that rank 0 raises.",
        ),
        Mistake("never", "never", "A wait asks for at least so many. The cell is not below that."),
    ),
)

asked_in_the_fifth_call = Exercise(
    "A program asks for signals with 3 rows and makes one barrier on each. It is called 5 times in a row on the same "
    "ranks. What must a wait on row 2 ask for in the fifth call?",
    expected=5,
    why="each call raises each cell of row 2 by one, so after the fifth they stand at 5: that is the generation.",
    of="notifications",
    mistakes=(
        Mistake("reset", 1, "Nothing sets a counter back to 0 between calls. At 1 it stood after the first call."),
        Mistake("all rows", 15, "That counts the notifications of all three rows. Each row has cells of its own."),
        Mistake(
            "the row",
            lambda count: count.ndim == 0 and count in (2, 3),
            "Which row it is, and how many there are, does not matter: each counts by itself.",
        ),
        Mistake("calls before", 4, "It stands at 4 before the fifth call. The wait is for what this call adds."),
        Mistake("two each", 10, "Each cell is raised once in each barrier, not twice."),
        Mistake("row and call", 7, "The row's number is a place, and adds nothing to a count."),
    ),
)


def _from_the_right(xs):
    return [*xs[1:], *xs[:1]]


class ByHand(KernelExercise):
    """A KernelExercise whose barrier has to be made of notify and wait."""

    def __call__(self, program):
        from collectlab.fabric.simulated import simulate

        verdict = super().__call__(program)
        if verdict:
            run = simulate(program, per_rank(digits(2, 6)), ranks=2)
            if any(event.cause == "barrier" for event in run.trace.events):
                said = "the result is right, but a ready barrier was called. Make it of notify and wait."
                return Verdict(False, f"not yet: {said}", "calls barrier")
        return verdict


barrier_by_hand = ByHand(
    "Return the array of the right neighbour, with barriers made of notify and wait.",
    expected=_from_the_right,
    why="nobody loads before everybody has stored, and nobody stores again before everybody has loaded, whichever "
        "call it is.",
    mistakes=(
        KernelMistake(
            "nothing after the load",
            of_kind("race", call=1, words="of its own, after"),
            "the next call stores while a neighbour may still load. A second barrier belongs after the load.",
        ),
        KernelMistake(
            "met before its time",
            of_kind("race", call=1, where=lambda found: any("already gave it" in race.why for race in found.races)),
            "a wait is met before its time, because no counter ever goes back. Let it ask for signals.generation, "
            "and give each barrier a row of its own.",
        ),
        KernelMistake(
            "not heard of",
            of_kind("race", call=1),
            "a rank stores in the next call while another one may still load, of which it has not heard since. In a "
            "barrier each rank waits for all others.",
        ),
        KernelMistake(
            "a missing barrier",
            of_kind("race"),
            "a rank loads what its neighbour may not have stored yet. A barrier belongs between the two, in which it "
            "waits for that neighbour.",
        ),
        KernelMistake(
            "unheard",
            of_kind("deadlock"),
            "a rank waits for a notification that nobody gives it. Who notifies whom, on which row, and how often?",
        ),
        KernelMistake(
            "no such rank",
            of_kind("raised", words="peers are ranks", where=lambda finding: "remote_" in finding.text),
            "there is no such rank: the right neighbour of the last one is rank 0.",
        ),
        KernelMistake(
            "no such peer",
            of_kind("raised", words="peers are ranks"),
            "there is no such rank: peers are 0 to ctx.nranks - 1.",
        ),
        KernelMistake(
            "no such row",
            of_kind("raised", words="rows are"),
            "there is no such row. How many rows did the program ask for?",
        ),
        ProgramMistake(
            "load for remote_load",
            lambda xs: [x[(rank + 1) % len(xs) % max(x.size, 1) :][:1].sum() for rank, x in enumerate(xs)],
            "every rank returns one element of its own: load takes a slice or an index. The part of a peer is read "
            "with remote_load(peer).",
        ),
        ProgramMistake("its own", lambda xs: xs, "every rank returns what it was given; its neighbour has another."),
        ProgramMistake(
            "left", lambda xs: [*xs[-1:], *xs[:-1]], "the arrays come from the left neighbour, rank - 1."
        ),
        ProgramMistake("rank 0's", lambda xs: [xs[0]] * len(xs), "every rank returns rank 0's array."),
        ProgramMistake("sum", lambda xs: [sum(xs)] * len(xs), "the arrays are added. One of them is asked for."),
    ),
)  # fmt: skip

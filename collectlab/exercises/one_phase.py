"""Exercises of notebook 05: one phase, the mesh."""

from collectlab import semantics
from collectlab.exercises.exercise import Exercise, Mistake, lacks, takes
from collectlab.exercises.on_kernels import KernelExercise, KernelMistake, of_kind
from collectlab.exercises.on_ranks import ProgramMistake
from collectlab.kernels import mesh

_CARD = mesh.all_reduce_cost(nranks=4, count=1000, itemsize=4, rank=0)

bytes_read = Exercise(
    "Four ranks, each with 1000 float32. In a mesh, how many bytes does one rank read from its peers?",
    expected=_CARD.nbytes,
    why="three peers, each with 1000 elements of 4 bytes: (p - 1) * N with N = 4000 bytes.",
    of="bytes",
    mistakes=(
        Mistake("itself too", 16_000, "That counts four arrays. A rank has its own; it reads those of its peers."),
        Mistake("one array", 4_000, "That is N, the bytes of one array. How many arrays does a rank read?"),
        Mistake("elements", 3_000, "Those are elements. A float32 has four bytes."),
        Mistake("all ranks", 48_000, "That is what all four ranks read together. One of them is asked for."),
        Mistake("shared out", 6_000, "Nothing is shared out: each rank reads each array from end to end."),
        Mistake(
            "twice",
            24_000,
            "That is twice as much. A float32 has four bytes; and what a peer reads is counted with the peer.",
        ),
    ),
)

notifications = Exercise(
    "One call of the mesh on 5 ranks, with its two barriers. How many notifications does one rank give?",
    expected=mesh.all_reduce_cost(nranks=5, count=1000, itemsize=4, rank=0).notifications,
    why="in each of the two barriers it notifies its four peers.",
    of="notifications",
    mistakes=(
        Mistake("one barrier", 4, "That is one barrier. The call has two."),
        Mistake("itself too", 10, "Nobody notifies itself: there are four peers on five ranks."),
        Mistake("waits too", 16, "That adds the waits, and a wait notifies nobody."),
        Mistake("one barrier, all ranks", 20, "That is one barrier, of all five ranks. One rank is asked for."),
        Mistake("all ranks", 40, "That is what all five ranks give together. One of them is asked for."),
        Mistake("barriers", 2, "That is the number of barriers. In each, several peers are notified."),
        Mistake("neighbours", 6, "That is three peers in each barrier. How many peers has one of five ranks?"),
    ),
)


def _stores_again(finding):
    """Whether a race has a store of a rank that has stored there before and waited since."""
    for store in (finding.races[0].first, finding.races[0].second):
        before = [e for e in finding.events[: finding.events.index(store)] if e.rank == store.rank]
        stored = [i for i, e in enumerate(before) if (e.kind, e.peer, e.name) == ("store", store.peer, store.name)]
        if store.kind == "store" and stored and any(e.kind == "wait" for e in before[stored[0] :]):
            return True
    return False


mesh_all_reduce = KernelExercise(
    "Write the sum all-reduce in one phase: every rank loads every peer's array and adds.",
    expected=semantics.all_reduce,
    why="each peer's array is loaded once and added once, after everyone has stored and before anyone stores again.",
    gets=lambda counts: counts.sum(),
    exact=True,
    mistakes=(
        ProgramMistake("its own", lambda xs: xs, "every rank returns what it was given; nothing is loaded or added."),
        ProgramMistake(
            "its own twice",
            lambda xs: [total + x for total, x in zip(semantics.all_reduce(xs), xs, strict=True)],
            "each rank's own array is added twice: the loop goes over all ranks, and one of them is the rank itself.",
        ),
        ProgramMistake(
            "without its own",
            lambda xs: [total - x for total, x in zip(semantics.all_reduce(xs), xs, strict=True)],
            "each rank's own array is missing: what is there came from peers. Begin with x, and add each one to it.",
        ),
        ProgramMistake("rank 0's", lambda xs: [xs[0]] * len(xs), "every rank returns rank 0's array alone."),
        ProgramMistake(
            "mean",
            lambda xs: [total / len(xs) for total in semantics.all_reduce(xs)],
            "that is the mean. The sum is not divided by the number of ranks.",
        ),
        ProgramMistake(
            "two ranks only",
            lambda xs: [sum(xs[:2])] * len(xs),
            "only ranks 0 and 1 are added. ctx.nranks says how many there are.",
        ),
        KernelMistake(
            "nothing after the loads",
            of_kind("race", call=1),
            "the next call stores while a peer may still load. Keep the barrier on row 1, after the last load.",
        ),
        KernelMistake(
            "stores between the loads",
            of_kind("race", call=0, where=_stores_again),
            "after the barrier on row 0 a rank stores into a part once more, while peers may still load from it. Add "
            "in an array of your own.",
        ),
        KernelMistake(
            "nothing before the loads",
            of_kind("race"),
            "a rank loads what a peer may not have stored yet. Keep the barrier on row 0 between the two.",
        ),
        KernelMistake(
            "the input",
            of_kind("input"),
            "x has changed. After total = x both names mean one array, and total += ... writes to it: begin with "
            "x.copy(), or write total = total + ...",
        ),
        KernelMistake("read twice", of_kind("bytes"), "more is read than each peer's array once."),
        KernelMistake(
            "not one phase",
            of_kind("detour"),
            "a rank gets less than the array of each of its peers: that is not one phase.",
        ),
        KernelMistake(
            "no such rank",
            of_kind("raised", words="peers are ranks"),
            "there is no such rank: they are 0 to ctx.nranks - 1.",
        ),
    ),
)


same_bits = Exercise(
    "A mesh adds float32, and each rank begins with its own array. Which statements hold?",
    expected=frozenset("acd"),
    options={
        "a": "on 2 ranks both end with the same bits",
        "b": "on 3 ranks all end with the same bits",
        "c": "with int32 all end with the same bits, on any number of ranks",
        "d": "if every rank adds in rank order instead, all end with the same bits",
        "e": "a sum in rank order is the exact sum",
        "f": "a rank that differs from the others has loaded something wrong",
        "g": "real ranks get other bits than simulated ones",
    },
    why="x + y and y + x round alike, so two ranks agree; from three on, a sum begun elsewhere is rounded elsewhere. "
    "Integers are not rounded, and ranks that add the same numbers in the same order do the same.",
    mistakes=(
        takes("b", "Rank 0 adds (x0 + x1) + x2, rank 2 adds (x2 + x0) + x1. Each sum in brackets is rounded."),
        takes("e", "It is rounded after each addition, like any other order."),
        takes("f", "All have loaded the same three arrays. What differs is the order in which they add."),
        takes("g", "The same additions in the same order give the same bits in both places."),
        lacks("a", "on two ranks only the sides of one plus sign differ."),
        lacks("c", "what happens to a sum when nothing is rounded?"),
        lacks("d", "think of ranks that all do the same additions in one order."),
    ),
)

sum_of_a_slow_rank = Exercise(
    "One barrier, two ranks, two calls. Rank 0 passes 1, then 100; rank 1 passes 10, then 1000. Rank 0 is already in "
    "its second call and has stored, when rank 1 loads in its first. What does rank 1 return from its first call?",
    expected=110,
    why="its own 10 of the first call, plus the 100 that rank 0 has stored for the second.",
    mistakes=(
        Mistake("as it should be", 11, "That is the right sum. But the 1 of rank 0 is no longer there to be loaded."),
        Mistake("the second call's", 1100, "Rank 1 is still in its first call, and adds its own 10."),
        Mistake("the other way round", 1001, "That is what rank 0 would return if rank 1 were the fast one."),
        Mistake("both of rank 0's", 111, "A part holds one array at a time: the 100 has been stored over the 1."),
        Mistake("only rank 0's", 100, "Rank 1 adds its own number as well."),
        Mistake("only its own", 10, "It loads from rank 0, and something lies there."),
        Mistake("rank 1's", 1010, "Rank 1 has not begun its second call: its 1000 is nowhere yet."),
    ),
)

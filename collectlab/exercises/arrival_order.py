"""The exercises of notebook 09: an orbit, its period, and chunks that arrive in another order than that of ranks."""

import math

import numpy as np

from collectlab import semantics
from collectlab.exercises.exercise import Exercise, Mistake, lacks, takes
from collectlab.exercises.on_ranks import CallMistake, ProgramExercise, ProgramMistake

_M, _A = 8, 3


def _after(step, m=_M, a=_A):
    return step * a % m


residues = Exercise(
    question="m = 8, a = 3, and x begins at 0. Where is x after each of the first five steps?",
    expected=[_after(step) for step in range(1, 6)],
    why="each step adds 3, and what reaches 8 or more loses 8.",
    mistakes=(
        Mistake("no mod", [3 * k for k in range(1, 6)], "Those are multiples of 3. Each is still to be taken mod 8."),
        Mistake(
            "mod now and then",
            lambda places: places.shape == (5,) and all(n in (3 * k, 3 * k % 8) for k, n in enumerate(places, 1)),
            "Not every one of them is a place: those are 0 to 7. What reaches 8 or more loses 8.",
        ),
        Mistake("with the start", [_after(k) for k in range(5)], "That begins with 0, where x is before any step."),
        Mistake("a = 1", [1, 2, 3, 4, 5], "That is the orbit of a = 1. Here each step adds 3."),
        Mistake(
            "mod 7",
            [k * 3 % 7 for k in range(1, 6)],
            "That takes 7 off. The places are 0 to 7, so they are 8, and mod 8 takes 8 off.",
        ),
        Mistake("backwards", [-3 * k % 8 for k in range(1, 6)], "That subtracts 3 at each step."),
        Mistake("multiplied", [3**k % 8 for k in range(1, 6)], "That multiplies by 3 at each step, from 1 on."),
        Mistake("back to 0", [3, 6, 0, 3, 6], "From 6, three more is 9, which is 1 mod 8: the orbit goes past 0."),
    ),
)

_PAIRS = ((8, 1), (8, 3), (8, 2), (8, 6), (12, 8))


def _for_each(rule):
    return [rule(m, a) for m, a in _PAIRS]


periods = Exercise(
    question="After how many steps is x back at 0, for (m, a) = (8, 1), (8, 3), (8, 2), (8, 6) and (12, 8)?",
    expected=_for_each(lambda m, a: m // math.gcd(a, m)),
    why="the period is m / gcd(a, m): what a and m have in common is skipped on every round.",
    mistakes=(
        Mistake(
            "always m",
            _for_each(lambda m, a: m),
            "That holds where a and m have no divisor in common. With a = 2 no odd place is ever visited.",
        ),
        Mistake(
            "one more",
            _for_each(lambda m, a: m // math.gcd(a, m) + 1),
            "That counts 0 twice, as the first place and as the last. How many steps lie between?",
        ),
        Mistake("the gcd", _for_each(math.gcd), "Those are gcd(a, m). The period is m divided by it."),
        Mistake(
            "m // a",
            _for_each(lambda m, a: m // a),
            "That is how many whole steps fit into one round. With a = 3 the first round goes past 0.",
        ),
        Mistake("a", _for_each(lambda m, a: a), "That is a, what each step adds. How many steps are made?"),
        Mistake(
            "the distance",
            _for_each(math.lcm),
            "That is how far x goes on the way, counted in places. Each step goes a of them.",
        ),
        Mistake(
            "one less",
            _for_each(lambda m, a: m // math.gcd(a, m) - 1),
            "That counts the places other than 0. One more step leads back to 0.",
        ),
        Mistake("m / 2 where even", [8, 8, 4, 4, 6], "Right for m = 8. 12 and 8 have 4 in common, not only 2."),
        Mistake(
            "m where it is shared",
            lambda steps: steps.shape == (5,) and np.any(steps[2:] == [m for m, _ in _PAIRS[2:]]),
            "Where a and m have a divisor in common, the orbit is back at 0 before it has seen every place.",
        ),
    ),
)

_HELD = [np.array([10 * rank, 10 * rank + 1]) for rank in range(4)]


def _joined(order):
    return np.concatenate([_HELD[rank] for rank in order])


appended = Exercise(
    question=(
        "Ranks 0 to 3 contribute [0, 1], [10, 11], [20, 21] and [30, 31]. On rank 0 the chunks are there in the "
        "order of m = 4, a = 3, its own first, and each is put behind the others. What does it hold in the end?"
    ),
    expected=_joined([_after(k, 4, 3) for k in range(4)]).tolist(),
    why="the orbit is 0, 3, 2, 1, and appending knows no other order.",
    mistakes=(
        Mistake(
            "rank order",
            semantics.all_gather(_HELD)[0],
            "That is what an all-gather has to return. Here nobody looks where a chunk comes from.",
        ),
        Mistake("its own last", _joined([3, 2, 1, 0]), "Rank 0 has its own chunk before any other arrives."),
        Mistake(
            "first elements",
            [_HELD[rank][0] for rank in (0, 3, 2, 1)],
            "Those are the first elements of the chunks, in the right order. Each chunk has two.",
        ),
        Mistake("the ranks", [0, 3, 2, 1], "Those are the ranks, in the right order. Write their elements."),
        Mistake(
            "backwards inside",
            np.concatenate([_HELD[rank][::-1] for rank in (0, 3, 2, 1)]),
            "The chunks come in that order; inside each the elements keep theirs.",
        ),
        Mistake("the sum", sum(_HELD), "That adds the chunks up. A gather adds nothing."),
        Mistake("a = 2", _joined([0, 2, 0, 2]), "That is the orbit of a = 2. After 0 comes 0 + 3."),
        Mistake(
            "interleaved", np.stack([_HELD[r] for r in (0, 3, 2, 1)], 1).ravel(), "Each chunk stays in one piece."
        ),
    ),
    length_is_asked=True,
    are_joined=True,
)


def _chunks(nranks):
    """Chunks whose order by value is not the order of ranks, and none of whose elements is 0."""
    return [np.array([2, 1, 3]) + 10 * ((7 * rank + 2) % 9) for rank in range(nranks)]


def _coming(nranks):
    """The ranks in the order in which their chunks come, in the notebook's `arrivals`."""
    return [-turn % nranks for turn in range(nranks)]


def _put(place):
    """What every rank returns that puts each chunk in its turn at place(rank, source, turn, nranks, length)."""

    def results(xs):
        found = [np.zeros_like(y) for y in semantics.all_gather(xs)]
        for rank, y in enumerate(found):
            for turn, source in enumerate(_coming(len(xs))):
                y[place(rank, source, turn, len(xs), xs[0].size)] = xs[source]
        return found

    return results


def _at(slot):
    """The same for a place that is the slot of that number."""

    def place(rank, source, turn, nranks, length):
        start = slot(rank, source, turn, nranks) * length
        return slice(start, start + length)

    return _put(place)


def _came_in_rank_order(calls, xs):
    """Whether each rank sent when it had received a chunk of each rank below it; of 2 ranks nothing is said."""
    received = []
    for of_rank in calls:
        names = [call.name.lower() for call in of_rank]
        sent = [at for at, name in enumerate(names) if name.endswith("send")]
        received.append(sum(name.endswith("recv") for name in names[: sent[0]]) if sent else -1)
    return len(xs) > 2 and received == [*range(len(xs))]


place_by_rank = ProgramExercise(
    question=(
        "Chunks come with the rank that sent them, in an order that you do not choose. Return everyone's chunks "
        "behind one another in rank order, on every rank."
    ),
    inputs=_chunks,
    expected=semantics.all_gather,
    why="the source says where a chunk belongs, so it does not matter which one comes first.",
    mistakes=(
        ProgramMistake(
            "appended",
            _at(lambda rank, source, turn, n: turn),
            "the chunks lie in the order in which they came. What decides the place of a chunk is its source.",
        ),
        ProgramMistake(
            "nothing placed",
            lambda xs: [np.zeros_like(y) for y in semantics.all_gather(xs)],
            "the result is all zeros: no chunk is put there.",
        ),
        ProgramMistake(
            "its own is missing",
            lambda xs: [np.concatenate([x * (s != rank) for s, x in enumerate(xs)]) for rank in range(len(xs))],
            "every rank lacks its own chunk. `arrivals` gives that one too; place it like the others.",
        ),
        ProgramMistake(
            "its own is left out",
            lambda xs: [np.concatenate([xs[s] for s in range(len(xs)) if s != rank]) for rank in range(len(xs))],
            "every rank leaves its own chunk out. `arrivals` gives that one too; place it like the others.",
        ),
        ProgramMistake(
            "its own only",
            lambda xs: [np.tile(x, len(xs)) for x in xs],
            "every slot holds the rank's own chunk. Each has the chunk of another source.",
        ),
        ProgramMistake(
            "all in slot 0",
            _at(lambda rank, source, turn, n: 0),
            "every chunk is put at the beginning, so the last one that came is left there.",
        ),
        ProgramMistake(
            "from the back",
            _at(lambda rank, source, turn, n: n - 1 - source),
            "the chunks are placed from the back. Rank 0's comes first in the result.",
        ),
        ProgramMistake(
            "turned round",
            _at(lambda rank, source, turn, n: n - 1 - turn),
            "the order in which the chunks came is turned round, and what came first stands last. Their sources say "
            "where they belong.",
        ),
        ProgramMistake(
            "one slot further",
            _at(lambda rank, source, turn, n: (source + 1) % n),
            "every chunk lies one slot too far. Rank 0's begins at element 0.",
        ),
        ProgramMistake(
            "seen from here",
            _at(lambda rank, source, turn, n: (source - rank) % n),
            "every rank counts the slots from itself on. In an all-gather all ranks end with the same.",
        ),
        ProgramMistake(
            "one element apart",
            _put(lambda rank, source, turn, n, length: slice(source, source + length)),
            "the chunks begin one element after another and overwrite each other. A slot is x.size elements long.",
        ),
        ProgramMistake(
            "dealt out",
            _put(lambda rank, source, turn, n, length: slice(source, None, n)),
            "the elements of each chunk are dealt out over the result; a chunk stays in one piece.",
        ),
        ProgramMistake(
            "added",
            lambda xs: [np.concatenate([sum(xs), *(0 * x for x in xs[1:])])] * len(xs),
            "the chunks are added up. A gather reduces nothing.",
        ),
    ),
    reserved={
        name: f"{name} does all of it. Here the chunks come from `arrivals`, and you place them."
        for name in ("allgather", "Allgather", "Allgatherv", "alltoall", "Alltoall", "allreduce", "Allreduce")
    }
    | {
        name: f"{name} lays chunks out by rank itself. Here they come from `arrivals`, and you place them."
        for name in ("gather", "Gather", "Gatherv")
    },
    by_calls=(
        CallMistake(
            "came in rank order",
            _came_in_rank_order,
            "the chunks came in rank order, in which appending is right by luck. Let "
            "`arrivals` count down again, with a=-1.",
        ),
    ),
    ranks=(3, 4, 2),  # on 2 ranks some of these mistakes are alike, and appending is right
)

what_the_orbit_says = Exercise(
    question="m = 8 places and 8 ranks. Which statements hold?",
    expected=frozenset("adf"),
    options={
        "a": "a = 1 and a = 3 visit the same places",
        "b": "a = 3 gathers in fewer steps than a = 1",
        "c": "one step of the orbit moves a chunk from one rank to another",
        "d": "chunks that are appended in any order have the right number of elements",
        "e": "an all-gather returns another result when the chunks arrive in another order",
        "f": "with a = 1, from rank 0 on, appending gives the right result, and nothing has checked it",
    },
    why="both orbits visit all places, a count says nothing of places, and rank order by luck is still luck.",
    mistakes=(
        takes("b", "Both take 8 steps to come back to 0. A step of the orbit is no step of a kernel either."),
        takes("c", "The orbit is arithmetic on numbers. It reduces nothing and gathers nothing."),
        takes("e", "Its result is laid out by rank. Only what it looks like on the way depends on the order."),
        lacks("a", "look at which places each orbit has visited after 8 steps."),
        lacks("d", "what does a length check see?"),
        lacks("f", "what if the order of arrival happens to be that of the ranks?"),
    ),
)

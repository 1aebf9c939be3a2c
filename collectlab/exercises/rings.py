"""Exercises of notebook 07: the ring and its relatives."""

import numpy as np

from collectlab import semantics
from collectlab.exercises.exercise import Exercise, Mistake, chooses
from collectlab.exercises.on_kernels import KernelExercise, KernelMistake, of_kind
from collectlab.exercises.on_ranks import ProgramMistake
from collectlab.kernels import mesh, rabenseifner, recursive_doubling, ring, two_phase
from collectlab.layout import Partition

_ROUNDS = np.arange(6)  # of a ring of four ranks

chunks_of_rank_1 = Exercise(
    "A ring of 4 ranks. Which chunk does rank 1 read in each of the 6 rounds?",
    expected=(1 - _ROUNDS - 2) % 4,
    why="in round k, rank r reads chunk r - k - 2, counted round the ring: the one that its left neighbour stored "
    "last.",
    mistakes=(
        Mistake(
            "upwards",
            (3 + _ROUNDS) % 4,
            "The first is right, but then the numbers fall: what comes next from the left started one rank further "
            "left.",
        ),
        Mistake(
            "the neighbour's number", 0 * _ROUNDS, "0 is who is read from. It hands over another chunk in each round."
        ),
        Mistake(
            "starts on its own rank",
            (1 - _ROUNDS - 1) % 4,
            "That is a ring in which chunk c starts on rank c; it would end on rank c - 1. Here chunk c starts on "
            "rank c + 1.",
        ),
        Mistake(
            "its own first",
            (1 - _ROUNDS) % 4,
            "That begins with chunk 1, which rank 1 is to finish. The chunk that a rank finishes reaches it last.",
        ),
        Mistake(
            "rank 0's",
            (0 - _ROUNDS - 2) % 4,
            "That is what rank 0 reads. In every round, rank 1 is one chunk ahead of it.",
        ),
        Mistake(
            "the same three again",
            (1 - _ROUNDS % 3 - 2) % 4,
            "The first three are right. The second half goes on where the first ended: the left neighbour has just "
            "finished chunk 0.",
        ),
    ),
)

contributions = Exercise(
    "A ring of 5 ranks. After round 1, whose contributions does chunk 0 hold on rank 3? List the ranks in rising "
    "order.",
    expected=[1, 2, 3],
    why="chunk 0 starts on rank 1; rank 2 adds its own in round 0, and rank 3 in round 1.",
    length_is_asked=True,
    mistakes=(
        Mistake("its own", [3], "That is what rank 3 began with. In round 1 it has read chunk 0 from rank 2."),
        Mistake(
            "two neighbours",
            [2, 3],
            "Rank 2 did not hand over its own part alone: in round 0 it had added it to what rank 1 began with.",
        ),
        Mistake(
            "without its own",
            [1, 2],
            "That is what lies on rank 2. Rank 3 adds its own part before it stores the sum.",
        ),
        Mistake(
            "everyone's", [0, 1, 2, 3, 4], "All five are there when chunk 0 is finished: on rank 0, two rounds later."
        ),
        Mistake(
            "starts on rank 0",
            [0, 1, 2, 3],
            "Chunk 0 starts on rank 1 and comes to rank 0 last; that is how rank 0 gets to own it.",
        ),
        Mistake("a round later", [1, 2, 3, 4], "That is chunk 0 on rank 4, one round later."),
        Mistake(
            "falling",
            lambda ranks: sorted(ranks.ravel().tolist()) == [1, 2, 3],
            "Those are the ranks; write them in rising order.",
        ),
        Mistake("the other way", [3, 4], "Those lie to the right. Every rank reads from its left neighbour."),
    ),
)


def _on_8(cost):
    """The Card of 64 float32 a rank on 8 ranks; all ranks have the same."""
    return cost(8, 64, 4, 0)


_RING, _TWO, _MESH = (_on_8(k.all_reduce_cost) for k in (ring, two_phase, mesh))
_RIGHT = [_RING.nbytes, 14, _TWO.nbytes, _TWO.barriers]

bytes_and_rounds = Exercise(
    "8 ranks, 64 float32 on each. How many bytes does a rank read in the ring, in how many rounds; how many in two "
    "phases, with how many barriers?",
    expected=_RIGHT,
    why="both read 7 chunks of 32 bytes to reduce and 7 to gather; the ring waits before each of them, two phases "
    "wait twice.",
    mistakes=(
        Mistake(
            "half the work",
            [_RING.nbytes // 2, 7, _TWO.nbytes // 2, 1],
            "That is the reduce-scatter alone. An all-reduce gathers the finished chunks as well.",
        ),
        Mistake(
            "its own chunk too",
            lambda value: value.shape == (4,) and list(value[::2]) == [512, 512],
            "8 chunks are read twice there. A rank's own chunk is at home each time: 7 are read.",
        ),
        Mistake(
            "the vector",
            lambda value: value.shape == (4,) and 256 in value[::2],
            "256 bytes are the vector. To reduce, a rank reads 7 chunks of it, of 32 bytes, and 7 more to gather.",
        ),
        Mistake(
            "half of each",
            [_RING.nbytes, 7, _TWO.nbytes, 1],
            "The bytes are right. 7 rounds and one barrier are those of the reduce-scatter; the all-gather follows.",
        ),
        Mistake(
            "one barrier",
            [_RING.nbytes, 14, _TWO.nbytes, 1],
            "Before each of the two phases a rank has to know that all have stored what it will read.",
        ),
        Mistake(
            "half the rounds",
            [_RING.nbytes, 7, _TWO.nbytes, 2],
            "7 rounds finish one chunk on each rank. As many again bring it to everyone.",
        ),
        Mistake(
            "half the ring",
            [_RING.nbytes // 2, 7, _TWO.nbytes, 2],
            "For the ring that is the reduce-scatter alone. As much again hands the finished chunks on.",
        ),
        Mistake(
            "half of two phases",
            [_RING.nbytes, 14, _TWO.nbytes // 2, 2],
            "For two phases that is the first phase alone. In the second a rank reads as much again.",
        ),
        Mistake(
            "a barrier is a round",
            [_RING.nbytes, 2, _TWO.nbytes, 2],
            "The ring has no barrier in which all chunks become ready at once: it reads one chunk a round.",
        ),
        Mistake(
            "two phases as a mesh",
            [_RING.nbytes, 14, _MESH.nbytes, 2],
            "7 whole vectors are what the mesh reads. In two phases a rank reads one chunk of each peer, twice.",
        ),
        Mistake(
            "the ring as a mesh",
            lambda value: value.shape == (4,) and value[0] == _MESH.nbytes,
            "7 whole vectors are what the mesh reads. In a ring a rank reads one chunk in each round.",
        ),
        Mistake(
            "all ranks",
            lambda value: value.shape == (4,) and 8 * _RING.nbytes in value[::2],
            "That is what all 8 ranks read together. One rank is asked for.",
        ),
        Mistake(
            "elements", [_RING.nbytes // 4, 14, _TWO.nbytes // 4, 2], "Those are elements. A float32 has 4 bytes."
        ),
        Mistake(
            "steps",
            [_RING.nbytes, _RING.steps, _TWO.nbytes, 2],
            "15 are the steps of the ring: 14 rounds, and one wait more, which frees its window and moves no chunk.",
        ),
        Mistake(
            "a round a rank",
            [_RING.nbytes, 16, _TWO.nbytes, 2],
            "16 rounds are one too many in each half: what a rank finishes needs 7 additions, not 8.",
        ),
    ),
)

# 8 ranks of two hosts, 0 to 3 and 4 to 7: a chunk has 32 bytes, read once to be reduced and once to be gathered
_CHUNK = 256 // 8
_ACROSS = [2 * 7 * _CHUNK, 4 * 4 * 2 * _CHUNK]

across_the_hosts = Exercise(
    "8 ranks, 256 bytes on each; ranks 0 to 3 on one host, 4 to 7 on another. How many bytes do the ranks of the "
    "first host read from the second: in the ring, and in two phases?",
    expected=_ACROSS,
    why="in the ring rank 0 alone reads from the other host, all its 14 chunks; in two phases four ranks read from "
    "four, two chunks from each.",
    mistakes=(
        Mistake(
            "one rank's",
            [_RING.nbytes] * 2,
            "448 is what one rank reads. In two phases four ranks of the first host read from the second.",
        ),
        Mistake(
            "all that four ranks read",
            lambda value: value.shape == (2,) and value[1] == 4 * _RING.nbytes,
            "In two phases that is all that the four ranks read. Only what comes from ranks 4 to 7 crosses over.",
        ),
        Mistake(
            "turned round",
            _ACROSS[::-1],
            "Those two are turned round: the ring comes first. Which of the two reads from one neighbour only?",
        ),
        Mistake(
            "one phase",
            lambda value: value.shape == (2,) and (value[0] == _ACROSS[0] // 2 or value[1] == _ACROSS[1] // 2),
            "That has the reduce-scatter alone in it. The all-gather crosses over as often again.",
        ),
        Mistake(
            "both ways",
            lambda value: value.shape == (2,) and (value[0] == 2 * _ACROSS[0] or value[1] == 2 * _ACROSS[1]),
            "That counts both directions. What is asked is what the first host reads from the second.",
        ),
        Mistake(
            "all of rank 0 only",
            [_RING.nbytes, 4 * 2 * _CHUNK],
            "The second is what one rank reads from the other host. Four ranks do so.",
        ),
        Mistake("one chunk", [_CHUNK, _ACROSS[1]], "32 bytes cross over in one round of the ring. It has 14."),
        Mistake(
            "everyone in the ring",
            [4 * _RING.nbytes, _ACROSS[1]],
            "Ranks 1, 2 and 3 have their left neighbour on their own host. Only rank 0 reads from rank 7.",
        ),
        Mistake("nothing in the ring", [0, _ACROSS[1]], "A ring closes: the left neighbour of rank 0 is rank 7."),
    ),
)

_DISTANCES = np.array([1, 2, 4])

partners = Exercise(
    "Recursive doubling on 8 ranks. With whom does rank 5 exchange in steps 1, 2 and 3?",
    expected=5 ^ _DISTANCES,
    why="4 is its neighbour in the pair 4, 5; 7 its partner in the other pair of 4 to 7; 1 its partner in the other "
    "four. In Python: rank ^ distance.",
    mistakes=(
        Mistake(
            "always up",
            lambda ranks: ranks.shape == (3,) and np.all(ranks % 8 == (5 + _DISTANCES) % 8),
            "Those are 1, 2 and 4 further on. Partners exchange, so the partner of a partner is oneself: 5 and 6 are "
            "in different pairs.",
        ),
        Mistake(
            "always down",
            5 - _DISTANCES,
            "4 is right. Of 4, 5, 6 and 7, the pair 4, 5 has added its parts; the partner is in the other pair.",
        ),
        Mistake(
            "on from the partner",
            [4, 6, 2],
            "That counts on from the last partner. The distance is counted from rank 5 each time.",
        ),
        Mistake("largest first", [1, 7, 4], "Those are the partners in falling distance. Doubling begins with 1."),
        Mistake("distances", _DISTANCES, "Those are the distances. What is asked is the ranks at that distance."),
        Mistake(
            "1, 2, 3 apart",
            [6, 7, 0],
            "Those are 1, 2 and 3 further on. The distances double, 1, 2, 4, and partners exchange.",
        ),
        Mistake(
            "1, 2, 3, exchanged",
            5 ^ np.array([1, 2, 3]),
            "The first two are right. The distances double, 1, 2, 4: the third partner is in the other four.",
        ),
        Mistake("a ring", [4, 4, 4], "That is a ring's left neighbour. Here the partner changes with each step."),
    ),
)

KERNELS = {
    "mesh": mesh,
    "two_phase": two_phase,
    "ring": ring,
    "recursive_doubling": recursive_doubling,
    "rabenseifner": rabenseifner,
}
CASES = ((8, 4 * 2**10), (8, 2**20), (6, 2**20))  # ranks, bytes of one rank's float32
LATENCY, BANDWIDTH = 1e-6, 10e9


def modelled(name, nranks, nbytes):
    """(card, seconds) of the slowest rank of an all-reduce in the latency-bandwidth model of the exercise."""
    cards = [KERNELS[name].all_reduce_cost(nranks, nbytes // 4, 4, rank) for rank in range(nranks)]
    slowest = max(cards, key=lambda card: card.seconds(LATENCY, BANDWIDTH))
    return slowest, slowest.seconds(LATENCY, BANDWIDTH)


def _fastest(nranks, nbytes):
    return min(KERNELS, key=lambda name: modelled(name, nranks, nbytes)[1])


def _slower(case, name):
    """The mistake of naming `name` for a case that another one wins."""
    card, seconds = modelled(name, *CASES[case])
    said = (
        f"Case {case + 1}: {name} takes {card.steps} steps, {card.messages} messages and {card.nbytes:,} bytes, "
        f"{seconds * 1e6:.1f} µs in all. Another one takes less."
    )
    return chooses(case + 1, name, said)


winners = Exercise(
    "Latency 1 µs, bandwidth 10 GB/s. Which all-reduce is the fastest by the model: case 1, on 8 ranks with 4 KiB "
    "each; case 2, on 8 ranks with 1 MiB; case 3, on 6 ranks with 1 MiB?",
    expected=tuple(_fastest(*case) for case in CASES),
    options=tuple(KERNELS),
    why="few bytes: the fewest steps and messages win. Many: the fewest bytes, and among those that read equally "
    "few, the fewest messages. On 6 ranks Rabenseifner first folds two of them in, and reads more.",
    mistakes=tuple(_slower(case, name) for case in range(3) for name in KERNELS if name != _fastest(*CASES[case])),
)


def _chunks(xs, of=0):
    """Chunk r + of of the sum, for each rank r."""
    total, parts = semantics.all_reduce(xs)[0], Partition.uneven(xs[0].size, len(xs))
    return [total[parts.slice((rank + of) % len(xs))] for rank in range(len(xs))]


def _own(xs, weigh):
    """For each rank r, chunk r of sum over j of weigh(j, nranks) times the vector of rank r + j."""
    p, parts = len(xs), Partition.uneven(xs[0].size, len(xs))
    return [
        sum(weigh(j, p) * xs[(rank + j) % p] for j in range(p))[parts.slice(rank)].astype(xs[0].dtype)
        for rank in range(p)
    ]


def _accesses(finding, kind):
    """The loads, or the stores, that take part in a race."""
    return [event for race in finding.races for event in (race.first, race.second) if event.kind == kind]


def _reads_right(finding):
    """A race in which a rank read from its right neighbour, for whom it has not waited."""
    p = finding.nranks
    return any(e.peer == (e.rank + 1) % p != (e.rank - 1) % p for e in _accesses(finding, "load"))


def _two_stores(finding):
    """A race in which a rank stores to a part that another one stores to."""
    return finding.races[0].first.kind == finding.races[0].second.kind == "store"


def _longer(finding, event):
    """Whether an access is to more than any chunk has."""
    return len(event.elements) > max(Partition.uneven(finding.count, finding.nranks).counts)


def _whole(finding):
    """A race in which a rank loads more from a peer than any chunk has."""
    return any(e.rank != e.peer and _longer(finding, e) for e in _accesses(finding, "load"))


def _stores_whole(finding):
    """A race with a store of more than any chunk has, other than that of x, the first one."""
    firsts = {event.rank: event for event in reversed(finding.events) if event.kind == "store"}
    return any(_longer(finding, e) and e is not firsts[e.rank] for e in _accesses(finding, "store"))


def _where_it_stores(finding):
    """A race in which a rank has waited for its left neighbour, and loads a chunk before that stores into it."""
    load = finding.races[0].first
    before = finding.events[: finding.events.index(load)]
    waits = (e for e in before if e.kind == "wait" and (e.rank, e.peer) == (load.rank, load.peer))
    return load.kind == "load" and any(waits)


def _elsewhere(finding):
    """Whether a rank stores a chunk at another place than that of the chunk which it has loaded last from a peer."""
    loaded = {}
    for event in finding.events:
        if event.kind == "load" and event.rank != event.peer:
            loaded[event.rank] = event.elements
        elif event.kind == "store" and not _longer(finding, event) and event.rank in loaded:
            if event.elements != loaded[event.rank]:
                return True
    return False


def _reads(finding):
    """Whether a rank loads from a peer at all."""
    return any(event.kind == "load" and event.rank != event.peer for event in finding.events)


def _nothing_stored(finding):
    """Wrong sums of ranks that load from their peers, and store nothing after x."""
    stores = sum(event.kind == "store" for event in finding.events)
    return _reads(finding) and stores == finding.nranks * finding.calls


ring_reduce_scatter = KernelExercise(
    "Write the rounds of a ring's reduce-scatter: after them, rank r holds chunk r of the sum.",
    expected=_chunks,
    why="in each of the nranks - 1 rounds a rank adds its own part to the chunk that its left neighbour had finished "
    "the round before.",
    mistakes=(
        KernelMistake(
            "waits for too many",
            of_kind("deadlock", call=0, words="are asked for"),
            "a wait asks for more signals than are given: in a call each row is notified once. rounds.generation is "
            "1 in the first call, 2 in the second.",
        ),
        KernelMistake(
            "waits first",
            of_kind("deadlock", call=0),
            "the ranks wait for ever. In each round a rank has to tell its right neighbour that it is ready before "
            "it waits for its left one; and notify and wait have to name the same row.",
        ),
        KernelMistake(
            "reads from the right",
            _reads_right,
            "a rank reads from its right neighbour, but it has waited for the left one. Signals and chunks go the "
            "same way round.",
        ),
        KernelMistake(
            "a fixed target",
            of_kind("race", call=1, where=lambda f: any("signals.generation" in race.mend for race in f.races)),
            "a wait of the second call is content with a signal of the first. Counters only go up: let each wait ask "
            "for rounds.generation.",
        ),
        KernelMistake(
            "window not free",
            of_kind("race", call=1),
            "the second call stores into the window while the right neighbour still reads. Let it tell when it has "
            "read, on a row of its own, and wait for that.",
        ),
        KernelMistake(
            "whole part",
            of_kind("race", call=0, where=_whole),
            "a rank loads its left neighbour's whole part, while that stores elsewhere in it. Say inside the "
            "parentheses what to read: remote_load(left, chunk).",
        ),
        KernelMistake(
            "whole store",
            of_kind("race", call=0, where=_stores_whole),
            "a rank stores its whole part in a round, while its right neighbour reads a chunk of it. Store the chunk "
            "alone, at its place: store(value, chunk).",
        ),
        KernelMistake(
            "stores to a peer",
            of_kind("race", call=0, where=_two_stores),
            "two ranks store to the same part. In this ring a rank reads from its left neighbour, and stores in its "
            "own part only.",
        ),
        KernelMistake(
            "reads, then waits",
            of_kind("race", call=0, where=lambda f: f.races[0].mend.startswith("move the wait")),
            "a rank reads from its left neighbour before it has waited for it in this round.",
        ),
        KernelMistake(
            "stored elsewhere",
            lambda finding: finding.kind in ("race", "wrong") and finding.call == 0 and _elsewhere(finding),
            "a rank reads one chunk and stores the sum at the place of another. A sum takes the place of the "
            "chunk that was read: store(value, chunk).",
        ),
        KernelMistake(
            "chunks rise",
            of_kind("race", call=0, where=_where_it_stores),
            "a rank reads a chunk into which its left neighbour stores in the same round: both are at the same "
            "chunk. In a round a rank is one chunk ahead of its left neighbour, and from round to round the numbers "
            "fall.",
        ),
        KernelMistake(
            "one row for all rounds",
            of_kind("race", call=0, where=lambda f: any("already gave it" in race.why for race in f.races)),
            "a wait is content with the signal of an earlier round. Each round needs its own row, and its wait has "
            "to come before the load.",
        ),
        KernelMistake(
            "no wait",
            of_kind("race", call=0),
            "a rank reads what its left neighbour may not have stored yet. Wait for the left neighbour in each "
            "round, before the load.",
        ),
        KernelMistake(
            "no ring",
            lambda finding: finding.kind in ("bytes", "detour"),
            "a rank reads other chunks than in a ring: one in each round, from its left neighbour, and never chunk r "
            "- 1.",
        ),
        KernelMistake(
            "not round the ring",
            of_kind("raised", words="slice(rank="),
            "there is no such chunk: the numbers go round the ring, so take them % p.",
        ),
        KernelMistake(
            "nothing read",
            of_kind("wrong", where=lambda f: not _reads(f)),
            "no rank reads anything from another. After its wait, a rank reads a chunk from its left neighbour, adds "
            "its own part, and stores the sum.",
        ),
        KernelMistake(
            "not stored",
            of_kind("wrong", where=_nothing_stored),
            "nothing is stored after x. What a round has added must be stored in the window, at the chunk's place, "
            "or the right neighbour reads the old values.",
        ),
        ProgramMistake(
            "never reached",
            lambda xs: _own(xs, lambda j, p: j == 0),
            "rank r returns its own part of chunk r, to which nothing was added: its rounds never came to chunk r. "
            "Which chunk has to be the last one, and how many rounds are there?",
        ),
        ProgramMistake(
            "the next rank's chunk",
            lambda xs: _chunks(xs, 1),
            "rank r returns chunk r + 1, finished. Start every chunk one rank further on.",
        ),
        ProgramMistake(
            "handed on",
            lambda xs: _own(xs, lambda j, p: j == 1 % p),
            "chunks are handed on, but nobody adds anything: what comes out is what rank r + 1 began with.",
        ),
        ProgramMistake(
            "two ranks",
            lambda xs: _own(xs, lambda j, p: (j == 0) + (j == p - 1 > 0)),
            "only two ranks are in the sum: rank r reads chunk r when its left neighbour has added nothing to it. "
            "Which chunk has to come first, so that chunk r comes last?",
        ),
        ProgramMistake(
            "the same chunk each round",
            lambda xs: _own(xs, lambda j, p: (j == 0) + (p - 1) * (j == p - 1 > 0)),
            "rank r reads chunk r in every round, where its left neighbour never adds anything. Another chunk comes "
            "round each time, and chunk r comes last.",
        ),
        ProgramMistake(
            "its own twice",
            lambda xs: _own(xs, lambda j, p: 2 - (j == 1 % p)),
            "every rank but the first adds its own part twice. It lies in the window already: add x, or what the "
            "window holds, not both.",
        ),
    ),
    gets=lambda counts: np.roll(np.diag(counts.sum() - counts), 1, axis=0),
    ranks=(3, 2, 4, 5, 7, 1),  # on two ranks every ring is the right way round, and each round the last
)

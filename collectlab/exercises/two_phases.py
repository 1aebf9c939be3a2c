"""The exercises of notebook 06: an all-reduce in two phases, and the barrier between them."""

import numpy as np

from collectlab import semantics
from collectlab.exercises.exercise import Exercise, Mistake
from collectlab.exercises.on_kernels import KernelExercise, KernelMistake, of_kind
from collectlab.exercises.on_ranks import ProgramMistake
from collectlab.kernels import mesh, two_phase
from collectlab.layout import Partition

_COUNT, _BYTES = 12, 4  # elements, and bytes of one


def _read(cost, nranks, count=_COUNT):
    """Bytes that rank 0 reads from its peers."""
    return cost(nranks, count, _BYTES, 0).nbytes


def _near(value, wanted):
    return value.shape == np.shape(wanted) and np.allclose(value, wanted, rtol=0.02)


bytes_on_four_ranks = Exercise(
    "An array of 12 int32 on 4 ranks. How many bytes does a rank read from its peers: in the mesh, in the "
    "reduce-scatter, in the all-gather, in both phases together?",
    expected=[
        _read(mesh.all_reduce_cost, 4),
        _read(two_phase.reduce_scatter_cost, 4),
        _read(two_phase.all_gather_cost, 4, _COUNT // 4),
        _read(two_phase.all_reduce_cost, 4),
    ],
    of="bytes",
    why="a chunk has 3 elements, 12 bytes. Each phase reads one chunk from each of 3 peers, the mesh whole arrays.",
    mistakes=(
        Mistake("elements", [36, 9, 9, 18], "Those are elements. An int32 takes 4 bytes."),
        Mistake(
            "its own too",
            lambda value: value.shape == (4,) and list(value[1:]) == [48, 48, 96] and value[0] in (144, 192),
            "That counts what a rank reads from its own window. From its peers it reads one less.",
        ),
        Mistake(
            "one phase only",
            [144, 36, 36, 36],
            "Both phases together read what the first reads and what the second reads.",
        ),
        Mistake("one peer", [48, 12, 12, 24], "That is what comes from one peer. There are three of them."),
        Mistake(
            "whole arrays in the first phase",
            [144, 144, 36, 180],
            "In the reduce-scatter a rank reads only its own chunk of each peer's array.",
        ),
        Mistake(
            "whole arrays in the second phase",
            [144, 36, 144, 180],
            "In the all-gather a rank reads one finished chunk from each peer, not the whole array.",
        ),
        Mistake(
            "all ranks",
            [576, 144, 144, 288],
            "Those are the bytes of all four ranks together. One rank is asked for.",
        ),
        Mistake(
            "half by rule",
            lambda value: value.shape == (4,) and value[0] == 144 and value[1] != value[2],
            "Both phases move chunks of the same size from the same number of peers.",
        ),
    ),
)

_READ = [_read(two_phase.all_reduce_cost, p, 48) for p in (2, 4, 8)]
_SHARES = [100 * two // _read(mesh.all_reduce_cost, p, 48) for p, two in zip((2, 4, 8), _READ, strict=True)]

share_of_the_mesh = Exercise(
    "How many per cent of the mesh's bytes do two phases read on 2, on 4 and on 8 ranks? Write three numbers.",
    expected=_SHARES,
    of="per cent",
    why="2 (p - 1) / p * N over (p - 1) * N is 2 / p: nothing is saved on 2 ranks, half on 4, three quarters on 8.",
    mistakes=(
        Mistake(
            "always half",
            [50, 50, 50],
            "Half is right for one of the three. The share falls as the ranks become more.",
        ),
        Mistake("what is saved", [0, 50, 75], "That is what is saved. What is still read is asked for."),
        Mistake(
            "over N", [100, 150, 175], "That is 2 (p - 1) / p, the bytes over N. Divide by the mesh's p - 1 as well."
        ),
        Mistake(
            "turned round",
            [100, 200, 400],
            "That is the mesh's share of the two phases. It is asked the other way round.",
        ),
        Mistake("in bytes", _READ, "Those are the bytes of 48 elements of 4. Divide them by the mesh's."),
        Mistake(
            "one phase", lambda v: _near(v, [50, 25, 12.5]), "That is 1 / p, the share of one phase. There are two."
        ),
        Mistake(
            "1 / (p - 1)",
            lambda v: _near(v, [100, 100 / 3, 100 / 7]),
            "Both formulas have p - 1 in them, and it cancels. Write them down and divide.",
        ),
        Mistake("as shares", lambda v: _near(v, [1, 0.5, 0.25]), "Write per cent: half is 50."),
    ),
)


def _slices(xs):
    """Everyone's slice of its own array."""
    parts = Partition.uneven(xs[0].size, len(xs))
    return [parts.slice(rank) for rank in range(len(xs))]


def _on_each(result):
    """What a program returns that gives `result(xs, rank, mine)` back on each rank, `mine` being its slice."""
    return lambda xs: [result(xs, rank, mine) for rank, mine in enumerate(_slices(xs))]


def _equal(xs, of_rank):
    """A sum of one chunk from each rank; where chunks differ in length, such a program fails: then nothing."""
    parts = [x[_slices(xs)[of_rank(rank)]] for rank, x in enumerate(xs)]
    return sum(parts) if len({part.size for part in parts}) == 1 else np.zeros(0, xs[0].dtype)


reduce_scatter_loop = KernelExercise(
    "Sum the chunk of this rank over all ranks, and read no other.",
    expected=_on_each(lambda xs, rank, mine: sum(xs)[mine]),
    why="each rank has read its own chunk of every array, and no other.",
    gets=lambda counts: counts[:, None],
    mistakes=(
        ProgramMistake(
            "whole arrays",
            semantics.all_reduce,
            "every rank adds whole arrays, as the mesh does. Its chunk, `mine`, is enough.",
        ),
        ProgramMistake(
            "its own",
            _on_each(lambda xs, rank, mine: xs[rank][mine]),
            "every rank returns its own contribution; nobody's is added.",
        ),
        ProgramMistake(
            "the last one",
            _on_each(lambda xs, rank, mine: xs[-1][mine]),
            "only the last rank's contribution is there. The loop has to add to total, not to replace it.",
        ),
        ProgramMistake(
            "rank 0's",
            _on_each(lambda xs, rank, mine: xs[0][mine]),
            "only rank 0's contribution is there. The others are added to it, up to the last: range(1, n) ends "
            "before n.",
        ),
        ProgramMistake(
            "own start, rank 0 left out",
            _on_each(lambda xs, rank, mine: (sum(xs[1:]) + xs[rank] if len(xs) > 1 else xs[0])[mine]),
            "the sum begins with the rank's own chunk, and the loop begins with rank 1: what rank 0 has is never "
            "added, and the rank's own is added twice.",
        ),
        ProgramMistake(
            "own twice",
            _on_each(lambda xs, rank, mine: (sum(xs) + xs[rank])[mine]),
            "every rank's own contribution is added twice: before the loop, and again in it.",
        ),
        ProgramMistake(
            "own missing",
            _on_each(lambda xs, rank, mine: (sum(xs) - xs[rank])[mine]),
            "every rank leaves out its own contribution. Its array lies in its window too.",
        ),
        ProgramMistake(
            "last missing",
            _on_each(lambda xs, rank, mine: (sum(xs[:-1]) if len(xs) > 2 else xs[0])[mine]),
            "the last rank's contribution is missing. There are ctx.nranks of them, and range(1, n) ends before n.",
        ),
        ProgramMistake(
            "never remote",
            _on_each(lambda xs, rank, mine: len(xs) * xs[rank][mine]),
            "every rank adds its own contribution again and again: load reads the own window, remote_load a peer's.",
        ),
        ProgramMistake(
            "each peer's chunk",
            lambda xs: [_equal(xs, lambda peer: peer)] * len(xs),
            "another chunk is read from each rank. It is the same chunk that is read everywhere: `mine`.",
        ),
        ProgramMistake(
            "chunk 0",
            lambda xs: [_equal(xs, lambda peer: 0)] * len(xs),
            "every rank sums chunk 0. The one to sum is `mine`.",
        ),
        ProgramMistake(
            "mean",
            _on_each(lambda xs, rank, mine: sum(xs)[mine] / len(xs)),
            "that is the mean. The sum is asked for.",
        ),
        KernelMistake(
            "read whole, then cut",
            of_kind("bytes"),
            "more is read than `mine`. A slice after the parentheses cuts what has been read already; inside, as "
            "remote_load(peer, mine), it says what to read.",
        ),
    ),
)


def _filled(owners):
    """What a program returns that fills zeros with the chunks of `owners(rank, nranks)`, each at its place."""

    def wrong(xs):
        results = [np.zeros_like(x) for x in xs]
        for rank, y in enumerate(results):
            for owner in owners(rank, len(xs)):
                part = _slices(xs)[owner]
                y[part] = xs[owner][part]
        return results

    return wrong


def _joined(order):
    """What a program returns that lays the owners' chunks one after another in another order."""
    return lambda xs: [
        np.concatenate([xs[owner][_slices(xs)[owner]] for owner in order(rank, len(xs))]) for rank in range(len(xs))
    ]


def _last_at_own_place(xs, rank, mine):
    y, last = np.zeros_like(xs[rank]), xs[-1][_slices(xs)[-1]]
    if y[mine].size == last.size:  # elsewhere such a program fails
        y[mine] = last
    return y


def _never_stored(finding):
    """Whether results hold what lies in a window before anything is stored there."""
    return any((np.abs(y.astype(float)) > 1e17).any() for y in finding.results)


all_gather_loop = KernelExercise(
    "Collect every finished chunk from the rank that owns it.",
    expected=_filled(lambda rank, nranks: range(nranks)),
    why="chunk c came from rank c, and went to the place of chunk c.",
    gets=lambda counts: counts,
    mistakes=(
        ProgramMistake(
            "nothing", lambda xs: [np.zeros_like(x) for x in xs], "y is still full of zeros: nothing was put in."
        ),
        ProgramMistake(
            "its own only",
            _filled(lambda rank, nranks: [rank]),
            "only the rank's own chunk is there. Read those of the others.",
        ),
        ProgramMistake(
            "its own missing",
            _filled(lambda rank, nranks: set(range(nranks)) - {rank}),
            "the rank's own chunk is missing. It lies in its window like the others.",
        ),
        ProgramMistake(
            "the last missing",
            _filled(lambda rank, nranks: range(nranks - 1)),
            "the last chunk is missing. range(n) ends before n, so it needs all ctx.nranks.",
        ),
        ProgramMistake(
            "the first missing",
            _filled(lambda rank, nranks: range(1, nranks)),
            "chunk 0 is missing. Nothing was put into y before the loop, so it begins with rank 0.",
        ),
        ProgramMistake("x itself", lambda xs: xs, "every rank returns its x, of which only one chunk is finished."),
        ProgramMistake(
            "its own first",
            _joined(lambda rank, nranks: [(rank + step) % nranks for step in range(nranks)]),
            "the chunks stand in the order in which they were read, the rank's own first. Chunk c belongs at "
            "chunks.slice(c).",
        ),
        ProgramMistake(
            "backwards",
            _joined(lambda rank, nranks: range(nranks)[::-1]),
            "the chunks stand in the wrong order: the last one comes first. Chunk c belongs at chunks.slice(c).",
        ),
        ProgramMistake(
            "all in one place",
            _on_each(_last_at_own_place),
            "every chunk is put at the place of the rank's own, each over the one before. Chunk c belongs at "
            "chunks.slice(c).",
        ),
        KernelMistake(
            "never stored",
            of_kind("wrong", where=_never_stored),
            "a rank reads what nobody has stored: rank c stores chunk c, and nothing else. So chunk c has to come "
            "from rank c, and chunks are cut by `chunks`, which may differ in length.",
        ),
        KernelMistake(
            "read whole, then cut",
            of_kind("bytes"),
            "more is read than one chunk from each owner. Tell remote_load which part.",
        ),
        KernelMistake(
            "not from its owner",
            of_kind("detour"),
            "a chunk comes from a rank that does not own it. Read each chunk from its owner.",
        ),
    ),
)


def _rows(finding, rank, *between):
    """The rows of the barriers of a rank in that slice of a run's events."""
    return [e.row for e in finding.events[slice(*between)] if e.rank == rank and e.kind == "barrier"]


def _too_early(finding):
    """Whether the second barrier comes before the store of the chunk."""
    store = finding.races[0].first
    return len(set(_rows(finding, store.rank, finding.events.index(store)))) > 1


def _too_late(finding):
    """Whether the second barrier comes after a chunk was read."""
    load = finding.races[0].second
    return _rows(finding, load.rank, finding.events.index(load), None)


def _counts(finding, kind):
    """(signals, row, count) of each event of that kind on the second rank of a race, but for those in a barrier."""
    rank = finding.races[0].second.rank
    return [(e.name, e.row, e.at_least) for e in finding.events if e.rank == rank and e.kind == kind and not e.cause]


def _same_row(finding):
    """Whether two barriers ask for the same count on the same row."""
    targets = _counts(finding, "barrier")
    return len(set(targets)) < len(targets) or set(targets) & set(_counts(finding, "wait"))


def _nobody_notifies(finding):
    """Whether every rank has notified on the row of the first barrier only."""
    given = [e for e in finding.events if e.kind == "notify"]
    return all(e.cause for e in given) and len({(e.rank, e.row) for e in given}) == finding.nranks


second_barrier = KernelExercise(
    "Put in what is missing between the two phases.",
    expected=semantics.all_reduce,
    why="nobody reads a chunk before its owner has stored it, also in the second call.",
    gets=lambda counts: counts[:, None] + counts,
    mistakes=(
        KernelMistake(
            "too early",
            of_kind("race", call=0, where=_too_early),
            "the second barrier stands before the store of the reduced chunk, and says nothing about it.",
        ),
        KernelMistake(
            "too late",
            of_kind("race", call=0, where=_too_late),
            "the second barrier stands after the loop that reads: by then it is too late.",
        ),
        KernelMistake(
            "the same row",
            of_kind("race", where=_same_row),
            "both barriers ask for the same count on the same row, and the second finds it there from the first.",
        ),
        KernelMistake(
            "waits for 0",
            of_kind("race", where=lambda f: any(at_least <= 0 for *_, at_least in _counts(f, "wait"))),
            "a wait asks for 0, and every counter has reached that before anybody notifies.",
        ),
        KernelMistake(
            "a fixed target",
            of_kind("race", call=1, where=lambda f: _counts(f, "wait")),
            "the counters go on from the first call, and the wait asks for as much as then. signals.generation is 1 "
            "in the first call, 2 in the second.",
        ),
        KernelMistake(
            "nobody waits",
            of_kind("race", where=lambda f: _counts(f, "notify") and not _counts(f, "wait")),
            "the peers are notified, but nobody waits for that.",
        ),
        KernelMistake(
            "not every peer",
            of_kind("race", where=lambda f: _counts(f, "wait")),
            "ranks wait, but not for every rank whose chunk they read.",
        ),
        KernelMistake(
            "nothing",
            of_kind("race", call=0, where=lambda f: len(_counts(f, "barrier")) == 1),
            "nothing stands between the store of a reduced chunk and its reading: a fast rank reads a chunk before "
            "its owner has stored it.",
        ),
        KernelMistake(
            "nobody notifies",
            of_kind("deadlock", where=_nobody_notifies),
            "the ranks wait for notifications that nobody gives, or only after a wait of its own.",
        ),
        KernelMistake(
            "not every rank",
            of_kind("deadlock", where=lambda f: any(e.cause and e.row for e in f.events)),
            "a barrier is for all: ranks that come to it wait for the ones that do not.",
        ),
    ),
)

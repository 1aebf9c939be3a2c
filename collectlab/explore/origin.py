"""Where the elements of a wrong result came from.

A program that copies and adds does the same to every number, so it can be run on identifiable tensors: once for each
word that an identified element takes (see provenance), with that word in the place of every element. The results
side by side are identified elements, for any length and any cut.
"""

from itertools import pairwise

import numpy as np

from collectlab import provenance
from collectlab.explore.witness import InStep
from collectlab.fabric.per_rank import PerRank
from collectlab.layout import Partition
from collectlab.words import ranks_named

_MOST = 8  # lines
_UNREADABLE, _UNWRITTEN = -1, -2  # as every word of an element


def planes(call, program, given, args, expected):
    """Lines on the results of one call of `program(ctx, x, *args)`: what stands where something else belongs.

    given[call][rank] are the inputs. There are no lines where the operation is no sum or average, or the program does
    not end on such numbers.
    """
    nranks, count = len(given[0]), max(x.size for x in given[0])
    words = [x.reshape(-1, provenance.words(nranks)) for x in provenance.identify(nranks, count * len(given))]
    got, want = [[] for _ in range(nranks)], [[] for _ in range(nranks)]
    for word in range(provenance.words(nranks)):
        inputs = [
            [words[rank][at * count :, word][: x.size].reshape(x.shape).astype(float) for rank, x in enumerate(xs)]
            for at, xs in enumerate(given)
        ]
        ranks = PerRank([list(xs) for xs in zip(*inputs, strict=True)])
        run = InStep(nranks, traced=False).run(lambda ctx, xs: [program(ctx, x, *args) for x in xs], (ranks,))
        if not run.ok:
            return []
        for rank, right in enumerate(expected(inputs[call])):
            got[rank].append(_flat(run.results[rank][call]))
            want[rank].append(_flat(right))
    got, want = ([np.array(words).T for words in side] for side in (got, want))
    divided = 1 if _readable(want, nranks) else nranks
    want = [rows * divided for rows in want]
    if not _readable(want, nranks):
        return []
    lines = []
    for times, said in _DIVISIONS.items():
        scaled = [rows * divided * float(nranks) ** times for rows in got]
        off = [rank for rank in range(nranks) if nranks > 1 and _equal(scaled[rank], want[rank]) and want[rank].any()]
        if off:
            lines.append(f"{names(off, nranks)}: {said}")
        for rank in off:
            got[rank] = want[rank] / divided
    held, needed = ([_whole(rows) for rows in side] for side in ([rows * divided for rows in got], want))
    return lines + _lines(held, needed, call, count)


def _flat(y):
    return np.zeros(0) if y is None else np.asarray(y, float).reshape(-1)


_DIVISIONS = {
    1: "divided by the number of ranks once too often",
    2: "divided by the number of ranks twice too often",
    -1: "the number of ranks times too large, as if not divided by it",
}


def _equal(a, b):
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-9, atol=0)


def identified(got, want):
    """Lines on results of identified elements; none where `want` is something else."""
    try:
        return _lines(got, want, 0, 0)
    except (TypeError, ValueError):
        return []


def _readable(results, nranks):
    """Whether the results are identified elements, or sums of them."""
    return all(provenance.UNREADABLE not in provenance.read(_whole(rows), nranks) for rows in results)


def _whole(rows):
    """As identified elements; what is no whole number cannot be read, and what nobody has written neither."""
    finite = np.where(np.isfinite(rows), rows, 0.5)
    whole = np.rint(finite)
    near = np.isclose(finite, whole, rtol=1e-12, atol=1e-6) & (np.abs(whole) < 2.0**62)
    near = near.all(axis=-1, keepdims=True)
    words = np.where(near, whole, _UNREADABLE)
    return np.where(np.isnan(rows), _UNWRITTEN, words).astype(np.int64).reshape(-1)


def _lines(got, want, call, count):
    """The misplacements in words, one line for all ranks of which the same can be said."""
    nranks, width = len(want), provenance.words(len(want))
    said = {}  # (start, stop, text) -> ranks
    for one in provenance.misplacements(got, want, first=call * count, count=count):
        if one.holds == provenance.UNREADABLE and got[one.rank][one.start * width] == _UNWRITTEN:
            said.setdefault((one.start, one.stop, "hold memory that nobody has written"), []).append(one.rank)
            continue
        chunks = Partition.uneven(len(want[one.rank]) // width, nranks)
        for part in _by_chunk(one, chunks):
            text = str(part).partition(": ")[2]
            if stands := _stands(part, chunks):  # says what they should hold, and in fewer words
                text = f"{text.rpartition('; ')[0]}; {stands}"
            said.setdefault((part.start, part.stop, text), []).append(part.rank)
    for (start, stop, text), ranks in list(said.items()):
        for rank in ranks[:] if _OWN in text else ():
            others = (start, stop, text.replace(_OWN, f"only rank {rank}'s"))
            if others in said:  # one rank's own contribution on all ranks
                said[others] = sorted([*said[others], rank])
                ranks.remove(rank)
    lines = []
    in_order = sorted(said.items(), key=lambda item: (len(item[1]) < nranks, item[1], item[0]))
    for (start, stop, text), ranks in in_order:
        where = f"element {start}" if stop - start == 1 else f"elements {start}:{stop}"
        lines += [f"{names(ranks, nranks)}, {where}: {text}"] if ranks else []
    more = [f"... and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
    return lines[:_MOST] + more


_OWN = "only its own contribution"


def _by_chunk(one, chunks):
    """A misplacement of whole sums, cut where chunks begin; any other as it is."""
    if not _moved(one):
        return [one]
    cuts = sorted({one.start, one.stop, *(c.start for c in map(chunks.slice, range(len(chunks.counts))))})
    cuts = [cut for cut in cuts if one.start <= cut <= one.stop]
    return [one.part(start, stop) for start, stop in pairwise(cuts)]


def _moved(one):
    """Whether whole sums of this call stand at the places of others, in a result that should have all of them."""
    if not (one.everyones(one.should) and one.everyones(one.holds)):
        return False
    belongs, stands = min(one.should)[1], min(one.holds)[1]
    return belongs == one.start and belongs != stands and (not one.count or 0 <= stands < one.count)


def _stands(one, chunks):
    """Which chunk stands where which one belongs, in a misplacement of whole sums."""
    if not _moved(one):
        return ""
    cuts = [chunks.slice(c) for c in range(len(chunks.counts))]
    belongs, stands = (
        next((c for c, cut in enumerate(cuts) if cut.start <= index < cut.stop), None)
        for index in (next(iter(items))[1] for items in (one.should, one.holds))
    )
    if None in (belongs, stands) or belongs == stands:
        return ""
    return f"chunk {stands} stands where chunk {belongs} belongs"


def names(ranks, nranks):
    """ "rank 3", "ranks 0 and 2", or "every rank" where all of several are meant."""
    if len(ranks) == nranks > 1:
        return "every rank"
    return ranks_named(ranks)

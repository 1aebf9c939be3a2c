"""Identifiable tensors: every element says which rank and which index it came from, also after a sum.

    xs = provenance.identify(4, 8)                      # what rank r passes to the collective
    want = semantics.reduce_scatter(xs)                 # what it should return
    print(provenance.explain(got, want))
    rank 1, element 0: holds rank 3's element 2 twice, rank 0's is missing; it should hold the sum of ...

An element is ``words(nranks)`` int64 words that lie next to each other, so to a collective an array of n elements
is a vector of ``n * words(nranks)`` int64. Multiply counts and displacements by ``words(nranks)``; then copies keep
elements whole, and SUM adds them word by word. Other reductions lose the names, and so does a cut inside an element.

The words of rank r's element i are zero except four at ``4 * r``, which are 1, i, i^2 and i^3, and the last, a
check word. A sum that holds rank r's element i_j w_j times therefore holds, for k = 0 to 3, the moments
m_k = sum_j w_j * i_j^k of each rank.

Why a sum can be read in one way only. Take two mixtures that hold at most two different elements of rank r each,
as often as you like, and the same four moments. Subtract one from the other: what remains has at most four
different indices and weights v_j with sum_j v_j * i_j^k = 0 for k = 0 to 3. That is a square Vandermonde system
with different nodes, so every v_j is 0 and the mixtures are the same. No word overflows within the limits: the
largest moment is at most TIMES * (ELEMENTS - 1)^3 < 2^63, and nranks * TIMES check words of 40 bits stay below it.

Limits: RANKS ranks, ELEMENTS elements on each, and in one sum at most two different elements of a rank, TIMES
contributions of a rank in all. A sum of three different elements of one rank can have the moments of a sum of
two. Then the check word, a sum of pseudo-random numbers, disagrees (it would agree by chance once in about 2^40),
and the element is called unreadable, as are elements that no collective wrote.
"""

import operator
from collections import Counter
from dataclasses import dataclass, replace
from math import isqrt

import numpy as np

RANKS = 1024
ELEMENTS = 200_000
TIMES = 1_000

ABSENT = "absent"
UNREADABLE = "unreadable"


def words(nranks):
    """How many int64 words one element takes: four for each rank and a check word."""
    return 4 * _whole("words", "nranks", nranks, 1, RANKS) + 1


def identify(nranks, count):
    """The array that each rank passes: a list of int64 vectors, rank r's of ``count * words(nranks)`` words.

    ``count`` is the number of elements on each rank, a list with one number per rank, or a ``layout.Partition``.
    """
    call = f"identify(nranks={nranks!r}, count={count if isinstance(count, int) else '...'})"
    nranks = _whole(call, "nranks", nranks, 1, RANKS)
    counts = getattr(count, "counts", count)
    if hasattr(counts, "__index__"):
        counts = [counts] * nranks
    elif not hasattr(counts, "__len__"):
        raise TypeError(f"{call}: count is one number, or a list with one number per rank, not {count!r}")
    if len(counts) != nranks:
        raise ValueError(f"{call}: count is one number, or one per rank ({nranks}), not {len(counts)} numbers")
    xs = []
    for rank, n in enumerate(counts):
        index = np.arange(_whole(call, "count", n, 0, ELEMENTS), dtype=np.int64)
        x = np.zeros((len(index), words(nranks)), np.int64)
        x[:, 4 * rank : 4 * rank + 4] = index[:, None] ** np.arange(4)
        x[:, -1] = _check(rank, index)
        xs.append(x.reshape(-1))
    return xs


def read(array, nranks):
    """What each element of an array holds: a list of Counters, (rank, index) -> how often.

    An element of zeros holds nothing: an empty Counter. UNREADABLE stands for an element that is no sum of
    identified elements within the limits.
    """
    return [_read(row) for row in _rows("read", "array", array, words(nranks))]


def misplacements(got, want, first=0, count=0):
    """Where results differ from what they should be: a list of ``Misplacement``, in the order of the elements.

    got, want  one array per rank, or None for a rank without a result; both hold identified elements, whole or
               summed. Neighbouring elements with the same fault are one Misplacement.
    first, count  where a program was called several times, each time with the next `count` elements of every rank:
               `want` is what the call with those from `first` on returns; those of other calls are said to be of them
    """
    nranks = len(want)

    def read_at(row):
        held = _read(row)
        return held if held == UNREADABLE else Counter({(rank, i - first): n for (rank, i), n in held.items()})

    if len(got) != nranks:
        raise ValueError(f"misplacements: got has {len(got)} results and want {nranks}; each has one per rank")
    width = words(nranks)
    found = []
    for rank, (mine, right) in enumerate(zip(got, want, strict=True)):
        have = _rows("misplacements", f"got[{rank}]", mine, width)
        need = _rows("misplacements", f"want[{rank}]", right, width)
        common = min(len(have), len(need))
        wrong = np.flatnonzero((have[:common] != need[:common]).any(axis=1)).tolist()
        for at in [*wrong, *range(common, max(len(have), len(need)))]:
            should = read_at(need[at]) if at < len(need) else ABSENT
            if should == UNREADABLE:
                raise ValueError(f"misplacements: element {at} of want[{rank}] is no sum of identified elements")
            holds = read_at(have[at]) if at < len(have) else ABSENT
            one = Misplacement(rank, at, at + 1, should, holds, nranks, count)
            if found and found[-1]._goes_on(one):
                found[-1] = replace(found[-1], stop=at + 1)
            else:
                found.append(one)
    return found


def explain(got, want, most=12):
    """``misplacements`` in words, one a line, the first ``most`` of them."""
    found = misplacements(got, want)
    if not found:
        return "every element is where it should be"
    more = [f"... and {len(found) - most} more"] if len(found) > most else []
    return "\n".join([*map(str, found[:most]), *more])


@dataclass(frozen=True)
class Misplacement:
    """Elements ``start`` to ``stop`` of one rank's result, which hold something else than they should.

    should, holds  of the first of them, (rank, index) -> how often; the indices rise by one with each further
                   element. ABSENT stands for an element that is not there, UNREADABLE for one that cannot be read
    count          elements of a rank in one of several calls, 0 for a single one: an index below 0 is of the call
                   before, one from count on of the next
    """

    rank: int
    start: int
    stop: int
    should: dict
    holds: dict
    nranks: int
    count: int = 0

    def __str__(self):
        several = self.stop - self.start > 1
        where = f"rank {self.rank}, element{'s' * several} {self._span(self.start)}"
        hold, they, do = ("hold", "they", "do") if several else ("holds", "it", "does")
        if self.should == ABSENT:
            return f"{where}: should not be there; {they} {hold} {self._sum(self.holds)}"
        right = f"{they} should hold {self._sum(self.should)}"
        if self.holds == ABSENT:
            return f"{where}: {do} not exist; {right}"
        if self.holds == UNREADABLE:
            return f"{where}: {hold} no sum of identified elements; {right}"
        return f"{where}: {self._difference(hold)}; {right}"

    def part(self, start, stop):
        """The same fault of fewer elements."""
        ahead = start - self.start
        should, holds = (
            items if items in (ABSENT, UNREADABLE) else Counter({(r, i + ahead): n for (r, i), n in items.items()})
            for items in (self.should, self.holds)
        )
        return replace(self, start=start, stop=stop, should=should, holds=holds)

    def _goes_on(self, other):
        """Whether the other follows this one with the same fault."""
        if (self.rank, self.stop) != (other.rank, other.start):
            return False
        step = other.start - self.start
        return all(
            a == b if ABSENT in (a, b) or UNREADABLE in (a, b) else {(r, i + step): n for (r, i), n in a.items()} == b
            for a, b in ((self.should, other.should), (self.holds, other.holds))
        )

    def _difference(self, hold):
        """What is held, in full where that is short, else only what differs from what should be held."""
        should, holds = self.should, self.holds
        if len(should) < 2 or not holds:
            return f"{hold} {self._sum(holds)}"
        if whole := self._whole_sum(holds):
            more = holds - whole
            again = f" and once more {self._sum(more).removeprefix('the sum of ')}" if more else ""
            return f"{hold} {self._sum(whole)}{again}"
        missing = sorted(should.keys() - holds.keys())
        if len(should) > 2 and [*holds] == [(self.rank, min(should)[1])] and holds <= should:
            return f"{hold} only its own contribution"
        if len(holds) < len(missing) and holds <= should:
            return f"{hold} only {self._short(sorted(holds))}"
        ranks_of = {}  # what is said -> the ranks of which it is said
        for rank in sorted({rank for rank, _ in holds}):
            lost = [index for r, index in missing if r == rank]
            new = [index for r, index in sorted(holds) if r == rank and holds[r, index] != should.get((r, index))]
            for index in new:
                said = self._elements(index) + _often(holds[rank, index])
                if len(lost) == len(new) == 1:
                    said += f" instead of {self._span(lost[0])}"
                    missing.remove((rank, lost[0]))
                elif (rank, index) not in should and not lost and any(r == rank for r, _ in should):
                    said += " as well"
                ranks_of.setdefault(said, []).append(rank)
        text = [f"{_and(f'rank {rank}{_S}' for rank in ranks)} {said}" for said, ranks in ranks_of.items()]
        if text:
            text[0] = f"{hold} {text[0]}"
        if missing:
            is_one = len(missing) == self.stop - self.start == 1
            text.append(f"{self._short(missing)} {'is' if is_one else 'are'} missing")
        return ", ".join(text)

    def _short(self, items):
        """Some of the elements that should be in the sum; by their ranks alone if all have the same index."""
        alike = len({index for _, index in self.should}) == 1
        return _and(f"rank {rank}{_S}" if alike else self._item(rank, index, 1) for rank, index in items)

    def _whole_sum(self, holds):
        """Everyone's element at an index where nothing should be, if that is in the sum; else None."""
        for index in sorted({index for _, index in holds} - {index for _, index in self.should}):
            whole = Counter({(rank, index): 1 for rank in range(self.nranks)})
            if self.everyones(self.should) and whole <= holds:
                return whole
        return None

    def everyones(self, items):
        """Whether the items are the same element of every rank, once each."""
        return (
            items not in (ABSENT, UNREADABLE)
            and self.nranks > 1
            and {rank for rank, _ in items} == set(range(self.nranks))
            and len({index for _, index in items}) == 1
            and set(items.values()) == {1}
        )

    def _sum(self, items):
        if items == UNREADABLE:
            return "no sum of identified elements"
        if not items:
            return "nothing (zeros)"
        if self.everyones(items):
            return f"the sum of everyone{_S} {self._elements(min(items)[1])}"
        each = [self._item(rank, index, times) for (rank, index), times in sorted(items.items())]
        return ("the sum of " if len(each) > 1 else "") + _and(each)

    def _item(self, rank, index, times):
        return f"rank {rank}{_S} {self._elements(index)}{_often(times)}"

    def _elements(self, first):
        of = ""
        if self.count and not 0 <= first < self.count:
            of = " of the call before" if first < 0 else " of the next call"
            first %= self.count
        return f"element{'s' * (self.stop - self.start > 1)} {self._span(first)}{of}"

    def _span(self, first):
        length = self.stop - self.start
        return f"{first}" if length == 1 else f"{first}:{first + length}"


_S = "'s"


def _and(parts):
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def _often(times):
    return {1: "", 2: " twice"}.get(times, f" {times} times")


def _read(row):
    """The mixture in one element, or UNREADABLE."""
    held = Counter()
    for rank, moments in enumerate(row[:-1].reshape(-1, 4).tolist()):
        if any(moments):
            weights = _weights(*moments)
            if weights is None:
                return UNREADABLE
            for index, times in weights.items():
                held[rank, index] = times
    ranks, indices = np.array([*held], np.int64).reshape(-1, 2).T
    check = np.array([*held.values()], np.int64) @ _check(ranks, indices)
    return held if check == row[-1] else UNREADABLE


def _weights(m0, m1, m2, m3):
    """The one mixture of at most two indices, index -> weight, that has these moments; None if none has.

    The two indices are the roots of i^2 - s i + q, because m2 = s m1 - q m0 and m3 = s m2 - q m1.
    """
    if not 0 < m0 <= TIMES:
        return None
    det = m0 * m2 - m1 * m1  # zero for one index, by the equality case of Cauchy-Schwarz
    if det == 0:
        weights = {m1 // m0: m0}
    else:
        s, q = (m0 * m3 - m1 * m2) // det, (m1 * m3 - m2 * m2) // det
        gap = isqrt(max(0, s * s - 4 * q))
        low, high = (s - gap) // 2, (s + gap) // 2
        if low == high:
            return None
        weights = {high: (m1 - low * m0) // (high - low)}
        weights[low] = m0 - weights[high]
    if min(weights.values()) < 1 or min(weights) < 0 or max(weights) >= ELEMENTS:
        return None
    moments = [sum(w * i**k for i, w in weights.items()) for k in range(4)]
    return weights if moments == [m0, m1, m2, m3] else None


def _check(rank, index):
    """A pseudo-random number of 40 bits for each (rank, index): int64, as splitmix64 mixes its state."""
    with np.errstate(over="ignore"):
        z = np.asarray(index).astype(np.uint64)
        z = z + (np.asarray(rank).astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(24)).astype(np.int64)


def _rows(call, name, array, width):
    array = np.zeros(0, np.int64) if array is None else np.asarray(array)
    if array.dtype != np.int64:
        raise TypeError(f"{call}: {name} has dtype {array.dtype}; identified elements are int64 words")
    if array.size % width:
        raise ValueError(
            f"{call}: {name} has {array.size} words, which is no whole number of elements of {width} words; "
            f"multiply counts and displacements by words(nranks) = {width}"
        )
    return array.reshape(-1, width)


def _whole(call, name, value, least, most):
    if isinstance(value, bool) or not hasattr(value, "__index__") or not least <= operator.index(value) <= most:
        raise ValueError(f"{call}: {name} is a whole number, {least} to {most}, not {value!r}")
    return operator.index(value)

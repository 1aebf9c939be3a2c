"""Who owns which slice of a vector, and on which device a rank lives.

A ``Partition`` cuts a vector into one contiguous block per rank, in rank order. A ``RankMap`` says where each
rank is. A collective follows ranks only; to say which device ends up with which elements, take both.
"""

import json
import math
import operator
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

import numpy as np


@dataclass(frozen=True)
class Partition:
    """One contiguous block per rank; block r holds elements ``displacements[r]`` to ``+ counts[r]``.

    counts   elements per rank, padding included; zero is allowed
    padding  how many elements at the end of the vector are filling, not data
    """

    counts: tuple
    padding: int = 0

    def __post_init__(self):
        counts = tuple(
            _whole("Partition", "each count", c, 0) for c in _listed("Partition", "counts", self.counts)
        )
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "padding", _whole("Partition", "padding", self.padding, 0))
        if self.padding > self.total:
            raise ValueError(f"Partition: padding is 0 to {self.total}, the whole vector, not {self.padding}")

    @classmethod
    def of(cls, counts):
        """The given counts, one per rank."""
        return cls(counts)

    @classmethod
    def equal(cls, total, nranks):
        """The same count on every rank; the rank count must divide the total."""
        total, nranks = _size("equal", total, nranks)
        if total % nranks:
            raise ValueError(
                f"Partition.equal(total={total}, nranks={nranks}): {nranks} does not divide {total}; "
                "use Partition.padded (equal blocks and filling) or Partition.uneven"
            )
        return cls((total // nranks,) * nranks)

    @classmethod
    def uneven(cls, total, nranks):
        """Counts that differ by at most one; the first ``total % nranks`` ranks hold one element more."""
        if type(total) is type(nranks) is int:
            return _uneven(cls, total, nranks)
        return _uneven(cls, *_size("uneven", total, nranks))

    @classmethod
    def padded(cls, total, nranks, multiple=1):
        """Equal blocks of ceil(total / nranks) elements, rounded up to a multiple; the end is padding.

        This is what NCCL's user guide advises for a length that the rank count does not divide.
        """
        total, nranks = _size("padded", total, nranks)
        multiple = _whole("Partition.padded", "multiple", multiple, 1)
        block = -(-total // (nranks * multiple)) * multiple
        return cls((block,) * nranks, padding=block * nranks - total)

    @classmethod
    def aligned(cls, total, nranks, itemsize, align_bytes):
        """Blocks that start on a multiple of ``align_bytes``, as even as that allows, without padding.

        ``itemsize`` is the bytes of one element: 2 for float16, 16 for complex128 (``np.dtype(...).itemsize``).
        The last ranks may hold less than the others, or nothing; an empty block starts where the vector ends.
        """
        total, nranks = _size("aligned", total, nranks)
        itemsize = _whole("Partition.aligned", "itemsize", itemsize, 1)
        align_bytes = _whole("Partition.aligned", "align_bytes", align_bytes, 1)
        step = math.lcm(itemsize, align_bytes) // itemsize
        ends = accumulate(c * step for c in cls.uneven(-(-total // step), nranks).counts)
        ends = [0, *(min(end, total) for end in ends)]
        return cls(tuple(b - a for a, b in pairwise(ends)))

    @property
    def nranks(self):
        return len(self.counts)

    @cached_property
    def total(self):
        """Elements of the whole vector, padding included."""
        return sum(self.counts)

    @cached_property
    def displacements(self):
        """Where each rank's block starts, in elements."""
        return (0, *accumulate(self.counts[:-1]))

    @property
    def data_counts(self):
        """Elements per rank without padding."""
        data = self.total - self.padding
        return tuple(max(0, min(c, data - d)) for c, d in zip(self.counts, self.displacements, strict=True))

    @cached_property
    def _slices(self):
        return [slice(d, d + c) for d, c in zip(self.displacements, self.counts, strict=True)]

    def slice(self, rank):
        """The slice of the vector that the rank holds, padding included; empty where its count is zero."""
        if not 0 <= operator.index(rank) < len(self.counts):
            raise IndexError(f"slice(rank={rank}): ranks are 0 to {self.nranks - 1}")
        return self._slices[rank]

    def owner(self, index):
        """The rank whose block holds the element; a rank with an empty block owns nothing."""
        if not 0 <= operator.index(index) < self.total:
            raise IndexError(f"owner(index={index}): the vector has {self.total} elements, numbered from 0")
        return bisect_right(self.displacements, index) - 1

    def owners(self):
        """The owner of every element: int64, shape (total,)."""
        return np.repeat(np.arange(self.nranks), self.counts)

    def is_padding(self):
        """Which elements are filling: bool, shape (total,)."""
        return np.arange(self.total) >= self.total - self.padding

    def __str__(self):
        lines = [f"{self._amount(self.total, self.padding)} on {self.nranks} rank{'s' * (self.nranks > 1)}"]
        for rank, (count, data) in enumerate(zip(self.counts, self.data_counts, strict=True)):
            part = self.slice(rank)
            lines.append(f"rank {rank} holds {part.start}:{part.stop}, {self._amount(count, count - data)}")
        return "\n".join(lines)

    @staticmethod
    def _amount(count, padding):
        return f"{count} element{'s' * (count != 1)}" + f" ({padding} of padding)" * bool(padding)


@lru_cache(maxsize=256)
def _uneven(cls, total, nranks):
    total, nranks = _size("uneven", total, nranks)
    return cls(tuple(total // nranks + (rank < total % nranks) for rank in range(nranks)))


@dataclass(frozen=True)
class Place:
    """Where one rank lives.

    host        name of the machine
    device      name of the device on it. A rank without a GPU computes in its process's own memory; its
                device is then only a name for the place where its data is
    local_rank  0, 1, ... among the ranks of the same host, in rank order
    identity    what tells a GPU from all others of its host, whatever it is called there; "" where nothing does
    """

    host: str
    device: str
    local_rank: int = 0
    identity: str = ""


@dataclass(frozen=True)
class Move:
    """What one device holds under two rank maps: its ranks, and their slices of the vector, in rank order."""

    device: str
    ranks_before: tuple
    ranks_after: tuple
    slices_before: tuple
    slices_after: tuple

    @property
    def changed(self):
        """Whether the device ends up with other elements than before."""
        before, after = ([part for part in parts if part.start < part.stop] for parts in self._slices())
        return before != after

    def __str__(self):
        before, after = map(_holding, (self.ranks_before, self.ranks_after), self._slices())
        return f"{self.device}: {before} -> {after}" if before != after else f"{self.device}: stays {before}"

    def _slices(self):
        return self.slices_before, self.slices_after


class RankMap:
    """rank -> host, device and local rank; it does not change once made.

    ``RankMap(["A", "B"])`` puts rank 0 on device A and rank 1 on device B of one host. For several hosts give
    pairs, ``RankMap([("n1", "cuda:0"), ("n2", "cuda:0")])``, or ``Place`` values. Local ranks are numbered
    here, in rank order within each host, as an MPI shared-memory split numbers them.
    """

    HOST = "localhost"

    def __init__(self, places):
        ranks_on, made = Counter(), []
        for rank, place in enumerate(_listed("RankMap", "places", places)):
            host, device = _host_and_device(rank, place)
            made.append(Place(host, device, ranks_on[host], getattr(place, "identity", "")))
            ranks_on[host] += 1
        self._places = tuple(made)

    @classmethod
    def local(cls, nranks, devices=None):
        """``nranks`` ranks on this host, on the named devices, or on cpu:0, cpu:1, ... if none are named."""
        nranks = _whole("RankMap.local", "nranks", nranks, 1)
        rank_map = cls([f"cpu:{rank}" for rank in range(nranks)] if devices is None else devices)
        if rank_map.nranks != nranks:
            raise ValueError(
                f"RankMap.local: devices needs one name per rank, {nranks}, not {rank_map.nranks}"
            )
        return rank_map

    @classmethod
    def from_json(cls, text):
        """The map that ``to_json`` wrote."""
        try:
            places = [Place(**place) for place in json.loads(text)["ranks"]]
            rank_map = cls(places)
        except (TypeError, ValueError, KeyError) as error:
            form = '{"ranks": [{"host": ..., "device": ..., "local_rank": ...}, ...]}'
            raise ValueError(f"RankMap.from_json: the text is no {form}: {error!r}") from error
        if list(rank_map.places) != places:
            raise ValueError("RankMap.from_json: local ranks are not numbered in rank order within each host")
        return rank_map

    def to_json(self):
        """One line of JSON text."""
        return json.dumps({"ranks": [vars(place) for place in self._places]})

    @property
    def nranks(self):
        return len(self._places)

    @property
    def places(self):
        """A ``Place`` per rank."""
        return self._places

    @property
    def hosts(self):
        """The host of each rank, in rank order."""
        return tuple(place.host for place in self._places)

    @property
    def devices(self):
        """The device of each rank, in rank order; written host/device where there are several hosts."""
        return tuple(_label(place, set(self.hosts)) for place in self._places)

    def __getitem__(self, rank):
        if not 0 <= operator.index(rank) < self.nranks:
            raise IndexError(f"rank {rank}: ranks are 0 to {self.nranks - 1}")
        return self._places[rank]

    def __len__(self):
        return self.nranks

    def rank_of(self, device):
        """The one rank on the device, which is named as in ``devices``."""
        ranks = [rank for rank, name in enumerate(self.devices) if name == device]
        if len(ranks) != 1:
            why = (
                f"ranks {ranks} share it"
                if ranks
                else f"the devices are {', '.join(dict.fromkeys(self.devices))}"
            )
            raise ValueError(f"rank_of({device!r}): {why}")
        return ranks[0]

    def swap(self, a, b):
        """The map in which ranks a and b have changed places."""
        places = list(self._places)
        places[a], places[b] = self[b], self[a]
        return RankMap(places)

    def reorder(self, order):
        """The map in which rank r lives where rank ``order[r]`` lived."""
        ranks = [
            _whole("reorder", "each entry of order", rank, 0) for rank in _listed("reorder", "order", order)
        ]
        if sorted(ranks) != list(range(self.nranks)):
            raise ValueError(f"reorder({order!r}): order names each rank, 0 to {self.nranks - 1}, once")
        return RankMap([self._places[rank] for rank in ranks])

    def moves(self, other, partition):
        """What each device holds of the partition under this map and under ``other``.

        Returns a list of ``Move``, one per device; printed, each says it in words. A device that has no rank
        in one of the maps holds nothing there.
        """
        if not self.nranks == other.nranks == partition.nranks:
            raise ValueError(
                f"moves: both maps and the partition must have the same rank count, "
                f"not {self.nranks}, {other.nranks} and {partition.nranks}"
            )
        moves = []
        for host, device in dict.fromkeys((p.host, p.device) for p in self.places + other.places):
            before, after = (
                tuple(r for r, p in enumerate(rank_map.places) if (p.host, p.device) == (host, device))
                for rank_map in (self, other)
            )
            slices = (tuple(partition.slice(rank) for rank in ranks) for ranks in (before, after))
            moves.append(
                Move(_label(Place(host, device), {*self.hosts, *other.hosts}), before, after, *slices)
            )
        return moves

    def __eq__(self, other):
        return self._places == other._places if isinstance(other, RankMap) else NotImplemented

    def __hash__(self):
        return hash(self._places)

    def __repr__(self):
        simple = set(self.hosts) == {self.HOST}
        return f"RankMap({[p.device if simple else (p.host, p.device) for p in self._places]})"

    def __str__(self):
        rows = [("rank", "host", "device", "local rank", "identity")]
        rows += [(str(r), p.host, p.device, str(p.local_rank), p.identity) for r, p in enumerate(self._places)]
        if not any(place.identity for place in self._places):
            rows = [row[:-1] for row in rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _whole(call, name, value, least):
    is_whole = hasattr(value, "__index__") and not isinstance(value, bool | np.bool_)
    if not is_whole or operator.index(value) < least:
        raise ValueError(f"{call}: {name} is a whole number, {least} or more, not {value!r}")
    return operator.index(value)


def _listed(call, name, values):
    if isinstance(values, str | bytes | dict) or not hasattr(values, "__iter__"):
        raise TypeError(f"{call}: {name} is a list with one entry per rank, not {values!r}")
    values = list(values)
    if not values:
        raise ValueError(f"{call}: {name} needs one entry per rank, at least one")
    return values


def _size(constructor, total, nranks):
    call = f"Partition.{constructor}"
    return _whole(call, "total", total, 0), _whole(call, "nranks", nranks, 1)


def _host_and_device(rank, place):
    host, device = (
        (place.host, place.device)
        if isinstance(place, Place)
        else (RankMap.HOST, place)
        if isinstance(place, str)
        else place
        if isinstance(place, tuple | list) and len(place) == 2
        else (None, None)
    )
    if not (isinstance(host, str) and isinstance(device, str) and host and device):
        raise TypeError(
            f"RankMap: rank {rank} is {place!r}; give a device name, a (host, device) pair or a Place"
        )
    return host, device


def _label(place, hosts):
    return place.device if len(hosts) == 1 else f"{place.host}/{place.device}"


def _holding(ranks, slices):
    parts = [f"rank {rank} with {part.start}:{part.stop}" for rank, part in zip(ranks, slices, strict=True)]
    return " and ".join(parts) or "no rank, nothing"

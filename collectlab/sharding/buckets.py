"""Who owns which slices of a vector of parameters."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from collectlab.layout import Partition


@dataclass(frozen=True)
class Buckets:
    """A vector cut into contiguous buckets, and each bucket cut over the ranks as `Partition.uneven` cuts it.

    lengths  elements of each bucket, in the order of the vector
    nranks   ranks

    A rank owns one slice of every bucket, perhaps an empty one. Its shard is these slices, one behind the other.
    One bucket is one slice for each rank; a bucket for each layer lets a layer be gathered by itself.
    """

    lengths: tuple
    nranks: int

    def __post_init__(self):
        object.__setattr__(self, "lengths", tuple(self.lengths))

    @property
    def total(self):
        """Elements of the whole vector."""
        return sum(self.lengths)

    @cached_property
    def partitions(self):
        """The Partition of each bucket."""
        return tuple(Partition.uneven(length, self.nranks) for length in self.lengths)

    @cached_property
    def spans(self):
        """Where each bucket lies in the vector: slices."""
        ends = (0, *accumulate(self.lengths))
        return tuple(slice(*span) for span in pairwise(ends))

    def slices(self, rank):
        """Which slices of the vector the rank owns: one of each bucket, in order."""
        found = []
        for span, partition in zip(self.spans, self.partitions, strict=True):
            part = partition.slice(rank)
            found.append(slice(span.start + part.start, span.start + part.stop))
        return tuple(found)

    def in_shard(self, rank):
        """Where these slices lie in the rank's shard: slices."""
        ends = (0, *accumulate(partition.counts[rank] for partition in self.partitions))
        return tuple(slice(*span) for span in pairwise(ends))

    def count(self, rank):
        """Elements of the rank's shard."""
        return sum(partition.counts[rank] for partition in self.partitions)

    def shard(self, vector, rank):
        """A copy of what the rank owns of the vector: shape (count(rank),)."""
        found = vector[: self.count(rank)].copy()  # of its device and dtype; its values come next
        for part, place in zip(self.slices(rank), self.in_shard(rank), strict=True):
            found[place] = vector[part]
        return found

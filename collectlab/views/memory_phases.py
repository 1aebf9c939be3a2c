"""The phases of a step, as the memory timeline takes them: what is held in each, and what between two of them."""

from dataclasses import dataclass
from reprlib import repr

from collectlab.views.words import is_whole

KINDS = ("retained", "sharded", "temporary")
MOST = 2**100
UNNAMED = "bytes"  # the label of an amount that has none


@dataclass(frozen=True)
class Phase:
    """A phase of a step; each of the three is a dict label -> bytes."""

    name: str
    retained: dict
    sharded: dict
    temporary: dict

    @property
    def total(self):
        """Bytes that are held while the phase runs: int."""
        return sum(map(self.of, KINDS))

    def of(self, kind):
        """Bytes of one kind: int."""
        return sum(getattr(self, kind).values())


def kept(before, after):
    """Bytes that stay from one phase to the next: of each label, or of what has none, the smaller amount.

    What is temporary and has no label is gone: it may be another buffer in each phase.
    """
    both = 0
    for kind in KINDS:
        mine, theirs = getattr(before, kind), getattr(after, kind)
        both += sum(
            min(size, theirs.get(label, 0)) for label, size in mine.items() if (kind, label) != ("temporary", UNNAMED)
        )
    return both


def read_phase(number, given):
    """The Phase of that number, from a dict or an object; TypeError or ValueError name what is not accepted."""
    get = given.get if isinstance(given, dict) else lambda field, default: getattr(given, field, default)
    name = get("name", None)
    if name is None:
        raise TypeError(
            f"memory_timeline(phases): phase {number} has no name; a dict with name, retained, sharded and "
            f"temporary, or an object with these attributes, is accepted, not {given!r}"
        )
    held = {}
    for kind in KINDS:
        amount, where = get(kind, 0), f"memory_timeline(phases): phase {number}, {name}, {kind}"
        labels = amount.items() if hasattr(amount, "items") else [(UNNAMED, amount)]
        held[kind] = {str(label): checked_bytes(where, size) for label, size in labels}
    return Phase(str(name), **held)


def checked_bytes(where, size):
    """The size as an int; ValueError, which says where, if it is no number of bytes."""
    if not is_whole(size) or not 0 <= size < MOST:
        raise ValueError(f"{where}: bytes are a whole number, 0 to 2**100 - 1, not {repr(size)}")
    return int(size)

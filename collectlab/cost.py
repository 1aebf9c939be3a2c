"""Cost cards: what a kernel must do on each rank, counted from its formula before it runs.

A card counts what one rank reads from its peers. It says nothing of time: `seconds` adds a model to it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """The cost of one call on one rank.

    nbytes         bytes loaded from peers' windows; where a kernel pushes, bytes stored into them
    messages       loads from (stores into) peers' windows that move at least one byte
    notifications  signals given to peers
    waits          signals waited for; a full barrier is nranks - 1 notifications and as many waits
    barriers       full barriers
    steps          how often the rank must wait before it can go on: barriers, and waits outside of them
    """

    nbytes: int
    messages: int
    notifications: int
    waits: int
    barriers: int
    steps: int

    def seconds(self, latency, bandwidth):
        """Time in the latency-bandwidth model: a latency for each step and each message, the bytes at `bandwidth`.

        A step waits for a signal to arrive and a message for its first byte, so each costs `latency` seconds; the
        bytes follow at `bandwidth` bytes a second. Nothing overlaps, and nobody else uses the links.
        """
        return (self.steps + self.messages) * latency + self.nbytes / bandwidth


def busbw_factor(operation, nranks):
    """What nccl-tests multiplies algbw by (doc/PERFORMANCE.md): it normalises, it is not measured traffic."""
    factors = {
        "all_reduce": 2 * (nranks - 1) / nranks,
        "all_gather": (nranks - 1) / nranks,
        "reduce_scatter": (nranks - 1) / nranks,
        "all_to_all": (nranks - 1) / nranks,
        "gather": (nranks - 1) / nranks,
        "scatter": (nranks - 1) / nranks,
        "broadcast": 1.0,
        "reduce": 1.0,
    }
    if operation not in factors:
        raise ValueError(f"busbw_factor({operation!r}): one of {', '.join(factors)} is accepted")
    return factors[operation]

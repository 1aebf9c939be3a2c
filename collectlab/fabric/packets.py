"""Packets: data that carries its own flag, so that no signal has to follow it.

Each 32-bit word of the data travels in a 64-bit packet with a 32-bit flag beside it. A packet is written at once,
so a reader that sees the flag it waits for has the word too. That doubles the bytes and saves the notification:
the low-latency protocol ("LL") of NCCL and mscclpp.
"""

import numpy as np

from collectlab.trace.events import LOAD, NOTIFY, PACKET, STORE, WAIT


class Packets:
    """Slots of `count` elements of `dtype`; slot s of a rank has a place for each peer that posts to it.

    A lap is how often a slot is used, counted from 1; it is the flag. Who posts must know that the slot's last lap
    has been taken, for example because it has taken something that the peer could only post afterwards.
    """

    def __init__(self, fabric, rank, name, memory, count, dtype, xp=np):
        self.name, self.rank, self.count, self.dtype = name, rank, count, np.dtype(dtype)
        self._fabric, self._memory, self._xp = fabric, memory, xp

    def post(self, peer, slot, value, lap):
        """Write `value` and the flag `lap` into this rank's place in `slot` of `peer`."""
        if np.shape(value) != (self.count,) or value.dtype != self.dtype:
            raise ValueError(
                f'{self._fabric.who(self.rank)}: packets "{self.name}".post(peer={peer}, value): {self.count} '
                f"elements of {self.dtype} are accepted; the value is {np.shape(value)} of {value.dtype}"
            )
        fabric, place = self._fabric, self._place(peer, slot, self.rank)
        fabric.pause(self.rank)
        words = _words(value.get() if hasattr(value, "get") else value)
        fabric.post(self.rank, peer, self.name, slot, self._memory, place.start, words | (lap << 32), lap)
        if fabric.events is not None:
            fabric.note(STORE, self.rank, peer, self.name, place, 8 * len(place))
            fabric.note(NOTIFY, self.rank, peer, self.name, row=slot, at_least=lap, cause=PACKET)

    def take(self, peer, slot, lap):
        """What `peer` has posted to `slot` of this rank in that lap; waits until all of it is there."""
        fabric, place = self._fabric, self._place(self.rank, slot, peer)
        fabric.pause(self.rank)
        words = self._memory.local.reshape(-1)[place.start : place.stop]
        fabric.take(self.rank, peer, self.name, slot, words, lap)
        data = (words & 0xFFFFFFFF).astype(np.uint32).tobytes()
        if fabric.events is not None:
            fabric.note(WAIT, self.rank, peer, self.name, row=slot, at_least=lap, cause=PACKET)
            fabric.note(LOAD, self.rank, self.rank, self.name, place, 8 * len(place))
        return self._xp.asarray(np.frombuffer(data, self.dtype, self.count).copy())

    def _place(self, owner, slot, writer):
        slots, nranks, words = self._memory.local.shape
        ranges = ("peers are ranks", owner, nranks), ("peers are ranks", writer, nranks), ("slots are", slot, slots)
        for what, value, end in ranges:
            if not 0 <= value < end:
                said = f'packets "{self.name}": {what} 0 to {end - 1}, not {value!r}'
                raise IndexError(f"{self._fabric.who(self.rank)}: {said}")
        start = (slot * nranks + writer) * words
        return range(start, start + words)


def words_for(count, dtype):
    """How many packets so many elements take."""
    return -(-count * np.dtype(dtype).itemsize // 4)


def _words(value):
    data = np.ascontiguousarray(value).tobytes()
    return np.frombuffer(data + bytes(-len(data) % 4), np.uint32).astype(np.int64)

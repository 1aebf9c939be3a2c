"""What a rank really held in each phase of a step: the most bytes of arrays that were alive at once."""

import tracemalloc

from collectlab.sharding.strategies import STRATEGIES


def measure(ctx, task, strategy):
    """Train a step and return {phase: the most bytes that were held in it}.

    On NumPy Python's tracemalloc counts, into which NumPy reports every array; on CuPy the memory pool of the device
    does, which rounds each array up to 512 bytes. What the MPI library takes is in neither.
    """
    STRATEGIES[strategy](ctx, task).step()  # what Python loads at its first use is not held for a step
    with (_OfDevice if hasattr(ctx.xp, "cuda") else _OfHost)(ctx.xp) as meter:
        STRATEGIES[strategy](ctx, task, meter.phase).step()
        meter.close()
    return meter.peaks


class _Meter:
    def __init__(self, xp):
        self.xp, self.peaks, self._phase = xp, {}, None

    def phase(self, name):
        """End the phase that was measured, and begin another one."""
        self.close()
        self._phase = name
        self._begin()

    def close(self):
        """End the phase that was measured."""
        if self._phase is not None:
            self.peaks[self._phase] = self._peak()
            self._phase = None


class _OfHost(_Meter):
    def __enter__(self):
        tracemalloc.start()
        return self

    def __exit__(self, *_):
        tracemalloc.stop()

    def _begin(self):
        tracemalloc.reset_peak()

    def _peak(self):
        return tracemalloc.get_traced_memory()[1]


class _OfDevice(_Meter):
    """Counts at the memory pool, through CuPy's hook for it."""

    def __enter__(self):
        self.now = self.most = 0
        self._hook = _hook(self.xp.cuda.MemoryHook, self)
        self._hook.__enter__()
        return self

    def __exit__(self, *stack):
        self._hook.__exit__(*stack)

    def _begin(self):
        self.most = self.now

    def _peak(self):
        return self.most

    def change(self, nbytes):
        """So many bytes more, or fewer, are in use."""
        self.now += nbytes
        self.most = max(self.most, self.now)


def _hook(MemoryHook, meter):
    """A hook of CuPy's pool that tells the meter what is taken from it and given back."""

    class Hook(MemoryHook):
        name = "collectlab"

        def malloc_postprocess(self, device_id, size, mem_size, mem_ptr, pmem_id):
            meter.change(mem_size)

        def free_postprocess(self, device_id, mem_size, mem_ptr, pmem_id):
            meter.change(-mem_size)

    return Hook()

"""Which device a rank takes: of the GPUs that it is let to see, one by its number on the host."""

import os


def take(wanted, name, local_rank):
    """(device, array module, identity) for a rank; raises when a GPU is asked for and none answers.

    wanted    "auto", "cpu" or "cuda"
    name      the device that a rank map names, or None: then GPUs are dealt out by `local_rank`
    device    "cuda:2" is the GPU that the host calls number 2, also where CUDA_VISIBLE_DEVICES hides others
    identity  what tells a GPU from all others of its host, however they are numbered: its PCI address, or the
              UUID by which CUDA_VISIBLE_DEVICES names it; "" without a GPU
    """
    if wanted == "cpu" or (wanted == "auto" and not _driver()):
        return name or f"cpu:{local_rank}", "numpy", ""
    try:
        import cupy

        visible = _visible(cupy.cuda.runtime.getDeviceCount())
        at = _place(name, visible) if name and name.startswith("cuda:") else local_rank % len(visible)
        cupy.cuda.Device(at).use()
        if int(cupy.arange(3).sum()) != 3:
            raise RuntimeError(f"device {at} computes wrong sums")
        called = visible[at]
        identity = called if called.startswith(("GPU-", "MIG-")) else cupy.cuda.runtime.deviceGetPCIBusId(at)
    except Exception:
        if wanted == "cuda":
            raise
        return name or f"cpu:{local_rank}", "numpy", ""
    return name or f"cuda:{called if called.isdecimal() else at}", "cupy", identity


def _visible(count):
    """What the host calls each of the GPUs that this process sees, by the number that CUDA gives them here."""
    called = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return called if len(called) == count and all(called) else [str(number) for number in range(count)]


def _place(name, visible):
    number = name.rpartition(":")[2]
    if number not in visible:
        raise LookupError(f"{name} is asked for, and CUDA_VISIBLE_DEVICES lets this rank see {', '.join(visible)}")
    return visible.index(number)


def _driver():
    """Whether NVIDIA's driver library is here; without it, CuPy need not be imported, which takes a second."""
    import ctypes

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True

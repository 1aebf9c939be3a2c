"""Python objects in files: a small pickle, and every array beside it where it can be mapped.

The bytes of arrays never pass through the pickle: they are written straight from the array and, on the way
back, the array is a view of the mapped file, so that opening a large result costs nothing until it is read.
"""

import mmap
import os
import pickle
import struct
import sys
import types

import cloudpickle

from collectlab.fabric.per_rank import PerRank
from collectlab.launcher import rundir, sweep

_MAGIC = b"collect1"
_HEAD = struct.Struct("<8sQQ")
_SPAN = struct.Struct("<QQ")
_ALIGN, _PAGE = 64, 4096  # large arrays begin on a page: copying them into the file is faster
_LARGE = 1 << 20
_STAYING = ("mpi4py", "cupy", "cupyx", "cupy_backends")
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_SMALL = 1 << 20  # bytes of arrays that are read at once: a mapping holds a file descriptor
_AT_ONCE = 512  # vectors that one writev takes, below every system's limit

opening_program = False  # on a rank, while it reads its program, and imports for it the modules of the learner


class _Pickler(cloudpickle.Pickler):
    def __init__(self, *args, sealed, **kwargs):
        super().__init__(*args, **kwargs)
        self.files = set()
        self.sealed = sealed

    def reducer_override(self, obj):
        kind = type(obj)
        cupy = sys.modules.get("cupy")
        if cupy is not None and isinstance(obj, cupy.ndarray):
            return cupy.asnumpy(obj).__reduce_ex__(5)
        if self.sealed and _home(obj, kind) in _STAYING:
            raise TypeError(f"it holds a {kind.__name__} of {_home(obj, kind)}, which exists only in its rank")
        if kind is types.CodeType:
            # cloudpickle forgets the file of a function; a traceback of a rank needs it
            self.files.add(obj.co_filename)
            make, parts = self.dispatch_table[kind](obj)
            return make, tuple(obj.co_filename if part == "<dynamic-code>" else part for part in parts)
        if kind is PerRank:
            raise TypeError(
                "per_rank(...) must be an argument of the program itself, not inside another object"
            )
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(obj, numpy.ndarray):
            if obj.dtype.hasobject:
                raise TypeError(f"an array of dtype {obj.dtype} holds Python objects; use a numeric dtype")
            if kind in (numpy.ndarray, numpy.memmap):
                plain = obj.view(numpy.ndarray)
                if not (plain.flags.c_contiguous or plain.flags.f_contiguous):
                    plain = numpy.ascontiguousarray(plain)
                return plain.__reduce_ex__(5)
        return super().reducer_override(obj)


def write(path, obj, sealed=False, small=0):
    """Write `obj` to a new file at `path`; TypeError when it cannot be pickled.

    `sealed` refuses objects of libraries that only ranks import: reading them would load MPI or CUDA.
    Returns the files that the functions in it come from, other than those that are pickled by their name. An
    object without arrays whose pickle has at most `small` bytes is not written, and its pickle is returned.
    """
    buffers = []
    sink = _Sink()
    pickler = _Pickler(sink, protocol=5, buffer_callback=buffers.append, sealed=sealed)
    try:
        pickler.dump(obj)
    except RecursionError:
        raise TypeError("the object is nested too deeply to be pickled") from None
    except (pickle.PicklingError, AttributeError, ValueError) as error:
        if isinstance(error.__cause__, RecursionError):  # cloudpickle's wrapping
            raise TypeError("the object is nested too deeply to be pickled") from None
        raise TypeError(str(error)) from None
    text = bytes(sink)
    if not buffers and len(text) <= small:
        return text
    raws = [buffer.raw() for buffer in buffers]
    at = _HEAD.size + _SPAN.size * len(raws) + len(text)
    spans, parts = [], []
    for raw in raws:
        gap = -at % (_PAGE if raw.nbytes >= _LARGE else _ALIGN)
        spans.append(_SPAN.pack(at + gap, raw.nbytes))
        parts += [bytes(gap), raw]
        at += gap + raw.nbytes
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb", 0) as file:
            if at >= _LARGE:
                os.posix_fallocate(file.fileno(), 0, at)  # a full disk is found before anything is copied
            _write_all(file.fileno(), [_HEAD.pack(_MAGIC, len(text), len(raws)), *spans, text, *parts])
    except OSError as error:
        if not isinstance(error, FileExistsError):
            sweep.unlink([path])
        raise rundir.cured(error, path) from None
    return pickler.files


def read(path):
    """The object that `write` left at `path`; its arrays are private, writable views of the mapped file.

    ValueError when it is no such file, or not all of one.
    """
    with open(path, "rb") as f:
        head = f.read(_HEAD.size)
        if len(head) < _HEAD.size or not head.startswith(_MAGIC):
            raise ValueError(f"{path} is not an object file of collectlab, or was written only in part")
        _, length, n = _HEAD.unpack(head)
        size = os.fstat(f.fileno()).st_size
        whole = _HEAD.size + _SPAN.size * n + length <= size
        spans = list(_SPAN.iter_unpack(f.read(_SPAN.size * n))) if whole else []
        if not whole or any(at + nbytes > size for at, nbytes in spans):
            raise ValueError(f"{path} was written only in part: {size} bytes are there")
        text = f.read(length)
        if size <= _SMALL:
            f.seek(0)
            mapped = memoryview(bytearray(f.read()))
        else:
            mapped = memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY))
    try:
        return pickle.loads(text, buffers=[mapped[at : at + nbytes] for at, nbytes in spans])
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} is not as it was written: {error}") from error


def _home(obj, kind):
    """The library that `obj` comes from."""
    if kind is types.ModuleType:
        name = obj.__name__
    else:
        name = getattr(obj if issubclass(kind, (type, *_FUNCTIONS)) else kind, "__module__", None)
    return name.partition(".")[0] if isinstance(name, str) else ""


class _Sink(bytearray):
    write = bytearray.extend


def _write_all(fd, parts):
    parts = [view for view in (memoryview(part).cast("B") for part in parts) if view.nbytes]
    while parts:
        done = os.writev(fd, parts[:_AT_ONCE])
        while parts and done >= parts[0].nbytes:
            done -= parts.pop(0).nbytes
        if done:
            parts[0] = parts[0][done:]

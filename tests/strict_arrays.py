"""A stand-in for CuPy: arrays that live elsewhere. NumPy may not touch them, and they take no NumPy array.

CuPy refuses both too: TypeError, "Implicit conversion to a NumPy array is not allowed". So a kernel that runs on
these arrays makes no NumPy-only call.
"""

import operator

import numpy as np


class ndarray:
    """An array of the device; `get` copies it to the host, as in CuPy."""

    __array_ufunc__ = None

    def __init__(self, held):
        self._held = held

    def __array__(self, *_, **__):
        raise TypeError("implicit conversion to a NumPy array is not allowed; use .get()")

    def get(self):
        return self._held.copy()

    def set(self, values):
        self._held[...] = values

    @property
    def T(self):
        return ndarray(self._held.T)

    def reshape(self, *shape):
        return ndarray(self._held.reshape(*shape))

    def ravel(self):
        return ndarray(self._held.ravel())

    def flatten(self):
        return ndarray(self._held.flatten())

    def copy(self):
        return ndarray(self._held.copy())

    def astype(self, dtype):
        return ndarray(self._held.astype(dtype))

    def __getitem__(self, at):
        return ndarray(self._held[at])

    def __setitem__(self, at, value):
        self._held[at] = _on_device(value)

    def __len__(self):
        return len(self._held)


for name in ("shape", "size", "ndim", "dtype", "itemsize", "nbytes"):
    setattr(ndarray, name, property(lambda self, name=name: getattr(self._held, name)))
for name in "add sub mul truediv floordiv matmul lt ne and".split():
    function = getattr(operator, f"__{name}__")
    setattr(ndarray, f"__{name}__", lambda a, b, f=function: ndarray(np.asarray(f(a._held, _on_device(b)))))
for name in "iadd isub imul itruediv".split():
    function = getattr(operator, f"__{name}__")
    setattr(ndarray, f"__{name}__", lambda a, b, f=function: (f(a._held, _on_device(b)), a)[1])


def _on_device(value):
    if isinstance(value, np.ndarray) and value.ndim:
        raise TypeError(f"Unsupported type {type(value)}")
    return value._held if isinstance(value, ndarray) else value


def _function(of_numpy):
    def call(*args, out=None, **kwargs):
        result = of_numpy(*map(_on_device, args), out=None if out is None else out._held, **kwargs)
        return out if out is not None else ndarray(result)

    return call


add, multiply, minimum, maximum = map(_function, (np.add, np.multiply, np.minimum, np.maximum))
subtract, divide, sqrt, tanh, matmul = map(_function, (np.subtract, np.divide, np.sqrt, np.tanh, np.matmul))
sum = _function(np.sum)


def vdot(a, b):
    return float(np.vdot(_on_device(a), _on_device(b)))  # of CuPy an array without axes, which float() takes


def asarray(value, dtype=None):
    """On the device; a NumPy array is copied there."""
    return value if isinstance(value, ndarray) else ndarray(np.array(value, dtype))


def empty(shape, dtype):
    return ndarray(np.empty(shape, dtype))


def empty_like(value):
    return ndarray(np.empty_like(_on_device(value)))


def zeros_like(value):
    return ndarray(np.zeros_like(_on_device(value)))


def concatenate(values):
    return ndarray(np.concatenate([_on_device(value) for value in values]))

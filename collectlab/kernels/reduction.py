"""What the kernels share: which function an operation is, and how an average is finished."""

from collectlab import semantics

_FUNCTION = {"sum": "add", "prod": "multiply", "min": "minimum", "max": "maximum", "avg": "add"}


def combine(ctx, op):
    """The elementwise function of `op` in the array module of this rank."""
    if op not in _FUNCTION:
        raise ValueError(f"op={op!r}: one of {', '.join(_FUNCTION)} is accepted")
    return getattr(ctx.xp, _FUNCTION[op])


def finish(ctx, op, total):
    """The result from the combined values: divided by the rank count for `avg`, as they are otherwise."""
    return semantics.average(total, ctx.nranks) if op == "avg" else total

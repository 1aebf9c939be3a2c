"""What the kernels share: how the parts of all ranks become one, a piece at a time."""

from collectlab import semantics

_FUNCTION = {"sum": "add", "prod": "multiply", "min": "minimum", "max": "maximum", "avg": "add"}

TILE = 256 * 1024  # bytes: a sum to which rank after rank is added stays in a core's own cache


def reduce(ctx, window, part, op, out):
    """Fill `out` with the reduction of `part` of everyone's `window`, in rank order; loads once from each rank."""
    add = combine(ctx, op)
    views = [window.remote_view(peer, part) for peer in range(ctx.nranks)]
    if ctx.nranks == 1:
        out[:] = views[0]
        return
    step = TILE // window.dtype.itemsize
    for at in range(0, out.size, step):
        tile = slice(at, at + step)
        total = out[tile]
        add(views[0][tile], views[1][tile], out=total)
        for view in views[2:]:
            add(total, view[tile], out=total)
    if op == "avg":
        out[:] = finish(ctx, op, out)


def combine(ctx, op):
    """The elementwise function of `op` in the array module of this rank."""
    if not isinstance(op, str) or op not in _FUNCTION:
        raise ValueError(f"op={op!r}: one of {', '.join(_FUNCTION)} is accepted")
    return getattr(ctx.xp, _FUNCTION[op])


def finish(ctx, op, total):
    """The result from the combined values: divided by the rank count for `avg`, as they are otherwise."""
    return semantics.average(total, ctx.nranks) if op == "avg" else total

"""What the kernels share: how the parts of all ranks become one, a piece at a time."""

from collectlab import semantics

_FUNCTION = {"sum": "add", "prod": "multiply", "min": "minimum", "max": "maximum", "avg": "add"}

TILE = 256 * 1024  # bytes: a sum to which rank after rank is added stays in a core's own cache


def reduce(ctx, window, part, op, out):
    """Fill `out` with the reduction of `part` of everyone's `window`, in rank order; loads once from each rank."""
    add = combine(ctx, op)
    views = window.remote_views(part)
    if out.nbytes <= TILE:
        _accumulate(add, views, out)
    else:
        step = TILE // out.itemsize
        for at in range(0, out.size, step):
            tile = slice(at, at + step)
            _accumulate(add, [view[tile] for view in views], out[tile])
    if op == "avg":
        out[:] = finish(ctx, op, out)


def _accumulate(add, views, total):
    """Fill `total` with the views, one after another."""
    if len(views) == 1:
        total[:] = views[0]
        return
    add(views[0], views[1], out=total)
    for view in views[2:]:
        add(total, view, out=total)


def combine(ctx, op):
    """The elementwise function of `op` in the array module of this rank."""
    if not isinstance(op, str) or op not in _FUNCTION:
        raise ValueError(f"op={op!r}: one of {', '.join(_FUNCTION)} is accepted")
    return getattr(ctx.xp, _FUNCTION[op])


def finish(ctx, op, total):
    """The result from the combined values: divided by the rank count for `avg`, as they are otherwise."""
    return semantics.average(total, ctx.nranks) if op == "avg" else total

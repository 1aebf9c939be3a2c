"""Numbers, ranks and tables in words, and ranks in columns: how every view spells them."""

from itertools import groupby
from numbers import Integral


def is_whole(value):
    """Whether it is a whole number, of Python or of NumPy: bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def groups(nranks, most):
    """The ranks in columns, at most so many, equally many ranks in each but the last: a list of ranges."""
    size = -(-nranks // most)
    return [range(first, min(first + size, nranks)) for first in range(0, nranks, size)]


def head(group):
    """What a column or a lane of these ranks is called: "rank 3", "ranks 4–7"."""
    return f"rank {group[0]}" if len(group) == 1 else f"ranks {group[0]}–{group[-1]}"


def begin(group):
    """The shortest name of a column of these ranks: "4–" where more columns follow than can be written out."""
    return f"{group[0]}" if len(group) == 1 else f"{group[0]}–"


def names_of(groups, ways, fits):
    """What the columns are called, in the first of some ways in which each name fits, or in the last."""
    for way in ways:
        names = list(map(way, groups))
        if all(map(fits, names)):
            break
    return names


def listed(ranks):
    """Such as "0, 2, 5–7"."""
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(sorted(ranks)), lambda at: at[1] - at[0])]
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def ranks_listed(ranks):
    """Such as "ranks 0, 2, 5–7"."""
    return f"rank{'s' * (len(ranks) != 1)} {listed(ranks)}"


def span(numbers):
    """The number, or the smallest and the largest."""
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def seconds_of(seconds):
    """A time in the largest of µs, ms and s of which there is one, with three digits: "12.5 ms"."""
    unit, size = next(((u, s) for u, s in (("µs", 1e-6), ("ms", 1e-3)) if abs(seconds) < 999.5 * s), ("s", 1.0))
    return f"{seconds / size:.3g} {unit}" if abs(seconds) < 999.5 else f"{seconds:,.0f} s"


def size_of(nbytes):
    """A size in the largest unit of which there is one, with three digits at most where it is no whole number."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if nbytes < 1024 or unit == "TiB":
            return f"{nbytes:.0f} {unit}" if nbytes == int(nbytes) or nbytes >= 100 else f"{nbytes:.3g} {unit}"
        nbytes /= 1024
    return None


def table(rows, sides=None):
    """Rows of texts as lines; `sides` has "<" or ">" for each column, the default is the first left, others right."""
    sides = sides or "<" + ">" * (len(rows[0]) - 1)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    ]

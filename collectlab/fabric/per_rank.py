"""Arguments that differ by rank."""


class PerRank:
    """An argument of which rank r gets values[r]; made by `collectlab.per_rank`."""

    def __init__(self, values):
        self.values = list(values)

    def __repr__(self):
        return f"per_rank({self.values!r})"


def per_rank(values):
    """An argument that differs by rank: rank r gets values[r]. One value for each rank is needed."""
    if isinstance(values, str | bytes | dict) or not hasattr(values, "__iter__"):
        raise TypeError(f"per_rank({values!r}): a list with one value for each rank is accepted")
    return PerRank(values)


def check_per_rank(call, args, nranks):
    """ValueError that names the argument when a per_rank argument has another number of values."""
    for i, arg in enumerate(args, 1):
        if isinstance(arg, PerRank) and len(arg.values) != nranks:
            raise ValueError(
                f"{call}: argument {i} is per_rank of {len(arg.values)} values, but there are {nranks} "
                "ranks; one value for each rank is accepted"
            )

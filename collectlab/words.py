"""Numbers, ranks and programs, as a sentence says them."""


def listed(numbers):
    """ "3", "0, 1 and 3", "0 to 7": in rising order; four or more neighbours are told as a span."""
    spans = []
    for number in sorted(numbers):
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    words = []
    for span in spans:
        words += [f"{span[0]} to {span[-1]}"] if len(span) > 3 else map(str, span)
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def ranks_named(ranks):
    """ "rank 3", "ranks 0, 1 and 3", "ranks 0 to 7"."""
    return f"rank{'s' * (len(ranks) > 1)} {listed(ranks)}"


def program_named(program):
    """What a program is called: str. Many kernels are an `all_reduce`, so that of its module stands before it."""
    package, _, module = str(getattr(program, "__module__", "")).rpartition(".")
    name = getattr(program, "__name__", type(program).__name__)
    return f"{module}.{name}" if package == "collectlab.kernels" else name

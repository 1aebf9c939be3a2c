"""What is wrong with each broken kernel, and the lines that mend it."""

import inspect
import linecache
from dataclasses import dataclass

from collectlab.exercises.failures import kernels


@dataclass(frozen=True)
class Case:
    """A broken kernel of `kernels`, and what is known about it.

    number   of its function, case_<number>
    cause    one sentence
    mend     (old, new) pieces of its source, each of which stands there once
    ranks, count, calls, op   of a run that shows it: elements on each rank, and calls on the same windows
    seen_in  where the same mistake was shipped
    """

    number: int
    cause: str
    mend: tuple
    ranks: int = 4
    count: int = 8
    calls: int = 1
    op: str = "sum"
    seen_in: str = ""

    @property
    def source(self):
        """The source of the broken kernel."""
        return inspect.getsource(getattr(kernels, f"case_{self.number}"))

    @property
    def broken(self):
        """The kernel, with lines that count from its first."""
        return _compiled(self.source, f"case {self.number}", f"case_{self.number}")

    @property
    def mended_source(self):
        """The source of the kernel as it should be."""
        source = self.source
        for old, new in self.mend:
            source = source.replace(old, new)
        return source

    @property
    def mended(self):
        """The kernel as it should be."""
        return _compiled(self.mended_source, f"case {self.number}, mended", f"case_{self.number}")


def _compiled(source, file, name):
    # so that a report can cite it
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    namespace = dict(vars(kernels))
    exec(compile(source, file, "exec"), namespace)
    return namespace[name]


CASES = (
    Case(
        1,
        "The second barrier uses the row of the first: the count that it waits for is there already, so a rank may "
        "read chunks that their owners have not stored.",
        mend=(("mine)\n    ctx.barrier(rows, 0)", "mine)\n    ctx.barrier(rows, 1)"),),
    ),
    Case(
        2,
        "x.size // nranks leaves out what remains of the division: the last elements belong to no chunk.",
        mend=(
            ("n = x.size // ctx.nranks", "cut = Partition.uneven(x.size, ctx.nranks)"),
            ("slice(rank * n, (rank + 1) * n)", "cut.slice(rank)"),
        ),
        count=6,
    ),
    Case(
        3,
        "Chunks are laid down in the order in which a rank reads them, its own first, not in the order of their "
        "owners.",
        mend=(("(ctx.rank + step) % ctx.nranks", "step"),),
    ),
    Case(
        4,
        "The all-gather is missing: each rank has the sum in its own chunk, and its input everywhere else.",
        mend=(
            (
                "mine = Partition.uneven(x.size, ctx.nranks).slice(ctx.rank)",
                "cut = Partition.uneven(x.size, ctx.nranks)",
            ),
            ("rows=2)\n", "rows=3)\n    mine = cut.slice(ctx.rank)\n"),
            (
                "    return data.load()",
                "    y = [data.remote_load(peer, cut.slice(peer)) for peer in range(ctx.nranks)]\n"
                "    ctx.barrier(rows, 2)\n"
                "    return ctx.xp.concatenate(y)",
            ),
        ),
    ),
    Case(
        6,
        "A chunk is read up to the element before its last.",
        mend=(("slice(ends[owner], max(ends[owner], ends[owner + 1] - 1))", "slice(ends[owner], ends[owner + 1])"),),
    ),
    Case(
        7,
        "The sum begins with the rank's own chunk, and the loop over all ranks adds it once more.",
        mend=(
            ("total = data.load(mine)", "total = data.remote_load(0, mine)"),
            ("range(ctx.nranks):\n        total", "range(1, ctx.nranks):\n        total"),
        ),
    ),
    Case(
        8,
        "The loop that notifies ends one rank early: nobody notifies the last rank on row 0.",
        mend=(("range(ctx.nranks - 1)", "range(ctx.nranks)"),),
    ),
    Case(
        9,
        "The wait asks for a count of 0, which every cell has from the start.",
        mend=(("rows.generation - 1", "rows.generation"),),
    ),
    Case(
        10,
        "A rank passes the second barrier before it stores its chunk, so what the barrier says is not yet so.",
        mend=(
            ("    ctx.barrier(rows, 1)\n", ""),
            ("result.store(total, mine)\n", "result.store(total, mine)\n    ctx.barrier(rows, 1)\n"),
        ),
    ),
    Case(
        11,
        "The waits ask for 1 in every call; from the second call on that count is there before anybody has come.",
        mend=(("rows.wait(peer, row, 1)", "rows.wait(peer, row, rows.generation)"),),
        calls=2,
        seen_in="PyPTO#1829",
    ),
    Case(
        12,
        "The sum is stored over the input while slower peers still read that.",
        mend=(
            ("    data.store(y)", "    ctx.barrier(rows, 1)\n    data.store(y)"),
            ("    ctx.barrier(rows, 1)\n    return", "    return"),
        ),
    ),
    Case(
        13, "The loop runs over 4 ranks, however many there are.", mend=(("range(4)", "range(ctx.nranks)"),), ranks=5
    ),
    Case(
        14,
        "Each rank reduces the chunk of the rank that it was before the restart; readers expect the chunk of the "
        "rank that it is now.",
        mend=(("(ctx.rank - 1) % ctx.nranks", "ctx.rank"),),
    ),
    Case(
        15,
        "The owner divides the sum by the number of ranks, and so does everybody who has collected the chunks.",
        mend=(("return y / ctx.nranks", "return y"),),
        op="avg",
    ),
    Case(
        16,
        "All ranks set one cell to 1, and none adds to it: rank 0 sees its own 1 and lets everyone go.",
        mend=(
            ("    arrived.remote_store(0, one)\n", ""),
            (
                "        while arrived.load()[0] != 1:\n            pass\n",
                "        for peer in range(1, ctx.nranks):\n            rows.wait(peer, 0, rows.generation)\n",
            ),
            ("    else:\n", "    else:\n        rows.notify(0, 0)\n"),
        ),
    ),
    Case(17, "Everyone notifies on row 0 and waits on row 1.", mend=(("rows.wait(peer, 1,", "rows.wait(peer, 0,"),)),
    Case(
        18,
        "A rank notifies itself too, and counts that as one of the signals it waits for: nobody waits for the last "
        "rank.",
        mend=(
            ("        rows.notify(peer, 0)", "        if peer != ctx.rank:\n            rows.notify(peer, 0)"),
            ("range(ctx.nranks - 1)", "range(ctx.nranks)"),
            ("        rows.wait(", "        if peer != ctx.rank:\n            rows.wait("),
        ),
    ),
    Case(
        19,
        "A row is used again two calls later, and the wait still asks for 1: it takes the signal of the earlier "
        "call.",
        mend=(("rows.wait(peer, turn, 1)", "rows.wait(peer, turn, (rows.generation + 1) // 2)"),),
        calls=3,
        seen_in="NCCL#2306",
    ),
    Case(
        20,
        "Where the chunks lie depends on the length, so the longer input of the next call is stored over chunks of "
        "this one that a slower peer still reads.",
        mend=(
            (
                "mine, behind = chunks.slice(ctx.rank), x.size",
                "mine, behind = chunks.slice(ctx.rank), both.shape[0] // 2",
            ),
        ),
        seen_in="vLLM#25892",
    ),
    Case(
        21,
        "Nothing tells a rank that its peers have read: in the next call it stores while a slower one still loads.",
        mend=(
            ("rows=1", "rows=2"),
            (
                "    return sum(data.remote_load(peer) for peer in range(ctx.nranks))",
                "    y = sum(data.remote_load(peer) for peer in range(ctx.nranks))\n    ctx.barrier(rows, "
                "1)\n    return y",
            ),
        ),
        calls=2,
    ),
    Case(
        22,
        "A rank whose chunk is empty returns before the second barrier, where the others wait for it.",
        mend=(("    if chunks.counts[ctx.rank] == 0:\n        return y\n", ""),),
        count=3,
    ),
    Case(
        23,
        "Everyone waits for a peer before it notifies that peer.",
        mend=(
            (
                "        rows.wait(peer, 0, rows.generation)\n        rows.notify(peer, 0)",
                "        rows.notify(peer, 0)\n    for peer in peers:\n        rows.wait(peer, 0, rows.generation)",
            ),
        ),
    ),
    Case(
        24,
        "All rounds wait for 1 on one row: from the second round on nothing is waited for.",
        mend=(("rounds.wait(left, 0, 1)", "rounds.wait(left, 0, 2 * (p - 1) * (rounds.generation - 1) + step + 1)"),),
    ),
    Case(
        25,
        "The rounds that add end one too early: the last contribution is never added, and half-finished chunks are "
        "handed on.",
        mend=(("step < p - 2", "step < p - 1"),),
    ),
    Case(
        26,
        "The flag is never set to 0: what lies in the new window is no 0 either, and the loop takes it for a signal.",
        mend=(
            (
                'data, ready = ctx.window("data", x.size, x.dtype), ctx.window("ready", 1, x.dtype)',
                'data, rows = ctx.window("data", x.size, x.dtype), ctx.signals("rows", rows=2)',
            ),
            ("    ready.store(ctx.xp.ones(1, x.dtype))\n", "    ctx.barrier(rows, 0)\n"),
            ("        while ready.remote_load(peer)[0] == 0:\n            pass\n", ""),
            ("    return y", "    ctx.barrier(rows, 1)\n    return y"),
        ),
    ),
    Case(
        27,
        "Rank 0 expects the signals of all peers in the cell of rank 1; each writer has a cell of its own.",
        mend=(
            (
                "        rows.wait(1, 0, (ctx.nranks - 1) * rows.generation)",
                "        for peer in range(1, ctx.nranks):\n            rows.wait(peer, 0, rows.generation)",
            ),
        ),
    ),
    Case(
        28,
        "Loading, adding and storing are three steps: two ranks load the same sum, and the later store loses what "
        "the earlier one added.",
        mend=(
            ('ctx.window("total", x.size, x.dtype)', 'ctx.window("total", (ctx.nranks, x.size), x.dtype)'),
            ("    if ctx.rank == 0:\n        total.store(x)\n    ctx.barrier(rows, 0)\n", ""),
            (
                "    if ctx.rank > 0:\n        total.remote_store(0, total.remote_load(0) + x)",
                "    total.remote_store(0, x, (ctx.rank, slice(0, x.size)))",
            ),
            ("y = total.remote_load(0)\n", "y = total.remote_load(0).sum(axis=0, dtype=x.dtype)\n"),
        ),
    ),
    Case(
        29,
        "The window holds one chunk, from its element 0 on; it is read at the chunk's place in the whole.",
        mend=(("remote_load(owner, chunks.slice(owner))", "remote_load(owner, slice(0, chunks.counts[owner]))"),),
    ),
    Case(
        30,
        "Asking for the signals is what counts a generation: rank 0 asks twice a call, and from the second call on "
        "it waits for signals that nobody will give.",
        mend=(("{ctx.signals('rows', rows=2).generation}", "{rows.generation}"),),
        calls=2,
    ),
    Case(
        31,
        "Each rank waits for its right neighbour and loads from its left one.",
        mend=(
            ("rounds.notify(left, step)", "rounds.notify(right, step)"),
            ("rounds.wait(right, step,", "rounds.wait(left, step,"),
        ),
    ),
    Case(
        32,
        "There is one slot for all calls: a fast peer posts its next packets over those that have not been taken. A "
        "rank that waits for exactly their flag then waits for ever.",
        mend=(
            ('ctx.packets("data", 1,', 'ctx.packets("data", 2,'),
            ("packets.post(peer, 0, x, lap)", "packets.post(peer, lap % 2, x, (lap + 1) // 2)"),
            ("packets.take(peer, 0, lap)", "packets.take(peer, lap % 2, (lap + 1) // 2)"),
        ),
        calls=2,
        seen_in="vLLM#8558",
    ),
)

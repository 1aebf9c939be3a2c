"""How long a view takes from a change of its controls to the new picture, in this process."""

import time
from statistics import median

import numpy as np

from collectlab import views
from collectlab.bench import Row
from collectlab.fabric.simulated import simulate
from collectlab.kernels import two_phase
from collectlab.layout import Partition, RankMap

STEPS = 60
NRANKS = CHUNKS = 8


def rows():
    """One row for each view at 8 ranks and 8 chunks; the browser's share is not in it."""
    inputs = [np.arange(CHUNKS * 2) + 100 * rank for rank in range(NRANKS)]
    grid = views.ownership("all_reduce", inputs, step=0)
    counter = views.payload_counter(operation="reduce_scatter", nranks=NRANKS, elements=64)
    before = RankMap([f"gpu{rank}" for rank in range(NRANKS)])
    places = views.rank_map(before, Partition.equal(2 * CHUNKS, NRANKS), before.swap(0, 7))
    run = simulate(two_phase.all_reduce, inputs[0], ranks=NRANKS)
    player = views.kernel_player(run)
    changes = {
        "ownership": (grid, [lambda k=k: grid.step(k) for k in (1, -1)]),
        "kernel player": (player, [player.step] * (player.last - 1) + [lambda: player.set(step=0)]),
        "payload counter": (counter, [lambda op=op: counter.set(operation=op) for op in ("all_gather", "reduce")]),
        "rank map": (places, [lambda a=a: places.swap(a, a + 1) for a in (0, 3)]),
    }
    found = []
    for name, (view, acts) in changes.items():
        view.widget()
        seconds = [_seconds(acts[k % len(acts)]) for k in range(STEPS)]
        view.close()
        found.append(Row(f"step of {name}, 8 ranks x 8 chunks", median(seconds[10:]) * 1e3, "ms", "< 50.0"))
    return found


def _seconds(act):
    start = time.perf_counter()
    act()
    return time.perf_counter() - start

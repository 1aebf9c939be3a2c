"""A view that is stepped a thousand times keeps what it is made of: widgets, artists and memory stay bounded."""

import asyncio
import gc
import sys
from pathlib import Path

import ipywidgets
import numpy as np
import pytest

from collectlab import kernels, simulate, views
from collectlab.layout import Partition, RankMap
from collectlab.trace import Event, Trace
from collectlab.views import view as module

XS = [np.array([1, 2, 3, 4]), np.array([10, 20, 30, 40])]
PAGE = 4096  # bytes, at least


def step_ownership():
    view = views.ownership(["reduce_scatter", "all_gather"], XS, step=0)
    return view, lambda n: view.step(1 if n % 4 < 2 else -1)


def step_payload_counter():
    view = views.payload_counter()
    return view, lambda n: view.set(elements=2 * (n % 2 + 1))


def step_rank_map():
    view = views.rank_map(RankMap(["A", "B"]), Partition.equal(8, 2))
    return view, lambda n: view.swap(0, 1)


def step_arrivals():
    view = views.arrivals(simulate(kernels.mesh.all_reduce, np.arange(4.0), ranks=3), step=5)
    return view, lambda n: view.step(1 if n % 4 < 2 else -1)


def step_kernel_player():
    view = views.kernel_player(simulate(kernels.mesh.all_reduce, np.arange(4.0), ranks=2), step=5)
    return view, lambda n: view.step(1 if n % 4 < 2 else -1)


def step_cost_explorer():
    view = views.cost_explorer()
    return view, lambda n: view.set(nbytes=4096 * (n % 3 + 1))


def step_traffic():
    view = views.traffic(simulate(kernels.ring.all_reduce, np.arange(4.0), ranks=3), step=2)
    return view, lambda n: view.step(1 if n % 4 < 2 else -1)


def step_lanes():
    events = [Event("load", n % 3, 0, "w", began=n + 1.0, ended=n + 2.0) for n in range(60)]
    events += [Event("wait", rank, 0, "s", row=0, began=70.0 + rank, ended=80.0) for rank in range(3)]
    view = views.lanes(Trace(3, events), step=1)
    return view, lambda n: view.set(zoom=n % 2 == 0, step=n % 3 + 1)


def step_memory_timeline():
    phases = [{"name": f"phase {n}", "retained": n, "sharded": 5, "temporary": n % 3} for n in range(6)]
    view = views.memory_timeline(phases, step=2)
    return view, lambda n: view.step(1 if n % 4 < 2 else -1)


def step_modular_lab():
    view = views.modular_lab(8, 3, step=2)
    return view, lambda n: view.set(a=1 + 2 * (n % 2), step=n % 8, residue=str(n % 8))


def step_side_by_side():
    both = (views.kernel_player(simulate(kernels.mesh.all_reduce, np.arange(4.0), ranks=2)) for _ in range(2))
    view = views.side_by_side(*both, step=5)
    return view, lambda n: view.step(1 if n % 4 < 2 else -1)


EVERY_VIEW = pytest.mark.parametrize(
    "start",
    [
        step_arrivals, step_cost_explorer, step_kernel_player, step_lanes, step_memory_timeline, step_modular_lab,
        step_ownership, step_payload_counter, step_rank_map, step_side_by_side, step_traffic,
    ],
)


def widgets():
    return dict(ipywidgets.widgets.widget._instances)


def memory():
    """The small objects there are, and the bytes that the process holds in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return sys.getallocatedblocks(), pages * PAGE


def growth(step, steps):
    blocks, held = memory()
    for n in range(steps):
        step(n)
    blocks_after, held_after = memory()
    return blocks_after - blocks, held_after - held


def grows(step, steps):
    """Whether so many steps leave about one object, or about 10 kB (a small picture), behind for each."""
    blocks, held = growth(step, steps)
    return blocks > steps or held > steps * 10_000


def test_growth_is_seen_where_there_is_some():
    kept = []
    assert not grows(lambda n: bytes(20_000), 800)
    assert grows(lambda n: kept.append(bytearray(b"x" * 20_000)), 800)
    assert grows(lambda n: kept.append({"step": n, "was": [n + 0.5]}), 800)


@EVERY_VIEW
def test_a_thousand_steps_leave_nothing_behind(start, picture):
    view, step = start()
    widget = view.widget()
    pictures = set()
    for n in range(200):
        step(n)
        pictures.add(picture(widget))
    assert len(pictures) > 1
    made, looks = widgets(), len(view._drawing._patches)
    assert not grows(step, 800)
    assert widgets() == made
    assert len(view._drawing._patches) == looks
    assert picture(widget) in pictures
    view.close()


def test_a_thousand_presses_leave_nothing_behind_of_what_was_drawn_ahead(monkeypatch, control):
    monkeypatch.setattr(module, "AHEAD", (0, 0))
    view, loop = step_kernel_player()[0], asyncio.new_event_loop()
    widget = view.widget()
    go_on, reset = (control(widget, name) for name in ("Step", "Reset"))

    async def press(n):
        (reset if view.settings["step"] == view.last else go_on).click()
        await asyncio.sleep(1e-9)

    def step(n):
        loop.run_until_complete(press(n))

    for n in range(200):
        step(n)
    made, looks = widgets(), len(view._drawing._patches)
    assert not grows(step, 800)
    assert widgets() == made
    assert len(view._drawing._patches) == looks
    view.close()
    loop.close()


@EVERY_VIEW
def test_close_takes_every_widget_with_it_and_the_view_can_be_shown_again(start, picture):
    view, step = start()
    before, text, shown = widgets(), view.text(), set()
    for _ in range(3):
        shown.add(picture(view.widget()))
        assert len(widgets()) > len(before)
        view.close()
        view.close()
        assert [type(w).__name__ for key, w in widgets().items() if key not in before] == []
    assert view.text() == text
    assert len(shown) == 1
    step(0)
    assert picture(view.widget()) not in shown
    view.close()

"""How long a view takes to show the next step or to open, and what it leaves: drawn in this process, and on screen.

On screen means in a Chromium, in JupyterLab as ./launch/lab starts it: from the press of a button, as the browser
dates it, until it has painted the new picture, by its own account (Element Timing). The peer there is a button that
shows one of two finished pictures of that size in a plain ipywidgets.Image: what JupyterLab takes where nothing is
drawn. Where no browser can be driven, those rows are missing, and the cases of the others say so.

A step on screen is a press of Step, or at the last state of Reset, by somebody who has looked at the picture before
for a quarter of a second, with the pointer on the button; in that time the view draws the next ones ahead. The second
step of a double click is a row of its own, counted from its own press. It has the time of two steps, as the page
shows the other one first. A step that is only drawn, in this process, is drawn anew: no picture is there before.
"""

import gc
import itertools
import os
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from collectlab import overlap, views
from collectlab.bench import Row, browser
from collectlab.fabric.simulated import simulate
from collectlab.kernels import mesh, ring, two_phase
from collectlab.layout import Partition, RankMap
from collectlab.trace import Trace

GOALS = {8: 50.0, 16: 100.0}  # ranks, and chunks -> milliseconds for a step
STEPS = 60
PRESSES, TURNS = 30, 3  # on screen, and a third as many double clicks
LOOKS = 0.25  # seconds for which somebody looks at a picture before the next press
EVENTS = 100_000
PACE = 0.05  # seconds a step, that Play is asked for
CHECKOUT = Path(__file__).resolve().parents[2]


def rows():
    """The figures, each as median of its repetitions."""
    why = browser.missing()
    drawn = "drawn" if why is None else f"drawn, not shown: {why}"
    found = [
        Row(f"step of {name}, {n} x {n}, {drawn}", _drawn(name, n), "ms", f"< {goal}")
        for n, goal in GOALS.items()
        for name in VIEWS
    ]
    trace = long_trace()
    for open_ in (views.kernel_player, views.arrivals):
        case = f"open {open_.__name__.replace('_', ' ')} of {EVENTS:,} events, {drawn}"
        found.append(Row(case, _seconds(partial(_open, open_, trace)), "s", "< 1.0"))
    objects, memory = _left()
    found += [
        *_saved(),
        Row("objects left by each of 1,000 steps of the kernel player", objects, "", "< 1.0"),
        Row("memory left by 1,000 steps of the kernel player", memory / 2**20, "MiB", "< 10.0"),
    ]
    return found if why else [*found, *_on_screen()]


# The views that are measured


def make(name, n):
    """The view of that name for n ranks and, where it has them, n chunks."""
    return VIEWS[name](n)


def _run(n):
    return simulate(two_phase.all_reduce, np.arange(2 * n), ranks=n)


def _ownership(n):
    inputs = [np.arange(2 * n) + 100 * rank for rank in range(n)]
    return views.ownership(["reduce_scatter", "all_gather"], inputs, step=0)


def _rank_map(n):
    before = RankMap([f"gpu{rank}" for rank in range(n)])
    return views.rank_map(before, Partition.equal(2 * n, n), before.swap(0, n - 1))


def _side_by_side(n):
    runs = [simulate(kernel.all_reduce, np.arange(2 * n), ranks=n) for kernel in (mesh, two_phase)]
    return views.side_by_side(*map(views.kernel_player, runs))


def _lanes(n):
    """Of a run whose every event takes a second."""
    trace = _run(n).trace
    events = [replace(event, began=at + 1.0, ended=at + 2.0) for at, event in enumerate(trace.events)]
    return views.lanes(Trace(n, events))


def _memory_timeline(n):
    phases = [{"name": f"layer {k}", "retained": 16, "sharded": 16, "temporary": 4 * k} for k in range(n)]
    return views.memory_timeline(phases, step=0)


def _streams(n):
    def plan(ctx, x):
        gradient, shard = ctx.buffer("gradient", x), ctx.buffer("shard", np.zeros(2))
        ctx.reduce_scatter(gradient, shard).wait()
        ctx.all_gather(shard, gradient).wait()
        return gradient

    return views.streams(overlap.simulate(plan, np.arange(2.0 * n), ranks=n))


VIEWS = {
    "kernel player": lambda n: views.kernel_player(_run(n)),
    "side by side": _side_by_side,
    "lanes": _lanes,
    "memory timeline": _memory_timeline,
    "modular lab": lambda n: views.modular_lab(n, 3),
    "streams": _streams,
    "arrivals": lambda n: views.arrivals(_run(n), step=0),
    "traffic": lambda n: views.traffic(_run(n), step=0),
    "ownership": _ownership,
    "payload counter": lambda n: views.payload_counter("reduce_scatter", n, 8 * n),
    "rank map": _rank_map,
    "cost explorer": views.cost_explorer,
}
_OTHER = {
    "payload counter": lambda view, k: view.set(operation=("all_gather", "reduce")[k % 2]),
    "rank map": lambda view, k: view.swap(0, 1 + k % 2),
    "cost explorer": lambda view, k: view.set(nbytes=4096 * (1 + k % 3)),
    "streams": lambda view, k: view.set(rank=k % 2),
}


def long_trace():
    """The trace of 8 ranks that do one all-reduce after the other, in EVENTS events."""

    def program(ctx, x):
        for _ in range(rounds):
            ring.all_reduce(ctx, x)

    rounds = 1
    each = len(simulate(program, np.arange(8.0), ranks=8).trace.events)
    rounds = -(-EVENTS // each)
    return simulate(program, np.arange(8.0), ranks=8).trace


# In this process


def _seconds(act):
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def _drawn(name, n):
    """Milliseconds from a changed setting to the bytes of the picture."""
    view = make(name, n)
    view.widget()

    def go(k):
        if name in _OTHER:
            _OTHER[name](view, k)
        elif view.settings["step"] == view.last:
            view.set(step=0)
        else:
            view.step()

    times = []
    for k in range(STEPS):
        view.forget()
        times.append(_seconds(partial(go, k)))
    view.close()
    return 1e3 * median(times[STEPS // 6 :])


def _open(open_, trace):
    view = open_(trace)
    view._repr_mimebundle_()
    view.close()


def _left():
    """What stays after a thousand steps: objects for each, and bytes in all."""
    view = make("kernel player", 4)
    view.widget()

    def go(steps):
        for k in range(steps):
            view.set(step=k % view.last)

    go(200)
    before = _held()
    go(1000)
    after = _held()
    view.close()
    return (after[0] - before[0]) / 1000, after[1] - before[1]


def _held():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return sys.getallocatedblocks(), pages * os.sysconf("SC_PAGE_SIZE")


def _saved():
    """The size of the notebook of the course that is the largest, saved with the state of its widgets."""
    import nbclient
    import nbformat

    path = max(CHECKOUT.glob("notebooks/*.ipynb"), key=lambda path: path.stat().st_size, default=None)
    if path is not None:  # they are in the checkout
        book = nbformat.read(path, as_version=4)
        quiet = ["--log-level=ERROR"]  # of the kernel, which else warns of its loopback connection
        with tempfile.TemporaryDirectory() as folder:
            where = {"metadata": {"path": folder}}
            nbclient.NotebookClient(book, timeout=120, extra_arguments=quiet, resources=where).execute()
        size = len(nbformat.writes(book).encode()) / 2**20
        yield Row(f"{path.stem}, saved with the state of its widgets", size, "MiB", "< 1.0")


def _cell(name, n):
    return f"from collectlab.bench import views as bench\nview = bench.make({name!r}, {n})\nview"


def swap(n):
    """A button, and a picture that it changes for another, finished one of the same size."""
    import ipywidgets

    view = make("kernel player", n)
    finished = [view.step(1).png() for _ in range(2)]
    image, button = ipywidgets.Image(value=finished[0]), ipywidgets.Button(description="Step")
    turn = itertools.cycle(finished[::-1])
    button.on_click(lambda _: setattr(image, "value", next(turn)))
    return ipywidgets.VBox([button, image])


def _notebook(sources):
    import nbformat

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return book


# On screen

# Sets `seen` to a promise: the milliseconds from the last of so many presses until the browser has painted the last
# of as many new pictures
_WATCH = """async (cell, presses) => {
    let image, source, number = -1;
    // each new picture is numbered, so that the browser's account says which one was painted
    const look = () => {
        const found = cell.querySelector("img.widget-image");
        if (!found || found == image && found.src == source) return;
        [image, source] = [found, found.src];
        image.setAttribute("elementtiming", ++number);
    };
    look();
    for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);  // what is there is painted
    window.seen = new Promise((done, fail) => {
        const times = [], late = "no new picture within a minute";
        const over = setTimeout(() => fail(new Error(late)), 60000);
        const press = event => { times.push(event.timeStamp) };
        for (const kind of ["click", "keydown"]) addEventListener(kind, press, {capture: true});
        const made = new MutationObserver(look);
        made.observe(cell, {childList: true, subtree: true, attributeFilter: ["src"]});
        const painted = new PerformanceObserver(list => {
            const asked = entry => entry.identifier == presses && entry.loadTime > times[presses - 1];
            const entry = list.getEntries().find(asked);
            if (!entry) return;
            clearTimeout(over);
            made.disconnect();
            painted.disconnect();
            for (const kind of ["click", "keydown"]) removeEventListener(kind, press, {capture: true});
            done(entry.renderTime - times[presses - 1]);
        });
        painted.observe({type: "element"});
    });
}"""
# Sets `shown` to the times at which pictures in that cell are there
_COUNT = """cell => {
    window.shown = [];
    cell.addEventListener("load", () => window.shown.push(performance.now()), true);
}"""


def _on_screen():
    import nbformat

    cells = {(name, n): _cell(name, n) for n in GOALS for name in VIEWS if name not in _OTHER}
    swaps = {n: len(cells) + place for place, n in enumerate(GOALS)}
    playing = len(cells) + len(swaps)
    sources = [*cells.values(), *(f"from collectlab.bench import views as bench\nbench.swap({n})" for n in swaps)]
    sources += [f"{_cell('kernel player', 8)[:-4]}view.pace = {PACE}\nview"]
    sources += [
        "from collectlab import views\nfrom collectlab.bench import views as bench\ntrace = bench.long_trace()",
        "views.kernel_player(trace)",
    ]
    with tempfile.TemporaryDirectory() as folder, _jupyterlab(folder) as served, browser.chromium() as chromium:
        nbformat.write(_notebook(sources), Path(folder, "views.ipynb"))
        tab = browser.Notebook(chromium, served, "views.ipynb")
        tab.run_all(seconds=300)
        names = {place: _through(tab.cells.nth(place)) for place in range(len(cells))}
        stepped = _stepped(tab, names | {place: itertools.repeat("Step") for place in swaps.values()})
        for place, (name, n) in enumerate(cells):
            cell, finished = tab.cells.nth(place), ("finished pictures", stepped[swaps[n]])
            case = f"step of {name}, {n} x {n}, on screen"
            yield Row(case, stepped[place], "ms", f"< {GOALS[n]}", *finished)
            yield Row(f"{case}, second of a double click", _twice(tab, cell), "ms", f"< {2 * GOALS[n]}", *finished)
        rate = _played(tab, tab.cells.nth(playing))
        yield Row(f"Play of kernel player, 8 x 8, asked for {1 / PACE:.0f}", rate, "frames/s", ">= 10.0")
        opened = _opened(tab, tab.cells.nth(playing + 2))
        yield Row(f"open kernel player of {EVENTS:,} events, on screen", opened / 1e3, "s", "< 1.0")
        tab.close()
        n, path = min(GOALS), Path(folder, "every.ipynb")
        nbformat.write(_notebook(_cell(name, n) for name in VIEWS), path)
        case = f"every view, {n} x {n}, saved by JupyterLab with the state of the widgets"
        yield Row(case, _size_saved(browser.Notebook(chromium, served, path.name), path), "MiB", "< 1.0")


def _size_saved(tab, path):
    """MiB of a notebook once all its cells have been run and it is saved."""
    tab.run_all()
    tab.save()
    tab.close()
    return path.stat().st_size / 2**20


def _jupyterlab(folder):
    outside = ("JUPYTER", "XDG")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(outside)}
    own = {"HOME": folder, "JUPYTER_PREFER_ENV_PATH": "1", "JUPYTER_CONFIG_PATH": str(CHECKOUT / "launch")}
    root = ["--allow-root"] if os.getuid() == 0 else []
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", *root]
    return browser.serving([*command, f"--ServerApp.root_dir={folder}"], cwd=folder, env=kept | own)


def _stepped(tab, names):
    """Place of a cell -> milliseconds from a click on its buttons of these names to the picture: the median.

    The cells take turns, so that a machine that is slow for a while is slow for all; the first clicks of each turn,
    on what has just been scrolled to, are left out.
    """
    times = {place: [] for place in names}
    for place in [*names] * TURNS:
        cell = tab.cells.nth(place)
        buttons = [_button(cell, name) for name in itertools.islice(names[place], PRESSES // TURNS)]
        times[place] += [_seen(tab, cell, button, button.click) for button in buttons][PRESSES // TURNS // 5 :]
    return {place: median(found) for place, found in times.items()}


def _twice(tab, cell):
    """Milliseconds from the second click of a double click on Step to its picture: the median."""
    reset, step, (at, last), times = _button(cell, "Reset"), _button(cell, "Step"), _state(cell), []
    for _ in range(PRESSES // 3):
        if at + 2 > last:
            _seen(tab, cell, reset, reset.click)
            at = 0
        times.append(_seen(tab, cell, step, step.dblclick, presses=2))
        at += 2
    return median(times)


def _through(cell):
    """The names of the buttons that lead through the states, again and again."""
    at, last = _state(cell)
    while True:
        at = at + 1 if at < last else 0
        yield "Step" if at else "Reset"


def _button(cell, name):
    return cell.get_by_role("button", name=name, exact=True)


def _state(cell):
    """The state that is shown, and the last one."""
    state = cell.get_by_label("state", exact=True)
    return int(state.input_value()), int(state.get_attribute("max"))


def _seen(tab, cell, button, press, presses=1):
    """Milliseconds from the last press to its picture, by somebody who has looked, the pointer on the button."""
    # all of the picture that the page has room for is in view, not just the button above it
    cell.locator(".jp-OutputArea-output").first.evaluate("output => output.scrollIntoView()")
    button.hover()
    tab.page.wait_for_timeout(1e3 * LOOKS)
    cell.evaluate(_WATCH, presses)
    press()
    return tab.page.evaluate("window.seen")


def _played(tab, cell):
    """Pictures a second, from the first that Play shows to the last."""
    play = _button(cell, "Play")
    cell.evaluate(_COUNT)
    play.click()
    _button(cell, "Pause").wait_for()
    play.wait_for()
    shown = tab.page.evaluate("window.shown")
    return (len(shown) - 1) / (shown[-1] - shown[0]) * 1e3


def _opened(tab, cell):
    """Milliseconds from Shift and Enter to the picture: the median of five."""
    times = []
    for _ in range(5):
        cell.locator(".cm-content").click()
        cell.evaluate(_WATCH, 1)
        tab.page.keyboard.press("Shift+Enter")
        times.append(tab.page.evaluate("window.seen"))
    return median(times)

"""What every view makes of odd runs and numbers: a sensible picture, or a clear sentence."""

import html

import numpy as np
import pytest
from matplotlib.text import Text

import collectlab as cl
from collectlab import views
from collectlab.layout import Partition, RankMap
from collectlab.trace import Event, Trace

MARKUP = "<script>alert(1)</script> & $x^2$"
ELSEWHERE = {"launch_panel", "live", "streams"}  # they take no run that is over; their own tests hold them


def fails_half_way(ctx, x):
    y = cl.kernels.mesh.all_reduce(ctx, x)
    if ctx.rank == 1:
        raise ValueError(MARKUP)
    return cl.kernels.mesh.all_reduce(ctx, y)


def timed(trace):
    """The same events, a millisecond each, one rank after the other."""
    for number, event in enumerate(trace.events, 1):
        event.began, event.ended = number * 1e-3, (number + 1) * 1e-3
    return trace


def by_hand(nranks):
    """A trace in which every rank loads from the next and tells it."""
    events = []
    for rank in range(nranks):
        peer = (rank + 1) % nranks
        events += [
            Event("store", rank, rank, "w", range(4), 32), Event("load", rank, peer, "w", range(4), 32),
            Event("notify", rank, peer, "s", row=0, at_least=1),
        ]  # fmt: skip
    events += [Event("wait", (rank + 1) % nranks, rank, "s", row=0, at_least=1) for rank in range(nranks)]
    return timed(Trace(nranks, events))


class Given:
    """What a view of a run reads, around a trace."""

    status, results, ends = "done", (), {}

    def __init__(self, trace, program=MARKUP):
        self.trace, self.program = trace, program
        self.rank_map = RankMap([f"{MARKUP} {rank}" for rank in range(trace.nranks)])

    def report(self):
        return f"failed: {MARKUP}"


def simulated(program, *args, ranks=3):
    run = cl.simulate(program, *args, ranks=ranks)
    timed(run.trace)
    return run


def mesh(nranks, fill=1.0):
    return simulated(cl.kernels.mesh.all_reduce, np.full(4, fill), ranks=nranks)


NUMBERS = np.array([np.nan, np.inf, -np.inf, 1.0])
OF_RUNS = {
    "an empty trace": lambda: Given(Trace(3)),
    "one rank": lambda: mesh(1),
    "1000 ranks": lambda: Given(by_hand(1000)),
    "a run that failed half-way": lambda: simulated(fails_half_way, np.ones(4)),
    "NaN and inf": lambda: simulated(cl.kernels.mesh.all_reduce, NUMBERS),
    "markup": lambda: Given(by_hand(3)),
}


def odd_times():
    trace = by_hand(3)
    for event, (began, ended) in zip(trace.events, ((np.nan, 1), (1, np.inf), (2, 1), (-1, 0)), strict=False):
        event.began, event.ended = began, ended
    return views.lanes(Given(trace))


def of_run(show):
    return {case: lambda given=given: show(given()) for case, given in OF_RUNS.items()}


def both(run):
    return views.side_by_side(*[views.kernel_player(run)] * 2)


CASES = {
    "arrivals": of_run(views.arrivals),
    "kernel_player": of_run(views.kernel_player),
    "lanes": {**of_run(views.lanes), "NaN and inf": odd_times},
    "side_by_side": of_run(both),
    "traffic": of_run(views.traffic),
    "cost_explorer": {
        "one rank": lambda: views.cost_explorer(nranks=1),
        "1000 ranks": lambda: views.cost_explorer(nranks=1000),
        "NaN": lambda: views.cost_explorer(latency_us=np.nan),
        "inf": lambda: views.cost_explorer(bandwidth_gbs=np.inf),
        "markup": lambda: views.cost_explorer(nbytes=MARKUP),
    },
    "memory_timeline": {
        "an empty list": lambda: views.memory_timeline([]),
        "no list": lambda: views.memory_timeline(MARKUP),
        "a phase without a name": lambda: views.memory_timeline([{"retained": 1}]),
        "1000 phases": lambda: views.memory_timeline([{"name": f"phase {n}", "retained": n} for n in range(1000)]),
        "nothing held": lambda: views.memory_timeline([{"name": "idle"}]),
        "NaN": lambda: views.memory_timeline([{"name": "a", "retained": np.nan}]),
        "inf": lambda: views.memory_timeline([{"name": "a", "sharded": {"x": np.inf}}]),
        "less than nothing": lambda: views.memory_timeline([{"name": "a", "temporary": -1}]),
        "an odd budget": lambda: views.memory_timeline([{"name": "a"}], budget=0.5),
        "markup": lambda: views.memory_timeline([{"name": MARKUP, "retained": {MARKUP: 8}}], MARKUP, who=MARKUP),
    },
    "modular_lab": {
        "one rank": lambda: views.modular_lab(m=1, a=0, step=1),
        "1000 ranks": lambda: views.modular_lab(m=1000),
        "no places": lambda: views.modular_lab(m=0),
        "NaN": lambda: views.modular_lab(a=np.nan),
        "inf": lambda: views.modular_lab(m=np.inf),
        "a fraction": lambda: views.modular_lab(a=0.5),
        "markup": lambda: views.modular_lab(residue=MARKUP),
    },
    "ownership": {
        "no ranks": lambda: views.ownership("all_reduce", []),
        "one rank": lambda: views.ownership("all_reduce", [np.arange(4)]),
        "1000 ranks": lambda: views.ownership("all_gather", [np.arange(2)] * 1000),
        "a run that failed half-way": lambda: views.ownership(
            "all_reduce", [np.ones(4)] * 3, simulated(fails_half_way, np.ones(4))
        ),
        "NaN and inf": lambda: views.ownership("all_reduce", [NUMBERS, NUMBERS]),
        "markup": lambda: views.ownership("all_reduce", [NUMBERS] * 2, rank_map=RankMap([MARKUP, "B"])),
    },
    "payload_counter": {
        "one rank": lambda: views.payload_counter(nranks=1),
        "1000 ranks": lambda: views.payload_counter(nranks=1000, elements=10**9),
        "NaN": lambda: views.payload_counter(elements=np.nan),
        "inf": lambda: views.payload_counter(nranks=np.inf),
        "markup": lambda: views.payload_counter(operation=MARKUP),
    },
    "rank_map": {
        "one rank": lambda: views.rank_map(RankMap(["A"]), Partition.equal(4, 1)),
        "1000 ranks": lambda: views.rank_map(RankMap.local(1000), Partition.uneven(10, 1000)),
        "another number of ranks": lambda: views.rank_map(RankMap(["A"]), Partition.equal(4, 2)),
        "markup": lambda: views.rank_map(RankMap([MARKUP, "B"]), Partition.equal(4, 2)),
    },
}


def test_every_view_is_held_against_bad_input():
    assert CASES.keys() | ELSEWHERE == {*views.__all__}


def whole(view, misplaced, markup):
    """What is wrong with a view's text, picture and widget: a list."""
    wrong = [] if view.text().strip() and view.caption().strip() else ["no words"]
    figure, widget = view.figure(), view.widget()
    wrong += misplaced(figure)
    texts = [t for t in figure.findobj(Text) if "$" in t.get_text()]
    wrong += [f"{t.get_text()!r} is set as mathematics" for t in texts if t.get_parse_math()]
    if not view._png.startswith(b"\x89PNG"):
        wrong.append("no picture")
    view._words_button.value = True
    if "<script" in markup(widget):
        wrong.append("markup is interpreted")
    if MARKUP in view.text() and MARKUP not in html.unescape(markup(widget)):
        wrong.append("markup is lost")
    view.close()
    return wrong


EVERY = [(name, case) for name, cases in CASES.items() for case in cases]


@pytest.mark.parametrize(("name", "case"), EVERY, ids=[f"{name}: {case}" for name, case in EVERY])
def test_a_sensible_picture_or_a_clear_sentence(name, case, misplaced, markup):
    try:
        view = CASES[name][case]()
    except (TypeError, ValueError) as error:
        said = str(error)
        assert name in said and len(said) > 40 and " object at 0x" not in said, said
    else:
        assert whole(view, misplaced, markup) == []


SHOWN = {"one rank", "a run that failed half-way", "markup"}  # of a run these can be shown, whatever the view


@pytest.mark.parametrize("name", ("kernel_player", "lanes", "traffic"))
def test_most_odd_runs_are_shown(name):
    for case in SHOWN | {"an empty trace", "1000 ranks"}:
        view = CASES[name][case]()
        if case == "1000 ranks":
            assert "ggregated" in view.text()
            labels = [text.get_text() for text in view.figure().findobj(Text) if text.get_visible()]
            assert not [label for label in labels if "…" in label]
        if case == "an empty trace":
            assert "Nothing was traced" in view.text()


def test_a_picture_that_is_wrong_would_be_seen(misplaced, markup):
    view = views.modular_lab()
    assert whole(view, misplaced, markup) == []
    view.text = lambda: MARKUP
    view.caption = lambda: ""
    assert whole(view, misplaced, lambda widget: MARKUP) == ["no words", "markup is interpreted"]
    assert whole(view, lambda figure: ["it lies on it"], lambda widget: "") == [
        "no words", "it lies on it", "markup is lost",
    ]  # fmt: skip

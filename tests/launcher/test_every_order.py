"""In whatever order a supervisor hears of things: no death is forgotten, no run lost, and the first cause is told.

What two ranks, their launcher, a keeper and the notebook may say is played to a supervisor without processes in every
order, with at most two deaths and two words that end. Orders that lead to the same state are followed up once. In
each state, what has been put off is let happen: it has to end the ranks in time, unless all is well.
"""

import pytest
from played import ENDS, OF_ALL, READY, Ended, Played, until_it_ends

from collectlab.launcher import supervisor


def states(hosts, runs, deaths, before=()):
    """Each state, by the events that led to it first, and how it ended the ranks then, if it did."""
    seen, paths = set(), [before]
    while paths:
        events = paths.pop()
        supervisor.time.now = 1000.0
        try:
            played = Played(hosts, runs, deaths, events)
        except Ended as ended:
            yield events, None, ended
            continue
        if (state := played.state()) in seen:
            continue
        seen.add(state)
        yield events, played, None
        paths += [(*events, event) for event in played.next_events()]


def check_end(played, value, runs):
    """The cause is the one that was there first, and each run has been told of once."""
    assert sorted([*played.done, *played.crossed, *runs]) == sorted(played.submitted), "a run is lost"
    kind, ready = value["cause"]["kind"], None not in value["places"]
    told = [runs[run] for run in played.submitted if run in runs] or ([] if ready else [value])
    blamed = {n for run in told[:1] for n, rank in enumerate(run["ranks"]) if rank["state"] in supervisor.BLAMED}
    if value["status"] == "interrupted":
        assert kind in [{"stop": "stopped", "interrupt": "interrupted"}[word] for word in played.words]
    elif not played.deaths:
        assert kind in ("timeout", "slow start", "no GPU")
    else:
        whats = [what for what, _ in played.deaths]
        kinds = [OF_ALL.get(what, "rank failed" if ready else "no start") for what in whats]
        own = {of for what, of in played.deaths if what not in OF_ALL}
        assert value["status"] == "failed" and kind in kinds
        if whats[0] == "is orphaned" or whats[1:] == ["is orphaned"]:
            pass  # its daemon may have been ended by what ended the other
        elif whats[0].startswith("launcher"):
            others = whats[1:] in (["is killed"], ["raises"])
            assert kind == "launcher exit" or others or whats == ["launcher exits", "keeper is killed"]
            assert blamed <= (own if others else set())
        elif whats[0] == "keeper is killed":
            assert whats[1:] or blamed == {1} or not (told and ready)
        else:
            later = {("loses its guard", "launcher is killed"), ("loses its guard", "keeper is killed")}
            starting = not ready and whats == ["is terminated", "launcher exits"]  # nobody else terminates one then
            assert kind == kinds[1] if starting else kind == kinds[0] or tuple(whats) in later
            if told and kind == kinds[0]:
                guard_first = whats[0] == "loses its guard"
                by_mpi = whats[1:] in ([["is terminated"], ["exits"]] if guard_first else [["loses its guard"]])
                assert blamed == {1} if by_mpi else blamed in ({1}, own)
                assert blamed == own or whats[1:] != ["is killed"]
        assert blamed <= {of for what, of in played.deaths if of is not None}
        assert not told or told[0]["cause"]["kind"] == kind
        for run in told[1:]:  # behind one that was going on, or behind one that was not begun either
            not_begun = {"not started"} == {rank["state"] for rank in run["ranks"]}
            assert run["cause"]["kind"] == kind if not played.run else not_begun


PLAYS = {  # hosts, runs, how many may die, what has been heard before
    "ranks that start on two hosts": (2, ("first",), 1),
    "ranks of which one is ready": (1, (), 2, READY[:3]),
    "ranks that are ready": (1, ("first", "second"), 2, READY),
    "ranks that are ready on two hosts": (2, ("second",), 2, READY),
}


@pytest.mark.parametrize("play", PLAYS)
def test_no_order_hides_what_happened_or_makes_it_wait_for_ever(play, clock):
    for events, played, ended in states(*PLAYS[play]):
        try:
            if played is None:
                check_end(ended.played, ended.value, ended.runs)
                continue
            if played.deaths:
                assert played.given() == played.given_before, "a run was given to the dead"
            ended = {of for what, of in played.deaths if what in ENDS}
            assert all(ended.issuperset(home.released) for home in played.homes), "a guard leaves before its rank"
            before = played.state()
            played._do_glance()
            played._do_look("first")
            assert played.state() == before, "who looks has changed something"
            assert bool(played.looks) == bool(played.run and played.run["id"] == "first"), "another run is looked at"
            ready, run = played._ready(), played.run
            ended, seconds = until_it_ends(played)
            if played.leaving:
                assert ended.value["cause"]["kind"] == "stopped" and seconds <= supervisor.FAREWELL
            elif played.deaths:
                assert ended.value["status"] == "failed" and seconds <= supervisor.SETTLE_MOST + supervisor.SETTLE
            elif ready:
                assert (ended and ended.value["status"]) == ("timeout" if run and run["timeout"] else None)
            else:
                assert ended.value["cause"]["kind"] == "slow start"
                assert supervisor.time.now <= played.since + played.patience
            if ended:
                check_end(ended.played, ended.value, ended.runs)
        except Exception as error:
            raise AssertionError(f"after {events}: {error!r}") from error

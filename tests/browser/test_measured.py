"""`collectlab bench views` finds on screen what it measures there. No time is asserted."""

import pytest

from collectlab.bench import views

pytestmark = pytest.mark.needs("browser")


def test_the_rows_on_screen(monkeypatch):
    monkeypatch.setattr(views, "GOALS", {2: 50.0})
    monkeypatch.setattr(views, "PRESSES", 3)
    some = ("kernel player", "traffic", "payload counter")
    monkeypatch.setattr(views, "VIEWS", {name: views.VIEWS[name] for name in some})
    monkeypatch.setattr(views, "EVENTS", 500)
    rows = {row.case: row for row in views._on_screen()}
    stepped = [f"step of {name}, 2 x 2, on screen" for name in views.VIEWS if name not in views._OTHER]
    twice = [f"{case}, second of a double click" for case in stepped]
    assert {case for case in rows if case.startswith("step")} == {*stepped, *twice}
    assert len(rows) == len(stepped) + len(twice) + 3
    for row in rows.values():
        assert row.ours > 0 and row.to_dict()["met"] in (True, False)

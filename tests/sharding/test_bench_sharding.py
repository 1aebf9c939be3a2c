"""The bench of sharded training, on a small model and a small checkpoint: its rows, and nothing about its figures."""

import os

from collectlab.bench import sharding as bench
from collectlab.sharding import Network


def test_every_goal_has_its_row(monkeypatch, tmp_path):
    monkeypatch.setenv("COLLECTLAB_RUNS", str(tmp_path))
    monkeypatch.setattr(bench, "WIDE", Network(150, 200, 150, "float32"))
    monkeypatch.setattr(bench, "COPIES", 1)
    rows = [row.to_dict() for row in bench.rows(rounds=1, nbytes=3 << 20)]
    assert [(row["peer"], row["unit"], row["goal"]) for row in rows] == [
        ("replicated", "ms", "<= 1.3 x peer"),
        ("replicated", "ms", "<= 1.3 x peer"),
        (None, "%", "<= 5"),
        ("copying its files", "MiB/s", ">= 0.5 x peer"),
        ("the whole", "MiB", "<= 0.4 x peer"),
    ]
    assert all(row["ours"] > 0 for row in rows)
    assert rows[2]["met"], rows[2]  # bytes, not time
    assert os.listdir(tmp_path) == []

"""Measurements: each figure beside its goal, and beside a peer that was measured in the same run.

No test asserts any of it: timings belong to the machine and the hour. `collectlab bench` prints them.
"""

import operator
import os
import platform
from dataclasses import dataclass

_HOLDS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt}


@dataclass(frozen=True)
class Row:
    """One figure. `goal` reads "<= 1.6 x peer" (about ours / peer_value) or ">= 1.5" (about ours)."""

    case: str
    ours: float
    unit: str
    goal: str
    peer: str | None = None
    peer_value: float | None = None

    def to_dict(self):
        sign, bound, *of_peer = self.goal.split()
        ratio = self.ours / self.peer_value if self.peer_value else None
        met = bool(_HOLDS[sign](ratio if of_peer else self.ours, float(bound)))
        return {
            "case": self.case,
            "ours": _short(self.ours),
            "peer": self.peer,
            "peer_value": _short(self.peer_value),
            "unit": self.unit,
            "ratio": _short(ratio),
            "goal": self.goal,
            "met": met,
        }


def _short(value):
    return None if value is None else float(f"{value:.4g}")


def machine():
    """What the figures were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": len(os.sched_getaffinity(0)), "memory_gib": round(memory, 1), "system": platform.system(),
        "processor": platform.machine(), "python": platform.python_version(),
    }  # fmt: skip


def table(rows):
    """The rows as aligned text."""
    cells = [("case", "ours", "peer", "unit", "ratio", "goal", "met")]
    for row in rows:
        peer = f"{row['peer_value']} ({row['peer']})" if row["peer"] else "-"
        ratio = "-" if row["ratio"] is None else row["ratio"]
        cells.append(
            (row["case"], row["ours"], peer, row["unit"], ratio, row["goal"], "yes" if row["met"] else "NO")
        )
    widths = [max(len(str(row[i])) for row in cells) for i in range(len(cells[0]))]
    return "\n".join(
        "  ".join(str(c).ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells
    )

"""Collectives that go on while a rank computes: plans, their dependencies, and the hazards in them.

    plan.py        what a plan is written with: buffers, operations on streams, events
    on_ranks.py    the plan carried out: non-blocking MPI and its requests, or CuPy's streams and NCCL
    lanes.py       which operation waits for which, as signals between lanes; the trace of a plan
    simulated.py   the plan carried out in the simulator, under any schedule
    hazards.py     accesses that no dependency orders, in words
    runs.py        run, simulate, and what they leave
    backward.py    a backward pass whose gradients are reduced in buckets, meanwhile or afterwards
"""

from collectlab.overlap.hazards import Hazard
from collectlab.overlap.on_ranks import streams
from collectlab.overlap.plan import NOW
from collectlab.overlap.runs import Overlapped, run, simulate

__all__ = ["NOW", "Hazard", "Overlapped", "run", "simulate", "streams"]

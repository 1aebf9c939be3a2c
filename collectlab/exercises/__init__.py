"""Exercises whose checkers say what is wrong. One module per notebook; a learner calls its exercises by name.

    cl.exercises.three_collectives.shard_of_rank_1([11, 22])

    exercise.py    Exercise, Mistake, Verdict: an answer, and what is said about it
    reading.py     from what a learner wrote to a value that can be compared, or a sentence that says why not
    on_ranks.py    ProgramExercise: the answer is a program, which is run on several numbers of ranks
    on_kernels.py  KernelExercise: the answer is a kernel, which is simulated under many schedules, then run on ranks
    on_plans.py    PlanExercise: the answer is a plan of overlap, which is searched for hazards, then run on ranks
"""

from importlib import import_module as _import_module

__all__ = [  # noqa: RUF022 - in the order of the notebooks
    "background",  # 00
    "three_collectives",  # 01
    "counting",  # 02
    "ownership",  # 03
    "windows_and_signals",  # 04
    "one_phase",  # 05
    "two_phases",  # 06
    "rings",  # 07
    "failures",  # 08
    "arrival_order",  # 09
    "uneven_blocks",  # 10
    "sharded_optimizer",  # 11
    "restart",  # 12
    "overlapping",  # 13
    "decisions",  # 14
]


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f"collectlab.exercises has no {name!r}; its notebooks' modules are {', '.join(__all__)}")
    return _import_module(f"collectlab.exercises.{name}")

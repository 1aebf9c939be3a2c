"""Collectives built from windows and signals: one file per algorithm, each with its program and its cost card."""

from collectlab.kernels import mesh, ring, two_phase

__all__ = ["mesh", "ring", "two_phase"]

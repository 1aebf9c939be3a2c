"""Collectives built from windows and signals: one file per algorithm, each with its program and its cost card."""

from collectlab.kernels import direct, mesh, rabenseifner, recursive_doubling, ring, tree, two_phase

__all__ = ["direct", "mesh", "rabenseifner", "recursive_doubling", "ring", "tree", "two_phase"]

"""Ranks in the background of a notebook, and the Run they leave behind.

    ranks.py       the notebook's side: run, launch, Ranks
    run.py         Run: one program on all ranks, and its directory
    supervisor.py  a process of its own: starts the ranks, watches everyone, leaves nothing behind
    keeper.py      does on every other host what the supervisor does on its own; host.py is what the two share
    mpiexec.py     starts ranks of MPICH on one host; other sites have an mpiexec or srun of their own
    worker.py      a rank: its guard, and the loop that runs programs
    glance.py      what each rank of a run does now; terminal.py shows it where a script waits

The rest is what these share. Only worker.py and calls.py import mpi4py, and only devices.py CuPy;
the notebook imports none of these.
"""

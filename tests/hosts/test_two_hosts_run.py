"""Programs on ranks of two hosts, from a notebook on one of them."""

import time

import pytest
from two_hosts import parent, switches

pytestmark = pytest.mark.needs("second host")


def test_a_run_returns_what_each_rank_returned_and_says_where_each_was(notebook):
    notebook.run("""
        import numpy as np, os

        def program(ctx, x, y):
            print("here is", ctx.rank)
            return os.uname().nodename, ctx.comm.allreduce(ctx.rank), x * np.arange(3), y

        run = cl.run(program, cl.per_rank([1, 2, 3, 4]), np.ones(1 << 18), ranks=4, site="hosts")
    """)
    assert notebook("run.status") == "done", notebook("run.report()")
    hosts = ["alpha", "alpha", "beta", "beta"]
    found = notebook("[(host, total, x.tolist(), int(y.sum())) for host, total, x, y in run.results]")
    assert found == [(host, 6, [0, rank + 1, 2 * rank + 2], 1 << 18) for rank, host in enumerate(hosts)]
    assert notebook("run.rank_map.hosts") == tuple(hosts)
    assert notebook("run.rank_map.devices") == ("alpha/cpu:0", "alpha/cpu:1", "beta/cpu:0", "beta/cpu:1")
    assert notebook("[place.local_rank for place in run.rank_map.places]") == [0, 1, 0, 1]
    assert notebook("[run.log(rank) for rank in range(4)]") == [f"here is {rank}\n" for rank in range(4)]


def test_kernels_with_windows_across_hosts(notebook, ranks):
    notebook.run("""
        import numpy as np

        def program(ctx, x):
            kernels = cl.kernels.mesh, cl.kernels.two_phase, cl.kernels.ring
            return [kernel.all_reduce(ctx, x) for kernel in kernels]

        xs = [np.arange(100.0) * (rank + 1) for rank in range(4)]
        run = ranks.submit(program, cl.per_rank(xs)).wait()
    """)
    assert notebook("all((y == sum(xs)).all() for ys in run.results for y in ys)") is True
    assert notebook("run.trace.races()") == []
    assert notebook("int(run.traffic.sum())") > 0


def test_warm_ranks_run_one_program_after_another_and_leave_when_told(hosts, notebook, ranks):
    notebook.run("runs = [ranks.submit(lambda ctx, n: (n, ctx.comm.allreduce(1)), n) for n in range(20)]")
    assert notebook("[run.wait().results for run in runs]") == [[(n, 4)] * 4 for n in range(20)]
    assert hosts.beta.processes("launcher.worker")
    notebook.run("ranks.stop()")
    hosts.gone()
    assert notebook("ranks.submit(lambda ctx: ctx.rank).wait().results") == [0, 1, 2, 3]


def test_interrupt_ends_a_run_on_both_hosts_and_the_report_says_where_each_rank_was(hosts, notebook, ranks):
    notebook.run("""
        def stuck(ctx):
            if ctx.rank == 3:
                __import__("time").sleep(60)
            ctx.comm.barrier()

        run = ranks.submit(stuck)
        words = "ranks 0, 1 and 2 were waiting in barrier", "sleep(60)"
        until(lambda: all(word in run.report() for word in words), run.report)
    """)
    said = notebook("run.report()")
    assert "ranks 0, 1 and 2 were waiting in barrier" in said
    assert "rank 3 was not in an MPI call" in said and 'sleep(60)' in said
    notebook.run("ranks.interrupt(); ranks.interrupt()")
    assert notebook("run.status") == "interrupted"
    hosts.gone()


def test_a_rank_that_raises_on_the_other_host_is_told_like_any_other(hosts, notebook, ranks):
    notebook.run("""
        def program(ctx):
            print("before")
            if ctx.rank == 2:
                raise ValueError("not on this host")
            ctx.comm.barrier()

        run = ranks.submit(program).wait()
    """)
    said = notebook("run.report()")
    assert "rank 2 raised ValueError: not on this host" in said
    assert 'raise ValueError("not on this host")' in said
    assert "ranks 0, 1 and 3 were waiting in barrier" in said
    assert "Traceback" in notebook("run.log(2)") and notebook("run.log(3)") == "before\n"
    hosts.gone()


def test_a_rank_on_the_other_host_that_garbles_its_channel_is_named(hosts, notebook, ranks):
    notebook.run("""
        def garbled(ctx):
            import gc
            from collectlab.launcher.wire import Channel

            if ctx.rank == 2:
                (own,) = (it for it in gc.get_objects() if type(it) is Channel and it.fileno() >= 0)
                own.sock.sendall(b"what is this?")
            ctx.comm.barrier()
            ctx.comm.recv(source=3) if ctx.rank == 2 else None

        run = ranks.submit(garbled).wait(20)
    """)
    assert "rank 2 wrote into the connection that controls it: a control message" in notebook("run.report()")
    hosts.gone()


def test_once_ranks_are_there_nothing_listens_but_the_ranks_themselves(hosts, notebook, ranks):
    """The ranks do, at the addresses of their host. mpiexec did at every one, for its daemons; only lo is left."""
    for host in hosts.machines:
        everything, python = host.processes(), host.processes("launcher.worker")
        for pid, places in host.listening().items():
            if "mpiexec" in everything[pid].split()[0]:
                assert all(hosts.beta.is_refused(hosts.alpha.address, int(port, 16)) for _, port in places)
                continue
            assert pid in python and parent(pid) in python, everything[pid]  # a rank: its parent is its guard
            own = "".join(f"{int(part):02X}" for part in reversed(host.address.split(".")))
            assert {address for address, _ in places} <= {own, "0100007F"}


def test_what_idle_hosts_say_to_each_other_wakes_no_process(hosts, notebook, ranks):
    notebook.run("ranks.submit(lambda ctx: None).wait()")
    watched = hosts.alpha.processes("launcher.supervisor") | hosts.beta.processes("launcher.worker")
    before = {pid: switches(pid) for pid in watched}
    time.sleep(1.5)  # longer than the kernel waits before it asks whether the other host is there
    assert {pid: switches(pid) for pid in watched} == before

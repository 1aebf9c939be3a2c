"""Sites are files: what one may say, what is said of one that is wrong, and Open MPI beside MPICH."""

import os
import signal

import numpy as np
import pytest
from marks import wait_for

import collectlab as cl
from collectlab.launcher import sites, sweep

LOCAL = """
command = ["mpiexec", "-launcher", "fork", "-hosts", "127.0.0.1", "-iface", "lo", "-n", "{n}"]
rank = "PMI_RANK"
local_rank = "MPI_LOCALRANKID"
needs = "MPICH"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of one's own sites; call it with a name and the text of its file."""

    def write(name, text):
        (tmp_path / f"{name}.toml").write_text(text)

    monkeypatch.setenv("COLLECTLAB_SITES", str(tmp_path))
    return write


def test_a_site_of_ones_own_is_a_file_and_its_variables_reach_the_ranks(folder):
    folder("mine", LOCAL + '[variables]\nGREETING = "hello"\n')
    assert sites.names()[0] == "mine" and {"local", "openmpi"} <= set(sites.names())
    run = cl.run(lambda ctx: (ctx.rank, __import__("os").environ["GREETING"]), ranks=2, site="mine")
    assert run.results == [(0, "hello"), (1, "hello")]
    assert run.spec["site"] == "mine"


def test_what_the_user_has_set_wins_over_a_sites_variables(folder, monkeypatch):
    folder("mine", LOCAL + '[variables]\nGREETING = "hello"\n')
    monkeypatch.setenv("GREETING", "good day")
    assert sites.environment(sites.find("mine"), {})["GREETING"] == "good day"


def test_what_an_outer_launcher_left_is_dropped_unless_the_site_keeps_it(folder, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PMI_RANK", "3")
    assert not {"SLURM_JOB_ID", "PMI_RANK"} & sites.environment(sites.find(None), {}).keys()
    folder("slurm", LOCAL.replace("MPICH", "srun") + 'keep = ["SLURM_"]\n')
    kept = sites.environment(sites.find("slurm"), {})
    assert kept["SLURM_JOB_ID"] == "7" and "PMI_RANK" not in kept


def test_a_sites_variable_that_an_outer_launcher_sets_too_is_the_sites_unless_it_keeps_it(folder, monkeypatch):
    monkeypatch.setenv("OMPI_MCA_btl", "of-the-cluster")
    folder("mine", LOCAL + '[variables]\nOMPI_MCA_btl = "self"\n')
    assert sites.environment(sites.find("mine"), {})["OMPI_MCA_btl"] == "self"
    folder("keeps", LOCAL + 'keep = ["OMPI_MCA_"]\n[variables]\nOMPI_MCA_btl = "self"\n')
    assert sites.environment(sites.find("keeps"), {})["OMPI_MCA_btl"] == "of-the-cluster"


@pytest.mark.parametrize(
    ("text", "said"),
    (
        ("command = [", "cannot be read"),
        (LOCAL + 'colour = "red"', "has 'colour'; accepted: command, rank"),
        (LOCAL + 'across = "yes"', "across is 'yes'; true or false is accepted"),
        (LOCAL + 'hosts = ["a"]', "hosts is ['a']; a string is accepted"),
        (LOCAL.replace('rank = "PMI_RANK"\n', "", 1), "lacks 'rank'"),
        (LOCAL.replace('"PMI_RANK"', '" "', 1), "rank is empty; the name of a variable is accepted"),
        (LOCAL.replace('"{n}"', '"4"'), "no word of command holds {n}"),
        (LOCAL.replace('"MPICH"', "3"), "needs is 3; a string is accepted"),
        (LOCAL + "keep = [1]", r"keep is [1]; a list of strings is accepted"),
        (LOCAL.replace('"-n"', r'"-n\u0000"'), "a NUL in it"),
        (LOCAL + '[variables]\n"A=B" = "1"', "variables has 'A=B', which is no name of a variable"),
        (LOCAL + "[variables]\nX = 1", "variables is {'X': 1}; a table of strings is accepted"),
    ),
)
def test_a_file_that_is_wrong_is_named_with_what_is_accepted(folder, text, said):
    folder("mine", text)
    with pytest.raises(ValueError, match=r"site='mine'.*mine\.toml") as raised:
        cl.run(lambda ctx: None, ranks=2, site="mine")
    assert said in str(raised.value)


def test_a_variable_names_the_site_that_is_taken_where_none_is_named(folder, monkeypatch):
    folder("mine", LOCAL)
    monkeypatch.setenv("COLLECTLAB_SITE", "mine")
    assert (sites.find(None).name, sites.find("local").name) == ("mine", "local")
    monkeypatch.setenv("COLLECTLAB_SITE", "moon")
    with pytest.raises(ValueError, match=r"site='moon' \(the variable COLLECTLAB_SITE\) is unknown"):
        cl.launch(2)
    monkeypatch.setenv("COLLECTLAB_SITE", "")
    assert sites.find(None).name == "local"


@pytest.mark.parametrize("name", ("moon", "../local", "", 3, "local.toml"))
def test_an_unknown_site_names_those_there_are(name):
    with pytest.raises(ValueError, match=r"site=.* is unknown; accepted: None or one of 'hosts', 'local'"):
        cl.launch(2, site=name)


@pytest.mark.parametrize(
    "line",
    (
        "localhost:0", "localhost:-1", "localhost:", "localhost:two", "::1", ":4", "-J", "localhost slots=0",
        "localhost slots=", "localhost slots=two", "localhost:2 slots=2", "localhost 4", "localhost user=me",
        "localhost slots=2 max_slots=4", "localhost,127.0.0.1", "localhost:12345678", "slots=4",
    ),
)  # fmt: skip
def test_a_line_that_is_no_host_is_named_before_anything_starts(folder, tmp_path, line):
    (tmp_path / "hosts").write_text(f"# ours\r\nlocalhost:2  # twice\r\nlocalhost\r\n{line}\r\n")
    folder("mine", LOCAL + f'hosts = "{tmp_path}/hosts"\nacross = true\n')
    with pytest.raises(FileNotFoundError, match=f"hosts names {line}[;,]"):
        cl.run(lambda ctx: None, ranks=2, site="mine")


@pytest.mark.parametrize("mark", (b"", b"\xef\xbb\xbf"), ids=("plain", "with a byte order mark"))
def test_lines_of_a_hosts_file_that_are_hosts(folder, tmp_path, mark):
    text = b"localhost:2  # twice\r\n# ours\r\n\r\n localhost\t slots=3 # Open MPI's\r\nlocalhost\r\n127.0.0.1"
    (tmp_path / "hosts").write_bytes(mark + text)
    folder("mine", LOCAL.replace('"127.0.0.1"', '"{hosts}"') + f'hosts = "{tmp_path}/hosts"\n')
    site = sites.find("mine")
    assert sites.hosts(site) == [("localhost", 2), ("localhost", 3), ("localhost", 1), ("127.0.0.1", 1)]
    assert "localhost:2,localhost:3,localhost:1,127.0.0.1:1" in sites.command(site, 2, ())


@pytest.mark.parametrize(
    ("python", "said"),
    (
        ("$NOWHERE/bin/python", "the variable NOWHERE is not set"),
        ("{tmp}/nowhere/python", "/nowhere/python: it was not found"),
        ("{tmp}", "it was not found"),
        ("{tmp}/silent", "it does not answer as Python does"),
        ("{tmp}/broken", "it does not start: no such luck"),
        ("{tmp}/old", "it is Python 3.6, and programs come from Python 3."),
        ("{tmp}/bare", "it lacks mpi4py, cloudpickle"),
    ),
)
def test_an_interpreter_that_will_not_do_is_told_before_anything_starts(folder, tmp_path, python, said):
    import sys

    version = f"{sys.version_info[0]} {sys.version_info[1]}"
    bare = f"echo {version} mpi4py cloudpickle"
    texts = {"silent": "", "broken": "echo no such luck >&2; exit 1", "old": "echo 3 6", "bare": bare}
    for name, text in texts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    folder("mine", LOCAL + f'python = "{python.replace("{tmp}", str(tmp_path))}"\n')
    with pytest.raises(FileNotFoundError, match="site 'mine' needs MPICH") as raised:
        cl.launch(2, site="mine")
    assert said in str(raised.value)


# Open MPI


@pytest.fixture
def openmpi():
    """Three warm ranks of Open MPI."""
    with cl.launch(3, device="cpu", site="openmpi") as ranks:
        yield ranks


@pytest.mark.needs("Open MPI")
def test_kernels_run_on_open_mpi(openmpi):
    def program(ctx, x):
        from mpi4py import MPI

        kernels = cl.kernels.mesh, cl.kernels.two_phase, cl.kernels.ring
        return MPI.get_vendor()[0], [kernel.all_reduce(ctx, x) for kernel in kernels], ctx.comm.allreduce(ctx.rank)

    run = openmpi.submit(program, cl.per_rank([np.arange(5) + rank for rank in range(3)])).wait()
    for vendor, ys, total in run.results:
        assert (vendor, total) == ("Open MPI", 3)
        np.testing.assert_array_equal(ys, [3 * np.arange(5) + 3] * 3)
    assert run.trace.races() == [] and len(run.rank_map.places) == 3


@pytest.mark.needs("Open MPI")
def test_a_rank_that_raises_on_open_mpi_is_told_and_the_next_run_works(openmpi):
    def program(ctx):
        if ctx.rank == 1:
            raise ValueError("not I")
        ctx.comm.barrier()

    run = openmpi.submit(program).wait()
    assert run.status == "failed" and "rank 1 raised ValueError: not I" in run.report()
    assert "ranks 0 and 2 were waiting in barrier" in run.report()
    assert openmpi.submit(lambda ctx: ctx.rank).wait().results == [0, 1, 2]


@pytest.mark.needs("Open MPI")
@pytest.mark.parametrize("who", ("rank", "launcher", "supervisor"))
def test_a_kill_under_open_mpi_leaves_nothing(who):
    with cl.launch(2, device="cpu", site="openmpi") as ranks:
        run = ranks.submit(lambda ctx: __import__("time").sleep(60))
        tag, supervisor = ranks._link.tag, ranks._link.process.pid
        wait_for(lambda: "sleep" in run.report(), complaint=run.report)
        tree = {pid: open(f"/proc/{pid}/cmdline").read() for pid in sweep.tagged(tag)}
        launcher = next(pid for pid, words in tree.items() if "prterun" in words.split("\0")[0])
        victim = {"rank": max(tree), "launcher": launcher, "supervisor": supervisor}[who]
        os.kill(victim, signal.SIGKILL)
        run.wait(20)
        assert run.status == "failed"
        assert ranks.submit(lambda ctx: ctx.nranks).wait().results == [2, 2]

"""The words of a report, from a status as the supervisor writes it."""

import itertools

import pytest

from collectlab.launcher import report

FRAME = {"file": "/x/lesson.py", "line": 4, "name": "mean", "text": "return total / n", "label": "cell 7"}
INSIDE = {
    "file": "/x/site-packages/numpy/core.py",
    "line": 9,
    "name": "divide",
    "text": "...",
    "label": "core.py",
}
COMPILED = {
    "file": "src/Comm.pyx",
    "line": 99,
    "name": "mpi4py.MPI.Comm.Bcast",
    "text": "",
    "label": "Comm.pyx",
}

GENERATED = {"file": "<string>", "line": 7, "name": "__init__", "text": "", "label": "<string>"}  # of a dataclass


def where(call=None, number=0, inside=True, count=None, dtype=None, peer=None, history=None, progress=(0, 0)):
    return {
        "call": call, "calls": number, "inside": inside, "numbered": bool(number), "count": count, "dtype": dtype,
        "peer": peer, "seconds": 0.31, "progress": list(progress),
        "history": history or ({str(number): [call, dtype, count]} if number else {}),
    }  # fmt: skip


def raised(error="ValueError", message="no", frames=(FRAME,), seconds=0.4, **more):
    return {
        "state": "raised", "error": error, "message": message, "frames": list(frames), "seconds": seconds, **more,
    }  # fmt: skip


def waiting(*args, **kwargs):
    return {"state": "stopped", "frames": [FRAME], "where": where(*args, **kwargs)}


def told(ranks, status="failed", kind="rank failed", path="/runs/r", **cause):
    value = {"status": status, "cause": {"kind": kind, **cause}, "seconds": 2.0, "ranks": ranks}
    return report.text({"program": "mean", "path": path}, value)


def test_one_rank_raised_and_the_others_waited():
    ranks = [
        waiting("Allreduce", 4),
        waiting("Allreduce", 4),
        raised(message="a\nb"),
        waiting("Allreduce", 4),
    ]
    assert told(ranks).splitlines() == [
        "failed after 0.4 s: rank 2 raised ValueError: a ...",
        "    cell 7, line 4, in mean:  return total / n",
        "ranks 0, 1 and 3 were waiting in Allreduce, their 4th collective, for 0.3 s, until the run was ended"
        "  (cell 7, line 4, in mean:  return total / n)",
        "all ranks stopped; output of rank 2: run.log(2); everything: /runs/r",
    ]


def test_the_first_that_failed_is_told_first_and_no_failure_twice():
    ranks = [raised(seconds=0.5), raised(error="KeyError", message="'k'", seconds=0.1), raised(seconds=0.3)]
    said = told(ranks)
    assert said.startswith("failed after 0.1 s: rank 1 raised KeyError: 'k'\n")
    assert said.count("raised ValueError: no") == 1 and "\nranks 0 and 2 raised ValueError: no\n" in said
    assert told(ranks[::2]).count("raised") == 1


@pytest.mark.parametrize(
    ("n", "words"),
    [(1, "rank 0 was waiting in Barrier, its 1st"), (2, "ranks 0 and 1 were waiting in Barrier, their 1st"),
     (5, "ranks 0 to 4 were waiting")],
)  # fmt: skip
def test_singular_and_plural(n, words):
    said = told([waiting("Barrier", 1)] * n, "timeout", "timeout", limit=3)
    assert words in said and said.startswith(
        f"timeout: mean on {n} rank{'s' * (n > 1)} was not done after 3 s\n"
    )


@pytest.mark.parametrize(("n", "words"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"),
                                          (12, "12th"), (21, "21st"), (113, "113th")])  # fmt: skip
def test_ordinals(n, words):
    assert report._nth(n) == words


def test_peers_and_communicators_without_numbers():
    ranks = [waiting("recv", peer=1), waiting("Barrier"), waiting(None, inside=False, progress=(3, 8))]
    said = told(ranks, "interrupted", "interrupted")
    assert "rank 0 was waiting in recv with rank 1, for 0.3 s" in said
    assert "rank 1 was waiting in Barrier, for 0.3 s, until the run was ended" in said
    assert "rank 2 was not in an MPI call, 3 of 8 done" in said


def test_a_run_that_goes_on_has_not_been_ended():
    said = told([waiting("Barrier", 1)], "running")
    assert said.splitlines()[1].startswith(
        "rank 0 was waiting in Barrier, its 1st collective, for 0.3 s  (cell 7"
    )


@pytest.mark.parametrize(
    ("kinds", "differ"),
    [
        ([("Bcast", 4, "int32"), ("Bcast", 4, "int32")], False),
        ([("Bcast", 4, "int32"), ("Bcast", 5, "int32")], True),
        ([("Bcast", 4, "int32"), ("Bcast", 4, "float32")], True),
        ([("Bcast", 4, "int32"), ("Reduce", 4, "int32")], True),
        ([("Gatherv", 4, "int32"), ("Gatherv", 5, "int32")], False),
        ([("Allgather", None, None), ("Allgather", 4, "int32")], False),
        ([("bcast", None, None), ("bcast", None, None)], False),
    ],
)
def test_only_what_must_agree_is_compared(kinds, differ):
    ranks = [waiting(name, 1, count=count, dtype=dtype) for name, count, dtype in kinds]
    assert ("the ranks disagree about their 1st collective: rank 0 called" in told(ranks)) == differ


def test_the_first_difference_is_told_although_one_rank_went_on():
    ahead = {"1": ["Bcast", "int32", 1], "2": ["Barrier", None, None]}
    behind = {"1": ["Bcast", "int32", 4]}
    ranks = [waiting("Barrier", 2, history=ahead), raised(where=where("Bcast", 1, False, history=behind))]
    words = "their 1st collective: rank 0 called Bcast with 1 element of int32; rank 1 called Bcast with 4 elements"
    assert words in told(ranks)


def test_only_the_learners_lines_are_shown_and_repetitions_once():
    lines = told([raised(frames=[FRAME, INSIDE])]).splitlines()
    assert lines[1] == "    cell 7, line 4, in mean:  return total / n"
    assert lines[2] == "    which called core.py, line 9, in divide:  ..."
    assert "pyx" not in told([raised(frames=[FRAME, COMPILED])])
    stopped = {"state": "stopped", "frames": [FRAME, GENERATED], "where": where(inside=False)}
    assert "\nrank 0 was not in an MPI call  (cell 7, line 4, in mean:  return total / n)\n" in told([stopped])
    assert "    cell 7, line 4, in mean:  return total / n  (60 times)" in told([raised(frames=[FRAME] * 60)])
    many = [{**FRAME, "line": n} for n in range(50)]
    assert told([raised(frames=many)]).count("cell 7, line") == 6
    assert told([raised(frames=[])]).count("\n") == 1


ENDS = {
    "left": ({"code": 3}, "rank 0 left by sys.exit(3)"),
    "exited": ({"code": 5}, "rank 0 ended without returning, with exit code 5"),
    "killed": ({"signal": 15}, "rank 0 was killed by SIGTERM (signal 15)"),
    "killed for memory": ({"signal": 9}, "killed by SIGKILL (signal 9), as the kernel does when memory runs out"),
    "killed for a full disk": ({"signal": 7}, "killed by SIGBUS (signal 7), as the kernel does when /dev/shm"),
    "killed oddly": ({"signal": 99}, "rank 0 was killed by signal 99"),
    "lost": ({}, "rank 0 was lost"),
    "aborted": ({"message": "Fatal error: x, error stack:\nmore"}, "was aborted by MPI: Fatal error: x ..."),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_other_ends_and_the_last_lines(end):
    more, words = ENDS[end]
    rank = {"state": end.split()[0], "seconds": 0.1, "tail": ["step 1", "step {2}"], **more}
    said = told([rank, {"state": "returned", "where": where("Barrier", 3, False)}, waiting("Barrier", 4)])
    assert (
        words in said.splitlines()[0] and "    it printed last:\n        step 1\n        step {2}\n" in said
    )
    assert "rank 1 returned after 3 collective calls" in said


CAUSES = {
    "interrupted": "was interrupted after 2.0 s",
    "stopped": "was stopped with its ranks after 2.0 s",
    "notebook gone": "because the notebook process went away",
    "supervisor gone": "the supervisor of the ranks was killed",
    "no word": "or the notebook before it had handed the run over",
    "slow start": "not ready within 30 s; try again",
    "no GPU": "rank 1 found no GPU that answers (no driver)",
    "other MPI": "did not start: rank 1 takes itself for the only one",
    "not started": "did not start: the run before it ended the ranks",
    "no launcher": "did not start: no driver",
    "launcher exit": "mpiexec ended before them (exit code 1)",
    "too much output": "after 2.0 s: rank 1 printed more than 3 MiB; the variable COLLECTLAB_LOG_MIB",
    "unwritten": "its status could not be written: no driver",
}


@pytest.mark.parametrize("kind", CAUSES)
def test_other_causes(kind):
    more = {"limit": 30, "rank": 1, "why": "no driver", "code": 1, "who": [1], "most": 3 << 20}
    said = told([{"state": "not started"}] * 2, kind=kind, **more)
    assert CAUSES[kind] in said.splitlines()[0] and "ranks 0 and 1 did not start" in said
    assert "daemon of mpiexec" in told([{"state": "not started"}], kind="launcher exit", code=None)
    with_output = told([{"state": "not started"}], kind=kind, output="a\nb\n", **more)
    assert ("the last output of the launcher:\n    a\n    b" in with_output) == (
        kind in ("launcher exit", "slow start", "supervisor gone")
    )


def test_what_may_be_at_fault_is_said_with_its_cure_and_only_when_ranks_did_not_start():
    found = [["/dev/shm: 1 MiB are free", "give it more"], ["TMPDIR: /x is too long", "take a short one"]]
    assert told([{"state": "not started"}], kind="slow start", limit=3, cures=found).splitlines()[-5:] == [
        "at fault may be /dev/shm: 1 MiB are free", "    cure: give it more",
        "at fault may be TMPDIR: /x is too long", "    cure: take a short one",
        "`collectlab doctor` looks at all that ranks need here",
    ]  # fmt: skip
    assert told([{"state": "not started"}], kind="slow start", limit=3, cures=[]).endswith(
        "that ranks need here"
    )
    assert "doctor" not in told([raised()])


@pytest.mark.parametrize(
    ("hosts", "cores", "lines"),
    [("aaaa", [2] * 4, ["4 ranks on 2 cores: they share"]), ("aaaa", [4] * 4, []),
     ("aa", [1, 1], ["2 ranks on 1 core: they"]), ("aab", [1, 1, 1], ["2 ranks on 1 core of a: they share"]),
     ("a", [None], [])],
)  # fmt: skip
def test_ranks_that_share_cores_are_told_so_once(hosts, cores, lines):
    ranks = [{"state": "returned"}] * len(hosts)
    value = {"status": "done", "cause": None, "seconds": 1.0, "ranks": ranks, "cores": cores}
    said = report.text({"program": "mean"}, {**value, "places": [{"host": host} for host in hosts]})
    assert said.count("share") == len(lines) and all(line in said for line in lines)
    assert "share" not in told([raised()])


def test_what_is_left_alive_is_said():
    assert "still alive after the kill: process 5;" in told([raised()], left=[5])
    assert "still alive after the kill: processes 5, 7 and 9" in told([raised()], left=[5, 7, 9])
    assert "all ranks stopped" not in told([raised()], left=[5])


def test_any_combination_of_ends_can_be_told():
    ends = [
        raised(), waiting("Barrier", 1), waiting("recv", peer=0), {"state": "stopped"}, {"state": "not started"},
        {"state": "returned"}, {"state": "lost", "seconds": 0.0}, {"state": "killed", "signal": 11, "seconds": 1.0},
    ]  # fmt: skip
    for ranks, kind in itertools.product(
        itertools.product(ends, repeat=3), ("rank failed", "timeout", "no start")
    ):
        said = told(list(ranks), kind=kind, limit=1)
        assert all(said.count(f"rank {i}") + said.count("ranks ") for i in range(3))
        assert "{" not in said and "None" not in said


def test_a_supervisor_that_failed_is_not_called_killed():
    output = "Traceback (most recent call last):\n  ...\nKeyError: 'op'\n"
    said = told([{"state": "stopped"}], kind="supervisor gone", output=output)
    assert "the supervisor of the ranks failed: a fault of collectlab" in said.splitlines()[0]
    assert "KeyError: 'op'" in said and "was killed" not in said


def test_a_supervisor_that_did_not_answer_is_not_said_to_have_been_killed_by_others():
    said = told([{"state": "stopped"}], kind="supervisor gone", mute=True)
    assert "the supervisor of the ranks did not answer" in said.splitlines()[0] and "was killed" not in said


def test_what_a_program_says_does_not_command_the_terminal():
    painted = "\x1b[2Jno \x1b]0;title\x07luck\x9b1m\r\tat\ball\nmore"
    lines = told([raised(message=painted) | {"tail": ["\x1b[31mred"]}], output="\x1b[1mbold").splitlines()
    assert lines[0] == "failed after 0.4 s: rank 0 raised ValueError: no luck�1m atall ..."
    assert "        red" in lines and all(line.isprintable() for line in lines)
    assert told([waiting("Barrier", 1)], kind="launcher exit", code=1, output="\x1b[1mbold\x08").endswith("    bold")

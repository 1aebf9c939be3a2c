"""What the launcher finds around it: variables, directories, disks, other launchers, other runs."""

import errno
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time

import cloudpickle
import numpy as np
import pytest

import collectlab as cl
from collectlab.launcher import rundir

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the environment of Open MPI has no pytest

PROGRAM = """
import collectlab as cl
run = cl.run(lambda ctx: ctx.comm.allreduce(ctx.rank), ranks=3, device="cpu", timeout=20)
print(run.results, run.report() if not run.ok else "")
"""


def fine(ctx):
    return ctx.comm.allreduce(ctx.rank)


def said_by(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    return done.stdout + done.stderr


CONFUSING = {
    "Slurm": {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "x", "SLURM_PROCID": "3", "SLURM_JOB_NODELIST": "nowhere[1-9]"},
    "PMI": {"PMI_RANK": "5", "PMI_SIZE": "9", "PMI_FD": "99", "PMI_PORT": "no:1", "PMIX_RANK": "x", "PMI_ID": "4"},
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "x", "OMPI_MCA_btl": "none", "PRTE_MCA_x": "y", "OMPI_UNIVERSE_SIZE": "0"},
    "Hydra": {"HYDRA_HOST_FILE": "/nowhere", "HYDI_CONTROL_FD": "99", "HYDRA_LAUNCHER": "none",
              "MPIR_CVAR_X": "1", "MPI_LOCALRANKID": "8", "MPIEXEC_TIMEOUT": "1", "MPIEXEC_PORT_RANGE": "1:1"},
    "other schedulers": {"PBS_NODEFILE": "/nowhere", "LSB_HOSTS": "x y", "FLUX_URI": "x", "PALS_RANKID": "3"},
    "no home": {"HOME": None, "XDG_STATE_HOME": None},
    "home that cannot be written": {"HOME": "/proc", "XDG_STATE_HOME": None},
    "TMPDIR missing": {"TMPDIR": "{tmp}/at/all"},  # Open MPI makes it
    "TMPDIR long": {"TMPDIR": "/tmp/" + "long" * 60},
    "Python's": {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONINSPECT": "1", "PYTHONUNBUFFERED": "1"},
    "no locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
}  # fmt: skip


@pytest.mark.parametrize("case", CONFUSING)
def test_inherited_variables_do_not_confuse_the_ranks(case, monkeypatch, tmp_path, each_site):
    for name, value in CONFUSING[case].items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value.format(tmp=tmp_path))
    run = cl.run(fine, ranks=3, device="cpu", timeout=20)
    assert run.results == [3] * 3, run.report()


def test_ranks_are_bound_to_no_core_and_have_one_thread_of_linear_algebra(each_site, monkeypatch):
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    for name in names:
        monkeypatch.delenv(name, raising=False)

    def program(ctx):
        return os.sched_getaffinity(0), [os.environ[name] for name in names]

    here = os.sched_getaffinity(0)
    assert cl.run(program, ranks=3, device="cpu").results == [(here, ["1"] * 3)] * 3
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert cl.run(program, ranks=1, device="cpu").results == [(here, ["2", "1", "1"])]


def test_a_rank_that_waits_leaves_its_core_to_one_that_works(each_site):
    def program(ctx, core):
        os.sched_setaffinity(0, {core})
        ctx.comm.Barrier()
        before = time.process_time()
        while ctx.rank == 0 and time.process_time() - before < 0.5:
            pass
        ctx.comm.Barrier()
        return time.process_time() - before

    working, *waiting = cl.run(program, min(os.sched_getaffinity(0)), ranks=3, device="cpu").results
    assert sum(waiting) < working / 2, "two that spin would have used twice as much as the one that works"


def test_more_ranks_than_cores(each_site):
    cores = len(os.sched_getaffinity(0))
    n = 2 * cores + 1
    run = cl.run(fine, ranks=n, device="cpu")
    assert run.results == [n * (n - 1) // 2] * n and run.rank_map.nranks == n
    assert run.report().count(f"{n} ranks on {cores} core{'s' * (cores > 1)}: they share") == 1


def test_programs_without_a_file(each_site):
    for command, text in (["-c", PROGRAM], None), (["-"], PROGRAM):
        assert said_by([sys.executable, *command], input=text) == "[3, 3, 3] \n"


def test_under_mpiexec_and_inside_a_rank():
    mpiexec = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    assert said_by([mpiexec, "-n", "1", sys.executable, "-c", PROGRAM]).strip() == "[3, 3, 3]"

    def outer(ctx):
        import collectlab

        return collectlab.run(lambda inner: inner.comm.allreduce(inner.rank), ranks=2, device="cpu").results

    assert cl.run(outer, ranks=2, device="cpu").results == [[1, 1], [1, 1]]


def test_ranks_of_a_rank_end_with_it(mark, each_site):
    def outer(ctx):
        import collectlab

        collectlab.run(lambda inner: time.sleep(600), ranks=2, device="cpu")

    assert cl.run(outer, ranks=1, device="cpu", timeout=2).status == "timeout"
    mark.gone()


def test_the_working_directory_was_deleted(tmp_path, each_site):
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"import os; os.rmdir({str(gone)!r})\n" + PROGRAM
    assert said_by([sys.executable, "-c", code], cwd=gone) == "[3, 3, 3] \n"


def test_a_path_with_spaces_and_letters_beyond_ascii(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLECTLAB_RUNS", str(tmp_path / "Läufe von heute"))
    run = cl.run(fine, ranks=2, device="cpu")
    assert run.results == [1, 1] and cl.attach(run.path).results == [1, 1]


def test_a_relative_place_for_runs_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLLECTLAB_RUNS", "here")
    run = cl.run(fine, ranks=1, device="cpu")
    monkeypatch.chdir("/")
    assert run.path.startswith(str(tmp_path / "here")) and run.results == [0]


def test_where_runs_lie_without_a_home(tmp_path, monkeypatch):
    monkeypatch.delenv("COLLECTLAB_RUNS")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert rundir.home() == str(tmp_path / "state" / "collectlab" / "runs")
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/none")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "elsewhere"))
    assert rundir.home() == str(tmp_path / "elsewhere" / f"collectlab-runs-{os.getuid()}")
    monkeypatch.setenv("COLLECTLAB_RUNS", "/proc/none")
    with pytest.raises(OSError, match="COLLECTLAB_RUNS"):
        rundir.home()


IN_A_CONTAINER = """
import ctypes, struct
import collectlab as cl
from collectlab import doctor

PIDFD_GETFD, FORBIDDEN, ALLOWED = 438, 0x00050001, 0x7FFF0000
filter = [(0x20, 0, 0, 0), (0x15, 0, 1, PIDFD_GETFD), (0x06, 0, 0, FORBIDDEN), (0x06, 0, 0, ALLOWED)]  # seccomp(2)
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in filter))
program = struct.pack("HxxxxxxP", len(filter), ctypes.addressof(code))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
run = cl.run(lambda ctx: ctx.comm.allreduce(ctx.rank), ranks=3, device="cpu", timeout=20)
print(run.results, run.report() if not run.ok else "")
print(doctor.open_mpi().found)
"""


def test_in_a_container_that_forbids_to_take_up_sockets_of_others(each_site):
    results, doctor = said_by([sys.executable, "-c", IN_A_CONTAINER]).splitlines()[:2]
    assert results == "[3, 3, 3] "
    assert each_site != "openmpi" or doctor.endswith("every network, as this system lets nobody confine it")


def test_run_directories_are_private():
    run = cl.run(fine, ranks=1, device="cpu")
    for path in (run.path, os.path.dirname(run.path)):
        assert os.stat(path).st_mode & 0o777 == 0o700


@pytest.mark.parametrize("broken", ["program", "spec.json"])
def test_a_full_disk_raises_and_leaves_nothing(broken, monkeypatch, tmp_path, mark):
    opened = os.open if broken == "program" else open

    def full(path, *args, **kwargs):
        if broken in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(rundir if broken == "spec.json" else os, "open", full, raising=False)
    with pytest.raises(OSError, match=f"No space left.*COLLECTLAB_RUNS: '{tmp_path}/runs/.*{broken}'"):
        cl.run(fine, ranks=2, device="cpu")
    assert not os.listdir(tmp_path / "runs")
    mark.gone()


@pytest.mark.needs("mounts")
def test_a_really_full_disk_is_told(tmp_path, each_site):
    (tmp_path / "disk").mkdir()
    code = """
import os, numpy as np, collectlab as cl
def big(ctx):
    print("started")
    return np.zeros(1 << 19)
run = cl.run(big, ranks=2, device="cpu", timeout=20)
print(run.status, run.results, run.report())
try:
    cl.run(big, np.zeros(1 << 20), ranks=2, device="cpu")
except OSError as error:
    print(error)
(kept,) = os.listdir(os.environ["COLLECTLAB_RUNS"])
print(*sorted(os.listdir(os.path.join(os.environ["COLLECTLAB_RUNS"], kept))))
"""
    script = 'mount -t tmpfs -o size=5m none "$1" && shift && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(tmp_path / "disk")]
    where = {**os.environ, "COLLECTLAB_RUNS": str(tmp_path / "disk")}
    said = said_by([*command, sys.executable, "-c", code], env=where)
    full = r"\[Errno 28\] No space left on device; make room there, or name another place for runs in .*RUNS: '"
    assert re.search(rf"(?s)^failed .*: {full}{tmp_path}/disk/.*/result\.\d'", said), said
    assert re.search(rf"(?m)^{full}{tmp_path}/disk/.*/program'$", said), said
    names = next(line for line in said.splitlines() if "spec.json" in line).split()
    assert {"spec.json", "status.json", "program"} <= {*names} and len([n for n in names if "result" in n]) < 2, said


def finished(tmp_path, program=None, **changes):
    """A copy of the directory of a finished run."""
    run = cl.run(program or fine, ranks=2, device="cpu")
    path = str(tmp_path / "copy")
    shutil.copytree(run.path, path)
    for name, text in changes.items():
        file = os.path.join(path, name.replace("_", "."))
        os.unlink(file) if text is None else open(file, "w").write(text)
    return path


def spec_with(path, **changes):
    with open(os.path.join(path, "spec.json")) as f:
        found = {**json.load(f), **changes}
    with open(os.path.join(path, "spec.json"), "w") as f:
        json.dump({key: value for key, value in found.items() if value is not None}, f)


def test_attach_says_what_is_there_instead(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    path = finished(tmp_path)
    cases = [
        (5, TypeError, "path=5"),
        (tmp_path / "none", FileNotFoundError, "no such directory"),
        (tmp_path / "file", FileNotFoundError, "no such directory"),
        (tmp_path / "empty", ValueError, "holds no spec.json"),
    ]
    if os.getuid() == 0:
        shutil.copytree(path, tmp_path / "theirs")
        os.chown(tmp_path / "theirs", 65534, 65534)
        cases.append((tmp_path / "theirs", PermissionError, "another user"))
    for wrong, error, words in cases:
        with pytest.raises(error, match=words):
            cl.attach(wrong)
    os.chmod(path, 0o777)
    with pytest.raises(PermissionError, match="everybody may write"):
        cl.attach(path)
    os.chmod(path, 0o700)
    whole = open(os.path.join(path, "spec.json")).read()
    for changes, words in (
        ({"version": 99}, "reads up to 1"), ({"version": None}, "names no version"),
        ({"tag": None}, "lacks tag"), ({"nranks": None}, "lacks nranks"),
    ):  # fmt: skip
        open(os.path.join(path, "spec.json"), "w").write(whole)
        spec_with(path, **changes)
        with pytest.raises(ValueError, match=words):
            cl.attach(path)
    for text in (whole[:40], "[]", ""):
        open(os.path.join(path, "spec.json"), "w").write(text)
        with pytest.raises(ValueError, match=r"only in part|not a run"):
            cl.attach(path)


def test_attach_to_half_a_run(tmp_path):
    path = finished(tmp_path, status_json=None)
    run = cl.attach(path)
    assert run.status == "failed" and "supervisor of the ranks was killed" in run.report()
    open(os.path.join(path, "status.json"), "w").write('{"status": "do')
    with pytest.raises(ValueError, match=r"status.json is not as it was written, or was written only in part"):
        cl.attach(path)


WRONG = {
    "spec.json": {"nranks": [True, "2", 2.0], "program": [5, None], "tag": [[]], "created": ["now"]},
    "status.json": {
        "status": [5, "fine"], "cause": ["killed", []], "seconds": ["long", [1.0]], "places": [5, [None]],
        "ranks": [5, [], [{}, {}], ["state", "state"], [{"state": 5}] * 2, [None, None]],
    },
}  # fmt: skip


def test_attach_to_a_run_that_says_what_cannot_be(tmp_path):
    path = finished(tmp_path)
    for name, wrong in WRONG.items():
        file = tmp_path / "copy" / name
        text = file.read_text()
        for key, values in wrong.items():
            for value in values:
                file.write_text(json.dumps({**json.loads(text), key: value}))
                with pytest.raises(ValueError, match=f"{name} is not as it was written"):
                    cl.attach(path)
        file.write_text(text)
    assert cl.attach(path).ok


def test_a_truncated_result_is_an_error_and_a_missing_one_too(tmp_path):
    path = finished(tmp_path, lambda ctx: np.arange(4))
    with open(os.path.join(path, "result.1"), "r+b") as f:
        f.truncate(os.path.getsize(f.name) - 1)
    with pytest.raises(ValueError, match=r"result.1 was written only in part"):
        cl.attach(path).results  # noqa: B018
    whole = open(os.path.join(path, "result.0"), "rb").read()
    for head, words in (
        ((len(whole), 1), "only in part"), ((1 << 62, 1), "only in part"), ((9, 1 << 60), "only in part"),
        ((9, 1), "not as it was written: pickle data was truncated"), ((9, 0), "not as it was written"),
    ):  # fmt: skip
        open(os.path.join(path, "result.1"), "wb").write(whole[:8] + struct.pack("<QQ", *head) + whole[24:])
        with pytest.raises(ValueError, match=f"result.1 (was written|is) {words}"):
            cl.attach(path).results  # noqa: B018
    os.unlink(os.path.join(path, "result.1"))
    with pytest.raises(FileNotFoundError, match="result of rank 1 is no longer"):
        cl.attach(path).results  # noqa: B018
    os.unlink(os.path.join(path, "log.1"))
    assert cl.attach(path).log(1) == ""
    with pytest.raises(IndexError, match="ranks 0 to 1"):
        cl.attach(path).log(2)


@pytest.mark.parametrize("length", (0, 7, 30, -1))
def test_the_report_does_not_depend_on_what_a_rank_noted_as_it_was_ended(length, tmp_path):
    def program(ctx):
        ctx.window("x", (4,), "float64").store(np.ones(4), slice(None))
        assert ctx.rank, "not here"

    path = finished(tmp_path, program)
    data = (tmp_path / "copy" / "events.0").read_bytes()
    for name in ("events.0", "clock.0", "waits.1"):
        (tmp_path / "copy" / name).write_bytes(data[:length])
    run = cl.attach(path)
    assert "rank 0 raised AssertionError: not here" in run.report() and run.traffic.tolist() == [[0, 0], [0, 0]]


def test_pruning_keeps_the_newest_the_used_and_the_running(tmp_path, monkeypatch, mark):
    monkeypatch.setattr(rundir, "KEEP", 2)
    old = time.time() - 2 * 3600
    mine, used, others, young = [rundir.create(name) for name in ("mine", "used", "others", "young")]
    with cl.launch(1, device="cpu") as ranks:
        going = ranks.submit(lambda ctx: time.sleep(60))
        newest = [rundir.create("newest") for _ in range(2)]
        unrelated = tmp_path / "runs" / "letters"
        unrelated.mkdir()
        for path in (mine, used, others, going.path, str(unrelated)):
            os.utime(path, (old, old))
        rundir.prune({used}, {mine})
        left = {path for path in map(str, (tmp_path / "runs").iterdir())}
        assert left == {used, young, going.path, *newest, str(unrelated)}
        ranks.interrupt()
        os.utime(going.path, (old, old))
        rundir.prune()
        assert not os.path.exists(going.path), "over, and an hour old"


def test_too_many_bytes_are_pruned_too(monkeypatch):
    monkeypatch.setattr(rundir, "KEEP_BYTES", 100)
    paths = [rundir.create(name) for name in ("first", "second")]
    for age, path in enumerate(reversed(paths)):
        open(os.path.join(path, "result.0"), "w").write("x" * 60)
        os.utime(path, (1e9 - age, 1e9 - age))
    rundir.prune()
    assert [os.path.exists(path) for path in paths] == [False, True]


def test_patience_may_last_for_years(monkeypatch, mark):
    monkeypatch.setenv("COLLECTLAB_START_SECONDS", "1e9")
    run = cl.run(fine, ranks=2, device="cpu", timeout=1e300)
    assert run.ok, run.report()


def test_a_start_that_takes_too_long_ends_with_a_hint(monkeypatch, mark):
    monkeypatch.setenv("COLLECTLAB_START_SECONDS", "0.05")
    run = cl.run(fine, ranks=4, device="cpu")
    assert run.status == "failed" and "COLLECTLAB_START_SECONDS" in run.report()
    mark.gone()
    monkeypatch.setenv("COLLECTLAB_START_SECONDS", "soon")
    with pytest.raises(ValueError, match="COLLECTLAB_START_SECONDS is 'soon'"):
        cl.run(fine, ranks=4, device="cpu")
    monkeypatch.delenv("COLLECTLAB_START_SECONDS")
    monkeypatch.setenv("COLLECTLAB_LOG_MIB", "0")
    with pytest.raises(ValueError, match="COLLECTLAB_LOG_MIB is '0'; MiB are accepted, more than 0"):
        cl.run(fine, ranks=4, device="cpu")


def test_ranks_that_cannot_start_say_why(monkeypatch, tmp_path, mark):
    (tmp_path / "mpi4py.py").write_text("raise ImportError('no libmpi here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = cl.run(fine, ranks=2, device="cpu")
    assert run.status == "failed" and "did not start: rank" in run.report()
    assert "ImportError: no libmpi here" in run.report()
    with pytest.raises(RuntimeError, match="no libmpi here"):
        cl.launch(2, device="cpu")

"""Checkpoints: written by some ranks and read by others, and refused when they are damaged."""

import json
import os
import re
import resource
import shutil

import numpy as np
import pytest
from gang import Alone, gangs, read, vector, write

import collectlab as cl
from collectlab import sharding
from collectlab.sharding import Adam, Buckets, Network, Sgd, Task, checkpoint
from collectlab.sharding import manifest as manifests
from collectlab.sharding.checkpoint import CheckpointError

SIZES = (1, 2, 3, 4, 6, 8)
BEFORE, AFTER = 6, 5  # steps
TASKS = {"adam": Task(), "sgd": Task(Network(5, 9, 4), Sgd())}


@pytest.fixture(scope="module")
def ranks():
    with gangs() as started:
        yield started


# training goes on


def strategies_of(nranks):
    """Which strategies write a checkpoint on so many ranks: all on three, one on others."""
    names = [*sharding.STRATEGIES]
    return names if nranks == 3 else [names[nranks % 3]]


def train_and_save(ctx, folder):
    for name, task in TASKS.items():
        for strategy in strategies_of(ctx.nranks):
            sharding.train(ctx, task, strategy, BEFORE, save_to=f"{folder}/{name}-{strategy}-{ctx.nranks}")


def go_on(ctx, folder, sources):
    """The losses after a restart from checkpoints of other numbers of ranks; by the next strategy, too."""
    names, found = [*sharding.STRATEGIES], {}
    for nranks in sources:
        for turn, strategy in enumerate(strategies_of(nranks)):
            for task in TASKS:
                by = strategy if nranks == ctx.nranks else names[(turn + nranks + ctx.nranks) % 3]
                path = f"{folder}/{task}-{strategy}-{nranks}"
                found[task, strategy, nranks] = sharding.train(ctx, TASKS[task], by, AFTER, start_from=path)
    return found


def straight_on(ctx):
    return {
        (name, strategy): sharding.train(ctx, task, strategy, BEFORE + AFTER)
        for name, task in TASKS.items()
        for strategy in strategies_of(ctx.nranks)
    }


@pytest.fixture(scope="module")
def saved(ranks, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("checkpoints"))
    for nranks in SIZES:
        ranks.run(nranks, train_and_save, folder)
    return folder


@pytest.mark.parametrize("nranks", SIZES)
def test_training_goes_on_from_any_number_of_ranks_and_any_strategy(ranks, saved, nranks):
    curves = {name: sharding.reference(task, BEFORE + AFTER)[0][BEFORE:] for name, task in TASKS.items()}
    for found in ranks.run(nranks, go_on, saved, SIZES):
        for (name, strategy, source), trained in found.items():
            about = f"{name}, {strategy} on {source} ranks, then {nranks}"
            np.testing.assert_allclose(trained["losses"], curves[name], rtol=1e-9, err_msg=about)


@pytest.mark.parametrize("nranks", SIZES)
def test_a_restart_at_the_same_size_is_equal_to_the_last_bit(ranks, saved, nranks):
    whole = ranks.run(nranks, straight_on)[0]
    for (name, strategy, _), trained in ranks.run(nranks, go_on, saved, [nranks])[0].items():
        assert trained["losses"].tobytes() == whole[name, strategy]["losses"][BEFORE:].tobytes()
        assert trained["params"].tobytes() == whole[name, strategy]["params"].tobytes()


def own_slice(ctx, folder, lengths):
    buckets = Buckets(lengths, ctx.nranks)
    return ctx.device, checkpoint.load(ctx, folder, buckets).shard["x"]


def test_after_a_reorder_every_device_has_the_slice_of_its_new_rank(tmp_path):
    first = cl.layout.RankMap(["A", "B", "C"])
    cl.run(write, str(tmp_path), 1, (10,), {"x": "int64"}, ranks=3, device="cpu", rank_map=first)
    assert manifests.read(checkpoint.latest(tmp_path))["devices"] == ["A", "B", "C"]
    after = first.reorder([2, 0, 1])
    results = cl.run(own_slice, str(tmp_path), (10,), ranks=3, device="cpu", rank_map=after).results
    whole, (partition,) = vector("x", 10, "int64"), Buckets((10,), 3).partitions
    for device, held in results:
        assert held.tolist() == whole[partition.slice(after.rank_of(device))].tolist()
    assert [device for device, _ in results] == ["C", "A", "B"]


# any slices, written by anybody


DTYPES = {"x": "float64", "four": "float32", "third": "int16"}


@pytest.mark.parametrize("lengths", [(10,), (3, 8), (1, 0, 5), (0,)], ids=str)
def test_what_is_read_is_what_was_written_whoever_reads(ranks, tmp_path, lengths):
    total = sum(lengths)
    for wrote in (1, 3, 4):
        folder = str(tmp_path / str(wrote))
        paths = ranks.run(wrote, write, folder, 7, lengths, DTYPES)
        assert set(paths) == {os.path.join(folder, "step-00000007")} == {checkpoint.latest(folder)}
        for reads in (1, 3, 4):
            for cut in (lengths, (total,)):
                for rank, (step, shard) in enumerate(ranks.run(reads, read, folder, cut)):
                    assert step == 7
                    for name, dtype in DTYPES.items():
                        want = Buckets(cut, reads).shard(vector(name, total, dtype), rank)
                        assert shard[name].dtype == dtype and shard[name].tolist() == want.tolist()


def test_blocks_are_read_in_parts(monkeypatch, tmp_path):
    for module in (checkpoint, manifests):
        monkeypatch.setattr(module, "BLOCK", 4)
    path = write(Alone(), str(tmp_path), 1, (11, 8), {"x": "int64"})
    assert len(manifests.read(path)["shards"][0]["tensors"]["x"]["checksums"]) == 5
    for start in range(19):
        for stop in range(start, 20):
            for more in ((), (slice(2, 9),)):
                slices = (slice(start, stop), *more)
                want = np.concatenate([vector("x", 19, "int64")[part] for part in slices])
                assert checkpoint.read(path, slices)["x"].tolist() == want.tolist()


def reshard(ctx, source, folder, lengths):
    return checkpoint.reshard(ctx, source, folder, Buckets(lengths, ctx.nranks))


def test_a_checkpoint_is_resharded_from_files_to_files(ranks, tmp_path):
    one, three = str(tmp_path / "one"), str(tmp_path / "three")
    source = ranks.run(4, write, one, 9, (5, 6), DTYPES)[0]
    (path,) = set(ranks.run(3, reshard, source, three, (11,)))
    found = manifests.read(path)
    assert (found["nranks"], found["step"]) == (3, 9)
    assert [entry["slices"] for entry in found["shards"]] == [[[0, 4]], [[4, 4]], [[8, 3]]]
    for name, array in checkpoint.read(path, (slice(0, 11),)).items():
        assert array.tolist() == vector(name, 11, DTYPES[name]).tolist()


# what is refused


FOUR = 4  # ranks, which own 0:3, 3:6, 6:8 and 8:10 of ten elements


@pytest.fixture(scope="module")
def good(ranks, tmp_path_factory):
    return ranks.run(FOUR, write, str(tmp_path_factory.mktemp("good")), 3, (10,), DTYPES)[0]


@pytest.fixture
def copy(good, tmp_path):
    return shutil.copytree(good, tmp_path / "step-00000003")


def file_of(path, rank):
    return path / f"rank-{rank:04d}.safetensors"


def missing(path):
    file_of(path, 2).unlink()


def short(path):
    data = file_of(path, 1).read_bytes()
    file_of(path, 1).write_bytes(data[:-1])


def long(path):
    with open(file_of(path, 3), "ab") as file:
        file.write(b"\0")


def empty(path):
    file_of(path, 0).write_bytes(b"")


def swapped(path):
    one, other = file_of(path, 0), file_of(path, 1)
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


def from_another(path):
    """The shard of a rank that wrote the same slices at another time."""
    again = write_alone(path.parent / "again", FOUR)
    shutil.copy(file_of(again, 2), file_of(path, 2))


def manifest_of_another(path):
    """The manifest of ranks that wrote the same slices at another time."""
    shutil.copy(write_alone(path.parent / "again", FOUR) / "manifest.json", path)


def write_alone(folder, nranks):
    """A checkpoint by ranks that take turns in this process."""
    entries = []

    class Comm:
        bcast = staticmethod(lambda value: value)
        gather = staticmethod(lambda value: entries.append(value) or entries)

    for rank in reversed(range(nranks)):  # rank 0 writes the manifest, and is the last
        ctx = Alone()
        ctx.rank, ctx.nranks, ctx.comm = rank, nranks, Comm
        if rank == nranks - 1:
            os.makedirs(folder / "step-00000003.partial")
        buckets = Buckets((10,), nranks)
        shard = {name: buckets.shard(vector(name, 10, dtype), rank) for name, dtype in DTYPES.items()}
        partial = str(folder / "step-00000003.partial")
        entries.insert(0, (checkpoint._write_shard(partial, "another-writer-0", 3, rank, shard, buckets), ctx.device))
    checkpoint._finish(str(folder / "step-00000003"), "another-writer-0", 3, entries, buckets)
    return folder / "step-00000003"


def flipped(path, rank=2, at=-1):
    data = bytearray(file_of(path, rank).read_bytes())
    data[at] ^= 1
    file_of(path, rank).write_bytes(data)


def manifest_says(change):
    def damage(path):
        found = json.loads((path / "manifest.json").read_text())
        change(found, found["shards"])
        (path / "manifest.json").write_text(json.dumps(found))

    return damage


def forged(change):
    def damage(path):
        manifest_says(change)(path)
        manifest_says(lambda found, _: found.update(checksum=manifests.checksum_of(found)))(path)

    return damage


def no_manifest(path):
    (path / "manifest.json").unlink()


def half_a_manifest(path):
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text[: len(text) // 2])


def one_element_more(found, shards):
    shards[1]["slices"] = [[3, 4]]


def one_element_less(found, shards):
    shards[1]["slices"] = [[3, 2]]


def other_owners(found, shards):
    shards[0]["slices"], shards[1]["slices"] = shards[1]["slices"], shards[0]["slices"]


def a_shard_less(found, shards):
    shards.pop()


def eleven(found, shards):
    found["elements"] = 11


def step_4(found, shards):
    found["step"] = 4


def other_dtype(found, shards):
    shards[3]["tensors"]["x"]["dtype"] = "int64"


def other_devices(found, shards):
    found["devices"] = found["devices"][::-1]


def other_checksum(found, shards):
    shards[2]["tensors"]["four"]["checksums"][0] ^= 1


def a_checksum_less(found, shards):
    shards[2]["tensors"]["four"]["checksums"].pop()


def no_ranks(found, shards):
    found |= {"nranks": 0, "shards": [], "elements": 0}


def far_too_many_ranks(found, shards):
    found["nranks"] = 10**30


RANK = "the shard of rank {} \\(rank-000{}.safetensors, elements {}\\) "
REFUSED = {
    missing: RANK.format(2, 2, "6:8") + "is missing",
    short: RANK.format(1, 1, "3:6") + r"is cut short: \d+ bytes, and \d+ were written",
    long: RANK.format(3, 3, "8:10") + "is too long",
    empty: RANK.format(0, 0, "0:3") + "is cut short: 0 bytes",
    swapped: RANK.format(0, 0, "0:3") + "is another one: its header says rank 1, not 0",
    from_another: RANK.format(2, 2, "6:8") + 'is another one: its header says checkpoint "another-writer-0"',
    manifest_of_another: RANK.format(0, 0, "0:3") + 'is another one: its header .*, not "another-writer-0"',
    flipped: RANK.format(2, 2, "6:8") + "is damaged: '.*', elements 6:8, has not the checksum",
    no_manifest: "there is no manifest.json, so this is no complete checkpoint",
    half_a_manifest: "manifest.json cannot be read",
    manifest_says(one_element_more): "elements 6:7 lie in the shards of rank 1 and of rank 2",
    manifest_says(one_element_less): "elements 5:6, before rank 2's 6:8, lie in no shard",
    manifest_says(other_owners): "the shard of rank 0 .*elements 3:6.* says slices .*0, 3.*, not .*3, 3",
    manifest_says(a_shard_less): r"manifest.json says 4 ranks, and lists shards of \[0, 1, 2\]",
    manifest_says(eleven): "the shards end at element 10, and manifest.json says 11",
    manifest_says(step_4): "the shard of rank 0 .* its header says step 3, not 4",
    manifest_says(other_dtype): "the shard of rank 3 .*elements 8:10.* holds .*float64.* says .*int64",
    manifest_says(other_devices): "manifest.json is not what was written",
    manifest_says(other_checksum): "manifest.json is not what was written",
    forged(other_checksum): RANK.format(2, 2, "6:8") + "is damaged: 'four', elements 6:8, has not the checksum",
    forged(a_checksum_less): "the shard of rank 2 .*manifest.json has not 1 checksums of 'four', one a block",
    forged(no_ranks): r"manifest.json says 0 ranks, and lists shards of \[\]",
    forged(far_too_many_ranks): r"manifest.json says 10{30} ranks, and lists shards of \[0, 1, 2, 3\]",
}


def said(ctx, folder):
    try:
        read(ctx, folder, (10,))
    except CheckpointError as error:
        return str(error)


@pytest.mark.parametrize(("damage", "says"), REFUSED.items(), ids=[str(n) for n in range(len(REFUSED))])
def test_a_damaged_checkpoint_is_refused_by_every_rank_with_the_shard_and_the_slice(ranks, copy, damage, says):
    damage(copy)
    heard = ranks.run(3, said, str(copy))
    assert len(set(heard)) == 1 and heard[0], heard
    assert re.search(says, heard[0]), heard[0]
    assert "step-00000003" in heard[0]


def test_an_undamaged_copy_is_read(ranks, copy):
    assert ranks.run(3, said, str(copy)) == [None] * 3


def test_no_flipped_bit_of_a_shard_is_overlooked(copy):
    size = file_of(copy, 1).stat().st_size
    for at in range(size):
        flipped(copy, 1, at)
        with pytest.raises(CheckpointError, match=r"rank 1 .*elements 3:6"):
            checkpoint.read(copy, (slice(0, 10),))
        flipped(copy, 1, at)
    assert checkpoint.read(copy, (slice(3, 4),))["x"] == vector("x", 10)[3]


def test_no_flipped_bit_of_the_manifest_is_overlooked(copy):
    file = copy / "manifest.json"
    written = file.read_bytes()
    for at in range(len(written)):
        data = bytearray(written)
        data[at] ^= 1 << at % 8
        file.write_bytes(data)
        with pytest.raises(CheckpointError, match="step-00000003"):
            checkpoint.read(copy, (slice(0, 10),))
    file.write_bytes(written)
    assert checkpoint.read(copy, (slice(3, 4),))["x"] == vector("x", 10)[3]


def test_what_is_not_asked_for_need_not_be_whole(copy):
    flipped(copy, 2)
    assert checkpoint.read(copy, (slice(0, 6),))["x"].tolist() == vector("x", 10)[:6].tolist()


def test_other_lengths_are_refused(good, tmp_path):
    with pytest.raises(CheckpointError, match="step-00000003 has 10 elements, and the model 11"):
        read(Alone(), good, (11,))
    with pytest.raises(CheckpointError, match="no complete checkpoint in"):
        read(Alone(), str(tmp_path), (10,))
    with pytest.raises(CheckpointError, match="no complete checkpoint in"):
        read(Alone(), str(tmp_path / "nothing"), (10,))
    with pytest.raises(ValueError, match=r"save: 'x' has shape \(3,\), and rank 0 owns 4 elements"):
        checkpoint.save(Alone(), tmp_path, 1, {"x": np.zeros(3)}, Buckets((4,), 1))


def test_step_100_million_comes_after_99_999_999(tmp_path):
    for step in (100_000_000, 99_999_999):
        write(Alone(), str(tmp_path), step, (10,), DTYPES)
    assert read(Alone(), str(tmp_path), (10,))[0] == 100_000_000


def refused_by_training(ctx, folder, tasks):
    """What is said to each task, in each way to train, that would go on from the checkpoint of another one."""
    said = []
    for task in tasks:
        for strategy in sharding.STRATEGIES:
            try:
                sharding.train(ctx, task, strategy, 1, start_from=folder)
            except CheckpointError as error:
                said.append(str(error))
    return said


def test_another_dtype_or_optimizer_is_refused(ranks, saved):
    tasks = [Task(Network(6, 10, 3, "float32")), Task(optimizer=Sgd())]
    for said in ranks.run(2, refused_by_training, f"{saved}/adam-{strategies_of(2)[0]}-2", tasks):
        held = "holds {'params': 'float64', 'mean': 'float64', 'square': 'float64'}; the task has"
        needs = ["{'params': 'float32', 'mean': 'float32', 'square': 'float32'}"] * 3
        needs += ["{'params': 'float64', 'momentum': 'float64'}"] * 3
        assert said == [f"train: the checkpoint of step {BEFORE} {held} {need}" for need in needs]


OTHER = Network(8, 6, 7)  # 54 and 49 parameters, in the place of 70 and 33


def test_another_model_with_as_many_parameters_is_refused(ranks, saved):
    assert OTHER.parameters == Task().network.parameters
    for said in ranks.run(2, refused_by_training, f"{saved}/adam-{strategies_of(2)[0]}-2", [Task(OTHER)]):
        was, found = map(vars, (Task().network, OTHER))
        assert said == [f"train: the checkpoint of step {BEFORE} is of {was}, not of {found}"] * 3


def again(ctx, folder):
    try:
        write(ctx, folder, 1, (10,), {"x": "int64"})
    except FileExistsError as error:
        return str(error)


def test_a_checkpoint_is_not_written_over(ranks, tmp_path):
    assert ranks.run(2, again, str(tmp_path)) == [None, None]
    heard = ranks.run(2, again, str(tmp_path))
    assert all("step-00000001 is there already" in text for text in heard)
    assert read(Alone(), str(tmp_path), (10,))[0] == 1


def on_a_full_disk(ctx, folder, full, bytes_left):
    """What the ranks hear when one of them may not write as many bytes as its shard has."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if ctx.rank == full:
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, limits[1]))
    try:
        return write(ctx, folder, 2, (9000,), {"x": "int64"})
    except OSError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("full", (0, 2))
@pytest.mark.parametrize("bytes_left", (0, 10_000))
def test_a_disk_that_is_full_for_one_rank_is_heard_of_on_all(ranks, tmp_path, full, bytes_left):
    ranks.run(3, write, str(tmp_path), 1, (10,), DTYPES)
    said = ranks.run(3, on_a_full_disk, str(tmp_path), full, bytes_left)
    elements = f"elements {3000 * full}:{3000 * full + 3000}"
    shard = f"save: the shard of rank {full} (rank-000{full}.safetensors, {elements}) cannot be written to "
    assert len(set(said)) == 1 and said[0].startswith(shard), said
    assert "File too large" in said[0] and checkpoint.latest(tmp_path).endswith("step-00000001")
    assert ranks.run(3, read, str(tmp_path), (10,))[0][0] == 1
    (path,) = set(ranks.run(3, write, str(tmp_path), 2, (10,), DTYPES))
    assert path == checkpoint.latest(tmp_path)


def with_a_shard_too_long(ctx, folder):
    buckets = Buckets((6,), ctx.nranks)
    try:
        checkpoint.save(ctx, folder, 1, {"x": np.zeros(2 + (ctx.rank == 1))}, buckets)
    except ValueError as error:
        return str(error)


def test_a_shard_of_another_length_is_refused_on_all_ranks(ranks, tmp_path):
    said = ranks.run(3, with_a_shard_too_long, str(tmp_path))
    assert said == ["save: 'x' has shape (3,), and rank 1 owns 2 elements"] * 3
    assert checkpoint.latest(tmp_path) is None


# whatever moment a writer is killed at


class Killed(BaseException):
    """In the place of the death of the process."""


def dying(monkeypatch, after):
    """Let the process die at the call after so many to the operating system, before it is made; returns the calls."""
    calls = []

    def patched(module, name):
        real = getattr(module, name)

        def call(*args, **kwargs):
            if len(calls) == after:
                raise Killed
            calls.append((name, os.path.basename(str(args[0])) if args and isinstance(args[0], str) else ""))
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    for name in ("makedirs", "fsync", "rename"):
        patched(os, name)
    patched(checkpoint.safetensors.numpy, "save_file")
    patched(json, "dump")
    patched(shutil, "rmtree")
    return calls


def test_what_gets_its_name_is_on_the_disk(monkeypatch, tmp_path):
    """Where the power fails, only that counts of which the disk has said that it has it."""
    fsync, rename, on_disk = os.fsync, os.rename, {}

    def noting(fd):
        fsync(fd)
        path = os.readlink(f"/proc/self/fd/{fd}")
        on_disk[path] = os.stat(path).st_mtime_ns

    def checking(partial, final):
        written = [partial, *(entry.path for entry in os.scandir(partial))]
        assert len(written) == 3 and {path: os.stat(path).st_mtime_ns for path in written} == on_disk
        on_disk.clear()
        rename(partial, final)

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(os, "rename", checking)
    write(Alone(), str(tmp_path), 1, (10,), DTYPES)
    assert [*on_disk] == [str(tmp_path)]  # which lists the new name


def test_a_writer_that_dies_between_any_two_calls_leaves_the_checkpoint_before_it(monkeypatch, tmp_path):
    write(Alone(), str(tmp_path), 1, (10,), DTYPES)
    after = 0
    while True:
        with monkeypatch.context() as patch:
            calls = dying(patch, after)
            try:
                write(Alone(), str(tmp_path), 2, (10,), DTYPES)
            except Killed:
                is_there = "rename" in dict(calls)
                assert checkpoint.latest(tmp_path).endswith("step-00000002" if is_there else "step-00000001")
            else:
                break
        step, shard = read(Alone(), str(tmp_path), (10,))
        assert step == 1 + is_there and shard["x"].tolist() == vector("x", 10).tolist()
        if is_there:
            shutil.rmtree(checkpoint.latest(tmp_path))
        after += 1
    assert after >= 8, calls
    assert sorted(os.listdir(tmp_path)) == ["step-00000001", "step-00000002"]


def test_everything_is_on_the_disk_before_the_folder_has_its_name(monkeypatch, tmp_path):
    """A kill leaves the kernel's memory; a power failure does not. So the order of the calls is looked at."""
    order = []
    real = os.rename
    monkeypatch.setattr(os, "fsync", lambda fd: order.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))))
    monkeypatch.setattr(os, "rename", lambda a, b: order.append("rename") or real(a, b))
    write(Alone(), str(tmp_path), 1, (10,), DTYPES)
    partial = "step-00000001.partial"
    assert order == ["rank-0000.safetensors", "manifest.json", partial, "rename", tmp_path.name]


def test_adam_and_sgd_leave_their_state_in_the_checkpoint(saved):
    for task, names in (("adam", Adam.names), ("sgd", Sgd.names)):
        path = checkpoint.latest(f"{saved}/{task}-sharded_parameters-3")
        assert [*manifests.read(path)["shards"][0]["tensors"]] == ["params", *names]

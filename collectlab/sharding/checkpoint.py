"""Checkpoints in shards: each rank writes what it owns, and any number of ranks reads back what each owns then.

    FOLDER/step-00000040/
        manifest.json              who owned which slices, and a checksum for each block of each shard
        rank-0000.safetensors      the slices of rank 0: one tensor for the parameters, one for each optimizer state
        ...

A shard is a safetensors file: its header says step, rank and slices too, so a file that was renamed is found out.

A checkpoint is written into `step-00000040.partial`. When every file is on the disk (fsync), the manifest as the
last, the folder gets its name in one step (rename). A writer that is killed at any moment leaves the checkpoints
before it as they were, and perhaps a folder `.partial`, which the next one to write that step removes.

All ranks must see the same folder.
"""

import json
import os
import re
import secrets
import shutil
import zlib
from dataclasses import dataclass

import numpy as np
import safetensors.numpy

from collectlab.sharding import manifest as manifests
from collectlab.sharding.manifest import BLOCK, CheckpointError

_NAME = re.compile(r"step-\d{8,}")


@dataclass(frozen=True)
class Loaded:
    """What `load` returns: the step, this rank's shard, {name: array}, and the model that `save` was told."""

    step: int
    shard: dict
    model: object = None


# writing


def save(ctx, folder, step, shard, buckets, model=None):
    """Write the checkpoint of a step; returns its folder, the same on all ranks. Collective.

    shard    what this rank owns: {name: array of shape (buckets.count(rank),)}
    buckets  the Buckets that say which slices these are
    model    what the elements are the parameters of, as JSON has it: two models may have equally many

    FileExistsError where the folder has a checkpoint of that step, OSError what the disk refuses to one rank, on all
    of them; the checkpoints before it are then as they were.
    """
    final = os.path.join(os.fspath(folder), f"step-{step:08d}")
    name = _first(ctx, lambda: _begin(final))
    entry = _together(ctx, lambda: _write_shard(f"{final}.partial", name, step, ctx.rank, shard, buckets))
    entries = ctx.comm.gather((entry, ctx.device))
    _first(ctx, lambda: _finish(final, name, step, entries, buckets, model))
    return final


def _together(ctx, act):
    """What `act` returns on this rank. Where one rank finds a fault, all raise its OSError or ValueError."""
    found = error = None
    try:
        found = act()
    except (OSError, ValueError) as caught:
        error = caught
    errors = [one for one in ctx.comm.allgather(error) if one is not None]
    if errors:
        raise errors[0]
    return found


def _first(ctx, act):
    """What `act` returns on rank 0, on all ranks; its OSError is raised on all of them."""
    found = None
    if ctx.rank == 0:
        try:
            found = act()
        except OSError as error:
            found = error
    found = ctx.comm.bcast(found)
    if isinstance(found, OSError):
        raise found
    return found


def _begin(final):
    if os.path.exists(final):
        raise FileExistsError(f"save: {final} is there already; a checkpoint is not written over")
    shutil.rmtree(f"{final}.partial", ignore_errors=True)
    os.makedirs(f"{final}.partial")
    return secrets.token_hex(8)


def _write_shard(partial, name, step, rank, shard, buckets):
    """Write this rank's file; returns its entry in the manifest."""
    slices = [[part.start, part.stop - part.start] for part in buckets.slices(rank)]
    entry = {"rank": rank, "file": f"rank-{rank:04d}.safetensors", "slices": slices, "tensors": {}}
    tensors = {}
    for tensor, array in shard.items():
        if array.shape != (buckets.count(rank),):
            own = buckets.count(rank)
            raise ValueError(f"save: {tensor!r} has shape {array.shape}, and rank {rank} owns {own} elements")
        tensors[tensor] = np.ascontiguousarray(array if isinstance(array, np.ndarray) else array.get())
        entry["tensors"][tensor] = {"dtype": str(array.dtype), "checksums": manifests.checksums(tensors[tensor])}
    path = os.path.join(partial, entry["file"])
    try:
        safetensors.numpy.save_file(tensors, path, manifests.header(name, step, buckets.nranks, entry))
        _to_disk(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise OSError(f"save: {manifests.shown(entry)} cannot be written to {partial}: {error}") from None
    return {**entry, "bytes": os.path.getsize(path)}


def _finish(final, name, step, entries, buckets, model=None):
    """Write the manifest and give the folder its name."""
    manifest = {
        "checkpoint": name, "step": step, "model": model, "elements": buckets.total, "nranks": buckets.nranks,
        "devices": [device for _, device in entries], "shards": [entry for entry, _ in entries],
    }  # fmt: skip
    manifest["checksum"] = manifests.checksum_of(manifest)
    path = os.path.join(f"{final}.partial", manifests.MANIFEST)
    with open(path, "w") as file:
        json.dump(manifest, file)
    _to_disk(path)
    _to_disk(f"{final}.partial")
    os.rename(f"{final}.partial", final)
    _to_disk(os.path.dirname(final))


def _to_disk(path):
    """Come back when the file, or what the folder lists, is on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# reading


def latest(folder):
    """The newest complete checkpoint of the folder: its path, or None."""
    try:
        names = [name for name in os.listdir(folder) if _NAME.fullmatch(name)]
    except FileNotFoundError:
        return None
    return os.path.join(os.fspath(folder), max(names, key=lambda name: (len(name), name))) if names else None


def load(ctx, folder, buckets):
    """This rank's shard out of the newest checkpoint of a folder, or out of a checkpoint: Loaded. Collective.

    Ranks and buckets may be others than when it was written: what a rank owns now is put together from those shards
    that hold it. Each block is checked before it is used. Where one rank finds a fault, all raise CheckpointError.
    """
    return _together(ctx, lambda: _loaded(folder, buckets, ctx.rank))


def _loaded(folder, buckets, rank):
    path = folder if _NAME.fullmatch(os.path.basename(os.path.normpath(folder))) else latest(folder)
    if path is None:
        raise CheckpointError(f"load: there is no complete checkpoint in {folder}")
    manifest = manifests.read(path)
    if manifest["elements"] != buckets.total:
        has = f"{manifests.name_of(path)} has {manifest['elements']} elements"
        raise CheckpointError(f"load: {has}, and the model {buckets.total}")
    return Loaded(manifest["step"], read(path, buckets.slices(rank), manifest), manifest.get("model"))


def reshard(ctx, source, folder, buckets):
    """Read a checkpoint and write it for these ranks and buckets, into another folder; returns its path. Collective.

    Each rank holds what it owns, and a block.
    """
    loaded = load(ctx, source, buckets)
    return save(ctx, folder, loaded.step, loaded.shard, buckets, loaded.model)


def read(path, slices, manifest=None):
    """These slices of a checkpoint, one behind the other: {name: NumPy array}. Each block is checked that is read."""
    manifest = manifest or manifests.read(path)
    shards, found = manifest["shards"], {}
    for name, about in shards[0]["tensors"].items():
        found[name] = np.empty(sum(part.stop - part.start for part in slices), about["dtype"])
    for entry in shards:
        parts = list(pieces(entry["slices"], slices))
        if parts:
            with safetensors.safe_open(os.path.join(path, entry["file"]), "numpy") as opened:
                for name, array in found.items():
                    for there, here in parts:
                        _fill(array[here], opened.get_slice(name), there, path, entry, name)
    return found


def pieces(written, wanted):
    """Which part of a shard goes where: pairs of slices, in the shard and in what is read."""
    there = 0
    for start, count in written:
        here = 0
        for part in wanted:
            low, high = max(start, part.start), min(start + count, part.stop)
            if low < high:
                yield (
                    slice(there + low - start, there + high - start),
                    slice(here + low - part.start, here + high - part.start),
                )
            here += part.stop - part.start
        there += count


def _fill(out, tensor, part, path, entry, name):
    """Fill `out` with a part of a shard's tensor, block after block."""
    size = tensor.get_shape()[0]
    for block in range(part.start // BLOCK, -(-part.stop // BLOCK)):
        start, stop = block * BLOCK, min(size, (block + 1) * BLOCK)
        values = tensor[start:stop]
        if zlib.crc32(values) != entry["tensors"][name]["checksums"][block]:
            where = ", ".join(f"{a}:{b}" for a, b in _global(entry["slices"], start, stop))
            shard = f"{manifests.name_of(path)}: {manifests.shown(entry)}"
            raise CheckpointError(f"{shard} is damaged: {name!r}, elements {where}, has not the checksum it had")
        low, high = max(start, part.start), min(stop, part.stop)
        out[low - part.start : high - part.start] = values[low - start : high - start]


def _global(slices, start, stop):
    """The elements of the whole vector that a part of a shard holds: (start, stop) pairs."""
    at = 0
    for first, count in slices:
        low, high = max(start, at), min(stop, at + count)
        if low < high:
            yield first + low - at, first + high - at
        at += count

"""The manifest of a checkpoint: what every shard is to be, checked before anything is read.

A shard that is missing, cut short, or another one than the manifest says is refused here; damaged values are found
where they are read, block by block.
"""

import json
import os
import zlib

import safetensors

BLOCK = 1 << 18  # elements for each of which a shard has a checksum: so many are in memory beside a rank's own
MANIFEST = "manifest.json"


class CheckpointError(ValueError):
    """A checkpoint cannot be trusted. The message names the shard and the slice."""


def header(checkpoint, step, nranks, entry):
    """What the file of a shard says of itself: str -> str, from the shard's entry in the manifest."""
    about = {"checkpoint": checkpoint, "step": step, "nranks": nranks}
    about |= {key: entry[key] for key in ("rank", "slices")}
    return {key: json.dumps(value) for key, value in about.items()}


def checksums(array):
    """A CRC-32 for each block of the array."""
    return [zlib.crc32(array[at : at + BLOCK]) for at in range(0, array.size, BLOCK)]


def checksum_of(manifest):
    """A CRC-32 of everything else in the manifest."""
    rest = {key: value for key, value in manifest.items() if key != "checksum"}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode())


def read(path):
    """The manifest of the checkpoint at `path`: a dict. CheckpointError where it and the shards' files disagree."""
    name = name_of(path)
    try:
        with open(os.path.join(path, MANIFEST)) as file:
            manifest = json.load(file)
        _check_slices(name, manifest)
        for entry in manifest["shards"]:
            _check_file(path, manifest, entry)
        is_as_written = manifest["checksum"] == checksum_of(manifest)
    except CheckpointError:
        raise
    except FileNotFoundError:
        raise CheckpointError(f"{name}: there is no {MANIFEST}, so this is no complete checkpoint") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{name}: {MANIFEST} cannot be read: {error!r}") from None
    if not is_as_written:
        raise CheckpointError(f"{name}: {MANIFEST} is not what was written: its checksum is another one")
    return manifest


def _check_slices(name, manifest):
    """CheckpointError unless there is one shard of each rank, and each element lies in one of them."""
    ranks = [entry["rank"] for entry in manifest["shards"]]
    if not ranks or len(ranks) != manifest["nranks"] or ranks != list(range(len(ranks))):
        raise CheckpointError(f"{name}: {MANIFEST} says {manifest['nranks']} ranks, and lists shards of {ranks}")
    spans = [(start, start + n, entry["rank"]) for entry in manifest["shards"] for start, n in entry["slices"] if n]
    at, before = 0, None
    for start, stop, rank in sorted(spans):
        if start > at:
            gap = f"elements {at}:{start}, before rank {rank}'s {start}:{stop}"
            raise CheckpointError(f"{name}: {gap}, lie in no shard")
        if start < at:
            twice = f"elements {start}:{min(at, stop)}"
            raise CheckpointError(f"{name}: {twice} lie in the shards of rank {before} and of rank {rank}")
        at, before = stop, rank
    if at != manifest["elements"]:
        raise CheckpointError(f"{name}: the shards end at element {at}, and {MANIFEST} says {manifest['elements']}")


def _check_file(path, manifest, entry):
    """CheckpointError unless the file of a shard is there, whole, and the one that the manifest means."""
    file, shard = os.path.join(path, entry["file"]), f"{name_of(path)}: {shown(entry)}"
    try:
        size = os.path.getsize(file)
    except FileNotFoundError:
        raise CheckpointError(f"{shard} is missing") from None
    if size != entry["bytes"]:
        how = "is cut short" if size < entry["bytes"] else "is too long"
        raise CheckpointError(f"{shard} {how}: {size} bytes, and {entry['bytes']} were written")
    try:
        with safetensors.safe_open(file, "numpy") as opened:
            have = opened.metadata() or {}
            held = {name: _shape_and_dtype(opened, name) for name in opened.keys()}
    except (safetensors.SafetensorError, ValueError) as error:
        raise CheckpointError(f"{shard} has a damaged header: {error}") from None
    for key, value in header(manifest["checkpoint"], manifest["step"], manifest["nranks"], entry).items():
        if have.get(key) != value:
            raise CheckpointError(f"{shard} is another one: its header says {key} {have.get(key)}, not {value}")
    count = sum(n for _, n in entry["slices"])
    said = {name: ([count], about["dtype"]) for name, about in entry["tensors"].items()}
    if held != said:
        raise CheckpointError(f"{shard} holds {held}, and {MANIFEST} says {said}")
    blocks = -(-count // BLOCK)
    for name, about in entry["tensors"].items():
        if not isinstance(about["checksums"], list) or len(about["checksums"]) != blocks:
            raise CheckpointError(f"{shard}: {MANIFEST} has not {blocks} checksums of {name!r}, one a block")


def _shape_and_dtype(opened, name):
    found = opened.get_slice(name)
    shape = found.get_shape()
    first = found[:1] if shape[0] else opened.get_tensor(name)  # of nothing there is no slice
    return shape, first.dtype.name


def name_of(path):
    """What a checkpoint is called."""
    return os.path.basename(os.path.normpath(path))


def shown(entry):
    """A shard in words, from its entry in the manifest."""
    parts = ", ".join(f"{start}:{start + n}" for start, n in entry["slices"] if n) or "none"
    return f"the shard of rank {entry['rank']} ({entry['file']}, elements {parts})"

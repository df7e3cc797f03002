"""Documents of arrays for histories on a device: more codec chains, and grids."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from array_strategies import codec
from fuzz.history_arrays import random_document

if TYPE_CHECKING:
    import random

_CHAINS: dict[str, list[Any]] = {
    "zlib": [codec("numcodecs.zlib", level=1)],
    "gzip, crc32c": [codec("gzip", level=1), {"name": "crc32c"}],
    "blosc zlib": [codec("blosc", cname="zlib", shuffle="noshuffle")],
    "blosc lz4hc": [codec("blosc", cname="lz4hc", shuffle="bitshuffle")],
    "shuffle": [codec("numcodecs.shuffle", elementsize=4)],
    "shuffle, zstd": [
        codec("numcodecs.shuffle", elementsize=4),
        codec("zstd", level=1, checksum=True),
    ],
    "bz2": [codec("numcodecs.bz2", level=1)],
}

# Each element takes a thread of an emulated kernel.
_MOST_ELEMENTS = 6000


def document_for_devices(rng: random.Random) -> tuple[dict[str, Any], bool]:
    """A document, maybe of another codec chain, or of objects that differ in length."""
    made, sees_flips = random_document(rng)
    while math.prod(made["shape"]) > _MOST_ELEMENTS:
        made, sees_flips = random_document(rng)
    if made["zarr_format"] == 3 and rng.random() < 0.3:
        _set_compressors(made["codecs"], rng.choice([*_CHAINS.values()]), made)
        sees_flips = False
    if made["zarr_format"] == 3 and rng.random() < 0.2:
        _use_rectilinear_grid(made, rng)
    return made, sees_flips


def _set_compressors(
    codecs: list[Any], chain: list[Any], document: dict[str, Any]
) -> None:
    """Replace what comes behind the elements of the innermost chunks."""
    last = codecs[-1]
    if last["name"] == "sharding_indexed":
        _set_compressors(last["configuration"]["codecs"], chain, document)
        return
    while codecs[-1]["name"] != "bytes":
        codecs.pop()
    itemsize = np.dtype(document["data_type"]).itemsize
    for one in chain:
        configuration = dict(one.get("configuration", {}))
        if "elementsize" in configuration:
            configuration["elementsize"] = itemsize
        if one["name"] == "blosc":
            configuration |= {"typesize": itemsize, "clevel": 5, "blocksize": 0}
        codecs.append({"name": one["name"], "configuration": configuration})


def _use_rectilinear_grid(document: dict[str, Any], rng: random.Random) -> None:
    """Let objects differ in length."""
    first = document["codecs"][0]
    units = [1] * len(document["shape"])
    if first["name"] == "sharding_indexed":
        units = first["configuration"]["chunk_shape"]
    elif first["name"] == "transpose":
        return
    lengths: list[Any] = []
    usual = document["chunk_grid"]["configuration"]["chunk_shape"]
    for extent, unit, most in zip(document["shape"], units, usual, strict=True):
        edges: list[int] = []
        while sum(edges) < extent:
            edges.append(unit * rng.randint(1, max(most // unit, 1)))
        lengths.append(edges)
    configuration = {"kind": "inline", "chunk_shapes": lengths}
    document["chunk_grid"] = {"name": "rectilinear", "configuration": configuration}

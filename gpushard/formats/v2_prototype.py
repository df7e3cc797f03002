"""Prototype II of sharding: Zarr v2 with `shard_format` and `shards`.

Pull request 947 of zarr-python (2022): every stored object is a shard with a fixed
number of chunks along each axis. At its end it has the index that the draft of the
storage transformer describes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpushard.errors import MetadataError, UnsupportedError
from gpushard.formats.document import as_lengths, shown
from gpushard.formats.historic import Sharding

SHARD_FORMAT = "indexed"
"""The only value of `shard_format` with a known meaning."""


def parse_sharding(document: Mapping[str, Any], ndim: int) -> Sequence[Sharding]:
    """How a `.zarray` document combines chunks in shards; empty if it does not.

    Raises
    ------
    MetadataError
        Only one of the two members is there, or `shards` is malformed.
    UnsupportedError
        The binary format of the shards is unknown.
    """
    shards, shard_format = document.get("shards"), document.get("shard_format")
    if shards is None:
        if shard_format is not None:
            raise MetadataError(
                "the metadata names a format of shards but no shards",
                json_path="shards",
                expected=f"{ndim} lengths",
            )
        return ()
    if shard_format != SHARD_FORMAT:
        raise UnsupportedError(
            "the format of the shards is unknown",
            json_path="shard_format",
            expected=SHARD_FORMAT,
            got=shown(shard_format),
        )
    per_shard = as_lengths(
        shards, "the number of chunks a shard", "shards", least=1, ndim=ndim
    )
    return (Sharding(per_shard, "shards"),)


def sharding_members(chunks_per_shard: Sequence[int]) -> dict[str, Any]:
    """Members that a `.zarray` document needs to combine chunks in shards."""
    return {"shard_format": SHARD_FORMAT, "shards": list(chunks_per_shard)}

"""Shards in which single bytes are changed, so that inner chunks are damaged."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np


def damage_inner_chunks(shard: Path, victims: Iterable[int], part: int = 500) -> None:
    """Change a byte of each of some inner chunks in a shard of four.

    `part` says which, in thousandths of the encoded bytes.
    """
    data = bytearray(shard.read_bytes())
    entries = np.frombuffer(bytes(data[-68:-4]), "<u8").reshape(-1, 2)
    for victim in victims:
        offset, nbytes = map(int, entries[victim])
        data[offset + nbytes * part // 1000] ^= 0x55
    shard.write_bytes(bytes(data))

"""Index entries -> byte ranges, against the specification in Python's own integers.

Input: a byte that chooses the shard's size and place, then entries of 16 bytes.
"""

from __future__ import annotations

import struct

import numpy as np

from fuzz.refusals import assert_is_told
from gpushard.errors import CorruptShardError
from gpushard.planning.index import CORRUPT, MISSING, PRESENT, parse_index

NAME = "index"

_EMPTY = 2**64 - 1
# Start of the shard in its object, and its size (None: not known).
_SHARDS = (
    *((0, None), (0, 0), (0, 100), (0, 2**62), (0, 2**63 - 1)),
    *((2**40, None), (77, 100), (2**62, 2**61), (1, 2**63 - 2), (2**63 - 1, 0)),
)


def seeds() -> list[bytes]:
    entries = [
        [(0, 10), (10, 90), (_EMPTY, _EMPTY)],
        [(2**62, 2**61), (2**63 - 1, 0), (0, 2**63 - 1)],
        [(_EMPTY, 0), (0, _EMPTY), (2**63, 2**63), (2**64 - 2, 3)],
        [],
    ]
    return [
        bytes([k]) + b"".join(struct.pack("<2Q", *entry) for entry in some)
        for k in range(len(_SHARDS))
        for some in entries
    ]


def check(data: bytes) -> bool:
    if not data:
        return False
    base, nbytes = _SHARDS[data[0] % len(_SHARDS)]
    n_entries = (len(data) - 1) // 16
    raw = np.frombuffer(data, "<u8", 2 * n_entries, 1).reshape(n_entries, 2)
    index = parse_index(raw.astype(np.uint64), base=base, nbytes=nbytes)
    largest = 2**63 - 1 - base if nbytes is None else nbytes
    states = index.state.tolist()
    for entry, (offset, size) in enumerate(raw.tolist()):
        want = PRESENT if offset + size <= largest else CORRUPT
        if (offset, size) == (_EMPTY, _EMPTY):
            want = MISSING
        assert states[entry] == want, (entry, offset, size)
        if want == PRESENT:
            assert int(index.offset[entry]) == base + offset
            assert int(index.nbytes[entry]) == size
        if want == CORRUPT:
            _check_refusal(index, entry, offset, size)
    return CORRUPT not in states


def _check_refusal(index, entry: int, offset: int, size: int) -> None:
    try:
        index.refuse_corrupt(entry)
    except CorruptShardError as error:
        assert_is_told(error, got=f"offset {offset}, nbytes {size}")
    else:
        raise AssertionError("a corrupt entry is not refused")

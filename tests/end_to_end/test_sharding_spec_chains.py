"""Sharding codec, version 1.0: codecs around it, and shards in shards."""

from __future__ import annotations

import itertools
import math
import struct

import crc32c
import numpy as np
import pytest

import gpushard
from array_strategies import codec
from gpushard import Options
from spec_shards import (
    CRC,
    EMPTY,
    LITTLE,
    document,
    index_of,
    opened,
    shard_of,
    sharding,
)
from zarr_oracle import assert_same_bits


def test_a_transpose_ahead_of_sharding_turns_the_shard_and_its_index():
    # Elements of shape (2, 6) become a shard of (6, 2) with inner chunks of (3, 1).
    values = np.arange(12, dtype="u1").reshape(2, 6)
    turned = values.T
    chunks = [turned[i : i + 3, j].tobytes() for i in (0, 3) for j in (0, 1)]
    order = codec("transpose", order=[1, 0])
    a = opened(
        document([2, 6], [2, 6], order, sharding([3, 1])), **{"0_0": shard_of(*chunks)}
    )
    assert_same_bits(a[...], values)
    assert_same_bits(a[1, 2:5], values[1, 2:5])
    assert a.chunks == (1, 3)


@pytest.mark.parametrize("n", [0, 8])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_axes_turned_around_and_within_a_shard_come_back(order, n):
    values = np.arange(2 * 4 * 6, dtype="u1").reshape(2, 4, 6)
    outer, inner = codec("transpose", order=order), codec("transpose", order=[1, 2, 0])
    turned = values.transpose(order)
    chunk_shape = [length // 2 for length in turned.shape]
    chunks = [
        turned[tuple(slice(a, a + c) for a, c in zip(at, chunk_shape, strict=True))]
        .transpose(1, 2, 0)
        .tobytes()
        for at in itertools.product(*((0, c) for c in chunk_shape))
    ]
    chain = [outer, sharding(chunk_shape, codecs=[inner, LITTLE])]
    doc = document(values.shape, values.shape, *chain)
    a = opened(doc, Options(small_read_chunks=n), **{"0_0_0": shard_of(*chunks)})
    assert_same_bits(a[...], values)
    assert_same_bits(a[1, 1:3, ::-2], values[1, 1:3, ::-2])
    assert a.chunks == (1, 2, 3)


def test_a_checksum_around_a_shard_covers_index_and_payload():
    shard = shard_of(b"ab", b"cd")
    whole = shard + struct.pack("<I", crc32c.crc32c(shard))
    doc = document([4], [4], sharding([2]), CRC)
    assert opened(doc, **{"0": whole})[2:].tobytes() == b"cd"
    damaged = b"x" + whole[1:]
    with pytest.raises(gpushard.ChecksumError) as caught:
        opened(doc, **{"0": damaged})[2:]
    assert caught.value.shard_key == "c/0"


@pytest.mark.parametrize("outer", ["start", "end"])
@pytest.mark.parametrize("inner", ["start", "end"])
def test_each_level_of_nested_shards_has_its_own_index_location(outer, inner):
    def placed(location: str, chunks: list[bytes]) -> bytes:
        n_index = 16 * len(chunks) + 4
        base = n_index if location == "start" else 0
        offsets = itertools.accumulate(map(len, chunks), initial=base)
        index = index_of([(o, len(c)) for o, c in zip(offsets, chunks, strict=False)])
        payload = b"".join(chunks)
        return index + payload if location == "start" else payload + index

    nested = [placed(inner, [b"ab", b"cd"]), placed(inner, [b"ef", b"gh"])]
    chain = sharding([2], index_location=inner)
    doc = document([8], [8], sharding([4], codecs=[chain], index_location=outer))
    a = opened(doc, **{"0": placed(outer, nested)})
    assert a[...].tobytes() == b"abcdefgh"
    assert a[5:7].tobytes() == b"fg"
    assert a.chunks == (4,)


def test_a_nested_entry_must_stay_within_its_own_shard():
    good = shard_of(b"ab", b"cd")
    bad = b"ef" + b"gh" + index_of([(0, 2), (40, 2)])
    doc = document([8], [8], sharding([4], codecs=[sharding([2])]))
    a = opened(doc, **{"0": shard_of(bad, good)})
    assert a[:2].tobytes() == b"ef"
    assert a[4:].tobytes() == b"abcd"
    with pytest.raises(gpushard.CorruptShardError) as caught:
        a[2:4]
    assert caught.value.inner_chunk == (1,)


def test_sharding_deeper_than_the_option_allows_is_refused():
    chain = sharding([1])
    for _ in range(3):
        chain = sharding([1], codecs=[chain])
    doc = document([1], [1], chain)
    shard = b"q"
    for _ in range(4):
        shard = shard_of(shard)
    assert opened(doc, **{"0": shard})[0] == ord("q")
    with pytest.raises(gpushard.UnsupportedError):
        opened(doc, Options(max_sharding_depth=3))


def test_a_shard_of_a_million_inner_chunks_is_no_trouble():
    n = 1_000_000
    entries = np.full((n, 2), EMPTY, "<u8")
    entries[777_777] = (0, 1)
    shard = b"!" + entries.tobytes()
    inner = sharding([1], index_codecs=[LITTLE])
    a = opened(document([n], [n], inner), **{"0": shard})
    assert a[777_777] == ord("!")
    assert a[777_770:777_780].tobytes() == b"\0" * 7 + b"!" + b"\0\0"
    assert math.prod(a.shape) == n

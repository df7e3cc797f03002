"""Writes to a part of a shard, in stores of objects, that is damaged elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from zarr.codecs import ZstdCodec
from zarr.storage import MemoryStore

import gpushard
from gpushard.stores.writers import writer_of
from gpushard.writing.shard import Region, StoredShard
from spec_shards import EMPTY, index_of


@pytest.fixture
def array() -> gpushard.Array:
    """A shard of four inner chunks, which have checksums as its index has."""
    a = gpushard.create_array(
        MemoryStore(), shape=64, dtype="u1", chunks=16, shards=64,
        compressors=ZstdCodec(level=1, checksum=True), device="cpu",
    )  # fmt: skip
    a[...] = np.random.default_rng(3).integers(1, 9, 64, "u1")
    return a


def damage(a: gpushard.Array, at: int) -> bytes:
    """Flip a bit of the stored object, which is given as it is now."""
    key = a.source.key((0,))
    data = bytearray(a.source.store.get(key) or b"")
    data[at] ^= 1
    writer_of(a.source.store).put(key, [np.frombuffer(data, np.uint8)])
    return bytes(data)


def test_an_inner_chunk_is_copied_with_its_checksum_which_still_tells_damage(array):
    stored = np.frombuffer(array.source.store.get("c/0") or b"", np.uint8)
    shard = StoredShard.parse(Region.of_object(array.source, (0,)), stored)
    damage(array, int(shard.index.offset[3] + shard.index.nbytes[3]) - 1)
    array[:8] = 7
    assert (array[:8] == 7).all()
    with pytest.raises(gpushard.ChecksumError, match=r"inner chunk \(3,\)"):
        array[48:]


def test_a_shard_whose_index_is_damaged_is_not_written_to(array):
    data = damage(array, -6)
    with pytest.raises(gpushard.ChecksumError):
        array[:8] = 8
    assert array.source.store.get("c/0") == data


def test_what_no_inner_chunk_takes_is_not_decoded_to_be_written_to(array):
    n = 1 << 20
    ranges = [(0, n)] + [(EMPTY, EMPTY)] * 3
    data = np.frombuffer(bytes(n) + index_of(ranges), np.uint8)
    writer_of(array.source.store).put("c/0", [data])
    with pytest.raises(gpushard.CorruptShardError, match="any encoding of it needs"):
        array[:8] = 8
    assert array.source.store.get("c/0") == data.tobytes()
    array[:16] = 8  # nothing of it is needed
    assert (array[:] == [8] * 16 + [0] * 48).all()


@pytest.mark.parametrize("entry", [(EMPTY, 4), (1 << 40, 4), (4, EMPTY - 1)])
def test_an_inner_chunk_whose_entry_is_damaged_is_only_written_as_a_whole(entry, array):
    data = np.frombuffer(bytes(8) + index_of([entry] + [(EMPTY, EMPTY)] * 3), np.uint8)
    writer_of(array.source.store).put("c/0", [data])
    with pytest.raises(gpushard.CorruptShardError, match=r"entry 0 .*c/0"):
        array[:8] = 8
    assert array.source.store.get("c/0") == data.tobytes()
    array[:16] = 8
    assert (array[:] == [8] * 16 + [0] * 48).all()

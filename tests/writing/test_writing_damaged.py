"""Writes to a part of a shard, in stores of objects, that is damaged elsewhere."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from zarr.codecs import ZstdCodec
from zarr.core.buffer import cpu
from zarr.storage import MemoryStore

import gpushard
from gpushard.stores.writers import writer_of
from gpushard.writing.shard import Region, StoredShard
from spec_shards import EMPTY, LITTLE, document, index_of, sharding


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


@pytest.mark.parametrize("tells", [True, False])
def test_a_shard_of_which_too_little_comes_is_not_written_anew(tells):
    """Its index has no checksum, and would name other inner chunks."""

    class Shortening(MemoryStore):
        n_cut = 16 if tells else 0

        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            found = await super().get(key, prototype, byte_range)
            return found[: len(found) - self.n_cut] if found and "c/" in key else found

        async def getsize(self, key: str) -> int:
            if not tells:
                raise NotImplementedError
            return len(self._store_dict[key])

    inside = sharding((16,), index_codecs=[LITTLE])
    body = bytes(range(1, 65))
    shard = body + index_of([(n, 16) for n in range(0, 64, 16)], checksum=False)
    objects = {"zarr.json": json.dumps(document((64,), (64,), inside)).encode()}
    objects |= {"c/0": shard}
    below: Any = {key: cpu.Buffer.from_bytes(data) for key, data in objects.items()}
    a = gpushard.open_array(Shortening(below), device="cpu")
    if tells:
        with pytest.raises(gpushard.StoreError, match="than a whole object"):
            a[:16] = 0
        assert below["c/0"].to_bytes() == shard
        return
    a[:16] = 70
    assert below["c/0"].to_bytes()[:64] == bytes([70] * 16) + body[16:]

"""Payload of zarr stores comes in ranges, each by a `get` of the store."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.abc.store import RangeByteRequest
from zarr.codecs import ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore, WrapperStore

import gpushard
from gpushard.errors import CorruptShardError, ObjectDeletedError
from gpushard.options import KIB, MIB, Options
from gpushard.stores.base import ByteRequest
from gpushard.stores.zarr.store import ZarrStore
from stored_object import BODY
from zarr_oracle import assert_same_bits


def buffer(data: bytes) -> Any:
    return default_buffer_prototype().buffer.from_bytes(data)


def is_payload(key: str, byte_range: Any) -> bool:
    return key.startswith("c/") and isinstance(byte_range, RangeByteRequest)


class Noting(WrapperStore):
    """A store that notes the ranges of payload that it is asked for, by their key."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.asked: list[tuple[str, int]] = []

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        if is_payload(key, byte_range):
            self.asked.append((key, byte_range.end - byte_range.start))
        return await super().get(key, prototype, byte_range)


def stored(raw: bool = False, n: int = 64) -> tuple[Noting, np.ndarray]:
    """Array of `n` times `n` distinct numbers in four shards; every second row is 0."""
    values = np.arange(n * n, dtype="i4").reshape(n, n)
    values.reshape(n // 8, 8, n)[::2] = 0
    objects: dict[str, Any] = {}
    z = zarr.create_array(
        MemoryStore(objects),
        shape=(n, n),
        chunks=(8, n // 8),
        shards=(n // 2, n // 2),
        dtype="i4",
        compressors=None if raw else ZstdCodec(),
        fill_value=0,
    )
    z[...] = values
    return Noting(MemoryStore(objects)), values


@pytest.mark.parametrize("raw", [False, True], ids=["encoded", "raw"])
def test_payload_of_a_shard_comes_in_one_joined_range(raw: bool) -> None:
    store, values = stored(raw)
    a = gpushard.open_array(store)
    assert_same_bits(a[3:60, 20:44:3], values[3:60, 20:44:3])
    shards = ["c/0/0", "c/0/1", "c/1/0", "c/1/1"]
    assert Counter(key for key, _ in store.asked) == Counter(shards)


def test_wrappers_that_change_only_get_are_asked_by_it() -> None:
    class Changed(WrapperStore):
        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            found = await super().get(key, prototype, byte_range)
            return buffer(bytes(255 - n for n in found.to_bytes()))

    store = ZarrStore(Changed(MemoryStore({"k": buffer(BODY)})))
    (answer,) = store.read([ByteRequest("k", 2, 9, is_indexed=True)])
    assert answer is not None
    assert answer.data.tobytes() == bytes(255 - n for n in BODY[2:9])


def test_large_payload_is_read_piece_by_piece() -> None:
    store, values = stored(raw=True, n=1024)
    limit = 512 * KIB
    a = gpushard.open_array(store, options=Options(memory_limit=limit, threads=2))
    assert_same_bits(a[1:, 256:768], values[1:, 256:768])
    assert sum(nbytes for _, nbytes in store.asked) > MIB
    assert max(nbytes for _, nbytes in store.asked) <= limit // 2


@pytest.mark.parametrize(
    ("answer", "error"),
    [(None, ObjectDeletedError), (b"", CorruptShardError)],
    ids=["deleted", "torn"],
)
@pytest.mark.parametrize("rows", [slice(8, 9), slice(8, 48)], ids=["few", "many"])
def test_payload_that_is_gone_or_cut_off_names_its_shard(
    answer: bytes | None, error: type[Exception], rows: slice
) -> None:
    class Cut(WrapperStore):
        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            if is_payload(key, byte_range):
                return None if answer is None else buffer(answer)
            return await super().get(key, prototype, byte_range)

    store, _ = stored()
    a = gpushard.open_array(Cut(store._store))
    with pytest.raises(error, match="c/0/0"):
        a[rows, :8]

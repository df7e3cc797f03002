"""A callable as ``errors=``: what it raises ends the read, and it may read, too."""

from __future__ import annotations

import gzip
import json
import threading
from typing import Any

import numpy as np
import pytest
from zarr.storage import WrapperStore

import gpushard
from array_strategies import codec
from damaged_arrays import WAYS, on_host, opened
from gpushard.errors import CorruptShardError, LimitError, ObjectChangedError
from spec_shards import CRC, LITTLE, document, index_of, shard_of, sharding
from zarr_oracle import held

ZSTD, GZIP = codec("zstd", level=1, checksum=False), codec("gzip", level=1)
N = 4
GOOD = shard_of(b"aaaa", b"bbbb")
# Codecs, and a stored object: the index, an entry, a checksum, or all is damaged.
DAMAGED: dict[str, tuple[list[Any], bytes]] = {
    "index": ([sharding((N,))], GOOD[:9]),
    "entry": ([sharding((N,))], b"aaaa" + index_of([(0, N), (900, N)])),
    "checksum": ([sharding((N,), codecs=[LITTLE, CRC])], shard_of(b"aaaa????")),
    "object": ([LITTLE, ZSTD], b"no stream"),
}
# Stages of a read catch errors of most of these classes.
RAISED = [
    CorruptShardError("the other copy is damaged, too"),
    ObjectChangedError("the other copy was replaced"),
    LimitError("the other copy is too large"),
    MemoryError("elsewhere"),
    StopIteration("enough"),
]


def objects_of(codecs: list[Any], n: int, **shards: bytes) -> dict[str, bytes]:
    meta = document((2 * n,), (n,), *codecs, fill_value=9)
    objects = {"zarr.json": json.dumps(meta).encode()}
    return objects | {f"c/{key[1:]}": shard for key, shard in shards.items()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("damage", DAMAGED)
def test_any_error_of_the_callable_ends_the_read_as_it_is(damage, way):
    codecs, shard = DAMAGED[damage]
    a = opened(held(objects_of(codecs, 2 * N, c0=shard)), way)
    readers = [a] if way == "device" else [a, gpushard.concat([a, a])]
    for raised in RAISED:

        def refuse(_: CorruptShardError, raised: Exception = raised) -> None:
            raise raised

        for reader in readers:
            with pytest.raises(type(raised)) as caught:
                reader.read(errors=refuse)
            assert caught.value is raised
            # It says nothing about this array.
            assert getattr(raised, "array_path", None) is None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [WrapperStore, lambda store: store])
def test_a_callable_may_read_what_one_thread_at_a_time_reads(kind, way):
    """Objects that are padded to more than what a compressor makes."""
    n = 1024
    good = gzip.compress(bytes(range(256)) * 4)
    shards = {"c0": good[:-8] + bytes(8), "c1": good}
    padded = {key: shard.ljust(67_000, b"\0") for key, shard in shards.items()}
    a = opened(kind(held(objects_of([LITTLE, GZIP], n, **padded))), way)
    found: list[Any] = []

    def look_elsewhere(error: CorruptShardError) -> None:
        found.append((error.inner_chunk, on_host(a[n:]).tolist()))

    def read() -> None:
        found.append(on_host(a.read(errors=look_elsewhere)))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert found[0] == ((0,), [*range(256)] * 4)
    assert np.array_equal(found[1], [*[9] * n, *found[0][1]])

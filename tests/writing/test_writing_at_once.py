"""What is encoded and written at the same time, and what is not."""

from __future__ import annotations

import asyncio
import json
import threading

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.codecs import TransposeCodec as Turned
from zarr.storage import MemoryStore

import gpushard
from gpushard.codecs import chain_encoder, compressing
from gpushard.codecs.chain_encoder import ChainEncoder
from gpushard.stores.local.locked_file import LockedFile
from gpushard.stores.writers import writer_of
from gpushard.stores.zarr.store import ZarrStore
from gpushard.threads.workers import run_side_by_side
from gpushard.write_options import WriteOptions
from gpushard.writing.assign import n_shards_at_once, n_waiting_at_once
from v3_documents import ZSTD, document, grid, rectilinear, sharding

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")


class Slow(MemoryStore):
    """Takes a while to set an object, and counts how many it sets at once."""

    n_now, n_most = 0, 0

    async def set(self, key, value, byte_range=None):
        self.n_now += 1
        self.n_most = max(self.n_most, self.n_now)
        await asyncio.sleep(0.05)
        await super().set(key, value)
        self.n_now -= 1


def test_little_objects_of_a_store_that_is_waited_for_are_written_side_by_side():
    store = Slow()
    values = np.arange(40 * 8, dtype="i4").reshape(40, 8)
    a = gpushard.create_array(store, shape=values.shape, dtype="i4", chunks=(1, 8))
    store.n_most = 0
    a[...] = values
    assert store.n_most == a.source.store.costs.concurrency > 2
    assert np.array_equal(zarr.open_array(store)[...], values)


def test_one_object_of_a_zarr_store_is_written_by_one_thread_at_a_time():
    store = Slow()
    writers = [writer_of(ZarrStore(store)) for _ in range(4)]

    def put(writer):
        writer.put("k", [np.ones(3, np.uint8)])

    threads = [threading.Thread(target=put, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.n_most == 1


@pytest.mark.parametrize(
    ("side", "limit", "n"),
    [(64, 1 << 30, 10), (1024, 1 << 30, 4), (1024, 40 << 20, 3), (2048, 1 << 30, 2)],
)
def test_large_shards_are_written_by_as_many_threads_as_are_asked_for(side, limit, n):
    options = gpushard.Options(threads=2, memory_limit=limit)
    shape = (64 * side, side)
    a = gpushard.create_array(
        MemoryStore(), shape=shape, dtype="i4", chunks=(side, side), options=options
    )
    assert n_waiting_at_once(a.source) == n


def test_shards_with_codecs_around_them_are_written_as_far_as_their_copies_fit(
    tmp_path,
):
    """Each takes six times its 4 MiB: two of them fit, as do four without codecs."""
    shards = {"shape": [64, 1 << 20], "chunk_grid": grid(1, 1 << 20)}
    codecs = [sharding([1, 1 << 18]), ZSTD]
    options = gpushard.Options(threads=1, memory_limit=50 << 20)
    for name, n in (("wrapped", 2), ("plain", 4)):
        meta = document(**shards, codecs=codecs[: 2 if name == "wrapped" else 1])
        (tmp_path / name).mkdir()
        (tmp_path / name / "zarr.json").write_text(json.dumps(meta))
        a = gpushard.open_array(tmp_path / name, device="cpu", options=options)
        assert n_waiting_at_once(a.source) == n


@pytest.mark.parametrize(("is_durable", "n"), [(True, 4), (False, 2)])
def test_more_shards_than_threads_are_written_if_the_disk_is_waited_for(
    tmp_path, is_durable, n, monkeypatch
):
    """Each wait for a disk ends when all shards wait, or others are waited for."""
    write = WriteOptions(durable=is_durable)
    a = gpushard.create_array(
        tmp_path,
        shape=(4, 1 << 20),
        dtype="i4",
        chunks=(1, 1 << 20),
        options=gpushard.Options(threads=2, write=write),
    )
    threads, all_are_here = set[int](), threading.Barrier(n)
    replace_file = LockedFile.replace

    def replaced(file, *args):
        threads.add(threading.get_ident())
        all_are_here.wait(30)
        replace_file(file, *args)

    monkeypatch.setattr(LockedFile, "replace", replaced)
    a[...] = 1
    assert len(threads) == n


def test_the_largest_shard_says_how_many_are_written_at_once(tmp_path):
    grid = rectilinear([1, 4096, 4096], 1)
    meta = document(shape=[8193, 1], chunk_grid=grid)
    (tmp_path / "zarr.json").write_text(json.dumps(meta))
    options = gpushard.Options(threads=4, memory_limit=6 * 4096 * 4)
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    assert a.dtype.itemsize == 4
    assert n_shards_at_once(a.source) == 2


CHAINS = {
    "bytes": {"compressors": None},
    "big-endian": {"compressors": None, "serializer": BytesCodec(endian="big")},
    "zstd": {"compressors": [ZstdCodec(), Crc32cCodec()]},
    "blosc": {"compressors": [BloscCodec(shuffle="bitshuffle")]},
    "turned gzip": {"compressors": [GzipCodec()], "filters": [Turned(order=(1, 0))]},
    "numcodecs": {
        "compressors": [{"name": "numcodecs.lz4", "configuration": {}}],
        "filters": [{"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}],
    },
}


def array_of(chunks, **codecs):
    dtype = np.dtype("i4")
    return gpushard.create_array(
        MemoryStore(), shape=chunks, dtype=dtype, chunks=chunks, **codecs
    )


def encoder_of(chunks, **codecs):
    layout = array_of(chunks, **codecs).source.layout
    return ChainEncoder(layout.chain, layout.elements)


def arrays_of(n, shape):
    rng = np.random.default_rng(3)
    return rng.integers(0, 9, (n, *shape)).astype("i4")


@pytest.mark.parametrize("way", ["functions", "objects", "event loop"])
@pytest.mark.parametrize("chain", CHAINS)
def test_each_way_to_encode_gives_what_decodes_to_the_array(chain, way, monkeypatch):
    if way != "event loop":
        if not hasattr(ZstdCodec, "_encode_sync") and (
            way == "objects" or "filters" in CHAINS[chain]
        ):
            pytest.skip("this zarr's codecs (before 3.2) need an event loop")
        monkeypatch.setattr(chain_encoder, "sync", None)
    else:
        monkeypatch.setattr(chain_encoder._Step, "runs_here", False)
    if way != "functions":
        monkeypatch.setattr(chain_encoder, "compressor", lambda *_: None)
        monkeypatch.setattr(chain_encoder, "_to_bytes", lambda *_: None)
    a = array_of((16, 8), **CHAINS[chain])
    layout, arrays = a.source.layout, arrays_of(5, (16, 8))
    stored, encoded = ChainEncoder(layout.chain, layout.elements).encode(arrays)
    assert stored.tolist() == [*range(5)]
    for payload, array in zip(encoded.items(), arrays, strict=True):
        decoded = a.source.pipeline.decode(payload, (16, 8))
        assert np.array_equal(decoded, array)


@pytest.mark.parametrize(("side", "n_threads"), [(16, 1), (128, 3)])
@pytest.mark.parametrize("own", [True, False])
def test_large_inner_chunks_are_encoded_side_by_side(monkeypatch, side, n_threads, own):
    if not own and not hasattr(BloscCodec, "_encode_sync"):
        pytest.skip("this zarr's codecs (before 3.2) need an event loop")
    asked = []

    def noting(function, items, n_workers):
        asked.append(n_workers)
        return run_side_by_side(function, items, n_workers)

    if not own:
        monkeypatch.setattr(chain_encoder, "compressor", lambda *_: None)
    for module in (chain_encoder, compressing):
        monkeypatch.setattr(module, "run_side_by_side", noting)
    encoder = encoder_of((side, side), compressors=[BloscCodec()])
    arrays = arrays_of(5, (side, side))
    found = encoder.encode(arrays, 3)[1].items()
    assert asked == [n_threads]
    alone = [encoder.encode_one(array) for array in arrays]
    assert [one.tobytes() for one in found] == [one.tobytes() for one in alone]


def test_arrays_of_another_shape_are_encoded_as_such():
    encoder = encoder_of((16, 8), compressors=[BloscCodec()])
    for shape in ((16, 8), (4, 8), (16, 8)):
        (array,) = arrays_of(1, shape)
        found = encoder.encode_one(array)
        expected = encoder_of(shape, compressors=[BloscCodec()]).encode_one(array)
        assert found.tobytes() == expected.tobytes()


def test_arrays_that_a_codec_does_not_store_are_left_out(monkeypatch):
    by_zarr = chain_encoder._Step.by_zarr

    def stored(self, items, n_threads):
        found = by_zarr(self, items, n_threads)
        pairs = zip(items, found, strict=True)
        return [data if np.any(item) else None for item, data in pairs]

    monkeypatch.setattr(chain_encoder, "compressor", lambda *_: None)
    monkeypatch.setattr(chain_encoder._Step, "by_zarr", stored)
    a = array_of((4, 4), compressors=[GzipCodec(), ZstdCodec()])
    encoder = ChainEncoder(a.source.layout.chain, a.source.layout.elements)
    arrays = 1 + arrays_of(4, (4, 4))
    arrays[[0, 2]] = 0
    numbers, encoded = encoder.encode(arrays)
    assert numbers.tolist() == [1, 3]
    for payload, number in zip(encoded.items(), numbers, strict=True):
        assert np.array_equal(a.source.pipeline.decode(payload, (4, 4)), arrays[number])
    assert encoder.encode_one(arrays[0]) is None

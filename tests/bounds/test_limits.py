"""What bounds a read, and what happens at the bounds."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import warnings

import numpy as np
import pytest
import zarr
from zarr.codecs import ZstdCodec
from zarr.core.buffer import cpu
from zarr.storage import MemoryStore

import gpushard
from gpushard.codecs.gzip import gzip_from_spec
from gpushard.errors import CorruptShardError, OptionError
from gpushard.layout import CodecSpec
from gpushard.options import KIB, MIB
from gpushard.stores.base import FetchCosts
from gpushard.stores.local.store import LocalStore


def codec(name, **configuration):
    return {"name": name, "configuration": configuration}


def held(objects):
    buffers = {key: cpu.Buffer.from_bytes(data) for key, data in objects.items()}
    return MemoryStore(buffers)


def store_whole(place, values, **layout):
    """Array of `values`. zarr 3.1.0 loses some where `create_array` is given them."""
    made = zarr.create_array(place, shape=values.shape, dtype=values.dtype, **layout)
    made[...] = values


LITTLE = codec("bytes", endian="little")


def one_shard(n_chunks, payload):
    """Array of one shard of one-byte inner chunks that share `payload`'s bytes."""
    entries = np.empty((n_chunks, 2), "<u8")
    entries[:, 0] = np.arange(n_chunks) if payload else 2**64 - 1
    entries[:, 1] = 1 if payload else 2**64 - 1
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [n_chunks],
        "data_type": "uint8",
        "chunk_grid": codec("regular", chunk_shape=[n_chunks]),
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 7,
        "codecs": [
            codec(
                "sharding_indexed",
                chunk_shape=[1],
                codecs=[LITTLE],
                index_codecs=[LITTLE],
            )
        ],
    }
    stored = {
        "zarr.json": json.dumps(document).encode(),
        "c/0": payload + entries.tobytes(),
    }
    return gpushard.open_array(held(stored))


@pytest.mark.parametrize("is_present", [True, False])
def test_memory_beside_the_output_is_a_few_columns(is_present):
    n_chunks = 100_000
    payload = bytes(n_chunks) if is_present else b""
    a = one_shard(n_chunks, payload)
    out = np.empty(n_chunks, "u1")
    tracemalloc.start()
    try:
        a.read(out=out, memory_limit=MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert set(out) == ({0} if is_present else {7})
    assert peak < 300 * n_chunks + 4 * MIB


def test_a_smaller_memory_limit_makes_smaller_requests(tmp_path):
    values = np.random.default_rng(0).integers(0, 255, (64, 64, 256), "u1")
    store_whole(
        tmp_path,
        values,
        chunks=(1, 64, 256),
        shards=(64, 64, 256),
        compressors=None,
    )
    taken = []

    def largest(limit):
        # The compiled loops hold a window, and make no requests.
        options = gpushard.Options(threads=2, compile_nbytes=2**62)
        a = gpushard.open_array(tmp_path, options=options)
        store = a.source.store
        read = store.read
        taken.clear()

        def spy(requests):
            taken.extend(requests)
            return read(requests)

        store.read = spy
        np.testing.assert_array_equal(a.read(memory_limit=limit), values)
        return max(r.stop - r.start for r in taken if r.stop is not None)

    assert largest(64 * KIB) <= 32 * KIB < largest(None)


def test_members_of_gzip_share_one_limit():
    decoder = gzip_from_spec(CodecSpec("gzip", {"level": 1}))
    members = gzip.compress(bytes(600)) + gzip.compress(bytes(600))
    assert len(decoder.decode(members, 1200, exact=True)) == 1200
    with pytest.raises(CorruptShardError):
        decoder.decode(members, 1000, exact=False)


class CostlyRequests(LocalStore):
    """A store that claims to be behind a network, and counts what it is asked."""

    asked = ()

    @property
    def costs(self):
        return FetchCosts(0, MIB, 4, prefers_whole_objects=True)

    def read(self, requests):
        self.asked = [*self.asked, *requests]
        return super().read(requests)

    def current_version(self, key):
        return False, None


@pytest.mark.parametrize(("n_rows", "is_whole"), [(5, False), (6, True), (8, True)])
def test_a_shard_is_fetched_whole_from_three_quarters_on(tmp_path, n_rows, is_whole):
    values = np.arange(64, dtype="u1").reshape(8, 8)
    store_whole(tmp_path, values, chunks=(1, 8), shards=(8, 8), compressors=ZstdCodec())
    store = CostlyRequests(tmp_path)
    a = gpushard.open_array(store)
    store.asked = ()
    np.testing.assert_array_equal(a[:n_rows], values[:n_rows])
    assert (store.asked[0].stop is None and store.asked[0].start == 0) is is_whole
    assert (len(store.asked) == 1) is is_whole


@pytest.mark.parametrize(("most", "is_whole"), [(63, False), (64, True)])
def test_a_shard_above_the_limit_is_never_fetched_whole(tmp_path, most, is_whole):
    values = np.arange(64, dtype="u1").reshape(8, 8)
    store_whole(tmp_path, values, chunks=(1, 8), shards=(8, 8), compressors=ZstdCodec())
    store = CostlyRequests(tmp_path)
    options = gpushard.Options(whole_object_max_nbytes=most)
    a = gpushard.open_array(store, options=options)
    store.asked = ()
    np.testing.assert_array_equal(a[...], values)
    assert (len(store.asked) == 1) is is_whole


@pytest.mark.parametrize("small_read_chunks", [0, 8])
def test_a_cast_that_overflows_warns_nobody(tmp_path, small_read_chunks):
    values = np.full((4, 4), 1e30, "f4")
    store_whole(tmp_path, values, chunks=(2, 2), shards=(4, 4))
    options = gpushard.Options(small_read_chunks=small_read_chunks)
    a = gpushard.open_array(tmp_path, options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(a.read(dtype="f2")).all()


@pytest.mark.parametrize("compile_nbytes", [0, 2**62])
@pytest.mark.parametrize("shards", [None, (4, 4)])
def test_a_fill_value_that_overflows_warns_nobody(tmp_path, shards, compile_nbytes):
    grid = {"shape": (8, 4), "chunks": (2, 2), "shards": shards}
    gpushard.create_array(tmp_path, dtype="f4", fill_value=1e20, **grid)[:1] = 0
    options = gpushard.Options(small_read_chunks=0, compile_nbytes=compile_nbytes)
    a = gpushard.open_array(tmp_path, options=options)
    want = [False] + [True] * 7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(a.read(dtype="f2")[:, 0]).tolist() == want
        (batch,) = gpushard.Loader(a, batch_size=8, dtype="f2", num_threads=1)
    assert np.isinf(batch[:, 0]).tolist() == want


@pytest.mark.parametrize(
    "knobs",
    [
        {"threads": 0},
        {"threads": "x"},
        {"threads": 1.5},
        {"batch_nbytes": 0},
        {"memory_limit": -1},
        {"memory_limit": "1G"},
        {"memory_limit": True},
        {"file_handles": -1},
        {"whole_object_fraction": 7},
        {"whole_object_fraction": float("nan")},
    ],
)
def test_a_knob_out_of_its_bounds_is_refused(knobs):
    with pytest.raises(OptionError, match=next(iter(knobs))):
        gpushard.Options(**knobs)


@pytest.mark.parametrize("limit", ["1G", -1, 1.5, 0])
def test_a_memory_limit_that_is_none_is_refused_for_any_read(tmp_path, limit):
    store_whole(tmp_path, np.arange(8), chunks=(2,), shards=(4,))
    with pytest.raises(OptionError, match="memory_limit"):
        gpushard.open_array(tmp_path).read(0, memory_limit=limit)


def test_every_error_tells_which_array(tmp_path):
    store_whole(tmp_path / "a", np.arange(8), chunks=(2,), shards=(4,))
    a = gpushard.open_array(tmp_path / "a")
    url = (tmp_path / "a").as_uri()
    for read in (
        lambda: a[9],
        lambda: a.oindex[[99]],
        lambda: a.vindex[[0], [0]],
        lambda: a.blocks[7],
        lambda: a.read(dtype="bogus"),
        lambda: a.read(out=np.empty(3)),
    ):
        with pytest.raises(gpushard.SelectionError) as caught:
            read()
        assert url in str(caught.value) or caught.value.array_path == ""
    (tmp_path / "a" / "zarr.json").write_text("{")
    with pytest.raises(gpushard.MetadataError) as caught:
        gpushard.open_array(tmp_path / "a")
    assert url in str(caught.value)


@pytest.mark.parametrize("name", ["numcodecs.shuffle", "numcodecs.delta"])
def test_an_index_may_be_rearranged(name):
    values = np.arange(4, dtype="u1")
    entries = np.array([[i, 1] for i in range(4)], "<u8")
    if name == "numcodecs.shuffle":
        index_codecs = [LITTLE, codec(name, elementsize=8)]
        index = entries.view("u1").reshape(-1, 8).T.tobytes()
    else:
        index_codecs = [codec(name, dtype="<u8"), LITTLE]
        index = np.diff(entries.reshape(-1), prepend=np.uint64(0)).tobytes()
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "uint8",
        "chunk_grid": codec("regular", chunk_shape=[4]),
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [
            codec(
                "sharding_indexed",
                chunk_shape=[1],
                codecs=[LITTLE],
                index_codecs=index_codecs,
            )
        ],
    }
    stored = {
        "zarr.json": json.dumps(document).encode(),
        "c/0": values.tobytes() + index,
    }
    np.testing.assert_array_equal(gpushard.open_array(held(stored))[...], values)


@pytest.mark.parametrize("length", [1, 7])
def test_strings_of_no_whole_characters_are_refused(tmp_path, length):
    zarr.create_array(tmp_path, shape=(2,), dtype="i4")
    document = json.loads((tmp_path / "zarr.json").read_text())
    document["data_type"] = codec("fixed_length_utf32", length_bytes=length)
    document["fill_value"] = ""
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(gpushard.MetadataError, match="whole number of characters"):
        gpushard.open_array(tmp_path)

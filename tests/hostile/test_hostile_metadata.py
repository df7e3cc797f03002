"""Metadata that asks for too much, or for what no reader should do."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import gpushard
from array_strategies import codec
from damaged_arrays import WAYS, on_host, opened
from gpushard.errors import MetadataError, StoreError, UnsupportedError
from hostile_shards import ZSTD
from spec_shards import CRC, LITTLE, document, shard_of, sharding
from zarr_oracle import held, write

REFUSED = (MetadataError, UnsupportedError)


def opening(meta):
    return gpushard.open_array(held({"zarr.json": json.dumps(meta).encode()}))


def test_an_index_of_2_to_the_40_entries_is_refused_at_once():
    with pytest.raises(UnsupportedError, match="index is too large"):
        opening(document((2**40,), (2**40,), sharding((1,))))


@pytest.mark.parametrize("way", WAYS)
def test_a_small_slice_of_2_to_the_40_elements_costs_what_the_slice_costs(way):
    meta = document((2**40,), (64,), sharding((8,)), fill_value=3)
    objects = {
        "zarr.json": json.dumps(meta).encode(),
        f"c/{2**30}": shard_of(*[bytes([k] * 8) for k in range(8)]),
    }
    a = opened(held(objects), way)
    start = 2**36
    got = on_host(a[start - 2 : start + 10])
    assert got.tolist() == [3, 3, *([0] * 8), 1, 1]


def test_a_chain_of_absurd_length_is_refused():
    ours = json.dumps(document((8,), (8,), LITTLE, *[CRC] * 300)).encode()
    filters = [{"id": "crc32"}] * 300
    v2 = {"zarr_format": 2, "shape": [8], "chunks": [8], "dtype": "|u1", "order": "C"}
    v2 |= {"compressor": None, "fill_value": 0, "filters": filters}
    for documents in ({"zarr.json": ours}, {".zarray": json.dumps(v2).encode()}):
        with pytest.raises(UnsupportedError, match="too many codecs") as caught:
            gpushard.open_array(held(documents))
        assert caught.value.json_path in ("codecs", "filters")
        assert caught.value.got == 300 + ("zarr.json" in documents)
        assert str(caught.value).endswith(f"got {caught.value.got}.")


@pytest.mark.parametrize("depth", [9, 100, 300])
def test_a_shard_nested_too_deep_is_refused(depth):
    inner = sharding((1,))
    for _ in range(depth):
        inner = sharding((1,), codecs=[inner])
    with pytest.raises(REFUSED):
        opening(document((1,), (1,), inner))


@pytest.mark.parametrize(
    "name", ["numcodecs.pickle", "pickle", "numcodecs.json2", "os.system", "../x", ""]
)
def test_codecs_that_run_code_or_do_not_exist_are_refused(name):
    for codecs in ([codec(name)], [LITTLE, codec(name)]):
        with pytest.raises(REFUSED):
            opening(document((8,), (8,), *codecs))


@pytest.mark.parametrize(
    "name", ["pickle", "json2", "msgpack2", "dill", "cloudpickle", "numcodecs.pickle"]
)
def test_codecs_that_make_objects_are_refused_whoever_has_registered_them(name):
    with pytest.raises(gpushard.MetadataError, match="never read"):
        opening(document((8,), (8,), LITTLE, codec(name)))


@pytest.mark.parametrize("separator", ["../", "..", "", "\\", "//", "\0", 1, None])
def test_no_separator_leads_out_of_the_array(separator):
    meta = document((8,), (8,), LITTLE)
    for name in ("default", "v2"):
        meta["chunk_key_encoding"] = codec(name, separator=separator)
        with pytest.raises(REFUSED):
            opening(meta)


@pytest.mark.parametrize("path", ["..", "../b", "a/../../b", "a//b", "a/./b"])
def test_no_path_leads_out_of_the_store(path, tmp_path):
    (tmp_path / "a").mkdir()
    for place in ("b", "."):
        (tmp_path / place).mkdir(exist_ok=True)
        text = json.dumps(document((8,), (8,), LITTLE))
        (tmp_path / place / "zarr.json").write_text(text)
    with pytest.raises(gpushard.GpushardError):
        gpushard.open_array(tmp_path / "a", path)


@pytest.mark.parametrize("way", WAYS)
def test_a_directory_where_a_shard_belongs_is_an_error(way, tmp_path):
    text = json.dumps(document((64,), (64,), sharding((8,))))
    (tmp_path / "zarr.json").write_text(text)
    (tmp_path / "c/0").mkdir(parents=True)
    with pytest.raises(StoreError):
        opened(tmp_path, way)[0]


@pytest.mark.parametrize("way", WAYS)
def test_a_link_out_of_the_root_is_followed_only_by_a_store_that_may(way, tmp_path):
    from gpushard.stores.local.store import LocalStore

    shard = tmp_path / "elsewhere"
    shard.write_bytes(shard_of(*[bytes([k] * 8) for k in range(8)]))
    root = tmp_path / "a"
    (root / "c").mkdir(parents=True)
    (root / "zarr.json").write_text(json.dumps(document((64,), (64,), sharding((8,)))))
    os.symlink(shard, root / "c/0")
    with pytest.raises(StoreError):
        opened(root, way)[...]
    allowed = LocalStore(root, allow_symlinks_outside=True)
    assert np.array_equal(on_host(opened(allowed, way)[...]), np.arange(64) // 8)


@pytest.mark.parametrize("way", WAYS)
def test_a_checksum_around_the_shard_is_verified_in_partial_reads(way, tmp_path):
    meta = document((64,), (64,), sharding((8,), codecs=[LITTLE, ZSTD]), CRC)
    whole = write(meta, [((slice(None),), np.arange(64, dtype="u1") + 1)])
    shard = bytearray(whole.objects["c/0"])
    for at in range(0, len(shard), 7):
        shard[at] ^= 16
        a = opened(held({**whole.objects, "c/0": bytes(shard)}), way)
        with pytest.raises(gpushard.ChecksumError):
            a[3:5]
        shard[at] ^= 16

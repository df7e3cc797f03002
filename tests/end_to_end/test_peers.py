"""Arrays that tensorstore and zarrs write are read as what was written."""

from __future__ import annotations

import itertools
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import zarr

import gpushard
from array_strategies import codec
from zarr_oracle import assert_same_bits, quiet_zarr

LITTLE, BIG, CRC = (
    codec("bytes", endian="little"),
    codec("bytes", endian="big"),
    {"name": "crc32c"},
)
ZSTD = codec("zstd", level=1)
BLOSC = codec(
    "blosc", cname="lz4", clevel=5, shuffle="bitshuffle", typesize=4, blocksize=0
)


def sharding(
    chunk_shape, *codecs, index_codecs=(LITTLE, CRC), location="end"
) -> dict[str, Any]:
    return codec(
        "sharding_indexed",
        chunk_shape=list(chunk_shape),
        codecs=list(codecs),
        index_codecs=list(index_codecs),
        index_location=location,
    )


CHAINS = {
    "unsharded": [LITTLE, ZSTD],
    "zstd": [sharding([4, 4], LITTLE, ZSTD)],
    "gzip": [sharding([4, 4], LITTLE, codec("gzip", level=2))],
    "blosc": [sharding([4, 4], LITTLE, BLOSC)],
    "raw big-endian": [sharding([4, 4], BIG)],
    "crc32c within": [sharding([4, 4], LITTLE, ZSTD, CRC)],
    "index at the start": [sharding([4, 4], LITTLE, ZSTD, location="start")],
    "plain index": [sharding([4, 4], LITTLE, index_codecs=[BIG])],
    "transpose within": [
        sharding([4, 4], codec("transpose", order=[1, 0]), LITTLE, ZSTD)
    ],
    "transpose around": [
        codec("transpose", order=[1, 0]),
        sharding([2, 4], LITTLE, ZSTD),
    ],
    "nested": [sharding([4, 8], sharding([4, 2], LITTLE, ZSTD, location="start"))],
}

# What only one of them writes: zarr-python compares the inner chunk shape with the
# shard before it is turned, and tensorstore refuses codecs behind a sharding codec.
ONLY_TENSORSTORE = {
    "uneven unless turned": [
        codec("transpose", order=[1, 0]),
        sharding([16, 4], LITTLE),
    ],
}
ONLY_ZARRS = {"crc32c around": [sharding([4, 4], LITTLE), CRC]}


def document(codecs, dtype="int32", fill_value: Any = 0) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [21, 19],
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 16]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": codecs,
    }


def numbers(dtype: Any) -> np.ndarray:
    values = np.random.default_rng(5).integers(0, 100, (21, 19))
    return values.astype(dtype)


def write_with_tensorstore(place, metadata: dict[str, Any]) -> Any:
    reason = "tensorstore is not installed"
    tensorstore = pytest.importorskip("tensorstore", reason=reason)
    kvstore = {"driver": "file", "path": str(place)}
    spec = {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata, "create": True}
    return tensorstore.open(spec).result()


def assert_read_back(place, want: np.ndarray) -> None:
    a = gpushard.open_array(place)
    assert_same_bits(a[...], want)
    for key in (np.s_[3:20:4, ::-1], np.s_[7], np.s_[-1, 5:], np.s_[8:16, 0:16]):
        assert_same_bits(a[key], want[key])
    rows = [20, 0, 8, 7, 7]
    assert_same_bits(a.oindex[rows, 2:], want[rows, 2:])


def named(chains: dict[str, Any]) -> Any:
    return pytest.mark.parametrize("codecs", chains.values(), ids=chains.keys())


@named(CHAINS | ONLY_TENSORSTORE)
def test_arrays_of_tensorstore(codecs, tmp_path):
    theirs = write_with_tensorstore(tmp_path / "a", document(codecs))
    values = numbers("i4")
    theirs[...] = values
    assert_read_back(tmp_path / "a", values)


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint16", "uint64", "float16", "float64", "complex64", "bfloat16"],
)
def test_data_types_of_tensorstore(dtype, tmp_path):
    fill: Any = [0, 0] if dtype == "complex64" else 0 if dtype != "bool" else False
    metadata = document(CHAINS["zstd"], dtype, fill)
    theirs = write_with_tensorstore(tmp_path / "a", metadata)
    values = numbers(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    theirs[...] = values
    assert_read_back(tmp_path / "a", values)


@pytest.mark.parametrize("name", ["zstd", "nested", "raw big-endian"])
def test_partly_written_arrays_of_tensorstore(name, tmp_path):
    theirs = write_with_tensorstore(tmp_path / "a", document(CHAINS[name], "int32", 9))
    want = np.full((21, 19), 9, "i4")
    for region in (np.s_[2:11, 3:5], np.s_[16:, 17:], np.s_[2:3, :]):
        values = numbers("i4")[region]
        theirs[region] = values
        want[region] = values
    assert_read_back(tmp_path / "a", want)


def test_shards_that_tensorstore_wrote_twice(tmp_path):
    theirs = write_with_tensorstore(tmp_path / "a", document(CHAINS["zstd"]))
    theirs[...] = numbers("i4")
    a = gpushard.open_array(tmp_path / "a")
    assert_same_bits(a[...], numbers("i4"))
    theirs[5:9] = 3
    want = numbers("i4")
    want[5:9] = 3
    assert_same_bits(a[...], want)


@pytest.fixture
def zarrs_pipeline():
    """zarr-python with zarrs as its codec pipeline."""
    pytest.importorskip("zarrs", reason="zarrs is not installed")
    with (
        quiet_zarr(),
        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}),
    ):
        yield


@named(CHAINS | ONLY_ZARRS)
def test_arrays_of_zarrs(codecs, tmp_path, zarrs_pipeline):
    theirs = write_with_zarrs(tmp_path / "a", document(codecs))
    values = numbers("i4")
    theirs[...] = values
    assert_read_back(tmp_path / "a", values)


@pytest.mark.parametrize(
    ("chunks", "shards"), list(itertools.product([(1, 1), (3, 5)], [None, (9, 10)]))
)
def test_chunk_shapes_of_zarrs(chunks, shards, tmp_path, zarrs_pipeline):
    theirs = zarr.create_array(
        tmp_path / "a", shape=(21, 19), chunks=chunks, shards=shards, dtype="f8"
    )
    assert_written_by_zarrs(theirs)
    theirs[...] = numbers("f8")
    assert_read_back(tmp_path / "a", numbers("f8"))


def write_with_zarrs(place, metadata: dict[str, Any]) -> Any:
    place.mkdir()
    (place / "zarr.json").write_text(json.dumps(metadata))
    theirs = zarr.open_array(place, mode="r+")
    assert_written_by_zarrs(theirs)
    return theirs


def assert_written_by_zarrs(theirs: Any) -> None:
    pipeline = theirs._async_array.codec_pipeline
    assert type(pipeline).__name__ == "ZarrsCodecPipeline"

"""The encodings of xarray's engine say how arrays are stored, as zarr's own do."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
)

xr = pytest.importorskip("xarray", reason="xarray is an extra")

CODECS = ("filters", "serializer", "compressors")
WAYS = {
    "none": {"compressors": None},
    "blosc, crc32c": {
        "compressors": [BloscCodec(cname="lz4", shuffle="bitshuffle"), Crc32cCodec()],
        "shards": (8, 8),
    },
    "gzip, big-endian": {
        "compressors": [GzipCodec(level=3)],
        "serializer": BytesCodec(endian="big"),
    },
    "transposed": {"filters": [TransposeCodec(order=(1, 0))], "shards": (8, 4)},
}


def made(place, **how):
    values = np.arange(128, dtype="f4").reshape(16, 8)
    z = zarr.create_group(place).create_array(
        "v",
        shape=values.shape,
        dtype="f4",
        chunks=(4, 4),
        dimension_names=("y", "x"),
        **how,
    )
    z[...] = values
    return z


def opened(place, engine="gpushard", **how):
    return xr.open_dataset(place, engine=engine, **how)


@pytest.mark.parametrize("way", WAYS)
def test_encodings_have_the_codecs_of_xarrays_own_engine(tmp_path, way):
    made(tmp_path / "a", **WAYS[way])
    ours = opened(tmp_path / "a").v.encoding
    theirs = opened(tmp_path / "a", "zarr", consolidated=False).v.encoding
    for key in CODECS:
        assert ours[key] == theirs[key]


@pytest.mark.parametrize("way", WAYS)
def test_to_zarr_writes_with_the_codecs_that_were_read(tmp_path, way):
    z = made(tmp_path / "a", **WAYS[way])
    with opened(tmp_path / "a") as found:
        found.to_zarr(tmp_path / "b", consolidated=False)
    copy = zarr.open_array(tmp_path / "b/v", mode="r")
    assert copy.metadata.codecs == z.metadata.codecs
    np.testing.assert_array_equal(copy[...], z[...])


# zarr says so of shards with codecs around them.
@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
def test_codecs_that_to_zarr_has_no_words_for_are_left_out(tmp_path):
    inner = ShardingCodec(chunk_shape=(4, 4))
    made(
        tmp_path / "nested",
        serializer=ShardingCodec(chunk_shape=(4, 4), codecs=[inner]),
    )
    made(tmp_path / "wrapped", serializer=inner, compressors=[GzipCodec()])
    turned = [TransposeCodec(order=(1, 0))]
    made(tmp_path / "turned", serializer=inner, filters=turned, compressors=None)
    for name in ("nested", "wrapped", "turned"):
        encoding = opened(tmp_path / name).v.encoding
        assert not encoding.keys() & set(CODECS)


def test_codecs_of_zarr_v2_are_left_out(tmp_path):
    """`to_zarr` makes arrays of Zarr v3, which have others."""
    z = zarr.create_group(tmp_path, zarr_format=2).create_array(
        "v", shape=(4,), dtype="f4", attributes={"_ARRAY_DIMENSIONS": ["x"]}
    )
    z[...] = 1
    found = opened(tmp_path)
    assert not found.v.encoding.keys() & set(CODECS)
    found.to_zarr(tmp_path / "b", consolidated=False)

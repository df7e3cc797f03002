"""Structs are read in the compiled loops where their fields are stored as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, ZstdCodec

import gpushard
from fused_cases import (
    FUSED,
    VALUES,
    assert_all_fused,
    kind_of_sink,
    need_fast_packages,
    take_way,
)
from gpushard.fused.sink import FusedSink
from gpushard.placing.place import HostSink
from zarr_oracle import quiet_zarr

need_fast_packages()

KIND = np.dtype([("x", "f4"), ("y", "i2"), ("inside", [("is", "?"), ("z", "f8")])])
NAMES = ("x", "y", "inside")
STRUCTS = np.zeros(VALUES.shape, KIND)
STRUCTS["x"], STRUCTS["y"], STRUCTS["inside"]["z"] = VALUES, -VALUES, VALUES / 7
STRUCTS["inside"]["is"] = VALUES % 2 == 0
FILL = STRUCTS[3, 5]


def written(place, endian, dtype=KIND, values=STRUCTS, options=FUSED):
    with quiet_zarr():
        z = zarr.create_array(
            place,
            shape=(164, 90),
            dtype=dtype,
            chunks=(32, 16),
            shards=(64, 64),
            compressors=ZstdCodec(),
            serializer=BytesCodec(endian=endian),
            fill_value=values[3, 5],
        )
        z[:100] = values
    return gpushard.open_array(place, options=options)


def assert_same(got, want):
    assert got.dtype == want.dtype
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("way", ["whole", "requests", "short", "one call"])
def test_structs_take_every_way_of_the_loops(way, tmp_path, seen, monkeypatch):
    a = written(tmp_path, "little")
    take_way(monkeypatch, way)
    assert_same(a[:100], STRUCTS)
    assert_same(a[90:3:-7, 2:80:3], STRUCTS[90:3:-7, 2:80:3])
    assert_same(a.oindex[[60, 3, 3]], STRUCTS[[60, 3, 3]])
    assert_same(a.vindex[[60, 3], [2, 80]], STRUCTS[[60, 3], [2, 80]])
    assert_same(a[128:], np.full((36, 90), FILL, KIND))
    assert_all_fused(seen)


@pytest.mark.usefixtures("settled")
def test_a_struct_of_one_inner_chunk_is_a_scalar_as_before(tmp_path):
    a = written(tmp_path, "little", options=FUSED.but(small_read_chunks=8))
    a[...]
    assert a[7, 9] == STRUCTS[7, 9]
    assert type(a[7, 9]) is np.void
    assert_same(a[7, 3:9], STRUCTS[7, 3:9])


def test_structs_that_change_take_the_plain_way_or_change_after_the_loops(
    tmp_path, seen
):
    pairs = np.zeros(VALUES.shape, [("x", "f4"), ("y", "i4")])  # as long as a number
    pairs["x"], pairs["y"] = VALUES, -VALUES
    assert_same(written(tmp_path / "big", "big", pairs.dtype, pairs)[:100], pairs)
    assert kind_of_sink(seen) is HostSink
    swapped = np.empty(pairs.shape, pairs.dtype.newbyteorder())
    written(tmp_path / "pairs", "little", pairs.dtype, pairs).read(
        np.s_[:100], out=swapped
    )
    assert kind_of_sink(seen) is FusedSink
    assert_same(swapped.astype(pairs.dtype), pairs)
    places = {"offsets": [0, 8, 16], "itemsize": 32}
    formats = [KIND[name] for name in NAMES]
    layout: Any = {"names": NAMES, "formats": formats} | places
    padded = np.dtype(layout)
    memory = np.full((100, 90, 32), 7, "u1")
    out = memory.view(padded)[..., 0]
    written(tmp_path / "little", "little").read(np.s_[:100], out=out)
    assert kind_of_sink(seen) is FusedSink
    assert all((out[name] == STRUCTS[name]).all() for name in NAMES)
    assert (memory[..., 4:8] == 7).all()
    assert (memory[..., 10:16] == 7).all()

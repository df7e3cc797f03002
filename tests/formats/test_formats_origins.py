"""Where documents say that a window begins: v3 attributes, `.zarray`, `.zattrs`."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gpushard
from gpushard.chunk_keys import ChunkKeys
from gpushard.metadata import parse_array
from gpushard.rolling import RollingArray
from historic_arrays import all_chunks, json_bytes, prototype_document
from places import INTEROP
from rolling_arrays import document, rolling
from zarr_oracle import held

VALUES = np.arange(6, dtype="<i2")


def rolled(attributes=None, **changes):
    """Array of Zarr v2 whose stored chunks begin at -2."""
    arguments = {"shards": ..., "shard_format": ..., "fill_value": -1} | changes
    described = prototype_document(VALUES, (2,), (1,), **arguments)
    chunks = all_chunks(VALUES, (2,))
    objects = {str(at[0] - 2): data for at, data in chunks.items()}
    told = {} if attributes is None else {".zattrs": json_bytes(attributes)}
    return held({".zarray": json_bytes(described), **told, **objects})


@pytest.mark.parametrize("attributes", [None, {}, {"_offset": [-2]}, {"_offset": None}])
def test_an_origin_in_the_document_of_v2_is_read(attributes):
    store = rolled(attributes, origin=[-2])
    assert gpushard.open_array(store)[...].tolist() == VALUES.tolist()
    a = RollingArray.open(store)
    assert a.domain == (range(-4, 2),)
    assert a.at[-1] == 3
    assert a[-1] == 5


@pytest.mark.parametrize("origin", [None, []])
def test_no_origin_is_zero(origin):
    a = RollingArray.open(rolled(origin=origin))
    assert a[...].tolist() == [4, 5, -1, -1, -1, -1]
    assert a.domain == (range(6),)


@pytest.mark.parametrize("origin", [[1, 2], "x", [0.5], [True], 3, [2**63]])
def test_an_origin_of_v2_that_is_none_is_refused(origin):
    with pytest.raises(gpushard.MetadataError) as caught:
        gpushard.open_array(rolled(origin=origin))
    assert caught.value.json_path == "origin"


def test_an_origin_and_an_offset_must_not_contradict_each_other():
    with pytest.raises(gpushard.MetadataError, match="contradicts"):
        gpushard.open_array(rolled({"_offset": [1]}, origin=[-2]))


def test_an_origin_of_prototype_ii_is_refused():
    store = rolled(origin=[1], shards=[1], shard_format="indexed")
    with pytest.raises(gpushard.UnsupportedError, match="chunks or shards"):
        gpushard.open_array(store)


def test_a_view_of_v2_is_written_to_by_nobody():
    a = RollingArray.open(rolled({"_offset": [-2]}))
    assert a.view(2)[...].tolist() == [2, 3, 4, 5]
    with pytest.raises(gpushard.UnsupportedError, match="Zarr v3"):
        a.append(VALUES[:2])


SAMPLES = INTEROP / "legacy" / "rolling"


def v3(tmp_path, **changes):
    rolling(tmp_path / "a", 0, 2)
    described = document(tmp_path / "a")
    described["attributes"] |= changes
    return described


@pytest.mark.parametrize("origin", [None, [1], [0.5, 0], "x", [True, 0], [2**63, 0]])
def test_an_origin_of_v3_that_is_none_is_refused(origin, tmp_path):
    with pytest.raises(gpushard.MetadataError) as caught:
        parse_array(v3(tmp_path, origin=origin), "a")
    assert caught.value.json_path == "attributes.origin"


def test_a_rolling_array_without_an_origin_is_refused(tmp_path):
    described = v3(tmp_path)
    del described["attributes"]["origin"]
    with pytest.raises(gpushard.MetadataError, match="no origin"):
        parse_array(described, "a")


def test_rolling_of_another_version_is_refused(tmp_path):
    with pytest.raises(gpushard.UnsupportedError) as caught:
        parse_array(v3(tmp_path, rolling={"version": 2}), "a")
    assert caught.value.json_path == "attributes.rolling.version"


def test_a_rectilinear_grid_cannot_roll(tmp_path):
    described = v3(tmp_path)
    described["codecs"] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    described["chunk_grid"] = {
        "name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [[2], [2, 4]]},
    }
    with pytest.raises(gpushard.UnsupportedError, match="rectilinear"):
        parse_array(described, "a")


@pytest.mark.parametrize("tags", [[], "x", {"type": 1}])
def test_tags_that_are_none_are_refused_by_who_writes(tags, tmp_path):
    described = v3(tmp_path, rolling={"version": 1, "tags": tags})
    (tmp_path / "a/zarr.json").write_text(json.dumps(described))
    a = RollingArray.open(tmp_path / "a")
    assert a.shape == (2, 6)
    if tags:
        with pytest.raises(gpushard.MetadataError, match="tags"):
            a.drop(2)


@pytest.mark.parametrize("separator", ["/", "."])
@pytest.mark.parametrize("kind", ["default", "v2"])
def test_coordinates_are_told_from_keys(kind, separator):
    keys = ChunkKeys(kind, separator, (5, -7))
    stored = ChunkKeys(kind, separator)
    for at in ((0, 0), (12, 3)):
        key = keys.key(at)
        assert keys.stored_coordinates(key, 2) == (at[0] + 5, at[1] - 7)
        assert stored.key((at[0] + 5, at[1] - 7)) == key
    for key in ("zarr.json", "c/0", "c.0", "0", "c/0/1/2", "c/a/b", "", "c/+1/0"):
        assert keys.stored_coordinates(key, 2) is None


@pytest.mark.parametrize(("name", "start"), [("rolled-1d", 3), ("rolled-missing", 2)])
def test_samples_of_the_first_writer_are_rolling_arrays(name, start):
    a = RollingArray.open(SAMPLES / name)
    want = np.load(SAMPLES / f"{name}.npy")
    assert a.domain == (range(start, start + 5),)
    assert np.array_equal(a[...], want)
    assert np.array_equal(a.at[start + 1 : start + 4], want[1:4])

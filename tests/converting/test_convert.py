"""`convert` carries every element and what belongs to it, into shards as asked for."""

from __future__ import annotations

import json

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.storage import MemoryStore

import gpushard

# zarr's own words on what some of these tests have it read and write.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in"),
    pytest.mark.filterwarnings("ignore:The data type"),
]

VALUES = np.random.default_rng(1).normal(size=(23, 31)).astype("f4")
VALUES[5, 7], VALUES[0, 0] = np.nan, -0.0
TARGET = {"shards": (8, 12), "chunks": (4, 6)}


def zarr_array(place, values=VALUES, **arguments):
    arguments = {"chunks": (5, 31), "fill_value": 0, **arguments}
    a = zarr.create_array(place, shape=values.shape, dtype=values.dtype, **arguments)
    a[...] = values
    return place


def historic(place, format_name):
    a = gpushard.create_array(
        place,
        format=format_name,
        shape=VALUES.shape,
        dtype="<f4",
        chunks=(3, 5),
        shards=(6, 10),
        filters=[numcodecs.Shuffle(4)],
        compressors=numcodecs.Blosc("lz4"),
        attributes={"units": "K"},
        device="cpu",
    )
    values = np.nan_to_num(VALUES)
    a[...] = values
    return place, values


def converted(src, dst, **arguments):
    report = gpushard.convert(src, dst, **{**TARGET, **arguments})
    return report, gpushard.open_array(dst, device="cpu")


def assert_same_bits(got, want):
    assert got.dtype == want.dtype
    assert got.tobytes() == want.tobytes()


def document(place) -> dict:
    return json.loads((place / "zarr.json").read_text())


SOURCES = {
    "v3": {},
    "sharded": {"chunks": (5, 4), "shards": (10, 16)},
    "index at the start": {
        "chunks": (5, 4),
        "shards": {"shape": (10, 16), "index_location": "start"},
    },
    "nested": {
        "chunks": (6, 8),
        "shards": (12, 16),
        "serializer": ShardingCodec(chunk_shape=(3, 4)),
        "compressors": None,
    },
    "transposed": {"filters": [TransposeCodec(order=(1, 0))]},
    "v2": {"zarr_format": 2, "compressors": numcodecs.Blosc("zstd", shuffle=-1)},
    "v2, order F": {"zarr_format": 2, "order": "F", "compressors": numcodecs.GZip(1)},
    "v2, zlib": {"zarr_format": 2, "compressors": numcodecs.Zlib(1)},
    "one chunk": {"chunks": (40, 40), "compressors": None},
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_kind_of_array_is_converted_bit_for_bit(name, tmp_path):
    if name == "v2":
        SOURCES[name]["filters"] = [numcodecs.Shuffle(4)]
    src = zarr_array(tmp_path / "src", **SOURCES[name])
    report, a = converted(src, tmp_path / "dst", verify=True)
    assert_same_bits(a[...], VALUES)
    assert (a.shards, a.chunks) == ((8, 12), (4, 6))
    assert_same_bits(zarr.open_array(tmp_path / "dst")[...], VALUES)
    (told,) = report.arrays.values()
    assert (told.n_shards, told.n_written, told.n_resumed) == (9, 9, 0)
    assert report.verified
    assert sorted(p.name for p in (tmp_path / "dst").iterdir()) == ["c", "zarr.json"]


@pytest.mark.parametrize("format_name", ["v3-draft-transformer", "v2-prototype-ii"])
def test_historic_arrays_are_converted(format_name, tmp_path):
    src, values = historic(tmp_path / "src", format_name)
    report, a = converted(src, tmp_path / "dst", verify=True)
    assert_same_bits(a[...], values)
    assert dict(a.attrs) == {"units": "K"}
    assert report.verified


@pytest.mark.parametrize("attributes", [{}, {"filters": "low-pass"}])
def test_attributes_of_the_draft_that_are_no_codecs_are_carried(attributes, tmp_path):
    made = {"shape": (4,), "chunks": (2,), "shards": (4,), "dtype": "i4"}
    src, name = tmp_path / "src", "v3-draft-transformer"
    gpushard.create_array(src, format=name, **made)
    (file,) = src.rglob("*.array.json")
    members = json.loads(file.read_text())
    file.write_text(json.dumps(members | {"attributes": attributes}))
    _, a = converted(src, tmp_path / "dst", chunks=2, shards=4)
    assert dict(a.attrs) == attributes


def test_a_rolled_array_is_converted_to_its_own_origin(tmp_path):
    src = zarr_array(tmp_path / "src", zarr_format=2, attributes={"_offset": [-1, 0]})
    want = gpushard.open_array(src, device="cpu")[...]
    _, a = converted(src, tmp_path / "dst")
    assert_same_bits(a[...], want)
    assert dict(a.attrs) == {}


@pytest.mark.parametrize(
    ("dtype", "fill_value"),
    [
        ("?", True),
        (">i2", -7),
        ("u8", 2**64 - 1),
        ("f2", np.nan),
        ("c8", 1 - 2j),
        ("<M8[s]", np.datetime64(3, "s")),
        ("<M8[10us]", 2**62),  # which NumPy cannot print
        ("<U3", "xyz"),
    ],
    ids=str,
)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_data_types_and_fill_values_are_carried(
    dtype, fill_value, zarr_format, tmp_path
):
    values = np.full((9, 7), fill_value, dtype)
    values[2:4] = np.zeros((), dtype)
    src = zarr_array(
        tmp_path / "src",
        values,
        chunks=(2, 3),
        fill_value=values[0, 0],
        zarr_format=zarr_format,
    )
    report, a = converted(src, tmp_path / "dst", chunks=(2, 2), shards=(4, 4))
    assert_same_bits(a[...], values.astype(a.dtype))
    assert a.fill_value.tobytes() == a[8, 6].tobytes()
    assert report.arrays[""].n_written == 2, "shards of fill value are none"


def test_the_bits_of_a_nan_in_the_fill_value_are_carried(tmp_path):
    src = zarr_array(tmp_path / "src")
    members = document(src) | {"fill_value": "0x7fc00123"}
    (src / "zarr.json").write_text(json.dumps(members))
    (src / "c" / "0" / "0").unlink()
    _, a = converted(src, tmp_path / "dst", verify=True)
    assert a[:5].view("u4").tolist() == np.full((5, 31), 0x7FC00123).tolist()


def test_attributes_and_names_of_dimensions_are_carried(tmp_path):
    attributes = {"units": "K", "nested": {"a": [1, None]}}
    src = zarr_array(
        tmp_path / "src", attributes=attributes, dimension_names=["y", None]
    )
    _, a = converted(src, tmp_path / "dst")
    assert dict(a.attrs) == attributes
    assert a.dimension_names == ("y", None)
    old = {"_ARRAY_DIMENSIONS": ["y", "x"], "units": "K"}
    zarr_array(tmp_path / "v2", zarr_format=2, attributes=old)
    _, a = converted(tmp_path / "v2", tmp_path / "new")
    assert dict(a.attrs) == {"units": "K"}
    assert a.dimension_names == ("y", "x")


def inner_codecs(place) -> list[str]:
    (sharding,) = document(place)["codecs"]
    return [codec["name"] for codec in sharding["configuration"]["codecs"]]


@pytest.mark.parametrize(
    ("source", "asked", "expected"),
    [
        ({"compressors": GzipCodec()}, {}, ["bytes", "gzip"]),
        ({"compressors": None}, {}, ["bytes"]),
        (
            {"zarr_format": 2, "compressors": numcodecs.Blosc("lz4")},
            {},
            ["bytes", "blosc"],
        ),
        ({"compressors": GzipCodec()}, {"compressors": None}, ["bytes"]),
        ({}, {"compressors": [BloscCodec(typesize=4)]}, ["bytes", "blosc"]),
        ({}, {"compressors": ZstdCodec(level=3)}, ["bytes", "zstd"]),
        (
            {"filters": [TransposeCodec(order=(1, 0))]},
            {},
            ["transpose", "bytes", "zstd"],
        ),
        (
            {"filters": [TransposeCodec(order=(1, 0))]},
            {"filters": None},
            ["bytes", "zstd"],
        ),
    ],
)
def test_codecs_are_the_sources_unless_asked_for(source, asked, expected, tmp_path):
    src = zarr_array(tmp_path / "src", **source)
    _, a = converted(src, tmp_path / "dst", **asked)
    assert inner_codecs(tmp_path / "dst") == expected
    assert_same_bits(a[...], VALUES)


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ([numcodecs.Delta("<i4")], ["numcodecs.delta"]),
        ([numcodecs.Delta("<i4", "<i2")], []),
        ([numcodecs.FixedScaleOffset(2, 3, "<i4", "<i2")], []),
    ],
    ids=["delta", "delta of another size", "rounding"],
)
def test_filters_that_round_are_left_out_and_exact_ones_kept(filters, kept, tmp_path):
    values = np.arange(23 * 31, dtype="i4").reshape(23, 31) // 3
    arguments = {"zarr_format": 2, "filters": filters, "compressors": None}
    src = zarr_array(tmp_path / "src", values, **arguments)
    converted(src, tmp_path / "dst", verify=True)
    assert inner_codecs(tmp_path / "dst") == [*kept, "bytes"]


def test_automatic_shuffling_of_zarr_v2_is_spelled_out(tmp_path):
    compressor = numcodecs.Blosc("lz4", shuffle=numcodecs.Blosc.AUTOSHUFFLE)
    src = zarr_array(tmp_path / "src", zarr_format=2, compressors=compressor)
    converted(src, tmp_path / "dst")
    (sharding,) = document(tmp_path / "dst")["codecs"]
    blosc = sharding["configuration"]["codecs"][-1]["configuration"]
    assert (blosc["shuffle"], blosc["typesize"]) == ("shuffle", 4)


def test_the_index_lies_where_it_was_asked_for(tmp_path):
    src = zarr_array(tmp_path / "src")
    _, a = converted(src, tmp_path / "dst", index_location="start")
    (sharding,) = document(tmp_path / "dst")["codecs"]
    assert sharding["configuration"]["index_location"] == "start"
    assert_same_bits(a[...], VALUES)


@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (1,), (5, 0, 3)])
def test_arrays_without_axes_or_elements_are_converted(shape, tmp_path):
    src = gpushard.create_array(
        tmp_path / "src",
        shape=shape,
        dtype="i4",
        chunks=tuple(max(1, n) for n in shape),
        attributes={"a": 1},
    )
    src[...] = 3
    gpushard.convert(tmp_path / "src", tmp_path / "dst", verify=True)
    a = gpushard.open_array(tmp_path / "dst", device="cpu")
    assert a.shape == shape
    assert np.all(np.asarray(a[...]) == 3)
    assert dict(a.attrs) == {"a": 1}


def test_strings_are_converted(tmp_path):
    values = np.array([["a", "bc"], ["", "é"]], dtype="T")
    src = gpushard.create_array(
        tmp_path / "src", shape=(2, 2), dtype="string", chunks=(1, 2)
    )
    src[...] = values
    gpushard.convert(src, tmp_path / "dst", chunks=1, shards=2, verify=True)
    got = gpushard.open_array(tmp_path / "dst", device="cpu")[...]
    assert got.tolist() == values.tolist()


def test_a_group_is_converted_with_all_below_it(tmp_path):
    group = zarr.create_group(tmp_path / "src", attributes={"title": "x"})
    group.create_group("deep/er", attributes={"n": 1})
    for path in ("a", "deep/b", "deep/er/c"):
        zarr_array(tmp_path / "src" / path)
    report = gpushard.convert(tmp_path / "src", tmp_path / "dst", verify=True)
    assert list(report.arrays) == ["a", "deep/b", "deep/er/c"]
    new = gpushard.open_group(tmp_path / "dst", device="cpu")
    assert dict(new.attrs) == {"title": "x"}
    assert dict(new.group("deep/er").attrs) == {"n": 1}
    for path in report.arrays:
        assert_same_bits(new[path][...], VALUES)
        assert new[path].shards
    assert not list((tmp_path / "dst").rglob(".gpushard*"))


def test_stores_of_zarr_and_obstore_arrays_and_groups_are_taken(tmp_path):
    obstore = pytest.importorskip("obstore", reason="obstore is not installed")
    memory, objects = MemoryStore(), obstore.store.MemoryStore()
    src = gpushard.open_array(zarr_array(tmp_path / "src"), device="cpu")
    gpushard.convert(src, memory, dst_path="x/a", **TARGET)
    gpushard.convert(memory, objects, "x/a", "b", **TARGET, verify=True)
    a = gpushard.open_array(objects, "b", device="cpu")
    assert_same_bits(a[...], VALUES)
    names = [item["path"] for batch in obstore.list(objects) for item in batch]
    assert len(names) == 11, names
    assert list(gpushard.open_group(objects, device="cpu")) == ["b"]
    group = gpushard.open_group(memory, "x", device="cpu")
    assert list(group) == ["a"]
    assert list(gpushard.convert(group, tmp_path / "group").arrays) == ["a"]
    assert list(gpushard.convert(group, tmp_path / "array", "/a/").arrays) == [""]


def test_progress_is_told_in_bytes_up_to_all_of_them(tmp_path):
    src = zarr_array(tmp_path / "src")
    told = []
    converted(src, tmp_path / "dst", progress=lambda *now: told.append(now))
    assert told[-1] == (VALUES.nbytes, VALUES.nbytes)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    told.clear()
    arguments = {"progress": lambda *now: told.append(now), "verify": True}
    converted(src, tmp_path / "other", **arguments)
    assert told[-1] == (2 * VALUES.nbytes, 2 * VALUES.nbytes)


def test_verifying_finds_an_element_that_differs(tmp_path, monkeypatch):
    src = zarr_array(tmp_path / "src")
    dst = tmp_path / "dst"

    def tamper(done: int, total: int) -> None:
        if 2 * done == total:  # all is written, nothing compared yet
            gpushard.open_array(dst, device="cpu")[13, 13] = 1

    with pytest.raises(gpushard.CorruptShardError, match="other elements") as caught:
        converted(src, dst, verify=True, progress=tamper)
    assert caught.value.shard_key == "c/1/1"


def test_minus_zero_is_not_plus_zero_when_verifying(tmp_path):
    values = np.zeros((4, 6), "f8")
    src = zarr_array(tmp_path / "src", values, chunks=(4, 6))
    dst = tmp_path / "dst"

    def tamper(done: int, total: int) -> None:
        if 2 * done == total:
            gpushard.open_array(dst, device="cpu")[1, 1] = -0.0

    with pytest.raises(gpushard.CorruptShardError):
        converted(src, dst, verify=True, progress=tamper)


def test_tiles_beside_one_another_leave_each_read_room_for_an_inner_chunk(tmp_path):
    values = np.arange(1 << 17, dtype="i4")
    made = zarr.create_array(
        tmp_path / "src",
        shape=values.shape,
        dtype="i4",
        shards=(1 << 15,),
        chunks=(1 << 14,),
    )
    made[:] = values
    gpushard.convert(
        tmp_path / "src", tmp_path / "dst", memory_limit=64 << 20, num_threads=8
    )
    assert np.array_equal(gpushard.open_array(tmp_path / "dst", device="cpu"), values)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"shards": (8, 12, 1)}, "shards does not fit"),
        ({"chunks": 0}, "chunks does not fit"),
        ({"shards": (8, 13)}, "shards are not whole inner chunks"),
        ({"compressors": {"name": "none such"}}, "zarr makes no such array"),
        ({"index_location": "middle"}, "zarr makes no such array"),
        ({"memory_limit": 64}, "memory limit"),
        ({"verifies": True}, "no argument 'verifies'.*; you may have meant verify="),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_made(asked, words, tmp_path):
    src = zarr_array(tmp_path / "src")
    with pytest.raises(gpushard.GpushardError, match=words):
        converted(src, tmp_path / "dst", **asked)
    assert not (tmp_path / "dst").exists()


def test_what_is_there_is_kept_unless_overwritten(tmp_path):
    src = zarr_array(tmp_path / "src")
    dst = zarr_array(tmp_path / "dst", VALUES[:3] + 1)
    with pytest.raises(gpushard.GpushardError, match="already"):
        converted(src, dst)
    assert zarr.open_array(dst).shape == (3, 31)
    _, a = converted(src, dst, overwrite=True)
    assert_same_bits(a[...], VALUES)

"""The historic formats are written so that a reader of their drafts gets the values."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpushard
import historic_reader
from gpushard.devices.decoding.chain import compile_device_chain

DRAFT, PROTOTYPE = "v3-draft-transformer", "v2-prototype-ii"
FORMATS = {DRAFT: historic_reader.draft, PROTOTYPE: historic_reader.prototype}
SHAPES = {"shape": (20, 18), "chunks": (4, 3), "shards": (8, 9)}
NUMBERS = np.arange(20 * 18).reshape(20, 18)

every_format = pytest.mark.parametrize("format_name", FORMATS)


def new(place, format_name, **changes):
    arguments = {**SHAPES, "dtype": "<i4", **changes}
    path = arguments.pop("path", "")
    return gpushard.create_array(
        place, path, format=format_name, device="cpu", **arguments
    )


def assert_read_by_both(place, format_name, want, path=""):
    a = gpushard.open_array(place, path, device="cpu")
    np.testing.assert_array_equal(a[...], want)
    stored = FORMATS[format_name](Path(place), path)
    np.testing.assert_array_equal(historic_reader.read(stored), want)


@every_format
@pytest.mark.parametrize("separator", ["/", "."])
@pytest.mark.parametrize("path", ["", "g/c/a"])
def test_whole_and_partial_writes_are_read_by_the_drafts_words(
    format_name, separator, path, tmp_path
):
    encoding = {"name": "v2", "separator": separator}
    a = new(tmp_path, format_name, path=path, chunk_key_encoding=encoding)
    a[...] = NUMBERS
    assert_read_by_both(tmp_path, format_name, NUMBERS, path)
    want = NUMBERS.copy()
    a[3:9, 5] = want[3:9, 5] = -1
    a.vindex[[0, 19], [17, 0]] = want[[0, 19], [17, 0]] = 7
    assert_read_by_both(tmp_path, format_name, want, path)


@every_format
@pytest.mark.parametrize(
    "compressor",
    [
        None,
        "auto",
        numcodecs.Blosc("zstd", 3, numcodecs.Blosc.BITSHUFFLE),
        numcodecs.GZip(2),
        {"id": "zlib", "level": 2},
        {"id": "zstd", "level": 2},
        [numcodecs.LZ4()],
        numcodecs.BZ2(1),
        zarr.codecs.ZstdCodec(level=3),
        zarr.codecs.BloscCodec(typesize=4, cname="lz4", shuffle="shuffle"),
    ],
    ids=str,
)
def test_each_compressor_is_written(format_name, compressor, tmp_path):
    a = new(tmp_path, format_name, compressors=compressor)
    a[...] = NUMBERS
    a[0, 0] = 3
    want = NUMBERS.copy()
    want[0, 0] = 3
    assert_read_by_both(tmp_path, format_name, want)


@every_format
@pytest.mark.parametrize("order", ["C", "F"])
def test_filters_are_written_ahead_of_the_compressor(format_name, order, tmp_path):
    filters = [numcodecs.Delta("<i4"), numcodecs.Shuffle(4)]
    a = new(tmp_path, format_name, filters=filters, order=order, attributes={"u": "K"})
    a[...] = NUMBERS
    a[1, 1:3] = -5
    want = NUMBERS.copy()
    want[1, 1:3] = -5
    assert_read_by_both(tmp_path, format_name, want)
    assert FORMATS[format_name](tmp_path).order == order
    assert a.attrs["u"] == "K"


@every_format
@pytest.mark.parametrize(
    ("dtype", "fill_value"),
    [
        ("?", True),
        ("i1", -3),
        (">u8", 2**63),
        ("<f2", float("nan")),
        (">f8", -np.inf),
        ("<c8", 1.5 - 2j),
    ],
)
def test_data_types_and_fill_values_are_written(
    format_name, dtype, fill_value, tmp_path
):
    a = new(tmp_path, format_name, dtype=dtype, fill_value=fill_value)
    assert_read_by_both(tmp_path, format_name, np.full((20, 18), fill_value, dtype))
    values = (NUMBERS % 2).astype(dtype)
    a[2:13] = values[2:13]
    want = np.full((20, 18), fill_value, dtype)
    want[2:13] = values[2:13]
    assert_read_by_both(tmp_path, format_name, want)


@pytest.mark.parametrize(
    ("dtype", "fill_value"),
    [
        ("S3", b"ab"),
        ("<U2", "xy"),
        ("<M8[s]", np.datetime64(5, "s")),
    ],
    ids=str,
)
def test_the_prototype_holds_what_zarr_v2_does(dtype, fill_value, tmp_path):
    a = new(tmp_path, PROTOTYPE, dtype=dtype, fill_value=fill_value)
    want = np.zeros((20, 18), dtype)
    want[...] = fill_value
    want[4:5] = a[0, 0]
    a[4] = want[4]
    assert_read_by_both(tmp_path, PROTOTYPE, want)
    with pytest.raises(gpushard.UnsupportedError, match="data type"):
        new(tmp_path / "draft", DRAFT, dtype=dtype)


PACKED = np.dtype([("a", "<i4"), ("b", "<f8"), ("c", "S3")])
BIG = np.dtype([("a", ">i4"), ("b", ">c8")])
MIXED = np.dtype(
    [
        ("a", "<i4"),
        ("b", ">f8"),
        ("inside", [("text", ">U2"), ("when", "<M8[s]")]),
        ("pair", ">u2", (2,)),
        ("flag", "?"),
    ]
)


def records(dtype):
    """Records whose every field says which it is: shape (20, 18)."""
    out = np.zeros((20, 18), dtype)
    for name in dtype.names:
        if dtype[name].names is not None:
            out[name] = records(dtype[name])
        elif dtype[name].subdtype is None:
            out[name] = NUMBERS % 100
        else:
            out[name] = np.stack([NUMBERS, NUMBERS + 1], axis=-1)
    return out


every_struct = pytest.mark.parametrize("dtype", [PACKED, BIG, MIXED], ids=str)


@every_struct
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("codecs", [{}, {"compressors": None}, {"filters": True}])
def test_structs_of_any_byte_order_are_written_to_the_prototype(
    dtype, order, codecs, tmp_path
):
    if codecs.get("filters"):
        codecs = {"filters": [numcodecs.Shuffle(dtype.itemsize)]}
    values = records(dtype)
    a = new(
        tmp_path, PROTOTYPE, dtype=dtype, fill_value=values[2, 3], order=order, **codecs
    )
    assert a.dtype == dtype.newbyteorder("=")
    want = np.full((20, 18), values[2, 3], dtype)
    assert_read_by_both(tmp_path, PROTOTYPE, want)
    a[2:13] = want[2:13] = values[2:13]
    a[5, 1:3] = want[5, 1:3] = values[0, 0]
    assert_read_by_both(tmp_path, PROTOTYPE, want)


# zarr 3.1 has no fields of several elements or fields, and compresses none with times.
ZARRS = np.dtype([("a", "<i4"), ("b", ">f8"), ("text", ">U2"), ("flag", "?")])


@pytest.mark.parametrize("dtype", [PACKED, BIG, ZARRS], ids=str)
def test_structs_written_to_zarr_v2_are_read_by_zarr(dtype, tmp_path):
    values = records(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # structs are no stable part of zarr's API
        z = zarr.create_array(
            tmp_path, shape=(20, 18), chunks=(4, 3), dtype=dtype, zarr_format=2
        )
        z[:4] = values[:4]
        a = gpushard.open_array(tmp_path, device="cpu")
        a[3:9] = values[3:9]
        a[9] = values[9].astype(dtype.newbyteorder("="))
        got = zarr.open_array(tmp_path)[...]
    np.testing.assert_array_equal(got[:10], values[:10])
    np.testing.assert_array_equal(a[...], got)


@every_format
def test_a_filter_without_a_data_type_gets_that_of_the_array(format_name, tmp_path):
    a = new(tmp_path, format_name, filters=[{"id": "delta"}])
    a[...] = NUMBERS
    assert_read_by_both(tmp_path, format_name, NUMBERS)


def test_a_struct_is_stored_without_the_bytes_between_its_fields(tmp_path):
    aligned = np.dtype([("a", "i1"), ("b", ">i8")], align=True)
    a = new(tmp_path, PROTOTYPE, dtype=aligned, fill_value=(3, -4))
    assert (a.dtype.itemsize, a[0, 0].tolist()) == (9, (3, -4))
    a[:3] = records(aligned)[:3]
    want = np.full((20, 18), np.array((3, -4), aligned), [("a", "i1"), ("b", ">i8")])
    want[:3] = records(aligned)[:3]
    assert_read_by_both(tmp_path, PROTOTYPE, want)


def test_fields_of_both_byte_orders_are_left_to_the_host(tmp_path):
    a = new(tmp_path, PROTOTYPE, dtype=MIXED)
    with pytest.raises(gpushard.UnsupportedError, match="both byte orders"):
        compile_device_chain(a.source.layout, a.source.chunk_shape)


@pytest.mark.parametrize(
    "fill_value", [(1,), (1, 2.5, b"abcd"), (2**40, 0, b""), ("x", 0, b""), 7, "AAAA"]
)
def test_a_fill_value_that_is_no_such_struct_is_refused(fill_value, tmp_path):
    with pytest.raises(gpushard.OptionError, match="fill_value"):
        new(tmp_path / "a", PROTOTYPE, dtype=PACKED, fill_value=fill_value)
    assert not list(tmp_path.rglob("*.z*"))


def test_a_filter_on_fields_of_both_byte_orders_is_refused(tmp_path):
    filters = [numcodecs.BitRound(3)]
    with pytest.raises(gpushard.UnsupportedError, match="both byte orders"):
        new(tmp_path / "a", PROTOTYPE, dtype=MIXED, filters=filters)


def test_the_draft_has_no_structs(tmp_path):
    with pytest.raises(gpushard.UnsupportedError, match="not written"):
        new(tmp_path / "a", DRAFT, dtype=PACKED)


@every_format
def test_a_missing_shard_is_fill_value_and_all_fill_is_no_shard(format_name, tmp_path):
    a = new(tmp_path, format_name, fill_value=9)
    a[:8, :9] = 1
    a[:8, :9] = 9
    shards = [p for p in tmp_path.rglob("*") if p.is_file() and p.name in ("0.0", "0")]
    assert shards == []
    assert_read_by_both(tmp_path, format_name, np.full((20, 18), 9))


@every_format
def test_an_array_without_axes_is_one_chunk(format_name, tmp_path):
    a = new(tmp_path, format_name, shape=(), chunks=(), shards=())
    a[...] = 5
    assert_read_by_both(tmp_path, format_name, np.array(5, "i4"))


def test_the_prototypes_documents_are_zarr_v2s(tmp_path):
    new(tmp_path, PROTOTYPE, dimension_names=["y", "x"], compressors=None)
    document = json.loads((tmp_path / ".zarray").read_text())
    assert document == {
        "zarr_format": 2,
        "shape": [20, 18],
        "chunks": [4, 3],
        "shards": [2, 3],
        "shard_format": "indexed",
        "dtype": "<i4",
        "compressor": None,
        "filters": None,
        "fill_value": 0,
        "order": "C",
        "dimension_separator": ".",
    }
    assert gpushard.open_array(tmp_path).dimension_names == ("y", "x")


def test_several_arrays_share_the_drafts_root(tmp_path):
    first = new(tmp_path, DRAFT, path="a")
    first[...] = 1
    second = new(tmp_path, DRAFT, path="b/c")
    second[...] = 2
    assert dict(gpushard.open_group(tmp_path)).keys() == {"a"}
    assert_read_by_both(tmp_path, DRAFT, np.full((20, 18), 1), "a")
    assert_read_by_both(tmp_path, DRAFT, np.full((20, 18), 2), "b/c")
    new(tmp_path, DRAFT, path="a", overwrite=True)
    assert_read_by_both(tmp_path, DRAFT, np.zeros((20, 18)), "a")
    assert_read_by_both(tmp_path, DRAFT, np.full((20, 18), 2), "b/c")


@every_format
def test_what_is_there_already_is_kept_unless_overwritten(format_name, tmp_path):
    new(tmp_path, format_name)[...] = 3
    with pytest.raises(gpushard.GpushardError, match="already"):
        new(tmp_path, format_name)
    assert_read_by_both(tmp_path, format_name, np.full((20, 18), 3))
    new(tmp_path, format_name, overwrite=True)
    assert_read_by_both(tmp_path, format_name, np.zeros((20, 18)))


@every_format
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shards": None}, "shards"),
        ({"shards": (6, 9)}, "multiples"),
        ({"shards": {"shape": (8, 9), "index_location": "start"}}, "at the end"),
        ({"chunks": (0, 3)}, "1 or more"),
        ({"chunks": (2, None)}, "chunks is no shape"),
        ({"serializer": {"name": "bytes"}}, "serializer"),
        ({"compressors": [numcodecs.Zstd(), numcodecs.LZ4()]}, "one compressor"),
        ({"compressors": {"name": "crc32c"}}, "numcodecs"),
        ({"fill_value": "x"}, "fill_value"),
        ({"fill_value": 2**40}, "fill_value"),
        ({"fill_value": 1.5}, "fill_value"),
        ({"order": "K"}, "order"),
        ({"chunk_key_encoding": {"name": "v2", "separator": "-"}}, "separator"),
        ({"dtype": "no type"}, "a data type of NumPy's"),
        ({"dtype": "O"}, "not written"),
        ({"dtype": [("a", "O")]}, "not (written|supported)"),
        ({"dtype": "V5"}, "not written"),
        ({"attributes": {"a": {1}}}, "JSON"),
        ({"dimension_names": ["y"]}, "2 names"),
        ({"dimension_names": ["y", 3]}, "2 names"),
        ({"shapes": 1}, "no argument .*may have meant shape="),
    ],
    ids=str,
)
def test_what_a_historic_format_cannot_say_is_refused(
    format_name, changes, words, tmp_path
):
    with pytest.raises(gpushard.GpushardError, match=words):
        new(tmp_path / "a", format_name, **changes)
    assert not list(tmp_path.rglob("*.z*"))


def test_the_limits_of_one_format_are_refused(tmp_path):
    with pytest.raises(gpushard.GpushardError, match="dimension_names"):
        new(tmp_path / "a", DRAFT, dimension_names=["y", "x"])
    with pytest.raises(gpushard.GpushardError, match="filters"):
        new(tmp_path / "a", DRAFT, attributes={"filters": []})
    with pytest.raises(gpushard.GpushardError, match="format is unknown"):
        new(tmp_path / "a", "v1")


@every_format
def test_an_index_without_checksum_is_not_written_in_place(format_name, tmp_path):
    options = gpushard.Options(write=gpushard.WriteOptions(strategy="append_only"))
    with pytest.raises(gpushard.GpushardError, match="crc32c"):
        new(tmp_path, format_name, options=options)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@every_format
def test_any_writes_are_read_by_the_drafts_words(data, format_name, tmp_path):
    ndim = data.draw(st.integers(0, 3))
    lengths = st.lists(st.integers(1, 3), min_size=ndim, max_size=ndim)
    chunks, per_shard = data.draw(lengths), data.draw(lengths)
    shape = data.draw(st.lists(st.integers(0, 9), min_size=ndim, max_size=ndim))
    a = new(
        tmp_path,
        format_name,
        shape=shape,
        chunks=chunks,
        shards=[c * n for c, n in zip(chunks, per_shard, strict=True)],
        order=data.draw(st.sampled_from("CF")),
        compressors=data.draw(st.sampled_from([None, numcodecs.Zstd()])),
        overwrite=True,
    )
    want = np.zeros(shape, "i4")
    for k in range(data.draw(st.integers(1, 4))):
        starts = [data.draw(st.integers(0, n)) for n in shape]
        key = tuple(
            slice(i, data.draw(st.integers(i, n)))
            for i, n in zip(starts, shape, strict=True)
        )
        a[key] = want[key] = k % 3
    assert_read_by_both(tmp_path, format_name, want)

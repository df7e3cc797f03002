"""Zarr v3 array documents: chunk grids, keys, codec chains and shard levels."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushard.errors import MetadataError, UnsupportedError
from gpushard.metadata import parse_array
from gpushard.options import DEFAULT

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
CRC = {"name": "crc32c"}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
DELTA = {"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}


def grid(*chunk_shape):
    return {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}}


def transpose(*order):
    return {"name": "transpose", "configuration": {"order": list(order)}}


def sharding(chunk_shape, codecs=(LITTLE,), index_codecs=(LITTLE, CRC), **more):
    configuration = {
        "chunk_shape": list(chunk_shape),
        "codecs": list(codecs),
        "index_codecs": list(index_codecs),
        **more,
    }
    return {"name": "sharding_indexed", "configuration": configuration}


def document(**changes):
    base = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [10, 12],
        "data_type": "int32",
        "chunk_grid": grid(4, 6),
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [LITTLE],
    }
    fields = {**base, **changes}
    return json.loads(
        json.dumps({name: value for name, value in fields.items() if value is not ...})
    )


def parse(options=DEFAULT, **changes):
    return parse_array(document(**changes), "a", options)


def refused(error, json_path, **changes):
    with pytest.raises(error) as caught:
        parse(**changes)
    assert type(caught.value) is error
    assert caught.value.json_path == json_path
    assert caught.value.array_path == "a"
    return caught.value


# The document

JSON_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from(
        ["bytes", "zstd", "transpose", "end", "r16", "struct", "string", "NaN", "0x00"]
    ),
)
JSON = st.recursive(
    JSON_LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["name", "configuration", "fields", "order", "x"]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)


def places(value, path=()):
    """Path of every member and item below `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


FULL_DOCUMENT = document(
    codecs=[
        transpose(1, 0),
        sharding([3, 2], [transpose(1, 0), LITTLE, ZSTD], [transpose(0, 1, 2), LITTLE]),
        CRC,
    ],
    chunk_grid={
        "name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [[[2, 3], 4], [6, 6]]},
    },
    data_type={"name": "struct", "configuration": {"fields": [["x", "float32"]]}},
    fill_value={"x": "0x7f800001"},
    dimension_names=["y", "x"],
    attributes={"a": 1},
    storage_transformers=[],
)


@given(st.sampled_from(list(places(FULL_DOCUMENT))), JSON)
def test_any_damage_to_a_document_is_one_of_our_errors_or_harmless(place, value):
    damaged = json.loads(json.dumps(FULL_DOCUMENT))
    *way, last = place
    inner = damaged
    for key in way:
        inner = inner[key]
    inner[last] = value
    with contextlib.suppress(MetadataError, UnsupportedError):
        layout = parse_array(damaged, "a")
        assert layout.shape == tuple(damaged["shape"])


def test_the_document_that_is_damaged_is_whole():
    layout = parse_array(FULL_DOCUMENT, "a")
    assert layout.levels[0].chunk_shape == (2, 3)


def test_an_unsharded_array_is_a_chain_without_levels():
    layout = parse(codecs=[transpose(1, 0), LITTLE, ZSTD, CRC])
    assert layout.levels == ()
    assert layout.outer_order == (0, 1)
    assert [spec.name for spec in layout.chain.array_array] == ["transpose"]
    assert layout.chain.array_bytes.name == "bytes"
    assert layout.chain.array_bytes.configuration == {"endian": "little"}
    assert [spec.json_path for spec in layout.chain.bytes_bytes] == [
        "codecs[2]",
        "codecs[3]",
    ]
    assert (layout.chunks, layout.shards) == ((4, 6), None)


@pytest.mark.parametrize(
    "name",
    ["shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs"],
)
def test_a_missing_member_is_named(name):
    error = refused(MetadataError, name, **{name: ...})
    assert name in str(error)


def test_an_unknown_member_is_refused_unless_it_may_be_ignored():
    refused(UnsupportedError, "extra", extra={"a": 1})
    refused(UnsupportedError, "extra", extra={"must_understand": True})
    refused(UnsupportedError, "extra", extra=False)
    assert parse(extra={"must_understand": False, "a": 1}).shape == (10, 12)


def test_storage_transformers_are_unsupported_and_an_empty_list_is_none():
    refused(UnsupportedError, "storage_transformers", storage_transformers=["x"])
    refused(MetadataError, "storage_transformers", storage_transformers="x")
    assert parse(storage_transformers=[]).levels == ()


@pytest.mark.parametrize(
    ("shape", "json_path"),
    [
        ([-1, 2], "shape[0]"),
        ([1, 2.0], "shape[1]"),
        ([True, 2], "shape[0]"),
        ([2**63, 2], "shape[0]"),
        (["1", 2], "shape[0]"),
        (5, "shape"),
        ("12", "shape"),
        ({}, "shape"),
    ],
)
def test_a_shape_that_is_none_is_refused(shape, json_path):
    refused(MetadataError, json_path, shape=shape)


def test_rank_goes_up_to_32():
    order = list(range(32))[::-1]
    layout = parse(
        shape=[1] * 32, chunk_grid=grid(*[1] * 32), codecs=[transpose(*order), LITTLE]
    )
    assert layout.ndim == 32
    refused(UnsupportedError, "shape", shape=[1] * 33, chunk_grid=grid(*[1] * 33))


def test_rank_0_has_one_inner_chunk():
    layout = parse(shape=[], chunk_grid=grid(), codecs=[sharding([])])
    assert layout.axes == ()
    assert layout.levels[0].chunk_shape == ()
    assert layout.levels[0].index_nbytes(1) == 20
    assert (layout.chunks, layout.shards) == ((), ())
    assert layout.keys.key(()) == "c"


@pytest.mark.parametrize("names", [["x"], ["x", 1], "xy", ["x", "y", "z"]])
def test_dimension_names_that_do_not_fit_are_refused(names):
    refused(MetadataError, "dimension_names", dimension_names=names)


def test_dimension_names_may_be_null():
    assert parse(dimension_names=["x", None]).dimension_names == ("x", None)
    assert parse(dimension_names=None).dimension_names is None
    assert parse().dimension_names is None


def test_attributes_are_given_back_and_must_be_an_object():
    assert parse(attributes={"a": [1]}).attributes == {"a": [1]}
    assert parse(attributes=None).attributes == {}
    refused(MetadataError, "attributes", attributes=[1])


def test_metadata_nested_too_deep_is_no_recursion_error():
    deep = "int8"
    for _ in range(3000):
        deep = {"name": "struct", "configuration": {"fields": [["f", deep]]}}
    with pytest.raises(MetadataError, match="nested too deep"):
        parse_array({**document(), "data_type": deep}, "a")


def test_common_arrays_open_without_importing_zarr():
    program = (
        "import json, sys\n"
        "from gpushard.metadata import parse_array\n"
        "parse_array(json.loads(sys.argv[1]), '')\n"
        "assert not {'zarr', 'numcodecs', 'ml_dtypes'} & set(sys.modules)\n"
    )
    fields = document(codecs=[sharding([2, 3], [LITTLE, ZSTD])])
    subprocess.run([sys.executable, "-c", program, json.dumps(fields)], check=True)


# Chunk grids


def test_a_regular_grid_reaches_beyond_the_extent():
    layout = parse()
    assert [axis.n_cells for axis in layout.axes] == [3, 2]
    assert all(axis.boundaries is None for axis in layout.axes)


@pytest.mark.parametrize(
    ("value", "error", "json_path"),
    [
        (grid(4), MetadataError, "chunk_grid.configuration.chunk_shape"),
        (grid(4, 0), MetadataError, "chunk_grid.configuration.chunk_shape[1]"),
        (grid(4, -6), MetadataError, "chunk_grid.configuration.chunk_shape[1]"),
        (grid(4, 6.0), MetadataError, "chunk_grid.configuration.chunk_shape[1]"),
        (grid(4, True), MetadataError, "chunk_grid.configuration.chunk_shape[1]"),
        (grid(4, 2**64), MetadataError, "chunk_grid.configuration.chunk_shape[1]"),
        ("regular", MetadataError, "chunk_grid.configuration.chunk_shape"),
        (
            {"name": "regular", "configuration": 1},
            MetadataError,
            "chunk_grid.configuration",
        ),
        ({"name": 3}, MetadataError, "chunk_grid.name"),
        ([], MetadataError, "chunk_grid"),
        ({"name": "hexagonal"}, UnsupportedError, "chunk_grid.name"),
        ({**grid(4, 6), "offset": 1}, UnsupportedError, "chunk_grid.offset"),
    ],
)
def test_a_chunk_grid_that_does_not_fit_is_refused(value, error, json_path):
    refused(error, json_path, chunk_grid=value)


def test_a_chunk_length_of_0_is_read_only_where_the_axis_is_empty():
    layout = parse(shape=[0, 12], chunk_grid=grid(0, 6))
    assert [axis.n_cells for axis in layout.axes] == [0, 2]


def rectilinear(*chunk_shapes, kind="inline"):
    configuration = {"kind": kind, "chunk_shapes": list(chunk_shapes)}
    return {"name": "rectilinear", "configuration": configuration}


def test_a_rectilinear_grid_is_prefix_sums_of_its_run_lengths():
    layout = parse(chunk_grid=rectilinear([[2, 3], 4], 5))
    rows, columns = layout.axes
    np.testing.assert_array_equal(rows.boundaries, [0, 2, 4, 6, 10])
    assert rows.boundaries.dtype == np.int64
    assert rows.n_cells == 4
    assert (columns.cell, columns.boundaries) == (5, None)
    assert (layout.chunks, layout.shards) == (None, None)


def test_rectilinear_cells_beyond_the_extent_are_dropped():
    layout = parse(chunk_grid=rectilinear([6, [6, 4]], [12]))
    np.testing.assert_array_equal(layout.axes[0].boundaries, [0, 6, 12])
    empty = parse(shape=[0, 12], chunk_grid=rectilinear([6, 6], [12]))
    assert empty.axes[0].n_cells == 0


def test_rectilinear_shards_hold_regular_inner_chunks():
    layout = parse(chunk_grid=rectilinear([4, 6], [[6, 2]]), codecs=[sharding([2, 3])])
    assert layout.levels[0].chunk_shape == (2, 3)
    assert (layout.chunks, layout.shards) == ((2, 3), None)


def test_inner_chunks_must_divide_every_rectilinear_length():
    path = "codecs[0].configuration.chunk_shape"
    codecs = [sharding([2, 3])]
    refused(MetadataError, path, chunk_grid=rectilinear([4, 7], 6), codecs=codecs)
    # Also those of cells that lie beyond the extent.
    refused(MetadataError, path, chunk_grid=rectilinear([4, 6, 7], 6), codecs=codecs)


@pytest.mark.parametrize(
    ("value", "error", "below"),
    [
        (rectilinear([4, 5], 6), MetadataError, "chunk_shapes[0]"),
        (rectilinear([], 6), MetadataError, "chunk_shapes[0]"),
        (rectilinear([[4, 3]]), MetadataError, "chunk_shapes"),
        (rectilinear([[4, 3, 1]], 6), MetadataError, "chunk_shapes[0][0]"),
        (rectilinear([4, [0, 9]], 6), MetadataError, "chunk_shapes[0][1][0]"),
        (rectilinear([4, [9, 0]], 6), MetadataError, "chunk_shapes[0][1][1]"),
        (rectilinear([4, "6"], 6), MetadataError, "chunk_shapes[0][1]"),
        (rectilinear([4, True], 6), MetadataError, "chunk_shapes[0][1]"),
        (rectilinear(0, 6), MetadataError, "chunk_shapes[0]"),
        (rectilinear([[1, 10**12]], 6), UnsupportedError, "chunk_shapes[0]"),
        (rectilinear([[2**61, 2**61]], 6), MetadataError, "chunk_shapes[0]"),
        (rectilinear([10], 6, kind="external"), UnsupportedError, "kind"),
    ],
)
def test_a_rectilinear_grid_that_does_not_fit_is_refused(value, error, below):
    refused(error, f"chunk_grid.configuration.{below}", chunk_grid=value)


def test_rectilinear_boundaries_are_those_that_zarr_reads():
    v3 = pytest.importorskip("zarr.core.metadata.v3")
    if not hasattr(v3, "RectilinearChunkGridMetadata"):
        pytest.skip("rectilinear grids came with zarr 3.2")
    for spec in ([[2, 3], 4], [1, [3, 2], [1, 3]], [10], [[1, 10]]):
        parsed = v3.RectilinearChunkGridMetadata.from_dict(rectilinear(spec, 12))
        ours = parse(chunk_grid=rectilinear(spec, 12)).axes[0]
        np.testing.assert_array_equal(np.diff(ours.boundaries), parsed.chunk_shapes[0])


# Chunk keys


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("default", "c/1/2"),
        ({"name": "default"}, "c/1/2"),
        ({"name": "default", "configuration": {"separator": "."}}, "c.1.2"),
        ("v2", "1.2"),
        ({"name": "v2", "configuration": {}}, "1.2"),
        ({"name": "v2", "configuration": {"separator": "/"}}, "1/2"),
    ],
)
def test_chunk_keys_follow_their_encoding(value, key):
    assert parse(chunk_key_encoding=value).keys.key((1, 2)) == key


@pytest.mark.parametrize(
    ("value", "error", "json_path"),
    [
        ("fanout", UnsupportedError, "chunk_key_encoding.name"),
        (None, MetadataError, "chunk_key_encoding"),
        (
            {"name": "v2", "configuration": {"separator": "-"}},
            MetadataError,
            "chunk_key_encoding.configuration.separator",
        ),
        (
            {"name": "v2", "configuration": {"separator": ["/"]}},
            MetadataError,
            "chunk_key_encoding.configuration.separator",
        ),
        (
            {"name": "v2", "configuration": {"prefix": "x"}},
            UnsupportedError,
            "chunk_key_encoding.configuration.prefix",
        ),
        (
            {"name": "v2", "separator": "/"},
            UnsupportedError,
            "chunk_key_encoding.separator",
        ),
    ],
)
def test_other_chunk_key_encodings_are_refused(value, error, json_path):
    refused(error, json_path, chunk_key_encoding=value)


# Codec lists


@pytest.mark.parametrize(
    ("codecs", "json_path"),
    [
        ([], "codecs"),
        ([ZSTD], "codecs"),
        ([LITTLE, LITTLE], "codecs"),
        ([LITTLE, sharding([2, 3])], "codecs"),
        ([ZSTD, LITTLE], "codecs[1]"),
        ([LITTLE, transpose(0, 1)], "codecs[1]"),
        ({}, "codecs"),
        ("bytes", "codecs"),
        ([3], "codecs[0]"),
        ([{"configuration": {}}], "codecs[0].name"),
        ([{"name": "bytes", "configuration": []}], "codecs[0].configuration"),
    ],
)
def test_a_codec_list_that_is_no_chain_is_refused(codecs, json_path):
    refused(MetadataError, json_path, codecs=codecs)


def test_an_unknown_codec_is_unsupported_and_named():
    error = refused(UnsupportedError, "codecs[1]", codecs=[LITTLE, {"name": "rot13"}])
    assert error.codec == "rot13"


@pytest.mark.parametrize(
    "name", ["pickle", "numcodecs.pickle", "numcodecs.json2", "numcodecs.msgpack2"]
)
def test_codecs_that_make_objects_of_stored_bytes_are_never_read(name):
    error = refused(MetadataError, "codecs[0]", codecs=[name])
    assert error.codec == name


def test_a_codec_that_only_zarr_knows_gets_its_kind_from_zarr():
    codecs = pytest.importorskip("zarr.codecs")
    if not hasattr(codecs, "ScaleOffset"):
        pytest.skip("scale_offset came with zarr 3.2")
    scale = {"name": "scale_offset", "configuration": {"scale": 2, "offset": 1}}
    layout = parse(codecs=[scale, LITTLE])
    assert [spec.name for spec in layout.chain.array_array] == ["scale_offset"]


def test_kinds_of_known_codecs_are_those_of_zarr():
    from zarr.abc import codec as bases
    from zarr.registry import get_codec_class

    from gpushard.formats import codec_names

    of_kind = [bases.ArrayArrayCodec, bases.ArrayBytesCodec, bases.BytesBytesCodec]
    n_checked = 0
    for name, kind in codec_names._KINDS.items():
        try:
            found = get_codec_class(name)
        except (KeyError, ImportError, ValueError):
            continue  # needs an optional package of numcodecs, or a newer zarr
        assert issubclass(found, of_kind[kind]), name
        # zarr 3.1 calls zstd fixed; a sharding codec is as fixed as what it holds.
        if name in codec_names.VARIABLE_SIZE - {"sharding_indexed", "zstd"}:
            assert not getattr(found, "is_fixed_size", False), name
        if name in codec_names.CHECKSUM_NBYTES:
            # Those of zarr 3.1.0 do not say.
            assert getattr(found, "is_fixed_size", True), name
        n_checked += 1
    assert n_checked >= 8


@pytest.mark.parametrize(
    ("order", "below"),
    [
        ([0, 0], "order"),
        ([0, 2], "order"),
        ([0], "order"),
        ([0, 1, 2], "order"),
        ([1, -2], "order"),
        ([True, 0], "order"),
        ("F", "order"),
        ("C", "order"),
        (None, "order"),
    ],
)
def test_a_transpose_needs_a_permutation_of_the_axes(order, below):
    codec = {"name": "transpose", "configuration": {"order": order}}
    refused(MetadataError, f"codecs[0].configuration.{below}", codecs=[codec, LITTLE])


def test_a_transpose_without_order_is_refused():
    path = "codecs[0].configuration.order"
    refused(MetadataError, path, codecs=["transpose", LITTLE])


@pytest.mark.parametrize(
    ("codec", "json_path"),
    [
        ("bytes", "codecs[0].configuration.endian"),
        ({"name": "bytes", "configuration": {}}, "codecs[0].configuration.endian"),
        (
            {"name": "bytes", "configuration": {"endian": "middle"}},
            "codecs[0].configuration.endian",
        ),
    ],
)
def test_elements_of_several_bytes_need_a_byte_order(codec, json_path):
    refused(MetadataError, json_path, codecs=[codec])


@pytest.mark.parametrize("data_type", ["int8", "uint8", "bool", "r16", "float8_e5m2"])
def test_elements_without_byte_order_need_none(data_type):
    fill_value = {"bool": False, "r16": [0, 0]}.get(data_type, 0)
    layout = parse(data_type=data_type, fill_value=fill_value, codecs=["bytes"])
    assert layout.chain.array_bytes.configuration == {}


def test_a_struct_without_byte_order_is_little_endian():
    fields = {"fields": [["x", "float32"], ["n", "int8"]]}
    layout = parse(
        data_type={"name": "struct", "configuration": fields},
        fill_value={"x": 0, "n": 0},
        codecs=["bytes"],
    )
    assert layout.chain.array_bytes.configuration == {"endian": "little"}


def test_text_of_any_length_needs_a_codec_for_it():
    layout = parse(data_type="string", fill_value="", codecs=["vlen-utf8"])
    assert layout.chain.array_bytes.name == "vlen-utf8"
    refused(
        MetadataError, "codecs[0]", data_type="string", fill_value="", codecs=[LITTLE]
    )


@pytest.mark.parametrize(
    ("codec", "below"),
    [
        ({"cname": "lzo"}, "cname"),
        ({"cname": 1}, "cname"),
        ({"shuffle": 1}, "shuffle"),
        ({"clevel": "5"}, "clevel"),
        ({"typesize": 4.0}, "typesize"),
    ],
)
def test_a_blosc_configuration_without_sense_is_refused(codec, below):
    blosc = {"name": "blosc", "configuration": codec}
    path = f"codecs[1].configuration.{below}"
    refused(MetadataError, path, codecs=[LITTLE, blosc])


@pytest.mark.parametrize(
    "codec",
    [
        {"name": "zstd", "configuration": {"level": 99, "checksum": False}},
        {"name": "zstd", "configuration": {"level": -5}},
        {"name": "zstd"},
        {"name": "gzip", "configuration": {"level": 77}},
        {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 77}},
        {"name": "crc32c", "configuration": {}},
    ],
)
def test_what_only_a_writer_needs_is_not_refused(codec):
    layout = parse(codecs=[LITTLE, codec])
    assert layout.chain.bytes_bytes[0].name == codec["name"]


def test_levels_of_another_type_are_refused():
    zstd = {"name": "zstd", "configuration": {"level": "high"}}
    path = "codecs[1].configuration.level"
    refused(MetadataError, path, codecs=[LITTLE, zstd])


# Sharding


def test_a_sharding_codec_is_a_level():
    layout = parse(codecs=[sharding([2, 3], [LITTLE, ZSTD], index_location="start")])
    (level,) = layout.levels
    assert level.chunk_shape == (2, 3)
    assert level.axis_order == (0, 1)
    assert level.index_location == "start"
    assert level.index_nbytes(4) == 16 * 4 + 4
    assert level.json_path == "codecs[0]"
    assert [spec.name for spec in level.index_chain.bytes_bytes] == ["crc32c"]
    assert layout.chain.array_bytes.json_path == "codecs[0].configuration.codecs[0]"
    assert (layout.chunks, layout.shards) == ((2, 3), (4, 6))


def test_the_index_lies_at_the_end_by_default():
    assert parse(codecs=[sharding([2, 3])]).levels[0].index_location == "end"


def test_every_checksum_of_the_index_counts():
    index_codecs = [
        {"name": "bytes", "configuration": {"endian": "big"}},
        CRC,
        {"name": "numcodecs.adler32"},
        CRC,
    ]
    level = parse(codecs=[sharding([2, 3], index_codecs=index_codecs)]).levels[0]
    assert level.index_trailer_nbytes == 12
    plain = parse(codecs=[sharding([2, 3], index_codecs=[LITTLE])]).levels[0]
    assert plain.index_trailer_nbytes == 0


def test_an_index_may_be_transposed_over_its_own_rank():
    codecs = [sharding([2, 3], index_codecs=[transpose(2, 0, 1), LITTLE])]
    level = parse(codecs=codecs).levels[0]
    assert level.index_chain.array_array[0].configuration == {"order": [2, 0, 1]}
    codecs = [sharding([2, 3], index_codecs=[transpose(1, 0), LITTLE])]
    path = "codecs[0].configuration.index_codecs[0].configuration.order"
    refused(MetadataError, path, codecs=codecs)


@pytest.mark.parametrize(
    "name",
    ["zstd", "gzip", "blosc", "numcodecs.zlib", "numcodecs.lz4", "sharding_indexed"],
)
def test_an_index_codec_of_variable_size_is_refused_by_name(name):
    codecs = [sharding([2, 3], index_codecs=[LITTLE, name])]
    path = "codecs[0].configuration.index_codecs[1]"
    error = refused(MetadataError, path, codecs=codecs)
    assert name in str(error)


@pytest.mark.parametrize("name", ["numcodecs.shuffle", "rot13"])
def test_an_index_codec_we_cannot_size_is_unsupported(name):
    codecs = [sharding([2, 3], index_codecs=[LITTLE, name])]
    refused(UnsupportedError, "codecs[0].configuration.index_codecs[1]", codecs=codecs)


@pytest.mark.parametrize(
    ("changes", "error", "below"),
    [
        ({"chunk_shape": [2]}, MetadataError, "chunk_shape"),
        ({"chunk_shape": [2, 3, 1]}, MetadataError, "chunk_shape"),
        ({"chunk_shape": [3, 3]}, MetadataError, "chunk_shape"),
        ({"chunk_shape": [8, 6]}, MetadataError, "chunk_shape"),
        ({"chunk_shape": [0, 3]}, MetadataError, "chunk_shape[0]"),
        ({"chunk_shape": [2.0, 3]}, MetadataError, "chunk_shape[0]"),
        ({"chunk_shape": 2}, MetadataError, "chunk_shape"),
        ({"chunk_shape": ...}, MetadataError, "chunk_shape"),
        ({"codecs": ...}, MetadataError, "codecs"),
        ({"codecs": []}, MetadataError, "codecs"),
        ({"codecs": [ZSTD]}, MetadataError, "codecs"),
        ({"codecs": [LITTLE, LITTLE]}, MetadataError, "codecs"),
        ({"codecs": ["bytes"]}, MetadataError, "codecs[0].configuration.endian"),
        ({"codecs": [LITTLE, "rot13"]}, UnsupportedError, "codecs[1]"),
        ({"index_codecs": ...}, MetadataError, "index_codecs"),
        ({"index_codecs": []}, MetadataError, "index_codecs"),
        ({"index_codecs": [CRC]}, MetadataError, "index_codecs"),
        ({"index_codecs": [LITTLE, LITTLE]}, MetadataError, "index_codecs"),
        ({"index_codecs": [CRC, LITTLE]}, MetadataError, "index_codecs[1]"),
        (
            {"index_codecs": ["bytes"]},
            MetadataError,
            "index_codecs[0].configuration.endian",
        ),
        ({"index_location": "middle"}, MetadataError, "index_location"),
        ({"index_location": None}, MetadataError, "index_location"),
        ({"index_location": ["end"]}, MetadataError, "index_location"),
        ({"index_order": "F"}, UnsupportedError, "index_order"),
    ],
)
def test_a_sharding_configuration_that_does_not_fit_is_refused(changes, error, below):
    configuration = {**sharding([2, 3])["configuration"], **changes}
    codec = {
        "name": "sharding_indexed",
        "configuration": {k: v for k, v in configuration.items() if v is not ...},
    }
    refused(error, f"codecs[0].configuration.{below}", codecs=[codec])


def test_an_index_beyond_the_limit_is_unsupported():
    codecs = [sharding([1, 1])]
    options = DEFAULT.but(max_index_nbytes=16 * 24 + 4)
    assert parse(options, codecs=codecs).levels
    options = DEFAULT.but(max_index_nbytes=16 * 24 + 3)
    with pytest.raises(UnsupportedError, match="388 bytes for 24 inner chunks"):
        parse(options, codecs=codecs)
    # The largest shard of a rectilinear grid decides.
    with pytest.raises(UnsupportedError, match="388 bytes for 24 inner chunks"):
        parse(options, codecs=codecs, chunk_grid=rectilinear([2, 4, 4], 6))


def nested(depth):
    codec = sharding([1, 1])
    for _ in range(depth - 1):
        codec = sharding([1, 1], [codec])
    return codec


def test_nesting_stops_at_the_limit():
    depth = DEFAULT.max_sharding_depth
    assert len(parse(codecs=[nested(depth)]).levels) == depth
    path = "codecs[0]" + ".configuration.codecs[0]" * depth
    refused(UnsupportedError, path, codecs=[nested(depth + 1)])
    refused(UnsupportedError, path, codecs=[nested(60)])


def test_nested_levels_keep_their_own_index():
    inner = sharding([2, 1], [LITTLE, ZSTD], [LITTLE], index_location="start")
    layout = parse(codecs=[sharding([4, 3], [inner])])
    outer, within = layout.levels
    assert (outer.chunk_shape, within.chunk_shape) == ((4, 3), (2, 1))
    assert (outer.index_location, within.index_location) == ("end", "start")
    assert (outer.index_trailer_nbytes, within.index_trailer_nbytes) == (4, 0)
    assert within.json_path == "codecs[0].configuration.codecs[0]"
    assert [axis.cell for axis in layout.inner_axes] == [2, 1]
    assert layout.chunks == (4, 3)
    refused(
        MetadataError,
        "codecs[0].configuration.codecs[0].configuration.chunk_shape",
        codecs=[sharding([2, 3], [inner | sharding([2, 2])])],
    )


# Transposes and what stands around sharding codecs


def test_transposes_ahead_of_sharding_fold_into_array_axes():
    layout = parse(
        shape=[9, 9, 9],
        chunk_grid=grid(4, 6, 10),
        codecs=[transpose(1, 2, 0), sharding([3, 5, 2], [transpose(0, 2, 1), LITTLE])],
    )
    (level,) = layout.levels
    assert level.axis_order == (1, 2, 0)
    assert level.chunk_shape == (2, 3, 5)
    assert layout.outer_order == (1, 2, 0)
    assert [spec.configuration for spec in layout.chain.array_array] == [
        {"order": [0, 2, 1]}
    ]
    assert (layout.chunks, layout.shards) == ((2, 3, 5), (4, 6, 10))


def test_composed_transposes_are_those_of_numpy():
    first, second, third = (1, 2, 0), (1, 0, 2), (2, 1, 0)
    array = np.arange(4 * 6 * 10).reshape(4, 6, 10)
    seen_outside = array.transpose(first).transpose(second)
    seen_inside = seen_outside.transpose(third)
    layout = parse(
        shape=[4, 6, 10],
        chunk_grid=grid(4, 6, 10),
        codecs=[
            transpose(*first),
            transpose(*second),
            sharding([5, 3, 2], [transpose(*third), sharding([2, 1, 5])]),
        ],
    )
    outer, inner = layout.levels
    np.testing.assert_array_equal(array.transpose(outer.axis_order), seen_outside)
    np.testing.assert_array_equal(array.transpose(inner.axis_order), seen_inside)
    assert layout.outer_order == inner.axis_order
    for level, stored in ((outer, (5, 3, 2)), (inner, (2, 1, 5))):
        assert tuple(level.chunk_shape[axis] for axis in level.axis_order) == stored


def test_inner_chunks_must_divide_the_transposed_shard():
    codecs = [transpose(1, 0), sharding([3, 4])]
    assert parse(codecs=codecs).levels[0].chunk_shape == (4, 3)
    path = "codecs[1].configuration.chunk_shape"
    refused(MetadataError, path, codecs=[transpose(1, 0), sharding([4, 3])])


def test_bytes_codecs_around_a_whole_shard_are_object_codecs():
    layout = parse(codecs=[sharding([2, 3]), ZSTD, CRC])
    assert [spec.name for spec in layout.object_codecs] == ["zstd", "crc32c"]
    assert len(layout.levels) == 1
    assert layout.chain.bytes_bytes == ()


def test_object_codecs_are_those_of_the_outermost_sharding_codec():
    layout = parse(codecs=[sharding([4, 3], [sharding([2, 1])]), ZSTD])
    assert [spec.name for spec in layout.object_codecs] == ["zstd"]
    assert len(layout.levels) == 2


def test_a_nested_sharding_codec_within_bytes_codecs_is_no_level():
    inner = sharding([2, 1], ["bytes", "crc32c"], [LITTLE])
    layout = parse(data_type="uint8", codecs=[sharding([4, 3], [inner, ZSTD])])
    assert [level.chunk_shape for level in layout.levels] == [(4, 3)]
    assert layout.object_codecs == ()
    leaf = layout.chain.array_bytes
    assert leaf.name == "sharding_indexed"
    assert leaf.configuration == {
        "chunk_shape": [2, 1],
        # Written out in full: zarr asks for a configuration, be it empty.
        "codecs": [
            {"name": "bytes", "configuration": {}},
            {"name": "crc32c", "configuration": {}},
        ],
        "index_codecs": [LITTLE],
        "index_location": "end",
    }
    assert [spec.name for spec in layout.chain.bytes_bytes] == ["zstd"]


def test_a_sharding_codec_behind_another_array_codec_is_no_level():
    layout = parse(codecs=[transpose(1, 0), DELTA, sharding([3, 2]), ZSTD])
    assert layout.levels == ()
    assert layout.object_codecs == ()
    assert layout.outer_order == (0, 1)
    assert [spec.name for spec in layout.chain.array_array] == [
        "transpose",
        "numcodecs.delta",
    ]
    assert layout.chain.array_bytes.name == "sharding_indexed"
    assert [spec.name for spec in layout.chain.bytes_bytes] == ["zstd"]
    assert (layout.chunks, layout.shards) == ((2, 3), (4, 6))


def test_a_sharding_codec_that_is_no_level_is_checked_all_the_same():
    path = "codecs[1].configuration.chunk_shape"
    refused(MetadataError, path, codecs=[DELTA, sharding([3, 3])])
    path = "codecs[1].configuration.codecs"
    refused(MetadataError, path, codecs=[DELTA, sharding([2, 3], [ZSTD])])


def test_behind_a_codec_of_unknown_shape_only_the_form_is_checked():
    packbits = {"name": "numcodecs.packbits"}
    layout = parse(
        data_type="bool", fill_value=False, codecs=[packbits, sharding([4], ["bytes"])]
    )
    assert layout.levels == ()
    assert (layout.chunks, layout.shards) == ((4, 6), None)


def test_what_zarr_writes_is_parsed_the_way_zarr_reads_it():
    import zarr

    store = zarr.storage.MemoryStore()
    for i, (shape, shards, chunks) in enumerate(
        [((7,), (4,), (2,)), ((5, 6), None, (2, 3)), ((), None, ())]
    ):
        array = zarr.create_array(
            store,
            name=f"a{i}",
            shape=shape,
            shards=shards,
            chunks=chunks,
            dtype="float32",
            fill_value=1.5,
        )
        fields = json.loads(store._store_dict[f"a{i}/zarr.json"].to_bytes())
        layout = parse_array(fields, f"a{i}")
        assert layout.shape == array.shape
        assert layout.chunks == array.chunks
        assert layout.shards == array.shards
        assert layout.fill_value == array.fill_value

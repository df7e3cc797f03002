"""Zarr v3 array documents: their members, shapes and chunk keys."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushard.errors import MetadataError, UnsupportedError
from gpushard.metadata import parse_array
from v3_documents import (
    CRC,
    LITTLE,
    ZSTD,
    document,
    grid,
    parse,
    refused,
    sharding,
    transpose,
)

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
    shape = [1] * 33
    error = refused(UnsupportedError, "shape", shape=shape, chunk_grid=grid(*shape))
    assert error.got == 33
    assert str(error).endswith("expected at most 32, got 33.")


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

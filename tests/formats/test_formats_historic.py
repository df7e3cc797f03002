"""Prototype II on Zarr v2, the draft of v3 with its transformer, rolled arrays."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

import gpushard
from gpushard.formats import v2, v3_draft
from gpushard.metadata import parse_array
from gpushard.options import DEFAULT
from historic_arrays import (
    PROTOCOL,
    ROOT,
    all_chunks,
    draft_document,
    draft_key,
    grouped,
    json_bytes,
    prototype_document,
)
from zarr_oracle import assert_same_bits, held

VALUES = np.arange(11 * 14, dtype=">i4").reshape(11, 14)
CHUNKS, PER_SHARD = (3, 2), (2, 3)


# Prototype II


def prototype(separator=".", order="C", encode=lambda data: data, **changes):
    stored = grouped(all_chunks(VALUES, CHUNKS, order, encode), PER_SHARD)
    objects = {separator.join(map(str, at)): data for at, data in stored.items()}
    document = prototype_document(
        VALUES,
        CHUNKS,
        PER_SHARD,
        dimension_separator=separator,
        order=order,
        **changes,
    )
    return {".zarray": json_bytes(document), **objects}


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("separator", [".", "/"])
def test_shards_of_prototype_ii_are_counted_in_chunks(separator, order):
    a = gpushard.open_array(held(prototype(separator, order)))
    assert (a.chunks, a.shards) == (CHUNKS, (6, 6))
    assert_same_bits(a[...], VALUES)
    assert_same_bits(a[7, ::-3], VALUES[7, ::-3])


def test_a_compressor_of_prototype_ii_is_around_each_chunk():
    objects = prototype(encode=zlib.compress, compressor={"id": "zlib", "level": 1})
    assert_same_bits(gpushard.open_array(held(objects))[...], VALUES)


def test_missing_shards_and_chunks_hold_the_fill_value():
    objects = prototype(fill_value=-7)
    del objects["0.1"]
    chunks = {at: data for at, data in all_chunks(VALUES, CHUNKS).items() if at[0] != 1}
    objects["0.0"] = grouped(chunks, PER_SHARD)[0, 0]
    want = VALUES.astype("i4")
    want[:6, 6:12] = -7
    want[3:6, :6] = -7
    assert_same_bits(gpushard.open_array(held(objects))[...], want)


@pytest.mark.parametrize(
    ("changes", "error", "json_path"),
    [
        ({"shard_format": "morton_order"}, "UnsupportedError", "shard_format"),
        ({"shard_format": ...}, "UnsupportedError", "shard_format"),
        ({"shards": ...}, "MetadataError", "shards"),
        ({"shards": None}, "MetadataError", "shards"),
        ({"shards": [2]}, "MetadataError", "shards"),
        ({"shards": [2, 0]}, "MetadataError", "shards[1]"),
        ({"shards": [2**40, 2**40]}, "LimitError", "shards"),
        ({"chunks": [2**62, 1]}, "MetadataError", "shards[0]"),
    ],
)
def test_other_shards_on_v2_are_refused(changes, error, json_path):
    document = prototype_document(VALUES, CHUNKS, PER_SHARD, **changes)
    with pytest.raises(getattr(gpushard, error)) as caught:
        parse_array(document, "a")
    assert type(caught.value).__name__ == error
    assert caught.value.json_path == json_path


def test_members_for_a_writer_are_those_that_are_read():
    document = prototype_document(
        VALUES, CHUNKS, PER_SHARD, shards=..., shard_format=...
    )
    document |= v2.sharding_members((4, 1))
    assert parse_array(document, "a").shards == (12, 2)


# The draft of v3


def draft(*transformers, separator="/", order="C", where="a", **changes):
    stored = all_chunks(VALUES, CHUNKS, order)
    for per_shard in transformers:
        stored = grouped(stored, per_shard)
    document = draft_document(
        VALUES,
        CHUNKS,
        *transformers,
        separator=separator,
        chunk_memory_layout=order,
        **changes,
    )
    below = f"/{where}" if where else ""
    return {
        "zarr.json": json_bytes(ROOT),
        f"meta/root{below}.array.json": json_bytes(document),
        **{
            f"data/root{below}/{draft_key(at, separator)}": data
            for at, data in stored.items()
        },
    }


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("where", ["a", "deep/c/a", ""])
def test_shards_of_the_transformer_lie_below_data_root(where, separator, order):
    objects = draft(PER_SHARD, separator=separator, order=order, where=where)
    a = gpushard.open_array(held(objects), where)
    assert (a.path, a.chunks, a.shards) == (where, CHUNKS, (6, 6))
    assert_same_bits(a[...], VALUES)
    assert_same_bits(a[7, ::-3], VALUES[7, ::-3])


def test_an_array_without_a_transformer_has_a_chunk_an_object():
    a = gpushard.open_array(held(draft()), "a")
    assert (a.chunks, a.shards) == (CHUNKS, None)
    assert_same_bits(a[...], VALUES)


def test_the_first_of_two_transformers_is_next_to_the_array():
    a = gpushard.open_array(held(draft((1, 2), (2, 1))), "a")
    assert [level.chunk_shape for level in a.source.layout.levels] == [(3, 4), (3, 2)]
    assert a.shards == (6, 4)
    assert_same_bits(a[...], VALUES)


def test_an_array_without_axes_has_its_chunk_in_c0():
    values = np.array(2.5)
    objects = {
        "zarr.json": json_bytes(ROOT),
        "meta/root/a.array.json": json_bytes(draft_document(values, (), ())),
        "data/root/a/c0": grouped({(): values.tobytes()}, ())[()],
    }
    assert_same_bits(gpushard.open_array(held(objects), "a")[()], values)


def test_the_hierarchy_is_found_around_the_path():
    objects = {f"x/y/{key}": data for key, data in draft(PER_SHARD).items()}
    a = gpushard.open_array(held(objects), "x/y/a")
    assert_same_bits(a[...], VALUES)


def test_another_suffix_of_the_metadata_keys_is_heeded():
    objects = draft(PER_SHARD)
    objects["zarr.json"] = json_bytes({**ROOT, "metadata_key_suffix": ".txt"})
    objects["meta/root/a.array.txt"] = objects.pop("meta/root/a.array.json")
    assert_same_bits(gpushard.open_array(held(objects), "a")[...], VALUES)


def test_the_address_in_the_text_of_the_draft_is_read_too():
    (transformer,) = draft_document(VALUES, CHUNKS, PER_SHARD)["storage_transformers"]
    transformer["extension"] = (
        "http://purl.org/zarr/spec/storage-transformers/sharding/1.0"
    )
    objects = draft(PER_SHARD, storage_transformers=[transformer])
    assert_same_bits(gpushard.open_array(held(objects), "a")[...], VALUES)


@pytest.mark.parametrize(
    ("data_type", "fill", "want"),
    [
        ("bool", True, np.array(True)),
        ("i1", -3, np.array(-3, "i1")),
        ("<f8", float("nan"), np.array(np.nan)),
        (
            {"extension": "complex-dtypes/v1.0.html", "fallback": None, "type": "<c8"},
            [1.0, -2.0],
            np.array(1 - 2j, "c8"),
        ),
        ({"extension": "datetime-dtypes", "type": ">M8[s]"}, 5, np.array(5, "M8[s]")),
    ],
)
def test_data_types_and_fill_values_as_the_writer_spells_them(data_type, fill, want):
    document = draft_document(
        VALUES, CHUNKS, PER_SHARD, data_type=data_type, fill_value=fill
    )
    layout = v3_draft.parse_array(document, "a", "data/root/a", DEFAULT)
    assert_same_bits(layout.fill_value, want)


@pytest.mark.parametrize("name", ["blosc", "gzip", "zlib", "zstd", "lz4", "bz2"])
def test_a_compressor_is_named_by_its_address(name):
    address = f"{PROTOCOL.partition('protocol')[0]}codec/{name}/1.0"
    document = draft_document(
        VALUES, CHUNKS, PER_SHARD, compressor={"codec": address, "configuration": {}}
    )
    layout = v3_draft.parse_array(document, "a", "data/root/a", DEFAULT)
    assert [spec.name for spec in layout.chain.bytes_bytes] == [f"numcodecs.{name}"]


def test_filters_stand_among_the_attributes():
    delta = {"id": "delta", "dtype": ">i4"}
    document = draft_document(VALUES, CHUNKS, attributes={"filters": [delta]})
    layout = v3_draft.parse_array(document, "a", "data/root/a", DEFAULT)
    assert [spec.name for spec in layout.chain.array_array] == ["numcodecs.delta"]
    for own in (["low-pass"], ["idle"], [{"cutoff": 3}], [delta, "low-pass"], {}):
        other = draft_document(VALUES, CHUNKS, attributes={"filters": own})
        layout = v3_draft.parse_array(other, "a", "data/root/a", DEFAULT)
        assert layout.chain.array_array == ()


def transformers(**changes):
    (entry,) = draft_document(VALUES, CHUNKS, PER_SHARD)["storage_transformers"]
    return {"storage_transformers": [{**entry, **changes}]}


AT = "storage_transformers[0]"


@pytest.mark.parametrize(
    ("changes", "error", "json_path"),
    [
        (transformers(extension="cache/1.0"), "UnsupportedError", f"{AT}.extension"),
        (
            transformers(extension="x/sharding/2.0"),
            "UnsupportedError",
            f"{AT}.extension",
        ),
        (transformers(type="ragged"), "UnsupportedError", f"{AT}.type"),
        (transformers(configuration=None), "MetadataError", f"{AT}.configuration"),
        (
            transformers(configuration={"chunks_per_shard": [2]}),
            "MetadataError",
            f"{AT}.configuration.chunks_per_shard",
        ),
        (
            {"storage_transformers": transformers()["storage_transformers"] * 9},
            "LimitError",
            f"{AT}.configuration.chunks_per_shard",
        ),
        ({"storage_transformers": [3]}, "MetadataError", AT),
        ({"extensions": [{"extension": "x"}]}, "UnsupportedError", "extensions[0]"),
        ({"chunk_grid": {"type": "x"}}, "UnsupportedError", "chunk_grid.type"),
        (
            {"chunk_grid": {"type": "regular", "chunk_shape": [1]}},
            "MetadataError",
            "chunk_grid.chunk_shape",
        ),
        (
            {
                "chunk_grid": {
                    "type": "regular",
                    "chunk_shape": [1, 1],
                    "separator": "..",
                }
            },
            "MetadataError",
            "chunk_grid.separator",
        ),
        (
            {"chunk_memory_layout": "Morton"},
            "UnsupportedError",
            "chunk_memory_layout",
        ),
        ({"compressor": {"codec": "zstd"}}, "UnsupportedError", "compressor.codec"),
        (
            {"compressor": {"codec": "a/spec/codec/zstd/2.0"}},
            "UnsupportedError",
            "compressor.codec",
        ),
        (
            {"compressor": {"codec": "a/spec/codec/secret/1.0"}},
            "UnsupportedError",
            "compressor",
        ),
        ({"data_type": {"extension": "x"}}, "MetadataError", "data_type"),
        ({"data_type": "<f16"}, "UnsupportedError", "data_type"),
        ({"future": 1}, "UnsupportedError", "future"),
    ],
)
def test_what_the_draft_does_not_say_is_refused(changes, error, json_path):
    document = draft_document(VALUES, CHUNKS, PER_SHARD, **changes)
    with pytest.raises(getattr(gpushard, error)) as caught:
        v3_draft.parse_array(document, "a", "data/root/a", DEFAULT)
    assert type(caught.value).__name__ == error
    assert caught.value.json_path == json_path
    assert caught.value.array_path == "a"


@pytest.mark.parametrize("name", ["shape", "data_type", "chunk_grid", "fill_value"])
def test_a_document_without_a_required_member_is_refused(name):
    document = draft_document(VALUES, CHUNKS, PER_SHARD)
    del document[name]
    with pytest.raises(gpushard.MetadataError) as caught:
        v3_draft.parse_array(document, "a", "data/root/a", DEFAULT)
    assert caught.value.json_path == name


def test_documents_for_a_writer_are_those_that_are_read():
    assert v3_draft.parse_root(v3_draft.root_document()) == ".json"
    entry = v3_draft.transformer_document((4, 1))
    document = draft_document(VALUES, CHUNKS, storage_transformers=[entry])
    layout = v3_draft.parse_array(document, "a", "data/root/a", DEFAULT)
    assert layout.shards == (12, 2)


# Rolled arrays


def rolled(offset, **changes):
    values = np.arange(6, dtype="<i2")
    document = prototype_document(
        values, (2,), (1,), shards=..., shard_format=..., fill_value=-1, **changes
    )
    objects = {str(at[0] - 2): data for at, data in all_chunks(values, (2,)).items()}
    attributes = json.dumps({"_offset": offset}).encode()
    return held({".zarray": json_bytes(document), ".zattrs": attributes, **objects})


def test_an_offset_is_added_to_the_coordinates_of_the_keys():
    assert gpushard.open_array(rolled([-2]))[...].tolist() == [0, 1, 2, 3, 4, 5]
    assert gpushard.open_array(rolled([-1]))[...].tolist() == [2, 3, 4, 5, -1, -1]


@pytest.mark.parametrize("offset", [None, [], "x", [0.5], [True]])
def test_what_is_no_offset_is_an_attribute_like_any_other(offset):
    assert gpushard.open_array(rolled(offset))[...].tolist() == [4, 5, -1, -1, -1, -1]


def test_an_offset_of_another_rank_is_refused():
    with pytest.raises(gpushard.MetadataError) as caught:
        gpushard.open_array(rolled([1, 2]))
    assert caught.value.json_path == ".zattrs._offset"

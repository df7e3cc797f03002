"""Codec lists of Zarr v3: their order, their kinds and their configurations."""

from __future__ import annotations

import pytest
import zarr.codecs

from gpushard.errors import MetadataError, UnsupportedError
from v3_documents import CRC, LITTLE, ZSTD, parse, refused, sharding, transpose


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
    if not hasattr(zarr.codecs, "ScaleOffset"):
        pytest.skip("scale_offset came with zarr 3.2")
    scale = {"name": "scale_offset", "configuration": {"scale": 2, "offset": 1}}
    layout = parse(codecs=[scale, LITTLE])
    assert [spec.name for spec in layout.chain.array_array] == ["scale_offset"]


def test_kinds_of_known_codecs_are_those_of_zarr():
    from zarr.abc import codec as bases
    from zarr.registry import get_codec_class

    from gpushard.formats import codec_specs

    of_kind = [bases.ArrayArrayCodec, bases.ArrayBytesCodec, bases.BytesBytesCodec]
    n_checked = 0
    for name, kind in codec_specs._KINDS.items():
        try:
            found = get_codec_class(name)
        except (KeyError, ImportError, ValueError):
            continue  # needs an optional package of numcodecs, or a newer zarr
        assert issubclass(found, of_kind[kind]), name
        # zarr 3.1 calls zstd fixed; a sharding codec is as fixed as what it holds.
        if name in codec_specs.VARIABLE_SIZE - {"sharding_indexed", "zstd"}:
            assert not getattr(found, "is_fixed_size", False), name
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
        ([0.0, 1.0], "order"),
        (["a", 0], "order"),
        ("F", "order"),
        ("C", "order"),
        (None, "order"),
    ],
)
def test_a_transpose_needs_a_permutation_of_the_axes(order, below):
    codec = {"name": "transpose", "configuration": {"order": order}}
    refused(MetadataError, f"codecs[0].configuration.{below}", codecs=[codec, LITTLE])


@pytest.mark.parametrize("given", [{}, {"elementsize": None}, {"elementsize": 2}])
def test_a_shuffle_takes_the_size_of_its_items_from_what_its_chain_encodes(given):
    size = given.get("elementsize")
    shuffle = {"name": "numcodecs.shuffle", "configuration": given}
    inner = sharding([2, 3], [LITTLE, shuffle], [LITTLE, shuffle, CRC])
    layout = parse(codecs=[inner, shuffle])
    (level,) = layout.levels
    for specs, usual in (
        (layout.chain.bytes_bytes, 4),
        (layout.object_codecs, 4),
        (level.index_chain.bytes_bytes, 8),
    ):
        assert specs[0].configuration == {"elementsize": size or usual}


def test_packed_bits_have_one_axis_whatever_the_array_has():
    packed, bools = {"name": "numcodecs.packbits"}, {"data_type": "bool"}
    bools["fill_value"] = False
    for order, is_valid in (([0], True), ([1, 0], False), ([], False)):
        codecs = [transpose(1, 0), packed, transpose(*order), LITTLE]
        if is_valid:
            assert len(parse(codecs=codecs, **bools).chain.array_array) == 3
        else:
            path = "codecs[2].configuration.order"
            refused(MetadataError, path, codecs=codecs, **bools)


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


@pytest.mark.parametrize(("member", "value"), [("level", "high"), ("checksum", 1)])
def test_members_of_another_type_are_refused(member, value):
    zstd = {"name": "zstd", "configuration": {member: value}}
    path = f"codecs[1].configuration.{member}"
    refused(MetadataError, path, codecs=[LITTLE, zstd])

"""Sharding codecs of Zarr v3 become levels, and what stands around them."""

from __future__ import annotations

import numpy as np
import pytest

from gpushard.errors import LimitError, MetadataError, UnsupportedError
from gpushard.options import DEFAULT
from v3_documents import (
    CRC,
    DELTA,
    LITTLE,
    ZSTD,
    grid,
    parse,
    rectilinear,
    refused,
    sharding,
    transpose,
)

# Sharding


def test_a_sharding_codec_is_a_level():
    layout = parse(codecs=[sharding([2, 3], [LITTLE, ZSTD], index_location="start")])
    (level,) = layout.levels
    assert level.chunk_shape == (2, 3)
    assert level.axis_order == (0, 1)
    assert level.index_location == "start"
    assert level.index_nbytes(4) == 16 * 4 + 4
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
    assert level.index_size.trailer_nbytes == 12
    plain = parse(codecs=[sharding([2, 3], index_codecs=[LITTLE])]).levels[0]
    assert plain.index_size.trailer_nbytes == 0


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


def test_an_index_codec_that_nobody_knows_is_unsupported():
    codecs = [sharding([2, 3], index_codecs=[LITTLE, "rot13"])]
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
    with pytest.raises(LimitError, match="388 bytes for 24 inner chunks"):
        parse(options, codecs=codecs)
    # The largest shard of a rectilinear grid decides.
    with pytest.raises(LimitError, match="388 bytes for 24 inner chunks"):
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
    refused(LimitError, path, codecs=[nested(depth + 1)])
    refused(LimitError, path, codecs=[nested(60)])


def test_nested_levels_keep_their_own_index():
    inner = sharding([2, 1], [LITTLE, ZSTD], [LITTLE], index_location="start")
    layout = parse(codecs=[sharding([4, 3], [inner])])
    outer, within = layout.levels
    assert (outer.chunk_shape, within.chunk_shape) == ((4, 3), (2, 1))
    assert (outer.index_location, within.index_location) == ("end", "start")
    trailers = [at.index_size.trailer_nbytes for at in (outer, within)]
    assert trailers == [4, 0]
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

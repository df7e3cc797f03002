"""Sharding codec, version 1.0: paragraph by paragraph, with shards made by hand.

Every shard here is put together from the text of the specification, byte by byte, so
that no implementation is its own witness.
"""

from __future__ import annotations

import gzip
import itertools
import struct

import crc32c
import numpy as np
import pytest

import gpushard
from array_strategies import codec
from gpushard import Options
from spec_shards import (
    BIG,
    CRC,
    EMPTY,
    LITTLE,
    document,
    index_of,
    opened,
    shard_of,
    sharding,
)
from zarr_oracle import assert_same_bits

# Configuration parameters


def test_the_specs_first_example_is_read():
    inner = [codec("bytes", endian="little"), codec("gzip", level=1)]
    doc = document([64, 64], [64, 64], sharding([32, 32], codecs=inner), dtype="uint16")
    values = np.arange(64 * 64, dtype="<u2").reshape(64, 64)
    chunks = [
        gzip.compress(values[i : i + 32, j : j + 32].tobytes(), 1)
        for i in (0, 32)
        for j in (0, 32)
    ]
    assert_same_bits(opened(doc, **{"0_0": shard_of(*chunks)})[...], values)


def test_inner_chunks_of_32_by_2_make_64_in_a_shard_of_64_by_64():
    a = opened(document([64, 64], [64, 64], sharding([32, 2])))
    assert (a.chunks, a.shards) == ((32, 2), (64, 64))
    assert a.explain().n_inner_chunks == 64


def refused(error, json_path, *codecs, shard_shape=(4, 4)):
    with pytest.raises(gpushard.GpushardError) as caught:
        opened(document(shard_shape, shard_shape, *codecs))
    assert type(caught.value) is error
    assert caught.value.json_path == json_path
    assert json_path in str(caught.value)
    return str(caught.value)


CONFIG = "codecs[0].configuration"


@pytest.mark.parametrize(
    "chunk_shape", [[2], [2, 2, 1], [], [3, 2], [4, 8], [0, 2], [2, -2]]
)
def test_a_chunk_shape_that_does_not_cut_the_shard_evenly_is_refused(chunk_shape):
    with pytest.raises(gpushard.MetadataError) as caught:
        opened(document([4, 4], [4, 4], sharding(chunk_shape)))
    assert caught.value.json_path.startswith(f"{CONFIG}.chunk_shape")


@pytest.mark.parametrize(
    "codecs", [[], [CRC], [LITTLE, LITTLE], [sharding([1, 1]), LITTLE], [CRC, LITTLE]]
)
@pytest.mark.parametrize("list_name", ["codecs", "index_codecs"])
def test_each_list_needs_exactly_one_array_to_bytes_codec(list_name, codecs):
    with pytest.raises(gpushard.MetadataError) as caught:
        opened(document([4, 4], [4, 4], sharding([2, 2], **{list_name: codecs})))
    assert caught.value.json_path.startswith(f"{CONFIG}.{list_name}")


@pytest.mark.parametrize("name", ["chunk_shape", "codecs", "index_codecs"])
def test_a_missing_member_is_refused_by_name(name):
    bad = sharding([2, 2], **{name: ...})
    text = refused(gpushard.MetadataError, f"{CONFIG}.{name}", bad)
    assert name in text


@pytest.mark.parametrize("location", ["middle", "END", "", None, 0, ["end"]])
def test_an_index_location_other_than_start_and_end_is_refused(location):
    bad = sharding([2, 2], index_location=location)
    refused(gpushard.MetadataError, f"{CONFIG}.index_location", bad)


@pytest.mark.parametrize(
    "variable",
    [
        codec("zstd", level=1, checksum=False),
        codec("gzip", level=1),
        codec("numcodecs.lz4"),
    ],
)
def test_index_codecs_of_variable_size_are_refused_by_name(variable):
    bad = sharding([2, 2], index_codecs=[LITTLE, variable])
    text = refused(gpushard.MetadataError, f"{CONFIG}.index_codecs[1]", bad)
    assert variable["name"] in text


def test_refusals_inside_a_nested_shard_name_the_whole_path():
    bad = sharding([2, 2], codecs=[sharding([1, 1], index_location="up")])
    path = f"{CONFIG}.codecs[0].configuration.index_location"
    refused(gpushard.MetadataError, path, bad)


# Binary shard format


def test_the_index_of_four_inner_chunks_takes_68_bytes():
    chunks = [bytes([k]) * 32 * 32 for k in range(4)]
    shard = shard_of(*chunks)
    assert len(shard) - 4 * 32 * 32 == 68
    doc = document([64, 64], [64, 64], sharding([32, 32]))
    a = opened(doc, **{"0_0": shard})
    assert a.explain().index_nbytes == 68
    want = np.kron(np.arange(4).reshape(2, 2), np.ones((32, 32))).astype("u1")
    assert_same_bits(a[...], want)


@pytest.mark.parametrize("location", ["start", "end", ...])
@pytest.mark.parametrize("index_codecs", [[LITTLE], [BIG], [LITTLE, CRC], [BIG, CRC]])
def test_the_index_lies_where_it_says_in_the_bytes_it_says(location, index_codecs):
    inner = sharding([2], index_location=location, index_codecs=index_codecs)
    n_index = 16 * 3 + 4 * (CRC in index_codecs)
    base = n_index if location == "start" else 0
    index = index_of(
        [(base + 2 * k, 2) for k in range(3)],
        "<" if index_codecs[0] is LITTLE else ">",
        CRC in index_codecs,
    )
    payload = b"abcdef"
    shard = index + payload if location == "start" else payload + index
    a = opened(document([6], [6], inner), **{"0": shard})
    assert a[...].tobytes() == payload
    assert a.explain(0).index_nbytes == n_index


def test_an_index_is_transposed_as_its_codecs_say():
    # Shape (2, 3, 2) of the index, stored with its axes in the order (2, 1, 0).
    order = codec("transpose", order=[2, 1, 0])
    inner = sharding([1, 1], index_codecs=[order, LITTLE, CRC])
    entries = np.array([(10 * k, 1) for k in range(6)], "<u8").reshape(2, 3, 2)
    raw = entries.transpose(2, 1, 0).tobytes()
    payload = bytearray(60)
    payload[::10] = b"abcdef"
    shard = bytes(payload) + raw + struct.pack("<I", crc32c.crc32c(raw))
    a = opened(document([2, 3], [2, 3], inner), **{"0_0": shard})
    assert a[...].tobytes() == b"abcdef"


def test_unused_space_between_inner_chunks_is_skipped():
    payload = b"??ab?????cd?"
    shard = payload + index_of([(2, 2), (9, 2)])
    a = opened(document([4], [4], sharding([2])), **{"0": shard})
    assert a[...].tobytes() == b"abcd"


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
def test_inner_chunks_may_lie_in_any_order(order):
    payload = b"".join(bytes([k, k]) for k in order)
    entries = [(2 * order.index(k), 2) for k in range(4)]
    a = opened(document([8], [8], sharding([2])), **{"0": payload + index_of(entries)})
    assert_same_bits(a[...], np.repeat(np.arange(4, dtype="u1"), 2))
    assert a[6] == 3


def test_byte_ranges_may_be_shared_and_may_overlap():
    shard = b"abcd" + index_of([(0, 2), (0, 2), (1, 2), (2, 2)])
    a = opened(document([8], [8], sharding([2])), **{"0": shard})
    assert a[...].tobytes() == b"ababbccd"
    assert a[4:6].tobytes() == b"bc"


def test_an_entry_of_two_sentinels_is_an_empty_inner_chunk():
    shard = b"cd" + index_of([(EMPTY, EMPTY), (0, 2)])
    a = opened(document([4], [4], sharding([2]), fill_value=9), **{"0": shard})
    assert_same_bits(a[...], np.array([9, 9, 99, 100], "u1"))
    report = a.explain()
    assert (report.n_inner_chunks, report.n_missing_inner_chunks) == (2, 1)


@pytest.mark.parametrize("n", [0, 8])
@pytest.mark.parametrize("entry", [(EMPTY, 2), (0, EMPTY), (EMPTY, 0)])
def test_an_entry_of_one_sentinel_is_damaged_and_its_neighbours_are_not(entry, n):
    shard = b"abcd" + index_of([entry, (2, 2)])
    doc = document([4], [4], sharding([2]))
    a = opened(doc, Options(small_read_chunks=n), **{"0": shard})
    with pytest.raises(gpushard.CorruptShardError) as caught:
        a[...]
    assert (caught.value.inner_chunk, caught.value.shard_key) == ((0,), "c/0")
    assert a[2:].tobytes() == b"cd"


def test_empty_inner_chunks_hold_the_fill_value_bit_for_bit():
    doc = document([2], [2], sharding([2]), dtype="float16", fill_value="0x7e11")
    assert opened(doc)[...].tobytes() == b"\x11\x7e" * 2
    doc = document([1], [1], sharding([1]), dtype="float64", fill_value=-0.0)
    assert opened(doc)[...].tobytes() == struct.pack("<d", -0.0)


def test_the_index_counts_inner_chunks_beyond_the_arrays_edge_too():
    # 3 elements in a shard of 8: inner chunks 2 and 3 lie outside, one of them filled.
    shard = b"abcdxx" + index_of([(0, 2), (2, 2), (4, 2), (EMPTY, EMPTY)])
    a = opened(document([3], [8], sharding([2])), **{"0": shard})
    assert a[...].tobytes() == b"abc"
    assert a.explain().n_inner_chunks == 2
    assert a.blocks[0].tobytes() == b"abc"


def test_damaged_entries_beyond_the_arrays_edge_hurt_nobody():
    shard = b"abcd" + index_of([(0, 2), (2, 2), (2**63, 7), (EMPTY, 1)])
    a = opened(document([3], [8], sharding([2])), **{"0": shard})
    assert a[...].tobytes() == b"abc"


def test_bytes_may_follow_what_the_index_covers():
    index = index_of([(36, 2), (38, 2)])
    shard = index + b"abcd" + b"bytes of another format"
    doc = document([4], [4], sharding([2], index_location="start"))
    assert opened(doc, **{"0": shard})[...].tobytes() == b"abcd"


def test_a_superseded_index_before_the_last_one_is_unused_space():
    once = shard_of(b"ab", b"cd")
    appended = once + b"XY" + index_of([(len(once), 2), (2, 2)])
    a = opened(document([4], [4], sharding([2])), **{"0": appended})
    assert a[...].tobytes() == b"XYcd"


def test_an_absent_shard_is_all_fill_value():
    a = opened(
        document([8], [4], sharding([2]), fill_value=7), **{"1": shard_of(b"ab", b"cd")}
    )
    assert a[...].tobytes() == b"\7\7\7\7abcd"
    assert a.explain().n_missing_shards == 1


@pytest.mark.parametrize("at", range(0, 36, 5))
def test_no_flipped_bit_in_an_index_with_a_checksum_goes_unseen(at):
    shard = bytearray(shard_of(b"ab", b"cd"))
    shard[4 + at] ^= 1
    a = opened(document([4], [4], sharding([2])), **{"0": bytes(shard)})
    with pytest.raises(gpushard.ChecksumError) as caught:
        a[...]
    assert caught.value.shard_key == "c/0"


def test_an_entry_within_the_object_but_over_the_index_is_read_as_it_says():
    # Nothing forbids a range to reach into the index.
    shard = b"ab" + index_of([(0, 2), (1, 2)], checksum=False)
    inner = sharding([2], index_codecs=[LITTLE])
    a = opened(document([4], [4], inner), **{"0": shard})
    assert a[...].tobytes() == b"abb\0"


# Ranks


def test_an_array_without_axes_is_one_inner_chunk():
    a = opened(document([], [], sharding([])), **{"": shard_of(b"z")})
    assert a[()] == ord("z")
    assert (a.chunks, a.shards, a.shape) == ((), (), ())
    assert opened(document([], [], sharding([]), fill_value=5))[()] == 5


def test_a_damaged_array_without_axes_names_its_inner_chunk():
    shard = b"z" + index_of([(EMPTY, 1)])
    a = opened(document([], [], sharding([])), **{"": shard})
    with pytest.raises(gpushard.CorruptShardError) as caught:
        a[()]
    assert caught.value.inner_chunk == ()
    assert caught.value.shard_key == "c"


def test_an_array_of_32_axes_is_read():
    shape = [1] * 30 + [2, 3]
    chunk = [1] * 32
    values = np.arange(6, dtype="u1").reshape(shape)
    shard = shard_of(*(bytes([k]) for k in range(6)))
    key = "_".join(["0"] * 32)
    a = opened(document(shape, shape, sharding(chunk)), **{key: shard})
    assert_same_bits(a[...], values)
    assert_same_bits(a[(0,) * 30], values[(0,) * 30])
    assert_same_bits(a[..., ::-1, 1:], values[..., ::-1, 1:])


@pytest.mark.parametrize("n_small", [0, 16])
def test_the_inner_chunk_that_is_cut_off_is_named_and_not_the_one_before(n_small):
    at_start = sharding(
        (4,), codecs=[LITTLE], index_codecs=[LITTLE], index_location="start"
    )
    index = np.array([[32, 4], [36, 4]], "<u8").tobytes()
    options = Options(small_read_chunks=n_small, compile_nbytes=2**62)
    a = opened(document((8,), (8,), at_start), options, **{"0": index + bytes(4)})
    with pytest.raises(gpushard.CorruptShardError) as caught:
        a[...]
    assert caught.value.inner_chunk == (1,)

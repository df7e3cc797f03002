"""Columns of what a stored object holds: order, gaps, overlaps and coordinates."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, ShardingCodec

import gpushard
from gpushard.inspection import contents
from gpushard.inspection.columns import StoredChunks, byte_use
from gpushard.inspection.contents import contents_of
from gpushard.inspection.shard_map import (
    ShardMap,
    byte_bins,
    grid_bins,
    map_shard,
    order_name,
)
from gpushard.inspection.verify import verify_array
from gpushard.planning.index import MISSING, PRESENT
from hostile_shards import ZSTD
from spec_shards import (
    CRC,
    EMPTY,
    LITTLE,
    document,
    index_of,
    opened,
    shard_of,
    sharding,
)


def chunks_of(ranges, *, indexes=(), nbytes=None) -> StoredChunks:
    """Columns of inner chunks in a row; None is a missing one."""
    known = [r or (0, 0) for r in ranges]
    start, stop = np.array(known, np.int64).reshape(-1, 2).T
    index_start, index_stop = np.array(indexes, np.int64).reshape(-1, 2).T
    state = np.array([PRESENT if r else MISSING for r in ranges], np.uint8)
    coordinate = np.arange(len(known))[:, None]
    index = index_start, index_stop
    return StoredChunks(coordinate, state, start, stop, *index, nbytes, 0)


def test_gaps_and_order_of_a_shard_are_those_of_its_ranges():
    use = byte_use(
        chunks_of([(50, 60), None, (10, 30)], indexes=[(80, 100)], nbytes=100)
    )
    assert use.order.tolist() == [2, 0]
    assert list(zip(use.gap_start, use.gap_stop, strict=True)) == [
        (0, 10),
        (30, 50),
        (60, 80),
    ]
    assert use.unused_nbytes == 50
    assert (len(use.overlapping), use.n_shared) == (0, 0)
    assert byte_use(chunks_of([(5, 5), (5, 5), (5, 5)])).n_shared == 0


def test_inner_chunks_in_bytes_of_others_and_of_the_index_are_told():
    use = byte_use(
        chunks_of([(0, 10), (5, 8), (0, 10), (90, 95)], indexes=[(88, 100)], nbytes=100)
    )
    pairs = set(zip(use.overlapping.tolist(), use.overlapped.tolist(), strict=True))
    assert pairs in ({(1, 0), (3, -1)}, {(1, 2), (3, -1)})
    assert use.n_shared == 1


def test_an_inner_chunk_is_told_to_overlap_the_one_that_reaches_farthest():
    use = byte_use(chunks_of([(0, 10), (5, 50), (20, 30), (35, 40), (60, 70)]))
    assert use.overlapping.tolist() == [1, 2, 3]
    assert use.overlapped.tolist() == [0, 1, 1]


def test_an_inner_chunk_that_overlaps_an_index_is_told_whichever_begins_first():
    for first in ((85, 95), (90, 95)):
        use = byte_use(chunks_of([first], indexes=[(88, 100)], nbytes=100))
        assert (use.overlapping.tolist(), use.overlapped.tolist()) == ([0], [-1])
    two = byte_use(chunks_of([(0, 9)], indexes=[(20, 40), (30, 50)], nbytes=50))
    assert len(two.overlapping) == 0


def test_an_object_of_unknown_size_ends_with_its_last_piece():
    pieces = [(0, 10), None, (12, 30)]
    assert chunks_of(pieces, indexes=[(40, 60)], nbytes=100).end == 100
    assert chunks_of(pieces, indexes=[(40, 60)]).end == 60
    assert chunks_of(pieces).end == 30
    assert chunks_of([]).end == 0


RANGES = st.lists(
    st.none() | st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=8
)


@given(RANGES)
def test_unused_bytes_and_overlaps_equal_those_counted_byte_by_byte(drawn):
    ranges = [r and (r[0], r[0] + r[1]) for r in drawn]
    use = byte_use(chunks_of(ranges, nbytes=64))
    covered = np.zeros(64, int)
    for start, stop in {r for r in ranges if r}:
        covered[start:stop] += 1
    assert use.unused_nbytes == np.count_nonzero(covered == 0)
    assert (len(use.overlapping) > 0) == bool((covered > 1).any())
    assert use.n_shared == sum(r is not None for r in ranges) - len(
        {r for r in ranges if r}
    )
    for row, other in zip(use.overlapping, use.overlapped, strict=True):
        assert ranges[row][0] < ranges[other][1]
        assert ranges[other][0] < ranges[row][1]


def test_inner_chunks_of_nested_shards_have_coordinates_of_the_whole_array(tmp_path):
    inner = ShardingCodec(chunk_shape=(2, 1), codecs=[BytesCodec()])
    z = zarr.create_array(
        tmp_path / "a",
        shape=(8, 12),
        chunks=(4, 6),
        dtype="u1",
        fill_value=0,
        serializer=ShardingCodec(chunk_shape=(4, 3), codecs=[inner]),
        compressors=None,
    )
    want = np.zeros((8, 12), "u1")
    want[5, 7] = want[7, 11] = want[1, 10] = 1
    z[...] = want
    source = gpushard.open_array(tmp_path / "a").source
    everything = contents_of(source, [(0, 0), (0, 1), (1, 0), (1, 1)])
    assert [c.exists for c in everything] == [False, True, False, True]
    stored = {
        tuple(c.chunks.coordinate[row].tolist()): c
        for c in everything
        if c.chunks is not None
        for row in c.chunks.stored
    }
    assert stored.keys() == {(2, 7), (3, 11), (0, 10)}
    # Three indexes, the inner ones with as many entries as a nested shard has.
    assert len(stored[2, 7].chunks.index_start) == 3
    assert byte_use(stored[2, 7].chunks).unused_nbytes == 0


def test_a_picture_of_a_shard_counts_bytes_and_inner_chunks_where_they_are():
    ranges = [(10, 30), (EMPTY, EMPTY), (40, 5), (60, 1)]
    data = bytes(70) + index_of(ranges)
    meta = document((2, 2), (2, 2), sharding((1, 1), codecs=[LITTLE, ZSTD]))
    source = opened(meta, **{"0/0": data}).source
    shard = map_shard(source, (0, 0))
    assert isinstance(shard, ShardMap)
    facts = shard.facts(source.layout)
    assert (facts["smallest_nbytes"], facts["largest_nbytes"]) == (1, 30)
    assert facts["ratio"] == 3 / 36
    assert (facts["nbytes"], facts["index_nbytes"]) == (len(data), len(data) - 70)
    grid = grid_bins(shard, source.layout, 2, 2)
    assert grid.nbytes.tolist() == [[30, 0], [5, 1]]
    assert grid.n_stored.tolist() == [[1, 0], [1, 1]]
    assert grid.row.tolist() == [[0, 1], [2, 3]]
    joined = grid_bins(shard, source.layout, 2, 1)
    assert (joined.nbytes.tolist(), joined.row.tolist()) == ([[30], [6]], [[0], [2]])
    assert (joined.per_row, joined.per_column) == (1, 2)
    bins = byte_bins(shard, len(data) // 2)
    index, unused = np.zeros(len(data)), np.ones(len(data))
    index[70:] = 1
    for start, stop in [(10, 45), (60, 61), (70, len(data))]:
        unused[start:stop] = 0
    pairs = np.stack([index, unused]).reshape(2, -1, 2).mean(axis=2)
    np.testing.assert_allclose([bins.index, bins.unused], pairs, atol=1e-9)
    assert np.flatnonzero(bins.n_chunks).tolist() == [5, 20, 30]


@pytest.mark.parametrize(
    ("order", "name"),
    [
        *(([0, 1, 2, 3, 4, 5], "c"), ([0, 3, 1, 4, 2, 5], "f"), ([3, 1, 2], "f")),
        *(([0, 1, 3, 4, 2, 5], "morton"), ([0, 3, 1, 4, 5, 2], "other")),
        *(([5, 0, 1], "other"), ([0, 1], None), ([], None)),
    ],
)
def test_the_order_of_stored_inner_chunks_has_a_name(order, name):
    assert order_name(np.array(order, np.int64), (2, 3)) == name


def test_a_shard_without_axes_is_a_picture_of_one_inner_chunk():
    data = bytes(10) + index_of([(2, 3)])
    source = opened(document((), (), sharding((), codecs=[LITTLE, ZSTD])), **{"": data})
    shard = map_shard(source.source, ())
    assert isinstance(shard, ShardMap)
    assert grid_bins(shard, source.source.layout, 2, 2).nbytes.tolist() == [[3]]


def test_inner_chunks_of_several_sizes_are_verified_each_by_its_own():
    meta = document((7,), (7,), LITTLE)
    grid = {"name": "rectilinear", "configuration": {"kind": "inline"}}
    grid["configuration"]["chunk_shapes"] = [[3, 4]]
    meta["chunk_grid"] = grid
    whole = opened(meta, **{"0": bytes(3), "1": bytes(4)}).source
    assert verify_array(whole).status == "whole"
    result = verify_array(opened(meta, **{"0": bytes(4), "1": bytes(4)}).source)
    (found,) = result.findings
    assert (found.kind, found.shard_key) == ("size", "c/0")
    assert (found.expected, found.got) == ("3 bytes", "4 bytes")


def test_more_damaged_entries_than_are_named_are_counted(monkeypatch):
    monkeypatch.setattr(contents, "_MOST_ENTRIES", 2)
    meta = document((5,), (5,), sharding((1,), codecs=[LITTLE]))
    data = bytes(9) + index_of([(2**63, 1)] * 4 + [(0, 1)])
    result = verify_array(opened(meta, **{"0": data}).source)
    more, *named = result.findings
    assert [found.inner_chunk for found in named] == [(0,), (1,)]
    assert {found.kind for found in result.findings} == {"bounds"}
    assert more.message == "2 more entries are no valid byte ranges"
    assert (more.n_inner_chunks, result.n_damaged_inner_chunks) == (2, 4)


def test_an_object_larger_than_any_encoding_is_told_by_its_size(tmp_path):
    meta = document((4,), (4,), sharding((2,)), CRC)
    (tmp_path / "c").mkdir()
    (tmp_path / "zarr.json").write_text(json.dumps(meta))
    (tmp_path / "c" / "0").touch()
    os.truncate(tmp_path / "c" / "0", 1 << 40)
    result = verify_array(gpushard.open_array(tmp_path).source)
    (found,) = result.findings
    assert (found.kind, found.shard_key, found.n_inner_chunks) == ("size", "c/0", 2)
    assert found.got == f"{1 << 40} bytes"
    assert result.status == "damaged"


def test_objects_too_large_to_be_held_whole_end_the_verification():
    meta = document((8192,), (8192,), sharding((2,)), CRC)
    options = gpushard.Options(max_chunk_nbytes=4096)
    with pytest.raises(gpushard.LimitError, match="codecs around it"):
        verify_array(opened(meta, options).source)


def test_inner_chunks_in_the_same_bytes_are_checked_once_and_all_told():
    codecs = [LITTLE, CRC]
    meta = document((4,), (4,), sharding((1,), codecs=codecs))
    data = bytes(10) + index_of([(0, 5), (5, 5), (0, 5), (2, 5)])
    result = verify_array(opened(meta, **{"0": data}).source)
    counts = result.counts
    assert (counts["n_checked_inner_chunks"], counts["read_nbytes"]) == (4, 10)
    damage = [f for f in result.findings if f.is_damage]
    told = [(f.inner_chunk, f.n_inner_chunks) for f in damage]
    assert told == [((0,), 2), ((1,), 1), ((3,), 1)]
    assert result.n_damaged_inner_chunks == 4
    overlap = next(f for f in result.findings if f.kind == "overlap")
    assert (overlap.inner_chunk, overlap.got) == ((1,), "bytes 5 to 10")
    assert overlap.n_inner_chunks == 0
    assert "in bytes of inner chunk (3,):" in overlap.message


def test_inner_chunks_that_share_the_last_bytes_are_all_counted():
    meta = document((3,), (3,), sharding((1,), codecs=[LITTLE]))
    data = bytes(2) + index_of([(0, 1), (1, 1), (1, 1)])
    result = verify_array(opened(meta, **{"0": data}).source, decodes=True)
    assert result.counts["n_checked_inner_chunks"] == 3


@pytest.mark.parametrize(
    ("outer", "inner", "told"),
    [
        ([CRC], [CRC], ", with their crc32c"),
        ([CRC], [], ", with their crc32c (not at every level)"),
        ([], [], ", without a checksum"),
    ],
)
def test_it_is_told_which_indexes_have_a_checksum(outer, inner, told):
    nested = sharding((1,), index_codecs=[LITTLE, *inner])
    outermost = sharding((2,), codecs=[nested], index_codecs=[LITTLE, *outer])
    checks = verify_array(opened(document((4,), (4,), outermost)).source).checks
    assert (checks[0].what, checks[0].how) == ("shard indexes", f"decoded{told}")


def test_the_picture_of_a_shard_begins_at_its_first_inner_chunk():
    meta = document((7, 9), (4, 6), sharding((2, 3), codecs=[LITTLE]))
    data = bytes(24) + index_of([(0, 6), (6, 6), (12, 6), (18, 6)])
    shard = map_shard(opened(meta, **{"1_1": data}).source, (1, 1))
    assert isinstance(shard, ShardMap)
    assert (shard.grid_shape, shard.origin, shard.order_name) == ((2, 2), (2, 2), "c")
    assert (shard.decoded_nbytes, shard.use.order.tolist()) == (6, [0, 1, 2, 3])


def test_bytes_of_inner_chunks_too_large_to_be_held_are_told_to_be_unchecked():
    meta = document((8192,), (8192,), sharding((4096,), codecs=[LITTLE]))
    data = bytes(8192) + index_of([(0, 4096), (4096, 4096)])
    options = gpushard.Options(max_chunk_nbytes=1024)
    result = verify_array(opened(meta, options, **{"0": data}).source, decodes=True)
    assert (result.status, result.counts["n_checked_inner_chunks"]) == ("unverified", 0)
    left = [check.what for check in result.checks if not check.is_done]
    assert left == ["byte ranges", "bytes of inner chunks"]  # no size is told either


def test_a_damaged_index_of_a_nested_shard_is_none_that_was_read():
    whole, cut = shard_of(b"a", b"b"), shard_of(b"c", b"d")[:-1] + b"?"
    meta = document((4,), (4,), sharding((2,), codecs=[sharding((1,))]))
    result = verify_array(opened(meta, **{"0": shard_of(whole, cut)}).source)
    (found,) = result.findings
    assert (found.kind, found.inner_chunk, found.n_inner_chunks) == ("index", (2,), 2)
    # The outermost index lies at an end that the store does not tell.
    assert (result.counts["n_indexes"], result.counts["n_inner_chunks"]) == (1, 2)

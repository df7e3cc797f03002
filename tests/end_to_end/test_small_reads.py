"""The path of small reads gives what the general path gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import zarr
from hypothesis import given, note
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, ShardingCodec, ZstdCodec
from zarr.storage import MemoryStore

import gpushard
from array_strategies import stored_arrays
from call_counts import n_calls
from gpushard import Options
from gpushard.codecs import blosc_blocks
from gpushard.fused import choice
from gpushard.fused.short import ways
from gpushard.fused.short.ways import ShortWays
from gpushard.reading import results, small
from gpushard.selecting import expressions
from selection_strategies import (
    basic_keys,
    masks,
    orthogonal_keys,
    point_keys,
    take_orthogonal,
)
from zarr_oracle import assert_same_bits, held

pytestmark = [
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in"),
    pytest.mark.usefixtures("settled"),
]


LIMITS = st.sampled_from([1, 3, 8, 1000])


@given(stored_arrays(), LIMITS, st.data())
def test_small_and_general_reads_give_the_same_bits(stored, limit, data):
    store = held(stored.objects)
    general = gpushard.open_array(store, options=Options(small_read_chunks=0))
    scalar = gpushard.open_array(store, options=Options(small_read_chunks=limit))
    for _ in range(4):
        key = data.draw(basic_keys(stored.full.shape))
        note(f"{key=}")
        want = np.asarray(stored.full[key], stored.full.dtype)
        assert_same_bits(general.read(key), want)
        assert_same_bits(scalar.read(key), want)


@given(stored_arrays(), LIMITS, st.data())
def test_small_reads_of_index_arrays_and_points_give_the_same_bits(stored, limit, data):
    store, full = held(stored.objects), stored.full
    general = gpushard.open_array(store, options=Options(small_read_chunks=0))
    scalar = gpushard.open_array(store, options=Options(small_read_chunks=limit))
    for _ in range(4):
        if full.size and data.draw(st.booleans()):
            key = data.draw(point_keys(full.shape) | masks(full.shape))
            selection = expressions.points(key, full.shape)
            want = full[key]
        else:
            key = data.draw(orthogonal_keys(full.shape))
            selection = expressions.orthogonal(key, full.shape)
            want = take_orthogonal(full, key)
        note(f"{key=}")
        want = np.asarray(want, full.dtype).reshape(selection.shape)
        assert_same_bits(general.read(selection), want)
        out = np.empty(selection.shape, full.dtype)
        if small.read_small(scalar.source, selection, out):
            assert_same_bits(out, want)
        else:
            assert_same_bits(scalar.read(selection), want)


@pytest.fixture
def sharded():
    """Array of 8 x 8 inner chunks in 2 x 2 shards, its store, and its values."""
    objects = {}
    values = np.arange(32 * 32, dtype="i4").reshape(32, 32)
    z = zarr.create_array(
        MemoryStore(objects), shape=(32, 32), chunks=(4, 4), shards=(16, 16), dtype="i4"
    )
    z[...] = values
    z[:16, 16:] = 0  # a shard that is not there
    return MemoryStore(objects), np.asarray(z[...])


@pytest.fixture
def small_reads(monkeypatch):
    """Whether each read since was taken as a small one; there are no loops."""
    monkeypatch.setattr(results, "short_ways", lambda _: ShortWays())
    taken: list[bool] = []

    def spy(*args):
        taken.append(small.read_small(*args))
        return taken[-1]

    monkeypatch.setattr(results, "read_small", spy)
    return taken


@pytest.mark.parametrize(
    ("key", "n_chunks"),
    [
        (np.s_[0, 0], 1),
        (np.s_[3:5, 3:5], 4),
        (np.s_[0:16:5, 0], 4),
        (np.s_[::-1, 31], 8),
        (np.s_[14:18, 14:18], 4),
        (np.s_[0:3, 16:32], 4),
        (np.s_[:, 0:8], 16),
        (np.s_[...], 64),
    ],
)
def test_reads_of_up_to_the_limit_are_small(sharded, small_reads, key, n_chunks):
    store, values = sharded
    a = gpushard.open_array(store)
    assert_same_bits(a[key], values[key])
    assert small_reads == [n_chunks <= a.source.options.small_read_chunks]


def test_a_stride_over_inner_chunks_still_counts_only_a_few(sharded, small_reads):
    store, values = sharded
    a = gpushard.open_array(store)
    assert_same_bits(a[::31, ::31], values[::31, ::31])
    assert math.prod(a[::31, ::31].shape) == 4


@pytest.mark.parametrize("n", [0, 8])
def test_empty_results_need_no_store(sharded, n):
    store, values = sharded
    a = gpushard.open_array(store, options=Options(small_read_chunks=n))
    assert_same_bits(a[5:5], values[5:5])
    assert_same_bits(a[:, 9:2], values[:, 9:2])


@pytest.mark.parametrize("n", [0, 8])
def test_both_paths_name_the_same_place_of_damage(sharded, n):
    store, _ = sharded
    key = "c/1/0"
    damaged = bytearray(store._store_dict[key].to_bytes())
    damaged[0:4] = b"\xff\xff\xff\xff"  # the first inner chunk's stream
    store._store_dict[key] = zarr.core.buffer.cpu.Buffer.from_bytes(bytes(damaged))
    a = gpushard.open_array(store, options=Options(small_read_chunks=n))
    broken = []
    for row in range(16, 32, 4):
        for column in range(0, 16, 4):
            try:
                a[row, column]
            except gpushard.CorruptShardError as error:
                place = (row // 4, column // 4)
                broken.append(
                    (error.shard_key, error.inner_chunk == place, error.codec)
                )
    assert broken == [(key, True, "zstd")]


@pytest.fixture(params=["unsharded", "raw", "nested"])
def kind(request, tmp_path):
    """Array of 8 x 8 chunks or inner chunks of another kind, and its values."""
    inner = ShardingCodec(chunk_shape=(4, 4), codecs=[BytesCodec(), ZstdCodec()])
    outer = ShardingCodec(chunk_shape=(8, 8), codecs=[inner])
    how = {
        "unsharded": {"chunks": (4, 4)},
        "raw": {"chunks": (4, 4), "compressors": None},
        "nested": {"chunks": (16, 16), "serializer": outer, "compressors": None},
    }[request.param]
    values = np.arange(32 * 32, dtype="i4").reshape(32, 32)
    z = zarr.create_array(tmp_path / "z", shape=(32, 32), dtype="i4", **how)
    z[...] = values
    z[:16, 16:] = values[:16, 16:] = 0  # nothing is stored of it
    return tmp_path / "z", values


@pytest.mark.parametrize(
    ("key", "n_chunks"),
    [
        (np.s_[3], 8),
        (np.s_[3:5, 3:5], 4),
        (np.s_[14:18, 14:18], 4),
        (np.s_[0:3, 16:32], 4),
        (np.s_[::-1, 31], 8),
        (np.s_[:9, :9], 9),
        (np.s_[[31, 0, 1], 5:7], 2),
        (np.s_[[0, 31, 0]], 16),
    ],
)
def test_chunks_of_every_kind_are_read_by_the_short_way(
    kind, small_reads, key, n_chunks
):
    place, values = kind
    a = gpushard.open_array(place)
    for _ in range(2):  # with the indexes unknown, and known
        assert_same_bits(a[key], values[key])
    assert small_reads == [n_chunks <= 8] * 2


def test_index_arrays_of_two_axes_are_crossed(kind, small_reads):
    place, values = kind
    a = gpushard.open_array(place)
    rows, columns = [17, 2, 17], [30, 1, 2, 3]
    assert_same_bits(a.oindex[rows, columns], values[np.ix_(rows, columns)])
    assert_same_bits(a.oindex[rows, ::-9], values[rows][:, ::-9])
    assert small_reads == [True, True]


def test_long_index_arrays_go_the_general_way(kind, small_reads):
    place, values = kind
    a = gpushard.open_array(place)
    many = [0, 1] * 40
    assert_same_bits(a.oindex[many, 3], values[many, 3])
    points = expressions.points((many, many), (32, 32))
    assert not small.read_small(a.source, points, np.empty(80, "i4"))
    assert small_reads == [False]


def test_points_land_in_any_order(kind):
    place, values = kind
    a = gpushard.open_array(place)
    key = np.array([[31, 0], [5, 31]]), np.array([[2, 17], [5, 2]])
    out = np.empty((2, 2), "f8")
    selection = expressions.points(key, (32, 32))
    assert small.read_small(a.source, selection, out)
    assert_same_bits(out, values[key].astype("f8"))
    # Without a flat view there is nothing to write them through.
    assert not small.read_small(a.source, selection, np.empty((2, 2), "i4").T)


def test_indexes_of_neighbouring_nested_shards_come_in_one_request(kind, monkeypatch):
    place, values = kind
    a = gpushard.open_array(place)
    if len(a.source.layout.levels) < 2:
        pytest.skip("only nested shards have indexes of their own")
    asked: list[int] = []
    read = a.source.store.read
    monkeypatch.setattr(
        a.source.store, "read", lambda r: (asked.append(len(r)), read(r))[1]
    )
    assert_same_bits(a[6:10, 6:10], values[6:10, 6:10])
    assert asked == [1, 1, 1]  # the outer index, four inner ones, the payload
    assert_same_bits(a[7:9, 5:11], values[7:9, 5:11])
    assert asked[3:] == [1]


def test_points_of_large_elements_go_the_general_way(small_reads):
    values = np.array([bytes([65 + k]) * (1 << 16) for k in range(20)], "S65536")
    z = zarr.create_array(MemoryStore(), data=values, chunks=(20,), zarr_format=2)
    a = gpushard.open_array(z.store)
    order = np.arange(20)[::-1]
    assert_same_bits(a.vindex[order], values[order])
    assert_same_bits(a.vindex[order[:3]], values[order[:3]])
    assert small_reads == [False, True]


@pytest.mark.parametrize("n", [0, 8])
def test_a_short_raw_chunk_is_refused_where_the_store_tells_no_size(n, monkeypatch):
    objects: dict = {}
    z = zarr.create_array(
        MemoryStore(objects), shape=(8,), chunks=(8,), dtype="u1", compressors=None
    )
    z[...] = 7
    objects["c/0"] = zarr.core.buffer.cpu.Buffer.from_bytes(b"\7\7\7")
    a = gpushard.open_array(MemoryStore(objects), options=Options(small_read_chunks=n))
    read = a.source.store.read
    monkeypatch.setattr(
        a.source.store,
        "read",
        lambda requests: [f._replace(object_nbytes=None) for f in read(requests)],
    )
    assert a[1] == 7
    with pytest.raises(gpushard.CorruptShardError, match="got 3 bytes"):
        a[2:6]


def test_a_shard_replaced_within_a_read_of_nested_shards_is_read_again(kind):
    place, values = kind
    a, b = gpushard.open_array(place), zarr.open_array(place)
    assert a[20, 20] == values[20, 20]
    b[16:, 16:] = values[16:, 16:] * 3
    assert_same_bits(a[20, 18:22], values[20, 18:22] * 3)


@pytest.mark.parametrize(
    ("length", "n_chunks", "limit", "is_small"),
    [(1024, 8, None, True), (1024, 8, 8191, False), (2**20, 1, 1, True),
     (2**17, 8, None, True), (2**18, 8, None, False)],
)  # fmt: skip
def test_inner_chunks_that_are_large_together_go_the_general_way(
    length, n_chunks, limit, is_small
):
    z = zarr.create_array(
        MemoryStore(), shape=(n_chunks * length,), chunks=(length,), dtype="u1"
    )
    source = gpushard.open_array(z).source.limited(limit)
    everything = expressions.basic(..., z.shape)
    assert small.read_small(source, everything, np.empty(z.shape, "u1")) == is_small


@pytest.mark.parametrize("key", [np.s_[5], np.s_[5:6], np.s_[5, 10:20], np.s_[5, 7]])
def test_a_read_of_one_inner_chunk_makes_few_calls(tmp_path, key, monkeypatch):
    # Each costs 0.1 to 0.3 us: the promise of docs/performance.md is made of them.
    # Loops that another test has loaded, or will, are no concern of these reads.
    monkeypatch.setattr(ways, "are_loaded", lambda: False)
    monkeypatch.setattr(choice._counts, "is_settled", True)
    z = zarr.create_array(
        tmp_path / "z", shape=(64, 64), chunks=(1, 64), shards=(64, 64), dtype="i4"
    )
    z[...] = np.arange(64 * 64).reshape(64, 64)
    a = gpushard.open_array(tmp_path / "z", device="cpu")
    for _ in range(2):
        assert_same_bits(np.asarray(a[key]), np.asarray(z[key]))
    assert n_calls(lambda: a[key]) < 150


DIVISIBLE = np.cumsum(np.arange(48 * 60 * 50) % 11).reshape(48, 60, 50).astype("i4")


@pytest.mark.parametrize("cname", ["lz4", "zstd", "blosclz"])
@pytest.mark.parametrize("order", [None, (2, 0, 1)])
@pytest.mark.parametrize("has_crc", [False, True])
def test_parts_of_large_blosc_frames_are_decoded_by_their_blocks(
    cname, order, has_crc, monkeypatch
):
    blosc = zarr.codecs.BloscCodec(
        typesize=4, cname=cname, shuffle="shuffle", blocksize=8192
    )
    z = zarr.create_array(
        MemoryStore(),
        shape=DIVISIBLE.shape,
        chunks=(24, 60, 50),
        shards=DIVISIBLE.shape,
        dtype="i4",
        filters=[zarr.codecs.TransposeCodec(order=order)] if order else None,
        compressors=[blosc, *([zarr.codecs.Crc32cCodec()] if has_crc else [])],
    )
    z[...] = DIVISIBLE
    parts: list[int] = []
    decode_blocks = blosc_blocks.decode_blocks

    def watched(encoded, header, first, stop, codec):
        parts.append(stop - first)
        assert stop - first < header.n_blocks
        return decode_blocks(encoded, header, first, stop, codec)

    monkeypatch.setattr(blosc_blocks, "decode_blocks", watched)
    a = gpushard.open_array(z)
    for key in np.s_[3], np.s_[47, 59, 49], np.s_[..., 7], np.s_[20:28:3, 5:9, ::-2]:
        assert_same_bits(a[key], DIVISIBLE[key])
    points = ([0, 23, 24, 47], [59, 0, 30, 59], [0, 49, 25, 49])
    assert_same_bits(a.vindex[points], DIVISIBLE[points])
    assert parts


def test_of_a_large_frame_only_the_wanted_blocks_need_to_be_sound():
    raw = np.arange(2**17, dtype="i4") % 1000
    objects: dict = {}
    z = zarr.create_array(
        MemoryStore(objects),
        shape=raw.shape,
        chunks=raw.shape,
        dtype="i4",
        compressors=zarr.codecs.BloscCodec(cname="zstd", blocksize=16384),
    )
    z[...] = raw
    frame = bytearray(objects["c/0"].to_bytes())
    last_block = int.from_bytes(frame[16 + 4 * 31 :][:4], "little")
    frame[last_block + 4 : last_block + 40] = bytes(36)
    objects["c/0"] = zarr.core.buffer.cpu.Buffer.from_bytes(bytes(frame))
    a = gpushard.open_array(MemoryStore(objects))
    assert_same_bits(a[1000:2000], raw[1000:2000])
    with pytest.raises(gpushard.CorruptShardError):
        a[-10:]
    with pytest.raises(gpushard.CorruptShardError):
        a[...]

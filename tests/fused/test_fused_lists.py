"""What an index takes of an inner chunk goes to its places from a list."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, TransposeCodec

import gpushard
from array_strategies import codec
from fused_cases import (
    CHAINS,
    CRC,
    FUSED,
    LITTLE,
    VALUES,
    ZSTD,
    assert_all_fused,
    blosc,
    need_fast_packages,
    stored,
    take_way,
    watch_sinks,
)
from gpushard.fused import points
from gpushard.fused.boxes import Lists
from gpushard.fused.columns import LIST_AXIS, LIST_FIRST, N_LISTED
from gpushard.reading import few
from gpushard.selecting.projection import Members
from loader_data import ORDERS
from zarr_oracle import assert_same_bits, held

need_fast_packages()

IO = Path("/proc/self/io")

BIG = codec("bytes", endian="big")
CASES = {
    **{name: stored(CHAINS[name]) for name in ("raw", "crc32c", "zstd", "gzip", "lz4")},
    "parts of frames": stored([blosc("lz4", "shuffle", 512)]),
    "reversed": stored([ZSTD], "float64", [BIG]),
    "bool": stored([ZSTD], "bool"),
    "transposed": stored([ZSTD], before=[codec("transpose", order=[1, 0]), LITTLE]),
    "plain, reversed": stored([], "int16", [BIG]),
    "checked, transposed": stored(
        [CRC], before=[codec("transpose", order=[1, 0]), BIG]
    ),
}


@pytest.fixture(scope="module", params=CASES)
def arrays(request, tmp_path_factory):
    """The same array in memory and in files: read with requests, and directly."""
    made = CASES[request.param]
    place = made.placed("local", tmp_path_factory.mktemp("lists"))
    opened = [held(made.objects), place]
    return made.full, [gpushard.open_array(o, options=FUSED) for o in opened]


@given(st.data())
def test_any_index_reads_as_numpy_reads_it(arrays, data):
    full, opened = arrays
    taken = np.array(data.draw(st.lists(st.integers(0, 89), max_size=99)), int)
    keys = [(taken,), (taken, np.s_[60:3:-2]), (np.s_[5:99:3], taken)]
    a, key = data.draw(st.sampled_from(opened)), data.draw(st.sampled_from(keys))
    assert_same_bits(a.oindex[key], full[key])


@pytest.mark.parametrize("way", ["whole", "requests"])
def test_elements_in_any_order_are_not_left_to_the_plain_way(arrays, way, monkeypatch):
    full, opened = arrays
    take_way(monkeypatch, way)
    seen = watch_sinks(monkeypatch)
    rows = np.random.default_rng(0).permutation(100)
    for a in opened:
        assert_same_bits(a.oindex[rows], full[rows])
        assert_same_bits(a.oindex[:, rows % 90], full[:, rows % 90])
    assert_all_fused(seen)


@pytest.mark.parametrize("way", ["whole", "requests"])
@pytest.mark.parametrize("shape", [(1000,), (3, 1000), (1000, 3)], ids=str)
def test_single_elements_along_one_axis_are_not_left_to_the_plain_way(
    shape, way, tmp_path, monkeypatch
):
    values = np.random.default_rng(3).integers(0, 9, shape, "i2")
    chunks, shards = (tuple(min(n, most) for n in shape) for most in (100, 500))
    how: Any = {"chunks": chunks, "shards": shards}
    zarr.create_array(tmp_path, shape=shape, dtype="i2", **how)[...] = values
    a = gpushard.open_array(tmp_path, options=FUSED)
    taken = np.random.default_rng(4).permutation(1000)[:700]
    key = tuple(taken if n == 1000 else 2 for n in shape)
    take_way(monkeypatch, way)
    seen = watch_sinks(monkeypatch)
    assert_same_bits(a.oindex[key], values[key])
    assert_all_fused(seen)


@given(st.lists(st.integers(0, 30), max_size=40), st.data())
def test_lists_name_every_element_once(inner, data):
    cells = st.lists(st.integers(1, 9), min_size=1, max_size=9)
    count = np.array(data.draw(cells))
    n = int(count.sum())
    in_index = np.resize(np.array([*inner, 3]), n)
    out_index = np.arange(n)[::-1].copy()
    bounds = np.append(0, np.cumsum(count))
    lists = Lists.of(Members(bounds, in_index, out_index), 2, 8)
    if lists is None:
        assert (count == 1).all()
        return
    begin = (lists.address - lists.words.ctypes.data) // lists.words.strides[0]
    assert np.array_equal(begin, np.arange(len(count)))
    for cell, words in enumerate(lists.words.tolist()):
        mine = slice(bounds[cell], bounds[cell + 1])
        assert (words[N_LISTED], words[LIST_AXIS]) == (count[cell], 2)
        assert words[LIST_FIRST] == lists.first[cell] == in_index[mine].min()
        assert lists.first[cell] + lists.reach[cell] == in_index[mine].max() + 1
        for address, want in zip(words[3:], (in_index, out_index), strict=True):
            listed = (ctypes.c_int64 * int(count[cell])).from_address(address)
            assert list(listed) == want[mine].tolist()


def test_long_runs_make_no_lists_unless_they_are_many_and_close_in_the_output():
    members = Members(np.array([0, 6]), np.arange(6) * 5 % 6, np.arange(6))
    assert Lists.of(members, 0, 8) is not None
    assert Lists.of(members._replace(in_index=np.arange(6) // 3 + 2), 0, 8) is not None
    assert Lists.of(members._replace(in_index=np.tile([0, 1], 3)), 0, 8) is None
    assert Lists.of(members._replace(in_index=np.arange(6)), 0, 8) is None
    for n_runs, stride, are_listed in (
        (16, 8, False),
        (17, 8, True),
        (17, -511, True),
        (17, 512, False),
    ):
        inner = np.arange(3 * n_runs) // 3 + np.arange(3 * n_runs)
        pairs = Members(np.array([0, len(inner)]), inner, np.arange(len(inner)))
        assert (Lists.of(pairs, 0, stride) is not None) == are_listed


def test_plain_elements_far_apart_make_no_list_unless_there_are_very_many(monkeypatch):
    members = Members(np.array([0, 2]), np.array([0, 8194]), np.array([0, 3]))
    assert Lists.of(members, 0, 8, 1) is not None  # one in 4,096, as for two
    far = members._replace(in_index=np.array([0, 16386]))
    assert Lists.of(far, 0, 8, 1) is None
    assert Lists.of(far, 0, 8, 0) is not None  # they are decoded
    monkeypatch.setattr(points, "_MOST_BOXES", 1)
    assert Lists.of(far, 0, 8, 1) is not None


EXTENT = 8 << 20
PLAIN_KEYS = {
    "three": np.array([0, 5, EXTENT - 1]),
    "a step": slice(0, EXTENT, EXTENT - 1),
    "anywhere": np.sort(np.random.default_rng(1).integers(0, EXTENT, 200)),
    "in no order": np.random.default_rng(2).integers(0, EXTENT, 200),
    "long runs": np.r_[0:900, EXTENT - 900 : EXTENT],
}


@pytest.mark.skipif(not IO.exists(), reason="Linux tells what a process has read")
@pytest.mark.parametrize("key", PLAIN_KEYS.values(), ids=PLAIN_KEYS)
def test_plain_elements_far_apart_are_read_without_all_between_them(tmp_path, key):
    how = {"chunks": EXTENT, "shards": 2 * EXTENT, "dtype": "u1", "compressors": None}
    a = gpushard.create_array(tmp_path, shape=2 * EXTENT, device="cpu", **how)
    a[...] = np.arange(2 * EXTENT) % 251
    a = gpushard.open_array(tmp_path, device="cpu", options=FUSED)
    a[:9]
    want = np.arange(EXTENT)[key] % 251
    # Of points each is a box, and 1,800 cost more than the bytes between.
    ways = (a.oindex, a.vindex) if np.size(key) < 1000 else (a.oindex,)
    for read in ways if isinstance(key, np.ndarray) else (a,):
        before = n_read()
        got = read[key]
        assert n_read() - before < EXTENT // 4
        assert np.array_equal(got, want)


def n_read():
    """Bytes that this process has read so far."""
    return int(IO.read_text().split("rchar:")[1].split()[0])


@given(data=st.data())
def test_any_elements_read_in_runs_and_boxes_are_those_of_numpy(apart, data):
    a, apart_nbytes = apart, data.draw(st.sampled_from([0, 60]))
    axis = st.integers(-60, 59) if data.draw(st.booleans()) else st.integers(0, 59)
    rows = data.draw(st.lists(axis, min_size=1, max_size=40))
    if data.draw(st.booleans()):
        rows.sort()
    columns = data.draw(st.lists(st.integers(0, 49), min_size=1, max_size=9))
    step = data.draw(st.sampled_from([-7, -1, 1, 3, 29]))
    n = min(len(rows), len(columns))
    out = np.zeros((len(rows), 100), APART.dtype)[:, ::2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(points, "_APART_NBYTES", apart_nbytes)
        patch.setattr(few, "_MOST_NBYTES", 64)
        assert_same_bits(a.oindex[rows], APART[rows])
        assert_same_bits(a.oindex[::step, columns], APART[::step][:, columns])
        assert_same_bits(a.oindex[rows, 3:40:5], APART[rows, 3:40:5])
        assert_same_bits(a.vindex[rows[:n], columns[:n]], APART[rows[:n], columns[:n]])
        assert_same_bits(a[::step, ::step], APART[::step, ::step])
        a.read((rows, slice(None)), out=out)
    assert_same_bits(out, APART[rows])


APART = np.random.default_rng(4).integers(-(2**15), 2**15, (60, 50), "i2")


@pytest.fixture(scope="module", params=["plain", "reversed", "transposed", "files"])
def apart(request, tmp_path_factory):
    """`APART` in a file of four plain inner chunks, or in a file each."""
    how: dict[str, Any] = {"chunks": (30, 25), "shards": (60, 50), "compressors": None}
    if request.param == "files":
        how["shards"] = None
    if request.param == "reversed":
        how["serializer"] = BytesCodec(endian="big")
    if request.param == "transposed":
        how["filters"] = [TransposeCodec(order=(1, 0))]
    place = tmp_path_factory.mktemp("apart")
    a = gpushard.create_array(place, shape=(60, 50), dtype="i2", device="cpu", **how)
    a[...] = APART
    return gpushard.open_array(place, device="cpu", options=FUSED)


def test_a_gather_too_dense_for_boxes_is_listed(monkeypatch):
    seen = watch_sinks(monkeypatch)
    a = gpushard.open_array(held(stored([ZSTD]).objects), options=FUSED)
    rows = np.sort(np.arange(400) % 100)
    assert_same_bits(a.oindex[rows, 7:], VALUES[rows, 7:])
    assert_all_fused(seen)


def test_a_few_inner_chunks_too_dense_for_boxes_have_all_elements_listed(monkeypatch):
    """Sixty pairs of rows of some inner chunks; of all others, rows as stored."""
    seen, options = watch_sinks(monkeypatch), FUSED.but(batch_nbytes=2048)
    a = gpushard.open_array(held(stored([ZSTD]).objects), options=options)
    rows = np.append(np.arange(120) % 2, np.arange(32, 100))
    assert_same_bits(a.oindex[rows, 7:], VALUES[rows, 7:])
    assert_all_fused(seen)


LONG, N = 520, 103


@pytest.fixture(scope="module")
def long_rows(tmp_path_factory):
    """Rows that are written past the caches, in files; the last shard is missing."""
    path = tmp_path_factory.mktemp("long") / "rows.zarr"
    options: Any = {"chunks": (8, LONG), "shards": (32, LONG), "fill_value": 3}
    z = zarr.create_array(path, shape=(N, LONG), dtype="u2", **options)
    z[:96] = np.random.default_rng(1).integers(0, 9, (96, LONG), "u2")
    return path, z[...]


@pytest.mark.parametrize("offset", [0, 2, 8, 16])
@pytest.mark.parametrize("length", [512, 264, 256, 255, 100])
def test_long_elements_go_where_they_belong_and_nowhere_else(long_rows, offset, length):
    path, full = long_rows
    a = gpushard.open_array(path, options=FUSED.but(threads=2))
    rows = np.random.default_rng(2).integers(0, N, 300)
    memory = np.full((300 * length + 64) * 2, 0xEE, np.uint8)
    first = -memory.ctypes.data % 16 + 16 + offset
    out = memory[first : first + 600 * length].view("u2").reshape(300, length)
    a.read((rows, slice(length)), out=out)
    assert np.array_equal(out, full[rows, :length])
    outside = np.delete(memory, np.s_[first : first + out.nbytes])
    assert (outside == 0xEE).all()


def put(out_of, key, path, full):
    """Read rows into a view of an output; nothing may be written around them."""
    rows = np.random.default_rng(4).integers(0, N, 60)
    want = full[(rows, *key)]
    whole, view = out_of(want.shape)
    a = gpushard.open_array(path, options=FUSED.but(threads=2))
    a.read((rows, *key), out=view)
    assert np.array_equal(view, want)
    view[...] = 0xEEEE
    assert (whole == 0xEEEE).all()


@pytest.mark.parametrize("beyond", [0, 4, 8, 12])
@pytest.mark.parametrize("step", [1, 2, -1, -3])
@pytest.mark.parametrize("length", [512, 260])
def test_long_elements_go_to_rows_of_a_wider_output(long_rows, length, step, beyond):
    def out_of(shape):
        whole = np.full((shape[0] * abs(step), 512 + beyond + 8), 0xEEEE, "u2")
        first = -whole.ctypes.data % 16 // 2
        return whole, whole[::step, first : first + length]

    put(out_of, (np.s_[:length],), *long_rows)


def test_long_elements_in_another_byte_order_are_turned(tmp_path):
    values = np.random.default_rng(6).integers(0, 9999, (40, LONG), "u2")
    how: Any = {"chunks": (8, LONG), "shards": (40, LONG)}
    how["serializer"] = BytesCodec(endian="big")
    zarr.create_array(tmp_path, shape=values.shape, dtype="u2", **how)[...] = values
    rows = np.random.default_rng(7).permutation(40)
    a = gpushard.open_array(tmp_path, options=FUSED)
    assert np.array_equal(a.oindex[rows], values[rows])


@pytest.fixture(scope="module")
def long_planes(tmp_path_factory):
    """Planes of rows, each of which is long enough to be written past the caches."""
    path = tmp_path_factory.mktemp("planes") / "planes.zarr"
    values = np.random.default_rng(5).integers(0, 9, (N, 3, LONG), "u2")
    chunks: Any = {"chunks": (8, 3, LONG), "shards": (32, 3, LONG)}
    zarr.create_array(path, shape=values.shape, dtype="u2", **chunks)[...] = values
    return path, values


@pytest.mark.parametrize("length", [LONG, 512, 100])
@pytest.mark.parametrize("turn", [1, -1])
def test_all_rows_of_long_elements_go_where_they_belong(long_planes, length, turn):
    def out_of(shape):
        whole = np.full((shape[0], 5, LONG), 0xEEEE, "u2")
        return whole, whole[:, 1:4, :length][:, ::turn]

    put(out_of, (np.s_[:], np.s_[:length]), *long_planes)


def test_an_inner_chunk_of_one_element_goes_to_all_its_places(tmp_path):
    values = np.arange(40, dtype="i8").reshape(8, 5)
    z = zarr.create_array(
        tmp_path / "a.zarr", shape=(8, 5), chunks=(1, 5), shards=(4, 5), dtype="i8"
    )
    z[...] = values
    rows = np.array([3, 0, 3, 7, 3, 0, 1])
    a = gpushard.open_array(tmp_path / "a.zarr", options=FUSED)
    assert np.array_equal(a.oindex[rows], values[rows])


def test_a_list_behind_plain_elements_is_no_part_of_their_run(tmp_path):
    values = np.arange(80, dtype="i8").reshape(16, 5)
    place = tmp_path / "a.zarr"
    how: Any = {"chunks": (8, 5), "shards": (16, 5), "compressors": None}
    z = zarr.create_array(place, shape=(16, 5), dtype="i8", **how)
    z[...] = values
    rows, out = np.array([8, 12, 10, 14, 9, 13, 11, 15]), np.zeros((16, 5), "i8")
    a = gpushard.open_array(place, options=FUSED)
    a.read_many([np.s_[:8], rows], out=[out[:8], out[8:]])
    assert np.array_equal(out, values[[*range(8), *rows]])


def test_elements_of_inner_chunks_that_are_kept_are_taken_from_there(long_rows):
    path, full = long_rows
    a = gpushard.open_array(path, options=FUSED.but(chunk_cache_nbytes=1 << 20))
    rows = np.random.default_rng(3).permutation(N)
    for _ in range(2):
        assert np.array_equal(a.oindex[rows], full[rows])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("options", [{}, {"scale": 0.5}, {"window": 3, "stride": 2}])
def test_batches_of_long_rows_are_the_samples_that_the_index_names(
    long_rows, order, options
):
    path, full = long_rows
    a = gpushard.open_array(path, options=FUSED)
    rows = np.append(full, np.full((3, LONG), 3, "u2"), axis=0)
    if "window" in options:
        options = options | {"padding": "fill"}
        rows = np.stack([rows[first : first + 3] for first in range(0, N, 2)])
    many = {k: v for k, v in ORDERS[order].items() if k not in ("weights", "sampler")}
    want = rows * np.float32(options.get("scale", 1))
    with gpushard.Loader(
        a, batch_size=7, return_index=True, **many, **options
    ) as loader:
        n = 0
        for batch, index in loader:
            assert np.array_equal(batch, want[index])
            n += len(index)
    assert n == (52 if "window" in options else N)

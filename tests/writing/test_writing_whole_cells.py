"""Inner chunks that are replaced as a whole are assembled together."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, GzipCodec, ShardingCodec, ZstdCodec
from zarr.codecs import TransposeCodec as Turned
from zarr.storage import MemoryStore

import gpushard
from gpushard import Options
from gpushard.layout import GridAxis
from gpushard.options import MIB
from gpushard.selecting.selection import IndexAxis, SliceAxis
from gpushard.write_options import WriteOptions
from gpushard.writing import encode, shard
from gpushard.writing.regions import Box
from gpushard.writing.shard import are_fill, is_fill
from gpushard.writing.whole_cells import WholeCells


@st.composite
def boxes(draw):
    """A box of slices in a region that is cut into cells, their grid, and the array.

    The region may reach beyond the array, and the last cell beyond the region.
    """
    grid, axes, extents = [], [], []
    for _ in range(draw(st.integers(1, 3))):
        cell = draw(st.integers(1, 4))
        extent = draw(st.integers(1, 4 * cell))
        beyond = draw(st.sampled_from([0, -extent % cell, 2 * cell]))
        start = draw(st.integers(0, extent - 1))
        length = draw(st.integers(1, extent - start))
        out_step = draw(st.sampled_from([1, -1]))
        out_start = 0 if out_step > 0 else length - 1
        grid.append(GridAxis(extent + beyond, cell))
        extents.append(extent)
        axes.append(SliceAxis(start, 1, length, out_start, out_step))
    return Box(tuple(axes)), tuple(grid), tuple(extents)


@given(boxes(), st.integers(1, 9), st.integers(0, 9))
def test_whole_cells_and_the_rest_are_the_box_element_by_element(drawn, n_parts, seed):
    box, grid, shape = drawn
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(grid)).tolist()
    layout = SimpleNamespace(outer_order=order, dtype=np.dtype("i4"), fill_value=-1)
    counts = tuple(axis.n_cells for axis in grid)
    values = np.arange(1, 1 + np.prod([axis.length for axis in box.axes]))
    values = values.reshape([axis.length for axis in box.axes])
    expected, found = np.zeros((2, *shape), int)
    box.assign(expected, values)
    whole = WholeCells.of(box, grid, shape)
    n_covered = sum(
        part.covers(
            tuple(
                min(axis.cell, n - axis.start_of(i))
                for axis, n, i in zip(grid, shape, cell, strict=True)
            )
        )
        for cell, part in box.cells(grid)
    )
    if whole is None:
        assert not n_covered
        return
    cells = whole.coordinates()
    assert cells.shape[1] == n_covered
    entries = np.ravel_multi_index(tuple(cells), counts)
    for some in np.array_split(rng.permutation(n_covered), min(n_parts, n_covered)):
        chunks = whole.chunks(cells[:, some], values, layout)
        assert chunks.flags.c_contiguous
        assert chunks.dtype == layout.dtype
        for cell, chunk in zip(cells[:, some].T.tolist(), chunks, strict=True):
            place = tuple(
                slice(axis.start_of(i), axis.start_of(i + 1))
                for axis, i in zip(grid, cell, strict=True)
            )
            inside = chunk.transpose(np.argsort(order))
            within = tuple(map(slice, found[place].shape))
            found[place] = inside[within]
            beyond = np.ones(inside.shape, bool)
            beyond[within] = False
            assert (inside[beyond] == layout.fill_value).all()
    assert np.all(np.diff(entries) > 0)
    for part in whole.rest:
        for cell, _ in part.cells(grid):
            assert np.ravel_multi_index(cell, counts) not in entries
        part.assign(found, values)
    assert np.array_equal(found, expected)


def test_lists_and_steps_have_no_whole_cells_here():
    axis, whole = GridAxis(8, 2), SliceAxis(0, 1, 8)
    listed = IndexAxis(np.arange(8), np.arange(8))
    for other in (listed, SliceAxis(0, 2, 4), SliceAxis(1, 1, 2)):
        assert WholeCells.of(Box((other,)), (axis,), (9,)) is None
        assert WholeCells.of(Box((other, whole)), (axis, axis), (9, 8)) is None
        assert WholeCells.of(Box((whole, other)), (axis, axis), (8, 9)) is None


ARRAYS = {
    "sharded": {"chunks": (2, 4), "shards": (8, 8), "compressors": [ZstdCodec()]},
    "turned within": {
        "chunks": (2, 4),
        "shards": (8, 8),
        "filters": [Turned(order=(1, 0))],
    },
    "turned around": {"turned": True, "chunks": (2, 4), "shards": (8, 8)},
    "big-endian": {"dtype": ">i2", "chunks": (2, 4), "shards": (8, 8)},
    "ragged": {"shape": (11, 13), "chunks": (2, 4), "shards": (8, 8)},
    "fortran values": {"order": "F", "chunks": (4, 2), "shards": (8, 8)},
}
# zarr's warning that it cannot read parts of shards around which other codecs are.
pytestmark = pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")

REGIONS = [
    np.s_[...],
    np.s_[3:, :],
    np.s_[1:15, 2:14],
    np.s_[::-1, 13:1:-1],
    np.s_[4:6, 4:8],
]


def write(about, selection, monkeypatch, *, at_once):
    about = {"shape": (16, 16), "dtype": "i2", "fill_value": 7, **about}
    order, turned = about.pop("order", "C"), about.pop("turned", False)
    store, shape = MemoryStore(), about["shape"]
    if turned:
        sharding = ShardingCodec(chunk_shape=(4, 2))
        about["chunks"] = about.pop("shards")
        about |= {
            "filters": [Turned(order=(1, 0))],
            "serializer": sharding,
            "compressors": None,
        }
    zarr.create_array(store, **about)
    a = gpushard.open_array(store)
    base = np.arange(np.prod(shape)).reshape(shape)
    base[:9, :9] = 7
    values = np.asarray(base, order=order)[selection]
    with monkeypatch.context() as patch:
        if not at_once:
            patch.setattr(encode.WholeCells, "of", lambda *_: None)
        a[selection] = values
    expected = np.full(shape, 7)
    expected[selection] = values
    assert np.array_equal(zarr.open_array(store)[...], expected)
    return {key: value.to_bytes() for key, value in store._store_dict.items()}


@pytest.mark.parametrize("selection", REGIONS, ids=str)
@pytest.mark.parametrize("array", ARRAYS)
def test_inner_chunks_assembled_together_have_the_same_bytes(
    array, selection, monkeypatch
):
    together, alone = (
        write(ARRAYS[array], selection, monkeypatch, at_once=at_once)
        for at_once in (True, False)
    )
    assert together == alone


@pytest.mark.parametrize("is_around", [True, False])
def test_axes_that_trade_places_in_a_circle_are_written_in_part_and_whole(is_around):
    shape, turn = (12, 12, 12), Turned(order=(1, 2, 0))
    chunk = (2, 4, 3)
    codecs = {"filters": [turn]}
    if is_around:
        inner = tuple(chunk[axis] for axis in turn.order)
        codecs |= {"serializer": ShardingCodec(chunk_shape=inner), "compressors": None}
        codecs["chunks"] = shape
    else:
        codecs |= {"chunks": chunk, "shards": shape}
    store = MemoryStore()
    zarr.create_array(store, shape=shape, dtype="i2", fill_value=7, **codecs)
    a, expected = gpushard.open_array(store), np.full(shape, 7)
    for n, region in enumerate((np.s_[1:5, 2:7, 1:11], np.s_[...], np.s_[3:, 1:, 2])):
        values = np.arange(expected[region].size).reshape(expected[region].shape) + n
        a[region] = expected[region] = values
        assert np.array_equal(zarr.open_array(store)[...], expected)
        assert np.array_equal(a[...], expected)


@pytest.mark.parametrize(
    "strategy", ["rewrite", "fixed_order", "append_only", "random_write"]
)
def test_of_a_batch_those_that_become_fill_value_are_dropped(tmp_path, strategy):
    start = strategy == "random_write"
    about = {"shape": (8, 8), "dtype": "u1", "chunks": (2, 2), "fill_value": 9}
    a = gpushard.create_array(
        tmp_path,
        **about,
        shards={"shape": (8, 8), "index_location": "start" if start else "end"},
        options=Options(write=WriteOptions(strategy=strategy)),
    )
    expected = np.arange(64, dtype="u1").reshape(8, 8) % 9
    a[...] = expected
    expected[:4, 2:4] = 9
    a[:6] = expected[:6]
    assert np.array_equal(zarr.open_array(tmp_path)[...], expected)
    expected[:6, 6:] = 9
    a.oindex[[0, 1, 2, 3, 4, 5]] = expected[:6]
    assert np.array_equal(zarr.open_array(tmp_path)[...], expected)


def test_only_inner_chunks_at_the_edges_are_assembled_alone(monkeypatch):
    alone = []
    assemble = encode.Encoder._before
    monkeypatch.setattr(
        encode.Encoder, "_before", lambda *a: alone.append(a[1]) or assemble(*a)
    )
    a = gpushard.create_array(
        MemoryStore(), shape=(32, 32), dtype="u1", chunks=(4, 4), shards=(32, 32)
    )
    a[...] = 1
    assert not alone
    a[2:30, 4:30] = 2
    assert len(alone) == 8 * 7 - 6 * 6


def peak_of_a_write(values, chunks=(1, 4096), memory_limit=MIB, **about):
    """Most memory that a write of one shard takes."""
    options = Options(memory_limit=memory_limit, threads=1)
    whole = {"shape": values.shape, "dtype": values.dtype, "shards": values.shape}
    a = gpushard.create_array(
        MemoryStore(), chunks=chunks, options=options, **whole, **about
    )
    a[0, 0] = 1  # codecs are imported
    tracemalloc.start()
    try:
        a[...] = values
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "codec", [ZstdCodec(), GzipCodec(), BloscCodec()], ids=lambda c: type(c).__name__
)
def test_encoded_inner_chunks_take_the_memory_of_their_bytes(codec):
    repetitive = np.full((4096, 4096), 3, "u1")
    assert peak_of_a_write(repetitive, compressors=[codec]) < 6 * MIB


@pytest.mark.parametrize("memory_limit", [MIB, 12 * MIB], ids=["alone", "in pairs"])
def test_large_inner_chunks_are_gone_once_they_are_encoded(memory_limit):
    repetitive = np.full((4096, 4096), 3, "u1")
    large = {"chunks": (512, 4096), "memory_limit": memory_limit}
    peak = peak_of_a_write(repetitive, compressors=[ZstdCodec()], **large)
    assert peak < 6 * MIB


def test_an_inner_chunk_keeps_no_others_that_are_all_fill_value():
    sparse = np.zeros((4096, 4096), "u1")
    sparse[::64] = 1
    assert peak_of_a_write(sparse, compressors=None) < 6 * MIB


@pytest.mark.parametrize(
    ("dtype", "fill", "others"),
    [
        ("f4", 0.0, [-0.0, 1.0]),
        ("f8", np.nan, [0.0]),
        ("i2", -1, [255, 0]),
        ("?", True, [False]),
        ("c8", 1j, [1.0]),
        ("U3", "a", ["ab", ""]),
        ([("x", "i4"), ("y", "u1")], (1, 2), [(1, 3), (0, 2)]),
    ],
    ids=str,
)
def test_what_is_all_fill_value_is_told_of_all_inner_chunks_at_once(
    dtype, fill, others
):
    chunks = np.full((2 + 2 * len(others), 3, 4), np.array(fill, dtype))
    for i, other in enumerate(others):
        chunks[2 * i + 1, 0, 0] = other
        chunks[2 * i + 2, 2, 3] = other
    found = are_fill(chunks, np.array(fill, dtype))
    assert found.tolist() == [True, *[False] * (2 * len(others)), True]


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "c8", "c16", "S5", "u1,<u2,<f8"])
@pytest.mark.parametrize("at", [0, 1, 30, 31, 32, 255, 256, 299])
def test_one_other_element_is_found_wherever_it_lies(dtype, at, monkeypatch):
    monkeypatch.setattr(shard, "_FIRST", 4)
    chunks = np.zeros((3, 300), dtype)
    other = chunks[:1].view("u1")
    size = chunks.itemsize
    for byte in range(size):
        other[...] = 0
        other[0, at * size + byte] = 128
        fill = chunks[1, 0].copy()
        assert are_fill(chunks, fill).tolist() == [False, True, True]
        assert are_fill(chunks[:, ::-1], fill).tolist() == [False, True, True]
        assert is_fill(chunks[1], fill)
        assert not is_fill(chunks[0], fill)


@pytest.mark.parametrize(("dtype", "itemsize"), [("f4", 4), ("f8", 8), ("c16", 16)])
def test_telling_that_takes_a_byte_for_each_element(dtype, itemsize):
    chunks = np.zeros((1, MIB // 8), dtype)
    fill = chunks[0, 0].copy()
    are_fill(chunks, fill)
    tracemalloc.start()
    try:
        assert are_fill(chunks, fill).all()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < chunks.nbytes / itemsize + 8192

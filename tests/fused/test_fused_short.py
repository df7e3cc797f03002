"""Reads of some inner chunks in compiled loops: which, and that they are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from array_strategies import codec
from fused_cases import (
    CHAINS,
    CRC,
    FUSED,
    LITTLE,
    PLAIN,
    VALUES,
    ZSTD,
    need_fast_packages,
    stored,
)
from gpushard.fused import choice, meshes
from gpushard.fused.addresses import address_of
from gpushard.fused.code import loading
from gpushard.fused.short import one_call
from gpushard.fused.short.one_call import OneCall
from gpushard.fused.thread_memory import Buffer, ThreadMemory
from gpushard.reading import results
from guarded_planning import guarded_planning
from selection_strategies import (
    basic_keys,
    masks,
    orthogonal_keys,
    point_keys,
    take_orthogonal,
)
from spec_shards import document, sharding
from zarr_oracle import assert_same_bits, write

need_fast_packages()

# zarr 3.1 says so wherever one of numcodecs' codecs is made.
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")

SHORT = FUSED.but(small_read_chunks=1)
BOX = np.s_[20:50, 10:70]
IO = Path("/proc/self/io")


@pytest.fixture(autouse=True)
def loaded():
    """The loops are there, as after the first large read of a process."""
    choice._load()


@pytest.fixture
def opened(tmp_path):
    return gpushard.open_array(stored([ZSTD]).placed("local", tmp_path), options=SHORT)


VOLUME = np.arange(20 * 18 * 9, dtype="i4").reshape(20, 18, 9)


def volume(root: Any, chain: list[Any], *, index_order: list[int] | None = None) -> Any:
    """Array of `VOLUME` in shards of 8 x 12 x 6, inner chunks of 4 x 3 x 6."""
    inner = sharding((4, 3, 6), codecs=[LITTLE, *chain])
    here = document((20, 18, 9), (8, 12, 6), inner, dtype="int32", fill_value=5)
    if index_order is not None:
        inner["configuration"]["chunk_shape"] = [
            inner["configuration"]["chunk_shape"][axis] for axis in index_order
        ]
        here["codecs"] = [codec("transpose", order=index_order), inner]
    return write(here, [(np.s_[:16], VOLUME[:16])]).placed("local", root)


WANTED = VOLUME.copy()
WANTED[16:] = 5


@pytest.fixture(scope="module", params=["raw", "zstd", "gzip", "blosc lz4 shuffle 0"])
def stored_volume(request, tmp_path_factory):
    return volume(tmp_path_factory.mktemp("v"), CHAINS[request.param])


@given(st.data())
def test_any_box_is_read_as_numpy_reads_it(stored_volume, data):
    key = data.draw(basic_keys(VOLUME.shape))
    for options in (SHORT, SHORT.but(threads=3)):
        a = gpushard.open_array(stored_volume, options=options)
        assert_same_bits(a[key], WANTED[key])


@given(st.data())
def test_index_arrays_are_read_as_numpy_reads_them(stored_volume, data):
    key = data.draw(orthogonal_keys(VOLUME.shape))
    for options in (SHORT, SHORT.but(threads=3)):
        a = gpushard.open_array(stored_volume, options=options)
        assert_same_bits(a.oindex[key], take_orthogonal(WANTED, key))


@given(st.data())
def test_points_are_read_as_numpy_reads_them(stored_volume, data):
    key = data.draw(point_keys(VOLUME.shape) | masks(VOLUME.shape))
    for options in (SHORT, SHORT.but(threads=3)):
        a = gpushard.open_array(stored_volume, options=options)
        assert_same_bits(a.vindex[key], WANTED[key])


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([7, 0, 19, 3], id="in no order"),
        pytest.param([5, 5, 18, 5, 17, 18], id="repeated"),
        pytest.param([-1, 2, -20], id="negative"),
        pytest.param([2, 3, 4, 5, 9, 8, 7], id="runs across inner chunks"),
        pytest.param(np.arange(20) % 3 == 0, id="mask"),
        pytest.param(np.tile(np.arange(20), 40), id="many"),
    ],
)
def test_index_arrays_of_one_and_of_several_axes_are_taken(rows, stored_volume, seen):
    a = gpushard.open_array(stored_volume, options=SHORT)
    rows = np.asarray(rows)
    assert_same_bits(a[rows], WANTED[rows])
    assert_same_bits(a[rows, 2:9, ::-2], WANTED[rows, 2:9, ::-2])
    few, columns = rows[:7], [8, 0, 8, 1]
    if rows.dtype != bool:
        want = WANTED[np.ix_(few, range(0, 18, 5), columns)]
        assert_same_bits(a.oindex[few, ::5, columns], want)
        assert_same_bits(a.vindex[few, few % 18, 0], WANTED[few, few % 18, 0])
        out = np.full((9, len(few)), -1, "i4").T
        assert a.read((few, 3), out=out) is out
        assert_same_bits(np.ascontiguousarray(out), WANTED[few, 3])
    n_too_many = 2 * (len(rows) > 100)  # times the six cells of the second axis
    assert seen.n_short == (2 if rows.dtype == bool else 5) - n_too_many
    assert len(seen.sinks) == n_too_many


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(np.s_[...], id="all"),
        pytest.param(np.s_[:, 3, 7], id="column"),
        pytest.param(np.s_[3, 2:17, ::-1], id="reversed"),
        pytest.param(np.s_[::5, ::-4, 1::2], id="steps beyond an inner chunk"),
        pytest.param(np.s_[None, 2:9, None, 1, :], id="new axes"),
        pytest.param(np.s_[17:, :, 8], id="missing shards"),
        pytest.param(np.s_[15:18], id="some shards missing"),
    ],
)
def test_slices_integers_and_new_axes_are_boxes(key, stored_volume, seen):
    a = gpushard.open_array(stored_volume, options=SHORT)
    assert_same_bits(a[key], WANTED[key])
    assert seen.n_short == 1
    assert not seen.sinks


@pytest.mark.skipif(
    zarr.__version__ == "3.1.0",
    reason="zarr 3.1.0 cannot write an empty inner chunk behind a transpose",
)
def test_an_index_in_another_order_of_axes_is_followed(seen, tmp_path):
    place = volume(tmp_path, [ZSTD], index_order=[0, 2, 1])
    a = gpushard.open_array(place, options=SHORT)
    for key in (np.s_[:, 3:11, 7], np.s_[2:18:3, ::2, ::-1]):
        assert_same_bits(a[key], WANTED[key])
    assert seen.n_short == 2


def test_arrays_of_the_callers_are_written_where_they_are(opened, seen):
    for out in (
        np.full((60, 30), -1, "i4").T,
        np.full((30, 120), -1, "i4")[:, ::2],
        np.full((30, 60), -1, "i4")[::-1, ::-1],
    ):
        assert opened.read(BOX, out=out) is out
        assert_same_bits(np.ascontiguousarray(out), VALUES[BOX])
    assert seen.n_short == 3


def test_what_is_not_for_it_goes_another_way(opened, seen, monkeypatch):
    assert_same_bits(opened[::65, 3:80], VALUES[::65, 3:80])  # beyond a shard
    assert_same_bits(opened[5:5], VALUES[5:5])
    assert_same_bits(opened.oindex[[], 3:80], VALUES[[], 3:80])
    assert_same_bits(opened.vindex[[], []], VALUES[[], []])
    points = [1, 99, 40], [3, 80, 5]
    out = np.zeros((3, 2), "i4")[:, 0]
    assert opened.read(points, out=out) is out
    assert_same_bits(np.ascontiguousarray(out), VALUES[points])
    for most in ("MOST_BOXES", "MOST_SHARDS"):
        with monkeypatch.context() as patch:
            patch.setattr(meshes, most, 1)
            assert_same_bits(opened[...], VALUES)
            assert_same_bits(opened.oindex[[1, 99, 40]], VALUES[[1, 99, 40]])
            assert_same_bits(opened.vindex[points], VALUES[points])
    assert seen.n_short == 0


def test_a_single_inner_chunk_is_left_to_the_plain_short_way(opened, seen):
    assert_same_bits(opened[3, 5:9], VALUES[3, 5:9])
    assert (seen.n_short, len(seen.sinks)) == (0, 0)


def test_a_single_large_inner_chunk_is_read_in_the_loops(opened, seen, monkeypatch):
    monkeypatch.setattr(results, "_LEAST_NBYTES", 32 * 16 * VALUES.itemsize)
    assert_same_bits(opened.read(np.s_[40:45, 40]), VALUES[40:45, 40])
    assert seen.n_short == 1


@pytest.mark.parametrize("options", [PLAIN.but(small_read_chunks=8), FUSED])
def test_who_switched_the_loops_or_short_ways_off_is_heard(options, seen, tmp_path):
    place = stored([ZSTD]).placed("local", tmp_path)
    a = gpushard.open_array(place, options=options)
    assert_same_bits(a[...], VALUES)
    assert_same_bits(a[BOX], VALUES[BOX])
    assert seen.n_short == 0


def test_nothing_is_loaded_for_what_the_loops_cannot_read(seen, monkeypatch, tmp_path):
    monkeypatch.setattr(choice, "_loaded", [])
    bz2 = stored([codec("numcodecs.bz2", level=1)])
    a = gpushard.open_array(bz2.placed("local", tmp_path), options=SHORT)
    assert_same_bits(a[BOX], VALUES[BOX])
    assert seen.n_short == 0
    assert not choice._loaded


def test_a_damaged_inner_chunk_is_named_or_filled(tmp_path):
    place = stored([ZSTD, CRC]).placed("local", tmp_path)
    data = bytearray((place / "c/0/1").read_bytes())
    data[10] ^= 1
    (place / "c/0/1").write_bytes(data)
    a = gpushard.open_array(place, options=SHORT)
    with pytest.raises(gpushard.ChecksumError) as caught:
        a[:, 60:70]
    assert caught.value.shard_key == "c/0/1"
    assert caught.value.inner_chunk == (0, 4)
    damage: list[Any] = []
    filled = a.read(np.s_[:, 60:70], errors=damage.append)
    assert [error.inner_chunk for error in damage] == [(0, 4)]
    want = VALUES[:, 60:70].copy()
    want[:32, 4:] = 0
    assert_same_bits(filled, want)


def test_a_damaged_index_is_refused_as_ever(tmp_path):
    place = stored([ZSTD]).placed("local", tmp_path)
    data = bytearray((place / "c/1/0").read_bytes())
    data[-1] ^= 1
    (place / "c/1/0").write_bytes(data)
    with pytest.raises(gpushard.ChecksumError) as caught:
        gpushard.open_array(place, options=SHORT)[:, 3]
    assert caught.value.shard_key == "c/1/0"


def test_indexes_that_take_much_of_the_memory_go_another_way(opened, seen):
    assert_same_bits(opened.read(BOX, memory_limit=500), VALUES[BOX])
    assert seen.n_short == 0
    assert_same_bits(opened[BOX], VALUES[BOX])
    assert seen.n_short == 1


@pytest.mark.parametrize("chain", [[], [ZSTD]], ids=["raw", "zstd"])
def test_rows_of_any_number_of_bytes_are_copied_whole(chain, seen, tmp_path):
    values = np.random.default_rng(3).integers(0, 256, (8, 1400), np.uint8)
    inner = sharding((4, 700), codecs=[codec("bytes"), *chain])
    here = document(values.shape, (8, 1400), inner, dtype="uint8", fill_value=0)
    place = write(here, [(..., values)]).placed("local", tmp_path)
    a = gpushard.open_array(place, options=SHORT)
    out = np.empty((5, 1402), np.uint8)
    lengths = [1, 2, 7, 15, 16, 17, 31, 32, 33, 100, 511, 512, 513, 528, 699]
    for n in lengths:
        out[...] = 7
        a.read(np.s_[2:7, 690 : 690 + n], out=out[:, 1 : 1 + n])
        want = np.full_like(out, 7)
        want[:, 1 : 1 + n] = values[2:7, 690 : 690 + n]
        assert np.array_equal(out, want)
    assert seen.n_short == len(lengths)


@pytest.mark.parametrize("options", [SHORT, FUSED], ids=["short", "whole"])
def test_the_loops_are_given_arrays_in_c_order(options, monkeypatch, tmp_path):
    """They know but the addresses."""
    loops, seen = choice._load(), set()

    def spied(name):
        plain = getattr(loading.CompiledLoops, name)

        def run(self, *arguments):
            seen.add(name)
            for array in arguments:
                if isinstance(array, np.ndarray):
                    assert array.flags.c_contiguous
                    assert array.dtype in (np.int64, np.bool_)
            return plain(self, *arguments)

        return run

    def read_axes(self, planned, wanted, rows):
        seen.add("read_axes")
        for array in (wanted.elements, rows):
            assert array.flags.c_contiguous
            assert array.dtype == np.int64
        return False  # for the calls of planning and placing to follow

    for name in ("place_boxes", "plan_boxes", "plan_axes", "plan_points"):
        monkeypatch.setattr(loading.CompiledLoops, name, spied(name))
    monkeypatch.setattr(OneCall, "read_axes", read_axes)
    place = volume(tmp_path, [ZSTD], index_order=[0, 2, 1])
    a = gpushard.open_array(place, options=options)
    rows = np.arange(a.shape[0])[::-3]
    for key in (np.s_[...], np.s_[1:9, ::-2, 3], np.s_[:, 2:5]):
        a[key]
    a.oindex[rows, 2:5]
    a.oindex[rows, :, [3, 1]]
    a.vindex[rows, rows % 5, rows % 7]
    planned = {"plan_axes", "plan_points", "read_axes"}
    assert seen - {"place_boxes"} == (planned if options is SHORT else {"plan_boxes"})
    assert choice._load() is loops


@given(st.data())
def test_planning_stays_within_its_room(stored_volume, data):
    key = data.draw(orthogonal_keys(VOLUME.shape))
    points = data.draw(point_keys(VOLUME.shape))
    a = gpushard.open_array(stored_volume, options=SHORT)
    with guarded_planning():
        a.oindex[key]
        a.vindex[points]


@given(st.data())
def test_a_read_in_one_call_stays_within_its_room(stored_volume, data):
    key = data.draw(orthogonal_keys(VOLUME.shape))
    guarded = []
    plain = ThreadMemory.buffer

    def buffer(self, use, nbytes, *, keeps=True):
        if use != "plan":
            return plain(self, use, nbytes, keeps=keeps)
        guarded.append(np.full(nbytes + 128, 0xF9, np.uint8))
        return Buffer(address_of(guarded[-1]) + 64, guarded[-1][64:-64])

    a = gpushard.open_array(stored_volume, options=SHORT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ThreadMemory, "buffer", buffer)
        # As many as a key may take at the most.
        for module in (meshes, one_call):
            patch.setattr(module, "MOST_BOXES", 60)
            patch.setattr(module, "MOST_SHARDS", 12)
        assert_same_bits(a[...], WANTED)
        assert_same_bits(a.oindex[key], take_orthogonal(WANTED, key))
    for nbytes in guarded:
        assert (nbytes[:64] == 0xF9).all()
        assert (nbytes[-64:] == 0xF9).all()


@pytest.mark.skipif(not IO.exists(), reason="only Linux counts what a process reads")
@pytest.mark.parametrize("options", [SHORT, FUSED], ids=["short", "whole"])
def test_plain_elements_around_columns_are_not_read_for_each(options, seen, tmp_path):
    values = np.arange(2048 * 128, dtype="i4").reshape(2048, 128)
    inner = sharding((1024, 128), codecs=[LITTLE])
    here = document(values.shape, (2048, 128), inner, dtype="int32", fill_value=0)
    place = write(here, [(..., values)]).placed("local", tmp_path)
    a = gpushard.open_array(place, options=options)
    columns = [3, 20, 50, 80, 99, 120]
    assert_same_bits(a.oindex[:, columns], values[:, columns])
    before = read_nbytes()
    assert_same_bits(a.oindex[:, columns], values[:, columns])
    # Once, or twice where tasks cut an inner chunk.
    assert read_nbytes() - before < 2.5 * values.nbytes
    assert len(seen.sinks) == 2 * (options is FUSED)


def read_nbytes() -> int:
    """Bytes that this process got from calls of `read` and `pread`."""
    return int(IO.read_text(encoding="ascii").split()[1])

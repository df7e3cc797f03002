"""The short way of unsharded arrays: a few files, opened and read in the loops."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import gpushard
import selection_strategies as sts
from gpushard.fused import choice, opening
from gpushard.fused.short import unsharded as short_unsharded
from gpushard.fused.short.unsharded import ShortUnshardedReader
from gpushard.memory.chunk_room import ChunkRoom
from gpushard.reading import results
from gpushard.stores.local.store import LocalStore
from unsharded_cases import (
    CHAINS,
    COMPILED,
    FILL,
    OPENAT2,
    SHAPE,
    STATX,
    calls_replaced,
    need_opened_files,
    opened,
    stored,
    values_of,
)
from zarr_oracle import assert_same_bits

pytest.importorskip("numba", reason="the compiled loops are an extra")
pytestmark = need_opened_files
calls = calls_replaced

SHORT = COMPILED.but(small_read_chunks=gpushard.Options().small_read_chunks)


@pytest.fixture(autouse=True)
def is_patient(monkeypatch):
    """Loops read all, and other work on the machine does not make files slow."""
    choice._load()
    monkeypatch.setattr(results, "_LEAST_NBYTES", 0)
    monkeypatch.setattr(opening, "_SLOW_US", 1e9)


@pytest.fixture
def reads(monkeypatch):
    """For each read that was offered to the short way, whether it could do it."""
    found = []
    plain = ShortUnshardedReader.read

    def read(self, *arguments):
        found.append(plain(self, *arguments))
        return found[-1]

    monkeypatch.setattr(ShortUnshardedReader, "read", read)
    return found


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(("dtype", "threads"), [("i4", 1), ("i1", 1), ("f8", 3)])
def test_every_file_is_read_and_what_is_missing_is_filled(
    tmp_path, reads, monkeypatch, chain, dtype, threads
):
    monkeypatch.setattr("gpushard.fused.shares._SHARE_US", 1)
    values = values_of(dtype)
    stored(tmp_path, values, **CHAINS[chain])
    a = opened(tmp_path, SHORT.but(threads=threads))
    assert_same_bits(a[...], values)
    assert_same_bits(a[3:45:2, 36:1:-5], values[3:45:2, 36:1:-5])
    assert_same_bits(a[20, np.newaxis, 5:36], values[20, np.newaxis, 5:36])
    rows = [3, 40, 3, 17]
    assert_same_bits(a.oindex[rows, 2:30], values[rows, 2:30])
    assert_same_bits(a.oindex[rows, [20, 3]], values[np.ix_(rows, [20, 3])])
    assert_same_bits(a.vindex[rows, [5, 36, 5, 0]], values[rows, [5, 36, 5, 0]])
    assert reads == [True] * 6


@pytest.mark.parametrize("chain", ["raw", "zstd", "v2"])
@given(data=st.data())
def test_random_selections_are_those_of_numpy(chain, data, tmp_path_factory):
    place = tmp_path_factory.getbasetemp() / f"short-unsharded-{chain}"
    values = values_of()
    if not place.exists():
        stored(place, values, **CHAINS[chain])
    key = data.draw(sts.basic_keys(SHAPE))
    assert_same_bits(opened(place, SHORT)[key], values[key])


@pytest.mark.parametrize("chain", ["raw", "zstd"])
def test_a_file_is_opened_once_for_all_that_is_wanted_of_it(
    tmp_path, reads, calls, chain
):
    values = values_of(with_gaps=False)
    stored(tmp_path, values, **CHAINS[chain])
    opens = []

    def openat2(plain, *words):
        opens.append(words)
        return plain(*words)

    calls("syscall", OPENAT2, openat2)
    rows, columns = [1, 9, 3, 11, 5], [0, 12, 2, 14]
    got = opened(tmp_path, SHORT).oindex[rows, columns]
    assert_same_bits(got, values[np.ix_(rows, columns)])
    assert reads == [True]
    assert len(opens) == 2 * 2


@pytest.mark.parametrize("separator", "/.")
@pytest.mark.parametrize("kind", ["default", "v2"])
def test_places_of_any_number_of_digits_are_found(tmp_path, reads, kind, separator):
    values = np.arange(1234 * 11, dtype="i4").reshape(1234, 11)
    wanted = slice(7, 12), slice(97, 103), slice(995, 1003), slice(1229, None)
    keys = {"name": kind, "separator": separator}
    stored(tmp_path, values, wanted, chunks=(1, 1), chunk_key_encoding=keys)
    a = opened(tmp_path, SHORT)
    for rows in wanted:
        assert_same_bits(a[rows], values[rows])
    assert reads == [True] * 4


def test_paths_begin_with_that_of_the_array_in_its_store(tmp_path, reads):
    values = values_of(with_gaps=False)
    zarr.create_group(tmp_path)
    stored(tmp_path / "Größe/a b", values, **CHAINS["zstd"])
    zarr.create_group(tmp_path / "Größe")
    group = gpushard.open_group(tmp_path, device="cpu", options=SHORT)
    assert_same_bits(group["Größe/a b"][5:30], values[5:30])
    assert reads == [True]


def test_grids_of_more_places_than_64_bits_count_are_not_for_it(tmp_path, reads):
    far = zarr.create_array(
        tmp_path, shape=(1 << 40, 1 << 40), chunks=(1, 1), dtype="i4", fill_value=FILL
    )
    far[-1, -2] = 5
    a = opened(tmp_path, SHORT)
    assert_same_bits(a[-1, -9:], np.array([FILL] * 7 + [5, FILL], "i4"))
    assert not reads


@pytest.mark.parametrize("chain", ["raw", "zstd", "blosc"])
def test_outputs_of_other_types_and_strides_are_written(tmp_path, reads, chain):
    values = values_of()
    stored(tmp_path, values, **CHAINS[chain])
    a = opened(tmp_path, SHORT)
    out = np.zeros(SHAPE[::-1], "f8").T
    a.read(out=out)
    assert_same_bits(out, values.astype("f8"))
    swapped = np.zeros((20, 37), ">i4")
    a.read(np.s_[20:40], out=swapped)
    assert np.array_equal(swapped, values[20:40])
    assert reads == [True] * 2


def test_points_that_are_cast_take_the_short_way(tmp_path, reads):
    values = values_of()
    stored(tmp_path, values, **CHAINS["zstd"])
    out = np.zeros(3, "f8")
    rows, columns = [1, 40, 20], [0, 36, 15]
    opened(tmp_path, SHORT).read((rows, columns), out=out)
    assert_same_bits(out, values[rows, columns].astype("f8"))
    assert reads == [True]


def test_a_missing_inner_chunk_of_any_size_yields_fill_value(tmp_path, reads):
    values = np.full((600, 600), FILL, "f8")
    values[:300] = 1.0
    stored(tmp_path, values, chunks=(300, 300), **CHAINS["zstd"])
    assert not (tmp_path / "c/1").exists()
    assert_same_bits(opened(tmp_path, SHORT)[290:310, ::7], values[290:310, ::7])
    assert reads == [True]


def test_damage_is_named_as_by_the_general_path(tmp_path, reads):
    stored(tmp_path, values_of(with_gaps=False), **CHAINS["zstd-crc"])
    flipped = tmp_path / "c/2/1"
    data = bytearray(flipped.read_bytes())
    data[-6] ^= 1
    flipped.write_bytes(bytes(data))
    with pytest.raises(gpushard.CorruptShardError, match=r"c/2/1") as caught:
        opened(tmp_path, SHORT)[10:20]
    assert caught.value.inner_chunk == (2, 1)
    assert reads == [False]


@pytest.mark.parametrize("nbytes", [0, 100_000])
def test_files_of_odd_sizes_are_named(tmp_path, reads, nbytes):
    stored(tmp_path, values_of(with_gaps=False), **CHAINS["raw"])
    (tmp_path / "c/1/1").write_bytes(bytes(nbytes))
    with pytest.raises(gpushard.CorruptShardError, match=r"c/1/1"):
        opened(tmp_path, SHORT)[10:20]
    assert reads == [False]


def test_links_lead_where_they_may(tmp_path, reads):
    values = values_of(with_gaps=False)
    place = tmp_path / "a"
    stored(place, values, **CHAINS["zstd"])
    (place / "c/1/1").rename(place / "kept")
    (place / "c/1/1").symlink_to("../../kept")
    assert_same_bits(opened(place, SHORT)[10:20], values[10:20])
    (place / "kept").rename(tmp_path / "outside")
    (place / "c/1/1").unlink()
    (place / "c/1/1").symlink_to(tmp_path / "outside")
    with pytest.raises(gpushard.StoreError, match="leads out of the store"):
        opened(place, SHORT)[10:20]
    assert reads == [False] * 2
    trusted = LocalStore(place, SHORT, allow_symlinks_outside=True)
    assert_same_bits(opened(trusted, SHORT)[10:20], values[10:20])
    assert reads.pop()
    (tmp_path / "outside").unlink()
    for store in (place, trusted):
        with pytest.raises(gpushard.StoreError, match="leads nowhere"):
            opened(store, SHORT)[10:20]


@pytest.mark.parametrize("put", [os.mkdir, os.mkfifo])
def test_what_is_no_regular_file_is_named(tmp_path, put):
    stored(tmp_path, values_of(with_gaps=False), **CHAINS["zstd"])
    (tmp_path / "c/1/1").unlink()
    put(tmp_path / "c/1/1")
    with pytest.raises(gpushard.StoreError, match="something else where a file"):
        opened(tmp_path, SHORT)[10:20]


def test_a_store_that_is_gone_has_no_fill_values(tmp_path):
    place = tmp_path / "a"
    stored(place, values_of(), **CHAINS["zstd"])
    a = opened(place, SHORT)
    place.rename(tmp_path / "b")
    with pytest.raises(gpushard.StoreError, match="directory is gone"):
        a[10:20]


def test_a_store_that_goes_during_the_read_has_no_fill_values(tmp_path, reads, calls):
    place = tmp_path / "a"
    stored(place, values_of(with_gaps=False), **CHAINS["zstd"])
    opens = []

    def openat2(plain, *words):
        opens.append(words)
        if len(opens) == 3:
            shutil.rmtree(place)
        return plain(*words)

    calls("syscall", OPENAT2, openat2)
    with pytest.raises(gpushard.StoreError, match="directory is gone"):
        opened(place, SHORT)[10:20]
    assert reads == [False]


def test_a_file_that_is_written_to_meanwhile_is_read_again(tmp_path, reads, calls):
    values = values_of(with_gaps=False)
    stored(tmp_path, values, **CHAINS["raw"])
    victim = tmp_path / "c/1/1"
    looks = []

    def statx(plain, fd, *rest):
        is_victim = os.path.samestat(os.fstat(fd), victim.stat())
        if is_victim:
            looks.append(fd)
            if len(looks) == 2:  # as a writer in place does
                victim.write_bytes(np.full(80, 5, "i4").tobytes())
        return plain(fd, *rest)

    calls("statx", STATX, statx)
    got = opened(tmp_path, SHORT)[4:20]
    values[8:16, 10:20] = 5
    assert_same_bits(got, values[4:20])
    assert reads == [False]


def test_many_slow_files_are_left_to_those_who_wait_for_many(
    tmp_path, reads, calls, monkeypatch
):
    values = values_of(with_gaps=False)
    stored(tmp_path, values, **CHAINS["zstd"])
    opens = []

    def openat2(plain, *words):
        opens.append(words)
        return plain(*words)

    calls("syscall", OPENAT2, openat2)
    monkeypatch.setattr(opening, "_SLOW_US", -1e9)
    monkeypatch.setattr("gpushard.reading.results._read_large", lambda *_: None)
    a = opened(tmp_path, SHORT)
    # For a while, they are not tried again.
    for n_tried in (short_unsharded.N_TRIED, 0):
        opens.clear()
        assert a[...].shape == SHAPE
        assert len(opens) == n_tried
    assert_same_bits(a[:10], values[:10])  # few files need not be tried
    assert reads == [False, False, True]
    now_s = short_unsharded.monotonic()
    monkeypatch.setattr(short_unsharded, "monotonic", lambda: now_s + 2)
    opens.clear()
    assert a[...].shape == SHAPE
    assert len(opens) == short_unsharded.N_TRIED


def test_many_fast_files_are_tried_from_time_to_time(tmp_path, reads, monkeypatch):
    values = values_of(with_gaps=False)
    stored(tmp_path, values, **CHAINS["zstd"])
    runs = []
    plain = ShortUnshardedReader._run

    def run(self, source, placer, columns, opener):
        runs.append(len(columns))
        return plain(self, source, placer, columns, opener)

    monkeypatch.setattr(ShortUnshardedReader, "_run", run)
    n_tried = short_unsharded.N_TRIED
    a = opened(tmp_path, SHORT)
    for _ in range(2):
        assert_same_bits(a[...], values)
    now_s = short_unsharded.monotonic()
    monkeypatch.setattr(short_unsharded, "monotonic", lambda: now_s + 2)
    assert_same_bits(a[...], values)
    assert runs == [n_tried, 28 - n_tried, 28, n_tried, 28 - n_tried]
    assert reads == [True] * 3


def test_systems_that_open_no_files_for_the_loops_read_as_before(
    tmp_path, reads, monkeypatch
):
    values = values_of()
    stored(tmp_path, values, **CHAINS["zstd"])
    monkeypatch.setattr(opening, "file_calls", lambda: None)
    assert_same_bits(opened(tmp_path, SHORT)[10:20], values[10:20])
    assert not reads


@pytest.mark.parametrize(
    "options", [SHORT.but(small_read_chunks=0), SHORT.but(max_chunk_nbytes=64)]
)
def test_reads_under_narrow_limits_are_not_for_it(tmp_path, reads, options):
    values = values_of()
    stored(tmp_path, values, **CHAINS["raw"])
    assert_same_bits(opened(tmp_path, options)[9:10, 3:20], values[9:10, 3:20])
    assert not reads


def test_files_without_room_in_memory_are_not_for_it(tmp_path, reads, monkeypatch):
    values = values_of()
    stored(tmp_path, values, **CHAINS["zstd"])
    for nbytes, is_read in ((1 << 20, [True]), (1 << 10, [])):
        monkeypatch.setattr(ChunkRoom, "most_window_nbytes", nbytes)
        reads.clear()
        assert_same_bits(opened(tmp_path, SHORT)[9:30], values[9:30])
        assert reads == is_read


def test_a_few_little_files_are_left_to_python(tmp_path, reads, monkeypatch):
    monkeypatch.setattr(results, "_LEAST_NBYTES", 1 << 10)
    values = values_of()
    stored(tmp_path, values, **CHAINS["zstd"])
    a = opened(tmp_path, SHORT)
    assert_same_bits(a[10:20, 5:8], values[10:20, 5:8])
    assert not reads
    assert_same_bits(a[10:20, 5:15], values[10:20, 5:15])
    assert reads == [True]


def test_rectilinear_grids_are_not_for_it(tmp_path, reads):
    values = values_of(with_gaps=False)
    with zarr.config.set({"array.rectilinear_chunks": True}):
        stored(tmp_path, values, chunks=((20, 30), (37,)))
    assert_same_bits(opened(tmp_path, SHORT)[10:40], values[10:40])
    assert not reads


def test_arrays_without_axes_and_without_elements_are_read(tmp_path):
    for name, shape in (("scalar", ()), ("empty", (0, 5))):
        made = zarr.create_array(
            tmp_path / name, shape=shape, chunks=(1,) * len(shape), dtype="i4"
        )
        if not shape:
            made[...] = 3
        assert_same_bits(opened(tmp_path / name, SHORT)[...], np.full(shape, 3, "i4"))


def test_no_descriptor_stays_open(tmp_path, reads):
    stored(tmp_path, values_of(), **CHAINS["zstd"])
    a = opened(tmp_path, SHORT)
    a[...]
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        a[...]
    assert len(os.listdir("/proc/self/fd")) == before
    assert reads == [True] * 4

"""Files that change, fail or end while the compiled loops read them."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import gpushard
from fused_cases import (
    CHAINS,
    CRC,
    FUSED,
    LITTLE,
    PLAIN,
    VALUES,
    WAYS,
    ZSTD,
    assert_all_fused,
    stored,
    take_way,
    watch_sinks,
)
from gpushard.fused import choice
from gpushard.fused.runner import BoxPlacer
from gpushard.stores.local import LocalStore
from spec_shards import document, sharding
from stored_object import replace_file
from zarr_oracle import assert_same_bits, write

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")
pytest.importorskip("cffi", reason="zstandard's C interface needs cffi (extra `fast`)")
pytest.importorskip("blosc2", reason="libblosc2 ships with blosc2 (extra `fast`)")

# zarr 3.1 says so wherever one of numcodecs' codecs is made.
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")

# Plain elements are read as they are: a mixture of two versions would not be noticed.
BOTH = pytest.mark.parametrize("name", ["raw", "zstd"])
SHARDS = ["c/0/0", "c/0/1", "c/1/0", "c/1/1"]


@pytest.fixture(params=WAYS, autouse=True)
def way(request, monkeypatch):
    return take_way(monkeypatch, request.param)


@pytest.fixture
def seen(monkeypatch):
    return watch_sinks(monkeypatch)


@pytest.fixture
def before_opening(monkeypatch) -> list[Callable[[LocalStore, str], None]]:
    """What is done as the loops want a file, its index being read."""
    todo: list[Callable[[LocalStore, str], None]] = []
    plain = LocalStore.open_file

    def open_file(self, key, version):
        for act in todo:
            act(self, key)
        return plain(self, key, version)

    monkeypatch.setattr(LocalStore, "open_file", open_file)
    return todo


def shards_of(chain: str, place: Path) -> tuple[Path, dict[str, bytes], dict]:
    """Array at a place, its shards, and those of an array of other values."""
    array = stored(CHAINS[chain])
    other = stored(CHAINS[chain], negated=True)
    return array.placed("local", place), array.objects, other.objects


# Between index and payload


@BOTH
def test_a_replaced_file_is_read_once_more(name, before_opening, tmp_path):
    place, _, other = shards_of(name, tmp_path)
    opened = []

    def replace(store, key):
        store._handles.clear()
        if not opened:
            for shard in SHARDS:
                replace_file(place / shard, other[shard])
        opened.append(key)

    before_opening.append(replace)
    a = gpushard.open_array(place, options=FUSED)
    assert_same_bits(a[...], -VALUES)
    assert sorted(set(opened)) == SHARDS
    assert len(opened) > len(SHARDS)


@BOTH
def test_a_file_that_is_open_is_read_as_it_was(name, before_opening, seen, tmp_path):
    place, _, other = shards_of(name, tmp_path)
    before_opening.append(lambda _, key: replace_file(place / key, other[key]))
    a = gpushard.open_array(place, options=FUSED)
    assert_same_bits(a[...], VALUES)
    before_opening.clear()
    assert_same_bits(a[...], -VALUES)
    assert_all_fused(seen)


@BOTH
@pytest.mark.parametrize("threads", [1, 3])
def test_a_file_replaced_again_and_again_is_an_error(
    name, threads, before_opening, tmp_path
):
    place, objects, _ = shards_of(name, tmp_path)

    def replace(store, key):
        store._handles.clear()
        if key == "c/1/0":
            replace_file(place / key, objects[key])

    before_opening.append(replace)
    a = gpushard.open_array(place, options=FUSED.but(threads=threads))
    with pytest.raises(gpushard.ObjectChangedError, match="replaced") as caught:
        a[...]
    assert caught.value.shard_key == "c/1/0"
    before_opening.clear()
    assert_same_bits(a[...], VALUES)


@BOTH
@pytest.mark.parametrize("again", [False, True])
def test_a_file_overwritten_in_place_is_noticed(name, again, monkeypatch, tmp_path):
    place, _, other = shards_of(name, tmp_path)
    plain, n_runs = BoxPlacer.run, [0]

    def run(self, columns, window_nbytes=0):
        placed = plain(self, columns, window_nbytes)
        n_runs[0] += 1
        if n_runs[0] == 1 or again:
            time.sleep(0.02)  # file systems stamp changes with the kernel's clock tick
            (place / "c/0/1").write_bytes(other["c/0/1"])
        return placed

    monkeypatch.setattr(BoxPlacer, "run", run)
    a = gpushard.open_array(place, options=FUSED)
    if again:
        with pytest.raises(gpushard.ObjectChangedError, match="overwritten") as caught:
            a[...]
        assert caught.value.shard_key == "c/0/1"
        return
    want = VALUES.copy()
    want[:64, 64:] *= -1
    assert_same_bits(a[...], want)
    assert n_runs[0] == 2


@pytest.mark.parametrize("options", [FUSED, PLAIN], ids=["loops", "plain"])
def test_a_file_deleted_after_its_index_was_read_is_an_error(
    options, before_opening, monkeypatch, tmp_path
):
    place, _, _ = shards_of("zstd", tmp_path)
    plain = LocalStore._read_one

    def delete(store, key):
        store._handles.clear()
        (place / key).unlink(missing_ok=True)

    def read_one(self, request):
        if request.version is not None and request.key == "c/1/1":
            delete(self, request.key)
        return plain(self, request)

    before_opening.append(lambda s, key: delete(s, key) if key == "c/1/1" else None)
    monkeypatch.setattr(LocalStore, "_read_one", read_one)
    a = gpushard.open_array(place, options=options)
    with pytest.raises(gpushard.StoreError, match="c/1/1"):
        a[...]


@BOTH
def test_a_file_cut_short_after_its_index_was_read_is_an_error(
    name, before_opening, tmp_path
):
    place, _, _ = shards_of(name, tmp_path)

    def cut(_, key):
        if key == "c/1/1":
            time.sleep(0.02)  # as above
            os.truncate(place / key, 100)

    before_opening.append(cut)
    with pytest.raises(gpushard.CorruptShardError, match="short") as caught:
        gpushard.open_array(place, options=FUSED)[...]
    assert caught.value.shard_key == "c/1/1"


def test_a_file_system_that_fails_is_an_error_of_ours(monkeypatch, tmp_path):
    place, _, _ = shards_of("zstd", tmp_path)
    a = gpushard.open_array(place, options=FUSED)
    plain, run = os.fstat, BoxPlacer.run
    fails = [False]

    def run_and_fail(*args):
        placed = run(*args)
        fails[0] = True
        return placed

    def fstat(fd):
        if fails[0]:
            fails[0] = False
            raise OSError(errno.ESTALE, "Stale file handle")
        return plain(fd)

    monkeypatch.setattr(BoxPlacer, "run", run_and_fail)
    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(gpushard.StoreError, match="Stale"):
        a[...]


# Reads that fail, or give less than was asked

_PREAD = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
)


class Pread:
    """A `pread` that gives `most` bytes a call, and nothing from call `fails` on."""

    def __init__(self, most: int, fails: int, failure: int) -> None:
        self.calls: list[tuple[int, int]] = []
        self.most, self.fails, self.failure = most, fails, failure
        self._kept = _PREAD(self._read)
        self.address = ctypes.cast(self._kept, ctypes.c_void_p).value

    def _read(self, fd: int, target: int, nbytes: int, offset: int) -> int:
        self.calls.append((offset, nbytes))
        if len(self.calls) > self.fails:
            return self.failure
        data = os.pread(fd, min(nbytes, self.most), offset)
        ctypes.memmove(target, data, len(data))
        return len(data)


@pytest.fixture
def pread(monkeypatch):
    def interpose(most: int, fails: int = 10**9, failure: int = 0) -> Pread:
        made = Pread(most, fails, failure)
        monkeypatch.setattr(choice, "pread_address", lambda: made.address)
        return made

    return interpose


@pytest.mark.parametrize("name", ["raw", "crc32c", "lz4", "blosc lz4 shuffle 0"])
@pytest.mark.parametrize("failure", [0, -1])
def test_reads_that_fail_are_done_again_the_plain_way(
    name, failure, pread, seen, tmp_path
):
    place, _, _ = shards_of(name, tmp_path)
    for fails in (0, 1, 2, 7):
        made = pread(700, fails, failure)
        a = gpushard.open_array(place, options=FUSED)
        seen.n_left = 0
        assert_same_bits(a[::-1, 3:], VALUES[::-1, 3:])
        assert seen.n_left == 24 if not fails else 0 < seen.n_left <= 24
        assert_same_bits(a[...], VALUES)
        assert len(made.calls) > fails


def test_reads_that_fail_straight_into_the_output_are_done_again(pread, seen, tmp_path):
    # Whole rows are an inner chunk: they are read to where they belong.
    values = np.arange(64 * 8, dtype="i4").reshape(64, 8)
    here = document((64, 8), (16, 8), sharding((2, 8), codecs=[LITTLE]), dtype="int32")
    place = write(here, [(..., values)]).placed("local", tmp_path)
    for fails in (0, 1, 2, 7, 10**9):
        made = pread(130, fails, -1)
        seen.n_left = 0
        a = gpushard.open_array(place, options=FUSED)
        assert_same_bits(a[...], values)
        assert bool(seen.n_left) == (len(made.calls) > fails)


@BOTH
@pytest.mark.parametrize("most", [1, 100, 3000])
def test_reads_that_give_less_are_continued(name, most, pread, seen, tmp_path):
    place, _, _ = shards_of(name, tmp_path)
    made = pread(most)
    a = gpushard.open_array(place, options=FUSED)
    for key in (np.s_[...], np.s_[30:40, ::2]):
        assert_same_bits(a[key], VALUES[key])
    assert_all_fused(seen)
    assert len(made.calls) > 4


def test_no_more_than_what_is_wanted_of_plain_elements_is_read(pread, seen, tmp_path):
    place, _, _ = shards_of("raw", tmp_path)
    made = pread(1 << 30)
    a = gpushard.open_array(place, options=FUSED)
    row = 16 * 4
    assert_same_bits(a[2:4, 0:16], VALUES[2:4, 0:16])
    assert made.calls == [(2 * row, 2 * row)]
    made.calls.clear()
    assert_same_bits(a[2:9:3, 5:7], VALUES[2:9:3, 5:7])
    assert made.calls == [(2 * row + 5 * 4, 6 * row + 2 * 4)]
    made.calls.clear()
    # Of two files, each its own: what lies farther on in the other is of no meaning.
    assert_same_bits(a.oindex[2:9:3, [5, 85]], VALUES[2:9:3, [5, 85]])
    span = 6 * row + 4
    assert [nbytes for _, nbytes in made.calls] == [span, span]
    made.calls.clear()
    # A whole shard of whole inner chunks, one after the other: at most one window.
    assert_same_bits(a[:64, :64:2], VALUES[:64, :64:2])
    assert len(made.calls) == 1
    assert_all_fused(seen)


# Handles, threads, processes


def n_handles() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="Linux lists handles")
def test_no_handle_is_left_open(before_opening, tmp_path):
    place, objects, _ = shards_of("zstd", tmp_path)
    gpushard.open_array(place, options=FUSED)[...]
    gc.collect()
    before = n_handles()

    def replace(store, key):
        store._handles.clear()
        replace_file(place / key, objects[key])

    for options in (FUSED, FUSED.but(threads=3), FUSED.but(file_handles=1)):
        a = gpushard.open_array(place, options=options)
        for _ in range(5):
            assert_same_bits(a[...], VALUES)
        assert n_handles() <= before + min(options.file_handles, 1 + len(SHARDS))
        before_opening.append(replace)
        with pytest.raises(gpushard.ObjectChangedError):
            a[...]
        before_opening.clear()
        (place / "c/0/0").write_bytes(objects["c/0/0"][:-200])
        with pytest.raises(gpushard.CorruptShardError):
            a[...]
        (place / "c/0/0").write_bytes(objects["c/0/0"])
        del a
        gc.collect()
        assert n_handles() == before


@pytest.mark.parametrize("chain", [[], [ZSTD, CRC]], ids=["raw", "zstd"])
def test_threads_read_files_side_by_side(chain, seen, tmp_path):
    place = stored(chain).placed("local", tmp_path)
    options = FUSED.but(threads=3, file_handles=2)
    a = gpushard.open_array(place, options=options)
    start = threading.Barrier(4)

    def read(k: int) -> None:
        start.wait()
        for i in range(15):
            key = np.s_[k + i : 99 - i, k :: 1 + i % 3]
            assert_same_bits(a[key], VALUES[key])

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(read, k) for k in range(4)]:
            future.result()
    assert_all_fused(seen)


@pytest.mark.parametrize("name", ["raw", "zstd", "gzip", "blosc zstd shuffle 0"])
def test_a_forked_child_reads_with_the_loops_it_inherits(name, seen, tmp_path):
    place = stored(CHAINS[name]).placed("local", tmp_path)
    a = gpushard.open_array(place, options=FUSED.but(threads=3))
    assert_same_bits(a[...], VALUES)
    with warnings.catch_warnings():
        # Python warns of forks of a process that has threads; that is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            is_same = np.array_equal(a[...], VALUES) and not seen.n_left
        finally:
            os._exit(0 if is_same else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert_same_bits(a[...], VALUES)
    assert_all_fused(seen)

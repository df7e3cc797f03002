"""Files that change or end while the compiled loops read them."""

from __future__ import annotations

import errno
import gc
import os
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpushard
from fused_cases import (
    CHAINS,
    CRC,
    FUSED,
    PLAIN,
    VALUES,
    ZSTD,
    assert_all_fused,
    need_fast_packages,
    stored,
)
from gpushard.fused.placer import BoxPlacer
from gpushard.fused.short.one_call import OneCall
from gpushard.stores.local.store import LocalStore
from stored_object import replace_file
from zarr_oracle import assert_same_bits

need_fast_packages()

pytestmark = [
    pytest.mark.usefixtures("way"),
    # zarr 3.1 says so wherever one of numcodecs' codecs is made.
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in"),
]

# Plain elements are read as they are: a mixture of two versions would not be noticed.
BOTH = pytest.mark.parametrize("name", ["raw", "zstd"])
SHARDS = ["c/0/0", "c/0/1", "c/1/0", "c/1/1"]


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


def follow_runs(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Have the loops call `act` whenever they have read and placed boxes."""

    def followed(plain: Any) -> Any:
        def run(*args):
            placed = plain(*args)
            act()
            return placed

        return run

    monkeypatch.setattr(BoxPlacer, "run", followed(BoxPlacer.run))
    monkeypatch.setattr(OneCall, "read_axes", followed(OneCall.read_axes))


@BOTH
@pytest.mark.parametrize("again", [False, True])
def test_a_file_overwritten_in_place_is_noticed(name, again, monkeypatch, tmp_path):
    place, _, other = shards_of(name, tmp_path)
    n_runs = [0]

    def overwrite():
        n_runs[0] += 1
        if n_runs[0] == 1 or again:
            time.sleep(0.02)  # file systems stamp changes with the kernel's clock tick
            (place / "c/0/1").write_bytes(other["c/0/1"])

    follow_runs(monkeypatch, overwrite)
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


@pytest.mark.parametrize(
    "options",
    [FUSED, PLAIN, PLAIN.but(small_read_chunks=1000)],
    ids=["loops", "plain", "small"],
)
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
    plain, fails = os.fstat, [False]

    def fail():
        fails[0] = True

    def fstat(fd):
        if fails[0]:
            fails[0] = False
            raise OSError(errno.ESTALE, "Stale file handle")
        return plain(fd)

    follow_runs(monkeypatch, fail)
    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(gpushard.StoreError, match="Stale"):
        a[...]


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

"""What a fork inherits, and what many reads leave behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore, ZipStore

import gpushard
from cuda_host.device import EmulatedDevice
from damaged_arrays import emulated
from forked import answers_in_a_fork
from gpushard import Options
from gpushard.fused import choice
from gpushard.machine import usable_cpu_count
from gpushard.memory.turns import turns
from gpushard.options import MIB
from gpushard.stores.local import handles
from gpushard.stores.local.store import LocalStore
from gpushard.stores.remote_url import store_of
from gpushard.stores.zarr import writer as zarr_writer
from gpushard.threads.pools import run_in_turn
from held_alone import held_by_another_thread
from places import ROOT, TESTS
from range_server import RangeServer
from small_array import VALUES, write_values
from zarr_oracle import assert_same_bits

_PIECE = np.s_[3:17, 5:25]


@pytest.mark.network
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
@pytest.mark.parametrize("answers_ranges", [False, True])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_fork_of_a_process_that_read_over_http_reads(
    tmp_path, reopened, answers_ranges
):
    place = write_values(tmp_path / "a")
    with RangeServer(place, answers_ranges=answers_ranges) as server:
        a = gpushard.open_array(server.url, options=Options(threads=4))
        assert_same_bits(a[_PIECE], VALUES[_PIECE])  # which takes ranges
        assert_same_bits(a[...], VALUES)

        def reads() -> bool:
            again = gpushard.open_array(server.url) if reopened else a
            return np.array_equal(again[...], VALUES)

        n_before = server.n_connections
        assert answers_in_a_fork(reads)
        assert server.n_connections > n_before  # its own, and none of its parent's
        assert_same_bits(a[...], VALUES)


@pytest.mark.network
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_fork_of_a_process_that_read_through_obstore_is_told_so_at_once():
    """obstore's own threads are not in the fork: it would wait for ever."""
    obstore = pytest.importorskip("obstore", reason="the extra `remote` is missing")
    objects = obstore.store.MemoryStore()
    obstore.put(objects, "c/0", b"data")
    store = store_of(objects)
    assert store.get("c/0") == b"data"

    def refused() -> bool:
        try:
            store.get("c/0")
        except gpushard.StoreError as error:
            return "spawn" in str(error)
        return False

    assert answers_in_a_fork(refused)
    assert store.get("c/0") == b"data"


FORKS_FIRST = """
import os, sys, gpushard
pid = os.fork()
a = gpushard.open_array(sys.argv[1])
good = a[...].sum() == int(sys.argv[2])
if not pid:
    os._exit(0 if good else 1)
sys.exit(0 if good and os.waitpid(pid, 0)[1] == 0 else 1)
"""


@pytest.mark.network
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_fork_that_reads_over_http_first_reads(tmp_path):
    with RangeServer(write_values(tmp_path / "a")) as server:
        subprocess.run(
            [sys.executable, "-c", FORKS_FIRST, server.url, str(VALUES.sum())],
            check=True,
            timeout=30,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_fork_reads_a_zarr_store_that_its_parent_was_reading():
    held: dict[str, Any] = {}
    z = zarr.create_array(MemoryStore(held), shape=(64,), chunks=(4,), dtype="i4")
    z[...] = np.arange(64)
    a = gpushard.open_array(MemoryStore(held))
    a[...]
    assert answers_in_a_fork(lambda: np.array_equal(a[...], np.arange(64)))


def _zipped(place: Path) -> Path:
    """A zip file beside the array at `place`, with its files."""
    return Path(shutil.make_archive(str(place), "zip", place))


def _positions(path: Path) -> list[int]:
    """Where this process stands in the open files of `path`."""
    open_files = [int(fd) for fd in os.listdir("/proc/self/fd")]
    return [
        os.lseek(fd, 0, os.SEEK_CUR)
        for fd in open_files
        if os.path.lexists(link := f"/proc/self/fd/{fd}")
        and os.readlink(link) == str(path)
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the open files")
@pytest.mark.parametrize("opened", ["path", "zarr", "fsspec"])
def test_a_fork_reads_an_archive_past_the_open_file_of_its_parent(tmp_path, opened):
    """If it moved in that file, its parent would read bytes of other places."""
    # Too much for the buffer of an open file.
    values = np.random.default_rng(0).integers(256, size=100_000, dtype="u1")
    zarr.create_array(tmp_path / "a", data=values, chunks=(1000,), shards=(10_000,))
    path = _zipped(tmp_path / "a")
    url = f"zip://::{path.as_uri()}"
    if opened == "fsspec":
        pytest.importorskip("fsspec", reason="no fsspec")
    a = gpushard.open_array({"zarr": ZipStore(path), "fsspec": url}.get(opened, path))
    assert_same_bits(a[-5000:], values[-5000:])
    before = _positions(path)
    assert before
    assert answers_in_a_fork(lambda: np.array_equal(a[:5000], values[:5000]))
    assert _positions(path) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_fork_opens_a_zip_file_anew_where_its_parent_found_it(tmp_path, monkeypatch):
    path = _zipped(write_values(tmp_path / "a"))
    monkeypatch.chdir(tmp_path)
    a = gpushard.open_array(path.name)

    def reads() -> bool:
        os.chdir("/")
        return np.array_equal(a[...], VALUES)

    assert answers_in_a_fork(reads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_fork_is_told_of_an_archive_that_it_cannot_open_anew(tmp_path):
    pytest.importorskip("fsspec", reason="no fsspec")
    from fsspec.implementations.zip import ZipFileSystem

    with _zipped(write_values(tmp_path / "a")).open("rb") as file:
        a = gpushard.open_array(ZipFileSystem(file).get_mapper(""))
        assert_same_bits(a[...], VALUES)

        def refused() -> bool:
            try:
                a[...]
            except gpushard.StoreError as error:
                return "file object" in str(error) and "a path or a URL" in str(error)
            return False

        assert answers_in_a_fork(refused)
        assert_same_bits(a[...], VALUES)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
@pytest.mark.parametrize("held", ["indexes", "inner chunks", "handles", "loops"])
def test_a_fork_waits_for_no_thread_of_its_parent(held, tmp_path, monkeypatch):
    """What another thread held at the fork stays locked: nobody is there to let go."""
    choice._load()  # to compile them could take the fork longer than it has
    monkeypatch.setattr(choice, "_loaded", [])
    monkeypatch.setattr(handles, "_SETTLED_NS", 0)  # keep what was just written, too
    options = Options(small_read_chunks=0, compile_nbytes=0, chunk_cache_nbytes=MIB)
    a = gpushard.open_array(write_values(tmp_path / "a"), options=options)
    assert a.source.chunks is not None
    alone = {
        "indexes": a.source.indexes._alone,
        "inner chunks": a.source.chunks._alone,
        "handles": a.source.store._handles._alone,
        "loops": choice._turn.alone,
    }[held]
    with held_by_another_thread(alone):
        assert answers_in_a_fork(lambda: np.array_equal(a[...], VALUES))
    assert_same_bits(a[...], VALUES)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_fork_has_no_turn_to_wait_for():
    """Of what one thread does at a time, as it takes much memory."""

    def are_free() -> bool:
        return all(lock.acquire(blocking=False) for lock in vars(turns).values())

    with turns.padded, turns.copying:
        assert answers_in_a_fork(are_free)
    # As another thread's work would be under way.
    assert run_in_turn(
        lambda: answers_in_a_fork(lambda: run_in_turn(lambda: "rare") == "rare")
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_fork_does_without_the_loops_that_its_parent_was_just_loading(monkeypatch):
    """A lock of numba's stays with the thread that loaded them: it would never end."""
    asked: list[int] = []
    monkeypatch.setattr(choice, "_loaded", [])
    monkeypatch.setattr(choice, "_ready_loops", lambda: asked.append(os.getpid()))
    monkeypatch.setattr(choice._turn, "is_loading", True)
    with held_by_another_thread(choice._turn.alone):
        assert answers_in_a_fork(lambda: choice._load() is None and not asked)
    assert not choice._loaded


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_fork_writes_to_a_zarr_store_that_its_parent_was_writing_to():
    store = MemoryStore()
    zarr.create_array(store, shape=(8,), chunks=(4,), shards=(8,), dtype="i4")
    a = gpushard.open_array(store)
    a[...] = np.arange(8)

    def write_part() -> bool:
        a[1:3] = 7
        return a[0:4].tolist() == [0, 7, 7, 3]

    with zarr_writer._key_locks.of("c/0"), ThreadPoolExecutor(1) as thread:
        # Forked by another thread than the one that has the turn of the shard.
        assert thread.submit(answers_in_a_fork, write_part).result()
    assert a[0:4].tolist() == [0, 1, 2, 3]


@pytest.mark.network
def test_spawned_processes_read_over_http(tmp_path):
    with RangeServer(write_values(tmp_path / "a")) as server:
        a = gpushard.open_array(server.url)
        a[...]
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            rows = pool.map(a.__getitem__, range(0, 20, 7))
    assert_same_bits(np.stack(rows), VALUES[::7])


def n_handles() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_nbytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_read_and_close(place: Any, n_cycles: int) -> None:
    for k in range(n_cycles):
        a = gpushard.open_array(place)
        row = k % 20
        assert a[row, 3] == VALUES[row, 3]
        if k % 10 == 0:
            assert np.array_equal(a[_PIECE], VALUES[_PIECE])


N_CYCLES = int(os.environ.get("GPUSHARD_CYCLES", "300"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux tells")
@pytest.mark.parametrize("damaged", [False, True])
def test_opening_reading_and_closing_leaks_neither_memory_nor_handles(
    tmp_path, damaged
):
    place = write_values(tmp_path / "a")
    if damaged:
        (place / "c/0/1").write_bytes(b"short")

        def cycle(n: int) -> None:
            for _ in range(n):
                with pytest.raises(gpushard.CorruptShardError):
                    gpushard.open_array(place)[...]
    else:

        def cycle(n: int) -> None:
            open_read_and_close(place, n)

    # Pools start their threads when first needed, and never more than so many.
    pools = usable_cpu_count() + LocalStore(place).costs.concurrency
    assert_nothing_leaks(cycle, N_CYCLES, pools)


def assert_nothing_leaks(
    cycle: Callable[[int], None], n_cycles: int, most_threads: int, n_handles_kept=0
) -> None:
    cycle(min(100, n_cycles // 2))
    gc.collect()
    handles, memory, threads = n_handles(), resident_nbytes(), threading.active_count()
    cycle(n_cycles)
    gc.collect()
    assert n_handles() <= handles + n_handles_kept
    assert threading.active_count() <= threads + most_threads
    # Allocators and caches keep some; what leaks 1 KiB a cycle would show in 10,000.
    assert resident_nbytes() - memory < 3 * 2**20 + 200 * n_cycles


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux tells")
@pytest.mark.parametrize("kind", ["zip", "device"])
def test_opening_zip_files_and_devices_leaks_neither_memory_nor_handles(tmp_path, kind):
    place = write_values(tmp_path / "a")
    packed = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", place))
    # The compiled loops are loaded once so much was read, and are no leak.
    options = Options(compile_nbytes=2**62)

    def cycle(n: int) -> None:
        for _ in range(n):
            if kind == "zip":
                a = gpushard.open_array(packed, options=options)
                assert np.array_equal(a[_PIECE], VALUES[_PIECE])
            else:  # a new one each time: the emulated one logs what it was asked
                device: Any = EmulatedDevice(*emulated(), seed=5)
                on_device = Options(placement="device")
                a = gpushard.open_array(place, device=device, options=on_device)
                assert np.array_equal(a[_PIECE].get(), VALUES[_PIECE])

    n_cycles = N_CYCLES if kind == "zip" else N_CYCLES // 5
    assert_nothing_leaks(cycle, n_cycles, usable_cpu_count() + 32)


@pytest.mark.network
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux tells")
def test_opening_over_http_keeps_a_bounded_number_of_connections(tmp_path):
    with RangeServer(write_values(tmp_path / "a")) as server:
        open_read_and_close(server.url, 5)
        handles = n_handles()
        open_read_and_close(server.url, 60)
        gc.collect()
        # A connection of each end that is not closed yet may remain of a few stores.
        assert n_handles() < handles + 40


SERVES = """
import sys, time
from pathlib import Path
from range_server import RangeServer
with RangeServer(Path(sys.argv[1])) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""


@pytest.mark.network
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux tells")
def test_opening_over_http_leaks_neither_memory_nor_handles(tmp_path):
    """The server is another process, whose memory is not ours."""
    place = write_values(tmp_path / "a")
    paths = os.pathsep.join([str(TESTS), *sys.path])
    server = subprocess.Popen(
        [sys.executable, "-c", SERVES, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    with server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        # A connection of a few stores may not be closed yet.
        assert_nothing_leaks(lambda n: open_and_read(url, n), N_CYCLES // 5, 32, 10)
        server.communicate()


def open_and_read(place: Any, n_cycles: int) -> None:
    for _ in range(n_cycles):
        assert np.array_equal(gpushard.open_array(place)[_PIECE], VALUES[_PIECE])

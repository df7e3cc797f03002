"""One array read from threads and processes, while a writer replaces its shards."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import ZstdCodec
from zarr.storage import MemoryStore, ZipStore

import gpushard
from damaged_arrays import WAYS, on_host, opened
from gpushard import Options
from range_server import RangeServer
from zarr_oracle import assert_same_bits

VALUES = np.arange(128 * 64, dtype="i4").reshape(128, 64)


def stored(place: Any, values=VALUES, compressors: Any = "auto") -> Any:
    z = zarr.create_array(
        place,
        shape=values.shape,
        chunks=(8, 16),
        shards=(32, 32),
        dtype=values.dtype,
        compressors=compressors,
    )
    z[...] = values
    return place


def in_threads(work: Callable[[int], None], n: int = 8) -> None:
    """Run work(0) to work(n - 1) at once; raises the first error of any."""
    start = threading.Barrier(n)

    def begin(k: int) -> None:
        start.wait()
        work(k)

    with ThreadPoolExecutor(n) as pool:
        for future in [pool.submit(begin, k) for k in range(n)]:
            future.result()


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(index_cache_nbytes=1),
        Options(file_handles=1),
        Options(threads=1),
    ],
    ids=["default", "no index cache", "one handle", "one thread"],
)
def test_eight_threads_read_one_array(tmp_path, options):
    a = gpushard.open_array(stored(tmp_path / "a"), options=options)

    def read(k: int) -> None:
        rng = np.random.default_rng(k)
        for _ in range(20):
            i, j = rng.integers(0, 128), rng.integers(0, 64)
            assert a[int(i), int(j)] == VALUES[i, j]
            assert np.array_equal(a[i : i + 20, ::-1], VALUES[i : i + 20, ::-1])
            rows = rng.integers(0, 128, 9)
            assert np.array_equal(a.oindex[rows], VALUES[rows])
        assert np.array_equal(a[...], VALUES)

    in_threads(read)


def test_eight_threads_read_one_array_in_memory():
    a = gpushard.open_array(stored(MemoryStore()))
    in_threads(lambda k: assert_same_bits(a[k::8], VALUES[k::8]))


VERSIONS = 6


def version(k: int) -> np.ndarray:
    return np.full((128, 64), 1000 + k, "i4")


def shard_files(place: Path) -> list[Path]:
    return sorted(path.relative_to(place) for path in place.glob("c/*/*"))


@pytest.mark.parametrize("compressors", [None, ZstdCodec()], ids=["raw", "zstd"])
@pytest.mark.parametrize("way", WAYS)
def test_a_read_of_a_shard_that_is_replaced_is_of_one_version(
    tmp_path, compressors, way
):
    for k in range(VERSIONS):
        stored(tmp_path / f"v{k}", version(k), compressors)
    place = tmp_path / "a"
    shutil.copytree(tmp_path / "v0", place)
    a = opened(place, way)
    done = threading.Event()
    seen: set[int] = set()
    n_changed = [0]

    def write() -> None:
        for n in range(4000):
            if n >= 16 and len(seen) > 1:  # readers had their turn
                break
            source = tmp_path / f"v{n % VERSIONS}"
            for file in shard_files(source):
                shutil.copyfile(source / file, place / "next")
                os.replace(place / "next", place / file)
        done.set()

    def read(k: int) -> None:
        if k == 0:
            write()
            return
        rng = np.random.default_rng(k)
        while not done.is_set():
            i, j = 32 * int(rng.integers(4)), 32 * int(rng.integers(2))
            key = (
                np.s_[i : i + 32, j : j + 32]
                if k % 2
                else np.s_[i + 3 : i + 9, j : j + 20]
            )
            try:
                got = on_host(a[key])
            except gpushard.ObjectChangedError:
                n_changed[0] += 1
                continue
            values = np.unique(got)
            assert len(values) == 1, f"a mixture of {values}"
            seen.update(values.tolist())

    in_threads(read, 4)
    assert seen <= {1000 + k for k in range(VERSIONS)}
    assert len(seen) > 1


@pytest.mark.network
@pytest.mark.parametrize("etags", ["strong", "weak", "date"])
@pytest.mark.parametrize("way", WAYS)
def test_a_shard_replaced_between_its_index_and_its_payload_is_read_again(
    tmp_path, way, etags
):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    place = stored(tmp_path / "a", version(0))
    for file in shard_files(stored(tmp_path / "b", version(1))):
        os.utime(tmp_path / "b" / file, (1e9, 1e9))
    with RangeServer(place, etags=etags) as server:
        a = opened(server.url, way)
        # Its index is known from now on, if its version is: else it is asked for first.
        assert (on_host(a[0:8, 0:16]) == 1000).all()
        server.requests.clear()
        n_before = 0 if etags == "strong" else 1

        def replace(method: str, key: str) -> None:
            is_there = (tmp_path / "b" / key).exists()
            if is_there and server.count(key) == n_before:
                os.replace(tmp_path / "b" / key, place / key)

        server.before_answer = replace
        assert (on_host(a[3:12, 0:10]) == 1001).all()
        assert server.count("c/0/0") == n_before + 3


@pytest.mark.network
@pytest.mark.parametrize("way", WAYS)
def test_a_writer_that_never_rests_ends_in_an_error_of_ours(tmp_path, way):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    place = stored(tmp_path / "a", version(0))
    with RangeServer(place) as server:
        a = opened(server.url, way)
        a[0:8, 0:16]

        def touch(method: str, key: str) -> None:
            shutil.copyfile(place / key, place / "next")
            os.replace(place / "next", place / key)

        server.before_answer = touch
        with pytest.raises(gpushard.ObjectChangedError) as caught:
            a[3:12, 0:10]
        assert caught.value.shard_key == "c/0/0"
        server.before_answer = None
        assert (on_host(a[3:12, 0:10]) == 1000).all()


# Processes


def read_row(a: gpushard.Array, row: int) -> np.ndarray:
    return a[row]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_read_a_pickled_array(tmp_path, method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this platform cannot {method}")
    a = gpushard.open_array(stored(tmp_path / "a"))
    assert_same_bits(
        a[...], VALUES
    )  # handles, caches and threads exist before the fork
    context = multiprocessing.get_context(method)
    with warnings.catch_warnings():
        # Python warns of forks of a process that has threads; that is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        with context.Pool(2) as pool:
            rows = pool.starmap(read_row, [(a, row) for row in range(0, 128, 9)])
    assert_same_bits(np.stack(rows), VALUES[::9])


def test_a_forked_process_reads_the_array_it_inherits(tmp_path):
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this platform cannot fork")
    place = stored(tmp_path / "a")
    a = gpushard.open_array(place, options=Options(threads=4))
    assert_same_bits(a[...], VALUES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        ok = np.array_equal(a[...], VALUES) and a[5, 6] == VALUES[5, 6]
        os._exit(0 if ok else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert_same_bits(a[...], VALUES)


# Pickling by address


def again(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def test_an_array_pickles_as_its_address(tmp_path):
    place = stored(tmp_path / "g" / "a")
    options = Options(threads=3, small_read_chunks=2)
    a = gpushard.open_array(tmp_path / "g", "a", options=options)
    a[...]
    data = pickle.dumps(a)
    assert len(data) < 4000  # no indexes and no elements travel
    b = pickle.loads(data)
    assert (b.path, b.shape, b.device) == ("a", a.shape, "cpu")
    assert b.source.options == options.resolved()
    assert_same_bits(b[3:50:7], VALUES[3:50:7])
    shutil.rmtree(place)
    with pytest.raises(gpushard.NotFoundError):
        pickle.loads(data)


@pytest.mark.parametrize("kind", ["blocks", "oindex", "vindex"])
def test_the_ways_of_indexing_an_array_pickle(kind, tmp_path):
    z = zarr.create_array(tmp_path / "a", shape=(8,), chunks=(2,), dtype="i4")
    z[...] = np.arange(8)
    there = pickle.loads(
        pickle.dumps(getattr(gpushard.open_array(tmp_path / "a"), kind))
    )
    assert list(there[[1]] if kind != "blocks" else there[1:2]) == (
        [1] if kind != "blocks" else [2, 3]
    )


def test_arrays_in_memory_and_zip_files_pickle(tmp_path):
    memory = again(gpushard.open_array(stored(MemoryStore())))
    assert_same_bits(memory[...], VALUES)
    with ZipStore(tmp_path / "a.zip", mode="w") as store:
        stored(store)
    zipped = again(gpushard.open_array(tmp_path / "a.zip"))
    assert_same_bits(zipped[5:9], VALUES[5:9])


@pytest.mark.network
def test_an_array_behind_a_server_pickles(tmp_path):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    stored(tmp_path / "a")
    with RangeServer(tmp_path) as server:
        a = again(gpushard.open_array(f"{server.url}/a"))
        assert_same_bits(a[5:9], VALUES[5:9])


def test_concatenations_pickle(tmp_path):
    a = gpushard.open_array(stored(tmp_path / "a"))
    c = again(gpushard.concat([a, a], axis=1))
    assert_same_bits(c[...], np.concatenate([VALUES, VALUES], 1))


def test_errors_of_a_read_pickle_with_their_fields(tmp_path):
    place = stored(tmp_path / "a")
    (place / "c/0/1").write_bytes(b"short")
    with pytest.raises(gpushard.CorruptShardError) as caught:
        gpushard.open_array(place)[...]
    error = again(caught.value)
    assert type(error) is gpushard.CorruptShardError
    assert str(error) == str(caught.value)
    assert (error.shard_key, error.hint) == ("c/0/1", caught.value.hint)

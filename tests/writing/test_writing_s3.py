"""Writers on one shard of an S3 bucket lose nothing, or are refused; moto's server."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest

import gpushard
from gpushard.converting.mark import NAME
from s3_server import make_bucket, s3_server

obstore = pytest.importorskip("obstore", reason="the extra `remote` is not installed")

pytestmark = pytest.mark.network

URL = "s3://bucket/a.zarr"
# Four inner chunks of 16 bytes each, and a crc32c.
INDEX_NBYTES = 68


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def options(endpoint, monkeypatch) -> dict[str, str]:
    return make_bucket(endpoint, monkeypatch)


@pytest.fixture
def array(options):
    """An array of one shard, all 1, in a bucket of its own."""
    a = gpushard.create_array(
        URL,
        shape=(8, 8),
        dtype="i4",
        chunks=(4, 4),
        shards=(8, 8),
        overwrite=True,
        device="cpu",
        storage_options=options,
    )
    a[...] = 1
    return a


def opened(options):
    return gpushard.open_array(URL, device="cpu", storage_options=options)


class Puts:
    """Every put of this process, with what happens just before the first ones."""

    def __init__(self, monkeypatch, *before) -> None:
        self.modes = []
        self._before = list(before)
        self._real = obstore.put
        monkeypatch.setattr(obstore, "put", self)

    def __call__(self, store, key, data, **named):
        if "gpushard-" in key:  # asks the server what it can do
            return self._real(store, key, data, **named)
        self.modes.append(named.get("mode"))
        if self._before:
            self._before.pop(0)()
        return self._real(store, key, data, **named)


def test_a_partial_write_names_the_version_that_it_read(array, options, monkeypatch):
    puts = Puts(monkeypatch)
    opened(options)[0, 0] = 2
    (mode,) = puts.modes
    assert mode["e_tag"].startswith('"')
    assert array[:2, 0].tolist() == [2, 1]


def test_a_partial_write_in_between_is_not_lost(array, options, monkeypatch):
    other = opened(options)

    def write() -> None:
        other[0, 0] = 3

    puts = Puts(monkeypatch, write)
    array[7, 7] = 2
    assert len(puts.modes) == 3, "the first is refused, and done again"
    assert (array[0, 0], array[7, 7], array[1, 1]) == (3, 2, 1)


def test_a_whole_shard_in_between_is_not_lost(array, options, monkeypatch):
    other = opened(options)

    def write() -> None:
        other[...] = np.arange(64).reshape(8, 8) + 5

    Puts(monkeypatch, write)
    array[7, 7] = 2
    assert (array[0, 0], array[7, 6], array[7, 7]) == (5, 67, 2)


def test_a_shard_deleted_in_between_is_written_anew(array, options, monkeypatch):
    other = opened(options)

    def write() -> None:
        other[...] = 0

    Puts(monkeypatch, write)
    array[7, 7] = 2
    assert (array[0, 0], array[7, 7]) == (0, 2)


def test_two_first_writes_of_a_shard_are_both_kept(array, options, monkeypatch):
    array[...] = 0
    other = opened(options)

    def write() -> None:
        other[0, 0] = 3

    puts = Puts(monkeypatch, write)
    array[7, 7] = 2
    assert puts.modes[0] == "create"
    assert (array[0, 0], array[7, 7]) == (3, 2)


def test_a_writer_that_never_gets_its_turn_says_so(array, options, monkeypatch):
    monkeypatch.setattr("gpushard.stores.writers._MAX_ATTEMPTS", 3)
    store = array.source.store.object_store
    stored = bytes(obstore.get(store, "c/0/0").bytes())
    real, n_attempts = obstore.put, []

    def put(store, key, data, **named):
        if "gpushard-" not in key:
            n_attempts.append(key)
            gap = bytes(len(n_attempts))  # unused space: a valid shard, another version
            real(store, key, stored[:-INDEX_NBYTES] + gap + stored[-INDEX_NBYTES:])
        return real(store, key, data, **named)

    monkeypatch.setattr(obstore, "put", put)
    with pytest.raises(gpushard.StoreError, match="other writers") as caught:
        array[7, 7] = 2
    assert caught.value.shard_key == "c/0/0"
    assert len(n_attempts) == 3
    assert np.all(opened(options)[...] == 1)


def test_a_server_that_forgets_the_condition_takes_whole_shards_only(
    array, options, monkeypatch
):
    real = obstore.put

    def put(store, key, data, mode="overwrite", **named):
        return real(store, key, data, mode="overwrite", **named)

    monkeypatch.setattr(obstore, "put", put)
    other = opened(options)
    with pytest.raises(gpushard.UnsupportedError, match="ignores the condition"):
        other[0, 0] = 2
    with pytest.raises(gpushard.UnsupportedError, match="whole shards"):
        other[0, 0] = 2
    other[...] = 4
    assert np.all(other[...] == 4)
    monkeypatch.undo()
    assert keys(array) == ["c/0/0", "zarr.json"]


def keys(array) -> list[str]:
    store = array.source.store.object_store
    return sorted(item["path"] for batch in obstore.list(store) for item in batch)


def test_the_server_is_asked_once_and_nothing_of_it_is_left(
    array, options, monkeypatch
):
    other, asked, real = opened(options), [], obstore.put

    def put(store, key, data, **named):
        asked.append(key)
        return real(store, key, data, **named)

    monkeypatch.setattr(obstore, "put", put)
    for i in range(3):
        other[i, i] = 2
    assert asked.count("c/0/0") == 3
    assert len(asked) == 3 + 3
    assert keys(array) == ["c/0/0", "zarr.json"]


def test_both_conditions_are_tried_at_the_same_time(array, options, monkeypatch):
    """A first write to a part of a shard waits for them, over a network twice."""
    both = threading.Barrier(2)
    put = obstore.put

    def put_beside(*arguments, mode="overwrite", **settings):
        key = arguments[1]
        if ".gpushard-" in key and mode != "overwrite":
            both.wait(10)
        return put(*arguments, mode=mode, **settings)

    monkeypatch.setattr(obstore, "put", put_beside)
    a = opened(options)
    a[0, 0] = 7
    assert a[0, 0] == 7


def test_threads_on_one_shard_lose_nothing(array, options, monkeypatch):
    # A bucket decides and puts in one step; moto does so in two.
    from moto.s3.responses import S3Response

    turns, real = threading.Lock(), S3Response.put_object

    def put_object(self):
        with turns:
            return real(self)

    monkeypatch.setattr(S3Response, "put_object", put_object)

    def write(me: int) -> None:
        a = opened(options)
        for k in range(8):
            a[me, k] = 10 * me + k

    threads = [threading.Thread(target=write, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    want = np.ones((8, 8), "i4")
    want[:4] = 10 * np.arange(4)[:, None] + np.arange(8)
    np.testing.assert_array_equal(opened(options)[...], want)


def test_a_shard_that_is_put_in_parts_keeps_its_condition(options, monkeypatch):
    a = gpushard.create_array(
        URL,
        shape=1 << 21,
        dtype="i4",
        chunks=1 << 18,
        shards=1 << 21,
        compressors=None,
        overwrite=True,
        device="cpu",
        storage_options=options,
    )
    a[...] = 1  # 8 MiB, above what obstore puts in one part
    other = opened(options)

    def write() -> None:
        other[0] = 3

    puts = Puts(monkeypatch, write)
    a[-1] = 2
    assert len(puts.modes) == 3
    assert (a[0], a[1], a[-1]) == (3, 1, 2)


def test_a_conversion_to_a_bucket_goes_on_where_it_was(options, tmp_path):
    src = gpushard.create_array(
        tmp_path / "src", shape=(16, 16), dtype="i4", chunks=(4, 4)
    )
    src[...] = np.arange(256).reshape(16, 16)

    def stop(done: int, total: int) -> None:
        if 2 * done >= total:
            raise InterruptedError

    target = {"shards": 4, "chunks": 2, "dst_storage_options": options}
    url = "s3://bucket/converted.zarr"
    with pytest.raises(InterruptedError):
        gpushard.convert(src, url, progress=stop, num_threads=1, **target)
    report = gpushard.convert(src, url, verify=True, **target).arrays[""]
    assert (report.n_written, report.n_resumed) == (8, 8)
    a = gpushard.open_array(url, device="cpu", storage_options=options)
    np.testing.assert_array_equal(a[...], src[...])
    assert NAME not in keys(a)


def test_a_bucket_that_is_gone_has_not_taken_a_shard(options):
    place = f"{options['endpoint_url']}/gone"
    urllib.request.urlopen(urllib.request.Request(place, method="PUT")).close()
    array = gpushard.create_array(
        "s3://gone/a.zarr", shape=8, dtype="i4", chunks=4, shards=8, device="cpu",
        storage_options=options,
    )  # fmt: skip
    array.source.store.object_store.delete(keys(array))
    urllib.request.urlopen(urllib.request.Request(place, method="DELETE")).close()
    with pytest.raises(gpushard.StoreError, match="cannot write 'c/0'"):
        array[...] = 1
    # Nor is what was in it missing, which would read as the fill value.
    with pytest.raises(gpushard.StoreError, match=r"'c/0'.*no such bucket"):
        array[...]


def test_a_put_that_ends_in_a_runtime_error_is_a_store_error(array, monkeypatch):
    def put(*_, **__):
        raise RuntimeError("the runtime is gone")

    monkeypatch.setattr(obstore, "put", put)
    with pytest.raises(gpushard.StoreError, match="cannot write 'c/0/0'"):
        array[...] = 2


def test_a_chunk_that_becomes_fill_value_in_parts_stays_as_an_object():
    """Object stores delete nothing on a condition."""
    objects = obstore.store.MemoryStore()
    how = {"shape": (4,), "chunks": (4,), "dtype": "i4", "compressors": None}
    a = gpushard.create_array(objects, **how, device="cpu")
    a[...] = 1
    a[:2] = a[2:] = 0
    assert bytes(obstore.get(objects, "c/0").bytes()) == bytes(16)
    assert a[...].tolist() == [0] * 4

"""Byte ranges of zip files, and stores that are read without an event loop."""

from __future__ import annotations

import asyncio
import io
import os
import struct
import time
import warnings
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore, ZipStore

import gpushard
from gpushard.errors import StoreError
from gpushard.stores.base import ByteRequest
from gpushard.stores.zarr import store as zarr_store
from gpushard.stores.zarr import zip_members
from gpushard.stores.zarr.loop import run_without_loop
from gpushard.stores.zarr.store import ZarrStore

DATA = np.random.default_rng(5).integers(0, 256, 5000).astype(np.uint8).tobytes()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A zip file with objects stored in all ways, behind other bytes."""
    place = tmp_path_factory.mktemp("zip") / "a.zip"
    place.write_bytes(b"#!/bin/sh\n")
    with zipfile.ZipFile(place, "a") as archive:
        archive.writestr("plain", DATA)
        archive.writestr("döppelt/c", DATA)
        archive.writestr("deflated", DATA, zipfile.ZIP_DEFLATED)
        archive.writestr("empty", b"")
        extra = zipfile.ZipInfo("extra")
        extra.extra = struct.pack("<HH4s", 0x9999, 4, b"abcd")
        archive.writestr(extra, DATA)
        with archive.open("large", "w", force_zip64=True) as file:
            file.write(DATA)
        archive.comment = b"the end"
    return place


KEYS = ["plain", "döppelt/c", "deflated", "extra", "large"]
RANGES = st.one_of(
    st.builds(lambda n: ByteRequest("", -n), st.integers(1, 6000)),
    st.builds(lambda n: ByteRequest("", n), st.integers(1, 6000)),
    st.builds(lambda n: ByteRequest("", max_nbytes=n), st.integers(1, 6000)),
    st.builds(
        lambda start, n: ByteRequest("", start, start + n),
        st.integers(0, 5200),
        st.integers(0, 900),
    ),
)


@given(st.lists(st.tuples(st.sampled_from(KEYS), RANGES), min_size=1, max_size=5))
def test_ranges_are_those_of_the_object(place, drawn):
    store = ZarrStore(ZipStore(place, mode="r"))
    requests = [request._replace(key=key) for key, request in drawn]
    for request, found in zip(requests, store.read(requests), strict=True):
        start, stop = request.within(len(DATA))
        assert found.data.tobytes() == DATA[start:stop]
    store.zarr_store.close()


@pytest.mark.parametrize("key", ["plain", "large"])
def test_ranges_end_with_their_object(place, key):
    store = ZarrStore(ZipStore(place, mode="r"))
    requests = [
        ByteRequest(key, 4990, 5010),
        ByteRequest(key, max_nbytes=5010),
        ByteRequest(key, 5010, 5020),
    ]
    found = [answer.data.tobytes() for answer in store.read(requests)]
    assert found == [DATA[4990:], DATA, b""]
    store.zarr_store.close()


def test_empty_and_missing_objects_are_told_apart(place):
    store = ZarrStore(ZipStore(place, mode="r"))
    empty, missing = store.read([ByteRequest("empty", -8), ByteRequest("no", -8)])
    assert missing is None
    assert empty.data.size == 0
    store.zarr_store.close()


def test_ranges_are_read_where_the_object_lies(place, monkeypatch):
    def refuse(*_):
        raise AssertionError("zipfile read an object")

    store = ZarrStore(ZipStore(place, mode="r"))
    monkeypatch.setattr(zipfile.ZipExtFile, "read", refuse)
    (found,) = store.read([ByteRequest("large", 10, 20)])
    assert found.data.tobytes() == DATA[10:20]
    with pytest.raises(StoreError):
        store.read([ByteRequest("deflated", 10, 20)])
    store.zarr_store.close()


def test_the_header_of_an_object_is_looked_at_once(place, monkeypatch):
    store = ZarrStore(ZipStore(place, mode="r"))
    looked_at, look = [], zipfile.ZipFile.open

    def opened(archive, info, *how):
        looked_at.append(info.filename)
        return look(archive, info, *how)

    monkeypatch.setattr(zipfile.ZipFile, "open", opened)
    for _ in range(2):
        store.read([ByteRequest(key, 10, 20) for key in ("large", "plain")])
    assert looked_at == ["large", "plain"]
    store.zarr_store.close()


def test_a_store_of_an_open_file_is_read_by_zarr(place):
    try:
        zip_store = ZipStore(io.BytesIO(place.read_bytes()), mode="r")
    except AssertionError:
        pytest.skip("this zarr takes no open files")
    store = ZarrStore(zip_store)
    (found,) = store.read([ByteRequest("plain", 10, 20)])
    assert found.data.tobytes() == DATA[10:20]


def test_what_is_being_written_is_read_too(tmp_path):
    zip_store = ZipStore(tmp_path / "new.zip", mode="w")
    values = np.arange(64, dtype="i4").reshape(8, 8)
    about = {"shape": (8, 8), "dtype": "i4", "chunks": (2, 8), "shards": (4, 8)}
    zarr.create_array(zip_store, **about)[...] = values
    a = gpushard.open_array(zip_store)
    assert np.array_equal(a[1:7], values[1:7])
    with warnings.catch_warnings(action="ignore"):  # the name is there twice by then
        zarr.open_array(zip_store)[...] = values[::-1]
    assert np.array_equal(a[1:7], values[::-1][1:7])
    values = values[::-1]
    zip_store.close()
    again = ZipStore(tmp_path / "new.zip", mode="r")
    a = gpushard.open_array(again)
    assert np.array_equal(a[1:7], values[1:7])
    again.close()
    again._sync_open()
    assert np.array_equal(a[1:7], values[1:7])
    again.close()


@pytest.mark.parametrize("harm", ["moved", "encrypted"])
def test_a_zip_file_that_contradicts_itself_is_an_error(tmp_path, harm):
    place = tmp_path / "a.zip"
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("one", DATA)
        archive.writestr("two", DATA)
    store = ZarrStore(ZipStore(place, mode="r"))
    store.get("one")
    info = store.zarr_store._zf.NameToInfo["two"]
    if harm == "moved":
        info.header_offset = 0
    else:
        info.flag_bits |= 1
    with pytest.raises(StoreError, match="two"):
        store.read([ByteRequest("two", 2900, 3100)])
    store.zarr_store.close()


def test_a_zip_file_that_becomes_shorter_is_an_error(tmp_path):
    place, values = tmp_path / "a.zip", np.arange(4096)
    with ZipStore(place, mode="w") as store:
        about = {"chunks": (64,), "shards": (4096,), "compressors": None}
        # With `data`, zarr 3.1 writes a shard once for each inner chunk.
        z = zarr.create_array(store, shape=(4096,), dtype=values.dtype, **about)
        z[...] = values
    a = gpushard.open_array(place)
    assert np.array_equal(a[3000:3900], values[3000:3900])
    os.truncate(place, 25_000)
    with pytest.raises(gpushard.GpushardError):
        a[3000:3900]


def test_a_store_that_is_closed_during_a_read_gives_bytes_of_no_other_file(
    place, tmp_path, monkeypatch
):
    (tmp_path / "other").write_bytes(bytes(20_000))
    store = ZarrStore(ZipStore(place, mode="r"))
    store.get("plain")
    read = os.preadv

    def close_and_read(fd, *where):
        monkeypatch.undo()
        with (tmp_path / "other").open("rb") as other:
            store.zarr_store.close()
            os.dup2(other.fileno(), fd)
        try:
            return read(fd, *where)
        finally:
            os.close(fd)

    monkeypatch.setattr(os, "preadv", close_and_read)
    (found,) = store.read([ByteRequest("plain", 10, 20)])
    assert found.data.tobytes() == DATA[10:20]
    store.zarr_store.close()


def test_the_place_of_an_object_is_not_known_in_part(place, monkeypatch):
    store = ZarrStore(ZipStore(place, mode="r"))
    store.get("plain")
    header, beside = zip_members._HEADER, []

    class Header:
        size = header.size

        def unpack(self, data):
            """As another thread reads the object, too."""
            monkeypatch.undo()
            beside.extend(store.read([ByteRequest("extra", 10, 20)]))
            return header.unpack(data)

    monkeypatch.setattr(zip_members, "_HEADER", Header())
    for found in [*store.read([ByteRequest("extra", 10, 20)]), *beside]:
        assert found.data.tobytes() == DATA[10:20]
    assert len(beside) == 1
    store.zarr_store.close()


def test_threads_that_begin_at_once_open_a_store_once(monkeypatch):
    opened = MemoryStore._open

    async def open_slowly(self):
        time.sleep(0.02)
        await opened(self)

    monkeypatch.setattr(MemoryStore, "_open", open_slowly)
    store = ZarrStore(MemoryStore())
    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(store.get, ["k"] * 4)] == [None] * 4


class Waiting(MemoryStore):
    """Waits before it answers."""

    async def get(self, *args, **kwargs):
        await asyncio.sleep(0)
        return await super().get(*args, **kwargs)


def test_stores_that_wait_for_nothing_need_no_event_loop(place, monkeypatch):
    def refuse(*_):
        raise AssertionError("an event loop was used")

    values = np.arange(12).reshape(3, 4)
    stores = [MemoryStore(), Waiting()]
    for store in stores:
        about = {"shape": (3, 4), "dtype": values.dtype, "chunks": (1, 4)}
        zarr.create_array(store, shards=(3, 4), **about)[...] = values
    monkeypatch.setattr(zarr_store, "run_in_loop", refuse)
    assert np.array_equal(gpushard.open_array(stores[0])[1:], values[1:])
    zipped = ZipStore(place, mode="r")
    zipped._sync_open()
    assert ZarrStore(zipped).get("deflated") == DATA
    zipped.close()
    with pytest.raises(AssertionError, match="event loop"):
        gpushard.open_array(stores[1])
    monkeypatch.undo()
    assert np.array_equal(gpushard.open_array(stores[1])[1:], values[1:])


def test_a_coroutine_that_waits_has_no_result_here():
    async def wait():
        await asyncio.sleep(0)
        return 3

    async def answer():
        return 3

    assert run_without_loop(answer) == 3
    assert run_without_loop(wait) is None


def test_a_release_of_zarr_may_let_its_store_wait(monkeypatch):
    usual = MemoryStore.get

    async def get(*args, **kwargs):
        await asyncio.sleep(0)
        return await usual(*args, **kwargs)

    values, store = np.arange(3), MemoryStore()
    zarr.create_array(store, data=values)
    monkeypatch.setattr(MemoryStore, "get", get)
    assert np.array_equal(gpushard.open_array(store)[...], values)


def test_places_are_those_of_the_file_that_is_open(tmp_path):
    place = tmp_path / "a.zip"
    store = ZarrStore(ZipStore(place, mode="r"))
    for n_before in (3, 300):
        with zipfile.ZipFile(place, "w") as archive:
            archive.writestr("before", bytes(n_before))
            archive.writestr("c", DATA)
        (found,) = store.read([ByteRequest("c", 10, 20)])
        assert found.data.tobytes() == DATA[10:20]
        store.zarr_store.close()


def test_compressed_objects_of_their_own_size_are_decompressed(tmp_path):
    def deflated(data):
        coder = zlib.compressobj(wbits=-15)
        return coder.compress(data) + coder.flush()

    data = next(
        data
        for data in (DATA[:400] + bytes(n) for n in range(99))
        if len(deflated(data)) == len(data)
    )
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("c", data, zipfile.ZIP_DEFLATED)
        info = archive.getinfo("c")
    assert info.compress_size == info.file_size
    store = ZarrStore(ZipStore(tmp_path / "a.zip", mode="r"))
    (found,) = store.read([ByteRequest("c", 10, 20)])
    assert found.data.tobytes() == data[10:20]
    store.zarr_store.close()

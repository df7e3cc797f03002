"""Where memory is short, large answers of zarr stores come in small pieces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import FsspecStore, MemoryStore, WrapperStore

import gpushard
from asked_store import put
from gpushard import Options
from gpushard.errors import LimitError, StoreError
from gpushard.fetching import fetch
from gpushard.memory import chunk_room
from gpushard.options import KIB, MIB
from gpushard.stores.base import ByteRequest
from gpushard.stores.zarr.store import ZarrStore
from hostile_shards import ZSTD
from lone_chunks import N, let_little_count, put_chunk, zstd
from spec_shards import LITTLE, document, sharding
from stored_object import BODY, RANGES, replace_file, write_object

P = 50


class Noting(MemoryStore):
    """A store that notes how much it is asked for, and how often at once."""

    def __init__(self, objects: dict[str, bytes], failing: Container[int] = ()) -> None:
        make = default_buffer_prototype().buffer.from_bytes
        super().__init__({key: make(data) for key, data in objects.items()})
        self.sizes: list[int | None] = []
        self.n_running = self.most_at_once = 0
        self.failing = failing

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        start, end = (getattr(byte_range, name, None) for name in ("start", "end"))
        n_before = len(self.sizes)
        self.sizes.append(None if start is None else end - start)
        self.n_running += 1
        self.most_at_once = max(self.most_at_once, self.n_running)
        try:
            await asyncio.sleep(0)
            if n_before in self.failing:
                raise RuntimeError("boom")
            return await super().get(key, prototype, byte_range)
        finally:
            await asyncio.sleep(0.001)
            self.n_running -= 1

    async def getsize(self, key: str) -> int:
        return len(self._store_dict[key])


class Untelling(Noting):
    """A store that would fetch an object whole to tell its size."""

    getsize = MemoryStore.getsize


def far(store: MemoryStore) -> Any:
    """The store, as if it were behind a network."""
    costs = replace(ZarrStore(store).costs, prefers_whole_objects=True)
    return ZarrStore(store, costs=costs)


@pytest.mark.parametrize(("asked", "expected"), RANGES)
@pytest.mark.parametrize("has_memory", [True, False])
def test_pieces_make_up_what_was_asked_for(asked, expected, has_memory):
    store = Noting({"k": BODY})
    into = np.zeros(2 * len(BODY), np.uint8) if has_memory else None
    request = ByteRequest("k", *asked, into=into, piece_nbytes=P)
    (answer,) = far(store).read([request])
    assert answer is not None
    assert answer.data.tobytes() == expected
    if len(expected) > P:
        assert max(store.sizes) <= P  # type: ignore[type-var]  # no whole objects
        assert store.most_at_once == 2
        assert into is None or np.shares_memory(answer.data, into)
    if asked == ():
        assert answer.object_nbytes == len(BODY)


def test_an_object_is_cut_off_where_no_more_is_wanted():
    request = ByteRequest("k", max_nbytes=333, piece_nbytes=P)
    (answer,) = far(Noting({"k": BODY})).read([request])
    assert answer is not None
    assert answer.data.tobytes() == BODY[:333]


@pytest.mark.parametrize("asked", [(0, 400), (), (-400,)])
def test_pieces_of_no_object_are_none(asked):
    assert far(Noting({})).read([ByteRequest("k", *asked, piece_nbytes=P)]) == [None]


@pytest.mark.parametrize("nbytes", [None, "1000", 1000.0, -1])
@pytest.mark.parametrize("asked", [(), (-400,), (0, 1000)])
def test_what_is_no_size_tells_nothing(asked, nbytes):
    class Mistelling(Noting):
        async def getsize(self, key: str) -> Any:
            return nbytes

    request = ByteRequest("k", *asked, piece_nbytes=P)
    (answer,) = far(Mistelling({"k": BODY})).read([request])
    assert answer is not None
    assert answer.data.tobytes() == of(BODY, asked)


@pytest.mark.parametrize("failing", [{3}, {0}, {0, 1}])
def test_a_piece_that_fails_is_asked_for_with_all_others_at_once(failing):
    store = Noting({"k": BODY}, failing)
    (answer,) = far(store).read([ByteRequest("k", 0, 1000, piece_nbytes=P)])
    assert answer is not None
    assert answer.data.tobytes() == BODY[:1000]
    assert store.n_running == 0
    assert len(store.sizes) <= 6
    assert store.sizes[-1] == 1000


def test_a_store_that_goes_on_failing_is_the_error():
    store = Noting({"k": BODY}, failing=range(3, 100))
    with pytest.raises(StoreError, match="boom"):
        far(store).read([ByteRequest("k", 0, 1000, piece_nbytes=P)])
    assert store.n_running == 0


ASKED = [(), (-400,), (0, 1000), (0, 3000)]


def of(body: bytes, asked: tuple[int, ...]) -> bytes:
    """What one request for `asked` gets of an object."""
    start, stop = [*asked, *(0, None)[len(asked) :]]
    return body[start:stop]


class Changing(Noting):
    """A store whose object is another one after so many answers."""

    def __init__(self, after: int, body: bytes | None) -> None:
        super().__init__({"k": BODY})
        self.n_until, self.body = after, body

    async def get(self, *args: Any, **kwargs: Any) -> Any:
        found = await super().get(*args, **kwargs)
        self.n_until -= 1
        if not self.n_until:
            del self._store_dict["k"]
        if not self.n_until and self.body is not None:
            make = default_buffer_prototype().buffer.from_bytes
            self._store_dict["k"] = make(self.body)
        return found


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("after", [1, 6, 8])
@pytest.mark.parametrize("body", [None, b"", BODY[::-1] + BODY, BODY[600::-1]])
def test_pieces_of_two_objects_are_never_joined(asked, after, body):
    """Those of another size; a store that tells only sizes cannot tell more."""
    store = Changing(after, body)
    (answer,) = far(store).read([ByteRequest("k", *asked, piece_nbytes=P)])
    if body is None:
        assert answer is None
    else:
        assert answer is not None
        assert answer.data.tobytes() == of(body, asked)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("after", [1, 6, 8])
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_file_replaced_between_pieces_is_noticed_whatever_its_size(
    tmp_path, asked, after, is_wrapped
):
    path = write_object(tmp_path) / "c" / "0"
    store, sizes = counted(tmp_path, path, after)
    store = WrapperStore(store) if is_wrapped else store
    request = ByteRequest("c/0", *asked, piece_nbytes=P)
    (answer,) = ZarrStore(store).read([request])
    assert answer is not None
    assert answer.data.tobytes() == of(BODY[::-1], asked)
    assert len(sizes) > after


def counted(root: Path, path: Path, after: int) -> tuple[Any, list[int]]:
    """fsspec's store of files; one is replaced after so many answers.

    The sizes of its answers are told, too. As some file systems do, it also tells when
    a file was last read.
    """
    store = FsspecStore.from_url(f"file://{root}", read_only=True)
    real, sizes = store.fs._cat_file, []
    real_info = store.fs._info

    async def cat_file(*args: Any, **kwargs: Any) -> bytes:
        data = await real(*args, **kwargs)
        sizes.append(len(data))
        if len(sizes) == after:
            replace_file(path, BODY[::-1])
        return data

    async def info(*args: Any, **kwargs: Any) -> dict[str, Any]:
        last_read = {"atime": len(sizes), "time": len(sizes)}
        return await real_info(*args, **kwargs) | last_read

    store.fs._cat_file, store.fs._info = cat_file, info
    return store, sizes


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_files_are_read_in_pieces_through_a_wrapper_too(tmp_path, is_wrapped):
    path = write_object(tmp_path) / "c" / "0"
    store, sizes = counted(tmp_path, path, after=0)
    store = WrapperStore(store) if is_wrapped else store
    for asked in ASKED:
        (answer,) = ZarrStore(store).read([ByteRequest("c/0", *asked, piece_nbytes=P)])
        assert answer is not None
        assert answer.data.tobytes() == of(BODY, asked)
    assert max(sizes) <= P


@pytest.mark.parametrize("nbytes", [0, 1, 333, 1023, 1025, 5000])
@pytest.mark.parametrize("asked", ASKED)
def test_a_size_from_earlier_does_not_cut_off_or_move_what_is_read(nbytes, asked):
    class Stale(Noting):
        async def getsize(self, key: str) -> int:
            return nbytes

    (answer,) = far(Stale({"k": BODY})).read([ByteRequest("k", *asked, piece_nbytes=P)])
    assert answer is not None
    assert answer.data.tobytes() == of(BODY, asked)


def test_a_store_that_ignores_ranges_is_asked_for_the_object_at_once():
    class Rangeless(Noting):
        async def get(self, *args: Any, **_: Any) -> Any:
            return await super().get(*args[:2])

    request = ByteRequest("k", max_nbytes=2000, piece_nbytes=P)
    (answer,) = far(Rangeless({"k": BODY})).read([request])
    assert answer is not None
    assert answer.data.tobytes() == BODY


def test_a_store_that_reads_on_behind_an_object_is_not_asked_for_pieces():
    class ReadingOn(Noting):
        """One by its name."""

    ReadingOn.__module__ = "virtualizarr.manifests.store"
    store = ReadingOn({"k": BODY})
    (answer,) = far(store).read([ByteRequest("k", 0, 3000, piece_nbytes=P)])
    assert answer is not None
    assert answer.data.tobytes() == BODY
    assert store.sizes == [None]


def test_pieces_of_several_ranges_come_in_their_order():
    store = Noting({"k": BODY, "l": BODY[::-1]})
    requests = [
        ByteRequest(key, start, start + 300, is_indexed=True, piece_nbytes=P)
        for start in (600, 10)
        for key in "kl"
    ]
    answers = far(store).read([*requests, ByteRequest("k", -4)])
    assert [a.data.tobytes() for a in answers if a] == [
        *[body[s : s + 300] for s in (600, 10) for body in (BODY, BODY[::-1])],
        BODY[-4:],
    ]


def test_a_store_that_tells_no_sizes_is_asked_once_for_what_has_no_known_end():
    store = Untelling({"k": BODY})
    asked = [ByteRequest("k", piece_nbytes=P), ByteRequest("k", -400, piece_nbytes=P)]
    answers = far(store).read(asked)
    assert [a.data.tobytes() for a in answers if a] == [BODY, BODY[-400:]]
    assert len(store.sizes) == 2


def test_a_store_in_this_process_answers_in_one_piece():
    store = Noting({"k": BODY})
    ZarrStore(store).read([ByteRequest("k", 0, 1000, piece_nbytes=P)])
    assert store.sizes == [1000]


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Objects of a shard with one inner chunk, and the memory that this takes."""
    let_little_count(monkeypatch)
    monkeypatch.setattr(chunk_room, "_LEAST_PIECE_NBYTES", 1)
    data = zstd(np.random.default_rng(3).bytes(N))
    place = put_chunk(tmp_path, [ZSTD], data, is_sharded=True)
    paths = [path for path in place.rglob("*") if path.is_file()]
    objects = {p.relative_to(place).as_posix(): p.read_bytes() for p in paths}
    return objects, len(data) + N


def test_an_index_comes_in_pieces_too(tmp_path, monkeypatch):
    let_little_count(monkeypatch)
    monkeypatch.setattr(chunk_room, "_LEAST_PIECE_NBYTES", 1)
    shard = sharding((16,), codecs=[LITTLE], index_codecs=[LITTLE])
    index = np.array([(16 * k, 16) for k in range(256)], "<u8").tobytes()
    place = put(tmp_path, document((4 * KIB,), (4 * KIB,), shard))
    objects = {
        "zarr.json": (place / "zarr.json").read_bytes(),
        "c/0": 4 * BODY + index,
    }
    store = Noting(objects)
    options = Options(memory_limit=16 * KIB)
    a = gpushard.open_array(far(store), device="cpu", options=options)
    store.sizes.clear()
    assert a[5:9].tobytes() == BODY[5:9]
    # One byte behind the end shows whether the object ends there.
    assert max(n or MIB for n in store.sizes) <= 64 + 1


def test_a_read_with_little_memory_asks_for_pieces(stored):
    objects, needed = stored
    limit = 2 * needed
    store = Noting(objects)
    options = Options(memory_limit=limit)
    a = gpushard.open_array(far(store), device="cpu", options=options)
    whole = a[:]
    assert whole.tobytes() == np.random.default_rng(3).bytes(N)
    assert len(store.sizes) > 64
    store.sizes.clear()
    assert np.array_equal(a[5:9], whole[5:9])
    assert max(n for n in store.sizes if n) <= limit // 256
    store.sizes.clear()
    with_room = a.read(memory_limit=MIB * needed)
    assert np.array_equal(with_room, whole)
    assert len(store.sizes) <= 2


def test_an_eighth_of_the_limit_is_left_to_the_threads_of_a_store(stored):
    objects, needed = stored
    enough = needed + (needed - 1) // 7
    for store, least in ((Noting(objects), needed), (far(Noting(objects)), enough)):
        a = gpushard.open_array(store, device="cpu")
        assert a.read(memory_limit=least).nbytes == N
        with pytest.raises(LimitError, match=rf"at most {least - 1} bytes") as told:
            a.read(memory_limit=least - 1)
        assert f"got {least} bytes" in str(told.value)


def test_objects_of_a_wrong_size_are_measured_one_at_a_time(monkeypatch):
    """Each of them may take as much as is fetched to tell its size."""
    monkeypatch.setattr(fetch, "_MEASURED_NBYTES", 77)
    running: list[int] = []

    class Measured(Noting):
        async def get(self, *args: Any, **kwargs: Any) -> Any:
            is_measuring = getattr(args[2], "end", None) == 77
            running.append(running[-1] + is_measuring if running else is_measuring)
            try:
                await asyncio.sleep(0.01 * is_measuring)
                return await super().get(*args, **kwargs)
            finally:
                running.append(running[-1] - is_measuring)

    meta = json.dumps(document((8 * 64,), (64,), LITTLE)).encode()
    store = Measured({f"c/{i}": BODY[:70] for i in range(8)} | {"zarr.json": meta})
    a = gpushard.open_array(far(store), device="cpu")
    found: list[Any] = []

    def read(i: int) -> Any:
        return a.read((slice(64 * i, 64 * i + 64),), errors=found.append)

    with ThreadPoolExecutor(8) as pool:
        assert not np.any([*pool.map(read, range(8))])
    assert [error.got for error in found] == 8 * ["70 bytes"]
    assert max(running) == 1

"""What is fetched whole, or comes in one body, is held within the memory limit."""

from __future__ import annotations

import copyreg
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np
import pytest

from asked_store import BY_PRICE, IN_REQUESTS, asked_nbytes, opened, put
from gpushard import ObjectChangedError, Options, StoreError
from gpushard.memory import freed
from gpushard.options import KIB, MIB
from gpushard.stores import obstores, remote
from gpushard.stores import wholes as wholes_module
from gpushard.stores.answers import RefusalError
from gpushard.stores.base import ByteRequest, Fetched
from gpushard.stores.wholes import RequestGroup, WholeObjectMemory, answer_from
from hostile_shards import ZSTD
from lone_chunks import let_little_count, zstd
from range_server import RangeServer
from spec_shards import LITTLE, document, sharding
from stored_object import replace_file

N = 64 * KIB
NOISE = np.random.default_rng(5).integers(0, 256, N, "u1").tobytes()
SHARD = sharding((N // 8,), codecs=[LITTLE, ZSTD], index_codecs=[LITTLE])


def shard_bytes(n_padding: int = 0) -> bytes:
    """A shard of eight inner chunks, behind so many bytes of nothing."""
    streams = [zstd(NOISE[k : k + N // 8]) for k in range(0, N, N // 8)]
    sizes = np.array([len(one) for one in streams])
    starts = np.cumsum(sizes) - sizes + n_padding
    index = np.stack([starts, sizes], 1).astype("<u8").tobytes()
    return bytes(n_padding) + b"".join(streams) + index


@pytest.mark.parametrize(
    ("limit", "is_whole"), [(4 * MIB, True), (N, False)], ids=["enough", "little"]
)
def test_shards_are_fetched_whole_where_half_of_the_limit_has_room(
    tmp_path, limit, is_whole
):
    place = put(tmp_path, document((N,), (N,), SHARD), c_0=shard_bytes())
    a, store = opened(place, BY_PRICE, memory_limit=limit, small_read_chunks=0)
    assert a[:].tobytes() == NOISE
    assert (store.calls[0][0].max_nbytes is not None) is is_whole


@pytest.mark.parametrize(
    ("limit", "most_expected"), [(N * 4, N * 2), (2 * MIB, 3 * N + N // 64 + 128)]
)
def test_of_a_shard_that_is_padded_no_more_is_fetched_than_fits(
    tmp_path, monkeypatch, limit, most_expected
):
    """Nor more than elements, index and as many bytes of gaps take."""
    let_little_count(monkeypatch)
    data = shard_bytes(3 * MIB)
    place = put(tmp_path, document((N,), (N,), SHARD), c_0=data)
    a, store = opened(place, BY_PRICE, memory_limit=limit, small_read_chunks=0)
    assert a[:].tobytes() == NOISE
    most = max(r.max_nbytes or 0 for requests in store.calls for r in requests)
    assert most == most_expected + 1


@pytest.mark.parametrize("is_kept", [False, True])
def test_what_a_library_keeps_of_answers_counts_as_well(tmp_path, monkeypatch, is_kept):
    let_little_count(monkeypatch)
    monkeypatch.setattr(freed, "give_back", lambda: given.append(1))
    given: list[int] = []
    n, limit = 16 * KIB, MIB
    shard = sharding((n,), codecs=[LITTLE], index_codecs=[LITTLE])
    entries = np.array([(k * n, n) for k in range(128)], "<u8").tobytes()
    data = NOISE * (128 * n // N)
    meta = document((len(data),), (len(data),), shard)
    costs = replace(IN_REQUESTS, answers_in_own_memory=is_kept)
    place = put(tmp_path, meta, c_0=data + entries)
    a, store = opened(place, costs, memory_limit=limit, small_read_chunks=0)
    assert a[:].tobytes() == data
    sizes = [asked_nbytes([r]) for call in store.calls for r in call]
    assert max(sizes) <= limit // (32 if is_kept else 8)
    assert a.source.room.most_fetched_nbytes == limit // (4 if is_kept else 2)
    # Before more than a sixteenth of the limit is fetched, not at the end of it all.
    assert len(given) >= 6 if is_kept else not given
    left_open, _ = opened(place, costs)
    assert not left_open.source.room.is_crowded


# Servers without ranges


def test_whole_objects_wait_for_room():
    wholes = WholeObjectMemory(Options(memory_limit=64 * MIB))
    assert wholes.most_nbytes == 16 * MIB
    came: list[int] = []

    def take(nbytes: int) -> None:
        with wholes.reserved(nbytes):
            came.append(nbytes)

    with wholes.reserved(10 * MIB):
        take(6 * MIB)
        waiting = threading.Thread(target=take, args=(7 * MIB,))
        waiting.start()
        waiting.join(0.05)
        assert came == [6 * MIB]
    waiting.join()
    assert came == [6 * MIB, 7 * MIB]


@pytest.mark.parametrize("is_for_good", [True, False])
def test_who_waits_for_room_gives_up_with_one_of_its_group_that_fails_for_good(
    is_for_good,
):
    wholes, why = WholeObjectMemory(Options()), "too slow"
    failure = StoreError(why) if is_for_good else RefusalError(why, is_lost=True)
    group, came = RequestGroup(), list[str]()
    begun = threading.Barrier(3)

    def take(name: str, group: RequestGroup) -> None:
        begun.wait()
        try:
            with wholes.reserved(wholes.most_nbytes, group):
                came.append(name)
        except StoreError as error:
            came.append(f"{name} {error}")

    def fail() -> None:
        with wholes.reserved(wholes.most_nbytes, group):
            begun.wait()
            time.sleep(0.05)  # until they wait for room
            raise failure

    waiting = [
        threading.Thread(target=take, args=("together", group)),
        threading.Thread(target=take, args=("alone", RequestGroup())),
    ]
    for thread in waiting:
        thread.start()
    with pytest.raises(type(failure)):
        fail()
    for thread in waiting:
        thread.join()
    assert sorted(came) == [
        "alone",
        f"together {failure}" if is_for_good else "together",
    ]


def _with_frames(
    words: str, trace: TracebackType | None, cause: BaseException | None
) -> StoreError:
    error = StoreError(words).with_traceback(trace)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("is_pickled_with_frames", [False, True])
def test_the_error_kept_of_an_object_that_failed_holds_nothing_of_its_frames(
    monkeypatch, is_pickled_with_frames
):
    if is_pickled_with_frames:  # as libraries ask for that send errors elsewhere

        def reduced(error):
            told = error.what, error.__traceback__, error.__cause__
            return _with_frames, told

        monkeypatch.setitem(copyreg.dispatch_table, StoreError, reduced)
    group = RequestGroup()
    with (
        pytest.raises(StoreError) as caught,
        WholeObjectMemory(Options()).reserved(3, group),
    ):
        raise StoreError("too slow") from ValueError("why")
    assert group.error is not caught.value
    assert str(group.error) == str(caught.value)
    # Frames hold what was fetched, and refer to the group.
    for name in ("__traceback__", "__context__", "__cause__"):
        assert getattr(group.error, name) is None


class Interrupting(threading.Condition):
    """Is interrupted once: the n-th time that it is entered or left."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n_left = n

    def _count(self) -> None:
        self.n_left -= 1
        if self.n_left == 0:
            raise KeyboardInterrupt

    def __enter__(self) -> bool:
        self._count()
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self._count()


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_an_interrupt_leaves_no_room_of_whole_objects_taken(n):
    wholes = WholeObjectMemory(Options())
    wholes._changed = Interrupting(n)
    with pytest.raises(KeyboardInterrupt), wholes.reserved(wholes.most_nbytes):
        pass
    wholes._changed = threading.Condition()
    came = threading.Event()

    def take() -> None:
        with wholes.reserved(wholes.most_nbytes):
            came.set()

    threading.Thread(target=take, daemon=True).start()
    assert came.wait(5)


def test_who_waits_for_room_looks_again_where_nobody_tells(monkeypatch):
    monkeypatch.setattr(wholes_module, "_CHECK_AGAIN_S", 0.01)
    wholes = WholeObjectMemory(Options())
    came = threading.Event()

    def take() -> None:
        with wholes.reserved(1):
            came.set()

    with wholes.reserved(wholes.most_nbytes):
        waiting = threading.Thread(target=take, daemon=True)
        waiting.start()
        assert not came.wait(0.05)
        wholes._held.clear()  # as of one that was interrupted before it told
        assert came.wait(5)


def test_by_default_they_take_64_mib():
    assert WholeObjectMemory(Options()).most_nbytes == 64 * MIB
    assert WholeObjectMemory(Options(memory_limit=MIB << 20)).most_nbytes == 64 * MIB


def test_what_is_cut_out_of_an_object_does_not_hold_it():
    data = np.frombuffer(NOISE, np.uint8)
    whole = Fetched(data, N, "a version")
    part = answer_from(whole, ByteRequest("c/0", 5, 9))
    assert part is not None
    assert part.data.tobytes() == NOISE[5:9]
    assert not np.shares_memory(part.data, data)
    every = answer_from(whole, ByteRequest("c/0"))
    assert every is not None
    assert np.shares_memory(every.data, data)
    assert answer_from(None, ByteRequest("c/0")) is None


@pytest.mark.network
@pytest.mark.parametrize("transfer", ["plain", "chunked"])
def test_a_server_without_ranges_is_read_within_the_memory_limit(
    tmp_path, monkeypatch, transfer
):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    from gpushard.stores.remote_url import open_url

    let_little_count(monkeypatch)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "0").write_bytes(NOISE)
    with RangeServer(tmp_path, answers_ranges=False, transfer=transfer) as server:
        store = open_url(server.url, {}, Options(memory_limit=4 * N))
        (answer,) = store.read([ByteRequest("c/0", 5, 9)])
        assert answer is not None
        assert answer.data.tobytes() == NOISE[5:9]
        store = open_url(server.url, {}, Options(memory_limit=4 * N - 4))
        with pytest.raises(StoreError, match=r"or raise options\.memory_limit"):
            store.read([ByteRequest("c/0", 5, 9)])


class NotedWholes(WholeObjectMemory):
    """Tells when somebody found no room."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.was_full = threading.Event()

    def _has_room(self, nbytes: int) -> bool:
        found = super()._has_room(nbytes)
        if not found:
            self.was_full.set()
        return found


@pytest.mark.network
@pytest.mark.parametrize("is_replaced", [False, True])
def test_an_answer_that_has_to_wait_for_room_is_asked_for_again(is_replaced, tmp_path):
    """A server gives up a connection that nobody reads from."""
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    from gpushard.stores.remote_url import open_url

    (tmp_path / "a").write_bytes(NOISE)
    request = ByteRequest("a", 5, 9)
    with RangeServer(tmp_path, answers_ranges=False) as server:
        store = open_url(server.url, {})
        store.read([request])
        store._whole_memory = wholes = NotedWholes(Options())
        n_asked = server.count()
        with ThreadPoolExecutor(1) as pool:
            with wholes.reserved(wholes.most_nbytes):
                waiting = pool.submit(store.read, [request])
                assert wholes.was_full.wait(10)
                assert server.count() == n_asked + 1
                if is_replaced:
                    replace_file(tmp_path / "a", NOISE[::-1])
            if is_replaced:
                with pytest.raises(ObjectChangedError):
                    waiting.result(10)
            else:
                (answer,) = waiting.result(10)
                assert answer is not None
                assert answer.data.tobytes() == NOISE[5:9]
        assert server.count() == n_asked + 2


# Bodies


class Result:
    """An answer whose body comes in pieces, as obstore gives it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.asked: list[int] = []

    async def stream(self, min_chunk_size: int) -> Any:
        self.asked.append(min_chunk_size)
        for first in range(0, len(self._data), min_chunk_size):
            yield self._data[first : first + min_chunk_size]


@pytest.mark.parametrize("nbytes", [0, 1, 999, 1000, 1001, 4096, N])
def test_large_bodies_are_taken_a_piece_at_a_time(nbytes):
    result: Any = Result(NOISE[:nbytes])
    assert obstores.body_of(result, nbytes, 9, 1000).tobytes() == NOISE[:nbytes]
    assert result.asked == [nbytes + 1 if nbytes <= 1000 else 1000]


@pytest.mark.parametrize("told", [999, 2500])
def test_of_a_longer_body_than_its_head_tells_little_more_is_taken(told):
    result: Any = Result(NOISE)
    taken = obstores.body_of(result, told, 9, 1000)
    assert taken.tobytes() == NOISE[: told + 1]


def test_of_a_body_that_is_cut_no_more_is_taken_than_came():
    result: Any = Result(NOISE[:1500])
    assert obstores.body_of(result, 4000, 9, 1000).tobytes() == NOISE[:1500]


@pytest.mark.parametrize(
    ("limit", "most"),
    [(None, 2 * MIB), (256 * MIB, MIB), (64 * MIB, 256 * KIB), (1, 64 * KIB)],
)
def test_bodies_come_in_pieces_of_which_many_requests_have_room(
    tmp_path, monkeypatch, limit, most
):
    asked: list[int] = []

    def body_of(result: Any, nbytes: int, limit_s: float, piece_nbytes: int) -> Any:
        asked.append(piece_nbytes)
        return obstores.body_of(result, nbytes, limit_s, piece_nbytes)

    monkeypatch.setattr(remote, "body_of", body_of)
    (tmp_path / "a").write_bytes(NOISE)
    classes = pytest.importorskip("obstore.store", reason="no obstore (extra remote)")
    with RangeServer(tmp_path) as server:
        # As another server's: a web server is read by another client.
        objects = classes.HTTPStore(server.url, client_options={"allow_http": True})
        store = remote.RemoteStore(objects, options=Options(memory_limit=limit))
        (answer,) = store.read([ByteRequest("a")])
        assert answer is not None
        assert answer.data.tobytes() == NOISE
    assert set(asked) == {most}
    result: Any = Result(bytes(4 * MIB))
    assert len(obstores.body_of(result, 4 * MIB, 9, most)) == 4 * MIB
    assert result.asked == [most]

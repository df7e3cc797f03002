"""HTTP stores against a real server on loopback: ranges, failures, addresses."""

from __future__ import annotations

import os
import pickle
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest

from gpushard.errors import ObjectChangedError, StoreError, UnsupportedError
from gpushard.options import Options
from gpushard.stores.base import ByteRequest, lasts
from gpushard.stores.http.store import HttpStore
from gpushard.stores.ranged import RangedStore
from gpushard.stores.remote_url import open_url, store_of
from range_server import RangeServer
from stored_object import BODY, RANGES, read_one, replace_file

obstore = pytest.importorskip("obstore", reason="the extra `remote` is not installed")

pytestmark = pytest.mark.network


def replace_object(server: RangeServer, body: bytes) -> None:
    replace_file(server.directory / "c" / "0", body)


@pytest.mark.parametrize(("asked", "expected"), RANGES)
def test_every_kind_of_range_is_answered_with_the_bytes_there_are(
    store: HttpStore, asked: tuple[int | None, ...], expected: bytes
) -> None:
    fetched = read_one(store, *asked)
    assert fetched.data.tobytes() == expected
    assert fetched.object_nbytes == len(BODY)
    assert fetched.data.dtype == np.uint8


@pytest.mark.parametrize("asked", [(), (5, 9), (1000,), (-20,), (1000, 5000)])
def test_one_range_inside_the_object_costs_one_request(
    server: RangeServer, store: HttpStore, asked: tuple[int, ...]
) -> None:
    read_one(store, *asked)
    assert [(r.method, r.key) for r in server.requests] == [("GET", "c/0")]


def test_answers_come_in_the_order_of_the_requests(
    server: RangeServer, store: HttpStore
) -> None:
    requests = [ByteRequest("c/0", i, i + 3) for i in range(100)]
    requests.insert(50, ByteRequest("c/none"))
    answers = store.read(requests)
    assert answers.pop(50) is None
    assert [a.data.tobytes() for a in answers if a] == [
        BODY[i : i + 3] for i in range(100)
    ]
    assert server.count("c/0") == 100


def test_requests_run_side_by_side(server: RangeServer, store: HttpStore) -> None:
    server.silence_s = 0.1
    started = time.perf_counter()
    store.read([ByteRequest("c/0", i, i + 3) for i in range(16)])
    assert time.perf_counter() - started < 16 * 0.1 / 2


def test_missing_objects_are_none(store: HttpStore) -> None:
    assert store.read([ByteRequest("c/1"), ByteRequest("c/2", -16)]) == [None, None]
    assert store.get("zarr.json") is None


def test_replaced_object_is_noticed_by_if_match(
    server: RangeServer, store: HttpStore
) -> None:
    version = read_one(store, -16).version
    assert version is not None
    assert read_one(store, 0, 4, version=version).data.tobytes() == BODY[:4]
    replace_object(server, b"x" * len(BODY))
    with pytest.raises(ObjectChangedError, match="replaced") as caught:
        read_one(store, 0, 4, version=version)
    assert caught.value.shard_key == "c/0"
    assert server.requests[-1].status == 412


@pytest.mark.parametrize("ignored", ["checks_if_match", "answers_ranges"])
def test_replaced_object_is_noticed_where_the_request_is_not_heeded(
    server: RangeServer, store: HttpStore, ignored: str
) -> None:
    setattr(server, ignored, False)
    version = read_one(store, -16).version
    replace_object(server, b"x" * len(BODY))
    with pytest.raises(ObjectChangedError):
        read_one(store, 0, 4, version=version)


@pytest.mark.parametrize("etags", ["strong", "weak", "date"])
def test_object_replaced_after_its_size_was_asked_is_changed(
    server: RangeServer, store: HttpStore, etags: Literal["strong", "weak", "date"]
) -> None:
    server.etags, server.answers_suffixes = etags, False
    os.utime(server.directory / "c" / "0", (1e9, 1e9))

    def replace(method: str, key: str) -> None:
        if method == "GET" and server.count(method="HEAD") == 1:
            replace_object(server, b"x" * 3 * len(BODY))

    server.before_answer = replace
    with pytest.raises(ObjectChangedError):
        read_one(store, -16)


def test_object_that_vanished_after_its_index_is_changed_not_missing(
    server: RangeServer, store: HttpStore
) -> None:
    version = read_one(store, -16).version
    (server.directory / "c" / "0").unlink()
    with pytest.raises(ObjectChangedError):
        read_one(store, 0, 4, version=version)


@pytest.mark.parametrize("etags", ["weak", "date", None])
def test_without_a_strong_etag_no_version_lasts(
    server: RangeServer, store: HttpStore, etags: Literal["weak", "date"] | None
) -> None:
    server.etags = etags
    version = read_one(store, 0, 4).version
    assert not lasts(version)
    assert read_one(store, 4, 8, version=version).data.tobytes() == BODY[4:8]


@pytest.mark.parametrize("transfer", ["plain", "chunked"])
@pytest.mark.parametrize("etags", ["weak", "date", None])
def test_what_is_told_without_a_strong_etag_may_tell_that_an_object_was_replaced(
    server: RangeServer,
    store: HttpStore,
    etags: Literal["weak", "date"] | None,
    transfer: Literal["plain", "chunked"],
) -> None:
    server.etags, server.transfer = etags, transfer
    place = server.directory / "c" / "0"
    os.utime(place, (1e9, 1e9))
    version = read_one(store, -16).version
    assert read_one(store, 0, 4, version=version).data.tobytes() == BODY[:4]
    # Without a tag or a date only the size tells.
    replace_object(server, b"x" * (len(BODY) - (etags is None)))
    with pytest.raises(ObjectChangedError):
        read_one(store, 0, 4, version=version)


def test_a_head_that_tells_less_is_no_other_version(
    server: RangeServer, store: HttpStore
) -> None:
    server.answers_suffixes, server.etags = False, "weak"

    def tell_less(method: str, key: str) -> None:
        server.etags = None if method == "HEAD" else "date"

    version = read_one(store, 0, 4).version
    server.before_answer = tell_less
    assert read_one(store, -4, version=version).data.tobytes() == BODY[-4:]


@pytest.mark.parametrize("status", [400, 416, 501])
def test_refused_suffix_is_asked_again_by_size(
    server: RangeServer, store: HttpStore, status: int
) -> None:
    server.answers_suffixes = False
    server.suffix_status = status
    assert read_one(store, -20).data.tobytes() == BODY[-20:]
    assert read_one(store, -5000).data.tobytes() == BODY
    # The refusal is remembered: no suffix is sent after it.
    suffixes = [r for r in server.requests if (r.range_header or "")[6:7] == "-"]
    others = [r.method for r in server.requests if r not in suffixes]
    assert [r.range_header for r in suffixes] == ["bytes=-20"]
    assert others == ["HEAD", "GET", "HEAD", "GET"]


def test_suffix_of_an_empty_object_is_empty(
    server: RangeServer, store: HttpStore
) -> None:
    replace_object(server, b"")
    fetched = read_one(store, -20)
    assert (len(fetched.data), fetched.object_nbytes) == (0, 0)


def test_server_without_ranges_sends_each_whole_object_once(
    server: RangeServer, store: HttpStore
) -> None:
    server.answers_ranges = False
    assert read_one(store, 5, 9).data.tobytes() == BODY[5:9]
    server.requests.clear()
    answers = store.read(
        [ByteRequest("c/0", i, i + 3) for i in range(10)]
        + [ByteRequest("c/0", -7), ByteRequest("c/none", 1, 2)]
    )
    assert [a and a.data.tobytes() for a in answers] == [
        *(BODY[i : i + 3] for i in range(10)),
        BODY[-7:],
        None,
    ]
    assert server.count("c/0") == 1


def test_server_without_ranges_and_a_large_object_is_an_error(
    server: RangeServer, store: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store._whole_memory, "most_nbytes", 1000)
    server.answers_ranges = False
    for _ in range(2):
        with pytest.raises(StoreError, match="does not answer ranges"):
            read_one(store, 5, 9)
    server.answers_ranges = True  # a proxy was overloaded
    assert read_one(store, 5, 9).data.tobytes() == BODY[5:9]


@pytest.mark.parametrize(
    ("key", "status"), [("c/0", 403), ("c/0", 401), ("c/0", 500), ("c/0", 400)]
)
def test_refusing_server_gives_one_sentence(
    server: RangeServer, key: str, status: int
) -> None:
    store = open_url(server.url, {}, Options(patience_s=1))
    server.statuses[key] = status
    with pytest.raises(StoreError, match=str(status)) as caught:
        read_one(store, 5, 9)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    assert caught.value.shard_key == key
    assert ("credentials" in text) == (status in (401, 403))


def test_server_that_fails_twice_is_asked_again(
    server: RangeServer, store: HttpStore
) -> None:
    server.statuses["c/0"] = 503
    seen: list[str] = []

    def recover(method: str, key: str) -> None:
        seen.append(key)
        if len(seen) == 3:
            server.statuses.clear()

    server.before_answer = recover
    assert read_one(store, 5, 9).data.tobytes() == BODY[5:9]
    assert len(seen) == 3


def test_cut_body_is_an_error(server: RangeServer, store: HttpStore) -> None:
    server.etags = None
    server.cut_bodies = True
    with pytest.raises(StoreError):
        read_one(store, 0, 1000)


def test_shifted_range_is_an_error(server: RangeServer, store: HttpStore) -> None:
    server.shift_ranges = 1
    with pytest.raises(StoreError):
        read_one(store, 5, 9)


@pytest.mark.parametrize("span", [(6, 10), (5, 10), (5, 8)])
def test_other_bytes_than_asked_are_an_error(
    monkeypatch: pytest.MonkeyPatch, span: tuple[int, int]
) -> None:
    # Planted: obstore of today notices most of it by itself.
    objects = obstore.store.MemoryStore()
    obstore.put(objects, "c/0", BODY)
    honest = obstore.get(objects, "c/0", options={"range": span})
    answer = SimpleNamespace(meta=honest.meta, range=span, bytes=honest.bytes)
    monkeypatch.setattr(obstore, "get", lambda *args, **kwargs: answer)
    with pytest.raises(StoreError, match="expected bytes 5-9"):
        read_one(store_of(objects), 5, 9)


def test_server_that_never_answers_is_given_up(server: RangeServer) -> None:
    store = open_url(
        server.url,
        {
            "client_options": {"read_timeout": "0.3s"},
            "retry_config": {"max_retries": 1},
        },
    )
    server.silence_s = 3
    started = time.perf_counter()
    with pytest.raises(StoreError):
        read_one(store, 5, 9)
    assert time.perf_counter() - started < 2.5


def test_default_limits_give_a_dead_server_up_within_15_s() -> None:
    http = open_url("http://127.0.0.1:1", {})
    assert isinstance(http, HttpStore)
    settings = http.settings
    # After the limit no repeat is begun, so at most one more silence comes on top.
    assert settings.repeats.lost_limit_s + settings.pause_s <= 15
    assert settings.connect_s <= settings.pause_s
    objects = {"region": "us-east-1", "anon": True}
    config = open_url("s3://bucket", objects).object_store  # type: ignore[attr-defined]
    client, retry = config.client_options, config.retry_config
    read_timeout = float(client["read_timeout"].rstrip("s"))
    assert retry["retry_timeout"].total_seconds() + read_timeout <= 15
    assert float(client["connect_timeout"].rstrip("s")) <= read_timeout
    # The largest request over a slow line of 1 Mbit/s must still come through.
    slow_s = http.costs.max_request_nbytes * 8 / 1e6
    assert settings.most_s > slow_s
    assert float(client["timeout"].rstrip("s")) > slow_s


def test_refused_connection_is_a_store_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://user:secret@127.0.0.1:{unused.getsockname()[1]}/a"
        store = open_url(url, {"retry_config": {"max_retries": 0}})
        with pytest.raises(StoreError) as caught:
            read_one(store, 5, 9)
    assert "secret" not in str(caught.value)
    assert "secret" not in store.url


@pytest.mark.parametrize("key", ["../c/0", "/c/0", "c//0", "c/./0", "", "c\\0", "c\0"])
def test_keys_that_leave_the_root_are_refused_without_a_request(
    server: RangeServer, store: HttpStore, key: str
) -> None:
    with pytest.raises(StoreError):
        store.read([ByteRequest(key)])
    assert server.requests == []


def test_store_survives_pickling(store: HttpStore) -> None:
    again = pickle.loads(pickle.dumps(store))
    assert again.url == store.url
    assert read_one(again, 5, 9).data.tobytes() == BODY[5:9]


def test_plain_http_cannot_list_and_tells_no_version_for_free(
    server: RangeServer, store: HttpStore
) -> None:
    assert store.list_children("") is None
    assert store.current_version("c/0") == (False, None)
    assert server.requests == []


def test_directory_with_odd_characters_in_its_url_is_read(tmp_path: Path) -> None:
    (tmp_path / "a b%+ü").mkdir()
    (tmp_path / "a b%+ü" / "k +%").write_bytes(b"odd")
    with RangeServer(tmp_path) as running:
        store = open_url(f"{running.url}/a%20b%25+%C3%BC/", {})
        assert store.get("k +%") == b"odd"


def test_malformed_url_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="malformed"):
        open_url("http://[::1", {})


def test_url_with_a_query_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="query"):
        open_url("https://host/data.zarr?sig=1", {})


@pytest.mark.parametrize("url", ["http://127.0.0.1/x", "s3://bucket/x"])
def test_unknown_setting_is_refused_by_name(url: str) -> None:
    with pytest.raises(StoreError, match="no_such_setting"):
        open_url(url, {"no_such_setting": "1"})


# ----------------------------------------------------------- stores made elsewhere


@pytest.mark.parametrize(
    ("make", "url"),
    [
        (lambda s: s.MemoryStore(), "obstore:MemoryStore"),
        (
            lambda s: s.S3Store("bucket", prefix="a/b", region="x"),
            "s3://bucket/a/b",
        ),
        (lambda s: s.HTTPStore("http://me:pw@127.0.0.1/a"), "http://127.0.0.1/a"),
    ],
)
def test_obstore_store_tells_its_address(
    make: Callable[[object], object], url: str
) -> None:
    import obstore.store

    store = store_of(make(obstore.store))
    assert isinstance(store, RangedStore)
    assert store.url == url

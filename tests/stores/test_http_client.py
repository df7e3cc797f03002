"""What a web server's answers mean, and what it is sent: redirects, headers, bodies."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import threading
import time
import weakref
from datetime import timedelta
from typing import Any

import pytest

from gpushard.errors import StoreError, UnsupportedError
from gpushard.options import DEFAULT, Options
from gpushard.stores.answers import RefusalError
from gpushard.stores.base import ByteRequest
from gpushard.stores.http.client import HttpClient
from gpushard.stores.http.settings import settings_of
from gpushard.stores.http.store import HttpStore
from gpushard.stores.http.wire import Deadline
from gpushard.stores.patience import Patience, WaitLimits
from gpushard.stores.remote_url import open_url, store_of
from range_server import RangeServer
from raw_server import RawServer, sized
from stored_object import BODY, read_one

pytestmark = pytest.mark.network

QUICK = Options(patience_s=0.6)


@pytest.mark.parametrize("redirects", [False, True])
@pytest.mark.parametrize("etags", ["strong", "weak", "date", None])
def test_a_body_of_no_told_size_comes_with_its_version(server, store, redirects, etags):
    server.redirects, server.transfer, server.etags = redirects, "chunked", etags
    os.utime(server.directory / "c/0", (1e9, 1e9))
    found = read_one(store)
    assert found.data.tobytes() == BODY
    assert found.object_nbytes == len(BODY)
    server.transfer = "plain"
    assert read_one(store, version=found.version).version == found.version


@pytest.mark.parametrize("transfer", ["chunked", "closed"])
def test_a_range_takes_one_request_and_is_not_cut_off_unseen(server, store, transfer):
    server.transfer = transfer
    assert read_one(store, 5, 9).data.tobytes() == BODY[5:9]
    assert [request.method for request in server.requests] == ["GET"]
    server.cut_bodies = True
    with pytest.raises(StoreError):
        read_one(store, 5, 9)


@pytest.mark.parametrize(
    ("transfer", "reason"),
    [("gzip chunked", "an encoded body"), ("closed", "where the object ends")],
)
def test_a_body_that_may_be_other_bytes_is_refused(server, store, transfer, reason):
    server.transfer = transfer
    with pytest.raises(StoreError, match=reason) as caught:
        read_one(store)
    assert caught.value.shard_key == "c/0"


def test_bytes_are_put_where_the_caller_wants_them(store):
    import numpy as np

    into = np.zeros(100, np.uint8)
    found = read_one(store, 5, 9, into=into)
    assert np.shares_memory(found.data, into)
    assert into.tobytes() == BODY[5:9] + bytes(96)
    assert read_one(store, 0, 101, into=into).data.tobytes() == BODY[:101]


@pytest.mark.parametrize(
    ("part", "redirects", "transfer"),
    [("head", False, "plain"), ("body", False, "plain"), ("body", True, "chunked")],
)
def test_an_answer_that_trickles_is_given_up_in_time(server, part, redirects, transfer):
    server.trickles, server.redirects, server.transfer = part, redirects, transfer
    store = open_url(server.url, {}, QUICK)
    started = time.perf_counter()
    with pytest.raises(StoreError, match="too slowly") as caught:
        read_one(store)
    assert caught.value.shard_key == "c/0"
    assert 0.6 <= time.perf_counter() - started < 4


def test_no_byte_is_awaited_for_longer_than_the_answer_has_left(monkeypatch):
    monkeypatch.setattr("time.monotonic", lambda: 8.5)
    assert Deadline(9, 3).next_s() == 0.5
    assert Deadline(19, 3).next_s() == 3
    for at_s in (8, 8.5):
        assert Deadline(at_s, 3).is_over
        with pytest.raises(TimeoutError):
            Deadline(at_s, 3).next_s()


def test_a_slow_answer_at_its_pace_is_read_to_the_end(server):
    (server.directory / "c/0").write_bytes(BODY[:15])
    server.trickles = "body"
    store = open_url(server.url, {}, Options(patience_s=0.6, min_nbytes_per_s=1))
    assert read_one(store).data.tobytes() == BODY[:15]


# Redirects


@pytest.mark.parametrize(
    "location",
    ["ftp://127.0.0.1:9/", "file:///dev/null", "http://[::", "data:,x"],
)
def test_a_redirect_leads_to_no_other_kind_of_server(store, location):
    with RawServer(
        lambda *_: [sized(b"", f"Location: {location}", status="302 x")]
    ) as server:
        with pytest.raises(StoreError, match="no web server"):
            open_url(server.url, {}).get("a")
        assert len(server.requests) == 1


def test_redirects_take_no_more_time_than_an_answer():
    def answer(_: bytes, nth: int) -> list[bytes]:
        time.sleep(0.3)
        return [sized(b"", f"Location: /{nth}", status="302 x")]

    with RawServer(answer) as server:
        # Silent: on a busy machine the time is over while an answer is waited for.
        with pytest.raises(StoreError, match=r"too slowly|is silent"):
            open_url(server.url, {}, Options(patience_s=1.05)).get("a")
        assert len(server.requests) <= 4


def test_redirects_without_end_are_given_up(server, store):
    server.redirects = "/on/"
    with pytest.raises(StoreError, match="302"):
        read_one(store)


@pytest.mark.parametrize("location", ["ü?x=%20ü#part", "../g/ü?x=%20ü"])
def test_a_redirect_is_followed_as_it_is_written(location):
    def answer(request: bytes, nth: int) -> list[bytes]:
        moved = sized(b"", status="307 x\r\nLocation: " + location)
        return [sized(b"body") if nth else moved.replace(b"\xfc", b"\xc3\xbc")]

    with RawServer(answer) as server:
        assert open_url(f"{server.url}/g", {}).get("a") == b"body"
    assert server.requests[1].startswith(b"GET /g/%C3%BC?x=%20%C3%BC HTTP/1.1\r\n")


@pytest.mark.parametrize("name", ["Authorization", "cookie", "X-Key"])
@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_credentials_are_not_sent_on_to_another_server(
    server, tmp_path, name, is_elsewhere
):
    with RangeServer(server.directory, wants=(name, "k")) as other:
        if is_elsewhere:
            server.redirects = f"{other.url}/"
        else:
            server.redirects, server.wants = True, (name, "k")
        store = open_url(server.url, {"headers": {name: "k"}})
        if is_elsewhere and name != "X-Key":
            with pytest.raises(StoreError, match="401"):
                read_one(store)
        else:
            assert read_one(store).data.tobytes() == BODY


# Settings


SECRET = "Bearer s"
WAYS: list[dict[str, Any]] = [
    {"headers": {"Authorization": SECRET}},
    {"client_options": {"default_headers": {"authorization": SECRET.encode()}}},
]


@pytest.mark.parametrize("settings", WAYS)
def test_credentials_go_with_each_request_and_into_no_text(server, settings):
    server.wants = "Authorization", SECRET
    store: Any = open_url(server.url, settings)
    again = pickle.loads(pickle.dumps(store))
    assert read_one(store).data.tobytes() == read_one(again).data.tobytes() == BODY
    assert SECRET not in repr((store, store.settings, again))


def test_what_a_request_says_itself_is_not_said_by_the_settings():
    own = {"range": "bytes=0-0", "IF-MATCH": '"x"', "if-range": '"x"'}
    head = "Content-Range: bytes 5-8/20"
    with RawServer(lambda *_: [sized(b"body", head, status="206 x")]) as server:
        read_one(open_url(server.url, {"headers": own}), 5, 9)
    (request,) = server.requests
    names = [line.partition(b":")[0].lower() for line in request.split(b"\r\n")[1:-2]]
    assert sorted(names) == [b"accept-encoding", b"host", b"range", b"user-agent"]
    assert b"bytes=5-8" in request


def test_the_name_of_a_server_is_not_sent_to_another_one():
    with RawServer(lambda *_: [sized(b"body")]) as there:
        told = there.url.removeprefix("http://").encode()
        answer = sized(b"", f"Location: {there.url}/b", status="302 x")
        with RawServer(lambda *_: [answer]) as here:
            assert open_url(here.url, {"headers": {"Host": "h.x"}}).get("a") == b"body"
    assert b"\r\nHost: h.x\r\n" in here.requests[0]
    assert b"\r\nHost: " + told + b"\r\n" in there.requests[0]


@pytest.mark.parametrize("told", ["abc", "-5", "1_000", "9" * 5000])
def test_a_size_that_is_none_is_refused_whatever_stands_beside_it(told):
    framing = f"Transfer-Encoding: chunked\r\nContent-Length: {told}"
    answer = f"HTTP/1.1 200 x\r\n{framing}\r\n\r\n".encode()
    with RawServer(lambda *_: [answer]) as server:
        client = HttpClient(server.url, settings_of({}, DEFAULT, allows_http=True))
        with pytest.raises(RefusalError, match="malformed Content-Length"):
            client.head("a")


def test_a_client_is_named_as_the_caller_names_it():
    with RawServer(lambda *_: [sized(b"x")]) as server:
        open_url(server.url, {"client_options": {"user_agent": "me/1"}}).get("a")
        open_url(server.url, {}).get("a")
        open_url(server.url, {"headers": {"user-agent": "you/2"}}).get("a")
    named = [
        request.split(b"User-Agent: ")[-1].split(b"\r")[0]
        for request in server.requests
    ]
    assert named[0] == b"me/1"
    assert named[1] == b"gpushard"
    assert b"user-agent: you/2\r\n" in server.requests[2]
    assert b"gpushard" not in server.requests[2]


def test_a_web_server_of_obstore_is_read_by_the_same_client(server):
    obstores = pytest.importorskip("obstore.store", reason="no obstore (extra remote)")
    server.wants = "X-Key", "k"
    objects = obstores.HTTPStore(
        server.url,
        client_options={
            "allow_http": True,
            "default_headers": {"X-Key": "k"},
            "timeout": "1m 30s",
        },
        retry_config={"max_retries": 2},
    )
    store = store_of(objects)
    assert isinstance(store, HttpStore)
    assert store.settings.most_s == 90
    assert store.settings.repeats.n_most == 2
    assert read_one(store).data.tobytes() == BODY


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("30s", 30),
        ("2h 37min", 9420),
        ("32ms", 0.032),
        ("0.5s", 0.5),
        ("7us", 7e-6),
        ("2 nsec", 2e-9),
        (timedelta.max, 365 * 86400),  # more is refused by the system's calls
    ],
)
def test_times_are_told_as_obstore_has_them(told, seconds):
    settings = {"client_options": {"timeout": told}}
    assert settings_of(settings, DEFAULT, allows_http=True).most_s == seconds


IMPOSSIBLE: list[dict[str, Any]] = [
    {"client_options": {"timeout": "soon"}},
    {"client_options": {"timeout": "3"}},
    {"client_options": {"timeout": ""}},
    {"client_options": {"timeout": "1m 3x"}},
    {"client_options": {"connect_timeout": "1s x"}},
    {"client_options": {"allow_http": "perhaps"}},
    {"client_options": {"pool_max_idle_per_host": "-1"}},
    {"client_options": {"no_such": 1}},
    {"client_options": {"default_headers": {"X-A": "b\r\nX-C: d"}}},
    {"headers": {"X A": "b"}},
    {"headers": {1: "b"}},
    {"headers": [1]},
    {"client_options": [1]},
    {"client_options": {"default_headers": "X: y"}},
    {"client_options": {"user_agent": 3}},
    {"client_options": {"proxy_url": 3}},
    {"client_options": {"proxy_excludes": ["h"]}},
    {"client_options": {"pool_max_idle_per_host": float("inf")}},
    {"client_options": {"root_certificate": ""}},
    {"client_options": {"root_certificate": b"\xff"}},
    {"client_options": {"root_certificate": "-----BEGIN CERTIFICATE-----\nAAAA\n"}},
    {"client_options": {"user_agent": "a\r\nX-C: d"}},
    {"headers": {"X-A": "\u20ac"}},
    {"retry_config": {"max_retries": "many"}},
    {"retry_config": {"no_such": 1}},
    {"retry_config": {"backoff": {"no_such": 1}}},
    {"anon": True},
]


@pytest.mark.parametrize("settings", IMPOSSIBLE, ids=str)
def test_an_impossible_setting_is_refused_by_name(settings):
    with pytest.raises(StoreError, match=r"setting|header") as caught:
        open_url("http://127.0.0.1/a", settings)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    "setting", [{"http2_only": True}, {"proxy_ca_certificate": "x"}]
)
def test_a_setting_that_this_client_does_not_have_is_unsupported(setting):
    with pytest.raises(UnsupportedError, match=next(iter(setting))):
        open_url("https://127.0.0.1/a", {"client_options": setting})


def test_settings_of_http_2_and_of_uploads_change_nothing():
    ignored = {"http1_only": True, "default_content_type": "x", "http2_only": False}
    given = settings_of({"client_options": ignored}, DEFAULT, allows_http=True)
    assert given == settings_of({}, DEFAULT, allows_http=True)


def test_the_pace_of_a_server_is_the_options():
    options = Options(patience_s=3, min_nbytes_per_s=7)
    settings = settings_of({}, options, allows_http=True)
    assert settings.wait_limits == WaitLimits(3, 7)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://h", b"/k%20+%25"),
        ("http://me:pw@h:80/a%20b%2B/", b"/a%20b%2B/k%20+%25"),
        ("http://h/ü b", b"/%C3%BC%20b/k%20+%25"),
        ("HTTP://H/A", b"/A/k%20+%25"),
    ],
)
def test_addresses_are_encoded_once(url, target, monkeypatch):
    with RawServer(lambda *_: [sized(b"x")]) as server:
        proxied = {"client_options": {"proxy_url": server.url}}
        open_url(url, proxied).get("k +%")
    (request,) = server.requests
    assert request.startswith(
        b"GET http://h" + target.replace(b"+%25", b"%2B%25") + b" HTTP/1.1\r\n"
    )
    assert b"\r\nHost: h\r\n" in request


NO_SERVERS = (
    *("http://", "http://[::1", "https://h:x/", "http://a b/", "https://.h/"),
    *("http://.", "https://a..h/", f"https://{'a' * 64}.h/", f"http://{'a' * 64}/"),
)


@pytest.mark.parametrize("url", NO_SERVERS)
def test_an_address_of_no_server_is_refused(url):
    with pytest.raises(UnsupportedError, match="malformed"):
        open_url(url, {})


def test_a_head_without_a_size_tells_nothing(server):
    with RawServer(lambda *_: [b"HTTP/1.1 200 x\r\n\r\n", None]) as raw:
        client = HttpClient(raw.url, settings_of({}, DEFAULT, allows_http=True))
        with pytest.raises(Exception, match="no size") as caught:
            client.head("a")
        assert caught.value.is_rangeless  # type: ignore[attr-defined]


def test_requests_after_a_refused_suffix_are_bounded():
    """Everything is refused, so that each way is tried and no more."""
    with RawServer(lambda *_: [sized(b"", status="501 x")]) as server:
        with pytest.raises(StoreError, match="501"):
            open_url(server.url, {}).read([ByteRequest("a", -4)])
        assert len(server.requests) == 2


def test_nothing_of_a_request_that_failed_waits_for_the_collector():
    def refused(_: ByteRequest) -> None:
        try:
            raise RefusalError("status code: 404", 404)
        except RefusalError as refusal:
            raise refusal.as_store_error("http://x", "c/0") from refusal

    def ask(_held: threading.Event) -> None:
        with contextlib.suppress(StoreError):
            Patience(WaitLimits(1, 1)).ask(refused, ByteRequest("c/0"))

    held = threading.Event()
    known = weakref.ref(held)
    gc.disable()
    try:
        ask(held)
        del held
        assert known() is None
    finally:
        gc.enable()

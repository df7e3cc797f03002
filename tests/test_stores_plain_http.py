"""HTTP by Python's own client: what it tells, and that no answer takes for ever."""

from __future__ import annotations

import io
import os
import pickle
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpushard.errors import StoreError
from gpushard.stores import plain_http
from gpushard.stores.bodies import Pace
from gpushard.stores.obstores import NEVER
from gpushard.stores.plain_http import PlainServer
from gpushard.stores.remote_url import open_url
from range_server import RangeServer
from stored_object import BODY, read_one, write_object

pytestmark = pytest.mark.network

QUICK = Pace(0.6, 1 << 20)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    with RangeServer(write_object(tmp_path), transfer="chunked") as running:
        yield running


def quick(server: RangeServer, **headers: str) -> PlainServer:
    return PlainServer(server.url, QUICK, headers)


@pytest.mark.parametrize("redirects", [False, True])
def test_a_body_of_no_told_size_comes_with_its_etag(server, redirects):
    server.redirects = redirects
    body, about = quick(server).get_unsized("c/0", 10**6)
    assert body == BODY
    assert (about["size"], about["last_modified"]) == (len(BODY), NEVER)
    assert about["e_tag"] is not None


def test_a_body_of_no_told_size_comes_with_its_date(server):
    server.etags = "date"
    os.utime(server.directory / "c/0", (1e9, 1e9))
    _, about = quick(server).get_unsized("c/0", 10**6)
    assert about["last_modified"] == datetime.fromtimestamp(10**9, UTC)


@pytest.mark.parametrize(
    ("transfer", "reason"),
    [("gzip chunked", "an encoded body"), ("closed", "where the object ends")],
)
def test_a_body_that_may_be_other_bytes_is_refused(server, transfer, reason):
    server.transfer = transfer
    with pytest.raises(StoreError, match=reason) as caught:
        quick(server).get_unsized("c/0", 10**6)
    assert caught.value.shard_key == "c/0"


def test_a_redirect_leads_to_no_other_kind_of_server(server):
    server.redirects = "ftp://127.0.0.1:9/"
    with pytest.raises(StoreError, match="no web server"):
        quick(server).get_unsized("c/0", 10**6)


def test_a_body_is_read_up_to_one_byte_beyond_its_limit(server):
    body, _ = quick(server).get_unsized("c/0", 100)
    assert body == BODY[:101]


def test_a_missing_object_is_not_found(server):
    with pytest.raises(FileNotFoundError):
        quick(server).get_unsized("c/none", 10**6)


@pytest.mark.parametrize("part", ["head", "body"])
@pytest.mark.parametrize("redirects", [False, True])
def test_an_answer_that_trickles_is_given_up_in_time(server, part, redirects):
    server.trickles, server.redirects = part, redirects
    started = time.perf_counter()
    with pytest.raises(StoreError, match="came in time") as caught:
        quick(server).get_unsized("c/0", 10**6)
    assert caught.value.shard_key == "c/0"
    assert 0.6 <= time.perf_counter() - started < 4


def test_no_byte_is_awaited_for_longer_than_the_answer_has_left(monkeypatch):
    now, waits = [0.0], []
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(plain_http, "time", clock)
    waiting = SimpleNamespace(settimeout=waits.append)
    reader = plain_http._PacedReader(Pace(9, 1 << 20), waiting, io.BytesIO(BODY))
    for now[0] in (0, 5, 7, 8.5):
        reader.readinto(bytearray(1))
    assert waits == pytest.approx([3, 3, 2, 0.5], abs=0.01)


def test_a_slow_answer_at_its_pace_is_read_to_the_end(server):
    (server.directory / "c/0").write_bytes(BODY[:30])
    server.trickles = "body"
    body, _ = PlainServer(server.url, Pace(0.6, 1)).get_unsized("c/0", 10**6)
    assert body == BODY[:30]


@pytest.mark.parametrize(("told", "want"), [("7", 7.0), (None, None), ("soon", None)])
def test_a_busy_server_tells_how_long_it_wants_to_be_left_alone(server, told, want):
    server.fail_first, server.retry_after = 1, told
    assert quick(server).retry_after("c/0") == want
    assert quick(server).retry_after("c/0") == 0


def test_a_busy_server_may_tell_a_date(server):
    for date, least, most in ((time.time() + 100, 95, 100), (10**9, 0, 0)):
        server.fail_first, server.retry_after = 1, formatdate(date, usegmt=True)
        assert least <= quick(server).retry_after("c/0") <= most


def test_a_busy_server_that_trickles_tells_nothing(server):
    server.trickles, server.fail_first = "head", 10
    started = time.perf_counter()
    assert quick(server).retry_after("c/0") is None
    assert time.perf_counter() - started < 4


SECRET = "Bearer s"
WAYS: list[dict[str, Any]] = [
    {"headers": {"Authorization": SECRET}},
    {"client_options": {"default_headers": {"authorization": SECRET.encode()}}},
]


@pytest.mark.parametrize("settings", WAYS)
def test_a_body_of_no_told_size_is_asked_for_as_the_caller_wants(server, settings):
    server.wants = "Authorization", SECRET
    store = open_url(server.url, settings)
    again = pickle.loads(pickle.dumps(store))
    assert read_one(store).data.tobytes() == read_one(again).data.tobytes() == BODY
    assert SECRET not in repr((store, store._plain, again))


def test_a_busy_server_tells_its_pause_to_whom_it_knows(server):
    server.wants, server.transfer = ("X-Key", "k"), "plain"
    store = open_url(server.url, {"headers": {"x-key": "k"}})
    server.fail_first, server.retry_after = 1, "7"
    assert store._plain.retry_after("c/0") == 7
    # Six, as obstore asks five times: then the answer tells that it may go on.
    server.fail_first, server.retry_after = 6, "0"
    assert read_one(store).data.tobytes() == BODY


@pytest.mark.parametrize("name", ["Authorization", "Cookie", "X-Key"])
@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_credentials_are_not_sent_on_to_another_server(
    server, tmp_path, name, is_elsewhere
):
    with RangeServer(tmp_path, transfer="chunked", wants=(name, "k")) as other:
        if is_elsewhere:
            server.redirects = f"{other.url}/"
        else:
            server.redirects, server.wants = True, (name, "k")
        asked = quick(server, **{name: "k"})
        if is_elsewhere and name != "X-Key":
            with pytest.raises(StoreError, match="401"):
                asked.get_unsized("c/0", 10**6)
        else:
            assert asked.get_unsized("c/0", 10**6)[0] == BODY


def test_a_client_is_named_as_the_caller_names_it(server):
    server.wants = "User-Agent", "me/1"
    store = open_url(server.url, {"client_options": {"user_agent": "me/1"}})
    assert read_one(store).data.tobytes() == BODY


def test_redirects_without_end_are_given_up(server):
    server.redirects = "/on/"
    assert quick(server).retry_after("c/0") is None
    with pytest.raises(StoreError, match="302"):
        quick(server).get_unsized("c/0", 10**6)

"""HTTP by Python's own client: what it tells, and that no answer takes for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushard.errors import StoreError
from gpushard.stores.bodies import Pace
from gpushard.stores.plain_http import get_unsized, retry_after
from range_server import RangeServer
from stored_object import BODY, write_object

pytestmark = pytest.mark.network

QUICK = Pace(0.6, 1 << 20)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    with RangeServer(write_object(tmp_path), transfer="chunked") as running:
        yield running


@pytest.mark.parametrize("redirects", [False, True])
def test_a_body_of_no_told_size_comes_with_its_etag(server, redirects):
    server.redirects = redirects
    body, e_tag = get_unsized(server.url, "c/0", 10**6, QUICK)
    assert body == BODY
    assert e_tag is not None


def test_a_body_is_read_up_to_one_byte_beyond_its_limit(server):
    body, _ = get_unsized(server.url, "c/0", 100, QUICK)
    assert body == BODY[:101]


def test_a_missing_object_is_not_found(server):
    with pytest.raises(FileNotFoundError):
        get_unsized(server.url, "c/none", 10**6, QUICK)


@pytest.mark.parametrize("part", ["head", "body"])
@pytest.mark.parametrize("redirects", [False, True])
def test_an_answer_that_trickles_is_given_up_in_time(server, part, redirects):
    server.trickles, server.redirects = part, redirects
    started = time.perf_counter()
    with pytest.raises(StoreError, match="came in time") as caught:
        get_unsized(server.url, "c/0", 10**6, QUICK)
    assert caught.value.shard_key == "c/0"
    assert 0.6 <= time.perf_counter() - started < 4


def test_a_slow_answer_at_its_pace_is_read_to_the_end(server):
    (server.directory / "c/0").write_bytes(BODY[:30])
    server.trickles = "body"
    body, _ = get_unsized(server.url, "c/0", 10**6, Pace(0.6, 1))
    assert body == BODY[:30]


@pytest.mark.parametrize(("told", "want"), [("7", 7.0), (None, None), ("soon", None)])
def test_a_busy_server_tells_how_long_it_wants_to_be_left_alone(server, told, want):
    server.fail_first, server.retry_after = 1, told
    assert retry_after(server.url, "c/0", QUICK) == want
    assert retry_after(server.url, "c/0", QUICK) == 0


def test_a_busy_server_that_trickles_tells_nothing(server):
    server.trickles, server.fail_first = "head", 10
    started = time.perf_counter()
    assert retry_after(server.url, "c/0", QUICK) is None
    assert time.perf_counter() - started < 4

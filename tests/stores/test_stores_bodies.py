"""Bodies of obstore's answers: their bytes, or an end in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushard.stores.obstores import body_of
from gpushard.stores.patience import WaitLimits
from range_server import RangeServer
from stored_object import BODY, write_object

obstore = pytest.importorskip("obstore", reason="the extra `remote` is not installed")

pytestmark = pytest.mark.network


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    with RangeServer(write_object(tmp_path)) as running:
        yield running


def answer(server: RangeServer, **options: Any):
    from obstore.store import HTTPStore

    store = HTTPStore(server.url, client_options={"allow_http": True})
    return obstore.get(store, "c/0", options=options)


def test_the_body_of_an_answer_is_its_bytes(server):
    assert body_of(answer(server), len(BODY), 9, 1 << 20).tobytes() == BODY


def test_of_a_body_without_end_little_more_is_taken_than_its_head_tells(server):
    server.padding = 32 << 20
    ranged = answer(server, range=(0, 2))
    assert ranged.range == (0, 2)
    assert 2 < len(body_of(ranged, 2, 9, 1 << 20)) < 4 << 20


def test_bodies_are_awaited_in_one_thread_of_the_process(server):
    for _ in range(3):
        body_of(answer(server), len(BODY), 9, 1 << 20)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("gpushard-bodies") == 1


def test_a_body_that_trickles_is_given_up_after_its_limit(server):
    server.trickles = "body"
    slow = answer(server)
    started = time.perf_counter()
    with pytest.raises(TimeoutError):
        body_of(slow, len(BODY), 0.3, 1 << 20)
    assert 0.3 <= time.perf_counter() - started < 3


def test_a_larger_answer_has_more_time():
    pace = WaitLimits(patience_s=15, min_nbytes_per_s=1000)
    assert [pace.limit_s(nbytes) for nbytes in (0, 500, 4000)] == [15, 15.5, 19]


def test_a_body_has_the_time_that_its_head_has_left():
    pace = WaitLimits(patience_s=15, min_nbytes_per_s=1000)
    now = time.monotonic()
    assert 15.9 < pace.left_s(4000, now - 3) <= 16
    assert pace.left_s(4000, now - 100) == pace.pause_s == 5

"""What a web server cannot do to a process: end it, grow it, or hold it up."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpushard
from gpushard import Options, StoreError
from gpushard.options import MIB
from gpushard.stores import patience
from gpushard.stores.answers import RefusalError
from gpushard.stores.base import ByteRequest, Fetched
from gpushard.stores.patience import WaitLimits
from gpushard.stores.remote_url import open_url
from gpushard.stores.wholes import answer_from
from memory_probe import status_nbytes
from raw_server import RawServer, sized

pytestmark = pytest.mark.network

ZEROS = bytes(MIB)
# Of which nothing here may take much, but a server that is always busy.
PATIENT, QUICK = Options(patience_s=9), Options(patience_s=1.2)
ASKED = {"a range": ByteRequest("c/0", 5, 9), "an end": ByteRequest("c/0", -4)}


@pytest.fixture
def grown() -> Any:
    """By how many bytes the process has grown at most, since the test began."""
    clear = Path("/proc/self/clear_refs")
    if not clear.exists():
        pytest.skip("only Linux tells")
    before = status_nbytes("VmRSS")
    clear.write_text("5")  # forget the highest so far
    return lambda: status_nbytes("VmHWM") - before


def without_end(status: int, kind: str) -> Iterator[bytes | None]:
    """An answer that goes on and on, or that claims to."""
    framing = {
        "700 MiB": f"Content-Length: {700 * MIB}",
        "100 GB": "Content-Length: 100000000000",
        "chunks": "Transfer-Encoding: chunked",
        "no end": "X: y",
    }[kind]
    yield f"HTTP/1.1 {status} x\r\n{framing}\r\n\r\n".encode()
    yield (b"100000\r\n" if kind == "chunks" else b"")
    for _ in range(700):
        yield ZEROS
        yield (b"\r\n100000\r\n" if kind == "chunks" else b"")


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("status", [404, 403, 302, 412])
@pytest.mark.parametrize("kind", ["700 MiB", "100 GB", "chunks", "no end"])
def test_the_body_of_a_refusal_is_not_read(grown, status, kind, asked):
    with RawServer(lambda *_: without_end(status, kind)) as server:
        store = open_url(server.url, {}, PATIENT)
        started = time.perf_counter()
        if status == 404:
            assert store.read([ASKED[asked]]) == [None]
        else:
            with pytest.raises(gpushard.StoreError, match=f"{status}"):
                store.read([ASKED[asked]])
        assert time.perf_counter() - started < 9
        assert len(server.requests) == 1
    assert grown() < 8 * MIB


def test_a_busy_server_with_endless_bodies_is_given_up_in_time(grown):
    with RawServer(lambda *_: without_end(503, "700 MiB")) as server:
        store = open_url(server.url, {}, QUICK)
        started = time.perf_counter()
        with pytest.raises(gpushard.StoreError, match="503"):
            store.read([ASKED["a range"]])
        assert time.perf_counter() - started < 9
    assert grown() < 8 * MIB


def test_a_refusal_that_comes_slowly_is_not_awaited():
    def answer(*_: Any) -> Iterator[bytes]:
        yield sized(b"", status="404 x").replace(b"Length: 0", b"Length: 999")
        for _ in range(40):
            time.sleep(0.05)
            yield b"x"

    with RawServer(answer) as server:
        started = time.perf_counter()
        assert open_url(server.url, {}).get("zarr.json") is None
        assert time.perf_counter() - started < 1


HEADS: dict[str, bytes] = {
    "a line": b"a" * MIB,
    "lines": b"X-Name: y\r\n" * (MIB // 11),
    "early answers": b"x\r\n\r\nHTTP/1.1 100 " * (MIB // 18),
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_without_end_is_refused(grown, kind):
    def answer(*_: Any) -> Iterator[bytes]:
        yield b"HTTP/1.1 100 "
        yield from itertools.repeat(HEADS[kind], 700)

    with RawServer(answer) as server:
        store = open_url(server.url, {"retry_config": {"max_retries": 0}}, PATIENT)
        with pytest.raises(gpushard.StoreError, match="without end"):
            store.read([ASKED["a range"]])
        assert len(server.requests) == 1
    assert grown() < 8 * MIB


CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n"
FOREVER: dict[str, tuple[bytes, bytes, str]] = {
    "trailers": (CHUNKS + b"4\r\nabcd\r\n0\r\n", b"X: y\r\n", "without end"),
    "a chunk's extension": (CHUNKS + b"4;", b"x", "without end"),
    "a chunk's size": (CHUNKS, b"0", "without end"),
    "chunks": (CHUNKS + b"4\r\nabcd", b"\r\n4\r\nabcd", "other bytes"),
    "a body": (b"Content-Length: 999999999999\r\n\r\n", b"x", "other bytes"),
}


@pytest.mark.parametrize("kind", FOREVER)
def test_a_body_that_is_all_framing_is_refused(grown, kind):
    first, more, why = FOREVER[kind]

    def answer(*_: Any) -> Iterator[bytes]:
        yield b"HTTP/1.1 206 x\r\nContent-Range: bytes 5-8/1024\r\n" + first
        yield from itertools.repeat(more * (MIB // len(more)), 700)

    with RawServer(answer) as server:
        store = open_url(server.url, {"retry_config": {"max_retries": 0}}, PATIENT)
        with pytest.raises(gpushard.StoreError, match=why):
            store.read([ASKED["a range"]])
        assert len(server.requests) == 1
    assert grown() < 8 * MIB


@pytest.mark.parametrize("told", ["200 x", "206 x\r\nContent-Range: bytes 0-9/10"])
def test_of_a_document_no_more_is_taken_than_it_may_have(grown, told, monkeypatch):
    monkeypatch.setattr("gpushard.stores.documents.MAX_DOCUMENT_NBYTES", 1000)
    head = f"HTTP/1.1 {told}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    body = b"100000\r\n" + ZEROS + b"\r\n"
    with RawServer(lambda *_: [head, *[body] * 700]) as server:
        options = Options(patience_s=9, memory_limit=MIB)
        with pytest.raises(gpushard.StoreError):
            open_url(server.url, {}, options).get("zarr.json")
    assert grown() < 24 * MIB  # a quarter of the least memory limit, and buffers


# Pauses


def busy(told: str | None, n: int) -> Any:
    """Answers 503 so many times, then the range."""
    headers = [] if told is None else [f"Retry-After: {told}"]
    range_told = "Content-Range: bytes 5-8/1024"

    def answer(_: bytes, nth: int) -> list[bytes]:
        if nth < n:
            return [sized(b"", *headers, status="503 x")]
        return [sized(b"abcd", range_told, status="206 x")]

    return answer


@pytest.mark.parametrize(
    ("told", "least", "most"),
    [
        ("7", 7, 8),
        ("0", 0, 0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0, 0),
        ("soon", 0.05, 0.1),
        ("-1", 0.05, 0.1),
        ("Mon, 32 Foo 20 25:61:61 -0000", 0.05, 0.1),
        (None, 0.05, 0.1),
    ],
)
def test_a_server_is_asked_again_after_the_pause_that_it_wants(
    monkeypatch, told, least, most
):
    pauses: list[float] = []
    clock = SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic)
    monkeypatch.setattr(patience, "time", clock)
    with RawServer(busy(told, 1)) as server:
        (answer,) = open_url(server.url, {}).read([ASKED["a range"]])
        assert answer is not None
        assert answer.data.tobytes() == b"abcd"
        assert len(server.requests) == 2
    assert len(pauses) == 1
    assert least <= pauses[0] <= most


@pytest.mark.parametrize("told", ["9" * 400, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_pause_without_end_is_an_error_at_once(told):
    with RawServer(busy(told, 9)) as server:
        with pytest.raises(gpushard.StoreError, match="503"):
            open_url(server.url, {}).read([ASKED["a range"]])
        assert len(server.requests) == 1


def test_a_part_that_is_cut_of_a_whole_object_does_not_hold_the_rest():
    whole = Fetched(np.arange(9, dtype="u1"), 9, "version")
    part = answer_from(whole, ByteRequest("key", 3, 7))
    assert part is not None
    assert part.data.tolist() == [3, 4, 5, 6]
    assert part.data.base is None
    all_of_it = answer_from(whole, ByteRequest("key", 0))
    assert all_of_it is not None
    assert np.shares_memory(all_of_it.data, whole.data)


def test_a_server_that_is_silent_is_called_silent():
    """One that sends slowly is another error, which says how slowly."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/a"
        store = open_url(url, {}, Options(patience_s=0.3))
        with pytest.raises(StoreError, match=r"is silent.*raise the option patience_s"):
            store.get("zarr.json")


def test_pauses_stay_within_the_patience_whoever_chooses_them(monkeypatch):
    pauses: list[float] = []
    clock = SimpleNamespace(sleep=pauses.append, monotonic=lambda: sum(pauses))
    monkeypatch.setattr(patience, "time", clock)

    def busy(_: ByteRequest) -> None:
        told = RefusalError("status code: 503", 503, retry_after_s=2)
        refusal = told if not pauses else RefusalError("status code: 503", 503)
        raise refusal.as_store_error("http://x", "c/0") from refusal

    for _ in range(100):
        pauses.clear()
        with pytest.raises(gpushard.StoreError, match="503"):
            patience.Patience(WaitLimits(3.5, 1)).ask(busy, ByteRequest("c/0"))
        assert sum(pauses) <= 3.51

"""Requests that nobody waits for any more end at once, and harm no others."""

from __future__ import annotations

import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

import pytest

from gpushard.errors import StoreError
from gpushard.options import Options
from gpushard.stores.http import exchange, pool
from gpushard.stores.http.wire import Wire
from gpushard.stores.remote_url import open_url
from gpushard.threads.stop_flag import StopFlag, enter, leave
from raw_server import RawServer, sized, unanswering

pytestmark = pytest.mark.network

PATIENT = Options(patience_s=60)
"""A silent server is given up after 20 s."""
AT_ONCE_S = 3.0


@pytest.fixture(autouse=True)
def no_earlier_pool(monkeypatch) -> None:
    """Share no connections with stores of other tests that are still about."""
    monkeypatch.setattr(pool, "_shared", WeakValueDictionary())


@pytest.fixture
def wires(monkeypatch) -> list[Wire]:
    """The connections that requests begin with, as they do."""
    begun: list[Wire] = []
    begin = Wire.begin

    def noted(wire: Wire, deadline: Any) -> None:
        begun.append(wire)
        begin(wire, deadline)

    monkeypatch.setattr(Wire, "begin", noted)
    return begun


def seconds_to_end(
    work: Callable[[], Any], until: Callable[[], Any], flag: StopFlag | None = None
) -> float:
    """Seconds until `work`, which must fail, ends once its flag is set."""
    flag = flag or StopFlag()
    errors: list[BaseException] = []

    def run() -> None:
        enter(flag)
        try:
            work()
        except StoreError as error:
            errors.append(error)
        finally:
            leave()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_for(until)
    began = time.perf_counter()
    flag.set()
    thread.join(15)
    assert len(errors) == 1
    return time.perf_counter() - began


def wait_for(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
    time.sleep(0.05)  # its thread is then in the call that waits


def silent_after(piece: bytes, goes_on: threading.Event) -> Any:
    def answer(*_: Any) -> Iterator[bytes | None]:
        yield piece
        goes_on.wait(30)
        yield None

    return answer


@pytest.fixture
def goes_on() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


PARTS = {
    "nothing": b"",
    "a part of the head": b"HTTP/1.1 200 OK\r\nContent-",
    "a part of the body": sized(b"body")[:-1],
    "a part of a chunk": b"HTTP/1.1 200 x\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n9\r\nbod",
}


@pytest.mark.parametrize("part", PARTS)
def test_a_request_ends_at_once_and_is_not_repeated(part, goes_on, wires):
    with RawServer(silent_after(PARTS[part], goes_on)) as server:
        store: Any = open_url(server.url, {}, PATIENT)
        took = seconds_to_end(lambda: store.get("a"), lambda: server.n_connections)
        assert took < AT_ONCE_S
        assert len(server.requests) == 1
        assert not any(store._client._pool._idle.values())
        assert {wire.socket.fileno() for wire in wires} == {-1}
        goes_on.set()


def test_nothing_is_asked_for_once_nobody_waits():
    with RawServer(lambda *_: [sized(b"body")]) as server:
        store = open_url(server.url, {})
        assert store.get("a") == b"body"  # its connection is kept
        flag = StopFlag()
        flag.set()
        seconds_to_end(lambda: store.get("a"), lambda: True, flag)
        assert len(server.requests) == 1
        assert store.get("a") == b"body"
        assert server.n_connections == 1


def test_other_connections_stay_as_they_are(goes_on):
    def answer(request: bytes, _: int) -> Iterator[bytes | None]:
        if b"silent" in request:
            goes_on.wait(30)
        yield sized(b"body")

    with RawServer(answer) as server:
        store: Any = open_url(server.url, {}, PATIENT)
        answers = [store._client.get("a", None, None) for _ in range(3)]
        for one in answers:
            with one:
                one.read_body(4)
        seconds_to_end(lambda: store.get("silent"), lambda: len(server.requests) == 4)
        (idle,) = store._client._pool._idle.values()
        assert len(idle) == 2
        assert store.get("a") == b"body"
        assert server.n_connections == 3
        goes_on.set()


def test_the_pause_before_a_repeat_ends_at_once():
    busy = sized(b"", "Retry-After: 20", status="503 Busy")
    with RawServer(lambda *_: [busy]) as server:
        store = open_url(server.url, {}, PATIENT)
        took = seconds_to_end(lambda: store.get("a"), lambda: server.requests)
        assert took < AT_ONCE_S
        assert len(server.requests) == 1


def test_reads_of_others_go_on(goes_on):
    def answer(request: bytes, _: int) -> Iterator[bytes | None]:
        goes_on.wait(30)
        yield sized(request.split()[1])

    with RawServer(answer) as server:
        store = open_url(server.url, {}, PATIENT)
        found: list[bytes | None] = []
        other = threading.Thread(target=lambda: found.append(store.get("other")))
        other.start()
        wait_for(lambda: server.requests)
        took = seconds_to_end(
            lambda: store.get("mine"), lambda: len(server.requests) == 2
        )
        assert took < AT_ONCE_S
        goes_on.set()
        other.join(10)
        assert found == [b"/other"]
        assert len(server.requests) == 2


def test_a_connection_that_others_have_by_then_is_not_broken_off():
    """What was asked over it for the one who stops has been answered."""
    flag = StopFlag()
    with RawServer(lambda *_: [sized(b"body")]) as server:
        store: Any = open_url(server.url, {})
        enter(flag)
        try:
            assert store.get("a") == b"body"
        finally:
            leave()
        answer = store._client.get("a", None, None)
        flag.set()
        with answer:
            assert answer.read_body(4).tobytes() == b"body"
        assert store.get("a") == b"body"
        assert server.n_connections == 1


def test_a_connection_that_was_broken_off_behind_its_answer_is_not_kept():
    flag = StopFlag()
    with RawServer(lambda *_: [sized(b"body")]) as server:
        store: Any = open_url(server.url, {})
        enter(flag)
        try:
            with store._client.get("a", None, None) as answer:
                assert answer.read_body(4).tobytes() == b"body"
                flag.set()
        finally:
            leave()
        assert not any(store._client._pool._idle.values())
        assert store.get("a") == b"body"
        assert server.n_connections == 2


def test_who_closes_a_connection_waits_until_it_is_shut_down(monkeypatch):
    """Its number may else be that of another's connection by then."""
    mine, end = socket.socketpair()
    wire = Wire(mine, exchange.Deadline(0.0, 1.0))
    numbers: list[int] = []
    closing = threading.Thread(target=wire.close)

    def shut_down(one: socket.socket, _: int) -> None:
        closing.start()
        closing.join(0.1)
        numbers.append(one.fileno())

    class Noted(socket.socket):
        shutdown = shut_down

    monkeypatch.setattr(socket, "socket", Noted)
    with end:
        wire.break_off()
        closing.join(10)
        assert numbers[0] >= 0
        assert mine.fileno() == -1


@pytest.mark.skipif(sys.platform != "linux", reason="others accept or refuse it")
def test_a_host_that_does_not_answer_is_let_go_of_at_once(wires):
    with unanswering() as (host, port):
        store = open_url(f"http://{host}:{port}", {}, PATIENT)
        took = seconds_to_end(lambda: store.get("a"), lambda: wires)
        assert took < AT_ONCE_S
        assert [wire.socket.fileno() for wire in wires] == [-1]


def test_a_server_that_does_not_answer_in_tls_is_let_go_of_at_once(wires):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = open_url(f"https://127.0.0.1:{silent.getsockname()[1]}", {}, PATIENT)
        took = seconds_to_end(
            lambda: store.get("a"),
            lambda: any(isinstance(wire.socket, ssl.SSLSocket) for wire in wires),
        )
        assert took < AT_ONCE_S
        assert [wire.socket.fileno() for wire in wires] == [-1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_fork_that_stops_leaves_the_requests_of_its_parent(goes_on):
    flag = StopFlag()
    found: list[bytes | None] = []

    def answer(*_: Any) -> Iterator[bytes | None]:
        goes_on.wait(30)
        yield sized(b"body")

    def run() -> None:
        enter(flag)
        found.append(store.get("a"))
        leave()

    with RawServer(answer) as server:
        store = open_url(server.url, {}, PATIENT)
        thread = threading.Thread(target=run)
        thread.start()
        wait_for(lambda: server.requests)
        pid = os.fork()
        if not pid:
            flag.set()
            os._exit(0)
        os.waitpid(pid, 0)
        goes_on.set()
        thread.join(10)
        assert found == [b"body"]
        assert len(server.requests) == 1

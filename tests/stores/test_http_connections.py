"""Connections to a web server: made, kept, dropped."""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import pytest

from gpushard.errors import StoreError
from gpushard.options import Options
from gpushard.stores.http import exchange, pool
from gpushard.stores.http.client import HttpClient
from gpushard.stores.remote_url import open_url
from raw_server import RawServer, sized, unanswering
from stored_object import BODY, read_one

pytestmark = pytest.mark.network


@pytest.fixture(autouse=True)
def no_earlier_pool(monkeypatch) -> None:
    """Share no connections with stores of other tests that are still about."""
    monkeypatch.setattr(pool, "_shared", WeakValueDictionary())


def test_one_connection_takes_one_request_after_the_other(server, store, no_pauses):
    for start in range(20):
        assert read_one(store, start, start + 3).data.tobytes() == BODY[start:][:3]
    for transfer in ("chunked", "plain"):
        server.transfer = transfer
        assert read_one(store).data.tobytes() == BODY
        assert store.get("none") is None  # a refusal leaves it open, too
    server.page = b"<html>" * 100
    server.statuses["c/0"] = 403
    for _ in range(3):
        with pytest.raises(StoreError, match="403"):
            read_one(store, 0, 3)
    assert server.n_connections == 1


ENDS: dict[str, tuple[bytes | None, ...]] = {
    "it ends": (sized(b"body"), None),
    "it is said to end": (sized(b"body", "Connection: close"),),
    "HTTP/1.0": (sized(b"body").replace(b"HTTP/1.1", b"HTTP/1.0"),),
    "more follows": (sized(b"body") + sized(b"evil"),),
    "two ends": (
        b"HTTP/1.1 200 x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"4\r\nbody\r\n0\r\n\r\n",
    ),
}


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("has_poll", [True, False])
def test_no_request_follows_an_answer_that_nobody_asked_for(has_poll, monkeypatch):
    if not has_poll:
        monkeypatch.delattr("select.poll", raising=False)

    def answer(*_: Any) -> Iterator[bytes]:
        yield sized(b"body")
        assert is_read.wait(9)
        yield sized(b"evil")
        is_sent.set()

    is_read, is_sent = threading.Event(), threading.Event()
    with RawServer(answer) as server:
        store = open_url(server.url, {})
        for n in range(1, 4):
            is_read.clear()
            is_sent.clear()
            assert store.get("a") == b"body"
            is_read.set()
            assert is_sent.wait(9)
            assert server.n_connections == n


def test_no_request_follows_a_body_that_was_broken_off():
    """What stands behind a malformed chunk may look like the end of the body."""
    answer = b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n0\r\n\r\n"
    with RawServer(lambda *_: [answer]) as server:
        store = open_url(server.url, {"retry_config": {"max_retries": 0}})
        for n in range(1, 4):
            with pytest.raises(StoreError, match="malformed chunk"):
                store.get("a")
            assert server.n_connections == n


def test_a_connection_is_kept_where_the_system_has_no_poll(server, store, monkeypatch):
    monkeypatch.delattr("select.poll", raising=False)
    for start in range(3):
        assert read_one(store, start, start + 3).data.tobytes() == BODY[start:][:3]
    assert server.n_connections == 1


@pytest.mark.parametrize("kind", ENDS)
def test_no_request_follows_where_another_answer_may_lie(kind, no_pauses):
    with RawServer(lambda *_: ENDS[kind]) as server:
        store = open_url(server.url, {})
        for n in range(1, 4):
            assert store.get("a") == b"body"
            assert server.n_connections == n
        assert len(server.requests) == 3


def test_a_connection_that_ends_at_the_next_request_is_replaced_at_once(no_pauses):
    """The server closes it just when the request is under way."""

    def answer(_: bytes, nth: int) -> list[bytes | None]:
        return [None] if nth % 2 else [sized(b"body")]

    with RawServer(answer) as server:
        store = open_url(server.url, {"retry_config": {"max_retries": 0}})
        assert [store.get("a") for _ in range(5)] == [b"body"] * 5
        assert len(server.requests) == 9


def test_an_answer_that_ends_within_its_head_is_not_asked_for_again():
    def answer(_: bytes, nth: int) -> list[bytes | None]:
        return [b"HTTP/1.1 2", None] if nth else [sized(b"body")]

    with RawServer(answer) as server:
        store = open_url(server.url, {"retry_config": {"max_retries": 0}})
        assert store.get("a") == b"body"
        with pytest.raises(StoreError, match="ended within an answer"):
            store.get("a")
        assert len(server.requests) == 2


def test_a_connection_is_kept_for_as_long_as_the_setting_says(server, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: now[0]))
    store: Any = open_url(server.url, {"client_options": {"pool_idle_timeout": "7s"}})
    for now[0], n in ((0, 1), (6.9, 1), (14, 2)):
        read_one(store)
        assert server.n_connections == n
    first, second = (store._client.get("c/0", None, None) for _ in range(2))
    with second:
        second.read_body(len(BODY))
    now[0] = 30  # kept, although the other one is too old
    with first:
        first.read_body(len(BODY))
    (idle,) = store._client._pool._idle.values()
    assert [since for _, since in idle] == [30]


def test_a_lost_connection_is_made_again_as_often_as_the_setting_says():
    at_once = {"init_backoff": timedelta(0), "max_backoff": timedelta(0)}
    with RawServer(lambda *_: [None]) as server:
        settings = {"retry_config": {"max_retries": 2, "backoff": at_once}}
        with pytest.raises(StoreError, match="ended within an answer"):
            open_url(server.url, settings).get("a")
        assert len(server.requests) == 3


def test_no_more_connections_are_kept_than_the_setting_says(server):
    store: Any = open_url(
        server.url, {"client_options": {"pool_max_idle_per_host": "2"}}
    )
    client = store._client
    answers = [client.get("c/0", (i, i + 3), None) for i in range(4)]
    for answer in answers:
        with answer:
            answer.read_body(3)
    (idle,) = client._pool._idle.values()
    assert len(idle) == 2


@pytest.mark.parametrize("part", ["head", "body"])
def test_an_interrupted_request_ends_its_connection(server, store, monkeypatch, part):
    read_one(store, 0, 3)

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as planted:
        if part == "head":
            planted.setattr(exchange, "read_head", interrupted)
        else:
            planted.setattr("gpushard.stores.http.wire._read_some_into", interrupted)
        with pytest.raises(KeyboardInterrupt):
            read_one(store, 0, 100)
    assert not any(store._client._pool._idle.values())
    assert read_one(store, 3, 6).data.tobytes() == BODY[3:6]
    assert server.n_connections == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_fork_closes_what_it_inherits_and_its_parent_goes_on(server, store):
    read_one(store, 0, 3)
    kept = store._client._pool
    (((wire, _),),) = kept._idle.values()
    pid = os.fork()
    if not pid:
        kept.take(HttpClient(server.url, store.settings)._root.origin)
        os._exit(0 if wire.socket.fileno() == -1 and not kept._idle else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    read_one(store, 0, 3)
    assert server.n_connections == 1


@pytest.mark.parametrize("is_refused", [False, True])
def test_the_connections_of_a_store_end_with_it(server, is_refused):
    store: Any = open_url(server.url, {})
    read_one(store)
    if is_refused:
        server.statuses["c/0"] = 403
        with suppress(StoreError):
            read_one(store)
    (((wire, _),),) = store._client._pool._idle.values()
    del store
    assert wire.socket.fileno() == -1


def test_a_connection_that_ends_in_a_cycle_of_errors_is_closed_without_a_warning(
    server,
):
    store: Any = open_url(server.url, {})
    read_one(store)
    (idle,) = store._client._pool._idle.values()
    cycle: list[Any] = [idle.pop()[0]]  # as an error does that refers to its frame
    cycle.append(cycle)
    place = f"laddr={cycle[0].socket.getsockname()}"
    del cycle
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gc.collect()
    assert not [one for one in caught if place in str(one.message)]


def test_an_address_for_which_the_system_has_no_socket_leaves_the_others(
    server, monkeypatch
):
    real = socket.getaddrinfo

    def found(_: Any, *args: Any, **kinds: Any) -> Any:
        (one,) = real("127.0.0.1", args[0], type=socket.SOCK_STREAM)
        return [(9999, *one[1:]), one]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    port = int(server.url.rpartition(":")[2])
    store = open_url(f"http://two.example:{port}", {})
    assert read_one(store).data.tobytes() == BODY


def test_a_host_is_tried_at_each_of_its_addresses(server, monkeypatch):
    real = socket.getaddrinfo
    port = int(server.url.rpartition(":")[2])

    def found(host: Any, *args: Any, **kinds: Any) -> Any:
        assert host == b"two.example"
        (one,) = real("127.0.0.1", port, type=socket.SOCK_STREAM)
        return [(*one[:4], ("127.0.0.1", 1)), one]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    store = open_url(f"http://two.example:{port}", {})
    assert read_one(store).data.tobytes() == BODY


@pytest.mark.skipif(sys.platform != "linux", reason="others accept or refuse it")
def test_an_address_that_does_not_answer_leaves_time_for_the_next(monkeypatch):
    real = socket.getaddrinfo
    with (
        RawServer(lambda *_: [sized(b"body")]) as server,
        unanswering() as silent,
    ):
        port = int(server.url.rpartition(":")[2])

        def found(*_: Any, **__: Any) -> Any:
            (one,) = real("127.0.0.1", port, type=socket.SOCK_STREAM)
            return [(*one[:4], silent), one]

        monkeypatch.setattr(socket, "getaddrinfo", found)
        url = f"http://two.example:{port}"
        assert open_url(url, {}, Options(patience_s=1.5)).get("a") == b"body"


def test_stores_share_connections_if_they_have_the_same_settings(server):
    stores: list[Any] = [open_url(f"{server.url}/{i}", {}) for i in range(5)]
    assert [store.get("none") for store in stores] == [None] * 5
    assert server.n_connections == 1
    for settings in ({"headers": {"X": "y"}}, {"client_options": {"timeout": "9s"}}):
        other: Any = open_url(server.url, settings)
        assert other._client._pool is not stores[0]._client._pool
    (idle,) = stores[0]._client._pool._idle.values()
    wire = idle[0][0]
    del stores[1:]
    assert wire.socket.fileno() >= 0
    del stores
    assert wire.socket.fileno() == -1


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_between_two_lines_leaves_no_connection_open(monkeypatch):
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with warnings.catch_warnings():  # what earlier tests left is not looked at here
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    with RawServer(lambda *_: [sized(b"body")]) as server:
        store = open_url(server.url, {})
        for where in ("put", "take"):
            assert store.get("a") == b"body"
            with monkeypatch.context() as planted:
                planted.setattr(pool.ConnectionPool, where, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    store.get("a")
            gc.collect()
            assert store.get("a") == b"body"


def test_an_interrupt_while_a_host_is_reached_leaves_no_connection_open(
    server, store, monkeypatch
):
    made: list[socket.socket] = []

    def interrupted(one: socket.socket, _: Any) -> None:
        made.append(one)
        raise KeyboardInterrupt

    with monkeypatch.context() as planted:
        planted.setattr(socket.socket, "connect", interrupted)
        with pytest.raises(KeyboardInterrupt):
            read_one(store)
    (one,) = made
    assert one.fileno() == -1
    assert read_one(store).data.tobytes() == BODY


def test_a_connection_that_an_interrupt_closed_when_it_was_kept_is_not_used(
    monkeypatch,
):
    plain = pool.ConnectionPool.put

    def put(*args: Any) -> None:
        plain(*args)
        raise KeyboardInterrupt

    with RawServer(lambda *_: [sized(b"body")]) as server:
        store = open_url(server.url, {})
        with monkeypatch.context() as planted:
            planted.setattr(pool.ConnectionPool, "put", put)
            with pytest.raises(KeyboardInterrupt):
                store.get("a")
        assert store.get("a") == b"body"


def test_when_one_kept_connection_is_silent_the_others_are_not_asked():
    """So it is if a translator of addresses has forgotten them."""
    with RawServer(lambda *_: [sized(b"body")]) as server, ExitStack() as ends:
        store: Any = open_url(server.url, {}, Options(patience_s=1.5))
        answers = [store._client.get("a", None, None) for _ in range(3)]
        for answer in answers:
            with answer:
                answer.read_body(4)
        (idle,) = store._client._pool._idle.values()
        for wire, _ in idle:
            wire.socket.close()
            wire.socket, end = socket.socketpair()
            ends.enter_context(end)
        assert store.get("a") == b"body"


def test_connections_to_few_servers_are_kept(server, store, monkeypatch):
    """A server may redirect each request to another one."""
    kept = store._client._pool
    monkeypatch.setattr(pool, "_MOST_SERVERS", 3)
    place = HttpClient(server.url, store.settings)._root.origin
    for port in range(10):
        kept.put(replace(place, port=port), kept.open(place))
    assert [origin.port for _, origin in kept._idle] == [7, 8, 9]
    assert sum(map(len, kept._idle.values())) == 3

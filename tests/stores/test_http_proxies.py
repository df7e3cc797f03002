"""Proxies that lead to a web server, and hosts that are reached without."""

from __future__ import annotations

import base64
import traceback
from typing import Any
from weakref import WeakValueDictionary

import pytest

from gpushard.errors import UnsupportedError
from gpushard.options import DEFAULT
from gpushard.stores.http import pool
from gpushard.stores.http.connecting import origin_of, proxy_for
from gpushard.stores.http.settings import settings_of
from gpushard.stores.remote_url import open_url
from raw_server import RawServer, sized
from stored_object import BODY

pytestmark = pytest.mark.network


@pytest.fixture(autouse=True)
def no_earlier_pool(monkeypatch) -> None:
    """Share no proxies with stores of other tests that are still about."""
    monkeypatch.setattr(pool, "_shared", WeakValueDictionary())


def test_a_proxy_is_asked_with_the_whole_address():
    with RawServer(lambda *_: [sized(b"body")]) as proxy:
        url = proxy.url.replace("//", "//me:p%40s@")
        store: Any = open_url(
            "http://far.example/d", {"client_options": {"proxy_url": url}}
        )
        assert store.get("a b") == b"body"
        assert url not in repr((store, store.settings))
    (request,) = proxy.requests
    assert request.startswith(b"GET http://far.example/d/a%20b HTTP/1.1\r\n")
    assert b"\r\nHost: far.example\r\n" in request
    told = base64.b64encode(b"me:p@s")
    assert b"\r\nProxy-Authorization: Basic " + told + b"\r\n" in request


@pytest.mark.parametrize(
    ("excluded", "is_excluded"),
    [
        ("", False),
        ("*", True),
        ("example.org, 127.0.0.1", True),
        ("127.0.0.0/8", True),
        ("10.0.0.0/8,.0.1x", False),
    ],
)
@pytest.mark.parametrize("by", ["environment", "settings"])
def test_some_hosts_are_reached_without_the_proxy(
    server, monkeypatch, excluded, is_excluded, by
):
    for name in ("HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with RawServer(lambda *_: [sized(b"proxied")]) as proxy:
        client = {"proxy_url": proxy.url, "proxy_excludes": excluded}
        if by == "environment":
            monkeypatch.setenv("http_proxy", proxy.url)
            monkeypatch.setenv("no_proxy", excluded)
            client = {}
        store = open_url(server.url, {"client_options": client})
        assert store.get("c/0") == (BODY if is_excluded else b"proxied")


@pytest.mark.parametrize("at", ["127.0.0.1:x", "[::1", "me:p/w@127.0.0.1:1"])
def test_a_malformed_proxy_is_refused_without_its_password(at):
    client = {"proxy_url": f"http://{at}"}
    store = open_url("http://far.example", {"client_options": client})
    with pytest.raises(UnsupportedError, match="proxy is malformed") as caught:
        store.get("a")
    assert "'p'" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("url", ["socks5://127.0.0.1:1", "https://127.0.0.1:1"])
def test_a_proxy_of_another_kind_is_refused(url):
    store = open_url("http://far.example", {"client_options": {"proxy_url": url}})
    with pytest.raises(UnsupportedError, match=url.partition(":")[0]):
        store.get("a")


@pytest.mark.parametrize(
    ("excluded", "direct"),
    [
        *((f"{any_} , A.H", ["a.h", "x.a.h"]) for any_ in ("", "b", "b.a.h", ".a")),
        *((all_, ["a.h", "x.a.h", "xa.h"]) for all_ in ("h", ".h", "*.h", "*")),
        *((none, []) for none in ("", ",", "a", "x.h", "*a")),
    ],
)
def test_a_host_is_excluded_with_all_below_it(excluded, direct):
    client = {"proxy_url": "http://p", "proxy_excludes": excluded}
    settings = settings_of({"client_options": client}, DEFAULT, allows_http=True)
    hosts = ["a.h", "x.a.h", "xa.h"]
    found = [h for h in hosts if proxy_for(origin_of(f"http://{h}"), settings) is None]
    assert found == direct


def test_a_store_keeps_to_the_proxy_that_the_environment_said_at_first(
    server, monkeypatch
):
    for name in ("HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with RawServer(lambda *_: [sized(b"proxied")]) as proxy:
        store = open_url(server.url, {})
        assert store.get("c/0") == BODY
        monkeypatch.setenv("http_proxy", proxy.url)
        assert store.get("c/0") == BODY


def test_a_proxy_for_all_schemes_is_one_for_each(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with RawServer(lambda *_: [sized(b"proxied")]) as proxy:
        monkeypatch.setenv("all_proxy", proxy.url.removeprefix("http://"))
        assert open_url("http://far.example", {}).get("a") == b"proxied"

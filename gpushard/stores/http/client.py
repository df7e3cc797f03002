"""Requests to a web server, and what their answers mean.

The body of a refusal is not read, whatever size it claims.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import quote, urljoin, urlsplit

from gpushard.stores.answers import (
    CHECK_SERVER,
    NEVER,
    ObjectFacts,
    RefusalError,
    date_of,
)
from gpushard.stores.failures import failure, first_line_of, no_answer
from gpushard.stores.http.answers import HttpAnswer, lost_connection
from gpushard.stores.http.connecting import (
    NoTunnelError,
    UntrustedError,
    origin_of,
)
from gpushard.stores.http.exchange import Exchange, Resource, exchange
from gpushard.stores.http.pool import connections_of
from gpushard.stores.http.settings import HttpSettings
from gpushard.stores.http.wire import Deadline, Head

_OK, _PARTIAL, _TIMEOUT = 200, 206, 408
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_MOST_REDIRECTS = 10
# RFC 9110, 14.6: the answer to a request for several ranges, which nothing here sends.
_PARTS = "multipart/byteranges"
_CREDENTIALS = frozenset((401, 403))
# Statuses that come with a Retry-After (RFC 9110, 10.2.3; RFC 6585, 4).
_WITH_RETRY_AFTER = frozenset((429, 503))
# Headers that are not sent on to another server: credentials, and its own name.
_SECRETS = frozenset(
    (
        "authorization",
        "cookie",
        "cookie2",
        "host",
        "proxy-authorization",
        "www-authenticate",
    )
)
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_SAFE = "/%:=&?~+!$,;'@()*[]"
_MOST_DATE = 64
_CHECK_CREDENTIALS = (
    "check the credentials, or pass storage_options={'headers': {'Authorization': ...}}"
)


class HttpClient:
    """Client of one web server, as `answers.Client` says.

    Parameters
    ----------
    url
        Address of the store's root. A user name in it is not sent.
    settings
        How to talk to the server.

    Raises
    ------
    ValueError
        The URL names no web server.
    """

    def __init__(self, url: str, settings: HttpSettings) -> None:
        self._root = _resource_of(url)
        self._url = url
        self._settings = settings
        self._pool = connections_of(settings)

    def get(
        self, key: str, span: tuple[int, int | None] | None, if_match: str | None
    ) -> HttpAnswer:
        """Send a GET."""
        headers: dict[str, str] = {}
        if span is not None:
            headers["Range"] = _range_header(*span)
        if if_match is not None:
            headers["If-Match"] = if_match
        answer = self._exchange("GET", key, headers)
        try:
            return self._accepted(answer, key, span)
        except BaseException:
            answer.end()
            raise

    def head(self, key: str) -> ObjectFacts:
        """Send a HEAD."""
        answer = self._exchange("HEAD", key, {})
        try:
            if answer.head.status != _OK:
                raise _refusal_of(answer.head)
            nbytes = answer.head.headers.get("content-length")
            if nbytes is None:
                raise RefusalError("the server tells no size", is_rangeless=True)
            return _facts_of(answer.head, int(nbytes))
        finally:
            answer.end()

    def _accepted(
        self, answer: Exchange, key: str, span: tuple[int, int | None] | None
    ) -> HttpAnswer:
        """An answer with bytes; raise if it has none, or others."""
        head, announced = answer.head, None
        wanted = _OK if span is None else _PARTIAL
        if head.status not in (_OK, wanted):
            raise _refusal_of(head)
        headers = head.headers
        self._refuse_other_body(key, headers)
        if head.status == _PARTIAL:
            announced = _content_range(headers.get("content-range", ""))
        elif head.body_nbytes is not None:
            announced = 0, head.body_nbytes, head.body_nbytes
        if span is not None and (head.status == _OK or announced is None):
            raise RefusalError("the server ignores ranges", is_rangeless=True)
        facts = _facts_of(head, 0 if announced is None else announced[2])
        answered = None if announced is None else announced[:2]
        return HttpAnswer(answer, self._settings, self._url, key, facts, answered)

    def _refuse_other_body(self, key: str, headers: Mapping[str, str]) -> None:
        """Refuse a body that is not the stored bytes themselves."""
        encoding = headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise failure(
                self._url,
                key,
                "the server answered an encoded body",
                expected="the bytes as they are stored",
                got=f"Content-Encoding: {encoding}",
                hint="switch compression off on the server for this directory",
            )
        kind = headers.get("content-type", "")
        if kind.lower().startswith(_PARTS):
            raise failure(
                self._url,
                key,
                "the server answered several parts",
                expected="the bytes that were asked for",
                got=f"Content-Type: {kind}",
                hint="check the server or the proxy before it",
            )

    def _exchange(self, method: str, key: str, headers: dict[str, str]) -> Exchange:
        """Send a request, and follow redirects to the answer."""
        root = self._root
        resource = Resource(root.origin, f"{root.target.rstrip('/')}/{quote(key)}")
        headers = dict(self._settings.headers) | headers
        n_left, started = _MOST_REDIRECTS, time.monotonic()
        while True:
            answer = self._ask(method, resource, key, headers, started)
            location = answer.head.headers.get("location")
            if answer.head.status not in _REDIRECTS or location is None or not n_left:
                return answer
            n_left -= 1
            answer.end()
            resource, before = (
                self._redirected(resource, location, answer.head),
                resource,
            )
            if resource.origin != before.origin:
                headers = {
                    name: text
                    for name, text in headers.items()
                    if name.lower() not in _SECRETS
                }

    def _ask(
        self,
        method: str,
        resource: Resource,
        key: str,
        headers: Mapping[str, str],
        started: float,
    ) -> Exchange:
        limit_s = min(self._settings.wait_limits.limit_s(0), self._settings.most_s)
        deadline = Deadline(started + limit_s, self._settings.pause_s)
        try:
            return exchange(self._pool, method, resource, headers, deadline, started)
        except UntrustedError as error:
            raise RefusalError(
                first_line_of(error), hint="check the certificates"
            ) from error
        except NoTunnelError as error:
            why = first_line_of(error)
            raise RefusalError(
                why, hint="check the proxy's address and rights"
            ) from error
        except OSError as error:
            if isinstance(error, TimeoutError) and deadline.is_over:
                raise no_answer(self._url, key, limit_s) from error
            raise lost_connection(error) from error

    def _redirected(self, resource: Resource, location: str, head: Head) -> Resource:
        """Where a redirect leads."""
        try:
            target = _resource_of(urljoin(resource.url, location), "latin-1")
        except ValueError as error:
            why = "the server redirects to what is no web server"
            raise RefusalError(why, head.status) from error
        if target.origin.scheme == "http" and not self._settings.allows_http:
            raise RefusalError("the server redirects to one without TLS", head.status)
        return target


def _resource_of(url: str, encoding: str = "utf-8") -> Resource:
    """What a URL names; characters that may not stand in one are encoded.

    Raises
    ------
    ValueError
        It names no web server.
    """
    parts = urlsplit(url)
    target = quote(parts.path, safe=_SAFE, encoding=encoding) or "/"
    if parts.query:
        target += "?" + quote(parts.query, safe=_SAFE, encoding=encoding)
    return Resource(origin_of(url), target)


def _range_header(start: int, stop: int | None) -> str:
    if start < 0:
        return f"bytes={start}"
    return f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"


def _content_range(header: str) -> tuple[int, int, int] | None:
    """Half-open range and size of the object in a Content-Range; None: neither."""
    found = _RANGE.fullmatch(header)
    if found is None:
        return None
    first, last, nbytes = map(int, found.groups())
    return (first, last + 1, nbytes) if first <= last < nbytes else None


def _facts_of(head: Head, nbytes: int) -> ObjectFacts:
    modified = _date(head.headers.get("last-modified", "")[:_MOST_DATE]) or NEVER
    return ObjectFacts(nbytes, head.headers.get("etag"), modified)


# Parsing a date takes as long as the rest of a head, and objects share few of them.
_date = lru_cache(256)(date_of)


def _refusal_of(head: Head) -> RefusalError:
    """What a status means that is not the one that was hoped for."""
    status = head.status
    try:
        phrase = f" {HTTPStatus(status).phrase}"
    except ValueError:  # a number of nobody's
        phrase = ""
    retry_after = (
        head.headers.get("retry-after") if status in _WITH_RETRY_AFTER else None
    )
    return RefusalError(
        f"status code: {status}{phrase}",
        status,
        is_lost=status == _TIMEOUT,  # RFC 9110, 15.5.9: for an idle connection, too
        retry_after_s=None if retry_after is None else _retry_after_s(retry_after),
        hint=_CHECK_CREDENTIALS if status in _CREDENTIALS else CHECK_SERVER,
    )


def _retry_after_s(header: str) -> float | None:
    """Seconds that a Retry-After asks to wait (RFC 9110, 10.2.3)."""
    if header.isdecimal():
        return float(header)
    date = date_of(header[:_MOST_DATE])
    if date is None:
        return None
    return max(0.0, (date - datetime.now(UTC)).total_seconds())

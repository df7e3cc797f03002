"""What obstore does not tell of HTTP answers, asked with Python's own client."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
)
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    Request,
    build_opener,
)

from gpushard.errors import StoreError
from gpushard.stores.bodies import Pace
from gpushard.stores.failures import failure
from gpushard.stores.obstores import NEVER, headers_of, is_http
from gpushard.stores.remote_failures import refuse_other_body

if TYPE_CHECKING:
    import socket

    from obstore import ObjectMeta

_IDENTITY = {"Accept-Encoding": "identity"}
# What a redirect to another server takes along neither here nor in obstore's client.
_SECRETS = frozenset(
    ("authorization", "cookie", "cookie2", "proxy-authorization", "www-authenticate")
)


def plain_server(store: Any, url: str, pace: Pace) -> PlainServer | None:
    """The web server behind an obstore store; None where that is none."""
    return PlainServer(url, pace, headers_of(store)) if is_http(store) else None


@dataclass(frozen=True, slots=True)
class PlainServer:
    """A web server.

    Attributes
    ----------
    url
        Address of the store's root, http or https, without credentials.
    pace
        How long it may take.
    headers
        What the caller has sent with each request, credentials among them.
    """

    url: str
    pace: Pace
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def retry_after(self, key: str) -> float | None:
        """Seconds for which it wants to be left alone; None if it does not tell.

        Retry-After as seconds or as a date (RFC 9110, 10.2.3); 0 if it answers again.
        """
        try:
            with self._open(key, {"Range": "bytes=0-0"}):
                return 0.0
        except HTTPError as refusal:
            told = refusal.headers.get("Retry-After", "")
            refusal.close()  # where redirects have no end, it is closed already
            if told.isdecimal():
                return float(told)
            date = _date(told)
            return date and max(0.0, (date - datetime.now(UTC)).total_seconds())
        except (OSError, ValueError, HTTPException):
            return None

    def get_unsized(self, key: str, limit_nbytes: int) -> tuple[bytes, ObjectMeta]:
        """Object that comes without a Content-Length, in chunks, and what it tells.

        Parameters
        ----------
        limit_nbytes
            The body is read up to this size and one byte.

        Raises
        ------
        FileNotFoundError
            There is no such object.
        StoreError
            The server refused; or the body was cut, may have been, is encoded, or came
            too slowly.
        """
        try:
            with self._open(key, {}) as answer:
                _refuse_unsure(answer, self.url, key)
                body, headers = answer.read(limit_nbytes + 1), answer.headers
        except HTTPError as refusal:
            refusal.close()  # as above
            raise _refused(refusal.code, key) from refusal
        except StoreError:
            raise
        except (OSError, ValueError, HTTPException) as error:
            raise StoreError(
                f"cannot read from {self.url}: {type(error).__name__}: {error}",
                shard_key=key,
                hint="check the address, the network and the server",
            ) from error
        return body, {
            "path": key,
            "size": len(body),
            "e_tag": headers.get("ETag"),
            "last_modified": _date(headers.get("Last-Modified", "")) or NEVER,
            "version": None,
        }

    def _open(self, key: str, headers: dict[str, str]):  # noqa: ANN202 - urllib has no type for it
        """Answer to a GET."""
        told = {**self.headers, **_IDENTITY, **headers}
        request = Request(f"{self.url}/{quote(key)}", headers=told)  # noqa: S310 - no file
        opener = build_opener(_Http(self.pace), _Https(self.pace), _Redirects)
        return opener.open(request, timeout=self.pace.pause_s)


def _refused(status: int, key: str) -> FileNotFoundError | StoreError:
    if status == 404:
        return FileNotFoundError(key)
    return StoreError(f"status code: {status}", shard_key=key)


def _date(told: str) -> datetime | None:
    """Date of a header; None if it is none."""
    try:
        return parsedate_to_datetime(told).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _refuse_unsure(answer: HTTPResponse, url: str, key: str) -> None:
    """Refuse a body that is encoded, or that may be cut without a sign of it."""
    refuse_other_body(url, key, answer.headers.get)
    if not answer.chunked and answer.length is None:
        raise failure(
            StoreError,
            url,
            key,
            "the server does not tell where the object ends",
            expected="a Content-Length, or an answer in chunks",
            hint="check the server or the proxy before it",
        )


class _Redirects(HTTPRedirectHandler):
    """Follows redirects without their bodies, which have no bounded length.

    Credentials are for the server that the caller has named.
    """

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        fp.close()
        if urlsplit(newurl).scheme not in ("http", "https"):  # it follows ftp, too
            raise URLError("the server redirects to what is no web server")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and _origin(req.full_url) != _origin(newurl):
            for name in [n for n in request.headers if n.lower() in _SECRETS]:
                request.remove_header(name)
        return request


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port of a URL.

    Raises
    ------
    ValueError
        The port is none.
    """
    parts = urlsplit(url)
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, parts.port or usual


class _Http(HTTPHandler):
    """Opens ``http://`` with answers at a pace."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace

    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_paced(HTTPConnection, self._pace), req)


class _Https(HTTPSHandler):
    """Opens ``https://`` with answers at a pace."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace

    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_paced(HTTPSConnection, self._pace), req)


def _paced(make: Callable[..., HTTPConnection], pace: Pace) -> Any:
    """Connections as `make` makes them, but for the time that answers may take."""

    def connect(*args: Any, **kinds: Any) -> HTTPConnection:
        connection = make(*args, **kinds)
        connection.response_class = partial(_PacedResponse, pace)  # pyright: ignore[reportAttributeAccessIssue] - called like the class
        return connection

    return connect


class _PacedResponse(HTTPResponse):
    """Answer whose head and body are read within the time that `pace` gives."""

    def __init__(
        self, pace: Pace, sock: socket.socket, *args: Any, **kinds: Any
    ) -> None:
        super().__init__(sock, *args, **kinds)
        self.fp = io.BufferedReader(_PacedReader(pace, sock, self.fp.detach()))


class _PacedReader(io.RawIOBase):
    """Bytes of a socket, each within the time for all that came so far."""

    def __init__(self, pace: Pace, sock: socket.socket, raw: io.RawIOBase) -> None:
        self._pace = pace
        self._socket = sock
        self._raw = raw
        self._started = time.monotonic()
        self._n_read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int | None:
        left = self._started + self._pace.limit_s(self._n_read) - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(min(left, self._pace.pause_s))
            n = self._raw.readinto(into)
        except TimeoutError as error:
            told = f"no more than {self._n_read} bytes came in time"
            raise TimeoutError(told) from error
        self._n_read += n or 0
        return n

    def close(self) -> None:
        self._raw.close()
        super().close()

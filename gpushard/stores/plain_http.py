"""HTTP requests with Python's own client, for facts that obstore does not tell."""

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
# Headers that a redirect to another server drops, here and in obstore's client.
_SECRETS = frozenset(
    ("authorization", "cookie", "cookie2", "proxy-authorization", "www-authenticate")
)


def plain_server(store: Any, url: str, pace: Pace) -> PlainServer | None:
    """The web server behind an obstore store; None for any other store."""
    return PlainServer(url, pace, headers_of(store)) if is_http(store) else None


@dataclass(frozen=True, slots=True)
class PlainServer:
    """A web server.

    Attributes
    ----------
    url
        Address of the store's root, http or https, without credentials.
    pace
        How long the server may take.
    headers
        Headers that the caller sends with each request, credentials included.
    """

    url: str
    pace: Pace
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def retry_after(self, key: str) -> float | None:
        """Seconds that the server asks to wait; None if it does not say.

        Parses Retry-After as seconds or as a date (RFC 9110, 10.2.3). 0 if the server
        answers again.
        """
        try:
            with self._open(key, {"Range": "bytes=0-0"}):
                return 0.0
        except HTTPError as refusal:
            told = refusal.headers.get("Retry-After", "")
            refusal.close()  # in a loop of redirects it is closed already
            if told.isdecimal():
                return float(told)
            date = _date(told)
            return date and max(0.0, (date - datetime.now(UTC)).total_seconds())
        except (OSError, ValueError, HTTPException):
            return None

    def get_unsized(self, key: str, limit_nbytes: int) -> tuple[bytes, ObjectMeta]:
        """Body and metadata of an object that comes in chunks, without Content-Length.

        Parameters
        ----------
        limit_nbytes
            At most one byte more than this is read of the body.

        Raises
        ------
        FileNotFoundError
            The object does not exist.
        StoreError
            The server refused the request. Or the body is encoded, came too slowly, was
            cut, or may have been cut.
        """
        try:
            with self._open(key, {}) as answer:
                _refuse_unsure(answer, self.url, key)
                body, headers = answer.read(limit_nbytes + 1), answer.headers
        except HTTPError as refusal:
            refusal.close()  # see `retry_after`
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
        """Send a GET, and return the answer."""
        told = {**self.headers, **_IDENTITY, **headers}
        request = Request(f"{self.url}/{quote(key)}", headers=told)  # noqa: S310 - no file
        opener = build_opener(_Http(self.pace), _Https(self.pace), _Redirects)
        return opener.open(request, timeout=self.pace.pause_s)


def _refused(status: int, key: str) -> FileNotFoundError | StoreError:
    if status == 404:
        return FileNotFoundError(key)
    return StoreError(f"status code: {status}", shard_key=key)


def _date(told: str) -> datetime | None:
    """Date in a header; None if it has none."""
    try:
        return parsedate_to_datetime(told).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _refuse_unsure(answer: HTTPResponse, url: str, key: str) -> None:
    """Refuse a body that is encoded, or that could be cut without a sign of it."""
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
    """Follows redirects without reading their bodies, which may be of any length.

    Credentials are not sent to a server that the caller has not named.
    """

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        fp.close()
        if urlsplit(newurl).scheme not in ("http", "https"):  # urllib follows ftp, too
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
        The port is not a number.
    """
    parts = urlsplit(url)
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, parts.port or usual


class _Http(HTTPHandler):
    """Opens ``http://`` URLs, with a time limit for answers."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace

    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_paced(HTTPConnection, self._pace), req)


class _Https(HTTPSHandler):
    """Opens ``https://`` URLs, with a time limit for answers."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace

    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_paced(HTTPSConnection, self._pace), req)


def _paced(make: Callable[..., HTTPConnection], pace: Pace) -> Any:
    """Function like `make`, whose connections limit the time for answers."""

    def connect(*args: Any, **kinds: Any) -> HTTPConnection:
        connection = make(*args, **kinds)
        connection.response_class = partial(_PacedResponse, pace)  # pyright: ignore[reportAttributeAccessIssue] - called like the class
        return connection

    return connect


class _PacedResponse(HTTPResponse):
    """Answer whose head and body must arrive within the time that `pace` gives."""

    def __init__(
        self, pace: Pace, sock: socket.socket, *args: Any, **kinds: Any
    ) -> None:
        super().__init__(sock, *args, **kinds)
        self.fp = io.BufferedReader(_PacedReader(pace, sock, self.fp.detach()))


class _PacedReader(io.RawIOBase):
    """Reader of a socket; each read has the time left for all bytes so far."""

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

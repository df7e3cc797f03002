"""What obstore does not tell of HTTP answers, asked with Python's own client."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
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
from gpushard.stores.obstores import NEVER
from gpushard.stores.remote_failures import encoded_body

if TYPE_CHECKING:
    import socket

    from obstore import ObjectMeta

_IDENTITY = {"Accept-Encoding": "identity"}


def retry_after(url: str, key: str, pace: Pace) -> float | None:
    """Seconds for which a server wants to be left alone; None if it does not tell.

    Retry-After as seconds or as a date (RFC 9110, 10.2.3); 0 if it answers again.
    """
    try:
        with _open(url, key, {"Range": "bytes=0-0"}, pace):
            return 0.0
    except HTTPError as refusal:
        with refusal:
            told = refusal.headers.get("Retry-After", "")
        if told.isdecimal():
            return float(told)
        date = _date(told)
        return date and max(0.0, (date - datetime.now(UTC)).total_seconds())
    except (OSError, ValueError, HTTPException):
        return None


def _date(told: str) -> datetime | None:
    """Date of a header; None if it is none."""
    try:
        return parsedate_to_datetime(told).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def get_unsized(
    url: str, key: str, limit_nbytes: int, pace: Pace
) -> tuple[bytes, ObjectMeta]:
    """Object that comes without a Content-Length, in chunks, and what is told of it.

    Parameters
    ----------
    limit_nbytes
        The body is read up to this size and one byte.

    Raises
    ------
    FileNotFoundError
        There is no such object.
    StoreError
        The server refused; or the body was cut, may have been, is encoded, or came too
        slowly.
    """
    try:
        with _open(url, key, {}, pace) as answer:
            _refuse_unsure(answer, url, key)
            body, headers = answer.read(limit_nbytes + 1), answer.headers
    except HTTPError as refusal:
        with refusal:
            if refusal.code == 404:
                raise FileNotFoundError(key) from refusal
            raise StoreError(f"status code: {refusal.code}", shard_key=key) from refusal
    except StoreError:
        raise
    except (OSError, ValueError, HTTPException) as error:
        raise StoreError(
            f"cannot read from {url}: {type(error).__name__}: {error}",
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


def _refuse_unsure(answer: HTTPResponse, url: str, key: str) -> None:
    """Refuse a body that is encoded, or that may be cut without a sign of it."""
    encoding = answer.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise encoded_body(url, key, encoding)
    if not answer.chunked and answer.length is None:
        raise failure(
            StoreError,
            url,
            key,
            "the server does not tell where the object ends",
            expected="a Content-Length, or an answer in chunks",
            hint="check the server or the proxy before it",
        )


def _open(url: str, key: str, headers: dict[str, str], pace: Pace):  # noqa: ANN202 - urllib has no type for it
    """Answer to a GET; `url` is that of a store, which is http or https."""
    request = Request(f"{url}/{quote(key)}", headers={**_IDENTITY, **headers})  # noqa: S310
    opener = build_opener(_Http(pace), _Https(pace), _Redirects)
    return opener.open(request, timeout=pace.pause_s)


class _Redirects(HTTPRedirectHandler):
    """Follows redirects without their bodies, which have no bounded length."""

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        fp.close()
        if urlsplit(newurl).scheme not in ("http", "https"):  # it follows ftp, too
            raise URLError("the server redirects to what is no web server")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


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

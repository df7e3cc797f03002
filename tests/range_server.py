"""An HTTP server on loopback that answers ranges, counts, and misbehaves on demand.

with RangeServer(directory) as server:
    store = open_url(server.url, {})
    ...
    assert server.count("c/0") == 2
"""

from __future__ import annotations

import gzip
import mmap
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import unquote


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the server saw it; `key` is relative to the directory."""

    method: str
    key: str
    range_header: str | None
    status: int


@dataclass
class RangeServer:
    """Serves the files below `directory`; every setting may be changed while it runs.

    Attributes
    ----------
    etags
        Kind of ETag in answers, or a "date" instead; None: neither.
    answers_ranges
        False: every GET is answered 200 with the whole body.
    answers_suffixes
        False: ``bytes=-n`` is answered `suffix_status`; 200 with the whole body.
    checks_if_match
        False: If-Match is ignored.
    cut_bodies
        Whether the connection is closed in the middle of each body.
    shift_ranges
        Ranges are answered this many bytes late.
    statuses
        Key -> status that all its requests are answered with.
    silence_s
        Seconds each request waits before its answer.
    fail_first, failure
        So many requests are answered `failure`, or their connection is reset (0).
    retry_after
        What failures tell in Retry-After.
    cut_first
        So many bodies are cut in the middle.
    transfer
        How bodies come: "plain", "chunked" (no Content-Length), "gzip", both, or
        "closed" (only the end of the connection is their end).
    tells_ranges
        How 206 answers tell the range: "all", without the "total", or "nothing".
    stretch
        Ranges are answered with so many bytes more.
    padding
        Bodies of ranges are so many bytes longer than the range that they tell.
    garbles
        Whether ranges are answered with other bytes than the object's.
    answers_head
        False: HEAD is answered 405.
    head_nbytes
        Size that a HEAD tells, whatever it is.
    redirects
        Whether a request is first sent elsewhere, or the address where to.
    page
        What missing keys are answered with the status 200 instead of 404.
    content_type
        What answers tell of it.
    trickles
        Which part of each answer comes a byte at a time, a "head" without an end.
    wants
        Name and value of a header without which requests are answered 401.
    before_answer
        Called with each request's method and key before the file is looked at.
    requests
        Every request answered so far.
    n_connections
        How many connections were accepted so far.
    """

    directory: Path
    etags: Literal["strong", "weak", "date"] | None = "strong"
    answers_ranges: bool = True
    answers_suffixes: bool = True
    suffix_status: int = 501
    checks_if_match: bool = True
    cut_bodies: bool = False
    shift_ranges: int = 0
    statuses: dict[str, int] = field(default_factory=dict[str, int])
    silence_s: float = 0
    fail_first: int = 0
    failure: int = 503
    retry_after: str | None = None
    cut_first: int = 0
    transfer: Literal["plain", "chunked", "gzip", "gzip chunked", "closed"] = "plain"
    tells_ranges: Literal["all", "total", "nothing"] = "all"
    stretch: int = 0
    padding: int = 0
    garbles: bool = False
    answers_head: bool = True
    head_nbytes: int | None = None
    redirects: bool | str = False
    page: bytes | None = None
    content_type: str | None = None
    trickles: Literal["head", "body"] | None = None
    wants: tuple[str, str] | None = None
    before_answer: Callable[[str, str], None] | None = None
    requests: list[Request] = field(default_factory=list[Request])
    n_connections: int = 0

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.settings = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """URL of the directory."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def count(self, key: str | None = None, method: str | None = None) -> int:
        """Count the requests answered so far, of one key or method if given."""
        return sum(
            (key is None or request.key == key)
            and (method is None or request.method == method)
            for request in list(self.requests)
        )


# A byte comes well before a silent server is given up, and no test waits for them all.
_BYTE_S = 0.05
_ENDLESS = 10_000
_LARGE_NBYTES = 1 << 20


def _content(path: Path) -> Any:
    """Bytes of a file; of a large one no more is read than is taken of it."""
    if path.stat().st_size < _LARGE_NBYTES:
        return path.read_bytes()
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    settings: RangeServer

    def get_request(self) -> tuple[socket.socket, Any]:
        """Count the connections."""
        self.settings.n_connections += 1
        return super().get_request()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent: clients that give up early are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One packet an answer: else Nagle's algorithm adds 40 ms to each.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Server  # narrowed

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        settings = self.server.settings
        key = unquote(self.path).lstrip("/")
        if settings.redirects and not key.startswith("elsewhere/"):
            place = "/" if settings.redirects is True else settings.redirects
            to = f"{place}elsewhere/{key}"
            self._send(302, {"Location": to}, b"", with_body=False)
            return
        key = key.removeprefix("elsewhere/")
        if settings.before_answer is not None:
            settings.before_answer(self.command, key)
        time.sleep(settings.silence_s)
        status, headers, body = self._prepare(key)
        settings.requests.append(
            Request(self.command, key, self.headers.get("Range"), status)
        )
        if status == 0:
            self._reset()
        else:
            self._send(status, headers, body, with_body=with_body)

    def _reset(self) -> None:
        """End the connection with a reset instead of an answer."""
        at_once = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        self.connection.close()
        self.close_connection = True

    def _send(
        self, status: int, headers: dict[str, str], body: Any, *, with_body: bool
    ) -> None:
        settings = self.server.settings
        if settings.transfer.startswith("gzip") and body:
            body = gzip.compress(body)
            headers["Content-Encoding"] = "gzip"
        if settings.content_type is not None:
            headers["Content-Type"] = settings.content_type
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        is_cut = settings.cut_bodies or settings.cut_first > 0
        if settings.transfer == "closed":
            self.send_header("Connection", "close")
        elif settings.transfer.endswith("chunked"):
            self.send_header("Transfer-Encoding", "chunked")
            ends = b"" if is_cut else b"0\r\n\r\n"
            body = b"%x\r\n%b\r\n%b" % (len(body), body, ends) if body else ends
        else:
            lies = settings.head_nbytes is not None and not with_body
            told = settings.head_nbytes if lies else len(body)
            self.send_header("Content-Length", str(told))
        if settings.trickles == "head":
            self.flush_headers()
            self._trickle(b"X-Slow: " + bytes(b"a" * _ENDLESS))
        self.end_headers()
        if settings.trickles == "body" and with_body:
            self._trickle(body)
            return
        if with_body and is_cut and body:
            settings.cut_first -= 1
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif with_body:
            self.wfile.write(body)

    def _trickle(self, data: bytes) -> None:
        """Send a byte at a time, until the client has enough of it."""
        for byte in data:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            time.sleep(_BYTE_S)

    def _prepare(self, key: str) -> tuple[int, dict[str, str], Any]:
        """Status, headers and body of the answer."""
        settings = self.server.settings
        path = settings.directory / key
        if settings.wants and self.headers.get(settings.wants[0]) != settings.wants[1]:
            return 401, {}, b""
        if settings.fail_first > 0:
            settings.fail_first -= 1
            told = settings.retry_after
            return settings.failure, {"Retry-After": told} if told else {}, b""
        status = settings.statuses.get(key)
        if self.command == "HEAD" and not settings.answers_head:
            status = 405
        if status is None and not path.is_file():
            status = 404 if settings.page is None else 200
        if status is not None:
            return status, {}, settings.page or b""
        body = _content(path)
        headers = self._headers_of(path)
        wanted = self.headers.get("If-Match")
        if (
            settings.checks_if_match
            and wanted is not None
            and wanted != headers.get("ETag")
        ):
            return 412, headers, b""
        asked = self.headers.get("Range")
        if asked is None or not settings.answers_ranges:
            return 200, headers, body
        return self._prepare_range(asked, headers, body)

    def _headers_of(self, path: Path) -> dict[str, str]:
        etags = self.server.settings.etags
        if etags is None:
            return {}
        status = path.stat()
        if etags == "date":
            return {"Last-Modified": self.date_time_string(int(status.st_mtime))}
        tag = f'"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"'
        return {"ETag": tag if etags == "strong" else f"W/{tag}"}

    def _prepare_range(
        self, asked: str, headers: dict[str, str], body: Any
    ) -> tuple[int, dict[str, str], bytes]:
        settings = self.server.settings
        first, _, last = asked.removeprefix("bytes=").partition("-")
        if not first and not settings.answers_suffixes:
            is_ignored = settings.suffix_status == 200
            return settings.suffix_status, headers, body if is_ignored else b""
        start = int(first) if first else max(0, len(body) - int(last))
        stop = min(len(body), int(last) + 1) if first and last else len(body)
        if start >= len(body):
            return 416, {"Content-Range": f"bytes */{len(body)}"}, b""
        start += settings.shift_ranges
        stop = min(stop + settings.shift_ranges + settings.stretch, len(body))
        total = len(body) if settings.tells_ranges == "all" else "*"
        if settings.tells_ranges != "nothing":
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{total}"
        part = body[start:stop] + bytes(settings.padding)
        return 206, headers, bytes(b ^ 1 for b in part) if settings.garbles else part

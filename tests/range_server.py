"""An HTTP server on loopback that answers ranges, counts, and misbehaves on demand.

with RangeServer(directory) as server:
    store = open_url(server.url, {})
    ...
    assert server.count("c/0") == 2
"""

from __future__ import annotations

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
        Kind of ETag in answers; None: no ETag.
    answers_ranges
        False: every GET is answered 200 with the whole body.
    answers_suffixes
        False: ``bytes=-n`` is answered `suffix_status`.
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
    before_answer
        Called with each request's method and key before the file is looked at.
    requests
        Every request answered so far.
    """

    directory: Path
    etags: Literal["strong", "weak"] | None = "strong"
    answers_ranges: bool = True
    answers_suffixes: bool = True
    suffix_status: int = 501
    checks_if_match: bool = True
    cut_bodies: bool = False
    shift_ranges: int = 0
    statuses: dict[str, int] = field(default_factory=dict[str, int])
    silence_s: float = 0
    before_answer: Callable[[str, str], None] | None = None
    requests: list[Request] = field(default_factory=list[Request])

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


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    settings: RangeServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent: clients that give up early are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One packet an answer: else Nagle's algorithm adds 40 ms to each.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]  narrowed

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        settings = self.server.settings
        key = unquote(self.path).lstrip("/")
        if settings.before_answer is not None:
            settings.before_answer(self.command, key)
        time.sleep(settings.silence_s)
        status, headers, body = self._prepare(key)
        settings.requests.append(
            Request(self.command, key, self.headers.get("Range"), status)
        )
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body and settings.cut_bodies and body:
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif with_body:
            self.wfile.write(body)

    def _prepare(self, key: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer."""
        settings = self.server.settings
        path = settings.directory / key
        if key in settings.statuses:
            return settings.statuses[key], {}, b""
        if not path.is_file():
            return 404, {}, b""
        body = path.read_bytes()
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
        tag = f'"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"'
        return {"ETag": tag if etags == "strong" else f"W/{tag}"}

    def _prepare_range(
        self, asked: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        settings = self.server.settings
        first, _, last = asked.removeprefix("bytes=").partition("-")
        if not first and not settings.answers_suffixes:
            return settings.suffix_status, {}, b""
        start = int(first) if first else max(0, len(body) - int(last))
        stop = min(len(body), int(last) + 1) if first and last else len(body)
        if start >= len(body):
            return 416, {"Content-Range": f"bytes */{len(body)}"}, b""
        start += settings.shift_ranges
        stop = min(stop + settings.shift_ranges, len(body))
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
        return 206, headers, body[start:stop]

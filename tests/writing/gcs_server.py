"""A server in this process that speaks as much of Google's storage as is needed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_NAMED = "x-goog-meta-"

Objects = dict[str, tuple[int, bytes]]
"""Generation and bytes, by path."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        found = self.server.objects.get(self.path)
        if found is None:
            self._answer(404)
            return
        generation, data = found
        named = self.headers.get("If-Match")
        if named not in (None, _e_tag(generation)):
            self._answer(412)
            return
        span = self.headers.get("Range")
        if span is None or not data:
            self._answer(200, data, generation)
            return
        first, _, last = span.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, len(data) - int(last))
        stop = min(int(last) + 1, len(data)) if first and last else len(data)
        told = {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
        self._answer(206, data[start:stop], generation, told)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        wanted = self.headers.get("x-goog-if-generation-match")
        with self.server.turns:
            old, _ = self.server.objects.get(self.path, (0, b""))
            if wanted is not None and int(wanted) != old:
                self._answer(412)
                return
            self.server.n_puts += 1
            self.server.objects[self.path] = self.server.n_puts, data
            told = {k: v for k, v in self.headers.items() if k.startswith(_NAMED)}
            self.server.metadata[self.path] = told
            is_lost = self.path.endswith(self.server.lost)
            self.server.lost = ("/",) if is_lost else self.server.lost
            self._answer(504 if is_lost else 200, b"", self.server.n_puts)

    def do_DELETE(self) -> None:
        found = self.server.objects.pop(self.path, None)
        self._answer(404 if found is None else 204)

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(
        self,
        status: int,
        data: bytes = b"",
        generation: int | None = None,
        told: dict[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        headers = {"Content-Length": str(len(data)), **(told or {})}
        headers |= self.server.metadata.get(self.path, {})
        if generation is not None:
            headers |= {
                "ETag": _e_tag(generation),
                "x-goog-generation": str(generation),
                "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT",
            }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, lost: tuple[str, ...]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: Objects = {}
        self.turns = threading.Lock()
        self.n_puts = 0
        self.metadata: dict[str, dict[str, str]] = {}
        self.lost = lost


@contextmanager
def gcs_server(*lost: str) -> Iterator[dict[str, str]]:
    """Configuration of obstore's `GCSStore` for a server with one empty bucket.

    The answer to the first put of a path that ends in one of `lost` is lost.
    """
    server = _Server(lost or ("/",))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    account = {
        "gcs_base_url": address,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    yield {"service_account_key": json.dumps(account)}
    server.shutdown()
    server.server_close()


def _e_tag(generation: int) -> str:
    return f'"generation-{generation}"'

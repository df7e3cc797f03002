"""A proxy before an HTTP server that loses answers: what was asked for has happened."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_BY_HOP = frozenset(("connection", "transfer-encoding", "content-length", "date"))


@dataclass
class LosingProxy:
    """What becomes of answers; may be changed while it runs.

    Attributes
    ----------
    endpoint
        Address of the server behind it.
    url
        Its own.
    loses
        How many answers to the next requests of `method` for keys that end in `ending`
        are lost.
    status
        What is answered instead of one; 0: the connection ends without an answer.
    seen
        Method and path of every request.
    """

    endpoint: str
    url: str = ""
    loses: int = 0
    method: str = "PUT"
    ending: str = ""
    status: int = 504
    seen: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def takes(self, method: str, path: str) -> bool:
        """Whether the answer to this request is lost."""
        self.seen.append((method, path))
        is_meant = method == self.method and path.endswith(self.ending)
        if is_meant and self.loses:
            self.loses -= 1
            return True
        return False


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server  # narrowed

    def _pass_on(self) -> None:
        settings = self.server.settings
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        there = http.client.HTTPConnection(urlsplit(settings.endpoint).netloc)
        there.request(self.command, self.path, body, dict(self.headers))
        answer = there.getresponse()
        status, headers, found = answer.status, answer.getheaders(), answer.read()
        there.close()
        if settings.takes(self.command, urlsplit(self.path).path):
            if not settings.status:
                self.close_connection = True
                return
            status, headers, found = settings.status, [], b""
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in _BY_HOP:
                self.send_header(name, value)
        size = (
            len(found) if self.command != "HEAD" else answer.getheader("content-length")
        )
        self.send_header("Content-Length", str(size or 0))
        self.end_headers()
        self.wfile.write(found)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815 - its names

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    settings: LosingProxy


@contextmanager
def losing_proxy(endpoint: str) -> Iterator[LosingProxy]:
    """A running proxy before `endpoint`, which loses nothing yet."""
    server = _Server(("127.0.0.1", 0), _Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    server.settings = LosingProxy(endpoint, url)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server.settings
    server.shutdown()
    server.server_close()

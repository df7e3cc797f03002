"""What a URL's `storage_options` become."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("obstore", reason="URLs need obstore (extra `remote`)")

from gpushard.stores.remote_url import open_url


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"X-Key": "secret"}},
        {"client_options": {"default_headers": {"X-Key": "secret"}}},
    ],
    ids=["fsspec", "obstore"],
)
def test_headers_go_with_every_request_beside_the_one_that_forbids_encoding(options):
    told: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            told.append({name.lower(): text for name, text in self.headers.items()})
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"hi")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        store = open_url(f"http://127.0.0.1:{server.server_port}/a", options)
        assert store.get("b") == b"hi"
        server.shutdown()
        thread.join()
    assert {(one["x-key"], one["accept-encoding"]) for one in told} == {
        ("secret", "identity")
    }

"""What a URL's `storage_options` become."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("obstore", reason="URLs need obstore (extra `remote`)")

from obstore.exceptions import GenericError

from gpushard.stores.obstores import refusal_of
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


def test_an_expired_token_is_told_from_a_server_that_fails():
    answer = "Server returned non-2xx status code: 400 Bad Request: <Error><Code>"
    for code, hint in (("ExpiredToken", "renew the cred"), ("Bad", "check the addr")):
        error = GenericError(f"GET https://x/y - {answer}{code}</Code>")
        assert refusal_of(error).hint.startswith(hint)


@pytest.mark.parametrize(
    ("code", "status"),
    [("NoSuchBucket", None), ("ContainerNotFound", None), ("NoSuchKey", 404)],
)
def test_what_lies_in_no_bucket_is_no_missing_object(code, status):
    error = FileNotFoundError(f"GET https://x/y - 404 Not Found: <Code>{code}</Code>")
    assert refusal_of(error).status == status


@pytest.mark.parametrize(
    "asked",
    [
        "PUT http://169.254.169.254/latest/api/token",
        "GET http://metadata.google.internal/computeMetadata/v1/instance",
    ],
)
def test_a_machine_without_credentials_says_nothing_of_an_object(asked):
    """Whose status would be taken for that of the object, and 403 for a missing one."""
    answer = "Server returned non-2xx status code: 403 Forbidden"
    refusal = refusal_of(GenericError(f"Error performing {asked} in 1 ms - {answer}"))
    assert refusal.status is None
    assert "skip_signature" in refusal.hint
    refusal = refusal_of(GenericError(f"Error performing GET https://x/y - {answer}"))
    assert refusal.status == 403


@pytest.mark.parametrize("url", ["s3://bucket/a", "gs://bucket/a"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("allow_http", True),
        ("timeout", "5s"),
        ("proxy_url", "http://example.org"),
        ("pool_max_idle_per_host", "2"),
        ("user_agent", "somebody"),
    ],
)
def test_settings_of_the_client_may_lie_beside_those_of_the_store(url, name, value):
    beside = open_url(url, {name: value, "skip_signature": True})
    inside = open_url(url, {"client_options": {name: value}, "skip_signature": True})
    told, expected = (store.object_store.client_options for store in (beside, inside))
    assert told == expected
    assert name in told

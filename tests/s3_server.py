"""moto's S3 server on the loopback interface, with one bucket."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def s3_server() -> Iterator[str]:
    """Address of a running server."""
    reason = "moto's server is not installed"
    moto_server = pytest.importorskip("moto.server", reason=reason)
    running = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


def make_bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Storage options for ``s3://bucket``, which is there now."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    make = urllib.request.Request(f"{endpoint}/bucket", method="PUT")
    urllib.request.urlopen(make).close()
    return {
        "endpoint_url": endpoint,
        "key": "test",
        "secret": "test",
        "region": "us-east-1",
    }

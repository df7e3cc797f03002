"""Connections with TLS: whom they trust, what they keep, and through which proxy."""

from __future__ import annotations

import base64
import ipaddress
import pickle
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpushard.errors import StoreError
from gpushard.stores.http import connecting
from gpushard.stores.remote_url import open_url
from raw_server import RawServer, sized
from stored_object import BODY

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """File with a certificate of 127.0.0.1, which only it vouches for, and its key."""
    reason = "the tests of TLS need cryptography, which moto brings"
    x509 = pytest.importorskip("cryptography.x509", reason=reason)
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 7)
        .not_valid_before(datetime.now(UTC) - timedelta(1))
        .not_valid_after(datetime.now(UTC) + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    place = tmp_path_factory.mktemp("tls") / "certificate.pem"
    pem = serialization.Encoding.PEM
    own = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    place.write_bytes(own + made.public_bytes(pem))
    return place


@pytest.fixture
def secure(certificate) -> Iterator[RawServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with RawServer(lambda *_: [sized(b"body")], context) as running:
        yield running


def trusting(certificate: Path, **settings: Any) -> dict[str, Any]:
    pem = certificate.read_text()
    only = pem[pem.index("-----BEGIN CERTIFICATE") :]
    return {"client_options": {"root_certificate": only, **settings}}


def test_a_server_with_tls_is_read_over_one_connection(secure, certificate):
    store = open_url(secure.url, trusting(certificate))
    assert [store.get("a") for _ in range(3)] == [b"body"] * 3
    assert pickle.loads(pickle.dumps(store)).get("a") == b"body"
    assert secure.n_connections == 1


def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(secure, no_pauses):
    with pytest.raises(StoreError, match="CERTIFICATE_VERIFY_FAILED"):
        open_url(secure.url, {}).get("a")
    settings = {"client_options": {"allow_invalid_certificates": True}}
    assert open_url(secure.url, settings).get("a") == b"body"


@pytest.fixture
def no_certificates(monkeypatch, tmp_path) -> Iterator[None]:
    """A system without certificates, as OpenSSL sees it."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    connecting._tls.cache_clear()
    yield
    connecting._tls.cache_clear()


@pytest.mark.usefixtures("no_certificates")
def test_certifi_vouches_where_the_system_has_no_certificates(
    secure, certificate, monkeypatch, tmp_path
):
    certifi = SimpleNamespace(where=lambda: str(certificate))
    monkeypatch.setitem(sys.modules, "certifi", certifi)
    assert open_url(secure.url, {}).get("a") == b"body"
    connecting._tls.cache_clear()
    (tmp_path / "0.0").touch()  # the system has some
    with pytest.raises(StoreError, match="CERTIFICATE_VERIFY_FAILED"):
        open_url(secure.url, {}).get("a")


@pytest.mark.usefixtures("no_certificates")
def test_without_any_certificates_no_server_is_trusted(secure, monkeypatch):
    monkeypatch.setitem(sys.modules, "certifi", None)
    with pytest.raises(StoreError, match="CERTIFICATE_VERIFY_FAILED"):
        open_url(secure.url, {}).get("a")


def test_no_request_follows_a_record_with_more_than_an_answer(secure, certificate):
    """TLS hands out the body alone, and keeps what came behind it in one record."""
    body = bytes(40_000)  # its end lies in a record of 16 KiB with what follows
    secure._answer = lambda *_: [sized(body) + sized(b"evil")]
    store = open_url(secure.url, trusting(certificate))
    for n in range(1, 4):
        assert store.get("a") == body
        assert secure.n_connections == n


def test_a_proxy_leads_to_a_server_with_tls_through_a_tunnel(secure, certificate):
    host = secure.url.removeprefix("https://")
    asked: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        """Pass bytes on in both directions, as a proxy does after a CONNECT."""
        here, _ = listener.accept()
        asked.append(here.recv(1 << 16))
        there = socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2])))
        here.sendall(b"HTTP/1.1 200 Connected\r\nX: y\r\n\r\n")

        def pass_on(a: socket.socket, b: socket.socket) -> None:
            with suppress(OSError):  # one side has ended
                while data := a.recv(1 << 16):
                    b.sendall(data)
                b.shutdown(socket.SHUT_WR)

        back = threading.Thread(target=pass_on, args=(there, here))
        back.start()
        pass_on(here, there)
        back.join()
        here.close()
        there.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = f"http://me:pw@127.0.0.1:{listener.getsockname()[1]}"
        serving = threading.Thread(target=serve, args=(listener,))
        serving.start()
        store: Any = open_url(secure.url, trusting(certificate, proxy_url=proxy))
        assert [store.get("a") for _ in range(2)] == [b"body"] * 2
        store._client._pool.close()
        serving.join()
    told = base64.b64encode(b"me:pw").decode()
    assert asked == [
        f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n"
        f"Proxy-Authorization: Basic {told}\r\n\r\n".encode()
    ]
    assert b"Proxy-Authorization" not in secure.requests[0]


def test_a_proxy_that_builds_no_tunnel_is_an_error_at_once(no_pauses):
    with RawServer(lambda *_: [sized(b"", status="407 x")]) as proxy:
        settings = {"client_options": {"proxy_url": proxy.url}}
        with pytest.raises(StoreError, match=r"407 .*check the proxy"):
            open_url("https://far.example", settings).get("a")


def test_bytes_of_a_proxy_are_not_taken_for_those_of_the_server():
    with RawServer(lambda *_: [b"HTTP/1.1 200 x\r\n\r\nevil"]) as proxy:
        once = {"retry_config": {"max_retries": 0}}
        settings = {"client_options": {"proxy_url": proxy.url}, **once}
        with pytest.raises(StoreError, match="more than an answer to a CONNECT"):
            open_url("https://far.example", settings).get("a")


def test_a_server_with_tls_redirects_to_none_without(secure, certificate, server):
    answer = sized(b"", f"Location: {server.url}/c/0", status="302 x")
    secure._answer = lambda *_: [answer]
    with pytest.raises(StoreError, match="one without TLS"):
        open_url(secure.url, trusting(certificate)).get("a")
    allowed = trusting(certificate, allow_http=True)
    assert open_url(secure.url, allowed).get("a") == BODY

"""Connections to web servers: addresses, proxies and TLS."""

from __future__ import annotations

import base64
import ipaddress
import re
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from gpushard.errors import UnsupportedError
from gpushard.stores.http.settings import HttpSettings
from gpushard.stores.http.wire import BrokenAnswerError, Deadline, Wire, read_head

if TYPE_CHECKING:
    import ssl

# Names, and addresses of both kinds with their zones. TLS takes no empty or longer
# label, and would leave the refused connection open.
_HOST = re.compile(r"(?:[0-9A-Za-z_:%~-]{1,63}\.)*[0-9A-Za-z_:%~-]{0,63}")
PORTS = {"http": 80, "https": 443}


class UntrustedError(OSError):
    """The certificate of a server is not valid."""


class NoTunnelError(OSError):
    """A proxy refuses to connect to a server."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port of a server.

    Attributes
    ----------
    host
        Name or address, in ASCII, without brackets.
    """

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Host and port, as a request names them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy, reached over plain HTTP.

    Attributes
    ----------
    authorization
        Value of Proxy-Authorization; None if it wants none.
    """

    host: str
    port: int
    authorization: str | None


def origin_of(url: str) -> Origin:
    """Server of an http or https URL.

    Raises
    ------
    ValueError
        The URL has another scheme, no host, or a port that is no number.
    """
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError("it names no web server")
    host = parts.hostname
    host = host if host.isascii() else host.encode("idna").decode()
    if _HOST.fullmatch(host) is None:
        raise ValueError("it names no host")
    port = PORTS[parts.scheme] if parts.port is None else parts.port
    return Origin(parts.scheme, host, port)


def proxy_for(origin: Origin, settings: HttpSettings) -> Proxy | None:
    """The proxy that leads to a server; None if there is none.

    Raises
    ------
    UnsupportedError
        It is no HTTP proxy.
    """
    url = settings.proxy_url
    if url is not None:
        if _is_excluded(origin.host, settings.proxy_excludes):
            return None
    else:
        named = getproxies()
        url = named.get(origin.scheme) or named.get("all")
        excluded = named.get("no", "")
        if not url or proxy_bypass(f"{origin.host}:{origin.port}"):
            return None
        if _is_excluded(origin.host, excluded):
            return None
    return _proxy_at(url)


def _proxy_at(url: str) -> Proxy:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port or 80
    except ValueError:
        # The cause may have a part of a password that has a slash in it.
        raise UnsupportedError(
            "the address of the proxy is malformed",
            hint="correct proxy_url, or HTTP_PROXY and the like in the environment",
        ) from None
    if parts.scheme != "http" or not parts.hostname:
        raise UnsupportedError(
            f"gpushard's client of web servers uses no {parts.scheme}:// proxy",
            hint="name an http:// proxy, or exclude the host (NO_PROXY)",
        )
    authorization = None
    if parts.username is not None:
        words = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(words.encode()).decode()}"
    return Proxy(parts.hostname, port, authorization)


def _is_excluded(host: str, excludes: str) -> bool:
    """Whether a list like that of NO_PROXY has a host."""
    for name in filter(None, map(str.strip, excludes.lower().split(","))):
        suffix = name.removeprefix("*").removeprefix(".")
        if name == "*" or host == suffix or host.endswith(f".{suffix}"):
            return True
        try:
            if ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False):
                return True
        except ValueError:
            continue
    return False


class _Socket(socket.socket):
    """A socket that is closed without a warning if it ends in a cycle of errors.

    The collector may look at it before it looks at the `Wire` that would close it.
    """

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):  # the system had no such socket
            self.close()


def connect(origin: Origin, proxy: Proxy | None, settings: HttpSettings) -> Wire:
    """Connection to a server, through a proxy if there is one.

    Raises
    ------
    OSError
        The server cannot be reached, or its certificate is not valid.
    """
    at_s = time.monotonic() + settings.connect_s
    deadline = Deadline(at_s, settings.connect_s)
    target = (origin.host, origin.port) if proxy is None else (proxy.host, proxy.port)
    wire = _connected(target, deadline)
    try:
        if origin.scheme == "https":
            if proxy is not None:
                _tunnel(wire, origin, proxy)
            _secure(wire, origin, settings)
    except BaseException:
        wire.close()
        raise
    return wire


def _connected(target: tuple[str, int], deadline: Deadline) -> Wire:
    """Connection to the first address of a host that answers."""
    failed: OSError | None = None
    found = socket.getaddrinfo(target[0].encode(), target[1], type=socket.SOCK_STREAM)
    for n_tried, (family, kind, number, _, address) in enumerate(found):
        try:
            one = _Socket(family, kind, number)
        except OSError as error:  # such as a system without IPv6
            failed = error
            continue
        wire = Wire(one, deadline)
        try:
            wire.begin(deadline)
            # One that does not answer leaves the others their share of the time.
            one.settimeout(deadline.next_s() / (len(found) - n_tried))
            one.connect(address)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            wire.close()
            failed = error
        except BaseException:
            wire.close()
            raise
        else:
            return wire
    try:
        raise failed or OSError(f"{target[0]} has no address")
    finally:
        failed = None  # an error that refers to its own frame waits for the collector


def _tunnel(wire: Wire, origin: Origin, proxy: Proxy) -> None:
    """Have a proxy connect to a server (RFC 9110, 9.3.6)."""
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    authority = f"{host}:{origin.port}"
    lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
    if proxy.authorization is not None:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    wire.send("\r\n".join([*lines, "", ""]).encode())
    head = read_head(wire, has_body=False)
    if head.status // 100 != 2:
        raise NoTunnelError(f"the proxy refuses a CONNECT, status code: {head.status}")
    if not wire.is_drained:
        raise BrokenAnswerError("the proxy sends more than an answer to a CONNECT")


def _secure(wire: Wire, origin: Origin, settings: HttpSettings) -> None:
    """Begin TLS on a connection."""
    context = _tls(settings.checks_certificates, settings.root_certificates)
    try:
        wire.secure(context, origin.host)
    except ValueError as error:  # among them is SSLCertVerificationError
        raise UntrustedError(str(error)) from error


@cache
def _tls(checks_certificates: bool, root_certificates: str | None) -> ssl.SSLContext:
    """Settings of TLS; made once, as reading the system's certificates takes 20 ms."""
    import ssl

    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])  # RFC 9325, 3.7: no other is answered
    if not _finds_certificates(context):
        # Python of python.org on macOS, or a container without ca-certificates.
        with suppress(ImportError):
            import certifi

            context.load_verify_locations(certifi.where())
    if root_certificates is not None:
        context.load_verify_locations(cadata=root_certificates)
    if not checks_certificates:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _finds_certificates(context: ssl.SSLContext) -> bool:
    """Whether there are certificates of the system: read ones, or a directory's."""
    import ssl

    place = ssl.get_default_verify_paths().capath
    return bool(context.cert_store_stats()["x509"]) or (
        place is not None and any(Path(place).iterdir())
    )

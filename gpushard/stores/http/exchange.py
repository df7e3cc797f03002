"""A request to a web server and its answer, and what becomes of the connection."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from gpushard.options import KIB
from gpushard.stores.http.connecting import Origin
from gpushard.stores.http.pool import ConnectionPool
from gpushard.stores.http.wire import (
    Body,
    Deadline,
    Head,
    Wire,
    body_behind,
    read_head,
)
from gpushard.threads.stop_flag import is_stopped

# A rest of a body up to this size is read, if it comes at once, to keep the connection:
# such are the pages that come with a refusal.
_MOST_REST_NBYTES, _REST_S = 8 * KIB, 0.02


@dataclass(frozen=True, slots=True)
class Resource:
    """What a URL names.

    Attributes
    ----------
    target
        Path and query, percent-encoded.
    """

    origin: Origin
    target: str

    @property
    def url(self) -> str:
        """The URL again."""
        return f"{self.origin.scheme}://{self.origin.authority}{self.target}"


class Exchange:
    """An answer, whose head has arrived.

    Attributes
    ----------
    head, body
        The answer.
    wire
        The connection over which it comes.
    started
        When it was asked for, by the monotonic clock.
    """

    __slots__ = ("_origin", "_pool", "body", "head", "started", "wire")

    def __init__(
        self,
        pool: ConnectionPool,
        origin: Origin,
        wire: Wire,
        head: Head,
        started: float,
    ) -> None:
        self._pool = pool
        self._origin = origin
        self.wire = wire
        self.head = head
        self.body: Body = body_behind(head, wire)
        self.started = started

    def end(self, *, is_sound: bool = True) -> None:
        """Keep the connection for other requests if the answer is over, or close it.

        Parameters
        ----------
        is_sound
            Whether the body was read without an error. Behind one that was not, the
            next bytes may be anything.
        """
        is_kept = False
        try:
            is_sound = self.wire.end() and is_sound
            is_whole = is_sound and (self.body.is_over or self._skip_rest())
            if is_whole and self.head.keeps_connection and self.wire.is_drained:
                self._pool.put(self._origin, self.wire)
                is_kept = True
        finally:  # also if an interrupt comes in between
            if not is_kept:
                self.wire.close()

    def _skip_rest(self) -> bool:
        """Read a rest of the body if it is small and comes at once; whether it did."""
        if not self.head.keeps_connection:
            return False
        self.wire.deadline = Deadline(time.monotonic() + _REST_S, _REST_S)
        into = memoryview(bytearray(_MOST_REST_NBYTES))
        try:
            while len(into) and (n := self.body.read_into(into)):
                into = into[n:]
        except OSError:
            return False
        return self.body.is_over


def exchange(
    pool: ConnectionPool,
    method: str,
    resource: Resource,
    headers: Mapping[str, str],
    deadline: Deadline,
    started: float,
) -> Exchange:
    """Send a request, and receive the head of its answer.

    Parameters
    ----------
    started
        When the answer was first asked for, before redirects.

    Raises
    ------
    OSError
        The server cannot be reached, does not answer in time, or not in HTTP.
    UnsupportedError
        The way to the server leads through an unknown kind of proxy.
    """
    origin = resource.origin
    request = _request(pool, method, resource, headers)
    while (wire := pool.take(origin)) is not None:
        try:
            head = _send_on(wire, method, request, deadline)
            return Exchange(pool, origin, wire, head, started)
        except TimeoutError:
            # A translator of addresses, or another network, may have cut off all of
            # them: the next attempt must not wait for each.
            pool.forget(origin)
            raise
        except OSError:
            if wire.has_answered or is_stopped():
                raise
            # The server closed the idle connection just now, so another one is used.
    wire = pool.open(origin)
    head = _send_on(wire, method, request, deadline)
    return Exchange(pool, origin, wire, head, started)


def _send_on(wire: Wire, method: str, request: bytes, deadline: Deadline) -> Head:
    try:
        wire.begin(deadline)
        wire.send(request)
        return read_head(wire, has_body=method != "HEAD")
    except BaseException:
        wire.close()
        raise


def _request(
    pool: ConnectionPool, method: str, resource: Resource, headers: Mapping[str, str]
) -> bytes:
    """Bytes of a request."""
    target, own = resource.target, {}
    if (
        resource.origin.scheme == "http"
        and (proxy := pool.proxy(resource.origin)) is not None
    ):
        target = resource.url  # RFC 9112, 3.2.2
        if proxy.authorization is not None:
            own["Proxy-Authorization"] = proxy.authorization
    if not any(name.lower() == "host" for name in headers):
        own["Host"] = resource.origin.authority
    lines = [f"{name}: {value}" for name, value in (own | dict(headers)).items()]
    text = "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "", ""])
    return text.encode("latin-1")

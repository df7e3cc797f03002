"""An HTTP server that gives its answers as steps tell, whatever they tell.

It speaks to the client's real parsers over a socket of this machine, a request at a
time: 50 us each. It never waits, and never leaves a client waiting: behind an answer
that is not what it should be the connection ends.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_BLANK = b"\r\n\r\n"
_RECEIVED_NBYTES = 1 << 16


class Asked(NamedTuple):
    """A request: `wanted` is the half-open range that its object has of what is asked.

    None where no range is asked for.
    """

    method: str
    key: str
    headers: Mapping[str, str]
    body: bytes

    def wanted(self, nbytes: int) -> tuple[int, int] | None:
        """The range in an object of that size."""
        asked = self.headers.get("range")
        if asked is None:
            return None
        first, _, last = asked.removeprefix("bytes=").partition("-")
        if not first:
            return max(0, nbytes - int(last)), nbytes
        if last and int(last) < int(first):  # RFC 9110, 14.1.1: no range at all
            return None
        return int(first), min(nbytes, int(last) + 1) if last else nbytes


@dataclass
class Reply:
    """An answer, which becomes bytes only when all steps have had their way with it.

    Attributes
    ----------
    headers
        Names and values, in order; a name may come twice.
    body
        What is sent, whatever the headers say.
    raw
        Instead of all that.
    is_reset
        Whether the connection is reset instead of an answer.
    is_last
        Whether the connection ends behind it.
    """

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    body: bytes = b""
    raw: bytes | None = None
    is_reset: bool = False
    is_last: bool = False

    def told(self, name: str) -> str | None:
        """Value of a header."""
        return next((v for n, v in self.headers if n == name), None)

    def tell(self, name: str, value: str) -> None:
        """Give a header another value, or drop all of its name for an empty one."""
        self.headers = [item for item in self.headers if item[0] != name]
        if value:
            self.headers.append((name, value))

    def head(self) -> bytes:
        """Status line and headers."""
        headers = [*self.headers, ("Connection", "close")][
            : None if self.is_last else -1
        ]
        lines = [f"HTTP/1.1 {self.status} Told", *(f"{n}: {v}" for n, v in headers)]
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")

    def sent(self, method: str) -> bytes:
        """All bytes of the answer to a request of that method."""
        if self.raw is not None:
            return self.raw
        return self.head() + (b"" if method == "HEAD" else self.body)


def says_missing(sent: bytes) -> bool:
    """Whether an answer says that there is no object, also behind early ones."""
    return b" 404" in sent[:40] or b"HTTP/1.1 404" in sent


class Answers:
    """What a server answers with; the next request's, and that it is none too many."""

    def reply(self, asked: Asked) -> Reply:
        """Answer to a request."""
        raise NotImplementedError


class AnsweringServer:
    """Server on the loopback interface that runs as long as the process.

    Attributes
    ----------
    answers
        Who is asked for answers; may be changed between requests.
    error
        What went wrong with the server itself, until it is raised.
    """

    def __init__(self) -> None:
        self.answers = Answers()
        self.error: Exception | None = None
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._selector = selectors.DefaultSelector()
        self._received: dict[socket.socket, bytes] = {}
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        """Address of the root."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def raise_error(self) -> None:
        """Raise what went wrong since it was last asked, if anything."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._receive(key.fileobj)  # type: ignore[arg-type]

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ)

    def _receive(self, connection: socket.socket) -> None:
        try:
            more = connection.recv(_RECEIVED_NBYTES)
        except OSError:
            more = b""
        self._received[connection] += more
        try:
            goes_on = bool(more) and self._answered(connection)
        except Exception as error:  # noqa: BLE001 - raised where it is looked for
            self.error = error
            goes_on = False
        if not goes_on:
            self._end(connection)

    def _answered(self, connection: socket.socket) -> bool:
        """Answer the requests that are there whole; whether to wait for more."""
        while (found := _request(self._received[connection])) is not None:
            asked, self._received[connection] = found
            reply = self.answers.reply(asked)
            if reply.is_reset:
                at_once = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                return False
            try:
                connection.sendall(reply.sent(asked.method))
            except OSError:  # who asked has had enough of it
                return False
            if reply.is_last:
                return False
        return True

    def _end(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._received[connection]
        connection.close()


def _request(received: bytes) -> tuple[Asked, bytes] | None:
    """The first request of some bytes and what follows it; None if it goes on."""
    head, blank, rest = received.partition(_BLANK)
    if not blank:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    nbytes = int(headers.get("content-length", 0))
    if len(rest) < nbytes:
        return None
    return Asked(method, path.lstrip("/"), headers, rest[:nbytes]), rest[nbytes:]


def served(asked: Asked, data: bytes, headers: Sequence[tuple[str, str]]) -> Reply:
    """What an honest server answers that has `data` under that key."""
    wanted = asked.wanted(len(data))
    if wanted is None:
        return _sized(Reply(200, [*headers], data))
    start, stop = wanted
    if start >= len(data):
        told = [("Content-Range", f"bytes */{len(data)}")]
        return _sized(Reply(416, told))
    told = [*headers, ("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")]
    return _sized(Reply(206, told, data[start:stop]))


def missing() -> Reply:
    """What an honest server answers that has no such object."""
    return _sized(Reply(404))


def _sized(reply: Reply) -> Reply:
    reply.tell("Content-Length", str(len(reply.body)))
    return reply

"""Bytes of one HTTP/1.1 connection: what is sent, and head and body of each answer.

No answer takes more time than its `Deadline`, and no head more than 64 KiB. Of a body,
no more is taken than was asked for.
"""

from __future__ import annotations

import re
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING

from gpushard.options import KIB
from gpushard.threads.stop_flag import StopFlag, flag_here

if TYPE_CHECKING:
    import ssl

# Of all heads of an answer, early ones (RFC 9110, 15.2) included. Web servers send,
# and accept, 8 to 16 KiB.
MOST_HEAD_NBYTES = 64 * KIB
# A head and a small body in one call; of a large body little is moved twice.
_RECEIVED_NBYTES = 16 * KIB
_MOST_LINE_NBYTES = 4 * KIB

# RFC 9110, 5.6.2: the name of a header.
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE_END = re.compile(rb"\r?\n")
_HEAD_END = re.compile(rb"\n\r?\n")
_STATUS_LINE = re.compile(r"HTTP/1\.([01]) ([1-9]\d\d)(?: .*)?")
_NOT_IN_TEXT = re.compile(r"[\0-\x08\x0a-\x1f\x7f]")
_DIGITS = re.compile(r"[0-9]{1,18}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;.*)?", re.DOTALL)
_SWITCHED, _FIRST_FINAL = 101, 200
_BODILESS = frozenset((204, 304))


class BrokenAnswerError(ConnectionError):
    """The connection ended too early, or what came over it is not HTTP/1.1."""


@dataclass(slots=True)
class Deadline:
    """Time for an answer.

    Attributes
    ----------
    at_s
        Moment, by the monotonic clock, at which it must be there.
    pause_s
        Seconds after which a silent server is given up.
    """

    at_s: float
    pause_s: float

    def next_s(self) -> float:
        """Seconds to wait for the next bytes.

        Raises
        ------
        TimeoutError
            None are left.
        """
        left = self.at_s - time.monotonic()
        if left <= 0:
            raise TimeoutError("it did not come in time")
        return min(left, self.pause_s)

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self.at_s


class Wire:
    """A connected socket, and bytes that came from it before they were wanted.

    Parameters
    ----------
    socket
        Closed by this object.

    Attributes
    ----------
    deadline
        Time for what is sent and received now.
    has_answered
        Whether any byte came since it was last set to False.
    """

    __slots__ = (
        "_at",
        "_buffer",
        "_changing",
        "_stop",
        "deadline",
        "has_answered",
        "socket",
    )

    def __init__(self, socket: socket.socket, deadline: Deadline) -> None:
        self.socket = socket
        self.deadline = deadline
        self.has_answered = False
        self._buffer = b""
        self._at = 0
        self._stop: StopFlag | None = None
        # Held while the socket is closed or replaced. Its number may then be another's,
        # which must not be shut down.
        self._changing = RLock()

    @property
    def is_drained(self) -> bool:
        """Whether all bytes that came were wanted."""
        # TLS keeps the rest of a record, which the socket itself shows no more.
        pending = getattr(self.socket, "pending", None)
        return self._at == len(self._buffer) and not (pending and pending())

    def begin(self, deadline: Deadline) -> None:
        """Begin what ends by `deadline`, or once nobody waits for this thread.

        Raises
        ------
        BrokenAnswerError
            Nobody does.
        """
        self.deadline, self.has_answered = deadline, False
        self._stop = stop = flag_here()
        if stop is not None and not stop.begin(self):
            raise BrokenAnswerError("nobody waits for the answer any more")

    def end(self) -> bool:
        """Whether what was begun was not broken off, nor will be any more."""
        stop, self._stop = self._stop, None
        return stop is None or stop.end(self)

    def break_off(self) -> None:
        """End what another thread waits for here; that thread closes the connection."""
        with self._changing, suppress(OSError):
            # What TLS makes of `shutdown` would let that thread go on without it.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Begin TLS."""
        self.socket.settimeout(self.deadline.next_s())
        with self._changing:
            self.socket = context.wrap_socket(
                self.socket, server_hostname=host, do_handshake_on_connect=False
            )
        self.socket.do_handshake()

    def close(self) -> None:
        """Close the connection; nothing waits for what the server still sends."""
        self.end()
        with self._changing:
            self.socket.close()

    def __del__(self) -> None:
        """Close what an interrupt between two lines has left to nobody."""
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send all of `data`."""
        self.socket.settimeout(self.deadline.next_s())
        self.socket.sendall(data)

    def read_until(self, end: re.Pattern[bytes], most_nbytes: int) -> bytes:
        """Bytes up to the next match of `end`, which is no longer than four bytes.

        Raises
        ------
        BrokenAnswerError
            `most_nbytes` did not contain it, or the connection ended.
        """
        n_seen = 0
        while True:
            found = end.search(self._buffer, self._at + max(0, n_seen - 3))
            if found is not None and found.end() - self._at <= most_nbytes:
                data = self._buffer[self._at : found.start()]
                self._at = found.end()
                return data
            n_seen = len(self._buffer) - self._at
            if n_seen >= most_nbytes:
                raise BrokenAnswerError("the server sends a head or a line without end")
            self.socket.settimeout(self.deadline.next_s())
            more = self.socket.recv(_RECEIVED_NBYTES)
            if not more:
                raise BrokenAnswerError("the connection ended within an answer")
            self.has_answered = True
            self._buffer = self._buffer[self._at :] + more
            self._at = 0

    def read_into(self, into: memoryview) -> int:
        """Put the next bytes into memory, and return how many; 0 at the end."""
        if self._at < len(self._buffer):
            found = self._buffer[self._at : self._at + len(into)]
            into[: len(found)] = found
            self._at += len(found)
            return len(found)
        self.socket.settimeout(self.deadline.next_s())
        return self.socket.recv_into(into)


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of an answer.

    Attributes
    ----------
    headers
        Lower-case names. The values of a name that comes twice are joined by commas.
    body_nbytes
        Size of the body that follows; None if it is in chunks, or if it ends with the
        connection.
    is_chunked
        Whether it is in chunks.
    keeps_connection
        Whether the server accepts another request after this one.
    """

    status: int
    headers: dict[str, str]
    body_nbytes: int | None
    is_chunked: bool
    keeps_connection: bool


def read_head(wire: Wire, *, has_body: bool = True) -> Head:
    """Head of the next answer; early answers before it are skipped.

    Parameters
    ----------
    has_body
        Whether a body may follow, which is not so for answers to HEAD and CONNECT.

    Raises
    ------
    BrokenAnswerError
        There is no head of HTTP/1.1, or it contradicts itself.
    OSError
        The connection failed, or the head did not come in time.
    """
    left = MOST_HEAD_NBYTES
    while True:
        data = wire.read_until(_HEAD_END, left)
        left -= len(data)
        lines = [line.removesuffix("\r") for line in data.decode("latin-1").split("\n")]
        found = _STATUS_LINE.fullmatch(lines[0])
        if found is None or found[2] == f"{_SWITCHED}":
            raise BrokenAnswerError("the server does not answer in HTTP/1.1")
        if (status := int(found[2])) >= _FIRST_FINAL:
            break
    headers = _headers(lines[1:])
    is_chunked, nbytes = _framing(headers)
    if not has_body or status in _BODILESS:
        is_chunked, nbytes = False, 0
    return Head(
        status, headers, nbytes, is_chunked, _keeps_connection(found[1], headers)
    )


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or TOKEN.fullmatch(name) is None or _NOT_IN_TEXT.search(value):
            raise BrokenAnswerError("the server sends a malformed header")
        name, value = name.lower(), value.strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _framing(headers: dict[str, str]) -> tuple[bool, int | None]:
    """Whether a body is in chunks, and else its size (RFC 9112, 6.3)."""
    length = headers.get("content-length")
    if length is not None and _DIGITS.fullmatch(length) is None:
        raise BrokenAnswerError("the server sends a malformed Content-Length")
    coding = headers.get("transfer-encoding")
    if coding is None:
        return False, None if length is None else int(length)
    if coding.lower() != "chunked":
        raise BrokenAnswerError("the server sends an unknown transfer encoding")
    return True, None


def _keeps_connection(minor: str, headers: dict[str, str]) -> bool:
    connection = headers.get("connection", "").lower()
    if "content-length" in headers and "transfer-encoding" in headers:
        return False  # RFC 9112, 6.3: two ends of one body, so the next may be neither
    return "keep-alive" in connection if minor == "0" else "close" not in connection


class SizedBody:
    """Body whose size the head tells.

    Attributes
    ----------
    is_over
        Whether all of it was read.
    """

    def __init__(self, wire: Wire, nbytes: int) -> None:
        self._wire = wire
        self._left = nbytes
        self.is_over = not nbytes

    def read_into(self, into: memoryview) -> int:
        """Put the next bytes into memory, and return how many; 0 behind the last one.

        Raises
        ------
        BrokenAnswerError
            The body was cut off.
        OSError
            The connection failed, or no more came in time.
        """
        if self.is_over:
            return 0
        n = _read_some_into(self._wire, into[: self._left])
        self._left -= n
        self.is_over = not self._left
        return n


class ChunkedBody:
    """Body in chunks (RFC 9112, 7.1). Extensions and trailers are skipped."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._left = 0
        self.is_over = False
        self._is_first = True

    def read_into(self, into: memoryview) -> int:
        """As of a `SizedBody`."""
        if not self._left and not self.is_over:
            self._next_chunk()
        if self.is_over:
            return 0
        n = _read_some_into(self._wire, into[: self._left])
        self._left -= n
        return n

    def _next_chunk(self) -> None:
        if not self._is_first and self._wire.read_until(_LINE_END, 2):
            raise BrokenAnswerError("the server sends a malformed chunk")
        self._is_first = False
        found = _CHUNK_SIZE.fullmatch(
            self._wire.read_until(_LINE_END, _MOST_LINE_NBYTES)
        )
        if found is None:
            raise BrokenAnswerError("the server sends a malformed chunk")
        self._left = int(found[1], 16)
        if not self._left:
            left = MOST_HEAD_NBYTES
            while line := self._wire.read_until(_LINE_END, left):
                left -= len(line)
            self.is_over = True


class EndlessBody:
    """Body that only ends with the connection, so that a cut would not show."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.is_over = False

    def read_into(self, into: memoryview) -> int:
        """As of a `SizedBody`."""
        n = 0 if self.is_over else self._wire.read_into(into)
        self.is_over = not n
        return n


Body = SizedBody | ChunkedBody | EndlessBody


def body_behind(head: Head, wire: Wire) -> Body:
    """The body that follows a head."""
    if head.is_chunked:
        return ChunkedBody(wire)
    if head.body_nbytes is None:
        return EndlessBody(wire)
    return SizedBody(wire, head.body_nbytes)


def _read_some_into(wire: Wire, into: memoryview) -> int:
    n = wire.read_into(into)
    if not n:
        raise BrokenAnswerError("the connection ended within a body")
    return n

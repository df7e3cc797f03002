"""Bodies of HTTP answers: where they end, and that no more is taken of them."""

from __future__ import annotations

import re

from gpushard.options import KIB
from gpushard.stores.http.wire import (
    LINE_END,
    MOST_HEAD_NBYTES,
    BrokenAnswerError,
    Head,
    Wire,
)

_MOST_LINE_NBYTES = 4 * KIB
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;.*)?", re.DOTALL)


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
        n = _some_into(self._wire, into[: self._left])
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
        n = _some_into(self._wire, into[: self._left])
        self._left -= n
        return n

    def _next_chunk(self) -> None:
        if not self._is_first:
            self._end_line(2)
        self._is_first = False
        found = _CHUNK_SIZE.fullmatch(self._wire.until(LINE_END, _MOST_LINE_NBYTES))
        if found is None:
            raise BrokenAnswerError("the server sends a malformed chunk")
        self._left = int(found[1], 16)
        if not self._left:
            left = MOST_HEAD_NBYTES
            while line := self._wire.until(LINE_END, left):
                left -= len(line)
            self.is_over = True

    def _end_line(self, most_nbytes: int) -> None:
        if self._wire.until(LINE_END, most_nbytes):
            raise BrokenAnswerError("the server sends a malformed chunk")


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


def _some_into(wire: Wire, into: memoryview) -> int:
    n = wire.read_into(into)
    if not n:
        raise BrokenAnswerError("the connection ended within a body")
    return n

"""The body of a web server's answer, read straight into the memory where it stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import StoreError
from gpushard.pages import in_pages, into_or_pages
from gpushard.stores.answers import ObjectFacts, RefusalError
from gpushard.stores.failures import failure, first_line_of, other_bytes, too_slow
from gpushard.stores.http.exchange import Exchange
from gpushard.stores.http.settings import HttpSettings


class HttpAnswer:
    """An answer with bytes of an object, as `answers.Answer` says.

    Parameters
    ----------
    key
        The object's key, for errors.
    facts
        What the head tells about the object, its size left out where it is None.
    span
        Half-open range that the head announces; None for an object of unknown size.
    """

    __slots__ = ("_exchange", "_facts", "_key", "_settings", "_span", "_url")

    def __init__(
        self,
        exchange: Exchange,
        settings: HttpSettings,
        url: str,
        key: str,
        facts: ObjectFacts,
        span: tuple[int, int] | None,
    ) -> None:
        self._exchange = exchange
        self._settings = settings
        self._url = url
        self._key = key
        self._facts = facts
        self._span = span

    @property
    def facts(self) -> ObjectFacts | None:
        """What the head tells about the object; None if it does not tell the size."""
        return None if self._span is None else self._facts

    @property
    def span(self) -> tuple[int, int]:
        """Half-open range that the head announces."""
        return self._span or (0, 0)

    def read_body(
        self, nbytes: int, into: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Read a body that should have `nbytes`."""
        data = into_or_pages(into, nbytes)
        limit_s = self._settings.wait_limits.limit_s(nbytes)
        self._limit_to(limit_s)
        try:
            end = self._fill(memoryview(data))
            if end == nbytes and self._fill(memoryview(bytearray(1))):
                span = self.span
                raise other_bytes(self._url, self._key, span, span, nbytes + 1)
        except OSError as error:
            raise self._failure(error, nbytes, limit_s) from error
        return data[:end]

    def read_unsized_body(
        self, most_nbytes: int
    ) -> tuple[NDArray[np.uint8], ObjectFacts]:
        """Read a body of unknown size, or one byte more than `most_nbytes` of it."""
        if not self._exchange.head.is_chunked:
            raise failure(
                self._url,
                self._key,
                "the server does not tell where the object ends",
                expected="a Content-Length, or an answer in chunks",
                hint="check the server or the proxy before it",
            )
        data, end, limits = in_pages(most_nbytes + 1), 0, self._settings.wait_limits
        into = memoryview(data)
        try:
            while end < len(into):
                self._limit_to(limits.limit_s(end))
                if not (n := self._exchange.body.read_into(into[end:])):
                    break
                end += n
        except OSError as error:
            raise self._failure(error, end, limits.limit_s(end)) from error
        return data[:end], replace(self._facts, nbytes=end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._exchange.end(is_sound=kind is None)

    def _limit_to(self, limit_s: float) -> None:
        """Let the rest of the answer take so long, counted from the request."""
        limit_s = min(limit_s, self._settings.most_s)
        self._exchange.wire.deadline.at_s = self._exchange.started + limit_s

    def _fill(self, into: memoryview) -> int:
        """Fill memory from the body as far as that goes, and return how far."""
        end, read_into = 0, self._exchange.body.read_into
        while end < len(into) and (n := read_into(into[end:])):
            end += n
        return end

    def _failure(
        self, error: OSError, nbytes: int, limit_s: float
    ) -> StoreError | RefusalError:
        if isinstance(error, StoreError):
            return error
        if isinstance(error, TimeoutError) and self._exchange.wire.deadline.is_over:
            limit_s = min(limit_s, self._settings.most_s)
            return too_slow(self._url, self._key, nbytes, limit_s)
        return lost_connection(error)


def lost_connection(error: OSError) -> RefusalError:
    """What the failure of a connection is for a store, which may ask again."""
    if isinstance(error, TimeoutError):
        hint = "check the network and the server, or raise the option patience_s"
        return RefusalError("the server is silent", is_lost=True, hint=hint)
    return RefusalError(f"{type(error).__name__}: {first_line_of(error)}", is_lost=True)

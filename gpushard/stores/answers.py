"""Contract of a client: one request -> what a server says, and of which version."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import StoreError
from gpushard.stores.base import PassingVersion
from gpushard.stores.failures import failure

CHECK_SERVER = "check the address, the network and the server"

NEVER = datetime.fromtimestamp(0, UTC)
"""Date of an object if the server sent no Last-Modified."""

# Statuses of a server that may answer in a moment.
_PASSING = frozenset((429, 500, 502, 503, 504))


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What an answer tells about an object.

    Attributes
    ----------
    nbytes
        Size of the whole object.
    e_tag
        ETag, strong or weak; None if there is none.
    modified
        Last-Modified, in whole seconds, or `NEVER`.
    """

    nbytes: int
    e_tag: str | None
    modified: datetime


@dataclass(frozen=True, slots=True)
class Clue(PassingVersion):
    """Properties of an object on a server without strong ETags.

    If one of these differs, the object is another version. If none differs, it may
    still be another version.

    Attributes
    ----------
    facts
        These properties; `facts.e_tag` is a weak ETag, if any.
    """

    facts: ObjectFacts

    def is_contradicted(self, other: ObjectFacts) -> bool:
        """Whether `other` is of another version; a HEAD may tell less than a GET."""
        known = self.facts
        tags = {_opaque(known.e_tag), _opaque(other.e_tag)} - {None}
        dates = {known.modified, other.modified} - {NEVER}
        return known.nbytes != other.nbytes or len(tags) > 1 or len(dates) > 1


def version_of(facts: ObjectFacts) -> str | Clue:
    """Strong ETag (RFC 9110, 8.8.3), or a `Clue` if there is none."""
    if facts.e_tag is None or facts.e_tag.startswith("W/"):
        return Clue(facts)
    return facts.e_tag


def is_other_version(version: Hashable, facts: ObjectFacts) -> bool:
    """Whether `facts` are of another version than `version`."""
    if isinstance(version, Clue):
        return version.is_contradicted(facts)
    return version != version_of(facts)


def date_of(text: str) -> datetime | None:
    """Date in the text of a header (RFC 9110, 5.6.7); None if it has none."""
    try:
        return parsedate_to_datetime(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _opaque(e_tag: str | None) -> str | None:
    return e_tag and e_tag.removeprefix("W/")


class RefusalError(Exception):
    """The server answered something else than an object, or nothing.

    It is the cause of the `StoreError` that it becomes if nothing helps.

    Parameters
    ----------
    why
        Words for the error.
    status
        Status of the answer; None if there was no answer, or not a whole one.
    is_rangeless
        Whether the answer shows that the server ignores ranges.
    is_lost
        Whether the connection failed, so that the same request may succeed at once.
    retry_after_s
        Seconds that the server asks to wait; None if it does not say.
    hint
        What the reader of the error can do.
    """

    def __init__(
        self,
        why: str,
        status: int | None = None,
        *,
        is_rangeless: bool = False,
        is_lost: bool = False,
        retry_after_s: float | None = None,
        hint: str = CHECK_SERVER,
    ) -> None:
        super().__init__(why)
        self.why = why
        self.status = status
        self.is_rangeless = is_rangeless
        self.is_lost = is_lost
        self.retry_after_s = retry_after_s
        self.hint = hint

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed in a moment."""
        return self.is_lost or self.status in _PASSING

    def as_store_error(self, url: str, key: str) -> StoreError:
        """The error that this becomes."""
        return failure(url, key, self.why, hint=self.hint)


def refusal_behind(error: StoreError) -> RefusalError | None:
    """What the server answered, if that is why a request failed."""
    return error.__cause__ if isinstance(error.__cause__, RefusalError) else None


class Answer(Protocol):
    """Head of an answer, whose body can be read once. Leaving its block ends it."""

    @property
    def facts(self) -> ObjectFacts | None:
        """What the head tells about the object; None if it does not tell the size."""
        ...

    @property
    def span(self) -> tuple[int, int]:
        """Half-open range of the object that the head announces; needs `facts`."""
        ...

    def read_body(
        self, nbytes: int, into: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Read a body that should have `nbytes`; of a longer one, little more.

        Parameters
        ----------
        into
            uint8, host. Memory that the body may be put into if it fits.

        Raises
        ------
        RefusalError
            The body was cut off.
        StoreError
            The body came too slowly, or is not the stored bytes.
        """
        ...

    def read_unsized_body(
        self, most_nbytes: int
    ) -> tuple[NDArray[np.uint8], ObjectFacts]:
        """Read a body of unknown size, or one byte more than `most_nbytes` of it.

        Raises
        ------
        RefusalError, StoreError
            As for `read_body`; and if the end of the object would not show.
        """
        ...

    def __enter__(self) -> Self:
        """Return the answer itself."""
        ...

    def __exit__(self, kind: type[BaseException] | None, /, *_: object) -> None:
        """Stop reading; nothing waits for the rest of the body."""
        ...


class Client(Protocol):
    """Sends requests for single objects. Safe for several threads."""

    def get(
        self, key: str, span: tuple[int, int | None] | None, if_match: str | None
    ) -> Answer:
        """Send a GET.

        Parameters
        ----------
        span
            Half-open byte range, not empty. If its end is None, it goes to the end of
            the object, or is the last ``-start`` bytes if ``start < 0``. None: the
            whole object.
        if_match
            ETag that the object must have.

        Raises
        ------
        RefusalError
            The server did not answer with bytes.
        StoreError
            This process cannot use the client.
        """
        ...

    def head(self, key: str) -> ObjectFacts:
        """Send a HEAD."""
        ...

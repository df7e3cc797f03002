"""Which version of an object a server's answer is about."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from gpushard.stores.base import PassingVersion

NEVER = datetime.fromtimestamp(0, UTC)
"""Date of an object if the server sent no Last-Modified."""


@dataclass(frozen=True, slots=True)
class About:
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
    about
        These properties; `about.e_tag` is a weak ETag, if any.
    """

    about: About

    def is_contradicted(self, about: About) -> bool:
        """Whether `about` is about another version; a HEAD may tell less than a GET."""
        known = self.about
        tags = {_opaque(known.e_tag), _opaque(about.e_tag)} - {None}
        dates = {known.modified, about.modified} - {NEVER}
        return known.nbytes != about.nbytes or len(tags) > 1 or len(dates) > 1


def version_of(about: About) -> str | Clue:
    """Strong ETag (RFC 9110, 8.8.3), or a `Clue` if there is none."""
    if about.e_tag is None or about.e_tag.startswith("W/"):
        return Clue(about)
    return about.e_tag


def is_other(version: Hashable, about: About) -> bool:
    """Whether `about` is about another version than `version`."""
    if isinstance(version, Clue):
        return version.is_contradicted(about)
    return version != version_of(about)


def date_of(told: str) -> datetime | None:
    """Date in a header (RFC 9110, 5.6.7); None if it has none."""
    try:
        return parsedate_to_datetime(told).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _opaque(e_tag: str | None) -> str | None:
    return e_tag and e_tag.removeprefix("W/")

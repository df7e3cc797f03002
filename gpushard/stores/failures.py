"""Wording of the adapters' errors, and a check for keys that no adapter accepts."""

from __future__ import annotations

import re
from typing import TypeVar

from gpushard.errors import StoreError

_METADATA_SUFFIXES = (
    "zarr.json",
    ".zarray",
    ".zattrs",
    ".zgroup",
    ".zmetadata",
    # The draft of v3.
    ".array.json",
    ".group.json",
)

_FORBIDDEN_PARTS = frozenset(("", ".", ".."))
_FORBIDDEN_CHARACTERS = frozenset("\\\0")
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Statuses of a server that may answer in a moment.
_PASSING = re.compile(r"status code: (429|500|502|503|504)\b")

ErrorType = TypeVar("ErrorType", bound=StoreError)


def failure(  # noqa: PLR0913  the facts of an error are keywords, one each
    kind: type[ErrorType],
    url: str,
    key: str,
    why: str,
    *,
    hint: str,
    expected: object = None,
    got: object = None,
) -> ErrorType:
    """Error about one object; `shard_key` is set unless the object is a document."""
    if key.endswith(_METADATA_SUFFIXES):
        where, shard_key = f"{key!r} in {url}", None
    else:
        where, shard_key = url, key
    return kind(
        f"cannot read from {where}: {why}",
        shard_key=shard_key,
        expected=expected,
        got=got,
        hint=hint,
    )


def refuse_unsafe_key(key: str, url: str) -> None:
    r"""Refuse keys that do not name something below the store's root.

    Raises
    ------
    StoreError
        The key is empty or absolute, or has an empty, ``.`` or ``..`` component, a
        backslash, a NUL or a lone surrogate.
    """
    parts = key.split("/")
    if (
        _FORBIDDEN_PARTS.isdisjoint(parts)
        and _FORBIDDEN_CHARACTERS.isdisjoint(key)
        and (key.isascii() or _SURROGATE.search(key) is None)
    ):
        return
    raise failure(
        StoreError,
        url,
        key,
        f"{key!r} is no key below the store's root",
        hint="keys are names joined by single slashes, without '.' and '..'",
    )


def passing_status(error: StoreError) -> str | None:
    """Status of a server that is busy for a moment: "503"; None for any other error."""
    found = _PASSING.search(error.what)
    return found and found[1]


def may_pass(error: StoreError) -> bool:
    """Whether the same request may succeed in a moment."""
    return was_lost(error) or passing_status(error) is not None


def was_lost(error: StoreError) -> bool:
    """Whether the connection failed, or ended too early."""
    return getattr(error.__cause__, "is_lost", False)


def without_credentials(text: str) -> str:
    """`text` without user names and passwords in its URLs."""
    return _USER_INFO.sub("", text)


def told_by(error: Exception) -> str:
    """First line of a library's error message; the error's name if that is empty.

    Further lines repeat the message in the form in which Rust prints structures.
    """
    why = without_credentials(str(error).strip().split("\n")[0])
    return why or type(error).__name__


def failed_write(url: str, key: str, error: Exception) -> StoreError:
    """Error for a write that failed with `error`."""
    return StoreError(
        f"cannot write {key!r}: {type(error).__name__}: {told_by(error)}",
        store_url=url,
        hint="check the store, its settings and your rights",
    )

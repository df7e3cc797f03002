"""Errors of all stores, one sentence each, and a check for keys that none accepts."""

from __future__ import annotations

import re

from gpushard.errors import ObjectChangedError, StoreError
from gpushard.stores.base import ByteRequest

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


def failure(  # noqa: PLR0913  the facts of an error are keywords, one each
    url: str,
    key: str,
    why: str,
    *,
    hint: str,
    expected: object = None,
    got: object = None,
    kind: type[StoreError] = StoreError,
) -> StoreError:
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
        url,
        key,
        f"{key!r} is no key below the store's root",
        hint="keys are names joined by single slashes, without '.' and '..'",
    )


def without_credentials(text: str) -> str:
    """`text` without user names and passwords in its URLs."""
    return _USER_INFO.sub("", text)


def first_line_of(error: BaseException) -> str:
    """First line of a library's error message; the error's name if that is empty.

    Further lines repeat the message in the form in which Rust prints structures. An
    error whose message cannot be made, by a defect of its class, has none.
    """
    try:
        why = without_credentials(str(error).strip().split("\n")[0])
    except Exception:  # noqa: BLE001  the error itself is the telling one
        why = ""
    return why or type(error).__name__


def told(error: BaseException) -> str:
    """Name of a library's error, and the first line of its message if it has one."""
    name, why = type(error).__name__, first_line_of(error)
    return name if why == name else f"{name}: {why}"


def failed_write(url: str, key: str, error: Exception) -> StoreError:
    """Error for a write that failed with `error`."""
    return StoreError(
        f"cannot write {key!r}: {told(error)}",
        store_url=url,
        hint="check the store, its settings and your rights",
    )


def object_changed(url: str, request: ByteRequest, got: str) -> StoreError:
    """Error for a version that no longer exists."""
    return failure(
        url,
        request.key,
        "the object was replaced while it was read",
        expected=str(request.version),
        got=got,
        hint="read again",
        kind=ObjectChangedError,
    )


def other_bytes(
    url: str, key: str, asked: tuple[int, int], answered: tuple[int, int], nbytes: int
) -> StoreError:
    """Error for an answer of `nbytes` that tells another range than was asked for."""
    return failure(
        url,
        key,
        "the server answered other bytes than asked",
        expected=f"bytes {asked[0]}-{asked[1]}",
        got=f"{nbytes} bytes of {answered[0]}-{answered[1]}",
        hint="check the server or the proxy before it",
    )


def two_sizes(
    url: str, key: str, head_nbytes: int, range_nbytes: int | None
) -> StoreError:
    """Error for an object of which the server states two sizes."""
    return failure(
        url,
        key,
        "the server tells two sizes of one object",
        expected=f"{head_nbytes} bytes, as it answers a HEAD",
        got=f"{range_nbytes} bytes of which it answers a range",
        hint="check the server or the proxy before it; it should compress nothing",
    )


def too_slow(url: str, key: str, nbytes: int, limit_s: float) -> StoreError:
    """Error for a body that did not arrive in time."""
    return failure(
        url,
        key,
        "the server sends too slowly",
        expected=f"{nbytes} bytes within {limit_s:.1f} s",
        hint="check the network, or raise the options patience_s and lower "
        "min_nbytes_per_s",
    )


def no_answer(url: str, key: str, limit_s: float) -> StoreError:
    """Error for an answer that did not even begin in time."""
    return failure(
        url,
        key,
        "the server sends too slowly",
        expected=f"the head of an answer within {limit_s:.1f} s",
        hint="check the network and the server, or raise the option patience_s",
    )

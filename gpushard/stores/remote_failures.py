"""Errors of requests to a server, worded in one sentence each."""

from __future__ import annotations

from collections.abc import Callable

from gpushard.errors import ObjectChangedError, StoreError
from gpushard.stores.base import ByteRequest
from gpushard.stores.failures import failure
from gpushard.stores.wholes import MOST_WHOLE_NBYTES

# RFC 9110, 14.6: the answer to a request for several ranges, which nothing here sends.
_PARTS = "multipart/byteranges"


def changed(url: str, request: ByteRequest, got: str) -> ObjectChangedError:
    """Error for a version that no longer exists."""
    return failure(
        ObjectChangedError,
        url,
        request.key,
        "the object was replaced while it was read",
        expected=str(request.version),
        got=got,
        hint="read again",
    )


def other_bytes(
    url: str, key: str, asked: tuple[int, int], told: tuple[int, int], nbytes: int
) -> StoreError:
    """Error for an answer with other bytes than requested.

    Parameters
    ----------
    asked, told
        Half-open byte ranges: the one requested, and the one in the answer's head.
    nbytes
        Size of the body.
    """
    return failure(
        StoreError,
        url,
        key,
        "the server answered other bytes than asked",
        expected=f"bytes {asked[0]}-{asked[1]}",
        got=f"{nbytes} bytes of {told[0]}-{told[1]}",
        hint="check the server or the proxy before it",
    )


def refuse_other_body(url: str, key: str, told: Callable[[str, str], str]) -> None:
    """Refuse a body that is not the stored bytes themselves.

    Parameters
    ----------
    told
        Returns a header of the answer by name, or its second argument if missing.

    Raises
    ------
    StoreError
        The body is encoded, or has several parts of the object with headers in between.
    """
    encoding = told("Content-Encoding", "identity")
    if encoding != "identity":
        raise encoded_body(url, key, encoding)
    kind = told("Content-Type", "")
    if kind.lower().startswith(_PARTS):
        raise failure(
            StoreError,
            url,
            key,
            "the server answered several parts",
            expected="the bytes that were asked for",
            got=f"Content-Type: {kind}",
            hint="check the server or the proxy before it",
        )


def encoded_body(url: str, key: str, encoding: str) -> StoreError:
    """Error for a body that is encoded, and so not the stored bytes."""
    return failure(
        StoreError,
        url,
        key,
        "the server answered an encoded body",
        expected="the bytes as they are stored",
        got=f"Content-Encoding: {encoding}",
        hint="switch compression off on the server for this directory",
    )


def too_slow(url: str, key: str, nbytes: int, limit_s: float) -> StoreError:
    """Error for a body that did not arrive in time."""
    return failure(
        StoreError,
        url,
        key,
        "the server sends too slowly",
        expected=f"{nbytes} bytes within {limit_s:.1f} s",
        hint="check the network, or raise the options patience_s and lower "
        "min_nbytes_per_s",
    )


def no_head(url: str, key: str, limit_s: float) -> StoreError:
    """Error for an answer that did not even begin in time."""
    return failure(
        StoreError,
        url,
        key,
        "the server sends too slowly",
        expected=f"the head of an answer within {limit_s:.1f} s",
        hint="check the network and the server, or raise the option patience_s",
    )


def two_sizes(url: str, key: str, told: int, found: int | None) -> StoreError:
    """Error for an object of which the server states two sizes."""
    return failure(
        StoreError,
        url,
        key,
        "the server tells two sizes of one object",
        expected=f"{told} bytes, as it answers a HEAD",
        got=f"{found} bytes of which it answers a range",
        hint="check the server or the proxy before it; it should compress nothing",
    )


def refuse_large(url: str, key: str, nbytes: int, limit_nbytes: int) -> None:
    """Refuse to download a large object when only a part is wanted.

    Raises
    ------
    StoreError
        The object is larger than the limit.
    """
    if nbytes > limit_nbytes:
        hint = "serve the data from a server that answers range requests"
        if limit_nbytes < MOST_WHOLE_NBYTES:
            hint += ", or raise options.memory_limit"
        raise failure(
            StoreError,
            url,
            key,
            "the server does not answer ranges and the object is large",
            expected=f"at most {limit_nbytes} bytes",
            got=f"{nbytes} bytes",
            hint=hint,
        )

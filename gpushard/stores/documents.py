"""Metadata documents: objects that are read whole, and that have a size limit."""

from __future__ import annotations

from gpushard.options import MAX_DOCUMENT_NBYTES
from gpushard.stores.base import ByteRequest, Fetched
from gpushard.stores.failures import failure


def document_request(key: str) -> ByteRequest:
    """Request for a metadata document; one extra byte shows that it is too large."""
    return ByteRequest(key, max_nbytes=MAX_DOCUMENT_NBYTES + 1)


def document_bytes(fetched: Fetched | None, key: str, url: str) -> bytes | None:
    """Bytes of a metadata document; one larger than any should be is a `StoreError`."""
    if fetched is None:
        return None
    if len(fetched.data) > MAX_DOCUMENT_NBYTES:
        raise failure(
            url,
            key,
            "the metadata document is too large",
            expected=f"at most {MAX_DOCUMENT_NBYTES} bytes",
            got=f"{fetched.object_nbytes or len(fetched.data)} bytes",
            hint="check what is stored under this key",
        )
    return fetched.data.tobytes()

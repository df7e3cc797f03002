"""What obstore does not tell of HTTP answers, asked with Python's own client."""

from __future__ import annotations

from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from gpushard.errors import StoreError

_IDENTITY = {"Accept-Encoding": "identity"}


def retry_after(url: str, key: str, timeout_s: float) -> float | None:
    """Seconds for which a server wants to be left alone; None if it does not tell.

    Retry-After as seconds (RFC 9110, 10.2.3); 0 if it answers again.
    """
    try:
        with _open(url, key, {"Range": "bytes=0-0"}, timeout_s):
            return 0.0
    except HTTPError as refusal:
        with refusal:
            told = refusal.headers.get("Retry-After", "")
        return float(told) if told.isdecimal() else None
    except (OSError, ValueError, HTTPException):
        return None


def get_unsized(
    url: str, key: str, limit_nbytes: int, timeout_s: float
) -> tuple[bytes, str | None]:
    """Body and ETag of an object that comes without a Content-Length, in chunks.

    Parameters
    ----------
    limit_nbytes
        The body is read up to this size and one byte.

    Raises
    ------
    FileNotFoundError
        There is no such object.
    StoreError
        The server refused, or the body was cut.
    """
    try:
        with _open(url, key, {}, timeout_s) as answer:
            return answer.read(limit_nbytes + 1), answer.headers.get("ETag")
    except HTTPError as refusal:
        with refusal:
            if refusal.code == 404:
                raise FileNotFoundError(key) from refusal
            raise StoreError(f"status code: {refusal.code}", shard_key=key) from refusal
    except (OSError, ValueError, HTTPException) as error:
        raise StoreError(
            f"cannot read from {url}: {type(error).__name__}: {error}",
            shard_key=key,
            hint="check the address, the network and the server",
        ) from error


def _open(url: str, key: str, headers: dict[str, str], timeout_s: float):  # noqa: ANN202 - urllib has no type for it
    """Answer to a GET; `url` is that of a store, which is http or https."""
    request = Request(f"{url}/{quote(key)}", headers={**_IDENTITY, **headers})  # noqa: S310
    return urlopen(request, timeout=timeout_s)  # noqa: S310

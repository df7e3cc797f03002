"""What obstore's stores tell about themselves and about objects."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpushard.errors import StoreError
from gpushard.stores.failures import failure

if TYPE_CHECKING:
    from obstore import ObjectMeta

# The process whose threads obstore's runtime has, once there is one.
_owner: list[int] = []

_CLASS_SCHEMES = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}


def request_errors() -> tuple[type[Exception], ...]:
    """What obstore raises when a request fails."""
    from obstore.exceptions import BaseError

    return BaseError, OSError, ValueError, RuntimeError


def refuse_after_fork(url: str, key: str) -> None:
    """Refuse to wait for threads that a forked process has not.

    Raises
    ------
    StoreError
        Requests were made before this process was forked: obstore would never answer.
    """
    pid = os.getpid()
    if not _owner:
        _owner.append(pid)
    elif _owner[0] != pid:
        raise failure(
            StoreError,
            url,
            key,
            "this process was forked from one that had read from a server",
            hint="start processes with the method 'spawn' or 'forkserver' (torch: "
            "multiprocessing_context='spawn')",
        )


def version_of(about: ObjectMeta) -> str | None:
    """Strong ETag, or None."""
    e_tag = about["e_tag"]
    return None if e_tag is None or e_tag.startswith("W/") else e_tag


def is_http(store: Any) -> bool:
    """Whether it is a plain HTTP server."""
    return type(store).__name__ == "HTTPStore"


def url_of(store: Any) -> str:
    """Address of an obstore store that was made elsewhere."""
    url = getattr(store, "url", None)
    if url is not None:
        return str(url)
    config: Mapping[str, Any] = getattr(store, "config", None) or {}
    prefix = getattr(store, "prefix", None) or ""
    for scheme, name in (("s3", "bucket"), ("gs", "bucket"), ("az", "container_name")):
        if name in config and _CLASS_SCHEMES.get(type(store).__name__) == scheme:
            return f"{scheme}://{config[name]}/{prefix}".rstrip("/")
    return f"obstore:{type(store).__name__}/{prefix}".rstrip("/")

"""What obstore's stores report about themselves, and about objects."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpushard.errors import StoreError
from gpushard.options import KIB, MIB
from gpushard.stores.answers import CHECK_SERVER, RefusalError
from gpushard.stores.base import FetchCosts
from gpushard.stores.failures import failure, told_by
from gpushard.stores.ranged import NETWORK_COSTS

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_PROCESS_COSTS = FetchCosts(
    gap_nbytes=64 * KIB,
    max_request_nbytes=16 * MIB,
    concurrency=8,
    prefers_whole_objects=False,
    answers_in_own_memory=True,
)

# obstore has no exception classes for most answers, so their text is matched.
_STATUS = re.compile(r"status code: (\d{3})\b")
_RANGELESS = re.compile(r"(?i)content[-_](range header|length header missing)")

# Process that owns the threads of obstore's runtime, once the runtime exists.
_owner: list[int] = []

_CHECK_CREDENTIALS = (
    "check the credentials, or pass storage_options={'skip_signature': True} for "
    "public data"
)

_CLASS_SCHEMES = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}


def costs_of(store: ObjectStore) -> FetchCosts:
    """Costs of requests to a store; an unknown store counts as behind a network."""
    from obstore.store import LocalStore, MemoryStore

    near = isinstance(store, (LocalStore, MemoryStore))
    return _PROCESS_COSTS if near else NETWORK_COSTS


def request_errors() -> tuple[type[Exception], ...]:
    """Exceptions that obstore raises when a request fails."""
    from obstore.exceptions import BaseError

    return BaseError, OSError, ValueError, RuntimeError


def refusal_of(error: Exception) -> RefusalError:
    """What the server answered, by an error of obstore."""
    from obstore.exceptions import (
        NotSupportedError,
        PermissionDeniedError,
        PreconditionError,
        UnauthenticatedError,
    )

    told = str(error)
    found = _STATUS.search(told)
    status, hint = int(found[1]) if found else None, CHECK_SERVER
    if isinstance(error, FileNotFoundError):
        # obstore takes 405 for a missing object. Some servers send it for directories.
        status = status if status == 405 else 404
    elif isinstance(error, PreconditionError):
        status = 412
    elif isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        status = 403 if isinstance(error, PermissionDeniedError) else 401
        hint = _CHECK_CREDENTIALS
    is_rangeless = isinstance(error, NotSupportedError) or _RANGELESS.search(told)
    return RefusalError(
        told_by(error), status, is_rangeless=bool(is_rangeless), hint=hint
    )


def refuse_after_fork(url: str, key: str) -> None:
    """Refuse to wait for threads that do not exist in a forked process.

    Raises
    ------
    StoreError
        Requests were made before this process was forked, so obstore would hang.
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


def url_of(store: Any) -> str:
    """Address of an obstore store that the caller made."""
    url = getattr(store, "url", None)
    if url is not None:
        return str(url)
    config: Mapping[str, Any] = getattr(store, "config", None) or {}
    prefix = getattr(store, "prefix", None) or ""
    for scheme, name in (("s3", "bucket"), ("gs", "bucket"), ("az", "container_name")):
        if name in config and _CLASS_SCHEMES.get(type(store).__name__) == scheme:
            return f"{scheme}://{config[name]}/{prefix}".rstrip("/")
    return f"obstore:{type(store).__name__}/{prefix}".rstrip("/")


def children_of(store: ObjectStore, url: str, prefix: str) -> list[str]:
    """Sorted names directly below `prefix`.

    Raises
    ------
    StoreError
        The server failed to list the names.
    """
    import obstore

    refuse_after_fork(url, prefix)
    try:
        found = obstore.list_with_delimiter(store, prefix or None)
    except request_errors() as error:
        raise refusal_of(error).told(url, prefix) from error
    paths = [*found["common_prefixes"], *(item["path"] for item in found["objects"])]
    return sorted({path.rstrip("/").rpartition("/")[2] for path in paths})

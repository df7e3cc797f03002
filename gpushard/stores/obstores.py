"""What obstore's stores report about themselves, and about objects."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gpushard.errors import StoreError
from gpushard.options import KIB, MIB
from gpushard.stores.base import FetchCosts, PassingVersion
from gpushard.stores.failures import failure
from gpushard.stores.remote_failures import request_failure

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

# 1 MiB and 16 MiB are zarr-python's figures for object stores (3.3, its ArrayConfig
# `sharding_coalesce_*`). At 20-100 ms latency and 50-100 MB/s a connection, 1 MiB more
# never costs as much as another request. 32 such connections fill 25 Gbit/s.
_NETWORK_COSTS = FetchCosts(
    gap_nbytes=MIB,
    max_request_nbytes=16 * MIB,
    concurrency=32,
    prefers_whole_objects=True,
)
_PROCESS_COSTS = FetchCosts(
    gap_nbytes=64 * KIB,
    max_request_nbytes=16 * MIB,
    concurrency=8,
    prefers_whole_objects=False,
    answers_in_own_memory=True,
)

NEVER = datetime.fromtimestamp(0, UTC)
"""Value that obstore reports if the server sent no Last-Modified."""

# obstore has no exception classes for these answers, so their text is matched.
UNSATISFIABLE = re.compile(r"status code: 416\b")
SUFFIX_REFUSED = re.compile(r"status code: (400|405|416|501)\b|CONTENT_RANGE header")
# obstore takes this status for a missing object. Some servers send it for directories.
METHOD_REFUSED = re.compile(r"status code: 405\b")
UNSIZED = re.compile(r"(?i)content[-_]length header missing")
RANGELESS = re.compile(r"(?i)content[-_](range header|length header missing)")

# Process that owns the threads of obstore's runtime, once the runtime exists.
_owner: list[int] = []

_CLASS_SCHEMES = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}


def costs_of(store: ObjectStore) -> FetchCosts:
    """Costs of requests to a store; an unknown store counts as behind a network."""
    from obstore.store import LocalStore, MemoryStore

    near = isinstance(store, (LocalStore, MemoryStore))
    return _PROCESS_COSTS if near else _NETWORK_COSTS


def request_errors() -> tuple[type[Exception], ...]:
    """Exceptions that obstore raises when a request fails."""
    from obstore.exceptions import BaseError

    return BaseError, OSError, ValueError, RuntimeError


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


@dataclass(frozen=True, slots=True)
class Clue(PassingVersion):
    """Properties of an object on a server without strong ETags.

    If one of these differs, the object is another version. If none differs, it may
    still be another version.

    Attributes
    ----------
    e_tag
        Weak ETag, if any.
    modified
        Last-Modified, in whole seconds; 1970 means none.
    nbytes
        Size of the object.
    """

    e_tag: str | None
    modified: datetime
    nbytes: int

    def is_contradicted(self, about: ObjectMeta) -> bool:
        """Whether `about` is about another version; a HEAD may tell less than a GET."""
        tags = {_opaque(self.e_tag), _opaque(about["e_tag"])} - {None}
        dates = {self.modified, about["last_modified"]} - {NEVER}
        return self.nbytes != about["size"] or len(tags) > 1 or len(dates) > 1


def version_of(about: ObjectMeta) -> str | Clue:
    """Strong ETag (RFC 9110, 8.8.3), or a `Clue` if there is none."""
    e_tag = about["e_tag"]
    if e_tag is None or e_tag.startswith("W/"):
        return Clue(e_tag, about["last_modified"], about["size"])
    return e_tag


def _opaque(e_tag: str | None) -> str | None:
    return e_tag and e_tag.removeprefix("W/")


def is_other(version: Hashable, about: ObjectMeta) -> bool:
    """Whether `about` is about another version than `version`."""
    if isinstance(version, Clue):
        return version.is_contradicted(about)
    return version != version_of(about)


def is_http(store: Any) -> bool:
    """Whether a store is a plain HTTP server."""
    return type(store).__name__ == "HTTPStore"


def headers_of(store: Any) -> dict[str, str]:
    """Headers that a web server's store sends with each request."""
    options: Mapping[str, Any] = getattr(store, "client_options", None) or {}
    named: Mapping[str, Any] = options.get("default_headers") or {}
    if agent := options.get("user_agent"):
        named = {"User-Agent": agent, **named}
    return {
        name: value.decode("latin-1") if isinstance(value, bytes) else value
        for name, value in named.items()
    }


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


def children_of(store: ObjectStore, url: str, prefix: str) -> list[str] | None:
    """Sorted names directly below `prefix`; None for plain HTTP.

    Raises
    ------
    StoreError
        The server failed to list the names.
    """
    import obstore

    if is_http(store):
        return None
    refuse_after_fork(url, prefix)
    try:
        found = obstore.list_with_delimiter(store, prefix or None)
    except request_errors() as error:
        raise request_failure(url, prefix, error) from error
    paths = [*found["common_prefixes"], *(item["path"] for item in found["objects"])]
    return sorted({path.rstrip("/").rpartition("/")[2] for path in paths})

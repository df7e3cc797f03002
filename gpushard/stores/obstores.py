"""What obstore's stores tell about themselves and about objects."""

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

# 1 MiB and 16 MiB are zarr-python's own figures for object stores (3.3, its ArrayConfig
# `sharding_coalesce_*`): at 20-100 ms latency and 50-100 MB/s a connection, 1 MiB more
# never costs what another request does. 32 such connections fill 25 Gbit/s.
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
"""What obstore has for a Last-Modified that was not told."""

# obstore has no classes for these answers, only their text.
UNSATISFIABLE = re.compile(r"status code: 416\b")
SUFFIX_REFUSED = re.compile(r"status code: (400|405|416|501)\b|CONTENT_RANGE header")
# Which obstore takes for a missing object: some servers answer it for directories.
METHOD_REFUSED = re.compile(r"status code: 405\b")
UNSIZED = re.compile(r"(?i)content[-_]length header missing")
RANGELESS = re.compile(r"(?i)content[-_](range header|length header missing)")

# The process whose threads obstore's runtime has, once there is one.
_owner: list[int] = []

_CLASS_SCHEMES = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}


def costs_of(store: ObjectStore) -> FetchCosts:
    """What requests to a store cost; one that is not known is behind a network."""
    from obstore.store import LocalStore, MemoryStore

    near = isinstance(store, (LocalStore, MemoryStore))
    return _PROCESS_COSTS if near else _NETWORK_COSTS


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


@dataclass(frozen=True, slots=True)
class Clue(PassingVersion):
    """What a server without strong ETags tells of an object.

    Where one of these differs, it is another version; where none does, it may be.

    Attributes
    ----------
    e_tag
        Weak ETag, if any.
    modified
        Last-Modified, to the second; 1970 stands for none.
    nbytes
        Size.
    """

    e_tag: str | None
    modified: datetime
    nbytes: int

    def is_contradicted(self, about: ObjectMeta) -> bool:
        """Whether `about` is told of another version; a HEAD may tell less."""
        tags = {_opaque(self.e_tag), _opaque(about["e_tag"])} - {None}
        dates = {self.modified, about["last_modified"]} - {NEVER}
        return self.nbytes != about["size"] or len(tags) > 1 or len(dates) > 1


def version_of(about: ObjectMeta) -> str | Clue:
    """Strong ETag (RFC 9110, 8.8.3), or what else may tell a change."""
    e_tag = about["e_tag"]
    if e_tag is None or e_tag.startswith("W/"):
        return Clue(e_tag, about["last_modified"], about["size"])
    return e_tag


def _opaque(e_tag: str | None) -> str | None:
    return e_tag and e_tag.removeprefix("W/")


def is_other(version: Hashable, about: ObjectMeta) -> bool:
    """Whether `about` is told of another version than `version`."""
    if isinstance(version, Clue):
        return version.is_contradicted(about)
    return version != version_of(about)


def is_http(store: Any) -> bool:
    """Whether it is a plain HTTP server."""
    return type(store).__name__ == "HTTPStore"


def headers_of(store: Any) -> dict[str, str]:
    """What a web server's store sends with each request, as its client is told to."""
    options: Mapping[str, Any] = getattr(store, "client_options", None) or {}
    named: Mapping[str, Any] = options.get("default_headers") or {}
    if agent := options.get("user_agent"):
        named = {"User-Agent": agent, **named}
    return {
        name: value.decode("latin-1") if isinstance(value, bytes) else value
        for name, value in named.items()
    }


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


def children_of(store: ObjectStore, url: str, prefix: str) -> list[str] | None:
    """Sorted names directly below `prefix`; None for plain HTTP.

    Raises
    ------
    StoreError
        The server failed to list.
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

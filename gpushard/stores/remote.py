"""Objects behind HTTP, S3 and its kind, through obstore.

obstore's blocking calls run in threads: they wait outside the interpreter's lock, need
no event loop, and so work the same in scripts, notebooks and worker threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpushard.errors import ObjectChangedError, StoreError
from gpushard.options import KIB, MIB
from gpushard.stores.base import ByteRequest, FetchCosts, Fetched
from gpushard.stores.failures import failure, refuse_unsafe_key
from gpushard.workers import run_side_by_side

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
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
    max_request_nbytes=8 * MIB,
    concurrency=8,
    prefers_whole_objects=False,
)

# Where ranges are ignored, larger objects are an error, not a surprise download.
_RANGELESS_MAX_NBYTES = 64 * MIB

# obstore has no classes for these answers, only their text.
_UNSATISFIABLE = re.compile(r"status code: 416\b")
_SUFFIX_REFUSED = re.compile(r"status code: (400|405|416|501)\b|CONTENT_RANGE header")
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")


class RemoteStore:
    """Read access through an obstore store.

    Safe for several threads. Versions are strong ETags (RFC 9110, 8.8.3): a weak one,
    or a date with one second's resolution, does not promise the same bytes.

    Parameters
    ----------
    store
        Any store of `obstore.store`.
    url
        Address for messages; by default what the store tells about itself.

    Attributes
    ----------
    object_store
        The obstore store.
    """

    def __init__(self, store: ObjectStore, url: str | None = None) -> None:
        self.object_store = store
        self._url = _USER_INFO.sub("", url or _url_of(store))
        self._costs = _costs_of(store)
        self._refuses_suffixes = False
        self._ignores_ranges = False

    def __reduce__(self) -> tuple[Callable[..., RemoteStore], tuple[object, ...]]:
        return RemoteStore, (self.object_store, self._url)

    def __repr__(self) -> str:
        return f"RemoteStore({self._url!r})"

    @property
    def url(self) -> str:
        """Address of the root, without credentials."""
        return self._url

    @property
    def costs(self) -> FetchCosts:
        """A request costs a round trip."""
        return self._costs

    def read(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        """Answer each request, in order; None where there is no such object.

        Raises
        ------
        ObjectChangedError
            A requested version is gone.
        StoreError
            The server failed, did not answer in time, or answered other bytes.
        """
        if self._ignores_ranges:
            return self._read_from_wholes(requests)
        return run_side_by_side(self._read_one, requests, self._costs.concurrency)

    def current_version(
        self,
        key: str,  # noqa: ARG002  the protocol's signature
    ) -> tuple[bool, Hashable | None]:
        """Always ``(False, None)``: asking costs a request."""
        return False, None

    def get(self, key: str) -> bytes | None:
        """Bytes of a whole object, or None if there is none.

        Raises
        ------
        StoreError
            As for `read`.
        """
        fetched = self._read_one(ByteRequest(key))
        return None if fetched is None else fetched.data.tobytes()

    def list_children(self, prefix: str) -> list[str] | None:
        """Sorted names directly below `prefix`; None for plain HTTP.

        Raises
        ------
        StoreError
            The server failed to list.
        """
        import obstore
        from obstore.store import HTTPStore

        if isinstance(self.object_store, HTTPStore):
            return None
        try:
            found = obstore.list_with_delimiter(self.object_store, prefix or None)
        except _errors() as error:
            raise self._failure(prefix, error) from error
        paths = [
            *found["common_prefixes"],
            *(item["path"] for item in found["objects"]),
        ]
        return sorted({path.rstrip("/").rpartition("/")[2] for path in paths})

    def _read_one(self, request: ByteRequest) -> Fetched | None:
        """Answer one request, by another way where the server refuses the first."""
        from obstore.exceptions import NotSupportedError

        refuse_unsafe_key(request.key, self._url)
        try:
            if request.start < 0:
                return self._read_suffix(request)
            return self._read_range(request)
        except FileNotFoundError as error:
            if request.version is not None:
                raise self._changed(request, "no object") from error
            return None
        except NotSupportedError:
            self._ignores_ranges = True
            return self._read_from_wholes([request])[0]
        except StoreError:
            raise
        except _errors() as error:
            raise self._failure(request.key, error) from error

    def _read_range(self, request: ByteRequest) -> Fetched:
        """Bytes of an absolute range, cut at the object's end."""
        start, stop = request.start, request.stop
        if stop is not None and stop <= start:
            return self._empty(self._head(request))
        if start == 0 and stop is None:
            return self._request(request, {})
        span: Any = {"offset": start} if stop is None else (start, stop)
        try:
            return self._request(request, {"range": span})
        except _errors() as error:
            if not _UNSATISFIABLE.search(str(error)):
                raise
            about = self._head(request)
            if start < about["size"]:
                raise
            return self._empty(about)

    def _read_suffix(self, request: ByteRequest) -> Fetched:
        """The last bytes of the object, by its size where suffixes are refused."""
        from obstore.exceptions import NotSupportedError

        if not self._refuses_suffixes:
            try:
                return self._request(request, {"range": {"suffix": -request.start}})
            except _errors() as error:
                if not isinstance(
                    error, NotSupportedError
                ) and not _SUFFIX_REFUSED.search(str(error)):
                    raise
        about = self._head(request)
        if about["size"] == 0:
            return self._empty(about)
        self._refuses_suffixes = True
        start = max(0, about["size"] + request.start)
        version = request.version or _version_of(about)
        return self._request(
            ByteRequest(request.key, start, about["size"], version),
            {"range": (start, about["size"])},
        )

    def _request(self, request: ByteRequest, options: GetOptions) -> Fetched:
        """Bytes of one GET, checked against what was asked."""
        import obstore
        from obstore.exceptions import PreconditionError

        if isinstance(request.version, str):
            options["if_match"] = request.version
        try:
            result = obstore.get(self.object_store, request.key, options=options)
        except PreconditionError as error:
            raise self._changed(request, "another version") from error
        about = result.meta
        self._check_version(request, about)
        data = np.frombuffer(result.bytes(), np.uint8)
        expected = _range_within(request, about["size"])
        if result.range != expected or len(data) != expected[1] - expected[0]:
            raise failure(
                StoreError,
                self._url,
                request.key,
                "the server answered other bytes than asked",
                expected=f"bytes {expected[0]}-{expected[1]}",
                got=f"{len(data)} bytes of {result.range[0]}-{result.range[1]}",
                hint="check the server or the proxy before it",
            )
        return Fetched(data, about["size"], _version_of(about))

    def _head(self, request: ByteRequest) -> ObjectMeta:
        """What the server tells about the object."""
        import obstore

        about = obstore.head(self.object_store, request.key)
        self._check_version(request, about)
        return about

    def _empty(self, about: ObjectMeta) -> Fetched:
        return Fetched(np.empty(0, np.uint8), about["size"], _version_of(about))

    def _read_from_wholes(
        self, requests: Sequence[ByteRequest]
    ) -> list[Fetched | None]:
        """Answers cut from whole objects, each fetched once."""
        wanted = list(dict.fromkeys((r.key, r.version) for r in requests))
        wholes = run_side_by_side(self._get_whole, wanted, self._costs.concurrency)
        by_wanted = dict(zip(wanted, wholes, strict=True))
        return [_cut(by_wanted[r.key, r.version], r) for r in requests]

    def _get_whole(self, wanted: tuple[str, Hashable | None]) -> Fetched | None:
        """Whole object of a server without ranges, unless it is large."""
        import obstore

        request = ByteRequest(wanted[0], version=wanted[1])
        try:
            result = obstore.get(self.object_store, request.key)
            about = result.meta
            self._check_version(request, about)
            if about["size"] > _RANGELESS_MAX_NBYTES:
                raise failure(
                    StoreError,
                    self._url,
                    request.key,
                    "the server does not answer ranges and the object is large",
                    expected=f"at most {_RANGELESS_MAX_NBYTES} bytes",
                    got=f"{about['size']} bytes",
                    hint="serve the data from a server that answers range requests",
                )
            data = np.frombuffer(result.bytes(), np.uint8)
        except FileNotFoundError as error:
            if request.version is not None:
                raise self._changed(request, "no object") from error
            return None
        except StoreError:
            raise
        except _errors() as error:
            raise self._failure(request.key, error) from error
        return Fetched(data, len(data), _version_of(about))

    def _check_version(self, request: ByteRequest, about: ObjectMeta) -> None:
        """Refuse another version; some servers ignore If-Match."""
        if request.version is None or request.version == _version_of(about):
            return
        raise self._changed(request, f"ETag {about['e_tag']}")

    def _changed(self, request: ByteRequest, got: str) -> ObjectChangedError:
        return failure(
            ObjectChangedError,
            self._url,
            request.key,
            "the object was replaced while it was read",
            expected=f"ETag {request.version}",
            got=got,
            hint="read again",
        )

    def _failure(self, key: str, error: Exception) -> StoreError:
        from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

        hint = "check the address, the network and the server"
        if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
            hint = (
                "check the credentials, or pass storage_options="
                "{'skip_signature': True} for public data"
            )
        # Lines after the first one repeat it as Rust prints its structures.
        why = _USER_INFO.sub("", str(error).strip().split("\n")[0])
        return failure(
            StoreError, self._url, key, why or type(error).__name__, hint=hint
        )


def _errors() -> tuple[type[Exception], ...]:
    """What obstore raises when a request fails."""
    from obstore.exceptions import BaseError

    return BaseError, OSError, ValueError, RuntimeError


def _version_of(about: ObjectMeta) -> str | None:
    """Strong ETag, or None."""
    e_tag = about["e_tag"]
    return None if e_tag is None or e_tag.startswith("W/") else e_tag


def _range_within(request: ByteRequest, object_nbytes: int) -> tuple[int, int]:
    """Half-open range that answers `request` in an object of that size."""
    if request.start < 0:
        return max(0, object_nbytes + request.start), object_nbytes
    stop = object_nbytes if request.stop is None else request.stop
    stop = min(stop, object_nbytes)
    return min(request.start, stop), stop


def _cut(whole: Fetched | None, request: ByteRequest) -> Fetched | None:
    if whole is None:
        return None
    start, stop = _range_within(request, len(whole.data))
    return Fetched(whole.data[start:stop], whole.object_nbytes, whole.version)


def _costs_of(store: ObjectStore) -> FetchCosts:
    from obstore.store import LocalStore, MemoryStore

    near = isinstance(store, (LocalStore, MemoryStore))
    return _PROCESS_COSTS if near else _NETWORK_COSTS


def _url_of(store: Any) -> str:
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


_CLASS_SCHEMES = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}

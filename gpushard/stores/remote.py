"""Objects behind HTTP, S3 and similar protocols, read through obstore.

obstore's blocking calls run in threads. They wait without the interpreter's lock and
need no event loop, so they work alike in scripts, notebooks and worker threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import StoreError
from gpushard.options import DEFAULT, Options
from gpushard.stores.base import ByteRequest, FetchCosts, Fetched
from gpushard.stores.bodies import Pace, body_of, piece_nbytes
from gpushard.stores.documents import document_bytes, document_request
from gpushard.stores.failures import refuse_unsafe_key, without_credentials
from gpushard.stores.obstores import (
    METHOD_REFUSED,
    RANGELESS,
    SUFFIX_REFUSED,
    UNSATISFIABLE,
    UNSIZED,
    children_of,
    costs_of,
    is_other,
    refuse_after_fork,
    request_errors,
    url_of,
    version_of,
)
from gpushard.stores.patience import Patience
from gpushard.stores.plain_http import PlainServer, plain_server
from gpushard.stores.remote_failures import (
    changed,
    other_bytes,
    refuse_large,
    refuse_other_body,
    request_failure,
    too_slow,
    two_sizes,
)
from gpushard.stores.wholes import Together, Wholes, cut_out, read_together
from gpushard.workers import run_side_by_side

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta
    from obstore.store import ObjectStore


class RemoteStore:
    """Read access through an obstore store.

    Safe for several threads. Versions are strong ETags (RFC 9110, 8.8.3). A weak ETag,
    or a date in whole seconds, does not guarantee the same bytes. It may show within a
    read that the bytes changed, but nothing is kept because of it.

    Parameters
    ----------
    store
        Any store of `obstore.store`.
    url
        Address for messages; by default the one that the store reports.
    options
        `patience_s` and `min_nbytes_per_s` say when to give up on a server.
    forbidden_is_missing
        Whether the status 403 means that there is no such object.

    Attributes
    ----------
    object_store
        The obstore store.
    """

    def __init__(
        self,
        store: ObjectStore,
        url: str | None = None,
        options: Options = DEFAULT,
        *,
        forbidden_is_missing: bool = False,
    ) -> None:
        self.object_store = store
        self.is_read_only = False  # set later by `resolve.adapt`
        self.puts_conditionally: bool | None = None  # set after a test
        self._forbidden_is_missing = forbidden_is_missing
        self._url = without_credentials(url or url_of(store))
        self._costs = costs_of(store)
        self._options = options
        self._pace = Pace(options.patience_s, options.min_nbytes_per_s)
        self._plain = plain_server(store, self._url, self._pace)
        self._patience = Patience(self._pace, self._plain)
        self._refuses_suffixes = False
        self._ignores_ranges = False
        self._wholes = Wholes(options)
        self._piece_nbytes = piece_nbytes(options.memory_limit)

    def __reduce__(self) -> tuple[Callable[..., RemoteStore], Any, Any]:
        make = partial(RemoteStore, forbidden_is_missing=self._forbidden_is_missing)
        state = {"is_read_only": self.is_read_only}
        return make, (self.object_store, self._url, self._options), state

    def __repr__(self) -> str:
        return f"RemoteStore({self._url!r})"

    @property
    def url(self) -> str:
        """Address of the root, without credentials."""
        return self._url

    @property
    def costs(self) -> FetchCosts:
        """Costs of the store: a request costs a round trip."""
        return self._costs

    def read(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        """Answer each request, in order; None for an object that does not exist.

        Raises
        ------
        ObjectChangedError
            A requested version no longer exists.
        StoreError
            The server failed, was too slow, or answered with other bytes.
        """
        group = Together()
        if self._ignores_ranges:
            return self._read_from_wholes(requests, group)
        read = partial(self._read_one, group=group)
        return run_side_by_side(read, requests, self._costs.concurrency)

    def current_version(
        self,
        key: str,  # noqa: ARG002  the protocol's signature
    ) -> tuple[bool, Hashable | None]:
        """Always ``(False, None)``, because a check costs a request."""
        return False, None

    def get(self, key: str) -> bytes | None:
        """Bytes of a whole object; None if there is no object.

        Raises
        ------
        StoreError
            As for `read`.
        """
        fetched = self._read_one(document_request(key), Together())
        return document_bytes(fetched, key, self._url)

    def list_children(self, prefix: str) -> list[str] | None:
        """Sorted names directly below `prefix`; None for plain HTTP.

        Raises
        ------
        StoreError
            The server failed to list the names.
        """
        return children_of(self.object_store, self._url, prefix)

    def refuse_changed(self, key: str, version: Hashable | None) -> None:
        """Raise if an object is no longer of `version`; this costs a request.

        Raises
        ------
        ObjectChangedError
            The object was replaced or deleted.
        StoreError
            The server failed.
        """
        request = ByteRequest(key, version=version)
        try:
            self._head(request)
        except FileNotFoundError as error:
            self._absent(request, error)
            raise changed(self._url, request, "no object") from error
        except StoreError:
            raise
        except request_errors() as error:
            raise request_failure(self._url, key, error) from error

    def _read_one(self, request: ByteRequest, group: Together) -> Fetched | None:
        """Answer one request; repeat it while the server is busy."""
        return self._patience.ask(partial(self._answer, group=group), request)

    def _answer(self, request: ByteRequest, group: Together) -> Fetched | None:
        """Answer one request, in another way if the server refuses the first way."""
        from obstore.exceptions import NotSupportedError

        refuse_unsafe_key(request.key, self._url)
        refuse_after_fork(self._url, request.key)
        try:
            if request.start < 0:
                return self._read_suffix(request, group)
            return self._read_range(request)
        except FileNotFoundError as error:
            return self._absent(request, error)
        except StoreError:
            raise
        except request_errors() as error:
            is_rangeless = isinstance(error, NotSupportedError)
            if is_rangeless or RANGELESS.search(str(error)):
                self._ignores_ranges = True
                return self._cut_whole([request], group)[0]
            return self._refused(request, error)

    def _refused(self, request: ByteRequest, error: Exception) -> None:
        """Raise `error`, unless the server refuses missing objects in this way."""
        from obstore.exceptions import PermissionDeniedError

        if not (
            self._forbidden_is_missing and isinstance(error, PermissionDeniedError)
        ):
            raise request_failure(self._url, request.key, error) from error

    def _absent(self, request: ByteRequest, error: FileNotFoundError) -> None:
        """None for a missing object; raise if it existed before or may well exist."""
        if METHOD_REFUSED.search(str(error)):
            raise request_failure(self._url, request.key, error) from error
        if request.version is not None:
            raise changed(self._url, request, "no object") from error

    def _read_range(self, request: ByteRequest) -> Fetched:
        """Bytes of an absolute range, cut at the end of the object."""
        start, stop = request.start, request.stop
        if stop is not None and stop <= start:
            return self._empty(self._head(request))
        if start == 0 and stop is None:
            return self._request(request, {})
        span: Any = {"offset": start} if stop is None else (start, stop)
        try:
            return self._request(request, {"range": span})
        except request_errors() as error:
            if not UNSATISFIABLE.search(str(error)):
                raise
            about = self._head(request)
            if start < about["size"]:
                raise
            return self._empty(about)

    def _read_suffix(self, request: ByteRequest, group: Together) -> Fetched | None:
        """Last bytes of an object; if suffixes are refused, its size is asked first."""
        from obstore.exceptions import NotSupportedError

        if not self._refuses_suffixes:
            try:
                return self._request(request, {"range": {"suffix": -request.start}})
            except request_errors() as error:
                is_refused = SUFFIX_REFUSED.search(str(error))
                if not (is_refused or isinstance(error, NotSupportedError)):
                    raise
        about = self._head(request)
        if (nbytes := about["size"]) == 0:  # or the server does not support HEAD
            return self._cut_whole([request], group)[0]
        self._refuses_suffixes = True
        start = max(0, nbytes + request.start)
        version = request.version or version_of(about)
        found = self._request(
            ByteRequest(request.key, start, nbytes, version),
            {"range": (start, nbytes)},
        )
        if found.object_nbytes != nbytes:
            raise two_sizes(self._url, request.key, nbytes, found.object_nbytes)
        return found

    def _request(self, request: ByteRequest, options: GetOptions) -> Fetched:
        """Bytes from one GET, checked against the request."""
        import obstore
        from obstore.exceptions import PreconditionError

        if isinstance(request.version, str):
            options["if_match"] = request.version
        started = time.monotonic()
        try:
            result = obstore.get(self.object_store, request.key, options=options)
        except PreconditionError as error:
            if "if_match" not in options:  # the condition of a proxy or a server
                raise
            raise changed(self._url, request, "another version") from error
        about = result.meta
        self._check_version(request, about)
        limit = request.max_nbytes
        if limit is not None and about["size"] > limit:
            # Only the first `limit` bytes are wanted, so they are requested instead.
            head = request._replace(stop=limit, max_nbytes=None)
            return self._read_range(head)
        data = self._body(request, result, started)
        expected = request.within(about["size"])
        if result.range != expected or len(data) != expected[1] - expected[0]:
            raise other_bytes(self._url, request.key, expected, result.range, len(data))
        return Fetched(data, about["size"], version_of(about))

    def _body(
        self, request: ByteRequest, result: GetResult, started: float
    ) -> NDArray[np.uint8]:
        """Body of an answer; refused unless it is the stored bytes themselves."""
        if self._plain is not None:
            refuse_other_body(self._url, request.key, result.attributes.get)
        if not self._costs.prefers_whole_objects:  # a store in this process or on disk
            return np.frombuffer(result.bytes(), np.uint8)
        nbytes = result.range[1] - result.range[0]
        try:
            left_s = self._pace.left_s(nbytes, started)
            return body_of(result, nbytes, left_s, self._piece_nbytes)
        except TimeoutError as error:
            limit_s = self._pace.limit_s(nbytes)
            raise too_slow(self._url, request.key, nbytes, limit_s) from error
        except request_errors() as error:
            raise request_failure(self._url, request.key, error) from error

    def _head(self, request: ByteRequest) -> ObjectMeta:
        """Metadata that the server reports about an object."""
        import obstore

        about = obstore.head(self.object_store, request.key)
        self._check_version(request, about)
        return about

    def _empty(self, about: ObjectMeta) -> Fetched:
        return Fetched(np.empty(0, np.uint8), about["size"], version_of(about))

    def _read_from_wholes(
        self, requests: Sequence[ByteRequest], group: Together
    ) -> list[Fetched | None]:
        """Answers cut from whole objects, each of which is fetched once."""

        def ask(some: Sequence[ByteRequest]) -> list[Fetched | None]:
            return self._patience.ask(lambda _: self._cut_whole(some, group), some[0])

        return read_together(requests, ask, self._costs.concurrency)

    def _cut_whole(
        self, some: Sequence[ByteRequest], group: Together
    ) -> list[Fetched | None]:
        """Answers to requests for one object, from a server without ranges."""
        request = ByteRequest(some[0].key, version=some[0].version)
        refuse_unsafe_key(request.key, self._url)
        refuse_after_fork(self._url, request.key)
        try:
            result = self._whole(request)
            about = result.meta
            with self._wholes.taken(about["size"], group) as had_room:
                if not had_room:  # the answer may have expired during the wait
                    result = self._whole(request._replace(version=version_of(about)))
                data = self._body(request, result, time.monotonic())
                whole = Fetched(data, len(data), version_of(about))
                return [cut_out(whole, one) for one in some]
        except FileNotFoundError as error:
            return [self._absent(request, error)] * len(some)
        except StoreError:
            raise
        except request_errors() as error:
            if self._plain is not None and UNSIZED.search(str(error)):
                with self._wholes.taken(self._wholes.most_nbytes, group):
                    unsized = self._get_unsized(request, self._plain)
                    return [cut_out(unsized, one) for one in some]
            return [self._refused(request, error)] * len(some)

    def _whole(self, request: ByteRequest) -> GetResult:
        """Answer to a GET whose body is a whole object."""
        import obstore

        result = obstore.get(self.object_store, request.key)
        self._check_version(request, result.meta)
        self._refuse_large(request.key, result.meta["size"])
        return result

    def _get_unsized(self, request: ByteRequest, server: PlainServer) -> Fetched | None:
        """Whole object from a server that does not tell its size."""
        try:
            body, about = server.get_unsized(request.key, self._wholes.most_nbytes)
        except FileNotFoundError as error:
            return self._absent(request, error)
        self._refuse_large(request.key, len(body))
        self._check_version(request, about)
        return Fetched(np.frombuffer(body, np.uint8), len(body), version_of(about))

    def _refuse_large(self, key: str, nbytes: int) -> None:
        """Refuse a large object, and request ranges again the next time.

        A proxy may have ignored ranges only because it was overloaded for a moment.
        """
        most = self._wholes.most_nbytes
        self._ignores_ranges &= nbytes <= most
        refuse_large(self._url, key, nbytes, most)

    def _check_version(self, request: ByteRequest, about: ObjectMeta) -> None:
        """Refuse another version, because some servers ignore If-Match."""
        if request.version is not None and is_other(request.version, about):
            raise changed(self._url, request, str(version_of(about)))

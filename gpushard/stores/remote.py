"""Object stores (S3 and similar protocols), read through obstore.

obstore's blocking calls run in threads. They wait without the interpreter's lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from gpushard.options import DEFAULT, Options
from gpushard.stores.answers import ObjectFacts, RefusalError
from gpushard.stores.failures import too_slow, without_credentials
from gpushard.stores.obstores import (
    body_of,
    costs_of,
    keys_below,
    names_below,
    piece_nbytes,
    refusal_of,
    refuse_after_fork,
    request_errors,
    url_of,
)
from gpushard.stores.patience import Patience, WaitLimits
from gpushard.stores.ranged import RangedStore

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta
    from obstore.store import ObjectStore


class RemoteStore(RangedStore):
    """Read access through an obstore store.

    Parameters
    ----------
    store
        Any store of `obstore.store` except `HTTPStore`, which `HttpStore` reads.
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
        self.puts_conditionally: bool | None = None  # set after a test
        url = without_credentials(url or url_of(store))
        costs = costs_of(store)
        wait_limits = WaitLimits(options.patience_s, options.min_nbytes_per_s)
        most = piece_nbytes(options.memory_limit) if costs.prefers_whole_objects else 0
        super().__init__(
            _ObstoreClient(store, url, wait_limits, most),
            url,
            costs,
            Patience(wait_limits),
            options,
            forbidden_is_missing=forbidden_is_missing,
        )

    def __reduce__(self) -> tuple[Callable[..., RemoteStore], Any, Any]:
        make = partial(RemoteStore, forbidden_is_missing=self._forbidden_is_missing)
        state = {"is_read_only": self.is_read_only}
        return make, (self.object_store, self.url, self._options), state

    @property
    def takes_tags(self) -> bool:
        """Whether objects may have tags; obstore drops them for other stores."""
        from obstore.store import AzureStore, S3Store

        return isinstance(self.object_store, AzureStore | S3Store)

    def list_children(self, prefix: str) -> list[str]:
        """Sorted names directly below `prefix`."""
        return names_below(self.object_store, self.url, prefix)

    def list_keys(self, prefix: str) -> Generator[Sequence[str]]:
        """Keys below the directory `prefix`, some at a time."""
        return keys_below(self.object_store, self.url, prefix)


class _ObstoreClient:
    """Client of one obstore store.

    Parameters
    ----------
    piece_nbytes
        Size of the pieces of a body; 0 for a store in this process or on disk.
    """

    def __init__(
        self, store: ObjectStore, url: str, wait_limits: WaitLimits, piece_nbytes: int
    ) -> None:
        self._store = store
        self._url = url
        self._wait_limits = wait_limits
        self._piece_nbytes = piece_nbytes

    def get(
        self, key: str, span: tuple[int, int | None] | None, if_match: str | None
    ) -> _ObstoreAnswer:
        import obstore

        refuse_after_fork(self._url, key)
        options: GetOptions = {}
        if span is not None:
            options["range"] = _range_of(*span)
        if if_match is not None:
            options["if_match"] = if_match
        started = time.monotonic()
        try:
            result = obstore.get(self._store, key, options=options)
            # Also what obstore cannot tell of an answer, such as a date, is an error.
            return _ObstoreAnswer(result, partial(self._body, key, result, started))
        except request_errors() as error:
            raise refusal_of(error) from error

    def head(self, key: str) -> ObjectFacts:
        import obstore

        refuse_after_fork(self._url, key)
        try:
            return _facts_of(obstore.head(self._store, key))
        except request_errors() as error:
            raise refusal_of(error) from error

    def _body(
        self, key: str, result: GetResult, started: float, nbytes: int
    ) -> NDArray[np.uint8]:
        try:
            if not self._piece_nbytes:
                return np.frombuffer(result.bytes(), np.uint8)
            left_s = self._wait_limits.left_s(nbytes, started)
            return body_of(result, nbytes, left_s, self._piece_nbytes)
        except TimeoutError as error:
            limit_s = self._wait_limits.limit_s(nbytes)
            raise too_slow(self._url, key, nbytes, limit_s) from error
        except request_errors() as error:
            raise refusal_of(error) from error


class _ObstoreAnswer:
    """Answer of obstore, which tells the size of every object."""

    def __init__(
        self, result: GetResult, read: Callable[[int], NDArray[np.uint8]]
    ) -> None:
        self.facts = _facts_of(result.meta)
        self.span = result.range
        self._read = read

    def read_body(
        self,
        nbytes: int,  # noqa: ARG002  obstore knows what it announced
        into: NDArray[np.uint8] | None = None,  # noqa: ARG002  nor takes it memory
    ) -> NDArray[np.uint8]:
        return self._read(self.span[1] - self.span[0])

    def read_unsized_body(
        self,
        most_nbytes: int,  # noqa: ARG002  it never comes to that
    ) -> tuple[NDArray[np.uint8], ObjectFacts]:
        raise RefusalError("obstore tells no size")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: obstore drops what is not read."""


def _range_of(start: int, stop: int | None) -> Any:
    """A byte range as obstore takes it."""
    if start < 0:
        return {"suffix": -start}
    return {"offset": start} if stop is None else (start, stop)


def _facts_of(meta: ObjectMeta) -> ObjectFacts:
    return ObjectFacts(meta["size"], meta["e_tag"], meta["last_modified"])

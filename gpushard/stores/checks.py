"""Answers of a store, held against its contract before anybody reads their bytes.

Users write stores, too. Compiled loops and devices take answers by their address, where
an array with gaps, or of other elements than bytes, would give what lies beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpushard.errors import StoreError
from gpushard.stores.base import ByteRequest, Fetched, Store, lasts
from gpushard.stores.failures import failure, object_changed

_BYTES = np.dtype(np.uint8)
_SIZES_END = 2**63  # offsets into an object are int64
_HINT = "correct the store: see the contract in gpushard.stores.base"


def asked(store: Store, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
    """Answers of `store` to some requests; raises as it does, and as `checked`."""
    return checked(store, requests, store.read(requests))


def checked(
    store: Store, requests: Sequence[ByteRequest], answers: Any
) -> list[Fetched | None]:
    """The answers of `store` to some requests, if they are of the contract's form.

    Who knows how many bytes there must be compares their number.

    Raises
    ------
    ObjectChangedError
        An answer is of another version than the request asks for.
    StoreError
        There is not one answer for each request, or one has other bytes or another size
        than an object can have.
    """
    if not isinstance(answers, (list, tuple)) or len(answers) != len(requests):
        raise _other_answers(store, len(requests), answers)
    found: list[Fetched | None] = [*answers]
    for request, answer in zip(requests, found, strict=True):
        if answer is None:
            continue
        if not _has_bytes(answer):
            raise _no_bytes(store, request, answer)
        if not _is_size(answer.object_nbytes):
            raise _no_size(store, request, answer.object_nbytes)
        wanted, version = request.version, answer.version
        if wanted != version and version is not None and lasts(wanted):
            raise object_changed(store.url, request, str(version))
    return found


def _has_bytes(answer: Any) -> bool:
    if not isinstance(answer, Fetched):
        return False
    data: Any = answer.data
    return (
        isinstance(data, np.ndarray)
        and data.dtype == _BYTES
        and data.ndim == 1
        and data.flags.c_contiguous
    )


def _is_size(nbytes: Any) -> bool:
    if isinstance(nbytes, (int, np.integer)):
        return 0 <= int(nbytes) < _SIZES_END
    return nbytes is None


def _no_bytes(store: Store, request: ByteRequest, answer: Any) -> StoreError:
    data = answer.data if isinstance(answer, Fetched) else answer
    got = f"a {type(data).__name__}"
    if isinstance(data, np.ndarray):
        got = f"{data.dtype}, shape {data.shape}, strides {data.strides}"
    return failure(
        store.url,
        request.key,
        "the store answered with something else than bytes",
        expected="a `Fetched` with contiguous uint8, shape (n_bytes,)",
        got=got,
        hint=_HINT,
    )


def _no_size(store: Store, request: ByteRequest, got: Any) -> StoreError:
    return failure(
        store.url,
        request.key,
        "the store told a size that no object has",
        expected="None, or a number of bytes below 2**63",
        got=repr(got),
        hint=_HINT,
    )


def _other_answers(store: Store, n_requests: int, answers: Any) -> StoreError:
    is_list = isinstance(answers, (list, tuple))
    return StoreError(
        "the store answered another number of requests than it was asked",
        store_url=store.url,
        expected=f"a list of {n_requests} answers",
        got=f"{len(answers)} answers" if is_list else f"a {type(answers).__name__}",
        hint=_HINT,
    )

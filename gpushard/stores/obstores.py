"""What obstore's stores report, and the bodies of their answers.

obstore limits the wait for an answer, and the pause between two pieces of its body. A
server that sends a byte now and then stays within both limits. Only an asynchronous
call of obstore can be abandoned halfway, so bodies are awaited in an event loop of
their own, each for a time that grows with its size.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpushard.options import KIB, MIB
from gpushard.pages import in_pages
from gpushard.stores.answers import CHECK_SERVER, RefusalError
from gpushard.stores.base import NETWORK_COSTS, FetchCosts
from gpushard.stores.event_loops import result_in
from gpushard.stores.failures import failure, first_line_of
from gpushard.threads.pools import pause_at_end

if TYPE_CHECKING:
    from obstore import GetResult
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
# Without credentials obstore asks the machine for some, as those of a cloud have.
_MACHINE_CREDENTIALS = re.compile(
    r"//(169\.254\.\d+\.\d+|metadata\.google\.internal)\b"
)
# S3 answers 400 to a token of another time, and tells the reason in the body.
_OLD_CREDENTIALS = re.compile(
    r"<Code>(ExpiredToken|InvalidToken|TokenRefreshRequired)</Code>"
)
# Without its bucket nothing is known of an object. S3 and Google say the first.
_NO_BUCKET = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>")
# What its stores without a server say of a range without bytes.
_BEYOND_END = re.compile(r"Invalid range: Wanted|Requested range was invalid")
_RANGELESS = re.compile(
    r"(?i)content[-_](range header|length header missing)|non-partial response"
)

# Process that owns the threads of obstore's runtime, once the runtime exists.
_owner: list[int] = []

_NO_CREDENTIALS = (
    "there are no credentials: pass some in storage_options, or "
    "storage_options={'skip_signature': True} for public data"
)
_CHECK_BUCKET = "there is no such bucket: check its name and the address of the server"
_CHECK_CREDENTIALS = (
    "check the credentials, or pass storage_options={'skip_signature': True} for "
    "public data"
)

# Scheme of a store's address, and the setting whose value follows it.
_ADDRESSES = {
    "S3Store": ("s3", "bucket"),
    "GCSStore": ("gs", "bucket"),
    "AzureStore": ("az", "container_name"),
}

# Larger bodies come in pieces. obstore joins the pieces that it returns and so holds
# their bytes twice, for each request in flight.
_PIECE_NBYTES, _LEAST_PIECE_NBYTES = 2 * MIB, 64 * KIB
_PIECES = 256

# Keys in one answer to a listing, of S3 and of others.
_PAGE_KEYS = 1000

# obstore's threads touch Python once more after they have told the last answer. If the
# interpreter has ended by then, they abort the process: 25 of 146 short scripts did,
# and none with this pause.
_PAUSE_S = 0.02
_lock = threading.RLock()  # the handler of a signal may come again
# Process -> its loop; one for each process, as a fork has no threads of its parent.
_loops: dict[int, asyncio.AbstractEventLoop] = {}


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

    message = str(error)
    found = _STATUS.search(message)
    status, hint = int(found[1]) if found else None, CHECK_SERVER
    if _MACHINE_CREDENTIALS.search(message):
        # What the machine answered is not about the object.
        status, hint = None, _NO_CREDENTIALS
    elif _NO_BUCKET.search(message):
        status, hint = None, _CHECK_BUCKET
    elif isinstance(error, FileNotFoundError):
        # obstore takes 405 for a missing object. Some servers send it for directories.
        status = status if status == 405 else 404
    elif isinstance(error, PreconditionError):
        status = 412
    elif isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        status = 403 if isinstance(error, PermissionDeniedError) else 401
        hint = _CHECK_CREDENTIALS
    elif _BEYOND_END.search(message):
        status = 416
    elif _OLD_CREDENTIALS.search(message):
        hint = "renew the credentials"
    is_rangeless = isinstance(error, NotSupportedError) or _RANGELESS.search(message)
    return RefusalError(
        first_line_of(error), status, is_rangeless=bool(is_rangeless), hint=hint
    )


def refuse_after_fork(url: str, key: str) -> None:
    """Refuse to wait for obstore's threads, which a forked process does not have."""
    pid = os.getpid()
    if not _owner:
        _owner.append(pid)
    elif _owner[0] != pid:
        raise failure(
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
    scheme, name = _ADDRESSES.get(type(store).__name__, ("", ""))
    if name in config:
        return f"{scheme}://{config[name]}/{prefix}".rstrip("/")
    return f"obstore:{type(store).__name__}/{prefix}".rstrip("/")


def names_below(store: ObjectStore, url: str, prefix: str) -> list[str]:
    """Sorted names directly below `prefix`."""
    import obstore

    refuse_after_fork(url, prefix)
    try:
        found = obstore.list_with_delimiter(store, prefix or None)
    except request_errors() as error:
        raise refusal_of(error).as_store_error(url, prefix) from error
    paths = [*found["common_prefixes"], *(item["path"] for item in found["objects"])]
    return sorted({path.rstrip("/").rpartition("/")[2] for path in paths})


def keys_below(store: ObjectStore, url: str, prefix: str) -> Generator[list[str]]:
    """Keys below the directory `prefix`, as many at a time as servers list at once."""
    import obstore

    refuse_after_fork(url, prefix)
    try:
        for some in obstore.list(store, prefix or None, chunk_size=_PAGE_KEYS):
            yield [found["path"] for found in some]
    except request_errors() as error:
        raise refusal_of(error).as_store_error(url, prefix) from error


def piece_nbytes(memory_limit: int | None) -> int:
    """Size of the pieces of a body under `memory_limit`, or without a limit (None)."""
    if memory_limit is None:
        return _PIECE_NBYTES
    return min(max(memory_limit // _PIECES, _LEAST_PIECE_NBYTES), _PIECE_NBYTES)


def body_of(
    result: GetResult, nbytes: int, limit_s: float, piece_nbytes: int
) -> NDArray[np.uint8]:
    """Body of an answer whose head states `nbytes`: uint8, on the host.

    Of a longer body only a few bytes more are read, because a server may send without
    end. A larger one than `piece_nbytes` comes in pieces of that size.

    Raises
    ------
    TimeoutError
        The body was not complete after `limit_s`. Nothing waits for it any longer.
    """
    return result_in(_loop(), lambda: _collect(result, nbytes, limit_s, piece_nbytes))


async def _collect(
    result: GetResult, nbytes: int, limit_s: float, piece_nbytes: int
) -> NDArray[np.uint8]:
    async with asyncio.timeout(limit_s):
        if nbytes > piece_nbytes:
            return await _join_pieces(result, nbytes + 1, piece_nbytes)
        # Every piece except the last has the requested size. This one is the last.
        async for piece in result.stream(min_chunk_size=nbytes + 1):
            return np.frombuffer(piece, np.uint8)
        return np.empty(0, np.uint8)


async def _join_pieces(
    result: GetResult, most_nbytes: int, piece_nbytes: int
) -> NDArray[np.uint8]:
    """A body of up to `most_nbytes`; obstore holds only one piece of it twice."""
    body, end = in_pages(most_nbytes), 0
    async for piece in result.stream(min_chunk_size=piece_nbytes):
        part = np.frombuffer(piece, np.uint8)[: most_nbytes - end]
        body[end : end + len(part)] = part
        end += len(part)
        if end == most_nbytes:
            break
    return body[:end]


def _loop() -> asyncio.AbstractEventLoop:
    """Event loop of this process, which runs as long as the process."""
    pid = os.getpid()
    loop = _loops.get(pid)
    if loop is not None:
        return loop
    with _lock:
        if pid not in _loops:
            pause_at_end(_PAUSE_S)
            loop = asyncio.new_event_loop()
            name = "gpushard-bodies"
            threading.Thread(target=loop.run_forever, name=name, daemon=True).start()
            _loops[pid] = loop
        return _loops[pid]

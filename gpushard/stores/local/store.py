"""Objects as files below a local directory, read by position.

An open file is a snapshot. If a writer renames another file over it, its bytes stay
readable. So an index and its inner chunks come from one version as long as the handle
is kept. This needs a POSIX system (`os.preadv`).
"""

from __future__ import annotations

import os
from collections.abc import Generator, Hashable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import ObjectChangedError, StoreError
from gpushard.machine import usable_cpu_count
from gpushard.options import DEFAULT, KIB, MIB, Options
from gpushard.stores.base import ByteRequest, FetchCosts, Fetched
from gpushard.stores.documents import document_bytes, document_request
from gpushard.stores.failures import failure, refuse_unsafe_key
from gpushard.stores.local.handles import (
    MOST_AT_ONCE_NBYTES,
    FileHandle,
    FileVersion,
    HandleTable,
    file_version,
    has_same_bytes,
    is_in_memory,
    read_ahead,
    read_rest,
)
from gpushard.stores.local.root import StoreRoot
from gpushard.threads.workers import run_side_by_side

# Reading 64 KiB takes 8 us from the page cache and 20 us from an NVMe disk. One more
# cold request takes 80 us. One thread that reads for all threads is a quarter slower
# than threads that each read their own share.
_COSTS = FetchCosts(
    gap_nbytes=64 * KIB,
    max_request_nbytes=8 * MIB,
    concurrency=max(8, min(12, usable_cpu_count())),
    prefers_whole_objects=False,
    reads_in_shares=True,
)

# Requests with a lower mean time are answered from the page cache. More threads would
# then only compete for the interpreter's lock.
_SLOW_REQUEST_S = 20e-6
_PATIENCE_S = 1e-3

# From this mean size on, even the page cache takes longer to copy a range than a thread
# takes to be handed one. One thread copies 8 GB/s, eight copied 67 GB/s
# (docs/decisions/2026-11-27-first-run-on-a-gpu.md).
_LARGE_REQUEST_NBYTES = MIB

# A file is asked once for its status after so many of its ranges were read: that takes
# as long as reading one. A slow disk is noticed after as many.
_RUN_REQUESTS = 32

# What a disk is asked for at once, before one thread reads the ranges in turn: two cold
# indexes of 64 KiB take 0.27 ms instead of 0.45 ms. More would fill the disk's queue,
# and asking would wait for it.
_N_ASKED_AHEAD = 32
_ASKED_AHEAD_NBYTES = 128 * KIB


def _runs_of(requests: Sequence[ByteRequest]) -> list[list[ByteRequest]]:
    """Neighbouring requests for one version of a file, some at a time; else single."""
    runs: list[list[ByteRequest]] = []
    key, version, n_left = "", None, 0
    for request in requests:
        if n_left and request.version == version and request.key == key:
            runs[-1].append(request)
            n_left -= 1
        else:
            runs.append([request])
            key, version = request.key, request.version
            n_left = 0 if version is None else _RUN_REQUESTS - 1
    return runs


def _memory_for(request: ByteRequest, nbytes: int) -> NDArray[np.uint8]:
    """Memory for `nbytes` bytes, or for as many as the request has room for."""
    into = request.into
    if into is None:
        return np.empty(nbytes, np.uint8)
    return into if len(into) == nbytes else into[:nbytes]


def _are_large(requests: Sequence[ByteRequest]) -> bool:
    """Whether reading each range takes long enough for a thread of its own."""
    if any(request.stop is None for request in requests):
        return False
    nbytes = sum((request.stop or 0) - request.start for request in requests)
    return nbytes >= _LARGE_REQUEST_NBYTES * len(requests)


def holds_plain_files(store: object) -> TypeGuard[LocalStore]:
    """Whether a store's objects may be read directly as files.

    A subclass may read in a way of its own. It counts only if it declares
    `has_plain_files` itself.
    """
    is_local = isinstance(store, LocalStore)
    return is_local and bool(vars(type(store)).get("has_plain_files"))


class LocalStore:
    """Read access to the files below `root`.

    Safe for several threads; usable in a forked child. A pickle has only the address.

    Parameters
    ----------
    root
        Directory. If it does not exist, the store has no objects.
    options
        `file_handles` limits the number of files that stay open between reads.
    allow_symlinks_outside
        Whether to follow symbolic links below `root` that lead out of it.
    """

    has_plain_files = True
    # Whether `read` checks what a missing file means, so that it must be asked.
    checks_missing = False

    def __init__(
        self,
        root: str | Path,
        options: Options = DEFAULT,
        *,
        allow_symlinks_outside: bool = False,
    ) -> None:
        self._directory = StoreRoot(root, allow_symlinks_outside=allow_symlinks_outside)
        self.root = self._directory.path
        self.options = options
        self.is_read_only = False  # set later by `resolve.adapt`
        self._handles = HandleTable(options.file_handles)

    def __reduce__(self) -> tuple[object, ...]:
        links = self.allow_symlinks_outside
        make = partial(LocalStore, allow_symlinks_outside=links)
        state = self.is_read_only, self._directory.was_there
        return make, (self.root, self.options), state

    def __setstate__(self, state: tuple[bool, bool]) -> None:
        self.is_read_only, was_there = state
        self._directory.was_there |= was_there

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"

    @property
    def allow_symlinks_outside(self) -> bool:
        """Whether symbolic links out of the root are followed; cannot be set later."""
        return self._directory.allows_links_outside

    @property
    def url(self) -> str:
        """``file://`` URL of the root."""
        return self._directory.url

    @property
    def costs(self) -> FetchCosts:
        """Costs of files: requests are cheap, and reading small gaps is cheaper."""
        return _COSTS

    def read(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        """Answer each request, in order; None for a file that does not exist.

        Without a `version`, the current file is read. With a version, an open file of
        that version is read without a look at its path. If a file is overwritten in
        place during the read, this is an `ObjectChangedError`.
        """
        if len(requests) == 1:
            return [self._read_one(requests[0])]
        if _are_large(requests):
            return run_side_by_side(self._read_one, requests, _COSTS.concurrency)
        answers: list[Fetched | None] = []
        started = perf_counter()
        missing = self._ask_ahead(requests[:_N_ASKED_AHEAD])
        read_run = partial(self._read_run, missing=missing)
        runs = _runs_of(requests)
        for n_done, run in enumerate(runs, 1):
            answers += read_run(run)
            elapsed = perf_counter() - started
            if elapsed > _PATIENCE_S and elapsed > len(answers) * _SLOW_REQUEST_S:
                rest = runs[n_done:]
                found = run_side_by_side(read_run, rest, _COSTS.concurrency)
                answers += chain.from_iterable(found)
                break
        return answers

    def open_file(self, key: str, version: Hashable | None) -> FileHandle:
        """Open file of an object, to read by position; it stays open while in use.

        The caller must call `confirm` or `refuse_changed` after reading, before it uses
        the bytes. If the version is gone, that is an `ObjectChangedError`.
        """
        handle = self._handles.get(key)
        if handle is None or handle.version != version:
            handle = self._reopen(key, version)
        return handle

    def open_current(self, key: str) -> FileHandle | None:
        """Open file that is at `key` now, as by `open_file`; None if there is none."""
        handle = self._handles.get(key)
        if handle is not None:
            if self.current_version(key)[1] == handle.version:
                return handle
            self._handles.drop(handle)
        return self._open(key)

    def let_go(self, key: str) -> None:
        """Close the file of an object, if it is open, once nobody reads it."""
        handle = self._handles.get(key)
        if handle is not None:
            self._handles.drop(handle)

    def refuse_outside(self, key: str, real_path: str) -> None:
        """Refuse a path without symbolic links to what lies outside of the root.

        `key` is the object that is looked at, for the error.
        """
        self._directory.refuse_outside(key, real_path)

    def open_root(self) -> FileHandle | None:
        """The directory, open; None if it is gone, or is another one by now."""
        return self._directory.open_itself()

    def confirm(self, handle: FileHandle) -> None:
        """Raise `ObjectChangedError` if an open file was overwritten in place."""
        try:
            now = os.fstat(handle.fd)
        except OSError as error:
            raise self._lost(handle, error) from error
        self.refuse_changed(handle, now)

    def current_version(self, key: str) -> tuple[bool, Hashable | None]:
        """``(True, version)`` of a file; ``(True, None)`` if there is none."""
        handle = self._handles.get(key)
        if handle is None:
            refuse_unsafe_key(key, self.url)
        try:
            return True, file_version(os.stat(self._directory.prefix + key))
        except (FileNotFoundError, NotADirectoryError):
            return True, None
        except OSError as error:
            raise self._directory.failure(key, error) from error

    def get(self, key: str) -> bytes | None:
        """Bytes of a whole file; None if there is no file."""
        fetched = self._read_one(document_request(key))
        return document_bytes(fetched, key, self.url)

    def list_children(self, prefix: str) -> list[str] | None:
        """Sorted names directly below the directory `prefix`; [] if there is none."""
        return self._directory.names_below(prefix)

    def list_keys(self, prefix: str) -> Generator[Sequence[str]] | None:
        """Keys of all that lies below the directory `prefix`, some at a time."""
        return self._directory.keys_below(prefix)

    def _ask_ahead(self, requests: Sequence[ByteRequest]) -> set[str]:
        """Have the disk begin with all ranges at once, if it must be waited for at all.

        Returns the keys at which no file was found. What cannot be opened is left to
        the read itself, which knows its place.
        """
        missing, is_known_cold = set[str](), False
        for request in requests:
            try:
                handle = self._handle_for(request)
            except StoreError:
                return missing
            if handle is None:
                missing.add(request.key)
                continue
            start, stop = request.within(handle.nbytes)
            if not is_known_cold and is_in_memory(handle.fd, start):
                return missing
            is_known_cold = True
            read_ahead(handle.fd, start, min(stop - start, _ASKED_AHEAD_NBYTES))
        return missing

    def _read_one(self, request: ByteRequest) -> Fetched | None:
        handle = self._handle_for(request)
        return None if handle is None else self._read_range(handle, request)

    def _read_run(
        self, requests: Sequence[ByteRequest], missing: set[str]
    ) -> Sequence[Fetched | None]:
        """Answers to requests for one version of one file; or to a single request."""
        if len(requests) == 1:
            is_missing = requests[0].key in missing and requests[0].version is None
            return [None if is_missing else self._read_one(requests[0])]
        handle = self.open_file(requests[0].key, requests[0].version)
        version = handle.version_to_read()
        size, fd, preadv = handle.nbytes, handle.fd, os.preadv
        most = MOST_AT_ONCE_NBYTES
        answers: list[Fetched] = []
        is_torn = False
        try:
            for request in requests:
                start, stop = request.within(size)
                data = _memory_for(request, stop - start)
                some = data if len(data) <= most else data[:most]
                n_bytes = preadv(fd, (some,), start)
                if n_bytes != len(data):
                    n_bytes = read_rest(fd, data, start, n_bytes)
                    is_torn |= n_bytes != len(data)
                answers.append(Fetched(data, size, version))
            now = os.fstat(fd)  # as in `_read_range`
        except OSError as error:
            raise self._lost(handle, error) from error
        if is_torn or file_version(now) != version:
            self.refuse_changed(handle, now, is_torn=is_torn)
        return answers

    def _handle_for(self, request: ByteRequest) -> FileHandle | None:
        """Open file that a request is about; None if no file is there now."""
        if request.version is None:
            return self.open_current(request.key)
        return self.open_file(request.key, request.version)

    def _read_range(self, handle: FileHandle, request: ByteRequest) -> Fetched:
        """Bytes of a range, from the version of the file that the handle has open."""
        version, size = handle.version_to_read(), handle.nbytes
        start, stop = request.within(size)
        n_wanted, most = stop - start, MOST_AT_ONCE_NBYTES
        if request.into is None:  # not `_memory_for`: a small read counts its calls
            data = np.empty(n_wanted, np.uint8)
        else:
            data = request.into[:n_wanted]
            n_wanted = len(data)
        try:
            some = data if n_wanted <= most else data[:most]
            n_bytes = os.preadv(handle.fd, (some,), start)
            if n_bytes != n_wanted:
                n_bytes = read_rest(handle.fd, data, start, n_bytes)
            # Checked after the read, to notice a writer that overwrites in place.
            now = os.fstat(handle.fd)
        except OSError as error:
            raise self._lost(handle, error) from error
        if n_bytes != n_wanted or file_version(now) != version:
            self.refuse_changed(handle, now, is_torn=n_bytes != n_wanted)
        return Fetched(data, size, version)

    def refuse_changed(
        self, handle: FileHandle, now: os.stat_result, *, is_torn: bool = False
    ) -> None:
        """Raise `ObjectChangedError` if an open file was overwritten since.

        `now` is its status. Bytes that are `is_torn` show it by themselves.
        """
        if is_torn or not has_same_bytes(handle.version, now):
            self._handles.drop(handle)
            raise self._changed(handle.key, handle.version, file_version(now))

    def _reopen(self, key: str, version: Hashable) -> FileHandle:
        """Handle of `version`, if no cached handle has that version."""
        handle = self._open(key)
        if handle is not None and handle.version == version:
            return handle
        found = None if handle is None else handle.version
        raise self._changed(key, version, found)

    def _open(self, key: str) -> FileHandle | None:
        """Open the file at `key` and keep the handle; None if there is no file."""
        handle = self._directory.open(key, self._handles.clear_all)
        if handle is not None:
            self._handles.keep(handle)
        return handle

    def _lost(self, handle: FileHandle, error: OSError) -> StoreError:
        """Error of an open file that cannot be read; the next read opens it again.

        A network file system may have forgotten the open file, but not its path.
        """
        self._handles.drop(handle)
        return self._directory.failure(handle.key, error)

    def _changed(
        self, key: str, version: Hashable, found: FileVersion | None
    ) -> StoreError:
        return failure(
            self.url,
            key,
            "the file was replaced or overwritten while it was read",
            expected=f"version {version}",
            got="no file" if found is None else f"version {found}",
            hint="read again; let writers replace files by renaming",
            kind=ObjectChangedError,
        )

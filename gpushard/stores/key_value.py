"""Key/value stores that can be written: the abstract store interface of the v3 draft.

A range is ``(start, length)``. A negative start counts from the end of the value. The
length None means up to the end. Ranges that reach beyond a value are cut to it.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import numpy as np

from gpushard.arguments import instance
from gpushard.errors import OptionError, UnsupportedError
from gpushard.stores.base import ByteRequest, Store
from gpushard.stores.checks import asked
from gpushard.stores.failures import refuse_unsafe_key
from gpushard.stores.zarr.loop import run_in_loop
from gpushard.stores.zarr.store import ZarrStore
from gpushard.stores.zarr.writer import ZarrWriter

if TYPE_CHECKING:
    from zarr.abc.store import Store as ZarrAbstractStore

KeyRange = tuple[str, tuple[int, int | None]]
"""A key, and a range of its value."""


@runtime_checkable
class KeyValueStore(Protocol):
    """Operations that a storage transformer asks of the store below it."""

    def get_partial_values(
        self, key_ranges: Sequence[KeyRange]
    ) -> Sequence[bytes | None]:
        """Bytes of each range; None if there is no such key."""
        ...

    def set(self, key: str, value: bytes) -> None:
        """Store a value."""
        ...

    def erase_values(self, keys: Iterable[str]) -> None:
        """Erase values; ignore keys that do not exist."""
        ...

    def erase_prefix(self, prefix: str) -> None:
        """Erase all values whose keys begin with `prefix`."""
        ...

    def list_prefix(self, prefix: str) -> Sequence[str]:
        """Sorted keys that begin with `prefix`."""
        ...

    def list_dir(self, prefix: str) -> tuple[Sequence[str], Sequence[str]]:
        """Sorted keys, and prefixes that end in a slash, directly below `prefix`."""
        ...


def key_value_store(target: Any) -> KeyValueStore:
    """Key/value store for `target`: the object itself, or an adapter.

    Parameters
    ----------
    target
        A mapping of keys to bytes, a zarr `Store`, a store of gpushard (which is
        read-only then), or any object with the operations of `KeyValueStore`.
    """
    if isinstance(target, KeyValueStore):
        return target
    if isinstance(target, MutableMapping):
        return MappingStore(cast("MutableMapping[str, bytes]", target))
    if isinstance(target, Store):
        return ReadOnlyStore(target)
    from zarr.abc.store import Store as ZarrAbstractStore

    if isinstance(target, ZarrAbstractStore):
        return ZarrKeyValueStore(target)
    raise UnsupportedError(
        "this is no key/value store",
        got=f"a {type(target).__module__}.{type(target).__qualname__}",
        hint="pass a mapping of keys to bytes or a zarr Store",
    )


def _bytes_in_range(value: bytes, span: tuple[int, int | None]) -> bytes:
    """Bytes of a range of `value`."""
    start, stop = range_bounds(len(value), span)
    return value[start:stop]


def range_bounds(nbytes: int, span: tuple[int, int | None]) -> tuple[int, int]:
    """Start and end of a range in a value of `nbytes` bytes."""
    start, length = span
    if length is not None and length < 0:
        raise OptionError("a range has a negative length", got=length)
    start = max(nbytes + start, 0) if start < 0 else min(start, nbytes)
    return start, nbytes if length is None else min(start + length, nbytes)


def directory_prefix(prefix: str) -> str:
    """`prefix`, if it can name a directory to list: empty, or ending in a slash."""
    if instance(prefix, "prefix", str) and not prefix.endswith("/"):
        raise OptionError(
            "a directory's prefix must end in a slash",
            expected='"" or ".../"',
            got=prefix,
        )
    return prefix


class MappingStore:
    """Key/value store of a mapping, which is changed in place."""

    def __init__(self, values: MutableMapping[str, bytes]) -> None:
        self._values = values

    def get_partial_values(
        self, key_ranges: Sequence[KeyRange]
    ) -> Sequence[bytes | None]:
        """Bytes of each range; None if there is no such key."""
        found = [(key, self._values.get(key), span) for key, span in key_ranges]
        return [
            None if value is None else bytes(_bytes_in_range(_plain(value, key), span))
            for key, value, span in found
        ]

    def set(self, key: str, value: bytes) -> None:
        """Store a value."""
        self._values[key] = value

    def erase_values(self, keys: Iterable[str]) -> None:
        """Erase values; ignore keys that do not exist."""
        for key in keys:
            self._values.pop(key, None)

    def erase_prefix(self, prefix: str) -> None:
        """Erase all values whose keys begin with `prefix`."""
        self.erase_values(self.list_prefix(prefix))

    def list_prefix(self, prefix: str) -> Sequence[str]:
        """Sorted keys that begin with `prefix`."""
        return sorted(key for key in self._values if key.startswith(prefix))

    def list_dir(self, prefix: str) -> tuple[Sequence[str], Sequence[str]]:
        """Sorted keys, and prefixes that end in a slash, directly below `prefix`."""
        keys: set[str] = set()
        prefixes: set[str] = set()
        for key in self.list_prefix(directory_prefix(prefix)):
            name, slash, _ = key.removeprefix(prefix).partition("/")
            (prefixes if slash else keys).add(f"{prefix}{name}{slash}")
        return sorted(keys), sorted(prefixes)


class ReadOnlyStore:
    """Key/value store over a store that gpushard reads; it cannot list."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get_partial_values(
        self, key_ranges: Sequence[KeyRange]
    ) -> Sequence[bytes | None]:
        """Bytes of each range, in one batch; None if there is no such key."""
        return _partial_values(self._store, key_ranges)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        """Refuse: such a store is read, and cannot tell keys from directories."""
        raise UnsupportedError(
            "this store cannot be changed or listed as a key/value store",
            store_url=self._store.url,
            hint="pass the zarr Store or the mapping instead",
        )

    set = erase_values = erase_prefix = list_prefix = list_dir = _refuse


class ZarrKeyValueStore:
    """Key/value store of a zarr `Store`."""

    def __init__(self, store: ZarrAbstractStore) -> None:
        self._zarr_store = store
        self._store = ZarrStore(store)
        self._writer = ZarrWriter(self._store)

    def get_partial_values(
        self, key_ranges: Sequence[KeyRange]
    ) -> Sequence[bytes | None]:
        """Bytes of each range, in one batch; None if there is no such key."""
        return _partial_values(self._store, key_ranges)

    def set(self, key: str, value: bytes) -> None:
        """Store a value."""
        self._writer.put_without_lock(key, [np.frombuffer(value, np.uint8)])

    def erase_values(self, keys: Iterable[str]) -> None:
        """Erase values; ignore keys that do not exist."""
        for key in keys:
            self._writer.put_without_lock(key, None)

    def erase_prefix(self, prefix: str) -> None:
        """Erase all values whose keys begin with `prefix`."""
        self.erase_values(self.list_prefix(prefix))

    def list_prefix(self, prefix: str) -> Sequence[str]:
        """Sorted keys that begin with `prefix`."""
        # Some zarr stores treat a prefix as a directory.
        above = self._directory_of(prefix)

        async def found() -> list[str]:
            return [key async for key in self._zarr_store.list_prefix(above)]

        return sorted(key for key in run_in_loop(found) if key.startswith(prefix))

    def list_dir(self, prefix: str) -> tuple[Sequence[str], Sequence[str]]:
        """Sorted keys, and prefixes that end in a slash, directly below `prefix`."""
        store, below = self._zarr_store, directory_prefix(prefix)
        place = self._directory_of(below)

        async def found() -> list[tuple[str, bool]]:
            names = [name async for name in store.list_dir(place)]
            keys = [f"{below}{name.strip('/')}" for name in names]
            return [(key, await store.exists(key)) for key in keys]

        names = run_in_loop(found)
        keys = sorted(name for name, is_key in names if is_key)
        return keys, sorted(f"{name}/" for name, is_key in names if not is_key)

    def _directory_of(self, prefix: str) -> str:
        """Directory of the keys that begin with `prefix`; "" is the root."""
        above, slash, _ = prefix.rpartition("/")
        if slash:
            refuse_unsafe_key(above, self._store.url)
        return above


def _plain(value: Any, key: str) -> bytes:
    """Bytes of a value in a mapping, which may be any buffer."""
    if isinstance(value, bytes):
        return value
    try:
        return cast("bytes", memoryview(value).cast("B"))
    except TypeError:
        raise OptionError(
            f"the mapping's value of {key!r} is not bytes",
            expected="a mapping of keys to bytes",
            got=f"a {type(value).__module__}.{type(value).__qualname__}",
            hint="pass zarr.storage.MemoryStore(mapping) if zarr stores arrays in it",
        ) from None


def _partial_values(
    store: Store, key_ranges: Sequence[KeyRange]
) -> Sequence[bytes | None]:
    answers = asked(store, [_request(*key_range) for key_range in key_ranges])
    # The last bytes of a value were asked for up to its end, whatever their length.
    return [
        None if answer is None else answer.data[:length].tobytes()
        for answer, (_, (_, length)) in zip(answers, key_ranges, strict=True)
    ]


def _request(key: str, span: tuple[int, int | None]) -> ByteRequest:
    start, length = span
    if start < 0 or length is None:
        return ByteRequest(key, start)
    return ByteRequest(key, start, start + length)

"""`ShardedStore`: the draft's sharding as a view on a key/value store.

Chunks are read and written under their own keys; the store below has shards. The
interface is the abstract store of the v3 draft, and also a mapping of keys to bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Literal, overload

from gpushard.arguments import instance, integer, items, whole_number
from gpushard.errors import OptionError
from gpushard.hierarchies.documents import DRAFT_DATA, join
from gpushard.planning.index import PRESENT
from gpushard.stores.key_value import (
    KeyRange,
    KeyValueStore,
    directory_prefix,
    key_value_store,
    range_bounds,
)
from gpushard.transformer.keys import ShardKeys
from gpushard.transformer.shards import Shards, range_of


class ShardedStore(MutableMapping[str, bytes]):
    """View on a store in which the chunks of one array lie in shards.

    Keys that are not chunks of the array are passed on unchanged. A shard is written
    whole, by one operation of the store below. Nothing prevents two writers on one
    shard from undoing each other's changes. As a mapping, a missing key is a
    ``KeyError``. A method that looks into a shard raises `CorruptShardError` if the
    shard has no valid index, or if chunks lie outside it.

    Parameters
    ----------
    store
        A mapping of keys to bytes, a zarr `Store`, a store of gpushard, or another
        `ShardedStore`, for the transformer next to the store.
    chunks_per_shard
        Chunks combined in a shard along each axis.
    path
        Path of the array; its objects lie below ``data/root/<path>``.
    separator
        Character between the coordinates in a key.
    grid_shape
        Chunks of the array along each axis, if known. Then shards at the edge need
        fewer chunks to be complete, and listings are narrower.

    Raises
    ------
    OptionError
        The number of chunks per shard is not positive along an axis, or the grid has
        another rank, or numbers that no grid has.
    UnsupportedError
        `store` is of an unknown kind.

    Examples
    --------
    >>> below = {}
    >>> chunks = ShardedStore(below, (2, 2), "a")
    >>> chunks["data/root/a/c3/5"] = b"a chunk"
    >>> list(below), chunks["data/root/a/c3/5"]
    (['data/root/a/c1/2'], b'a chunk')
    """

    def __init__(
        self,
        store: Any,
        chunks_per_shard: Sequence[int],
        path: str = "",
        *,
        separator: Literal["/", "."] = "/",
        grid_shape: Sequence[int] | None = None,
    ) -> None:
        per_shard = _numbers(chunks_per_shard, "chunks_per_shard", 1)
        if separator not in ("/", "."):
            what = "the separator of the chunk keys is not valid"
            raise OptionError(what, expected='"/" or "."', got=separator)
        grid = None
        if grid_shape is not None:
            grid = _numbers(grid_shape, "grid_shape", 0)
        if grid is not None and len(grid) != len(per_shard):
            what = "the grid of chunks has another rank than the shards"
            raise OptionError(what, expected=len(per_shard), got=len(grid))
        path = instance(path, "path", str).strip("/")
        base = f"{join(DRAFT_DATA, path)}/"
        self._keys = ShardKeys(base, per_shard, separator, grid)
        self._below: KeyValueStore = key_value_store(store)
        self._shards = Shards(self._below, self._keys)

    # Reading

    @overload
    def get(self, key: str) -> bytes | None: ...
    @overload
    def get(self, key: str, default: bytes) -> bytes: ...
    @overload
    def get(self, key: str, default: Any) -> Any: ...
    def get(self, key: str, default: Any = None) -> Any:
        """Value of `key`; `default` if there is none."""
        (value,) = self.get_partial_values([(key, (0, None))])
        return default if value is None else value

    def get_partial_values(
        self, key_ranges: Sequence[KeyRange]
    ) -> Sequence[bytes | None]:
        """Bytes of each range; None if there is no such key.

        This takes at most two operations of the store below: one for the indexes and
        for values that are not chunks, and one for the chunks. A negative start counts
        from the end of a value, the length None means up to its end, and ranges beyond
        a value are clipped.
        """
        key_ranges = _parsed(key_ranges)
        values: list[bytes | None] = [None] * len(key_ranges)
        places = {
            k: place
            for k, (key, _) in enumerate(key_ranges)
            if (place := self._keys.place(key)) is not None
        }
        passed = [k for k in range(len(key_ranges)) if k not in places]
        indexes, others = self._shards.indexes(
            {place.shard_key for place in places.values()},
            [key_ranges[k] for k in passed],
        )
        for k, value in zip(passed, others, strict=True):
            values[k] = value
        wanted: dict[int, KeyRange] = {}
        for k, place in places.items():
            where = range_of(indexes, place)
            if where is not None:
                offset, nbytes = where
                start, stop = range_bounds(nbytes, key_ranges[k][1])
                wanted[k] = place.shard_key, (offset + start, stop - start)
                values[k] = b""
        present = {k: span for k, span in wanted.items() if span[1][1]}
        for k, value in zip(
            present, self._shards.chunks(present.values()), strict=True
        ):
            values[k] = value
        return values

    # Writing

    def set(self, key: str, value: bytes) -> None:
        """Store the value of `key`."""
        self.set_values({instance(key, "a key", str): value})

    def set_values(self, values: Mapping[str, bytes]) -> None:
        """Store values; every shard is written once.

        A shard is not read if all of its chunks are given.
        """
        changes: dict[str, dict[int, bytes | None]] = {}
        for key, value in instance(values, "values", Mapping).items():
            place, data = self._keys.place(key), _as_bytes(value)
            if place is None:
                self._below.set(key, data)
            else:
                changes.setdefault(place.shard_key, {})[place.entry] = data
        self._shards.change(changes)

    def set_partial_values(
        self, key_start_values: Iterable[tuple[str, int, bytes]]
    ) -> None:
        """Overwrite bytes of values, each from its start on, in the order given.

        A negative start counts from the end. A value grows if necessary, and a missing
        value begins empty.

        Raises
        ------
        OptionError
            A start lies beyond the value.
        """
        changes = _parsed_changes(key_start_values)
        keys = list(dict.fromkeys(key for key, _, _ in changes))
        found = self.get_partial_values([(key, (0, None)) for key in keys])
        values = {
            key: bytearray(value or b"") for key, value in zip(keys, found, strict=True)
        }
        for key, start, data in changes:
            value = values[key]
            if not -len(value) <= start <= len(value):
                raise OptionError(
                    f"the start lies beyond the value of {key!r}",
                    expected=f"at most {len(value)}",
                    got=start,
                )
            at = start + len(value) if start < 0 else start
            value[at : at + len(data)] = data
        self.set_values({key: bytes(value) for key, value in values.items()})

    def erase(self, key: str) -> None:
        """Erase the value of `key`, if there is one."""
        self.erase_values([key])

    def erase_values(self, keys: Iterable[str]) -> None:
        """Erase values; shards left without a chunk are erased."""
        changes: dict[str, dict[int, bytes | None]] = {}
        passed: list[str] = []
        for key in items(keys, "keys", "a list of keys"):
            place = self._keys.place(key)
            if place is None:
                passed.append(key)
            else:
                changes.setdefault(place.shard_key, {})[place.entry] = None
        self._below.erase_values(passed)
        self._shards.change(changes)

    def erase_prefix(self, prefix: str) -> None:
        """Erase all values whose keys begin with `prefix`."""
        if self._keys.shards_prefix(prefix) is None:
            self._below.erase_prefix(prefix)
        else:
            self.erase_values(self.list_prefix(prefix))

    # Listing

    def list(self) -> Sequence[str]:
        """Sorted keys of all values."""
        return self.list_prefix("")

    def list_prefix(self, prefix: str) -> Sequence[str]:
        """Sorted keys that begin with `prefix`; exactly those that have a value."""
        translated = self._keys.shards_prefix(prefix)
        found = self._below.list_prefix(prefix)
        if translated is None:
            return self._expanded(found)
        coordinate = self._keys.coordinate
        others = [key for key in found if coordinate(key) is None]
        shards = self._below.list_prefix(translated)
        expanded = self._expanded({*shards, *others})
        return [key for key in expanded if key.startswith(prefix)]

    def list_dir(self, prefix: str) -> tuple[Sequence[str], Sequence[str]]:
        """Sorted keys, and prefixes that end in a slash, directly below `prefix`.

        Keys are exact. A prefix of chunks may have no value below it, because the
        existence of a shard does not show which of its chunks exist.

        Raises
        ------
        OptionError
            `prefix` is neither empty nor ends in a slash.
        """
        keys = self._keys
        below = directory_prefix(prefix)
        inside = keys.is_shards_directory(below)
        translated = keys.shards_prefix(below) if inside else below
        found, prefixes = self._below.list_dir(translated or below)
        listed = [key for key in self._expanded(found) if key.startswith(prefix)]
        wider: set[str] = set()
        for one in prefixes:
            is_part = keys.is_shards_directory(one)
            wider.update(keys.directories(one, below) if is_part else [one])
        return listed, sorted(wider)

    # As a mapping

    def __getitem__(self, key: str) -> bytes:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: bytes) -> None:
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self.erase(key)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.list())

    def __len__(self) -> int:
        return len(self.list())

    def _expanded(self, keys: Iterable[str]) -> Sequence[str]:
        """Sorted keys, shards replaced by the chunks in them."""
        shards = {
            key: at for key in keys if (at := self._keys.coordinate(key)) is not None
        }
        indexes, _ = self._shards.indexes(shards)
        found = {key for key in keys if key not in shards}
        for key, index in indexes.items():
            chunks = self._keys.chunks_of(shards[key])
            found.update(
                chunk
                for chunk, state in zip(chunks, index.state, strict=True)
                if state == PRESENT
            )
        return sorted(found)


def _numbers(values: Any, name: str, least: int) -> tuple[int, ...]:
    """One number for each axis, of at least `least`."""
    expected = "a list with a number an axis"
    return tuple(whole_number(n, name, least) for n in items(values, name, expected))


def _parsed(key_ranges: Any) -> list[KeyRange]:
    expected = "a list of (key, (start, length))"
    try:
        return [
            (key, (integer(start, "start"), _length(length)))
            for key, (start, length) in items(key_ranges, "key_ranges", expected)
        ]
    except (TypeError, ValueError) as error:
        raise _malformed("key_ranges", expected, error) from error


def _length(value: Any) -> int | None:
    return None if value is None else integer(value, "length")


def _parsed_changes(key_start_values: Any) -> list[tuple[str, int, bytes]]:
    name, expected = "key_start_values", "a list of (key, start, bytes)"
    try:
        return [
            (instance(key, "a key", str), integer(start, "start"), _as_bytes(value))
            for key, start, value in items(key_start_values, name, expected)
        ]
    except (TypeError, ValueError) as error:
        raise _malformed(name, expected, error) from error


def _malformed(name: str, expected: str, error: Exception) -> OptionError:
    if isinstance(error, OptionError):
        return error
    return OptionError(f"{name} is malformed", expected=expected, got=str(error))


def _as_bytes(value: Any) -> bytes:
    try:
        return bytes(memoryview(value))  # bytes(5) would be five zeros
    except TypeError:
        raise OptionError(
            "a value is no bytes", expected="bytes", got=type(value).__name__
        ) from None

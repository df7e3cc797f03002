"""Arrays of the historic shard formats for histories, and their other writer.

That writer goes through the draft's storage transformer, chunk by chunk. Shards of
prototype II have the same bytes under other keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import numcodecs
import numpy as np
from numpy.typing import NDArray

from fuzz.history_keys import region
from gpushard.transformer import ShardedStore
from historic_arrays import ROOT, draft_document, json_bytes, prototype_document

if TYPE_CHECKING:
    import random

    from fuzz.history_arrays import Files, Held

_NAMES = ("bool", "uint8", "int16", "float32", "int32", "float64")
_COMPRESSORS = ("raw", "raw", "zlib", "lz4", "zstd", "blosc")
_BASE = "data/root/"


class HistoricArray:
    """An array as its documents say, which is read and written by the transformer.

    Attributes
    ----------
    documents
        By their keys.
    shards
        Shape of the outermost shards.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        ndim = rng.choice((1, 2, 2, 3))
        sides = [(1, 16, 64, 300), (1, 3, 5, 8, 16), (1, 3, 5)][ndim - 1]
        self.chunks = tuple(rng.choice(sides) for _ in range(ndim))
        is_draft = rng.random() < 0.6
        levels = [
            [rng.choice((1, 2, 3)) for _ in range(ndim)]
            for _ in range(rng.choice((1, 1, 2)) if is_draft else 1)
        ]
        cells = [self.chunks]
        for level in levels:
            cells.append(tuple(n * c for n, c in zip(level, cells[-1], strict=True)))
        self._cells, self.shards = cells, cells[-1]
        self.shape = tuple(
            n * rng.choice((1, 2)) - rng.choice((0, rng.randrange(n)))
            for n in cells[-1]
        )
        name = rng.choice(_NAMES)
        order = "|" if name in ("bool", "uint8") else rng.choice("<>")
        self.dtype = np.dtype(name).newbyteorder(order)
        self.fill_value = rng.random() < 0.5 if name == "bool" else rng.choice((0, 7))
        self._order, self._separator = rng.choice("CF"), rng.choice("./")
        codec = rng.choice(_COMPRESSORS)
        self._codec = None if codec == "raw" else numcodecs.get_codec({"id": codec})
        describe = self._draft if is_draft else self._prototype
        self._prefix = f"{_BASE}c" if is_draft else ""
        self.documents = {key: json_bytes(of) for key, of in describe(levels).items()}

    def _draft(self, levels: list[list[int]]) -> dict[str, Any]:
        changes: dict[str, Any] = {"chunk_memory_layout": self._order}
        if self._codec is not None:
            members = self._codec.get_config()
            address = f"https://purl.org/zarr/spec/codec/{members.pop('id')}/1.0"
            changes["compressor"] = {"codec": address, "configuration": members}
        described = draft_document(
            np.empty(self.shape, self.dtype),
            self.chunks,
            *levels,
            separator=self._separator,
            fill_value=self.fill_value,
            **changes,
        )
        return {"zarr.json": ROOT, "meta/root.array.json": described}

    def _prototype(self, levels: list[list[int]]) -> dict[str, Any]:
        described = prototype_document(
            np.empty(self.shape, self.dtype),
            self.chunks,
            *levels,
            order=self._order,
            fill_value=self.fill_value,
            dimension_separator=self._separator,
            compressor=self._codec and self._codec.get_config(),
        )
        return {".zarray": described}

    def reach(self, objects: Files | Held) -> None:
        """Read and write these objects from now on."""
        below: Any = _Objects(objects, self._prefix)
        grids = [self._grid(cell) for cell in self._cells]
        for k in reversed(range(1, len(self._cells))):
            inner, outer = self._cells[k - 1 : k + 1]
            per_shard = [n // c for n, c in zip(outer, inner, strict=True)]
            grid = self.rng.choice((None, grids[k - 1]))
            below = ShardedStore(
                below, per_shard, separator=self._separator, grid_shape=grid
            )
        self._store = below

    def __getitem__(self, key: Any) -> NDArray[Any]:
        full = np.full(self.shape, self.fill_value, self.dtype)
        keys = {at: self._key(at) for at in np.ndindex(*self._grid(self.chunks))}
        stored = self._store.get_partial_values([(k, (0, None)) for k in keys.values()])
        for at, data in zip(keys, stored, strict=True):
            if data is not None:
                inside = full[region(at, self.chunks)]
                inside[...] = self._decoded(data)[tuple(map(slice, inside.shape))]
        return full[key]

    def __setitem__(self, key: Any, values: NDArray[Any]) -> None:
        before = self[...]
        full = before.copy()
        full[key] = values
        found: dict[str, bytes] = {}
        for at in np.ndindex(*self._grid(self.chunks)):
            inside = full[region(at, self.chunks)]
            if np.array_equal(inside, before[region(at, self.chunks)]):
                continue
            chunk = np.full(self.chunks, self.fill_value, self.dtype)
            chunk[tuple(map(slice, inside.shape))] = inside
            found[self._key(at)] = self._encoded(chunk)
            if (chunk == self.fill_value).all() and self.rng.random() < 0.5:
                self._store.erase(self._key(at))
                del found[self._key(at)]
        self._put(found)

    def _put(self, chunks: dict[str, bytes]) -> None:
        how = self.rng.choice(("together", "one by one", "in parts"))
        if how == "together":
            self._store.set_values(chunks)
        for key, data in chunks.items() if how == "one by one" else ():
            self._store[key] = data
        if how == "in parts":
            self._store.erase_values(chunks)
            halves = [(k, n, d) for k, d in chunks.items() for n in (0, len(d) // 2)]
            self._store.set_partial_values((k, n, d[n:]) for k, n, d in halves)

    def _decoded(self, data: bytes) -> NDArray[Any]:
        plain = data if self._codec is None else self._codec.decode(data)
        elements = np.frombuffer(plain, self.dtype)
        return elements.reshape(self.chunks, order=self._order)

    def _encoded(self, chunk: NDArray[Any]) -> bytes:
        plain = chunk.tobytes(self._order)
        return plain if self._codec is None else bytes(self._codec.encode(plain))

    def _grid(self, cell: tuple[int, ...]) -> list[int]:
        return [math.ceil(n / c) for n, c in zip(self.shape, cell, strict=True)]

    def _key(self, at: tuple[int, ...]) -> str:
        return f"{_BASE}c{self._separator.join(map(str, at))}"


class _Objects(MutableMapping[str, bytes]):
    """Shards of `objects`, under the keys that they have in the draft."""

    def __init__(self, objects: Files | Held, prefix: str) -> None:
        self._objects, self._prefix = objects, prefix

    def _there(self, key: str) -> str:
        return self._prefix + key.removeprefix(f"{_BASE}c")

    def __getitem__(self, key: str) -> bytes:
        data = self._objects.get(self._there(key))
        if data is None:
            raise KeyError(key)
        return data

    def __setitem__(self, key: str, value: bytes) -> None:
        self._objects.put(self._there(key), value)

    def __delitem__(self, key: str) -> None:
        self._objects.put(self._there(key), None)

    def __iter__(self) -> Iterator[str]:
        found = self._objects.keys()
        return (f"{_BASE}c{key.removeprefix(self._prefix)}" for key in found)

    def __len__(self) -> int:
        return len(self._objects.keys())

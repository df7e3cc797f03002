"""Random arrays for histories, options, stores, and memory at random places."""

from __future__ import annotations

import math
import os
import threading
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore, WrapperStore

from array_strategies import codec
from asked_store import BY_PRICE, IN_REQUESTS, IN_SHARES
from gpushard import Options, WriteOptions
from gpushard.errors import ObjectChangedError
from gpushard.stores.base import ByteRequest, Fetched
from historic_arrays import json_bytes
from spec_shards import document, sharding

if TYPE_CHECKING:
    import random
    from collections.abc import Hashable, Sequence

# What is lent begins at a multiple of this, and an output so far behind its guard.
_STEP = 16
_OURS_NS = 10**15
_NAMES = (*("bool", "uint8", "int16", "float32", "int32", "int32"), "float64", "int64")
_CHAINS: dict[str, list[Any]] = {
    "raw": [],
    "crc32c": [{"name": "crc32c"}],
    "zstd": [codec("zstd", level=1, checksum=False)],
    "zstd, crc32c": [codec("zstd", level=1, checksum=False), {"name": "crc32c"}],
    "gzip": [codec("gzip", level=1)],
    "lz4": [codec("numcodecs.lz4", acceleration=1)],
    "blosc lz4": [codec("blosc", cname="lz4", shuffle="shuffle")],
    "blosc zstd": [codec("blosc", cname="zstd", shuffle="bitshuffle")],
}
# Of these, any bit that is flipped is seen.
_CHECKED = frozenset(("crc32c", "zstd, crc32c", "gzip"))
_STRATEGIES = ("rewrite", "rewrite", "fixed_order", "append_only", "random_write")
_DOCUMENTS = frozenset(("zarr.json", ".zarray", ".zattrs", "meta/root.array.json"))


class Arena:
    """Memory of which pieces are lent at random places, as long as anybody has them.

    What is given back is overwritten: nobody may have use for it then.
    """

    def __init__(self, nbytes: int) -> None:
        self._memory = np.zeros(nbytes, np.uint8)
        self._outputs: dict[tuple[int, int], bool] = {}  # of what is lent
        self._lock = threading.RLock()  # memory may be given back while some is taken

    def take(
        self, nbytes: int, rng: random.Random, part_from: int | None = None
    ) -> NDArray[np.uint8]:
        """Memory at a place of any; elsewhere if none is found.

        Unless it is for an output, it is for the part of something from that byte on,
        which would then often begin exactly where an output does.
        """
        with self._lock:
            for _ in range(12):
                lent = dict(self._outputs)
                outputs = [first for (first, _), is_output in lent.items() if is_output]
                start = rng.randrange(len(self._memory)) // _STEP * _STEP
                if part_from is not None and outputs and rng.random() < 0.8:
                    start = rng.choice(outputs) + _STEP + part_from
                stop = start + nbytes
                is_free = all(stop <= first or last <= start for first, last in lent)
                if is_free and nbytes and stop <= len(self._memory):
                    piece = np.frombuffer(self._memory.data[start:stop], np.uint8)
                    self._outputs[start, stop] = part_from is None
                    finalize(piece, self._give_back, start, stop)
                    return piece
        return np.empty(nbytes, np.uint8)

    def _give_back(self, start: int, stop: int) -> None:
        with self._lock:
            self._memory[start:stop] = 0xA5
            del self._outputs[start, stop]


class Output:
    """Memory of an output, with guards around it and between its elements.

    Attributes
    ----------
    view
        The output: any strides, at any place, with the same byte all over.
    """

    def __init__(
        self, arena: Arena, rng: random.Random, shape: tuple[int, ...], dtype: Any
    ) -> None:
        axes = list(range(len(shape)))
        order = rng.choice((axes, axes[::-1], rng.sample(axes, len(axes))))
        is_dense = rng.random() < 0.5
        steps = [1 if is_dense else rng.choice((1, 1, -1, 2, -3)) for _ in axes]
        self._sides = [shape[axis] * abs(steps[axis]) for axis in order]
        self._slices = (..., *(slice(None, None, steps[axis]) for axis in order))
        self._turned = np.argsort(order).astype(int).tolist()
        self._dtype = np.dtype(dtype)
        self._lead = _STEP + (rng.random() < 0.1)  # sometimes unaligned
        nbytes = self._lead + math.prod(self._sides) * self._dtype.itemsize + _STEP
        is_apart = rng.random() < 0.2
        block = np.empty(nbytes, np.uint8) if is_apart else arena.take(nbytes, rng)
        block[:] = rng.randrange(256)
        self.block, self._before = block, block.copy()
        self.view = self._output_in(block)

    def _output_in(self, block: NDArray[np.uint8]) -> NDArray[Any]:
        dense = np.ndarray(self._sides, self._dtype, block, self._lead)
        return dense[self._slices].transpose(self._turned)

    def check_rest(self) -> None:
        """Hold all but the elements of the output to what was there before."""
        self._output_in(self._before)[...] = self.view
        assert np.array_equal(self.block, self._before), "bytes beside an output"


class Files:
    """Objects in files. Keys are those of all objects but documents."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._n_dated = 0

    def keys(self) -> list[str]:
        found = (path for path in self.place.rglob("*") if path.is_file())
        return sorted(
            path.relative_to(self.place).as_posix()
            for path in found
            if not path.name.startswith((".", "z", "root."))
        )

    def get(self, key: str) -> bytes | None:
        path = self.place / key
        return path.read_bytes() if path.exists() else None

    def put(self, key: str, data: bytes | None, *, in_place: bool = False) -> None:
        """Replace an object by renaming, or as it lies there; None deletes it."""
        path = self.place / key
        if data is None:
            path.unlink(missing_ok=True)
        elif in_place and path.exists():
            with path.open("r+b") as file:
                file.truncate(len(data))
                file.write(data)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(".written")
            new.write_bytes(data)
            self._date(new)
            new.replace(path)

    def date(self) -> None:
        """Date each change, as if the clock of the file system had ticked."""
        for path in map(self.place.joinpath, self.keys()):
            if path.stat().st_mtime_ns >= _OURS_NS:
                self._date(path)

    def _date(self, path: Path) -> None:
        self._n_dated += 1
        os.utime(path, ns=(self._n_dated, self._n_dated))


class Held:
    """The same in a zarr store in memory, which has no dates."""

    def __init__(self, store: MemoryStore) -> None:
        self.place, self._held = store, store._store_dict

    def keys(self) -> list[str]:
        return sorted(self._held.keys() - _DOCUMENTS)

    def get(self, key: str) -> bytes | None:
        found = self._held.get(key)
        return None if found is None else found.to_bytes()

    def put(self, key: str, data: bytes | None, *, in_place: bool = False) -> None:
        if data is None:
            self._held.pop(key, None)
        else:
            self._held[key] = default_buffer_prototype().buffer.from_bytes(data)

    def date(self) -> None:
        pass


class ArenaStore:
    """Objects in memory, answered with read-only views into one arena."""

    url = "arena://"

    def __init__(
        self, objects: Held, arena: Arena, rng: random.Random, chunk_nbytes: int
    ) -> None:
        self._objects, self._arena, self._rng = objects, arena, rng
        self._chunk_nbytes = chunk_nbytes
        self.costs = rng.choice((IN_SHARES, IN_REQUESTS, BY_PRICE))
        self._tells_size, self.tells_version = rng.random() < 0.7, rng.random() < 0.7

    def read(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: ByteRequest) -> Fetched | None:
        data = self._objects.get(request.key)
        version = self._version(data)
        if request.version is not None and request.version != version:
            raise ObjectChangedError("the object is another now", shard_key=request.key)
        if data is None:
            return None
        start, stop = request.within(len(data))
        # The start of an inner chunk of plain elements lies so far ahead.
        ahead = start % self._chunk_nbytes
        piece = self._arena.take(stop - start, self._rng, ahead)
        piece[:] = np.frombuffer(data[start:stop], np.uint8)
        piece.flags.writeable = False
        return Fetched(piece, len(data) if self._tells_size else None, version)

    def _version(self, data: bytes | None) -> Hashable | None:
        is_told = self.tells_version and data is not None
        return (len(data), zlib.crc32(data)) if is_told else None

    def current_version(self, key: str) -> tuple[bool, Hashable | None]:
        return self.tells_version, self._version(self._objects.get(key))

    def get(self, key: str) -> bytes | None:
        return self._objects.get(key)

    def list_children(self, prefix: str) -> None:
        return None


def objects_of(documents: dict[str, bytes], place: Path | None) -> Files | Held:
    """Where the objects of a new array lie: in files, or in memory."""
    objects = Held(MemoryStore()) if place is None else Files(place)
    for key, data in documents.items():
        objects.put(key, data)
    return objects


def target_of(objects: Files | Held, *arena: Any) -> Any:
    """What a reader opens: one of several stores of the objects."""
    if isinstance(objects, Files):
        return objects.place
    store = ArenaStore(objects, *arena)
    return arena[1].choice((objects.place, WrapperStore(objects.place), *3 * [store]))


def random_options(rng: random.Random) -> Options:
    """Options that choose among the ways of reading, and what is kept."""
    return Options(
        threads=rng.choice((1, 2, 4)),
        memory_limit=rng.choice((None, None, None, None, 1, 5000, 1 << 20)),
        batch_nbytes=rng.choice((300, 4 << 20, 4 << 20)),
        small_read_chunks=rng.choice((0, 0, 1, 8)),
        index_cache_nbytes=rng.choice((0, 300, 1 << 28)),
        chunk_cache_nbytes=rng.choice((None, 0, 5000, 1 << 20, 1 << 20)),
        compile_nbytes=rng.choice((0, 0, 2**62)),
        file_handles=rng.choice((1, 128)),
    )


def random_write_options(rng: random.Random) -> WriteOptions:
    """How an array is written to."""
    return WriteOptions(
        strategy=rng.choice(_STRATEGIES),
        order=rng.choice(("morton", "c", "f")),
        write_empty_chunks=rng.random() < 0.2,
        max_unused_fraction=rng.choice((0, 0.5, 1)),
    )


def named(document: dict[str, Any]) -> dict[str, bytes]:
    """A document of v3, or of v2, by its key."""
    key = "zarr.json" if document["zarr_format"] == 3 else ".zarray"
    return {key: json_bytes(document)}


def random_document(rng: random.Random) -> tuple[dict[str, Any], bool]:
    """A document of v3, or of v2; and whether any bit flipped in an object is seen."""
    ndim, name = rng.choice((1, 2, 2, 2, 3)), rng.choice(_NAMES)
    is_large = rng.random() < 0.08
    sides = [(1, 16, 64, 300, 1000), (1, 3, 5, 8, 16, 32), (1, 3, 5, 8)][ndim - 1]
    cells = [[rng.choice(sides) for _ in range(ndim)]]
    if is_large:
        cells = [[[40_000], [160, 250], [20, 40, 50]][ndim - 1]]
    is_many = math.prod(cells[0]) > 300 or ndim == 3
    factors = (1, 2) if is_many else (1, 2, 3)
    layout = rng.choice(("end", "end", "start", "nested", "none", "none", "v2"))
    for _ in range({"none": 0, "v2": 0, "nested": 2}.get(layout, 1)):
        cells.append([n * rng.choice(factors) for n in cells[-1]])
    shape = [
        n * rng.choice(factors) - rng.choice((0, rng.randrange(n))) for n in cells[-1]
    ]
    fill = rng.random() < 0.5 if name == "bool" else rng.choice((0, 7))
    if layout == "v2":
        return _v2_document(rng, np.dtype(name), (shape, cells[0], fill)), False
    chain = rng.choice(("raw", "raw", *_CHAINS))
    codecs = [codec("bytes", endian="big" if rng.random() < 0.2 else "little")]
    codecs += _CHAINS[chain]
    if "blosc" in chain:
        sizes = {"typesize": np.dtype(name).itemsize, "clevel": 5, "blocksize": 0}
        codecs[1] = codec("blosc", **_CHAINS[chain][0]["configuration"], **sizes)
    if rng.random() < 0.15:
        codecs.insert(0, codec("transpose", order=rng.sample(range(ndim), ndim)))
    location = "start" if layout == "start" else "end"
    for cell in cells[:-1]:
        codecs = [sharding(cell, codecs=codecs, index_location=location)]
    made = document(shape, cells[-1], *codecs, dtype=name, fill_value=fill)
    return made, chain in _CHECKED


def _v2_document(
    rng: random.Random, dtype: np.dtype[Any], parts: tuple[Any, ...]
) -> dict[str, Any]:
    shape, chunks, fill = parts
    compressors = (None, {"id": "zlib", "level": 1}, {"id": "lz4", "acceleration": 1})
    return {
        "zarr_format": 2,
        "shape": shape,
        "chunks": chunks,
        "dtype": dtype.newbyteorder(rng.choice("<>")).str,
        "compressor": rng.choice(compressors),
        "fill_value": fill,
        "filters": None,
        "order": rng.choice("CF"),
        "dimension_separator": rng.choice("./"),
    }

"""Arrays whose one object is replaced by an input: documents, stores, valid objects."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np
from numpy.typing import NDArray

import gpushard
from array_strategies import codec
from fuzz.guard import GuardedRoom
from fuzz.mutations import damaged
from gpushard import Options
from gpushard.memory.known import IndexCache
from gpushard.stores.base import ByteRequest, FetchCosts, Fetched, Store
from gpushard.stores.held import HeldObjects
from gpushard.stores.local.store import LocalStore
from zarr_oracle import write

if TYPE_CHECKING:
    import random

LITTLE, BIG = codec("bytes", endian="little"), codec("bytes", endian="big")
CRC = {"name": "crc32c"}
ZSTD = codec("zstd", level=3, checksum=False)
SHAPE, SHARD, CHUNK = (16, 32), (16, 32), (8, 16)
VALUES = (np.add.outer(np.arange(16) ** 2, np.arange(32) * 3) % 97).astype("i4")
SAMPLES = Path(__file__).parents[1] / "data" / "interop"
# A sample whose largest object has more bytes teaches little and costs much.
_LARGEST_NBYTES = 6000
_CRC_NBYTES, _ENTRY_NBYTES = 4, 16


def blosc(cname: str, shuffle: str = "shuffle", blocksize: int = 0) -> dict[str, Any]:
    kinds = {"typesize": 4, "blocksize": blocksize}
    return codec("blosc", cname=cname, clevel=5, shuffle=shuffle, **kinds)


CHAINS: dict[str, list[Any]] = {
    "raw": [LITTLE],
    "big": [BIG],
    "crc32c": [LITTLE, CRC],
    "zstd": [LITTLE, ZSTD],
    "zstd, crc32c": [LITTLE, codec("zstd", level=3, checksum=True), CRC],
    "lz4": [LITTLE, codec("numcodecs.lz4", acceleration=1)],
    "blosc lz4": [LITTLE, blosc("lz4")],
    "blosc zstd": [LITTLE, blosc("zstd", "bitshuffle", 256)],
    "blosc zlib": [LITTLE, blosc("zlib", "noshuffle")],
    "blosc blosclz": [LITTLE, blosc("blosclz")],
    "transpose, zstd": [codec("transpose", order=[1, 0]), LITTLE, ZSTD],
    "gzip": [LITTLE, codec("gzip", level=5)],
    "zlib": [LITTLE, codec("numcodecs.zlib", level=1)],
    "delta": [
        *(codec("numcodecs.delta", dtype="<i4"), LITTLE),
        *(codec("numcodecs.shuffle", elementsize=4), ZSTD),
    ],
}


def sharding(codecs: Sequence[Any], **changes: Any) -> dict[str, Any]:
    configuration = {
        "chunk_shape": list(CHUNK),
        "codecs": list(codecs),
        "index_codecs": [LITTLE, CRC],
        "index_location": "end",
    }
    return codec("sharding_indexed", **{**configuration, **changes})


def document(codecs: Sequence[Any], shape=SHAPE, shard=SHARD) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "int32",
        "chunk_grid": codec("regular", chunk_shape=list(shard)),
        "chunk_key_encoding": {"name": "default"},
        "fill_value": -3,
        "codecs": list(codecs),
    }


class OneObject:
    """Store of an array, the object that is looked at against an unreadable page.

    Not a `HeldObjects`, of which gpushard knows that nothing has to be fetched.

    Parameters
    ----------
    objects
        Key -> bytes, the metadata too; in any mapping with a ``get``.
    is_far
        Whether requests are so dear that objects are fetched whole.
    tells_sizes
        Whether answers say how long the whole object is.
    """

    room = GuardedRoom(1 << 16)
    url = "memory:"

    def __init__(
        self,
        objects: Mapping[str, Any],
        *,
        is_far: bool = False,
        tells_sizes: bool = True,
    ) -> None:
        self._held = HeldObjects(_Fetching(objects), self.url)
        self._tells_sizes = tells_sizes
        self.costs = FetchCosts(64, 4096, 2, prefers_whole_objects=is_far)

    def current_version(self, key: str) -> tuple[bool, Hashable | None]:
        """Version of an object, which never changes."""
        return self._held.current_version(key)

    def get(self, key: str) -> bytes | None:
        """Bytes of an object; None if there is none."""
        return self._held.get(key)

    def list_children(self, prefix: str) -> list[str] | None:
        """Names directly below `prefix`."""
        return self._held.list_children(prefix)

    def read(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        """Views on the objects, one a request; None where there is no such object."""
        answers = self._held.read(requests)
        if self._tells_sizes:
            return answers
        return [a and a._replace(object_nbytes=None, version=None) for a in answers]


class _Fetching(Mapping[str, Fetched]):
    """Objects as a store answers with them."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = objects

    def get(self, key: str, default: Any = None) -> Any:
        data = self._objects.get(key)
        if data is None:
            return default
        array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        return Fetched(array, array.nbytes, 1)

    def __getitem__(self, key: str) -> Fetched:
        return self.get(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)


@dataclass(frozen=True)
class Case:
    """A stored array, one of whose objects an input takes the place of.

    Attributes
    ----------
    objects
        Key -> bytes of a valid array, its metadata among them.
    key
        The object that is replaced.
    """

    objects: dict[str, bytes]
    key: str

    @property
    def object(self) -> bytes:
        """Valid bytes of the object that is replaced."""
        return self.objects[self.key]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self._source.layout.shape

    @property
    def chunk_nbytes(self) -> int:
        """Decoded size of an inner chunk; 0 where they differ."""
        shape = self._source.chunk_shape
        return 0 if shape is None else self._source.chunk_nbytes

    @cached_property
    def index_nbytes(self) -> int:
        """Size of the outer index; 0 where it lies behind other codecs, or none."""
        layout = self._source.layout
        if not layout.levels or layout.object_codecs or layout.shards is None:
            return 0
        level = layout.levels[0]
        n_entries = int(np.prod(np.floor_divide(layout.shards, level.chunk_shape)))
        return level.index_nbytes(n_entries)

    def repaired(self, data: bytes) -> bytes:
        """`data` with the checksum of its index made right, as an attacker would."""
        nbytes = self.index_nbytes
        if nbytes % _ENTRY_NBYTES != _CRC_NBYTES or len(data) < nbytes:
            return data
        start = self._index_start(data)
        stop = start + nbytes - _CRC_NBYTES
        checksum = crc32c.crc32c(data[start:stop]).to_bytes(_CRC_NBYTES, "little")
        return data[:stop] + checksum + data[stop + _CRC_NBYTES :]

    def with_other_entry(self, data: bytes, rng: random.Random) -> bytes:
        """`data` with one field of its index changed, mostly by a little."""
        n_fields = self.index_nbytes // _ENTRY_NBYTES * 2
        if not n_fields or len(data) < self.index_nbytes:
            return damaged(data, rng)
        fields = np.frombuffer(data, "u1", n_fields * 8, self._index_start(data)).copy()
        fields = fields.view(rng.choice(("<u8", "<u8", ">u8")))
        k, other = rng.randrange(n_fields), rng.randrange(n_fields)
        match rng.randrange(5):
            case 0:
                fields[k] = fields[other]
            case 1:
                first, second = k & ~1, other & ~1
                fields[first : first + 2] = fields[second : second + 2]
            case 2:
                fields[k] = rng.choice((0, 2**63, 2**64 - 1, len(data)))
            case 3:
                fields[k & ~1 : (k & ~1) + 2] = 2**64 - 1
            case _:
                step = rng.choice((1, 2, 16, -1, -2, -16))
                fields[k] = (int(fields[k]) + step) % 2**64
        start = self._index_start(data)
        return data[:start] + fields.tobytes() + data[start + fields.nbytes :]

    def _index_start(self, data: bytes) -> int:
        at_start = self._source.layout.levels[0].index_location == "start"
        return 0 if at_start else len(data) - self.index_nbytes

    def opened(
        self,
        data: Any = None,
        options: Options = Options(threads=1),  # noqa: B008 - frozen
        **of_store: bool,
    ) -> gpushard.Array:
        """The array, `data` in the place of the object.

        `of_store` as in `OneObject`.
        """
        objects: dict[str, Any] = dict(self.objects)
        if data is not None:
            objects[self.key] = data
        return self._behind(OneObject(objects, **of_store), options)

    def placed(self, data: bytes, directory: Path, options: Options) -> gpushard.Array:
        """The array, `data` a file below `directory` and in the place of the object."""
        file = directory / self.key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.write_bytes(data)
        return self._behind(LocalStore(directory, options), options)

    def _behind(self, store: Store, options: Options) -> gpushard.Array:
        known = IndexCache(options.index_cache_nbytes)
        numbers = options.resolved()
        return gpushard.Array(
            replace(self._source, store=store, options=numbers, indexes=known)
        )

    @cached_property
    def _source(self) -> Any:
        return gpushard.open_array(OneObject(self.objects)).source


def written(codecs: Sequence[Any]) -> Case:
    """Case of `VALUES` behind a chain, written by zarr-python."""
    objects = write(document(codecs), [(..., VALUES)]).objects
    return Case(objects, "c/0/0")


def plain_case(values: NDArray[np.int32]) -> Case:
    """Case of an unsharded, uncompressed array in one object."""
    metadata = json.dumps(document([LITTLE], values.shape, values.shape)).encode()
    key = "/".join(["c", *("0" for _ in values.shape)])
    return Case({"zarr.json": metadata, key: values.astype("<i4").tobytes()}, key)


@cache
def cases() -> tuple[Case, ...]:
    """Every chain in a shard, ways to lay out a shard, and stored samples."""
    nested = sharding([sharding([LITTLE, ZSTD], chunk_shape=[4, 8])])
    layouts = [
        [sharding([LITTLE, ZSTD], index_codecs=[LITTLE])],
        [sharding([LITTLE, ZSTD], index_location="start")],
        [sharding([BIG, CRC], index_codecs=[BIG, CRC], index_location="start")],
        [sharding([LITTLE], index_codecs=[BIG])],
        [nested],
        [sharding([LITTLE], index_codecs=[LITTLE]), ZSTD],
        [codec("transpose", order=[1, 0]), sharding([LITTLE], chunk_shape=[16, 8])],
        [LITTLE, ZSTD],
        [LITTLE],
    ]
    chains = [[sharding(chain)] for chain in CHAINS.values()]
    return (*map(written, [*chains, *layouts]), *_samples())


def _samples() -> list[Case]:
    found: list[Case] = []
    for place in sorted((SAMPLES / "valid").iterdir()):
        files = [file for file in sorted(place.rglob("*")) if file.is_file()]
        objects = {f.relative_to(place).as_posix(): f.read_bytes() for f in files}
        sizes = {k: len(data) for k, data in objects.items() if "zarr.json" not in k}
        if objects.keys() & {"zarr.json"} and sizes and "node_type" in str(objects):
            small = [key for key in sizes if sizes[key] <= _LARGEST_NBYTES]
            if small:
                found.append(Case(objects, max(small, key=lambda key: sizes[key])))
    return found

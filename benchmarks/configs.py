"""What is measured: data sets x inner chunk sizes x codec chains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

KIB = 1024
MIB = 1024 * KIB

Dataset = Literal["field", "tiles"]
Shape = tuple[int, ...]

DATASETS: tuple[Dataset, ...] = ("field", "tiles")
DTYPES = {"field": "float32", "tiles": "uint8"}
FIELD_INNER = {
    4 * KIB: (8, 8, 16),
    32 * KIB: (16, 16, 32),
    128 * KIB: (32, 32, 32),
    MIB: (64, 64, 64),
}
TILE_NBYTES = 64 * 64
INNER_NBYTES = tuple(FIELD_INNER)
SHARD_NBYTES_MAX = 32 * MIB


def _blosc(cname: str, shuffle: str, typesize: int) -> dict[str, Any]:
    settings = {"cname": cname, "clevel": 5, "shuffle": shuffle, "blocksize": 0}
    return {"name": "blosc", "configuration": {**settings, "typesize": typesize}}


def codecs_of(codec: str, itemsize: int) -> list[dict[str, Any]]:
    """Codecs behind `bytes` in an inner chunk's chain, as its metadata names them.

    Raises
    ------
    KeyError
        `codec` is not one of `CODECS`.
    """
    zstd = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
    return {
        "none": [],
        "zstd": [zstd],
        "zstd+crc32c": [zstd, {"name": "crc32c"}],
        "blosc-lz4": [_blosc("lz4", "shuffle", itemsize)],
        "blosc-zstd": [_blosc("zstd", "bitshuffle", itemsize)],
        "gzip": [{"name": "gzip", "configuration": {"level": 5}}],
        "lz4": [{"name": "numcodecs.lz4", "configuration": {"acceleration": 1}}],
    }[codec]


CODECS = ("none", "zstd", "zstd+crc32c", "blosc-lz4", "blosc-zstd", "gzip", "lz4")


@dataclass(frozen=True, slots=True)
class Config:
    """One stored array of the suite.

    Attributes
    ----------
    dataset
        "field" (float32, 3-D: inner chunks never contiguous in the output) or "tiles"
        (uint8, rows of 64 x 64: always contiguous).
    inner_nbytes
        Decoded bytes of an inner chunk; one of `INNER_NBYTES`.
    codec
        One of `CODECS`.
    nbytes
        Decoded bytes of the array at most; rounded down to a power of two.
    is_sharded
        Whether inner chunks lie in shards; if not, each is a file.
    """

    dataset: Dataset
    inner_nbytes: int
    codec: str
    nbytes: int
    is_sharded: bool = True

    @property
    def slug(self) -> str:
        """Name of its directory; the data set comes first."""
        files = "" if self.is_sharded else "-unsharded"
        return f"{self.dataset}-{self.inner_nbytes // KIB}k-{self.codec}{files}"

    @property
    def shard_shape(self) -> Shape:
        """Elements of a shard along each axis: at most half the array's bytes."""
        shape, nbytes = (16, 32, 32), 64 * KIB
        while nbytes * 16 <= self.nbytes and nbytes < SHARD_NBYTES_MAX:
            shape, nbytes = tuple(2 * n for n in shape), nbytes * 8
        return shape if self.dataset == "field" else (nbytes // TILE_NBYTES, 64, 64)

    @property
    def shape(self) -> Shape:
        """Elements of the array along each axis: whole shards."""
        if self.dataset == "tiles":
            shard = self.shard_shape[0]
            return (self.nbytes // TILE_NBYTES // shard * shard, 64, 64)
        shape = list(self.shard_shape)
        axis, nbytes = 0, 4 * shape[0] * shape[1] * shape[2]
        while nbytes * 2 <= self.nbytes:
            shape[axis] *= 2
            axis, nbytes = (axis + 1) % 3, nbytes * 2
        return tuple(shape)

    @property
    def inner_shape(self) -> Shape:
        """Elements of an inner chunk along each axis."""
        if self.dataset == "field":
            return FIELD_INNER[self.inner_nbytes]
        return (self.inner_nbytes // TILE_NBYTES, 64, 64)

    def document(self) -> dict[str, Any]:
        """Contents of its ``zarr.json``."""
        dtype = DTYPES[self.dataset]
        itemsize = 4 if dtype == "float32" else 1
        little = {"name": "bytes", "configuration": {"endian": "little"}}
        chunk_shape, codecs = self.inner_shape, [little]
        codecs += codecs_of(self.codec, itemsize)
        if self.is_sharded:
            sharding = {
                "chunk_shape": list(chunk_shape),
                "codecs": codecs,
                "index_codecs": [little, {"name": "crc32c"}],
                "index_location": "end",
            }
            chunk_shape = self.shard_shape
            codecs = [{"name": "sharding_indexed", "configuration": sharding}]
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": dtype,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": list(chunk_shape)},
            },
            "chunk_key_encoding": {"name": "default"},
            "fill_value": 0,
            "attributes": {},
            "codecs": codecs,
        }


def configs(
    datasets: tuple[Dataset, ...],
    inner_nbytes: tuple[int, ...],
    codecs: tuple[str, ...],
    nbytes: int,
    *,
    is_sharded: bool = True,
) -> list[Config]:
    """Every combination whose inner chunk fits into its shard."""
    every = [
        Config(dataset, inner, codec, nbytes, is_sharded)
        for dataset in datasets
        for inner in inner_nbytes
        for codec in codecs
    ]
    return [config for config in every if _fits(config)]


def _fits(config: Config) -> bool:
    pairs = zip(config.inner_shape, config.shard_shape, strict=True)
    return all(inner <= shard for inner, shard in pairs)

"""Arrays of every chain that the compiled loops know, and who read them."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import gpushard
from array_strategies import codec
from gpushard import Options
from gpushard.codecs import libdeflate
from gpushard.fused import choice
from gpushard.fused.short import ways
from gpushard.fused.short.sharded import ShortShardedReader
from gpushard.fused.short.ways import short_ways
from gpushard.fused.sink import FusedSink
from gpushard.placing.place import HostSink
from gpushard.reading import results
from zarr_oracle import StoredArray, assert_same_bits, write

# One thread, so that of several damaged inner chunks the same one is met first.
FUSED = Options(compile_nbytes=0, small_read_chunks=0, threads=1)
PLAIN = FUSED.but(compile_nbytes=2**62)
LITTLE, CRC = codec("bytes", endian="little"), {"name": "crc32c"}


def blosc(cname: str, shuffle: str, blocksize: int = 0) -> dict[str, Any]:
    kinds = {"typesize": 4, "blocksize": blocksize}
    return codec("blosc", cname=cname, clevel=5, shuffle=shuffle, **kinds)


ZSTD = codec("zstd", level=3, checksum=False)
LZ4 = codec("numcodecs.lz4", acceleration=1)
SHUFFLE = codec("numcodecs.shuffle", elementsize=4)
CHAINS = {
    "raw": [],
    "crc32c": [CRC],
    "zstd": [ZSTD],
    "zstd, crc32c": [ZSTD, CRC],
    "gzip": [codec("gzip", level=5)],
    "zlib": [codec("numcodecs.zlib", level=1)],
    "lz4": [LZ4],
    "shuffle, zlib": [SHUFFLE, codec("numcodecs.zlib", level=1)],
    "shuffle, zstd, crc32c": [SHUFFLE, ZSTD, CRC],
    **{
        f"blosc {name} {shuffle} {blocksize}": [blosc(name, shuffle, blocksize)]
        for name, shuffle, blocksize in itertools.product(
            ["lz4", "lz4hc", "zstd", *(["zlib"] if libdeflate.find() else [])],
            ["noshuffle", "shuffle", "bitshuffle"],
            [0, 512],
        )
    },
}
SHAPE, SHARD, CHUNK = (100, 90), (64, 64), (32, 16)
VALUES = np.add.outer(np.arange(100) ** 2, np.arange(90) * 3).astype("i4") % 997


def stored(
    chain: list[Any],
    dtype: str = "int32",
    before: Any = (LITTLE,),
    *,
    negated: bool = False,
) -> StoredArray:
    """Array of `VALUES`, or of their opposites; its objects are the caller's own."""
    sharding = codec(
        "sharding_indexed",
        chunk_shape=CHUNK,
        codecs=[*before, *chain],
        index_codecs=[LITTLE, CRC],
        index_location="end",
    )
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": SHAPE,
        "data_type": dtype,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": SHARD},
        },
        "chunk_key_encoding": {
            "name": "default",
            "configuration": {"separator": "/"},
        },
        "fill_value": {"bool": False, "complex64": [0, 0]}.get(dtype, 0),
        "codecs": [sharding],
        "attributes": {},
    }
    written = _written(json.dumps(document), dtype, negated)
    return StoredArray(dict(written.objects), written.full)


@cache
def _written(document: str, dtype: str, negated: bool) -> StoredArray:
    values = VALUES.astype(dtype)
    found = write(json.loads(document), [(..., -values if negated else values)])
    found.full.flags.writeable = False
    return found


def need_fast_packages() -> None:
    """Skip the file, or the test, that calls this where the extra `fast` is missing."""
    pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")


class Seen:
    """Who decoded in some reads.

    Attributes
    ----------
    sinks
        The sinks that were made, of the loops or of Python.
    n_left
        Number of inner chunks that the loops left to Python.
    n_short
        Number of reads that the loops did the short way, without a sink.
    """

    def __init__(self) -> None:
        self.sinks: list[Any] = []
        self.n_left = 0
        self.n_short = 0


def watch_sinks(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """What is noted of the reads to come."""
    seen = Seen()

    def host_sink(*args):
        seen.sinks.append(choice.host_sink(*args))
        return seen.sinks[-1]

    def place_all(self, job, ranged, rows, *answers):
        seen.n_left += len(rows)
        return plain(self, job, ranged, rows, *answers)

    def read(*args):
        is_read = read_short(*args)
        seen.n_short += is_read
        return is_read

    plain, read_short = HostSink._place_all, ShortShardedReader.read
    monkeypatch.setattr(results, "host_sink", host_sink)
    monkeypatch.setattr(ShortShardedReader, "read", read)
    monkeypatch.setattr(HostSink, "_place_all", place_all)
    return seen


def take_way(monkeypatch: pytest.MonkeyPatch, way: str) -> str:
    """`way`, which reads of local files take from now on, where they can.

    The loops read files for a whole read at once ("whole"), for the requests of one
    block, or for a box of a few inner chunks, which they plan first ("short") or in the
    same call ("one call").
    """
    if way == "requests":
        monkeypatch.setattr(FusedSink, "job_reader", lambda *_: None)
    if way == "short":
        monkeypatch.setattr(ways, "one_call", lambda *_: None)
    if way in ("short", "one call"):
        # Loaded by earlier reads; and without the plain short way ahead of it.
        choice._load()
        monkeypatch.setattr(results, "read_little", short_only)
    return way


def short_only(
    source: Any, selection: Any, out: Any, damage: Any = None, limit: Any = None
) -> bool:
    # Also for options under which the ways with sinks come first.
    options = source.options.but(small_read_chunks=8)
    reader = short_ways(replace(source, options=options)).short
    return reader is not None and reader.read(source, selection, out, limit)


def assert_all_fused(seen: Seen) -> None:
    assert seen.sinks or seen.n_short
    assert all(isinstance(sink, FusedSink) for sink in seen.sinks)
    assert seen.n_left == 0


def kind_of_sink(seen: Seen) -> type:
    return type(seen.sinks.pop())


def outcome(store: Any, options: Options) -> Any:
    """Elements, or type and text of the error."""
    try:
        return gpushard.open_array(store, options=options)[...]
    except gpushard.GpushardError as error:
        return type(error), str(error)


def assert_same_outcome(store: Any) -> bool:
    """Whether the array can be read at all."""
    got, want = outcome(store, FUSED), outcome(store, PLAIN)
    if isinstance(want, tuple):
        assert isinstance(got, tuple)
        assert got == want
        return False
    assert isinstance(got, np.ndarray)
    assert_same_bits(got, want)
    return True

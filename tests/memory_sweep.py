"""How much a process grows beside the output of a read of many kinds: JSON lines.

Run as ``python tests/memory_sweep.py DIRECTORY [WORD]``, with the tests' directory and
that of the package on PYTHONPATH; SWEEP_KIB and SWEEP_THREADS have other sizes and
numbers of threads. Each read has a process of its own, which has loaded
all that the read needs. WORD, if any, stands in the names of the streams to read. A
read that grows by more than the memory limit has a line, and then each stream.
"""

from __future__ import annotations

import bz2
import ctypes
import gc
import gzip
import json
import lzma
import os
import shutil
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import crc32c
import numcodecs.blosc
import numpy as np
import zstandard

from array_strategies import codec
from asked_store import put
from damaged_arrays import opened
from gpushard.fused import choice
from gpushard.options import KIB, MIB
from hostile_shards import GZIP, ZSTD
from memory_probe import status_nbytes
from spec_shards import LITTLE, document, sharding

LIMIT = 64 * MIB
KIBS = os.environ.get("SWEEP_KIB", "64,256,1000,1900,3900,8000,15000,24000,30000")
SIZES = [int(n) * KIB for n in KIBS.split(",")]
THREADS = [int(n) for n in os.environ.get("SWEEP_THREADS", "1,2,8,16").split(",")]
WAYS = ("plain", "compiled")
# Enough for all threads to have some, and for what allocators keep to pile up.
_LEAST_NBYTES = 96 * MIB
_WARM_NBYTES = 64 * KIB
BLOSC = codec("blosc", cname="lz4", clevel=5, shuffle="noshuffle", blocksize=0)
BZ2, LZMA = codec("numcodecs.bz2", level=1), codec("numcodecs.lzma")

Encode = Callable[[bytes], bytes]


def blosc(name: bytes, shuffle: int, block: int, data: bytes) -> bytes:
    block = min(block, len(data)) // 4096 * 4096
    elements = np.frombuffer(data, "<u4")
    return numcodecs.blosc.compress(elements, name, 1, shuffle, block)


def zstd(data: bytes, window_log: int = 0, n_frames: int = 1, *, told: bool) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        1, window_log=window_log, write_content_size=told
    )
    cut = -(-len(data) // n_frames)
    frames: list[bytes] = []
    for first in range(0, len(data), cut):
        packer = zstandard.ZstdCompressor(compression_params=parameters)
        piece = data[first : first + cut]
        if told:
            frames.append(packer.compress(piece))
        else:
            stream = packer.compressobj()
            frames.append(stream.compress(piece) + stream.flush())
    return b"".join(frames)


def in_members(data: bytes) -> bytes:
    return gzip.compress(data[: len(data) // 3]) + gzip.compress(data[len(data) // 3 :])


STREAMS: dict[str, tuple[list[Any], Encode]] = {
    "plain elements": ([], bytes),
    "zstd": ([ZSTD], partial(zstd, told=True)),
    "zstd untold": ([ZSTD], partial(zstd, window_log=27, told=False)),
    "zstd halves": ([ZSTD], partial(zstd, window_log=10, n_frames=2, told=False)),
    "zstd crc": ([ZSTD, codec("crc32c")], partial(zstd, told=True)),
    "gzip": ([GZIP], gzip.compress),
    "gzip members": ([GZIP], in_members),
    "zlib": ([codec("numcodecs.zlib", level=1)], partial(zlib.compress, level=1)),
    "lz4": ([codec("numcodecs.lz4")], numcodecs.LZ4().encode),
    "bz2": ([BZ2], partial(bz2.compress, compresslevel=1)),
    "bz2 of level 9": ([BZ2], bz2.compress),
    "lzma": ([LZMA], partial(lzma.compress, preset=0)),
    "gzip in zstd": ([GZIP, ZSTD], lambda d: zstd(gzip.compress(d), told=True)),
    "delta": ([codec("numcodecs.delta", dtype="|u1"), ZSTD], partial(zstd, told=True)),
}
for _name in ("lz4", "blosclz", "zstd", "zlib"):
    for _shuffle, _filter in enumerate(("", " shuffle", " bitshuffle")):
        for _block, _blocks in ((0, ""), (MIB, " MiB"), (2**30, " one block")):
            STREAMS[f"blosc {_name}{_filter}{_blocks}"] = (
                [BLOSC],
                partial(blosc, _name.encode(), _shuffle, _block),
            )


def elements(kind: str, n: int) -> bytes:
    """Bytes of one inner chunk."""
    rng = np.random.default_rng(n)
    if kind == "noise":
        return rng.integers(0, 256, n, "u1").tobytes()
    return rng.integers(0, 16, n // 4, "u4").tobytes()


def put_case(place: Path, codecs: list[Any], data: bytes, n: int, k: int) -> None:
    """An array of `k` inner chunks of `n` bytes, in one shard; or an object each."""
    if codecs and codecs[0]["name"] == "numcodecs.delta":
        codecs = [codecs[0], LITTLE, *codecs[1:]]
    else:
        codecs = [LITTLE, *codecs]
    if codecs[-1]["name"] == "crc32c":
        data += crc32c.crc32c(data).to_bytes(4, "little")
    shard = sharding((n,), codecs=codecs, index_codecs=[LITTLE])
    index = np.array([[i * len(data), len(data)] for i in range(k)], "<u8")
    put(place / "shard", document((k * n,), (k * n,), shard))
    path = place / "shard" / "c" / "0"
    path.parent.mkdir()
    with path.open("wb") as file:
        for _ in range(k):
            file.write(data)
        file.write(index.tobytes())
    put(place / "objects", document((k * n,), (n,), *codecs))
    (place / "objects" / "c").mkdir()
    for i in range(k):
        (place / "objects" / "c" / str(i)).write_bytes(data)


def grown(
    read: Callable[[], Any], warm_up: Callable[[], Any], out_nbytes: int
) -> tuple[str, int]:
    """What becomes of a read in a process of its own, and by how much that grows."""
    return in_a_child(lambda: _grown_here(read, warm_up, out_nbytes), ("died", 0))


def in_a_child(measure: Callable[[], Any], otherwise: Any) -> Any:
    """What a function gives in a forked process; `otherwise` if that one dies."""
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        os.close(receiver)
        try:
            os.write(sender, json.dumps(measure()).encode())
        except Exception:  # noqa: BLE001 - of the warm-up: told here, and as "died"
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(sender)
    with os.fdopen(receiver, "rb") as file:
        told = file.read()
    os.waitpid(child, 0)
    return tuple(json.loads(told)) if told else otherwise


# Once a process has freed a large block, glibc takes the next ones of up to that size
# from its heap, and what is freed there stays (mallopt(3)). The peak would depend on
# what ran before.
_M_MMAP_THRESHOLD = -3


def _grown_here(
    read: Callable[[], Any], warm_up: Callable[[], Any], out_nbytes: int
) -> tuple[str, int]:
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, MIB)
    warm_up()
    gc.collect()
    libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
    before, came, made_nbytes = status_nbytes("VmRSS"), "read", 0
    try:
        made_nbytes = read().nbytes - out_nbytes  # one that is given is there before
    except Exception as error:  # noqa: BLE001 - of zarr too, and told
        came = type(error).__name__
    return came, status_nbytes("VmHWM") - before - made_nbytes


def cases(word: str) -> Iterator[tuple[str, int, str]]:
    """Stream, size and elements of inner chunks."""
    for name in STREAMS:
        is_slow = name.startswith(("bz2", "lzma"))
        for n in SIZES if word in name else ():
            for kind in ("noise", "some"):
                if not (is_slow and n > 4 * MIB):
                    yield name, n, kind


def reads(directory: Path, n_elements: int) -> Iterator[tuple[str, str, int]]:
    """Reads of a case: what each is called, what came, and what it grew by."""
    for layout, way, threads in product(("shard", "objects"), WAYS, THREADS):
        for what in ("step", "all"):
            options: Any = {"memory_limit": LIMIT, "threads": threads}
            out = np.ones(n_elements, "u1") if what == "all" else None
            key = slice(None) if what == "all" else slice(None, None, 4097)

            def read(
                place: Path, out: Any, key: Any = key, options: Any = options
            ) -> Any:
                a = opened(place, way, **options)  # noqa: B023 - done at once
                return np.asarray(a.read(key, out=out))

            came, nbytes = grown(
                partial(read, directory / "case" / layout, out),
                partial(read, directory / "warm up" / layout, None),
                0 if out is None else out.nbytes,
            )
            yield f"{layout}, {way}, {threads} threads, {what}", came, nbytes


def main() -> None:
    directory = Path(sys.argv[1])
    word = sys.argv[2] if len(sys.argv) > 2 else ""
    choice._load()
    top: dict[str, int] = {}
    for name, n, kind in cases(word):
        shutil.rmtree(directory, ignore_errors=True)
        codecs, encode = STREAMS[name]
        k = max(3, -(-_LEAST_NBYTES // n))
        put_case(directory / "case", codecs, encode(elements(kind, n)), n, k)
        warm = encode(elements(kind, _WARM_NBYTES))
        put_case(directory / "warm up", codecs, warm, _WARM_NBYTES, 8)
        for what, came, nbytes in reads(directory, n * k):
            top[name] = max(top.get(name, 0), nbytes)
            if nbytes > LIMIT or came not in ("read", "LimitError"):
                told = {"case": f"{name}, {kind}, {k} x {n >> 10} KiB, {what}"}
                told |= {"came": came, "grown": nbytes}
                sys.stdout.write(f"{json.dumps(told)}\n")
    for name, nbytes in top.items():
        told = {"stream": name, "grown at most MiB": round(nbytes / MIB, 1)}
        sys.stdout.write(f"{json.dumps(told)}\n")


if __name__ == "__main__":
    main()

"""Decoding rates of this GPU and this host for placement.

Those of the GPU are of its decoders alone (`device_rates`). Those of the host are of
reads by one thread: the page cache answers them much faster than a thread decodes, and
no inner chunk is kept for the next read.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import gpushard
from gpushard.cli.device_rates import decoding_rate
from gpushard.devices.base import Device
from gpushard.devices.find import find_device
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.devices.placement import RATES, Rates
from gpushard.devices.rates import keep_rates
from gpushard.errors import UnsupportedError
from gpushard.options import KIB, MIB, Options

_COMPRESSORS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "zstd": ("zstd", {"level": 3, "checksum": False}),
    "lz4": ("numcodecs.lz4", {"acceleration": 1}),
    "gzip": ("gzip", {"level": 5}),
    "zlib": ("numcodecs.zlib", {"level": 5}),
}
# numcodecs has no Snappy for Blosc, so the host keeps its estimated rate.
_BLOSC = ("lz4", "zstd", "zlib")
# A Blosc frame consists of streams of the compressor that it names.
_ALGORITHMS = {
    "zstd": Algorithm.ZSTD,
    "lz4": Algorithm.LZ4,
    "snappy": Algorithm.SNAPPY,
    "gzip": Algorithm.GZIP,
    "zlib": Algorithm.DEFLATE,
}
_READ_HERE = Options(threads=1, chunk_cache_nbytes=0)


class Amounts(NamedTuple):
    """How much is decoded: enough to keep a device busy, or only to see that it works.

    Attributes
    ----------
    inner_nbytes, shard_nbytes
        Size of inner chunks, and of the shard of them that the host reads.
    n_streams
        Inner chunks that the device decodes at once.
    stream_nbytes
        Size of a stream that it decodes alone.
    """

    inner_nbytes: int = 64 * KIB
    shard_nbytes: int = 16 * MIB
    n_streams: int = 4096
    stream_nbytes: int = MIB
    repetitions: int = 3


USUAL = Amounts()


def measure_rates(device: Device, amounts: Amounts = USUAL) -> dict[str, Rates]:
    """Decoded bytes per second on a device and on this host, by coding.

    Takes some seconds, and some five times the decoded bytes of device memory.
    """
    there = {a: _device_rates(device, a, amounts) for a in Algorithm}
    found: dict[str, Rates] = {}
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr's, of names that numcodecs gave
        for coding, usual in RATES.items():
            compressor = coding.removeprefix("blosc-")
            host = usual.host
            if coding in _COMPRESSORS or compressor in _BLOSC:
                host = _host_rate(
                    _stored(Path(place) / coding, coding, amounts), amounts
                )
            found[coding] = Rates(*there[_ALGORITHMS[compressor]], host)
    return found


def measure_and_keep() -> None:
    """Measure the device that reads use, and store its rates for later processes.

    Raises `UnsupportedError` if reads use no device.
    """
    found = find_device("auto")
    if found.device is None:
        raise UnsupportedError(f"there is nothing to measure: {found.why}")
    keep_rates(found.device.model, measure_rates(found.device))


def _device_rates(
    device: Device, algorithm: Algorithm, amounts: Amounts
) -> tuple[float, float]:
    """Rates of many streams and of a single one."""
    inner, stream, times = (
        amounts.inner_nbytes,
        amounts.stream_nbytes,
        amounts.repetitions,
    )
    plain = _values(max(amounts.shard_nbytes, stream)).tobytes()
    pieces = [plain[k : k + inner] for k in range(0, amounts.shard_nbytes, inner)]
    return (
        decoding_rate(device, algorithm, pieces, amounts.n_streams, times),
        decoding_rate(device, algorithm, [plain[:stream]], 1, times),
    )


def _values(nbytes: int) -> NDArray[np.int8]:
    """Bytes that every coding at least halves."""
    rng, n = np.random.default_rng(7), nbytes // 24 + 1
    repeated = rng.integers(-128, 128, (256, 16), np.int8)[rng.integers(0, 256, n)]
    noise = rng.normal(0, 4, (n, 8)).astype("i1")
    return np.hstack([repeated, noise]).reshape(-1)[:nbytes]


def _stored(place: Path, coding: str, amounts: Amounts) -> Path:
    """Array of one shard."""
    name, configuration = _COMPRESSORS.get(coding, ("blosc", {}))
    if name == "blosc":
        configuration = {
            "cname": coding.removeprefix("blosc-"),
            "clevel": 5,
            "shuffle": "noshuffle",
            "typesize": 1,
            "blocksize": amounts.inner_nbytes,
        }
    a = gpushard.create_array(
        place,
        shape=(amounts.shard_nbytes,),
        dtype="i1",
        chunks=(amounts.inner_nbytes,),
        shards=(amounts.shard_nbytes,),
        compressors=[{"name": name, "configuration": configuration}],
        device="cpu",
    )
    a[:] = _values(amounts.shard_nbytes)
    return place


def _host_rate(place: Path, amounts: Amounts) -> float:
    """Bytes per second of the quickest read; the first read is not timed."""
    a = gpushard.open_array(place, device="cpu", options=_READ_HERE)
    seconds: list[float] = []
    for _ in range(amounts.repetitions + 1):
        started = perf_counter()
        a[:]
        seconds.append(perf_counter() - started)
    return amounts.shard_nbytes / min(seconds[1:])

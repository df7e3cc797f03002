"""Decoding rates of this GPU and this host for placement.

Those of the GPU are of its decoders alone (`device_rates`). Those of the host are of
reads by one thread, and by as many as there are CPUs: the page cache answers them much
faster than a thread decodes, and no inner chunk is kept for the next read.
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
from gpushard.machine import usable_cpu_count
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
# Shards that all threads read, one for each up to this number.
_MOST_SHARDS = 16


class Amounts(NamedTuple):
    """How much is decoded: enough to keep a device busy, or only to see that it works.

    Attributes
    ----------
    inner_nbytes, shard_nbytes
        Size of inner chunks, and of the shard of them that a thread of the host reads.
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


USUAL_AMOUNTS = Amounts()


def measure_rates(device: Device, amounts: Amounts = USUAL_AMOUNTS) -> dict[str, Rates]:
    """Decoded bytes per second on a device and on this host, by coding.

    Takes some seconds, and some five times the decoded bytes of device memory.
    """
    device_rates = {a: _device_rates(device, a, amounts) for a in Algorithm}
    rates: dict[str, Rates] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr's, of names that numcodecs gave
        for coding, usual in RATES.items():
            compressor = coding.removeprefix("blosc-")
            host_rates = usual.host, usual.together
            if coding in _COMPRESSORS or compressor in _BLOSC:
                host_rates = _host_rates(coding, amounts)
            rates[coding] = Rates(*device_rates[_ALGORITHMS[compressor]], *host_rates)
    return rates


def _host_rates(coding: str, amounts: Amounts) -> tuple[float, float]:
    """Rate of one thread, and the part of it that each of all threads has."""
    n_cpus = usable_cpu_count()
    n_shards = min(n_cpus, _MOST_SHARDS)
    with tempfile.TemporaryDirectory() as place:
        stored = _stored_array(Path(place), coding, amounts, n_shards)
        alone = _host_rate(stored, amounts.shard_nbytes, 1, amounts.repetitions)
        nbytes = n_shards * amounts.shard_nbytes
        all_together = _host_rate(stored, nbytes, n_cpus, amounts.repetitions)
    return alone, min(all_together / n_cpus / alone, 1.0)


def measure_and_keep() -> None:
    """Measure the device that reads use, and store its rates for later processes.

    Raises `UnsupportedError` if reads use no device, or nothing can be kept.
    """
    found = find_device("auto")
    if found.device is None:
        raise UnsupportedError(f"there is nothing to measure: {found.why}")
    rates = measure_rates(found.device)
    try:
        keep_rates(found.device.model, rates)
    except FileNotFoundError as error:
        raise UnsupportedError(
            f"what was measured cannot be kept: {error}",
            hint="set XDG_CACHE_HOME to a directory that you can write to",
        ) from error


def _device_rates(
    device: Device, algorithm: Algorithm, amounts: Amounts
) -> tuple[float, float]:
    """Rates of many streams and of a single one."""
    inner, stream, times = (
        amounts.inner_nbytes,
        amounts.stream_nbytes,
        amounts.repetitions,
    )
    plain = _test_bytes(max(amounts.shard_nbytes, stream)).tobytes()
    pieces = [plain[k : k + inner] for k in range(0, amounts.shard_nbytes, inner)]
    return (
        decoding_rate(device, algorithm, pieces, amounts.n_streams, times),
        decoding_rate(device, algorithm, [plain[:stream]], 1, times),
    )


def _test_bytes(nbytes: int) -> NDArray[np.int8]:
    """Bytes that every coding at least halves."""
    rng, n = np.random.default_rng(7), nbytes // 24 + 1
    repeated = rng.integers(-128, 128, (256, 16), np.int8)[rng.integers(0, 256, n)]
    noise = rng.normal(0, 4, (n, 8)).astype("i1")
    return np.hstack([repeated, noise]).reshape(-1)[:nbytes]


def _stored_array(place: Path, coding: str, amounts: Amounts, n_shards: int) -> Path:
    """Array of some shards."""
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
        shape=(n_shards * amounts.shard_nbytes,),
        dtype="i1",
        chunks=(amounts.inner_nbytes,),
        shards=(amounts.shard_nbytes,),
        compressors=[{"name": name, "configuration": configuration}],
        device="cpu",
    )
    a[:] = np.tile(_test_bytes(amounts.shard_nbytes), n_shards)
    return place


def _host_rate(place: Path, nbytes: int, threads: int, repetitions: int) -> float:
    """Bytes per second of the quickest read of the first bytes of an array.

    The first read is not timed.
    """
    options = Options(threads=threads, chunk_cache_nbytes=0)
    a = gpushard.open_array(place, device="cpu", options=options)
    out = np.empty(nbytes, np.int8)  # whose pages are new only to the first read
    seconds: list[float] = []
    for _ in range(repetitions + 1):
        started = perf_counter()
        a.read(slice(nbytes), out=out)
        seconds.append(perf_counter() - started)
    return nbytes / min(seconds[1:])

"""Decoding rates of this GPU and this host for placement, measured by reads."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

import gpushard
from gpushard.devices.base import Device
from gpushard.devices.find import find_device
from gpushard.devices.placement import RATES, Rates
from gpushard.devices.rates import keep_rates
from gpushard.errors import UnsupportedError
from gpushard.options import KIB, MIB, Options

# numcodecs has no Snappy for Blosc, so that coding keeps its estimated rate.
_COMPRESSORS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "zstd": ("zstd", {"level": 3, "checksum": False}),
    "lz4": ("numcodecs.lz4", {"acceleration": 1}),
    "gzip": ("gzip", {"level": 5}),
    "zlib": ("numcodecs.zlib", {"level": 5}),
}
_BLOSC = ("lz4", "zstd", "zlib")


class Amounts(NamedTuple):
    """How much is read: enough to keep a device busy, or only to see that it works.

    Attributes
    ----------
    shard_nbytes, n_shards
        Size and number of shards; all shards are hard links to one file.
    stream_nbytes
        Size of a single inner chunk that is one stream.
    """

    inner_nbytes: int = 64 * KIB
    shard_nbytes: int = 16 * MIB
    n_shards: int = 16
    stream_nbytes: int = MIB
    repetitions: int = 3


USUAL = Amounts()


def measure_rates(device: Device, amounts: Amounts = USUAL) -> dict[str, Rates]:
    """Decoded bytes per second on a device and on this host, by coding.

    Takes some seconds. Payload comes from the page cache, because only reads with fast
    storage are bound by decoding.
    """
    found: dict[str, Rates] = {}
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr's, of names that numcodecs gave
        for coding in RATES:
            if coding in _COMPRESSORS or coding.removeprefix("blosc-") in _BLOSC:
                found[coding] = _rates_of(coding, Path(place) / coding, device, amounts)
    return found


def measure_and_keep() -> None:
    """Measure the device that reads use, and store its rates for later processes.

    Raises `UnsupportedError` if reads use no device.
    """
    found = find_device("auto")
    if found.device is None:
        raise UnsupportedError(f"there is nothing to measure: {found.why}")
    keep_rates(found.device.model, measure_rates(found.device))


def _rates_of(coding: str, place: Path, device: Device, amounts: Amounts) -> Rates:
    inner, shard = amounts.inner_nbytes, amounts.shard_nbytes
    many = _stored(place / "many", coding, inner, shard, amounts.n_shards)
    # One block, which Blosc encodes as one stream.
    one = _stored(place / "one", coding, amounts.stream_nbytes, amounts.stream_nbytes)
    on_device = Options(placement="device")
    times = amounts.repetitions
    return Rates(
        device=_rate(many, slice(None), device, on_device, times),
        stream=_rate(one, slice(None), device, on_device, times),
        host=_rate(many, slice(0, shard), "cpu", Options(threads=1), times),
    )


def _stored(
    place: Path, coding: str, inner_nbytes: int, shard_nbytes: int, n_shards: int = 1
) -> Path:
    """Array of bytes that every coding at least halves; all shards are alike."""
    rng, n = np.random.default_rng(7), shard_nbytes // 24 + 1
    repeated = rng.integers(-128, 128, (256, 16), np.int8)[rng.integers(0, 256, n)]
    noise = rng.normal(0, 4, (n, 8)).astype("i1")
    values = np.hstack([repeated, noise]).reshape(-1)[:shard_nbytes]
    name, configuration = _COMPRESSORS.get(coding, ("blosc", {}))
    if name == "blosc":
        configuration = {
            "cname": coding.removeprefix("blosc-"),
            "clevel": 5,
            "shuffle": "noshuffle",
            "typesize": 1,
            "blocksize": inner_nbytes,
        }
    a = gpushard.create_array(
        place,
        shape=(n_shards * shard_nbytes,),
        dtype="i1",
        chunks=(inner_nbytes,),
        shards=(shard_nbytes,),
        compressors=[{"name": name, "configuration": configuration}],
        device="cpu",
    )
    a[:shard_nbytes] = values
    first = place / "c" / "0"
    for k in range(1, n_shards):
        os.link(first, first.with_name(str(k)))
    return place


def _rate(
    place: Path, key: slice, device: Device | str, options: Options, times: int
) -> float:
    """Bytes per second of the quickest read; the first read is not timed."""
    a = gpushard.open_array(place, device=device, options=options)
    seconds: list[float] = []
    nbytes = 0
    for _ in range(times + 1):
        started = perf_counter()
        nbytes = a[key].shape[0]
        seconds.append(perf_counter() - started)
    return nbytes / min(seconds[1:])

"""GPUs over a stand-in for CuPy, and the array that is read there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

import gpushard
from cuda_host import cupy_standin
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.standin import load_standin
from gpushard.devices import find

if TYPE_CHECKING:
    import pytest

KERNELS = Kernels()
CHAINS: dict[str, Any] = {
    "none": None,
    "zstd-crc32c": [ZstdCodec(), Crc32cCodec()],
    "gzip": [GzipCodec()],
    "blosc-lz4": [BloscCodec(cname="lz4", shuffle="shuffle", blocksize=256)],
    "blosc-zlib": [BloscCodec(cname="zlib", shuffle="bitshuffle")],
}
ON_DEVICE = gpushard.Options(placement="device")
SHAPE = (33, 40)


class LateDevice(EmulatedDevice):
    """One that is late with whatever keeps memory busy, on whichever stream."""

    def _run_any(self, otherwise: str) -> None:
        ready = [s for s, queue in self._streams.items() if self._is_ready(queue)]
        assert ready, otherwise
        heads = ((getattr(self._streams[s][0], "what", ""), s) for s in ready)
        self._run_next(min((what == "late", s) for what, s in heads)[1])


def forget() -> None:
    """Let the next array look for its device anew."""
    for asked_once in (find._usable_gpu, find._cuda_device):
        asked_once.cache_clear()


def two_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[cupy_standin.Cupy]:
    """What a fixture is made of: two GPUs, and nothing compiled before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    standin = load_standin()
    devices = LateDevice(KERNELS, standin), EmulatedDevice(KERNELS, standin, seed=4)
    yield cupy_standin.install(monkeypatch, *devices)
    forget()


def stored(place: Path, chain: str = "zstd-crc32c", dtype: str = "i4") -> NDArray[Any]:
    """Array in inner chunks of 8 x 10, and its values."""
    values = np.random.default_rng(5).integers(0, 50, SHAPE).astype(dtype)
    made = zarr.create_array(
        place,
        shape=SHAPE,
        dtype=dtype,
        chunks=(8, 10),
        shards=(16, 20),
        compressors=CHAINS[chain],
    )
    made[...] = values
    return values


def opened(place: Path, device: str = "cuda") -> gpushard.Array:
    """The array, decoded by the device whatever it costs."""
    return gpushard.open_array(place, device=device, options=ON_DEVICE)

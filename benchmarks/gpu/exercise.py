"""Every kernel once, by reads of small arrays that are compared with the host's.

    python -m benchmarks.gpu.exercise [DEVICE]

What the sanitizer runs; it ends with status 1 if a kernel was never launched or a
result differs.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.storage import MemoryStore

import gpushard
from benchmarks.gpu.gpu import REAL, fetched, open_machine
from benchmarks.gpu.replay import Recorder, finished
from gpushard.device_reading.read import DeviceRead
from gpushard.devices.base import Device
from gpushard.devices.kernels import load_kernel_sources
from gpushard.devices.output import DeviceOutput
from gpushard.options import Options
from gpushard.report import Tally
from gpushard.selecting import expressions
from gpushard.selecting.selection import Selection, whole, with_columns

# Told to a test of structs only.
NOT_READ = frozenset(("gs_scatter_structs",))
SHAPE, INNER, SHARD = (96, 80), (32, 40), (64, 80)


class Case(NamedTuple):
    """An array, and how it is read."""

    compressors: Sequence[Any]
    dtype: str = "i4"
    target: str | None = None
    filters: Sequence[Any] = ()


def _codec(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def _blosc(cname: str, shuffle: str) -> dict[str, Any]:
    return _codec(
        "blosc", cname=cname, clevel=5, shuffle=shuffle, typesize=4, blocksize=1024
    )


_SHUFFLE = _codec("numcodecs.shuffle", elementsize=4)
_ZSTD = _codec("zstd", level=1, checksum=True)
_TURN = _codec("transpose", order=[1, 0])
CASES = (
    Case(()),
    Case((), target="f8"),
    Case((_codec("crc32c"),)),
    Case((_ZSTD,)),
    Case((_SHUFFLE,)),
    Case((_SHUFFLE,), target="f8"),
    Case((_SHUFFLE, _ZSTD), dtype="f8"),
    Case((_codec("gzip", level=1),)),
    Case((_codec("numcodecs.zlib", level=1),)),
    Case((_codec("numcodecs.lz4", acceleration=1),)),
    *(Case((_blosc(name, "shuffle"),)) for name in ("lz4", "zlib", "zstd")),
    Case((_blosc("lz4", "shuffle"),), dtype="f8"),
    Case((_blosc("zstd", "bitshuffle"),)),
    Case((_ZSTD,), filters=(_TURN,)),
    Case((_ZSTD,), filters=(_TURN,), target="f8"),
    Case((), filters=(_codec("numcodecs.delta", dtype="<i4", astype="<i4"),)),
    Case((), "f4", filters=(_codec("numcodecs.delta", dtype="<f4", astype="<f4"),)),
    Case(
        (),
        dtype="f4",
        filters=(
            _codec(
                "numcodecs.fixedscaleoffset",
                offset=1.0,
                scale=2.0,
                dtype="<f4",
                astype="<i2",
            ),
        ),
    ),
    Case((), dtype="bool", filters=(_codec("numcodecs.packbits"),)),
)


def stored(case: Case) -> gpushard.Array:
    """The array of a case, the last rows of it missing."""
    store = MemoryStore()
    made = zarr.create_array(
        store,
        shape=SHAPE,
        chunks=INNER,
        shards=SHARD,
        dtype=case.dtype,
        compressors=list(case.compressors) or None,
        filters=list(case.filters) or None,
        fill_value=1,
    )
    values = np.random.default_rng(3).integers(0, 9, SHAPE).astype(case.dtype)
    made[:64] = values[:64]
    options = Options(placement="device")
    return gpushard.open_array(store, device="cpu", options=options)


def selections(shape: tuple[int, ...]) -> list[Selection]:
    """Whole arrays, steps, integer arrays and points: every kind of loop."""
    rows = [5, 2, 2, 70]
    parsed = (
        expressions.basic((slice(90, 3, -3), slice(1, None, 2)), shape),
        expressions.orthogonal((rows, slice(3, 77)), shape),
        expressions.orthogonal((rows, [1, 3, 8]), shape),
        expressions.points((rows, [0, 7, 79, 4]), shape),
    )
    return [whole(shape), *map(with_columns, parsed)]


def deep(compressors: Sequence[Any]) -> tuple[gpushard.Array, list[Selection]]:
    """Many axes, of which none merge: as many loops as the scatter knows."""
    shape, store = (4, 6, 6, 6, 6, 6), MemoryStore()
    values = np.arange(int(np.prod(shape)), dtype="i4").reshape(shape)
    made = zarr.create_array(
        store,
        shape=shape,
        chunks=(2, 6, 6, 6, 6, 6),
        shards=(4, 6, 6, 6, 6, 6),
        dtype="i4",
        compressors=list(compressors) or None,
    )
    made[...] = values
    every_second = (slice(None, None, 2),)
    return gpushard.open_array(store, device="cpu"), [
        with_columns(expressions.basic(every_second * n, shape)) for n in (3, 4, 6)
    ]


def read(
    device: Device, a: gpushard.Array, wanted: list[Selection], target: str | None
) -> Iterator[bool]:
    """For each selection, whether the device reads what the host reads."""
    dtype = np.dtype(target or a.dtype)
    outputs, buffers = [], []
    for selection in wanted:
        strides = np.empty(selection.shape, dtype).strides
        nbytes = int(np.prod(selection.shape)) * dtype.itemsize
        buffers.append(device.allocate(max(nbytes, 1)))
        outputs.append(
            DeviceOutput(buffers[-1].address, selection.shape, strides, dtype)
        )
    job = finished(DeviceRead(a.source, wanted, outputs, device, Tally()))
    if job.tally.counts.get("n_refused_inner_chunks"):
        sys.stderr.write(f"refused: {job.tally.counts}\n")
    for selection, output, want in zip(
        wanted, outputs, a.read_many(wanted, dtype=dtype), strict=True
    ):
        nbytes = int(np.prod(selection.shape)) * dtype.itemsize
        yield fetched(device, output.address, nbytes).tobytes() == want.tobytes()


def exercise(device: Device) -> tuple[set[str], list[str]]:
    """Kernels that were launched, and cases that came out wrong."""
    recorder = Recorder(device)
    noting: Any = recorder
    wrong: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numcodecs' names are in no specification
        arrays = [(case, stored(case)) for case in CASES]
        deeps = [deep(()), deep((_SHUFFLE,))]
    for case, a in arrays:
        wanted = selections(a.shape)
        wrong += [str(case) for ok in read(noting, a, wanted, case.target) if not ok]
    for many, wanted in deeps:
        for target in (None, "f8"):
            wrong += ["deep" for ok in read(noting, many, wanted, target) if not ok]
    return {call.what for call in recorder.calls if call.kind == "kernel"}, wrong


def without_pools(device: Any) -> None:
    """Let each allocation of a CUDA device be one of the driver, of the same size.

    A pool, of CuPy or of the device, would hide from the sanitizer where it ends.
    """
    import cupy

    cuda: Any = cupy.cuda

    def allocate_pinned(nbytes: int) -> NDArray[np.uint8]:
        memory = cuda.PinnedMemory(nbytes, cuda.runtime.hostAllocPortable)
        return np.frombuffer(cuda.PinnedMemoryPointer(memory, 0), np.uint8)

    cuda.set_allocator(None)
    device.allocate_pinned = allocate_pinned


def main(arguments: list[str]) -> int:
    """Exit status: 1 if a kernel was never launched, or a result differs."""
    machine = open_machine(arguments[0] if arguments else REAL)
    if not machine.is_emulated:
        without_pools(machine.device)
    launched, wrong = exercise(machine.device)
    missing = sorted(set(load_kernel_sources()) - launched - NOT_READ)
    sys.stdout.write(
        f"{len(launched)} kernels; not launched: {missing}; wrong: {wrong}\n"
    )
    return int(bool(missing or wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

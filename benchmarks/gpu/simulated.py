"""`python -m benchmarks.gpu.simulated`: whole reads to a GPU that only takes time.

    python -m benchmarks.gpu.simulated --dir DIRECTORY --codec zstd --gib 8

Its bus, its decoder and the files take as long as they are said to take, by sleeping.
What the host's Python does takes what it takes. So a read shows how far the host can
keep a GPU busy, and when it does not, without a GPU. Nothing is decoded, and no figure
of it is one of a GPU. It needs a C compiler, Linux, and nvCOMP, which needs no driver.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.arrays import Layout, store
from benchmarks.gpu.sizes import CODECS, GIB, SIZES
from gpushard import Options, open_array
from gpushard.device_reading import relayed
from gpushard.devices.base import CopyCalls
from gpushard.devices.nvcomp import StreamTables, load_nvcomp
from gpushard.devices.placement import RATES
from gpushard.errors import DeviceError, UnsupportedError

_SOURCE = Path(__file__).with_suffix(".c")
# Kernels beside the decoder, in seconds: launching one, and scattering a batch.
_KERNEL_S, _SCATTER_S = 20e-6, 60e-6
# As on the machines that had GPUs.
_N_CPUS = 16
# A gap that is told.
_LONG_S = 0.5e-3
_N_GAPS = 65536
# Pinned memory of this size and more is of payload, which nobody looks into.
_PAYLOAD_NBYTES = 1 << 20
_CALLS = "upload", "record", "wait", "exchange_mode", "get_context", "set_context"


class Library:
    """The compiled source: `held` calls keep the interpreter's lock, `free` do not."""

    def __init__(self, path: str) -> None:
        self.held, self.free = ctypes.PyDLL(path), ctypes.CDLL(path)
        for library in (self.held, self.free):
            library.gs_work.argtypes = (ctypes.c_uint64, ctypes.c_double)
            library.gs_upload.argtypes = (ctypes.c_uint64,) * 4
            for name in ("record", "await"):
                library[f"gs_{name}"].argtypes = (ctypes.c_uint64,) * 2
            for name in ("wait", "wait_for"):
                library[f"gs_{name}"].argtypes = (ctypes.c_uint64,)

    def address(self, name: str) -> int:
        """Address of a function."""
        return ctypes.cast(self.free[f"gs_{name}"], ctypes.c_void_p).value or 0

    def number(self, name: str) -> ctypes.c_double:
        """A rate of the source, which can be set."""
        return ctypes.c_double.in_dll(self.held, f"gs_{name}_nbytes_per_s")

    def gaps(self, *, of_gpu: bool) -> list[tuple[float, float]]:
        """When the GPU or the bus had nothing to do, in seconds of `perf_counter`."""
        n = (ctypes.c_int * 2).in_dll(self.held, "gs_n_gaps")[of_gpu]
        found = (ctypes.c_double * 2 * _N_GAPS * 2).in_dll(self.held, "gs_gaps")
        return [(first, last) for first, last in found[of_gpu][:n]]


def compiled(directory: Path) -> Library:
    """The source, compiled to a library in `directory`."""
    made = directory / "simulated.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(made), str(_SOURCE)]
    subprocess.run([*command, "-lpthread"], check=True)  # noqa: S603 - the system's
    return Library(str(made))


class _Event:
    def __init__(self, handle: int) -> None:
        self.handle = handle


class _Buffer:
    def __init__(self, address: int, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes


class _Result:
    """An array of the device, which has an address and no memory."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, address: int) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": self.dtype.str,
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


class _Decoder:
    """nvCOMP, which decodes nothing in the time that it is said to take."""

    def __init__(self, library: Library, stream_nbytes: float, rate: float) -> None:
        self._nvcomp = load_nvcomp()
        self._library, self._stream_s = library, stream_nbytes / rate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nvcomp, name)

    def decompress_async(
        self, _algorithm: Any, tables: StreamTables, *rest: int
    ) -> None:
        """Queue as many streams on the GPU."""
        self._library.held.gs_work(rest[-1], tables.count * self._stream_s)


class SimulatedDevice:
    """See the module, and `Device`."""

    label, model, rates = "simulated:0", "simulated", RATES

    def __init__(self, library: Library, decoder: Any) -> None:
        self.decoder = decoder
        self._library = library
        self._next = 1 << 40
        self._streams, self._events = count(1), count(1)
        # As CuPy, which keeps it: no page is new.
        self._pinned = np.ones(256 << 20, np.uint8)
        calls = [library.address(name) for name in _CALLS]
        self.calls = CopyCalls(*calls, context=1)
        self.copier: SimulatedDevice | None = self

    def create_event(self) -> _Event:
        """See `Device`."""
        return _Event(next(self._events))

    def failure(self, status: int) -> DeviceError:
        """See `Device`."""
        return DeviceError(f"the simulated driver returned {status}")

    def check(self) -> None:
        """Nothing breaks it."""

    def free_nbytes(self) -> int:
        """See `Device`."""
        return 64 * GIB

    def allocate(self, nbytes: int) -> _Buffer:
        """See `Device`."""
        self._next += -(-nbytes // 4096) * 4096
        return _Buffer(self._next - -(-nbytes // 4096) * 4096, nbytes)

    def allocate_pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """See `Device`."""
        if nbytes < _PAYLOAD_NBYTES:
            return np.empty(nbytes, np.uint8)
        return self._pinned[:nbytes]

    def empty(self, shape: tuple[int, ...], dtype: Any) -> _Result:
        """See `Device`."""
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return _Result(shape, dtype, self.allocate(nbytes).address)

    def current_stream(self) -> int:
        """See `Device`."""
        return 0

    def create_stream(self) -> int:
        """See `Device`."""
        return next(self._streams)

    def release_stream(self, stream: int) -> None:
        """Streams are not reused."""

    def upload(self, address: int, data: NDArray[np.uint8], stream: int) -> None:
        """See `Device`."""
        self._library.held.gs_upload(address, 0, data.nbytes, stream)

    def download(self, data: NDArray[np.uint8], address: int, stream: int) -> None:
        """See `Device`."""
        del address
        data[:] = 0  # of statuses: all is well
        self._library.held.gs_work(stream, 0.0)

    def launch(self, kernel: str, _grid: Any, _parameters: Any, stream: int) -> None:
        """See `Device`."""
        seconds = _SCATTER_S if "scatter" in kernel else _KERNEL_S
        self._library.held.gs_work(stream, seconds)

    def record(self, stream: int) -> _Event:
        """See `Device`."""
        event = self.create_event()
        self._library.held.gs_record(event.handle, stream)
        return event

    def await_event(self, stream: int, event: Any) -> None:
        """See `Device`."""
        self._library.held.gs_await(stream, event.handle)

    def limit_waits(
        self, stream: int, limit_s: float | None, entries: Sequence[Any]
    ) -> None:
        """Set no limit: all work ends."""

    def keep(self, *things: Any) -> None:
        """Keep nothing: the device is never given up."""

    def wait(self, event: Any) -> None:
        """See `Device`."""
        self._library.free.gs_wait(event.handle)

    def wait_for(self, stream: int) -> None:
        """See `Device`."""
        self._library.free.gs_wait_for(stream)


@contextmanager
def simulated_files(library: Library) -> Iterator[None]:
    """Files that take as long to relay as they are said to take."""
    address = library.address("pread")
    with (
        mock.patch.object(relayed, "pread_address", return_value=address),
        mock.patch.object(relayed, "usable_cpu_count", return_value=_N_CPUS),
    ):
        yield


def timed(read: Callable[[], object], n: int) -> list[float]:
    """Seconds of each of `n` calls, after two that are not timed."""
    seconds: list[float] = []
    for _ in range(n + 2):
        began = perf_counter()
        read()
        seconds.append(perf_counter() - began)
    return seconds[2:]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.simulated",
        description="Time whole reads to a GPU that only takes time.",
    )
    add = parser.add_argument
    add("--dir", type=Path, required=True, help="where arrays are kept")
    add("--codec", choices=CODECS, default="zstd")
    add("--gib", type=float, default=1.0, help="decoded GiB of the array")
    add("--inner", type=int, default=64 << 10, help="bytes of an inner chunk")
    add("--bus", type=float, default=52e9, help="bytes a second of a copy")
    add("--decoder", type=float, default=66e9, help="decoded bytes a second")
    add("--read", type=float, default=8.5e9, help="bytes a second that a thread reads")
    add("--limit", type=int, default=8 * GIB, help="memory_limit")
    add("-n", type=int, default=7, help="reads that are timed")
    return parser


def _lacking() -> str:
    """What a simulation needs and is not installed; empty if nothing is."""
    if shutil.which("cc") is None:
        return "there is no C compiler (cc)"
    if find_spec("numba") is None:
        return "files are relayed by compiled loops; run: pip install 'gpushard[fast]'"
    try:
        load_nvcomp()
    except UnsupportedError as error:
        return str(error)
    return ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rate of a read, and when the GPU had nothing to do during the last."""
    parser = _parser()
    given = parser.parse_args(arguments)
    refused = _lacking()
    if refused:
        parser.error(refused)
    layout = Layout.of(SIZES["short"], given.codec, given.inner, int(given.gib * GIB))
    path = store(layout, given.dir).path
    with tempfile.TemporaryDirectory() as directory:
        library = compiled(Path(directory))
        library.number("bus").value = given.bus
        library.number("read").value = given.read
        decoder = _Decoder(library, given.inner, given.decoder)
        device: Any = SimulatedDevice(library, decoder)
        options = Options(
            placement="device",
            memory_limit=given.limit,
            threads=_N_CPUS,
            compile_nbytes=0,
        )
        a = open_array(path, device=device, options=options)
        out = device.empty(layout.shape, a.dtype)
        with simulated_files(library):
            seconds = timed(lambda: a.read(out=out), given.n)
            began = perf_counter()
            a.read(out=out)
        write = sys.stdout.write
        median = float(np.median(seconds))
        write(f"{layout.nbytes / median / 1e9:.1f} GB/s of decoded bytes (median)\n")
        is_decoded = given.codec != "none"
        what = "the GPU" if is_decoded else "the bus"
        for first, last in library.gaps(of_gpu=is_decoded):
            start = max(first - began, 0.0)
            if last - began - start > _LONG_S:
                where = f"{1e3 * start:.1f} to {1e3 * (last - began):.1f} ms"
                write(f"{what} has nothing to do from {where}\n")


if __name__ == "__main__":
    main()

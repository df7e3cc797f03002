"""A CUDA device, through CuPy: its allocator, its streams, its NVRTC.

CuPy is imported here and nowhere else. Nothing waits for the whole device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, partial
from importlib.util import find_spec
from math import prod
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.base import (
    DeviceBuffer,
    Event,
    Grid,
    RowCopy,
    Stream,
    StreamDecoder,
)
from gpushard.devices.kernels import (
    KernelSource,
    cache_directory,
    keep_file,
    load_kernel_sources,
    nvrtc_options,
    threads_of,
)
from gpushard.devices.nvcomp import load_nvcomp
from gpushard.devices.placement import RATES
from gpushard.errors import DeviceError, DeviceMemoryError, UnsupportedError

OLDEST_CAPABILITY = (7, 5)
"""Oldest compute capability that the kernels are compiled for and nvCOMP 6 runs on."""

_HOST_TO_DEVICE, _DEVICE_TO_HOST, _ON_DEVICE = 1, 2, 3
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation and CUDA_ERROR_OUT_OF_MEMORY alike


class CudaDevice:
    """One CUDA device.

    Parameters
    ----------
    ordinal
        Number of the device.

    Raises
    ------
    UnsupportedError
        CuPy or nvCOMP is not installed, there is no such device, or it is too old.
    """

    def __init__(self, ordinal: int = 0) -> None:
        try:
            import cupy  # pyright: ignore[reportMissingImports]  only where a GPU is
        except ImportError as error:
            raise UnsupportedError(
                f"CuPy cannot be imported ({error})",
                hint="install gpushard[cuda12] or gpushard[cuda13]",
            ) from error
        self._cupy: Any = cupy
        self._runtime: Any = cupy.cuda.runtime
        try:
            n_devices = self._runtime.getDeviceCount()
        except self._runtime.CUDARuntimeError as error:
            raise UnsupportedError(
                f"CUDA finds no usable device ({error})",
                hint="check the driver with nvidia-smi",
            ) from error
        if ordinal >= n_devices:
            raise UnsupportedError(
                f"there is no CUDA device {ordinal}",
                expected=f"a number below {n_devices}",
                got=ordinal,
            )
        self.ordinal = ordinal
        self.label = f"cuda:{ordinal}"
        self._device: Any = cupy.cuda.Device(ordinal)
        if self._capability < OLDEST_CAPABILITY:
            raise UnsupportedError(
                f"{self.label} is of an architecture too old",
                expected="compute capability {}.{} or later".format(*OLDEST_CAPABILITY),
                got="{}.{}".format(*self._capability),
            )
        self.decoder: StreamDecoder = load_nvcomp()
        self._streams: dict[int, Any] = {}
        self._idle_streams: list[Stream] = []
        self._modules: dict[str, Any] = {}
        self._functions: dict[str, Any] = {}
        self._broken_by = ""
        self.rates = RATES

    def check(self) -> None:
        """Do nothing on a device that can be used.

        Raises
        ------
        DeviceError
            Its context is lost: every call of this process fails from then on.
        """
        if self._broken_by:
            raise DeviceError(
                f"{self.label} cannot be used any more, it failed before",
                got=self._broken_by,
                hint="start a new process",
            )

    def free_nbytes(self) -> int:
        """Memory that is free on the device, in bytes."""
        with self._device:
            free, _ = self._runtime.memGetInfo()
            return int(free)

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """Memory from CuPy's current allocator; see `Device`."""
        with self._device, self._failures():
            return _Buffer(self._cupy.cuda.alloc(nbytes), nbytes)

    def allocate_pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Pinned host memory: uint8, shape (nbytes,); see `Device`."""
        with self._device, self._failures():
            memory = self._cupy.cuda.alloc_pinned_memory(nbytes)
        return np.frombuffer(memory, np.uint8, nbytes)

    def create_stream(self) -> Stream:
        """One that does not wait for the default stream: given back before, or new."""
        with suppress(IndexError):  # two threads may look at the last one
            return self._idle_streams.pop()
        with self._device, self._failures():
            stream = self._cupy.cuda.Stream(non_blocking=True)
        self._streams[stream.ptr] = stream
        return int(stream.ptr)

    def release_stream(self, stream: Stream) -> None:
        """Take back a stream on which nothing is under way; another caller gets it."""
        self._idle_streams.append(stream)

    def upload(self, address: int, data: NDArray[np.uint8], stream: Stream) -> None:
        """Copy pinned host memory to the device, on `stream`."""
        self._copy(address, data.ctypes.data, data.nbytes, _HOST_TO_DEVICE, stream)

    def download(self, data: NDArray[np.uint8], address: int, stream: Stream) -> None:
        """Copy device memory to pinned host memory, on `stream`."""
        self._copy(data.ctypes.data, address, data.nbytes, _DEVICE_TO_HOST, stream)

    def copy(self, address: int, source: int, nbytes: int, stream: Stream) -> None:
        """Copy device memory at `source` to `address`, on `stream`."""
        self._copy(address, source, nbytes, _ON_DEVICE, stream)

    def copy_rows(self, rows: RowCopy, stream: Stream) -> None:
        """Copy rows of device memory to other places there, on `stream`."""
        with self._device, self._failures():
            self._runtime.memcpy2DAsync(*rows, _ON_DEVICE, stream)

    def _copy(self, to: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        with self._device, self._failures():
            self._runtime.memcpyAsync(to, source, nbytes, kind, stream)

    def clear(self, address: int, nbytes: int, stream: Stream) -> None:
        """Set device memory to zero, on `stream`."""
        with self._device, self._failures():
            self._runtime.memsetAsync(address, 0, nbytes, stream)

    def launch(
        self, kernel: str, grid: Grid, parameters: Sequence[Any], stream: Stream
    ) -> None:
        """Run a kernel over `grid` blocks, on `stream`; compiled when first used."""
        values = [np.asarray(parameter) for parameter in parameters]
        pointers = (ctypes.c_void_p * len(values))(*(v.ctypes.data for v in values))
        with self._device, self._failures():
            self._cupy.cuda.driver.launchKernel(
                self._function(kernel).ptr,
                *(*grid, 1),
                *(threads_of(kernel), 1, 1),
                0,
                stream,
                ctypes.addressof(pointers),
                0,
            )

    def record(self, stream: Stream) -> Event:
        """Event that is done when all work queued on `stream` so far is."""
        with self._device, self._failures():
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record(self._stream(stream))
            return event

    def await_event(self, stream: Stream, event: Event) -> None:
        """Let what is queued on `stream` from here on wait for `event`."""
        with self._device, self._failures():
            self._stream(stream).wait_event(event)

    def wait(self, event: Event) -> None:
        """Let the host wait until `event` is done.

        Raises
        ------
        DeviceError
            Work on the device failed; the device cannot be used any more.
        """
        done: Any = event
        with self._device, self._failures():
            done.synchronize()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """cupy.ndarray of `shape`, its content undefined.

        Raises
        ------
        UnsupportedError
            CuPy has no such data type.
        DeviceMemoryError
            There is not so much memory.
        """
        try:
            with self._device, self._failures():
                return self._cupy.empty(shape, dtype)
        except (TypeError, ValueError) as error:
            raise UnsupportedError(
                f"CuPy has no arrays of {dtype} ({error})",
                hint="read with dtype= another type, or with device='cpu'",
            ) from error

    def view(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Any
    ) -> Any:
        """cupy.ndarray over memory of `owner`."""
        nbytes = prod(shape) * dtype.itemsize
        memory = self._cupy.cuda.UnownedMemory(address, nbytes, owner, self.ordinal)
        pointer = self._cupy.cuda.MemoryPointer(memory, 0)
        return self._cupy.ndarray(shape, dtype, pointer)

    def current_stream(self) -> Stream:
        """CuPy's current stream."""
        with self._device:
            return int(self._cupy.cuda.get_current_stream().ptr)

    def _stream(self, stream: Stream) -> Any:
        return self._streams.get(stream) or self._cupy.cuda.ExternalStream(stream)

    def _failures(self) -> _Failures:
        return _Failures(self)

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What CuPy raises when the driver refuses something."""
        return (
            self._runtime.CUDARuntimeError,
            self._cupy.cuda.driver.CUDADriverError,
            self._cupy.cuda.memory.OutOfMemoryError,
        )

    def failure(self, error: Exception) -> DeviceError:
        """What one of `errors` is to the reader; notes whether the context is lost."""
        memory: Any = self._cupy.cuda.memory
        is_memory = getattr(error, "status", None) == _OUT_OF_MEMORY
        if is_memory or isinstance(error, memory.OutOfMemoryError):
            return DeviceMemoryError(
                f"{self.label} has not enough memory ({error})",
                hint="lower memory_limit, or read a smaller selection",
            )
        if not self._broken_by and self._is_broken():
            self._broken_by = str(error)
        hint = "start a new process" if self._broken_by else None
        return DeviceError(f"{self.label} failed: {error}", hint=hint)

    def _is_broken(self) -> bool:
        """Whether calls fail that cannot: such an error stays for good."""
        try:
            self.free_nbytes()
        except self._runtime.CUDARuntimeError:
            return True
        return False

    @cached_property
    def _capability(self) -> tuple[int, int]:
        text = str(self._device.compute_capability)
        return int(text[:-1]), int(text[-1])

    def _function(self, kernel: str) -> Any:
        function = self._functions.get(kernel)
        if function is None:
            source = load_kernel_sources()[kernel]
            module = self._modules.get(source.name)
            if module is None:
                module = self._cupy.cuda.function.Module()
                module.load(self._cubin(source))
                self._modules[source.name] = module
            function = self._functions[kernel] = module.get_function(kernel)
        return function

    def _cubin(self, source: KernelSource) -> bytes:
        """Compiled source, from the disk if it was compiled before."""
        nvrtc: Any = self._cupy.cuda.nvrtc
        version = ".".join(map(str, nvrtc.getVersion()))
        major, minor = self._capability
        name = f"{source.digest}-sm{major}{minor}-nvrtc{version}.cubin"
        kept = cache_directory() / name
        if kept.is_file():
            return kept.read_bytes()
        cubin = self._compile(source)
        keep_file(kept, cubin)
        return cubin

    def _compile(self, source: KernelSource) -> bytes:
        nvrtc: Any = self._cupy.cuda.nvrtc
        program = nvrtc.createProgram(
            source.text,
            source.name,
            list(source.headers.values()),
            list(source.headers),
        )
        try:
            nvrtc.compileProgram(program, nvrtc_options(self._capability))
            return nvrtc.getCUBIN(program)
        except nvrtc.NVRTCError as error:
            raise DeviceError(
                f"{source.name} does not compile for {self.label}",
                got=nvrtc.getProgramLog(program)[-500:],
            ) from error
        finally:
            nvrtc.destroyProgram(program)


class _Buffer:
    """Memory of CuPy's allocator."""

    def __init__(self, memory: Any, nbytes: int) -> None:
        self._memory = memory
        self.address = int(memory.ptr)
        self.nbytes = nbytes


class _Failures:
    """Turns what CuPy raises into the error tree."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, self._device.errors):
            raise self._device.failure(error) from error


def cuda_facts() -> dict[str, str]:
    """Driver, runtime and GPUs as CuPy sees them, or why it sees none."""
    if find_spec("cupy") is None:
        return {"driver": "unknown without CuPy"}
    try:
        import cupy  # pyright: ignore[reportMissingImports]  only where a GPU is

        runtime: Any = cupy.cuda.runtime
        return {
            "driver": _version_text(runtime.driverGetVersion()),
            "runtime": _version_text(runtime.runtimeGetVersion()),
            **dict(
                map(partial(_device_fact, runtime), range(runtime.getDeviceCount()))
            ),
        }
    except Exception as error:  # noqa: BLE001 - a diagnosis tells of any failure
        return {"driver": f"none that works ({error})"}


def _device_fact(runtime: Any, ordinal: int) -> tuple[str, str]:
    properties: Any = runtime.getDeviceProperties(ordinal)
    capability = f"{properties['major']}.{properties['minor']}"
    nbytes = properties["totalGlobalMem"]
    name = properties["name"].decode()
    return f"cuda:{ordinal}", f"{name}, sm {capability}, {nbytes:,} bytes"


def _version_text(number: int) -> str:
    """12080 is 12.8."""
    return f"{number // 1000}.{number % 1000 // 10}"

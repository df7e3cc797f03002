"""A CUDA device, used through CuPy: its allocator, its streams and its NVRTC.

Only this module and `cuda_facts` import CuPy. CuPy's functions take Python integers,
not NumPy ones. Nothing waits for the whole device, and waits for batches have an end.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.base import (
    Copier,
    DeviceBuffer,
    Event,
    Grid,
    RowCopy,
    Stream,
)
from gpushard.devices.cuda_copies import CudaCopier, copy_calls, query_calls
from gpushard.devices.cuda_current import CurrentDevice
from gpushard.devices.cuda_facts import version_text
from gpushard.devices.cuda_modules import CudaModules, architecture_for
from gpushard.devices.endless import Endless, PooledBuffer
from gpushard.devices.kernels import threads_of
from gpushard.devices.nvcomp import INSTALL_HINT, Nvcomp, load_nvcomp
from gpushard.devices.pinned import PinnedPieces
from gpushard.devices.placement import RATES, Rates
from gpushard.devices.rates import kept_rates
from gpushard.devices.waiting import RecordedEvent, Waits
from gpushard.errors import DeviceError, DeviceMemoryError, UnsupportedError

OLDEST_CAPABILITY = (7, 5)
"""Oldest compute capability for which the kernels are compiled and nvCOMP 6 runs."""

_HOST_TO_DEVICE, _DEVICE_TO_HOST, _ON_DEVICE = 1, 2, 3
_PORTABLE = 1  # cudaHostAllocPortable: pinned for all devices
_OUT_OF_MEMORY = 2  # of cudaErrorMemoryAllocation and of CUDA_ERROR_OUT_OF_MEMORY
_OF_CAPTURES = range(900, 909)  # cudaErrorStreamCaptureUnsupported and those behind it


class CudaDevice:
    """The CUDA device with number `ordinal`.

    Raises `UnsupportedError` if CuPy, NVRTC or nvCOMP is not installed, or if the
    device does not exist, is too old, or is too new for this NVRTC.
    """

    def __init__(self, ordinal: int = 0) -> None:
        try:
            import cupy  # only where a GPU is
        except ImportError as error:
            raise UnsupportedError(
                f"CuPy cannot be imported ({error})",
                hint=INSTALL_HINT,
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
        architecture = self._architecture()
        self.decoder = self._nvcomp().within(self._current)
        self._modules = CudaModules(cupy.cuda, architecture, self.label)
        self._streams: list[Any] = []  # keeps them alive: a dropped stream is destroyed
        self._idle_streams: list[Stream] = []
        self._broken_by = ""
        self._endless = Endless()
        self._pinned = PinnedPieces(self._pin, self._endless)
        self._rates: Mapping[str, Rates] | None = None
        self.copier: Copier | None = self._find_copier()
        with self._current():
            self._waits = Waits(
                self._runtime, query_calls(), self.label, self.check, self._give_up
            )
        with self._current():  # for allocations only
            self._own_stream: Any = cupy.cuda.Stream(non_blocking=True)

    def _architecture(self) -> tuple[int, int]:
        """Architecture to compile for; raises if CuPy finds no NVRTC that knows one."""
        nvrtc = self._cupy.cuda.nvrtc
        try:
            nvrtc.getVersion()
        except (RuntimeError, OSError) as error:  # of what looks for the library
            why = str(error).partition("\n")[0]
            raise UnsupportedError(
                f"CuPy finds no NVRTC ({why})",
                hint=INSTALL_HINT,
            ) from error
        return architecture_for(nvrtc, self._capability)

    def _nvcomp(self) -> Nvcomp:
        """nvCOMP; raises if the driver is too old for it, as each call would fail."""
        library, newest = load_nvcomp(), self._runtime.driverGetVersion()
        if newest // 1000 < library.cuda_major:
            raise UnsupportedError(
                f"{library.path} is for a newer driver",
                expected=f"a driver for CUDA {library.cuda_major}",
                got=f"one for CUDA {version_text(newest)}",
                hint="run: pip install 'gpushard[cuda12]', or install a newer driver",
            )
        return library

    @property
    def model(self) -> str:
        """Model of the device and its decoder: "NVIDIA H200, nvCOMP 6.0.0"."""
        with self._current():
            properties = self._runtime.getDeviceProperties(self.ordinal)
        return f"{properties['name'].decode()}, {self.decoder.label}"

    @property
    def rates(self) -> Mapping[str, Rates]:
        """Rates measured for this model, or else the defaults; see `Device`."""
        if self._rates is None:
            self._rates = kept_rates(self.model) or RATES
        return self._rates

    def _find_copier(self) -> CudaCopier | None:
        with self._current():
            self._make_context()
            calls = copy_calls()
        if calls is None:
            return None
        return CudaCopier(calls, self._blocking_event, self._failed)

    def _blocking_event(self) -> Any:
        with self._current():
            return self._cupy.cuda.Event(block=True, disable_timing=True)

    def _failed(self, status: int) -> DeviceError:
        return self.failure(self._cupy.cuda.driver.CUDADriverError(status))

    def _give_up(self, why: str) -> None:
        # Whoever finds the device broken drops memory, which is to be kept by then.
        self._endless.begin(self)
        self._broken_by = why

    def keep(self, *things: Any) -> None:
        """Keep things that work without an end may use; see `Device`."""
        self._endless.keep(*things)

    def check(self) -> None:
        """Raise if the device cannot be used any more; see `Device`."""
        if self._broken_by:
            raise DeviceError(
                f"{self.label} cannot be used any more because it failed before",
                got=self._broken_by,
                hint="start a new process",
            )

    def free_nbytes(self) -> int:
        """Memory that is free on the device, in bytes."""
        with self._current():
            free, _ = self._runtime.memGetInfo()
            return int(free)

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """Memory from CuPy's current allocator; see `Device`."""
        # An allocator reuses memory at once for the stream that freed it. Other streams
        # may have to wait. No other work uses this stream.
        with self._current(), self._own_stream:
            memory = self._cupy.cuda.alloc(nbytes)
        buffer = PooledBuffer(memory, nbytes, self._endless)
        self.wait_for(int(self._own_stream.ptr))
        return buffer

    def allocate_pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Pinned host memory: uint8, shape (nbytes,); see `Device`."""
        self.check()
        array = self._pinned.take(nbytes)
        if array is None:
            with self._current():
                array = self._waits.beside(partial(self._pinned.make, nbytes))
        return array

    def _pin(self, nbytes: int) -> Any:
        cuda = self._cupy.cuda
        with self._current():
            return cuda.PinnedMemoryPointer(cuda.PinnedMemory(nbytes, _PORTABLE), 0)

    def create_stream(self) -> Stream:
        """A stream that does not wait for the default stream: reused, or new."""
        with suppress(IndexError):  # another thread may take the last one first
            return self._idle_streams.pop()
        with self._current():
            stream = self._cupy.cuda.Stream(non_blocking=True)
        self._streams.append(stream)
        return int(stream.ptr)

    def release_stream(self, stream: Stream) -> None:
        """Take back a stream on which nothing is under way; another caller gets it."""
        self._waits.forget(stream)
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
        with self._current():
            self._runtime.memcpy2DAsync(*rows, _ON_DEVICE, stream)

    def _copy(self, to: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        with self._current():
            self._runtime.memcpyAsync(to, source, nbytes, kind, stream)

    def launch(
        self, kernel: str, grid: Grid, parameters: Sequence[Any], stream: Stream
    ) -> None:
        """Run a kernel over `grid` blocks on `stream`; it is compiled on first use."""
        values = [parameter.tobytes() for parameter in parameters]
        pointers = (ctypes.c_char_p * len(values))(*values)
        function = self._modules.known(kernel) or self._loaded(kernel)
        with self._current():
            self._make_context()
            self._cupy.cuda.driver.launchKernel(
                function,
                *(*grid, 1),
                *(threads_of(kernel), 1, 1),
                0,
                stream,
                ctypes.addressof(pointers),
                0,
            )

    def _loaded(self, kernel: str) -> int:
        def load() -> int:
            with self._current():
                self._make_context()
                return self._modules.function(kernel)

        with self._current():
            return self._waits.beside(load)

    def record(self, stream: Stream) -> Event:
        """Event that is done when all work queued on `stream` so far is."""
        with self._current():
            event = self._cupy.cuda.Event(disable_timing=True)
            self._runtime.eventRecord(event.ptr, stream)
            return RecordedEvent(event, stream)

    def await_event(self, stream: Stream, event: Event) -> None:
        """Make work queued on `stream` from now on wait for `event`."""
        recorded: Any = event
        with self._current():
            self._runtime.streamWaitEvent(stream, recorded.event.ptr)

    def limit_waits(
        self, stream: Stream, limit_s: float | None, entries: Sequence[Event]
    ) -> None:
        """Limit waits for `stream`; see `Device`."""
        self._waits.limit(stream, limit_s, entries)

    def wait(self, event: Event) -> None:
        """Block the host until `event` is done; see `Device`."""
        with self._current():
            self._waits.wait(event)

    def wait_for(self, stream: Stream) -> None:
        """Block the host until all work on `stream` is done; see `Device`."""
        with self._current():
            self._waits.wait_for(stream)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """cupy.ndarray of `shape`, content undefined; see `Device`."""
        try:
            with self._current():
                return self._cupy.empty(shape, dtype)
        except (TypeError, ValueError) as error:
            raise UnsupportedError(
                f"CuPy has no arrays of {dtype} ({error})",
                hint="read with dtype= another type, or with device='cpu'",
            ) from error

    def view(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Any
    ) -> Any:
        """cupy.ndarray over memory that `owner` holds."""
        nbytes = prod(shape) * dtype.itemsize
        memory = self._cupy.cuda.UnownedMemory(address, nbytes, owner, self.ordinal)
        pointer = self._cupy.cuda.MemoryPointer(memory, 0)
        return self._cupy.ndarray(shape, dtype, pointer)

    def adopt(self, array: Any) -> Any:
        """cupy.ndarray over an array that exports DLPack; see `Device`."""
        try:
            with self._current():
                return self._cupy.from_dlpack(array)
        except (BufferError, TypeError, ValueError, RuntimeError) as error:
            raise UnsupportedError(
                f"CuPy does not take out= by DLPack ({error})",
                got=type(array).__name__,
            ) from error

    def current_stream(self) -> Stream:
        """CuPy's current stream."""
        with self._current():
            return int(self._cupy.cuda.get_current_stream().ptr)

    def _current(self) -> CurrentDevice:
        """Make this the thread's device, and turn CuPy's errors into gpushard's."""
        return CurrentDevice(self, self._device, self._runtime)

    def _make_context(self) -> None:
        """Make the context that the driver's functions want of the thread.

        Unlike the runtime, the driver makes none for a new thread.
        """
        self._runtime.setDevice(self.ordinal)

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Exceptions that CuPy raises when the driver refuses a call."""
        return (
            self._runtime.CUDARuntimeError,
            self._cupy.cuda.driver.CUDADriverError,
            self._cupy.cuda.memory.OutOfMemoryError,
        )

    def failure(self, error: Exception) -> DeviceError:
        """Error of gpushard for one of `errors`; notes whether the context is lost."""
        memory: Any = self._cupy.cuda.memory
        status = getattr(error, "status", None)
        if status in _OF_CAPTURES:
            return DeviceError(
                f"{self.label} failed: {error}",
                hint="call gpushard before a CUDA graph is captured, or afterwards",
            )
        if status == _OUT_OF_MEMORY or isinstance(error, memory.OutOfMemoryError):
            return DeviceMemoryError(
                f"{self.label} has not enough memory ({error})",
                hint="lower memory_limit, or read a smaller selection",
            )
        if not self._broken_by and self._is_broken():
            self._broken_by = str(error)
        hint = "start a new process" if self._broken_by else None
        return DeviceError(f"{self.label} failed: {error}", hint=hint)

    def _is_broken(self) -> bool:
        """Whether even a harmless call fails: such an error is permanent."""
        try:
            with self._device:
                self._runtime.memGetInfo()
        except self._runtime.CUDARuntimeError:
            return True
        return False

    @cached_property
    def _capability(self) -> tuple[int, int]:
        text = str(self._device.compute_capability)
        return int(text[:-1]), int(text[-1])

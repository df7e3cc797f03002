"""``runtime``, ``driver`` and ``nvrtc`` of the stand-in for ``cupy.cuda``."""

from __future__ import annotations

import ctypes
import inspect
import weakref
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from cuda_host.device import MAX_GRID
from gpushard.devices.base import RowCopy

if TYPE_CHECKING:
    from cuda_host.cupy_standin import Cupy
    from cuda_host.device import EmulatedDevice

EVENTS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
FUNCTIONS: dict[int, tuple[weakref.ref[Any], str]] = {}


class CUDARuntimeError(RuntimeError):
    """An error of the runtime."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class CUDADriverError(RuntimeError):
    """An error of the driver, which is none of the runtime."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA_ERROR {status}")
        self.status = status


class OutOfMemoryError(MemoryError):
    """A pool has no memory left."""


class NVRTCError(RuntimeError):
    """Something does not compile."""


def strict(function: Callable[..., Any]) -> Callable[..., Any]:
    """As Cython converts: a parameter that is annotated takes that type only."""
    kinds = {"int": int, "str": str, "bytes": bytes}
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: Any, **how: Any) -> Any:
        for name, value in signature.bind(*args, **how).arguments.items():
            kind = kinds.get(signature.parameters[name].annotation)
            if kind is not None and type(value) is not kind:
                raise TypeError(f"{name}: an {kind.__name__} is required: {value!r}")
        return function(*args, **how)

    return call


class Runtime:
    """``cupy.cuda.runtime``."""

    CUDARuntimeError = CUDARuntimeError

    def __init__(self, cupy: Cupy) -> None:
        self._cupy = cupy

    def check_captures(self, call: str) -> None:
        if self._cupy.captures.refuse(call):
            raise CUDARuntimeError(900)  # cudaErrorStreamCaptureUnsupported

    def getDeviceCount(self) -> int:
        return len(self._cupy.devices)

    def getDevice(self) -> int:
        return self._cupy.thread.device

    @strict
    def setDevice(self, device: int) -> None:
        self._cupy.thread.device = device
        self._cupy.thread.contexts.add(device)
        self._cupy.contexts.add(device)

    @strict
    def getDeviceProperties(self, device: int) -> dict[str, Any]:
        return {"name": b"A GPU", "major": 9, "minor": 0, "totalGlobalMem": 1 << 30}

    def driverGetVersion(self) -> int:
        return 13010

    def runtimeGetVersion(self) -> int:
        return 13010

    def memGetInfo(self) -> tuple[int, int]:
        self.check_captures("cudaMemGetInfo")
        device = self._cupy.current
        return device.free_nbytes(), device.limit_nbytes

    @strict
    def memcpyAsync(
        self, dst: int, src: int, size: int, kind: int, stream: int
    ) -> None:
        device, queue = self._cupy.queue(stream)
        on_device = {1: (dst,), 2: (src,), 3: (dst, src)}[kind]
        on_host = {1: src, 2: dst}.get(kind)
        pinned = None if on_host is None else self._pinned(on_host, size)
        data = None  # of pageable memory the driver takes a copy before it returns
        if on_host is not None and pinned is None:
            assert kind == 1, "copies to pageable memory are not waited for here"
            data = ctypes.string_at(src, size)

        def run() -> None:
            assert all(device.holds(address, size) for address in on_device)
            assert pinned is None or pinned() is not None, "given back before its copy"
            ctypes.memmove(dst, src if data is None else data, size)

        device.queue(queue, ("", "upload", "download", "copy")[kind], str(size), run)

    def _pinned(self, address: int, nbytes: int) -> weakref.ref[Any] | None:
        with self._cupy.lock:
            pieces = list(self._cupy.pinned.items())
        for start, room in pieces:
            if start <= address and address + nbytes <= start + len(room):
                return weakref.ref(room)
        return None

    @strict
    def memcpy2DAsync(
        self,
        dst: int,
        dpitch: int,
        src: int,
        spitch: int,
        width: int,
        height: int,
        kind: int,
        stream: int,
    ) -> None:
        assert kind == 3
        device, queue = self._cupy.queue(stream)
        device.copy_rows(RowCopy(dst, dpitch, src, spitch, width, height), queue)

    @strict
    def eventRecord(self, event: int, stream: int) -> None:
        device, queue = self._cupy.queue(stream)
        if EVENTS[event].device is not device:
            raise CUDARuntimeError(400)  # cudaErrorInvalidResourceHandle
        EVENTS[event].marker = device.record(queue)

    @strict
    def streamSynchronize(self, stream: int) -> None:
        device, queue = self._cupy.queue(stream)
        device.wait_for(queue)

    @strict
    def streamQuery(self, stream: int) -> int:
        self.check_captures("cudaStreamQuery")
        device, queue = self._cupy.queue(stream)
        return self._asked(device, lambda: not device.is_under_way(queue))

    @strict
    def eventQuery(self, event: int) -> int:
        self.check_captures("cudaEventQuery")
        found = EVENTS[event]
        marker = found.marker
        return self._asked(found.device, lambda: marker is None or marker.done)

    def _asked(self, device: EmulatedDevice, is_done: Callable[[], bool]) -> int:
        """Status: an operation of the device runs for each question."""
        if not is_done():
            device.run_one()
        return 0 if is_done() else 600

    @strict
    def streamWaitEvent(self, stream: int, event: int, flags: int = 0) -> None:
        device, queue = self._cupy.queue(stream)
        device.await_event(queue, EVENTS[event].marker)


class Driver:
    """``cupy.cuda.driver``."""

    CUDADriverError = CUDADriverError

    def __init__(self, cupy: Cupy) -> None:
        self._cupy = cupy

    @strict
    def launchKernel(
        self,
        f: int,
        grid_dim_x: int,
        grid_dim_y: int,
        grid_dim_z: int,
        block_dim_x: int,
        block_dim_y: int,
        block_dim_z: int,
        shared_mem_bytes: int,
        stream: int,
        kernel_params: int,
        extra: int,
    ) -> None:
        device, queue = self._cupy.queue(stream)
        if self._cupy.thread.device not in self._cupy.thread.contexts:
            raise CUDADriverError(201)  # CUDA_ERROR_INVALID_CONTEXT
        module, kernel = FUNCTIONS[f]
        assert module().device is device, "the module was loaded on another device"
        sizes = device.kernels.parameter_sizes(kernel)
        # The driver copies parameters before it returns.
        where = (ctypes.c_void_p * len(sizes)).from_address(kernel_params)
        values = [
            (ctypes.c_char * n).from_buffer_copy(ctypes.string_at(address, n))
            for address, n in zip(where, sizes, strict=True)
        ]
        assert (grid_dim_z, block_dim_y, block_dim_z, extra) == (1, 1, 1, 0)
        grid = grid_dim_x, grid_dim_y
        if not (0 < grid_dim_x <= MAX_GRID[0] and 0 < grid_dim_y <= MAX_GRID[1]):
            raise CUDADriverError(1)  # CUDA_ERROR_INVALID_VALUE

        def run() -> None:
            device.kernels.launch(
                kernel,
                grid,
                block_dim_x,
                values,
                schedule=device.schedule,
                shared_nbytes=shared_mem_bytes,
            )

        device.queue(queue, "kernel", kernel, run)

    @strict
    def funcGetAttribute(self, attribute: int, f: int) -> int:
        return {0: 1024, 1: 0}[attribute]  # threads in a block, static shared memory


class Nvrtc:
    """``cupy.cuda.nvrtc``, which notes what it compiled with which options."""

    NVRTCError = NVRTCError

    def __init__(self) -> None:
        self.programs: list[Any] = []
        self.compiled: list[tuple[str, tuple[str, ...]]] = []
        self.refuses = self.is_missing = False
        self.architectures = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)

    def getVersion(self) -> tuple[int, int]:
        if self.is_missing:
            raise RuntimeError('Failure finding "libnvrtc.so": No such file\n  listdir')
        return 13, 1

    def getSupportedArchs(self) -> tuple[int, ...]:
        return self.architectures

    @strict
    def createProgram(
        self, src: str, name: str, headers: Any, include_names: Any
    ) -> int:
        for text in (*headers, *include_names):
            if type(text) is not bytes:
                raise TypeError(f"expected bytes, {type(text).__name__} found")
        assert len(headers) == len(include_names)
        self.programs.append(name)
        return len(self.programs)

    @strict
    def compileProgram(self, prog: int, options: Any) -> None:
        assert all(type(option) is str for option in options)
        wanted = next(option for option in options if "gpu-architecture" in option)
        if self.refuses or int(wanted.partition("=sm_")[2]) not in self.architectures:
            raise NVRTCError("NVRTC_ERROR_COMPILATION (6)")
        self.compiled.append((self.programs[prog - 1], tuple(options)))

    @strict
    def getCUBIN(self, prog: int) -> bytes:
        return b"cubin of " + self.programs[prog - 1].encode()

    @strict
    def getProgramLog(self, prog: int) -> str:
        return f"{self.programs[prog - 1]}(1): error"

    @strict
    def destroyProgram(self, prog: int) -> None:
        assert self.programs[prog - 1], "destroyed twice"
        self.programs[prog - 1] = ""

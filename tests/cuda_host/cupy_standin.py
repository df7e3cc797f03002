"""What of CuPy gpushard uses, over emulated devices, as strict as CuPy and its driver.

    cupy = install(monkeypatch, EmulatedDevice(...), EmulatedDevice(...))

Names and parameters are CuPy 14's (`tests/devices/test_cuda_device.py` compares them
with the real ones, where CuPy is installed), and so is what goes wrong:

* integers are Python's own, text is text and bytes are bytes;
* a thread has a current device and, for the driver, a context that only the runtime
  makes; streams, kernels and the vendor's decoder want their own device to be current;
* memory is given again to who asks on the stream that it was let go of on, at once:
  what that stream has queued may still use it;
* pinned memory is remembered by nobody until its copy;
* a capture of a CUDA graph concerns all threads in the mode that they begin with.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from cuda_host.arrays import ForeignBuffer
from cuda_host.captures import Captures
from cuda_host.cupy_calls import (
    EVENTS,
    FUNCTIONS,
    CUDARuntimeError,
    Driver,
    Nvrtc,
    OutOfMemoryError,
    Runtime,
    strict,
)
from gpushard.devices import cuda, find
from gpushard.devices.kernels import load_kernel_sources
from gpushard.devices.nvcomp import Nvcomp

if TYPE_CHECKING:
    from cuda_host.arrays import EmulatedBuffer
    from cuda_host.device import EmulatedDevice

_UNIT = 512  # CuPy's pools give multiples of it
STREAMS_PER_DEVICE = 1 << 20


class _Thread(threading.local):
    device = 0

    def __init__(self) -> None:
        self.devices: list[int] = []
        self.contexts: set[int] = set()
        self.streams: defaultdict[int, list[Any]] = defaultdict(list)


class Cupy:
    """The module's state.

    Attributes
    ----------
    devices
        What it runs on, by ordinal.
    contexts
        Ordinals of the devices that have a context; `setDevice` makes one (CUDA 12).
    pinned
        Address of each piece of pinned memory -> the array, as long as there is one.
    host_nbytes, host_limit_nbytes
        How much memory is pinned, and how much may be.
    is_stream_ordered
        Whether memory may be used at last when the stream that it was asked for on
        gets there (``cudaMallocAsync``).
    """

    def __init__(self, *devices: EmulatedDevice) -> None:
        self.devices = devices
        self.thread = _Thread()
        self.contexts: set[int] = set()
        self.pinned: weakref.WeakValueDictionary[int, Any]
        self.pinned = weakref.WeakValueDictionary()
        self.host_nbytes, self.host_limit_nbytes = 0, 1 << 40
        self.arenas: defaultdict[Any, list[EmulatedBuffer]] = defaultdict(list)
        self.taken: dict[int, EmulatedBuffer] = {}
        self.lock = threading.RLock()
        self.is_stream_ordered = False
        self.captures = Captures()
        self.ended: set[int] = set()
        self.runtime, self.driver = Runtime(self), Driver(self)
        self.nvrtc = Nvrtc()
        made = {
            kind.__name__: type(kind.__name__, (kind,), {"cupy": self})
            for kind in (Device, Stream, Event, Module, PinnedMemory, ndarray)
        }
        self.made = SimpleNamespace(**made)
        self.made.Stream.null = self.made.Stream(null=True)

    def queue(self, handle: int) -> tuple[EmulatedDevice, int]:
        """Device and stream of a handle; the device has to be the current one."""
        if handle < STREAMS_PER_DEVICE:  # the default one: 0, or 1 (cudaStreamLegacy)
            return self.devices[self.thread.device], 0
        ordinal, stream = divmod(handle, STREAMS_PER_DEVICE)
        if ordinal - 1 != self.thread.device or handle in self.ended:
            raise CUDARuntimeError(400)  # cudaErrorInvalidResourceHandle
        return self.devices[ordinal - 1], stream

    def empty(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        dtype = np.dtype(dtype)
        if dtype.kind in "SUMm" or not dtype.isnative:
            raise ValueError(f"Unsupported dtype {dtype}")
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return self.made.ndarray(shape, dtype, self.alloc(nbytes))

    def from_dlpack(self, array: Any) -> Any:
        _, ordinal = array.__dlpack_device__()
        stream = self.thread.streams[ordinal]
        how = {"stream": stream[-1].ptr if stream else 1}
        try:
            return array.__dlpack__(**how, max_version=(1, 0), copy=None)
        except TypeError:  # of exporters that know no versions
            return array.__dlpack__(**how)

    def alloc(self, size: int) -> MemoryPointer:
        self.runtime.check_captures("cudaMalloc")  # if the pool has too little
        stream = self.get_current_stream().ptr
        arena = self.arenas[self.thread.device, stream]
        nbytes = -(-max(size, 1) // _UNIT) * _UNIT
        with self.lock:
            fitting = [i for i, free in enumerate(arena) if free.nbytes >= nbytes]
            buffer = arena.pop(fitting[0]) if fitting else self.current.allocate(nbytes)
            # Of garbage in a circle all is finalised: the pool keeps what it has.
            self.taken[buffer.address] = buffer
        if self.is_stream_ordered:
            self.keep_busy(buffer.address, buffer.nbytes, stream)
        return MemoryPointer(_Pooled(arena, buffer, self.thread.device), 0)

    def keep_busy(self, address: int, nbytes: int, stream: int = 0) -> None:
        """Let something that is queued on a stream still write to memory."""
        device, queue = self.queue(stream)
        junk = bytes([0x77]) * nbytes
        late = partial(ctypes.memmove, address, junk, nbytes)
        device.queue(queue, "kernel", "late", late)

    def host_alloc(self, nbytes: int) -> Any:
        """Memory that the driver pins."""
        self.runtime.check_captures("cudaHostAlloc")
        if self.host_nbytes + nbytes > self.host_limit_nbytes:
            raise CUDARuntimeError(2)  # cudaErrorMemoryAllocation
        room = (ctypes.c_byte * nbytes)()
        self.host_nbytes += nbytes
        weakref.finalize(room, self._host_free, nbytes).atexit = False
        with self.lock:  # others may look for a piece
            self.pinned[ctypes.addressof(room)] = room
        return room

    def _host_free(self, nbytes: int) -> None:
        self.host_nbytes -= nbytes

    def get_current_stream(self, device_id: int = -1) -> Any:
        streams = self.thread.streams[self.thread.device]
        return streams[-1] if streams else self.made.Stream.null

    @property
    def current(self) -> EmulatedDevice:
        return self.devices[self.thread.device]


class Device:
    """``cupy.cuda.Device``."""

    cupy: Cupy

    def __init__(self, device: int | None = None) -> None:
        self.id = self.cupy.thread.device if device is None else device

    @property
    def compute_capability(self) -> str:
        return "90"

    def __enter__(self) -> Self:
        thread = self.cupy.thread
        thread.devices.append(thread.device)
        if thread.device != self.id:
            self.cupy.runtime.setDevice(self.id)
        return self

    def __exit__(self, *_: object) -> None:
        self.cupy.runtime.setDevice(self.cupy.thread.devices.pop())


class Stream:
    """``cupy.cuda.Stream``, whose work is lost once it is dropped."""

    cupy: Cupy
    null: Any = None

    def __init__(
        self,
        null: bool = False,
        non_blocking: bool = False,
        ptds: bool = False,
        priority: int | None = None,
    ) -> None:
        self.ptr = 0
        if not null:
            assert non_blocking, "it would wait for the default stream"
            stream = self.cupy.current.create_stream()
            ordinal = self.cupy.thread.device
            self.ptr = (ordinal + 1) * STREAMS_PER_DEVICE + stream

    def __del__(self) -> None:
        self.cupy.ended.add(self.ptr)

    def __enter__(self) -> Self:
        self.cupy.queue(self.ptr)
        self.cupy.thread.streams[self.cupy.thread.device].append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.cupy.thread.streams[self.cupy.thread.device].pop()

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr


class Event:
    """``cupy.cuda.Event``."""

    cupy: Cupy

    def __init__(
        self,
        block: bool = False,
        disable_timing: bool = False,
        interprocess: bool = False,
    ) -> None:
        self.ptr = id(self)
        self.marker: Any = None
        self.device = self.cupy.current
        EVENTS[self.ptr] = self

    def record(self, stream: Any = None) -> None:
        stream = self.cupy.get_current_stream() if stream is None else stream
        self.cupy.runtime.eventRecord(self.ptr, stream.ptr)

    def synchronize(self) -> None:
        self.device.wait(self.marker)


class Module:
    """``cupy.cuda.function.Module``."""

    cupy: Cupy

    def __init__(self) -> None:
        self._cubin = b""
        self.device = self.cupy.current

    @strict
    def load(self, cubin: bytes) -> None:
        self._cubin = cubin

    def get_function(self, name: str) -> Any:
        source = load_kernel_sources()[name].name
        assert self._cubin == f"cubin of {source}".encode()
        handle = 4096 + len(FUNCTIONS)
        FUNCTIONS[handle] = weakref.ref(self), name
        return SimpleNamespace(ptr=handle, module=self)


class _Pooled:
    """Memory of a pool, back in the arena of its stream when it is dropped."""

    def __init__(
        self, arena: list[EmulatedBuffer], buffer: EmulatedBuffer, device_id: int
    ) -> None:
        self._arena, self._buffer, self.device_id = arena, buffer, device_id
        self.ptr = buffer.address

    def __del__(self) -> None:
        self._arena.append(self._buffer)


class PinnedMemory:
    """``cupy.cuda.PinnedMemory``."""

    cupy: Cupy

    def __init__(self, size: int, flags: int = 0) -> None:
        assert flags == 1, "another device could not use it"
        self.room = self.cupy.host_alloc(size)


def pinned_memory_pointer(mem: PinnedMemory, offset: int) -> Any:
    """``cupy.cuda.PinnedMemoryPointer``, of which only the memory is used."""
    assert offset == 0
    return mem.room


class UnownedMemory:
    """``cupy.cuda.UnownedMemory``."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        assert device_id >= 0, "asks the driver for the device"
        self.ptr, self._owner, self.device_id = ptr, owner, device_id


class MemoryPointer:
    """``cupy.cuda.MemoryPointer``."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset


class ndarray:  # noqa: N801  its name
    """``cupy.ndarray``, in C order."""

    cupy: Cupy

    def __init__(
        self,
        shape: Any,
        dtype: Any = float,
        memptr: Any = None,
        strides: Any = None,
        order: str = "C",
    ) -> None:
        self.shape, self.dtype, self.data = tuple(shape), np.dtype(dtype), memptr
        self._device = self.cupy.devices[memptr.mem.device_id]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "data": (self.data.ptr, False),
            "stream": self.cupy.get_current_stream().ptr or 1,
            "strides": None,
        }

    @property
    def device(self) -> Any:
        return self.cupy.made.Device(self.data.mem.device_id)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device.id

    def get(self) -> np.ndarray[Any, Any]:
        content = ForeignBuffer(self._device, self.data.ptr, self.nbytes).read()
        return content.view(self.dtype).reshape(self.shape)


def install(monkeypatch: Any, *devices: EmulatedDevice) -> Cupy:
    """Let ``import cupy`` and ``device="cuda"`` lead to emulated devices."""
    cupy, module = Cupy(*devices), ModuleType("cupy")
    module.__spec__ = ModuleSpec("cupy", None)
    module.empty, module.from_dlpack = cupy.empty, cupy.from_dlpack
    module.ndarray = cupy.made.ndarray
    module.cuda = SimpleNamespace(
        runtime=cupy.runtime,
        driver=cupy.driver,
        nvrtc=cupy.nvrtc,
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        function=SimpleNamespace(Module=cupy.made.Module),
        Device=cupy.made.Device,
        Stream=cupy.made.Stream,
        Event=cupy.made.Event,
        UnownedMemory=UnownedMemory,
        MemoryPointer=MemoryPointer,
        alloc=cupy.alloc,
        PinnedMemory=cupy.made.PinnedMemory,
        PinnedMemoryPointer=pinned_memory_pointer,
        get_current_stream=cupy.get_current_stream,
    )
    standin = devices[0].standin

    def enqueue(handle: int, work: Callable[[], None]) -> None:
        device, stream = cupy.queue(handle)
        device.queue(stream, "decode", "nvCOMP", work)

    standin.set_enqueue(enqueue)
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(cuda, "load_nvcomp", lambda: Nvcomp(standin.path))
    for asked_once in (find._usable_gpu, find._cuda_device):
        asked_once.cache_clear()
    return cupy

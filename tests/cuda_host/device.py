"""A device that is not there: host memory, the real kernels, and bad manners.

It does what a GPU may do and a reader tends to forget:

* streams are queues that run when somebody waits, in a random order that respects
  nothing but the order within a stream and events;
* its memory cannot be touched outside a copy or a kernel: the pages are protected;
* every allocation is filled with junk, and ends at a page that nobody may touch;
* copies read pinned memory when they run, not when they are queued.
"""

from __future__ import annotations

import ctypes
import mmap
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.nvcomp import Nvcomp
from gpushard.errors import DeviceError

if TYPE_CHECKING:
    from cuda_host.launch import Kernels
    from cuda_host.standin import Standin

PAGE = mmap.PAGESIZE
JUNK = 0xCB
ALIGNMENT = 256
_NONE, _READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Memory:
    """Pages that end at one nobody may touch; readable only while it is `open`."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        room = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        self._room = -(-room // PAGE) * PAGE
        self._map = mmap.mmap(-1, self._room + PAGE)
        self._view = np.frombuffer(self._map, np.uint8)
        self._base = self._view.ctypes.data
        self._view[: self._room] = JUNK
        self.address = self._base + self._room - room
        self.protect(_NONE)
        _protect(self._base + self._room, PAGE, _NONE)

    def protect(self, access: int) -> None:
        _protect(self._base, self._room, access)

    def __del__(self) -> None:
        _protect(self._base, self._room + PAGE, _READ_WRITE)

    def behind(self) -> NDArray[np.uint8]:
        """Bytes between the end of the allocation and the forbidden page."""
        return self._view[self.address - self._base + self.nbytes : self._room]


def _protect(address: int, nbytes: int, access: int) -> None:
    if _libc.mprotect(address, nbytes, access):
        raise OSError(ctypes.get_errno(), "mprotect")


@dataclass(frozen=True)
class Operation:
    """Something queued on a stream."""

    kind: str
    what: str
    run: Callable[[], None]


@dataclass
class Marker:
    """An event: done when its stream has come to it."""

    name: str
    done: bool = False


@dataclass
class EmulatedDevice:
    """See the module. `seed` draws the order in which streams run."""

    kernels: Kernels
    standin: Standin
    seed: int = 0
    schedule: int = 0
    limit_nbytes: int = 1 << 30
    label: str = "emulated:0"
    log: list[tuple[int, str, str]] = field(default_factory=list)
    n_calls: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.standin.set_enqueue(
            lambda stream, work: self.queue(stream, "decode", "nvCOMP", work)
        )
        self.decoder = Nvcomp(self.standin.path)
        self._streams: dict[int, deque[Operation | Marker]] = {0: deque()}
        self._memories: dict[int, Memory] = {}
        self._held_nbytes = 0

    # Memory

    def free_nbytes(self) -> int:
        return self.limit_nbytes - self._held_nbytes

    def allocate(self, nbytes: int) -> EmulatedBuffer:
        self.n_calls += 1
        if nbytes > self.free_nbytes():
            raise DeviceError(
                "the device has not so much memory",
                expected=f"at most {self.free_nbytes()} bytes",
                got=nbytes,
            )
        memory = Memory(nbytes)
        self._memories[memory.address] = memory
        self._held_nbytes += nbytes
        return EmulatedBuffer(self, memory)

    def free(self, memory: Memory) -> None:
        """Give memory back; what is queued must not use it any more."""
        del self._memories[memory.address]
        self._held_nbytes -= memory.nbytes
        memory.protect(_READ_WRITE)
        assert np.all(memory.behind() == JUNK), "written behind an allocation"

    def allocate_pinned(self, nbytes: int) -> NDArray[np.uint8]:
        self.n_calls += 1
        return np.full(nbytes, JUNK, np.uint8)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> EmulatedArray:
        return EmulatedArray(self, shape, dtype)

    def current_stream(self) -> int:
        return 0

    @contextmanager
    def open_memory(self):
        """While a copy or a kernel runs, device memory can be touched."""
        for memory in self._memories.values():
            memory.protect(_READ_WRITE)
        try:
            yield
        finally:
            for memory in self._memories.values():
                memory.protect(_NONE)

    # Streams

    def create_stream(self) -> int:
        self.n_calls += 1
        stream = len(self._streams)
        self._streams[stream] = deque()
        return stream

    def queue(self, stream: int, kind: str, what: str, run: Callable[[], None]) -> None:
        """Let `run` happen on `stream`, some time."""
        self.n_calls += 1
        self._streams[stream].append(Operation(kind, what, run))

    def record(self, stream: int) -> Marker:
        self.n_calls += 1
        marker = Marker(f"after {len(self.log)}")
        self._streams[stream].append(
            Operation("event", "record", lambda: setattr(marker, "done", True))
        )
        return marker

    def await_event(self, stream: int, event: Marker) -> None:
        self.n_calls += 1
        self._streams[stream].append(event)

    def wait(self, event: Marker) -> None:
        self.n_calls += 1
        while not event.done:
            ready = [s for s, queue in self._streams.items() if self._is_ready(queue)]
            assert ready, "a stream waits for an event that never comes"
            self._run_next(self._random.choice(ready))

    def drain(self) -> None:
        """Run all that is queued: what a test does before it looks."""
        while any(self._streams.values()):
            ready = [s for s, queue in self._streams.items() if self._is_ready(queue)]
            assert ready, "streams wait for one another"
            self._run_next(self._random.choice(ready))

    def _is_ready(self, queue: deque[Operation | Marker]) -> bool:
        return bool(queue) and (not isinstance(queue[0], Marker) or queue[0].done)

    def _run_next(self, stream: int) -> None:
        operation = self._streams[stream].popleft()
        if isinstance(operation, Marker):
            return
        with self.open_memory():
            operation.run()
        self.log.append((stream, operation.kind, operation.what))

    # Operations

    def upload(self, address: int, data: NDArray[np.uint8], stream: int) -> None:
        def run() -> None:
            ctypes.memmove(address, data.ctypes.data, data.nbytes)

        self.queue(stream, "upload", str(data.nbytes), run)

    def download(self, data: NDArray[np.uint8], address: int, stream: int) -> None:
        def run() -> None:
            ctypes.memmove(data.ctypes.data, address, data.nbytes)

        self.queue(stream, "download", str(data.nbytes), run)

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        self.queue(
            stream, "clear", str(nbytes), lambda: ctypes.memset(address, 0, nbytes)
        )

    def launch(
        self,
        kernel: str,
        grid: tuple[int, int],
        parameters: Sequence[Any],
        stream: int,
    ) -> None:
        def run() -> None:
            self.kernels.launch(
                kernel,
                grid,
                self.kernels.threads(kernel),
                list(parameters),
                schedule=self.schedule,
            )

        self.queue(stream, "kernel", kernel, run)


class EmulatedBuffer:
    """Memory of an emulated device, given back when it is dropped."""

    def __init__(self, device: EmulatedDevice, memory: Memory) -> None:
        self._device = device
        self._memory = memory
        self.address = memory.address
        self.nbytes = memory.nbytes

    def __del__(self) -> None:
        self._device.free(self._memory)

    def read(self) -> NDArray[np.uint8]:
        """Copy of its content, once all that is queued is done."""
        self._device.drain()
        with self._device.open_memory():
            content = np.empty(self.nbytes, np.uint8)
            ctypes.memmove(content.ctypes.data, self.address, self.nbytes)
        return content


class EmulatedArray:
    """An array in an emulated device's memory, as far as readers care."""

    def __init__(
        self, device: EmulatedDevice, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        n_elements = int(np.prod(shape, dtype=np.int64))
        self.buffer = device.allocate(n_elements * dtype.itemsize)
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (self.buffer.address, False),
            "strides": None,
        }

    def get(self) -> NDArray[Any]:
        """Copy on the host, as CuPy's arrays give."""
        return self.buffer.read().view(self.dtype).reshape(self.shape)

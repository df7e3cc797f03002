"""A device that is not there: host memory, the real kernels, and bad manners.

It does what a GPU may do and a reader tends to forget:

* streams are queues that run when somebody waits, in a random order that respects
  nothing but the order within a stream and events;
* its memory cannot be touched outside a copy or a kernel: the pages are protected;
* every allocation is filled with junk, and ends at a page that nobody may touch;
* copies read pinned memory when they run, not when they are queued, and nobody keeps
  it for them;
* memory runs out when a test says so, and work fails for good.
"""

from __future__ import annotations

import ctypes
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cuda_host.arrays import EmulatedArray, EmulatedBuffer
from cuda_host.memory import JUNK, NONE, READ_WRITE, Memory
from gpushard.devices.base import RowCopy
from gpushard.devices.nvcomp import Nvcomp
from gpushard.devices.placement import RATES, Rates
from gpushard.errors import DeviceError, DeviceMemoryError, UnsupportedError

if TYPE_CHECKING:
    from cuda_host.copier import EmulatedCopier
    from cuda_host.launch import Kernels
    from cuda_host.standin import Standin

MAX_GRID = (1 << 31) - 1, 65535
"""Most blocks along x and y, of every architecture so far."""


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
    """See the module. `seed` draws the order in which streams run.

    `refuses` is told the kind of each call that takes memory ("allocate", "pinned",
    "launch") and its number among all of them; where it says so there is none.
    `breaks` is told each operation's number as it runs; where it says so the device is
    broken, for good.
    """

    kernels: Kernels
    standin: Standin
    seed: int = 0
    schedule: int = 0
    limit_nbytes: int = 1 << 30
    label: str = "emulated:0"
    model: str = "emulated"
    log: list[tuple[int, str, str]] = field(default_factory=list)
    n_calls: int = 0
    n_waits: int = 0
    refuses: Callable[[str, int], bool] = lambda *_: False
    breaks: Callable[[int], bool] = lambda _: False
    n_takes: int = 0
    n_runs: int = 0
    is_broken: bool = False
    rates: Mapping[str, Rates] = field(default_factory=lambda: RATES)
    copier: EmulatedCopier | None = None
    memory_kind: ClassVar[type[Memory]] = Memory

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        # A loader's thread reads while another uses what was read.
        self._lock = threading.RLock()
        self.standin.set_enqueue(
            lambda stream, work: self.queue(stream, "decode", "nvCOMP", work)
        )
        self.decoder = Nvcomp(self.standin.path)
        self._streams: dict[int, deque[Operation | Marker]] = {0: deque()}
        self._idle_streams: list[int] = []
        self._running = threading.Lock()
        self._memories: dict[int, Memory] = {}
        self._held_nbytes = self.most_held_nbytes = 0
        self._is_open = False

    # Memory

    def free_nbytes(self) -> int:
        return self.limit_nbytes - self._held_nbytes

    def check(self) -> None:
        if self.is_broken:
            raise DeviceError("the emulated device is broken")

    def _take(self, kind: str, nbytes: int) -> None:
        """Ask for memory of `kind`, as CUDA may for a launch, too."""
        self.check()
        self.n_calls += kind != "launch"
        self.n_takes += 1
        is_full = kind == "allocate" and nbytes > self.free_nbytes()
        if is_full or self.refuses(kind, self.n_takes - 1):
            raise DeviceMemoryError(
                "the emulated device has not so much memory",
                expected=f"at most {self.free_nbytes()} bytes",
                got=nbytes,
            )

    def allocate(self, nbytes: int) -> EmulatedBuffer:
        self._take("allocate", nbytes)
        memory = self.memory_kind(nbytes)
        with self._lock:
            self._memories[memory.address] = memory
            self._held_nbytes += nbytes
            self.most_held_nbytes = max(self.most_held_nbytes, self._held_nbytes)
        return EmulatedBuffer(self, memory)

    def free(self, memory: Memory) -> None:
        """Give memory back; what is queued must not use it any more."""
        with self._lock:
            del self._memories[memory.address]
            self._held_nbytes -= memory.nbytes
        memory.protect(READ_WRITE)
        assert np.all(memory.behind() == JUNK), "written behind an allocation"

    def holds(self, address: int, nbytes: int) -> bool:
        """Whether bytes lie within one allocation."""
        return any(
            memory.address <= address
            and address + nbytes <= memory.address + memory.nbytes
            for memory in list(self._memories.values())
        )

    def allocate_pinned(self, nbytes: int) -> NDArray[np.uint8]:
        self._take("pinned", nbytes)
        return np.full(nbytes, JUNK, np.uint8)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> EmulatedArray:
        if dtype.kind == "T" or dtype.hasobject:
            raise UnsupportedError(f"device memory holds no {dtype}")
        return EmulatedArray(self, shape, dtype)

    def view(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Any
    ) -> EmulatedArray:
        return EmulatedArray(self, shape, dtype, address, owner)

    def adopt(self, array: Any) -> Any:
        return array.__dlpack__(stream=self.current_stream())

    def current_stream(self) -> int:
        return 0

    @contextmanager
    def open_memory(self):
        """While copies and kernels run, device memory can be touched."""
        with self._lock:
            if self._is_open:
                yield
                return
            self._is_open = True
            for memory in list(self._memories.values()):
                memory.protect(READ_WRITE)
            try:
                yield
            finally:
                for memory in list(self._memories.values()):
                    memory.protect(NONE)
                self._is_open = False

    # Streams

    def create_stream(self) -> int:
        self.n_calls += 1
        with self._lock:
            if self._idle_streams:
                return self._idle_streams.pop()
            stream = len(self._streams)
            self._streams[stream] = deque()
        return stream

    def release_stream(self, stream: int) -> None:
        left = [x for x in self._streams[stream] if isinstance(x, Operation)]
        is_idle = all(operation.kind == "event" for operation in left)
        assert self.is_broken or is_idle, "work is under way there"
        assert stream not in self._idle_streams, "given back twice"
        self._idle_streams.append(stream)

    def queue(self, stream: int, kind: str, what: str, run: Callable[[], None]) -> None:
        """Let `run` happen on `stream`, some time."""
        self.check()
        self.n_calls += 1
        self._streams[stream].append(Operation(kind, what, run))

    def record(self, stream: int) -> Marker:
        self.check()
        self.n_calls += 1
        marker = Marker(f"after {len(self.log)}")
        self._streams[stream].append(
            Operation("event", "record", lambda: setattr(marker, "done", True))
        )
        return marker

    def await_event(self, stream: int, event: Marker) -> None:
        self.n_calls += 1
        self._streams[stream].append(event)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way; what a broken device has is dropped."""
        return self.is_broken or not any(self._streams.values())

    def wait(self, event: Marker) -> None:
        self.check()
        self.n_calls += 1
        self.n_waits += 1
        while not event.done:
            self.check()
            # Nobody but what is queued runs until then.
            with self.open_memory():
                while not (event.done or self.is_broken):
                    self._run_any("a stream waits for an event that never comes")

    def limit_waits(
        self, stream: int, limit_s: float | None, entries: Sequence[Marker]
    ) -> None:
        """Whoever waits here runs the work, which ends."""

    def keep(self, *things: Any) -> None:
        """Nothing is under way when a wait here has ended."""

    def wait_for(self, stream: int) -> None:
        self.wait(self.record(stream))
        self.n_calls -= 1  # two here are one of the driver

    def is_under_way(self, stream: int) -> bool:
        """Whether something is queued on a stream, or another thread runs it."""
        with self._lock:
            return bool(self._streams[stream])

    def run_one(self) -> None:
        """Run one operation, if any can; raises `DeviceError` once broken."""
        self.check()
        with self._lock:
            if any(map(self._is_ready, self._streams.values())):
                self._run_any("")

    def drain(self) -> None:
        """Run all that is queued: what a test does before it looks."""
        with self.open_memory():
            while any(self._streams.values()):
                self._run_any("streams wait for one another")

    def _run_any(self, otherwise: str) -> None:
        ready = [s for s, queue in self._streams.items() if self._is_ready(queue)]
        assert ready, otherwise
        self._run_next(self._random.choice(ready))

    def _is_ready(self, queue: deque[Operation | Marker]) -> bool:
        return bool(queue) and (not isinstance(queue[0], Marker) or queue[0].done)

    def _run_next(self, stream: int) -> None:
        operation = self._streams[stream].popleft()
        if isinstance(operation, Marker):
            return
        self.n_runs += 1
        if self.breaks(self.n_runs - 1):
            self.is_broken = True
            return
        # Two at once would close the memory under one another: `LockedDevice` is for
        # reads with several threads.
        is_alone = self._running.acquire(blocking=False)  # with python -O, too
        assert is_alone, "two threads run operations"
        try:
            with self.open_memory():
                operation.run()
        finally:
            self._running.release()
        self.log.append((stream, operation.kind, operation.what))

    # Operations

    def upload(self, address: int, data: NDArray[np.uint8], stream: int) -> None:
        start, nbytes, owner = data.ctypes.data, data.nbytes, _owner(data)
        del data

        def run() -> None:
            assert owner() is not None, "pinned memory given back before its copy"
            assert self.holds(address, nbytes), "not, or no more, the device's memory"
            ctypes.memmove(address, start, nbytes)

        self.queue(stream, "upload", str(nbytes), run)

    def download(self, data: NDArray[np.uint8], address: int, stream: int) -> None:
        start, nbytes, owner = data.ctypes.data, data.nbytes, _owner(data)
        del data

        def run() -> None:
            assert owner() is not None, "pinned memory given back before its copy"
            assert self.holds(address, nbytes), "not, or no more, the device's memory"
            ctypes.memmove(start, address, nbytes)

        self.queue(stream, "download", str(nbytes), run)

    def copy(self, address: int, source: int, nbytes: int, stream: int) -> None:
        self.queue(
            stream, "copy", str(nbytes), lambda: ctypes.memmove(address, source, nbytes)
        )

    def copy_rows(self, rows: RowCopy, stream: int) -> None:
        assert rows.nbytes <= min(rows.pitch, rows.source_pitch), "rows overlap"

        def run() -> None:
            for i in range(rows.n_rows):
                to = rows.address + i * rows.pitch
                source = rows.source + i * rows.source_pitch
                assert self.holds(to, rows.nbytes)
                assert self.holds(source, rows.nbytes)
                ctypes.memmove(to, source, rows.nbytes)

        self.queue(stream, "copy", f"{rows.n_rows} x {rows.nbytes}", run)

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        def run() -> None:
            assert self.holds(address, nbytes), "not, or no more, the device's memory"
            ctypes.memset(address, 0, nbytes)

        self.queue(stream, "clear", str(nbytes), run)

    def launch(
        self,
        kernel: str,
        grid: tuple[int, int],
        parameters: Sequence[Any],
        stream: int,
    ) -> None:
        self._take("launch", 0)
        assert all(0 < n <= m for n, m in zip(grid, MAX_GRID, strict=True)), grid

        def run() -> None:
            self.kernels.launch(
                kernel,
                grid,
                self.kernels.threads(kernel),
                list(parameters),
                schedule=self.schedule,
            )

        self.queue(stream, "kernel", kernel, run)


def _owner(data: NDArray[np.uint8]) -> weakref.ref[Any]:
    """The allocation that a view of pinned memory is of."""
    while isinstance(data.base, np.ndarray):
        data = data.base
    return weakref.ref(data)

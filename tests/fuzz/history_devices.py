"""Emulated devices for histories, and memory on them for what is read and written.

Arrays are read on the device itself, or on `CudaDevice` over a stand-in for CuPy. What
is queued runs in one of several orders, and the work of users is late.
"""

from __future__ import annotations

import ctypes
import gc
import random
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from cuda_cases import forget
from cuda_host import cupy_standin, kvikio_standin, libcuda
from cuda_host.copier import EmulatedCopier
from damaged_arrays import emulated
from device_fetch_cases import LockedDevice
from gpushard.device_reading.payload import direct
from gpushard.devices import cuda_modules, find, rates
from gpushard.errors import DeviceError, DeviceMemoryError

if TYPE_CHECKING:
    from fuzz.history_arrays import Output

USER = "user"
"""Kind of operations that a user of a device has queued."""

_ORDERS = ("any", "any", "first", "last", "users late")
_CANNOT_DECOMPRESS = 12


class SharedDevice(LockedDevice):
    """A device that several threads use.

    Attributes
    ----------
    order
        Which stream comes next: any, that of the lowest or of the highest number, or
        one on which no user has work, if there is one.
    interrupted_in
        After so many waits of the main thread one is interrupted; None: after none.
    n_refused
        How often there was no memory.
    n_pinned_nbytes
        Pinned memory that somebody has.
    """

    order = "any"
    interrupted_in: int | None = None
    n_refused = pinned_nbytes = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._lock = self.lock  # one order for both
        self._of_thread = threading.local()

    def allocate_for_user(self, nbytes: int) -> Any:
        """Memory, whatever is refused to others."""
        self._of_thread.is_user = True
        try:
            return self.allocate(nbytes)
        finally:
            self._of_thread.is_user = False

    def _take(self, kind: str, nbytes: int) -> None:
        if getattr(self._of_thread, "is_user", False):
            return
        try:
            super()._take(kind, nbytes)
        except DeviceMemoryError:
            self.n_refused += 1
            raise

    def allocate_pinned(self, nbytes: int) -> NDArray[np.uint8]:
        memory = super().allocate_pinned(nbytes)
        self.pinned_nbytes += nbytes
        weakref.finalize(memory, self._let_go, nbytes).atexit = False
        return memory

    def _let_go(self, nbytes: int) -> None:
        self.pinned_nbytes -= nbytes

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Memory that earlier work on the current stream still writes to."""
        made = super().empty(shape, dtype)
        buffer = made.buffer

        def write() -> None:
            ctypes.memset(buffer.address, 0x55, buffer.nbytes)

        self.queue(self.current_stream(), USER, "", write)
        return made

    def release_stream(self, stream: int) -> None:
        with self.lock:  # another thread may run what is left: events
            super().release_stream(stream)

    def current_stream(self) -> int:
        return getattr(self._of_thread, "stream", 0)

    @contextmanager
    def current(self, stream: int) -> Iterator[None]:
        """Let a stream be the current one of this thread."""
        before, self._of_thread.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self._of_thread.stream = before

    @contextmanager
    def open_memory(self) -> Iterator[None]:
        """As elsewhere; garbage, which may wait for work, is not collected then."""
        with self.lock:
            collects = gc.isenabled()
            gc.disable()
            try:
                with super().open_memory():
                    yield
            finally:
                if collects:
                    gc.enable()

    def wait(self, event: Any) -> None:
        self.look_for_interrupts()
        super().wait(event)

    def look_for_interrupts(self) -> None:
        """Raise one if it is its time; not within a call of the driver."""
        is_main = threading.current_thread() is threading.main_thread()
        if self.interrupted_in is not None and is_main:
            self.interrupted_in -= 1
            if self.interrupted_in < 0:
                self.interrupted_in = None
                raise KeyboardInterrupt

    def _run_any(self, otherwise: str) -> None:
        ready = [s for s, queue in self._streams.items() if self._is_ready(queue)]
        assert ready, otherwise
        if self.order == "users late":
            others = [s for s in ready if kind_of(self._streams[s][0]) != USER]
            ready = others or ready
        chosen = {"first": min, "last": max}.get(self.order, self._random.choice)
        self._run_next(chosen(ready))

    def work_under_way(self) -> list[Any]:
        """What is queued and not of users."""
        with self.lock:
            queued = [one for queue in self._streams.values() for one in queue]
        return [
            one
            for one in queued
            if kind_of(one) not in (USER, "event", "") and one.what != "late"
        ]


def kind_of(queued: Any) -> str:
    """Kind of an operation; none of a wait for an event."""
    return getattr(queued, "kind", "")


class Gpu:
    """A device of a history, and what its users do there.

    Attributes
    ----------
    device
        The emulated device.
    named
        What `gpushard.open_array` takes for it.
    streams
        Handles of streams of users.
    """

    def __init__(self, rng: random.Random) -> None:
        limit = rng.choice((1 << 30, 1 << 30, 1 << 30, 3 << 20))
        self.device = SharedDevice(
            *emulated(), seed=rng.getrandbits(16), limit_nbytes=limit
        )
        self.device.order = rng.choice(_ORDERS)
        self._patch = pytest.MonkeyPatch()
        self._decoder_is_odd(rng)
        self._cupy: Any = None
        if rng.random() < 0.4:
            self._use_cupy(rng)
        else:
            self.named: Any = self.device
            self.streams = [0, *(self.device.create_stream() for _ in range(2))]
            if rng.random() < 0.7:
                self.device.copier = EmulatedCopier(self.device, None)
            if rng.random() < 0.2:
                self._patch.setattr(direct, "MIN_MEAN_NBYTES", 1)
                kvikio_standin.install(self._patch, self.device, seed=rng.randrange(99))

    def _use_cupy(self, rng: random.Random) -> None:
        self._home = tempfile.TemporaryDirectory()
        # Not by XDG_CACHE_HOME: the compiled loops would be compiled anew.
        for keeps in (cuda_modules, rates):
            self._patch.setattr(keeps, "cache_directory", lambda: Path(self._home.name))
        self._cupy = cupy_standin.install(self._patch, self.device)
        self._cupy.is_stream_ordered = rng.random() < 0.3
        if rng.random() < 0.7:
            libcuda.install(self._patch, self._cupy)
        asked = self._cupy.runtime._asked

        def ask(*arguments: Any) -> int:
            self.device.look_for_interrupts()
            return asked(*arguments)

        self._cupy.runtime._asked = ask
        self.named = "cuda"
        made = self._cupy.made.Stream
        self._streams = [made.null, *(made(non_blocking=True) for _ in range(2))]
        self.streams = [one.ptr for one in self._streams]

    def _decoder_is_odd(self, rng: random.Random) -> None:
        """Let the vendor's decoder do what it may."""
        standin, chance = self.device.standin, random.Random(rng.getrandbits(32))
        standin.overrun_nbytes = rng.choice((0, 0, 100, 5000))
        standin.set_overread(rng.choice((0, 0, 16)))
        refuses, shortens = rng.choice((0, 0, 0.1)), rng.choice((0, 0, 0.1))
        standin.intercept = lambda *_: (
            _CANNOT_DECOMPRESS if chance.random() < refuses else None
        )
        standin.shorten = lambda *_: chance.random() < shortens
        standin.intercept_encoding = standin.intercept

    def close(self) -> None:
        """Undo all patches."""
        self._patch.undo()
        self.device.standin.reset()
        if self._cupy is not None:
            forget()
            self._home.cleanup()

    @property
    def is_over_cupy(self) -> bool:
        """Whether it is used through a stand-in for CuPy."""
        return self._cupy is not None

    def check_left(self) -> None:
        """Hold memory and streams to those of users."""
        device = self.device
        if device.is_broken:
            return
        device.drain()
        if self._cupy is None:
            n_streams = len(device._streams) - len(self.streams)
            assert len(device._idle_streams) == n_streams, "streams are lost"
            assert device._memories == {}, "device memory is lost"
            assert device.pinned_nbytes == 0, "pinned memory is lost"
        else:
            used: Any = find.find_device("cuda").device
            assert len(used._idle_streams) == len(used._streams), "streams are lost"
            kept = [buffer for free in self._cupy.arenas.values() for buffer in free]
            assert len(kept) == len(self._cupy.taken), "device memory is lost"

    def queue(self, stream: int, run: Callable[[], object]) -> Any:
        """Queue work of a user; an event that is done when it is."""
        queue = stream if self._cupy is None else self._cupy.queue(stream)[1]
        with self.device.lock:
            self.device.queue(queue, USER, "", run)
            return self.device.record(queue)

    def is_done(self, event: Any) -> bool:
        """Wait until an event is done; False if the device is broken."""
        try:
            self.device.wait(event)
        except DeviceError:
            if not self.device.is_broken:
                raise
        return not self.device.is_broken

    @contextmanager
    def current(self, stream: int) -> Iterator[None]:
        """Let a stream be the current one of this thread."""
        if self._cupy is None:
            with self.device.current(stream):
                yield
        else:
            with self._streams[self.streams.index(stream)]:
                yield

    def peek(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Copy of what is in memory now, with nothing waited for."""
        device = self.device
        with device.open_memory():
            assert not nbytes or device.holds(address, nbytes)
            content = np.empty(nbytes, np.uint8)
            ctypes.memmove(content.ctypes.data, address, nbytes)
        return content

    def on_host(self, result: Any) -> NDArray[Any]:
        """Copy of an array as it is in memory now."""
        interface = result.__cuda_array_interface__
        shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
        address, strides = interface["data"][0], interface.get("strides")
        if strides is None or 0 in shape:
            strides = np.empty(shape, np.int8).strides
            strides = tuple(dtype.itemsize * n for n in strides)
        reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
        before = -sum(min(r, 0) for r in reach)
        behind = sum(max(r, 0) for r in reach) + dtype.itemsize
        if 0 in shape:
            return np.empty(shape, dtype)
        content = self.peek(address - before, before + behind)
        first = content[before : before + dtype.itemsize].view(dtype)
        return as_strided(first, (*shape, 1), (*strides, 0))[..., 0].copy()


class Lent:
    """An array of a user on a device."""

    def __init__(self, gpu: Gpu, memory: Any, shadow: Output) -> None:
        self._gpu, self._memory = gpu, memory
        view = shadow.view
        self.shape, self.dtype = view.shape, view.dtype
        offset = 0 if 0 in view.shape else view.ctypes.data - shadow.block.ctypes.data
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": view.shape,
            "typestr": view.dtype.str,
            "data": (memory.address + offset, False),
            "strides": view.strides,
        }
        self.has_come: Any = None

    def get(self) -> NDArray[Any]:
        """Copy on the host, as CuPy's arrays give."""
        self._gpu.device.wait(self.has_come)
        return self._gpu.on_host(self)


class DeviceOutput:
    """Device memory of an output, or of values; see `Output`.

    Its content, the same byte all over, or the values, comes late on a stream.

    Attributes
    ----------
    view
        The array.
    """

    def __init__(self, gpu: Gpu, shadow: Output) -> None:
        self._gpu, self._shadow = gpu, shadow
        self._memory = gpu.device.allocate_for_user(shadow.block.nbytes)
        self.is_contiguous = shadow.view.flags.c_contiguous
        self.view = Lent(gpu, self._memory, shadow)

    def begin(self, stream: int, *, is_named: bool) -> None:
        """Have the content come on a stream, which the array may name."""
        if is_named:
            named = stream
            if self._gpu.is_over_cupy and not stream:
                named = 1  # 0 is ambiguous to the interface
            self.view.__cuda_array_interface__["stream"] = named
        memory, content = self._memory, self._shadow.block.tobytes()

        def come() -> None:
            ctypes.memmove(memory.address, content, len(content))

        self.view.has_come = self._gpu.queue(stream, come)

    def check(self, *, is_output: bool = True) -> None:
        """Hold all but the elements to what was there before; them, too, of values."""
        block = self._shadow.block
        if not self._gpu.is_done(self.view.has_come):
            return
        now = self._gpu.peek(self._memory.address, self._memory.nbytes)
        if is_output:
            block[:] = now
            self._shadow.check_rest()
        else:
            assert np.array_equal(now, block), "values have changed"

    def check_rest(self) -> None:
        """See `Output.check_rest`."""
        self.check()


def may_be_lost(error: Exception, gpu: Gpu) -> bool:
    """Whether an error is of memory that was refused, or of a broken device."""
    device = gpu.device
    is_memory = isinstance(error, DeviceMemoryError) and device.n_refused > 0
    return is_memory or (isinstance(error, DeviceError) and device.is_broken)

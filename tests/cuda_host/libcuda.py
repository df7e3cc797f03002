"""Functions of the driver that compiled code calls, over the stand-in for CuPy.

    driver = install(monkeypatch, cupy)

A thread has a context that the runtime has made, or that it was given. As in the
driver, nothing is copied, recorded or asked outside of the context that it belongs to.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from contextlib import suppress
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from cuda_host.cupy_calls import EVENTS
from cuda_host.cupy_standin import STREAMS_PER_DEVICE
from gpushard.devices import cuda_copies
from gpushard.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cuda_host.cupy_standin import Cupy
    from cuda_host.device import EmulatedDevice

_CONTEXT = 0xC0
NO_CONTEXT, WRONG_HANDLE, BROKEN, NOT_READY = 201, 400, 719, 600
CAPTURE_UNSUPPORTED = 900


_CALLED_BY_PYTHON = "cuThreadExchangeStreamCaptureMode", "cuCtxGetCurrent"


class Libcuda:
    """The library, as `ctypes` would load it.

    Attributes
    ----------
    calls
        How often each function was called.
    refuses
        Number of a copy -> the error that it fails with.
    entered
        Context of each thread that has another one than the runtime gave it.
    """

    def __init__(self, cupy: Cupy) -> None:
        self._cupy = cupy
        self.calls: Counter[str] = Counter()
        self.refuses: dict[int, int] = {}
        self.entered: dict[int, int] = {}
        self._lock, self._numbers = threading.Lock(), count()
        functions: dict[str, tuple[Callable[..., int], int]] = {
            "cuMemcpyHtoDAsync_v2": (self._upload, 4),
            "cuEventRecord": (self._record, 2),
            "cuEventSynchronize": (self._wait, 1),
            "cuStreamQuery": (self._ask_stream, 1),
            "cuEventQuery": (self._ask_event, 1),
            "cuThreadExchangeStreamCaptureMode": (self._exchange_mode, 1),
            "cuCtxGetCurrent": (self._get_context, 1),
            "cuCtxSetCurrent": (self._set_context, 1),
        }
        for name, (function, n) in functions.items():
            kind = ctypes.CFUNCTYPE(ctypes.c_int32, *(ctypes.c_uint64,) * n)
            made: Any = kind(self._counted(name, function))
            if name in _CALLED_BY_PYTHON:
                made.argtypes = (ctypes.c_void_p,)
            setattr(self, name, made)

    def _counted(self, name: str, function: Callable[..., int]) -> Callable[..., int]:
        def call(*arguments: int) -> int:
            with self._lock:
                self.calls[name] += 1
            return function(*arguments)

        return call

    @property
    def _made_by_runtime(self) -> int:
        """Context that the runtime has made for the calling thread, or 0."""
        thread = self._cupy.thread
        return _CONTEXT + thread.device if thread.device in thread.contexts else 0

    @property
    def _context(self) -> int:
        found = self.entered.get(threading.get_ident())
        return self._made_by_runtime if found is None else found

    def _exchange_mode(self, at: int) -> int:
        mode = ctypes.c_int32.from_address(at)
        mode.value = self._cupy.captures.exchange_mode(mode.value)
        return 0

    def _get_context(self, at: int) -> int:
        ctypes.c_uint64.from_address(at).value = self._context
        return 0

    def _set_context(self, context: int) -> int:
        self.entered[threading.get_ident()] = context
        if context == self._made_by_runtime:
            del self.entered[threading.get_ident()]
        return 0

    def _queue(self, stream: int) -> tuple[EmulatedDevice, int] | None:
        ordinal, queue = divmod(stream, STREAMS_PER_DEVICE)
        if ordinal - 1 != self._context - _CONTEXT:
            return None
        return self._cupy.devices[ordinal - 1], queue

    def _upload(self, address: int, host: int, nbytes: int, stream: int) -> int:
        status = self.refuses.get(next(self._numbers), 0)
        found = self._queue(stream)
        if found is None or status:
            return status or NO_CONTEXT
        device, queue = found
        pinned = self._cupy.runtime._pinned(host, nbytes)
        assert pinned is not None, "a copy of pageable memory is none that is queued"

        def run() -> None:
            assert device.holds(address, nbytes), "not, or no more, the device's memory"
            assert pinned() is not None, "given back before its copy"
            ctypes.memmove(address, host, nbytes)

        device.queue(queue, "relay", str(nbytes), run)
        return 0

    def _record(self, event: int, stream: int) -> int:
        found = self._queue(stream)
        if found is None or EVENTS[event].device is not found[0]:
            return WRONG_HANDLE
        device, queue = found
        EVENTS[event].marker = device.record(queue)
        return 0

    def _wait(self, event: int) -> int:
        while (status := self._ask_event(event)) == NOT_READY:
            pass
        return status

    def _ask_event(self, event: int) -> int:
        if self._cupy.captures.refuse("cuEventQuery"):
            return CAPTURE_UNSUPPORTED
        marker = EVENTS[event].marker
        return self._asked(EVENTS[event].device, lambda: not marker or marker.done)

    def _ask_stream(self, stream: int) -> int:
        if self._cupy.captures.refuse("cuStreamQuery"):
            return CAPTURE_UNSUPPORTED
        found = self._queue(stream)
        if found is None:
            return WRONG_HANDLE
        device, queue = found
        return self._asked(device, lambda: not device.is_under_way(queue))

    def _asked(self, device: EmulatedDevice, is_done: Callable[[], bool]) -> int:
        with suppress(DeviceError):
            if not is_done():
                device.run_one()
            return 0 if is_done() else NOT_READY
        return BROKEN


def install(monkeypatch: Any, cupy: Cupy) -> Libcuda:
    """Let `cuda_copies` load the library from now on."""
    library = Libcuda(cupy)

    def load(name: str) -> Libcuda:
        assert name == "libcuda.so.1"
        return library

    loading = SimpleNamespace(**vars(ctypes) | {"CDLL": load})
    monkeypatch.setattr(cuda_copies, "ctypes", loading)
    return library

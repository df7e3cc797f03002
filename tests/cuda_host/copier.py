"""Copies that compiled code queues on an emulated device, by addresses of callbacks."""

from __future__ import annotations

import ctypes
import threading
from itertools import count
from typing import TYPE_CHECKING

from gpushard.devices.base import ONLY_OWN_CAPTURES, CopyCalls
from gpushard.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cuda_host.device import EmulatedDevice, Marker

_UPLOAD = ctypes.CFUNCTYPE(
    ctypes.c_int32, *(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64)
)
_RECORD = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_int64)
_WAIT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64)
_CONTEXT = 0xC0
NO_CONTEXT = 201
"""What the driver returns outside of a context (``CUDA_ERROR_INVALID_CONTEXT``)."""
BROKEN = 719
"""What the driver returns once a kernel has failed (``CUDA_ERROR_LAUNCH_FAILED``)."""


class EmulatedEvent:
    """A handle, as long as somebody has the event."""

    def __init__(self, handle: int) -> None:
        self.handle = handle


class EmulatedCopier:
    """See `Copier`. `refuses` says which copies, by number, fail with which error.

    Number -1 is the context: no thread gets it.
    """

    def __init__(self, device: EmulatedDevice, refuses: dict[int, int] | None) -> None:
        self._device = device
        self._refuses = refuses or {}
        self._handles = count(1)
        self._recorded: dict[int, Marker] = {}
        self._threads: dict[int, int] = {}
        self._modes: dict[int, int] = {}
        self.n_copies = self.n_entered = 0
        self.before_bytes: Callable[[], object] = lambda: None
        # The callbacks live as long as somebody may call them.
        self._held = (
            _UPLOAD(self._upload),
            *(_RECORD(self._record), _WAIT(self._wait), _WAIT(self._exchange_mode)),
            *(_WAIT(self._get_context), _WAIT(self._set_context)),
        )
        self.calls = CopyCalls(
            *(ctypes.cast(f, ctypes.c_void_p).value or 0 for f in self._held), _CONTEXT
        )

    def create_event(self) -> EmulatedEvent:
        return EmulatedEvent(next(self._handles))

    @property
    def is_left(self) -> bool:
        """Whether no thread has the context any more, nor the mode of a relay."""
        return not any((*self._threads.values(), *self._modes.values()))

    def _get_context(self, at: int) -> int:
        mine = self._threads.get(threading.get_ident(), 0)
        ctypes.c_uint64.from_address(at).value = mine
        return 0

    def _set_context(self, context: int) -> int:
        if self._refuses.get(-1):
            return NO_CONTEXT
        self.n_entered += context == _CONTEXT
        self._threads[threading.get_ident()] = context
        return 0

    def _exchange_mode(self, at: int) -> int:
        mode, thread = ctypes.c_int32.from_address(at), threading.get_ident()
        self._modes[thread], mode.value = mode.value, self._modes.get(thread, 0)
        return 0

    def failure(self, status: int) -> DeviceError:
        return DeviceError(f"the emulated driver returned {status}")

    def _upload(self, address: int, host: int, nbytes: int, stream: int) -> int:
        device = self._device
        if not self._threads.get(threading.get_ident()):
            return NO_CONTEXT
        assert self._modes.get(threading.get_ident()) == ONLY_OWN_CAPTURES
        self.n_copies += 1
        status = self._refuses.get(self.n_copies - 1, 0)
        if status or device.is_broken:
            return status or BROKEN

        def run() -> None:
            assert device.holds(address, nbytes), "not, or no more, the device's memory"
            ctypes.memmove(address, host, nbytes)

        device.queue(stream, "relay", str(nbytes), run)
        return 0

    def _record(self, event: int, stream: int) -> int:
        try:
            self._recorded[event] = self._device.record(stream)
        except DeviceError:
            return BROKEN
        return 0

    def _wait(self, event: int) -> int:
        # A thread that has waited for its buffer reads into it.
        self.before_bytes()
        if event in self._recorded:
            try:
                self._device.wait(self._recorded[event])
            except DeviceError:
                return BROKEN
        return 0

"""Functions of the CUDA driver that compiled code calls by address, to queue copies.

Events and streams of the runtime are the driver's own, and so is the context that the
runtime makes for a device (CUDA driver API, "Interactions between the CUDA Driver API
and the CUDA Runtime API").
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from gpushard.devices.base import CopyCalls
from gpushard.errors import DeviceError

_LIBRARY = "libcuda.so.1"
_NAMES = (
    *("cuMemcpyHtoDAsync_v2", "cuEventRecord", "cuEventSynchronize"),
    *("cuCtxGetCurrent", "cuCtxSetCurrent"),
)


def copy_calls() -> CopyCalls | None:
    """The functions of the installed driver, for the context of the calling thread.

    None if the driver cannot be loaded by its name, or the thread has no context.
    """
    context = ctypes.c_void_p()
    try:
        library = ctypes.CDLL(_LIBRARY)
        functions = [getattr(library, name) for name in _NAMES]
    except (OSError, AttributeError):
        return None
    status = library.cuCtxGetCurrent(ctypes.byref(context))
    if status or not context.value:
        return None
    upload, record, wait, get_context, set_context = (
        ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions
    )
    return CopyCalls(upload, record, wait, get_context, set_context, context.value)


class CudaEvent:
    """An event of CuPy, and its handle."""

    def __init__(self, event: Any) -> None:
        self._event = event
        self.handle = int(event.ptr)


class CudaCopier:
    """Copies to one CUDA device; see `Copier`.

    Parameters
    ----------
    make_event
        Makes an event of CuPy for the device.
    failed
        Error for a number that the driver returned.
    """

    def __init__(
        self,
        calls: CopyCalls,
        make_event: Callable[[], Any],
        failed: Callable[[int], DeviceError],
    ) -> None:
        self.calls = calls
        self._make_event = make_event
        self._failed = failed

    def create_event(self) -> CudaEvent:
        """An event that was not recorded yet; see `Copier`."""
        return CudaEvent(self._make_event())

    def failure(self, status: int) -> DeviceError:
        """Error for what a function returned; see `Copier`."""
        return self._failed(status)

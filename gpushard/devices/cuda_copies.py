"""Functions of the CUDA driver that CuPy lacks, or that compiled code calls.

Events and streams of the runtime are the driver's own, and so is the context that the
runtime makes for a device (CUDA driver API, "Interactions between the CUDA Driver API
and the CUDA Runtime API").
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from gpushard.devices.base import ONLY_OWN_CAPTURES, CopyCalls
from gpushard.errors import DeviceError

_LIBRARY = "libcuda.so.1"
_OF_CONTEXT = "cuCtxGetCurrent", "cuCtxSetCurrent"
_EXCHANGE_MODE = "cuThreadExchangeStreamCaptureMode"
_OF_COPIES = (
    *("cuMemcpyHtoDAsync_v2", "cuEventRecord", "cuEventSynchronize"),
    _EXCHANGE_MODE,
)
_OF_QUERIES = "cuStreamQuery", "cuEventQuery"


class QueryCalls(NamedTuple):
    """Addresses of functions that ask whether a stream or an event is done; or 0.

    Attributes
    ----------
    stream, event
        Take a stream or an event.
    in_context
        Addresses of two functions, and a context, as in `CopyCalls`.
    """

    stream: int = 0
    event: int = 0
    in_context: tuple[int, int, int] = (0, 0, 0)


def copy_calls() -> CopyCalls | None:
    """The functions of the installed driver, for the context of the calling thread.

    None if the driver cannot be loaded by its name, or the thread has no context.
    """
    found = _found(_OF_COPIES)
    return None if found is None else CopyCalls(*found)


def query_calls() -> QueryCalls:
    """As `copy_calls`; zeros where that gives None."""
    found = _found(_OF_QUERIES)
    if found is None:
        return QueryCalls()
    stream, event, *in_context = found
    get_context, set_context, context = in_context
    return QueryCalls(stream, event, (get_context, set_context, context))


def _found(names: tuple[str, ...]) -> list[int] | None:
    """Addresses of functions, of those of the context, and the context."""
    context = ctypes.c_void_p()
    try:
        library = ctypes.CDLL(_LIBRARY)
        functions = [getattr(library, name) for name in (*names, *_OF_CONTEXT)]
    except (OSError, AttributeError):
        return None
    status = library.cuCtxGetCurrent(ctypes.byref(context))
    if status or not context.value:
        return None
    addresses = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions]
    return [*addresses, context.value]


def ignore_captures() -> None:
    """Have the calling thread work on while other threads capture CUDA graphs.

    A capture forbids what it cannot record, such as waits and allocations, and by
    default it forbids that to all threads: their calls fail, and so does the capture
    (CUDA driver API, ``cuThreadExchangeStreamCaptureMode``).
    """
    with suppress(OSError, AttributeError):  # as in `copy_calls`
        exchange_mode = getattr(ctypes.CDLL(_LIBRARY), _EXCHANGE_MODE)
        exchange_mode(ctypes.byref(ctypes.c_int(ONLY_OWN_CAPTURES)))


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

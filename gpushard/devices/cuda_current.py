"""A CUDA device as that of the calling thread, for as long as a call takes."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from gpushard.devices.cuda_copies import ignore_captures
from gpushard.errors import DeviceError
from gpushard.threads.stop_flag import flag_here


class Owner(Protocol):
    """What `CurrentDevice` must know of the device; see `CudaDevice`."""

    ordinal: int

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Exceptions that CuPy raises when the driver refuses a call."""
        ...

    def check(self) -> None:
        """Raise if the device cannot be used any more."""
        ...

    def failure(self, error: Exception) -> DeviceError:
        """Error of gpushard for one of `errors`."""
        ...


class _Thread(threading.local):
    """What is known of a thread of ours: whether a device was chosen for it before."""

    has_chosen = False


_thread = _Thread()


class CurrentDevice:
    """Context in which a device is that of the thread; CuPy's errors are gpushard's.

    Each call of the driver has one, and a generator would take four times as long.

    Afterwards the thread has the device that it had before. But a thread of ours does
    not go back to the one that every thread begins with: since CUDA 12 `cudaSetDevice`
    makes a context there, in the memory of a GPU that may be another process's. Nor
    does a capture of a CUDA graph by a user's thread forbid it anything.

    Parameters
    ----------
    owner, device
        The device, and CuPy's.
    runtime
        CuPy's module of that name.
    """

    _before: int | None = None

    def __init__(self, owner: Owner, device: Any, runtime: Any) -> None:
        self._owner, self._device, self._runtime = owner, device, runtime
        self._is_ours = flag_here() is not None

    def __enter__(self) -> None:
        self._owner.check()
        try:
            if self._is_ours:
                self._choose(self._owner.ordinal)
            else:
                self._device.__enter__()
        except self._owner.errors as error:
            raise self._owner.failure(error) from error

    def _choose(self, ordinal: int) -> None:
        before = self._runtime.getDevice()
        if not _thread.has_chosen:  # nor has it a context, which the driver wants
            self._runtime.setDevice(ordinal)
            _thread.has_chosen = True
            ignore_captures()  # not before: the driver has to be initialised
        elif before != ordinal:
            self._runtime.setDevice(ordinal)
            self._before = before

    def __exit__(self, kind: object, raised: object, trace: object) -> None:
        try:
            if not self._is_ours:
                self._device.__exit__(kind, raised, trace)
            elif self._before is not None:
                self._runtime.setDevice(self._before)
        except self._owner.errors as error:
            raise self._owner.failure(error) from error
        if isinstance(raised, self._owner.errors):
            raise self._owner.failure(raised) from raised

"""An array in device memory, made by gpushard or by the caller with any library."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gpushard.devices.base import Device, Stream
from gpushard.devices.scattering.transfer import Affine
from gpushard.errors import SelectionError

_DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged


@dataclass(frozen=True, slots=True)
class DeviceOutput:
    """An array in device memory, with element 0 at `address`.

    Attributes
    ----------
    strides
        Bytes between neighbours along each axis; may be negative.
    affine
        Scale and offset that numbers get when they are written.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    affine: Affine | None = None

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one after the other, in C order."""
        plain = contiguous_strides(self.shape, self.dtype.itemsize)
        axes = zip(self.shape, self.strides, plain, strict=True)
        return 0 in self.shape or all(n == 1 or s == p for n, s, p in axes)


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Byte strides of an array in C order."""
    return tuple(itemsize * prod(shape[k + 1 :]) for k in range(len(shape)))


def lies_on(array: Any, device: Device) -> bool:
    """Whether an array that names its device (CuPy's, torch's) names this one."""
    named = getattr(array, "device", None)
    for attribute in ("id", "index"):
        ordinal = getattr(named, attribute, None)
        if isinstance(ordinal, int):
            return device.label == f"cuda:{ordinal}"
    return True


def stream_of(array: Any, interface: Mapping[str, Any]) -> Stream | None:
    """Stream that an array's library uses it on, as far as that can be told.

    Its ``__cuda_array_interface__`` tells it. That of torch does not: a tensor is used
    on torch's current stream of its device.
    """
    stream = interface.get("stream")
    if stream is not None or not _is_of("torch", "Tensor", array):
        return stream
    torch: Any = sys.modules["torch"]
    return int(torch.cuda.current_stream(array.device).cuda_stream)


def tells_memory(array: Any) -> bool:
    """Whether an array has a ``__cuda_array_interface__``.

    torch's tensors have none for data types without a name in it, such as float8, and
    while they need a gradient.
    """
    try:
        return hasattr(array, "__cuda_array_interface__")
    except (KeyError, RuntimeError):
        return False


def refuse_unresolved(array: Any) -> None:
    """Raise `SelectionError` for a tensor of torch whose memory has other values.

    torch conjugates and negates late: until then ``t.conj()``, ``t.mH`` and the like
    are views of the values before. Their ``__cuda_array_interface__`` does not say so.
    """
    if _is_of("torch", "Tensor", array) and (array.is_conj() or array.is_neg()):
        raise SelectionError(
            "a tensor is not conjugated or negated yet in its memory",
            got=f"a {type(array).__name__} whose is_conj() or is_neg() is true",
            hint="pass tensor.resolve_conj().resolve_neg()",
        )


def _is_immutable(array: Any) -> bool:
    """Whether nobody may write to an array although DLPack gives its memory: JAX's.

    The flag that says so since DLPack 1.0 is not looked at by CuPy.
    """
    return _is_of("jax", "Array", array)


def _is_of(library: str, name: str, array: Any) -> bool:
    """Whether an array is of a library's type; the library is not imported for that."""
    # No type while another thread imports the library.
    kind = getattr(sys.modules.get(library), name, None)
    return kind is not None and isinstance(array, kind)


def output_of(array: Any, device: Device) -> tuple[DeviceOutput, Stream | None]:
    """Output that describes an array, and the stream that the array names, if any.

    Uses the CUDA Array Interface, version 3, or DLPack. Raises `SelectionError` if the
    array is not in writable memory of `device`.
    """
    refuse_unresolved(array)
    given = array
    array, interface = _with_interface(array, device)
    if interface is None:
        raise SelectionError(
            "out= is no array in device memory",
            got=type(array).__name__,
            hint="pass a CuPy array or a CUDA tensor, or open with device='cpu'",
        )
    if not lies_on(array, device):
        raise SelectionError(
            "out= lies on another device than the array is read on",
            expected=device.label,
            got=str(array.device),
            hint="open the array with that device, or pass an array on this one",
        )
    address, is_read_only = interface["data"]
    if is_read_only or _is_immutable(given):
        raise SelectionError("out= is read-only", hint="pass a writable array")
    dtype = np.dtype(interface["typestr"])
    named = getattr(array, "dtype", None)
    if dtype.kind == "V" and isinstance(named, np.dtype):
        dtype = named  # bfloat16 and its like are raw bytes to the interface
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is None:
        strides = contiguous_strides(shape, dtype.itemsize)
    output = DeviceOutput(address, shape, tuple(strides), dtype)
    return output, stream_of(array, interface)


def _with_interface(array: Any, device: Device) -> tuple[Any, Mapping[str, Any] | None]:
    """Array and its interface, if any; adopted if its own description is not enough."""
    interface = None
    try:
        interface = getattr(array, "__cuda_array_interface__", None)
    except KeyError:  # torch's, of data types that have no name in it; DLPack has
        pass
    except RuntimeError as error:  # torch's, of a tensor with a gradient
        raise SelectionError(
            f"out= does not tell where its memory is ({error})",
            got=type(array).__name__,
            hint="pass a tensor without gradient, such as tensor.detach()",
        ) from error
    is_named = isinstance(getattr(array, "dtype", None), np.dtype)
    is_raw = interface is not None and np.dtype(interface["typestr"]).kind == "V"
    # Some arrays have DLPack only; and only DLPack says that raw bytes are bfloat16.
    if (interface is None or (is_raw and not is_named)) and _is_on_gpu(array):
        array = device.adopt(array)
        interface = array.__cuda_array_interface__
    return array, interface


def _is_on_gpu(array: Any) -> bool:
    tell = getattr(array, "__dlpack_device__", None)
    return tell is not None and int(tell()[0]) in _DLPACK_CUDA


def stream_handle(stream: Any, device: Device) -> Stream:
    """Handle of a stream of any library; None is the stream that the caller works on.

    Raises `SelectionError` if it is not a stream.
    """
    if stream is None:
        return device.current_stream()
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        _, handle = stream.__cuda_stream__()
        return int(handle)
    for name in ("ptr", "cuda_stream"):  # CuPy's, torch's
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise SelectionError(
        "stream= is no CUDA stream",
        got=type(stream).__name__,
        hint="pass a CuPy or torch stream, or its handle",
    )

"""Any other codec that zarr knows, run through zarr's own codec object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numcodecs.errors import UnknownCodecError
from numpy.typing import NDArray
from zarr.abc import codec as zarr_codecs
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import cpu
from zarr.core.sync import sync
from zarr.dtype import UInt8

from gpushard.codecs.base import (
    COUNTED,
    DAMAGED_HINT,
    FILTERS_OF_NUMCODECS,
    BytesCodec,
    HostBytes,
    library_label,
    size_error,
    stream_error,
)
from gpushard.codecs.bytes import UNSIZED_KINDS
from gpushard.codecs.zarr_objects import (
    array_spec,
    codec_object,
    elements_spec,
    encoded_spec,
    fit,
    missing_package,
    try_checksum,
    validate,
)
from gpushard.errors import CorruptShardError
from gpushard.layout import CodecSpec, Elements
from gpushard.zarr_thread import running_loop

_SHARDING = "sharding_indexed"
# Copies of the elements: the output of a step, and its temporary arrays.
_COPIES = 3
# Memory of a string in Python, of the pointer to it, and of the string in NumPy.
_STRING_NBYTES = 128
# Shapes whose fitted codecs are kept: inner chunks have one, rectilinear ones a few.
_MOST_SHAPES = 256
# Newer zarr releases have codecs without an event loop, which takes 0.1 ms and more to
# enter.
_AT_ONCE: Any = getattr(zarr_codecs, "SupportsSyncCodec", ())


@dataclass(frozen=True, slots=True)
class ZarrBytesCodec(BytesCodec):
    """Decoder of a bytes-to-bytes codec."""

    codec: Any
    spec: ArraySpec

    def encoded_nbytes(self, decoded_nbytes: int) -> int | None:
        """Encoded size; None if zarr does not know it beforehand."""
        return _encoded_nbytes(self.codec, decoded_nbytes, self.spec)

    def decode(self, encoded: HostBytes, limit: int, *, exact: bool) -> HostBytes:
        """Decoded bytes (see `BytesCodec.decode`); zarr does not bound its memory."""
        buffer = _as_buffer(encoded)
        decoded = _decode(self.name, self.codec, buffer, self.spec).as_numpy_array()
        if len(decoded) > limit or (exact and len(decoded) != limit):
            raise size_error(self.name, limit, len(decoded), exact=exact)
        return decoded


_Step = tuple[str, Any, ArraySpec]


@dataclass(frozen=True, slots=True)
class _Fitted:
    """Codecs for one shape of inner chunks, in encoding order, and what is asked of it.

    The sizes are those of `ZarrArrayPart`.
    """

    steps: tuple[_Step, ...]
    encoded_nbytes: int | None
    working_nbytes: int


@dataclass(frozen=True, slots=True)
class ZarrArrayPart:
    """Decoder of the array-to-array and the array-to-bytes codecs of a chain.

    Attributes
    ----------
    specs
        The codecs in encoding order, as the metadata names them.
    codecs
        zarr's objects for them, not yet fitted to a shape.
    array
        zarr's description of the array, with an arbitrary shape.
    """

    specs: tuple[CodecSpec, ...]
    codecs: tuple[Any, ...]
    array: ArraySpec
    dtype: np.dtype[Any]
    # zarr looks data types up in a list, which takes longer than to decode a small
    # inner chunk, and reads ask for sizes several times for each.
    _known: dict[tuple[int, ...], _Fitted] = field(
        default_factory=dict, compare=False, repr=False
    )

    def validate(self, shape: tuple[int, ...]) -> None:
        """Let zarr say whether the codecs fit inner chunks of `shape`."""
        for spec, (_, codec, array) in zip(self.specs, self._steps(shape), strict=True):
            if spec.name != _SHARDING:  # whose shapes its own parser has checked
                validate(spec, codec, array)

    def encoded_nbytes(self, shape: tuple[int, ...]) -> int | None:
        """Encoded size of an inner chunk; None if zarr does not know it beforehand."""
        return self._fitted(shape).encoded_nbytes

    def working_nbytes(self, shape: tuple[int, ...]) -> int:
        """Memory that decoding an inner chunk of `shape` usually takes."""
        return self._fitted(shape).working_nbytes

    def decoder(self, shape: tuple[int, ...]) -> Callable[[HostBytes], NDArray[Any]]:
        """Function that decodes the bytes of an inner chunk of `shape`."""
        return partial(self._decode, shape, self._fitted(shape).steps[::-1])

    @property
    def labels(self) -> list[tuple[str, str]]:
        """Name and library of each codec, in encoding order."""
        return [(spec.name, library_label("zarr")) for spec in self.specs]

    def _decode(
        self, shape: tuple[int, ...], steps: tuple[_Step, ...], encoded: HostBytes
    ) -> NDArray[Any]:
        serializer = self.specs[-1].name
        if serializer in COUNTED:
            _check_count(serializer, encoded, prod(shape))
        data: Any = _as_buffer(encoded)
        for k, (name, codec, array) in enumerate(steps):
            if k == 1:
                data = _in_byte_order(data, steps[0][2])
            data = _decode(name, codec, data, array)
        decoded: NDArray[Any] = data.as_numpy_array()
        if decoded.shape != shape:
            raise CorruptShardError(
                "stored bytes decode to a wrong shape",
                codec=serializer,
                expected=shape,
                got=decoded.shape,
                hint=DAMAGED_HINT,
            )
        return decoded

    def _fitted(self, shape: tuple[int, ...]) -> _Fitted:
        """The codecs for inner chunks of `shape`, and their sizes."""
        found = self._known.get(shape)
        if found is None:
            steps = tuple(self._steps(shape))
            encoded = self._encoded_by(steps, shape)
            found = _Fitted(steps, encoded, self._worked_by(steps, shape))
            if len(self._known) >= _MOST_SHAPES:
                self._known.clear()
            self._known[shape] = found
        return found

    def _encoded_by(self, steps: Sequence[_Step], shape: tuple[int, ...]) -> int | None:
        nbytes: int | None = prod(shape) * self.dtype.itemsize
        for name, codec, array in steps:
            if name in FILTERS_OF_NUMCODECS:  # zarr does not report their fixed size
                nbytes = _plain_nbytes(codec.resolve_metadata(array))
            elif nbytes is not None:
                nbytes = _encoded_nbytes(codec, nbytes, array)
        return nbytes

    def _worked_by(self, steps: Sequence[_Step], shape: tuple[int, ...]) -> int:
        if self.dtype.kind in UNSIZED_KINDS:
            return _STRING_NBYTES * prod(shape)
        kept = [_plain_nbytes(array) or 0 for _, _, array in steps]
        return _COPIES * max(kept)

    def _steps(self, shape: tuple[int, ...]) -> list[_Step]:
        """Name, zarr's codec for this shape, and its input, in encoding order."""
        steps: list[_Step] = []
        array = replace(self.array, shape=shape)
        for spec, unfitted in zip(self.specs, self.codecs, strict=True):
            codec = fit(spec, unfitted, array)
            steps.append((spec.name, codec, array))
            array = encoded_spec(spec, codec, array)
        return steps


def zarr_bytes_codec(spec: CodecSpec) -> ZarrBytesCodec:
    """Decoder of the bytes-to-bytes codec that `spec` names."""
    array = array_spec((1,), UInt8(), 0)
    codec = fit(spec, codec_object(spec), array)
    try_checksum(spec, codec)
    # zarr's codecs do not bound their memory; usually they take that of two copies.
    return ZarrBytesCodec(spec.name, library_label("zarr"), codec, array, n_copies=2)


def array_part(specs: Sequence[CodecSpec], elements: Elements) -> ZarrArrayPart:
    """Decoder of array-to-array codecs followed by an array-to-bytes codec."""
    codecs = tuple(codec_object(spec) for spec in specs)
    array = elements_spec(specs[-1], elements)
    return ZarrArrayPart(tuple(specs), codecs, array, elements.dtype)


def _plain_nbytes(array: ArraySpec) -> int | None:
    """Size of an array's elements; None if they have no fixed size."""
    dtype = _numpy_dtype(array)
    is_sized = dtype.kind not in UNSIZED_KINDS
    return prod(array.shape) * dtype.itemsize if is_sized else None


def _numpy_dtype(array: ArraySpec) -> np.dtype[Any]:
    # In zarr 3.1.0, the wrappers of numcodecs' codecs report NumPy's data type.
    dtype: Any = array.dtype
    return dtype.to_native_dtype() if hasattr(dtype, "to_native_dtype") else dtype


def _encoded_nbytes(codec: Any, nbytes: int, spec: ArraySpec) -> int | None:
    # In older zarr, numcodecs' checksums have a fixed size but do not report it.
    is_bytes = isinstance(codec, zarr_codecs.BytesBytesCodec)
    is_fixed = getattr(codec, "is_fixed_size", is_bytes)
    if not is_fixed:
        return None
    try:
        return codec.compute_encoded_size(nbytes, spec)
    except NotImplementedError:
        return None


def _as_buffer(encoded: HostBytes) -> cpu.Buffer:
    array: Any = np.frombuffer(encoded, np.uint8)  # zarr's ArrayLike is narrower
    return cpu.Buffer.from_array_like(array)


def _in_byte_order(elements: Any, spec: ArraySpec) -> Any:
    """Elements in the byte order of `spec`, which numcodecs assumes."""
    array = elements.as_numpy_array()
    if array.dtype.kind in UNSIZED_KINDS:
        return elements
    wanted = array.dtype.newbyteorder(_numpy_dtype(spec).byteorder)
    if array.dtype == wanted:
        return elements
    return cpu.NDBuffer.from_numpy_array(array.astype(wanted))


def _decode(name: str, codec: Any, data: Any, spec: ArraySpec) -> Any:
    is_at_once = isinstance(codec, _AT_ONCE) and getattr(codec, "_sync_capable", True)
    loop = None if is_at_once else running_loop()  # without it, no bytes are at fault
    try:
        if is_at_once:
            decoded = codec._decode_sync(data, spec)  # noqa: SLF001 - as the protocol says
        else:
            (decoded,) = sync(codec.decode([(data, spec)]), loop)
    except (ImportError, UnknownCodecError) as error:
        # The bytes are not at fault: none of them was read.
        raise missing_package(error, name) from error
    except MemoryError:
        raise  # this error is not about the bytes
    except Exception as error:
        raise stream_error(name, f"zarr's codec says: {error}") from error
    if decoded is None:
        raise stream_error(name, "zarr's codec gives nothing")
    return decoded


def _check_count(name: str, encoded: HostBytes, n_items: int) -> None:
    claimed = int.from_bytes(memoryview(encoded)[:4], "little")
    if len(encoded) < 4 or claimed != n_items:
        raise CorruptShardError(
            "stored bytes hold a wrong number of items",
            codec=name,
            expected=n_items,
            got=claimed,
            hint=DAMAGED_HINT,
        )

"""Codecs of an array -> the steps that decode it on a device, and the element layout.

Pure: no device. An array that a device cannot decode is refused with the reason, and
the host decodes it instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.decoding.filters import ItemFilter, compile_filter
from gpushard.devices.nvcomp_abi import MAX_STREAM_NBYTES
from gpushard.devices.scattering.transfer import FUSED_ITEMS, LIMIT
from gpushard.errors import UnsupportedError
from gpushard.layout import ArrayLayout, CodecSpec

_CHECKSUM_NBYTES = 4

_Filter = tuple[str, ItemFilter]
"""A codec's name, and the filter of a kernel that decodes it."""


class StepKind(Enum):
    """Kinds of steps, each done to every inner chunk of a batch."""

    CRC32C = "crc32c"
    ZSTD = "zstd"
    LZ4 = "lz4"
    GZIP = "gzip"
    ZLIB = "zlib"
    BLOSC = "blosc"
    SHUFFLE = "shuffle"
    FILTER = "filter"


_STEP_OF_CODEC = {
    "crc32c": StepKind.CRC32C,
    "zstd": StepKind.ZSTD,
    "numcodecs.zstd": StepKind.ZSTD,
    "numcodecs.lz4": StepKind.LZ4,
    "gzip": StepKind.GZIP,
    "numcodecs.gzip": StepKind.GZIP,
    "numcodecs.zlib": StepKind.ZLIB,
    "blosc": StepKind.BLOSC,
    "numcodecs.blosc": StepKind.BLOSC,
    "numcodecs.shuffle": StepKind.SHUFFLE,
}


COMPRESSED = frozenset(
    (StepKind.ZSTD, StepKind.LZ4, StepKind.GZIP, StepKind.ZLIB, StepKind.BLOSC)
)
"""Steps whose streams the vendor's decoder decodes."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step, which decodes one codec.

    Attributes
    ----------
    decoded_nbytes
        Size of every inner chunk after the step. Meaningless for a checksum that is
        verified ahead of a compressor, because sizes differ there.
    itemsize
        For `StepKind.SHUFFLE`, the size of an item.
    items
        For `StepKind.FILTER`, the parameters of the kernel.
    """

    kind: StepKind
    codec: str
    decoded_nbytes: int
    itemsize: int = 1
    items: ItemFilter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChain:
    """Steps of a device from encoded inner chunks to elements, and their layout.

    Attributes
    ----------
    encoded_nbytes
        Size of an encoded inner chunk; None if a compressor decides it.
    strides
        Bytes between neighbours in a decoded inner chunk, for each axis of the array.
    dtype
        Data type of the elements, with their stored byte order.
    is_swapped
        Whether the byte order is not native and `dtype` cannot express that.
    """

    steps: tuple[Step, ...]
    encoded_nbytes: int | None
    decoded_nbytes: int
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    is_swapped: bool

    @property
    def fused_nbytes(self) -> int:
        """Item size of a final byte shuffle that the scatter can undo; else 0."""
        last = self.steps[-1] if self.steps else None
        if last is None or self.dtype.itemsize not in FUSED_ITEMS:
            return 0
        is_shuffle = (
            last.kind is StepKind.SHUFFLE
            and last.itemsize == self.dtype.itemsize
            and self.decoded_nbytes < LIMIT
        )
        return self.dtype.itemsize if is_shuffle or last.kind is StepKind.BLOSC else 0

    @property
    def largest_nbytes(self) -> int:
        """Size of an inner chunk after the step that makes it largest.

        Filters may encode items to wider ones.
        """
        sizes = (step.decoded_nbytes for step in self.steps)
        return max(sizes, default=self.decoded_nbytes)

    @property
    def is_verified(self) -> bool:
        """Whether a checksum verifies all stored bytes before a decoder gets them."""
        return bool(self.steps) and self.steps[0].kind is StepKind.CRC32C

    @property
    def guards_rows(self) -> bool:
        """Whether a decoder may get damaged bytes, and so write outside of its rows.

        Rows are then decoded into arenas only, with canaries around them.
        """
        is_compressed = any(step.kind in COMPRESSED for step in self.steps)
        return is_compressed and not self.is_verified

    def store(self, chunk: NDArray[Any], stored: NDArray[np.uint8]) -> None:
        """Lay out a decoded inner chunk as the device would have laid it out.

        `chunk` is a host array in the array's axes, with any strides and byte order;
        `stored` is uint8, of shape (decoded_nbytes,), host, and aligned.
        """
        elements: NDArray[Any] = np.ndarray(
            chunk.shape, self.dtype, stored, strides=self.strides
        )
        elements[...] = chunk
        if self.is_swapped:
            # NumPy cannot express the other byte order for such data types.
            stored.view(f"u{self.dtype.itemsize}").byteswap(inplace=True)


def host_chain(layout: ArrayLayout, chunk_shape: tuple[int, ...]) -> DeviceChain:
    """Chain for an array that the host decodes: native elements in C order."""
    dtype = layout.dtype
    order = range(layout.ndim)
    nbytes = prod(chunk_shape) * dtype.itemsize
    return DeviceChain(
        steps=(),
        encoded_nbytes=nbytes,
        decoded_nbytes=nbytes,
        strides=_strides(chunk_shape, order, dtype.itemsize),
        dtype=dtype,
        is_swapped=False,
    )


def compile_device_chain(
    layout: ArrayLayout, chunk_shape: tuple[int, ...] | None
) -> DeviceChain:
    """Chain that decodes the inner chunks of an array on a device.

    `chunk_shape` is that of every inner chunk, in the array's axes; None if they
    differ. Raises `UnsupportedError` if a device cannot handle a codec, the order of
    codecs, the data type or the grid.
    """
    if chunk_shape is None:
        raise UnsupportedError("inner chunks of different shapes")
    chain, dtype = layout.chain, layout.dtype
    if chain.array_bytes.name != "bytes":
        raise _not_for_a_device(chain.array_bytes)
    n_items = prod(chunk_shape)
    order, filters = _array_steps(layout, n_items)
    stored, is_swapped = _stored_dtype(chain.array_bytes, dtype)
    nbytes = n_items * dtype.itemsize
    if filters:
        nbytes = _filtered_nbytes(chain.array_bytes, *filters[-1])
        stored, is_swapped = dtype, False
    bytes_steps, encoded_nbytes = _bytes_steps(chain.bytes_bytes, nbytes)
    filter_steps = (_filter_step(*f) for f in reversed(filters))
    return DeviceChain(
        steps=(*reversed(bytes_steps), *filter_steps),
        encoded_nbytes=encoded_nbytes,
        decoded_nbytes=n_items * dtype.itemsize,
        strides=_strides(chunk_shape, order, dtype.itemsize),
        dtype=stored,
        is_swapped=is_swapped,
    )


def _array_steps(
    layout: ArrayLayout, n_items: int
) -> tuple[tuple[int, ...], list[_Filter]]:
    """Order of the stored axes after all transposes, and filters in encoding order.

    Stored axis k is array axis ``order[k]``.
    """
    order = tuple(layout.outer_order)
    dtype = layout.dtype
    filters: list[_Filter] = []
    for spec in layout.chain.array_array:
        if spec.name == "transpose":
            if any(items.is_positional for _, items in filters):
                raise UnsupportedError(
                    "a transpose behind a filter that goes by the order of elements",
                    codec=spec.name,
                )
            order = tuple(order[k] for k in spec.configuration["order"])
            continue
        items = compile_filter(spec, dtype, n_items)
        if items is not None:
            filters.append((spec.name, items))
            dtype = items.encoded
    return order, filters


def _filter_step(codec: str, items: ItemFilter) -> Step:
    return Step(StepKind.FILTER, codec, items.decoded_nbytes, items=items)


def _filtered_nbytes(spec: CodecSpec, codec: str, items: ItemFilter) -> int:
    """Size of an inner chunk that the last filter has encoded."""
    if spec.configuration.get("endian") == "big" and items.encoded.itemsize > 1:
        raise UnsupportedError("a filter of items in the other byte order", codec=codec)
    return items.encoded_nbytes


def _strides(
    shape: tuple[int, ...], order: Sequence[int], itemsize: int
) -> tuple[int, ...]:
    strides = [0] * len(shape)
    step = itemsize
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def _stored_dtype(spec: CodecSpec, dtype: np.dtype[Any]) -> tuple[np.dtype[Any], bool]:
    """Data type in the stored byte order, and whether it cannot express that order."""
    if "fields" in spec.configuration:
        raise UnsupportedError("structs whose fields have both byte orders")
    if spec.configuration.get("endian") != "big" or dtype.itemsize == 1:
        return dtype, False
    if dtype.fields is not None:
        raise UnsupportedError("structs whose fields are in the other byte order")
    is_extension = dtype.kind == "V" and not issubclass(dtype.type, np.void)
    if is_extension:
        return dtype, True
    return (dtype, False) if dtype.kind in "SV" else (dtype.newbyteorder(">"), False)


def _bytes_steps(
    specs: Sequence[CodecSpec], nbytes: int
) -> tuple[list[Step], int | None]:
    """Steps in encoding order, and the encoded size if it is fixed.

    `nbytes` is the size of the input of the first codec.
    """
    steps: list[Step] = []
    size: int | None = nbytes
    for spec in specs:
        kind = _STEP_OF_CODEC.get(spec.name)
        if kind is None:
            raise _not_for_a_device(spec)
        if size is None and kind is not StepKind.CRC32C:
            raise UnsupportedError(
                "a codec behind a compressor whose decoded size is not known",
                codec=spec.name,
            )
        # The kernels count the bytes of shuffled blocks in 32 bits.
        if kind is not StepKind.CRC32C and (size or 0) > MAX_STREAM_NBYTES:
            raise UnsupportedError(
                "inner chunks larger than a device decodes",
                codec=spec.name,
                expected=f"at most {MAX_STREAM_NBYTES} bytes",
                got=size,
            )
        is_shuffle = kind is StepKind.SHUFFLE
        itemsize = spec.configuration["elementsize"] if is_shuffle else 1
        step = Step(kind, spec.name, size or 0, itemsize)
        if step.decoded_nbytes % step.itemsize:
            raise UnsupportedError(
                "inner chunks do not consist of whole items", codec=spec.name
            )
        steps.append(step)
        if kind is StepKind.CRC32C:
            size = None if size is None else size + _CHECKSUM_NBYTES
        elif kind is not StepKind.SHUFFLE:
            size = None
    return steps, size


def _not_for_a_device(spec: CodecSpec) -> UnsupportedError:
    return UnsupportedError("no kernel decodes this codec", codec=spec.name)

"""Values in device memory -> encoded inner chunks, compressed there by nvCOMP.

The host encodes everything else, and fetches the values once for it. Where nvCOMP would
have encoded it, but for want of memory or because it refused, a warning is logged once
for a codec, or for a size of inner chunks.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from gpushard.codecs.crc32c import with_checksum
from gpushard.device_reading.choice import share_nbytes
from gpushard.devices.base import Device, Event
from gpushard.devices.compressing import BatchCompressor, EncodedChunk, GatheredChunk
from gpushard.devices.gathering import Strided, row_copies
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.devices.output import (
    contiguous_strides,
    lies_on,
    refuse_unresolved,
    stream_of,
)
from gpushard.layout import ArrayLayout
from gpushard.selecting.selection import Orthogonal
from gpushard.source import Source
from gpushard.writing.regions import Box, Part
from gpushard.writing.shard import Bytes, Region, is_fill

_log = logging.getLogger("gpushard.devices")

_ALGORITHMS = {
    "zstd": Algorithm.ZSTD,
    "numcodecs.zstd": Algorithm.ZSTD,
    "numcodecs.lz4": Algorithm.LZ4,
    "gzip": Algorithm.GZIP,
    "numcodecs.gzip": Algorithm.GZIP,
    "numcodecs.zlib": Algorithm.DEFLATE,
}
# An inner chunk of only fill values compresses far better than this; some bytes are
# always needed.
_FILL_RATIO, _FILL_NBYTES = 16, 1024
_ZLIB_HEADER = b"\x78\x01"  # RFC 1950: deflate, a window of 32 KiB, no dictionary


class DeviceValues:
    """Values of a write that lie on a device, one axis per dimension of the array.

    They are computed once the events `ready` are complete. `fetch` returns them on the
    host, in the same layout as `lies`.
    """

    def __init__(
        self,
        source: Source,
        compressor: BatchCompressor,
        lies: Strided,
        ready: Sequence[Event],
        fetch: Callable[[], NDArray[Any]],
    ) -> None:
        self._source = source
        self._compressor = compressor
        self._algorithm = _algorithm_of(source.layout)
        self._lies = lies
        self._ready = ready
        self._fetch = fetch
        self._on_host: NDArray[Any] | None = None
        # Only one batch at a time uses the device's memory.
        self._lock = threading.Lock()

    @property
    def most_rows(self) -> int:
        """Inner chunks that are encoded at once."""
        return self._compressor.most_rows

    def on_host(self) -> NDArray[Any]:
        """The values in host memory, fetched when first asked for."""
        with self._lock:
            if self._on_host is None:
                self._on_host = self._fetch()
            return self._on_host

    def encoded(self, batch: Sequence[tuple[Region, Part]]) -> dict[int, Bytes | None]:
        """Bytes of the inner chunks that the device encodes, by place in the batch.

        None for an inner chunk that need not be stored.

        Raises
        ------
        DeviceError
            The device, or memory on it, fails.
        """
        gathered: dict[int, GatheredChunk] = {}
        for i, (region, part) in enumerate(batch):
            found = self._gathered(region, part)
            if found is not None:
                gathered[i] = found
        rows, encoded = list(gathered), dict[int, Bytes | None]()
        for start in range(0, len(rows), self.most_rows):
            members = rows[start : start + self.most_rows]
            done = self._compress([gathered[i] for i in members])
            for i, one in zip(members, done, strict=True):
                if one.stream is None:
                    _tell_once(f"nvCOMP's {self._algorithm.value} refuses some of them")
                else:
                    encoded[i] = self._stored(one.stream, one.decoded)
        return encoded

    def _compress(self, batch: list[GatheredChunk]) -> list[EncodedChunk]:
        layout = self._source.layout
        n_elements = self._compressor.chunk_nbytes // layout.dtype.itemsize
        fill = np.full(n_elements, layout.fill_value, layout.dtype).view(np.uint8)
        with self._lock:
            return self._compressor.compress(
                batch, fill, self._ready, self._is_looked_at
            )

    def _gathered(self, region: Region, part: Part) -> GatheredChunk | None:
        """How to assemble an inner chunk on the device; None if the host must do it."""
        if not isinstance(part, Box) or not part.covers(region.extents):
            return None
        axes = part.ranges
        if axes is None:
            return None
        address = self._lies.address
        pairs = list(zip(axes, self._lies.strides, strict=True))
        lies = Strided(
            address + sum(axis.out_start * stride for axis, stride in pairs),
            tuple(axis.out_step * stride for axis, stride in pairs),
        )
        itemsize = self._source.layout.dtype.itemsize
        to = Strided(0, contiguous_strides(region.shape, itemsize))
        copies = row_copies(to, lies, region.extents, itemsize)
        if copies is None:
            return None
        return GatheredChunk(copies, region.extents != region.shape)

    def _is_looked_at(self, nbytes: int) -> bool:
        if self._algorithm is Algorithm.DEFLATE:
            return True  # for its checksum
        if self._source.options.write.write_empty_chunks:
            return False
        most = self._compressor.chunk_nbytes // _FILL_RATIO + _FILL_NBYTES
        return nbytes <= most

    def _stored(self, stream: Bytes, decoded: Bytes | None) -> Bytes | None:
        """Bytes of an inner chunk: its stream with headers and checksums."""
        layout = self._source.layout
        keeps_empty = self._source.options.write.write_empty_chunks
        if decoded is not None and not keeps_empty:
            values = decoded.view(layout.dtype)
            if is_fill(values, layout.fill_value):
                return None
        data = stream.tobytes()
        name, *others = layout.chain.bytes_bytes
        if name.name == "numcodecs.lz4":
            data = self._compressor.chunk_nbytes.to_bytes(4, "little") + data
        elif self._algorithm is Algorithm.DEFLATE and decoded is not None:
            data = _ZLIB_HEADER + data + zlib.adler32(decoded).to_bytes(4, "big")
        for _ in others:
            data = with_checksum(data)
        return np.frombuffer(data, np.uint8)


def values_on_device(
    source: Source,
    selection: Orthogonal,
    value: Any,
    device: Device,
    fetch: Callable[[], NDArray[Any]],
) -> DeviceValues | None:
    """`value` for encoding on the device; None if the host must encode all of it.

    `value` has ``__cuda_array_interface__``. If it names its device, that is `device`.
    Raises as `refuse_unresolved`.
    """
    refuse_unresolved(value)
    layout = source.layout
    shape = source.chunk_shape
    interface = value.__cuda_array_interface__
    if (
        shape is None
        or np.dtype(interface["typestr"]) != layout.dtype
        or not lies_on(value, device)
        or not _is_encodable(layout)
    ):
        return None
    lies = _laid_out(interface, selection, layout.dtype)
    chunk_nbytes = prod(shape) * layout.dtype.itemsize
    algorithm = _algorithm_of(layout)
    if lies is None or not 0 < chunk_nbytes <= algorithm.max_encodable_nbytes:
        return None
    device.check()
    compressor = _compressor(source, device, algorithm, chunk_nbytes)
    if not compressor.most_rows:
        _tell_once(
            f"nvCOMP's {algorithm.value} needs more memory for one of "
            f"{chunk_nbytes} bytes than memory_limit allows or half of what is free"
        )
        return None
    handles = {device.current_stream(), stream_of(value, interface) or 0}
    ready = [device.record(handle) for handle in sorted(handles)]
    return DeviceValues(source, compressor, lies, ready, fetch)


def _compressor(
    source: Source, device: Device, algorithm: Algorithm, chunk_nbytes: int
) -> BatchCompressor:
    """The encoder; scratch has more room on a device than batches on the host."""
    batch_nbytes = limit_nbytes = source.options.memory_limit
    if source.options.is_left_open:
        limit_nbytes = max(limit_nbytes, share_nbytes(device))
    limit_nbytes = min(limit_nbytes, device.free_nbytes() // 2)
    return BatchCompressor(
        device,
        algorithm,
        chunk_nbytes=chunk_nbytes,
        batch_nbytes=batch_nbytes,
        limit_nbytes=limit_nbytes,
        patience_s=source.options.device_patience_s,
    )


@cache
def _tell_once(why: str) -> None:
    _log.warning("the host encodes inner chunks that lie on a device: %s", why)


def _is_encodable(layout: ArrayLayout) -> bool:
    """Whether inner chunks are little-endian elements in C order, then compressed."""
    chain, dtype = layout.chain, layout.dtype
    endian = chain.array_bytes.configuration.get("endian", "little")
    is_plain = (
        not chain.array_array
        and chain.array_bytes.name == "bytes"
        and layout.outer_order == tuple(range(layout.ndim))
        and dtype.kind in "biufc"
        and dtype == dtype.newbyteorder("<")
        and (endian == "little" or dtype.itemsize == 1)
    )
    if not is_plain or not chain.bytes_bytes:
        return False
    first, *others = chain.bytes_bytes
    return (
        first.name in _ALGORITHMS
        # nvCOMP writes no checksums into its frames.
        and not first.configuration.get("checksum", False)
        and all(spec.name == "crc32c" for spec in others)
    )


def _algorithm_of(layout: ArrayLayout) -> Algorithm:
    return _ALGORITHMS[layout.chain.bytes_bytes[0].name]


def _laid_out(
    interface: dict[str, Any], selection: Orthogonal, dtype: np.dtype[Any]
) -> Strided | None:
    """Where values lie, one axis per array dimension; None if they do not fit."""
    shape = tuple(interface["shape"])
    strides = interface.get("strides") or contiguous_strides(shape, dtype.itemsize)
    # A host array that is never accessed: NumPy only computes its strides.
    room = np.zeros((), dtype)
    shadow = as_strided(room, shape, strides, writeable=False)
    try:
        view = selection.on_grid(np.broadcast_to(shadow, selection.shape))
    except ValueError:
        return None  # the host says what is wrong
    # Basic indexing of whole axes: the first element stays the first.
    return Strided(interface["data"][0], view.strides)

"""Reusable memory of a lane: slabs that grow, and tables packed for one upload."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.base import Device, DeviceBuffer

_ALIGNMENT = 16
# Slabs grow by at least half, so that batches of growing size need few allocations.
_GROWTH = 3 / 2
_UNBOUNDED = 2**62
_NOTHING = np.empty(0, np.uint8)


class Slab:
    """Device memory that is allocated again only when more is needed.

    It grows ahead of need, up to `most_nbytes`. A slab that became too small is kept
    until `settle`, because work that is under way may use it.
    """

    def __init__(self, device: Device, most_nbytes: int = _UNBOUNDED) -> None:
        self._device = device
        self._most_nbytes = most_nbytes
        self._buffer: DeviceBuffer | None = None
        self._outgrown: list[DeviceBuffer] = []

    def address(self, nbytes: int) -> int:
        """Address of at least `nbytes` bytes, aligned to 256."""
        if self._buffer is not None and self._buffer.nbytes < nbytes:
            self._outgrown.append(self._buffer)
        return self.address_anew(nbytes)

    def address_anew(self, nbytes: int) -> int:
        """As `address`, for callers with no work under way that uses the slab."""
        held = 0 if self._buffer is None else self._buffer.nbytes
        if self._buffer is None or held < nbytes:
            ahead = min(int(held * _GROWTH), self._most_nbytes)
            self._buffer = None  # freed first, so that two never exist at once
            self._buffer = self._device.allocate(max(nbytes, ahead, 256))
        return self._buffer.address

    def settle(self) -> None:
        """Free the slabs that were too small; no work may use them any more."""
        self._outgrown.clear()

    def release(self) -> None:
        """Free all memory; no work may use it any more."""
        self._buffer = None
        self._outgrown.clear()


def pooled_nbytes(nbytes: int) -> int:
    """The next larger of few sizes, which are a third or a half apart.

    Memory of these sizes fits who asks next. Otherwise it is pinned anew, which takes
    half a millisecond for a MiB, and stays pinned (`devices.pinned`).
    """
    whole = 1 << (max(nbytes, 2) - 1).bit_length()
    return whole * 3 // 4 if nbytes <= whole * 3 // 4 else whole


class PinnedSlab:
    """Pinned host memory that is allocated again only when more is needed.

    It grows ahead of need, up to `most_nbytes`, and in steps of `pooled_nbytes`.
    """

    def __init__(self, device: Device, most_nbytes: int = _UNBOUNDED) -> None:
        self._device = device
        self._most_nbytes = most_nbytes
        self._memory = _NOTHING

    def view(self, nbytes: int) -> NDArray[np.uint8]:
        """First `nbytes` bytes of the slab: uint8, host, pinned."""
        if len(self._memory) < nbytes:
            ahead = pooled_nbytes(max(nbytes, int(len(self._memory) * _GROWTH)))
            ahead = min(ahead, self._most_nbytes)
            self._memory = _NOTHING  # freed first, so that two never exist at once
            self._memory = self._device.allocate_pinned(max(nbytes, ahead, 256))
        return self._memory[:nbytes]

    def release(self) -> None:
        """Free all memory; no copy to it or from it may be under way any more."""
        self._memory = _NOTHING


class TablePage:
    """Columns side by side in one piece of memory: some uploaded, some only reserved.

    `add` and `reserve` give offsets. Addresses follow once the page has a place.
    """

    def __init__(self) -> None:
        self._columns: list[tuple[int, NDArray[np.uint8]]] = []
        self.nbytes = 0
        self.upload_nbytes = 0

    def add(self, column: NDArray[Any]) -> int:
        """Offset of a column that is uploaded; add these before `reserve`."""
        data = np.ascontiguousarray(column).reshape(-1).view(np.uint8)
        offset = self.reserve(data.nbytes)
        self._columns.append((offset, data))
        self.upload_nbytes = offset + data.nbytes
        return offset

    def reserve(self, nbytes: int) -> int:
        """Offset of `nbytes` bytes that the device writes."""
        offset = self.nbytes
        self.nbytes += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return offset

    def write(self, memory: NDArray[np.uint8]) -> None:
        """Write the columns to upload into `memory`, of `upload_nbytes` bytes."""
        for offset, data in self._columns:
            memory[offset : offset + len(data)] = data

    def packed(self) -> NDArray[np.uint8]:
        """The columns to upload: uint8, host, shape (nbytes,)."""
        memory = np.zeros(self.nbytes, np.uint8)
        self.write(memory)
        return memory

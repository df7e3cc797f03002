"""Payload in a store -> device memory of a lane, or a slot of the ring instead."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.lane import Lane
from gpushard.devices.payload.landing import (
    Answers,
    Encoded,
    Landed,
    laid_out,
    read_back,
)
from gpushard.errors import DeviceMemoryError
from gpushard.fetching.job import Job
from gpushard.selecting.selection import Ints
from gpushard.stores.base import ByteRequest


class Fetch(Protocol):
    """Brings payload to where a batch takes it from."""

    @property
    def label(self) -> str:
        """How, for reports."""
        ...

    @property
    def batch_nbytes(self) -> int:
        """Bytes that are best fetched at once."""
        ...

    def fetch(
        self, job: Job, requests: Sequence[ByteRequest], n_rows: int
    ) -> AbstractContextManager[Answers]:
        """Answers that last as the context does; see `Sink.fetch`."""
        ...


@dataclass(frozen=True, slots=True)
class LaneLanding:
    """Device memory of a lane, starting at `address`."""

    lane: Lane
    address: int

    def bring(self, lane: Lane, encoded: Encoded) -> NDArray[np.uint64]:
        """Addresses at which the bytes are already."""
        del lane
        return (encoded.at + self.address).astype(np.uint64)

    def on_host(self, encoded: Encoded) -> tuple[NDArray[np.uint8], Ints]:
        """Memory that they are read back to."""
        return read_back(self.lane, self.bring(self.lane, encoded), encoded.nbytes)


Reading = Callable[[Lane, Sequence[int]], None]
"""Reads each range of some requests to an address on a lane. Work that is queued on the
lane's stream afterwards finds the bytes there. Raises as any fetch.
"""

ForDevice = Callable[[Job, int, int], bool]
"""Whether a device shall decode so many inner chunks with so many bytes together."""


class LaneFetch(ABC):
    """Reads ranges into device memory; uses the ring for what cannot be read so.

    Parameters
    ----------
    ring
        Also fetches what the host is going to decode.
    lane
        Returns a lane whose last batch is settled.
    is_for_device
        Whether the device decodes.
    label
        How it reads, for reports.
    """

    alignment: ClassVar[int]
    """An address modulo this is the same as the offset in the file."""

    def __init__(
        self,
        ring: Fetch,
        lane: Callable[[], AbstractContextManager[Lane]],
        is_for_device: ForDevice,
        label: str,
    ) -> None:
        self.label = label
        self.batch_nbytes = ring.batch_nbytes
        self._ring = ring
        self._lane = lane
        self._is_for_device = is_for_device

    @abstractmethod
    def begin(self, job: Job, requests: Sequence[ByteRequest]) -> Reading | None:
        """What reads the ranges, whose objects are open then; None if nothing can."""

    @contextmanager
    def fetch(
        self, job: Job, requests: Sequence[ByteRequest], n_rows: int
    ) -> Iterator[Answers]:
        """Answers in the memory of a lane, which is held until the context ends.

        Raises as any fetch.
        """
        places, nbytes = laid_out(requests, self.alignment)
        reading = None
        if self._is_for_device(job, n_rows, nbytes):
            reading = self.begin(job, requests)
        if reading is not None:
            with self._lane() as lane:
                with job.tally.stage("fetch"):
                    landing = _landed(reading, lane, places, nbytes)
                if landing is not None:
                    yield [Landed(landing, at) for at in places]
                    return
        with self._ring.fetch(job, requests, n_rows) as answers:
            yield answers


def _landed(
    reading: Reading, lane: Lane, places: Sequence[int], nbytes: int
) -> LaneLanding | None:
    """Memory of a lane that ranges were read to; None if there is not enough memory."""
    try:
        landing = LaneLanding(lane, lane.landing_address(nbytes))
        reading(lane, [landing.address + at for at in places])
    except DeviceMemoryError:
        return None
    return landing

"""Whether a device or the host decodes the inner chunks of a batch."""

from __future__ import annotations

import numpy as np

from gpushard.codecs.blosc_frame import HEADER_NBYTES
from gpushard.device_reading.host_rows import decoding, rates_here
from gpushard.device_reading.payload.answers import FetchedChunks
from gpushard.devices.base import Device
from gpushard.devices.decoding.chain import COMPRESSED, DeviceChain, Step, StepKind
from gpushard.devices.placement import Costs, estimate, workload_of
from gpushard.fetching.job import Job

# What is known of an array: the first bytes of the last inner chunk that was looked at.
_HEADER = "header of a frame"
_NOTHING = np.empty(0, np.uint8)


class Decider:
    """Decides by the option `placement`, or by estimated costs.

    It does not refer to the sink that asks it. Otherwise the two would form a cycle,
    and a sink's memory would stay until a garbage collection.

    Parameters
    ----------
    n_lanes
        Lanes whose batches the host may decode at the same time.

    Attributes
    ----------
    chain
        What the device does to the inner chunks.
    """

    def __init__(self, device: Device, chain: DeviceChain, n_lanes: int) -> None:
        self._device = device
        self._n_lanes = n_lanes
        self.chain = chain
        compressed = (step for step in chain.steps if step.kind in COMPRESSED)
        self._step: Step | None = next(compressed, None)

    def expects_device(self, job: Job, n_rows: int, nbytes: int) -> bool:
        """Whether the device is known to decode inner chunks that are to be fetched."""
        return self._expected(job, n_rows, nbytes) is True

    def expects_host(self, job: Job, n_rows: int, nbytes: int) -> bool:
        """Whether the host is known to decode inner chunks that are to be fetched."""
        return self._expected(job, n_rows, nbytes) is False

    def _expected(self, job: Job, n_rows: int, nbytes: int) -> bool | None:
        """Whether the device decodes; None if only the header of a frame can tell."""
        step = self._step
        if step is None or job.source.options.placement != "cost":
            return job.source.options.placement != "host"
        if step.kind is StepKind.BLOSC and _HEADER not in job.source.facts:
            return None
        costs = self._costs(job, step, n_rows, nbytes)
        return costs.device <= costs.host

    def decide(self, job: Job, encoded: FetchedChunks) -> bool:
        """Whether the device decodes these inner chunks, which were fetched."""
        step = self._step
        if step is None or job.source.options.placement != "cost":
            return job.source.options.placement != "host"
        first = encoded.payload.first_on_host(encoded)
        if first is not None:
            job.source.facts[_HEADER] = first[:HEADER_NBYTES].copy()
        costs = self._costs(job, step, len(encoded), int(encoded.nbytes.sum()))
        job.tally.add_seconds("estimated on the device", costs.device)
        job.tally.add_seconds("estimated on the host", costs.host)
        return costs.device <= costs.host

    def _costs(self, job: Job, step: Step, n_rows: int, nbytes: int) -> Costs:
        header = job.source.facts.get(_HEADER, _NOTHING)
        host = decoding(self.chain, job.source, self._n_lanes)
        workload = workload_of(step, n_rows, nbytes, header)
        return estimate(workload, host, rates_here(self._device.rates))

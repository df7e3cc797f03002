"""Every launch of a batch alone: what a real read asked of the device, asked again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import numpy as np

from benchmarks.gpu.arrays import Layout, store
from benchmarks.gpu.gpu import rate
from gpushard import Options, open_array
from gpushard.device_reading.read import DeviceRead, read_to_device
from gpushard.device_reading.sink import most_rows
from gpushard.devices import budget
from gpushard.devices.base import Device
from gpushard.devices.nvcomp import Nvcomp, StreamTables
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.devices.output import DeviceOutput
from gpushard.fetching.job import Job
from gpushard.report import Tally
from gpushard.selecting.selection import whole

if TYPE_CHECKING:
    from benchmarks.gpu.run import Run
    from benchmarks.gpu.sizes import Sizes

# Layouts of plain or shuffled elements, by what the scatter has to do: width of an
# inner chunk in elements, and the codec. Rows of 4 KiB, of 64 bytes, ...
SCATTERS = {
    "scatter-4096": (1024, "none"),
    "scatter-128": (32, "none"),
    "scatter-64": (16, "none"),
    "scatter-unshuffle": (1024, "shuffle"),
    "scatter-transposed": (256, "transpose"),
}


# What counts from the zeros of the tables on, or changes what it was given: it goes
# behind these each time, and what they take alone is taken off.
_BEHIND = {
    "gs_blosc_count": ("upload",),
    "gs_realign": ("upload", "gs_gate_zlib"),
    "gs_blosc_copy": ("upload", "gs_blosc_fill"),
}
_TICK_S = 1e-7  # what is shorter is not told apart


class Call(NamedTuple):
    """Something that was asked of a device.

    Attributes
    ----------
    kind, what
        "kernel", "decode" or "upload", and which.
    again
        Asks the same on a stream.
    """

    kind: str
    what: str
    again: Callable[[int], None]


class Recorder:
    """A device that notes what is asked of it.

    What was asked can be asked again as long as the memory that it works on is kept:
    kernels and decoders write the same to the same place, but for those that are
    asked behind others (`_BEHIND`).
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.calls: list[Call] = []
        self.wait_seconds: list[float] = []
        self.decoder: Any = RecordedDecoder(device.decoder, self.calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def launch(
        self, kernel: str, grid: tuple[int, int], parameters: Sequence[Any], stream: int
    ) -> None:
        """Launch, and note it."""
        self._device.launch(kernel, grid, parameters, stream)
        self.calls.append(
            Call(
                "kernel",
                kernel,
                partial(self._device.launch, kernel, grid, parameters),
            )
        )

    def upload(self, address: int, data: Any, stream: int) -> None:
        """Upload, and note it."""
        self._device.upload(address, data, stream)
        self.calls.append(
            Call(
                "upload",
                str(len(data)),
                partial(self._device.upload, address, data),
            )
        )

    def wait(self, event: Any) -> None:
        """Wait, and note how long."""
        started = perf_counter()
        self._device.wait(event)
        self.wait_seconds.append(perf_counter() - started)

    def wait_for(self, stream: int) -> None:
        """Wait, and note how long."""
        started = perf_counter()
        self._device.wait_for(stream)
        self.wait_seconds.append(perf_counter() - started)


class RecordedDecoder:
    """A decoder that notes what it is asked to decode."""

    def __init__(self, decoder: Nvcomp, calls: list[Call]) -> None:
        self._decoder, self._calls = decoder, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def decompress_async(
        self,
        algorithm: Algorithm,
        tables: StreamTables,
        temp: int,
        temp_nbytes: int,
        stream: int,
    ) -> None:
        """Decode, and note it."""
        decode = self._decoder.decompress_async
        again = partial(decode, algorithm, tables, temp, temp_nbytes)
        again(stream)
        self._calls.append(Call("decode", algorithm.value, again))


def finished(read: DeviceRead) -> Job:
    """Job of a read that the device has done.

    Raises
    ------
    RuntimeError
        The host would have to scatter.
    """
    job = read_to_device(read)
    if job is None:
        raise RuntimeError("the device has no room for the tables of a read")
    return job


def scatter(name: str, run: Run) -> None:
    """One scatter of a large batch alone, beside a copy of the same bytes."""
    _replay(run, f"kernels/{name}", scatter_layout(run.sizes, name))


def scatter_layout(sizes: Sizes, name: str) -> Layout:
    """Array of one batch, for one of `SCATTERS`."""
    width, codec = SCATTERS[name]
    nbytes = min(sizes.sweep_nbytes, most_rows(sizes.usual) * sizes.usual)
    width = min(width, sizes.width // 2)
    return Layout.of(sizes, codec, sizes.usual, nbytes, width)


def batch(codec: str, run: Run) -> None:
    """Every launch of one batch alone, for every size of inner chunks."""
    for inner in run.sizes.inner_nbytes:
        layout = batch_layout(run.sizes, codec, inner)
        _replay(run, f"kernels/{codec}/{inner}", layout)


def batch_layout(sizes: Sizes, codec: str, inner: int) -> Layout:
    """Array of one batch, with inner chunks of `inner` bytes."""
    nbytes = min(sizes.sweep_nbytes, most_rows(inner) * inner)
    return Layout.of(sizes, codec, inner, nbytes)


def _replay(run: Run, name: str, layout: Layout) -> None:
    """Row with a column for each launch of a read in one batch."""
    if not run.wants(name):
        return
    stored = store(layout, run.root)
    recorder = Recorder(run.machine.device)
    device: Any = recorder
    # All in one batch: as many rows as it may have, and all bytes in one slot.
    options = Options(placement="device", memory_limit=64 * layout.nbytes, threads=1)
    a = open_array(stored.path, device="cpu", options=options)
    buffer = device.allocate(layout.nbytes)
    strides = (layout.shape[1] * a.dtype.itemsize, a.dtype.itemsize)
    output = DeviceOutput(buffer.address, layout.shape, strides, a.dtype)
    read = DeviceRead(a.source, [whole(a.shape)], [output], device, Tally())
    # The job keeps the memory of the batch, which reads cut sooner.
    with mock.patch.object(budget, "MAX_ENCODED_NBYTES", 2 * layout.nbytes):
        job = finished(read)
    calls = _of_the_batch(recorder.calls)
    stream = device.create_stream()
    found = [
        {
            "kind": call.kind,
            "what": call.what,
            **rate(layout.nbytes, _seconds(run, stream, calls, k)),
        }
        for k, call in enumerate(calls)
    ]
    copies = run.timed(
        stream,
        lambda: run.machine.copy(
            buffer.address,
            buffer.address + layout.nbytes // 2,
            layout.nbytes // 2,
            stream,
        ),
    )
    run.put(
        name,
        nbytes=layout.nbytes,
        n_inner_chunks=job.tally.counts["n_inner_chunks"],
        encoded_nbytes=int(job.tally.counts.get("payload_nbytes", 0)),
        n_batches=sum(call.what.startswith("gs_scatter") for call in recorder.calls),
        calls=found,
        # The last ones are those for a verdict; before, Blosc's for its counts.
        wait_seconds=recorder.wait_seconds,
        # Half of the bytes, within the output: the same number of bytes takes twice.
        copy_seconds=2 * float(np.median(copies)),
        decode_seconds=_sum(found, lambda f: not f["what"].startswith("gs_scatter")),
        vendor_seconds=_sum(found, lambda f: f["kind"] == "decode"),
        scatter_seconds=_sum(found, lambda f: f["what"].startswith("gs_scatter")),
    )


def _seconds(run: Run, stream: int, calls: list[Call], k: int) -> list[float]:
    """Seconds that the kth call of a batch takes, several times."""
    ahead = _ahead(calls, k)

    def ask(some: list[Call]) -> None:
        for call in some:
            call.again(stream)

    seconds = run.timed(stream, lambda: ask([*ahead, calls[k]]))
    if not ahead:
        return seconds
    others = float(np.median(run.timed(stream, lambda: ask(ahead))))
    return [max(found - others, _TICK_S) for found in seconds]


def _ahead(calls: list[Call], k: int) -> list[Call]:
    """Calls that the kth goes behind each time."""
    names = {*_BEHIND.get(calls[k].what, ())}
    found = [call for call in calls[:k] if names & {call.kind, call.what}]
    # Of the uploads the last one, of the tables: encoded bytes stay as they are.
    n_uploads = sum(call.kind == "upload" for call in found)
    return found[max(n_uploads - 1, 0) :]


def _of_the_batch(calls: list[Call]) -> list[Call]:
    """Calls of the last batch: those behind the scatter of the one before."""
    ends = [i for i, call in enumerate(calls) if call.what.startswith("gs_scatter")]
    first = ends[-2] + 1 if len(ends) > 1 else 0
    return calls[first : ends[-1] + 1] if ends else calls


def _sum(
    found: list[dict[str, Any]], chosen: Callable[[dict[str, Any]], bool]
) -> float:
    return sum(float(np.median(f["seconds"])) for f in found if chosen(f))

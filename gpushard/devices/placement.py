"""Estimated costs -> whether streams are decoded on a device or on the host.

Pure arithmetic. Of the rates below, [g] was measured by this code on a GPU (NVIDIA
H200, nvCOMP 6.0), [m] on a CPU, [e] is an estimate. A decoder's rate depends on the
size of its streams (zstd's: 31 GB/s at 4 KiB, 65 at 64 KiB, 50 at 1 MiB); one number
for all sizes is off by less than half, which placement does not notice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs import blosc_frame
from gpushard.devices.decoding.chain import Step, StepKind
from gpushard.layout import CodecSpec
from gpushard.options import KIB

# Used without a header: the block size that Blosc gives large inner chunks at level 5.
_USUAL_BLOCK_NBYTES = 128 * KIB


# CPUs are often halves of a core, and share caches and memory. 16 threads: 0.5 GB/s of
# zstd each, 0.12 of gzip by zlib [g]; alone 1.0 and 0.25 [m].
TOGETHER = 0.5


@dataclass(frozen=True, slots=True)
class Rates:
    """Decoding speeds, in decoded bytes per second.

    Of a `device` with enough streams to be busy, of one with a single `stream`, and of
    a thread of the `host` that decodes alone. If as many threads decode as there are
    CPUs, each has the part `together` of that.
    """

    device: float
    stream: float
    host: float
    together: float = TOGETHER


RATES: Mapping[str, Rates] = MappingProxyType(
    {
        "zstd": Rates(45e9, 65e6, 1.0e9),  # [g] [g], 14 MB in 14 ms [m]
        "lz4": Rates(100e9, 60e6, 3.0e9),  # [e] [g] [e]
        # By libdeflate, 0.37 GB/s [m].
        "gzip": Rates(20e9, 25e6, 0.4e9),  # [e] [g]
        "zlib": Rates(20e9, 25e6, 0.4e9),  # [e] [g]
        # 32 KiB in 5.2 and in 20.8 microseconds [m]. Streams are those of above.
        "blosc-lz4": Rates(100e9, 60e6, 6.3e9),
        "blosc-zstd": Rates(45e9, 65e6, 1.6e9),
        "blosc-snappy": Rates(100e9, 60e6, 2.0e9),  # [e] [e] [e]
        "blosc-zlib": Rates(20e9, 25e6, 0.4e9),
    }
)
"""Coding -> its rates; a device may have rates of its own."""

# Without libdeflate: 0.27 GB/s [m].
_BY_ZLIB = MappingProxyType(
    {name: replace(RATES[name], host=0.25e9) for name in ("gzip", "zlib")}
)


def without_libdeflate(rates: Mapping[str, Rates]) -> Mapping[str, Rates]:
    """`rates`, in which zlib decodes what `RATES` says of libdeflate.

    Those that were measured are of whatever decodes here.
    """
    found = {k: r for k, r in _BY_ZLIB.items() if rates.get(k) is RATES[k]}
    return {**rates, **found}


MEASURED = frozenset(("zstd", "blosc-zstd"))
"""Codings whose rate of many streams is [g] above."""

_FRAMES = {"lz4hc": "lz4"}


# Decoded bytes per second of one thread, of codecs that no table above has [e].
_CHEAP = MappingProxyType({"bytes": 3e9, "crc32c": 6e9, "transpose": 1e9})
_UNKNOWN_RATE = 0.1e9


def has_decoder(spec: CodecSpec) -> bool:
    """Whether a device decodes the output of a compressor with this configuration.

    A Blosc frame names its compressor itself; the configuration only says which one to
    expect.
    """
    return spec.configuration.get("cname") is None or _coding(spec) in RATES


def host_rate(specs: Sequence[CodecSpec], rates: Mapping[str, Rates]) -> float:
    """Decoded bytes per second of one thread, by the slowest of these codecs."""
    found = [rates.get(_coding(spec)) for spec in specs]
    return min(
        _CHEAP.get(spec.name, _UNKNOWN_RATE) if known is None else known.host
        for spec, known in zip(specs, found, strict=True)
    )


def _coding(spec: CodecSpec) -> str:
    """Key of `RATES` for a codec, if it has one."""
    compressor = spec.configuration.get("cname")
    if compressor is None:
        return spec.name.removeprefix("numcodecs.")
    return f"blosc-{_FRAMES.get(compressor, compressor)}"


# Pinned memory over PCIe 5 [g].
UPLOAD_NBYTES_PER_SECOND = 55e9


# An inner chunk that the host decodes for a device holds the interpreter's lock for so
# long, whatever the number of threads [e]: 1,024 of 4 KiB took 50 us each in all [g].
HOST_ROW_S = 40e-6
# The same if the compiled loops decode it: its columns [m].
LOOPS_ROW_S = 1e-6
# What all threads of a host write to memory, whatever decodes [g].
HOST_NBYTES_PER_SECOND = 35e9


class Workload(NamedTuple):
    """Inner chunks to be decoded side by side.

    Attributes
    ----------
    coding
        Key of `RATES`, or a coding that no device decodes.
    encoded_nbytes, decoded_nbytes
        Sizes of all `n_rows` inner chunks together.
    largest_nbytes
        Decoded size of the largest stream.
    """

    coding: str
    n_rows: int
    encoded_nbytes: int
    decoded_nbytes: int
    largest_nbytes: int


class HostDecoding(NamedTuple):
    """What decodes on the host.

    Attributes
    ----------
    threads
        Threads that decode at once, no more than `n_cpus`.
    n_cpus
        CPUs that this process may use.
    row_s
        What the host needs for an inner chunk beside its decoder.
    """

    threads: int
    n_cpus: int
    row_s: float = HOST_ROW_S


class Costs(NamedTuple):
    """Estimated time for a load on a device and on the host, in seconds."""

    device: float
    host: float


def workload_of(
    step: Step, n_rows: int, encoded_nbytes: int, first: NDArray[np.uint8]
) -> Workload:
    """Load of `n_rows` inner chunks whose compressor `step` decodes.

    They have `encoded_nbytes` together. `first` has the encoded bytes of one of them,
    host, for the header of a Blosc frame.
    """
    coding, largest = step.kind.value, step.decoded_nbytes
    if step.kind is StepKind.BLOSC:
        compressor, largest = _blosc_stream(first, step.decoded_nbytes)
        coding = f"blosc-{compressor}"
    decoded_nbytes = n_rows * step.decoded_nbytes
    return Workload(coding, n_rows, encoded_nbytes, decoded_nbytes, largest)


def _blosc_stream(frame: NDArray[np.uint8], decoded_nbytes: int) -> tuple[str, int]:
    """Compressor and decoded stream size that the header of a Blosc frame claims."""
    compressors = blosc_frame.COMPRESSORS
    if len(frame) < blosc_frame.HEADER_NBYTES:
        return compressors[-1], min(_USUAL_BLOCK_NBYTES, decoded_nbytes)
    flags, typesize = int(frame[2]), int(frame[3])
    block_nbytes = int.from_bytes(frame[8:12].tobytes(), "little")
    stream_nbytes = min(max(block_nbytes, 1), decoded_nbytes)
    stream_nbytes //= blosc_frame.splits_of(flags, typesize, stream_nbytes)
    number = min(flags >> 5, len(compressors) - 1)
    return compressors[number], stream_nbytes


def estimate(
    workload: Workload, host: HostDecoding, rates: Mapping[str, Rates] = RATES
) -> Costs:
    """Estimated time on a device and on the host.

    Decoding and copying overlap, so the slower of the two counts. One thread decodes an
    inner chunk, so that a few large ones keep only so many threads busy, and the last
    of them only some.
    """
    known = rates.get(workload.coding)
    written = workload.decoded_nbytes / HOST_NBYTES_PER_SECOND  # and the bus is faster
    if known is None:
        return Costs(inf, written)
    on_device = max(
        workload.decoded_nbytes / known.device,
        workload.largest_nbytes / known.stream,
        workload.encoded_nbytes / UPLOAD_NBYTES_PER_SECOND,
    )
    n_threads = max(1, min(host.threads, workload.n_rows))
    # So many threads that decode alone would be as fast as all of these together.
    n_alone = min(n_threads, max(1.0, known.together * host.n_cpus))
    n_turns = max(-(-workload.n_rows // n_threads), workload.n_rows / n_alone)
    decoding = n_turns * workload.decoded_nbytes / (workload.n_rows * known.host)
    on_host = max(decoding, written) + workload.n_rows * host.row_s
    return Costs(on_device, on_host)

"""Which shapes and codecs would let a GPU read an array best, and why.

This is arithmetic on the rates in `devices.placement`. Each reason marks its figure as
measured on a GPU, [g], or on a CPU, [m], or as an estimate, [e].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any, NamedTuple

from gpushard.converting.shapes import Shape, halved_until, shard_shape
from gpushard.devices.decoding.chain import (
    COMPRESSED,
    DeviceChain,
    compile_device_chain,
)
from gpushard.devices.placement import (
    MEASURED,
    RATES,
    UPLOAD_NBYTES_PER_SECOND,
    Costs,
    HostDecoding,
    Workload,
    estimate,
)
from gpushard.errors import UnsupportedError
from gpushard.layout import ArrayLayout, CodecSpec
from gpushard.options import GIB, KIB, MIB

READ_NBYTES = 256 * MIB
"""Decoded size of the read that advice is for: a batch of a loader or of dask."""
USUAL_RATIO = 2.0
"""Assumed ratio of decoded to stored size for an array of which nothing is known."""

# Below this size of a stream, its entries in indexes and tables begin to count [e].
_LEAST_STREAM_NBYTES = 32 * KIB
# Size of the blocks that Blosc cuts larger inner chunks into, by default [m].
_BLOSC_STREAM_NBYTES = {"lz4": 128 * KIB}
_BLOSC_STREAM_USUAL_NBYTES = 256 * KIB
# Largest inner chunk advised for Blosc: it is fetched, and on the host decoded, whole.
_MOST_BLOSC_NBYTES = 16 * MIB
_BLOSC_ALIASES = {"lz4hc": "lz4"}
_SMALL_SHARD_NBYTES, _LARGE_SHARD_NBYTES = 8 * MIB, GIB
_SLOW = ("gzip", "zlib", "blosc-zlib")
_DEFAULT = "zstd"


class _Given(NamedTuple):
    """What costs depend on, in addition to the plan.

    Attributes
    ----------
    threads
        Number of threads of the host.
    ratio
        Decoded size over stored size.
    """

    threads: int
    ratio: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Shapes and codec of an array, and the estimated cost of reading `READ_NBYTES`.

    Attributes
    ----------
    shards
        Shard shape; None without shards.
    chunks
        Inner chunk shape.
    compressor
        Value for `gpushard convert --compressors`; "keep" means the array's own.
    coding
        The encoding to decode: a key of `RATES`, "raw", or another codec's name.
    n_streams
        Number of streams in such a read that a device decodes in parallel.
    costs
        Estimated seconds on a device and on the host's threads.
    """

    shards: Shape | None
    chunks: Shape
    compressor: str
    coding: str
    n_streams: int
    costs: Costs


@dataclass(frozen=True, slots=True)
class Advice:
    """The array as it is, a better plan, and one sentence per difference."""

    now: Plan
    better: Plan
    reasons: tuple[str, ...]

    @property
    def is_fine(self) -> bool:
        """Whether the array is already as advised."""
        return self.now == self.better


def advise(layout: ArrayLayout, threads: int, ratio: float | None = None) -> Advice:
    """Advice on an array that `threads` decode.

    `ratio` is the decoded size over the stored size, if it is known.
    """
    known = tuple(
        axis.length_of(0) if axis.n_cells else 1 for axis in layout.inner_axes
    )
    chunks: Shape = tuple(map(int, known))
    given = _Given(threads, ratio or USUAL_RATIO)
    reasons: list[str] = []
    coding, trouble = _coding(layout, chunks)
    now = _plan(layout, layout.shards, chunks, "keep", coding, given)
    better_coding, compressor = _better_coding(coding, trouble, given.ratio, reasons)
    better_chunks = _better_chunks(layout, chunks, better_coding, reasons)
    is_anew = compressor != "keep" or better_chunks != chunks
    shards = _better_shards(layout, better_chunks, reasons, is_anew=is_anew)
    better = _plan(layout, shards, better_chunks, compressor, better_coding, given)
    return Advice(now, better, tuple(reasons))


def _stream_nbytes(coding: str, chunk_nbytes: int) -> int:
    """Decoded size of the largest stream of an inner chunk of `chunk_nbytes`."""
    if not coding.startswith("blosc-"):
        return chunk_nbytes
    compressor = coding.removeprefix("blosc-")
    usual = _BLOSC_STREAM_NBYTES.get(compressor, _BLOSC_STREAM_USUAL_NBYTES)
    return min(usual, chunk_nbytes)


def largest_stream_nbytes(coding: str) -> int:
    """Largest stream for which a read of `READ_NBYTES` need not wait.

    All streams together take the size of the read over the device's rate. The largest
    alone takes its own size over the rate of one stream.
    """
    rates = RATES[coding]
    return int(READ_NBYTES / rates.device * rates.stream)


def _coding(layout: ArrayLayout, chunks: Shape) -> tuple[str, str]:
    """Coding that a device would decode, and if it cannot, why."""
    try:
        chain = compile_device_chain(layout, chunks)
    except UnsupportedError as error:
        name = error.codec or layout.chain.array_bytes.name
        return name, f"{error.what} ({name})"
    return _compressor_of(chain, layout.chain.bytes_bytes), ""


def _compressor_of(chain: DeviceChain, specs: Sequence[CodecSpec]) -> str:
    kinds = [step.kind for step in chain.steps if step.kind in COMPRESSED]
    if not kinds:
        return "raw"
    name = kinds[0].value
    if name != "blosc":
        return name
    configured: Any = next(
        spec.configuration.get("cname") for spec in specs if "blosc" in spec.name
    )
    return f"blosc-{_BLOSC_ALIASES.get(str(configured), configured)}"


def _better_coding(
    coding: str, trouble: str, ratio: float, reasons: list[str]
) -> tuple[str, str]:
    """A better coding and its compressor; the same coding and "keep" if none is."""
    upload = UPLOAD_NBYTES_PER_SECOND / 1e9
    if trouble:
        reasons.append(
            f"{trouble}: the host decodes, and what it decoded is copied; a GPU decodes"
            f" zstd at about {_gigabytes(_DEFAULT)} {_basis(_DEFAULT)}"
        )
        return _DEFAULT, _DEFAULT
    if coding == "raw":
        reasons.append(
            f"uncompressed elements reach a GPU at {upload:.0f} GB/s at most, as PCIe 5"
            " takes them [g]: compressed with LZ4 they come at that times the ratio, up"
            f" to about {_gigabytes('lz4')} {_basis('lz4')}; try it if they compress at"
            " all"
        )
        return coding, "keep"
    better = f"blosc-{_DEFAULT}" if "blosc" in coding else _DEFAULT
    if coding not in RATES:
        reasons.append(
            f"no kernel decodes {coding}, so the host does and copies; {_DEFAULT} is"
            f" decoded at about {_gigabytes(_DEFAULT)} {_basis(_DEFAULT)}"
        )
        return better, better
    if coding in _SLOW:
        reasons.append(
            f"{coding} is decoded at about {_gigabytes(coding)} {_basis(coding)},"
            f" {_DEFAULT} at {_gigabytes(_DEFAULT)} {_basis(_DEFAULT)}, and packs as"
            " tightly"
        )
        return better, better
    _note_bottleneck(coding, ratio, reasons)
    return coding, "keep"


def _note_bottleneck(coding: str, ratio: float, reasons: list[str]) -> None:
    arriving = ratio * UPLOAD_NBYTES_PER_SECOND
    if RATES[coding].device >= arriving:
        return
    told = f"stored {ratio:.1f} times smaller" if ratio != USUAL_RATIO else "halved"
    reasons.append(
        f"{coding} {told} arrives at {arriving / 1e9:.0f} GB/s of elements at most [g],"
        f" and is decoded at {_gigabytes(coding)} {_basis(coding)}: the bound of a read"
    )


def _better_chunks(
    layout: ArrayLayout, chunks: Shape, coding: str, reasons: list[str]
) -> Shape:
    if coding not in RATES:
        return chunks
    nbytes = prod(chunks) * layout.dtype.itemsize
    is_blosc = coding.startswith("blosc-")
    most = _MOST_BLOSC_NBYTES if is_blosc else largest_stream_nbytes(coding)
    rates = RATES[coding]
    if nbytes > most:
        wanted = halved_until(chunks, layout.dtype.itemsize, most)
        if is_blosc:
            reasons.append(
                f"an inner chunk of {nbytes / MIB:.1f} MiB is fetched whole for any of"
                f" its elements: {most // MIB} MiB hold a hundred Blosc blocks [m]"
            )
        else:
            reasons.append(
                f"an inner chunk is one {coding} stream, and a GPU decodes one at about"
                f" {rates.stream / 1e6:.0f} MB/s {_basis(coding)}: {nbytes / KIB:,.0f}"
                f" KiB take {nbytes / rates.stream * 1e3:.0f} ms, all of a"
                f" {READ_NBYTES // MIB} MiB read in many streams"
                f" {READ_NBYTES / rates.device * 1e3:.1f} ms; up to {most // KIB} KiB"
                " nothing waits for the largest"
            )
        return wanted
    stream = _stream_nbytes(coding, nbytes)
    # In a small array, fewer streams only wait longer for the largest one.
    is_large = layout.nbytes >= READ_NBYTES
    if stream < _LEAST_STREAM_NBYTES and is_large:
        reasons.append(
            f"streams of {stream / KIB:.1f} KiB cost as much in indexes and tables as"
            f" in decoding: at least {_LEAST_STREAM_NBYTES // KIB} KiB [e]"
        )
        return shard_shape(
            layout.shape, layout.dtype.itemsize, chunks, None, _LEAST_STREAM_NBYTES * 4
        )
    return chunks


def _better_shards(
    layout: ArrayLayout, chunks: Shape, reasons: list[str], *, is_anew: bool
) -> Shape | None:
    itemsize = layout.dtype.itemsize
    current = layout.shards
    suits = current is not None and not any(map(int.__mod__, current, chunks))
    shard_nbytes = prod(current) * itemsize if current is not None else 0
    if suits and _SMALL_SHARD_NBYTES <= shard_nbytes <= _LARGE_SHARD_NBYTES:
        return current
    if suits and layout.nbytes < _SMALL_SHARD_NBYTES:
        return current
    wanted = shard_shape(layout.shape, itemsize, chunks, None)
    if wanted == current:
        return current
    if current is None and wanted == chunks:
        # A shard of one inner chunk only adds an index, but `convert` makes no others.
        return wanted if is_anew else None
    if current is None:
        why = "the array has no shards: every inner chunk is a request of its own"
    elif not suits:
        why = "the inner chunks above do not divide the shards"
    elif shard_nbytes < _SMALL_SHARD_NBYTES:
        why = f"shards of {shard_nbytes / MIB:.2f} MiB make many objects and requests"
    else:
        why = (
            f"shards of {shard_nbytes / GIB:.1f} GiB take as much memory to be written"
        )
    reasons.append(
        f"{why}; one index and few requests of 1 to 4 MiB a shard keep the way to the"
        f" GPU full [m]: about {prod(wanted) * itemsize / MIB:.0f} MiB"
    )
    return wanted


def _plan(
    layout: ArrayLayout,
    shards: Shape | None,
    chunks: Shape,
    compressor: str,
    coding: str,
    given: _Given,
) -> Plan:
    """A plan with its estimated costs."""
    itemsize = layout.dtype.itemsize
    decoded = max(1, min(READ_NBYTES, layout.nbytes))
    chunk_nbytes = max(1, prod(chunks) * itemsize)
    stream = _stream_nbytes(coding, chunk_nbytes)
    n_rows = -(-decoded // chunk_nbytes)
    encoded = decoded if coding == "raw" else int(decoded / given.ratio)
    workload = Workload(coding, n_rows, encoded, decoded, stream)
    costs = estimate(workload, HostDecoding(given.threads, given.threads))
    if coding == "raw":
        costs = Costs(costs.host, costs.host)
    n_streams = 0 if costs.device == inf else -(-decoded // max(1, stream))
    return Plan(shards, chunks, compressor, coding, n_streams, costs)


def _gigabytes(coding: str) -> str:
    return f"{RATES[coding].device / 1e9:.0f} GB/s"


def _basis(coding: str) -> str:
    return "[g]" if coding in MEASURED else "[e]"

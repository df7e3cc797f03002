"""The report of a read: counts, bytes, times, and which codec ran where and why."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class CodecPlacement:
    """One codec of the chain: where it ran, and why.

    Attributes
    ----------
    codec
        Name in the metadata.
    where
        "host", "device" or "scatter" (done while elements are put in their place).
    library
        Library that ran it.
    why
        Reason in words.
    """

    codec: str
    where: str
    library: str
    why: str


@dataclass(frozen=True, slots=True)
class ReadReport:
    """What a read did.

    Attributes
    ----------
    array, device
        Path of the array, and the device that decoded its inner chunks.
    device_why
        Why ``device="auto"`` chose this device.
    n_shards, n_missing_shards
        Number of stored objects touched, and of those that do not exist.
    n_inner_chunks, n_missing_inner_chunks
        Number of inner chunks wanted, and of those that were filled instead of decoded.
    n_kept_inner_chunks
        Inner chunks taken from the cache of decoded inner chunks
        (`Options.chunk_cache_nbytes`), neither fetched nor decoded.
    n_index_requests, n_payload_requests
        Requests to the store. An object fetched whole is a payload request.
    index_nbytes, payload_nbytes, gap_nbytes
        Bytes fetched; `gap_nbytes` are the unwanted bytes of the payload.
    out_nbytes
        Size of the result.
    n_decoded_on_device, n_decoded_on_host, n_refused_inner_chunks
        For a read on a device: inner chunks decoded on the device and on the host, and
        those that the device refused, so that the host had to decode them.
    codecs
        Which codec ran where and why, in decoding order.
    loops
        How the compiled loops decoded; "" if the codecs' libraries decoded everything.
    fetch
        How payload was fetched, and why.
    n_direct_requests
        Payload requests that were read directly into device memory.
    milliseconds
        Time per stage, and the estimates that placement by cost used. Times of threads
        are added up, so a stage may exceed `total`, which is wall time.
    """

    array: str
    device: str
    device_why: str
    n_shards: int
    n_missing_shards: int
    n_inner_chunks: int
    n_missing_inner_chunks: int
    n_kept_inner_chunks: int
    n_index_requests: int
    n_payload_requests: int
    index_nbytes: int
    payload_nbytes: int
    gap_nbytes: int
    out_nbytes: int
    n_decoded_on_device: int
    n_decoded_on_host: int
    n_refused_inner_chunks: int
    codecs: tuple[CodecPlacement, ...]
    loops: str
    fetch: str
    n_direct_requests: int
    milliseconds: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Plain dict, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        n_kept = self.n_kept_inner_chunks
        kept = f", {n_kept} kept" if n_kept else ""
        payload = f"{self.payload_nbytes:,} bytes, {self.gap_nbytes:,} of them gaps"
        lines = [
            f"array         {self.array or '/'} on {self.device}"
            f"{f' ({self.device_why})' if self.device_why else ''}",
            f"shards        {self.n_shards} ({self.n_missing_shards} missing)",
            f"inner chunks  {self.n_inner_chunks}"
            f" ({self.n_missing_inner_chunks} missing{kept})",
            f"requests      {self.n_index_requests} index"
            f" ({self.index_nbytes:,} bytes), {self.n_payload_requests} payload"
            f" ({payload})",
            f"fetch         {self.fetch}",
            f"output        {self.out_nbytes:,} bytes",
        ]
        if self.n_decoded_on_device or self.n_decoded_on_host:
            lines.append(
                f"decoded       {self.n_decoded_on_device} on the device"
                f" ({self.n_refused_inner_chunks} refused),"
                f" {self.n_decoded_on_host} on the host"
            )
        lines += [
            f"codec         {c.codec}: {c.where}, {c.library} ({c.why})"
            for c in self.codecs
        ]
        if self.loops:
            lines.append(f"loops         compiled, with {self.loops}")
        times = ", ".join(f"{k} {v:.2f}" for k, v in self.milliseconds.items())
        return "\n".join([*lines, f"milliseconds  {times}"])


@dataclass
class Tally:
    """Counters of a read in progress; safe to use from its worker threads.

    Attributes
    ----------
    counts, seconds
        Counters named as fields of `ReadReport`, and seconds per stage.
    is_wanted
        Whether the full report is wanted; otherwise, counts that take time are left
        out.
    is_summed
        Whether the number of fetched bytes is wanted.
    """

    counts: dict[str, int] = field(default_factory=dict[str, int])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    is_wanted: bool = True
    is_summed: bool = False
    notes: dict[str, str] = field(default_factory=dict[str, str])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, **counts: int) -> None:
        """Add to counters named as the fields of `ReadReport`."""
        with self._lock:
            for name, n in counts.items():
                self.counts[name] = self.counts.get(name, 0) + n

    def add_seconds(self, stage: str, seconds: float) -> None:
        """Add to the time of a stage."""
        with self._lock:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def note(self, **notes: str) -> None:
        """Set text fields, named as the fields of `ReadReport`."""
        with self._lock:
            self.notes.update(notes)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of the block towards stage `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add_seconds(name, time.perf_counter() - start)

    def report(
        self,
        *,
        array: str,
        device: str,
        out_nbytes: int,
        codecs: tuple[CodecPlacement, ...],
        device_why: str = "",
    ) -> ReadReport:
        """Frozen report of all that was counted."""
        given = {"out_nbytes"}
        names = {f.name for f in fields(ReadReport) if f.type == "int"} - given
        return ReadReport(
            array=array,
            device=device,
            device_why=device_why,
            out_nbytes=out_nbytes,
            codecs=codecs,
            loops=self.notes.get("loops", ""),
            fetch=self.notes.get("fetch", "host memory"),
            milliseconds={k: v * 1e3 for k, v in self.seconds.items()},
            # Shared and overlapping ranges count once as fetched, but several times as
            # wanted.
            **{name: max(0, self.counts.get(name, 0)) for name in names},
        )

"""Which of several ways to take, in words, by what the rows of a run say."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

Rows = dict[str, dict[str, Any]]

# Less is not worth another way of doing it.
_WORTH = 1.2
_CRC, _FETCH = "alternatives/crc32c/", "alternatives/fetch/"
_GZIP = "alternatives/gzip/"
# What `gpushard.device_reading.payload.kvikio_file` sets, and kvikio by itself.
_SET = "8x4"


def choices(rows: Rows) -> list[str]:
    """A sentence for each choice that was measured, and the figures behind it."""
    return [*_checksums(rows), *_gzip(rows), *_fetch(rows)]


def _checksums(rows: Rows) -> Iterator[str]:
    found = {name: row for name, row in rows.items() if name.startswith(_CRC)}
    if not found:
        return
    wrong = [name.removeprefix(_CRC) for name in found if not found[name]["is_right"]]
    if wrong:
        yield f"crc32c: WRONG checksums at {', '.join(wrong)} bytes: choose nothing yet"
        return
    gain = median(row["nvcomp_gb_s"] / row["own_gb_s"] for row in found.values())
    # It compares nothing: a launch of ours would have to follow.
    what = "take nvCOMP's preset" if gain >= _WORTH else "keep our own kernel"
    yield f"crc32c: {what}; nvCOMP's rate is {gain:.2f} of ours at the median of sizes"
    for name, row in found.items():
        rates = f"ours {row['own_gb_s']} GB/s, nvCOMP's {row['nvcomp_gb_s']} GB/s"
        yield f"  {name.removeprefix(_CRC)} bytes: {rates}"


def _gzip(rows: Rows) -> Iterator[str]:
    measured = {n: row for n, row in rows.items() if n.startswith(_GZIP)}
    for name, row in measured.items():
        nbytes = name.removeprefix(_GZIP)
        if not row.get("is_right"):
            yield f"gzip: nvCOMP's lookahead decoder FAILED at {nbytes} bytes"
            continue
        gain = row["lookahead_gb_s"] / row["usual_gb_s"]
        what = "take" if gain >= _WORTH else "leave"
        yield (
            f"gzip: {what} the lookahead decoder at {nbytes} bytes; its rate is "
            f"{gain:.2f} of the usual one's, {row['usual_gb_s']} GB/s"
        )


def _fetch(rows: Rows) -> Iterator[str]:
    ring, prefix = rows.get(f"{_FETCH}ring"), f"{_FETCH}kvikio/"
    tried = {n.removeprefix(prefix): r for n, r in rows.items() if n.startswith(prefix)}
    if ring is None:
        return
    if not tried:
        why = rows.get(f"{_FETCH}kvikio", {}).get("skipped", "kvikio was not measured")
        yield f"fetch: keep the ring, {ring['cold_gb_s']} GB/s from the disk; {why}"
        return
    best = max(tried, key=lambda name: tried[name]["cold_gb_s"])
    reached = tried[best]["cold_gb_s"]
    mode = "in its compatibility mode" if tried[best]["is_compat"] else "with GDS"
    is_worth = reached >= _WORTH * ring["cold_gb_s"]
    what = f"take kvikio {mode}" if is_worth else "keep the ring of pinned slots"
    yield (
        f"fetch: {what}; from the disk kvikio {mode} reads {reached} GB/s, the ring "
        f"{ring['cold_gb_s']} GB/s (from the page cache {tried[best]['warm_gb_s']} and "
        f"{ring['warm_gb_s']})"
    )
    as_set = tried.get(_SET, tried[best])["cold_gb_s"]
    named = _named(best) if reached >= _WORTH * as_set else _named(_SET)
    yield f"kvikio: {named}; as it is set now it reads {as_set} GB/s, at best {reached}"


def _named(setting: str) -> str:
    """A setting such as "8x4" in words."""
    threads, _, mib = setting.partition("x")
    is_set = " as now" if setting == _SET else ""
    return f"take {threads} threads and tasks of {mib} MiB{is_set}"

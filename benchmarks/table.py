"""A result as text: times, ratios to the best peer, and where a peer wins."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.contenders import ALL, CACHED, FLOORS, OURS, OURS_CACHED, PEERS

_HEADS = {
    "gpushard_cpu": "gpushard",
    "gpushard_cached": "g-cache",
    "zarr_default": "zarr",
    "zarr_fused": "z-fused",
    "zarrs_pipeline": "zarrs",
    "tensorstore_uncached": "ts",
    "tensorstore_cached": "ts-cache",
    "floor_memory": "copy",
    "floor_decompress": "decomp",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """gpushard beside the best peer in one row.

    Attributes
    ----------
    peer
        The peer with the least wall time.
    ratio
        Its least wall time over gpushard's: above 1 gpushard is faster.
    median_ratio
        The least of the peers' median wall times over gpushard's median.
    cpu_ratio
        The least CPU seconds of any peer over gpushard's.
    """

    peer: str
    ratio: float
    median_ratio: float
    cpu_ratio: float


def label(row: dict[str, Any]) -> str:
    """Short name of a row."""
    size = f"{row['inner_nbytes'] // 1024}K"
    cold = " cold" if row["cache"] == "cold" else ""
    files = "" if row.get("is_sharded", True) else " files"  # older results lack it
    return f"{row['dataset']} {size} {row['codec']}{files} {row['workload']}{cold}"


def median(values: list[float]) -> float:
    """Middle value; the lower of two."""
    return sorted(values)[(len(values) - 1) // 2]


def compare(row: dict[str, Any], name: str = OURS) -> Comparison | None:
    """Comparison of a row; None where gpushard or all peers have no time.

    `name` is of gpushard without or with a cache: the peers are the same, those with a
    cache among them.
    """
    timed = {k: e for k, e in row["contenders"].items() if e.get("wall_s")}
    peers = [name for name in PEERS if name in timed]
    if name not in timed or not peers:
        return None
    ours = timed[name]
    best = min(peers, key=lambda name: min(timed[name]["wall_s"]))
    peer_median = min(median(timed[name]["wall_s"]) for name in peers)
    peer_cpu = min(min(timed[name]["cpu_s"]) for name in peers)
    return Comparison(
        best,
        min(timed[best]["wall_s"]) / min(ours["wall_s"]),
        peer_median / median(ours["wall_s"]),
        peer_cpu / max(min(ours["cpu_s"]), 1e-9),
    )


def bound(row: dict[str, Any], n_cpus: int) -> float | None:
    """Ratio to the best peer that no reader could pass on a machine with these CPUs.

    The best peer's least wall time over the least that the ceilings allow: CPU seconds
    of decompression or of one copy, whichever are more, or of the contender that took
    the fewest, if that is less, spread over all CPUs without a loss. Who keeps decoded
    chunks need not decompress, and sets no bound. None of rows whose ceilings do not
    say what has to be decompressed, and where no peer has a time.
    """
    entries = row["contenders"]
    cpu = {k: min(e["cpu_s"]) for k, e in entries.items() if e.get("cpu_s")}
    walls = [min(entries[name]["wall_s"]) for name in PEERS if name in cpu]
    floors = [cpu[name] for name in FLOORS if name in cpu]
    needed = FLOORS if row["codec"] != "none" else FLOORS[:1]
    if not walls or len(floors) < len(needed):
        return None
    others = [cpu[name] for name in cpu if name not in {*FLOORS, *CACHED}]
    least = min([max(floors), *others])
    return min(walls) * n_cpus / max(least, 1e-9)


def geometric_mean(values: Iterable[float]) -> float:
    """Geometric mean; NaN of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def render(result: dict[str, Any]) -> str:
    """All of a result that is worth printing."""
    return "\n".join((*_head(result), *_rows(result), *_summary(result)))


def _head(result: dict[str, Any]) -> Iterator[str]:
    machine = result["machine"]
    load = "{} to {}".format(*result["load"])
    yield (
        f"{result['date']}: {machine['cpu']}, {machine['cpus']} CPUs, Python"
        f" {machine['python']}, load {load}, gpushard at {result['commit']}"
    )
    packages = {k: v for found in result["versions"].values() for k, v in found.items()}
    yield ", ".join(f"{name} {packages[name]}" for name in sorted(packages))
    for name, reason in result["absent"].items():
        yield f"absent: {name} ({reason})"
    ours = result["versions"].get(OURS, {"loops": ""})
    if not ours.keys() & {"numba", "loops"}:  # older results lack the second
        yield "gpushard ran without its compiled loops; run: pip install '.[bench]'"
    yield ""


def _rows(result: dict[str, Any]) -> Iterator[str]:
    names = [name for name in ALL if name in result["versions"]]
    heads = "".join(f"{_HEADS[name]:>9}" for name in names)
    tail = "   ratio  med.   CPU  cache   CPU  bound  best peer"
    n_cpus = result["machine"]["cpus"]
    yield f"{'least wall time in ms':36}{heads}{tail}"
    for row in result["rows"]:
        cells = "".join(f"{_cell(row['contenders'].get(name)):>9}" for name in names)
        found = compare(row)
        tail = ""
        if found is not None:
            tail = (
                f"{found.ratio:8.2f}{found.median_ratio:6.2f}{found.cpu_ratio:6.2f}"
                f"{_of_cached(row)}{_number(bound(row, n_cpus)):>7}"
                f"  {_HEADS[found.peer]}"
            )
        yield f"{label(row):36}{cells}{tail}"


def _of_cached(row: dict[str, Any]) -> str:
    """Ratios of gpushard with a cache, of least wall times and of CPU seconds."""
    found = compare(row, OURS_CACHED)
    ratios = (None, None) if found is None else (found.ratio, found.cpu_ratio)
    return "{:>7}{:>6}".format(*map(_number, ratios))


def _number(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _cell(entry: dict[str, Any] | None) -> str:
    if entry is None or not entry.get("wall_s"):
        return "WRONG" if entry and "wrong" in entry else "-"
    ms = min(entry["wall_s"]) * 1e3
    return f"{ms:.1f}" if ms >= 10 else f"{ms:.3f}"


def _summary(result: dict[str, Any]) -> Iterator[str]:
    yield from _beside_peers(result["rows"], OURS)
    yield from _each_peer(result["rows"])
    yield from _over_floor(result["rows"])
    yield from _memory(result["rows"])
    yield from _beside_peers(result["rows"], OURS_CACHED)
    yield from _wrong(result["rows"])


def _beside_peers(rows: list[dict[str, Any]], name: str) -> Iterator[str]:
    """Means of the ratios to the best peer, and the rows that a peer wins."""
    compared = [(row, compare(row, name)) for row in rows]
    found = [(row, c) for row, c in compared if c is not None]
    if not found:
        return
    who = "gpushard" if name == OURS else "gpushard with a cache"
    mean = geometric_mean(c.ratio for _, c in found)
    medians = geometric_mean(c.median_ratio for _, c in found)
    cpu = geometric_mean(c.cpu_ratio for _, c in found)
    yield ""
    yield (
        f"geometric mean of {len(found)} rows: {mean:.2f} (of medians {medians:.2f},"
        f" of CPU seconds {cpu:.2f}); above 1 {who} is ahead of the best peer"
    )
    for workload in dict.fromkeys(row["workload"] for row, _ in found):
        part = [c.ratio for row, c in found if row["workload"] == workload]
        yield f"  {workload:10}{geometric_mean(part):6.2f}  (least {min(part):.2f})"
    lost = [(row, c) for row, c in found if c.ratio < 1]
    yield f"a peer wins in {len(lost)} of {len(found)} rows"
    for row, c in lost:
        yield f"  {label(row)}: {_HEADS[c.peer]}, {who} at {c.ratio:.2f}"
    less = [row for row, c in found if c.cpu_ratio < 1]
    yield f"a peer takes fewer CPU seconds in {len(less)} rows (column CPU below 1)"


def _each_peer(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Geometric mean of the ratios to one peer after the other."""
    for peer in PEERS:
        ratios = [
            min(entry["wall_s"]) / min(ours["wall_s"])
            for row in rows
            if (entry := row["contenders"].get(peer, {})).get("wall_s")
            and (ours := row["contenders"].get(OURS, {})).get("wall_s")
        ]
        if ratios:
            mean = geometric_mean(ratios)
            yield f"  against {_HEADS[peer]:9}{mean:6.2f}  in {len(ratios)} rows"


def _over_floor(rows: list[dict[str, Any]]) -> Iterator[str]:
    """CPU seconds of full reads, over pure decompression and one copy."""
    for name in (OURS, OURS_CACHED, *PEERS):
        over = [
            min(cpu[name]) / sum(min(cpu[floor]) for floor in FLOORS)
            for row in rows
            if row["workload"] == "full" and row["cache"] == "warm"
            for cpu in [{k: e.get("cpu_s") for k, e in row["contenders"].items()}]
            if all(cpu.get(needed) for needed in (name, *FLOORS))
        ]
        if over:
            yield (
                f"CPU seconds of full reads over the ceilings', {_HEADS[name]}:"
                f" median {median(over):.2f}, greatest {max(over):.2f}"
            )


def _memory(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The largest peak memory of full reads, over what they return."""
    for name in ALL:
        peaks = [
            entry["peak_nbytes"] / row["output_nbytes"]
            for row in rows
            if row["workload"] == "full"
            and (entry := row["contenders"].get(name, {})).get("peak_nbytes")
        ]
        if peaks:
            yield (
                f"peak memory of full reads over their output, {_HEADS[name]}:"
                f" median {median(peaks):.2f}, greatest {max(peaks):.2f}"
            )


def _wrong(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row, name in wrong_answers(rows):
        what = row["contenders"][name]["wrong"]
        yield f"WRONG: {label(row)}, {name}: {what}"


def wrong_answers(rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    """Rows and contenders that gave other elements than are stored."""
    return [
        (row, name)
        for row in rows
        for name, entry in row["contenders"].items()
        if "wrong" in entry
    ]

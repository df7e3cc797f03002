"""What is aimed for, and what the rows of a run say of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from benchmarks.gpu.choices import choices
from benchmarks.gpu.sizes import CODECS, GIB

Rows = dict[str, dict[str, Any]]


class Ratio(NamedTuple):
    """Something that is aimed for.

    Attributes
    ----------
    what, target
        In words, and the least that it should be.
    found
        The ratio; None where a row is missing.
    """

    what: str
    target: float
    found: float | None


_SCATTER_TARGETS = {
    "scatter-4096": 0.85,
    "scatter-128": 0.85,
    "scatter-64": 0.70,
    "scatter-unshuffle": 0.75,
    "scatter-transposed": 0.60,
}
_CEILINGS = {
    "zstd": "zstd",
    "blosc-zstd": "zstd",
    "lz4": "lz4",
    "blosc-lz4": "lz4",
    "gzip": "gzip",
}
# Streams up to this size should be decoded sooner than by any reader of the host.
_SMALL_STREAM_NBYTES = 256 * 1024
_HOST_PEERS = ("zarr", "zarrs", "tensorstore")


def ratios(rows: Rows) -> list[Ratio]:
    """All that is aimed for."""
    return [
        *_scatters(rows),
        *_decoders(rows),
        *_wholes(rows),
        *_straight(rows),
        *_peers(rows),
        *_trainings(rows),
    ]


def _scatters(rows: Rows) -> Iterator[Ratio]:
    for name, target in _SCATTER_TARGETS.items():
        row = rows.get(f"kernels/{name}", {})
        what = f"{name} / copy within the device"
        yield Ratio(what, target, _over(row, "copy_seconds", "scatter_seconds"))


def _over(row: dict[str, Any], above: str, below: str) -> float | None:
    return row[above] / row[below] if row.get(above) and row.get(below) else None


def _decoders(rows: Rows) -> Iterator[Ratio]:
    """The decode stage, uploads included, beside the vendor's decoder at its best."""
    for codec, algorithm in _CEILINGS.items():
        prefix = f"kernels/{codec}/"
        for name in sorted(n for n in rows if n.startswith(prefix)):
            inner = name.removeprefix(prefix)
            best = rows.get(f"ceilings/{algorithm}/{inner}", {}).get("gb_s")
            row = rows[name]
            seconds = row.get("decode_seconds")
            found = row["nbytes"] / seconds / 1e9 / best if seconds and best else None
            yield Ratio(f"decode stage {codec} {inner} / nvCOMP alone", 0.90, found)


def _wholes(rows: Rows) -> Iterator[Ratio]:
    """Whole reads beside the slowest of their stages alone."""
    for codec in CODECS:
        prefix = f"whole/{codec}/"
        for name in sorted(n for n in rows if n.startswith(prefix)):
            row, nbytes = rows[name], int(name.removeprefix(prefix))
            target = 0.80 if nbytes >= 8 * GIB or codec == "none" else 0.60
            slowest = _slowest_gb_s(rows, codec, row)
            found = row["gb_s"] / slowest if slowest and row.get("gb_s") else None
            what = f"whole {codec} {nbytes / GIB:.3g} GiB / its slowest stage"
            yield Ratio(what, target, found)


def _straight(rows: Rows) -> Iterator[Ratio]:
    """Uncompressed inner chunks that land as they are, beside a copy over the bus."""
    bus = _largest(rows, "ceilings/host-to-device/")
    for name in sorted(n for n in rows if n.startswith("straight/")):
        nbytes = int(name.removeprefix("straight/"))
        what = f"whole rows, uncompressed, {nbytes / GIB:.3g} GiB / pinned copy"
        yield Ratio(what, 0.80, _div(rows[name].get("gb_s"), bus))


def _slowest_gb_s(rows: Rows, codec: str, row: dict[str, Any]) -> float | None:
    """Decoded bytes a second that storage, bus and decoder alone would let through."""
    share = row["nbytes"] / max(1, row.get("encoded_nbytes", 0))
    bounds = [
        _largest(rows, "ceilings/storage/warm/"),
        _largest(rows, "ceilings/host-to-device/"),
    ]
    if None in bounds:
        return None
    through = [share * bound for bound in bounds if bound]
    if codec in _CEILINGS:
        through.append(_largest(rows, f"ceilings/{_CEILINGS[codec]}/") or 0.0)
    return min(through) or None


def _largest(rows: Rows, prefix: str) -> float | None:
    found = [row["gb_s"] for name, row in rows.items() if name.startswith(prefix)]
    return max(found, default=None)


def _peers(rows: Rows) -> Iterator[Ratio]:
    """Whole arrays beside what others take for them, copies to the device included."""
    for codec in CODECS:
        prefix = f"sweep/{codec}/"
        inners = {n.removeprefix(prefix).split("/")[0] for n in rows if prefix in n}
        for inner in sorted(inners, key=int):
            name, target = f"{codec} {inner}", 50.0 if int(inner) == 4096 else 10.0
            gpu = partial(_beside, rows, ("zarr-gpu",), codec, inner)
            host = partial(_beside, rows, _HOST_PEERS, codec, inner)
            yield Ratio(
                f"{name}, placed / zarr-python on the GPU", target, gpu("/cost")
            )
            if int(inner) <= _SMALL_STREAM_NBYTES:
                yield Ratio(f"{name} / best of the host", 3.0, host(""))
            yield Ratio(f"{name}, placed / best of the host", 1.0, host("/cost"))


def _beside(
    rows: Rows, names: tuple[str, ...], codec: str, inner: str, how: str
) -> float | None:
    """Least ratio to one of some peers, each beside the array of the size it reads."""
    ours = {
        row["nbytes"]: row["gb_s"]
        for few in ("", "/few")
        if (row := rows.get(f"sweep/{codec}/{inner}{few}{how}")) and row.get("gb_s")
    }
    found = [
        ours[row["nbytes"]] / row["gb_s"]
        for name in names
        if (row := rows.get(f"peers/{name}/{codec}/{inner}"))
        and row.get("gb_s")
        and row["nbytes"] in ours
    ]
    return min(found, default=None)


def _trainings(rows: Rows) -> Iterator[Ratio]:
    """Steps without loading beside those with it, and samples beside a peer's."""
    prefix = "training/ours/"
    for name in sorted(n for n in rows if n.startswith(prefix)):
        case = name.removeprefix(prefix)
        share = rows[name].get("wait_share")
        found = None if share is None else 1 - share
        yield Ratio(f"training {case}: data wait < 5 % of the step", 0.95, found)
    prefix = "training/dataloader-"
    for name in sorted(n for n in rows if n.startswith(prefix)):
        peer, _, chain = name.removeprefix(prefix).partition("/")
        ours = rows.get(f"training/ours/{chain}/chunk", {}).get("samples_s")
        what = f"training {chain} / DataLoader over {peer}"
        yield Ratio(what, 1.0, _div(ours, rows[name].get("samples_s")))


def _div(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def render(rows: Rows, *, is_emulated: bool) -> str:
    """Table of all ratios, beside what is aimed for."""
    lines = ["target  found"]
    if is_emulated:
        lines.insert(0, "EMULATED: no GPU was measured, no figure means anything")
    for ratio in ratios(rows):
        found = "   -  " if ratio.found is None else f"{ratio.found:6.2f}"
        mark = " " if ratio.found is None or ratio.found >= ratio.target else "<"
        lines.append(f"{ratio.target:6.2f} {found} {mark} {ratio.what}")
    reached = [r.found / r.target for r in ratios(rows) if r.found]
    if reached:
        lines.append(f"median of found / target: {median(reached):.2f}")
    lines += choices(rows)
    return "\n".join(lines) + "\n"

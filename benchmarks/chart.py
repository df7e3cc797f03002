"""Charts of a result: decoded GB/s per contender, one file per workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.contenders import ALL, FLOORS
from benchmarks.table import label


def draw(result: dict[str, Any], directory: Path, suffix: str) -> list[Path]:
    """Files drawn, one per workload, data set and cache state."""
    directory.mkdir(parents=True, exist_ok=True)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in result["rows"]:
        name = f"{row['dataset']}-{row['workload']}-{row['cache']}"
        groups.setdefault(name, []).append(row)
    return [
        _draw_one(rows, result, directory / f"{name}.{suffix}")
        for name, rows in groups.items()
    ]


def _draw_one(rows: list[dict[str, Any]], result: dict[str, Any], path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.2 + 0.9 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    names = [name for name in ALL if name in result["versions"]]
    height = 0.8 / len(names)
    for i, name in enumerate(names):
        places = [place + i * height for place in range(len(rows))]
        speeds = [_gigabytes_per_second(row, name) for row in rows]
        hatch = "//" if name in FLOORS else None
        axes.barh(places, speeds, height, label=name, hatch=hatch)
    axes.set_yticks([n + 0.4 - height / 2 for n in range(len(rows))])
    axes.set_yticklabels([label(row) for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("GB/s of decoded output, best repetition (log); hatched: ceilings")
    machine = result["machine"]
    title = f"{result['date'][:10]}, {machine['cpu']}, {machine['cpus']} CPUs"
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path)
    return path


def _gigabytes_per_second(row: dict[str, Any], name: str) -> float:
    """Output over least wall time; NaN, which draws no bar, where there is none."""
    walls = row["contenders"].get(name, {}).get("wall_s")
    return row["output_nbytes"] / min(walls) / 1e9 if walls else float("nan")

"""Charts of a result: decoded GB/s per contender, one file per workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.contenders import ALL, FLOORS, OURS

_MOST_COLUMNS = 4
_STYLES = dict(zip(FLOORS, (":", "--"), strict=True))


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
    """A panel for each codec: speed over the size of inner chunks."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    codecs = list(dict.fromkeys(row["codec"] for row in rows))
    n_columns = min(len(codecs), _MOST_COLUMNS)
    n_lines = -(-len(codecs) // n_columns)
    figure = Figure(figsize=(2.6 * n_columns + 1.6, 2.4 * n_lines + 0.6))
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    grid = figure.subplots(n_lines, n_columns, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for codec, axes in zip(codecs, panels, strict=False):
        _draw_panel(axes, [r for r in rows if r["codec"] == codec], result)
        axes.set_title(codec, fontsize=9)
    for axes in panels[len(codecs) :]:
        axes.remove()
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=7, loc="outside right center")
    machine = result["machine"]
    what = f"{rows[0]['dataset']}, {rows[0]['workload']}"
    where = f"{result['date'][:10]}, {machine['cpu']}, {machine['cpus']} CPUs"
    figure.suptitle(f"{what}: GB/s of output by size of inner chunks; {where}", size=9)
    # Text stays text: a third of the size, and it can be searched.
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(path)
    return path


def _draw_panel(axes: Any, rows: list[dict[str, Any]], result: dict[str, Any]) -> None:
    places = range(len(rows))
    for name in (name for name in ALL if name in result["versions"]):
        speeds = [_gigabytes_per_second(row, name) for row in rows]
        look = {"linestyle": _STYLES[name], "color": "0.5"} if name in FLOORS else {}
        width = 2.2 if name == OURS else 1.1
        axes.plot(places, speeds, marker=".", label=name, linewidth=width, **look)
    sizes = [f"{row['inner_nbytes'] // 1024}K" for row in rows]
    axes.set_xticks(list(places), sizes, fontsize=7)
    axes.set_yscale("log")
    axes.tick_params(axis="y", labelsize=7)
    axes.grid(visible=True, axis="y", linewidth=0.3)


def _gigabytes_per_second(row: dict[str, Any], name: str) -> float:
    """Output over least wall time; NaN, which draws no bar, where there is none."""
    walls = row["contenders"].get(name, {}).get("wall_s")
    return row["output_nbytes"] / min(walls) / 1e9 if walls else float("nan")

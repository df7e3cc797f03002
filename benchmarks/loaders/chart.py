"""Chart of a comparison of loaders: samples a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the chart to `path`; nothing where matplotlib is not installed."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return
    workloads = result["workloads"]
    figure = Figure(figsize=(8, 1 + 2 * len(workloads)), layout="constrained")
    FigureCanvasAgg(figure)
    every = figure.subplots(len(workloads), 1, squeeze=False)[:, 0]
    for axes, (workload, found) in zip(every, workloads.items(), strict=True):
        names = list(found["contenders"])
        speeds = [found["contenders"][n]["samples_per_second"] for n in names]
        bars = axes.barh(names, speeds)
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=3)
        axes.margins(x=0.15)
        axes.invert_yaxis()
        axes.set_title(f"{workload}: samples a second, median", fontsize=9)
    machine = result["machine"]
    title = f"{result['date'][:10]}, {machine['cpu']}, {machine['cpus']} CPUs"
    figure.suptitle(title, fontsize=9)
    # Text stays text: a third of the size, and it can be searched.
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(path)

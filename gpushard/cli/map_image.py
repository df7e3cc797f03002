"""A shard's map as a PNG, drawn by matplotlib, which may not be there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from warnings import catch_warnings, filterwarnings

from gpushard.cli.files import write_file
from gpushard.cli.map_marks import (
    DAMAGED_COLOUR,
    INDEX_COLOUR,
    KINDS,
    WIDTH,
    Mark,
    Panel,
    hex_colour,
)
from gpushard.cli.output import printable
from gpushard.errors import UnsupportedError

_COLOURS = {
    "index": INDEX_COLOUR,
    "unused": "#b8bcc4",
    "missing": "#e2e2e2",
    "damaged": DAMAGED_COLOUR,
    "beyond": "#ffffff",
}
_DOTS_PER_UNIT = 100


def write_png(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Draw the pictures, one below the other, into a file.

    Raises `UnsupportedError` if matplotlib is not installed, and `StoreError` if the
    file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError(
            "a PNG is drawn by matplotlib, which is not installed",
            hint="run: pip install 'gpushard[plots]', or write an .svg or .html file",
        ) from error
    heights = [panel.height for panel in panels]
    figure = Figure(
        figsize=(WIDTH / _DOTS_PER_UNIT + 0.6, sum(heights) / _DOTS_PER_UNIT + 2.2),
        dpi=_DOTS_PER_UNIT,
        layout="constrained",
    )
    canvas = FigureCanvasAgg(figure)
    figure.suptitle(printable(title), parse_math=False)
    axes = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False)
    for panel, place in zip(panels, axes[:, 0], strict=True):
        _draw(place, panel)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=3, fontsize=8)
    with catch_warnings():
        # matplotlib draws boxes for characters that its font lacks.
        filterwarnings("ignore", "Glyph")
        write_file(path, canvas.print_png)


def _draw(axes: object, panel: Panel) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    patches = [Rectangle((m.x, m.y), m.width, m.height) for m in panel.marks]
    collection = PatchCollection(
        patches,
        facecolors=[_face(mark) for mark in panel.marks],
        edgecolors="#6b6b6b",
        linewidths=0.3,
    )
    axes.add_collection(collection)  # type: ignore[attr-defined]
    axes.set(  # type: ignore[attr-defined]
        xlim=(-1, WIDTH + 1), ylim=(panel.height + 1, -1), title=panel.title
    )
    axes.set_axis_off()  # type: ignore[attr-defined]


def _face(mark: Mark) -> str:
    if mark.kind == "chunk":
        return hex_colour(mark.shade)
    return _COLOURS[mark.kind]


def _legend() -> list[object]:
    from matplotlib.patches import Patch

    return [
        Patch(
            facecolor=_face(Mark(0, 0, 0, 0, kind, 0.4, "")),
            edgecolor="#6b6b6b",
            label=text,
        )
        for kind, text in KINDS.items()
    ]

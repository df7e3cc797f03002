"""A shard's map as rectangles with a label and a colour each, whatever draws them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np

from gpushard.inspection.shard_map import ByteBins, ShardMap, byte_bins, grid_bins
from gpushard.layout import ArrayLayout

# Wide enough for a page, and few enough marks for a browser to stay quick.
WIDTH = 960.0
_ROW_HEIGHT, _ROW_GAP = 22.0, 4.0
_MOST_PIECES = 2_000
_BIN_ROWS, _BIN_COLUMNS = 24, 120
_GRID_ROWS, _GRID_COLUMNS = 64, 96

KINDS = {
    "chunk": "inner chunk (shade: its place in the grid, first to last)",
    "index": "shard index",
    "unused": "unused bytes",
    "missing": "missing inner chunk",
    "damaged": "damaged entry",
    "beyond": "beyond the array's edge",
}

# The colours of marks that no shade distinguishes, wherever they are drawn.
INDEX_COLOUR, DAMAGED_COLOUR = "#d55e00", "#cc79a7"
# Dark to bright and blue to yellow, distinguishable with every kind of colour vision
# (stops of the "cividis" map, rounded).
_RAMP = ((0, 34, 78), (53, 69, 108), (102, 105, 112), (148, 142, 119), (200, 184, 102))
_BRIGHTEST = (254, 232, 56)


class Mark(NamedTuple):
    """A rectangle: what it is, how dark from 0 to 1, and what it says."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    shade: float
    label: str


@dataclass(frozen=True, slots=True)
class Panel:
    """Marks that make a picture, `WIDTH` wide."""

    title: str
    height: float
    marks: list[Mark]


def colour(shade: float) -> tuple[int, int, int]:
    """Red, green and blue for a place between the first (0) and the last (1)."""
    stops = (*_RAMP, _BRIGHTEST)
    at = min(max(shade, 0.0), 1.0) * (len(stops) - 1)
    k = min(int(at), len(stops) - 2)
    lower, upper, part = stops[k], stops[k + 1], at - k
    red, green, blue = (
        round(a + (b - a) * part) for a, b in zip(lower, upper, strict=True)
    )
    return red, green, blue


def hex_colour(shade: float) -> str:
    """The same colour in HTML's spelling."""
    return "#{:02x}{:02x}{:02x}".format(*colour(shade))


def panels(shard: ShardMap, layout: ArrayLayout) -> list[Panel]:
    """The two pictures of a shard: its bytes in a row, and its grid of inner chunks."""
    return [_bytes_panel(shard), _grid_panel(shard, layout)]


def _bytes_panel(shard: ShardMap) -> Panel:
    n_pieces = (
        len(shard.chunks.stored)
        + len(shard.chunks.index_start)
        + len(shard.use.gap_start)
    )
    if n_pieces > _MOST_PIECES:
        return _binned_panel(shard)
    n_rows = min(16, max(2, ceil(n_pieces / 12)))
    per_row = max(1, ceil(shard.chunks.end / n_rows))
    marks = [
        mark
        for start, stop, kind, shade, label in _object_pieces(shard)
        for mark in _marks_of_range(start, stop, per_row, (kind, shade, label))
    ]
    title = f"Bytes of the object, {per_row:,} in a row"
    return Panel(title, n_rows * (_ROW_HEIGHT + _ROW_GAP), marks)


def _object_pieces(shard: ShardMap) -> Iterator[tuple[int, int, str, float, str]]:
    """Byte range, kind, shade and label of each piece of the object."""
    chunks, use = shard.chunks, shard.use
    gaps = zip(use.gap_start.tolist(), use.gap_stop.tolist(), strict=True)
    for start, stop in gaps:
        yield start, stop, "unused", 0.0, f"unused, {_range_text(start, stop)}"
    n = max(1, len(chunks.state) - 1)
    for place, row in enumerate(use.order.tolist()):
        start, stop = int(chunks.start[row]), int(chunks.stop[row])
        label = f"{_chunk_label(shard, row)}, number {place + 1} in the object"
        yield start, stop, "chunk", row / n, label
    indexes = zip(chunks.index_start.tolist(), chunks.index_stop.tolist(), strict=True)
    for start, stop in indexes:
        yield start, stop, "index", 0.0, f"index, {_range_text(start, stop)}"


def _chunk_label(shard: ShardMap, row: int) -> str:
    """What is known of one stored inner chunk."""
    chunks = shard.chunks
    start, stop = int(chunks.start[row]), int(chunks.stop[row])
    ratio = shard.decoded_nbytes / (stop - start) if stop > start else 0
    coordinate = tuple(chunks.coordinate[row].tolist())
    return f"inner chunk {coordinate}, {_range_text(start, stop)}, {ratio:.2f} to 1"


def _range_text(start: int, stop: int) -> str:
    return f"bytes {start:,} to {stop:,} ({stop - start:,})"


def _marks_of_range(
    start: int, stop: int, per_row: int, look: tuple[str, float, str]
) -> Iterator[Mark]:
    """Marks of a byte range, one a row that it runs through."""
    while start < stop:
        row = start // per_row
        end = min(stop, (row + 1) * per_row)
        x = (start - row * per_row) / per_row * WIDTH
        width = max(0.75, (end - start) / per_row * WIDTH)
        yield Mark(x, row * (_ROW_HEIGHT + _ROW_GAP), width, _ROW_HEIGHT, *look)
        start = end


def _binned_panel(shard: ShardMap) -> Panel:
    n_bins = _BIN_ROWS * _BIN_COLUMNS
    bins = byte_bins(shard, n_bins)
    width = WIDTH / _BIN_COLUMNS
    height = _ROW_HEIGHT + _ROW_GAP
    marks: list[Mark] = []
    for i, (kind, _, shade) in enumerate(bin_contents(bins, shard)):
        row, column = divmod(i, _BIN_COLUMNS)
        index, unused = float(bins.index[i]), float(bins.unused[i])
        start, stop = int(bins.edges[i]), int(bins.edges[i + 1])
        label = (
            f"{_range_text(start, stop)}: {1 - index - unused:.0%} inner chunks,"
            f" {bins.n_chunks[i]:,} begin here; {unused:.0%} unused, {index:.0%} index"
        )
        marks.append(
            Mark(column * width, row * height, width, height, kind, shade, label)
        )
    title = f"Bytes of the object, {int(bins.edges[1]):,} a cell"
    return Panel(title, _BIN_ROWS * height, marks)


def bin_contents(bins: ByteBins, shard: ShardMap) -> Iterator[tuple[str, int, float]]:
    """Kind of what uses most of each bin, and the inner chunk in the bin's middle.

    That is told by its place in the object, and by its shade: its place in the grid,
    from 0 to 1. Both are 0 if the object has no inner chunks.
    """
    chunks, order = shard.chunks, shard.use.order
    middle = (bins.edges[1:] + bins.edges[:-1]) / 2
    places = np.searchsorted(chunks.start[order], middle, side="right") - 1
    n = max(1, len(chunks.state) - 1)
    for index, unused, at in zip(bins.index, bins.unused, places.tolist(), strict=True):
        place = max(0, at)
        shade = int(order[place]) / n if len(order) else 0.0
        kind = "chunk"
        if max(index, unused) > 1 - index - unused or not len(order):
            kind = "index" if index >= unused else "unused"
        yield kind, place, shade


def _grid_panel(shard: ShardMap, layout: ArrayLayout) -> Panel:
    bins = grid_bins(shard, layout, _GRID_ROWS, _GRID_COLUMNS)
    n_rows, n_columns = bins.n_chunks.shape
    side = min(28.0, WIDTH / n_columns)
    n_all = max(1, len(shard.chunks.state) - 1)
    marks: list[Mark] = []
    for r in range(n_rows):
        for c in range(n_columns):
            counts = {
                "chunk": int(bins.n_stored[r, c]),
                "missing": int(bins.n_missing[r, c]),
                "damaged": int(bins.n_damaged[r, c]),
                "beyond": int(bins.n_beyond[r, c]),
            }
            n_chunks = int(bins.n_chunks[r, c])
            row = int(bins.row[r, c])
            # What is wrong must not be lost among what is not.
            kind = (
                "damaged" if counts["damaged"] else max(counts, key=counts.__getitem__)
            )
            if not n_chunks:
                counts["missing"] = bins.per_row * bins.per_column
                kind, label = "missing", "a nested shard that is missing or damaged"
            elif n_chunks == 1:
                label = _chunk_cell_label(shard, row, kind)
            else:
                label = _chunks_cell_label(shard, counts, int(bins.nbytes[r, c]), row)
            shade = max(row, 0) / n_all
            marks.append(Mark(c * side, r * side, side, side, kind, shade, label))
    title = "Inner chunks in their grid"
    if (bins.per_row, bins.per_column) != (1, 1):
        title += f", {bins.per_row} by {bins.per_column} a cell"
    return Panel(title, n_rows * side, marks)


def _chunk_cell_label(shard: ShardMap, row: int, kind: str) -> str:
    if kind == "chunk":
        return _chunk_label(shard, row)
    coordinate = tuple(shard.chunks.coordinate[row].tolist())
    words = {
        "missing": "missing: reads as the fill value",
        "damaged": "its entry is no valid byte range",
        "beyond": "not stored, beyond the array's edge",
    }
    return f"inner chunk {coordinate}, {words[kind]}"


def _chunks_cell_label(
    shard: ShardMap, counts: dict[str, int], nbytes: int, row: int
) -> str:
    first = tuple(shard.chunks.coordinate[row].tolist())
    ratio = counts["chunk"] * shard.decoded_nbytes / nbytes if nbytes else 0
    return (
        f"from inner chunk {first} on: {counts['chunk']:,} stored in {nbytes:,} bytes,"
        f" {ratio:.2f} to 1; {counts['missing']:,} missing,"
        f" {counts['damaged']:,} damaged"
    )

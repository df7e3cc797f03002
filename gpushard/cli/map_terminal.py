"""A shard's map in a terminal: characters that are readable without colour."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from gpushard.cli.map_svg import hex_colour
from gpushard.cli.output import stdout_as_a_store
from gpushard.inspection.shard_map import ShardMap, byte_bins, grid_bins
from gpushard.layout import ArrayLayout

_CHUNK, _OTHER_CHUNK, _INDEX, _UNUSED = "█", "▓", "I", "·"
_MISSING, _DAMAGED, _BEYOND, _MIXED = "□", "X", " ", "▒"
LEGEND = "   ".join(
    (
        f"{_CHUNK}{_OTHER_CHUNK} inner chunks, one after the other",
        f"{_INDEX} index",
        f"{_UNUSED} unused",
        f"{_MIXED} some missing",
        f"{_MISSING} missing",
        f"{_DAMAGED} damaged",
    )
)
# Replacements for terminals and other readers without such characters.
_ASCII = str.maketrans(f"{_CHUNK}{_OTHER_CHUNK}{_UNUSED}{_MIXED}{_MISSING}", "#=.%o")
_STRIP_ROWS = 8
_GRID_ROWS = 32

Cell = tuple[str, str | None]
"""A character, and its colour."""
_AN_INDEX: Cell = _INDEX, "#d55e00"


def print_map(shard: ShardMap, layout: ArrayLayout) -> None:
    """Draw the bytes of a shard and the grid of its inner chunks on stdout."""
    from rich.console import Console
    from rich.style import Style
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)
    spell = _spelling(console.encoding)
    columns = max(20, min(console.width, 120))
    pictures = (_strip(shard, columns), _grid(shard, layout, columns))
    with stdout_as_a_store():
        for title, rows in zip(("bytes", "grid"), pictures, strict=True):
            console.print(f"\n{title}", markup=False)
            for row in rows:
                line = Text()
                for hue, cells in groupby(row, key=itemgetter(1)):
                    text = "".join(character for character, _ in cells)
                    line.append(text.translate(spell), Style(color=hue))
                console.print(line, soft_wrap=True)
        console.print(LEGEND.translate(spell), markup=False, soft_wrap=True)


def _spelling(encoding: str) -> dict[int, int]:
    """Replacements for characters that an encoding lacks."""
    try:
        LEGEND.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return _ASCII
    return {}


def _strip(shard: ShardMap, columns: int) -> Iterator[list[Cell]]:
    n_rows = max(1, min(_STRIP_ROWS, -(-shard.chunks.end // columns)))
    bins = byte_bins(shard, n_rows * columns)
    order, chunks = shard.use.order, shard.chunks
    starts = chunks.start[order]
    n = max(1, len(chunks.state) - 1)
    for first in range(0, n_rows * columns, columns):
        row: list[Cell] = []
        for i in range(first, first + columns):
            index, unused = bins.index[i], bins.unused[i]
            if max(index, unused) > 1 - index - unused or not len(order):
                row.append(_AN_INDEX if index >= unused else (_UNUSED, None))
                continue
            middle = (bins.edges[i] + bins.edges[i + 1]) / 2
            at = max(0, int(starts.searchsorted(middle, side="right")) - 1)
            hue = hex_colour(int(order[at]) / n)
            row.append((_OTHER_CHUNK if at % 2 else _CHUNK, hue))
        yield row


def _grid(shard: ShardMap, layout: ArrayLayout, columns: int) -> Iterator[list[Cell]]:
    # Characters are about twice as high as wide.
    bins = grid_bins(shard, layout, _GRID_ROWS, columns // 2)
    n = max(1, len(shard.chunks.state) - 1)
    for r in range(bins.n_chunks.shape[0]):
        row: list[Cell] = []
        for c in range(bins.n_chunks.shape[1]):
            cell: Cell = (_CHUNK, hex_colour(max(0, int(bins.row[r, c])) / n))
            if bins.n_damaged[r, c]:
                cell = _DAMAGED, "#cc79a7"
            elif bins.n_missing[r, c] and bins.n_stored[r, c]:
                cell = _MIXED, cell[1]
            elif not bins.n_stored[r, c]:
                is_beyond = bins.n_beyond[r, c] and not bins.n_missing[r, c]
                cell = (_BEYOND if is_beyond else _MISSING), None
            row += [cell, cell]
        yield row

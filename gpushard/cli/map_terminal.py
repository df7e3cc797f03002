"""A shard's map in a terminal: characters that are readable without colour."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice
from operator import itemgetter

from gpushard.cli.map_marks import (
    DAMAGED_COLOUR,
    INDEX_COLOUR,
    bin_contents,
    hex_colour,
)
from gpushard.cli.output import stdout_as_a_store, stdout_console
from gpushard.inspection.shard_map import ShardMap, byte_bins, grid_bins
from gpushard.layout import ArrayLayout

_CHUNK, _OTHER_CHUNK, _INDEX, _UNUSED = "█", "▓", "I", "·"
_MISSING, _DAMAGED, _BEYOND, _MIXED = "□", "X", " ", "▒"
_LEGEND = (
    f"{_CHUNK}{_OTHER_CHUNK} inner chunks, one after the other",
    f"{_INDEX} index",
    f"{_UNUSED} unused",
    f"{_MIXED} some missing",
    f"{_MISSING} missing",
    f"{_DAMAGED} damaged",
)
# Replacements for terminals and other readers without such characters.
_ASCII = str.maketrans(f"{_CHUNK}{_OTHER_CHUNK}{_UNUSED}{_MIXED}{_MISSING}", "#=.%o")
_STRIP_ROWS = 8
_GRID_ROWS = 32

Cell = tuple[str, str | None]
"""A character, and its colour."""


def print_map(shard: ShardMap, layout: ArrayLayout) -> None:
    """Draw the bytes of a shard and the grid of its inner chunks on stdout."""
    from rich.style import Style
    from rich.text import Text

    console = stdout_console()
    spell = _spelling(console.encoding)
    columns = min(console.width, 120)
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
        for text in _legend(columns):
            console.print(text.translate(spell), markup=False, soft_wrap=True)


def _spelling(encoding: str) -> dict[int, int]:
    """Replacements for characters that an encoding lacks."""
    try:
        "".join(_LEGEND).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return _ASCII
    return {}


def _legend(columns: int) -> Iterator[str]:
    """Lines of the legend, none of them wider than the pictures."""
    line = ""
    for sign in _LEGEND:
        longer = f"{line}   {sign}" if line else sign
        if line and len(longer) > columns:
            yield line
            longer = sign
        line = longer
    yield line


def _strip(shard: ShardMap, columns: int) -> Iterator[list[Cell]]:
    n_rows = max(1, min(_STRIP_ROWS, -(-shard.chunks.end // columns)))
    contents = bin_contents(byte_bins(shard, n_rows * columns), shard)
    while row := [_strip_cell(*content) for content in islice(contents, columns)]:
        yield row


def _strip_cell(kind: str, place: int, shade: float) -> Cell:
    if kind == "chunk":
        return _OTHER_CHUNK if place % 2 else _CHUNK, hex_colour(shade)
    return (_INDEX, INDEX_COLOUR) if kind == "index" else (_UNUSED, None)


def _grid(shard: ShardMap, layout: ArrayLayout, columns: int) -> Iterator[list[Cell]]:
    # Characters are about twice as high as wide.
    bins = grid_bins(shard, layout, _GRID_ROWS, columns // 2)
    n = max(1, len(shard.chunks.state) - 1)
    for r in range(bins.n_chunks.shape[0]):
        row: list[Cell] = []
        for c in range(bins.n_chunks.shape[1]):
            cell: Cell = (_CHUNK, hex_colour(max(0, int(bins.row[r, c])) / n))
            if bins.n_damaged[r, c]:
                cell = _DAMAGED, DAMAGED_COLOUR
            elif bins.n_missing[r, c] and bins.n_stored[r, c]:
                cell = _MIXED, cell[1]
            elif not bins.n_stored[r, c]:
                is_beyond = bins.n_beyond[r, c] and not bins.n_missing[r, c]
                cell = (_BEYOND if is_beyond else _MISSING), None
            row += [cell, cell]
        yield row

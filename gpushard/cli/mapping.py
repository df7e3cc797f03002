"""The work behind `gpushard map`: a shard found, mapped and written as a picture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.cli.files import write_text
from gpushard.cli.map_marks import panels
from gpushard.cli.map_svg import map_html, picture_svg
from gpushard.errors import CorruptShardError, NotFoundError, OptionError, naming
from gpushard.inspection.contents import Contents
from gpushard.inspection.shard_map import ShardMap, first_stored, map_shard
from gpushard.layout import ArrayLayout
from gpushard.listed import each_of, listed_coordinates
from gpushard.metadata import load_array
from gpushard.nearby import hinting
from gpushard.options import Options
from gpushard.planning.index import CORRUPT, MISSING, PRESENT
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.stores.local.store import LocalStore
from gpushard.stores.resolve import resolve

_ENDINGS = (".svg", ".html", ".png")
_MOST_GAPS = 10_000
_ROWS_AT_ONCE = 4096
# Looked for to find a shard that is stored; more would keep a user waiting.
_MOST_FILES, _MOST_OBJECTS = 100_000, 1_000


@dataclass(frozen=True, slots=True)
class MapReport:
    """A shard of an array, and what lies where in it."""

    url: str
    layout: ArrayLayout
    shard: ShardMap

    @property
    def title(self) -> str:
        """What the picture shows."""
        return f"{self.shard.key} of {self.url}"

    def rows(self) -> list[tuple[str, str]]:
        """Figures as labels and texts."""
        facts = self.shard.facts(self.layout)
        nbytes = max(1, facts["nbytes"])
        unused = f"{facts['unused_nbytes']:,} bytes in {facts['n_gaps']:,} gaps"
        n_all = facts["n_stored"] + facts["n_missing"]
        rows = [
            ("shard", facts["shard"]),
            ("size", f"{facts['nbytes']:,} bytes"),
            ("index", f"{facts['index_nbytes']:,} bytes"),
            ("unused", f"{unused}, {facts['unused_nbytes'] / nbytes:.1%}"),
            (
                "inner chunks",
                f"{facts['n_stored']:,} stored of {n_all:,} within the array,"
                f" {facts['n_missing']:,} missing",
            ),
        ]
        if facts["order"]:
            rows.append(("order", _ORDERS[facts["order"]]))
        if facts["ratio"]:
            sizes = f"{facts['smallest_nbytes']:,} to {facts['largest_nbytes']:,} bytes"
            rows.append(("compression", f"{facts['ratio']:.2f} to 1, {sizes} each"))
        if facts["n_overlapping"] or facts["n_shared"]:
            shared = (
                f"{facts['n_overlapping']:,} overlapping, {facts['n_shared']:,} equal"
            )
            rows.append(("shared bytes", f"{shared} ranges"))
        return rows

    def as_dict(self) -> dict[str, Any]:
        """All that is known, for JSON: what may be long is an iterator."""
        chunks, use = self.shard.chunks, self.shard.use
        gaps = slice(_MOST_GAPS)
        return {
            "url": self.url,
            **self.shard.facts(self.layout),
            "indexes": _ranges(chunks.index_start, chunks.index_stop),
            "gaps": _ranges(use.gap_start[gaps], use.gap_stop[gaps]),
            "inner_chunks": self._inner_chunks(),
        }

    def _inner_chunks(self) -> Iterator[dict[str, Any]]:
        """What is known of each inner chunk, in the order of the indexes."""
        chunks, use = self.shard.chunks, self.shard.use
        place = np.full(len(chunks.state), -1)
        place[use.order] = np.arange(len(use.order))
        columns = (chunks.coordinate, chunks.state, chunks.start, chunks.stop, place)
        for coordinate, state, start, stop, at in _rows(*columns):
            yield {
                "coordinate": coordinate,
                "state": _STATES[state],
                "offset": start if at >= 0 else None,
                "nbytes": stop - start if at >= 0 else None,
                "place": at if at >= 0 else None,
            }


def _ranges(start: Ints, stop: Ints) -> Iterator[dict[str, int]]:
    return ({"offset": a, "nbytes": b - a} for a, b in _rows(start, stop))


def _rows(*columns: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    """Rows of columns, of which a few become Python objects at a time."""
    for first in range(0, len(columns[0]), _ROWS_AT_ONCE):
        some = slice(first, first + _ROWS_AT_ONCE)
        yield from zip(*(column[some].tolist() for column in columns), strict=True)


_STATES = {PRESENT: "stored", MISSING: "missing", CORRUPT: "damaged"}
_ORDERS = {
    "c": "C: the last axis first",
    "f": "F: the first axis first",
    "morton": "Morton: neighbours along every axis together",
    "other": "none that is known",
}


def open_map(url: str, shard: str | None, options: Options) -> MapReport:
    """Map of a shard of the array at `url`.

    `shard` is its key or its coordinate; None means the first that is stored.
    `options` limit what the array may ask for.

    Raises
    ------
    NotFoundError
        There is no array, or no such shard.
    CorruptShardError
        Its index cannot be read.
    OptionError
        `shard` names none of the array's.
    StoreError
        The store failed.
    """
    with hinting(url):
        store, path = resolve(url)
    with naming(store, path):
        with hinting(store, path):
            layout = load_array(store, path, options)
        source = Source.prepare(layout, store, options)
        coordinate = (
            _first_stored(source) if shard is None else _parsed_shard(layout, shard)
        )
        mapped = map_shard(source, coordinate)
        if isinstance(mapped, Contents):
            raise _error_without_map(mapped)
        return MapReport(url, layout, mapped)


def _first_stored(source: Source) -> tuple[int, ...]:
    is_near = isinstance(source.store, LocalStore)
    most = _MOST_FILES if is_near else _MOST_OBJECTS
    every = source.layout.coordinates()
    found = first_stored(source, islice(every, _MOST_OBJECTS))
    if found is None:
        # Of a sparse array, a listing shows the few that there are.
        listed = listed_coordinates(source)
        is_told = listed is not None or source.layout.n_objects <= most
        more = (
            islice(every, most - _MOST_OBJECTS) if listed is None else each_of(listed)
        )
        found = first_stored(source, more)
        if found is None:
            raise _none_stored(None if is_told else most)
    return found


def _none_stored(n_looked_at: int | None) -> NotFoundError:
    """Error for an array without a shard; None if all of it was looked at."""
    if n_looked_at is None:
        return NotFoundError(
            "no shard of the array is stored",
            hint="there is nothing to draw: every element is the fill value",
        )
    return NotFoundError(
        f"none of the first {n_looked_at:,} shards of the array is stored",
        hint="name one that is with --shard",
    )


def _error_without_map(contents: Contents) -> Exception:
    if not contents.exists:
        return NotFoundError(
            "there is no such shard, so that all of it is the fill value",
            shard_key=contents.key,
        )
    found = contents.findings[0]
    return CorruptShardError(
        found.message,
        shard_key=contents.key,
        codec=found.codec,
        expected=found.expected,
        got=found.got,
        hint=found.hint,
    )


def _parsed_shard(layout: ArrayLayout, text: str) -> tuple[int, ...]:
    """Coordinate of the shard that `text`, a key or a coordinate, names.

    Raises `OptionError` if it names none in the array's grid.
    """
    n = layout.ndim
    # Python converts no number of thousands of digits.
    numbers = tuple(map(int, re.findall(r"[0-9]{1,40}", text)))
    coordinate = numbers[len(numbers) - n :] if n else ()
    is_inside = len(coordinate) == n and all(
        at < axis.n_cells for at, axis in zip(coordinate, layout.axes, strict=True)
    )
    if is_inside:
        key = layout.keys.key(coordinate)
        plain = ",".join(map(str, coordinate))
        if text in (key, layout.key_prefix + key) or text.replace(" ", "") == plain:
            return coordinate
    last = tuple(axis.n_cells - 1 for axis in layout.axes)
    expected = "no key, because the array has no elements"
    if layout.n_objects:
        first = layout.keys.key((0,) * n)
        expected = f"a key from {first} to {layout.keys.key(last)}"
    raise OptionError(
        "the array has no such shard",
        expected=expected,
        got=repr(text),
    )


def write_map(mapped: MapReport, out: Path) -> None:
    """Write the picture that `out` is named for.

    Raises `OptionError` if its name has another ending than .svg, .html or .png, and as
    `write_png` and `write_file`.
    """
    ending = out.suffix.lower()
    if ending not in _ENDINGS:
        raise OptionError(
            "a map is drawn into files of three kinds",
            expected=f"a name that ends in {', '.join(_ENDINGS)}",
            got=repr(str(out)),
        )
    pictures = panels(mapped.shard, mapped.layout)
    if ending == ".png":
        from gpushard.cli.map_image import write_png

        write_png(out, mapped.title, pictures)
    elif ending == ".svg":
        lines = [f"{label}: {text}" for label, text in mapped.rows()[1:]]
        write_text(out, picture_svg(mapped.title, lines, pictures))
    else:
        write_text(out, map_html(mapped.title, mapped.rows(), pictures))

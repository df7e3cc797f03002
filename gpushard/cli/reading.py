"""The work behind `gpushard read`: an array read piece by piece."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.array import Array, array_over
from gpushard.cli.comparison import Mismatch, Reference
from gpushard.cli.npy import NpyFile, stored_dtype
from gpushard.cli.pieces import Piece, cut_selection, per_axis, result_shape
from gpushard.cli.selection_text import (
    SELECTION_HINT,
    Item,
    parse_selection,
    split_target,
)
from gpushard.converting.progress import counted
from gpushard.errors import NotFoundError, naming
from gpushard.layout import ArrayLayout, GridAxis
from gpushard.metadata import load_array
from gpushard.nearby import hinting
from gpushard.options import MIB, Options
from gpushard.stores.base import Store
from gpushard.stores.resolve import resolve

# Larger reads go piece by piece, so that memory stays bounded and progress is shown.
PIECE_NBYTES = 64 * MIB


class Summary:
    """Smallest, largest and mean element, block by block; of numbers only."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        # NumPy's own reductions do not support bfloat16 and similar types.
        self._is_foreign = dtype.type.__module__ == "ml_dtypes"
        self._is_number = self._is_foreign or dtype.kind in "biuf"
        self._extremes: list[Any] = []
        self._sum = 0.0
        self._n_numbers = 0
        self._n_nan = 0

    def add(self, block: NDArray[Any]) -> None:
        """Add the elements of a block."""
        if not (self._is_number and block.size):
            return
        if self._is_foreign:
            block = block.astype(np.float32)
        with np.errstate(all="ignore"):  # sums of infinities
            extremes = np.fmin.reduce(block, None), np.fmax.reduce(block, None)
            if block.dtype.kind == "f":
                numbers = ~np.isnan(block)
                self._sum += float(np.sum(block, dtype=np.float64, where=numbers))
                n_numbers = int(np.count_nonzero(numbers))
            else:
                self._sum += float(np.sum(block, dtype=np.float64))
                n_numbers = block.size
        self._n_numbers += n_numbers
        self._n_nan += block.size - n_numbers
        if n_numbers:
            self._extremes += [extreme.item() for extreme in extremes]
            self._extremes = [min(self._extremes), max(self._extremes)]

    def as_dict(self) -> dict[str, Any]:
        """The figures by name; None if there are no numbers."""
        least, greatest = self._extremes or (None, None)
        mean = self._sum / self._n_numbers if self._n_numbers else None
        return {"min": least, "max": greatest, "mean": mean, "n_nan": self._n_nan}

    def __str__(self) -> str:
        facts = {k: v for k, v in self.as_dict().items() if v is not None}
        if not self._n_nan:
            del facts["n_nan"]
        return ", ".join(f"{name} {value}" for name, value in facts.items())


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a read.

    Attributes
    ----------
    url, selection
        What was read; the selection as it was typed.
    seconds
        Time it took, the comparison included.
    file_dtype
        Data type of the elements in the file; None if there is no file.
    mismatch
        How zarr-python's read differs. If it does, there is no file.
    """

    url: str
    selection: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    seconds: float
    summary: Summary
    file_dtype: np.dtype[Any] | None
    is_compared: bool
    mismatch: Mismatch | None

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the elements in memory."""
        return self.size * self.dtype.itemsize


def read_target(
    target: str,
    out: Path | None,
    *,
    verify: bool,
    progress: bool | None,
    options: Options,
) -> Result:
    """Result of reading ``URL[SELECTION]``.

    Parameters
    ----------
    out
        File to write; None to sum the elements up instead.
    verify
        Whether zarr-python reads the same for comparison.
    progress
        Whether progress is shown on stderr; None: for long reads on a terminal.
    options
        Limits on what the array may need.

    Raises
    ------
    GpushardError
        The array cannot be opened or read, the selection does not fit it, the file
        cannot be written, or zarr-python cannot read the same.
    """
    started = perf_counter()
    url, text = split_target(target)
    store, path = _resolve_before_selection(url, text)
    with naming(store, path):
        key = (...,) if text is None else parse_selection(text)
        with hinting(store, path):
            layout = load_array(store, path, options)
        shape, pieces = _shape_and_pieces(key, layout)
        is_shown = len(pieces) > 1 and sys.stderr.isatty()
        reader = _Reader(
            array_over(layout, store, "cpu", options),
            pieces,
            Reference(store, path) if verify else None,
            shows_progress=is_shown if progress is None else progress,
        )
        summary = Summary(layout.dtype)
        if out is None:
            mismatch = reader.sum_up(summary)
        else:
            mismatch = reader.read_to(out, shape, summary)
    return Result(
        url=url,
        selection="..." if text is None else text.strip(),
        shape=shape,
        dtype=layout.dtype,
        seconds=perf_counter() - started,
        summary=summary,
        file_dtype=None if out is None else stored_dtype(layout.dtype),
        is_compared=verify,
        mismatch=mismatch,
    )


def _resolve_before_selection(url: str, selection: str | None) -> tuple[Store, str]:
    """Store and path of an address before a selection; raises as `resolve`."""
    try:
        with hinting(url):
            return resolve(url)
    except NotFoundError as error:
        if selection is None and "[" in url:
            error.hint = "end a selection with ], and quote it for the shell"
        elif url.count("[") > url.count("]"):
            error.hint = f"a selection has no lists in it: {SELECTION_HINT}"
        raise


def _shape_and_pieces(
    key: tuple[Item, ...], layout: ArrayLayout
) -> tuple[tuple[int, ...], list[Piece]]:
    """Shape of the result of `key`, and the pieces in which it is read."""
    items = per_axis(key, layout.shape)
    pieces = cut_selection(
        items, _grid_to_cut_along(layout), layout.dtype.itemsize, PIECE_NBYTES
    )
    return result_shape(items), pieces


def _grid_to_cut_along(layout: ArrayLayout) -> Sequence[GridAxis]:
    """Grid that a result is cut along: of shards, or of what large ones consist of."""
    nbytes = prod(axis.longest for axis in layout.axes) * layout.dtype.itemsize
    is_large = nbytes > PIECE_NBYTES and not layout.object_codecs
    return layout.inner_axes if is_large else layout.axes


@dataclass(frozen=True, slots=True)
class _Reader:
    array: Array
    pieces: list[Piece]
    reference: Reference | None
    shows_progress: bool

    def read_to(
        self, out: Path, shape: tuple[int, ...], summary: Summary
    ) -> Mismatch | None:
        """As `sum_up`, and also write a file, which is kept if nothing differs."""
        with NpyFile(out, shape, self.array.dtype) as file:
            whole = file.array
            mismatch = self._read(lambda one: whole[(*one.place, ...)], summary)
            if mismatch is None:
                file.keep()
        return mismatch

    def sum_up(self, summary: Summary) -> Mismatch | None:
        """Read all pieces and add them to `summary`; returns a mismatch, if any."""
        dtype = self.array.dtype
        return self._read(lambda piece: np.empty(piece.shape, dtype), summary)

    def _read(
        self, block_for: Callable[[Piece], NDArray[Any]], summary: Summary
    ) -> Mismatch | None:
        mismatches: list[Mismatch] = []
        size = sum(prod(piece.shape) for piece in self.pieces)
        nbytes = size * self.array.dtype.itemsize
        with counted(nbytes, self.shows_progress) as advance:
            for piece in self.pieces:
                block = self.array.read(piece.key, out=block_for(piece))
                summary.add(block)
                if self.reference is not None:
                    mismatch = self.reference.mismatch(piece, block)
                    mismatches += [] if mismatch is None else [mismatch]
                advance(block.nbytes)
                del block  # before there is room for the next one
        if not mismatches:
            return None
        n_elements = sum(mismatch.n_elements for mismatch in mismatches)
        return replace(mismatches[0], n_elements=n_elements)

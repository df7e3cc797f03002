"""Smallest, largest and mean element of a result, block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Summary:
    """Running summary of elements of `dtype`, for numbers only.

    Parameters
    ----------
    dtype
        Data type of every block.
    """

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

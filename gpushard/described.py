"""What an array says about itself, from its metadata."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpushard.layout import ArrayLayout
from gpushard.numpy_like import NumpyLike


class DescribedArray(NumpyLike):
    """Base of arrays that one metadata document describes."""

    @property
    @abstractmethod
    def _layout(self) -> ArrayLayout:
        """The metadata, parsed."""

    @property
    def path(self) -> str:
        """Path of the array in its store; "" is the root."""
        return self._layout.path

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the elements, in native byte order."""
        return self._layout.dtype

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """Inner chunk shape in elements; None if the grid is rectilinear."""
        return self._layout.chunks

    @property
    def shards(self) -> tuple[int, ...] | None:
        """Shard shape in elements; None if not sharded or rectilinear."""
        return self._layout.shards

    @property
    def block_shape(self) -> tuple[int, ...] | None:
        """Shape of the best unit to read: a shard, or a chunk; None if it varies."""
        return self.shards or self.chunks

    @property
    def fill_value(self) -> Any:
        """Value of missing inner chunks, as a scalar of `dtype`."""
        return self._layout.fill_value[()]

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The array's attributes; changes to them are not stored."""
        return self._layout.attributes

    @property
    def dimension_names(self) -> tuple[str | None, ...] | None:
        """Names of the axes; None if they have none."""
        return self._layout.dimension_names

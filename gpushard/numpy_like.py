"""What gpushard's arrays share with NumPy's, `to_dask`, and what metadata tell."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpushard.layout import ArrayLayout
from gpushard.options import MIB
from gpushard.selecting import expressions
from gpushard.selecting.indexer import Indexer, Parse

if TYPE_CHECKING:
    import dask.array

# Bytes that iteration reads at a time: large enough to be worth a request.
_SLAB_NBYTES = 64 * MIB


class NumpyLike(ABC):
    """Base of arrays that are read by `read`."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Data type of the elements, in native byte order."""

    @property
    @abstractmethod
    def device(self) -> str:
        """Where results lie: "cpu", "cuda:0", ..."""

    @property
    @abstractmethod
    def block_shape(self) -> tuple[int, ...] | None:
        """Shape of the best unit to read: a shard, or a chunk; None if it varies."""

    @abstractmethod
    def read(self, selection: Any = ..., /, *, out: Any = None) -> Any:
        """Elements that `selection` selects."""

    @abstractmethod
    def __dask_tokenize__(self) -> Any:
        """Token that identifies this array in its present state, in any process."""

    @abstractmethod
    def _read_by(self, parse: Parse, key: Any) -> Any:
        """Elements at a key of the kind that `parse` takes, as NumPy returns them."""

    @abstractmethod
    def _write_by(self, parse: Parse, key: Any, value: Any) -> None:
        """Write to the elements at a key of the kind that `parse` takes, or raise."""

    def _indexer(self, parse: Parse) -> Indexer:
        return Indexer(partial(self._read_by, parse), partial(self._write_by, parse))

    @property
    def oindex(self) -> Indexer:
        """Orthogonal indexing: ``a.oindex[[0, 5], :, mask]``."""
        return self._indexer(expressions.orthogonal)

    @property
    def vindex(self) -> Indexer:
        """Indexing by coordinates or a mask: ``a.vindex[[0, 5], [1, 2]]``."""
        return self._indexer(expressions.points)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of all elements in memory, in bytes."""
        return self.size * self.dtype.itemsize

    def to_dask(self, chunks: Any = None) -> dask.array.Array:
        """Dask array of the same elements, each block read as one batch.

        The graph contains the array's address, and each worker opens the array itself.
        Blocks lie on the array's device.

        Parameters
        ----------
        chunks
            Blocks in dask's spelling. None means shards or, without shards, chunks
            joined up to dask's ``array.chunk-size``.

        Raises
        ------
        UnsupportedError
            dask is not installed.

        Examples
        --------
        >>> u = gpushard.open_array("demo.zarr/u", device="cpu").to_dask()
        >>> u.chunksize
        (1, 3, 241, 480)
        """
        from gpushard.integrations.dask import dask_array

        return dask_array(self, chunks)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d array")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return self._rows()

    def _rows(self) -> Iterator[Any]:
        """Elements along axis 0, several per read, since a chunk has several."""
        n_rows, *rest = self.shape
        row_nbytes = max(1, prod(rest) * self.dtype.itemsize)
        step = max(1, _SLAB_NBYTES // row_nbytes)
        if self.block_shape is not None and self.block_shape[0] <= step:
            step = self.block_shape[0]
        for start in range(0, n_rows, step):
            yield from self.read(slice(start, min(start + step, n_rows)))

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        """All elements as a NumPy array; only from the host."""
        if self.device != "cpu":
            raise TypeError(
                f"results of this array lie on {self.device} and do not become NumPy"
                " arrays by themselves; open it with device='cpu', or copy them"
            )
        if copy is False:
            raise ValueError("a stored array cannot become an ndarray without a copy")
        return self.read() if dtype is None else self.read().astype(dtype, copy=False)


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

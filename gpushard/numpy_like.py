"""What all arrays have: reads, what they share with NumPy's, and what metadata tell."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpushard.attributes import Attributes
from gpushard.damage import OnDamage
from gpushard.layout import ArrayLayout, cell_shape
from gpushard.options import MIB
from gpushard.placing.outputs import many
from gpushard.selecting import expressions
from gpushard.selecting.indexer import Indexer, Parse

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import dask.array

# Bytes that iteration reads at a time: large enough to be worth a request.
_SLAB_NBYTES = 64 * MIB


class Manner(NamedTuple):
    """How a caller wants selections read; `NumpyLike.read` documents each of these."""

    dtype: DTypeLike | None
    stream: Any
    errors: OnDamage
    memory_limit: int | None

    @property
    def is_plain(self) -> bool:
        """Whether the caller asks for nothing of all this."""
        dtype, stream, errors, limit = self
        is_usual = isinstance(errors, str) and errors == "raise"
        return is_usual and dtype is None and stream is None and limit is None


class NumpyLike(ABC):
    """Base of arrays that are read by `read` and `read_many`."""

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

    def read(
        self,
        selection: Any = ...,
        *,
        out: Any = None,
        dtype: DTypeLike | None = None,
        stream: Any = None,
        errors: OnDamage = "raise",
        memory_limit: int | None = None,
    ) -> Any:
        """Read the elements that `selection` selects, into `out` or a new array.

        Parameters
        ----------
        selection
            Key as in ``a[key]``.
        out
            Array to write into, of the selection's shape and any strides. On the host,
            a NumPy array or anything that shares its memory with NumPy (a torch
            tensor); on a device, anything with ``__cuda_array_interface__`` or DLPack.
        dtype
            Data type of the result if `out` is not given, as of NumPy, of torch, or a
            name such as "bfloat16"; values are cast during the read. Casts that change
            the kind of number (float to int) are refused.
        stream
            On a device, the CUDA stream on which `out` is used: `out` is written only
            after the work queued there is done. The result is complete on return.
        errors
            What happens at a damaged inner chunk. "raise" ends the read. "fill" returns
            the fill value there and warns with the count (`DamageWarning`). A callable,
            such as a list's ``append``, gets the error of each instead, and may raise.
            A store that fails always raises.
        memory_limit
            Bytes that this read may hold, instead of `Options.memory_limit`.

        Returns
        -------
        Array of the selection's shape: `numpy.ndarray` on the host, `cupy.ndarray` on a
        device; `out` itself if it was given.

        Raises
        ------
        SelectionError
            The selection does not fit the array, `out` does not fit the selection, or
            the cast is refused.
        CorruptShardError
            Stored bytes are damaged; the content of `out` is then undefined.
        StoreError
            The store failed.
        """
        manner = Manner(dtype, stream, errors, memory_limit)
        return self._read_over([selection], [out], manner)[0]

    def read_many(
        self,
        selections: Sequence[Any],
        *,
        out: Sequence[Any] | None = None,
        dtype: DTypeLike | None = None,
        stream: Any = None,
        errors: OnDamage = "raise",
        memory_limit: int | None = None,
    ) -> list[Any]:
        """Read several selections in one batch; returns one result per selection.

        An inner chunk that several selections need is fetched and decoded once, unless
        it lies in a local file and decoding it again takes less time than a plan.

        Parameters
        ----------
        selections
            Keys as in ``a[key]``.
        out
            One array per selection, or None; see `read`.
        dtype, stream, errors, memory_limit
            As of `read`, which also says what is raised.
        """
        with self._named():
            keys, outs = many(selections, out)
        manner = Manner(dtype, stream, errors, memory_limit)
        return self._read_over(keys, outs, manner) if keys else []

    @abstractmethod
    def _read_over(
        self, keys: Sequence[Any], outs: Sequence[Any], manner: Manner
    ) -> list[Any]:
        """Results of a read, with damage handled as the caller asked."""

    @abstractmethod
    def _named(self) -> AbstractContextManager[None]:
        """Context that adds the array to errors which name none."""

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
            Blocks in dask's spelling; the keys of a dict may also be names of
            dimensions. None means shards or, without shards, chunks joined up to dask's
            ``array.chunk-size``.

        Raises
        ------
        UnsupportedError
            dask is not installed.
        OptionError
            dask makes no such blocks, or `chunks` names an axis that does not exist.

        Examples
        --------
        >>> u = gpushard.open_array("demo.zarr/u", device="cpu").to_dask()
        >>> u.chunksize
        (1, 3, 241, 480)
        """
        from gpushard.dask_blocks import dask_array

        return dask_array(self, chunks)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d array")
        return self.shape[0]

    def __bool__(self) -> bool:
        """Whether it has rows; of no dimension, the truth of its element, as NumPy."""
        return len(self) > 0 if self.shape else bool(self.read())

    def __int__(self) -> int:
        """The element of an array of no dimension, as of NumPy's."""
        return int(self._element())

    def __float__(self) -> float:
        """The element of an array of no dimension, as of NumPy's."""
        return float(self._element())

    def __complex__(self) -> complex:
        """The element of an array of no dimension, as of NumPy's."""
        return complex(self._element())

    def _element(self) -> Any:
        if self.shape:
            raise TypeError(
                f"only arrays of no dimension become Python's numbers, and {self!r}"
                f" has {self.ndim}: index it first"
            )
        return self.read()

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return self._rows()

    def _rows(self) -> Iterator[Any]:
        """Elements along axis 0, by reads of more and more whole blocks.

        Who wants only the first ones waits for one block of them.
        """
        n_rows, *rest = self.shape
        row_nbytes = max(1, prod(rest) * self.dtype.itemsize)
        step = most = max(1, _SLAB_NBYTES // row_nbytes)
        if self.block_shape is not None and self.block_shape[0] <= most:
            step = self.block_shape[0]
            most -= most % step
        start = 0
        while start < n_rows:
            stop = min(start + step, n_rows)
            yield from self.read(slice(start, stop))
            start, step = stop, min(2 * step, most)

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
        return cell_shape(self._layout.axes)

    @property
    def fill_value(self) -> Any:
        """Value of missing inner chunks, as a scalar of `dtype`."""
        return self._layout.fill_value[()]

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The array's attributes, as a dictionary that refuses changes."""
        return Attributes(self._layout.attributes)

    @property
    def dimension_names(self) -> tuple[str | None, ...] | None:
        """Names of the axes; None if they have none."""
        return self._layout.dimension_names

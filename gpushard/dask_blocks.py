"""dask arrays whose blocks are shards, and whose graphs hold addresses."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from gpushard.errors import OptionError, UnsupportedError

if TYPE_CHECKING:
    import dask.array

# dask lists the length of each block along an axis: a hundred million take it minutes
# and gigabytes.
_MOST_ALONG_AN_AXIS = 10_000_000
# Arrays that a worker keeps open, with the shard indexes that it has read.
_OPEN_ARRAYS = 64


class _Readable(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def block_shape(self) -> tuple[int, ...] | None: ...
    def read(self, selection: Any, /) -> Any: ...


def dask_array(array: _Readable, chunks: Any) -> dask.array.Array:
    """Dask array that reads `array`; see `NumpyLike.to_dask`.

    Raises `UnsupportedError` if dask is not installed, and `OptionError` if dask makes
    no such blocks.
    """
    try:
        import dask.array as da
        from dask.base import tokenize
    except ImportError as error:
        raise UnsupportedError(
            "dask is not installed", hint="run: pip install 'gpushard[dask]'"
        ) from error
    if isinstance(chunks, Mapping):
        chunks = _by_number(cast("Mapping[Any, Any]", chunks), array)
    blocks = _blocks(array, chunks)
    token = tokenize(array)
    return da.from_array(
        GraphArray(array, token),
        blocks,
        name=f"gpushard-{tokenize(token, blocks)}",
        asarray=False,
        # dask 2026 passes slices on to the read only where it may pass lists, too. It
        # never passes on several lists, or a list and an integer of another axis, which
        # are what it and a read take differently.
        fancy=True,
        meta=array.read((slice(0, 0),) * len(array.shape)),
    )


def _by_number(chunks: Mapping[Any, Any], array: _Readable) -> dict[int, Any]:
    """Blocks by the number of their axis; their keys may also be its name.

    dask ignores keys that it does not know, and negative ones. Concatenated arrays have
    no names.
    """
    n = len(array.shape)
    names: tuple[str | None, ...] = getattr(array, "dimension_names", None) or ()
    axes: dict[Any, int] = {axis: axis % n for axis in range(-n, n)}
    axes |= {x: axis for axis, x in enumerate(names) if names.count(x) == 1}
    numbers = [axes.get(key) for key in chunks]
    if None in numbers or len({*numbers}) < len(numbers):
        known = [name for name in names if name in axes and name is not None]
        raise OptionError(
            "chunks= names an axis that the array does not have, or one twice",
            expected=", ".join(map(repr, [*known, *range(n)])) or "none",
            got=", ".join(map(repr, chunks)),
        )
    return {axes[key]: length for key, length in chunks.items()}


def _blocks(array: Any, chunks: Any) -> Any:
    """Lengths of the blocks along each axis."""
    from dask.array.core import normalize_chunks

    parts = getattr(array, "arrays", None)
    if parts is not None and chunks is None:
        own = [_blocks(part, None) for part in parts]
        along = tuple(n for blocks in own for n in blocks[array.axis])
        return (*own[0][: array.axis], along, *own[0][array.axis + 1 :])
    # dask joins whole chunks to blocks if it knows the chunks.
    known, is_sharded = array.block_shape, False
    if parts is None:
        layout = array.source.layout
        known = tuple(axis.lengths for axis in layout.axes)
        is_sharded = bool(known and layout.levels)
    if chunks is None:
        chunks = known if is_sharded else "auto"
    _refuse_too_many(chunks, array.shape, array.dtype.itemsize)
    # dask refuses to estimate the size of text; it is at least that of its elements.
    sized = np.dtype((np.void, array.dtype.itemsize))
    try:
        return normalize_chunks(
            chunks, array.shape, dtype=sized, previous_chunks=known or None
        )
    except (ValueError, TypeError, ArithmeticError, MemoryError) as error:
        reason = str(error) or "they are too many for the memory of the host"
        raise OptionError(
            f"dask makes no such blocks: {reason.rstrip('.')}",
            expected=f"chunks= that cover the shape {array.shape}",
            got=repr(chunks),
            hint="pass one length for each axis, or leave chunks= out",
        ) from error


def _refuse_too_many(chunks: Any, shape: tuple[int, ...], itemsize: int) -> None:
    """Refuse more blocks than dask can list along an axis, before it makes the list.

    That would take minutes and the memory of the host, which a document of an absurd
    shape must not cost. What `chunks` are not plain lengths is left to dask.
    """
    if isinstance(chunks, str) and chunks == "auto":
        most = _most_along_an_axis(shape, itemsize)
    else:
        lengths = chunks if isinstance(chunks, tuple | list) else (chunks,) * len(shape)
        if isinstance(chunks, Mapping):
            lengths = [*map(chunks.get, range(len(shape)))]
        most = max(map(_n_along, shape, lengths), default=0)
    if most > _MOST_ALONG_AN_AXIS:
        raise OptionError(
            "dask makes no such blocks: they are too many for its lists",
            expected=f"at most {_MOST_ALONG_AN_AXIS} along an axis",
            got=most,
            hint="pass larger chunks=",
        )


def _n_along(extent: int, length: Any) -> int:
    """How many blocks of a length there are along an axis; 0 if it is no length."""
    is_length = isinstance(length, int | np.integer) and length > 0
    return -(-extent // int(length)) if is_length else 0


def _most_along_an_axis(shape: tuple[int, ...], itemsize: int) -> int:
    """About the most blocks along an axis that dask cuts by itself, all axes alike."""
    import dask
    from dask.utils import parse_bytes

    block_nbytes = parse_bytes(dask.config.get("array.chunk-size"))
    # No more than a float holds; the last axis has what is left, so it stays absurd.
    n_left, most = min(prod(shape) * itemsize // block_nbytes, 2**1000), 0
    for n_done, extent in enumerate(sorted(shape)):
        # Short axes have as many blocks as they have elements.
        most = max(1, min(extent, round(n_left ** (1 / (len(shape) - n_done)))))
        n_left //= most
    return most


class GraphArray:
    """An array in the graph of the process that opened it.

    A pickle has only its address and its token: the scheduler, which unpickles graphs
    too, never has to reach the store.
    """

    def __init__(self, array: _Readable, token: str) -> None:
        self.shape = array.shape
        self.dtype = array.dtype
        self.ndim = len(array.shape)
        self._array = array
        self._token = token

    def __getitem__(self, key: Any) -> Any:
        return self._array.read(key)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        address = pickle.dumps(self._array), self._token
        return RemoteGraphArray, (address, self.shape, self.dtype)


class RemoteGraphArray:
    """An array in a graph that was sent to another process, which opens it to read it.

    It is pickled as its address and token.
    """

    def __init__(
        self, address: tuple[bytes, str], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.ndim = len(shape)
        self._address = address

    def __getitem__(self, key: Any) -> Any:
        return _opened(*self._address).read(key)


@lru_cache(maxsize=_OPEN_ARRAYS)
def _opened(pickled: bytes, token: str) -> Any:
    """Array at an address, opened once for all blocks that a process reads.

    Once the array is made anew, its token is another, and a new graph has it opened
    anew: the metadata of the one that is open would mean other elements.
    """
    del token
    return pickle.loads(pickled)

"""An index appended to a file of another format, which makes it a shard."""

from __future__ import annotations

import operator
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpushard.codecs.chain_encoder import ChainEncoder
from gpushard.errors import GpushardError, NotFoundError, OptionError, StoreError
from gpushard.layout import INDEX_ELEMENTS, CodecChain, CodecSpec
from gpushard.planning.index import CORRUPT, parse_index
from gpushard.stores.local.file_bytes import write_all

_CHAIN = CodecChain(
    (), CodecSpec("bytes", {"endian": "little"}), (CodecSpec("crc32c"),)
)


def append_index(
    path: str | Path,
    offsets: ArrayLike,
    nbytes: ArrayLike,
) -> int:
    """Append a shard index to a file; returns the size of the index.

    The file becomes a shard with its index at the end: little-endian, with a crc32c.
    Files of formats that ignore bytes behind their own, such as HDF5, stay valid.

    Parameters
    ----------
    path
        The file.
    offsets, nbytes
        Integers, of the shape of the grid of inner chunks in the shard: where in the
        file each inner chunk lies. For a missing inner chunk, both 2**64 - 1 or both
        -1.

    Raises
    ------
    NotFoundError
        There is no such file.
    OptionError
        The two differ in shape, are not integers, or lead out of the file.
    StoreError
        The file cannot be written to.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise OptionError("path is none", expected="a str or Path", got=repr(path))
    entries = _entries(offsets, nbytes)
    try:
        with open(path, "r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            _refuse_outside(entries, size)
            index = ChainEncoder(_CHAIN, INDEX_ELEMENTS).encode_index(entries)
            try:
                write_all(file.fileno(), [index])
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(size)
                raise
    except FileNotFoundError as error:
        raise NotFoundError(
            f"there is no file {str(path)!r}",
            hint="write the file first: only its index is appended",
        ) from error
    except OSError as error:
        if isinstance(error, GpushardError):
            raise
        raise StoreError(
            f"cannot write to {str(path)!r}: {error.strerror or error}",
            hint="check the file's rights and the room on the disk",
        ) from error
    return len(index)


def _entries(offsets: ArrayLike, nbytes: ArrayLike) -> NDArray[np.uint64]:
    """Index of these ranges: uint64, shape (*grid_shape, 2)."""
    columns = [_integers(offsets), _integers(nbytes)]
    if columns[0].shape != columns[1].shape:
        raise OptionError(
            "offsets and nbytes are not of one shape",
            expected=columns[0].shape,
            got=columns[1].shape,
        )
    # -1 becomes 2**64 - 1; lower numbers are out of bounds in every file.
    return np.stack([column.astype(np.uint64) for column in columns], axis=-1)


def _integers(values: ArrayLike) -> NDArray[np.integer]:
    column = np.asarray(values)
    if column.dtype.kind == "f" and not isinstance(values, np.ndarray):
        # NumPy rounds a list to floats if it has 2**64 - 1 and smaller numbers.
        with suppress(OverflowError, TypeError, ValueError):
            exact = np.asarray(values, dtype=object)
            whole = [operator.index(n) for n in exact.flat]
            if whole:
                column = np.array(whole, dtype=np.uint64).reshape(exact.shape)
    if column.dtype.kind not in "iu":
        raise OptionError("offsets and nbytes are no integers", got=str(column.dtype))
    return column


def _refuse_outside(entries: NDArray[np.uint64], file_nbytes: int) -> None:
    index = parse_index(entries.reshape(-1, 2), nbytes=file_nbytes)
    wrong = np.flatnonzero(index.state == CORRUPT)
    if len(wrong):
        # Signed, as they were given: no file has half as many bytes.
        offset, nbytes = entries.view(np.int64).reshape(-1, 2)[wrong[0]].tolist()
        raise OptionError(
            f"the range of inner chunk {wrong[0]} leads out of the file",
            expected=f"a byte range within {file_nbytes} bytes",
            got=f"offset {offset}, nbytes {nbytes}",
            hint="both count bytes of the file; for a missing inner chunk, both are -1",
        )

"""A result written to an ``.npy`` file as it is read."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from gpushard.cli.files import final_and_part, unwritable
from gpushard.errors import UnsupportedError
from gpushard.options import MIB

# Errors of a system, a file system or a sandbox that reserves no blocks.
_CANNOT_RESERVE = {
    *(errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM),
}


def stored_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Data type that an ``.npy`` file stores for elements of `dtype`.

    It is `dtype`, or plain bytes of the same size where NumPy's format has no name for
    it (bfloat16, float8). Raises `UnsupportedError` for elements without a fixed size.
    """
    if dtype.kind in "OT":
        raise UnsupportedError(
            "an .npy file holds elements of a fixed size only",
            got=f"data type {dtype}",
            hint="leave --out away, or read the array from Python",
        )
    try:
        survives = npy_format.descr_to_dtype(npy_format.dtype_to_descr(dtype)) == dtype
    except TypeError:
        survives = False
    return dtype if survives else np.dtype((np.void, dtype.itemsize))


class NpyFile:
    """An ``.npy`` file being written: a context manager around the work on it.

    The elements are written into `array`, of the given shape and data type, host. Until
    `keep` is called the file at `path` stays as it was, or absent. Raises `StoreError`
    if the file cannot be written, and as `stored_dtype`.
    """

    def __init__(
        self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        stored = stored_dtype(dtype)
        try:
            is_taken = path.exists() and not path.is_file()
        except OSError as error:
            raise unwritable(path, error) from error
        if is_taken:  # a device or a pipe would be replaced by a file
            kind = "a directory" if path.is_dir() else "no regular file"
            raise unwritable(path, OSError(None, f"it is {kind}"))
        self._path, self._part = final_and_part(path)
        try:
            self._mapped = npy_format.open_memmap(self._part, "w+", stored, shape)
            _allocate(self._part, self._mapped.offset)
        except OSError as error:
            self._drop()
            nbytes = prod(shape) * stored.itemsize
            raise unwritable(path, error, nbytes) from error
        self.array: NDArray[Any] = self._mapped.view(np.ndarray).view(dtype)

    def keep(self) -> None:
        """Put the written file in its place at the path.

        Raises `StoreError` if the disk refuses.
        """
        try:
            self._mapped.flush()
            self._part.replace(self._path)
        except OSError as error:
            raise unwritable(self._path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def _drop(self) -> None:
        with suppress(OSError):
            self._part.unlink()


def _allocate(path: Path, start: int) -> None:
    """Reserve the file's blocks now; later a full disk would appear as SIGBUS.

    The file has zeros from `start` on.
    """
    nbytes = path.stat().st_size
    with path.open("r+b") as file:
        if hasattr(os, "posix_fallocate"):  # not on macOS
            try:
                os.posix_fallocate(file.fileno(), 0, nbytes)
            except OSError as error:
                if error.errno not in _CANNOT_RESERVE:
                    raise
            else:
                return
        file.seek(start)
        for at in range(start, nbytes, MIB):
            file.write(bytes(min(MIB, nbytes - at)))

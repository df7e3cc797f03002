"""zarr-python's read of the same selection, and its comparison with gpushard's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.cli.pieces import Piece, slice_of
from gpushard.errors import UnsupportedError
from gpushard.selecting.numbering import distinct
from gpushard.stores.base import Store
from gpushard.stores.local.store import LocalStore
from gpushard.zarr_thread import running_loop

# The user may have chosen gpushard's pipeline, which would be compared with itself.
_ZARRS_PIPELINE = "zarr.core.codec_pipeline.BatchedCodecPipeline"
_WITHOUT_VERIFY = "read it without --verify"
_TEXT_KINDS = {*"OTUS"}
# An interrupt waits no longer for what zarr-python was reading.
_CANCEL_S = 1.0


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Elements that differ, and how many they are.

    Attributes
    ----------
    element
        Coordinate of the first of them in the array; None if whole shapes or data
        types differ.
    expected, got
        The element that zarr-python reads there, and the one that gpushard read.
    """

    n_elements: int
    element: tuple[int, ...] | None
    expected: str
    got: str


def zarr_array(store: Store, path: str, pipeline: str = _ZARRS_PIPELINE) -> Any:
    """The array that zarr-python opens at a place, with the given codec pipeline.

    Raises `UnsupportedError` if it cannot open it.
    """
    import zarr

    try:
        with zarr.config.set({"codec_pipeline.path": pipeline}), read_by_zarr():
            return zarr.open_array(_zarr_store(store), path=path, mode="r")
    except Exception as error:
        raise _unreadable(error) from error


@contextmanager
def read_by_zarr() -> Iterator[None]:
    """Have nothing of a read by zarr-python go on after an interrupt.

    Otherwise asyncio tells of each unfinished task when the interpreter ends. In a
    process of a command nothing else runs in zarr's event loop meanwhile.
    """
    try:
        yield
    except KeyboardInterrupt:
        cancelled = asyncio.run_coroutine_threadsafe(_cancel_others(), running_loop())
        with suppress(TimeoutError):
            cancelled.result(_CANCEL_S)
        raise


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Reference:
    """The array at `path` in `store`, as zarr-python reads it.

    Raises `UnsupportedError` if zarr-python cannot open it.
    """

    def __init__(self, store: Store, path: str) -> None:
        try:
            self._array = zarr_array(store, path)
        except UnsupportedError as error:
            error.hint = ", or ".join(filter(None, (error.hint, _WITHOUT_VERIFY)))
            raise

    def mismatch(self, piece: Piece, block: NDArray[Any]) -> Mismatch | None:
        """How `block` differs from zarr-python's read of `piece`; None if it does not.

        Raises `UnsupportedError` if zarr-python cannot read it.
        """
        try:
            expected = self._read(piece)
        except Exception as error:
            raise _unreadable(error, _WITHOUT_VERIFY) from error
        if not _have_same_type(expected, block):
            return Mismatch(
                block.size, None, _type_and_shape(expected), _type_and_shape(block)
            )
        positions = differing_positions(expected.astype(block.dtype, copy=False), block)
        if not len(positions):
            return None
        at = tuple(int(i) for i in np.unravel_index(positions[0], block.shape))
        return Mismatch(
            len(positions),
            _coordinate(piece, at),
            repr(expected[at]),
            repr(block[at]),
        )

    def _read(self, piece: Piece) -> NDArray[Any]:
        """zarr-python's result; negative steps, which it lacks, are reversed here."""
        key: list[int | slice] = []
        flips: list[slice] = []
        for item in piece.items:
            if isinstance(item, int):
                key.append(item)
            elif item.step > 0:
                key.append(slice_of(item))
                flips.append(slice(None))
            else:
                key.append(slice_of(item[::-1]))
                flips.append(slice(None, None, -1))
        with read_by_zarr():
            result = self._array[tuple(key)]
        # The type of a scalar, which zarr returns without axes, fits its own text only.
        dtype = None if isinstance(result, np.ndarray) else self._array.dtype
        return np.asarray(result, dtype)[(*flips, ...)]


def _zarr_store(store: Store) -> Any:
    """Store for zarr-python with the same objects and the same connection settings."""
    from zarr.storage import LocalStore as ZarrLocalStore
    from zarr.storage import ObjectStore

    from gpushard.stores.http.store import HttpStore
    from gpushard.stores.remote import RemoteStore
    from gpushard.stores.remote_url import obstore_of
    from gpushard.stores.zarr.store import ZarrStore

    if isinstance(store, HttpStore):
        return ObjectStore(obstore_of(store), read_only=True)
    if isinstance(store, LocalStore):
        return ZarrLocalStore(store.root, read_only=True)
    if isinstance(store, RemoteStore):
        return ObjectStore(store.object_store, read_only=True)
    if isinstance(store, ZarrStore):
        return store.zarr_store
    raise UnsupportedError(f"zarr-python has no store for {store.url}")


def _unreadable(error: Exception, hint: str | None = None) -> UnsupportedError:
    if isinstance(error, UnsupportedError):  # a package is missing
        return UnsupportedError(
            f"nothing was compared: {error.what}", hint=error.hint or hint
        )
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return UnsupportedError(
        f"zarr-python cannot read this, so nothing was compared ({reason})", hint=hint
    )


def have_same_elements(expected: NDArray[Any], got: NDArray[Any]) -> bool:
    """Whether two results have the same elements; compared bit for bit if possible.

    Strings of any data type are the same if their characters are: libraries return a
    single string as different types.
    """
    if {expected.dtype.kind, got.dtype.kind} <= _TEXT_KINDS:
        is_equal = expected.astype(object) == got.astype(object)
        return expected.shape == got.shape and bool(np.all(is_equal))
    if not _have_same_type(expected, got):
        return False
    return not len(differing_positions(expected.astype(got.dtype, copy=False), got))


def _have_same_type(expected: NDArray[Any], got: NDArray[Any]) -> bool:
    """Whether shape and data type are the same, except for byte order."""
    if expected.shape != got.shape:
        return False
    if expected.dtype == got.dtype:
        return True
    is_fixed = not {expected.dtype.kind, got.dtype.kind} & {*"OT"}
    return is_fixed and expected.dtype.newbyteorder("=") == got.dtype


def _type_and_shape(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"


def differing_positions(expected: NDArray[Any], got: NDArray[Any]) -> NDArray[np.intp]:
    """Flat positions of the elements of two arrays of one shape that differ.

    Elements of a fixed size are compared bit for bit: a NaN equals only the same NaN.
    """
    if got.dtype.kind in "OT":
        return np.flatnonzero(expected != got)
    differing_bytes = np.flatnonzero(_as_bytes(expected) != _as_bytes(got))
    return distinct(differing_bytes // got.dtype.itemsize)


def _as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _coordinate(piece: Piece, at: tuple[int, ...]) -> tuple[int, ...]:
    """Coordinate in the array of the element at `at` of the piece's result."""
    places = iter(at)
    return tuple(
        item if isinstance(item, int) else item[next(places)] for item in piece.items
    )

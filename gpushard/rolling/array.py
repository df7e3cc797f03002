"""`RollingArray`: a sharded array whose window moves, shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, Unpack

from gpushard.arguments import flag, integer
from gpushard.array import store_and_path
from gpushard.creation import create_array
from gpushard.errors import StoreError, WindowMovedError, naming
from gpushard.formats.new_document import ArrayArguments, check_names
from gpushard.moving.window import relative_key
from gpushard.options import DEFAULT, Options
from gpushard.rolling import rolls
from gpushard.rolling.creation import refuse_untaggable, rolling_attributes
from gpushard.rolling.reader import RollingReader
from gpushard.rolling.steps import Steps
from gpushard.selecting.expressions import basic
from gpushard.source import Source
from gpushard.stores.resolve import address, from_address

if TYPE_CHECKING:
    from gpushard.devices.base import Device
    from gpushard.stores.resolve import Target


class RollingArray(RollingReader):
    """A stored array whose window moves: shards come at one end and go at the other.

    `create` and `open` make it. ``a[...]`` counts from the window's first element, as
    NumPy does; ``a.at[...]`` takes logical coordinates, which never change. The object
    finds out the window when it is made, refreshed, or moves the array. If a read finds
    a shard gone, it starts again with the current window. `view` gives a window that
    does not move, for loaders, dask and comparisons.

    Parameters
    ----------
    store, path, device, options
        As for `RollingReader`.

    Examples
    --------
    >>> a = RollingArray.create(
    ...     "live.zarr", shape=(0, 100), dtype="f4", chunks=(1, 100), shards=(4, 100)
    ... )
    >>> import numpy as np
    >>> steps = np.zeros((4, 100), "f4")
    >>> a.append(steps).shape
    (4, 100)
    >>> a.roll(steps).domain
    (range(4, 8), range(0, 100))
    """

    @classmethod
    def create(  # noqa: PLR0913 - two by position, the rest by name
        cls,
        store: Target,
        path: str = "",
        *,
        origin: int | tuple[int, ...] = 0,
        tags: Mapping[str, str] | None = None,
        overwrite: bool = False,
        device: str | Device = "auto",
        storage_options: Mapping[str, Any] | None = None,
        options: Options = DEFAULT,
        **array: Unpack[ArrayArguments],
    ) -> RollingArray:
        """Create a rolling array at `path` of a store; all elements are fill value.

        Parameters
        ----------
        store, path, overwrite, device, storage_options, options, **array
            As for `gpushard.create_array`. The length may be 0 along an axis that
            will roll.
        origin
            Coordinate of the first shard: of each axis, or of axis 0.
        tags
            Tags that every writer puts on shards and on nothing else, such as
            ``{"type": "temp_chunk"}``, so that a life-cycle rule of an object store can
            delete old shards.

        Raises
        ------
        OptionError, UnsupportedError, StoreError
            As for `gpushard.create_array`; `UnsupportedError` also for tags on a store
            that cannot keep tags.
        """
        check_names(array, cls.create, "RollingArray.create")
        array["attributes"] = rolling_attributes(array, origin, tags)
        if tags:
            refuse_untaggable(store, tags, storage_options)
        create_array(
            store,
            path,
            overwrite=overwrite,
            device="cpu",
            storage_options=storage_options,
            options=options,
            **array,
        )
        return cls.open(
            store,
            path,
            device=device,
            storage_options=storage_options,
            options=options,
        )

    @classmethod
    def open(
        cls,
        store: Target,
        path: str = "",
        *,
        device: str | Device = "auto",
        storage_options: Mapping[str, Any] | None = None,
        options: Options = DEFAULT,
    ) -> RollingArray:
        """Open the rolling array at `path` of a store.

        A Zarr v2 array with an origin in `.zarray`, or an `_offset` in `.zattrs`, can
        only be read.

        Parameters
        ----------
        store, path, device, storage_options, options
            As for `gpushard.open_array`.

        Raises
        ------
        NotFoundError, MetadataError, UnsupportedError
            As for `gpushard.open_array`.
        OptionError
            The array does not roll.
        """
        opened, place = store_and_path(store, path, device, storage_options, options)
        with naming(opened, place):
            return cls(opened, place, device, options)

    def append(self, values: Any, axis: int = 0, *, at: int | None = None) -> Self:
        """Write shards after the window, then extend the window over them.

        Parameters
        ----------
        values
            NumPy or CuPy array with the window's shape, except along `axis`.
        axis
            Axis to append along.
        at
            Logical coordinate of the first value; the window's end by default. Writers
            that pass it never wait for one another. A gap between the values of two
            writers reads as the fill value until it is written.

        Raises
        ------
        SelectionError
            The values are not whole shards, have another shape, or belong before the
            start of the window.
        StoreError
            Another writer wrote to the same place; the values of neither are lost.
        """
        return self._changed(lambda s, d: rolls.append(s, values, d, at), axis)

    def prepend(self, values: Any, axis: int = 0, *, at: int | None = None) -> Self:
        """Write shards before the window, then extend the window over them.

        Parameters
        ----------
        values, axis, at
            As for `append`; without `at` the values end where the window begins.

        Raises
        ------
        SelectionError, StoreError
            As for `append`; `WindowMovedError` if the window's start moved meanwhile.
        """
        return self._changed(lambda s, d: rolls.prepend(s, values, d, at), axis)

    def drop(self, n: int, axis: int = 0, *, delete: bool = True) -> Self:
        """Move the window's start by `n` elements, then delete the shards before it.

        Parameters
        ----------
        n
            Number of elements to drop, a multiple of the shard length.
        axis
            Axis to drop along.
        delete
            Whether to delete the shards. If False, leave it to a life-cycle rule of the
            store, or to `sweep`.

        Raises
        ------
        SelectionError
            The elements are not whole shards, or there are fewer than `n`.
        """
        with self._named():
            delete = flag(delete, "delete")
        return self._changed(lambda s, d: rolls.drop(s, n, d, delete=delete), axis)

    def roll(
        self,
        values: Any,
        axis: int = 0,
        *,
        at: int | None = None,
        keep: int | None = None,
        delete: bool = True,
    ) -> Self:
        """Append and drop in one step: the window moves once, and keeps its length.

        Parameters
        ----------
        values, axis, at, delete
            As for `append` and `drop`.
        keep
            Greatest length of the window after the roll, by default its length now. An
            array that is still being filled grows up to it.

        Raises
        ------
        OptionError
            `keep` is negative.
        SelectionError, StoreError
            As for `append`.
        """
        with self._named():
            how = rolls.Roll(at, keep, flag(delete, "delete"))
        return self._changed(lambda s, d: rolls.roll(s, values, d, how), axis)

    def write_shards(self, values: Any, axis: int = 0, *, at: int) -> None:
        """Do only step 1 of a roll: write shards anywhere, without moving the window.

        Parameters
        ----------
        values, axis, at
            As for `append`. Readers see the values once the window has moved to them.

        Raises
        ------
        SelectionError
            The values are not whole shards, or have another shape.
        """
        with self._named():
            steps = self._steps()
            rolls.write(steps, values, steps.window().axis(axis), at)

    def move_window(self, start: int, stop: int, axis: int = 0) -> Self:
        """Do only step 2 of a roll: move the window to ``start:stop``.

        Elements there that were never written read as the fill value. If no shard ends
        at `stop`, writing to the last shard of the window loses the elements that the
        shard has behind the window.

        Parameters
        ----------
        start, stop
            Logical coordinates. `start` must be the start of a shard.
        axis
            Axis of these coordinates.

        Raises
        ------
        SelectionError
            `start` is not the start of a shard.
        """
        return self._changed(lambda s, d: rolls.move(s, start, stop, d), axis)

    def delete_shards(self, start: int, stop: int, axis: int = 0) -> int:
        """Do only step 3 of a roll: delete ``start:stop``; number of shards deleted.

        Parameters
        ----------
        start, stop
            Logical coordinates of whole shards, inside the window or not.
        axis
            Axis of these coordinates.

        Raises
        ------
        SelectionError
            The coordinates are not those of whole shards.
        """
        with self._named():
            steps = self._steps()
            window = steps.window()
            axis = window.axis(axis)
            start, stop = integer(start, "start"), integer(stop, "stop")
            return steps.delete(window.whole(axis, start, stop))

    def sweep(self) -> int:
        """Delete all shards before the window's origin; returns their number.

        Use it after a writer was interrupted or did not delete. Shards after the
        window are not deleted, because another writer may be about to append them. In
        local files it waits for a prepend under way, except one with `at`; elsewhere
        the shards of that are deleted.

        Raises
        ------
        UnsupportedError
            The store cannot list its objects.
        """
        with self._named():
            return rolls.sweep(self._steps())

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write to the elements of the window that `key` selects.

        Raises
        ------
        WindowMovedError
            The window has moved, so that the key would select other elements.
        """
        with self._named():
            window, steps = self._view.window, self._steps()
            now = steps.window()
            if now != window:
                raise WindowMovedError(
                    "the window has moved, and the key would mean other elements",
                    expected=window.domain,
                    got=now.domain,
                    hint="refresh the array first, or write by a.at[...]",
                )
            steps.write(window, value, basic(key, window.shape))

    def __reduce__(self) -> tuple[Callable[..., RollingArray], tuple[Any, ...]]:
        with self._named():
            known = address(self._store)
        return _reopen, (type(self), known, self._path, self.device, self._options)

    def _write_at(self, key: Any, value: Any) -> None:
        with self._named():
            window = self._view.window
            selection = basic(relative_key(key, window.domain), window.shape)
            self._steps().write(window, value, selection)

    def _changed(self, change: Callable[[Steps, int], rolls.Moved], axis: int) -> Self:
        """The array itself, after a change of its window along an axis."""
        with self._named():
            _, after = change(self._steps(), self._view.window.axis(axis))
            try:
                return self.refresh()
            except StoreError:  # the change itself is complete
                layout = self._view.source.layout
                self._take(layout.over(after.origin, after.shape))
                return self

    def _steps(self) -> Steps:
        layout = self._view.source.layout
        return Steps(Source.prepare(layout, self._store, self._options))


def _reopen(
    kind: type[RollingArray],
    known: bytes,
    path: str,
    device: str,
    options: Options,
) -> RollingArray:
    store = from_address(known)
    with naming(store, path):
        return kind(store, path, device, options)

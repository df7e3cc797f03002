"""A rolling array for readers: a window that follows the array, or one that stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from gpushard.devices.find import find_device_for
from gpushard.errors import (
    OptionError,
    UnsupportedError,
    WindowMovedError,
    naming,
)
from gpushard.hierarchies.documents import V2_ARRAY, join
from gpushard.layout import ArrayLayout
from gpushard.memory.known import IndexCache
from gpushard.metadata import load_array
from gpushard.moving.watch import watched
from gpushard.moving.window import Window
from gpushard.numpy_like import DescribedArray, Manner
from gpushard.options import DEFAULT, Options
from gpushard.rolling.view import RollingView, source_over
from gpushard.selecting.expressions import basic
from gpushard.selecting.indexer import Indexer, Parse
from gpushard.source import Source
from gpushard.stores.base import Store
from gpushard.stores.local.handles import HandleTable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import dask.array

    from gpushard.devices.base import Device

# A read starts again if the array has rolled past what it wants, at most this often.
_MOST_MOVES = 16


class RollingReader(DescribedArray):
    """A rolling array that can only be read.

    `shape` is that of the current window, and `attrs` include its `origin`. A read
    starts again if the array rolls on past what it wants; if this happens again and
    again, it raises `WindowMovedError`.

    Parameters
    ----------
    store, path, options
        Where the array lies.
    device
        Where inner chunks are decoded, as for `gpushard.open_array`.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        device: str | Device = "cpu",
        options: Options = DEFAULT,
    ) -> None:
        self._store = store
        self._path = path
        self._device = device
        self._options = options
        self._kept = IndexCache(options.index_cache_nbytes)
        layout = load_array(store, path, options)
        if not layout.keys.offset and store.get(join(path, V2_ARRAY)) is None:
            raise OptionError(
                "the array does not roll", hint="open it with gpushard.open_array"
            )
        origin = Window.of(layout).origin
        self._watched = watched(store, layout.over(origin, layout.shape), options)
        self._take(layout)

    @property
    def device(self) -> str:
        """Device on which inner chunks are decoded and results lie."""
        return self._view.device

    @property
    def _layout(self) -> ArrayLayout:
        return self._view.source.layout

    @property
    def origin(self) -> tuple[int, ...]:
        """Coordinate of the window's first shard."""
        return self._view.origin

    @property
    def domain(self) -> tuple[range, ...]:
        """Logical coordinates of the window along each axis."""
        return self._view.domain

    def refresh(self) -> Self:
        """Find out the current window; returns the array itself."""
        with self._named():
            self._take(load_array(self._store, self._path, self._options))
        # Shards that left the window are deleted by now, as a rule.
        HandleTable.drop_deleted_of_all()
        return self

    def view(
        self, start: int | None = None, stop: int | None = None, *, axis: int = 0
    ) -> RollingView:
        """Array over the current window, or over ``start:stop`` of it.

        The view does not move. If the array rolls past some of its elements, these can
        be read as long as they are stored. After that, reading them raises
        `WindowMovedError`.

        Parameters
        ----------
        start, stop
            As in a slice: ``view(-24)`` is the last 24 steps. `start` must be the start
            of a shard.
        axis
            Axis of the slice.

        Raises
        ------
        SelectionError
            `start` is not the start of a shard.
        """
        now = self._view
        with self._named():
            axis = now.window.axis(axis)
            first = now.domain[axis].start
            low, high, _ = slice(start, stop).indices(now.shape[axis])
            window = now.window.over(axis, first + low, first + max(low, high))
        return self._view_of(now.source, window)

    def __getitem__(self, key: Any) -> Any:
        """The elements of the window that `key` selects, by NumPy's rules."""
        return self._follow(lambda view: view[key])

    @property
    def at(self) -> Indexer:
        """Indexing by logical coordinates: ``a.at[-24:]`` starts at coordinate -24.

        ``a.at[8:16] = values`` writes to a `RollingArray`.

        A key may have integers, slices with positive steps, and an ellipsis. Negative
        numbers do not count from the end. A coordinate outside `domain` raises a
        `SelectionError`.
        """
        return Indexer(
            lambda key: self._follow(lambda view: view.at[key]), self._write_at
        )

    def to_dask(self, chunks: Any = None) -> dask.array.Array:
        """Dask array of the window as it is now; see `NumpyLike.to_dask`."""
        return self._view.to_dask(chunks)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._view)

    def __dask_tokenize__(self) -> Any:
        return self._view.__dask_tokenize__()

    def __repr__(self) -> str:
        url = f"{self._store.url}/{self._path}".rstrip("/")
        sides = ", ".join(f"{side.start}:{side.stop}" for side in self.domain)
        what = f"domain=[{sides}] dtype={self.dtype} on {self.device}"
        return f"<gpushard.{type(self).__name__} {url} {what}>"

    def _read_over(
        self, keys: Sequence[Any], outs: Sequence[Any], manner: Manner
    ) -> list[Any]:
        return self._follow(lambda view: view._read_over(keys, outs, manner))  # noqa: SLF001

    def _read_by(self, parse: Parse, key: Any) -> Any:
        return self._follow(lambda view: view._read_by(parse, key))  # noqa: SLF001

    def _write_by(self, parse: Parse, key: Any, value: Any) -> None:
        del parse, key, value
        raise UnsupportedError(
            "a rolling array cannot be written to through this index",
            hint="write by a[...] or a.at[...]",
        )

    def _write_at(self, key: Any, value: Any) -> None:
        self._write_by(basic, key, value)

    def _follow(self, read: Callable[[RollingView], Any]) -> Any:
        """Result of `read`; called again with the next window if the array rolls on."""
        for _ in range(_MOST_MOVES):
            view = self._view
            try:
                return read(view)
            except WindowMovedError:
                self.refresh()
        return read(self._view)

    def _take(self, layout: ArrayLayout) -> None:
        """Make the window of a layout that was just read the current one."""
        source = Source.prepare(layout, self._watched, self._options)
        self._view = self._view_of(source, Window.of(layout))

    def _view_of(self, source: Source, window: Window) -> RollingView:
        found = find_device_for(self._device, source.layout.dtype)
        return RollingView(source_over(source, self._kept, window), *found)

    def _named(self) -> AbstractContextManager[None]:
        return naming(self._store, self._path)

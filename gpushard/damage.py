"""What becomes of inner chunks whose stored bytes are damaged: an error, or fill."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from gpushard.errors import CorruptShardError, DamageWarning, OptionError

OnDamage = Literal["raise", "fill"] | Callable[[CorruptShardError], Any]
"""What a caller asks for: see `Array.read`."""


class Damage(Protocol):
    """What becomes of damaged inner chunks during one read; asked by several threads.

    Attributes
    ----------
    replaces
        Whether the read goes on, with the fill value in their place.
    """

    @property
    def replaces(self) -> bool:
        """Whether the read goes on."""
        ...

    def note(self, error: CorruptShardError) -> None:
        """Return if the inner chunk that `error` is about is replaced; else raise.

        Raises
        ------
        CorruptShardError
            `error`, where damage ends the read.
        """
        ...

    def of_array(self, store_url: str, grid: Sequence[int]) -> Damage:
        """The same for one of several arrays, which lies in the store at `store_url`.

        Their inner chunks have coordinates of their own, in a grid of shape `grid`.
        """
        ...


class EndsRead:
    """Damage ends the read."""

    replaces = False

    def note(self, error: CorruptShardError) -> None:
        """Raise `error`."""
        raise error

    def of_array(
        self,
        store_url: str,  # noqa: ARG002 - it tells nothing
        grid: Sequence[int],  # noqa: ARG002
    ) -> EndsRead:
        """The same: any array's damage ends the read."""
        return self


ENDS_READ = EndsRead()


class _Told:
    """Inner chunks that were told of, by number in C order: a bit each.

    A damaged index costs millions of them, and an object each would take more than the
    memory limit. So each number of a page of 512 that has any takes its bit there.
    """

    _PAGE_LOG2 = 9

    def __init__(self, grid: Sequence[int]) -> None:
        self._grid = grid
        self._pages: dict[int, int] = {}

    def add(self, coordinate: tuple[int, ...] | None) -> bool:
        """Add one, or what is about none; whether it was not there."""
        number = -1
        if coordinate is not None:
            number = 0
            for at, n_cells in zip(coordinate, self._grid, strict=True):
                number = number * n_cells + at
        page = number >> self._PAGE_LOG2
        bits = self._pages.get(page, 0)
        with_it = bits | 1 << (number & (1 << self._PAGE_LOG2) - 1)
        self._pages[page] = with_it
        return with_it != bits


class Replaced:
    """Damage is replaced by the fill value, and each inner chunk reported once.

    Parameters
    ----------
    report
        Called with the error of each damaged inner chunk, one call at a time; what it
        raises ends the read.
    grid
        Inner chunks along each axis of the array.
    store_url
        Address of the array's store, for errors that have to tell it.
    """

    replaces = True

    def __init__(
        self,
        report: Callable[[CorruptShardError], Any],
        grid: Sequence[int],
        store_url: str | None = None,
    ) -> None:
        self._report = report
        self._store_url = store_url
        self._told = _Told(grid)
        self._lock = threading.Lock()

    def of_array(self, store_url: str, grid: Sequence[int]) -> Replaced:
        """The same for one of several arrays; reports still come one at a time."""
        other = Replaced(self._report, grid, store_url)
        other._lock = self._lock
        return other

    def note(self, error: CorruptShardError) -> None:
        """Report `error`, unless its inner chunk was reported before."""
        with self._lock:
            # Several selections, or a second look, may meet the same inner chunk.
            if not self._told.add(error.inner_chunk):
                return
            if self._store_url is not None:
                error.add_context(store_url=self._store_url)
            self._report(error)


class _Summary:
    """How many inner chunks were replaced, and the first of them."""

    def __init__(self) -> None:
        self.n_errors = 0
        self.first: CorruptShardError | None = None

    def __call__(self, error: CorruptShardError) -> None:
        self.first = self.first or error
        self.n_errors += 1


class DamagePolicy:
    """A caller's ``errors=``, for one read.

    Parameters
    ----------
    errors
        "raise", "fill" or what to call with each error.
    grid
        Inner chunks along each axis of the array; of several, each tells its own.

    Raises
    ------
    OptionError
        It is none of these.
    """

    def __init__(self, errors: OnDamage, grid: Sequence[int] = ()) -> None:
        self._summary: _Summary | None = None
        self.damage: Damage = ENDS_READ
        if callable(errors):
            self.damage = Replaced(errors, grid)
        elif errors == "fill":
            self._summary = _Summary()
            self.damage = Replaced(self._summary, grid)
        elif errors != "raise":
            raise OptionError(
                "errors= is not a way to treat damaged inner chunks",
                expected="'raise', 'fill' or something to call with each error",
                got=repr(errors),
            )

    def warn(self, *, stacklevel: int) -> None:
        """Warn of what "fill" replaced, if anything; nobody else would tell."""
        summary = self._summary
        if summary is None or summary.first is None:
            return
        warnings.warn(
            f"{summary.n_errors} damaged inner chunks were replaced by the fill value, "
            f"the first of them because: {summary.first}",
            DamageWarning,
            stacklevel=stacklevel + 1,
        )


def at_inner_chunk(
    error: CorruptShardError, inner_chunk: tuple[int, ...]
) -> CorruptShardError:
    """The same error, said of one of the inner chunks that it costs."""
    said = copy.copy(error)
    said.inner_chunk = inner_chunk
    return said

"""What happens at damaged inner chunks: an error, or the fill value."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from gpushard.errors import CorruptShardError, DamageWarning, OptionError

OnDamage = Literal["raise", "fill"] | Callable[[CorruptShardError], Any]
"""Values of the argument ``errors``: see `Array.read`."""

_Result = TypeVar("_Result")


class _CallableError(Exception):
    """The caller's function has raised `raised`, which ends the read.

    It is of no class that a stage of the read catches. What the function raises may be,
    because the function may read another array.
    """

    def __init__(self, raised: Exception) -> None:
        super().__init__(raised)
        self.raised = raised


class Damage:
    """What happens at damaged inner chunks during one read: damage ends it.

    Several threads may use it.

    Attributes
    ----------
    replaces
        Whether the read continues, with the fill value in their place.
    """

    replaces = False

    def note(self, error: CorruptShardError) -> None:
        """Return if the inner chunk of `error` is to be filled; else raise `error`."""
        try:
            raise error
        finally:
            del error  # its frames hold the read's output, until a collection

    def of_array(self, store_url: str, grid: Sequence[int]) -> Damage:  # noqa: ARG002
        """The same for one of several arrays, in the store at `store_url`.

        Its inner chunks have coordinates of their own, in a grid of shape `grid`.
        """
        return self


ENDS_READ = Damage()


class _Told:
    """Inner chunks that were reported, one bit each, by number in C order.

    A damaged index can concern millions of inner chunks, and one object for each would
    exceed the memory limit. So the bits are kept in pages of 512 numbers, and only
    pages with a bit exist.
    """

    _PAGE_LOG2 = 9

    def __init__(self, grid: Sequence[int]) -> None:
        self._grid = grid
        self._pages: dict[int, int] = {}

    def add(self, coordinate: tuple[int, ...] | None) -> bool:
        """Add an inner chunk, or None; returns whether it is new."""
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


class Replaced(Damage):
    """Damage is replaced by the fill value, and each inner chunk reported once.

    Parameters
    ----------
    report
        Called with the error of each damaged inner chunk, one call at a time. If it
        raises, the read ends.
    grid
        Inner chunks along each axis of the array.
    store_url
        Address of the array's store, for errors that have to name it.
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
        error = without_frames(error)
        held = _later.errors
        if held is not None:
            held.append((self, error))
            return
        with self._lock:
            # Several selections, or a repeated read, may meet the same inner chunk.
            if not self._told.add(error.inner_chunk):
                return
            if self._store_url is not None:
                error.add_context(store_url=self._store_url)
            try:
                self._report(error)
            except Exception as raised:
                if raised is error:
                    raise
                raise _CallableError(raised) from None


class _Later(threading.local):
    """Errors that a thread has still to report; None if it reports them at once."""

    errors: list[tuple[Replaced, CorruptShardError]] | None = None


_later = _Later()


@contextmanager
def reported_afterwards() -> Iterator[None]:
    """Report the damage that this thread meets in the block after the block.

    The caller's function may read, too. Where it is called, this thread must not hold a
    lock that a read takes.
    """
    held = _later.errors = []
    try:
        yield
    finally:
        _later.errors = None
    for damage, error in held:
        damage.note(error)


def without_frames(error: CorruptShardError) -> CorruptShardError:
    """The error without its traceback, whose frames hold what was read.

    A frame that holds the error in turn would stay until a collection, and with it the
    read's output.
    """
    chained: BaseException | None = error
    while chained is not None:
        chained.__traceback__ = None
        chained = chained.__cause__ or chained.__context__
    return error


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
        "raise", "fill", or a function to call with each error.
    grid
        Inner chunks along each axis of the array; for several arrays, `of_array` sets
        it.

    Raises
    ------
    OptionError
        `errors` is none of these.
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

    def over(self, read: Callable[[Damage], _Result]) -> _Result:
        """Result of `read`, which is given what happens at damaged inner chunks.

        What the caller's function raises comes out as it is.
        """
        try:
            result = read(self.damage)
        except _CallableError as error:
            raised = error.raised
        else:
            self._warn()
            return result
        try:
            raise raised
        finally:
            del raised  # an error that refers to its own frame waits for the collector

    def _warn(self) -> None:
        """Warn if "fill" replaced inner chunks, since nothing else would show it."""
        summary = self._summary
        if summary is None or summary.first is None:
            return
        warnings.warn(
            f"{summary.n_errors} damaged inner chunks were replaced by the fill value, "
            f"the first of them because: {summary.first}",
            DamageWarning,
            stacklevel=5,  # who called `read` or `read_many` of an array
        )


def at_inner_chunk(
    error: CorruptShardError, inner_chunk: tuple[int, ...]
) -> CorruptShardError:
    """The same error, for one of the inner chunks that it concerns."""
    said = copy.copy(error)
    said.inner_chunk = inner_chunk
    return said

"""What becomes of inner chunks whose stored bytes are damaged: an error, or fill."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
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

    def of_array(self, store_url: str) -> Damage:
        """The same for one of several arrays, which lies in the store at `store_url`.

        Their inner chunks have coordinates of their own.
        """
        ...


class EndsRead:
    """Damage ends the read."""

    replaces = False

    def note(self, error: CorruptShardError) -> None:
        """Raise `error`."""
        raise error

    def of_array(self, store_url: str) -> EndsRead:  # noqa: ARG002 - it tells nothing
        """The same: any array's damage ends the read."""
        return self


ENDS_READ = EndsRead()


class Replaced:
    """Damage is replaced by the fill value, and each inner chunk reported once.

    Parameters
    ----------
    report
        Called with the error of each damaged inner chunk, one call at a time; what it
        raises ends the read.
    store_url
        Address of the array's store, for errors that have to tell it.
    """

    replaces = True

    def __init__(
        self,
        report: Callable[[CorruptShardError], Any],
        store_url: str | None = None,
    ) -> None:
        self._report = report
        self._store_url = store_url
        self._reported: set[tuple[int, ...] | None] = set()
        self._lock = threading.Lock()

    def of_array(self, store_url: str) -> Replaced:
        """The same for one of several arrays; reports still come one at a time."""
        other = Replaced(self._report, store_url)
        other._lock = self._lock
        return other

    def note(self, error: CorruptShardError) -> None:
        """Report `error`, unless its inner chunk was reported before."""
        with self._lock:
            # Several selections, or a second look, may meet the same inner chunk.
            if error.inner_chunk in self._reported:
                return
            self._reported.add(error.inner_chunk)
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

    Raises
    ------
    OptionError
        It is none of these.
    """

    def __init__(self, errors: OnDamage) -> None:
        self._summary: _Summary | None = None
        self.damage: Damage = ENDS_READ
        if callable(errors):
            self.damage = Replaced(errors)
        elif errors == "fill":
            self._summary = _Summary()
            self.damage = Replaced(self._summary)
        elif errors != "raise":
            raise OptionError(
                "errors= is no way to treat damage",
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

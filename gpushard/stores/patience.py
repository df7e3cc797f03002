"""How long to wait for a server, and when to ask it again: back-off and Retry-After."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gpushard.errors import StoreError
from gpushard.stores.answers import RefusalError, refusal_behind
from gpushard.stores.base import ByteRequest

# Half of it is waited at least, after the first repeats that a server asks for, or that
# the settings allow.
_LEAST_PAUSE_S = 1.0

Answer = TypeVar("Answer")
Requested = TypeVar("Requested", bound=ByteRequest)


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a server may take: the options of the same names.

    Attributes
    ----------
    patience_s
        Seconds for an answer without a body.
    min_nbytes_per_s
        Rate of a body; it gets that much more time for its size.
    """

    patience_s: float
    min_nbytes_per_s: int

    @property
    def pause_s(self) -> float:
        """Seconds without a byte after which a server counts as silent."""
        return self.patience_s / 3

    def limit_s(self, nbytes: int) -> float:
        """Seconds for an answer with a body of `nbytes`, counted from the request."""
        return self.patience_s + nbytes / self.min_nbytes_per_s

    def left_s(self, nbytes: int, started: float) -> float:
        """Seconds left for a body of `nbytes` once its head has arrived.

        At least `pause_s`. A store that the caller made may wait longer for a head, and
        its body must not be refused because of that.
        """
        return max(started + self.limit_s(nbytes) - time.monotonic(), self.pause_s)


@dataclass(frozen=True, slots=True)
class Repeats:
    """When a request is repeated.

    Attributes
    ----------
    first_s, base, most_s
        Pause before the first repeat, its factor for each further one, and the longest.
    most
        Number of repeats after a lost connection. A busy server is asked again after
        so many, too, but with pauses of half a second or more.
    lost_s
        Seconds from the first attempt after which a lost connection is an error.
    """

    first_s: float = 1.0
    base: float = 2.0
    most_s: float = 15.0
    most: int = 0
    lost_s: float = 0.0


class Patience:
    """Repeats a request while a server is busy, or after a lost connection.

    Parameters
    ----------
    pace
        Its `patience_s` limits the time of all attempts and pauses together.
    repeats
        Pauses of a server that does not say how long to wait. By default, those behind
        a client that repeats lost requests, and others a few times within a second.
    """

    def __init__(self, pace: Pace, repeats: Repeats | None = None) -> None:
        self._pace = pace
        self._repeats = repeats or Repeats()

    def ask(self, work: Callable[[Requested], Answer], request: Requested) -> Answer:
        """Answer of ``work(request)``, after up to several attempts.

        Raises
        ------
        StoreError
            The error of the last attempt.
        """
        started, pause = time.monotonic(), self._repeats.first_s
        n_repeats = n_lost = 0
        while True:
            try:
                return work(request)
            except StoreError as error:
                refusal = refusal_behind(error)
                if refusal is None or not refusal.may_pass:
                    raise
                is_lost = refusal.is_lost
                if is_lost and n_lost >= self._repeats.most:
                    raise
                limit = self._repeats.lost_s if is_lost else self._pace.patience_s
                wanted = self._wanted_s(refusal, pause, n_repeats)
                if time.monotonic() - started + wanted > limit:
                    raise
            time.sleep(wanted)
            pause = min(pause * self._repeats.base, self._repeats.most_s)
            n_repeats += 1
            n_lost += is_lost

    def _wanted_s(self, refusal: RefusalError, pause: float, n_repeats: int) -> float:
        """Seconds to wait before the next attempt."""
        least = _jittered(_LEAST_PAUSE_S)
        if refusal.retry_after_s is not None:
            return max(refusal.retry_after_s, least if n_repeats else 0.0)
        is_late = n_repeats >= self._repeats.most and not refusal.is_lost
        return max(_jittered(pause), least if is_late else 0.0)


def _jittered(pause: float) -> float:
    """Random part of a pause, so that many readers do not come back together."""
    return pause * random.uniform(0.5, 1)  # noqa: S311 - no secret

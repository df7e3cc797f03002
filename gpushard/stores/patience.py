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
from gpushard.threads.stop_flag import flag_here, is_stopped

# At least half of it passes before a repeat, once the first repeats did not help: the
# one that a server asks for, or those that the settings allow.
_LEAST_PAUSE_S = 1.0
# A pause that a server asks for is longer by up to so much, and by at most half.
_SPREAD_S = 1.0

Reply = TypeVar("Reply")
Request = TypeVar("Request", bound=ByteRequest)


@dataclass(frozen=True, slots=True)
class WaitLimits:
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
    first_pause_s, pause_factor, longest_pause_s
        Pause before the first repeat, its factor for each further one, and the longest.
    n_most
        Number of repeats after a lost connection. A busy server is asked again after
        so many, too, but with pauses of half a second or more.
    lost_limit_s
        Seconds from the first attempt after which a lost connection is an error.
    """

    first_pause_s: float = 1.0
    pause_factor: float = 2.0
    longest_pause_s: float = 15.0
    n_most: int = 0
    lost_limit_s: float = 0.0


def usual_repeats(patience_s: float) -> Repeats:
    """When requests are repeated where nobody has said it.

    A server that accepts connections but never answers costs two attempts, which take
    two thirds of the patience: none starts after `lost_limit_s`.
    """
    return Repeats(0.1, n_most=4, lost_limit_s=patience_s * 8 / 15)


@dataclass(slots=True)
class _Attempts:
    """What was tried for one request.

    Attributes
    ----------
    pause_s
        Pause before the next attempt, unless the server says how long.
    started
        Monotonic time of the first attempt.
    n_repeats, n_lost_repeats
        Number of repeats, and of those after a lost connection.
    added_s
        Seconds that were waited beyond what the server asked for.
    """

    pause_s: float
    started: float
    n_repeats: int = 0
    n_lost_repeats: int = 0
    added_s: float = 0.0


class Patience:
    """Repeats a request while a server is busy, or after a lost connection.

    Parameters
    ----------
    limits
        Its `patience_s` limits the time of all attempts and pauses together.
    repeats
        Pauses of a server that does not say how long to wait. By default, those behind
        a client that repeats lost requests, and others a few times within a second.
    """

    def __init__(self, limits: WaitLimits, repeats: Repeats | None = None) -> None:
        self._limits = limits
        self._repeats = repeats or Repeats()

    def ask(self, work: Callable[[Request], Reply], request: Request) -> Reply:
        """Answer of ``work(request)``; after several attempts, its last error."""
        attempts = _Attempts(self._repeats.first_pause_s, time.monotonic())
        while True:
            if is_stopped():
                raise StoreError("nobody waits for the answer any more")
            try:
                return work(request)
            except StoreError as error:
                # A refusal kept here would refer to itself, through its frames, and
                # keep the connections of the store open.
                pause_s = self._next_pause_s(refusal_behind(error), attempts)
                if pause_s is None:
                    raise
            _wait(pause_s)

    def _next_pause_s(
        self, refusal: RefusalError | None, attempts: _Attempts
    ) -> float | None:
        """Seconds to wait before the next attempt; None if there is to be none."""
        if refusal is None or not refusal.may_pass:
            return None
        if refusal.is_lost and attempts.n_lost_repeats >= self._repeats.n_most:
            return None
        repeats, patience_s = self._repeats, self._limits.patience_s
        limit_s = repeats.lost_limit_s if refusal.is_lost else patience_s
        pause_s = self._pause_s(refusal, attempts)
        left_s = attempts.started + limit_s - time.monotonic()
        # What was added to earlier pauses must not bring the last attempt forward.
        if pause_s > left_s + attempts.added_s:
            return None
        if refusal.retry_after_s is not None:
            added_s = _spread_s(pause_s)
            attempts.added_s += added_s
            pause_s += added_s
        longer_s = attempts.pause_s * repeats.pause_factor
        attempts.pause_s = min(longer_s, repeats.longest_pause_s)
        attempts.n_repeats += 1
        attempts.n_lost_repeats += refusal.is_lost
        if pause_s > left_s:
            pause_s, attempts.added_s = left_s, 0.0  # the last one
        return pause_s

    def _pause_s(self, refusal: RefusalError, attempts: _Attempts) -> float:
        """Seconds to wait, as the server says or else the settings."""
        least = _random_part(_LEAST_PAUSE_S)
        if refusal.retry_after_s is not None:
            return max(refusal.retry_after_s, least if attempts.n_repeats else 0.0)
        is_late = attempts.n_repeats >= self._repeats.n_most and not refusal.is_lost
        return max(_random_part(attempts.pause_s), least if is_late else 0.0)


def _wait(seconds: float) -> None:
    """Wait so long, or until nobody waits for the calling thread any more."""
    flag = flag_here()
    if flag is None:
        time.sleep(seconds)
    else:
        flag.wait(seconds)


def _spread_s(pause_s: float) -> float:
    """What to add to a pause that a server asks for.

    It tells all readers the same, and if they came back together it would again have
    too many.
    """
    most_s = min(pause_s / 2, _SPREAD_S)
    return most_s * random.uniform(0, 1)  # noqa: S311 - no secret


def _random_part(pause_s: float) -> float:
    """Random part of a pause, so that many readers do not come back together."""
    return pause_s * random.uniform(0.5, 1)  # noqa: S311 - no secret

"""How long to wait for a server, and when to ask it again: back-off and Retry-After."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gpushard.errors import StoreError
from gpushard.stop_flag import flag_here, is_stopped
from gpushard.stores.answers import RefusalError, refusal_behind
from gpushard.stores.base import ByteRequest

# Half of it is waited at least, after the first repeats that a server asks for, or that
# the settings allow.
_LEAST_PAUSE_S = 1.0

Answer = TypeVar("Answer")
Requested = TypeVar("Requested", bound=ByteRequest)


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


@dataclass(slots=True)
class _Attempts:
    """What was tried for one request.

    Attributes
    ----------
    pause_s
        Pause before the next attempt, unless the server says how long.
    since
        Monotonic time of the first attempt.
    n, n_lost
        Number of repeats, and of those after a lost connection.
    """

    pause_s: float
    since: float
    n: int = 0
    n_lost: int = 0


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

    def ask(self, work: Callable[[Requested], Answer], request: Requested) -> Answer:
        """Answer of ``work(request)``; after several attempts, its last error."""
        attempts = _Attempts(self._repeats.first_s, time.monotonic())
        while True:
            if is_stopped():
                raise StoreError("nobody waits for the answer any more")
            try:
                return work(request)
            except StoreError as error:
                # A refusal kept here would refer to itself, through its frames, and
                # keep the connections of the store open.
                wanted = self._wanted_s(refusal_behind(error), attempts)
                if wanted is None:
                    raise
            _pause(wanted)

    def _wanted_s(
        self, refusal: RefusalError | None, attempts: _Attempts
    ) -> float | None:
        """Seconds to wait before the next attempt; None if there is to be none."""
        if refusal is None or not refusal.may_pass:
            return None
        if refusal.is_lost and attempts.n_lost >= self._repeats.most:
            return None
        wanted = self._pause_s(refusal, attempts)
        limit = self._repeats.lost_s if refusal.is_lost else self._limits.patience_s
        if time.monotonic() - attempts.since + wanted > limit:
            return None
        pause = attempts.pause_s * self._repeats.base
        attempts.pause_s = min(pause, self._repeats.most_s)
        attempts.n += 1
        attempts.n_lost += refusal.is_lost
        return wanted

    def _pause_s(self, refusal: RefusalError, attempts: _Attempts) -> float:
        least = _jittered(_LEAST_PAUSE_S)
        if refusal.retry_after_s is not None:
            return max(refusal.retry_after_s, least if attempts.n else 0.0)
        is_late = attempts.n >= self._repeats.most and not refusal.is_lost
        return max(_jittered(attempts.pause_s), least if is_late else 0.0)


def _pause(seconds: float) -> None:
    """Wait so long, or until nobody waits for the calling thread any more."""
    flag = flag_here()
    if flag is None:
        time.sleep(seconds)
    else:
        flag.wait(seconds)


def _jittered(pause: float) -> float:
    """Random part of a pause, so that many readers do not come back together."""
    return pause * random.uniform(0.5, 1)  # noqa: S311 - no secret

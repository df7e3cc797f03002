"""Repeating requests to a busy server: back-off with jitter, and Retry-After.

obstore repeats a request a few times within a second. This module repeats requests to
servers that need more time than that.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from gpushard.errors import StoreError
from gpushard.stores.base import ByteRequest
from gpushard.stores.bodies import Pace
from gpushard.stores.failures import passing_status
from gpushard.stores.plain_http import PlainServer

_FIRST_PAUSE_S = 1.0
# Statuses that come with a Retry-After (RFC 9110, 10.2.3; RFC 6585, 4).
_TELLING = frozenset(("429", "503"))

Answer = TypeVar("Answer")
Requested = TypeVar("Requested", bound=ByteRequest)


class Patience:
    """Repeats a request while a server is busy.

    Parameters
    ----------
    pace
        Its `patience_s` limits the time of all attempts and pauses together.
    server
        A plain HTTP server, which is asked how long to wait; None for other servers,
        for which the pause doubles with each attempt.
    """

    def __init__(self, pace: Pace, server: PlainServer | None) -> None:
        self._pace = pace
        self._server = server

    def ask(self, work: Callable[[Requested], Answer], request: Requested) -> Answer:
        """Answer of ``work(request)``, after up to several attempts.

        Raises
        ------
        StoreError
            The error of the last attempt.
        """
        started = time.monotonic()
        pause = _FIRST_PAUSE_S
        least = 0.0  # only the first repeat may come at once
        while True:
            try:
                return work(request)
            except StoreError as error:
                status = passing_status(error)
                if status is None:
                    raise
                told = None
                if self._server is not None and status in _TELLING:
                    # obstore does not tell the headers of a refusal.
                    told = self._server.retry_after(request.key)
                wanted = _jittered(pause) if told is None else max(told, least)
                if time.monotonic() - started + wanted > self._pace.patience_s:
                    raise
            time.sleep(wanted)
            pause *= 2
            least = _jittered(_FIRST_PAUSE_S)


def _jittered(pause: float) -> float:
    """Random part of a pause, so that many readers do not come back together."""
    return pause * random.uniform(0.5, 1)  # noqa: S311 - no secret

"""Telling of waits for a GPU that do not end.

The driver's waits have no limit in time and cannot be interrupted. A damaged stream may
keep a decoder busy for ever (docs/damaged.md), and a program would stop without a word.
"""

from __future__ import annotations

import logging
import threading
import time
from _thread import start_new_thread
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic

_log = logging.getLogger("gpushard.devices")

# A batch takes milliseconds. What the caller has queued before may take longer.
_LONG_S, _LOOK_S = 60.0, 10.0


class Watch:
    """Tells once, as a warning, that a wait for the device `label` takes too long."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._since: dict[object, float] = {}
        self._is_begun = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A wait of the calling thread."""
        if not self._is_begun:
            self._begin()
        wait = object()
        self._since[wait] = monotonic()
        try:
            yield
        finally:
            self._since.pop(wait, None)

    def _begin(self) -> None:
        """Begin the thread that looks; two threads may both, and then both look."""
        self._is_begun = True
        with suppress(RuntimeError):  # of the system's limits: nobody looks
            # `threading.Thread` would wait for it, where an interrupt does harm.
            start_new_thread(self._look, ())

    def _look(self) -> None:
        threading.current_thread().name = "gpushard-watch"
        while not self._is_long():
            time.sleep(_LOOK_S)
        _log.warning(
            "%s has not ended for %.0f seconds what it was given. A damaged stream that"
            " no checksum covers may keep its decoder busy for ever; then the process"
            " has to be killed, and the array read with placement='host' instead",
            self._label,
            _LONG_S,
        )

    def _is_long(self) -> bool:
        try:
            oldest = min(self._since.values(), default=monotonic())
        except RuntimeError:  # another thread began to wait, or has ended
            return False
        return monotonic() - oldest > _LONG_S

"""Locks for work that takes much memory, so that only one thread does it at a time."""

from __future__ import annotations

import threading

from gpushard.threads.forks import after_fork


class Turns:
    """Locks, one for each kind of such work.

    Attributes
    ----------
    padded
        For reading objects that are larger than compressors make them.
    copying
        For inner chunks that a conversion reads, and that need more memory than one of
        its reads has.
    measuring
        For fetching objects of a wrong size, to tell it.
    """

    def __init__(self) -> None:
        self.renew()
        after_fork(self.renew)

    def renew(self) -> None:
        """Make new locks, which nobody holds."""
        self.padded = threading.Lock()
        self.copying = threading.Lock()
        self.measuring = threading.Lock()


turns = Turns()

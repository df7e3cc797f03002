"""What one thread of the process does at a time, as it takes much memory."""

from __future__ import annotations

import os
import threading


class Turns:
    """Locks: who has one does what it is for.

    Attributes
    ----------
    padded
        Objects that are larger than compressors make them.
    copying
        Inner chunks that a conversion reads, and that need more than its reads have.
    """

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):  # a child has none of the threads
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Let nobody have a turn."""
        self.padded = threading.Lock()
        self.copying = threading.Lock()


turns = Turns()

"""CUDA graphs that a thread captures, in the mode that concerns all threads."""

from __future__ import annotations

from threading import get_ident


class Captures:
    """What the driver knows of captures.

    Attributes
    ----------
    is_under_way
        Whether a thread captures a graph.
    forbidden
        Calls that made it fail.
    """

    def __init__(self) -> None:
        self.is_under_way = False
        self.forbidden: list[str] = []
        # Python knows a thread that is not its own only as long as a call takes.
        self._modes: dict[int, int] = {}

    def refuse(self, call: str) -> bool:
        """Whether a call that no graph can record is forbidden to this thread."""
        if not self.is_under_way or self._modes.get(get_ident()):
            return False
        self.forbidden.append(call)
        return True

    def exchange_mode(self, mode: int) -> int:
        """Give the calling thread a mode; returns the one that it had."""
        before = self._modes.get(get_ident(), 0)  # cudaStreamCaptureModeGlobal
        self._modes[get_ident()] = mode
        return before

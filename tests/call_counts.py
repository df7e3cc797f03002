"""Which functions something calls: how many is what it costs in Python."""

from __future__ import annotations

import sys


def calls_of(action) -> list[str]:
    """Functions that `action` calls; of built-in ones with their module's name."""
    calls: list[str] = []

    def noted(frame, event, what):
        if event == "call":
            calls.append(frame.f_code.co_name)
        elif event == "c_call":
            calls.append(f"{what.__module__}.{what.__name__}")

    sys.setprofile(noted)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def n_calls(action) -> int:
    """Functions that `action` calls, Python's and built-in ones."""
    return len(calls_of(action))

"""Interrupts before a chosen line of what a test does."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Collection
from typing import Any


def is_cut_off(
    work: Callable[[], Any],
    n_line: int,
    modules: Collection[str],
    unreached: Collection[str],
) -> bool:
    """Whether `work` has so many lines; if so it is interrupted before that one.

    Counts lines of files whose paths contain one of `modules`, except those that read
    as one of `unreached`.
    """
    n_left = n_line

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal n_left
        path = frame.f_code.co_filename
        if event == "call" and not any(module in path for module in modules):
            return None
        if event == "line" and n_left:
            line = linecache.getline(path, frame.f_lineno).strip()
            n_left -= line not in unreached
            if not n_left:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False

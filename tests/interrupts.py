"""Interrupts before a chosen line, or after a chosen call, of what a test does."""

from __future__ import annotations

import linecache
import sys
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

_MOST_TIMES = 2
"""Of a loop the first round and a later one; the others are in the same state."""


def is_cut_off(
    work: Callable[[], Any],
    n_line: int,
    modules: Collection[str],
    unreached: Collection[str],
    kind: type[BaseException] = KeyboardInterrupt,
) -> bool:
    """Whether `work` has so many lines; if so it is interrupted before that one.

    Counts lines of files whose paths contain one of `modules`, except those that read
    as one of `unreached`, and each line twice at most.
    """
    n_left = n_line
    reached: Counter[tuple[str, int]] = Counter()

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal n_left
        path = frame.f_code.co_filename
        if event == "call" and not any(module in path for module in modules):
            return None
        if event == "line" and n_left:
            place = path, frame.f_lineno
            reached[place] += 1
            if reached[place] > _MOST_TIMES:
                return trace
            n_left -= linecache.getline(*place).strip() not in unreached
            if not n_left:
                raise kind
        return trace

    sys.settrace(trace)
    try:
        work()
    except kind:
        return True
    finally:
        sys.settrace(None)
    return False


def is_cut_off_at_call(
    work: Callable[[], Any],
    n_call: int,
    modules: Collection[str],
    kind: type[BaseException] = KeyboardInterrupt,
) -> bool:
    """Whether `work` has so many calls; if so it is interrupted at that one.

    That is where Python looks for signals: when a function of Python begins, and when
    one in C has returned, whose result is then lost. Counts what files call whose paths
    contain one of `modules`.
    """
    n_left = n_call

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal n_left
        path = frame.f_code.co_filename
        if event in ("call", "c_return") and any(module in path for module in modules):
            n_left -= 1
            if not n_left:
                sys.setprofile(None)
                raise kind

    sys.setprofile(profile)
    try:
        work()
    except kind:
        return True
    finally:
        sys.setprofile(None)
    return False

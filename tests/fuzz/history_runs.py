"""How histories are run, whatever they are of: one of them, or many."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

Done = list[tuple[int, str]]
"""Numbers and names of the steps that a history did."""


def run_history(
    name: str,
    steps: Sequence[int],
    contexts: Iterable[AbstractContextManager[Any]],
    made: Callable[[Path, ExitStack], Any],
) -> Done:
    """Steps that a history did, in a directory of its own; an error names it.

    `made` makes it, and may leave what is to be undone behind it.
    """
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        place = Path(tempfile.mkdtemp())
        stack.callback(shutil.rmtree, place)
        for context in contexts:
            stack.enter_context(context)
        history = made(place, stack)
        try:
            history.run(steps)
        except BaseException as error:
            error.add_note(f"{name}: {history.done}")
            raise
        return history.done


def counted(tried: Callable[[int], Done], n: int, seed: int) -> Counter[str]:
    """How often `n` histories, of that seed and those behind it, did each step."""
    done = map(tried, range(seed, seed + n))
    return Counter(name for steps in done for _, name in steps)


def finding(tried: Callable[[int], Done], seeds: Iterable[int]) -> str:
    """What is noted of the first wrong answer in some histories."""
    try:
        for seed in seeds:
            tried(seed)
    except AssertionError as error:
        (note,) = error.__notes__
        return note
    raise LookupError("no wrong answer")

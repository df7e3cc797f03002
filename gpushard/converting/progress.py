"""Reports the progress of a conversion to a callable, or as a bar on stderr."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpushard.errors import OptionError

Progress = bool | Callable[[int, int], None] | None
"""True shows a bar on stderr; a callable gets the bytes done and the bytes in all."""

Advance = Callable[[int], None]
"""Is called with the number of bytes that were done since the last call."""


@contextmanager
def counted(total_nbytes: int, progress: Progress) -> Iterator[Advance]:
    """Yield a function that reports finished bytes; several threads may call it."""
    if not progress:
        yield lambda _: None
    elif progress is True:
        with _bar(total_nbytes) as advance:
            yield advance
    elif not callable(progress):
        raise OptionError(
            "progress= cannot be called",
            expected="True, or what takes the bytes done and bytes in all",
            got=repr(progress),
        )
    else:
        yield _Counter(total_nbytes, progress).add


class _Counter:
    """Adds up finished bytes and reports the sum, one call at a time."""

    def __init__(self, total: int, tell: Callable[[int, int], None]) -> None:
        self._total = total
        self._done = 0
        self._tell = tell
        self._lock = threading.Lock()

    def add(self, nbytes: int) -> None:
        with self._lock:
            self._done += nbytes
            self._tell(self._done, self._total)


@contextmanager
def _bar(total_nbytes: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn()
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("", total=total_nbytes)
        yield lambda nbytes: bar.advance(task, nbytes)

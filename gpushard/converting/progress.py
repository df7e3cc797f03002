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
        n_done, lock = 0, threading.Lock()

        def add(nbytes: int) -> None:
            nonlocal n_done
            with lock:
                n_done += nbytes
                progress(n_done, total_nbytes)

        yield add


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

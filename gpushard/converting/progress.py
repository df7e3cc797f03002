"""Reports the progress of a conversion to a callable, or as a bar on stderr."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOBase
from typing import TYPE_CHECKING, TextIO, cast

from gpushard.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console

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
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, TimeRemainingColumn(), console=bar_console()) as bar:
        task = bar.add_task("", total=total_nbytes)
        yield lambda nbytes: bar.advance(task, nbytes)


def bar_console() -> Console:
    """Console for bars on stderr; of what stderr does not accept, nobody is told.

    A full disk behind stderr, or a terminal that was closed, must not end the work.
    """
    from rich.console import Console

    if sys.stderr is None:
        return Console(stderr=True)
    return Console(file=cast("TextIO", _Lossy(sys.stderr)))


class _Lossy(TextIOBase):
    """A stream that text is written to as far as `stream` accepts it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]  # of a stream it is a member
        return self._stream.encoding

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str, /) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        # It may be closed by then: Python flushes this once more as it collects it.
        with suppress(OSError, ValueError):
            self._stream.flush()

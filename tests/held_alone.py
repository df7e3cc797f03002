"""Something that another thread does alone, for as long as a block takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gpushard.threads.alone import Alone


@contextmanager
def held_by_another_thread(alone: Alone) -> Iterator[None]:
    """Have another thread in the middle of what it does alone."""
    has_begun, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        has_begun.set()
        may_end.wait(60)

    thread = threading.Thread(target=alone.call, args=(hold,))
    thread.start()
    has_begun.wait(60)
    try:
        yield
    finally:
        may_end.set()
        thread.join()

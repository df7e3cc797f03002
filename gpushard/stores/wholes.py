"""Objects of servers without ranges: fetched whole for a part, within bounds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gpushard.options import MIB, Options
from gpushard.stores.base import ByteRequest, Fetched

# Where ranges are ignored, larger objects are an error, not a surprise download.
MOST_WHOLE_NBYTES = 64 * MIB
# Of the memory limit, what they take together: nobody else counts what is cut off.
_SHARE = 4


class Wholes:
    """What the objects take that a store fetches whole, at a time.

    Parameters
    ----------
    options
        `memory_limit` bounds it.

    Attributes
    ----------
    most_nbytes
        What they may take together, and so the largest of them.
    """

    def __init__(self, options: Options) -> None:
        self.most_nbytes = min(
            MOST_WHOLE_NBYTES, options.resolved().bound_nbytes // _SHARE
        )
        self._changed = threading.Condition()
        self._held_nbytes = 0

    @contextmanager
    def taken(self, nbytes: int) -> Iterator[None]:
        """Hold so much, as soon as there is room for it."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._held_nbytes + nbytes <= self.most_nbytes
            )
            self._held_nbytes += nbytes
        try:
            yield
        finally:
            with self._changed:
                self._held_nbytes -= nbytes
                self._changed.notify_all()


def cut_out(whole: Fetched | None, request: ByteRequest) -> Fetched | None:
    """What a request asks for, without the rest of the object."""
    if whole is None:
        return None
    start, stop = request.within(len(whole.data))
    data = whole.data[start:stop]
    if len(data) < len(whole.data):
        data = data.copy()
    return Fetched(data, whole.object_nbytes, whole.version)

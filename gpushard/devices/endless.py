"""Work on a device that never ends: its memory is kept, and the process can still end.

Nobody else may get memory that such work uses, so it is kept for the life of the
process. The driver waits for the work when a process ends, in exit handlers of the C
library.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_kept: list[Any] = []


class Endless:
    """Whether a device was given up while it worked, and what it may still use.

    Attributes
    ----------
    is_under_way
        Whether there is work that never ends.
    """

    is_under_way = False

    def begin(self, owner: object) -> None:
        """Keep all memory from now on, and let the process end all the same.

        `owner` holds what is given back to the driver when it is freed, such as
        kernels. The driver would wait then, so it is never freed.
        """
        self.is_under_way = True
        for thing in (_kept, owner):
            _outlive_python(thing)
        end_past_the_driver()

    def keep(self, *things: Any) -> None:
        """Keep things for the life of the process, if there is such work."""
        if self.is_under_way:
            _kept.append(things)


class PooledBuffer:
    """Memory from an allocator, which is kept when its owner goes; see `Endless`.

    `memory` is freed when it is dropped, and has its address as ``ptr``.
    """

    def __init__(self, memory: Any, nbytes: int, endless: Endless) -> None:
        self._memory = memory
        self._endless = endless
        self.address = int(memory.ptr)
        self.nbytes = nbytes

    def __del__(self) -> None:
        self._endless.keep(self._memory)


def _outlive_python(thing: object) -> None:
    """Keep the interpreter from finalizing an object, and what it refers to."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


@cache
def end_past_the_driver() -> None:
    """Have the process end, with its exit status, before the driver's exit handlers.

    Exit handlers run in the reverse order of their registration. So `_exit`, which is
    registered here, comes before those of the driver, and after Python has ended. Does
    nothing if the C library has no `on_exit`.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "on_exit"):
        library.on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        library.on_exit(ctypes.cast(library["_exit"], ctypes.c_void_p), None)

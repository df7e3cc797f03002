"""Cooperation of a loader with torch's `DataLoader`.

This module imports nothing of torch: whoever uses torch has imported it.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from types import ModuleType

from gpushard.errors import UnsupportedError


def tell_torch(kind: type) -> None:
    """Let torch's `DataLoader` iterate over objects of `kind`, and not index them."""
    data = _imported()
    if data is not None:
        data.IterableDataset.register(kind)


def refuse_workers(*, device: bool) -> None:
    """Refuse workers of a `DataLoader` that would each give all batches.

    Parameters
    ----------
    device
        Whether batches are on a device; these cannot leave their process at all.

    Raises
    ------
    UnsupportedError
        This is one of several workers, or any worker if batches are on a device.
    """
    data = _imported()
    worker = None if data is None else data.get_worker_info()
    if worker is None or not (device or worker.num_workers > 1):
        return
    raise UnsupportedError(
        "a worker cannot pass on the batches of a loader on a device"
        if device
        else "each of several workers would give all batches of a loader",
        got=f"num_workers={worker.num_workers}",
        hint="pass num_workers=0: the loader reads ahead in threads",
    )


def _imported() -> ModuleType | None:
    name = "torch.utils.data"
    if sys.modules.get(name) is not None:
        # Waits for another thread that is just importing it. If that fails, its error
        # is for that thread.
        with suppress(Exception):
            return importlib.import_module(name)
    return None

"""What torch's `DataLoader` has to know of a loader, and a loader of it.

Nothing is imported: who uses torch has imported it.
"""

from __future__ import annotations

import sys

from gpushard.errors import UnsupportedError


def tell_torch(kind: type) -> None:
    """Let a `DataLoader` know that objects of `kind` are iterated over, not indexed."""
    data = sys.modules.get("torch.utils.data")
    if data is not None:
        data.IterableDataset.register(kind)


def refuse_workers(*, device: bool) -> None:
    """Refuse to give every worker of a `DataLoader` all batches.

    Parameters
    ----------
    device
        Whether batches lie on a device, and cannot leave their process.

    Raises
    ------
    UnsupportedError
        This is one of several workers, or one at all.
    """
    data = sys.modules.get("torch.utils.data")
    worker = None if data is None else data.get_worker_info()
    if worker is None:
        return
    got, hint = f"num_workers={worker.num_workers}", "pass num_workers=0: the loader"
    if device:
        raise UnsupportedError(
            "a worker cannot hand on the batches of a loader on a device",
            got=got,
            hint=f"{hint} reads ahead in threads",
        )
    if worker.num_workers > 1:
        raise UnsupportedError(
            "several workers would each give all batches of a loader",
            got=got,
            hint=f"{hint} reads ahead in threads",
        )

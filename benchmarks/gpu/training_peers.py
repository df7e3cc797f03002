"""torch's `DataLoader` at its best: whole batches by each worker, pinned, copied ahead.

A batch is some inner chunks at random, each read once and whole, their samples mixed.
That is less mixing than gpushard's loader is asked for, and no inner chunk is read
twice. The labels are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from benchmarks.gpu.images import Stored
    from benchmarks.gpu.sizes import Sizes
    from benchmarks.gpu.trainer import Batch

N_WORKERS = 8
_AHEAD = 4
# A worker that was forked in the wrong moment would be waited for without an end.
_TIMEOUT_S = 30

Reader = Callable[[list[slice]], list[NDArray[np.uint8]]]


def _zarr(path: Path) -> Reader:
    import zarr

    array = zarr.open_array(str(path), mode="r")
    return lambda parts: [np.asarray(array[part]) for part in parts]


def _tensorstore(path: Path) -> Reader:
    import tensorstore

    kvstore = {"driver": "file", "path": str(path)}
    array = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}).result()

    def read(parts: list[slice]) -> list[NDArray[np.uint8]]:
        begun = [array[part].read() for part in parts]
        return [one.result() for one in begun]

    return read


PEERS = {"zarr": _zarr, "tensorstore": _tensorstore}


class Blocks:
    """A dataset whose items are batches, by the numbers of their inner chunks."""

    def __init__(self, peer: str, stored: Stored, n_inner: int) -> None:
        self._peer, self._stored, self._n_inner = peer, stored, n_inner
        # Opened by each worker: what an opened array has cannot be forked.
        self._readers: tuple[Reader, NDArray[np.uint8]] | None = None

    def __getitem__(self, blocks: list[int]) -> tuple[Any, Any]:
        import torch  # optional

        if self._readers is None:
            opened, labels = PEERS[self._peer], PEERS[self._peer](self._stored.labels)
            self._readers = opened(self._stored.images), labels([slice(None)])[0]
        read, labels = self._readers
        parts = [slice(b * self._n_inner, (b + 1) * self._n_inner) for b in blocks]
        order = np.random.permutation(self._n_inner * len(blocks))  # noqa: NPY002
        images = np.concatenate(read(parts))[order]
        mine = np.concatenate([labels[part] for part in parts])[order]
        return torch.from_numpy(images), torch.from_numpy(mine)


class Order:
    """All inner chunks in another order each time, as many at once as a batch has."""

    def __init__(self, n_blocks: int, n_batch: int) -> None:
        self._n_blocks, self._n_batch = n_blocks, n_batch
        self._rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return self._n_blocks // self._n_batch

    def __iter__(self) -> Iterator[list[int]]:
        order = self._rng.permutation(self._n_blocks)[: len(self) * self._n_batch]
        yield from order.reshape(-1, self._n_batch).tolist()


def open_data(peer: str, stored: Stored, sizes: Sizes, n_workers: int) -> Any:
    """A `DataLoader` of batches in memory of the host."""
    from torch.utils.data import (  # optional
        DataLoader,
    )

    n_inner = sizes.n_inner_images
    order = Order(sizes.n_images // n_inner, sizes.n_batch_images // n_inner)
    workers: dict[str, Any] = {}
    if n_workers:
        workers = {"persistent_workers": True, "prefetch_factor": _AHEAD}
        workers |= {"pin_memory": True, "timeout": _TIMEOUT_S}
    return DataLoader(
        Blocks(peer, stored, n_inner),
        sampler=order,
        batch_size=None,
        num_workers=n_workers,
        **workers,
    )


def open_peer(peer: str, stored: Stored, sizes: Sizes) -> Callable[[], Iterator[Batch]]:
    """Function that begins an epoch of batches on the GPU."""
    loader = open_data(peer, stored, sizes, N_WORKERS)

    def begin() -> Iterator[Batch]:
        for images, labels in loader:
            x = images.cuda(non_blocking=True)
            yield {"x": x.half() / 255, "y": labels.cuda(non_blocking=True)}

    return begin

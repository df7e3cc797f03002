"""The loaders: each a function that gives an epoch's batches, with settings to try.

All shuffle alike. Rows: inner chunks at random, `MIXED` of them in memory together and
their rows mixed. Patches: any order. Batches are arrays that NumPy can view.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loaders import data

Epochs = Callable[[], Iterable[Any]]
"""Called for each epoch."""

# Decoded inner chunks that may be kept between batches: a quarter of the volume.
CACHE_NBYTES = data.VOLUME**3
_CACHED = "a quarter of the inner chunks kept"
_N_BLOCKS = data.N_ROWS // data.ROWS_CHUNK


def gpushard(path: Path, workload: str) -> dict[str, Epochs]:
    """The loader of this project, tensors where torch is installed.

    For patches also with inner chunks kept, as many as tensorstore's cache pool.
    """
    import gpushard

    try:
        import torch

        torch.set_num_threads(1)
        to = "torch"
    except ImportError:
        to = "numpy"
    options: dict[str, Any] = {"shuffle": True, "to": to}
    steady = gpushard.Options(compile_nbytes=0)
    array = gpushard.open_array(path, device="cpu", options=steady)
    if workload == "rows":
        options |= {"batch_size": data.ROWS_BATCH, "block": "chunk"}
        options["buffer_blocks"] = data.MIXED
        return {"as it is": _repeated(gpushard.Loader(array, **options))}
    options |= {"batch_size": data.PATCH_BATCH, "window": (data.PATCH,) * 3}
    options["stride"] = data.STRIDE
    keeping = steady.but(chunk_cache_nbytes=CACHE_NBYTES)
    kept = gpushard.open_array(path, device="cpu", options=keeping)
    return {
        "as it is": _repeated(gpushard.Loader(array, **options)),
        _CACHED: _repeated(gpushard.Loader(kept, **options)),
    }


def annbatch(path: Path, workload: str) -> dict[str, Epochs]:
    """Annbatch with zarrs' pipeline, for rows."""
    if workload != "rows":
        raise NotImplementedError("annbatch has no patches")
    import zarr

    _use_zarrs()
    import annbatch as package

    array = zarr.open_array(str(path), mode="r")
    loader = package.Loader(
        chunk_size=data.ROWS_CHUNK,
        preload_nchunks=data.MIXED,
        batch_size=data.ROWS_BATCH,
        shuffle=True,
        preload_to_gpu=False,
    ).add_dataset(array)
    return {"zarrs": lambda: (batch["X"] for batch in loader)}


def zarr_dataloader(path: Path, workload: str) -> dict[str, Epochs]:
    """Torch's DataLoader over zarr-python with its own pipeline."""
    return _in_data_loader(workload, lambda: _zarr_reader(path))


def zarrs_dataloader(path: Path, workload: str) -> dict[str, Epochs]:
    """Torch's DataLoader over zarr-python with zarrs' pipeline."""
    _use_zarrs()
    return _in_data_loader(workload, lambda: _zarr_reader(path))


def tensorstore_dataloader(path: Path, workload: str) -> dict[str, Epochs]:
    """Torch's DataLoader over tensorstore, reads of a batch side by side.

    Rows also as one read of all inner chunks that are mixed, patches also with a cache
    pool whose entries are not checked again.
    """
    found = _in_data_loader(workload, lambda: _tensorstore_reader(path))
    if workload == "rows":
        more = _in_data_loader(workload, lambda: _tensorstore_joined(path))
        how = "one read a group"
    else:
        cached = partial(_tensorstore_reader, path, CACHE_NBYTES)
        more, how = _in_data_loader(workload, cached), _CACHED
    found |= {f"{key}, {how}": more[key] for key in more}
    # Without workers last: tensorstore must not have been used before a fork.
    return {key: found[key] for key in sorted(found, reverse=True)}


def xbatcher(path: Path, workload: str) -> dict[str, Epochs]:
    """Xbatcher's batches of an xarray over zarr, in torch's DataLoader."""
    if workload == "rows":
        raise NotImplementedError("xbatcher has no rows at random")
    import xarray
    import xbatcher as package
    from torch.utils.data import DataLoader
    from xbatcher.loaders.torch import MapDataset

    _use_zarrs()
    group = xarray.open_zarr(path.parent, consolidated=False, chunks=None)
    lazy = group[path.name]
    sizes = dict.fromkeys(("z", "y", "x"), data.PATCH)
    overlap = dict.fromkeys(("z", "y", "x"), data.PATCH - data.STRIDE)
    batches = package.BatchGenerator(
        lazy, input_dims=sizes, input_overlap=overlap, preload_batch=False
    )
    dataset = MapDataset(batches)
    return {
        f"{n} workers": _repeated(
            DataLoader(
                dataset,
                batch_size=data.PATCH_BATCH,
                shuffle=True,
                num_workers=n,
                persistent_workers=n > 0,
                # Forked, they wait for threads that opening the array left behind.
                multiprocessing_context="spawn" if n else None,
            )
        )
        for n in (2, 0)
    }


CONTENDERS: dict[str, Callable[[Path, str], dict[str, Epochs]]] = {
    "gpushard": gpushard,
    "annbatch": annbatch,
    "zarr_dataloader": zarr_dataloader,
    "zarrs_dataloader": zarrs_dataloader,
    "tensorstore_dataloader": tensorstore_dataloader,
    "xbatcher": xbatcher,
}
PACKAGES = ("gpushard", "annbatch", "numpy", "tensorstore", "torch", "xarray")
PACKAGES += ("xbatcher", "zarr", "zarrs")


def _use_zarrs() -> None:
    import zarr
    import zarrs  # noqa: F401 - registers itself

    name = "zarrs.ZarrsCodecPipeline"
    zarr.config.set({"codec_pipeline.path": name})
    os.environ["ZARR_CODEC_PIPELINE__PATH"] = name  # for processes that are spawned


def _repeated(loader: Any) -> Epochs:
    return lambda: loader


Reader = Callable[[list[tuple[slice, ...]]], list[np.ndarray]]
"""Reads several selections."""


def _zarr_reader(path: Path) -> Reader:
    import zarr

    array = zarr.open_array(str(path), mode="r")
    return lambda selections: [np.asarray(array[s]) for s in selections]


def _tensorstore_array(path: Path, cache_nbytes: int = 0) -> Any:
    import tensorstore

    spec: dict[str, Any] = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(path)},
    }
    if cache_nbytes:
        spec["context"] = {"cache_pool": {"total_bytes_limit": cache_nbytes}}
        spec["recheck_cached_data"] = spec["recheck_cached_metadata"] = "open"
    return tensorstore.open(spec, read=True).result()


def _tensorstore_joined(path: Path) -> Reader:
    import tensorstore

    array = _tensorstore_array(path)

    def read(selections: list[tuple[slice, ...]]) -> list[np.ndarray]:
        parts = [array[s].translate_to[0] for s in selections]
        return [tensorstore.concat(parts, axis=0).read().result()]

    return read


def _tensorstore_reader(path: Path, cache_nbytes: int = 0) -> Reader:
    array = _tensorstore_array(path, cache_nbytes)

    def read(selections: list[tuple[slice, ...]]) -> list[np.ndarray]:
        begun = [array[s].read() for s in selections]
        return [one.result() for one in begun]

    return read


def _in_data_loader(
    workload: str, open_reader: Callable[[], Reader]
) -> dict[str, Epochs]:
    """Epochs of a `DataLoader` whose workers open the array anew, 0 to 2 of them."""
    from torch.utils.data import DataLoader

    found: dict[str, Epochs] = {}
    for n in (2, 1, 0):
        options = {"num_workers": n, "persistent_workers": n > 0}
        if workload == "rows":
            loader = DataLoader(_Blocks(open_reader), batch_size=None, **options)
        else:
            loader = DataLoader(
                _Patches(open_reader),
                batch_size=data.PATCH_BATCH,
                shuffle=True,
                **options,
            )
        found[f"{n} workers"] = _repeated(loader)
    return found


def _iterable() -> Any:
    from torch.utils.data import IterableDataset

    return IterableDataset


class _Blocks:
    """Batches of rows: inner chunks at random, some of them mixed."""

    def __new__(cls, open_reader: Callable[[], Reader]) -> Any:
        class Blocks(_iterable()):
            epoch = 0

            def __iter__(self) -> Iterator[np.ndarray]:
                return _block_batches(open_reader(), self.epoch)

        return Blocks()


def _block_batches(read: Reader, epoch: int) -> Iterator[np.ndarray]:
    """Batches of this worker: every so many groups of blocks."""
    import torch

    worker = torch.utils.data.get_worker_info()
    seed = torch.initial_seed() - (worker.id if worker else 0)
    rng = np.random.default_rng([seed, epoch])
    blocks = rng.permutation(_N_BLOCKS)
    groups = [blocks[i : i + data.MIXED] for i in range(0, _N_BLOCKS, data.MIXED)]
    mine = groups[worker.id :: worker.num_workers] if worker else groups
    n = data.ROWS_CHUNK
    for group in mine:
        starts = (np.sort(group) * n).tolist()
        parts = read([(slice(start, start + n),) for start in starts])
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        order = rng.permutation(len(rows))
        for first in range(0, len(rows), data.ROWS_BATCH):
            yield rows[order[first : first + data.ROWS_BATCH]]


class _Patches:
    """Patches by number."""

    def __init__(self, open_reader: Callable[[], Reader]) -> None:
        self._open = open_reader
        self._read: Reader | None = None

    def __len__(self) -> int:
        return data.N_PATCHES

    def __getitems__(self, samples: list[int]) -> list[np.ndarray]:
        if self._read is None:
            self._read = self._open()
        return self._read(
            [tuple(slice(o, o + data.PATCH) for o in data.origin(s)) for s in samples]
        )

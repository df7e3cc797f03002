"""Whether a training waits for its data: a loader beside steps without loading."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import repeat
from math import inf
from typing import TYPE_CHECKING, Any
from unittest import mock

from benchmarks.gpu import images
from benchmarks.gpu.run import Run, Skipped
from benchmarks.gpu.trainer import Batch, ConvolutionalNet, Steps, Trainer, train
from benchmarks.gpu.training_peers import PEERS, open_peer

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gpushard import Loader

Columns = dict[str, Any]

ORDERS: dict[str, dict[str, Any]] = {
    "chunk": {"block": "chunk", "buffer_blocks": 64},
    "shard": {"block": "shard", "buffer_blocks": 2},
    "perfect": {},
}
# Chain, order, and what else is done that might help the steps. A GPU may be lent for
# minutes, so what matters most comes first.
CASES = (
    ("zstd", "chunk", ""),
    ("none", "chunk", ""),
    ("blosc-lz4", "chunk", ""),
    ("zstd", "perfect", ""),
    ("blosc-lz4", "perfect", ""),
    ("zstd", "shard", ""),
    ("zstd", "chunk", "digits"),
    ("none", "chunk", "digits"),
    ("zstd", "perfect", "digits"),
    ("zstd", "chunk", "device"),
    ("zstd", "perfect", "device"),
    ("zstd", "chunk", "large"),
    ("none", "chunk", "large"),
    ("zstd", "chunk", "switch"),
    ("zstd", "perfect", "priority"),
    ("zstd", "perfect", "asked"),
)
PEER_CHAINS = ("zstd", "none")
# Seconds of steps before the clock runs, and of those that are timed.
_WARM_S, _LONGEST_S = 0.8, 1.6
# The very first steps take seconds, as cuDNN tries its algorithms.
_N_FIRST = 3
_N_EPOCHS, _N_CEILING = 3, 150
# Steps that are done even if the seconds are over.
_LEAST_STEPS = 8
_SWITCH_S = 0.0005
_LARGER = 4


def ours(run: Run) -> None:
    """Steps with the loader of gpushard, by chain and order, and without loading."""
    trainer = _trainer(run)
    rows = {
        "/".join(filter(None, ("training/ours", *case))): partial(_ours, run, *case)
        for case in CASES
    }
    put_rows(run, trainer, rows)


def _ours(run: Run, chain: str, order: str, how: str, trainer: Trainer) -> Columns:
    epochs = None if how == "asked" else 1 + _N_EPOCHS
    opened = open_loader(run, chain, order, how, to="torch", epochs=epochs)
    with opened as loader, HOWS[how]():
        found = measured(trainer, partial(iter, loader), inf, _LONGEST_S)
        if run.wants("training/ceiling"):
            run.put("training/ceiling", **found["ceiling"])
        return {**found, **_loading(loader)}


def peers(run: Run) -> None:
    """Steps with a `DataLoader` over other readers, by chain."""
    trainer = _trainer(run)
    rows = {
        f"training/dataloader-{peer}/{chain}": partial(_peer, run, chain, peer)
        for chain in PEER_CHAINS
        for peer in PEERS
    }
    put_rows(run, trainer, rows)


def _peer(run: Run, chain: str, peer: str, trainer: Trainer) -> Columns:
    stored = images.store(run.sizes, chain, run.root)
    begin = open_peer(peer, stored, run.sizes)
    return measured(trainer, begin, _WARM_S, _LONGEST_S)


def put_rows(
    run: Run, trainer: Trainer, rows: Mapping[str, Callable[[Trainer], Columns]]
) -> None:
    """Tell each row that is wanted; what fails does not keep the others back."""
    failures: list[Exception] = []
    for name, found in rows.items():
        if run.wants(name):
            try:
                run.put(name, **found(trainer), loss=trainer.loss)
            except Exception as error:  # noqa: BLE001 - raised below
                error.add_note(name)
                failures.append(error)
    if failures:
        raise ExceptionGroup("rows of a training", failures)


def _trainer(run: Run) -> ConvolutionalNet:
    if run.is_emulated:
        raise Skipped("torch knows no emulated device")
    try:
        return ConvolutionalNet(images.N_CLASSES)
    except (ImportError, RuntimeError, AssertionError) as error:
        raise Skipped(f"torch cannot use the GPU: {error}") from error


def _loading(loader: Loader) -> dict[str, Any]:
    """What a loader tells of itself, and where inner chunks were decoded."""
    stats = loader.stats()
    row = {k: stats[k] for k in ("read_amplification", "queue_occupancy")}
    counts = loader._settings.fields[0].tally.counts  # noqa: SLF001 - tells of no loads
    places = ("n_decoded_on_device", "n_decoded_on_host")
    return row | {place: counts.get(place, 0) for place in places}


def open_loader(
    run: Run,
    chain: str,
    order: str,
    how: str = "",
    *,
    to: Any = None,
    epochs: int | None = None,
) -> Loader:
    """The loader of a training, its samples in one of `ORDERS`; see `HOWS`."""
    from gpushard import Loader, Options, open_array

    what = how if how in images.MAKERS else "strokes"
    stored = images.store(run.sizes, chain, run.root, what)
    options = Options(placement=how if how in ("device", "host") else "cost")
    device: Any = run.machine.device
    arrays = {
        name: open_array(path, device=device, options=options)
        for name, path in zip("xy", stored, strict=True)
    }
    return Loader(
        arrays,
        batch_size=run.sizes.n_batch_images,
        shuffle=True,
        drop_last=True,
        **ORDERS[order],
        dtype={"x": "float16"},
        scale={"x": 1 / 255},
        to=to,
        epochs=epochs,
    )


def measured(
    trainer: Trainer,
    begin: Callable[[], Iterator[Batch]],
    warm_s: float,
    longest_s: float,
) -> Columns:
    """Columns of a row: steps with loading, and behind them the same without.

    Both one after the other, as a GPU's clock changes. Endless warming is the first
    epoch, so that the next one begins as in a training that goes on.
    """
    batches = begin()
    batch = next(batches)
    train(trainer, [lambda: repeat(batch, _N_FIRST)], longest_s, _N_FIRST)
    warming = (lambda: batches, *repeat(begin, _N_EPOCHS if warm_s < inf else 0))
    train(trainer, warming, warm_s, _LEAST_STEPS)
    batches = iter(())  # ends the epoch, as it does in a loop
    found = train(trainer, repeat(begin, _N_EPOCHS), longest_s, _LEAST_STEPS)
    ceiling_of = partial(repeat, batch, _N_CEILING)
    ceiling = train(trainer, [ceiling_of], longest_s, _LEAST_STEPS)
    shares = wait_shares(found, ceiling)
    return {**found.row(), **shares, "ceiling": ceiling.row()}


def wait_shares(found: Steps, ceiling: Steps) -> dict[str, float]:
    """Parts of the time that loading costs, from none (0) to all (1).

    `wait_share` is about all samples, beginnings of epochs included;
    `inner_wait_share` about the steps after these.
    """
    inner = 1 - ceiling.mean_step_seconds / found.mean_step_seconds
    return {
        "wait_share": round(1 - found.samples_s / ceiling.samples_s, 4),
        "inner_wait_share": round(inner, 4),
    }


@contextmanager
def _urgent() -> Iterator[None]:
    """Steps go before what a loader has queued on the device."""
    import torch  # optional

    stream = torch.cuda.Stream(priority=-1)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
        stream.synchronize()


@contextmanager
def _switching() -> Iterator[None]:
    """The interpreter's lock changes hands more often than every 5 ms."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


@contextmanager
def _larger() -> Iterator[None]:
    """Reads of a loader have more samples, so that fewer are planned and begun."""
    from gpushard.loader import reading

    nbytes = reading.LOAD_NBYTES * _LARGER
    with mock.patch.object(reading, "LOAD_NBYTES", nbytes):
        yield


HOWS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "": nullcontext,
    "asked": nullcontext,  # no epoch is read before it is asked for
    "device": nullcontext,  # an option of the arrays
    "digits": nullcontext,  # other arrays
    "large": _larger,
    "priority": _urgent,
    "switch": _switching,
}

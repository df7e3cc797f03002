"""A small rolling array whose every value tells where it belongs."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Self

import numpy as np

from gpushard.rolling import RollingArray

FILL = -(2**31)
WIDTH = 6
SHARD = 2
PLAIN: dict[str, Any] = {
    "shape": (0, WIDTH),
    "dtype": "i4",
    "chunks": (1, 3),
    "shards": (SHARD, WIDTH),
    "fill_value": FILL,
}


def steps(start: int, stop: int) -> np.ndarray:
    """What belongs at logical coordinates ``start:stop``."""
    rows = np.arange(start, stop, dtype="i4")[:, None]
    return 10 * rows + np.arange(WIDTH, dtype="i4")


def filled(n: int) -> np.ndarray:
    return np.full((n, WIDTH), FILL, "i4")


def rolling(place: Any, start: int, stop: int, **arguments: Any) -> RollingArray:
    """Array with ``start:stop`` in it."""
    arguments = PLAIN | arguments
    a = RollingArray.create(place, origin=start // SHARD, **arguments)
    return a.append(steps(start, stop)) if stop > start else a


def document(place: Path) -> dict[str, Any]:
    return json.loads((place / "zarr.json").read_text())


def shards_of(place: Path) -> set[str]:
    """Keys of the stored objects."""
    files = (p for p in (place / "c").rglob("*") if p.is_file())
    return {p.relative_to(place).as_posix() for p in files}


class Beside:
    """A function that runs in a thread, beside the test, until it is told to stop."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._stop = threading.Event()
        self.error: BaseException | None = None
        self.n_runs = 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._function()
                self.n_runs += 1
        except BaseException as error:  # noqa: BLE001 - raised by `__exit__`
            self.error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

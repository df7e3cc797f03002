"""A directory's store that notes what it is asked, at costs of one's choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gpushard
from gpushard.options import KIB, MIB
from gpushard.stores.base import FetchCosts
from gpushard.stores.local.store import LocalStore

IN_SHARES = FetchCosts(
    64 * KIB, 8 * MIB, 4, prefers_whole_objects=False, reads_in_shares=True
)
IN_REQUESTS = FetchCosts(64 * KIB, 16 * MIB, 4, prefers_whole_objects=False)
BY_PRICE = FetchCosts(0, MIB, 4, prefers_whole_objects=True)


class AskedStore(LocalStore):
    """Read plainly, as no subclass of the local store holds plain files.

    Attributes
    ----------
    calls
        The requests of each call of `read`.
    """

    def __init__(self, root: Path, costs: FetchCosts = IN_SHARES) -> None:
        super().__init__(root)
        self._costs = costs
        self.calls: list[Any] = []

    @property
    def costs(self) -> FetchCosts:
        return self._costs

    def read(self, requests: Any) -> Any:
        self.calls.append(requests)
        return super().read(requests)

    def payload_nbytes(self) -> list[int]:
        """What each call asked for, of those that ask for no end of an object."""
        return [
            asked_nbytes(requests)
            for requests in self.calls
            if all(r.stop is not None for r in requests)
        ]


def asked_nbytes(requests: Any) -> int:
    """Bytes of ranges, and of ends of objects."""
    return sum(-r.start if r.stop is None else r.stop - r.start for r in requests)


def opened(
    place: Path, costs: FetchCosts = IN_SHARES, **options: Any
) -> tuple[gpushard.Array, AskedStore]:
    """Array at `place` on the host, and its store, which was not asked yet."""
    store = AskedStore(place, costs)
    a = gpushard.open_array(store, device="cpu", options=gpushard.Options(**options))
    store.calls.clear()
    return a, store


def put(place: Path, document: Any, **objects: bytes) -> Path:
    """Array of that document; ``c_0`` is the object ``c/0``."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "zarr.json").write_text(json.dumps(document))
    for name, data in objects.items():
        path = place / name.replace("_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return place

"""One stored object, ``c/0``, and what every store must answer about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpushard.stores.base import ByteRequest, Fetched, Store

BODY = bytes(range(256)) * 4

RANGES: list[tuple[tuple[int | None, ...], bytes]] = [
    ((), BODY),
    ((0, None), BODY),
    ((5, 9), BODY[5:9]),
    ((1000,), BODY[1000:]),
    ((-20,), BODY[-20:]),
    ((-5000,), BODY),
    ((-1030,), BODY),
    ((1000, 5000), BODY[1000:]),
    ((1024, 1030), b""),
    ((2000, 2010), b""),
    ((2000,), b""),
    ((7, 7), b""),
]


def write_object(root: Path) -> Path:
    """`root`, made if need be, with `BODY` in it."""
    (root / "c").mkdir(parents=True)
    (root / "c" / "0").write_bytes(BODY)
    return root


def read_one(store: Store, *args: Any, **kwargs: Any) -> Fetched:
    """Answer to one request for the object."""
    (fetched,) = store.read([ByteRequest("c/0", *args, **kwargs)])
    assert fetched is not None
    return fetched


def replace_file(path: Path, body: bytes) -> None:
    """Put another file at `path`, as writers do that leave the old one whole."""
    fresh = path.with_suffix(".tmp")
    fresh.write_bytes(body)
    fresh.replace(path)

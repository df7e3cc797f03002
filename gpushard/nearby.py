"""What lies where an array or a group was looked for, for the hint of an error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from gpushard.arguments import likely_names
from gpushard.errors import GpushardError, NotFoundError
from gpushard.hierarchies.documents import join
from gpushard.metadata import names_in
from gpushard.stores.base import Store
from gpushard.stores.local import LocalStore
from gpushard.stores.resolve import local_path_of

_DOCUMENT = "zarr.json"
# Entries of a directory that a hint is worth.
_MOST_LOOKED_AT = 1000


@contextmanager
def hinting(target: Any, path: str = "") -> Iterator[None]:
    """Name in a `NotFoundError` of the block what the nearest group above has instead.

    Parameters
    ----------
    target
        A store, or what a caller names one by; only groups in local directories are
        looked for then.
    path
        Path of the node in the store.
    """
    try:
        yield
    except NotFoundError as error:
        try:
            told = _told(target, path)
        except (GpushardError, OSError, ValueError):  # a hint, which may be missing
            told = None
        if told is not None:
            error.hint = told
        raise


def _told(target: Any, path: str) -> str | None:
    store, path, outside = _place(target, path)
    parts = path.split("/")
    for n in range(len(parts) - 1, -1, -1):
        above = "/".join(parts[:n])
        names = names_in(store, above)
        if names:
            place = join(outside, above)
            group = f"the group {place!r}" if place else "the group there"
            return f"{group} has {likely_names('/'.join(parts[n:]), names)}"
    return _told_of_members(store, path) if isinstance(store, LocalStore) else None


def _told_of_members(store: LocalStore, path: str) -> str | None:
    """Hint on a directory that is no group, but has arrays or groups."""
    with os.scandir(os.path.join(store.root, path)) as entries:
        some = (entry for entry in islice(entries, _MOST_LOOKED_AT) if entry.is_dir())
        members = [x.name for x in some if os.path.exists(f"{x.path}/{_DOCUMENT}")]
    if not members:
        return None
    return (
        f"it has {likely_names('', members)}: open one of these, or make it a group"
        " with zarr.create_group"
    )


def _place(target: Any, path: str) -> tuple[Store, str, str]:
    """Store, the path in it, and the path of a local store as the caller has it."""
    if isinstance(target, Store):
        return target, path, ""
    whole = Path(local_path_of(target) or ".", path)
    outside = next((above for above in whole.parents if above.is_dir()), Path())
    inside = whole.relative_to(outside).as_posix()
    return LocalStore(outside), inside, str(outside)

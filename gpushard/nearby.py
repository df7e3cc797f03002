"""What lies where an array or a group was looked for, for the hint of an error."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from gpushard.arguments import likely_names
from gpushard.errors import GpushardError, NotFoundError
from gpushard.hierarchies.documents import V2_GROUP, V3_DOCUMENT, join
from gpushard.metadata import DOCUMENTS, names_in
from gpushard.stores.base import ByteRequest, Store
from gpushard.stores.checks import asked
from gpushard.stores.local.store import LocalStore
from gpushard.stores.resolve import local_path_of

_DRAFT_PARTS = ("meta", "data")
_ZIP = "zip://"
# Entries of a directory, and folders in folders, that a hint is worth.
_MOST_LOOKED_AT, _MOST_LEVELS = 1000, 8


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
    if isinstance(store, LocalStore) and _leads_nowhere(Path(store.root, path)):
        return None  # the error says so already
    parts = path.split("/")
    for n in range(len(parts) - 1, -1, -1):
        above = "/".join(parts[:n])
        names = names_in(store, above)
        if names:
            place = join(outside, above)
            group = f"the group {place!r}" if place else "the group there"
            return f"{group} has {likely_names('/'.join(parts[n:]), names)}"
    if store.costs.prefers_whole_objects:
        return None
    members = _told_of_members(store, path)
    if members is None and isinstance(store, LocalStore):
        return _told_of_hierarchy(Path(store.root, path))
    return members


def _leads_nowhere(place: Path) -> bool:
    return place.is_symlink() and not place.exists()


def _told_of_hierarchy(place: Path) -> str | None:
    """Hint on a directory of a hierarchy in the draft of v3, or of an array in one."""
    for above in place.parents:
        first, *_ = place.relative_to(above).parts
        if first in _DRAFT_PARTS and (above / V3_DOCUMENT).is_file():
            names = names_in(LocalStore(above), "")
            has = f"which has {likely_names(place.name, names)}: open one of these"
            return f"it is a part of {str(above)!r}, {has}" if names else None
    return None


def _told_of_members(store: Store, path: str) -> str | None:
    """Hint on a directory that is no group, but has arrays or groups."""
    above, members = path, dict[str, str]()
    # An archive of a folder often has that folder in it, alone.
    for _ in range(_MOST_LEVELS):
        places = _places_in(store, above)
        members = _documents_in(store, places)
        if members or len(places) != 1:
            break
        above = places[0]
    if not members:
        return None
    names = [place.removeprefix(f"{path}/") if path else place for place in members]
    opens = "open one of these"
    if not isinstance(store, LocalStore):
        file, first = store.url.removeprefix(_ZIP), min(members)
        way = f"path={first!r}" if file == store.url else f"{file}/{first}"
        opens = f"open {way}" if len(names) == 1 else f"{opens}, such as {way}"
    elif above == path and V3_DOCUMENT in members.values():
        opens += ", or make it a group with zarr.create_group"
    return f"it has {likely_names('', names)}: {opens}"


def _places_in(store: Store, path: str) -> list[str]:
    """Paths below a directory that may lead to arrays or groups."""
    if isinstance(store, LocalStore):
        with os.scandir(os.path.join(store.root, path)) as entries:
            some = (e for e in islice(entries, _MOST_LOOKED_AT) if e.is_dir())
            names = [entry.name for entry in some]
    else:
        names = (store.list_children(path) or [])[:_MOST_LOOKED_AT]
    # macOS packs a folder __MACOSX beside the one that was meant.
    return [join(path, name) for name in names if not name.startswith((".", "__"))]


def _documents_in(store: Store, places: Sequence[str]) -> dict[str, str]:
    """Name of the document of each array or group at `places`."""
    looked = [(place, name) for place in places for name in (*DOCUMENTS, V2_GROUP)]
    answers = asked(store, [ByteRequest(join(*at), 0, 1) for at in looked])
    pairs = zip(looked, answers, strict=True)
    return {place: name for (place, name), answer in pairs if answer is not None}


def _place(target: Any, path: str) -> tuple[Store, str, str]:
    """Store, the path in it, and the path of a local store as the caller has it."""
    if isinstance(target, Store):
        return target, path, ""
    whole = Path(local_path_of(target) or ".", path)
    outside = next((above for above in whole.parents if above.is_dir()), Path())
    inside = whole.relative_to(outside).as_posix()
    return LocalStore(outside), inside, str(outside)

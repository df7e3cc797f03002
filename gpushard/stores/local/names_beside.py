"""Names of the files that writers of an object make beside it."""

from __future__ import annotations

import re

LOCK, UNDO, NEW, NEW_UNDO = "lock", "undo", "new", "undo.new"
"""A writer's lock, what undoes a write in place, and each of both half written."""
UNFINISHED = (NEW, NEW_UNDO)
_NAME_BESIDE = re.compile(rf"(.*/)?\.([^/]+?)\.(?:{NEW_UNDO}|{LOCK}|{UNDO}|{NEW})")


def name_beside(name: str, ending: str) -> str:
    """Name of the file beside the file `name` that has this ending."""
    return f".{name}.{ending}"


def object_key_of(key: str) -> str:
    """Key of the object that a writer's file belongs to; other keys are unchanged."""
    found = _NAME_BESIDE.fullmatch(key)
    return key if found is None else f"{found[1] or ''}{found[2]}"

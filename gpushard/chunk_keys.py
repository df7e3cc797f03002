"""Coordinates of stored objects <-> their keys (`chunk_key_encoding`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# No coordinate has more digits, and Python refuses to parse thousands of them.
_NUMBER = re.compile("-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class ChunkKeys:
    """`chunk_key_encoding`: coordinates of a stored object -> key below the array.

    Attributes
    ----------
    kind
        "default" and "v2" of Zarr v3, or "draft", the encoding of the draft of v3.
    separator
        Character between the coordinates.
    offset
        Added to the coordinates in the chunk grid to give those in the key; () adds
        nothing.
    """

    kind: Literal["default", "v2", "draft"]
    separator: Literal["/", "."]
    offset: tuple[int, ...] = ()

    def key(self, coordinates: tuple[int, ...]) -> str:
        """Key of the object at `coordinates` of the chunk grid."""
        if self.offset:
            pairs = zip(coordinates, self.offset, strict=True)
            coordinates = tuple(at + offset for at, offset in pairs)
        text = self.separator.join(map(str, coordinates))
        if self.kind == "draft":
            return f"c{text or '0'}"
        if self.kind == "v2":
            return text or "0"
        return f"c{self.separator}{text}" if text else "c"

    def stored_coordinates(self, key: str, ndim: int) -> tuple[int, ...] | None:
        """Coordinates in a key below the array; None if the key has none."""
        if not key.startswith(self.start):
            return None
        numbers = key.removeprefix(self.start).split(self.separator)
        if len(numbers) != ndim or not all(map(_NUMBER.fullmatch, numbers)):
            return None
        return tuple(map(int, numbers))

    @property
    def start(self) -> str:
        """What stands before the coordinates, if there are any."""
        return {"draft": "c", "v2": ""}.get(self.kind, f"c{self.separator}")

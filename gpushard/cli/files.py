"""Files that commands write: whole, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from gpushard.errors import StoreError


def write_text(path: Path, text: str) -> None:
    """Write a file of text; see `write_file`."""
    write_file(path, lambda place: place.write_text(text, encoding="utf-8"))


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` make the file at `path`; if it fails, what was there stays.

    Raises
    ------
    StoreError
        The file cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            # A device or a pipe takes what it is given; a directory refuses.
            write(path)
            return
        target = path.resolve()  # where a link leads, the link stays
        part = target.with_name(f".{path.name}.{token_hex(4)}.part")
        try:
            write(part)
            part.replace(target)
        finally:
            with suppress(OSError):
                part.unlink()
    except OSError as error:
        raise StoreError(
            f"cannot write {str(path)!r}: {error.strerror or error}",
            hint="name a file that you may write, on a disk with room for it",
        ) from error

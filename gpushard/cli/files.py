"""Files that commands write: whole, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from os import urandom
from pathlib import Path

from gpushard.errors import StoreError


def write_text(path: Path, text: str) -> None:
    """Write a file of text; see `write_file`."""
    write_file(path, lambda place: place.write_text(text, encoding="utf-8"))


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make the file at `path`; if it fails, the old file stays.

    Raises `StoreError` if the file cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            # A device or a pipe is written directly; a directory refuses.
            write(path)
            return
        target, part = final_and_part(path)
        try:
            write(part)
            part.replace(target)
        finally:
            with suppress(OSError):
                part.unlink()
    except OSError as error:
        raise unwritable(path, error) from error


def final_and_part(path: Path) -> tuple[Path, Path]:
    """Final place of a file at `path`, and the temporary file in which it is made."""
    target = path.resolve()  # a link stays, its target is replaced
    # Without the file's own name, which may be as long as a name can be.
    return target, target.with_name(f".gpushard-{urandom(8).hex()}.part")


def unwritable(path: Path, error: OSError, nbytes: int | None = None) -> StoreError:
    """Error for a file, maybe of known size, that the system refuses to write."""
    size = "" if nbytes is None else f" ({nbytes:,} bytes)"
    return StoreError(
        f"cannot write {str(path)!r}{size}: {error.strerror or error}",
        hint="name a file that you may write, on a disk with room for it",
    )

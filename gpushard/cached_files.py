"""The user's folder for files that can be made again, and how they come there."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def cache_directory() -> Path:
    """Folder for what gpushard keeps between processes (XDG base directories).

    Raises `FileNotFoundError` if the user has no home, as in many containers. One that
    is named and not there counts as none: it is not for us to make, which root could.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():  # the specification says to ignore relative paths
        try:
            home = Path.home()
        except RuntimeError as error:
            raise FileNotFoundError(str(error)) from error
        if not os.path.isdir(home):  # also if the system refuses to look
            raise FileNotFoundError(f"there is no home {str(home)!r}")
        root = home / ".cache"
    return root / "gpushard"


def keep_file(path: Path, content: bytes) -> None:
    """Write a file that other processes may write too; do nothing if it cannot be."""
    # Containers that share a home have the same process numbers.
    part = path.with_name(f"{path.name}.{os.urandom(16).hex()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(path)
    except OSError:
        with suppress(OSError):  # a directory that cannot be searched
            part.unlink(missing_ok=True)

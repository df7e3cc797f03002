"""Files that this process has open."""

from __future__ import annotations

import gc
import os
from pathlib import Path


def open_files_below(directory: Path) -> list[str]:
    """Paths of what this process has open below a directory; one entry for each."""
    gc.collect()
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:  # the listing's own descriptor
            continue
    return [path for path in found if path.startswith(str(directory))]

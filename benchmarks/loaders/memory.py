"""Memory of an epoch of the loader over an array much larger than its buffer."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from gpushard.loader.reading import LOAD_NBYTES
from gpushard.options import MIB

# Reads in memory at a time: one planned, two waiting or being made, one in order, one
# handed out.
BUFFER_NBYTES = 5 * 2 * LOAD_NBYTES  # rows land in their places
TIMES = 20
_ROW_NBYTES, _CHUNK, _SHARD = 4096, 64, 4096
_N_LOOKS = 20


def main() -> None:
    """Print the figures, as JSON."""
    import zarr
    from zarr.codecs import ZstdCodec

    import gpushard

    n_rows = TIMES * BUFFER_NBYTES // _ROW_NBYTES
    with tempfile.TemporaryDirectory(prefix="gpushard-memory-") as directory:
        path = Path(directory) / "rows.zarr"
        array = zarr.create_array(
            str(path),
            shape=(n_rows, _ROW_NBYTES),
            dtype="u1",
            chunks=(_CHUNK, _ROW_NBYTES),
            shards=(_SHARD, _ROW_NBYTES),
            compressors=ZstdCodec(level=1),
        )
        part = np.random.default_rng(0).integers(0, 4, (_SHARD, _ROW_NBYTES), "u1")
        for first in range(0, n_rows, _SHARD):
            array[first : first + _SHARD] = part[: n_rows - first]
        del part
        opened = gpushard.open_array(path, device="cpu")
        options: dict[str, Any] = {"batch_size": 256, "shuffle": True, "block": "chunk"}
        with gpushard.Loader(opened, buffer_blocks=64, **options) as loader:
            sys.stdout.write(json.dumps(_looked_at(loader, opened.nbytes)) + "\n")


def _looked_at(loader: Any, nbytes: int) -> dict[str, Any]:
    """Resident memory over an epoch, in MiB."""
    every, resident = len(loader) // _N_LOOKS, []
    before = _resident_mib()
    for step, batch in enumerate(loader):
        del batch
        if step % every == every - 1:
            resident.append(_resident_mib())
    return {
        "array_mib": nbytes / MIB,
        "buffer_mib": BUFFER_NBYTES / MIB,
        "resident_before_mib": before,
        "resident_mib": resident,
    }


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return round(pages * 4096 / MIB, 1)


if __name__ == "__main__":
    main()

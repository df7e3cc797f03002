"""A conversion that kills itself: ``SRC DST DONE_FRACTION`` and options in JSON.

With the fraction 2 it goes through, and prints how much its memory grew.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import zarr

import gpushard
import gpushard.converting.convert  # loaded before memory is measured
from gpushard.options import Options

KIB = 1 << 10


def status_nbytes(name: str) -> int:
    """A figure of this process, of those that Linux gives in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith(name))


def warm_up(directory: Path) -> None:
    """Load and start what every conversion needs, threads among it."""
    src = zarr.create_array(directory / "a", shape=64, chunks=8, dtype="f4")
    src[...] = np.arange(64)
    gpushard.convert(directory / "a", directory / "b", shards=16, chunks=4)


def main(src: str, dst: str, fraction: float, options: dict[str, object]) -> None:
    def tell(done: int, total: int) -> None:
        if done >= fraction * total:
            os.kill(os.getpid(), signal.SIGKILL)

    warm_up(Path(dst).with_name("warm-up"))
    before = status_nbytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
    # The compiled loops take memory of their own when they are loaded.
    plain = Options(compile_nbytes=1 << 60)
    report = gpushard.convert(src, dst, progress=tell, options=plain, **options)
    grown = status_nbytes("VmHWM") - before
    (array,) = report.arrays.values()
    told = {"grown": grown, "written": array.n_written, "resumed": array.n_resumed}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), json.loads(sys.argv[4]))

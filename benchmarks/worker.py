"""The process of one contender: takes commands as JSON lines, answers in kind.

``{"do": "open", "path": ..., "shape": ...}``, where the path may be a URL, and
``{"do": "run", "workload": ..., "repetition": ..., "verify": ...}``. The end of the
input ends it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import warnings
import zlib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.workloads import Read, Rows, reads_of

if TYPE_CHECKING:
    from benchmarks.configs import Shape


def checksum(results: list[Any]) -> int:
    """CRC-32 over the bytes of arrays, with dtype and shape, in order."""
    crc = 0
    for result in results:
        crc = zlib.crc32(f"{result.dtype.str}{result.shape}".encode(), crc)
        flat = np.ascontiguousarray(result).reshape(-1).view(np.uint8)
        crc = zlib.crc32(flat, crc)
    return crc


class Worker:
    """State of the process: a contender and the array it has open."""

    def __init__(self, contender: ModuleType) -> None:
        self._contender = contender
        self._handle: Any = None
        self._shape: Shape = ()
        self._directory = "./"

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Answer to one command; what the contender raises is part of it."""
        try:
            if command["do"] == "open":
                return self._open(command["path"], tuple(command["shape"]))
            reads = reads_of(command["workload"], self._shape, command["repetition"])
            return self._run(reads, verify=command["verify"])
        except Exception as error:  # noqa: BLE001 - a contender may raise anything
            text = str(error).strip().splitlines()
            reason = f"{type(error).__name__}: {text[0] if text else ''}"
            # A result names arrays, not where they were for the time of the run.
            return {"refused": reason.replace(self._directory, "")}

    def _open(self, place: str, shape: Shape) -> dict[str, Any]:
        self._handle = None
        self._directory = f"{place.rpartition('/')[0]}/"
        gc.unfreeze()
        is_url = "://" in place
        self._handle = self._contender.open_array(place if is_url else Path(place))
        self._shape = shape
        # What libraries are made of is not looked at again before every read.
        gc.freeze()
        return {"opened": True}

    def _run(self, reads: list[Read], *, verify: bool) -> dict[str, Any]:
        gc.collect()
        start_nbytes = start_of_peak()
        cpu, wall = time.process_time(), time.perf_counter()
        results = [self._read(read) for read in reads]
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        peak = peak_nbytes() - start_nbytes if start_nbytes else None
        answer: dict[str, Any] = {
            "wall_s": wall,
            "cpu_s": cpu,
            "peak_nbytes": peak,
        }
        if verify and results[0] is not None:
            answer["crc"] = checksum(results)
        return answer

    def _read(self, read: Read) -> Any:
        if isinstance(read, Rows):
            return self._contender.read_rows(self._handle, read.rows)
        return self._contender.read_box(self._handle, read.key)


def _status_nbytes(field: str) -> int:
    """A memory figure of this process, in ``/proc``."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def start_of_peak() -> int | None:
    """Resident bytes now, from where the peak is counted; None without ``/proc``."""
    try:
        # "5" sets the peak back to what is resident (kernel docs, proc.rst).
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return None
    return _status_nbytes("VmRSS")


def peak_nbytes() -> int:
    """Most resident bytes since `start_of_peak`."""
    return _status_nbytes("VmHWM")


def main(name: str) -> None:
    """Serve the contender of that name until the input ends."""
    # What libraries print goes to stderr; the answers have stdout to themselves.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")

    try:
        contender = importlib.import_module(f"benchmarks.contenders.{name}")
        say({"versions": contender.versions()})
    except ImportError as error:
        say({"absent": str(error)})
        return
    worker = Worker(contender)
    for line in sys.stdin:
        say(worker.answer(json.loads(line)))


if __name__ == "__main__":
    main(sys.argv[1])

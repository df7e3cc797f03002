"""A batch of streams for nvCOMP's binding, in host memory."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_host.launch import in_sanitized_process
from cuda_host.nvrtc import nvidia_file
from gpushard.devices.nvcomp import Nvcomp, StreamTables


def vendor_library() -> Nvcomp:
    """The vendor's own library, or the test is skipped."""
    if in_sanitized_process():
        pytest.skip("the vendor's library is not built for the sanitizers")
    path = nvidia_file("libnvcomp/lib64/libnvcomp.so.6")
    if path is None:
        pytest.skip("needs the vendor's library: pip install nvidia-libnvcomp-cu13")
    return Nvcomp(path)


class Batch:
    """Streams and their tables on the host, as the stand-in takes them."""

    def __init__(self, streams, capacities, alignment=4, slack=0):
        self.sources = [aligned_copy(s, alignment, slack) for s in streams]
        self.outputs = [aligned_copy(bytes(c + 16), 8, 0) for c in capacities]
        self.src = addresses(self.sources)
        self.src_nbytes = np.array([len(s) for s in streams], np.uint64)
        self.dst = addresses(self.outputs)
        self.capacity = np.array(capacities, np.uint64)
        self.actual = np.full(len(streams), 999, np.uint64)
        self.statuses = np.full(len(streams), -1, np.int32)

    @property
    def tables(self):
        return StreamTables(
            count=len(self.src),
            src=self.src.ctypes.data,
            src_nbytes=self.src_nbytes.ctypes.data,
            dst=self.dst.ctypes.data,
            capacity=self.capacity.ctypes.data,
            actual_nbytes=self.actual.ctypes.data,
            statuses=self.statuses.ctypes.data,
        )

    def decode(self, nvcomp, algorithm, *, stream=0, lack_nbytes=0, temp_offset=0):
        nbytes = nvcomp.temp_nbytes(
            algorithm,
            len(self.src),
            int(self.capacity.max()),
            int(self.capacity.sum()),
        )
        self.temp = np.zeros(nbytes // 8 + 2, np.uint64)
        temp = self.temp.ctypes.data + temp_offset
        nvcomp.decompress_async(
            algorithm, self.tables, temp, nbytes - lack_nbytes, stream
        )

    def encode(self, nvcomp, algorithm, *, temp_nbytes=None):
        largest = int(self.src_nbytes.max())
        if temp_nbytes is None:
            count = len(self.src)
            temp_nbytes = nvcomp.encoding_temp_nbytes(algorithm, count, largest)
        self.temp = np.zeros(temp_nbytes // 8 + 2, np.uint64)
        nvcomp.compress_async(
            *(algorithm, self.tables, largest),
            *(self.temp.ctypes.data, temp_nbytes, 0),
        )

    def decoded(self, i):
        return self.outputs[i][: int(self.actual[i])].tobytes()


def aligned_copy(data, alignment, slack):
    room = np.zeros(len(data) + 16 + slack, np.uint8)
    start = -room.ctypes.data % 8 + alignment % 8
    room[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return room[start : start + len(data) + slack]


def addresses(arrays):
    return np.array([a.ctypes.data for a in arrays], np.uint64)


def payloads():
    rng = np.random.default_rng(8)
    return [
        b"a",
        bytes(5000),
        rng.integers(0, 256, 3000, dtype=np.uint8).tobytes(),
        np.arange(20_000, dtype=np.int32).tobytes(),
    ]

"""A batch of Blosc frames on its way through the kernels, and what it should become."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from blosc_cases import NBYTES, OK, parsed
from gpushard.codecs import blosc_frame
from gpushard.devices.decoding.row_tables import TOTALS_NBYTES
from gpushard.devices.structs import BLOSC_STREAMS, FAST_DIVISOR
from kernel_rows import POISON, addresses, held, outputs, sizes, struct

CLASSES = ("raw", "lz4", "snappy", "zlib", "zstd")
ZLIB_HEADER, ZLIB_WRAPPER = 2, 6


class Batch:
    """Rows of Blosc frames on their way through the kernels."""

    def __init__(self, frames, decoded_nbytes=NBYTES):
        self.frames = frames
        self.n_rows = n_rows = len(frames)
        self.rows = [held(data, k % 7) for k, data in enumerate(frames)]
        self.src, self.src_nbytes = addresses(self.rows), sizes(self.rows)
        self.status, self.filter, self.typesize, self.block_nbytes = (
            np.zeros(n_rows, np.uint32) for _ in range(4)
        )
        self.first = np.full((len(CLASSES), n_rows), POISON, np.uint32)
        n_totals = TOTALS_NBYTES // 8
        self.all_totals = np.zeros(n_totals + 1, np.uint64)
        self.totals_host = np.full(n_totals, POISON, np.uint64)
        self.totals = self.totals_host[:-2].reshape(3, -1)
        self.n_shuffled = self.totals_host[-2:]
        self.staging, self.decoded = (outputs(n_rows, decoded_nbytes) for _ in "ab")
        self.dst, self.next = np.zeros((2, n_rows), np.uint64)
        self.planes = np.full(n_rows, 7, FAST_DIVISOR)
        self.fused_typesize = 0
        self.decoded_nbytes = decoded_nbytes
        self.accept_unsized = True
        self.canary_seed = 0

    def run(self, kernels, schedule=0, grid=2):
        """Count, fill; the stream tables are as long as the totals say."""
        rows = self._rows()
        kernels.launch("gs_blosc_count", grid, 128, [rows], schedule=schedule)
        n_streams = int(self.totals[0].sum())
        self.stream_src, self.stream_nbytes, self.stream_dst, self.stream_capacity = (
            np.zeros(n_streams, np.uint64) for _ in range(4)
        )
        self.stream_row = np.full(n_streams, 2**32 - 1, np.uint32)
        streams = np.zeros((), BLOSC_STREAMS)
        tables = (self.dst, self.stream_src, self.stream_nbytes)
        tables += (self.stream_dst, self.stream_capacity, self.stream_row)
        for name, table in zip(BLOSC_STREAMS.names, tables, strict=False):
            streams[name] = table.ctypes.data
        streams["begin"] = np.cumsum(self.totals[0]) - self.totals[0]
        args = [rows, streams[()]]
        kernels.launch("gs_blosc_fill", grid, 128, args, schedule=schedule)
        return self.status.tolist()

    def _rows(self):
        self._staging, self._decoded = map(addresses, (self.staging, self.decoded))
        return struct(
            src=self.src,
            src_nbytes=self.src_nbytes,
            status=self.status,
            filter=self.filter,
            typesize=self.typesize,
            block_nbytes=self.block_nbytes,
            first=self.first,
            totals=self.all_totals,
            totals_host=self.totals_host,
            staging=self._staging,
            decoded=self._decoded,
            stage=self.dst,
            next=self.next,
            planes=self.planes if self.fused_typesize else np.uint64(0),
            decoded_nbytes=np.uint64(self.decoded_nbytes),
            n_rows=np.uint32(self.n_rows),
            accept_unsized=np.uint32(self.accept_unsized),
            fused_typesize=np.uint32(self.fused_typesize),
            reserved=np.uint32(0),
            canary_seed=np.uint64(self.canary_seed),
        )

    def row_at(self, address):
        """The room for a decoded row that begins at an address."""
        rooms = [*self.staging, *self.decoded]
        return next(room for room in rooms if room.ctypes.data == address)

    def streams_of(self, stream_class):
        """Rows of (row, source offset, source size, decoded offset, decoded size).

        Sorted by row; those of a row are neighbours, as they were found.
        """
        start = int(self.totals[0, :stream_class].sum())
        part = np.arange(start, start + int(self.totals[0, stream_class]))
        assert np.count_nonzero(np.diff(self.stream_row[part])) == max(
            len(set(self.stream_row[part].tolist())) - 1, 0
        )
        part = part[np.argsort(self.stream_row[part], kind="stable")]
        row = self.stream_row[part]
        return np.column_stack(
            [
                row,
                self.stream_src[part] - self.src[row],
                self.stream_nbytes[part],
                self.stream_dst[part] - self.dst[row],
                self.stream_capacity[part],
            ]
        ).tolist()

    def wanted_streams_of(self, stream_class):
        """The same as `blosc_frame` finds it."""
        wanted = [
            np.insert(streams_of(data, stream_class), 0, row, axis=1)
            for row, data in enumerate(self.frames)
            if self.status[row] == OK
        ]
        return np.concatenate(wanted).tolist() if wanted else []


@lru_cache(1024)
def streams_of(data, stream_class):
    """Source offset and size, decoded offset and size of a frame's streams of a class.

    Shape (n_streams, 4).
    """
    frame = parsed(data)
    compressor = np.where(frame.is_raw, 0, frame.header.compressor)
    is_zlib = stream_class == blosc_frame.ZLIB
    columns = [
        frame.source_offset + (ZLIB_HEADER if is_zlib else 0),
        frame.source_nbytes - (ZLIB_WRAPPER if is_zlib else 0),
        frame.decoded_offset,
        frame.decoded_nbytes,
    ]
    return np.column_stack(columns)[compressor == stream_class].astype(np.int64)

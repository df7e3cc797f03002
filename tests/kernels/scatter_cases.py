"""Selections of small arrays, written by the scatter kernels and by NumPy.

Every case is written twice into equal poisoned buffers; the buffers are compared, so
that what lies beside the output counts, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

import strategies as sts
from cuda_host.launch import (
    Kernels,
)
from gpushard.devices.scattering.grids import GridScatter
from gpushard.devices.scattering.launch import Addresses
from gpushard.devices.scattering.points import PointScatter
from gpushard.devices.scattering.transfer import (
    NO_SHUFFLE,
    Shuffle,
    Transfer,
    fill_element,
    plan_transfer,
)
from gpushard.devices.slabs import TablePage
from gpushard.devices.structs import fast_divisor
from gpushard.layout import GridAxis
from gpushard.placing.scatter import make_target
from gpushard.planning.grid import GridPart
from gpushard.planning.plan import plan_read
from gpushard.selecting.expressions import basic

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
STRUCT = np.dtype([("a", "<i2"), ("b", "<f4"), ("c", "u1")])
POISON = 0xA5
FAILED = 3
KERNELS = Kernels()


def aligned_bytes(nbytes, misalignment=0):
    """Poisoned bytes that begin `misalignment` after a multiple of 16.

    They end where their allocation ends, so that the sanitizer sees a read beyond.
    """
    block = np.full(misalignment + nbytes, POISON, np.uint8)
    assert block.ctypes.data % 16 == 0
    return block[misalignment:]


def uploaded(tables):
    """A copy of tables at an aligned address, of exactly their size."""
    copy = aligned_bytes(len(tables))
    copy[:] = tables
    return copy


@dataclass
class Store:
    """Decoded inner chunks as a pipeline leaves them.

    Attributes
    ----------
    dtype
        Data type of the elements, native.
    is_swapped
        Whether they are stored in the other byte order.
    axis_order
        Order of the array's axes in the stored bytes.
    misalignment
        Where the inner chunks begin after a multiple of 16.
    block_items
        Items in the byte-shuffled blocks of each inner chunk, in turns; 0: it is not
        shuffled. None of them is if there are no numbers.
    """

    dtype: np.dtype
    is_swapped: bool = False
    axis_order: tuple[int, ...] | None = None
    misalignment: int = 0
    block_items: tuple[int, ...] = ()

    def block_nbytes(self, n):
        """Bytes of the shuffled blocks of the nth inner chunk."""
        return self.block_items[n % len(self.block_items)] * self.dtype.itemsize

    def shuffled(self, data, n):
        """The bytes of the nth inner chunk, shuffled if it is."""
        if self.block_items and self.block_nbytes(n) and len(data):
            size = self.dtype.itemsize
            for start in range(0, len(data), self.block_nbytes(n)):
                block = data[start : start + self.block_nbytes(n)]
                block[:] = block.reshape(-1, size).T.copy().reshape(-1)
        return data

    def stored(self, chunk):
        """Bytes of one inner chunk, and its strides in the array's axes."""
        order = self.axis_order or tuple(range(chunk.ndim))
        raw = chunk.transpose(order).copy("C")
        data = aligned_bytes(raw.nbytes, self.misalignment)
        data[:] = np.frombuffer(raw.tobytes(), np.uint8)
        if self.is_swapped:
            swapped = data.view(f"V{self.dtype.itemsize}") if data.size else data
            data[:] = swapped_bytes(swapped.tobytes(), self.dtype)
        strides = [0] * chunk.ndim
        for axis, stride in zip(order, raw.strides, strict=True):
            strides[axis] = stride
        return data, tuple(strides)


def swapped_bytes(data, dtype):
    """Bytes of elements of `dtype` in the other byte order."""
    kinds = {"c": dtype.itemsize // 2, "U": 4}
    word = kinds.get(dtype.kind, dtype.itemsize)
    return np.frombuffer(data, np.uint8).reshape(-1, word)[:, ::-1].reshape(-1)


@dataclass
class Rows:
    """The rows of a plan's one part that share a shape of inner chunks."""

    position: np.ndarray
    src: np.ndarray
    in_strides: tuple[int, ...]
    keep: list
    planes: np.ndarray | None = None
    shuffle: Shuffle = NO_SHUFFLE


def rows_of(plan, layout, store, array, is_missing):
    """Rows by shape of inner chunk; `is_missing` tells for the n-th row of the plan."""
    part = plan.parts[0]
    found: dict[Any, tuple[list, list, list, list, Any]] = {}
    n = 0
    for block in sts.pieces_of(plan):
        for column in block.position.T:
            coordinate = part.chunk_coordinate(column)
            chunk = sts.whole_chunk(
                layout, coordinate, array, beyond=np.zeros((), array.dtype)
            )
            data, strides = store.stored(chunk)
            columns, src, keep, blocks, _ = found.setdefault(
                chunk.shape, ([], [], [], [], strides)
            )
            columns.append(column)
            src.append(0 if is_missing(n) else data.ctypes.data)
            keep.append(store.shuffled(data, n))
            blocks.append(store.block_nbytes(n) if store.block_items else 0)
            n += 1
    return [
        Rows(
            np.array(columns).T,
            np.array(src, np.uint64),
            strides,
            keep,
            planes_of(blocks) if store.block_items else None,
            Shuffle(store.dtype.itemsize, keep[0].nbytes)
            if store.block_items
            else NO_SHUFFLE,
        )
        for columns, src, keep, blocks, strides in found.values()
    ]


def planes_of(blocks):
    """Table of the bytes of shuffled blocks, with 0 where rows are not shuffled."""
    table = fast_divisor(np.maximum(blocks, 1))
    table["divisor"] = blocks
    return table


def launch(scatter, rows, out, *, schedule=0, status=None, n_blocks=None):
    """Run one launch over `rows` into `out`."""
    page = TablePage()
    batch = scatter.batch(rows.position, page)
    tables, batch_tables = uploaded(scatter.tables), uploaded(page.packed())
    parameter = scatter.parameter.packed(
        batch,
        Addresses(
            tables.ctypes.data,
            batch_tables.ctypes.data,
            out.ctypes.data,
            rows.src.ctypes.data,
            0 if status is None else status.ctypes.data,
            0 if rows.planes is None else rows.planes.ctypes.data,
        ),
    )
    kernel = scatter.kernel if rows.planes is None else scatter.planes_kernel
    threads = KERNELS.threads(kernel)
    blocks = batch.n_blocks(threads) if n_blocks is None else n_blocks
    if blocks:
        KERNELS.launch(kernel, blocks, threads, [parameter], schedule=schedule)
    return kernel


def lay(part, rows, out, transfer, fill):
    """Scatter of a part into `out`."""
    if isinstance(part, GridPart):
        laid, strides = GridScatter, part.selection.on_grid(out).strides
    else:
        laid, strides = PointScatter, out.strides
    return laid.lay(part, rows.in_strides, strides, transfer, fill, rows.shuffle)


def scatter_by_kernels(case, out, **launched):
    """Write a case by the kernels; gives back the names of those launched."""
    plan = plan_read(case.layout, [case.selection])
    part = plan.parts[0]
    names = set()
    for rows in rows_of(plan, case.layout, case.store, case.array, case.is_missing):
        scatter = lay(part, rows, out, case.transfer(out.dtype), case.fill(out.dtype))
        names.add(launch(scatter, rows, out, **launched))
    return names


def scatter_by_numpy(case, out):
    """Write a case the way the CPU path does."""
    plan = plan_read(case.layout, [case.selection])
    target = make_target(plan.parts[0], out)
    n = 0
    with np.errstate(all="ignore"):
        for block in sts.pieces_of(plan):
            indexes = target.indexes(block.position)
            for index, column in zip(indexes, block.position.T, strict=True):
                coordinate = target.part.chunk_coordinate(column)
                if case.is_missing(n):
                    target.fill(index, case.fill_value)
                else:
                    array = case.array != 0 if case.dtype.kind == "b" else case.array
                    chunk = sts.whole_chunk(
                        case.layout, coordinate, array, beyond=np.zeros((), array.dtype)
                    )
                    target.place(index, chunk)
                n += 1


@dataclass
class Case:
    """A selection of an array, how its inner chunks are stored, and which are not."""

    layout: Any
    selection: Any
    array: np.ndarray
    store: Store
    fill_value: np.ndarray
    missing: tuple[bool, ...] = ()

    @property
    def dtype(self):
        return self.store.dtype

    def is_missing(self, n):
        return bool(self.missing) and self.missing[n % len(self.missing)]

    def transfer(self, target) -> Transfer:
        return plan_transfer(self.dtype, target, is_swapped=self.store.is_swapped)

    def fill(self, target):
        return fill_element(self.fill_value, target)


def random_elements(shape, dtype, seed):
    """Elements of random bits."""
    data = np.random.default_rng(seed).bytes(prod(shape) * dtype.itemsize)
    if dtype.kind == "U":
        data = (np.frombuffer(data, np.uint32) % 0x7FF + 1).tobytes()
    viewed = np.dtype(np.uint8) if dtype.kind == "b" else dtype
    return np.frombuffer(data, viewed).reshape(shape)


def output(shape, dtype, steps, order, pads, misalignment):
    """A view of `shape` in a poisoned buffer, and all of the buffer's bytes.

    The view has `order` for its order of axes in memory, and between neighbours along
    an axis lie `steps`; `pads` elements follow after it.
    """
    lengths = [shape[d] * abs(steps[d]) + pads[d] for d in order]
    nbytes = prod(lengths) * dtype.itemsize
    whole = aligned_bytes(nbytes + 64, misalignment)
    buffer = np.ndarray(lengths, dtype, whole.data, offset=32)
    view = buffer[(*(slice(None, None, steps[d]) for d in order), ...)]
    view = view[(*(slice(shape[d]) for d in order), ...)]
    return (view.transpose(np.argsort(order)) if shape else view), whole


def assert_kernels_write_what_numpy_writes(case, form, target=None, **launched):
    """Compare the buffers; gives back the names of the kernels launched."""
    target = case.dtype if target is None else target
    expected, expected_bytes = output(case.selection.shape, target, *form)
    out, out_bytes = output(case.selection.shape, target, *form)
    scatter_by_numpy(case, expected)
    names = scatter_by_kernels(case, out, **launched)
    np.testing.assert_array_equal(out_bytes, expected_bytes)
    return names


def straight_case(array, cells, dtype=None, **kept):
    """The whole of a small array with regular inner chunks of shape `cells`."""
    axes = tuple(GridAxis(n, c) for n, c in zip(array.shape, cells, strict=True))
    layout = sts.make_layout(array.shape, axes)
    dtype = array.dtype if dtype is None else dtype
    fill = kept.pop("fill_value", np.zeros((), array.dtype))
    selection = kept.pop("selection", basic(..., array.shape))
    missing = kept.pop("missing", ())
    return Case(layout, selection, array, Store(dtype, **kept), fill, missing)

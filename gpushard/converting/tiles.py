"""Divides a conversion into tiles, which are read at once, as memory allows.

A tile is a box of whole shards. If a shard is too large to be held both decoded and
encoded, the tile is that shard, and is read slab by slab. A memory limit that is left
open is widened first, where that spares decoding inner chunks of the source again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from gpushard.codecs.bytes import UNSIZED_KINDS
from gpushard.converting.shapes import Shape
from gpushard.errors import OptionError
from gpushard.layout import ArrayLayout, in_c_order
from gpushard.options import MIB, ReadOptions

Cell = tuple[int, ...]
Box = tuple[slice, ...]

# Reads of the source may take one part in this many of the memory limit.
_READ_SHARE = 4
# They may take one part in this many if shard indexes need more than that.
_INDEX_SHARE = 2
# Per thread, an encoder holds this many inner chunks, each decoded and encoded.
_CHUNKS_PER_THREAD, _COPIES = 4, 2
# Nobody knows how long texts are before they are read. Four forms of each may be held:
# NumPy's, with room for more, that of an inner chunk, Python's, and the encoded one.
_TEXT_NBYTES = 512
# More shards than an array in memory could have.
_ANY_NUMBER = 1 << 62


@dataclass(frozen=True, slots=True)
class TileBudget:
    """How much of a conversion to do at a time.

    Attributes
    ----------
    counts
        Number of shards of a tile along each axis.
    slab
        Elements of a shard read at a time along each axis; all of it if that fits.
    n_tiles
        Number of tiles in progress together.
    encoder_threads
        Number of threads that encode the inner chunks of a tile.
    read_nbytes
        Memory limit of each read of the source.
    enough_nbytes
        Memory limit that has room for a shard as a whole.
    """

    counts: Cell
    slab: Shape
    n_tiles: int
    encoder_threads: int
    read_nbytes: int
    enough_nbytes: int


def budget_for(
    source: ArrayLayout,
    target: ArrayLayout,
    options: ReadOptions,
    *,
    joins: bool,
    least_read_nbytes: int = 0,
) -> TileBudget:
    """Budget of a conversion that keeps to the options' memory limit and threads.

    Parameters
    ----------
    joins
        Whether the store takes a shard's bytes in one piece, which makes a copy.
    least_read_nbytes
        Memory limit with which reads can take the shard indexes of either array. Each
        read gets that much, if half of the conversion's limit allows it.
    """
    shard, chunk = target.shards or (), target.chunks or ()
    limit = options.memory_limit
    read_nbytes = _read_nbytes(limit, least_read_nbytes)
    least_nbytes = max(1, min(least_read_nbytes, limit // _INDEX_SHARE))
    room = limit - read_nbytes
    encoder_nbytes = _encoder_nbytes(target)
    held_nbytes = _held_nbytes(target, joins=joins)
    left = room - held_nbytes
    least_left = prod(chunk) * target.dtype.itemsize
    if left < least_left:
        raise _too_small(limit, held_nbytes + least_left, least_read_nbytes)
    itemsize = _value_nbytes(target)
    values_nbytes = prod(shard) * itemsize
    counts, slab = (1,) * len(shard), shard
    if left >= values_nbytes:
        counts = _counts(source, target, left // (2 * values_nbytes))
        tile_nbytes = prod(counts) * values_nbytes
    else:
        slab = _slab(shard, chunk, max(1, left // (prod(chunk) * itemsize)))
        tile_nbytes = prod(slab) * itemsize
    in_flight = tile_nbytes + held_nbytes
    n_tiles = max(
        1,
        min(options.threads, room // in_flight, read_nbytes // least_nbytes),
    )
    spare = (room // n_tiles - in_flight) // encoder_nbytes
    return TileBudget(
        counts=counts,
        slab=slab,
        n_tiles=n_tiles,
        encoder_threads=max(1, min(options.threads // n_tiles, 1 + spare)),
        read_nbytes=max(1, read_nbytes // n_tiles),
        enough_nbytes=_enough(held_nbytes + values_nbytes, least_read_nbytes),
    )


def with_room(
    source: ArrayLayout,
    target: ArrayLayout,
    options: ReadOptions,
    *,
    joins: bool,
    least_read_nbytes: int = 0,
    reads_parts: bool = False,
) -> ReadOptions:
    """Options with a memory limit that suits the conversion, where it is left open.

    It then has room for the largest shard, and for tiles as long as the source's inner
    chunks: with less, each of these is decoded for every tile that meets it, which may
    be hundreds.

    Parameters
    ----------
    joins, least_read_nbytes
        As for `budget_for`.
    reads_parts
        Whether a part of an inner chunk is read without the rest of it.
    """
    held_nbytes = _held_nbytes(target, joins=joins)
    least_left = prod(target.chunks or ()) * target.dtype.itemsize
    limit, needed = options.memory_limit, held_nbytes + least_left
    if limit - _read_nbytes(limit, least_read_nbytes) < needed:
        options = options.widened_to(_enough(needed, least_read_nbytes))
    how = {"joins": joins, "least_read_nbytes": least_read_nbytes}
    budget = budget_for(source, target, options, **how)
    whole = zip(budget.counts, budget.slab, _wanted(source), target.axes, strict=True)
    if reads_parts or all(n * at >= min(w, axis.extent) for n, at, w, axis in whole):
        return options
    n_shards = prod(_counts(source, target, _ANY_NUMBER))
    values_nbytes = prod(target.shards or ()) * _value_nbytes(target)
    # The part of `_counts` that a tile may have.
    tile_nbytes = values_nbytes * (2 * n_shards if n_shards > 1 else 1)
    return options.widened_to(_enough(held_nbytes + tile_nbytes, least_read_nbytes))


def _read_nbytes(limit: int, least_read_nbytes: int) -> int:
    """What reads may take of a limit."""
    least_nbytes = min(least_read_nbytes, limit // _INDEX_SHARE)
    return max(limit // _READ_SHARE, least_nbytes)


def _held_nbytes(target: ArrayLayout, *, joins: bool) -> int:
    """What a tile holds besides its elements."""
    # An encoded shard may take as much memory as its elements.
    shard_nbytes = prod(target.shards or ()) * target.dtype.itemsize
    return (2 if joins else 1) * shard_nbytes + _encoder_nbytes(target)


def _encoder_nbytes(target: ArrayLayout) -> int:
    chunk_nbytes = prod(target.chunks or ()) * target.dtype.itemsize
    return _CHUNKS_PER_THREAD * _COPIES * chunk_nbytes


def _value_nbytes(target: ArrayLayout) -> int:
    """Bytes that a tile is counted with for each element."""
    # What is encoded is counted without text.
    text_nbytes = _TEXT_NBYTES if target.dtype.kind in UNSIZED_KINDS else 0
    return target.dtype.itemsize + text_nbytes


def _enough(needed: int, least_read_nbytes: int) -> int:
    """Memory limit that leaves `needed` bytes in addition to reads."""
    quarter = needed * _READ_SHARE // (_READ_SHARE - 1) + 1
    return max(quarter, least_read_nbytes + max(needed, least_read_nbytes))


def _too_small(limit: int, needed: int, least_read_nbytes: int) -> OptionError:
    """Error for a limit that leaves less than `needed` bytes in addition to reads."""
    enough = _enough(needed, least_read_nbytes)
    return OptionError(
        "a shard of the converted array does not fit the memory limit",
        expected=f"memory_limit of {enough} bytes, which are {-(-enough // MIB)} MiB",
        got=f"{limit} bytes",
        hint="raise memory_limit, or choose smaller shards or inner chunks",
    )


def tiles(target: ArrayLayout, counts: Cell) -> Iterator[tuple[range, ...]]:
    """Ranges of shards along each axis, tile by tile in C order."""
    sides = [(axis.n_cells, n) for axis, n in zip(target.axes, counts, strict=True)]
    for at in in_c_order([-(-n_cells // n) for n_cells, n in sides]):
        yield tuple(
            range(i * n, min(i * n + n, n_cells))
            for i, (n_cells, n) in zip(at, sides, strict=True)
        )


def box_of(target: ArrayLayout, shards: tuple[range, ...]) -> Box:
    """Elements of the array that a tile's shards hold."""
    return tuple(
        slice(cells.start * axis.cell, min(cells.stop * axis.cell, axis.extent))
        for cells, axis in zip(shards, target.axes, strict=True)
    )


def slabs(box: Box, slab: Shape) -> Iterator[Box]:
    """Boxes of at most `slab` elements along each axis that make up `box`."""
    sides = [(part.start, part.stop, n) for part, n in zip(box, slab, strict=True)]
    for at in in_c_order([-(-(stop - start) // n) for start, stop, n in sides]):
        yield tuple(
            slice(start + i * n, min(start + i * n + n, stop))
            for i, (start, stop, n) in zip(at, sides, strict=True)
        )


def _counts(source: ArrayLayout, target: ArrayLayout, most: int) -> Cell:
    """Number of shards of a tile, so that few tiles decode the same source chunks.

    A tile grows only along axes on which the source's chunks are longer than the tile.
    """
    wanted = _wanted(source)
    counts = [1] * target.ndim
    while True:
        short = [
            (counts[axis] * cells.cell / wanted[axis], axis)
            for axis, cells in enumerate(target.axes)
            if counts[axis] * cells.cell < min(wanted[axis], cells.extent)
        ]
        if not short or 2 * prod(counts) > most:
            return tuple(counts)
        axis = min(short)[1]
        counts[axis] *= 2


def _wanted(source: ArrayLayout) -> Shape:
    """Lengths of the source's first inner chunk."""
    return tuple(
        int(axis.length_of(0)) if axis.n_cells else 1 for axis in source.inner_axes
    )


def _slab(shard: Shape, chunk: Shape, most: int) -> Shape:
    """Part of a shard with at most `most` inner chunks, longest along the last axes."""
    left, slab = most, list(chunk)
    for axis in reversed(range(len(shard))):
        n = min(left, shard[axis] // chunk[axis])
        slab[axis] = n * chunk[axis]
        left //= n
        if n * chunk[axis] < shard[axis]:
            break
    return tuple(slab)

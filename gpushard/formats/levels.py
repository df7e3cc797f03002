"""Checked codec chains -> shard levels in array axes, and the chain at the bottom."""

from __future__ import annotations

from dataclasses import dataclass

from gpushard.formats.chains import ParsedChain, Sharding
from gpushard.layout import CodecChain, CodecSpec, ShardLevel

AxisOrder = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Levels:
    """The fields of `ArrayLayout` that the codec chains decide."""

    levels: tuple[ShardLevel, ...]
    chain: CodecChain
    outer_order: AxisOrder
    object_codecs: tuple[CodecSpec, ...]
    inner_chunk_shape: tuple[int, ...] | None


def fold_levels(parsed: ParsedChain, ndim: int) -> Levels:
    """Levels of sharding codecs whose inner chunks can be read on their own.

    A sharding codec behind an array-to-array codec other than `transpose`, or, below
    the outermost one, before bytes-to-bytes codecs, is not a level: it stays the
    array-to-bytes codec of the chain at the bottom.
    """
    order: AxisOrder = tuple(range(ndim))
    inner_chunk_shape = _inner_chunk_shape(parsed, order)
    object_codecs: tuple[CodecSpec, ...] = ()
    levels: list[ShardLevel] = []
    while parsed.sharding is not None and _is_level(parsed.chain, outermost=not levels):
        if not levels:
            object_codecs = parsed.chain.bytes_bytes
        order = _transposed(order, parsed.chain)
        levels.append(_level(parsed.sharding, order))
        parsed = parsed.sharding.inner
    return Levels(tuple(levels), parsed.chain, order, object_codecs, inner_chunk_shape)


def _is_level(chain: CodecChain, *, outermost: bool) -> bool:
    only_transposes = all(spec.name == "transpose" for spec in chain.array_array)
    return only_transposes and (outermost or not chain.bytes_bytes)


def _transposed(order: AxisOrder, chain: CodecChain) -> AxisOrder:
    """Array axis of each axis that the array-to-bytes codec of `chain` sees."""
    for spec in chain.array_array:
        if spec.name == "transpose":
            order = tuple(order[axis] for axis in spec.configuration["order"])
    return order


def _level(sharding: Sharding, order: AxisOrder) -> ShardLevel:
    return ShardLevel(
        chunk_shape=_in_array_axes(sharding.chunk_shape, order),
        axis_order=order,
        index_location=sharding.index_location,
        index_chain=sharding.index_chain,
        index_entry_nbytes=sharding.index_size.entry_nbytes,
        index_trailer_nbytes=sharding.index_size.trailer_nbytes,
        json_path=sharding.json_path,
    )


def _in_array_axes(stored_shape: tuple[int, ...], order: AxisOrder) -> tuple[int, ...]:
    lengths = dict(zip(order, stored_shape, strict=True))
    return tuple(lengths[axis] for axis in range(len(order)))


def _inner_chunk_shape(parsed: ParsedChain, order: AxisOrder) -> tuple[int, ...] | None:
    """Inner chunk shape of the outermost sharding codec; None if there is none."""
    sharding = parsed.sharding
    if sharding is None or len(sharding.chunk_shape) != len(order):
        return None
    return _in_array_axes(sharding.chunk_shape, _transposed(order, parsed.chain))

"""`codecs` of a metadata document -> a checked tree of codec chains -> shard levels.

A chain consists of array-to-array codecs, one array-to-bytes codec and bytes-to-bytes
codecs. If the array-to-bytes codec is a sharding codec, it contains further chains.
`fold_levels` makes a flat list of the sharding codecs, in array axes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from gpushard.errors import LimitError, MetadataError
from gpushard.formats.codec_specs import (
    CODECS_OF_NUMBERS,
    KEEP_SHAPE,
    SHARDING,
    SHUFFLE,
    VARIABLE_LENGTH_TYPES,
    VARIABLE_SIZE,
    Kind,
    as_json,
    kind_of,
    parse_specs,
)
from gpushard.formats.data_types import DataType, parse_data_type
from gpushard.formats.document import Named, as_lengths, shown, wrong
from gpushard.formats.index_size import (
    check_index_nbytes,
    index_size,
    variable_size_error,
)
from gpushard.layout import CodecChain, CodecSpec, IndexSize, ShardLevel
from gpushard.options import Options

AxisOrder = tuple[int, ...]

_INDEX_TYPE = parse_data_type("uint64")


@dataclass(frozen=True, slots=True)
class Sharding:
    """A checked `sharding_indexed` configuration, in the axes that the codec sees."""

    level: ShardLevel
    inner: ParsedChain


@dataclass(frozen=True, slots=True)
class ParsedChain:
    """A chain, and the configuration of its sharding codec if it has one."""

    chain: CodecChain
    sharding: Sharding | None


@dataclass(frozen=True, slots=True)
class Decoded:
    """The input of the next codec.

    Attributes
    ----------
    lengths
        Every distinct length of each axis (more than one on a rectilinear axis); () for
        the one axis of packed bits, whose length no other codec depends on. None behind
        a codec whose effect on the shape only zarr knows.
    data_type
        Data type of the elements; None behind a codec that may change it.
    """

    lengths: tuple[tuple[int, ...], ...] | None
    data_type: DataType | None


def parse_chain(
    value: Any, json_path: str, decoded: Decoded, options: Options, depth: int = 0
) -> ParsedChain:
    """Chain that encodes arrays like `decoded`."""
    chain = _split(parse_specs(value, json_path), json_path)
    chain = _with_item_sizes(chain, decoded.data_type)
    for spec in chain.array_array:
        decoded = _encoded(spec, decoded)
    if chain.array_bytes.name != SHARDING:
        return ParsedChain(_with_byte_order(chain, decoded), None)
    sharding = _parse_sharding(chain.array_bytes, decoded, options, depth)
    spelled_out = replace(chain, array_bytes=_spelled_out(chain.array_bytes, sharding))
    return ParsedChain(spelled_out, sharding)


def _split(specs: list[CodecSpec], json_path: str) -> CodecChain:
    kinds = [kind_of(spec.name, spec.json_path) for spec in specs]
    if kinds.count(Kind.ARRAY_BYTES) != 1:
        names = [spec.name for spec in specs]
        expected = "exactly one array-to-bytes codec"
        raise wrong("the codec list is not valid", json_path, expected, names)
    for spec, kind, before in zip(specs[1:], kinds[1:], kinds, strict=False):
        if kind < before:
            expected = "array-to-array, array-to-bytes, bytes-to-bytes codecs"
            what = "the codecs are in the wrong order"
            raise wrong(what, spec.json_path, expected, spec.name)
    middle = kinds.index(Kind.ARRAY_BYTES)
    return CodecChain(tuple(specs[:middle]), specs[middle], tuple(specs[middle + 1 :]))


def _encoded(spec: CodecSpec, decoded: Decoded) -> Decoded:
    """The output of an array-to-array codec for an array like `decoded`."""
    if spec.name != "transpose":
        if decoded.data_type is not None and decoded.data_type.is_variable_length:
            _refuse_unless_unknown(spec, decoded.data_type)
        lengths = decoded.lengths if spec.name in KEEP_SHAPE else None
        if spec.name == "numcodecs.packbits":
            lengths = ((),)
        return Decoded(lengths, None)
    order: list[int] = spec.configuration["order"]
    if decoded.lengths is None:
        return decoded
    if len(order) != len(decoded.lengths):
        path = f"{spec.json_path}.configuration.order"
        expected = f"a permutation of {len(decoded.lengths)} axes"
        raise wrong("the order of the axes is not valid", path, expected, order)
    return replace(decoded, lengths=tuple(decoded.lengths[axis] for axis in order))


def _with_byte_order(chain: CodecChain, decoded: Decoded) -> CodecChain:
    """Chain whose `bytes` codec names a byte order if the elements need one."""
    spec, data_type = chain.array_bytes, decoded.data_type
    if data_type is None:
        return chain
    _check_serializer(spec, data_type)
    if spec.name != "bytes":
        return chain
    if not data_type.has_byte_order or spec.configuration.get("endian") is not None:
        return chain
    if not data_type.is_struct:
        path = f"{spec.json_path}.configuration.endian"
        raise wrong(
            "the byte order of the elements is missing", path, "little or big", None
        )
    # zarr-python once wrote structs without a byte order, always little-endian.
    little = CodecSpec(spec.name, {"endian": "little"}, spec.json_path)
    return replace(chain, array_bytes=little)


def _with_item_sizes(chain: CodecChain, data_type: DataType | None) -> CodecChain:
    """Chain whose shuffles name the size of their items, by default an element's."""
    if data_type is None:
        return chain
    size = {"elementsize": data_type.dtype.itemsize}
    after = tuple(
        replace(spec, configuration={**spec.configuration, **size})
        if spec.name == SHUFFLE and spec.configuration.get("elementsize") is None
        else spec
        for spec in chain.bytes_bytes
    )
    return replace(chain, bytes_bytes=after)


def _refuse_unless_unknown(spec: CodecSpec, data_type: DataType) -> None:
    """Refuse codecs of numbers; others may encode elements of variable size."""
    if spec.name in CODECS_OF_NUMBERS:
        raise _unfit(spec, "elements of fixed size", shown(data_type.json))


def _check_serializer(spec: CodecSpec, data_type: DataType) -> None:
    """Refuse a codec that does not take elements of a fixed, or variable, size."""
    wanted = VARIABLE_LENGTH_TYPES.get(spec.name)
    if wanted is not None and data_type.json not in wanted:
        expected = f"elements of the data type {' or '.join(wanted)}"
        raise _unfit(spec, expected, shown(data_type.json))
    if spec.name == "bytes" and data_type.is_variable_length:
        expected = "an array-to-bytes codec for elements of variable size"
        raise _unfit(spec, expected, spec.name)


def _unfit(spec: CodecSpec, expected: str, got: str) -> MetadataError:
    return MetadataError(
        "the codec does not fit the data type",
        codec=spec.name,
        json_path=spec.json_path,
        expected=expected,
        got=got,
    )


def _parse_sharding(
    spec: CodecSpec, decoded: Decoded, options: Options, depth: int
) -> Sharding:
    if depth >= options.max_sharding_depth:
        raise LimitError(
            "sharding codecs are nested too deep",
            json_path=spec.json_path,
            expected=f"at most {options.max_sharding_depth} levels",
            hint="raise options.max_sharding_depth",
        )
    named = Named(spec.name, spec.configuration, spec.json_path)
    chunk_shape = _inner_chunk_shape(named, decoded)
    location = named.configuration.get("index_location", "end")
    if location not in ("start", "end"):
        path = named.at("index_location")
        raise wrong("the index location is not valid", path, "start or end", location)
    index_chain, size = _parse_index_codecs(named, len(chunk_shape))
    _check_index_size(named, chunk_shape, size, decoded, options)
    order = tuple(range(len(chunk_shape)))
    level = ShardLevel(chunk_shape, order, location, index_chain, size)
    within = Decoded(tuple((n,) for n in chunk_shape), decoded.data_type)
    path = named.at("codecs")
    inner = parse_chain(named.required("codecs"), path, within, options, depth + 1)
    return Sharding(level, inner)


def _inner_chunk_shape(named: Named, decoded: Decoded) -> tuple[int, ...]:
    path = named.at("chunk_shape")
    lengths = decoded.lengths
    chunk_shape = as_lengths(
        named.required("chunk_shape"),
        "the inner chunk shape",
        path,
        least=1,
        ndim=None if lengths is None else len(lengths),
    )
    for cell, of_axis in zip(chunk_shape, lengths or (), strict=False):
        for length in of_axis:
            if length % cell:
                expected = f"a divisor of the shard length {length}"
                what = "the inner chunks do not divide the shard"
                raise wrong(what, path, expected, list(chunk_shape))
    return chunk_shape


def _parse_index_codecs(named: Named, ndim: int) -> tuple[CodecChain, IndexSize]:
    """Chain of the shard index, and the encoded size that it gives an index."""
    path = named.at("index_codecs")
    specs = parse_specs(named.required("index_codecs"), path)
    for spec in specs:
        if spec.name in VARIABLE_SIZE:
            raise variable_size_error(spec)
    chain = _with_item_sizes(_split(specs, path), _INDEX_TYPE)
    index = Decoded(((1,),) * ndim + ((2,),), _INDEX_TYPE)
    for spec in chain.array_array:
        index = _encoded(spec, index)
    chain = _with_byte_order(chain, index)
    return chain, index_size(chain, ndim, path)


def _check_index_size(
    named: Named,
    chunk_shape: tuple[int, ...],
    size: IndexSize,
    decoded: Decoded,
    options: Options,
) -> None:
    largest = [max(of_axis, default=0) for of_axis in decoded.lengths or ()]
    n_entries = prod(
        length // cell for length, cell in zip(largest, chunk_shape, strict=False)
    )
    check_index_nbytes(size, n_entries, named.at("chunk_shape"), options)


def _spelled_out(spec: CodecSpec, sharding: Sharding) -> CodecSpec:
    """Sharding codec with defaults and short forms written out, as zarr needs it."""

    def listed(chain: CodecChain) -> list[dict[str, Any]]:
        return [as_json(inner) for inner in chain.specs]

    configuration = {
        "chunk_shape": list(sharding.level.chunk_shape),
        "codecs": listed(sharding.inner.chain),
        "index_codecs": listed(sharding.level.index_chain),
        "index_location": sharding.level.index_location,
    }
    return CodecSpec(spec.name, configuration, spec.json_path)


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
    inner_chunk_shape = _outer_chunk_shape(parsed, order)
    object_codecs: tuple[CodecSpec, ...] = ()
    levels: list[ShardLevel] = []
    while parsed.sharding is not None and _is_level(parsed.chain, outermost=not levels):
        if not levels:
            object_codecs = parsed.chain.bytes_bytes
        order = _transposed(order, parsed.chain)
        levels.append(_in_array_axes(parsed.sharding.level, order))
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


def _in_array_axes(level: ShardLevel, order: AxisOrder) -> ShardLevel:
    """The level of a sharding codec that sees the array's axes in another order."""
    lengths = dict(zip(order, level.chunk_shape, strict=True))
    chunk_shape = tuple(lengths[axis] for axis in range(len(order)))
    return replace(level, chunk_shape=chunk_shape, axis_order=order)


def _outer_chunk_shape(parsed: ParsedChain, order: AxisOrder) -> tuple[int, ...] | None:
    """Inner chunk shape of the outermost sharding codec; None if there is none."""
    sharding = parsed.sharding
    if sharding is None or len(sharding.level.chunk_shape) != len(order):
        return None
    order = _transposed(order, parsed.chain)
    return _in_array_axes(sharding.level, order).chunk_shape

"""Random stored arrays for Hypothesis.

Arrays are drawn as metadata documents, so that everything the specification allows can
be met, not only what one writer's interface offers; zarr-python writes the chunks.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import zarr
from hypothesis import assume, reject
from hypothesis import strategies as st
from numpy.typing import NDArray
from zarr.core.dtype import get_data_type_from_native_dtype

from zarr_oracle import HAS_RECTILINEAR, Json, StoredArray, quiet_zarr, write

# Data types: their JSON, their NumPy data type, and fill values in several spellings.

_FLOATS = [0, 1.5, -0.0, "NaN", "Infinity", "-Infinity"]


def _complex_fills(*hexadecimals: str) -> list[Any]:
    return [[0, 0], [1.5, -0.0], ["NaN", "-Infinity"], list(hexadecimals)]


_PLAIN: dict[str, list[Any]] = {
    "bool": [False, True],
    **{f"int{n}": [0, -3, -(2 ** (n - 1))] for n in (8, 16, 32, 64)},
    **{f"uint{n}": [0, 7, 2**n - 1] for n in (8, 16, 32, 64)},
    "float16": _FLOATS,  # zarr-python loses the payload of a half NaN
    "float32": [*_FLOATS, "0x7fc12345"],
    "float64": [*_FLOATS, "0xfff8000000000123"],
    "complex64": _complex_fills("0x7fc12345", "0xffc00001"),
    "complex128": _complex_fills("0x7ff8000000000123", "0x8000000000000000"),
}

_STRUCTS: list[Any] = [
    [("a", "i2"), ("b", "f4"), ("c", "S3"), ("d", "?")],
    [("t", "M8[ms]"), ("inner", [("x", "u1"), ("y", "c8")])],
]


# zarr 3.1 shards neither structs nor raw bytes, nor heeds the byte order of structs.
_FURTHER = [
    "M8[s]",
    "M8[10us]",
    "m8[D]",
    "U3",
    "S4",
    *(["V5", *_STRUCTS] if HAS_RECTILINEAR else []),
]


@dataclass(frozen=True)
class Elements:
    """A data type with the fill value of an array."""

    dtype: np.dtype[Any]
    json: Any
    fill_json: Any

    def values(self, shape: tuple[int, ...], seed: int, *, tame: bool) -> NDArray[Any]:
        """Elements of any bits, or of small numbers that filters can take."""
        rng = np.random.default_rng(seed)
        if self.dtype.kind == "b":
            return rng.random(shape) < 0.5
        if self.dtype.kind == "U":
            letters = rng.choice(list("aéz\U0001f600 "), (*shape, 3))
            return np.array(
                ["".join(row) for row in letters.reshape(-1, 3)], "U3"
            ).reshape(shape)
        if tame or (seed % 2 and self.dtype.kind in "iufc"):
            return rng.integers(0, 60, shape).astype(self.dtype)
        n_bytes = math.prod(shape) * self.dtype.itemsize
        values = np.frombuffer(rng.bytes(n_bytes), self.dtype).reshape(shape)
        return _with_true_bools(values)


def _with_true_bools(values: NDArray[Any]) -> NDArray[Any]:
    """Same values; bytes that no bool has are made one."""
    if values.dtype.names is None:
        return values
    values = values.copy()
    for name in values.dtype.names:
        if values.dtype[name].kind == "b":
            values[name] = values[name].view("u1") % 2
    return values


# To make a strategy takes longer than to draw from it: what can be is made once.
_NAMES = st.sampled_from([*_PLAIN, *_PLAIN, *map(str, range(len(_FURTHER)))])


@st.composite
def elements(draw: st.DrawFn) -> Elements:
    """Any data type, any spelling of its fill value."""
    name = draw(_NAMES)
    if name in _PLAIN:
        fill_json = draw(st.sampled_from(_PLAIN[name]))
        return Elements(np.dtype(name), name, fill_json)
    dtype = np.dtype(_FURTHER[int(name)])
    with quiet_zarr():
        known = get_data_type_from_native_dtype(dtype)
        plain = Elements(dtype, known.to_json(zarr_format=3), None)
        values = [np.zeros(1, dtype), plain.values((1,), 3, tame=False)]
        fill = draw(st.sampled_from(values))[0]
        fill_json = known.to_json_scalar(_readable(fill), zarr_format=3)
    return Elements(dtype, plain.json, fill_json)


def _readable(value: Any) -> Any:
    """The scalar, unless JSON cannot hold its text."""
    if value.dtype.kind == "S" or value.dtype.names is not None:
        return np.zeros((), value.dtype)[()]
    return value


# Codecs


def codec(name: str, **configuration: Any) -> Json:
    """Entry of a `codecs` list."""
    return {"name": name, "configuration": configuration}


def _blosc(name: str, shuffle: str, blocksize: int, typesize: int) -> Json:
    return codec(
        "blosc",
        cname=name,
        clevel=5,
        shuffle=shuffle,
        blocksize=blocksize,
        typesize=typesize,
    )


_BLOSC = st.builds(
    _blosc,
    st.sampled_from(["lz4", "lz4hc", "blosclz", "zstd", "zlib"]),
    st.sampled_from(["noshuffle", "shuffle", "bitshuffle"]),
    st.sampled_from([0, 64]),
    st.sampled_from([1, 2, 4, 8]),
)

BYTES_BYTES = st.one_of(
    st.builds(lambda sum_: codec("zstd", level=1, checksum=sum_), st.booleans()),
    st.just(codec("gzip", level=1)),
    _BLOSC,
    st.just({"name": "crc32c"}),
    st.sampled_from(
        [
            codec("numcodecs.lz4", acceleration=1),
            codec("numcodecs.zstd", level=1),
            codec("numcodecs.zlib", level=1),
            codec("numcodecs.gzip", level=1),
            codec("numcodecs.bz2", level=1),
            codec("numcodecs.lzma"),
            codec("numcodecs.blosc", cname="lz4", clevel=5, shuffle=1, blocksize=0),
            codec("numcodecs.crc32"),
            codec("numcodecs.adler32"),
            codec("numcodecs.fletcher32"),
        ]
    ),
)


# Since zarr 3.2.
_SCALED = [codec("scale_offset", offset=5, scale=10)] * hasattr(
    zarr.codecs, "ScaleOffset"
)


def _filters(dtype: np.dtype[Any]) -> list[Json]:
    """Filters that take elements of `dtype`."""
    name = dtype.newbyteorder("<").str
    if dtype.kind == "b":
        return [codec("numcodecs.packbits")]
    if dtype.kind in "iu":
        return [codec("numcodecs.delta", dtype=name)]
    if dtype.kind == "f" and dtype.itemsize > 2:
        scaled = {"offset": 5, "scale": 10, "dtype": name, "astype": "<i4"}
        return [
            *_SCALED,
            codec("numcodecs.bitround", keepbits=4),
            codec("numcodecs.fixedscaleoffset", **scaled),
            codec("numcodecs.quantize", digits=2, dtype=name),
        ]
    return []


_BYTES_CODEC = st.sampled_from(["little", "big"]).map(
    lambda endian: codec("bytes", endian=endian)
)
_UP_TO_TWO = st.lists(BYTES_BYTES, max_size=2)
_ONE_OR_TWO = st.lists(BYTES_BYTES, min_size=1, max_size=2)
_CHECKSUMS = st.sampled_from([[], [{"name": "crc32c"}]])
_LOCATIONS = st.sampled_from(["start", "end", None])


@cache
def _orders(ndim: int) -> st.SearchStrategy[list[int]]:
    return st.permutations(range(ndim))


@cache
@st.composite
def _transposes(draw: st.DrawFn, ndim: int) -> list[list[int]]:
    if ndim < 1 or draw(st.integers(0, 2)):
        return []
    return [list(draw(_orders(ndim)))]


@st.composite
def _innermost(draw: st.DrawFn, of: Elements, ndim: int) -> tuple[list[Json], bool]:
    """Codecs of an inner chunk, and whether they want tame numbers."""
    codecs = [codec("transpose", order=order) for order in draw(_transposes(ndim))]
    filters = _filters(of.dtype) if of.fill_json in (0, False) else []
    filtered = bool(filters) and not draw(st.integers(0, 3))
    if filtered:
        codecs.append(draw(st.sampled_from(filters)))
    # zarr 3.1 reads big-endian elements behind a filter as little-endian ones.
    big_allowed = HAS_RECTILINEAR or not filtered
    codecs.append(
        draw(_BYTES_CODEC) if big_allowed else codec("bytes", endian="little")
    )
    if not filtered and not draw(st.integers(0, 5)):
        codecs.append(codec("numcodecs.shuffle", elementsize=of.dtype.itemsize))
    codecs += draw(_UP_TO_TWO)
    return codecs, filtered


@cache
@st.composite
def _index_codecs(draw: st.DrawFn, ndim: int) -> list[Json]:
    codecs = [codec("transpose", order=order) for order in draw(_transposes(ndim + 1))]
    codecs.append(draw(_BYTES_CODEC))
    return codecs + draw(_CHECKSUMS)


@st.composite
def _chain(
    draw: st.DrawFn, of: Elements, cells: list[list[int]], axes: list[int]
) -> tuple[list[Json], bool]:
    """Codecs of arrays of shape ``cells[0]`` that are cut into the next, and so on.

    `axes` says which axis of the array each axis is that the chain is given.
    """
    if len(cells) == 1:
        return draw(_innermost(of, len(axes)))
    codecs: list[Json] = []
    for order in draw(_transposes(len(axes))):
        turned = [axes[axis] for axis in order]
        # zarr-python compares the inner chunk shape with the shard before it is turned.
        if all(
            cells[0][a] % cells[1][b] == 0 for a, b in zip(axes, turned, strict=True)
        ):
            codecs.append(codec("transpose", order=order))
            axes = turned
    inner, tame = draw(_chain(of, cells[1:], axes))
    configuration = {
        "chunk_shape": [cells[1][axis] for axis in axes],
        "codecs": inner,
        "index_codecs": draw(_index_codecs(len(axes))),
    }
    location = draw(_LOCATIONS)
    if location is not None:
        configuration["index_location"] = location
    codecs.append(codec("sharding_indexed", **configuration))
    if not draw(st.integers(0, 4)):
        codecs += draw(_ONE_OR_TWO)
    return codecs, tame


# Arrays

_KINDS = st.sampled_from(["whole", "whole", "none", "boxes"])
_LONGEST = {0: 0, 1: 40, 2: 11, 3: 7, 4: 4, 5: 3}


@st.composite
def stored_arrays(draw: st.DrawFn, *, min_levels: int = 0) -> StoredArray:
    """Any array: rank 0 to 5, any codecs, up to two levels of sharding."""
    ndim = draw(st.integers(0, 5))
    shape = tuple(draw(st.integers(0, _LONGEST[ndim])) for _ in range(ndim))
    cell = _few_cells(shape, [draw(st.integers(1, 4)) for _ in range(ndim)])
    of = draw(elements())
    cells = [cell]
    # zarr 3.1 writes no shards without axes.
    shardable = HAS_RECTILINEAR or ndim > 0
    assume(shardable or not min_levels)
    for _ in range(draw(st.integers(min_levels, 2)) if shardable else 0):
        cells.insert(0, [length * draw(st.integers(1, 3)) for length in cells[0]])
    codecs, tame = draw(_chain(of, cells, list(range(ndim))))
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": of.json,
        "chunk_grid": draw(_grid(shape, cells[0])),
        "chunk_key_encoding": draw(_key_encodings),
        "fill_value": of.fill_json,
        "codecs": codecs,
        "attributes": {},
    }
    seeds = itertools.count(draw(st.integers(0, 2**20)))
    regions = [
        (region, of.values(_shape_of(region, shape), seed, tame=tame))
        for region, seed in zip(draw(_regions(shape)), seeds, strict=False)
    ]
    try:
        return write(document, regions)
    except Exception:
        # zarr 3.1 and the numcodecs of its time fail on much that newer ones write.
        if not HAS_RECTILINEAR:
            reject()
        raise


def _few_cells(shape: tuple[int, ...], cell: list[int]) -> list[int]:
    """Cell lengths, doubled until zarr-python reads the array in milliseconds."""
    while math.prod(-(-n // c) for n, c in zip(shape, cell, strict=True)) > 60:
        shortest = cell.index(min(cell))
        cell[shortest] *= 2
    return cell


_key_encodings = st.sampled_from(
    [
        {"name": "default"},
        {"name": "v2"},
        *(
            {"name": name, "configuration": {"separator": separator}}
            for name in ("default", "v2")
            for separator in "/."
        ),
    ]
)


@st.composite
def _grid(draw: st.DrawFn, shape: tuple[int, ...], cell: list[int]) -> Json:
    """Chunk grid of `cell`, or one whose cells are multiples of it."""
    regular = {"name": "regular", "configuration": {"chunk_shape": cell}}
    if not HAS_RECTILINEAR or not shape or 0 in shape or draw(st.integers(0, 3)):
        return regular
    lengths: list[Any] = []
    for extent, unit in zip(shape, cell, strict=True):
        edges: list[int] = []
        while sum(edges) < extent:
            edges.append(unit * draw(st.integers(1, 3)))
        lengths.append(draw(st.sampled_from([edges, unit])))
    configuration = {"kind": "inline", "chunk_shapes": lengths}
    return {"name": "rectilinear", "configuration": configuration}


@st.composite
def _regions(draw: st.DrawFn, shape: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """What is written: everything, nothing, or a few boxes."""
    whole = tuple(slice(0, n) for n in shape)
    kind = draw(_KINDS)
    if kind != "boxes":
        return [whole] if kind == "whole" else []
    boxes: list[tuple[slice, ...]] = []
    for _ in range(draw(st.integers(1, 3))):
        ends = [sorted(draw(st.tuples(*[st.integers(0, n)] * 2))) for n in shape]
        boxes.append(tuple(slice(start, stop) for start, stop in ends))
    return boxes


def _shape_of(region: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(len(range(*s.indices(n))) for s, n in zip(region, shape, strict=True))

"""Checked metadata of a format before v3 -> an `ArrayLayout`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from gpushard.chunk_keys import ChunkKeys
from gpushard.errors import LimitError
from gpushard.formats.document import as_length
from gpushard.formats.grids import refuse_many_axes, regular_cell
from gpushard.formats.index_size import check_index_nbytes
from gpushard.formats.numcodecs_chain import StoredCodecs, parse_elements
from gpushard.formats.numpy_spelling import parse_numpy_fill
from gpushard.layout import (
    ENTRY_NBYTES,
    ArrayLayout,
    CodecChain,
    CodecSpec,
    GridAxis,
    IndexSize,
    ShardLevel,
)
from gpushard.options import Options

# Both historic shard formats: pairs of little-endian uint64, no checksum, at the end
# (draft of the storage transformer, "Binary shard format").
_INDEX_SIZE = IndexSize(ENTRY_NBYTES, trailer_nbytes=0)
_INDEX_CHAIN = CodecChain((), CodecSpec("bytes", {"endian": "little"}), ())


@dataclass(frozen=True, slots=True)
class HistoricSharding:
    """Chunks per shard along each axis, and the JSON path that says so."""

    chunks_per_shard: tuple[int, ...]
    json_path: str


@dataclass(frozen=True, slots=True)
class HistoricArray:
    """An array of one of the older formats; `dtype` and `fill_value` as spelled.

    Attributes
    ----------
    sharding
        From the inside out: chunks make shards, which make larger shards.
    data_path
        Path of the stored objects, if it is not the array's path.
    paths
        JSON paths of shape, chunk shape and data type.
    """

    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    dtype: Any
    codecs: StoredCodecs
    fill_value: Any
    sharding: Sequence[HistoricSharding]
    keys: ChunkKeys
    attributes: Mapping[str, Any]
    dimension_names: tuple[str | None, ...] | None = None
    data_path: str | None = None
    paths: tuple[str, str, str] = ("shape", "chunks", "dtype")
    fill_is_missing: bool = False
    is_v2: bool = False

    def layout(self, path: str, options: Options) -> ArrayLayout:
        """Layout of the array at `path`."""
        ndim, (_, _, type_path) = len(self.shape), self.paths
        refuse_many_axes(self.shape, self.paths[0])
        stored, chain = parse_elements(self.dtype, self.codecs, ndim, type_path)
        cells, levels = self._cells(options)
        data_type = stored.data_type
        return ArrayLayout(
            path=path,
            shape=self.shape,
            dtype=data_type.dtype,
            data_type_json=data_type.json,
            fill_value=parse_numpy_fill(self.fill_value, stored),
            fill_value_json=self._fill_value_json(data_type.is_variable_length),
            axes=tuple(map(GridAxis, self.shape, cells)),
            levels=levels,
            chain=chain,
            outer_order=tuple(range(ndim)),
            object_codecs=(),
            keys=self.keys,
            chunks=levels[0].chunk_shape if levels else cells,
            shards=cells if levels else None,
            attributes=self.attributes,
            dimension_names=self.dimension_names,
            data_path=self.data_path,
            fill_is_missing=self.fill_is_missing,
            is_v2=self.is_v2,
        )

    def _fill_value_json(self, is_variable_length: bool) -> Any:
        """The fill value as zarr's codecs for elements of variable size read it."""
        is_zero = self.fill_value is None or self.fill_value == 0
        return "" if is_variable_length and is_zero else self.fill_value

    def _cells(
        self, options: Options
    ) -> tuple[tuple[int, ...], tuple[ShardLevel, ...]]:
        """Shape of a stored object, and the sharding levels from the outside in."""
        if len(self.sharding) > options.max_sharding_depth:
            raise LimitError(
                "shards are nested too deep",
                json_path=self.sharding[0].json_path,
                expected=f"at most {options.max_sharding_depth} levels",
                hint="raise options.max_sharding_depth",
            )
        cells = tuple(
            regular_cell(cell, extent, f"{self.paths[1]}[{axis}]")
            for axis, (extent, cell) in enumerate(
                zip(self.shape, self.chunk_shape, strict=True)
            )
        )
        levels: list[ShardLevel] = []
        for sharding in self.sharding:
            levels.insert(0, _level(cells, sharding, options))
            cells = _multiplied(cells, sharding)
        return cells, tuple(levels)


def _level(
    chunk_shape: tuple[int, ...], sharding: HistoricSharding, options: Options
) -> ShardLevel:
    n_entries = prod(sharding.chunks_per_shard)
    check_index_nbytes(_INDEX_SIZE, n_entries, sharding.json_path, options)
    return ShardLevel(
        chunk_shape=chunk_shape,
        axis_order=tuple(range(len(chunk_shape))),
        index_location="end",
        index_chain=_INDEX_CHAIN,
        index_size=_INDEX_SIZE,
    )


def _multiplied(cells: tuple[int, ...], sharding: HistoricSharding) -> tuple[int, ...]:
    return tuple(
        as_length(cell * n, "the shard shape", f"{sharding.json_path}[{axis}]", least=1)
        for axis, (cell, n) in enumerate(
            zip(cells, sharding.chunks_per_shard, strict=True)
        )
    )

"""Arrays on disk for the time of a run: a few shards, and the same again and again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.configs import codecs_of

if TYPE_CHECKING:
    from benchmarks.gpu.sizes import Sizes

DTYPE = np.dtype("float32")
_PROCESSES = Path("/proc")


@dataclass(frozen=True, slots=True)
class Layout:
    """A two-dimensional array of float32.

    Attributes
    ----------
    codec
        As in `benchmarks.configs`, or one of `SPECIAL`.
    inner_shape, shard_shape
        In elements; a shard has all of a row.
    n_distinct, n_shards
        Shards that differ, and all of them.
    """

    codec: str
    inner_shape: tuple[int, int]
    shard_shape: tuple[int, int]
    n_distinct: int
    n_shards: int

    @classmethod
    def of(
        cls,
        sizes: Sizes,
        codec: str,
        inner_nbytes: int,
        nbytes: int,
        inner_width: int | None = None,
    ) -> Layout:
        """Array of `nbytes` bytes, its inner chunks as square as may be.

        Or they are `inner_width` elements wide, as far as one row of it fits.
        """
        n_elements = inner_nbytes // DTYPE.itemsize
        if inner_width is None:
            # Rows of a power of two, no shorter than an inner chunk is high.
            inner_width = min(sizes.width, 1 << n_elements.bit_length() // 2)
        inner_width = min(inner_width, n_elements)
        row_nbytes = sizes.width * DTYPE.itemsize
        shard_nbytes = min(sizes.shard_nbytes, nbytes)
        height = max(shard_nbytes // row_nbytes, n_elements // inner_width)
        n_shards = max(1, nbytes // (height * row_nbytes))
        n_distinct = max(1, sizes.distinct_nbytes // (height * row_nbytes))
        return cls(
            codec,
            (n_elements // inner_width, inner_width),
            (height, sizes.width),
            min(n_distinct, n_shards),
            n_shards,
        )

    @property
    def slug(self) -> str:
        """Name of its directory."""
        high, wide = self.inner_shape
        height = self.shard_shape[0]
        return f"field-{self.codec}-{high}x{wide}-{self.n_shards}x{height}"

    @property
    def shape(self) -> tuple[int, int]:
        """Elements along each axis."""
        return self.shard_shape[0] * self.n_shards, self.shard_shape[1]

    @property
    def nbytes(self) -> int:
        """Decoded bytes."""
        return self.shape[0] * self.shape[1] * DTYPE.itemsize

    def few(self) -> Layout:
        """The array of its distinct shards alone."""
        return replace(self, n_shards=self.n_distinct)

    def document(self) -> dict[str, Any]:
        """Contents of its ``zarr.json``."""
        little = {"name": "bytes", "configuration": {"endian": "little"}}
        sharding = {
            "chunk_shape": list(self.inner_shape),
            "codecs": _codecs(self.codec, little),
            "index_codecs": [little, {"name": "crc32c"}],
            "index_location": "end",
        }
        grid = {"chunk_shape": list(self.shard_shape)}
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": DTYPE.name,
            "chunk_grid": {"name": "regular", "configuration": grid},
            "chunk_key_encoding": {"name": "default"},
            "fill_value": 0,
            "attributes": {},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        }


def _codecs(codec: str, little: dict[str, Any]) -> list[dict[str, Any]]:
    shuffle = {"name": "numcodecs.shuffle", "configuration": {"elementsize": 4}}
    turn = {"name": "transpose", "configuration": {"order": [1, 0]}}
    if codec == "shuffle":
        return [little, shuffle]
    if codec == "transpose":
        return [turn, little]
    return [little, *codecs_of(codec, DTYPE.itemsize)]


@dataclass(frozen=True, slots=True)
class Stored:
    """An array on disk; `first` is what its distinct shards hold, from row 0 on."""

    layout: Layout
    path: Path
    first: NDArray[Any]


def values_of(layout: Layout, root: Path) -> NDArray[Any]:
    """Elements of the distinct shards, made once and kept below `root`."""
    high, wide = layout.shard_shape[0] * layout.n_distinct, layout.shard_shape[1]
    kept = root / f"field-{high}x{wide}.npy"
    if not kept.exists():
        with becoming(kept) as part:
            values = data.generate("field", (high, 1, wide)).reshape(high, wide)
            np.save(part / kept.name, values)
    return np.load(kept, mmap_mode="r")


def store(layout: Layout, root: Path) -> Stored:
    """The array below `root`; it is written if it is not there yet."""
    first = values_of(layout, root)
    path = root / layout.slug
    if not path.exists():
        # The distinct shards are an array of their own, so that arrays of other lengths
        # have the same ones: encoding them takes up to half a minute.
        few = layout.few()
        distinct = None if few == layout else store(few, root).path
        with becoming(path) as part:
            if distinct is None:
                data.write(layout, part, first)
            else:
                _repeated(layout, distinct, part / layout.slug)
    return Stored(layout, path, first)


@contextmanager
def becoming(path: Path) -> Iterator[Path]:
    """A directory of this process; what is made there by that name goes to `path`.

    It goes there whole or not at all, also where several processes make the same.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob("part-*"):
        # What a process left that was cut short.
        if _PROCESSES.exists() and not (_PROCESSES / left.name.split("-")[1]).exists():
            shutil.rmtree(left, ignore_errors=True)
    part = path.with_name(f"part-{os.getpid()}-{path.name}")
    part.mkdir()
    try:
        yield part
        try:
            (part / path.name).rename(path)
        except OSError:
            if not path.exists():  # nobody else was sooner
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _repeated(layout: Layout, distinct: Path, path: Path) -> None:
    """The array at `path`, all its shards links to those of the array `distinct`."""
    for shard in range(layout.n_shards):
        linked = path / f"c/{shard}/0"
        linked.parent.mkdir(parents=True)
        os.link(distinct / f"c/{shard % layout.n_distinct}/0", linked)
    document = json.dumps(layout.document())
    (path / "zarr.json").write_text(document, encoding="utf-8")

"""Images with a label each for a training: strokes, or digits that were scanned."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.configs import codecs_of

if TYPE_CHECKING:
    from benchmarks.gpu.sizes import Sizes

# Of the tests: MNIST's digits for tests, 28 x 28.
DIGITS = Path(__file__).parents[2] / "tests" / "data" / "real" / "mnist.zarr"
N_CLASSES = 10
SIDE = 64
# Squares of one brightness that a class's strokes consist of.
_COARSE = 8
# Bits of noise within the strokes; elsewhere an image is black, as scanned digits are.
_NOISE_BITS = 6


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """An array whose axis 0 is that of the samples, uint8.

    Attributes
    ----------
    name
        What a sample is: "images" or "labels", and of what.
    codec
        As in `benchmarks.configs`.
    sample_shape
        Of one sample.
    n_inner, n_shard, n
        Samples of an inner chunk, of a shard, and all.
    """

    name: str
    codec: str
    sample_shape: tuple[int, ...]
    n_inner: int
    n_shard: int
    n: int

    @property
    def slug(self) -> str:
        """Name of its directory."""
        return f"{self.name}-{self.codec}-{self.n_inner}-{self.n_shard}-{self.n}"

    def document(self) -> dict[str, Any]:
        """Contents of its ``zarr.json``."""
        little = {"name": "bytes", "configuration": {"endian": "little"}}
        sharding = {
            "chunk_shape": [self.n_inner, *self.sample_shape],
            "codecs": [little, *codecs_of(self.codec, 1)],
            "index_codecs": [little, {"name": "crc32c"}],
            "index_location": "end",
        }
        grid = {"chunk_shape": [self.n_shard, *self.sample_shape]}
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [self.n, *self.sample_shape],
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": grid},
            "chunk_key_encoding": {"name": "default"},
            "fill_value": 0,
            "attributes": {},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        }


class Stored(NamedTuple):
    """Paths of the two arrays."""

    images: Path
    labels: Path


def made(n: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """`n` images and their labels, the same for the same `n`; compressed to half.

    Each class has strokes of its own, which are moved by a few pixels and are noisy.
    """
    rng = np.random.default_rng(data.SEED)
    coarse = rng.integers(0, 2, (N_CLASSES, _COARSE, _COARSE), np.uint8)
    block = np.ones((SIDE // _COARSE, SIDE // _COARSE), np.uint8)
    strokes = np.kron(coarse, block)
    moves = [(y, x) for y in range(-2, 3) for x in range(-2, 3)]
    moved = np.stack([np.roll(strokes, move, (1, 2)) for move in moves], axis=1)
    labels = rng.integers(0, N_CLASSES, n, np.uint8)
    lit = moved[labels, rng.integers(0, len(moves), n)]
    brightest = 256 - (1 << _NOISE_BITS)
    noise = rng.integers(0, 1 << _NOISE_BITS, lit.shape, np.uint8)
    return lit * (noise + np.uint8(brightest)), labels


def scaled_digits(n: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """`n` scanned digits and their labels, of twice the size, and moved a little."""
    import zarr

    group = zarr.open_group(str(DIGITS), mode="r")
    digits, labels = (np.asarray(group[name]) for name in ("images", "labels"))
    rng = np.random.default_rng(data.SEED)
    which = np.arange(n) % len(digits)
    twice = digits[which].repeat(2, 1).repeat(2, 2)
    side = twice.shape[1]
    found = np.zeros((n, SIDE, SIDE), np.uint8)
    places = rng.integers(0, SIDE - side + 1, (n, 2)).tolist()
    for image, digit, (y, x) in zip(found, twice, places, strict=True):
        image[y : y + side, x : x + side] = digit
    return found, labels[which]


MAKERS = {"strokes": made, "digits": scaled_digits}


def store(sizes: Sizes, codec: str, root: Path, what: str = "strokes") -> Stored:
    """The arrays below `root`; they are written if they are not there yet.

    `what` is a key of `MAKERS`.
    """
    n, n_shard = sizes.n_images, sizes.n_shard_images
    kind = "" if what == "strokes" else f"-{what}"
    layouts = (
        ImageLayout(
            f"images{kind}", codec, (SIDE, SIDE), sizes.n_inner_images, n_shard, n
        ),
        # A label alone is no inner chunk: as a rule they are read by the shard.
        ImageLayout(f"labels{kind}", codec, (), n_shard, n_shard, n),
    )
    paths = Stored(*(root / layout.slug for layout in layouts))
    if all(path.exists() for path in paths):
        return paths
    n_distinct = min(sizes.n_distinct_images, n)
    for layout, values in zip(layouts, MAKERS[what](n_distinct), strict=True):
        _write(layout, values, root)
    return paths


def _write(layout: ImageLayout, values: NDArray[np.uint8], root: Path) -> None:
    """Write the first samples; the rest are the same shards under other names."""
    part = root / "part"
    shutil.rmtree(part, ignore_errors=True)  # what a task left that was cut short
    part.mkdir(parents=True)
    few = data.write(replace(layout, n=len(values)), part, values)
    end = "/0" * len(layout.sample_shape)
    n_distinct = len(values) // layout.n_shard
    for shard in range(n_distinct, layout.n // layout.n_shard):
        linked = few / f"c/{shard}{end}"
        linked.parent.mkdir(parents=True, exist_ok=True)
        os.link(few / f"c/{shard % n_distinct}{end}", linked)
    (few / "zarr.json").write_text(json.dumps(layout.document()), encoding="utf-8")
    shutil.rmtree(root / layout.slug, ignore_errors=True)
    few.rename(root / layout.slug)

"""Random arrays, random selections: every result is zarr-python's, bit for bit.

How many arrays a profile draws for each property, `tests/conftest.py` and the settings
below say; of most, several selections of each kind are read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st
from zarr.testing import strategies as zarr_strategies

import gpushard
from array_strategies import stored_arrays
from selection_strategies import (
    basic_keys,
    masks,
    orthogonal_keys,
    point_keys,
    take_orthogonal,
)
from zarr_oracle import StoredArray, assert_same_bits, quiet_zarr

# zarr 3.1 says so wherever one of numcodecs' codecs is made.
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")

KINDS = st.sampled_from(["memory", "memory", "local", "remote", "zip"])
# In CI 120 of our own arrays, and 20 of zarr's.
MORE = settings(max_examples=settings.default.max_examples * 4)
FEWER = settings(max_examples=max(1, settings.default.max_examples * 2 // 3))


@pytest.fixture(scope="module", autouse=True)
def _zarr_reads_by_default() -> Iterator[None]:
    """What zarr gives is read by another of its pipelines than what wrote it."""
    pipeline = "zarr.core.codec_pipeline.BatchedCodecPipeline"
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        yield


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("stores")


def opened(stored: StoredArray, data: Any, directory: Path) -> gpushard.Array:
    return gpushard.open_array(stored.placed(data.draw(KINDS), directory))


def drawn(data: Any, keys: st.SearchStrategy[Any], n: int = 3) -> list[Any]:
    found = [data.draw(keys) for _ in range(n)]
    note(f"{found}")
    return found


# Arrays of our own: drawn and written, which takes longest, once for several kinds of
# selections


@st.composite
def block_keys(draw: st.DrawFn, n_blocks: tuple[int, ...]) -> tuple[Any, ...]:
    """One cell or a run of cells along each axis of the chunk grid."""
    key: list[Any] = []
    for n in n_blocks:
        first = draw(st.integers(-n, n - 1))
        stop = draw(st.none() | st.integers(0, n + 1))
        key.append(draw(st.sampled_from([first, slice(first, stop)])))
    return tuple(key)


def block_starts(document: dict[str, Any]) -> list[list[int]]:
    """First element of every cell along each axis, then the array's extent."""
    grid, shape = document["chunk_grid"], document["shape"]
    kinds = {"regular": "chunk_shape", "rectilinear": "chunk_shapes"}
    starts: list[list[int]] = []
    for cell, extent in zip(
        grid["configuration"][kinds[grid["name"]]], shape, strict=True
    ):
        lengths = itertools.repeat(cell) if isinstance(cell, int) else cell
        ends = itertools.accumulate(lengths)
        before = itertools.takewhile(lambda end: end < extent, ends)  # noqa: B023 - used at once
        starts.append([0, *before, extent])
    return starts


def slices_of_cells(key: tuple[Any, ...], starts: list[list[int]]) -> tuple[slice, ...]:
    """Elements of the cells that `key` names along each axis."""
    where = []
    for k, s in zip(key, starts, strict=True):
        all_cells = range(len(s) - 1)
        cells = all_cells[k] if isinstance(k, slice) else all_cells[k:][:1]
        found = slice(s[cells.start], s[cells.stop]) if len(cells) else slice(0, 0)
        where.append(found)
    return tuple(where)


@MORE
@given(stored_arrays(), st.data())
def test_selections_along_axes_equal_numpys_of_zarrs_array(directory, stored, data):
    a, full = opened(stored, data, directory), stored.full
    assert_same_bits(a[...], full)
    for key in drawn(data, basic_keys(full.shape)):
        assert_same_bits(a[key], full[key])
    for key in drawn(data, orthogonal_keys(full.shape)):
        assert_same_bits(a.oindex[key], take_orthogonal(full, key))
    keys = drawn(data, basic_keys(full.shape), 4)
    for key, got in zip(keys, a.read_many(keys), strict=True):
        assert_same_bits(got, np.asarray(full[key], full.dtype))
    if full.size:
        starts = block_starts(stored.document)
        for key in drawn(data, block_keys(tuple(len(s) - 1 for s in starts))):
            assert_same_bits(a.blocks[key], full[slices_of_cells(key, starts)])


@MORE
@given(stored_arrays(), st.data())
def test_points_and_masks_equal_those_of_zarrs_array(directory, stored, data):
    full = stored.full
    assume(full.ndim)
    a = opened(stored, data, directory)
    mask = data.draw(masks(full.shape))
    assert_same_bits(a[mask], full[mask])
    assert_same_bits(a.vindex[mask], full[mask])
    if full.size:
        for key in drawn(data, point_keys(full.shape), 2):
            assert_same_bits(a.vindex[key], full[key])


# zarr-python's own strategies


def zarr_array(data: Any, strategy: st.SearchStrategy[Any]) -> tuple[Any, np.ndarray]:
    with quiet_zarr():
        made = data.draw(strategy)
        # As stored: a document may say NaN, whatever bits `made` remembers.
        z = zarr.open_array(made.store, path=made.path, mode="r")
        return z, np.asarray(z[...], z.dtype)


@FEWER
@given(st.data())
def test_arrays_of_zarrs_strategies_are_read_alike(data):
    z, full = zarr_array(data, zarr_strategies.arrays(zarr_formats=st.just(3)))
    a = gpushard.open_array(z)
    assert_same_bits(a[...], full)
    assert a.attrs == dict(z.attrs)
    for key in drawn(data, zarr_strategies.basic_indices(shape=z.shape), 2):
        assert_same_bits(a[key], np.asarray(z[key], z.dtype)[()])
    if 0 not in z.shape:
        key, _ = data.draw(zarr_strategies.orthogonal_indices(shape=z.shape))
        assert_same_bits(a.oindex[key], np.asarray(z.oindex[key], z.dtype)[()])


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not hasattr(zarr_strategies, name), reason=f"this zarr has no strategy {name}"
    )


@needs("sharded_arrays")
@FEWER
@given(st.data())
def test_sharded_arrays_of_zarrs_strategies_are_read_alike(data):
    z, full = zarr_array(data, zarr_strategies.sharded_arrays())
    a = gpushard.open_array(z)
    assert (a.chunks, a.shards) == (z.chunks, z.shards)
    assert_same_bits(a[...], full)
    for key in drawn(data, zarr_strategies.basic_indices(shape=z.shape), 2):
        assert_same_bits(a[key], np.asarray(z[key], z.dtype)[()])
    key, _ = data.draw(zarr_strategies.orthogonal_indices(shape=z.shape))
    assert_same_bits(a.oindex[key], np.asarray(z.oindex[key], z.dtype)[()])


@needs("block_indices")
@FEWER
@given(st.data())
def test_blocks_of_zarrs_strategies_are_read_alike(data):
    with quiet_zarr():
        z, _ = data.draw(zarr_strategies.block_test_arrays())
    a = gpushard.open_array(z)
    strategy = zarr_strategies.block_indices(chunk_sizes=z.write_chunk_sizes)
    for key, _ in drawn(data, strategy, 2):
        assert_same_bits(a.blocks[key], z.blocks[key])

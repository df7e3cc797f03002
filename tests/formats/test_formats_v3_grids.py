"""Chunk grids of Zarr v3, regular and rectilinear."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gpushard
from gpushard.errors import MetadataError, UnsupportedError
from gpushard.formats import grids
from v3_documents import document, grid, parse, rectilinear, refused, sharding


def test_a_regular_grid_reaches_beyond_the_extent():
    layout = parse()
    assert [axis.n_cells for axis in layout.axes] == [3, 2]
    assert all(axis.boundaries is None for axis in layout.axes)


@pytest.mark.parametrize(
    ("value", "error", "json_path"),
    [
        (grid(4), MetadataError, "chunk_grid.configuration.chunk_shape"),
        (grid(4, 0), MetadataError, "chunk_grid.configuration.chunk_shape[1]"),
        (grid(4, -6), MetadataError, "chunk_grid.configuration.chunk_shape[1]"),
        (grid(4, 6.0), MetadataError, "chunk_grid.configuration.chunk_shape[1]"),
        (grid(4, True), MetadataError, "chunk_grid.configuration.chunk_shape[1]"),
        (grid(4, 2**64), MetadataError, "chunk_grid.configuration.chunk_shape[1]"),
        ("regular", MetadataError, "chunk_grid.configuration.chunk_shape"),
        (
            {"name": "regular", "configuration": 1},
            MetadataError,
            "chunk_grid.configuration",
        ),
        ({"name": 3}, MetadataError, "chunk_grid.name"),
        ([], MetadataError, "chunk_grid"),
        ({"name": "hexagonal"}, UnsupportedError, "chunk_grid.name"),
        ({**grid(4, 6), "offset": 1}, UnsupportedError, "chunk_grid.offset"),
    ],
)
def test_a_chunk_grid_that_does_not_fit_is_refused(value, error, json_path):
    refused(error, json_path, chunk_grid=value)


def test_a_chunk_length_of_0_is_read_only_where_the_axis_is_empty():
    layout = parse(shape=[0, 12], chunk_grid=grid(0, 6))
    assert [axis.n_cells for axis in layout.axes] == [0, 2]


def test_a_rectilinear_grid_is_prefix_sums_of_its_run_lengths():
    layout = parse(chunk_grid=rectilinear([[2, 3], 4], 5))
    rows, columns = layout.axes
    np.testing.assert_array_equal(rows.boundaries, [0, 2, 4, 6, 10])
    assert rows.boundaries.dtype == np.int64
    assert rows.n_cells == 4
    assert (columns.cell, columns.boundaries) == (5, None)
    assert (rows.lengths, columns.lengths) == ((2, 2, 2, 4), 5)
    assert (layout.chunks, layout.shards) == (None, None)


def test_rectilinear_cells_beyond_the_extent_are_dropped():
    layout = parse(chunk_grid=rectilinear([6, [6, 4]], [12]))
    np.testing.assert_array_equal(layout.axes[0].boundaries, [0, 6, 12])
    assert layout.axes[0].lengths == (6, 4)
    empty = parse(shape=[0, 12], chunk_grid=rectilinear([6, 6], [12]))
    assert empty.axes[0].n_cells == 0
    assert empty.axes[0].lengths == (0,)


@pytest.mark.parametrize("how", [{}, {"codecs": [sharding([2, 3])]}], ids=str)
def test_rectilinear_arrays_of_length_0_are_opened_and_read(tmp_path, how):
    empty = document(shape=[0, 12], chunk_grid=rectilinear([4, 6], 6), **how)
    (tmp_path / "zarr.json").write_text(json.dumps(empty))
    a = gpushard.open_array(tmp_path)
    assert a[...].shape == (0, 12)
    assert a.vindex[[], []].shape == (0,)


def test_rectilinear_shards_hold_regular_inner_chunks():
    layout = parse(chunk_grid=rectilinear([4, 6], [[6, 2]]), codecs=[sharding([2, 3])])
    assert layout.levels[0].chunk_shape == (2, 3)
    assert (layout.chunks, layout.shards) == ((2, 3), None)


def test_inner_chunks_must_divide_every_rectilinear_length():
    path = "codecs[0].configuration.chunk_shape"
    codecs = [sharding([2, 3])]
    refused(MetadataError, path, chunk_grid=rectilinear([4, 7], 6), codecs=codecs)
    # Also those of cells that lie beyond the extent.
    refused(MetadataError, path, chunk_grid=rectilinear([4, 6, 7], 6), codecs=codecs)


@pytest.mark.parametrize(
    ("value", "error", "below"),
    [
        (rectilinear([4, 5], 6), MetadataError, "chunk_shapes[0]"),
        (rectilinear([], 6), MetadataError, "chunk_shapes[0]"),
        (rectilinear([[4, 3]]), MetadataError, "chunk_shapes"),
        (rectilinear([[4, 3, 1]], 6), MetadataError, "chunk_shapes[0][0]"),
        (rectilinear([4, [0, 9]], 6), MetadataError, "chunk_shapes[0][1][0]"),
        (rectilinear([4, [9, 0]], 6), MetadataError, "chunk_shapes[0][1][1]"),
        (rectilinear([4, "6"], 6), MetadataError, "chunk_shapes[0][1]"),
        (rectilinear([4, True], 6), MetadataError, "chunk_shapes[0][1]"),
        (rectilinear(0, 6), MetadataError, "chunk_shapes[0]"),
        (rectilinear([[1, 10**12]], 6), UnsupportedError, "chunk_shapes[0]"),
        (rectilinear([[2**61, 2**61]], 6), MetadataError, "chunk_shapes[0]"),
        (rectilinear([10], 6, kind="external"), UnsupportedError, "kind"),
        (rectilinear([10], 6, offset=1), UnsupportedError, "offset"),
    ],
)
def test_a_rectilinear_grid_that_does_not_fit_is_refused(value, error, below):
    refused(error, f"chunk_grid.configuration.{below}", chunk_grid=value)


def test_all_rectilinear_axes_together_may_spell_out_a_bounded_number_of_cells(
    monkeypatch,
):
    """Each takes 8 bytes, and a document of a few bytes can spell out millions."""
    monkeypatch.setattr(grids, "_MAX_CELLS", 8)
    layout = parse(chunk_grid=rectilinear([[2, 5]], [[4, 3]]))
    assert [axis.n_cells for axis in layout.axes] == [5, 3]
    for second in ([[3, 4]], [12, 12, 12, 12]):
        path = "chunk_grid.configuration.chunk_shapes[1]"
        error = refused(
            UnsupportedError, path, chunk_grid=rectilinear([[2, 5]], second)
        )
        assert error.got == 9
    parse(chunk_grid=rectilinear(1, [[2, 8]]))


def test_rectilinear_boundaries_are_those_that_zarr_reads():
    v3 = pytest.importorskip("zarr.core.metadata.v3", reason="not public in zarr")
    if not hasattr(v3, "RectilinearChunkGridMetadata"):
        pytest.skip("rectilinear grids came with zarr 3.2")
    for spec in ([[2, 3], 4], [1, [3, 2], [1, 3]], [10], [[1, 10]]):
        parsed = v3.RectilinearChunkGridMetadata.from_dict(rectilinear(spec, 12))
        ours = parse(chunk_grid=rectilinear(spec, 12)).axes[0]
        np.testing.assert_array_equal(np.diff(ours.boundaries), parsed.chunk_shapes[0])


def test_long_grids_that_differ_in_the_middle_have_other_digests():
    digests = {
        parse(
            shape=[2003], chunk_grid=rectilinear([[1, 1000], *middle, [1, 1000]])
        ).digest()
        for middle in ([2, 1], [1, 2], [1, 2])
    }
    assert len(digests) == 2

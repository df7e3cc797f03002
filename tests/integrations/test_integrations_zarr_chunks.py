"""What zarr wants of chunks, one by one, as one selection of the array."""

from __future__ import annotations

from copy import deepcopy
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

from gpushard.errors import UnsupportedError
from gpushard.integrations.zarr import arrays
from gpushard.integrations.zarr.arrays import PipelineArray
from gpushard.integrations.zarr.batch import selection_of
from gpushard.integrations.zarr.pieces import Entry
from gpushard.layout import GridAxis
from gpushard.selecting.selection import Orthogonal, SliceAxis

ALL, ROW = slice(0, 2), np.arange(2)
HALVES = slice(0, 2), slice(2, 4)


def wanted(*entries) -> Any:
    """Selection of entries of a 1D array in chunks of 4: index, place in the output."""
    taken = [Entry((at,), (index,), (place,)) for at, (index, place) in entries]
    n = sum(place.stop - place.start for _, (_, place) in entries)
    return selection_of(taken, [GridAxis(20, 4)], (n,), ())


def test_chunks_that_continue_one_another_are_a_slice():
    found = wanted((1, np.s_[1:4:2, 0:2]), (2, np.s_[1:4:2, 2:4]))
    assert found == Orthogonal((SliceAxis(5, 2, 4),), (4,))


@pytest.mark.parametrize(
    ("entries", "elements"),
    [
        ([(0, np.s_[0:4, 4:8]), (1, np.s_[0:4, 0:4])], [4, 5, 6, 7, 0, 1, 2, 3]),
        ([(0, np.s_[0:3, 0:3]), (1, np.s_[0:4, 3:7])], [0, 1, 2, 4, 5, 6, 7]),
        ([(0, np.s_[0:4:2, 0:2]), (1, np.s_[0:2, 2:4])], [0, 2, 4, 5]),
        ([(0, np.s_[::-1, 0:4])], [3, 2, 1, 0]),
        ([(0, np.s_[0:2, 0:2]), (1, (np.array([3, 1]), slice(2, 4)))], [0, 1, 7, 5]),
    ],
)
def test_chunks_that_do_not_are_read_to_their_own_places(entries, elements):
    (axis,) = wanted(*entries).axes
    found = np.empty(len(elements), int)
    found[axis.out_index] = axis.element
    assert found.tolist() == elements


@pytest.mark.parametrize("share", [True, False])
def test_chunks_of_a_grid_are_joined_whether_or_not_they_share_selectors(share):
    whole, halves = slice(0, 2), [slice(0, 2), slice(2, 4)]
    entries = []
    for at in product(range(2), range(2)):
        index = (whole, whole, 1), tuple(halves[k] for k in at)
        index = index if share else deepcopy(index)
        entries.append(Entry((*at, 0), *index))
    found = selection_of(entries, [GridAxis(4, 2)] * 3, (4, 4), ())
    along = SliceAxis(0, 1, 4)
    assert found == Orthogonal((along, along, SliceAxis(1, 1, 1, drop=True)), (4, 4))


GROUP = zarr.storage.MemoryStore()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["a/c/0/1", "b/c/0/0"], "several arrays.*got b"),
        (["a/c/0/1", "a/b/c/0/0"], "several arrays.*got a/b"),
        (["a/c/0/1", "a/c/0/1/1"], "not a chunk"),
        (["a/c/0/1", "a/c/0/01"], "not a chunk"),
        (["a/c/0/1", "a/c/0/x"], "not a chunk"),
        (["a/c/0/-1"], "not a chunk"),
        (["c/0"], "not a chunk"),
    ],
)
def test_keys_that_are_not_of_chunks_of_one_array_are_left_to_zarr(keys, words):
    a = zarr.create_array(
        GROUP, name="a", shape=(4, 4), chunks=(2, 2), dtype="u1", overwrite=True
    )
    batch = [(zarr.storage.StorePath(GROUP, key), None, ALL, ALL, True) for key in keys]
    with pytest.raises(UnsupportedError, match=words):
        PipelineArray(a.metadata, GROUP).wanted(batch, None)


def wanted_source(array, store, **settings) -> Any:
    """The array as a read asks for it, with some of zarr's settings."""
    gaps = {"sharding_coalesce_max_gap_bytes": 1, "sharding_coalesce_max_bytes": 9}
    spec = SimpleNamespace(
        prototype=default_buffer_prototype(), config=SimpleNamespace(**gaps | settings)
    )
    key = zarr.storage.StorePath(store, "a/c/0/1")
    return array.wanted([(key, spec, ALL, ALL, True)], None)[0]


def test_an_array_is_made_anew_for_other_settings_and_after_a_write():
    store = zarr.storage.MemoryStore()
    a = zarr.create_array(store, name="a", shape=(4, 4), chunks=(2, 2), dtype="u1")
    array = PipelineArray(a.metadata, store)
    first = wanted_source(array, store)
    assert wanted_source(array, store) is first
    other = wanted_source(array, store, sharding_coalesce_max_bytes=5)
    assert other.store.costs.max_request_nbytes == 5
    array.forget()
    again = wanted_source(array, store, sharding_coalesce_max_bytes=5)
    assert again is not other
    assert again.indexes is not other.indexes


def test_a_write_that_ends_while_a_read_begins_disturbs_neither(monkeypatch):
    store = zarr.storage.MemoryStore()
    a = zarr.create_array(store, name="a", shape=(4, 4), chunks=(2, 2), dtype="u1")
    array = PipelineArray(a.metadata, store)

    def inside(*given):
        array.forget()
        return inside_of(*given)

    inside_of = arrays._inside
    monkeypatch.setattr(arrays, "_inside", inside)
    first = wanted_source(array, store)  # kept, although its base is forgotten
    monkeypatch.undo()
    assert wanted_source(array, store).indexes is not first.indexes


def test_what_does_not_fit_its_places_is_left_to_zarr():
    with pytest.raises(UnsupportedError, match="differ in length"):
        wanted((0, np.s_[0:3, 0:4]))
    with pytest.raises(UnsupportedError, match="several dimensions"):
        wanted((0, (np.ones((2, 2), int), slice(0, 4))))
    twice = [Entry((at,), (1,), ()) for at in range(2)]
    with pytest.raises(UnsupportedError, match="dropped has several elements"):
        selection_of(twice, [GridAxis(20, 4)], (), ())


@pytest.mark.parametrize(
    ("entries", "shape", "words"),
    [
        ([Entry((0,), ALL, (ALL, ALL))], (2, 2), "a chunk has another number of axes"),
        ([Entry((0, 0), (ALL, ALL), ALL)], (2, 2), "output has another number of axes"),
        ([Entry((0, 0), (ALL, [0.5]), (ALL, ALL))], (2, 2), "of data type float64"),
        ([Entry((0, 0), (ALL, [2]), (ALL, [0]))], (2, 1), "out of bounds"),
        (
            [
                Entry((0, 0), (ALL, ALL), (ALL, HALVES[0])),
                Entry((0, 1), (ALL, ALL), (HALVES[1], HALVES[1])),
            ],
            (4, 4),
            "one row of the grid differ",
        ),
        *(
            (
                [
                    Entry((k, n), (ALL, ALL), (HALVES[k], HALVES[n]))
                    for k, n in [(0, 0), (0, 1), (1, 0)]
                ]
                + [Entry((1, 1), (ALL, index), (HALVES[1], place))],
                (4, 4),
                "one row of the grid differ",
            )
            for index, place in [(ALL, HALVES[0]), (slice(1, None, -1), HALVES[1])]
        ),
        (
            [Entry((k, k), (ALL, ALL), (half, half)) for k, half in enumerate(HALVES)],
            (4, 4),
            "no part of a grid",
        ),
        *(
            (
                [
                    Entry((0, 0), (ALL, ALL), (ALL, ALL)),
                    Entry((0, 0), (ALL,) * n, (ALL,) * n_out),
                ],
                (2, 2),
                f"index of {whose} has another number of axes",
            )
            for whose, n, n_out in [
                ("the output", 2, 1),
                ("the output", 2, 3),
                ("a chunk", 1, 1),
                ("a chunk", 3, 2),
            ]
        ),
        *(
            (
                [Entry((0, 0), (ALL, ALL), (ALL, ALL))],
                shape,
                "output has another number",
            )
            for shape in [(2,), (2, 2, 1)]
        ),
        ([Entry((0, 0), (ALL, ALL), (ALL, ALL))], (3, 2), "do not fill the output"),
        ([Entry((0, 0), (ROW, ROW), slice(0, 1))], (2,), "differ in length"),
        ([Entry((0, 0), (ROW, ROW), ALL)], (3,), "points do not fill the output"),
    ],
)
def test_what_zarr_was_never_seen_to_ask_for_is_left_to_it(entries, shape, words):
    with pytest.raises(UnsupportedError, match=words):
        selection_of(entries, [GridAxis(4, 2)] * 2, shape, ())

"""Rows of columns, taken without a copy where they are neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from gpushard.selecting.numbering import as_slice, columns_at


@pytest.mark.parametrize("rows", [[3], [0, 1, 2], [5, 6, 7, 8]])
def test_neighbours_become_a_slice_and_their_columns_a_view(rows):
    table = np.arange(30).reshape(3, 10)
    taken = as_slice(np.array(rows))
    assert taken == slice(rows[0], rows[-1] + 1)
    columns = columns_at(table, taken)
    assert np.shares_memory(columns, table)
    assert columns.tolist() == table[:, rows].tolist()


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [1, 3],
        [2, 1, 0],
        [0, 2, 1, 3],
        [0, 0, 2],
        [0, 5, 1, 3],
        [4, 4],
        [0, 3, 2, 1, 4, 5],
    ],
)
def test_other_rows_stay_a_list(rows):
    table, listed = np.arange(30).reshape(3, 10), np.array(rows, np.int64)
    assert as_slice(listed) is listed
    assert columns_at(table, listed).tolist() == table[:, listed].tolist()
